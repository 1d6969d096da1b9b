//! `GET /events/subscribe` and `POST /events/claim`: work for pull workers, now or within a while.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{Method, StatusCode, header};
use serde::{Deserialize, Serialize};
use tidegate::{QueueName, QueuedEvent};
use utoipa::{IntoParams, ToSchema};

use crate::auth::Worker;
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::extract::{JsonBody, Query, number};
use crate::handover::{Handover, LeasedBody};
use crate::service::Service;
use crate::tenant::Tenant;
use crate::waiting::RoomKey;
use crate::wire::{Leased, Tags, asked_tags};

/// The longest wait of a subscriber.
const MAX_WAIT: u64 = 60;
/// The longest lease.
const MAX_LEASE: u64 = 86_400;
/// Events in one claim.
const MAX_CLAIM: u64 = 1_000;

/// What a subscriber asks for.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SubscribeParams {
    /// Comma-separated tags; an event with any of them fits. May be left out when a queue is named.
    #[param(example = "email,notification")]
    tags: Option<String>,
    /// Who asks, usually `host:pid`.
    #[param(value_type = String, required = true, min_length = 1, max_length = 255, example = "worker-02:8742")]
    worker_id: Option<String>,
    /// The queue; `default` if absent.
    #[param(min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$")]
    queue: Option<String>,
    /// The client whose queue it is, for keys that belong to no client.
    #[param(min_length = 13, max_length = 13)]
    client: Option<String>,
    /// Seconds to wait for an event.
    #[param(value_type = Option<u64>, minimum = 0, maximum = 60)]
    wait: Option<String>,
    /// Seconds until somebody else may take the event, unless there is a heartbeat.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 86400)]
    lease_seconds: Option<String>,
}

/// Takes one event.
#[utoipa::path(
    get, path = "/events/subscribe", operation_id = "subscribe", tag = "work", params(SubscribeParams),
    responses(
        (status = 200, description = "An event, yours until `lease_until`.", body = Leased),
        (status = 204, description = "There is none."),
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
        return Err(ApiError::new(Code::MethodNotAllowed, "HEAD would take an event without handing it out: use GET"));
    }
    let wanted = Wanted {
        tags: asked_tags(params.tags.as_deref())?,
        worker: params.worker_id,
        queue: params.queue,
        client: params.client,
        wait: number("wait", params.wait.as_deref(), 0, MAX_WAIT)?.unwrap_or(0),
        lease: number("lease_seconds", params.lease_seconds.as_deref(), 1, MAX_LEASE)?,
        count: 1,
    };
    let handover = handover.map(|Extension(handover)| handover).unwrap_or_default();
    let (mut events, queue) = wanted.claim(&service, Tenant::from(&caller), &handover).await?;
    match events.pop() {
        Some(event) => {
            let body = json(&Leased::of(&event, &queue))?;
            Ok(hand_over(body, vec![event], handover))
        }
        None => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

/// What a worker asks for that takes many at once.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "tags": "email,notification", "worker_id": "worker-02:8742", "max": 10 }))]
pub(crate) struct ClaimBody {
    /// An event with any of these fits. May be left out when a queue is named.
    tags: Option<Tags>,
    /// Who asks, usually `host:pid`.
    #[schema(value_type = String, required = true, min_length = 1, max_length = 255)]
    worker_id: Option<String>,
    /// The queue; `default` if absent.
    #[schema(min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$")]
    queue: Option<String>,
    /// The client whose queue it is, for keys that belong to no client.
    #[schema(min_length = 13, max_length = 13)]
    client: Option<String>,
    /// How many at most; 10 if absent.
    #[schema(minimum = 1, maximum = 1000)]
    max: Option<u64>,
    /// Seconds to wait for the first.
    #[schema(minimum = 0, maximum = 60)]
    wait: Option<u64>,
    /// Seconds until somebody else may take them, unless there is a heartbeat.
    #[schema(minimum = 1, maximum = 86400)]
    lease_seconds: Option<u64>,
}

/// Events under leases.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClaimAnswer {
    /// Perhaps none.
    events: Vec<Leased>,
}

/// Takes many events at once.
#[utoipa::path(
    post, path = "/events/claim", operation_id = "claim_events", tag = "work", request_body = ClaimBody,
    responses(
        (status = 200, description = "Events, perhaps none.", body = ClaimAnswer),
        (status = 404, description = "There is no such queue.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "Not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn claim(
    State(service): State<Arc<Service>>,
    Worker(caller): Worker,
    handover: Option<Extension<Handover>>,
    JsonBody(body): JsonBody<ClaimBody>,
) -> Result<Response> {
    let within = |name: &str, value: Option<u64>, least, most| {
        number(name, value.map(|value| value.to_string()).as_deref(), least, most)
    };
    let wanted = Wanted {
        tags: body.tags.as_ref().map(Tags::read).transpose()?,
        worker: body.worker_id,
        queue: body.queue,
        client: body.client,
        wait: within("wait", body.wait, 0, MAX_WAIT)?.unwrap_or(0),
        lease: within("lease_seconds", body.lease_seconds, 1, MAX_LEASE)?,
        count: within("max", body.max, 1, MAX_CLAIM)?.unwrap_or(10) as usize,
    };
    let handover = handover.map(|Extension(handover)| handover).unwrap_or_default();
    let (events, queue) = wanted.claim(&service, Tenant::from(&caller), &handover).await?;
    let answer = ClaimAnswer { events: events.iter().map(|event| Leased::of(event, &queue)).collect() };
    let body = json(&answer)?;
    Ok(hand_over(body, events, handover))
}

/// A request for work.
struct Wanted {
    tags: Option<Vec<String>>,
    worker: Option<String>,
    queue: Option<String>,
    client: Option<String>,
    wait: u64,
    lease: Option<u64>,
    count: usize,
}

impl Wanted {
    /// The events, and their queue.
    async fn claim(
        self,
        service: &Service,
        tenant: Tenant,
        handover: &Handover,
    ) -> Result<(Vec<QueuedEvent>, QueueName)> {
        if self.tags.is_none() && self.queue.is_none() {
            return Err(ApiError::invalid("tags is required: name at least one, or name a queue"));
        }
        let worker = self.worker.ok_or_else(|| ApiError::invalid("worker_id is required, for instance host:pid"))?;
        tidegate_core::name::check_text("worker_id", &worker).map_err(tidegate::Error::from)?;
        let queue = tenant.queue(self.client.as_deref(), self.queue.as_deref())?;
        let settings = service.settings(&queue).await?;
        let lease = self.lease.or(settings.lease_seconds.map(u64::from)).map(Duration::from_secs);
        let lease = lease.unwrap_or(service.options.lease);
        let tags = self.tags.map(|mut tags| {
            tags.sort_unstable();
            tags
        });
        let mut consumer = service.handle(&queue).await?.consumer().worker(worker)?.lease(lease)?.audited();
        if let Some(tags) = &tags {
            consumer = consumer.tags(tags.clone())?;
        }
        let key = RoomKey { queue: queue.clone(), tags, lease };
        let wait = if service.is_stopping() { Duration::ZERO } else { Duration::from_secs(self.wait) };
        let events = tokio::select! {
            events = service.rooms.claim(key, &consumer, self.count, wait) => events?,
            () = service.stopped() => Vec::new(),
            () = handover.gone(), if !wait.is_zero() => Vec::new(),
        };
        if !events.is_empty() && handover.is_gone().await {
            return Ok((Vec::new(), queue)); // what was claimed goes back
        }
        Ok((events, queue))
    }
}

fn json(value: &impl Serialize) -> Result<Bytes> {
    let failed = |error| ApiError::new(Code::Internal, format!("the answer cannot be written: {error}"));
    Ok(serde_json::to_vec(value).map_err(failed)?.into())
}

/// An answer that holds the leases until it is on its way.
fn hand_over(body: Bytes, leases: Vec<QueuedEvent>, handover: Handover) -> Response {
    let body = Body::new(LeasedBody::new(body, leases, handover));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
