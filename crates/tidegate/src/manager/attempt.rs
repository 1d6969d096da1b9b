//! One attempt at one event: every handler that has not succeeded yet runs, and their answers make an outcome. Knows
//! nothing of batches and of the loop.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tidegate_core::handled::{decide, results_json};
use tidegate_core::{End, Handled, HandlerRecord, Verdict};
use tidegate_store::{Claimed, Finalize, HandlerHistory, HandlerState};
use tracing::Instrument;

use super::handler::{Call, Invocation, Middleware, Payload, Registered};
use super::meters::HandlerMeters;
use crate::coalescer::Coalescer;
use crate::db_tx::DbTx;
use crate::error::{Error, ErrorKind, is_transient};
use crate::queue::EventQueue;

/// How long an event waits when the database was not to be had for its transaction.
const DATABASE_TROUBLE: Duration = Duration::from_secs(1);

/// The handlers of one event type.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) handlers: Vec<Planned>,
    /// The record when all of them succeed at once, which is the usual case.
    pub(crate) all_succeeded: String,
}

/// One handler with what every call of it needs.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) handler: Registered,
    pub(crate) timeout: Duration,
    pub(crate) meters: HandlerMeters,
}

/// What attempts share.
pub(crate) struct Surroundings {
    pub(crate) queue: EventQueue,
    pub(crate) middleware: Vec<Arc<dyn Middleware>>,
    /// Where successes are made durable while siblings still run.
    pub(crate) recorder: Coalescer<HandlerState, ()>,
}

/// What an attempt led to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// This is to be done about the entry.
    Decided {
        verdict: Verdict,
        /// What all handlers answered, JSON text.
        results: String,
        /// Successes to be kept should the entry not end.
        successes: Vec<Arc<str>>,
    },
    /// The entry ended in a handler's own transaction.
    Ended,
    /// Nothing more can be said about it: the lease was lost, or the answer to the commit.
    Lost(Error),
    /// Its lease ran out before it could be begun.
    NotBegun,
}

impl Plan {
    pub(crate) fn new(handlers: Vec<Planned>) -> Self {
        let success = || HandlerRecord::from(&Handled::Success);
        let all_succeeded = results_json(handlers.iter().map(|planned| (&*planned.handler.id, success())));
        Self { handlers, all_succeeded }
    }
}

/// Which handlers succeeded before.
fn succeeded_before(history: &HandlerHistory) -> BTreeMap<String, HandlerRecord> {
    let previous = history.previous.as_deref().and_then(|json| serde_json::from_str(json).ok());
    let mut known: BTreeMap<String, HandlerRecord> = previous.unwrap_or_default();
    for (handler, json) in &history.states {
        if let Ok(record) = serde_json::from_str(json) {
            known.insert(handler.clone(), record);
        }
    }
    known.retain(|_, record| record.is_success());
    known
}

/// One attempt, from the payload to the outcome.
pub(crate) async fn attempt(
    around: Arc<Surroundings>,
    plan: Arc<Plan>,
    entry: Arc<Claimed>,
    history: Option<HandlerHistory>,
) -> Outcome {
    let before = history.as_ref().map(succeeded_before).unwrap_or_default();
    let mut attempt = Attempt { around: &around, entry: &entry, plan: &plan, before, answers: Vec::new() };
    let open: Vec<&Planned> =
        plan.handlers.iter().filter(|planned| !attempt.before.contains_key(&*planned.handler.id)).collect();
    let payloads = decode(&open, &entry);
    let calls = open.iter().zip(payloads);
    let (in_tx, plain): (Vec<_>, Vec<_>) =
        calls.partition(|(planned, _)| matches!(planned.handler.call, Call::InTx(_)));
    attempt.run_plain(plain).await;
    if !in_tx.is_empty() && attempt.has_completed() {
        // What succeeded does not run again, however long the transaction has to wait.
        for (planned, _) in &attempt.answers {
            attempt.record_meanwhile(planned);
        }
        let in_tx = in_tx.into_iter().map(|(planned, payload)| (*planned, payload)).collect();
        return attempt.run_in_tx(in_tx).await;
    }
    attempt.outcome()
}

/// Reads the payload once per kind. One that cannot be read never will be; one that makes its reader panic counts as an
/// attempt, like any other panic.
fn decode(open: &[&Planned], entry: &Claimed) -> Vec<Result<Payload, Handled>> {
    let mut known: Vec<(TypeId, Result<Payload, Handled>)> = Vec::with_capacity(1);
    open.iter()
        .map(|planned| {
            let kind = planned.handler.kind;
            if let Some((_, payload)) = known.iter().find(|(seen, _)| *seen == kind) {
                return payload.clone();
            }
            let read = catch_unwind(AssertUnwindSafe(|| (planned.handler.decode)(entry)));
            let payload = match read {
                Ok(payload) => payload.map_err(|error| Handled::UnrecoverableError { error }),
                Err(panic) => {
                    Err(Handled::transient(format!("its payload's reader panicked: {}", panic_message(&*panic))))
                }
            };
            known.push((kind, payload.clone()));
            payload
        })
        .collect()
}

struct Attempt<'a> {
    around: &'a Arc<Surroundings>,
    entry: &'a Arc<Claimed>,
    plan: &'a Arc<Plan>,
    before: BTreeMap<String, HandlerRecord>,
    answers: Vec<(&'a Planned, Handled)>,
}

impl<'a> Attempt<'a> {
    /// Runs plain handlers at once. A success that comes while others still run is recorded right away.
    async fn run_plain(&mut self, calls: Vec<(&&'a Planned, Result<Payload, Handled>)>) {
        if calls.len() == 1 {
            for (planned, payload) in calls {
                let answer = self.call_plain(planned, payload).await;
                self.answers.push((planned, answer));
            }
            return;
        }
        let mut running: FuturesUnordered<_> = calls
            .into_iter()
            .map(|(planned, payload)| {
                let call = self.call_plain(planned, payload);
                async move { (*planned, call.await) }
            })
            .collect();
        let mut recorded = 0;
        loop {
            let next = std::future::poll_fn(|context| {
                while let Poll::Ready(Some(done)) = running.poll_next_unpin(context) {
                    self.answers.push(done);
                }
                if running.is_empty() || self.answers.len() > recorded { Poll::Ready(()) } else { Poll::Pending }
            });
            next.await;
            if running.is_empty() {
                return;
            }
            for (planned, answer) in &self.answers[recorded..] {
                if *answer == Handled::Success {
                    self.record_meanwhile(planned);
                }
            }
            recorded = self.answers.len();
        }
    }

    fn call_plain(&self, planned: &'a Planned, payload: Result<Payload, Handled>) -> BoxFuture<'a, Handled> {
        let (around, entry) = (self.around, Arc::clone(self.entry));
        match (payload, &planned.handler.call) {
            (Ok(payload), Call::Plain(call)) => {
                let call = Arc::clone(call);
                let data = Arc::clone(&entry);
                // The closure itself may panic before there is a future.
                let inner = Box::pin(async move { call(payload, data).await });
                Box::pin(guarded(planned, around, entry, inner))
            }
            (Err(answer), _) => Box::pin(async move { unreadable(planned, answer) }),
            (Ok(_), Call::InTx(_)) => Box::pin(async { Handled::unrecoverable("it needs a transaction") }),
        }
    }

    /// Nobody waits for it: should it be lost, the handler may run again, as after any crash.
    fn record_meanwhile(&self, planned: &Planned) {
        let state = self.state(&planned.handler.id);
        let recorder = self.around.recorder.clone();
        tokio::spawn(async move {
            if let Err(error) = recorder.call(state).await {
                tracing::debug!(%error, "a handler's success was not recorded");
            }
        });
    }

    fn state(&self, handler: &str) -> HandlerState {
        success_state(self.entry, handler)
    }

    fn has_completed(&self) -> bool {
        matches!(self.verdict(), Verdict::End { end: End::Completed, .. })
    }

    fn verdict(&self) -> Verdict {
        let answers = self.answers.iter().map(|(planned, answer)| (&*planned.handler.id, answer));
        decide(answers, self.entry.attempts >= self.entry.max_attempts, self.entry.exhausted_as)
    }

    fn results(&self) -> String {
        let succeeded = self.answers.len() == self.plan.handlers.len();
        if succeeded && self.answers.iter().all(|(_, answer)| *answer == Handled::Success) {
            return self.plan.all_succeeded.clone();
        }
        let before = self.before.iter().map(|(handler, record)| (handler.as_str(), record.clone()));
        let now = self.answers.iter().map(|(planned, answer)| (&*planned.handler.id, HandlerRecord::from(answer)));
        results_json(before.chain(now))
    }

    fn outcome(self) -> Outcome {
        let (verdict, results) = (self.verdict(), self.results());
        let succeeded = self.answers.iter().filter(|(_, answer)| *answer == Handled::Success);
        let successes = match verdict {
            Verdict::End { .. } => Vec::new(),
            _ => succeeded.map(|(planned, _)| Arc::clone(&planned.handler.id)).collect(),
        };
        Outcome::Decided { verdict, results, successes }
    }

    /// Runs the handlers that write in the transaction that ends the event, one after the other, and ends it there.
    async fn run_in_tx(mut self, calls: Vec<(&'a Planned, Result<Payload, Handled>)>) -> Outcome {
        let mut readable = Vec::new();
        for (planned, payload) in calls {
            match payload {
                Ok(payload) => readable.push((Arc::clone(self.plan), position(self.plan, planned), payload)),
                Err(answer) => self.answers.push((planned, unreadable(planned, answer))),
            }
        }
        if !self.has_completed() {
            return self.outcome();
        }
        let answers: Arc<Mutex<Vec<(usize, Handled)>>> = Arc::default();
        let all = self.plan.handlers.len() == self.answers.len() + readable.len();
        let results = if all { self.plan.all_succeeded.clone() } else { self.results_with(&readable) };
        let item = Finalize {
            id: self.entry.id,
            token: Some(self.entry.token),
            end: End::Completed,
            errors: None,
            results: Some(results),
        };
        let (around, entry, heard) = (Arc::clone(self.around), Arc::clone(self.entry), Arc::clone(&answers));
        let queue = &self.around.queue;
        let ended = queue.in_transaction(move |tx| run_each(tx, around, entry, readable, heard, item)).await;
        for (index, answer) in answers.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            self.answers.push((&self.plan.handlers[index], answer));
        }
        match ended {
            Ok(()) => {
                queue.shared().meters.ended(queue.name(), End::Completed, 1);
                Outcome::Ended
            }
            Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Indeterminate) => Outcome::Lost(error),
            Err(_) if !self.has_completed() => self.outcome(),
            // All handlers were content, but the transaction was not: what they wrote is gone.
            Err(error) => {
                self.answers.retain(|(planned, _)| matches!(planned.handler.call, Call::Plain(_)));
                let unfinished =
                    self.plan.handlers.iter().find(|planned| matches!(planned.handler.call, Call::InTx(_)));
                tracing::warn!(
                    entry = %self.entry.id,
                    %error,
                    "the transaction of an event's handlers failed after they had succeeded: nothing of it is kept"
                );
                let answer = match is_transient(&error) {
                    // The database's trouble is none of the event's: no attempt is used up.
                    true => Handled::Snooze(DATABASE_TROUBLE),
                    false => Handled::transient(error.to_string()),
                };
                self.answers.extend(unfinished.map(|planned| (planned, answer)));
                self.outcome()
            }
        }
    }

    fn results_with(&self, soon: &[(Arc<Plan>, usize, Payload)]) -> String {
        let before = self.before.iter().map(|(handler, record)| (handler.as_str(), record.clone()));
        let now = self.answers.iter().map(|(planned, answer)| (&*planned.handler.id, HandlerRecord::from(answer)));
        let success = HandlerRecord::from(&Handled::Success);
        let soon = soon.iter().map(|(plan, index, _)| (&*plan.handlers[*index].handler.id, success.clone()));
        results_json(before.chain(now).chain(soon))
    }
}

/// A success under the lease that it came about.
pub(crate) fn success_state(entry: &Claimed, handler: &str) -> HandlerState {
    let record = HandlerRecord::from(&Handled::Success);
    let result = serde_json::to_string(&record).unwrap_or_default();
    HandlerState { id: entry.id, token: entry.token, handler: handler.to_owned(), result }
}

fn position(plan: &Plan, planned: &Planned) -> usize {
    plan.handlers.iter().position(|known| std::ptr::eq(known, planned)).unwrap_or_default()
}

/// Handlers one after the other; the first that is not content rolls all of it back.
fn run_each<'a>(
    tx: &'a DbTx<'a>,
    around: Arc<Surroundings>,
    entry: Arc<Claimed>,
    calls: Vec<(Arc<Plan>, usize, Payload)>,
    answers: Arc<Mutex<Vec<(usize, Handled)>>>,
    item: Finalize,
) -> BoxFuture<'a, crate::Result<()>> {
    Box::pin(async move {
        for (plan, index, payload) in calls {
            let planned = &plan.handlers[index];
            let Call::InTx(call) = &planned.handler.call else { continue };
            let (call, data) = (Arc::clone(call), Arc::clone(&entry));
            let inner = Box::pin(async move { call(payload, data, tx).await });
            let answer = guarded(planned, &around, Arc::clone(&entry), inner).await;
            // A transaction that ended meanwhile keeps nothing of what the handler believes to have done.
            let answer = match tx.check() {
                Err(error) if answer == Handled::Success => Handled::transient(error.to_string()),
                _ => answer,
            };
            let content = answer == Handled::Success;
            answers.lock().unwrap_or_else(PoisonError::into_inner).push((index, answer));
            if !content {
                return Err(Error::new(ErrorKind::Conflict, "a handler did not succeed: nothing of it is kept"));
            }
        }
        tx.finalize(vec![item]).await.map(drop)
    })
}

fn unreadable(planned: &Planned, answer: Handled) -> Handled {
    planned.meters.count(&answer, Duration::ZERO);
    answer
}

/// A call under its timeout and middleware; a panic is an error like any other.
async fn guarded<'a>(
    planned: &'a Planned,
    around: &'a Surroundings,
    entry: Arc<Claimed>,
    inner: BoxFuture<'a, Handled>,
) -> Handled {
    let started = Instant::now();
    let span = crate::trace::handler(&entry, &planned.handler.id);
    let answer = if around.middleware.is_empty() {
        limited(planned, inner).instrument(span).await
    } else {
        let call = Invocation { handler: Arc::clone(&planned.handler.id), entry };
        // A layer's own first steps may panic too, so it is called inside.
        let wrapped = async {
            let layers = around.middleware.iter().rev();
            layers.fold(inner, |next: BoxFuture<'_, Handled>, layer| layer.around(&call, next)).await
        };
        limited(planned, Box::pin(wrapped)).instrument(span).await
    };
    planned.meters.count(&answer, started.elapsed());
    answer
}

async fn limited(planned: &Planned, inner: BoxFuture<'_, Handled>) -> Handled {
    match tokio::time::timeout(planned.timeout, AssertUnwindSafe(inner).catch_unwind()).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(panic)) => Handled::transient(format!("it panicked: {}", panic_message(&*panic))),
        Err(_) => Handled::transient(format!("it took longer than {:?}", planned.timeout)),
    }
}

pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
