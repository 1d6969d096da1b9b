//! `GET /workers`: which workers are active. Workers do not register; they are known from their claims and reports.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::callers::Manager;
use crate::error::Result;
use crate::extract::Query;
use crate::service::Service;
use crate::wire::workers::{WorkersAnswer, WorkersParams};

/// Lists workers by name.
#[utoipa::path(
    get, path = "/workers", operation_id = "list_workers", tag = "workers", params(WorkersParams),
    responses((status = 200, body = WorkersAnswer, description = "A page of the workers that were seen within a day or \
        hold events.")),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    Query(params): Query<WorkersParams>,
) -> Result<Json<WorkersAnswer>> {
    let query = params.read(&caller, service.options.stale_after)?;
    let client = query.client;
    Ok(Json(WorkersAnswer::of(service.queue.workers_page(query).await?, client)))
}
