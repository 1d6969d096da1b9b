//! Keeps leases while their events are worked on, and stops whoever works under one that cannot be kept, before it ends.
//!
//! It decides in a thread of its own, so that neither a busy runtime nor a handler that blocks its thread holds it up.
//! Heartbeats are sent from the runtime. It knows nothing of handlers: a lease names the task to be stopped.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::Timestamp;
use tidegate_store::{ErrorKind, Extend};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::coalescer::Coalescer;
use crate::error::{Error, Result};
use crate::lease::{Due, Lease};

/// Leases that end sooner than this part of their length after the first that is due are extended with it.
const TOGETHER: u32 = 10;
/// Leases that nobody needs any more are forgotten when there are so many.
const SWEEP: usize = 1_024;

/// Keeps the leases of one loop. Dropped, it keeps nothing any more.
#[derive(Debug)]
pub(crate) struct Keeper {
    core: Arc<Core>,
}

#[derive(Debug)]
struct Core {
    extend: Coalescer<Extend, Timestamp>,
    length: Duration,
    runtime: Handle,
    register: Mutex<Register>,
    changed: Condvar,
    watch_over: Notify,
}

#[derive(Debug, Default)]
struct Register {
    held: Vec<Arc<Lease>>,
    sweep_at: usize,
    /// When the loop wants to be roused.
    watch: Option<Instant>,
    /// When the thread looks next; `None` while it waits to be told.
    looks_at: Option<Instant>,
    /// The last look found nothing to keep.
    idle: bool,
    runs: bool,
    closed: bool,
}

impl Keeper {
    /// Keeps leases of this length; heartbeats run on the current runtime.
    pub(crate) fn new(extend: Coalescer<Extend, Timestamp>, length: Duration) -> Self {
        let core = Core {
            extend,
            length,
            runtime: Handle::current(),
            register: Mutex::default(),
            changed: Condvar::new(),
            watch_over: Notify::new(),
        };
        Self { core: Arc::new(core) }
    }

    /// Keeps these from now on, each until it is over.
    ///
    /// # Errors
    /// `Unavailable` when the system refuses a thread: without one no lease is safe.
    pub(crate) fn hold<'a>(&self, leases: impl Iterator<Item = &'a Arc<Lease>>) -> Result<()> {
        let mut leases = leases.peekable();
        if leases.peek().is_none() {
            return Ok(());
        }
        let mut register = self.core.lock();
        self.core.start(&mut register)?;
        let mut first: Option<Instant> = None;
        for lease in leases {
            let at = lease.next_look();
            first = Some(first.map_or(at, |first| first.min(at)));
            register.held.push(Arc::clone(lease));
        }
        if register.held.len() >= register.sweep_at {
            register.held.retain(|lease| !lease.is_over());
            register.sweep_at = SWEEP.max(register.held.len() * 2);
        }
        if let Some(first) = first {
            self.core.look_by(&mut register, first);
        }
        Ok(())
    }

    /// Rouses [`watched`](Self::watched) at this moment, even while the runtime's own timers stand still because a task
    /// blocks the thread that would drive them.
    pub(crate) fn watch(&self, at: Instant) {
        let mut register = self.core.lock();
        let at = register.watch.map_or(at, |watch| watch.min(at));
        register.watch = Some(at);
        self.core.look_by(&mut register, at);
    }

    /// Waits for the moment asked for.
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
    fn lock(&self) -> MutexGuard<'_, Register> {
        self.register.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>, register: &mut Register) -> Result<()> {
        if register.runs {
            return Ok(());
        }
        let core = Arc::clone(self);
        let thread = std::thread::Builder::new().name("tidegate-leases".into()).spawn(move || core.run());
        thread.map_err(|error| {
            let message = "no thread could be started to keep leases: raise the limit of threads of this process";
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        })?;
        register.runs = true;
        Ok(())
    }

    fn look_by(&self, register: &mut Register, at: Instant) {
        if register.looks_at.is_none_or(|looks_at| at < looks_at) {
            register.looks_at = Some(at);
            self.changed.notify_one();
        }
    }

    fn run(self: Arc<Self>) {
        let mut register = self.lock();
        while !register.closed {
            let now = Instant::now();
            register = match register.looks_at {
                None => self.changed.wait(register).unwrap_or_else(PoisonError::into_inner),
                Some(at) if at > now => {
                    let woken = self.changed.wait_timeout(register, at - now);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    self.look(register, now);
                    self.lock()
                }
            };
        }
    }

    /// Stops whoever runs out of time, extends what is due, and says when to look again.
    fn look(self: &Arc<Self>, mut register: MutexGuard<'_, Register>, now: Instant) {
        let soon = now + self.length / TOGETHER;
        let (mut beats, mut stops) = (Vec::new(), Vec::new());
        let mut next: Option<Instant> = None;
        register.held.retain(|lease| {
            let again = match lease.due(now, soon) {
                Due::Over => return false,
                Due::GiveUp(task) => {
                    tracing::warn!(entry = %lease.id, "an event is given up: its lease could not be extended in time");
                    stops.extend(task);
                    return false;
                }
                Due::Beat(alarm) => {
                    beats.push(Arc::clone(lease));
                    alarm
                }
                Due::Nothing(again) => again,
            };
            next = earlier(next, again);
            true
        });
        if register.watch.is_some_and(|at| at <= now) {
            register.watch = None;
            self.watch_over.notify_one();
        }
        next = earlier(next, register.watch);
        // Whoever is idle for a moment only is not worth waking the thread for.
        let rest = (!register.idle).then(|| now + self.length / 3);
        register.idle = register.held.is_empty();
        register.looks_at = next.or(rest);
        drop(register);
        // Outside of all locks: a task that is stopped may drop what it holds right here.
        stops.iter().for_each(tokio::task::AbortHandle::abort);
        if !beats.is_empty() {
            self.beat(beats);
        }
    }

    fn beat(self: &Arc<Self>, leases: Vec<Arc<Lease>>) {
        let core = Arc::clone(self);
        // Spawned from outside, it also wakes a thread of the runtime that would otherwise sleep beside a blocked one.
        self.runtime.spawn(async move {
            let sent = Instant::now();
            let extend = |lease: &Arc<Lease>| Extend { id: lease.id, token: lease.token, lease: core.length };
            let answers = core.extend.call_many(leases.iter().map(extend).collect()).await;
            for (lease, answer) in leases.iter().zip(answers) {
                core.hear(lease, sent, answer.map(drop));
            }
        });
    }

    fn hear(&self, lease: &Lease, sent: Instant, answer: Result<()>) {
        let again = match answer {
            Ok(()) => {
                lease.extended(sent, self.length);
                lease.next_look()
            }
            Err(error) if is_lost(&error) => {
                if let Some(task) = lease.lost() {
                    tracing::warn!(entry = %lease.id, "an event is given up: its lease was lost");
                    task.abort();
                }
                return;
            }
            Err(error) => {
                tracing::debug!(entry = %lease.id, %error, "a lease was not extended, trying again");
                lease.not_extended(Instant::now(), self.length)
            }
        };
        self.look_by(&mut self.lock(), again);
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
