//! Workers, as they are known from their claims and reports.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::{Timestamp, Tsid, WorkerView, WorkersPage, WorkersQuery};
use utoipa::{IntoParams, ToSchema};

use crate::access::Caller;
use crate::cursor;
use crate::error::Result;
use crate::parameters::{MAX_LIMIT, number};

/// The page size when the caller gives none.
const DEFAULT_LIMIT: u64 = 100;

/// Which workers to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WorkersParams {
    /// Only workers in queues of this client; for credentials that belong to no client.
    #[param(min_length = 13, max_length = 13)]
    client: Option<String>,
    /// The size of the page; 100 if absent.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

impl WorkersParams {
    /// 400 when a parameter is not valid, 403 when it names another client than the caller's. A client sees the workers
    /// of its own queues, and nothing that they do in other queues.
    pub(crate) fn read(self, caller: &Caller, stale_after: Duration) -> Result<WorkersQuery> {
        let client = caller.visible(self.client.as_deref())?.client();
        let limit = number("limit", self.limit.as_deref(), 1, MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
        let after = self.cursor.as_deref().map(|text| cursor::read_worker(text, client)).transpose()?;
        Ok(WorkersQuery { client, after, limit: limit as usize, stale_after })
    }
}

/// A page of workers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkersAnswer {
    workers: Vec<WorkerAnswer>,
    /// Pass it as `cursor` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl WorkersAnswer {
    /// A page of the list that `client` sees.
    pub(crate) fn of(page: WorkersPage, client: Option<Tsid>) -> Self {
        Self {
            workers: page.workers.into_iter().map(WorkerAnswer::of).collect(),
            next_cursor: page.next.map(|(of, worker)| cursor::of_worker(client, of, &worker)),
        }
    }
}

/// A worker, as known from its claims and reports.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerAnswer {
    /// The name that the worker gives itself.
    #[schema(example = "worker-02:8742")]
    worker_id: String,
    /// The client in whose queues it works, if any. The same name in queues of two clients means two workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    /// The host, where the name is `host:pid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    /// The process, where the name is `host:pid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u64>,
    /// When the worker last claimed, reported or sent a heartbeat.
    #[schema(value_type = String, format = DateTime)]
    last_seen_at: Timestamp,
    /// The queues that the worker was seen in.
    queues: Vec<String>,
    /// The ids of the events that the worker holds, up to 100.
    holds: Vec<i64>,
    /// How many events the worker holds.
    held: u64,
    /// Whether the worker holds events but was not heard of for too long.
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
