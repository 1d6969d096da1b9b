//! `/api/subscriptions/{id}/replay` and `/test`: stored events are delivered to a subscription once more, and test events.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use crate::callers::Manager;
use crate::error::{ErrorBody, Result};
use crate::extract::{JsonBody, PathText, Query};
use crate::routes::subscriptions::subscription_id;
use crate::service::Service;
use crate::wire::replays::{ReplayAnswer, ReplayText, TestAnswer, TestParams};
use crate::wire::subscriptions::SubscriptionPath;

/// Delivers stored events of a time range to a subscription once more: those that it takes as it is now, in the order in which
/// they were accepted. Each becomes a new job (or entry), with an id and a `webhook-id` of its own. One call looks at up to
/// 10,000 events; as long as the answer has a `nextCursor`, repeat the request with that `cursor`. The same replay (the same
/// range and `replayId`) makes nothing twice, however often and by whomever it is repeated; for another replay of the same
/// range, name another `replayId`. Jobs of a paused subscription are held.
#[utoipa::path(
    post, path = "/api/subscriptions/{id}/replay", operation_id = "replay_subscription", tag = "subscriptions",
    params(SubscriptionPath), request_body = ReplayText,
    responses(
        (status = 200, description = "What this call has done, and where the next one goes on.", body = ReplayAnswer),
        (status = 404, description = "There is no such subscription.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
        (status = 429, description = "The queue that the subscription sends to is full.", body = ErrorBody),
    ),
)]
pub(crate) async fn replay(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    JsonBody(body): JsonBody<ReplayText>,
) -> Result<Json<ReplayAnswer>> {
    let client = caller.visible(None)?.client();
    let replay = body.read()?;
    let done = service.gateway.replay(subscription_id(&id)?, client, &replay).await?;
    Ok(Json(ReplayAnswer::of(&replay, done)))
}

/// Sends a test event to a subscription, whatever that asks for, and to no other. Its type is
/// `tidegate:dispatch:subscription:test`. With `wait`, the answer has the first attempt, if that was made in time; where too
/// many callers wait already, it is 503, and nothing is made.
#[utoipa::path(
    post, path = "/api/subscriptions/{id}/test", operation_id = "test_subscription", tag = "subscriptions",
    params(SubscriptionPath, TestParams),
    responses(
        (status = 201, description = "The event, and the job or the entry that was made of it.", body = TestAnswer),
        (status = 404, description = "There is no such subscription.", body = ErrorBody),
        (status = 409, description = "The subscription is paused.", body = ErrorBody),
        (status = 429, description = "The queue that the subscription sends to is full.", body = ErrorBody),
    ),
)]
pub(crate) async fn test(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    Query(params): Query<TestParams>,
) -> Result<(StatusCode, Json<TestAnswer>)> {
    let client = caller.visible(None)?.client();
    let sent = service.gateway.test_subscription(subscription_id(&id)?, client, params.wait()?).await?;
    Ok((StatusCode::CREATED, Json(sent.into())))
}
