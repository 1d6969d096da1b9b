//! Holds recorded histories and the final database state against the invariants. Pure: no IO, no clock.
//!
//! What may have happened is never counted as done, nor as not done. Times of leases and ends are database time; the
//! moment at which an operation began is this machine's time, which the databases under test share, so it bounds from
//! below when its effect can have taken place.

mod ends;
pub(crate) mod failover;
mod groups;
pub(crate) mod handlers;
pub(crate) mod http;
mod leases;
mod publishes;
pub(crate) mod replaces;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::history::{Answer, Claim, Intent, Op, Outcome};
use crate::state::State;

/// Databases may round their clock down to milliseconds.
const CLOCK_STEP: i64 = 1_000;
/// As many violations of one kind are shown; the rest is counted.
const SHOWN: usize = 5;

/// What must hold over every history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Invariant {
    /// Everything acknowledged as published is there.
    AcknowledgedIsThere,
    /// Nothing is there more often than its publishes may have happened, nor what nobody published.
    NothingTwice,
    /// What was answered as not done, to be tried again, is not there.
    DeniedIsNotThere,
    /// Nothing that these workloads ask for is wrong, so nothing is refused.
    NothingRefused,
    /// Every fact has one entry and every entry its fact.
    OneEntryPerFact,
    /// Leases of one entry never overlap in database time.
    LeasesApart,
    /// Tokens only rise, and each claim has its own.
    TokensRise,
    /// Later tokens were given out later.
    TokensInTime,
    /// Attempts count what was neither released nor handed back by a shutdown, and nothing else.
    AttemptsFair,
    /// A generation ends at most once.
    OneEnd,
    /// An acknowledged end is in the log; a log row has somebody who ended it.
    EndsAreTrue,
    /// `Fenced` is said when, and only when, the lease is gone.
    FencingTrue,
    /// created = waiting + leased + ended in every snapshot.
    Census,
    /// One of a group in flight at any moment.
    GroupAlone,
    /// First completions of a group keep its order.
    GroupOrder,
    /// Once faults stop, everything is worked off.
    Drained,
    /// A handler that had succeeded durably does not run again.
    SuccessStays,
    /// What was written in the transaction that ended an event is there once.
    EffectsOnce,
    /// The log says of every handler what it answered.
    ResultsTrue,
}

impl Invariant {
    /// Whether it compares moments.
    fn is_about_time(self) -> bool {
        matches!(self, Self::LeasesApart | Self::TokensInTime | Self::GroupAlone | Self::GroupOrder)
    }
}

/// One thing that did not hold.
#[derive(Debug, Clone)]
pub(crate) struct Violation {
    pub(crate) invariant: Invariant,
    pub(crate) detail: String,
}

/// What the checker found, and how much there was to find it in.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) violations: Vec<Violation>,
    pub(crate) counts: Counts,
}

/// How much a history exercised.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) acknowledged: usize,
    pub(crate) unknown: usize,
    pub(crate) unknown_present: usize,
    pub(crate) claims: usize,
    pub(crate) retaken: usize,
    pub(crate) ended: usize,
    pub(crate) fenced: usize,
    pub(crate) repeated: usize,
    pub(crate) censuses: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, unknown, unknown_present, claims, retaken, ended, fenced, repeated, censuses } = self;
        write!(
            f,
            "{acknowledged} published ({unknown} unknown, {unknown_present} of them there), {claims} claims \
             ({retaken} retaken), {ended} ended, {fenced} fenced, {repeated} repeated, {censuses} snapshots"
        )
    }
}

impl Report {
    pub(crate) fn violate(&mut self, invariant: Invariant, detail: String) {
        self.violations.push(Violation { invariant, detail });
    }

    /// The violations in words, a few of each kind.
    pub(crate) fn explain(&self) -> String {
        let mut kinds: BTreeMap<Invariant, Vec<&str>> = BTreeMap::new();
        for violation in &self.violations {
            kinds.entry(violation.invariant).or_default().push(&violation.detail);
        }
        let mut text = String::new();
        for (invariant, details) in kinds {
            text.push_str(&format!("{invariant:?}: {} times\n", details.len()));
            for detail in details.iter().take(SHOWN) {
                text.push_str(&format!("  {detail}\n"));
            }
        }
        text
    }
}

/// What else is expected of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rules {
    /// Everything must have been worked off at the end.
    pub(crate) drained: bool,
    /// The clocks were set back and forward: what holds only by their moments is not looked at.
    pub(crate) timeless: bool,
}

/// Checks everything.
pub(crate) fn check(history: &[Op], state: &State, rules: Rules) -> Report {
    let mut report = Report::default();
    let entries = Entries::index(history, &mut report);
    publishes::check(history, state, &mut report);
    leases::check(&entries, state, &mut report);
    ends::check(&entries, state, &mut report);
    groups::check(history, &entries, state, &mut report);
    check_census(history, &mut report);
    check_refused(history, &mut report);
    if rules.drained {
        check_drained(state, &mut report);
    }
    if rules.timeless {
        report.violations.retain(|violation| !violation.invariant.is_about_time());
    }
    report.counts.ended = state.log.len();
    report
}

fn check_drained(state: &State, report: &mut Report) {
    for row in &state.live {
        report.violate(Invariant::Drained, format!("entry {} ({}) is still live: {row:?}", row.id, row.key));
    }
}

fn check_census(history: &[Op], report: &mut Report) {
    for op in history {
        if let Some(Outcome::Counted { events, waiting, leased, ended }) = op.outcome {
            report.counts.censuses += 1;
            if events != waiting + leased + ended {
                let detail = format!("{}: {events} events, but {waiting} + {leased} + {ended}", op.process);
                report.violate(Invariant::Census, detail);
            }
        }
    }
}

fn check_refused(history: &[Op], report: &mut Report) {
    for op in history {
        let error = match &op.outcome {
            Some(Outcome::Refused { error }) => Some(error),
            Some(Outcome::Published { answers }) => answers.iter().find_map(|answer| match answer {
                Answer::Refused { error } => Some(error),
                _ => None,
            }),
            _ => None,
        };
        if let Some(error) = error {
            report.violate(Invariant::NothingRefused, format!("{}: {error} to {:?}", op.process, op.intent));
        }
    }
}

/// How sure the history is that an operation took place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Done,
    Maybe,
    Not,
}

/// Everything that was done under one lease.
#[derive(Debug)]
struct Tenure<'a> {
    claim: &'a Claim,
    process: &'a str,
    asked: i64,
    answered: i64,
    extensions: Vec<Extension>,
    requeues: Vec<Requeued>,
    ends: Vec<Ending>,
}

#[derive(Debug)]
struct Extension {
    begun: i64,
    lease: i64,
    until: Option<i64>,
}

#[derive(Debug)]
struct Requeued {
    begun: i64,
    counts: bool,
    verdict: Verdict,
}

#[derive(Debug)]
struct Ending {
    begun: i64,
    end: i16,
    verdict: Verdict,
    fenced: bool,
    repeated: bool,
}

impl Tenure<'_> {
    /// The earliest moment at which this lease may have ended.
    fn earliest_end(&self) -> i64 {
        let mut end = self.claim.lease_until;
        for extension in &self.extensions {
            end = extension.until.unwrap_or_else(|| end.min(extension.begun + extension.lease));
        }
        let given_back = self.requeues.iter().filter(|requeue| requeue.verdict != Verdict::Not).map(|r| r.begun);
        let ended = self.ends.iter().filter(|ending| ending.verdict != Verdict::Not).map(|e| e.begun);
        given_back.chain(ended).fold(end, i64::min).max(self.claim.claimed_at)
    }

    /// Whether the holder gave it back without counting the attempt: surely, maybe, or not. A verdict that did not come
    /// through may be followed by a release in the background.
    fn released(&self) -> Verdict {
        let in_doubt =
            self.requeues.iter().map(|requeue| requeue.verdict).chain(self.ends.iter().map(|end| end.verdict));
        if self.requeues.iter().any(|requeue| !requeue.counts && requeue.verdict == Verdict::Done) {
            Verdict::Done
        } else if in_doubt.into_iter().any(|verdict| verdict == Verdict::Maybe) {
            Verdict::Maybe
        } else {
            Verdict::Not
        }
    }
}

/// All leases by entry and token.
#[derive(Debug, Default)]
struct Entries<'a> {
    by_id: HashMap<i64, BTreeMap<i64, Tenure<'a>>>,
}

impl<'a> Entries<'a> {
    fn index(history: &'a [Op], report: &mut Report) -> Self {
        let mut entries = Self::default();
        for op in history {
            entries.add_claims(op, report);
        }
        for op in history {
            entries.add_action(op, report);
        }
        for tenure in entries.by_id.values_mut().flat_map(BTreeMap::values_mut) {
            tenure.extensions.sort_by_key(|extension| extension.begun);
        }
        entries
    }

    fn add_claims(&mut self, op: &'a Op, report: &mut Report) {
        let Some(Outcome::Claimed { claims }) = &op.outcome else { return };
        for claim in claims {
            report.counts.claims += 1;
            let tenure = Tenure {
                claim,
                process: &op.process,
                asked: op.begun,
                answered: op.answered.unwrap_or(op.begun),
                extensions: Vec::new(),
                requeues: Vec::new(),
                ends: Vec::new(),
            };
            if let Some(other) = self.by_id.entry(claim.id).or_default().insert(claim.token, tenure) {
                let detail =
                    format!("entry {}: token {} went to {} and {}", claim.id, claim.token, other.process, op.process);
                report.violate(Invariant::TokensRise, detail);
            }
        }
    }

    fn add_action(&mut self, op: &'a Op, report: &mut Report) {
        let (id, token) = match op.intent {
            Intent::Finalize { id, token, .. }
            | Intent::Extend { id, token, .. }
            | Intent::Requeue { id, token, .. } => (id, token),
            Intent::Publish { .. } | Intent::Claim { .. } | Intent::Handle { .. } | Intent::Census => return,
        };
        let fenced = matches!(op.outcome, Some(Outcome::Fenced));
        report.counts.fenced += usize::from(fenced);
        let Some(tenure) = self.by_id.get_mut(&id).and_then(|tenures| tenures.get_mut(&token)) else {
            let detail = format!("{} acts on entry {id} under token {token}, which no claim answered", op.process);
            return report.violate(Invariant::TokensRise, detail);
        };
        let verdict = match &op.outcome {
            None | Some(Outcome::Unknown { .. } | Outcome::Denied { .. }) => Verdict::Maybe,
            Some(Outcome::Fenced | Outcome::Refused { .. }) => Verdict::Not,
            Some(_) => Verdict::Done,
        };
        match (&op.intent, &op.outcome) {
            (Intent::Extend { .. }, _) if verdict == Verdict::Not => {}
            (Intent::Extend { lease, .. }, outcome) => {
                let until = match outcome {
                    Some(Outcome::Extended { until }) => Some(*until),
                    _ => None,
                };
                tenure.extensions.push(Extension { begun: op.begun, lease: *lease, until });
            }
            (Intent::Requeue { counts, .. }, _) => {
                tenure.requeues.push(Requeued { begun: op.begun, counts: *counts, verdict });
            }
            (Intent::Finalize { end, .. }, outcome) => {
                let repeated = matches!(outcome, Some(Outcome::Finalized { repeated: true, .. }));
                report.counts.repeated += usize::from(repeated);
                tenure.ends.push(Ending { begun: op.begun, end: *end, verdict, fenced, repeated });
            }
            _ => {}
        }
    }
}
