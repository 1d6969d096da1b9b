//! Jobs that wait for a thread with a connection, by urgency. Knows nothing of what the jobs do.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind, Result};
use crate::sqlite::engine::errors::closed;
use crate::sqlite::engine::tx::Tx;
use crate::values::Family;

/// The most jobs that may wait in one class; further ones are refused as `Busy`.
const WAITING_LIMIT: usize = 1 << 16;

/// How urgent a job is. Jobs of a more urgent class go first, up to a limit per transaction; each class gets at least
/// one job into every merged transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sqlite) enum Urgency {
    /// Ends, extensions, requeues, upkeep: they free what others wait for.
    End = 0,
    /// Claims.
    Claim = 1,
    /// Publishes and everything else.
    Publish = 2,
    /// Transactions of the application's own. They are never merged, and alternate with the other classes.
    Alone = 3,
}

/// The number of classes that are merged into one transaction.
pub(in crate::sqlite) const MERGED: usize = 3;
const CLASSES: usize = MERGED + 1;

/// Work inside a transaction, answered once the transaction has committed or failed.
pub(in crate::sqlite) trait Job: Send {
    /// Does the work and keeps the answer back.
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<()>;
    /// Sends the answer, or the error of the whole transaction.
    fn answer(self: Box<Self>, outcome: Result<()>);
    /// Whether the caller no longer waits for the answer.
    fn abandoned(&self) -> bool;
}

/// A job that waits, and how it is to be run.
pub(in crate::sqlite) struct Queued {
    pub(in crate::sqlite) job: Box<dyn Job>,
    /// The family that it works in.
    pub(in crate::sqlite) family: Family,
    pub(in crate::sqlite) since: Instant,
    /// Need not run once its caller is gone.
    pub(in crate::sqlite) skippable: bool,
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
        // The caller may have dropped its future.
        let _ = sender.send(answer);
    }

    fn abandoned(&self) -> bool {
        self.sender.is_closed()
    }
}

/// Turns a closure into a job, and returns the receiver of its answer.
pub(in crate::sqlite) fn job<T, F>(family: Family, work: F) -> (Queued, oneshot::Receiver<Result<T>>)
where
    T: Send + 'static,
    F: FnOnce(&mut Tx<'_>) -> Result<T> + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let job = Box::new(Work { work: Some(work), answer: None, sender });
    (Queued { job, family, since: Instant::now(), skippable: false }, receiver)
}

/// The result of a wait for jobs.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::sqlite) enum Found {
    Jobs,
    Nothing,
    Closed,
}

/// The jobs of one connection, or of several equal connections.
pub(in crate::sqlite) struct Jobs {
    state: Mutex<State>,
    ready: Condvar,
}

struct State {
    classes: [VecDeque<Queued>; CLASSES],
    closed: bool,
    /// A waiting thread shall return although there is no job.
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
    pub(in crate::sqlite) fn new() -> Self {
        let classes = std::array::from_fn(|_| VecDeque::new());
        Self { state: Mutex::new(State { classes, closed: false, nudged: false }), ready: Condvar::new() }
    }

    /// No job runs under this lock, so a poisoned one holds a consistent state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job. `Busy` when too many wait, `Unavailable` when closed.
    pub(in crate::sqlite) fn push(&self, urgency: Urgency, job: Queued) -> Result<()> {
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

    /// Waits until there is a job, until the timeout, or until the jobs are closed and empty.
    pub(in crate::sqlite) fn wait(&self, timeout: Option<Duration>) -> Found {
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
    pub(in crate::sqlite) fn pop(&self, class: usize) -> Option<Queued> {
        self.lock().classes[class].pop_front()
    }

    /// Whether jobs wait that can be merged, and whether jobs wait that need a transaction of their own.
    pub(in crate::sqlite) fn waiting(&self) -> (bool, bool) {
        let state = self.lock();
        let (merged, alone) = state.classes.split_at(MERGED);
        (merged.iter().any(|class| !class.is_empty()), alone.iter().any(|class| !class.is_empty()))
    }

    /// Waits for the next job of any class; `None` once closed and empty.
    pub(in crate::sqlite) fn next(&self) -> Option<Queued> {
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

    /// Takes every job that has waited at least this long.
    pub(in crate::sqlite) fn take_older_than(&self, age: Duration) -> Vec<Queued> {
        let mut state = self.lock();
        let mut taken = Vec::new();
        for class in &mut state.classes {
            while class.front().is_some_and(|job| job.since.elapsed() >= age) {
                taken.extend(class.pop_front());
            }
        }
        taken
    }

    pub(in crate::sqlite) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Makes a waiting thread return.
    pub(in crate::sqlite) fn nudge(&self) {
        self.lock().nudged = true;
        self.ready.notify_all();
    }

    /// Refuses further jobs; those that wait are still run.
    pub(in crate::sqlite) fn close(&self) {
        self.lock().closed = true;
        self.ready.notify_all();
    }
}

impl State {
    fn is_empty(&self) -> bool {
        self.classes.iter().all(VecDeque::is_empty)
    }
}
