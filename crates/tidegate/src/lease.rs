//! One lease as its holder counts it, in monotonic time: until when it holds for sure, and whether work under it must stop.
//!
//! The entry, the task that works on it and the keeper share it. It knows neither stores nor how a lease is extended.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::{EntryId, LeaseToken};
use tokio::task::AbortHandle;

/// Work stops when this part of the lease is left.
const RESERVE: u32 = 10;
/// A lease is extended when this part of it has passed.
const BEAT: u32 = 3;
/// A failed extension is repeated after this part of the lease.
const AGAIN: u32 = 20;

/// The lease of one claim of one entry.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: EntryId,
    pub(crate) token: LeaseToken,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stage: Stage,
    /// Until when it holds for sure: its length, counted from before it was asked for.
    until: Instant,
    /// When work under it must stop.
    alarm: Instant,
    /// When to extend it.
    beat_at: Instant,
    /// An extension is under way.
    beating: bool,
    worker: Option<AbortHandle>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Somebody works under it, or is about to.
    Held,
    /// The work is done, and what follows from it is being written.
    Settling,
    /// It ran out or was taken away.
    Lost,
    /// Nobody needs it any more.
    Over,
}

/// What is to be done about a lease.
#[derive(Debug)]
pub(crate) enum Due {
    /// Nothing before this moment; nothing at all until an answer comes where there is none.
    Nothing(Option<Instant>),
    /// To be extended; and this is when work under it stops otherwise.
    Beat(Option<Instant>),
    /// It is about to run out: stop whoever works under it.
    GiveUp(Option<AbortHandle>),
    /// Nobody needs it.
    Over,
}

impl Lease {
    /// A lease of this length that was asked for at `from`.
    pub(crate) fn new(id: EntryId, token: LeaseToken, from: Instant, length: Duration) -> Self {
        let until = from.checked_add(length).unwrap_or(from);
        let state = State {
            stage: Stage::Held,
            until,
            alarm: alarm(until, length),
            beat_at: from + length / BEAT,
            beating: false,
            worker: None,
        };
        Self { id, token, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when it holds for sure.
    pub(crate) fn until(&self) -> Instant {
        self.lock().until
    }

    /// Notes an extension that was asked for at `from`.
    pub(crate) fn extended(&self, from: Instant, length: Duration) {
        let mut state = self.lock();
        let until = from.checked_add(length).unwrap_or(from);
        if until > state.until {
            state.until = until;
            state.alarm = alarm(until, length);
        }
        state.beat_at = from + length / BEAT;
        state.beating = false;
    }

    /// Notes that an extension failed.
    pub(crate) fn not_extended(&self, now: Instant, length: Duration) -> Instant {
        let mut state = self.lock();
        state.beating = false;
        state.beat_at = now + length / AGAIN;
        state.beat_at
    }

    /// Notes that it is somebody else's now. Answers whom to stop, and `None` where nobody works under it.
    pub(crate) fn lost(&self) -> Option<AbortHandle> {
        let mut state = self.lock();
        let works = state.stage == Stage::Held;
        if state.stage != Stage::Over {
            state.stage = Stage::Lost;
        }
        state.worker.take().filter(|_| works)
    }

    /// Whether work under it may begin or go on.
    pub(crate) fn holds(&self, now: Instant) -> bool {
        let state = self.lock();
        state.stage == Stage::Held && now < state.alarm
    }

    /// Names the task to be stopped when it is lost.
    pub(crate) fn works_in(&self, task: AbortHandle) {
        let mut state = self.lock();
        if state.stage == Stage::Lost {
            drop(state);
            task.abort();
        } else {
            state.worker = Some(task);
        }
    }

    /// The work is done: it is kept until the outcome is written, and nobody is stopped any more.
    pub(crate) fn settle(&self) {
        let mut state = self.lock();
        state.worker = None;
        if state.stage == Stage::Held {
            state.stage = Stage::Settling;
        }
    }

    /// Nobody needs it any more.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.stage = Stage::Over;
        state.worker = None;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lock().stage == Stage::Over
    }

    /// When it needs a look.
    pub(crate) fn next_look(&self) -> Instant {
        let state = self.lock();
        if state.stage == Stage::Held { state.alarm.min(state.beat_at) } else { state.beat_at }
    }

    /// What is to be done about it. One that may be extended before `soon` is extended now, with the others.
    pub(crate) fn due(&self, now: Instant, soon: Instant) -> Due {
        let mut state = self.lock();
        match state.stage {
            Stage::Over | Stage::Lost => return Due::Over,
            Stage::Held if now >= state.alarm => {
                state.stage = Stage::Lost;
                return Due::GiveUp(state.worker.take());
            }
            Stage::Held | Stage::Settling => {}
        }
        let alarm = (state.stage == Stage::Held).then_some(state.alarm);
        if state.beating {
            return Due::Nothing(alarm);
        }
        if state.beat_at <= soon {
            state.beating = true;
            return Due::Beat(alarm);
        }
        Due::Nothing(Some(alarm.map_or(state.beat_at, |alarm| alarm.min(state.beat_at))))
    }
}

fn alarm(until: Instant, length: Duration) -> Instant {
    until.checked_sub(length / RESERVE).unwrap_or(until)
}
