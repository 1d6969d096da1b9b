//! Events that are begun together: each attempt is polled once, and those that answer at once go on together.
//!
//! What is done and what has not begun can be taken out of a chunk at any moment, so that an attempt which blocks its
//! thread holds up nobody but itself.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidegate_core::handled::decide;
use tidegate_core::{End, Handled, Verdict};
use tidegate_store::{Claimed, HandlerHistory};

use super::Inner;
use super::attempt::{Outcome, attempt, panic_message};
use crate::delivery::QueuedEvent;

/// How long one chunk may poll before the rest of its events become tasks of their own.
const BUDGET: Duration = Duration::from_millis(2);
/// How many events one chunk polls.
pub(super) const CHUNK: usize = 500;

/// An event to be begun, with what its handlers answered before.
pub(super) type Start = (QueuedEvent, Option<HandlerHistory>);
/// An attempt that has to wait.
pub(super) type Waiting = (QueuedEvent, BoxFuture<'static, Outcome>);

#[derive(Default)]
pub(super) struct Chunk {
    began: OnceLock<Instant>,
    parts: Mutex<Parts>,
}

/// What can be taken out of a chunk.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) rest: VecDeque<Start>,
    pub(super) decided: Vec<(QueuedEvent, Outcome)>,
    pub(super) waiting: Vec<Waiting>,
}

impl Parts {
    pub(super) fn len(&self) -> usize {
        self.rest.len() + self.decided.len() + self.waiting.len()
    }
}

enum Polled {
    Decided(QueuedEvent, Outcome),
    Waiting(Waiting),
}

impl Chunk {
    pub(super) fn new(rest: VecDeque<Start>) -> Self {
        Self { began: OnceLock::new(), parts: Mutex::new(Parts { rest, ..Parts::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When its first event was begun.
    pub(super) fn began(&self) -> Option<Instant> {
        self.began.get().copied()
    }

    /// Takes out all but the event that is being begun right now.
    pub(super) fn take(&self) -> Parts {
        std::mem::take(&mut *self.lock())
    }

    /// Begins one event after the other until none is left.
    pub(super) fn work(&self, inner: &Arc<Inner>) {
        let began = *self.began.get_or_init(Instant::now);
        let mut polled = None;
        while let Some((event, history)) = self.exchange(polled.take()) {
            let now = Instant::now();
            polled = Some(begin(inner, event, history, now, now - began < BUDGET));
        }
    }

    /// Puts in what was polled, takes out what is next.
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
        return Polled::Decided(event, Outcome::NotBegun);
    }
    let mut attempt = attempt_at(inner, event.data(), history);
    // The waker is of no use: a pending attempt is polled again at once by its own task.
    let polled = match poll {
        true => Pin::new(&mut attempt).poll(&mut Context::from_waker(Waker::noop())),
        false => Poll::Pending,
    };
    match polled {
        Poll::Ready(outcome) => {
            event.lease().settle();
            Polled::Decided(event, outcome)
        }
        Poll::Pending => Polled::Waiting((event, attempt)),
    }
}

fn attempt_at(
    inner: &Arc<Inner>,
    entry: &Arc<Claimed>,
    history: Option<HandlerHistory>,
) -> BoxFuture<'static, Outcome> {
    match inner.plan(&entry.fact.event_type) {
        Some(plan) => {
            let tried = attempt(Arc::clone(&inner.around), Arc::clone(plan), Arc::clone(entry), history);
            let entry = Arc::clone(entry);
            // Handlers' panics are caught one by one; this is for what an application does in between, such as dropping.
            Box::pin(async move {
                let tried = AssertUnwindSafe(tried).catch_unwind().await;
                tried.unwrap_or_else(|panic| broken_off(&entry, panic_message(&*panic)))
            })
        }
        // Claimed only where unhandled events are to be completed.
        None => Box::pin(std::future::ready(Outcome::Decided {
            verdict: Verdict::End { end: End::Completed, errors: Vec::new() },
            results: "{}".to_owned(),
            successes: Vec::new(),
        })),
    }
}

/// An attempt that panicked outside of its handlers: a transient error.
fn broken_off(entry: &Claimed, message: &str) -> Outcome {
    let answer = Handled::transient(format!("it panicked: {message}"));
    let verdict = decide([("attempt", &answer)], entry.attempts >= entry.max_attempts, entry.exhausted_as);
    Outcome::Decided { verdict, results: "{}".to_owned(), successes: Vec::new() }
}
