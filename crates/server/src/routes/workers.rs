//! `GET /workers`: who is at work. Workers need no registration; they are known by what they do.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use tidegate::Timestamp;
use tidegate_store::WorkerView;
use utoipa::ToSchema;

use crate::auth::Manager;
use crate::error::Result;
use crate::service::Service;
use crate::tenant::Tenant;

/// Who is at work.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkersAnswer {
    workers: Vec<WorkerAnswer>,
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

/// Lists workers.
#[utoipa::path(
    get, path = "/workers", operation_id = "list_workers", tag = "workers",
    responses((status = 200, description = "Everybody seen within a day or holding something.", body = WorkersAnswer)),
)]
pub(crate) async fn list(State(service): State<Arc<Service>>, Manager(caller): Manager) -> Result<Json<WorkersAnswer>> {
    let tenant = Tenant::from(&caller);
    let mut workers = service.queue.workers(service.options.stale_after).await?;
    // A client sees the workers of its own queues, and nothing they do elsewhere.
    workers.retain(|worker| tenant.0.is_none() || worker.client == tenant.0);
    let workers = workers.into_iter().map(WorkerAnswer::of).collect();
    Ok(Json(WorkersAnswer { workers }))
}
