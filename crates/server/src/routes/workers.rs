//! `GET /workers`: who is at work. Workers need no registration; they are known by what they do.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tidegate::Timestamp;
use tidegate_store::{WorkerView, WorkersQuery};
use utoipa::{IntoParams, ToSchema};

use crate::auth::Manager;
use crate::cursor;
use crate::error::Result;
use crate::extract::{MAX_LIMIT, Query, number};
use crate::service::Service;
use crate::tenant::Tenant;

/// The page of whoever does not say.
const DEFAULT_LIMIT: u64 = 100;

/// Which workers.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WorkersParams {
    /// In the queues of this client, for keys that belong to no client.
    #[param(min_length = 13, max_length = 13)]
    client: Option<String>,
    /// How many at most; 100 if absent.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Who is at work.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkersAnswer {
    workers: Vec<WorkerAnswer>,
    /// Where the next page begins, unless this is the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// A worker as far as it is known.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerAnswer {
    /// Its name.
    #[schema(example = "worker-02:8742")]
    worker_id: String,
    /// The client in whose queues it works, if any: the same name in two clients' queues is two workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    /// The host, where the name is `host:pid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    /// The process, where the name is `host:pid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u64>,
    /// When it was last heard of.
    #[schema(value_type = String, format = DateTime)]
    last_seen_at: Timestamp,
    /// The queues it was seen in.
    queues: Vec<String>,
    /// The events it holds, up to 100.
    holds: Vec<i64>,
    /// How many it holds.
    held: u64,
    /// Whether it holds something and was silent for too long.
    stale: bool,
}

impl WorkerAnswer {
    fn of(view: WorkerView) -> Self {
        let parsed = view.worker.rsplit_once(':').and_then(|(host, pid)| Some((host.to_owned(), pid.parse().ok()?)));
        let (hostname, pid) = parsed.filter(|(host, _)| !host.is_empty()).unzip();
        Self {
            worker_id: view.worker,
            client: view.client.map(|client| client.to_string()),
            hostname,
            pid,
            last_seen_at: view.seen_at,
            queues: view.queues.iter().map(|queue| queue.name().to_owned()).collect(),
            holds: view.holds.iter().map(|id| id.get()).collect(),
            held: view.held,
            stale: view.stale,
        }
    }
}

/// Lists workers, by name.
#[utoipa::path(
    get, path = "/workers", operation_id = "list_workers", tag = "workers", params(WorkersParams),
    responses((status = 200, description = "Everybody seen within a day or holding something.", body = WorkersAnswer)),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    Query(params): Query<WorkersParams>,
) -> Result<Json<WorkersAnswer>> {
    // A client sees the workers of its own queues, and nothing they do elsewhere.
    let client = Tenant::from(&caller).client(params.client.as_deref())?;
    let limit = number("limit", params.limit.as_deref(), 1, MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
    let after = params.cursor.as_deref().map(|text| cursor::read_worker(text, client)).transpose()?;
    let stale_after = service.options.stale_after;
    let page = service.queue.workers_page(WorkersQuery { client, after, limit: limit as usize, stale_after }).await?;
    Ok(Json(WorkersAnswer {
        workers: page.workers.into_iter().map(WorkerAnswer::of).collect(),
        next_cursor: page.next.map(|(of, worker)| cursor::of_worker(client, of, &worker)),
    }))
}
