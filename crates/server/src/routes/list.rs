//! `GET /events`: events in pages.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tidegate_core::{QueueName, Status};
use tidegate_store::ListQuery;
use utoipa::{IntoParams, ToSchema};

use crate::auth::Reader;
use crate::cursor;
use crate::error::{ApiError, Result};
use crate::extract::{MAX_LIMIT, Query, moment, number};
use crate::service::Service;
use crate::tenant::Tenant;
use crate::wire::{Listed, asked_tags};

/// The page of whoever does not say.
const DEFAULT_LIMIT: u64 = 20;
/// Deeper pages need a cursor.
const MAX_OFFSET: u64 = 10_000;

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// PENDING, PROCESSING, COMPLETED, COMPLETED_WITH_ERRORS, FAILED or CANCELLED.
    #[param(example = "PENDING")]
    status: Option<String>,
    /// Comma-separated, at least one; an event with any of them fits.
    tags: Option<String>,
    /// Of this queue.
    queue: Option<String>,
    /// In the queues of this client, for keys that belong to no client.
    #[param(min_length = 13, max_length = 13)]
    client: Option<String>,
    /// Of this type.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    event_type: Option<String>,
    /// Held or ended by this worker.
    worker_id: Option<String>,
    /// Published at this moment or later.
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<String>,
    /// Published before this moment.
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<String>,
    /// How many at most; 20 if absent.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// How many to pass over, at most 10,000; deeper pages need a cursor.
    #[param(value_type = Option<u64>, minimum = 0, maximum = 10000)]
    offset: Option<String>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// A page of events, the youngest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ListAnswer {
    /// The events.
    events: Vec<Listed>,
    /// How many there are in all.
    total: u64,
    /// Whether `total` is only as far as was counted.
    total_capped: bool,
    /// As asked.
    limit: u64,
    /// As asked.
    offset: u64,
    /// Where the next page begins, unless this is the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Lists events.
#[utoipa::path(
    get, path = "/events", operation_id = "list_events", tag = "events", params(ListParams),
    responses((status = 200, description = "A page. It may be short: only the absence of `next_cursor` means the end.", body = ListAnswer)),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    Query(params): Query<ListParams>,
) -> Result<Json<ListAnswer>> {
    let tenant = Tenant::from(&caller);
    let limit = number("limit", params.limit.as_deref(), 1, MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
    let offset = offset(params.offset.as_deref())?;
    let query = query(params, tenant, limit, offset)?;
    let client = query.client;
    let page = service.queue.list(query).await?;
    Ok(Json(ListAnswer {
        events: page.items.into_iter().map(Listed::of).collect(),
        total: page.total,
        total_capped: page.total_capped,
        limit,
        offset,
        next_cursor: page.next.map(|id| cursor::of_event(client, id)),
    }))
}

/// Reads how many to pass over.
fn offset(text: Option<&str>) -> Result<u64> {
    let offset = number("offset", text, 0, u64::MAX)?.unwrap_or(0);
    if offset > MAX_OFFSET {
        let text =
            format!("offset must be at most {MAX_OFFSET}: for deeper pages pass next_cursor of a page as cursor");
        return Err(ApiError::invalid(text));
    }
    Ok(offset)
}

fn query(params: ListParams, tenant: Tenant, limit: u64, offset: u64) -> Result<ListQuery> {
    let status = params.status.as_deref().map(str::parse::<Status>).transpose().map_err(tidegate::Error::from)?;
    for (name, text) in [("type", &params.event_type), ("worker_id", &params.worker_id)] {
        if let Some(text) = text {
            tidegate_core::name::check_text(name, text).map_err(tidegate::Error::from)?;
        }
    }
    let client = tenant.client(params.client.as_deref())?;
    let of_client = |name: &str| QueueName::of(client, name).map_err(tidegate::Error::from);
    let before = params.cursor.as_deref().map(|text| cursor::read_event(text, client)).transpose()?;
    Ok(ListQuery {
        status,
        tags: asked_tags(params.tags.as_deref())?.unwrap_or_default(),
        queue: params.queue.as_deref().map(of_client).transpose()?,
        event_type: params.event_type,
        worker: params.worker_id,
        client,
        from: moment("from", params.from.as_deref())?,
        to: moment("to", params.to.as_deref())?,
        before,
        limit: limit as usize,
        offset: offset as usize,
    })
}
