//! `/api/subscriptions`: creates, lists, shows, changes, pauses, resumes and deletes subscriptions, and shows what one would
//! have taken. A caller of a client sees those of its client.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::header::{ETAG, LOCATION};
use http::{HeaderName, StatusCode};
use tidegate::Tsid;
use tidegate_dispatch::{Gateway, GatewayError, Match};

use crate::callers::{Manager, Reader};
use crate::error::{ErrorBody, Result};
use crate::extract::{IfMatch, JsonBody, OptionalBody, PathText, Query, tsid};
use crate::routes::clients::{named, still_there};
use crate::routes::event_types::{Tagged, tag};
use crate::service::Service;
use crate::wire::event_types::IfMatchHeader;
use crate::wire::facts::{FactsAnswer, PreviewParams};
use crate::wire::replays::{ReplayAnswer, ResumeAnswer, ResumeText};
use crate::wire::secrets::{RotateText, RotatedAnswer};
use crate::wire::subscriptions::{
    SubscriptionAnswer, SubscriptionPath, SubscriptionText, SubscriptionsAnswer, SubscriptionsParams,
};

/// Creates a subscription. Its signing secret is shown this once.
#[utoipa::path(
    post, path = "/api/subscriptions", operation_id = "create_subscription", tag = "subscriptions",
    request_body = SubscriptionText,
    responses(
        (status = 201, description = "The subscription, ACTIVE.", body = SubscriptionAnswer),
        (status = 409, description = "The code is taken, or others keep changing the pool at the same time.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn create(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    JsonBody(body): JsonBody<SubscriptionText>,
) -> Result<(StatusCode, [(HeaderName, String); 2], Json<SubscriptionAnswer>)> {
    let client = named(&service, &caller, body.client_id.as_deref()).await?;
    let (made, secret) = service.gateway.create_subscription(client, &body.code()?, &body.read()?).await?;
    if let Err(error) = still_there(&service, &caller, client).await {
        return match service.gateway.delete_subscription(made.id, client, Match::Any).await {
            Ok(()) | Err(GatewayError::NotFound(_)) => Err(error),
            Err(failed) => Err(failed.into()),
        };
    }
    let headers = [(ETAG, format!("\"{}\"", made.revision)), (LOCATION, format!("/api/subscriptions/{}", made.id))];
    Ok((StatusCode::CREATED, headers, Json(SubscriptionAnswer::created(made, secret))))
}

/// Lists subscriptions by client and code. One that this server cannot read, because a newer one has written it, is left out.
#[utoipa::path(
    get, path = "/api/subscriptions", operation_id = "list_subscriptions", tag = "subscriptions",
    params(SubscriptionsParams),
    responses((status = 200, description = "A page of subscriptions.", body = SubscriptionsAnswer)),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    Query(params): Query<SubscriptionsParams>,
) -> Result<Json<SubscriptionsAnswer>> {
    let visible = caller.visible_as("clientId", params.client_id.as_deref())?;
    let page = service.gateway.list_subscriptions(&params.read(visible)?).await?;
    Ok(Json(SubscriptionsAnswer::of(page, visible)))
}

/// Shows a subscription.
#[utoipa::path(
    get, path = "/api/subscriptions/{id}", operation_id = "show_subscription", tag = "subscriptions",
    params(SubscriptionPath),
    responses(
        (status = 200, description = "The subscription.", body = SubscriptionAnswer),
        (status = 404, description = "There is no such subscription.", body = ErrorBody),
    ),
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(id): PathText,
) -> Result<Tagged<SubscriptionAnswer>> {
    let client = caller.visible(None)?.client();
    let found = service.gateway.subscription(subscription_id(&id)?, client).await?;
    Ok((tag(found.revision), Json(found.into())))
}

/// Changes a subscription: what is absent gets its default.
#[utoipa::path(
    put, path = "/api/subscriptions/{id}", operation_id = "change_subscription", tag = "subscriptions",
    params(SubscriptionPath, IfMatchHeader), request_body = SubscriptionText,
    responses(
        (status = 200, description = "The subscription.", body = SubscriptionAnswer),
        (status = 404, description = "There is no such subscription.", body = ErrorBody),
        (status = 409, description = "Others keep changing it at the same time.", body = ErrorBody),
        (status = 412, description = "It has changed since it was read.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn change(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    IfMatch(on): IfMatch,
    JsonBody(body): JsonBody<SubscriptionText>,
) -> Result<Tagged<SubscriptionAnswer>> {
    let (id, client) = (subscription_id(&id)?, caller.visible(None)?.client());
    body.check_unchanged(&service.gateway.subscription(id, client).await?)?;
    let changed = service.gateway.change_subscription(id, client, on, &body.read()?).await?;
    Ok((tag(changed.revision), Json(changed.into())))
}

/// Deletes a subscription. Entries that were made for it stay.
#[utoipa::path(
    delete, path = "/api/subscriptions/{id}", operation_id = "delete_subscription", tag = "subscriptions",
    params(SubscriptionPath, IfMatchHeader),
    responses(
        (status = 204, description = "The subscription is gone."),
        (status = 404, description = "There is no such subscription.", body = ErrorBody),
        (status = 409, description = "Others keep changing it at the same time.", body = ErrorBody),
        (status = 412, description = "It has changed since it was read.", body = ErrorBody),
    ),
)]
pub(crate) async fn remove(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    IfMatch(on): IfMatch,
) -> Result<StatusCode> {
    let client = caller.visible(None)?.client();
    service.gateway.delete_subscription(subscription_id(&id)?, client, on).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pauses a subscription: nothing is made for it from the next event on.
#[utoipa::path(
    post, path = "/api/subscriptions/{id}/pause", operation_id = "pause_subscription", tag = "subscriptions",
    params(SubscriptionPath, IfMatchHeader),
    responses(
        (status = 200, description = "The subscription, PAUSED.", body = SubscriptionAnswer),
        (status = 404, description = "There is no such subscription.", body = ErrorBody),
        (status = 409, description = "Others keep changing it at the same time.", body = ErrorBody),
        (status = 412, description = "It has changed since it was read.", body = ErrorBody),
    ),
)]
pub(crate) async fn pause(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    IfMatch(on): IfMatch,
) -> Result<Tagged<SubscriptionAnswer>> {
    let client = caller.visible(None)?.client();
    let (paused, _) = service.gateway.pause_subscription(subscription_id(&id)?, client, on).await?;
    Ok((tag(paused.revision), Json(paused.into())))
}

/// Resumes a paused subscription, from the next event on. With `replay`, what came while it was paused is replayed: events that
/// it has a job of already are left out, and the others become jobs (of a queue: entries) behind those of newer events. That
/// does what one call of a replay does; go on with `replay` of the answer while that has a `nextCursor`. Repeating the request
/// makes what is missing, also once the subscription is ACTIVE.
#[utoipa::path(
    post, path = "/api/subscriptions/{id}/resume", operation_id = "resume_subscription", tag = "subscriptions",
    params(SubscriptionPath, IfMatchHeader), request_body = ResumeText,
    responses(
        (status = 200, description = "The subscription, ACTIVE, and what was replayed.", body = ResumeAnswer),
        (status = 404, description = "There is no such subscription.", body = ErrorBody),
        (status = 409, description = "Others keep changing it at the same time.", body = ErrorBody),
        (status = 412, description = "It has changed since it was read.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
        (status = 429, description = "It is ACTIVE, and the queue that it sends to is full: repeat the request later.", body = ErrorBody),
    ),
)]
pub(crate) async fn resume(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    IfMatch(on): IfMatch,
    OptionalBody(body): OptionalBody<ResumeText>,
) -> Result<Tagged<ResumeAnswer>> {
    let client = caller.visible(None)?.client();
    let (resumed, _) = service.gateway.resume_subscription(subscription_id(&id)?, client, on).await?;
    let missed = body.replay.unwrap_or_default().then(|| Gateway::missed(&resumed)).flatten();
    let replayed = match missed {
        Some(missed) => {
            let done = service.gateway.replay(resumed.id, client, &missed).await?;
            Some(ReplayAnswer::of(&missed, done))
        }
        None => None,
    };
    Ok((tag(resumed.revision), Json(ResumeAnswer::new(resumed, replayed))))
}

/// Replaces the signing secret of a subscription. The new one is shown this once.
#[utoipa::path(
    post, path = "/api/subscriptions/{id}/rotate-secret", operation_id = "rotate_subscription_secret",
    tag = "subscriptions", params(SubscriptionPath), request_body = RotateText,
    responses(
        (status = 200, description = "The new secret. Those before it sign as well until the overlap is over.", body = RotatedAnswer),
        (status = 404, description = "There is no such subscription.", body = ErrorBody),
        (status = 409, description = "Too many secrets are valid, or others keep changing them at the same time.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn rotate_secret(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    OptionalBody(body): OptionalBody<RotateText>,
) -> Result<Json<RotatedAnswer>> {
    let (id, client) = (subscription_id(&id)?, caller.visible(None)?.client());
    let rotated = service.gateway.rotate_subscription_secret(id, client, body.scheme()?, body.overlap()).await?;
    Ok(Json(rotated.into()))
}

/// Shows which of the last events a subscription would have taken, as it is now, paused or not. Nothing is made.
#[utoipa::path(
    post, path = "/api/subscriptions/{id}/preview", operation_id = "preview_subscription", tag = "subscriptions",
    params(SubscriptionPath, PreviewParams),
    responses(
        (status = 200, description = "The events, youngest first.", body = FactsAnswer),
        (status = 404, description = "There is no such subscription.", body = ErrorBody),
    ),
)]
pub(crate) async fn preview(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(id): PathText,
    Query(params): Query<PreviewParams>,
) -> Result<Json<FactsAnswer>> {
    let client = caller.visible(None)?.client();
    let found = service.gateway.preview(subscription_id(&id)?, client, params.limit()?).await?;
    Ok(Json(FactsAnswer::complete(found)?))
}

pub(crate) fn subscription_id(text: &str) -> Result<Tsid> {
    tsid("subscription", text)
}
