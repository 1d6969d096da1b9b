//! One attempt at one event: runs every handler that has not succeeded yet and decides from their results what follows
//! for the entry. Knows nothing of batches or of the loop.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tidegate_core::handlers::{decide, results_json};
use tidegate_core::{End, Handled, HandlerDecision, HandlerRecord};
use tidegate_store::{Claimed, Finalize, HandlerHistory, HandlerState};
use tracing::Instrument;

use super::handler::{Call, Invocation, Middleware, Payload, Registered};
use super::meters::HandlerMeters;
use crate::batch::batcher::Batcher;
use crate::error::{Error, ErrorKind, is_transient};
use crate::queue::EventQueue;
use crate::queue::transactions::db_tx::DbTx;
use crate::trace;

/// How long an event is snoozed when the database could not run the transaction of its handlers.
const DATABASE_TROUBLE: Duration = Duration::from_secs(1);

/// The handlers of one event type.
#[derive(Debug)]
pub(crate) struct HandlerSet {
    pub(crate) handlers: Vec<Planned>,
    /// The results JSON for the usual case that all of them succeed in one attempt.
    pub(crate) all_succeeded: String,
}

/// One handler with what every call of it needs.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) handler: Registered,
    pub(crate) timeout: Duration,
    pub(crate) meters: HandlerMeters,
}

/// What all attempts of a manager share.
pub(crate) struct AttemptContext {
    pub(crate) queue: EventQueue,
    pub(crate) middleware: Vec<Arc<dyn Middleware>>,
    /// Makes successes durable while other handlers of the event still run.
    pub(crate) recorder: Batcher<HandlerState, ()>,
}

/// How an attempt ended.
#[derive(Debug)]
pub(crate) enum Attempted {
    /// The decision is still to be written.
    Decided {
        decision: HandlerDecision,
        /// The results of all handlers as JSON text.
        results: String,
        /// Ids of handlers whose success must be recorded, unless the entry ends.
        successes: Vec<Arc<str>>,
    },
    /// The entry was ended in the transaction of its handlers.
    Ended,
    /// The lease was lost, or the answer to the commit: this process cannot say what follows for the entry.
    Lost(Error),
    /// The lease ran out before the attempt could start.
    NotBegun,
}

impl HandlerSet {
    pub(crate) fn new(handlers: Vec<Planned>) -> Self {
        let success = || HandlerRecord::from(&Handled::Success);
        let all_succeeded = results_json(handlers.iter().map(|planned| (&*planned.handler.id, success())));
        Self { handlers, all_succeeded }
    }
}

/// The handlers that succeeded in earlier attempts, with their records.
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

/// Runs one attempt, from decoding the payload to the decision.
pub(crate) async fn attempt(
    context: Arc<AttemptContext>,
    set: Arc<HandlerSet>,
    entry: Arc<Claimed>,
    history: Option<HandlerHistory>,
) -> Attempted {
    let before = history.as_ref().map(succeeded_before).unwrap_or_default();
    let mut attempt = Attempt { context: &context, entry: &entry, set: &set, before, answers: Vec::new() };
    let open: Vec<&Planned> =
        set.handlers.iter().filter(|planned| !attempt.before.contains_key(&*planned.handler.id)).collect();
    let payloads = decode(&open, &entry);
    let calls = open.iter().zip(payloads);
    let (in_tx, plain): (Vec<_>, Vec<_>) =
        calls.partition(|(planned, _)| matches!(planned.handler.call, Call::InTx(_)));
    attempt.run_plain(plain).await;
    if !in_tx.is_empty() && attempt.has_completed() {
        // Record the successes now, for the transaction may have to wait and may fail: they must not run again.
        for (planned, _) in &attempt.answers {
            attempt.record_meanwhile(planned);
        }
        let in_tx = in_tx.into_iter().map(|(planned, payload)| (*planned, payload)).collect();
        return attempt.run_in_tx(in_tx).await;
    }
    attempt.outcome()
}

/// Decodes the payload once per event kind. A payload that cannot be read is an unrecoverable error; a panic of the
/// decoder is a transient error, like any other panic.
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
                    Err(Handled::transient(format!("decoding the payload panicked: {}", panic_message(&*panic))))
                }
            };
            known.push((kind, payload.clone()));
            payload
        })
        .collect()
}

struct Attempt<'a> {
    context: &'a Arc<AttemptContext>,
    entry: &'a Arc<Claimed>,
    set: &'a Arc<HandlerSet>,
    before: BTreeMap<String, HandlerRecord>,
    answers: Vec<(&'a Planned, Handled)>,
}

impl<'a> Attempt<'a> {
    /// Runs plain handlers concurrently. A success is recorded right away while others still run.
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
        let (context, entry) = (self.context, Arc::clone(self.entry));
        match (payload, &planned.handler.call) {
            (Ok(payload), Call::Plain(call)) => {
                let call = Arc::clone(call);
                let data = Arc::clone(&entry);
                // Called inside, for the closure may panic before it returns its future.
                let inner = Box::pin(async move { call(payload, data).await });
                Box::pin(guarded(planned, context, entry, inner))
            }
            (Err(answer), _) => Box::pin(async move { unreadable(planned, answer) }),
            (Ok(_), Call::InTx(_)) => Box::pin(async { Handled::unrecoverable("it needs a transaction") }),
        }
    }

    /// Records a success in the background. If that is lost, the handler may run again, as after any crash.
    fn record_meanwhile(&self, planned: &Planned) {
        let state = self.state(&planned.handler.id);
        let recorder = self.context.recorder.clone();
        tokio::spawn(async move {
            if let Err(error) = recorder.call(state).await {
                tracing::debug!(%error, "recording a handler's success failed: it may run again");
            }
        });
    }

    fn state(&self, handler: &str) -> HandlerState {
        success_state(self.entry, handler)
    }

    fn has_completed(&self) -> bool {
        matches!(self.decision(), HandlerDecision::End { end: End::Completed, .. })
    }

    fn decision(&self) -> HandlerDecision {
        let answers = self.answers.iter().map(|(planned, answer)| (&*planned.handler.id, answer));
        decide(answers, self.entry.attempts >= self.entry.max_attempts, self.entry.exhausted_as)
    }

    fn results(&self) -> String {
        let succeeded = self.answers.len() == self.set.handlers.len();
        if succeeded && self.answers.iter().all(|(_, answer)| *answer == Handled::Success) {
            return self.set.all_succeeded.clone();
        }
        let before = self.before.iter().map(|(handler, record)| (handler.as_str(), record.clone()));
        let now = self.answers.iter().map(|(planned, answer)| (&*planned.handler.id, HandlerRecord::from(answer)));
        results_json(before.chain(now))
    }

    fn outcome(self) -> Attempted {
        let (decision, results) = (self.decision(), self.results());
        let succeeded = self.answers.iter().filter(|(_, answer)| *answer == Handled::Success);
        let successes = match decision {
            HandlerDecision::End { .. } => Vec::new(),
            _ => succeeded.map(|(planned, _)| Arc::clone(&planned.handler.id)).collect(),
        };
        Attempted::Decided { decision, results, successes }
    }

    /// Runs the handlers that write in the transaction that ends the event, one after the other, and ends the event in
    /// it.
    async fn run_in_tx(mut self, calls: Vec<(&'a Planned, Result<Payload, Handled>)>) -> Attempted {
        let mut readable = Vec::new();
        for (planned, payload) in calls {
            match payload {
                Ok(payload) => readable.push((Arc::clone(self.set), position(self.set, planned), payload)),
                Err(answer) => self.answers.push((planned, unreadable(planned, answer))),
            }
        }
        if !self.has_completed() {
            return self.outcome();
        }
        let answers: Arc<Mutex<Vec<(usize, Handled)>>> = Arc::default();
        let all = self.set.handlers.len() == self.answers.len() + readable.len();
        let results = if all { self.set.all_succeeded.clone() } else { self.results_with(&readable) };
        let item = Finalize {
            id: self.entry.id,
            token: Some(self.entry.token),
            end: End::Completed,
            errors: None,
            results: Some(results),
            attempt: None,
        };
        let (context, entry, collected) = (Arc::clone(self.context), Arc::clone(self.entry), Arc::clone(&answers));
        let queue = &self.context.queue;
        let ended = queue.in_transaction(move |tx| run_each(tx, context, entry, readable, collected, item)).await;
        for (index, answer) in answers.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            self.answers.push((&self.set.handlers[index], answer));
        }
        match ended {
            Ok(()) => {
                queue.shared().meters.ended(queue.name(), End::Completed, 1);
                Attempted::Ended
            }
            Err(error) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Indeterminate) => {
                Attempted::Lost(error)
            }
            Err(_) if !self.has_completed() => self.outcome(),
            // No handler failed, but the transaction did not commit, and what they wrote is gone: the first handler of
            // the transaction gets the error.
            Err(error) => {
                self.answers.retain(|(planned, _)| matches!(planned.handler.call, Call::Plain(_)));
                let first = self.set.handlers.iter().find(|planned| matches!(planned.handler.call, Call::InTx(_)));
                tracing::warn!(
                    entry = %self.entry.id,
                    %error,
                    "transaction of handlers was rolled back although no handler failed"
                );
                let answer = match is_transient(&error) {
                    // The database failed, not the event: the attempt does not count.
                    true => Handled::Snooze(DATABASE_TROUBLE),
                    false => Handled::transient(error.to_string()),
                };
                self.answers.extend(first.map(|planned| (planned, answer)));
                self.outcome()
            }
        }
    }

    /// The results JSON, given that the handlers in `soon` will succeed.
    fn results_with(&self, soon: &[(Arc<HandlerSet>, usize, Payload)]) -> String {
        let before = self.before.iter().map(|(handler, record)| (handler.as_str(), record.clone()));
        let now = self.answers.iter().map(|(planned, answer)| (&*planned.handler.id, HandlerRecord::from(answer)));
        let success = HandlerRecord::from(&Handled::Success);
        let soon = soon.iter().map(|(set, index, _)| (&*set.handlers[*index].handler.id, success.clone()));
        results_json(before.chain(now).chain(soon))
    }
}

/// The record of a success, under the lease of its attempt.
pub(crate) fn success_state(entry: &Claimed, handler: &str) -> HandlerState {
    let record = HandlerRecord::from(&Handled::Success);
    let result = serde_json::to_string(&record).unwrap_or_default();
    HandlerState { id: entry.id, token: entry.token, handler: handler.to_owned(), result }
}

fn position(set: &HandlerSet, planned: &Planned) -> usize {
    set.handlers.iter().position(|known| std::ptr::eq(known, planned)).unwrap_or_default()
}

/// Runs handlers one after the other in the transaction; the first that does not succeed rolls it back.
fn run_each<'a>(
    tx: &'a DbTx<'a>,
    context: Arc<AttemptContext>,
    entry: Arc<Claimed>,
    calls: Vec<(Arc<HandlerSet>, usize, Payload)>,
    answers: Arc<Mutex<Vec<(usize, Handled)>>>,
    item: Finalize,
) -> BoxFuture<'a, crate::error::Result<()>> {
    Box::pin(async move {
        for (set, index, payload) in calls {
            let planned = &set.handlers[index];
            let Call::InTx(call) = &planned.handler.call else { continue };
            let (call, data) = (Arc::clone(call), Arc::clone(&entry));
            let inner = Box::pin(async move { call(payload, data, tx).await });
            let answer = guarded(planned, &context, Arc::clone(&entry), inner).await;
            // When the database has rolled the transaction back meanwhile, the handler's writes are gone.
            let answer = match tx.check() {
                Err(error) if answer == Handled::Success => Handled::transient(error.to_string()),
                _ => answer,
            };
            let succeeded = answer == Handled::Success;
            answers.lock().unwrap_or_else(PoisonError::into_inner).push((index, answer));
            if !succeeded {
                return Err(Error::new(ErrorKind::Conflict, "a handler did not succeed: transaction rolled back"));
            }
        }
        tx.finalize(vec![item]).await.map(drop)
    })
}

fn unreadable(planned: &Planned, answer: Handled) -> Handled {
    planned.meters.count(&answer, Duration::ZERO);
    answer
}

/// Runs a call under its timeout and middleware; a panic becomes a transient error.
async fn guarded<'a>(
    planned: &'a Planned,
    context: &'a AttemptContext,
    entry: Arc<Claimed>,
    inner: BoxFuture<'a, Handled>,
) -> Handled {
    let started = Instant::now();
    let span = trace::handler(&entry, &planned.handler.id);
    let answer = if context.middleware.is_empty() {
        limited(planned, inner).instrument(span).await
    } else {
        let call = Invocation { handler: Arc::clone(&planned.handler.id), entry };
        // Called inside, for a layer may panic before it returns its future.
        let wrapped = async {
            let layers = context.middleware.iter().rev();
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
