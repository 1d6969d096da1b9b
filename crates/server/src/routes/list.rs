//! `GET /events`: pages of events, by filters.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::callers::Reader;
use crate::error::Result;
use crate::extract::Query;
use crate::service::Service;
use crate::wire::listed::{ListAnswer, ListParams};

/// Lists events.
#[utoipa::path(
    get, path = "/events", operation_id = "list_events", tag = "events", params(ListParams),
    responses((status = 200, body = ListAnswer, description = "A page. It may hold fewer events than `limit`: only the \
        absence of `next_cursor` means the end.")),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    Query(params): Query<ListParams>,
) -> Result<Json<ListAnswer>> {
    let query = params.read(&caller)?;
    let page = service.queue.list(query.clone()).await?;
    Ok(Json(ListAnswer::of(page, &query)))
}
