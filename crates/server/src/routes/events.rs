//! One event: `GET /events/{id}`, `…/why`, `…/reset`, `…/redrive`, `…/cancel`, and redriving many dead letters.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tidegate::{DeadLetterFilter, EntryId, Why};
use utoipa::{IntoParams, ToSchema};

use crate::auth::{Admin, Manager, Reader};
use crate::cursor;
use crate::error::{ApiError, ErrorBody, Result};
use crate::extract::{EventId, MAX_LIMIT, OptionalBody, Query, flag, number};
use crate::service::Service;
use crate::tenant::Tenant;
use crate::wire::{Event, LogRow};

/// Dead letters redriven by one request at most.
const MAX_REDRIVE: usize = 10_000;
/// Rows of an audit for whoever does not say how many.
const DEFAULT_LOGS: u64 = 100;
/// Rows of an audit that are read at once.
const LOGS_PART: usize = 20;
/// Messages of an audit in one answer: the part that exceeds it is the last.
const LOGS_BYTES: usize = 1 << 20;

/// How much to show.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ShowParams {
    /// Whether to show what happened to it.
    #[param(value_type = Option<bool>)]
    include_logs: Option<String>,
    /// How many rows of that at most; 100 if absent. Long messages may make it fewer.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 1000)]
    logs_limit: Option<String>,
    /// `logs_next_cursor` of the answer before.
    logs_cursor: Option<String>,
}

/// An event, live or ended.
#[utoipa::path(
    get, path = "/events/{id}", operation_id = "show_event", tag = "events",
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1), ShowParams),
    responses(
        (status = 200, description = "The event.", body = Event),
        (status = 404, description = "There is no such event.", body = ErrorBody),
    ),
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    EventId(id): EventId,
    Query(params): Query<ShowParams>,
) -> Result<Json<Event>> {
    let with_logs = flag("include_logs", params.include_logs.as_deref())?;
    let limit = number("logs_limit", params.logs_limit.as_deref(), 1, MAX_LIMIT)?.unwrap_or(DEFAULT_LOGS);
    let after = params.logs_cursor.as_deref().map(|text| cursor::read_audit(text, id)).transpose()?;
    let mut event = service.event(Tenant::from(&caller), id).await?;
    if with_logs {
        let (logs, next) = service.logs(id, after.unwrap_or(0), limit as usize).await?;
        (event.logs, event.logs_next_cursor) = (Some(logs), next);
    }
    Ok(Json(event))
}

impl Service {
    async fn event(&self, tenant: Tenant, id: EntryId) -> Result<Event> {
        Ok(Event::of(tenant.own(self.queue.entry(id).await?, id)?))
    }

    /// What happened to an event after a row of its audit, and where that goes on. Read in small parts, so that long messages
    /// make it short and not large.
    async fn logs(&self, id: EntryId, mut after: i64, limit: usize) -> Result<(Vec<LogRow>, Option<String>)> {
        let (mut logs, mut bytes) = (Vec::new(), 0);
        loop {
            // One more than wanted, which tells whether there is more.
            let part = (limit - logs.len()).min(LOGS_PART);
            let rows = self.queue.audit_page(id, after, part + 1).await?;
            let more = rows.len() > part;
            for row in rows.into_iter().take(part) {
                after = row.id;
                bytes += row.message.as_ref().map_or(0, String::len);
                logs.push(row.into());
            }
            if !more {
                return Ok((logs, None));
            }
            if logs.len() == limit || bytes >= LOGS_BYTES {
                return Ok((logs, Some(cursor::of_audit(id, after))));
            }
        }
    }
}

/// Why an event is not running.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WhyAnswer {
    /// Which event: its number, `id` elsewhere.
    event_id: i64,
    /// The event's other id, `event_id` elsewhere; null once the event is forgotten.
    #[schema(required, example = "0HZXEQ5Y8JY5Z")]
    event_tsid: Option<String>,
    /// The reason and what belongs to it.
    #[serde(flatten)]
    #[schema(value_type = WhySchema)]
    why: Why,
}

/// A reason: `ended`, `leased`, `abandoned`, `behind_in_group`, `queue_paused`, `due_at`, `no_live_consumer`, `ready`.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "it only describes an answer")]
pub(crate) struct WhySchema {
    /// Which.
    #[schema(example = "due_at")]
    reason: String,
    /// When it is due, or ended.
    #[schema(format = DateTime)]
    at: Option<String>,
    /// Who holds it.
    worker: Option<String>,
    /// Until when.
    #[schema(format = DateTime)]
    until: Option<String>,
    /// Its group.
    group: Option<String>,
    /// How many go first.
    ahead: Option<u64>,
    /// The type that no live consumer takes.
    event_type: Option<String>,
    /// The tags of which no live consumer asks for one.
    tags: Option<Vec<String>>,
}

/// Says why an event is not running.
#[utoipa::path(
    get, path = "/events/{id}/why", operation_id = "why", tag = "events",
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 200, description = "The reason.", body = WhyAnswer),
        (status = 404, description = "There is no such event.", body = ErrorBody),
    ),
)]
pub(crate) async fn why(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    EventId(id): EventId,
) -> Result<Json<WhyAnswer>> {
    let tenant = Tenant::from(&caller);
    service.need_own(tenant, id).await?;
    let why = service.queue.why(id).await?;
    let event_tsid = service.queue.event_of(id).await?.map(|event| event.to_string());
    Ok(Json(WhyAnswer { event_id: id.get(), event_tsid, why }))
}

/// Why an event is put back.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ResetParams {
    /// For the record.
    #[param(max_length = 1000, example = "worker_timeout")]
    reason: Option<String>,
}

/// Puts an event back by hand, PROCESSING or FAILED; whoever held it holds it no more.
#[utoipa::path(
    post, path = "/events/{id}/reset", operation_id = "reset_event", tag = "events",
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1), ResetParams),
    responses(
        (status = 200, description = "The event, PENDING.", body = Event),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "It is neither PROCESSING nor FAILED.", body = ErrorBody),
    ),
)]
pub(crate) async fn reset(
    State(service): State<Arc<Service>>,
    Admin(caller): Admin,
    EventId(id): EventId,
    Query(params): Query<ResetParams>,
) -> Result<Json<Event>> {
    if params.reason.as_ref().is_some_and(|reason| reason.len() > 1_000 || reason.contains('\0')) {
        return Err(ApiError::invalid("reason does not fit: it must be at most 1000 bytes without NUL characters"));
    }
    let tenant = Tenant::from(&caller);
    let entry = tenant.own(service.queue.entry(id).await?, id)?;
    service.queue.acting_as(&caller.name).reset(id, params.reason).await?;
    service.wake(&entry.queue);
    service.event(tenant, id).await.map(Json)
}

/// Starts a dead letter over.
#[utoipa::path(
    post, path = "/events/{id}/redrive", operation_id = "redrive_event", tag = "dead letters",
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 200, description = "The event, PENDING.", body = Event),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "It is not a dead letter.", body = ErrorBody),
    ),
)]
pub(crate) async fn redrive(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    EventId(id): EventId,
) -> Result<Json<Event>> {
    let tenant = Tenant::from(&caller);
    let entry = tenant.own(service.queue.entry(id).await?, id)?;
    service.queue.acting_as(&caller.name).redrive(id).await?;
    service.wake(&entry.queue);
    service.event(tenant, id).await.map(Json)
}

/// Ends an event as CANCELLED, whoever holds it.
#[utoipa::path(
    post, path = "/events/{id}/cancel", operation_id = "cancel_event", tag = "events",
    params(("id" = i64, Path, minimum = 1, maximum = 9007199254740991_f64, example = 1)),
    responses(
        (status = 200, description = "The event, CANCELLED.", body = Event),
        (status = 404, description = "There is no such event.", body = ErrorBody),
        (status = 409, description = "It has ended already.", body = ErrorBody),
    ),
)]
pub(crate) async fn cancel(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    EventId(id): EventId,
) -> Result<Json<Event>> {
    let tenant = Tenant::from(&caller);
    service.need_own(tenant, id).await?;
    service.queue.acting_as(&caller.name).cancel(id).await?;
    service.event(tenant, id).await.map(Json)
}

/// Which dead letters to start over.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(example = json!({ "queue": "default", "limit": 1000 }))]
pub(crate) struct RedriveBody {
    /// Of which queue; `default` if absent.
    #[schema(min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$")]
    queue: Option<String>,
    /// The client whose queue it is, for keys that belong to no client.
    #[schema(min_length = 13, max_length = 13)]
    client: Option<String>,
    /// Only of this type.
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// Only those whose errors contain this text.
    error_contains: Option<String>,
    /// At most this many; 1,000 if absent.
    #[schema(minimum = 1, maximum = 10000)]
    limit: Option<usize>,
    /// At most this many per second; 1,000 if absent.
    #[schema(minimum = 1, maximum = 100000)]
    per_second: Option<u32>,
}

/// How many were started over.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RedriveAnswer {
    redriven: u64,
}

/// Starts dead letters over, no faster than asked.
#[utoipa::path(
    post, path = "/events/redrive", operation_id = "redrive_events", tag = "dead letters", request_body = RedriveBody,
    responses(
        (status = 200, description = "How many were started over.", body = RedriveAnswer),
        (status = 404, description = "There is no such queue.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "Not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn redrive_many(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    OptionalBody(body): OptionalBody<RedriveBody>,
) -> Result<Json<RedriveAnswer>> {
    let tenant = Tenant::from(&caller);
    let limit = body.limit.unwrap_or(1_000);
    let per_second = body.per_second.unwrap_or(1_000);
    if !(1..=MAX_REDRIVE).contains(&limit) || !(1..=100_000).contains(&per_second) {
        return Err(ApiError::invalid("limit must be 1 to 10000, per_second 1 to 100000"));
    }
    let queue = tenant.queue(body.client.as_deref(), body.queue.as_deref())?;
    service.config(&queue).await?;
    let mut filter = DeadLetterFilter::new().limit(limit).per_second(per_second);
    filter.event_type = body.event_type;
    filter.error_contains = body.error_contains;
    let redriven = service.handle(&queue).await?.acting_as(&caller.name).redrive_all(filter).await?;
    service.wake(&queue);
    Ok(Json(RedriveAnswer { redriven }))
}
