//! The process loop: claims in batches, runs attempts, writes what follows from them, and stops in order. What to claim
//! and when is decided by its [`ClaimPlan`]. Knows nothing of handlers.
//!
//! A claimed batch is started in chunks: attempts that are ready at once are ended together, in one flush. An attempt
//! that is pending becomes a task of its own. The lease keeper keeps the lease of every event from its claim until the
//! decision is written.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tidegate_store::HandlerHistory;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::apply::{ToWrite, clean_up, give_back, to_write, with_history, write_ends};
use super::attempt::Attempted;
use super::chunk::{CHUNK, Chunk, Parts, Start, Waiting};
use super::inner::Inner;
use super::keeper::Keeper;
use super::plan::{AfterFailure, Ask, ClaimPlan, Mode, Next, PlanSettings, chunk_time, is_stalled};
use crate::error::Result;
use crate::moments::after;
use crate::queue::delivery::QueuedEvent;

/// How long a claim waits for events before it is sent again.
const CLAIM_WAIT: Duration = Duration::from_secs(3600);

/// The result of a task.
enum Done {
    /// All events of a chunk were started; it holds the results.
    Chunk(Arc<Chunk>),
    /// The results of handlers in earlier attempts.
    History(Vec<(QueuedEvent, HandlerHistory)>),
    Attempt(QueuedEvent, Attempted),
    /// The decisions on this many events were written, or that failed.
    Applied(usize),
    /// A cleanup ended, or histories could not be read and their events were dropped.
    Nothing,
}

/// A claim: how many events it asked for, and its result.
type Claiming = BoxFuture<'static, (usize, Result<Vec<QueuedEvent>>)>;

pub(crate) struct Run {
    inner: Arc<Inner>,
    mode: Mode,
    plan: ClaimPlan,
    keeper: Keeper,
    /// How long a chunk may take before it counts as stalled.
    chunk_time: Duration,
    tasks: JoinSet<Done>,
    /// How many events each task holds.
    task_events: HashMap<Id, usize>,
    /// The chunks that are being started, by task.
    chunks: HashMap<Id, Arc<Chunk>>,
    claiming: FuturesUnordered<Claiming>,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.inner.loops.fetch_sub(1, Ordering::Relaxed);
        self.inner.running.fetch_sub(self.plan.in_hand(), Ordering::Relaxed);
    }
}

impl Run {
    pub(crate) fn new(inner: Arc<Inner>, mode: Mode) -> Self {
        inner.loops.fetch_add(1, Ordering::Relaxed);
        let (shared, lease) = (inner.context.queue.shared(), inner.consumer.key.lease);
        let keeper = Keeper::new(shared.batchers.extend.clone(), lease);
        let plan = ClaimPlan::new(PlanSettings {
            mode,
            concurrency: inner.options.concurrency,
            batch: shared.options.limits.batch_items.max(1),
            at_once: inner.consumer.batcher().at_once(),
        });
        Self {
            inner,
            mode,
            plan,
            keeper,
            chunk_time: chunk_time(lease),
            tasks: JoinSet::new(),
            task_events: HashMap::new(),
            chunks: HashMap::new(),
            claiming: FuturesUnordered::new(),
        }
    }

    pub(crate) async fn run(mut self, stopped: impl Future<Output = ()>) -> Result<u64> {
        let mut stopped = pin!(stopped);
        let mut cleanup = tokio::time::interval(self.inner.options.cleanup_interval);
        cleanup.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let alarm = match self.plan.next(Instant::now()) {
                Next::Over => return Ok(self.plan.handled()),
                Next::Claim(ask) => {
                    self.claim(ask);
                    None
                }
                Next::At(at) => Some(at),
                Next::Wait => None,
            };
            tokio::select! {
                biased;
                () = &mut stopped => break,
                () = self.keeper.watched() => self.split_stalled(),
                done = self.tasks.join_next_with_id(), if !self.tasks.is_empty() => self.take_in(done),
                Some((asked, claimed)) = self.claiming.next() => self.take_claimed(asked, claimed)?,
                _ = cleanup.tick(), if self.mode == Mode::Forever => self.clean_up(),
                () = sleep_until(alarm) => {}
            }
        }
        self.stop().await;
        Ok(self.plan.handled())
    }

    fn claim(&mut self, Ask { count, waits }: Ask) {
        let (consumer, interval) = (self.inner.consumer.clone(), self.inner.options.poll_interval);
        self.claiming.push(Box::pin(async move {
            let claimed = match waits {
                true => consumer.wait_many_every(count, CLAIM_WAIT, interval).await,
                false => consumer.poll_many(count).await,
            };
            (count, claimed)
        }));
    }

    fn take_claimed(&mut self, asked: usize, claimed: Result<Vec<QueuedEvent>>) -> Result<()> {
        let kept = claimed.and_then(|events| {
            self.keeper.hold(events.iter().map(QueuedEvent::lease))?;
            Ok(events)
        });
        let now = Instant::now();
        match kept {
            Ok(events) => {
                self.inner.note(None);
                self.plan.claimed(asked, events.len(), now);
                self.inner.running.fetch_add(events.len(), Ordering::Relaxed);
                self.start(events);
                Ok(())
            }
            Err(error) => match self.plan.failed(asked, self.inner.context.queue.shared().is_closed(), now) {
                AfterFailure::GiveUp => Err(error),
                AfterFailure::Pause(pause) => {
                    tracing::warn!(%error, retry_in = ?pause, "claiming events failed, retrying");
                    self.inner.note(Some(error));
                    Ok(())
                }
            },
        }
    }

    fn let_go(&mut self, count: usize) {
        self.plan.let_go(count);
        self.inner.running.fetch_sub(count, Ordering::Relaxed);
    }

    /// Spawns a task that holds this many events.
    fn spawn(&mut self, events: usize, task: impl Future<Output = Done> + Send + 'static) -> AbortHandle {
        let abort = self.tasks.spawn(task);
        if events > 0 {
            self.task_events.insert(abort.id(), events);
        }
        abort
    }

    /// Starts first attempts at once; for later ones the history of all is read first, in one query.
    fn start(&mut self, events: Vec<QueuedEvent>) {
        let (first, again): (Vec<_>, Vec<_>) = events.into_iter().partition(|event| event.token.0 <= 1);
        self.begin(first.into_iter().map(|event| (event, None)).collect());
        if !again.is_empty() {
            let inner = Arc::clone(&self.inner);
            self.spawn(again.len(), async move {
                let read = with_history(&inner, again).await;
                read.map_or(Done::Nothing, Done::History)
            });
        }
    }

    /// Starts events in chunks.
    fn begin(&mut self, mut rest: VecDeque<Start>) {
        while !rest.is_empty() {
            let tail = if rest.len() > CHUNK { rest.split_off(CHUNK) } else { VecDeque::new() };
            let events = std::mem::replace(&mut rest, tail);
            let count = events.len();
            let (inner, chunk) = (Arc::clone(&self.inner), Arc::new(Chunk::new(events)));
            let task = {
                let chunk = Arc::clone(&chunk);
                self.spawn(count, async move {
                    chunk.work(&inner);
                    Done::Chunk(chunk)
                })
            };
            self.chunks.insert(task.id(), chunk);
            if count > 1 {
                self.keeper.watch(Instant::now() + self.chunk_time);
            }
        }
    }

    /// Takes everything out of stalled chunks but the event that blocks.
    fn split_stalled(&mut self) {
        let now = Instant::now();
        let is_stalled = |chunk: &Chunk| is_stalled(chunk.began(), self.chunk_time, now);
        let stalled: Vec<Id> = self.chunks.iter().filter(|(_, chunk)| is_stalled(chunk)).map(|(id, _)| *id).collect();
        for id in stalled {
            if let Some(parts) = self.chunks.remove(&id).map(|chunk| chunk.take()) {
                // The task still holds the event that blocks.
                let left = self.task_events.get(&id).map_or(0, |events| events.saturating_sub(parts.len()));
                self.task_events.insert(id, left);
                if left > 0 {
                    let advice = "run blocking code in tokio::task::spawn_blocking";
                    tracing::warn!(neighbours = parts.len(), advice, "handler blocks its thread: the others continue");
                }
                self.take_parts(parts);
            }
        }
        if !self.chunks.is_empty() {
            self.keeper.watch(now + self.chunk_time);
        }
    }

    fn take_parts(&mut self, parts: Parts) {
        self.begin(parts.rest);
        for waiting in parts.waiting {
            self.run_apart(waiting);
        }
        self.apply(parts.decided);
    }

    fn take_in(&mut self, done: Option<Result<(Id, Done), JoinError>>) {
        match done {
            None => {}
            Some(Ok((id, done))) => {
                let events = self.task_events.remove(&id).unwrap_or(0);
                self.take_done(id, done, events);
            }
            // Aborted because its lease was lost, or it panicked: dropping its events releases them.
            Some(Err(error)) => {
                let events = self.task_events.remove(&error.id()).unwrap_or(0);
                self.chunks.remove(&error.id());
                self.let_go(events);
                if error.is_panic() {
                    tracing::error!(%error, events, "task of the manager panicked: its events are released");
                }
            }
        }
    }

    fn take_done(&mut self, id: Id, done: Done, events: usize) {
        match done {
            Done::Chunk(chunk) => {
                self.chunks.remove(&id);
                self.take_parts(chunk.take());
            }
            Done::History(read) => {
                self.begin(read.into_iter().map(|(event, history)| (event, Some(history))).collect());
            }
            Done::Attempt(event, outcome) => self.apply(vec![(event, outcome)]),
            Done::Applied(count) => self.let_go(count),
            Done::Nothing => self.let_go(events),
        }
    }

    /// Runs a pending attempt in a task of its own, which is aborted when its lease is lost.
    fn run_apart(&mut self, (event, attempt): Waiting) {
        let lease = Arc::clone(event.lease());
        let task = self.spawn(1, async move {
            // Declared in this order, so that the handler is dropped before its event is released.
            let (event, attempt) = (event, attempt);
            // The task may have waited long before it ran.
            if !event.lease().holds(Instant::now()) {
                drop(attempt);
                return Done::Attempt(event, Attempted::NotBegun);
            }
            let outcome = attempt.await;
            event.lease().attempt_over();
            Done::Attempt(event, outcome)
        });
        lease.works_in(task);
    }

    /// Writes the decisions of attempts. Their leases are kept until that is done.
    fn apply(&mut self, decided: Vec<(QueuedEvent, Attempted)>) {
        let mut ends = Vec::with_capacity(decided.len());
        for (event, outcome) in decided {
            match to_write(&self.inner, event, outcome) {
                ToWrite::Nothing => self.let_go(1),
                ToWrite::End(item, event) => ends.push((item, event)),
                ToWrite::GiveBack(item) => {
                    let inner = Arc::clone(&self.inner);
                    self.spawn(1, async move {
                        give_back(&inner, item).await;
                        Done::Applied(1)
                    });
                }
            }
        }
        if !ends.is_empty() {
            let (inner, count) = (Arc::clone(&self.inner), ends.len());
            self.spawn(count, async move {
                write_ends(&inner, ends).await;
                Done::Applied(count)
            });
        }
    }

    fn clean_up(&mut self) {
        let inner = Arc::clone(&self.inner);
        self.spawn(0, async move {
            clean_up(&inner).await;
            Done::Nothing
        });
    }

    /// Stops claiming, waits for running attempts up to the grace period, releases the rest.
    async fn stop(&mut self) {
        self.claiming.clear();
        let deadline = after(Instant::now(), self.inner.options.grace);
        while self.plan.in_hand() > 0 {
            tokio::select! {
                done = self.tasks.join_next_with_id() => self.take_in(done),
                () = self.keeper.watched() => self.split_stalled(),
                () = sleep_until(Some(deadline)) => break,
            }
        }
        // Aborting the tasks drops their events, which releases them.
        self.tasks.shutdown().await;
        // A claim under way may still return events, which are then released.
        self.inner.consumer.batcher().wait_for_last_claim().await;
        self.inner.context.queue.shared().flush_releases().await;
    }
}

async fn sleep_until(alarm: Option<Instant>) {
    match alarm {
        Some(alarm) => tokio::time::sleep_until(alarm.into()).await,
        None => std::future::pending().await,
    }
}
