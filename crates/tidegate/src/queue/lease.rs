//! One lease as its holder sees it, in monotonic time: until when it certainly holds, when to extend it, and when an
//! attempt under it must stop.
//!
//! Shared by the entry, the task of its attempt and the lease keeper. Knows neither stores nor how a lease is extended.
//! [`LeaseState`] decides and reads no clock; [`Lease`] adds the lock and the task.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future;
use tidegate_core::{EntryId, LeaseToken};
use tokio::task;

/// An attempt is stopped when 1/10 of its lease is left.
const RESERVE: u32 = 10;
/// A lease is extended when 1/3 of it has passed.
const BEAT: u32 = 3;
/// A failed extension is repeated after 1/20 of the lease.
const AGAIN: u32 = 20;

/// The lease of one claim of one entry.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: EntryId,
    pub(crate) token: LeaseToken,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    state: LeaseState,
    /// The work of the attempt, to be aborted when the lease is lost.
    worker: Option<Abort>,
}

/// Ends the work of an attempt.
#[derive(Debug)]
pub(crate) enum Abort {
    /// A task.
    Task(task::AbortHandle),
    /// A part of a task.
    Part(future::AbortHandle),
}

impl Abort {
    pub(crate) fn abort(&self) {
        match self {
            Self::Task(task) => task.abort(),
            Self::Part(part) => part.abort(),
        }
    }
}

impl From<task::AbortHandle> for Abort {
    fn from(task: task::AbortHandle) -> Self {
        Self::Task(task)
    }
}

impl From<future::AbortHandle> for Abort {
    fn from(part: future::AbortHandle) -> Self {
        Self::Part(part)
    }
}

/// Where a lease is in its life, and its moments.
#[derive(Debug)]
struct LeaseState {
    stage: Stage,
    /// Until when it certainly holds: its length, counted from before the request that obtained it was sent.
    until: Instant,
    /// When the attempt must stop.
    alarm: Instant,
    /// When to extend it.
    beat_at: Instant,
    /// Whether an extension is under way.
    beating: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// An attempt runs under it, or is about to.
    Held,
    /// The attempt is over, and the decision is being written.
    Ending,
    /// It ran out, or another holder has the entry.
    Lost,
    /// It is no longer needed.
    Over,
}

/// What the lease keeper has to do about a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing before this moment; `None`: nothing until the extension under way is answered.
    Nothing(Option<Instant>),
    /// Extend it. The moment is when the attempt must stop unless that succeeds; `None` when no attempt runs.
    Beat(Option<Instant>),
    /// It is about to run out: stop the attempt.
    GiveUp,
    /// Drop it from the list: it was lost or is no longer needed.
    Over,
}

impl LeaseState {
    fn new(from: Instant, length: Duration) -> Self {
        let until = from.checked_add(length).unwrap_or(from);
        let (alarm, beat_at) = (alarm(until, length), from + length / BEAT);
        Self { stage: Stage::Held, until, alarm, beat_at, beating: false }
    }

    fn extended(&mut self, from: Instant, length: Duration) {
        let until = from.checked_add(length).unwrap_or(from);
        if until > self.until {
            self.until = until;
            self.alarm = alarm(until, length);
        }
        self.beat_at = from + length / BEAT;
        self.beating = false;
    }

    fn not_extended(&mut self, now: Instant, length: Duration) -> Instant {
        self.beating = false;
        self.beat_at = now + length / AGAIN;
        self.beat_at
    }

    /// Returns whether an attempt runs under it and must stop.
    fn lost(&mut self) -> bool {
        let runs = self.stage == Stage::Held;
        if self.stage != Stage::Over {
            self.stage = Stage::Lost;
        }
        runs
    }

    fn holds(&self, now: Instant) -> bool {
        self.stage == Stage::Held && now < self.alarm
    }

    fn next_check(&self) -> Instant {
        if self.stage == Stage::Held { self.alarm.min(self.beat_at) } else { self.beat_at }
    }

    fn due(&mut self, now: Instant, soon: Instant) -> Due {
        match self.stage {
            Stage::Over | Stage::Lost => return Due::Over,
            Stage::Held if now >= self.alarm => {
                self.stage = Stage::Lost;
                return Due::GiveUp;
            }
            Stage::Held | Stage::Ending => {}
        }
        let alarm = (self.stage == Stage::Held).then_some(self.alarm);
        if self.beating {
            return Due::Nothing(alarm);
        }
        if self.beat_at <= soon {
            self.beating = true;
            return Due::Beat(alarm);
        }
        Due::Nothing(Some(alarm.map_or(self.beat_at, |alarm| alarm.min(self.beat_at))))
    }
}

fn alarm(until: Instant, length: Duration) -> Instant {
    until.checked_sub(length / RESERVE).unwrap_or(until)
}

impl Lease {
    /// A lease of this length whose claim was sent at `from`.
    pub(crate) fn new(id: EntryId, token: LeaseToken, from: Instant, length: Duration) -> Self {
        Self { id, token, held: Mutex::new(Held { state: LeaseState::new(from, length), worker: None }) }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when it certainly holds.
    pub(crate) fn until(&self) -> Instant {
        self.lock().state.until
    }

    /// Records an extension whose request was sent at `from`.
    pub(crate) fn extended(&self, from: Instant, length: Duration) {
        self.lock().state.extended(from, length);
    }

    /// Records that an extension failed, and returns when to try again.
    pub(crate) fn not_extended(&self, now: Instant, length: Duration) -> Instant {
        self.lock().state.not_extended(now, length)
    }

    /// Records that the lease is no longer held. Returns the task to abort; `None` when no attempt runs under it.
    pub(crate) fn lost(&self) -> Option<Abort> {
        let mut held = self.lock();
        let runs = held.state.lost();
        held.worker.take().filter(|_| runs)
    }

    /// Whether an attempt may start or continue.
    pub(crate) fn holds(&self, now: Instant) -> bool {
        self.lock().state.holds(now)
    }

    /// Sets the work to be aborted when the lease is lost; aborts it right away when it is lost already.
    pub(crate) fn works_in(&self, work: impl Into<Abort>) {
        let (mut held, work) = (self.lock(), work.into());
        if held.state.stage == Stage::Lost {
            drop(held);
            work.abort();
        } else {
            held.worker = Some(work);
        }
    }

    /// The attempt is over: the lease is extended until the decision is written, but no task is aborted any more.
    pub(crate) fn attempt_over(&self) {
        let mut held = self.lock();
        held.worker = None;
        if held.state.stage == Stage::Held {
            held.state.stage = Stage::Ending;
        }
    }

    /// The lease is no longer needed.
    pub(crate) fn end(&self) {
        let mut held = self.lock();
        held.state.stage = Stage::Over;
        held.worker = None;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lock().state.stage == Stage::Over
    }

    /// When the keeper has to check it.
    pub(crate) fn next_check(&self) -> Instant {
        self.lock().state.next_check()
    }

    /// What has to be done at `now`. A lease whose extension is due by `soon` is extended now, together with others.
    pub(crate) fn due(&self, now: Instant, soon: Instant) -> Due {
        self.lock().state.due(now, soon)
    }

    /// The task of the attempt under a lease that is given up.
    pub(crate) fn take_task(&self) -> Option<Abort> {
        self.lock().worker.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(60);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn lease() -> (LeaseState, Instant) {
        let now = Instant::now();
        (LeaseState::new(now, LENGTH), now)
    }

    #[test]
    fn it_is_extended_after_a_third_and_given_up_before_the_last_tenth() {
        let (mut lease, now) = lease();
        assert_eq!(lease.next_check(), now + secs(20));
        assert_eq!(lease.due(now + secs(19), now + secs(19)), Due::Nothing(Some(now + secs(20))));
        assert_eq!(lease.due(now + secs(20), now + secs(20)), Due::Beat(Some(now + secs(54))));
        assert_eq!(lease.due(now + secs(53), now + secs(53)), Due::Nothing(Some(now + secs(54))), "one is under way");
        assert!(lease.holds(now + secs(53)) && !lease.holds(now + secs(54)));
        assert_eq!(lease.due(now + secs(54), now + secs(54)), Due::GiveUp);
        assert_eq!(lease.due(now + secs(55), now + secs(55)), Due::Over, "given up once");
    }

    #[test]
    fn a_lease_that_is_due_soon_is_extended_with_others() {
        let (mut lease, now) = lease();
        assert_eq!(lease.due(now + secs(15), now + secs(21)), Due::Beat(Some(now + secs(54))));
    }

    #[test]
    fn an_extension_counts_from_when_it_was_sent() {
        let (mut lease, now) = lease();
        lease.due(now + secs(20), now + secs(20));
        lease.extended(now + secs(20), LENGTH);
        assert_eq!(lease.until, now + secs(80));
        assert_eq!(lease.next_check(), now + secs(40));
        assert!(lease.holds(now + secs(73)));
        lease.extended(now + secs(10), LENGTH);
        assert_eq!(lease.until, now + secs(80), "a late answer to an earlier request takes nothing back");
    }

    #[test]
    fn a_failed_extension_is_repeated_while_the_alarm_stands() {
        let (mut lease, now) = lease();
        lease.due(now + secs(20), now + secs(20));
        assert_eq!(lease.not_extended(now + secs(25), LENGTH), now + secs(28));
        assert_eq!(lease.due(now + secs(28), now + secs(28)), Due::Beat(Some(now + secs(54))));
    }

    #[test]
    fn while_a_decision_is_written_it_is_extended_and_not_given_up() {
        let (mut lease, now) = lease();
        lease.stage = Stage::Ending;
        assert_eq!(lease.next_check(), now + secs(20));
        assert_eq!(lease.due(now + secs(55), now + secs(55)), Due::Beat(None));
        assert!(!lease.lost(), "there is no attempt to stop");
    }

    #[test]
    fn a_lost_lease_stops_its_attempt_once() {
        let (mut lease, now) = lease();
        assert!(lease.lost());
        assert!(!lease.lost());
        assert!(!lease.holds(now));
        assert_eq!(lease.due(now, now), Due::Over);
    }
}
