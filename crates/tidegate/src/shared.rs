//! What all handles of one opened queue share: the store, the lanes, the bells, the meters.
//!
//! Handles own it; background tasks hold only what they need, never the whole, so that they end with the last handle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tidegate_core::{NewEvent, QueueName, Timestamp};
use tidegate_store::{
    Backend, Batch, ByHand, Extend, Finalize, Finalized, Heartbeat, Held, PublishOutcome, Published, Report, Reported,
    Requeue, Result, Store,
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::coalescer::{Admit, Coalescer, LaneLimits};
use crate::consumer::{Activity, ClaimKey, ClaimLane};
use crate::metrics::Meters;
use crate::options::Options;
use crate::probe::{self, Probed};
use crate::release::{self, Errand, Late, Release};
use crate::transaction::sealed::NativeRef;
use crate::upkeep::{self, ACTIVE_WITHIN, Notes};
use crate::wake::{self, Bells, news_of};
use crate::work;

/// The store under its own name, for what only one database can do.
#[derive(Debug, Clone)]
pub(crate) enum Native {
    #[cfg(feature = "sqlite")]
    Sqlite(Arc<tidegate_store::sqlite::SqliteStore>),
    #[cfg(feature = "postgres")]
    Postgres(Arc<tidegate_store::postgres::PostgresStore>),
    Other,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) native: NativeRef,
    pub(crate) options: Options,
    pub(crate) meters: Arc<Meters>,
    pub(crate) bells: Arc<Bells>,
    pub(crate) lanes: Lanes,
    pub(crate) probed: Probed,
    pub(crate) notes: Arc<Mutex<Notes>>,
    claims: Mutex<ClaimLanes>,
    errands: mpsc::UnboundedSender<Errand>,
    stop: watch::Sender<bool>,
    closed: AtomicBool,
    closing: tokio::sync::Mutex<bool>,
}

/// Everybody who claims, by their words.
#[derive(Debug, Default)]
struct ClaimLanes {
    by_key: HashMap<ClaimKey, Claims>,
    /// Those who claim no more are forgotten when there are so many.
    sweep_at: usize,
}

impl ClaimLanes {
    fn sweep(&mut self) {
        if self.by_key.len() >= self.sweep_at {
            self.by_key.retain(|_, known| known.lane.strong_count() > 0 || known.activity.polled_within(ACTIVE_WITHIN));
            self.sweep_at = (self.by_key.len() * 2).max(64);
        }
    }
}

/// Who claims with the same words, and when they last did.
#[derive(Debug)]
struct Claims {
    lane: Weak<ClaimLane>,
    activity: Arc<Activity>,
}

/// One lane per verb, so that no verb waits behind another.
#[derive(Debug, Clone)]
pub(crate) struct Lanes {
    publish: Coalescer<NewEvent, Published>,
    publish_grouped: Coalescer<NewEvent, Published>,
    publish_keyed: Coalescer<NewEvent, Published>,
    publish_keyed_grouped: Coalescer<NewEvent, Published>,
    pub(crate) finish: Coalescer<Ending, Finalized>,
    pub(crate) extend: Coalescer<Extend, Timestamp>,
    pub(crate) requeue: Coalescer<Requeue, ()>,
    pub(crate) release: Coalescer<Requeue, ()>,
    pub(crate) cancel: Coalescer<ByHand, ()>,
    pub(crate) report: Coalescer<Report, Reported>,
    pub(crate) heartbeat: Coalescer<Heartbeat, Held>,
}

impl Shared {
    pub(crate) fn start(options: Options, store: Arc<dyn Store>, native: Native) -> Arc<Self> {
        let meters = Arc::new(Meters::new(options.queue_labels));
        let bells = Arc::new(Bells::new());
        let lanes = Lanes::new(&options, &store, &meters, &bells);
        let (errands, errands_in) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        let shared = Arc::new(Self {
            store: Arc::clone(&store),
            native: NativeRef(native),
            meters: Arc::clone(&meters),
            bells: Arc::clone(&bells),
            lanes: lanes.clone(),
            notes: Arc::default(),
            probed: Probed::default(),
            claims: Mutex::default(),
            errands,
            stop,
            closed: AtomicBool::new(false),
            closing: tokio::sync::Mutex::new(false),
            options,
        });
        tokio::spawn(wake::forward(Arc::clone(&bells), store.wakeups(), stopped.clone()));
        let every = upkeep::heartbeat_interval(&shared.options);
        tokio::spawn(upkeep::keep_beating(Arc::clone(&store), Arc::clone(&shared.notes), every, stopped.clone()));
        tokio::spawn(release::run(store, lanes, meters, bells, errands_in));
        tokio::spawn(probe::run(Arc::downgrade(&shared), shared.options.upkeep_interval, stopped.clone()));
        tokio::spawn(upkeep::run(Arc::downgrade(&shared), shared.options.upkeep_interval, stopped.clone()));
        tokio::spawn(upkeep::show_gauges(Arc::downgrade(&shared), stopped));
        shared
    }

    /// The lane of everybody who claims with the same words.
    pub(crate) fn claim_lane(self: &Arc<Self>, key: &ClaimKey) -> Arc<ClaimLane> {
        let mut claims = self.claims();
        let known = claims.by_key.get(key);
        if let Some(lane) = known.and_then(|known| known.lane.upgrade()) {
            return lane;
        }
        let activity = known.map_or_else(|| Arc::new(Activity::new()), |known| Arc::clone(&known.activity));
        claims.sweep();
        let lane = Arc::new(ClaimLane::new(self, key.clone(), Arc::clone(&activity)));
        if self.is_closed() {
            lane.close();
        }
        claims.by_key.insert(key.clone(), Claims { lane: Arc::downgrade(&lane), activity });
        lane
    }

    pub(crate) fn claim_lanes(&self) -> Vec<Arc<ClaimLane>> {
        self.claims().by_key.values().filter_map(|known| known.lane.upgrade()).collect()
    }

    /// Everybody who claimed lately.
    pub(crate) fn active_claims(&self) -> Vec<(ClaimKey, Arc<Activity>)> {
        let claims = self.claims();
        let lively = claims.by_key.iter().filter(|(_, known)| known.activity.polled_within(ACTIVE_WITHIN));
        lively.map(|(key, known)| (key.clone(), Arc::clone(&known.activity))).collect()
    }

    fn claims(&self) -> MutexGuard<'_, ClaimLanes> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the entries that claims have ended.
    pub(crate) fn count_exhausted(&self) {
        for (queue, end, count) in self.store.take_exhausted() {
            self.meters.ended(&queue, end, count);
        }
    }

    /// Bounds of a lane by backend.
    pub(crate) fn lane_limits(&self, on_postgres: usize) -> LaneLimits {
        lane_limits(&self.options, &self.store, on_postgres)
    }

    /// Gives a lease back in the background, without using up the attempt.
    pub(crate) fn release_later(&self, release: Release) {
        // The other end lives as long as this; after a runtime's end there is nobody left to tell.
        let _ = self.errands.send(Errand::Release(release));
    }

    /// Gives back what a claim gets that nobody waits for any more.
    pub(crate) fn release_late(&self, late: Late) {
        // As above.
        let _ = self.errands.send(Errand::Late(late));
    }

    /// Waits until every lease dropped so far was given back, or that was tried.
    pub(crate) async fn flush_releases(&self) {
        let (flushed, answer) = oneshot::channel();
        if self.errands.send(Errand::Flush(flushed)).is_ok() {
            // The other end is gone only when there is nobody left to release for.
            let _ = answer.await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Stops claiming, flushes what was admitted and what was dropped, stops upkeep, closes the store.
    pub(crate) async fn close(&self) {
        let mut done = self.closing.lock().await;
        if *done {
            return;
        }
        self.closed.store(true, Ordering::Release);
        self.store.dismiss();
        let claims = self.claim_lanes();
        claims.iter().for_each(|lane| lane.close());
        for lane in &claims {
            lane.idle().await;
        }
        self.lanes.close_and_flush().await;
        self.flush_releases().await;
        self.lanes.release.close();
        self.lanes.release.idle().await;
        let _ = self.stop.send(true);
        self.bells.ring_all();
        self.store.close().await;
        *done = true;
    }
}

fn lane_limits(options: &Options, store: &Arc<dyn Store>, on_postgres: usize) -> LaneLimits {
    let limits = &options.limits;
    let asked = Arc::downgrade(store);
    let in_flight = match store.backend() {
        Backend::Sqlite => 1,
        Backend::Postgres => on_postgres,
    };
    LaneLimits {
        batch_items: limits.batch_items,
        batch_weight: limits.batch_bytes,
        // Lanes that must keep an order stay at one, whatever the setting.
        in_flight: if on_postgres == 1 { 1 } else { limits.in_flight.unwrap_or(in_flight) },
        room_items: limits.waiting_items,
        room_weight: limits.waiting_bytes,
        deadline: limits.deadline,
        skip_gone: false,
        admit: Admit::new(move || asked.upgrade().map_or(Ok(()), |store| store.check_caller())),
    }
}

impl Lanes {
    fn new(options: &Options, store: &Arc<dyn Store>, meters: &Arc<Meters>, bells: &Arc<Bells>) -> Self {
        let limits = |on_postgres| lane_limits(options, store, on_postgres);
        let publish = |name, on_postgres| {
            let (store, meters, bells) = (Arc::clone(store), Arc::clone(meters), Arc::clone(bells));
            Coalescer::new(name, limits(on_postgres), NewEvent::weight, move |events| {
                publish(Arc::clone(&store), Arc::clone(&meters), Arc::clone(&bells), events)
            })
        };
        Self {
            publish: publish("publish", 2),
            // One flush at a time: the order of a group is the order of its flushes.
            publish_grouped: publish("publish_grouped", 1),
            // A key may wait for somebody's open transaction: others should not wait with it.
            publish_keyed: publish("publish_keyed", 4),
            publish_keyed_grouped: publish("publish_keyed_grouped", 1),
            finish: finish_lane(limits(2), store, meters, bells),
            extend: extend_lane(limits(2), store, meters),
            requeue: requeue_lane("requeue", limits(2), store, Some(meters)),
            release: requeue_lane("release", limits(2), store, None),
            cancel: cancel_lane(limits(2), store),
            report: work::report_lane(limits(2), store, meters),
            heartbeat: work::heartbeat_lane(limits(2), store, meters),
        }
    }

    /// Where events go that are published together.
    pub(crate) fn for_publish(&self, events: &[NewEvent]) -> &Coalescer<NewEvent, Published> {
        let keyed = events.iter().any(|event| event.deduplication.is_some() || event.idempotency.is_some());
        let grouped = events.iter().any(|event| event.group.is_some());
        match (keyed, grouped) {
            (false, false) => &self.publish,
            (false, true) => &self.publish_grouped,
            (true, false) => &self.publish_keyed,
            (true, true) => &self.publish_keyed_grouped,
        }
    }

    async fn close_and_flush(&self) {
        for lane in self.publish_lanes() {
            lane.close();
        }
        self.finish.close();
        self.extend.close();
        self.requeue.close();
        self.cancel.close();
        self.report.close();
        self.heartbeat.close();
        self.idle().await;
    }

    /// Waits until everything admitted is flushed.
    pub(crate) async fn idle(&self) {
        for lane in self.publish_lanes() {
            lane.idle().await;
        }
        self.finish.idle().await;
        self.extend.idle().await;
        self.requeue.idle().await;
        self.cancel.idle().await;
        self.report.idle().await;
        self.heartbeat.idle().await;
    }

    fn publish_lanes(&self) -> [&Coalescer<NewEvent, Published>; 4] {
        [&self.publish, &self.publish_grouped, &self.publish_keyed, &self.publish_keyed_grouped]
    }
}

async fn publish(
    store: Arc<dyn Store>,
    meters: Arc<Meters>,
    bells: Arc<Bells>,
    events: Vec<NewEvent>,
) -> Result<Batch<Published>> {
    let news = news_of(&events);
    let answers = store.publish(events).await?;
    let created = |answer: &&Result<Published>| {
        answer.as_ref().is_ok_and(|published| published.outcome == PublishOutcome::Created)
    };
    meters.published.increment(answers.iter().filter(created).count() as u64);
    bells.published(news.iter());
    Ok(answers)
}

fn finish_lane(
    limits: LaneLimits,
    store: &Arc<dyn Store>,
    meters: &Arc<Meters>,
    bells: &Arc<Bells>,
) -> Coalescer<Ending, Finalized> {
    let (store, meters, bells) = (Arc::clone(store), Arc::clone(meters), Arc::clone(bells));
    let weigh = |Ending { item, .. }: &Ending| {
        64 + item.errors.as_ref().map_or(0, String::len) + item.results.as_ref().map_or(0, String::len)
    };
    Coalescer::new("finish", limits, weigh, move |items| {
        let (store, meters, bells) = (Arc::clone(&store), Arc::clone(&meters), Arc::clone(&bells));
        async move {
            let (items, queues): (Vec<Finalize>, Vec<QueueName>) =
                items.into_iter().map(|Ending { item, queue }| (item, queue)).unzip();
            let answers = store.finalize(items).await?;
            bells.logged();
            count_ends(&meters, &queues, &answers);
            meters.lost_leases(&answers);
            Ok(answers)
        }
    })
}

/// Counts what ended, neighbours of one queue that ended alike together.
fn count_ends(meters: &Meters, queues: &[QueueName], answers: &[Result<Finalized>]) {
    let ended = queues.iter().zip(answers).filter_map(|(queue, answer)| {
        answer.as_ref().ok().filter(|finalized| !finalized.repeated).map(|finalized| (queue, finalized.end))
    });
    let mut run: Option<(&QueueName, tidegate_core::End, u64)> = None;
    for (queue, end) in ended {
        match &mut run {
            Some((of, like, count)) if *of == queue && *like == end => *count += 1,
            _ => {
                if let Some((queue, end, count)) = run.replace((queue, end, 1)) {
                    meters.ended(queue, end, count);
                }
            }
        }
    }
    if let Some((queue, end, count)) = run {
        meters.ended(queue, end, count);
    }
}

/// An entry to be ended, and the queue that its end is counted for.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    pub(crate) item: Finalize,
    pub(crate) queue: QueueName,
}

fn extend_lane(limits: LaneLimits, store: &Arc<dyn Store>, meters: &Arc<Meters>) -> Coalescer<Extend, Timestamp> {
    let (store, meters) = (Arc::clone(store), Arc::clone(meters));
    Coalescer::new(
        "extend",
        limits,
        |_| 64,
        move |items| {
            let (store, meters) = (Arc::clone(&store), Arc::clone(&meters));
            async move {
                let answers = store.extend(items).await?;
                meters.lost_leases(&answers);
                Ok(answers)
            }
        },
    )
}

/// `meters` is absent in the background: a lease that ended otherwise is no news there.
fn requeue_lane(
    name: &'static str,
    limits: LaneLimits,
    store: &Arc<dyn Store>,
    meters: Option<&Arc<Meters>>,
) -> Coalescer<Requeue, ()> {
    let (store, meters) = (Arc::clone(store), meters.cloned());
    let weigh = |item: &Requeue| 64 + item.error.as_ref().map_or(0, String::len);
    Coalescer::new(name, limits, weigh, move |items| {
        let (store, meters) = (Arc::clone(&store), meters.clone());
        async move {
            let answers = store.requeue(items).await?;
            if let Some(meters) = meters {
                meters.lost_leases(&answers);
            }
            Ok(answers)
        }
    })
}

fn cancel_lane(limits: LaneLimits, store: &Arc<dyn Store>) -> Coalescer<ByHand, ()> {
    let store = Arc::clone(store);
    Coalescer::new(
        "cancel",
        limits,
        |item| 64 + item.actor.as_ref().map_or(0, String::len),
        move |items| {
            let store = Arc::clone(&store);
            async move { store.cancel_by_hand(items).await }
        },
    )
}

/// Tells the store and local waiters that a caller's own transaction has committed.
pub(crate) fn wake(shared: &Shared, queues: std::collections::BTreeSet<QueueName>) {
    queues.iter().for_each(|queue| shared.bells.ring(queue));
    shared.bells.logged();
    shared.store.wake(queues);
}
