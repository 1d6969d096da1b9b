//! The life of an entry, as an explicit state machine.
//!
//! ```text
//!            publish                claim                 finalize
//!  ─────► Parked ──promote──► Waiting ──────────► Leased ──────────► Ended
//!            │ ▲               ▲  │                │ │ ▲               │
//!            │ └── overtaken ──┼──┤   release,     │ └─┘ extend,       │
//!            │                 └──┼── retry at ────┤     claim again   │
//!            └────── cancel ──────┴────────────────┼─── cancel ───────►│
//!                              ▲                   │                   │
//!                              ├────── redrive ────┼───────────────────┘
//!                   promote ── Aside ◄─ retry aside┤
//!                   redrive ── Kept ◄── exhausted ─┘
//! ```
//! A claim raises the token and the attempts; a release takes the attempt back but never the token. An entry whose
//! lease ran out is claimed again, unless its attempts are used up: then that claim ends it, or keeps it where it is if it
//! keeps its place. An entry that is past its expiry and not being worked on is cancelled.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::EntryId;

/// How often an entry was started over: 1 at publish, one more with each redrive and with each reset of a FAILED or
/// kept entry. Each generation ends at most once.
pub type Generation = u32;

/// The fencing token of a lease. It rises with every claim of an entry and is never reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseToken(pub i64);

/// How an entry ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum End {
    /// Successful.
    Completed,
    /// An unrecoverable error, or exhausted (unless `exhausted_as` says otherwise).
    CompletedWithErrors,
    /// Failed: the last attempt of a pull worker failed, or exhausted where `exhausted_as` is this.
    Failed,
    /// Cancelled by an operator or discarded by a handler.
    Cancelled,
}

impl End {
    /// All ends, in the order of their codes.
    pub const ALL: [Self; 4] = [Self::Completed, Self::CompletedWithErrors, Self::Failed, Self::Cancelled];

    /// Whether an entry with this end is a dead letter, which can be listed, redriven and discarded.
    #[must_use]
    pub const fn is_dead_letter(self) -> bool {
        matches!(self, Self::CompletedWithErrors | Self::Failed)
    }

    /// The number that databases store.
    #[must_use]
    pub const fn code(self) -> i16 {
        match self {
            Self::Completed => 0,
            Self::CompletedWithErrors => 1,
            Self::Failed => 2,
            Self::Cancelled => 3,
        }
    }

    /// The end with this stored number; `None` when there is none.
    #[must_use]
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.code() == code)
    }

    /// The name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "COMPLETED",
            Self::CompletedWithErrors => "COMPLETED_WITH_ERRORS",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The right to work on an entry until a moment of database time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The worker that holds it.
    pub worker: String,
    /// When another worker may claim the entry.
    pub until: Timestamp,
}

/// Where an entry is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Waits behind the head of its group.
    Parked,
    /// Can be claimed, from `due` on where it is set.
    Waiting {
        /// When it may be claimed; at once when `None`.
        due: Option<Timestamp>,
    },
    /// Held by a worker; the lease may have expired.
    Leased(Lease),
    /// Stepped aside after a failure: others of its group run, until it is promoted again from `due` on.
    Aside {
        /// When its retry is due.
        due: Timestamp,
    },
    /// Exhausted, but live: it keeps the place of its group's head until it is redriven, ended manually or expires.
    Kept(End),
    /// In the log.
    Ended(End),
}

/// The part of an entry that decides its next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The entry's number.
    pub id: EntryId,
    /// The entry's generation, from 1.
    pub generation: Generation,
    /// Attempts that count; released and snoozed ones do not.
    pub attempts: u32,
    /// Attempts after which it is exhausted.
    pub max_attempts: u32,
    /// How it ends when it is exhausted.
    pub exhausted_as: End,
    /// Whether it stays live when it is exhausted, and keeps others of its group from running.
    pub keeps_place: bool,
    /// From when on it is cancelled instead of claimed.
    pub expires: Option<Timestamp>,
    /// The token of its last claim; 0 before the first.
    pub token: LeaseToken,
    /// Where it is in its life.
    pub phase: Phase,
}

/// What can happen to an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// It becomes the head of its group, from behind the head or from aside.
    Promote {
        /// When it may be claimed; at once when `None`.
        due: Option<Timestamp>,
    },
    /// A worker claims it.
    Claim {
        /// The worker's name.
        worker: String,
        /// The length of the lease.
        lease: Duration,
    },
    /// It ends: by its holder, or by any caller that names no token.
    Finalize {
        /// The token of the holder; `None` ends it whether or not a worker holds it.
        token: Option<LeaseToken>,
        /// How it ends.
        end: End,
    },
    /// Its holder extends the lease.
    Extend {
        /// The token of the holder.
        token: LeaseToken,
        /// The length of the lease, from now.
        lease: Duration,
    },
    /// Its holder gives the lease back.
    Requeue {
        /// The token of the holder.
        token: LeaseToken,
        /// When it may be claimed again; at once when `None`.
        due: Option<Timestamp>,
        /// Whether the attempt counts: it does for a retry, not for a release or a snooze.
        counts: bool,
        /// Whether it steps aside until then, so that others of its group run; only with a moment.
        aside: bool,
    },
    /// Another entry of its group goes before it.
    Overtake,
    /// Its expiry has passed.
    Expire,
    /// It is cancelled.
    Cancel,
    /// A dead letter, or an exhausted entry that kept its place, starts over as a new generation. An expiry that has
    /// passed no longer applies.
    Redrive,
}

/// Why an input changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The token is not the one of the current lease.
    #[error("the lease is no longer held: another claim, a release or an end came first")]
    Fenced,
    /// It is parked, not due, held by a worker, or has ended.
    #[error("the entry cannot be claimed now")]
    NotEligible,
    /// It has ended.
    #[error("the entry has ended")]
    AlreadyEnded,
    /// A redrive of an entry that is neither a dead letter nor kept.
    #[error("the entry is not a dead letter")]
    NotADeadLetter,
    /// A promotion of an entry that is not parked, or aside and not due yet.
    #[error("the entry is not parked")]
    NotParked,
    /// An entry that was claimed before cannot be overtaken.
    #[error("the entry was started before")]
    Started,
    /// The entry has no expiry, it has not passed, or a worker holds the entry.
    #[error("the entry has not expired, or a worker holds it")]
    NotExpired,
}

/// Applies one input to an entry.
///
/// # Errors
/// A [`Refusal`]; the entry is then unchanged.
pub fn transition(entry: &Entry, input: &Input, now: Timestamp) -> Result<Entry, Refusal> {
    let mut next = entry.clone();
    match (input, &entry.phase) {
        (Input::Promote { due }, Phase::Parked) => next.phase = Phase::Waiting { due: *due },
        (Input::Promote { due }, Phase::Aside { due: from }) if *from <= now => {
            next.phase = Phase::Waiting { due: *due }
        }
        (Input::Promote { .. }, _) => return Err(Refusal::NotParked),

        (Input::Overtake, Phase::Waiting { .. }) if entry.token.0 == 0 => next.phase = Phase::Parked,
        (Input::Overtake, _) => return Err(Refusal::Started),

        (Input::Claim { worker, lease }, phase) => {
            if !is_eligible(phase, now) {
                return Err(Refusal::NotEligible);
            }
            next.token = LeaseToken(entry.token.0 + 1);
            next.phase = if has_expired(entry, now) {
                Phase::Ended(End::Cancelled)
            } else if entry.attempts >= entry.max_attempts {
                exhausted(entry, entry.exhausted_as)
            } else {
                next.attempts += 1;
                Phase::Leased(Lease { worker: worker.clone(), until: later(now, *lease) })
            };
        }

        (_, Phase::Ended(end)) => return from_end(next, *end, input, now),

        (Input::Expire, Phase::Leased(lease)) if lease.until > now => return Err(Refusal::NotExpired),
        (Input::Expire, _) if !has_expired(entry, now) => return Err(Refusal::NotExpired),
        // It is told as what it was: the expiry only frees its place.
        (Input::Expire, Phase::Kept(end)) => next.phase = Phase::Ended(*end),
        (Input::Expire, _) => next.phase = Phase::Ended(End::Cancelled),

        // A repeat of the report that exhausted it.
        (Input::Finalize { token: Some(token), .. }, Phase::Kept(_)) if *token == entry.token => {
            return Err(Refusal::AlreadyEnded);
        }
        (Input::Finalize { token: Some(token), end }, phase) => {
            if !holds(entry, phase, *token) {
                return Err(Refusal::Fenced);
            }
            next.phase = if end.is_dead_letter() { exhausted(entry, *end) } else { Phase::Ended(*end) };
        }
        (Input::Finalize { token: None, end }, _) => next.phase = Phase::Ended(*end),
        (Input::Extend { token, lease }, Phase::Leased(held)) if entry.token == *token => {
            next.phase = Phase::Leased(Lease { worker: held.worker.clone(), until: later(now, *lease) });
        }
        (Input::Requeue { token, due, counts, aside }, Phase::Leased(_)) if entry.token == *token => {
            // A past moment means now.
            next.phase = match due.map(|due| due.max(now)) {
                Some(due) if *aside => Phase::Aside { due },
                due => Phase::Waiting { due },
            };
            if !counts {
                next.attempts -= 1;
            }
        }
        (Input::Extend { .. } | Input::Requeue { .. }, _) => return Err(Refusal::Fenced),
        (Input::Cancel, _) => next.phase = Phase::Ended(End::Cancelled),
        (Input::Redrive, Phase::Kept(_)) => next = started_over(next, now),
        (Input::Redrive, _) => return Err(Refusal::NotADeadLetter),
    }
    if let Phase::Kept(end) = next.phase {
        next.exhausted_as = end;
    }
    check_step(entry, &next);
    Ok(next)
}

/// Whether a claim may take an entry in this phase at `now`.
#[must_use]
pub fn is_eligible(phase: &Phase, now: Timestamp) -> bool {
    match phase {
        Phase::Waiting { due } => due.is_none_or(|due| due <= now),
        Phase::Leased(lease) => lease.until <= now,
        Phase::Parked | Phase::Aside { .. } | Phase::Kept(_) | Phase::Ended(_) => false,
    }
}

/// Whether the expiry of an entry has passed.
#[must_use]
pub fn has_expired(entry: &Entry, now: Timestamp) -> bool {
    entry.expires.is_some_and(|expires| expires <= now)
}

/// What becomes of an entry that its last attempt, or its holder, ends as a dead letter.
fn exhausted(entry: &Entry, end: End) -> Phase {
    if entry.keeps_place { Phase::Kept(end) } else { Phase::Ended(end) }
}

/// The next generation of an entry.
fn started_over(mut entry: Entry, now: Timestamp) -> Entry {
    entry.generation += 1;
    entry.attempts = 0;
    entry.expires = entry.expires.filter(|expires| *expires > now);
    entry.phase = Phase::Waiting { due: None };
    entry
}

fn holds(entry: &Entry, phase: &Phase, token: LeaseToken) -> bool {
    matches!(phase, Phase::Leased(_)) && entry.token == token
}

/// Inputs to an entry that has ended: only a redrive of a dead letter changes it. A repeated finalize under the last
/// token is told that the entry has ended, one under an older token that it is fenced.
fn from_end(next: Entry, end: End, input: &Input, now: Timestamp) -> Result<Entry, Refusal> {
    match input {
        Input::Redrive if end.is_dead_letter() => Ok(started_over(next, now)),
        Input::Redrive => Err(Refusal::NotADeadLetter),
        Input::Finalize { token: Some(token), .. } if *token != next.token => Err(Refusal::Fenced),
        Input::Extend { .. } | Input::Requeue { .. } => Err(Refusal::Fenced),
        _ => Err(Refusal::AlreadyEnded),
    }
}

/// `now + duration`, or the last moment that can be represented.
#[must_use]
pub fn later(now: Timestamp, duration: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(duration)
        .ok()
        .and_then(|duration| now.checked_add(duration).ok())
        .unwrap_or(Timestamp::MAX)
}

/// The invariants of every step.
fn check_step(before: &Entry, after: &Entry) {
    assert!(after.token >= before.token, "a token fell: {before:?} -> {after:?}");
    assert!(after.generation >= before.generation, "a generation fell: {before:?} -> {after:?}");
    assert!(after.attempts <= after.max_attempts, "too many attempts: {before:?} -> {after:?}");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn fresh(max_attempts: u32) -> Entry {
        Entry {
            id: EntryId::new(1).unwrap(),
            generation: 1,
            attempts: 0,
            max_attempts,
            exhausted_as: End::CompletedWithErrors,
            keeps_place: false,
            expires: None,
            token: LeaseToken(0),
            phase: Phase::Waiting { due: None },
        }
    }

    fn claim() -> Input {
        Input::Claim { worker: "w".into(), lease: Duration::from_secs(60) }
    }

    fn step(entry: &Entry, input: Input, second: i64) -> Entry {
        transition(entry, &input, at(second)).unwrap()
    }

    #[test]
    fn claim_finalize() {
        let leased = step(&fresh(3), claim(), 0);
        assert_eq!((leased.attempts, leased.token), (1, LeaseToken(1)));
        let ended = step(&leased, Input::Finalize { token: Some(leased.token), end: End::Completed }, 1);
        assert_eq!(ended.phase, Phase::Ended(End::Completed));
        let repeat = Input::Finalize { token: Some(leased.token), end: End::Completed };
        assert_eq!(transition(&ended, &repeat, at(2)), Err(Refusal::AlreadyEnded));
    }

    #[test]
    fn a_zombie_is_fenced_though_the_state_looks_the_same() {
        let first = step(&fresh(3), claim(), 0);
        assert_eq!(transition(&first, &claim(), at(59)), Err(Refusal::NotEligible));
        let second = step(&first, claim(), 60);
        for input in [
            Input::Finalize { token: Some(first.token), end: End::Completed },
            Input::Extend { token: first.token, lease: Duration::from_secs(1) },
            Input::Requeue { token: first.token, due: None, counts: false, aside: false },
        ] {
            assert_eq!(transition(&second, &input, at(61)), Err(Refusal::Fenced), "{input:?}");
        }
        let ended = step(&second, Input::Finalize { token: Some(second.token), end: End::Completed }, 62);
        let late = Input::Finalize { token: Some(first.token), end: End::Completed };
        assert_eq!(transition(&ended, &late, at(63)), Err(Refusal::Fenced));
    }

    #[test]
    fn an_expired_but_untaken_lease_still_finishes() {
        let leased = step(&fresh(3), claim(), 0);
        let ended = step(&leased, Input::Finalize { token: Some(leased.token), end: End::Completed }, 1000);
        assert_eq!(ended.phase, Phase::Ended(End::Completed));
    }

    #[test]
    fn a_released_lease_cannot_finish() {
        let leased = step(&fresh(3), claim(), 0);
        let released = step(&leased, Input::Requeue { token: leased.token, due: None, counts: false, aside: false }, 1);
        assert_eq!(released.attempts, 0);
        let late = Input::Finalize { token: Some(leased.token), end: End::Completed };
        assert_eq!(transition(&released, &late, at(2)), Err(Refusal::Fenced));
    }

    #[test]
    fn an_event_that_kills_its_worker_each_time_ends() {
        let mut entry = fresh(3);
        for second in 0..3 {
            entry = step(&entry, claim(), second * 100);
        }
        assert_eq!(entry.attempts, 3);
        entry = step(&entry, claim(), 300);
        assert_eq!(entry.phase, Phase::Ended(End::CompletedWithErrors));
        assert_eq!(entry.attempts, 3);
    }

    #[test]
    fn redrive_starts_a_generation_and_keeps_the_token() {
        let leased = step(&fresh(1), claim(), 0);
        let dead = step(&leased, Input::Finalize { token: Some(leased.token), end: End::Failed }, 1);
        let again = step(&dead, Input::Redrive, 2);
        assert_eq!((again.generation, again.attempts, again.token), (2, 0, leased.token));
        let late = Input::Finalize { token: Some(leased.token), end: End::Completed };
        assert_eq!(transition(&again, &late, at(3)), Err(Refusal::Fenced));
        let done = step(&again, Input::Finalize { token: None, end: End::Completed }, 4);
        assert_eq!(transition(&done, &Input::Redrive, at(5)), Err(Refusal::NotADeadLetter));
    }

    #[test]
    fn ends_have_stable_codes_and_names() {
        for end in End::ALL {
            assert_eq!(End::from_code(end.code()), Some(end));
            assert_eq!(serde_json::to_string(&end).unwrap(), format!("\"{end}\""));
        }
        assert_eq!(End::from_code(9), None);
    }

    #[test]
    fn its_holder_extends_a_lease() {
        let leased = step(&fresh(3), claim(), 0);
        let extended = step(&leased, Input::Extend { token: leased.token, lease: Duration::from_secs(60) }, 50);
        assert_eq!(extended.phase, Phase::Leased(Lease { worker: "w".into(), until: at(110) }));
        assert_eq!((extended.attempts, extended.token), (leased.attempts, leased.token));
        assert_eq!(transition(&extended, &claim(), at(109)), Err(Refusal::NotEligible));
    }

    #[test]
    fn a_retry_counts_and_waits_for_its_moment() {
        let leased = step(&fresh(3), claim(), 0);
        let retry = Input::Requeue { token: leased.token, due: Some(at(30)), counts: true, aside: false };
        let waiting = step(&leased, retry.clone(), 10);
        assert_eq!((waiting.attempts, &waiting.phase), (1, &Phase::Waiting { due: Some(at(30)) }));
        assert_eq!(transition(&waiting, &claim(), at(29)), Err(Refusal::NotEligible));
        assert_eq!(step(&waiting, claim(), 30).attempts, 2);
        assert_eq!(step(&leased, retry, 40).phase, Phase::Waiting { due: Some(at(40)) }, "a past moment is now");
    }

    #[test]
    fn a_retry_aside_is_promoted_when_it_is_due() {
        let leased = step(&fresh(3), claim(), 0);
        let aside = Input::Requeue { token: leased.token, due: Some(at(30)), counts: true, aside: true };
        let aside = step(&leased, aside, 10);
        assert_eq!((aside.attempts, &aside.phase), (1, &Phase::Aside { due: at(30) }));
        assert_eq!(transition(&aside, &claim(), at(99)), Err(Refusal::NotEligible));
        let promote = Input::Promote { due: Some(at(30)) };
        assert_eq!(transition(&aside, &promote, at(29)), Err(Refusal::NotParked));
        assert_eq!(step(&step(&aside, promote, 30), claim(), 30).attempts, 2);
    }

    #[test]
    fn only_an_entry_that_was_never_claimed_is_overtaken() {
        let parked = step(&fresh(3), Input::Overtake, 0);
        assert_eq!(parked.phase, Phase::Parked);
        let leased = step(&fresh(3), claim(), 0);
        assert_eq!(transition(&leased, &Input::Overtake, at(1)), Err(Refusal::Started));
        let released = Input::Requeue { token: leased.token, due: None, counts: false, aside: false };
        assert_eq!(transition(&step(&leased, released, 1), &Input::Overtake, at(1)), Err(Refusal::Started));
    }

    #[test]
    fn an_exhausted_entry_may_keep_its_place() {
        let entry = Entry { keeps_place: true, ..fresh(1) };
        let leased = step(&entry, claim(), 0);
        let failed = Input::Finalize { token: Some(leased.token), end: End::Failed };
        let kept = step(&leased, failed.clone(), 1);
        assert_eq!(kept.phase, Phase::Kept(End::Failed));
        assert_eq!(transition(&kept, &failed, at(2)), Err(Refusal::AlreadyEnded), "a repeat is told so");
        let stale = Input::Finalize { token: Some(LeaseToken(0)), end: End::Failed };
        assert_eq!(transition(&kept, &stale, at(2)), Err(Refusal::Fenced));
        assert_eq!(transition(&kept, &claim(), at(9_999)), Err(Refusal::NotEligible));
        let again = step(&kept, Input::Redrive, 3);
        assert_eq!((again.generation, again.attempts, &again.phase), (2, 0, &Phase::Waiting { due: None }));
        assert_eq!(step(&kept, Input::Cancel, 3).phase, Phase::Ended(End::Cancelled));
        // A worker that died with the last attempt leaves it kept as well.
        assert_eq!(step(&leased, claim(), 60).phase, Phase::Kept(End::CompletedWithErrors));
        let done = Input::Finalize { token: Some(leased.token), end: End::Completed };
        assert_eq!(step(&leased, done, 1).phase, Phase::Ended(End::Completed));
    }

    #[test]
    fn an_entry_past_its_expiry_is_cancelled_unless_a_worker_holds_it() {
        let entry = Entry { expires: Some(at(100)), keeps_place: true, ..fresh(1) };
        assert_eq!(transition(&entry, &Input::Expire, at(99)), Err(Refusal::NotExpired));
        assert_eq!(step(&entry, Input::Expire, 100).phase, Phase::Ended(End::Cancelled));
        assert_eq!(step(&entry, claim(), 100).phase, Phase::Ended(End::Cancelled));
        let leased = step(&entry, claim(), 90);
        assert_eq!(transition(&leased, &Input::Expire, at(149)), Err(Refusal::NotExpired));
        assert_eq!(step(&leased, Input::Expire, 150).phase, Phase::Ended(End::Cancelled));
        let kept = step(&leased, Input::Finalize { token: Some(leased.token), end: End::Failed }, 120);
        let ended = step(&kept, Input::Expire, 120);
        assert_eq!(ended.phase, Phase::Ended(End::Failed));
        let again = step(&ended, Input::Redrive, 200);
        assert_eq!(again.expires, None, "a redrive is not expired at once");
    }

    #[test]
    fn what_has_ended_has_no_lease() {
        let leased = step(&fresh(3), claim(), 0);
        let token = leased.token;
        let ended = step(&leased, Input::Finalize { token: Some(token), end: End::Completed }, 1);
        let refusals = [
            (Input::Extend { token, lease: Duration::from_secs(1) }, Refusal::Fenced),
            (Input::Requeue { token, due: None, counts: false, aside: false }, Refusal::Fenced),
            (Input::Finalize { token: None, end: End::Failed }, Refusal::AlreadyEnded),
            (Input::Cancel, Refusal::AlreadyEnded),
            (Input::Redrive, Refusal::NotADeadLetter),
            (claim(), Refusal::NotEligible),
            (Input::Promote { due: None }, Refusal::NotParked),
        ];
        for (input, refusal) in refusals {
            assert_eq!(transition(&ended, &input, at(2)), Err(refusal), "{input:?}");
        }
    }

    #[test]
    #[should_panic(expected = "too many attempts")]
    fn an_entry_with_more_attempts_than_it_may_have_is_not_moved_on() {
        let damaged = Entry { attempts: 4, phase: Phase::Parked, ..fresh(3) };
        let _ = transition(&damaged, &Input::Promote { due: None }, at(0));
    }

    #[test]
    fn a_lease_beyond_the_end_of_time_lasts_until_then() {
        assert_eq!(later(at(0), Duration::from_secs(7)), at(7));
        assert_eq!(later(at(0), Duration::MAX), Timestamp::MAX);
        assert_eq!(later(Timestamp::MAX, Duration::from_secs(1)), Timestamp::MAX);
    }

    fn any_input() -> impl Strategy<Value = Input> {
        let token = (0_i64..6).prop_map(LeaseToken);
        let due = proptest::option::of((0_i64..400).prop_map(at));
        let end = proptest::sample::select(End::ALL.to_vec());
        prop_oneof![
            4 => Just(claim()),
            1 => due.clone().prop_map(|due| Input::Promote { due }),
            2 => (proptest::option::of(token.clone()), end).prop_map(|(token, end)| Input::Finalize { token, end }),
            1 => token.clone().prop_map(|token| Input::Extend { token, lease: Duration::from_secs(60) }),
            2 => (token, due, any::<bool>(), any::<bool>())
                .prop_map(|(token, due, counts, aside)| Input::Requeue { token, due, counts, aside }),
            1 => Just(Input::Overtake),
            1 => Just(Input::Expire),
            1 => Just(Input::Cancel),
            1 => Just(Input::Redrive),
        ]
    }

    proptest! {
        /// Over any history: tokens only rise, each claim raises them, a generation ends once, releases use up no
        /// attempt.
        #[test]
        fn every_history_keeps_the_invariants(
            inputs in proptest::collection::vec((any_input(), 0_i64..50), 0..60),
            max_attempts in 1_u32..5,
            parked: bool,
            keeps_place: bool,
            expires in proptest::option::of((0_i64..3_000).prop_map(at)),
        ) {
            let mut entry = Entry { keeps_place, expires, ..fresh(max_attempts) };
            if parked {
                entry.phase = Phase::Parked;
            }
            let mut now = 0;
            let mut ended_generations = std::collections::HashSet::new();
            for (input, pause) in inputs {
                now += pause;
                let Ok(next) = transition(&entry, &input, at(now)) else { continue };
                prop_assert!(next.token >= entry.token);
                if matches!(input, Input::Claim { .. }) {
                    prop_assert_eq!(next.token.0, entry.token.0 + 1);
                    prop_assert!(is_eligible(&entry.phase, at(now)));
                }
                if matches!(next.phase, Phase::Ended(_)) && !matches!(entry.phase, Phase::Ended(_)) {
                    prop_assert!(ended_generations.insert(next.generation), "a generation ended twice");
                }
                if let Input::Requeue { counts: false, .. } = input {
                    prop_assert_eq!(next.attempts, entry.attempts - 1);
                }
                if matches!(next.phase, Phase::Leased(_)) && matches!(input, Input::Claim { .. }) {
                    prop_assert!(!has_expired(&next, at(now)), "an expired entry was given out");
                }
                prop_assert!(keeps_place || !matches!(next.phase, Phase::Kept(_)));
                prop_assert!(next.attempts <= max_attempts);
                entry = next;
            }
        }

        /// However often an entry is claimed and released, for instance by deployments, it is not exhausted.
        #[test]
        fn releases_never_exhaust(rounds in 1_usize..200) {
            let mut entry = fresh(1);
            for _ in 0..rounds {
                entry = step(&entry, claim(), 0);
                entry = step(&entry, Input::Requeue { token: entry.token, due: None, counts: false, aside: false }, 0);
            }
            prop_assert_eq!(entry.attempts, 0);
            prop_assert_eq!(entry.token.0, rounds as i64);
        }
    }
}
