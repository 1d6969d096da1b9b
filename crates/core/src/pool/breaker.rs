//! Whether deliveries to an origin are tried: a circuit breaker, one per client and origin of targets.
//!
//! It opens when half or more of at least ten calls within a minute failed. For 5 s nothing is tried then; after that
//! one call at a time is, until three succeeded (it closes) or one failed (it opens again).
//!
//! Every call has a permit, and its result is reported with it, once. A permit says under which state it was given: the
//! results of calls that were under way when the breaker opened, or closed, say nothing about what was decided since,
//! and change nothing. Time is monotonic; a moment before the last one counts as that one.

use std::time::{Duration, Instant};

/// How far back calls count. They are counted in parts of a twelfth, so that the oldest go together.
pub const WINDOW: Duration = Duration::from_secs(60);
/// The fewest calls by which it opens.
pub const MIN_CALLS: u32 = 10;
/// How long nothing is tried once it is open.
pub const OPEN_FOR: Duration = Duration::from_secs(5);
/// The successes in a row that close it.
pub const CLOSING_SUCCESSES: u32 = 3;
/// How long a call that is tried on a half-open breaker keeps others back. It may go on for longer, and still count.
pub const TRIAL_FOR: Duration = Duration::from_secs(60);

const BUCKETS: usize = 12;
const BUCKET: Duration = Duration::from_secs(WINDOW.as_secs() / BUCKETS as u64);

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallResult {
    /// The origin answered with a status below 500, whatever it said.
    Answered,
    /// It answered with a 5xx, or the call timed out, or there was no connection.
    Failed,
    /// The call was not made, or given up for reasons that are not the origin's.
    NotMade,
}

/// What may be done now.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    /// A call, and its result has to be reported.
    Permit(Permit),
    /// Nothing before this moment. On a half-open breaker the call that is tried may end the wait earlier.
    NotBefore(Instant),
}

/// The right to make one call. Its result is reported to the breaker that gave it; one that is dropped on a half-open
/// breaker keeps others back for [`TRIAL_FOR`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the result of the call has to be reported"]
pub struct Permit {
    /// Under which phase it was given.
    phase: u64,
    /// Which trial it is; 0 for none.
    trial: u64,
}

/// How a breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Calls are made.
    Closed,
    /// None is made before this moment.
    Open(Instant),
    /// One is made at a time, and none is under way.
    HalfOpen,
}

/// A circuit breaker. Its size is fixed, however many calls there are.
///
/// ```
/// use std::time::Instant;
/// use tidegate_core::pool::breaker::{Admission, Breaker, CallResult, OPEN_FOR};
/// let now = Instant::now();
/// let mut breaker = Breaker::new(now);
/// for _ in 0..10 {
///     let Admission::Permit(permit) = breaker.may_start(now) else { panic!("it is closed") };
///     breaker.on(permit, CallResult::Failed, now);
/// }
/// assert_eq!(breaker.may_start(now), Admission::NotBefore(now + OPEN_FOR));
/// assert!(matches!(breaker.may_start(now + OPEN_FOR), Admission::Permit(_)));
/// ```
#[derive(Debug)]
pub struct Breaker {
    now: Instant,
    /// Rises when it opens and when it closes.
    phase: u64,
    trials: u64,
    state: Inner,
}

#[derive(Debug)]
enum Inner {
    Closed(Window),
    /// Open until a moment, half-open after it.
    Tripped {
        until: Instant,
        successes: u32,
        trial: Option<Trial>,
    },
}

/// A call that is tried on a half-open breaker.
#[derive(Debug)]
struct Trial {
    number: u64,
    /// Until when it keeps others back.
    until: Instant,
}

impl CallResult {
    /// The result of a call that was answered with an HTTP status.
    #[must_use]
    pub fn of_status(status: u16) -> Self {
        if status < 500 { Self::Answered } else { Self::Failed }
    }
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { now, phase: 0, trials: 0, state: Inner::Closed(Window::new(now)) }
    }

    /// How it stands.
    #[must_use]
    pub fn state(&self, now: Instant) -> State {
        let now = self.now.max(now);
        match &self.state {
            Inner::Closed(_) => State::Closed,
            Inner::Tripped { until, .. } if now < *until => State::Open(*until),
            // No other call may be made until its result is known.
            Inner::Tripped { trial: Some(trial), .. } if now < trial.until => State::Open(trial.until),
            Inner::Tripped { .. } => State::HalfOpen,
        }
    }

    /// Whether it is closed and has no calls to remember: then one that is new does as well.
    #[must_use]
    pub fn is_idle(&self, now: Instant) -> bool {
        matches!(&self.state, Inner::Closed(window) if window.totals(self.now.max(now)).0 == 0)
    }

    /// Whether a call may be made now. On a half-open breaker the permit is the only one until its result is known.
    #[must_use]
    pub fn may_start(&mut self, now: Instant) -> Admission {
        let now = self.at(now);
        match &mut self.state {
            Inner::Closed(_) => Admission::Permit(Permit { phase: self.phase, trial: 0 }),
            Inner::Tripped { until, .. } if now < *until => Admission::NotBefore(*until),
            Inner::Tripped { trial: Some(trial), .. } if now < trial.until => Admission::NotBefore(trial.until),
            Inner::Tripped { trial, .. } => {
                self.trials += 1;
                *trial = Some(Trial { number: self.trials, until: now + TRIAL_FOR });
                Admission::Permit(Permit { phase: self.phase, trial: self.trials })
            }
        }
    }

    /// Takes the result of a call. Returns whether it opened or closed the breaker.
    pub fn on(&mut self, permit: Permit, result: CallResult, now: Instant) -> bool {
        let now = self.at(now);
        if permit.phase != self.phase {
            return false;
        }
        let next = match &mut self.state {
            Inner::Closed(_) if result == CallResult::NotMade => None,
            Inner::Closed(window) => {
                window.count(result == CallResult::Failed, now);
                window.is_bad(now).then(|| Inner::open(now))
            }
            Inner::Tripped { successes, trial, .. } => {
                if trial.as_ref().is_some_and(|trial| trial.number == permit.trial) {
                    *trial = None;
                }
                *successes += u32::from(result == CallResult::Answered);
                match result {
                    CallResult::Failed => Some(Inner::open(now)),
                    _ => (*successes == CLOSING_SUCCESSES).then(|| Inner::Closed(Window::new(now))),
                }
            }
        };
        let Some(next) = next else { return false };
        self.state = next;
        self.phase += 1;
        true
    }

    /// The present, which never goes back.
    fn at(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        self.now
    }
}

impl Inner {
    fn open(now: Instant) -> Self {
        Self::Tripped { until: now + OPEN_FOR, successes: 0, trial: None }
    }
}

/// The calls of the last minute, counted in buckets of 5 s since the window began.
#[derive(Debug)]
struct Window {
    began: Instant,
    buckets: [Bucket; BUCKETS],
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    /// Which 5 s it counts.
    number: u64,
    calls: u32,
    failed: u32,
}

impl Window {
    fn new(now: Instant) -> Self {
        Self { began: now, buckets: [Bucket::default(); BUCKETS] }
    }

    fn number(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / BUCKET.as_secs()
    }

    fn count(&mut self, failed: bool, now: Instant) {
        let number = self.number(now);
        let bucket = &mut self.buckets[(number % BUCKETS as u64) as usize];
        if bucket.number != number {
            *bucket = Bucket { number, ..Bucket::default() };
        }
        bucket.calls = bucket.calls.saturating_add(1);
        bucket.failed = bucket.failed.saturating_add(u32::from(failed));
    }

    /// All calls that count, and those of them that failed.
    fn totals(&self, now: Instant) -> (u64, u64) {
        let number = self.number(now);
        let counts = self.buckets.iter().filter(|bucket| bucket.number + BUCKETS as u64 > number);
        counts.fold((0, 0), |(calls, failed), bucket| {
            (calls + u64::from(bucket.calls), failed + u64::from(bucket.failed))
        })
    }

    fn is_bad(&self, now: Instant) -> bool {
        let (calls, failed) = self.totals(now);
        calls >= u64::from(MIN_CALLS) && failed * 2 >= calls
    }
}

#[cfg(test)]
mod tests;
