//! The store's regular upkeep, liveness of consumers, and gauges; and what `health` says about it. The heartbeat, the
//! upkeep and the gauges are tasks of their own: however long one takes, or fails, the others go on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tidegate_core::QueueName;
use tidegate_store::{Consumer as Seen, ErrorKind, ProjectionView, Store, WantedTag};
use tokio::sync::watch;

use crate::consumer::Activity;
use crate::error::{Error, Result, closed};

use crate::options::Options;
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
    last_heartbeat: Option<Instant>,
    heartbeat_error: Option<(Instant, Error)>,
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
    /// How long ago this process last kept the store's heartbeat, without which no lease expires; `None` if it never did.
    pub last_heartbeat: Option<Duration>,
    /// How long ago upkeep last succeeded; `None` if it never did.
    pub last_upkeep: Option<Duration>,
    /// The last error of the heartbeat or of upkeep and how long ago it was, since it last succeeded.
    pub last_error: Option<(Duration, Error)>,
    /// Whether a write and a claim would succeed, as tried lately, or what they would meet (no space left, a lock that
    /// somebody else holds, a database file that is gone).
    pub writes: Result<()>,
    /// The length of SQLite's write-ahead log, as seen lately; `None` on another database.
    pub wal_bytes: Option<u64>,
    /// Projections that stand still at an event which fails, whichever process reads for them.
    pub stopped_projections: Vec<ProjectionView>,
}

impl Health {
    /// Whether the store answers and can be written to, upkeep goes on and no projection stands still.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.store.is_ok() && self.writes.is_ok() && self.last_error.is_none() && self.stopped_projections.is_empty()
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
            match tokio::time::timeout(HEALTH_PATIENCE, shared.store.queue(self.name())).await {
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
        let probed = if shared.is_closed() { Err(closed()) } else { shared.probed.last() };
        let notes = lock(&shared.notes);
        Health {
            wal_bytes: probed.as_ref().ok().and_then(|probe| probe.wal_bytes),
            writes: probed.map(drop),
            store,
            answered_in: started.elapsed(),
            last_heartbeat: notes.last_heartbeat.map(|at| at.elapsed()),
            last_upkeep: notes.last_upkeep.map(|at| at.elapsed()),
            last_error: notes
                .heartbeat_error
                .as_ref()
                .or(notes.last_error.as_ref())
                .map(|(at, error)| (at.elapsed(), error.clone())),
            stopped_projections,
        }
    }
}

fn lock(notes: &Mutex<Notes>) -> MutexGuard<'_, Notes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits; false when told to stop, or when the last handle is gone.
async fn rest(pause: Duration, stop: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        () = tokio::time::sleep(pause) => true,
        _ = stop.changed() => false,
    }
}

/// How often the heartbeat is kept: several times within the gap that would count as an outage.
pub(crate) fn heartbeat_interval(options: &Options) -> Duration {
    options.upkeep_interval.min(options.store.outage_after / 4).max(Duration::from_millis(10))
}

/// Keeps the store's heartbeat, and nothing else, until the queue is closed or its last handle is gone.
pub(crate) async fn keep_beating(
    store: Arc<dyn Store>,
    notes: Arc<Mutex<Notes>>,
    every: Duration,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        match store.beat().await {
            Ok(outage) => {
                if let Some(outage) = outage {
                    tracing::warn!(?outage, "the store was down or blocked: leases were moved by as much");
                }
                let mut notes = lock(&notes);
                notes.last_heartbeat = Some(Instant::now());
                notes.heartbeat_error = None;
            }
            Err(error) if *stop.borrow() => {
                tracing::debug!(%error, "the heartbeat ends");
                return;
            }
            Err(error) => {
                let first = lock(&notes).heartbeat_error.replace((Instant::now(), error.clone())).is_none();
                if first {
                    tracing::warn!(%error, "the heartbeat failed: no lease expires until it succeeds; trying again");
                }
            }
        }
        if !rest(every, &mut stop).await {
            return;
        }
    }
}

/// Runs upkeep until the queue is closed or its last handle is gone.
pub(crate) async fn run(shared: Weak<Shared>, every: Duration, mut stop: watch::Receiver<bool>) {
    let mut pause = every;
    loop {
        let Some(strong) = shared.upgrade() else { return };
        match round(&strong).await {
            Ok(()) => pause = every,
            Err(error) if strong.is_closed() => {
                tracing::debug!(%error, "upkeep ends");
                return;
            }
            Err(error) => {
                pause = (pause * 2).min(LONGEST_PAUSE.max(every));
                tracing::warn!(%error, retry_in = ?pause, "upkeep failed");
                lock(&strong.notes).last_error = Some((Instant::now(), error));
            }
        }
        drop(strong);
        if !rest(pause, &mut stop).await {
            return;
        }
    }
}

async fn round(shared: &Shared) -> Result<()> {
    let done = shared.store.maintain().await?;
    if done.promoted > 0 {
        shared.bells.ring_all();
    }
    if done.groups_mended > 0 {
        metrics::counter!("tidegate_groups_mended_total").increment(done.groups_mended);
    }
    announce(shared).await?;
    let mut notes = lock(&shared.notes);
    notes.last_upkeep = Some(Instant::now());
    notes.last_error = None;
    Ok(())
}

/// Shows what the queues hold until the queue is closed or its last handle is gone.
pub(crate) async fn show_gauges(shared: Weak<Shared>, mut stop: watch::Receiver<bool>) {
    let mut pause = Duration::from_secs(1);
    while rest(pause, &mut stop).await {
        let Some(strong) = shared.upgrade() else { return };
        let started = Instant::now();
        if let Err(error) = refresh_gauges(&strong).await
            && !strong.is_closed()
        {
            tracing::warn!(%error, "the gauges of depth and age could not be refreshed: they show old values");
        }
        pause = GAUGES_EVERY.max(started.elapsed() * GAUGES_SHARE);
    }
}

/// Says which consumers of this process are alive. The store knows one set of types per worker and queue, so those of
/// all its handles are united.
pub(crate) async fn announce(shared: &Shared) -> Result<()> {
    let mut seen: BTreeMap<(QueueName, String), Announcement> = BTreeMap::new();
    for (key, activity) in shared.active_claims() {
        let all = seen.entry((key.queue.clone(), key.worker.clone())).or_default();
        all.due |= !activity.announced_within(ANNOUNCE_EVERY);
        all.handles.push(activity);
        all.wants(key.types, key.tags);
    }
    let mut due = seen.into_iter().filter(|(_, all)| all.due).peekable();
    while due.peek().is_some() {
        let (mut consumers, mut handles) = (Vec::new(), Vec::new());
        for ((queue, worker), all) in due.by_ref().take(ANNOUNCE_AT_ONCE) {
            let types = (!all.is_of_all).then(|| all.types.into_iter().collect());
            consumers.push(Seen { worker, queue, types, tags: all.tags.into_iter().collect() });
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
    tags: BTreeSet<WantedTag>,
    handles: Vec<Arc<Activity>>,
}

impl Announcement {
    fn wants(&mut self, types: Option<Vec<String>>, tags: Option<Vec<String>>) {
        match (types, tags) {
            (None, None) => self.is_of_all = true,
            (Some(types), None) => self.types.extend(types),
            (None, Some(tags)) => {
                self.tags.extend(tags.into_iter().map(|tag| WantedTag { tag, event_type: None }));
            }
            (Some(types), Some(tags)) => {
                self.tags.extend(tags.iter().flat_map(|tag| {
                    types.iter().map(|of| WantedTag { tag: tag.clone(), event_type: Some(of.clone()) })
                }))
            }
        }
    }
}

async fn refresh_gauges(shared: &Shared) -> Result<()> {
    shared.count_exhausted();
    let ages = shared.store.oldest().await?.into_iter();
    let ages: Vec<_> = ages.map(|(queue, age)| (queue, age.unwrap_or_default().as_secs_f64())).collect();
    shared.meters.show_oldest(&ages);
    shared.meters.show_depths(&shared.store.depths().await?);
    Ok(())
}
