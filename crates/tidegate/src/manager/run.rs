//! The process loop: claims in batches, runs attempts, settles what they led to, keeps leases alive, and stops in good
//! order. Knows nothing of what handlers are.
//!
//! A claimed batch is first polled through in chunks: handlers that answer at once are settled together, in one flush.
//! An attempt that has to wait becomes a task of its own, with a heartbeat.

use std::collections::HashMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tidegate_core::{End, EntryId, LeaseToken, Verdict};
use tidegate_store::{Claimed, ErrorKind, Extend, Finalize, HandlerHistory};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

use super::Inner;
use super::attempt::{Outcome, attempt, success_state};
use crate::delivery::{QueuedEvent, json_list};
use crate::error::{Error, Result};

/// How long one chunk may poll before the rest of its events become tasks of their own.
const CHUNK_BUDGET: Duration = Duration::from_millis(2);
/// How many events one chunk polls.
const CHUNK: usize = 500;
/// How long to wait for more room before a small claim.
const GATHER: Duration = Duration::from_millis(2);
/// How long a stop waits for a claim that was under way.
const LAST_CLAIM: Duration = Duration::from_secs(5);
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
    Chunk {
        decided: Vec<(QueuedEvent, Outcome)>,
        waiting: Vec<(QueuedEvent, BoxFuture<'static, Outcome>)>,
    },
    Attempt(QueuedEvent, Outcome),
    /// So many events are off our hands, among them these that had a heartbeat.
    Settled(usize, Vec<EntryId>),
    Heartbeat(Vec<(EntryId, Result<()>)>),
    /// Upkeep of our own.
    Nothing,
}

/// An attempt in a task of its own.
struct Held {
    token: LeaseToken,
    abort: AbortHandle,
    /// Until when the lease holds for sure.
    until: Instant,
    /// Its handlers have answered, and what follows is being written.
    settling: bool,
}

/// How many events were asked for, and what came of it.
type Claiming = BoxFuture<'static, (usize, Result<Vec<QueuedEvent>>)>;

pub(crate) struct Run {
    inner: Arc<Inner>,
    mode: Mode,
    lease: Duration,
    tasks: JoinSet<Done>,
    /// How many events each task has in hand.
    hands: HashMap<Id, usize>,
    attempts: HashMap<EntryId, Held>,
    owners: HashMap<Id, EntryId>,
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
        Self {
            inner,
            mode,
            lease,
            tasks: JoinSet::new(),
            hands: HashMap::new(),
            attempts: HashMap::new(),
            owners: HashMap::new(),
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
        let mut heartbeat = tokio::time::interval((self.lease / 3).max(Duration::from_millis(1)));
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
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
                done = self.tasks.join_next_with_id(), if !self.tasks.is_empty() => self.take_in(done),
                Some((asked, claimed)) = self.claiming.next() => self.take_claimed(asked, claimed)?,
                _ = heartbeat.tick() => self.beat(),
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
        // Whoever goes beside another claim does not wait: one who waits is enough.
        let waits = self.mode == Mode::Forever && self.claiming.is_empty();
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
        match claimed {
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
        let mut rest = first;
        while !rest.is_empty() {
            let tail = if rest.len() > CHUNK { rest.split_off(CHUNK) } else { Vec::new() };
            let chunk = std::mem::replace(&mut rest, tail);
            let inner = Arc::clone(&self.inner);
            self.spawn(chunk.len(), async move { poll_through(&inner, chunk.into_iter().map(|e| (e, None))) });
        }
        if !again.is_empty() {
            let inner = Arc::clone(&self.inner);
            self.spawn(again.len(), async move { with_history(&inner, again).await });
        }
    }

    fn take_in(&mut self, done: Option<Result<(Id, Done), JoinError>>) {
        match done {
            None => {}
            Some(Ok((id, done))) => {
                let hands = self.hands.remove(&id).unwrap_or(0);
                self.take_done(id, done, hands);
            }
            // Aborted because its lease was lost, or a fault of our own: what it held is released by its drop.
            Some(Err(error)) => {
                let hands = self.hands.remove(&error.id()).unwrap_or(0);
                if let Some(entry) = self.owners.remove(&error.id()) {
                    self.attempts.remove(&entry);
                }
                self.let_go(hands);
                if error.is_panic() {
                    tracing::error!(%error, "a task of the manager panicked");
                }
            }
        }
    }

    fn take_done(&mut self, id: Id, done: Done, hands: usize) {
        match done {
            Done::Chunk { decided, waiting } => {
                for (event, attempt) in waiting {
                    self.run_apart(event, attempt);
                }
                self.settle(decided);
            }
            Done::Attempt(event, outcome) => {
                self.owners.remove(&id);
                // Its heart goes on beating until it is settled.
                if let Some(held) = self.attempts.get_mut(&event.id) {
                    held.settling = true;
                }
                self.settle(vec![(event, outcome)]);
            }
            Done::Settled(count, entries) => {
                self.let_go(count);
                for entry in entries {
                    self.attempts.remove(&entry);
                }
            }
            Done::Heartbeat(answers) => self.hear(answers),
            Done::Nothing => self.let_go(hands),
        }
    }

    /// An attempt that has to wait: a task of its own, with a heartbeat.
    fn run_apart(&mut self, event: QueuedEvent, attempt: BoxFuture<'static, Outcome>) {
        let (entry, token, until) = (event.id, event.token, event.claimed_since() + self.lease);
        let abort = self.spawn(1, async move {
            let outcome = attempt.await;
            Done::Attempt(event, outcome)
        });
        self.owners.insert(abort.id(), entry);
        self.attempts.insert(entry, Held { token, abort, until, settling: false });
    }

    fn settle(&mut self, decided: Vec<(QueuedEvent, Outcome)>) {
        let mut ends = Vec::with_capacity(decided.len());
        for (event, outcome) in decided {
            match outcome {
                Outcome::Ended => {
                    self.attempts.remove(&event.id);
                    event.forget();
                    self.let_go(1);
                }
                Outcome::Lost(error) => {
                    // Whether it ended is not known, or somebody else has it: leave the lease to run out.
                    tracing::warn!(entry = %event.id, %error, "an event's end is not known here");
                    self.attempts.remove(&event.id);
                    event.forget();
                    self.let_go(1);
                }
                Outcome::Decided { verdict: Verdict::End { end, errors }, results, .. } => {
                    ends.push((ending(&event, end, errors, results), event));
                }
                Outcome::Decided { verdict, successes, .. } => {
                    let (inner, entry) = (Arc::clone(&self.inner), event.id);
                    self.spawn(1, async move {
                        give_back(&inner, event, verdict, successes).await;
                        Done::Settled(1, vec![entry])
                    });
                }
            }
        }
        if !ends.is_empty() {
            let (inner, count) = (Arc::clone(&self.inner), ends.len());
            let beating =
                |(_, event): &(Finalize, QueuedEvent)| self.attempts.contains_key(&event.id).then_some(event.id);
            let entries: Vec<EntryId> =
                if self.attempts.is_empty() { Vec::new() } else { ends.iter().filter_map(beating).collect() };
            self.spawn(count, async move {
                for answer in inner.around.queue.end_many(ends).await {
                    if let Err(error) = answer {
                        tracing::warn!(%error, "an event could not be ended");
                    }
                }
                Done::Settled(count, entries)
            });
        }
    }

    /// Extends the leases of attempts that take their time, all at once.
    fn beat(&mut self) {
        let now = Instant::now();
        // Nobody answered our heartbeats: stop well before somebody else may start.
        self.attempts.retain(|entry, held| {
            let holds = now + self.lease / 10 < held.until;
            if !holds && !held.settling {
                tracing::warn!(%entry, "an event is given up: its lease could not be extended in time");
                held.abort.abort();
            }
            holds
        });
        let near = |held: &&Held| held.until.saturating_duration_since(now) < self.lease * 3 / 4;
        let lease = self.lease;
        let items: Vec<Extend> = self
            .attempts
            .iter()
            .filter(|(_, held)| near(held))
            .map(|(id, held)| Extend { id: *id, token: held.token, lease })
            .collect();
        if items.is_empty() {
            return;
        }
        let inner = Arc::clone(&self.inner);
        self.spawn(0, async move {
            let ids: Vec<EntryId> = items.iter().map(|item| item.id).collect();
            let answers = inner.around.queue.shared().lanes.extend.call_many(items).await;
            Done::Heartbeat(ids.into_iter().zip(answers.into_iter().map(|answer| answer.map(drop))).collect())
        });
    }

    fn hear(&mut self, answers: Vec<(EntryId, Result<()>)>) {
        let until = Instant::now() + self.lease;
        for (entry, answer) in answers {
            match answer {
                Ok(()) => {
                    if let Some(held) = self.attempts.get_mut(&entry) {
                        // Counted from before the call, to be on the safe side.
                        held.until = held.until.max(until.checked_sub(self.lease / 20).unwrap_or(until));
                    }
                }
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    if let Some(held) = self.attempts.remove(&entry)
                        && !held.settling
                    {
                        tracing::warn!(%entry, "an event is given up: its lease was lost");
                        held.abort.abort();
                    }
                }
                Err(error) => tracing::debug!(%entry, %error, "a lease was not extended"),
            }
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
        let deadline = tokio::time::Instant::now() + self.inner.options.grace;
        let mut heartbeat = tokio::time::interval((self.lease / 3).max(Duration::from_millis(1)));
        while self.in_hand > 0 {
            tokio::select! {
                done = self.tasks.join_next_with_id() => self.take_in(done),
                _ = heartbeat.tick() => self.beat(),
                () = tokio::time::sleep_until(deadline) => break,
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

/// Polls each attempt once. Those that are done at once go on together.
fn poll_through(inner: &Arc<Inner>, events: impl Iterator<Item = (QueuedEvent, Option<HandlerHistory>)>) -> Done {
    let started = Instant::now();
    let (mut decided, mut waiting) = (Vec::new(), Vec::new());
    for (event, history) in events {
        let mut attempt = attempt_at(inner, event.data(), history);
        // The waker is of no use: a pending attempt is polled again at once by its own task.
        let polled = match started.elapsed() < CHUNK_BUDGET {
            true => Pin::new(&mut attempt).poll(&mut Context::from_waker(Waker::noop())),
            false => Poll::Pending,
        };
        match polled {
            Poll::Ready(outcome) => decided.push((event, outcome)),
            Poll::Pending => waiting.push((event, attempt)),
        }
    }
    Done::Chunk { decided, waiting }
}

async fn with_history(inner: &Arc<Inner>, events: Vec<QueuedEvent>) -> Done {
    let ids = events.iter().map(|event| event.id).collect();
    let histories = match inner.around.queue.store().handler_states() {
        Some(states) => states.handled(ids).await,
        None => Ok(events.iter().map(|_| HandlerHistory::default()).collect()),
    };
    match histories {
        Ok(histories) => poll_through(inner, events.into_iter().zip(histories.into_iter().map(Some))),
        Err(error) => {
            tracing::warn!(%error, "events are released: what their handlers answered before cannot be read");
            Done::Nothing
        }
    }
}

fn attempt_at(
    inner: &Arc<Inner>,
    entry: &Arc<Claimed>,
    history: Option<HandlerHistory>,
) -> BoxFuture<'static, Outcome> {
    match inner.plan(&entry.fact.event_type) {
        Some(plan) => Box::pin(attempt(Arc::clone(&inner.around), Arc::clone(plan), Arc::clone(entry), history)),
        // Claimed only where unhandled events are to be completed.
        None => Box::pin(std::future::ready(Outcome::Decided {
            verdict: Verdict::End { end: End::Completed, errors: Vec::new() },
            results: "{}".to_owned(),
            successes: Vec::new(),
        })),
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
            let queue = &inner.around.queue;
            let policy = inner.options.retry.as_ref().unwrap_or(&queue.shared().options.retry);
            let delay = after.unwrap_or_else(|| policy.delay(event.attempts, rand::random()));
            event.retry_after(delay, error).await
        }
        Verdict::Snooze(delay) => event.snooze(delay).await,
        Verdict::End { .. } => Err(Error::invalid("an end gives nothing back")),
    };
    if let Err(error) = answer {
        tracing::warn!(%entry, %error, "an event could not be given back for later");
    }
}
