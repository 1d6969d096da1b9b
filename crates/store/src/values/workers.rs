//! Workers as they are shown.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::{EntryId, QueueName, Timestamp, Tsid};

/// What is known about a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerView {
    /// Its name.
    pub worker: String,
    /// The client in whose queues it works: the same name in two clients' queues is two workers.
    pub client: Option<Tsid>,
    /// When it last did something.
    pub seen_at: Timestamp,
    /// The queues it was seen in.
    pub queues: Vec<QueueName>,
    /// The entries it holds, at most 100 of them.
    pub holds: Vec<EntryId>,
    /// How many entries it holds.
    pub held: u64,
    /// Whether it holds something and has been silent for too long.
    pub stale: bool,
}

/// The client and the name of a worker, by which workers are sorted.
pub type WorkerKey = (Option<Tsid>, String);

/// Which workers to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkersQuery {
    /// Only workers in this client's queues.
    pub client: Option<Tsid>,
    /// Only workers after this one (a cursor).
    pub after: Option<WorkerKey>,
    /// The most workers to return.
    pub limit: usize,
    /// How long a worker that holds something may be silent before it is stale.
    pub stale_after: Duration,
}

/// One page of the list of workers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkersPage {
    /// The workers, by client and name.
    pub workers: Vec<WorkerView>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<WorkerKey>,
}

/// Workers by client and name.
pub(crate) type Workers = BTreeMap<WorkerKey, WorkerView>;

/// Records when and in which queue a worker was seen.
pub(crate) fn seen(known: &mut Workers, worker: String, queue: QueueName, at: Timestamp) -> &mut WorkerView {
    let client = queue.client();
    let view = known.entry((client, worker.clone())).or_insert_with(|| WorkerView {
        worker,
        client,
        seen_at: at,
        queues: Vec::new(),
        holds: Vec::new(),
        held: 0,
        stale: false,
    });
    view.seen_at = view.seen_at.max(at);
    if !view.queues.contains(&queue) {
        view.queues.push(queue);
    }
    view
}

/// One page of the workers, with the stale ones marked.
pub(crate) fn judge_workers(known: Workers, now: Timestamp, query: &WorkersQuery) -> WorkersPage {
    let limit = jiff::SignedDuration::try_from(query.stale_after).unwrap_or(jiff::SignedDuration::MAX);
    let judge = |mut view: WorkerView| {
        view.stale = view.held > 0 && now.duration_since(view.seen_at) > limit;
        view
    };
    let is_after = |key: &WorkerKey| query.after.as_ref().is_none_or(|after| key > after);
    let mut rest = known.into_iter().filter(|(key, _)| is_after(key));
    let (mut workers, mut last) = (Vec::new(), None);
    for (key, view) in rest.by_ref().take(query.limit) {
        workers.push(judge(view));
        last = Some(key);
    }
    let next = if rest.next().is_some() { last } else { None };
    WorkersPage { workers, next }
}
