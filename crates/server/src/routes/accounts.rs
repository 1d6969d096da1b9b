//! `/api/service-accounts`: creates, lists, shows, changes and deletes service accounts, and replaces their signing secrets. A
//! caller of a client sees those of its client. No answer has a token or a password.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::header::{ETAG, LOCATION};
use http::{HeaderName, StatusCode};
use tidegate::Tsid;
use tidegate_dispatch::{GatewayError, Match};

use crate::callers::{Manager, Reader};
use crate::error::{ErrorBody, Result};
use crate::extract::{IfMatch, JsonBody, OptionalBody, PathText, Query, tsid};
use crate::routes::clients::{named, still_there};
use crate::routes::event_types::{Tagged, tag};
use crate::service::Service;
use crate::wire::accounts::{AccountAnswer, AccountPath, AccountText, AccountsAnswer, AccountsParams};
use crate::wire::event_types::IfMatchHeader;
use crate::wire::secrets::{RotateText, RotatedAnswer};

/// Creates a service account. Its signing secret is shown this once.
#[utoipa::path(
    post, path = "/api/service-accounts", operation_id = "create_service_account", tag = "service accounts",
    request_body = AccountText,
    responses(
        (status = 201, description = "The service account.", body = AccountAnswer),
        (status = 409, description = "The code is taken.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn create(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    JsonBody(body): JsonBody<AccountText>,
) -> Result<(StatusCode, [(HeaderName, String); 2], Json<AccountAnswer>)> {
    let client = named(&service, &caller, body.client_id.as_deref()).await?;
    let (made, secret) = service.gateway.create_account(client, &body.code()?, &body.read()?).await?;
    if let Err(error) = still_there(&service, &caller, client).await {
        return match service.gateway.delete_account(made.id, client, Match::Any).await {
            Ok(()) | Err(GatewayError::NotFound(_)) => Err(error),
            Err(failed) => Err(failed.into()),
        };
    }
    let headers = [(ETAG, format!("\"{}\"", made.revision)), (LOCATION, format!("/api/service-accounts/{}", made.id))];
    Ok((StatusCode::CREATED, headers, Json(AccountAnswer::created(made, secret))))
}

/// Lists service accounts by client and code. One that this server cannot read, because a newer one has written it, is left out.
#[utoipa::path(
    get, path = "/api/service-accounts", operation_id = "list_service_accounts", tag = "service accounts",
    params(AccountsParams),
    responses((status = 200, description = "A page of service accounts.", body = AccountsAnswer)),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    Query(params): Query<AccountsParams>,
) -> Result<Json<AccountsAnswer>> {
    let visible = caller.visible_as("clientId", params.client_id.as_deref())?;
    let page = service.gateway.list_accounts(&params.read(visible)?).await?;
    Ok(Json(AccountsAnswer::of(page, visible)))
}

/// Shows a service account.
#[utoipa::path(
    get, path = "/api/service-accounts/{id}", operation_id = "show_service_account", tag = "service accounts",
    params(AccountPath),
    responses(
        (status = 200, description = "The service account.", body = AccountAnswer),
        (status = 404, description = "There is no such service account.", body = ErrorBody),
    ),
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(id): PathText,
) -> Result<Tagged<AccountAnswer>> {
    let found = service.gateway.account(account_id(&id)?, caller.visible(None)?.client()).await?;
    Ok((tag(found.revision), Json(found.into())))
}

/// Changes a service account. A token or a password that is absent stays as it is.
#[utoipa::path(
    put, path = "/api/service-accounts/{id}", operation_id = "change_service_account", tag = "service accounts",
    params(AccountPath, IfMatchHeader), request_body = AccountText,
    responses(
        (status = 200, description = "The service account.", body = AccountAnswer),
        (status = 404, description = "There is no such service account.", body = ErrorBody),
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
    JsonBody(body): JsonBody<AccountText>,
) -> Result<Tagged<AccountAnswer>> {
    let (id, client) = (account_id(&id)?, caller.visible(None)?.client());
    body.check_unchanged(&service.gateway.account(id, client).await?)?;
    let changed = service.gateway.change_account(id, client, on, &body.read()?).await?;
    Ok((tag(changed.revision), Json(changed.into())))
}

/// Deletes a service account that neither a subscription names nor a dispatch job that has not ended.
#[utoipa::path(
    delete, path = "/api/service-accounts/{id}", operation_id = "delete_service_account", tag = "service accounts",
    params(AccountPath, IfMatchHeader),
    responses(
        (status = 204, description = "The service account is gone."),
        (status = 404, description = "There is no such service account.", body = ErrorBody),
        (status = 409, description = "A subscription names it, or others keep changing it at the same time.", body = ErrorBody),
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
    service.gateway.delete_account(account_id(&id)?, client, on).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Replaces the signing secret of a service account. The new one is shown this once.
#[utoipa::path(
    post, path = "/api/service-accounts/{id}/rotate-secret", operation_id = "rotate_service_account_secret",
    tag = "service accounts", params(AccountPath), request_body = RotateText,
    responses(
        (status = 200, description = "The new secret. Those before it sign as well until the overlap is over.", body = RotatedAnswer),
        (status = 404, description = "There is no such service account.", body = ErrorBody),
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
    let (id, client) = (account_id(&id)?, caller.visible(None)?.client());
    let rotated = service.gateway.rotate_account_secret(id, client, body.scheme()?, body.overlap()).await?;
    Ok(Json(rotated.into()))
}

fn account_id(text: &str) -> Result<Tsid> {
    tsid("service account", text)
}
