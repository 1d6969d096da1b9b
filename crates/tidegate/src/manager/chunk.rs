//! Attempts that are started together: each is polled once, and those that are ready at once are ended together.
//!
//! Finished attempts and events not started yet can be taken out of a chunk at any moment, so that an attempt that
//! blocks its thread delays only itself.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidegate_core::handlers::decide;
use tidegate_core::{End, Handled, HandlerDecision};
use tidegate_store::{Claimed, HandlerHistory};

use super::attempt::{Attempted, attempt, panic_message};
use super::inner::Inner;
use crate::queue::delivery::QueuedEvent;

/// How long one chunk polls; the remaining attempts become tasks of their own without being polled.
const BUDGET: Duration = Duration::from_millis(2);
/// Most events of one chunk.
pub(super) const CHUNK: usize = 500;

/// An event to be started, with the results of its handlers in earlier attempts.
pub(super) type Start = (QueuedEvent, Option<HandlerHistory>);
/// An attempt that is pending.
pub(super) type Waiting = (QueuedEvent, BoxFuture<'static, Attempted>);

#[derive(Default)]
pub(super) struct Chunk {
    began: OnceLock<Instant>,
    parts: Mutex<Parts>,
}

/// What can be taken out of a chunk.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) rest: VecDeque<Start>,
    pub(super) decided: Vec<(QueuedEvent, Attempted)>,
    pub(super) waiting: Vec<Waiting>,
}

impl Parts {
    pub(super) fn len(&self) -> usize {
        self.rest.len() + self.decided.len() + self.waiting.len()
    }
}

enum Polled {
    Decided(QueuedEvent, Attempted),
    Waiting(Waiting),
}

impl Chunk {
    pub(super) fn new(rest: VecDeque<Start>) -> Self {
        Self { began: OnceLock::new(), parts: Mutex::new(Parts { rest, ..Parts::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When its first event was started; `None` before that.
    pub(super) fn began(&self) -> Option<Instant> {
        self.began.get().copied()
    }

    /// Takes out everything but the event that is being polled right now.
    pub(super) fn take(&self) -> Parts {
        std::mem::take(&mut *self.lock())
    }

    /// Starts one event after the other until none is left.
    pub(super) fn work(&self, inner: &Arc<Inner>) {
        let began = *self.began.get_or_init(Instant::now);
        let mut polled = None;
        while let Some((event, history)) = self.exchange(polled.take()) {
            let now = Instant::now();
            polled = Some(begin(inner, event, history, now, now - began < BUDGET));
        }
    }

    /// Stores the result of the last poll and returns the next event to start.
    fn exchange(&self, polled: Option<Polled>) -> Option<Start> {
        let mut parts = self.lock();
        match polled {
            None => {}
            Some(Polled::Decided(event, outcome)) => parts.decided.push((event, outcome)),
            Some(Polled::Waiting(waiting)) => parts.waiting.push(waiting),
        }
        parts.rest.pop_front()
    }
}

fn begin(inner: &Arc<Inner>, event: QueuedEvent, history: Option<HandlerHistory>, now: Instant, poll: bool) -> Polled {
    if !event.lease().holds(now) {
        return Polled::Decided(event, Attempted::NotBegun);
    }
    let mut attempt = attempt_at(inner, event.data(), history);
    // No waker is needed: a pending attempt is polled again at once by its own task.
    let polled = match poll {
        true => Pin::new(&mut attempt).poll(&mut Context::from_waker(Waker::noop())),
        false => Poll::Pending,
    };
    match polled {
        Poll::Ready(outcome) => {
            event.lease().attempt_over();
            Polled::Decided(event, outcome)
        }
        Poll::Pending => Polled::Waiting((event, attempt)),
    }
}

fn attempt_at(
    inner: &Arc<Inner>,
    entry: &Arc<Claimed>,
    history: Option<HandlerHistory>,
) -> BoxFuture<'static, Attempted> {
    match inner.handlers_of(&entry.fact.event_type) {
        Some(set) => {
            let tried = attempt(Arc::clone(&inner.context), Arc::clone(set), Arc::clone(entry), history);
            let entry = Arc::clone(entry);
            // Panics of handlers are caught one by one; this catches panics in between, such as in an application's
            // Drop.
            Box::pin(async move {
                let tried = AssertUnwindSafe(tried).catch_unwind().await;
                tried.unwrap_or_else(|panic| attempt_panicked(&entry, panic_message(&*panic)))
            })
        }
        // Events without a handler are claimed only with `complete_unhandled`.
        None => Box::pin(std::future::ready(Attempted::Decided {
            decision: HandlerDecision::End { end: End::Completed, errors: Vec::new() },
            results: "{}".to_owned(),
            successes: Vec::new(),
        })),
    }
}

/// The outcome of an attempt that panicked outside of its handlers: a transient error.
fn attempt_panicked(entry: &Claimed, message: &str) -> Attempted {
    let answer = Handled::transient(format!("it panicked: {message}"));
    let decision = decide([("attempt", &answer)], entry.attempts >= entry.max_attempts, entry.exhausted_as);
    Attempted::Decided { decision, results: "{}".to_owned(), successes: Vec::new() }
}
