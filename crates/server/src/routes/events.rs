//! One event: `GET /events/{id}` and `GET /events/{id}/why`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::callers::Reader;
use crate::cursor;
use crate::error::{ErrorBody, Result};
use crate::extract::{EventId, Query};
use crate::service::Service;
use crate::wire::event::Event;
use crate::wire::shown::{ShowParams, WhyAnswer};

/// Bytes of audit messages in one answer: once they are exceeded, no further rows are read.
const LOGS_BYTES: usize = 1 << 20;

/// Shows an event, live or ended.
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
    let limit = params.logs()?;
    let after = params.logs_cursor.as_deref().map(|text| cursor::read_audit(text, id.number())).transpose()?;
    let entry = caller.entry_view(&service.queue, id).await?;
    let Some(limit) = limit else { return Ok(Json(Event::of(entry))) };
    let logs = service.queue.audit_part(entry.id, after.unwrap_or(0), limit, LOGS_BYTES).await?;
    Ok(Json(Event::of(entry).with_logs(logs)))
}

/// Tells why an event is not running.
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
    let id = caller.entry(&service.queue, id).await?;
    Ok(Json(WhyAnswer::of(id, service.queue.explain(id).await?)))
}
