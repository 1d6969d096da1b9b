//! The store's regular upkeep, liveness of consumers, and gauges; and what `health` says about it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tidegate_core::QueueName;
use tidegate_store::{Consumer as Seen, ErrorKind, ProjectionView};
use tokio::sync::watch;

use crate::consumer::Activity;
use crate::error::{Error, Result, closed};
use crate::metrics::{show_depth, show_oldest_age};
use crate::queue::EventQueue;
use crate::shared::Shared;

const LONGEST_PAUSE: Duration = Duration::from_secs(15);
const ANNOUNCE_EVERY: Duration = Duration::from_secs(10);
/// So many workers are announced in one transaction.
const ANNOUNCE_AT_ONCE: usize = 1_000;
/// A consumer that polled within this is alive.
pub(crate) const ACTIVE_WITHIN: Duration = Duration::from_secs(30);
const GAUGES_EVERY: Duration = Duration::from_secs(15);
/// Counting takes at most this share of the time.
const GAUGES_SHARE: u32 = 50;
const HEALTH_PATIENCE: Duration = Duration::from_secs(5);

/// What upkeep noted last.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    last_upkeep: Option<Instant>,
    last_error: Option<(Instant, Error)>,
}

/// Whether a queue works.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Health {
    /// Whether the store answers, or why not.
    pub store: Result<()>,
    /// How long it took.
    pub answered_in: Duration,
    /// How long ago upkeep last succeeded; `None` if it never did.
    pub last_upkeep: Option<Duration>,
    /// The last error of upkeep and how long ago it was, since upkeep last succeeded.
    pub last_error: Option<(Duration, Error)>,
    /// Projections that stand still at an event which fails, whichever process reads for them.
    pub stopped_projections: Vec<ProjectionView>,
}

impl Health {
    /// Whether the store answers, upkeep goes on and no projection stands still.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.store.is_ok() && self.last_error.is_none() && self.stopped_projections.is_empty()
    }
}

impl EventQueue {
    /// Asks the store for a sign of life, and says how upkeep fares.
    pub async fn health(&self) -> Health {
        let shared = self.shared();
        let started = Instant::now();
        let store = if shared.is_closed() {
            Err(closed())
        } else {
            match tokio::time::timeout(HEALTH_PATIENCE, shared.store.queues()).await {
                Ok(answer) => answer.map(drop),
                Err(_) => Err(Error::new(ErrorKind::Unavailable, "the store did not answer within 5 s")),
            }
        };
        let known = match (&store, shared.store.projections()) {
            (Ok(()), Some(log)) => tokio::time::timeout(HEALTH_PATIENCE, log.projections()).await,
            _ => Ok(Ok(Vec::new())),
        };
        let mut stopped_projections = known.unwrap_or_else(|_| Ok(Vec::new())).unwrap_or_default();
        stopped_projections.retain(|projection| projection.failure.is_some());
        let notes = notes(shared);
        Health {
            store,
            answered_in: started.elapsed(),
            last_upkeep: notes.last_upkeep.map(|at| at.elapsed()),
            last_error: notes.last_error.as_ref().map(|(at, error)| (at.elapsed(), error.clone())),
            stopped_projections,
        }
    }
}

fn notes(shared: &Shared) -> MutexGuard<'_, Notes> {
    shared.notes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs until the queue is closed or its last handle is gone.
pub(crate) async fn run(shared: Weak<Shared>, every: Duration, mut stop: watch::Receiver<bool>) {
    let mut pause = every;
    let mut gauges_due = Instant::now() + Duration::from_secs(1);
    loop {
        let Some(strong) = shared.upgrade() else { return };
        match round(&strong, &mut gauges_due).await {
            Ok(()) => pause = every,
            Err(error) if strong.is_closed() => {
                tracing::debug!(%error, "upkeep ends");
                return;
            }
            Err(error) => {
                pause = (pause * 2).min(LONGEST_PAUSE.max(every));
                tracing::warn!(%error, retry_in = ?pause, "upkeep failed");
                notes(&strong).last_error = Some((Instant::now(), error));
            }
        }
        drop(strong);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // Either told to stop, or the last handle is gone.
            _ = stop.changed() => return,
        }
    }
}

async fn round(shared: &Shared, gauges_due: &mut Instant) -> Result<()> {
    let done = shared.store.maintain().await?;
    if let Some(outage) = done.outage {
        tracing::warn!(?outage, "the store was down: leases were moved by as much");
    }
    if done.promoted > 0 {
        shared.bells.ring_all();
    }
    announce(shared).await?;
    if Instant::now() >= *gauges_due {
        let started = Instant::now();
        refresh_gauges(shared).await?;
        *gauges_due = Instant::now() + GAUGES_EVERY.max(started.elapsed() * GAUGES_SHARE);
    }
    let mut notes = notes(shared);
    notes.last_upkeep = Some(Instant::now());
    notes.last_error = None;
    Ok(())
}

/// Says which consumers of this process are alive. The store knows one set of types per worker and queue, so those of
/// all its handles are united.
async fn announce(shared: &Shared) -> Result<()> {
    let mut seen: BTreeMap<(QueueName, String), Announcement> = BTreeMap::new();
    for (key, activity) in shared.active_claims() {
        let all = seen.entry((key.queue.clone(), key.worker.clone())).or_default();
        all.due |= !activity.announced_within(ANNOUNCE_EVERY);
        all.handles.push(activity);
        match key.types {
            Some(types) => all.types.extend(types),
            None => all.is_of_all = true,
        }
    }
    let mut due = seen.into_iter().filter(|(_, all)| all.due).peekable();
    while due.peek().is_some() {
        let (mut consumers, mut handles) = (Vec::new(), Vec::new());
        for ((queue, worker), all) in due.by_ref().take(ANNOUNCE_AT_ONCE) {
            let types = (!all.is_of_all).then(|| all.types.into_iter().collect());
            consumers.push(Seen { worker, queue, types });
            handles.extend(all.handles);
        }
        // Whoever is refused claims from a queue that is gone, and hears of it there.
        shared.store.consumers_seen(consumers).await?;
        handles.iter().for_each(|activity| activity.announce());
    }
    Ok(())
}

/// What all handles of one worker in one queue come to.
#[derive(Debug, Default)]
struct Announcement {
    due: bool,
    is_of_all: bool,
    types: BTreeSet<String>,
    handles: Vec<Arc<Activity>>,
}

async fn refresh_gauges(shared: &Shared) -> Result<()> {
    let mut shown: Vec<QueueName> = Vec::new();
    for lane in shared.claim_lanes() {
        let queue = &lane.origin.key.queue;
        if !shown.contains(queue) {
            show_depth(queue, &shared.store.depth(queue).await?);
            shown.push(queue.clone());
        }
        let age = lane.origin.oldest_age.load(std::sync::atomic::Ordering::Relaxed);
        show_oldest_age(queue, age as f64 / 1e6);
    }
    Ok(())
}
