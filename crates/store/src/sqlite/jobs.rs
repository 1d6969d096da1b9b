//! Work that waits for a thread with a connection, by urgency. Knows nothing of what the work is.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::errors::closed;
use super::tx::Tx;
use crate::error::{Error, ErrorKind, Result};

/// Jobs that may wait in one class; more are refused as busy.
const WAITING_LIMIT: usize = 1 << 16;

/// How urgent a job is. All that waits of a more urgent class goes first, up to a bound per transaction; each class gets
/// at least one job into every merged transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Ends, extensions, returns, upkeep: they free what others wait for.
    Finish = 0,
    /// Claims.
    Claim = 1,
    /// Publishes and everything else.
    Publish = 2,
    /// Transactions of the application's own. Nothing is merged with them; they take turns with the other classes.
    Alone = 3,
}

/// How many classes are merged into one transaction.
pub(super) const MERGED: usize = 3;
const CLASSES: usize = MERGED + 1;

/// Work inside a transaction, answered once its outcome is sure.
pub(super) trait Job: Send {
    /// Does the work and keeps its answer back.
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<()>;
    /// Sends the answer, or the error that the whole transaction met.
    fn answer(self: Box<Self>, outcome: Result<()>);
    /// Whether nobody waits for the answer any more.
    fn abandoned(&self) -> bool;
}

/// A job and how it wants to be run.
pub(super) struct Queued {
    pub(super) job: Box<dyn Job>,
    pub(super) since: Instant,
    /// Need not run when nobody waits for its answer.
    pub(super) skippable: bool,
}

struct Work<T, F> {
    work: Option<F>,
    answer: Option<T>,
    sender: oneshot::Sender<Result<T>>,
}

impl<T, F> Job for Work<T, F>
where
    T: Send,
    F: FnOnce(&mut Tx<'_>) -> Result<T> + Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        if let Some(work) = self.work.take() {
            self.answer = Some(work(tx)?);
        }
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<()>) {
        let Self { answer, sender, .. } = *self;
        let answer = outcome.and_then(|()| answer.ok_or_else(closed));
        // Nobody there to hear it: the caller dropped its future, which is its right.
        let _ = sender.send(answer);
    }

    fn abandoned(&self) -> bool {
        self.sender.is_closed()
    }
}

/// Makes a job of a closure, and the receiver of its answer.
pub(super) fn job<T, F>(work: F) -> (Queued, oneshot::Receiver<Result<T>>)
where
    T: Send + 'static,
    F: FnOnce(&mut Tx<'_>) -> Result<T> + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let job = Box::new(Work { work: Some(work), answer: None, sender });
    (Queued { job, since: Instant::now(), skippable: false }, receiver)
}

/// What a wait for jobs found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Jobs,
    Nothing,
    Closed,
}

/// Jobs of one connection or one set of equal connections.
pub(super) struct Jobs {
    state: Mutex<State>,
    ready: Condvar,
}

struct State {
    classes: [VecDeque<Queued>; CLASSES],
    closed: bool,
    /// The one who waits shall return, though there is nothing to do.
    nudged: bool,
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        let waiting = state.classes.each_ref().map(VecDeque::len);
        f.debug_struct("Jobs").field("waiting", &waiting).field("closed", &state.closed).finish()
    }
}

impl Jobs {
    pub(super) fn new() -> Self {
        let classes = std::array::from_fn(|_| VecDeque::new());
        Self { state: Mutex::new(State { classes, closed: false, nudged: false }), ready: Condvar::new() }
    }

    /// No job runs under this lock, so a poisoned one holds a consistent state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a job in, or says why not.
    pub(super) fn push(&self, urgency: Urgency, job: Queued) -> Result<()> {
        let mut state = self.lock();
        if state.closed {
            return Err(closed());
        }
        let class = &mut state.classes[urgency as usize];
        if class.len() >= WAITING_LIMIT {
            return Err(Error::new(ErrorKind::Busy, "too many calls wait for the database; try again"));
        }
        class.push_back(job);
        drop(state);
        self.ready.notify_one();
        Ok(())
    }

    /// Waits until there is a job, for a while where one is given, or until it is closed and empty.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Found {
        let mut state = self.lock();
        loop {
            if !state.is_empty() {
                return Found::Jobs;
            }
            if state.closed {
                return Found::Closed;
            }
            if std::mem::take(&mut state.nudged) {
                return Found::Nothing;
            }
            state = match timeout {
                None => self.ready.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    let (waiting, waited) =
                        self.ready.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner);
                    if waited.timed_out() && waiting.is_empty() && !waiting.closed {
                        return Found::Nothing;
                    }
                    waiting
                }
            };
        }
    }

    /// Takes the next job of a class.
    pub(super) fn pop(&self, class: usize) -> Option<Queued> {
        self.lock().classes[class].pop_front()
    }

    /// Whether jobs wait that can be merged, and whether jobs wait that want a transaction of their own.
    pub(super) fn waiting(&self) -> (bool, bool) {
        let state = self.lock();
        let (merged, alone) = state.classes.split_at(MERGED);
        (merged.iter().any(|class| !class.is_empty()), alone.iter().any(|class| !class.is_empty()))
    }

    /// Takes the next job of any class, waiting for it; `None` once closed and empty.
    pub(super) fn next(&self) -> Option<Queued> {
        loop {
            if self.wait(None) == Found::Closed {
                return None;
            }
            let mut state = self.lock();
            if let Some(job) = state.classes.iter_mut().find_map(VecDeque::pop_front) {
                return Some(job);
            }
        }
    }

    /// Takes every job that has waited this long.
    pub(super) fn take_older_than(&self, age: Duration) -> Vec<Queued> {
        let mut state = self.lock();
        let mut taken = Vec::new();
        for class in &mut state.classes {
            while class.front().is_some_and(|job| job.since.elapsed() >= age) {
                taken.extend(class.pop_front());
            }
        }
        taken
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Makes whoever waits look again.
    pub(super) fn nudge(&self) {
        self.lock().nudged = true;
        self.ready.notify_all();
    }

    /// Refuses further jobs; those that wait are still done.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.ready.notify_all();
    }
}

impl State {
    fn is_empty(&self) -> bool {
        self.classes.iter().all(VecDeque::is_empty)
    }
}
