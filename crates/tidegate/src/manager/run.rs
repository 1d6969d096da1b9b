//! The process loop: claims in batches, runs attempts, settles what they led to, and stops in good order. Knows nothing of
//! what handlers are.
//!
//! A claimed batch is first begun in chunks: handlers that answer at once are settled together, in one flush. An attempt
//! that has to wait becomes a task of its own. The keeper holds the lease of every event from its claim until its outcome
//! is written.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tidegate_core::{End, Verdict};
use tidegate_store::{Finalize, HandlerHistory};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::Inner;
use super::attempt::{Outcome, success_state};
use super::chunk::{CHUNK, Chunk, Parts, Start, Waiting};
use crate::delivery::{QueuedEvent, json_list};
use crate::error::{Error, Result};
use crate::keeper::Keeper;
use crate::moments::after;

/// How long to wait for more room before a small claim.
const GATHER: Duration = Duration::from_millis(2);
/// How long a stop waits for a claim that was under way.
pub(crate) const LAST_CLAIM: Duration = Duration::from_secs(5);
/// A chunk that takes longer than a tenth of the lease, or than this, is relieved of what does not block.
const LONGEST_CHUNK: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// When it is told to.
    Forever,
    /// When there is nothing to claim any more.
    Drain,
}

/// What a task brings back.
enum Done {
    /// Everything of a chunk was begun; it has what came of that.
    Chunk(Arc<Chunk>),
    /// What handlers answered before.
    History(Vec<(QueuedEvent, HandlerHistory)>),
    Attempt(QueuedEvent, Outcome),
    /// So many events are off our hands.
    Settled(usize),
    /// Upkeep of our own.
    Nothing,
}

/// How many events were asked for, and what came of it.
type Claiming = BoxFuture<'static, (usize, Result<Vec<QueuedEvent>>)>;

pub(crate) struct Run {
    inner: Arc<Inner>,
    mode: Mode,
    keeper: Keeper,
    /// How long a chunk may take before it is relieved.
    chunk_time: Duration,
    tasks: JoinSet<Done>,
    /// How many events each task has in hand.
    hands: HashMap<Id, usize>,
    /// The chunks that are being begun, by task.
    chunks: HashMap<Id, Arc<Chunk>>,
    in_hand: usize,
    claiming: FuturesUnordered<Claiming>,
    /// How many events those claims asked for.
    asked: usize,
    /// The last claim got all it asked for: there is more, and a second claim may go beside the first.
    backlog: bool,
    /// Whether nothing was in hand when the last claim began.
    idle_claim: bool,
    /// Since when there is room, but little.
    gathering: Option<Instant>,
    pause: Duration,
    claim_again: Instant,
    handled: u64,
    drained: bool,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.inner.loops.fetch_sub(1, Ordering::Relaxed);
        self.inner.running.fetch_sub(self.in_hand, Ordering::Relaxed);
    }
}

impl Run {
    pub(crate) fn new(inner: Arc<Inner>, mode: Mode) -> Self {
        inner.loops.fetch_add(1, Ordering::Relaxed);
        let lease = inner.consumer.key.lease;
        let keeper = Keeper::new(inner.around.queue.shared().lanes.extend.clone(), lease);
        Self {
            inner,
            mode,
            keeper,
            chunk_time: (lease / 10).min(LONGEST_CHUNK),
            tasks: JoinSet::new(),
            hands: HashMap::new(),
            chunks: HashMap::new(),
            in_hand: 0,
            claiming: FuturesUnordered::new(),
            asked: 0,
            backlog: false,
            idle_claim: false,
            gathering: None,
            pause: FIRST_PAUSE,
            claim_again: Instant::now(),
            handled: 0,
            drained: false,
        }
    }

    pub(crate) async fn run(mut self, stopped: impl Future<Output = ()>) -> Result<u64> {
        let mut stopped = pin!(stopped);
        let mut cleanup = tokio::time::interval(self.inner.options.cleanup_interval);
        cleanup.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            if self.drained && self.in_hand == 0 {
                return Ok(self.handled);
            }
            let alarm = self.plan_claim();
            tokio::select! {
                biased;
                () = &mut stopped => break,
                () = self.keeper.watched() => self.relieve(),
                done = self.tasks.join_next_with_id(), if !self.tasks.is_empty() => self.take_in(done),
                Some((asked, claimed)) = self.claiming.next() => self.take_claimed(asked, claimed)?,
                _ = cleanup.tick(), if self.mode == Mode::Forever => self.clean_up(),
                () = sleep_until(alarm) => {}
            }
        }
        self.stop().await;
        Ok(self.handled)
    }

    /// Starts a claim when there is room for one. Answers when to look again.
    fn plan_claim(&mut self) -> Option<Instant> {
        let options = &self.inner.options;
        let room = options.concurrency.saturating_sub(self.in_hand + self.asked);
        let at_once = if self.backlog { self.inner.consumer.lane().at_once() } else { 1 };
        if self.claiming.len() >= at_once || self.drained || room == 0 {
            return None;
        }
        let now = Instant::now();
        if now < self.claim_again {
            return Some(self.claim_again);
        }
        if room < options.concurrency / 4 {
            let due = *self.gathering.get_or_insert(now) + GATHER;
            if now < due {
                return Some(due);
            }
        }
        self.gathering = None;
        self.idle_claim = self.in_hand == 0;
        let consumer = self.inner.consumer.clone();
        let most = self.inner.around.queue.shared().options.limits.batch_items.max(1);
        let (count, interval) = (room.min(most), options.poll_interval);
        // Whoever goes beside another claim does not wait: one who waits is enough. After trouble it does not either, so that
        // health says at once that it is over.
        let in_trouble = self.pause > FIRST_PAUSE;
        let waits = self.mode == Mode::Forever && self.claiming.is_empty() && !in_trouble;
        self.asked += count;
        self.claiming.push(Box::pin(async move {
            let claimed = match waits {
                true => consumer.wait_looking(count, Duration::from_secs(3600), interval).await,
                false => consumer.poll_many(count).await,
            };
            (count, claimed)
        }));
        None
    }

    fn take_claimed(&mut self, asked: usize, claimed: Result<Vec<QueuedEvent>>) -> Result<()> {
        self.asked -= asked;
        self.backlog = self.mode == Mode::Forever && claimed.as_ref().is_ok_and(|events| events.len() == asked);
        let kept = claimed.and_then(|events| {
            self.keeper.hold(events.iter().map(QueuedEvent::lease))?;
            Ok(events)
        });
        match kept {
            Ok(events) => {
                self.inner.note(None);
                self.pause = FIRST_PAUSE;
                if events.is_empty() && self.mode == Mode::Drain {
                    // What was in hand when the claim began may have published since, or freed the next of its group.
                    self.drained = self.idle_claim;
                    self.claim_again = Instant::now() + Duration::from_millis(1);
                }
                self.hold(events.len());
                self.start(events);
                Ok(())
            }
            Err(error) if self.mode == Mode::Drain || self.inner.around.queue.shared().is_closed() => Err(error),
            Err(error) => {
                tracing::warn!(%error, retry_in = ?self.pause, "events could not be claimed");
                self.inner.note(Some(error));
                self.claim_again = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                Ok(())
            }
        }
    }

    fn hold(&mut self, count: usize) {
        self.in_hand += count;
        self.inner.running.fetch_add(count, Ordering::Relaxed);
        self.handled += count as u64;
    }

    fn let_go(&mut self, count: usize) {
        self.in_hand -= count;
        self.inner.running.fetch_sub(count, Ordering::Relaxed);
    }

    fn spawn(&mut self, hands: usize, task: impl Future<Output = Done> + Send + 'static) -> AbortHandle {
        let abort = self.tasks.spawn(task);
        if hands > 0 {
            self.hands.insert(abort.id(), hands);
        }
        abort
    }

    /// First attempts need no history; others ask for it first, together.
    fn start(&mut self, events: Vec<QueuedEvent>) {
        let (first, again): (Vec<_>, Vec<_>) = events.into_iter().partition(|event| event.token.0 <= 1);
        self.begin(first.into_iter().map(|event| (event, None)).collect());
        if !again.is_empty() {
            let inner = Arc::clone(&self.inner);
            self.spawn(again.len(), async move { with_history(&inner, again).await });
        }
    }

    /// Begins events, chunk by chunk.
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

    /// Takes out of chunks that stand still all but what they stand at.
    fn relieve(&mut self) {
        let now = Instant::now();
        let stands = |chunk: &Chunk| chunk.began().is_some_and(|began| began + self.chunk_time <= now);
        let standing: Vec<Id> = self.chunks.iter().filter(|(_, chunk)| stands(chunk)).map(|(id, _)| *id).collect();
        for id in standing {
            if let Some(parts) = self.chunks.remove(&id).map(|chunk| chunk.take()) {
                // Its task still holds the event that it stands at.
                let left = self.hands.get(&id).map_or(0, |hands| hands.saturating_sub(parts.len()));
                self.hands.insert(id, left);
                if left > 0 {
                    let advice = "put work that blocks into tokio::task::spawn_blocking";
                    tracing::warn!(neighbours = parts.len(), advice, "a handler blocks its thread: the others go on");
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
        self.settle(parts.decided);
    }

    fn take_in(&mut self, done: Option<Result<(Id, Done), JoinError>>) {
        match done {
            None => {}
            Some(Ok((id, done))) => {
                let hands = self.hands.remove(&id).unwrap_or(0);
                self.take_done(id, done, hands);
            }
            // Stopped because its lease was lost, or a fault of our own: what it held is released by its drop.
            Some(Err(error)) => {
                let hands = self.hands.remove(&error.id()).unwrap_or(0);
                self.chunks.remove(&error.id());
                self.let_go(hands);
                if error.is_panic() {
                    tracing::error!(%error, "a task of the manager panicked");
                }
            }
        }
    }

    fn take_done(&mut self, id: Id, done: Done, hands: usize) {
        match done {
            Done::Chunk(chunk) => {
                self.chunks.remove(&id);
                self.take_parts(chunk.take());
            }
            Done::History(events) => {
                self.begin(events.into_iter().map(|(event, history)| (event, Some(history))).collect());
            }
            Done::Attempt(event, outcome) => self.settle(vec![(event, outcome)]),
            Done::Settled(count) => self.let_go(count),
            Done::Nothing => self.let_go(hands),
        }
    }

    /// An attempt that has to wait: a task of its own, which is stopped when its lease is lost.
    fn run_apart(&mut self, (event, attempt): Waiting) {
        let lease = Arc::clone(event.lease());
        let task = self.spawn(1, async move {
            // In this order, so that the handler is gone before its event is given back.
            let (event, attempt) = (event, attempt);
            // It may have waited long for its turn.
            if !event.lease().holds(Instant::now()) {
                drop(attempt);
                return Done::Attempt(event, Outcome::NotBegun);
            }
            let outcome = attempt.await;
            event.lease().settle();
            Done::Attempt(event, outcome)
        });
        lease.works_in(task);
    }

    /// Acts on what attempts led to. Their leases are kept until that is written.
    fn settle(&mut self, decided: Vec<(QueuedEvent, Outcome)>) {
        let mut ends = Vec::with_capacity(decided.len());
        for (event, outcome) in decided {
            match outcome {
                Outcome::Ended => {
                    let meters = &self.inner.around.queue.shared().meters;
                    meters.claim_to_finish.record(event.claimed_since().elapsed().as_secs_f64());
                    event.forget();
                    self.let_go(1);
                }
                Outcome::Lost(error) => {
                    // Whether it ended is not known, or somebody else has it: leave the lease to run out.
                    tracing::warn!(entry = %event.id, %error, "an event's end is not known here");
                    event.forget();
                    self.let_go(1);
                }
                Outcome::NotBegun => {
                    tracing::warn!(entry = %event.id, "an event is given up: its lease ran out before it was begun");
                    drop(event);
                    self.let_go(1);
                }
                Outcome::Decided { verdict: Verdict::End { end, errors }, results, .. } => {
                    ends.push((ending(&event, end, errors, results), event));
                }
                Outcome::Decided { verdict, successes, .. } => {
                    let inner = Arc::clone(&self.inner);
                    self.spawn(1, async move {
                        give_back(&inner, event, verdict, successes).await;
                        Done::Settled(1)
                    });
                }
            }
        }
        if !ends.is_empty() {
            let (inner, count) = (Arc::clone(&self.inner), ends.len());
            self.spawn(count, async move {
                for answer in inner.around.queue.end_many(ends).await {
                    if let Err(error) = answer {
                        tracing::warn!(%error, "an event could not be ended");
                    }
                }
                Done::Settled(count)
            });
        }
    }

    fn clean_up(&mut self) {
        let inner = Arc::clone(&self.inner);
        self.spawn(0, async move {
            if let Err(error) = inner.cleanup().await {
                tracing::warn!(%error, "handler states of ended events are removed later");
            }
            Done::Nothing
        });
    }

    /// Claims no more, waits for what runs up to the grace period, releases the rest.
    async fn stop(&mut self) {
        self.claiming.clear();
        let deadline = after(Instant::now(), self.inner.options.grace);
        while self.in_hand > 0 {
            tokio::select! {
                done = self.tasks.join_next_with_id() => self.take_in(done),
                () = self.keeper.watched() => self.relieve(),
                () = sleep_until(Some(deadline)) => break,
            }
        }
        // Dropping an event releases it; what ended in time was settled above.
        self.tasks.shutdown().await;
        // A claim under way may still bring events for nobody, which are released then. Others may use its lane, too.
        let _ = tokio::time::timeout(LAST_CLAIM, self.inner.consumer.lane().idle()).await;
        self.inner.around.queue.shared().flush_releases().await;
    }
}

async fn sleep_until(alarm: Option<Instant>) {
    match alarm {
        Some(alarm) => tokio::time::sleep_until(alarm.into()).await,
        None => std::future::pending().await,
    }
}

async fn with_history(inner: &Arc<Inner>, events: Vec<QueuedEvent>) -> Done {
    let ids = events.iter().map(|event| event.id).collect();
    let histories = match inner.around.queue.store().handler_states() {
        Some(states) => states.handled(ids).await,
        None => Ok(events.iter().map(|_| HandlerHistory::default()).collect()),
    };
    match histories {
        Ok(histories) => Done::History(events.into_iter().zip(histories).collect()),
        Err(error) => {
            tracing::warn!(%error, "events are released: what their handlers answered before cannot be read");
            Done::Nothing
        }
    }
}

fn ending(event: &QueuedEvent, end: End, errors: Vec<String>, results: String) -> Finalize {
    let errors = (!errors.is_empty()).then(|| json_list(errors));
    Finalize { id: event.id, token: Some(event.token), end, errors, results: Some(results) }
}

/// Keeps the successes, then gives the entry back for later.
async fn give_back(inner: &Inner, event: QueuedEvent, verdict: Verdict, successes: Vec<Arc<str>>) {
    let states: Vec<_> = successes.iter().map(|handler| success_state(&event, handler)).collect();
    let recorded = inner.around.recorder.call_many(states).await;
    if let Some(error) = recorded.into_iter().find_map(Result::err) {
        tracing::warn!(entry = %event.id, %error, "a success was not recorded: the handler may run again");
    }
    let entry = event.id;
    let answer = match verdict {
        Verdict::Retry { after, error } => {
            let delay = after.unwrap_or_else(|| event.retry_delay(inner.options.retry.as_ref()));
            event.retry_after(delay, error).await
        }
        Verdict::Snooze(delay) => event.snooze(delay).await,
        Verdict::End { .. } => Err(Error::invalid("an end gives nothing back")),
    };
    if let Err(error) = answer {
        tracing::warn!(%entry, %error, "an event could not be given back for later");
    }
}
