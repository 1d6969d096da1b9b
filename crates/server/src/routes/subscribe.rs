//! `GET /events/subscribe` and `POST /events/claim`: pull workers claim events, and can wait for one.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{Method, StatusCode, header};
use serde::Serialize;
use tidegate::QueuedEvent;

use crate::callers::Worker;
use crate::claims;
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::extract::{JsonBody, Query};
use crate::handover::{Handover, LeasedBody};
use crate::service::Service;
use crate::wire::claims::{ClaimAnswer, ClaimBody, SubscribeParams};
use crate::wire::leased::Leased;

/// Claims one event.
#[utoipa::path(
    get, path = "/events/subscribe", operation_id = "subscribe", tag = "work", params(SubscribeParams),
    responses(
        (status = 200, description = "An event. The worker holds it until `lease_until`.", body = Leased),
        (status = 204, description = "There was nothing to claim."),
        (status = 404, description = "There is no such queue.", body = ErrorBody),
    ),
)]
pub(crate) async fn subscribe(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    handover: Option<Extension<Handover>>,
    method: Method,
    Query(params): Query<SubscribeParams>,
) -> Result<Response> {
    if method == Method::HEAD {
        return Err(ApiError::new(Code::MethodNotAllowed, "HEAD would claim an event without delivering it: use GET"));
    }
    let handover = handover.map(|Extension(handover)| handover).unwrap_or_default();
    let (mut events, queue) = claims::claim(&service, &caller, params.try_into()?, &handover).await?;
    match events.pop() {
        Some(event) => {
            let body = json(&Leased::of(&event, &queue))?;
            Ok(hand_over(body, vec![event], handover))
        }
        None => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

/// Claims many events at once.
#[utoipa::path(
    post, path = "/events/claim", operation_id = "claim_events", tag = "work", request_body = ClaimBody,
    responses(
        (status = 200, description = "The claimed events, perhaps none.", body = ClaimAnswer),
        (status = 404, description = "There is no such queue.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn claim(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    handover: Option<Extension<Handover>>,
    JsonBody(body): JsonBody<ClaimBody>,
) -> Result<Response> {
    let handover = handover.map(|Extension(handover)| handover).unwrap_or_default();
    let (events, queue) = claims::claim(&service, &caller, body.try_into()?, &handover).await?;
    let answer = ClaimAnswer { events: events.iter().map(|event| Leased::of(event, &queue)).collect() };
    let body = json(&answer)?;
    Ok(hand_over(body, events, handover))
}

fn json(value: &impl Serialize) -> Result<Bytes> {
    let failed = |error| ApiError::new(Code::Internal, format!("writing the answer failed: {error}"));
    Ok(serde_json::to_vec(value).map_err(failed)?.into())
}

/// An answer that owns the leases until it was sent.
fn hand_over(body: Bytes, leases: Vec<QueuedEvent>, handover: Handover) -> Response {
    let body = Body::new(LeasedBody::new(body, leases, handover));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
