//! The lease keeper: extends leases while their entries are handled, and aborts an attempt before its lease ends when
//! the lease cannot be extended.
//!
//! [`Register`] decides which leases are extended or given up, and when to check again; it reads no clock. [`Keeper`]
//! acts on it: its alarm is a thread of its own, so that neither a busy runtime nor a handler that blocks its thread
//! delays it. Heartbeats are sent from the runtime. Knows nothing of handlers: each lease has the handle of the task to
//! abort.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::Timestamp;
use tidegate_store::Extend;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::batch::batcher::Batcher;
use crate::error::{Error, ErrorKind, Result};
use crate::queue::lease::{Due, Lease};

/// When one lease is due, leases that are due within 1/10 of their length are extended with it.
const TOGETHER: u32 = 10;
/// Leases that are no longer needed are removed from the list when it has at least this many.
const SWEEP: usize = 1_024;

/// The leases to keep, and when to check them.
#[derive(Debug)]
struct Register {
    /// The length of every lease.
    length: Duration,
    held: Vec<Arc<Lease>>,
    sweep_at: usize,
    /// When [`Keeper::watched`] has to return.
    watch: Option<Instant>,
    /// When to check next; `None`: not before something changes.
    check_at: Option<Instant>,
    /// Whether the last check found no lease to keep.
    idle: bool,
}

/// What a check found to do.
#[derive(Debug, Default)]
struct Found {
    /// Leases to extend.
    beats: Vec<Arc<Lease>>,
    /// Leases that could not be extended in time: their attempts must stop.
    given_up: Vec<Arc<Lease>>,
    /// Whether the moment set by [`Keeper::watch`] has come.
    watch_over: bool,
}

impl Register {
    fn new(length: Duration) -> Self {
        Self { length, held: Vec::new(), sweep_at: SWEEP, watch: None, check_at: None, idle: false }
    }

    /// Keeps these leases; returns whether the next check is earlier now.
    fn hold<'a>(&mut self, leases: impl Iterator<Item = &'a Arc<Lease>>) -> bool {
        let mut first = None;
        for lease in leases {
            first = earlier(first, Some(lease.next_check()));
            self.held.push(Arc::clone(lease));
        }
        if self.held.len() >= self.sweep_at {
            self.held.retain(|lease| !lease.is_over());
            self.sweep_at = SWEEP.max(self.held.len() * 2);
        }
        first.is_some_and(|first| self.check_by(first))
    }

    /// Sets the moment to be watched, unless an earlier one is; returns whether the next check is earlier now.
    fn watch(&mut self, at: Instant) -> bool {
        let at = self.watch.map_or(at, |watch| watch.min(at));
        self.watch = Some(at);
        self.check_by(at)
    }

    /// Has a check take place by this moment; returns whether the next one is earlier now.
    fn check_by(&mut self, at: Instant) -> bool {
        let sooner = self.check_at.is_none_or(|check_at| at < check_at);
        if sooner {
            self.check_at = Some(at);
        }
        sooner
    }

    /// Finds the leases that are about to end and those to extend, and sets the next check.
    fn check(&mut self, now: Instant) -> Found {
        let soon = now + self.length / TOGETHER;
        let mut found = Found::default();
        let mut next: Option<Instant> = None;
        self.held.retain(|lease| {
            let again = match lease.due(now, soon) {
                Due::Over => return false,
                Due::GiveUp => {
                    found.given_up.push(Arc::clone(lease));
                    return false;
                }
                Due::Beat(alarm) => {
                    found.beats.push(Arc::clone(lease));
                    alarm
                }
                Due::Nothing(again) => again,
            };
            next = earlier(next, again);
            true
        });
        found.watch_over = self.watch.take_if(|at| *at <= now).is_some();
        next = earlier(next, self.watch);
        // After the first check without leases, check once more in 1/3 of the lease: a manager that is idle only for a
        // moment then need not notify the thread.
        let rest = (!self.idle).then(|| now + self.length / 3);
        self.idle = self.held.is_empty();
        self.check_at = next.or(rest);
        found
    }
}

/// Keeps the leases of one manager or bus worker, until it is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    core: Arc<Core>,
}

#[derive(Debug)]
struct Core {
    extend: Batcher<Extend, Timestamp>,
    length: Duration,
    runtime: Handle,
    state: Mutex<State>,
    changed: Condvar,
    watch_over: Notify,
}

#[derive(Debug)]
struct State {
    register: Register,
    /// Whether the thread was started.
    runs: bool,
    closed: bool,
}

impl Keeper {
    /// A keeper for leases of this length; heartbeats run on the current runtime.
    pub(crate) fn new(extend: Batcher<Extend, Timestamp>, length: Duration) -> Self {
        let core = Core {
            extend,
            length,
            runtime: Handle::current(),
            state: Mutex::new(State { register: Register::new(length), runs: false, closed: false }),
            changed: Condvar::new(),
            watch_over: Notify::new(),
        };
        Self { core: Arc::new(core) }
    }

    /// Keeps these leases from now on, each until it is over or lost.
    ///
    /// # Errors
    /// `Unavailable` when the thread cannot be started: without it no lease would be extended.
    pub(crate) fn hold<'a>(&self, leases: impl Iterator<Item = &'a Arc<Lease>>) -> Result<()> {
        let mut leases = leases.peekable();
        if leases.peek().is_none() {
            return Ok(());
        }
        let mut state = self.core.lock();
        self.core.start(&mut state)?;
        let sooner = state.register.hold(leases);
        self.core.notify(sooner);
        Ok(())
    }

    /// Has [`watched`](Self::watched) return at this moment, even if the runtime's own timers do not fire because a
    /// task blocks the thread that drives them.
    pub(crate) fn watch(&self, at: Instant) {
        let sooner = self.core.lock().register.watch(at);
        self.core.notify(sooner);
    }

    /// Waits for the moment set by [`watch`](Self::watch).
    pub(crate) async fn watched(&self) {
        self.core.watch_over.notified().await;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.core.lock().closed = true;
        self.core.changed.notify_one();
    }
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>, state: &mut State) -> Result<()> {
        if state.runs {
            return Ok(());
        }
        let core = Arc::clone(self);
        let thread = std::thread::Builder::new().name("tidegate-leases".into()).spawn(move || core.run());
        thread.map_err(|error| {
            let message = "the lease keeper's thread could not be started: raise the thread limit of this process";
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        })?;
        state.runs = true;
        Ok(())
    }

    /// Has the thread set its alarm again when the next check is earlier now.
    fn notify(&self, sooner: bool) {
        if sooner {
            self.changed.notify_one();
        }
    }

    /// The thread: waits for the next check and does what it finds.
    fn run(self: Arc<Self>) {
        let mut state = self.lock();
        while !state.closed {
            let now = Instant::now();
            state = match state.register.check_at {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) if at > now => {
                    let woken = self.changed.wait_timeout(state, at - now);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let found = state.register.check(now);
                    // Outside of all locks: aborting a task may drop what it holds right here.
                    drop(state);
                    self.act_on(found);
                    self.lock()
                }
            };
        }
    }

    /// Aborts attempts whose lease is about to end, and extends leases that are due.
    fn act_on(self: &Arc<Self>, found: Found) {
        if found.watch_over {
            self.watch_over.notify_one();
        }
        for lease in found.given_up {
            tracing::warn!(entry = %lease.id, "lease could not be extended in time: stopping its handler");
            if let Some(task) = lease.take_task() {
                task.abort();
            }
        }
        if !found.beats.is_empty() {
            self.beat(found.beats);
        }
    }

    fn beat(self: &Arc<Self>, leases: Vec<Arc<Lease>>) {
        let core = Arc::clone(self);
        // Spawning from outside also wakes a thread of the runtime that would otherwise sleep beside a blocked one.
        self.runtime.spawn(async move {
            let sent = Instant::now();
            let extend = |lease: &Arc<Lease>| Extend { id: lease.id, token: lease.token, lease: core.length };
            let answers = core.extend.call_many(leases.iter().map(extend).collect()).await;
            for (lease, answer) in leases.iter().zip(answers) {
                core.on_answer(lease, sent, answer.map(drop));
            }
        });
    }

    fn on_answer(&self, lease: &Lease, sent: Instant, answer: Result<()>) {
        let again = match answer {
            Ok(()) => {
                lease.extended(sent, self.length);
                lease.next_check()
            }
            Err(error) if is_lost(&error) => {
                if let Some(task) = lease.lost() {
                    tracing::warn!(entry = %lease.id, %error, "lease lost: stopping its handler");
                    task.abort();
                }
                return;
            }
            Err(error) => {
                tracing::debug!(entry = %lease.id, %error, "extending a lease failed, retrying");
                lease.not_extended(Instant::now(), self.length)
            }
        };
        let sooner = self.lock().register.check_by(again);
        self.notify(sooner);
    }
}

fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Fenced | ErrorKind::NotFound | ErrorKind::AlreadyEnded)
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{EntryId, LeaseToken};

    use super::*;

    const LENGTH: Duration = Duration::from_secs(60);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn lease(id: i64, from: Instant) -> Arc<Lease> {
        Arc::new(Lease::new(EntryId::new(id).unwrap(), LeaseToken(1), from, LENGTH))
    }

    fn ids(leases: &[Arc<Lease>]) -> Vec<i64> {
        leases.iter().map(|lease| lease.id.get()).collect()
    }

    /// A register with leases that were claimed so many seconds after `now`.
    fn register(now: Instant, after: &[u64]) -> (Register, Vec<Arc<Lease>>) {
        let leases: Vec<_> = (1..).zip(after).map(|(id, after)| lease(id, now + secs(*after))).collect();
        let mut register = Register::new(LENGTH);
        register.hold(leases.iter());
        (register, leases)
    }

    #[test]
    fn only_an_earlier_check_wakes_the_thread() {
        let now = Instant::now();
        let mut register = Register::new(LENGTH);
        assert!(register.hold([lease(1, now)].iter()));
        assert_eq!(register.check_at, Some(now + secs(20)));
        assert!(!register.hold([lease(2, now + secs(1))].iter()));
        assert!(register.watch(now + secs(5)));
        assert!(!register.watch(now + secs(6)), "the earlier moment is watched");
        assert_eq!(register.check_at, Some(now + secs(5)));
        assert!(!register.hold([].iter()));
    }

    #[test]
    fn leases_that_are_due_within_a_tenth_are_extended_together() {
        let now = Instant::now();
        let (mut register, _leases) = register(now, &[0, 5, 6, 7]);
        let found = register.check(now + secs(20));
        assert_eq!(ids(&found.beats), [1, 2, 3]);
        assert!(found.given_up.is_empty() && !found.watch_over);
        assert_eq!(register.check_at, Some(now + secs(27)), "when the fourth has to be extended");
    }

    #[test]
    fn a_lease_whose_extension_is_not_answered_is_given_up_in_time() {
        let now = Instant::now();
        let (mut register, leases) = register(now, &[0, 0]);
        assert_eq!(register.check(now + secs(20)).beats.len(), 2);
        assert_eq!(register.check_at, Some(now + secs(54)));
        leases[1].extended(now + secs(20), LENGTH);
        register.check_by(leases[1].next_check());
        assert_eq!(ids(&register.check(now + secs(40)).beats), [2], "the other is under way");
        let found = register.check(now + secs(54));
        assert_eq!(ids(&found.given_up), [1]);
        assert_eq!(ids(&register.held), [2]);
        assert!(!leases[0].holds(now));
    }

    #[test]
    fn leases_that_are_over_are_dropped_from_the_list() {
        let now = Instant::now();
        let (mut register, leases) = register(now, &[0, 0]);
        leases[0].end();
        assert_eq!(ids(&register.check(now + secs(20)).beats), [2]);
        assert_eq!(ids(&register.held), [2]);
    }

    #[test]
    fn a_long_list_is_swept_when_leases_are_added() {
        let now = Instant::now();
        let (mut register, leases) = register(now, &[0; SWEEP - 1]);
        leases.iter().for_each(|lease| lease.end());
        register.hold([lease(5_000, now)].iter());
        assert_eq!(ids(&register.held), [5_000]);
    }

    #[test]
    fn a_watched_moment_comes_once() {
        let now = Instant::now();
        let mut register = Register::new(LENGTH);
        register.watch(now + secs(5));
        assert!(!register.check(now + secs(4)).watch_over);
        assert_eq!(register.check_at, Some(now + secs(5)));
        assert!(register.check(now + secs(5)).watch_over);
        assert!(!register.check(now + secs(6)).watch_over);
    }

    #[test]
    fn without_leases_there_is_one_more_check() {
        let now = Instant::now();
        let (mut register, leases) = register(now, &[0]);
        leases[0].end();
        register.check(now);
        assert_eq!(register.check_at, Some(now + secs(20)));
        register.check(now + secs(20));
        assert_eq!(register.check_at, None);
    }
}
