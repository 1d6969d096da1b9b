//! Checks recorded histories and the final database state against the invariants. Pure: no IO, no clock.
//!
//! What may have happened is never counted as done, nor as not done. Times of leases and ends are database time. The
//! start of an operation is this machine's time, which is also the clock of the databases under test: an operation
//! cannot have taken effect before it.

pub(crate) mod deliver;
mod ends;
pub(crate) mod failover;
mod groups;
pub(crate) mod handlers;
pub(crate) mod http;
pub(crate) mod ingest;
mod leases;
mod publishes;
pub(crate) mod replaces;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::history::{Answer, Claim, Intent, Op, OpOutcome};
use crate::state::State;

/// Tolerance in microseconds: databases may round their clock down to milliseconds.
const CLOCK_STEP: i64 = 1_000;
/// How many violations of one kind are shown; the others are only counted.
const SHOWN: usize = 5;

/// What must hold for every history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Invariant {
    /// Everything acknowledged as published is in the database.
    AcknowledgedIsThere,
    /// No event is stored more often than its publishes may have happened, and none that was never published.
    NothingTwice,
    /// A publish that was answered with busy or unavailable did not happen.
    DeniedIsNotThere,
    /// The workloads only make valid requests, so none is refused.
    NothingRefused,
    /// An ingested fact is there with all its entries, jobs, keys and terms, or nothing of it is.
    AllOrNone,
    /// All answers to one event are the same, whoever gave them and however often it was sent.
    OneAnswer,
    /// Every fact has exactly one entry, and every entry a fact.
    OneEntryPerFact,
    /// Leases of one entry never overlap in database time.
    LeasesApart,
    /// Lease tokens only rise, and each claim has its own.
    TokensRise,
    /// Higher tokens were handed out later.
    TokensInTime,
    /// Exactly those claims count as attempts that were not released, snoozed or given back by a shutdown.
    AttemptsFair,
    /// A generation ends at most once.
    OneEnd,
    /// An acknowledged end is in the log, and for every log row there is an operation that may have written it.
    EndsAreTrue,
    /// An operation is answered with `Fenced` if and only if the lease is lost.
    FencingTrue,
    /// In every snapshot, events = waiting + leased + ended.
    Census,
    /// At most one entry of a group is leased at any moment.
    GroupAlone,
    /// Entries of a group run in the order in which they were published.
    GroupOrder,
    /// Once faults stop, every entry ends.
    Drained,
    /// A handler whose success was recorded does not run again.
    SuccessStays,
    /// What was written in the transaction that ended an event is stored exactly once.
    EffectsOnce,
    /// The results in the log are what the handlers answered.
    ResultsTrue,
    /// A pool has no more requests at once than its limit, and starts no more a minute than its rate.
    PoolLimits,
    /// What is recorded of attempts is what the receiver saw, but for those that a crash hit.
    AttemptsTrue,
    /// A webhook is delivered more than once only where a crash fell between a delivery and its record.
    DeliveredOnce,
    /// Every attempt carries the id of its job, and is signed.
    Signed,
    /// A job that expired is not delivered.
    ExpiredStays,
    /// No secret is in a log or a history.
    SecretsKept,
}

impl Invariant {
    /// Whether it compares times, so that it does not hold while clocks are set.
    fn is_about_time(self) -> bool {
        matches!(self, Self::LeasesApart | Self::TokensInTime | Self::GroupAlone | Self::GroupOrder)
    }
}

/// One violation of an invariant.
#[derive(Debug, Clone)]
pub(crate) struct Violation {
    pub(crate) invariant: Invariant,
    pub(crate) detail: String,
}

/// The violations that were found, and how much the history exercised.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) violations: Vec<Violation>,
    pub(crate) counts: Counts,
}

/// How much a history exercised, for the summary.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) acknowledged: usize,
    /// Keys without an acknowledged publish, but with one that may have happened.
    pub(crate) unknown: usize,
    /// Those of them that are in the database.
    pub(crate) unknown_present: usize,
    pub(crate) claims: usize,
    /// Claims of entries that had been claimed before.
    pub(crate) retaken: usize,
    pub(crate) ended: usize,
    pub(crate) fenced: usize,
    /// Ends that were answered as repeats.
    pub(crate) repeated: usize,
    pub(crate) censuses: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, unknown, unknown_present, claims, retaken, ended, fenced, repeated, censuses } = self;
        write!(
            f,
            "{acknowledged} published ({unknown} unknown, {unknown_present} of them stored), {claims} claims \
             ({retaken} retaken), {ended} ended, {fenced} fenced, {repeated} repeated, {censuses} snapshots"
        )
    }
}

impl Report {
    pub(crate) fn violate(&mut self, invariant: Invariant, detail: String) {
        self.violations.push(Violation { invariant, detail });
    }

    /// The violations as text, at most `SHOWN` of each kind.
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

/// What is expected of a run besides the invariants that always hold.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rules {
    /// No entry may be live at the end.
    pub(crate) drained: bool,
    /// Clocks were set back and forward: invariants that compare times are not checked.
    pub(crate) timeless: bool,
}

/// Checks all invariants of histories without handlers.
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
        if let Some(OpOutcome::Counted { events, waiting, leased, ended }) = op.outcome {
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
            Some(OpOutcome::Refused { error }) => Some(error),
            Some(OpOutcome::Published { answers }) => answers.iter().find_map(|answer| match answer {
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

/// Whether an operation took place, as far as the history tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Happened {
    Yes,
    Maybe,
    No,
}

/// One lease and all operations under it. Times are microseconds.
#[derive(Debug)]
struct Tenure<'a> {
    claim: &'a Claim,
    process: &'a str,
    /// When the claim was sent and answered, by this machine's clock.
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
    /// The new end of the lease; `None` when the extension only may have happened.
    until: Option<i64>,
}

#[derive(Debug)]
struct Requeued {
    begun: i64,
    counts: bool,
    happened: Happened,
}

#[derive(Debug)]
struct Ending {
    begun: i64,
    end: i16,
    happened: Happened,
    fenced: bool,
    repeated: bool,
}

impl Tenure<'_> {
    /// When the lease runs out if nobody gives it back.
    fn runs_out(&self) -> i64 {
        let mut end = self.claim.lease_until;
        for extension in &self.extensions {
            end = extension.until.unwrap_or_else(|| end.min(extension.begun + extension.lease));
        }
        end
    }

    /// The earliest moment at which this lease may have ended.
    fn earliest_end(&self) -> i64 {
        let given_back = self.requeues.iter().filter(|requeue| requeue.happened != Happened::No).map(|r| r.begun);
        let ended = self.ends.iter().filter(|ending| ending.happened != Happened::No).map(|e| e.begun);
        given_back.chain(ended).fold(self.runs_out(), i64::min).max(self.claim.claimed_at)
    }

    /// Whether the holder gave the lease back without counting the attempt. When the answer to an end or a requeue was
    /// lost, the library may release the lease in the background.
    fn released(&self) -> Happened {
        let in_doubt =
            self.requeues.iter().map(|requeue| requeue.happened).chain(self.ends.iter().map(|end| end.happened));
        if self.requeues.iter().any(|requeue| !requeue.counts && requeue.happened == Happened::Yes) {
            Happened::Yes
        } else if in_doubt.into_iter().any(|happened| happened == Happened::Maybe) {
            Happened::Maybe
        } else {
            Happened::No
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
        let Some(OpOutcome::Claimed { claims }) = &op.outcome else { return };
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
        let fenced = matches!(op.outcome, Some(OpOutcome::Fenced));
        report.counts.fenced += usize::from(fenced);
        let Some(tenure) = self.by_id.get_mut(&id).and_then(|tenures| tenures.get_mut(&token)) else {
            let detail = format!("{} acted on entry {id} under token {token}, which no claim returned", op.process);
            return report.violate(Invariant::TokensRise, detail);
        };
        let happened = match &op.outcome {
            None | Some(OpOutcome::Unknown { .. } | OpOutcome::Denied { .. }) => Happened::Maybe,
            Some(OpOutcome::Fenced | OpOutcome::Refused { .. }) => Happened::No,
            Some(_) => Happened::Yes,
        };
        match (&op.intent, &op.outcome) {
            (Intent::Extend { .. }, _) if happened == Happened::No => {}
            (Intent::Extend { lease, .. }, outcome) => {
                let until = match outcome {
                    Some(OpOutcome::Extended { until }) => Some(*until),
                    _ => None,
                };
                tenure.extensions.push(Extension { begun: op.begun, lease: *lease, until });
            }
            (Intent::Requeue { counts, .. }, _) => {
                tenure.requeues.push(Requeued { begun: op.begun, counts: *counts, happened });
            }
            (Intent::Finalize { end, .. }, outcome) => {
                let repeated = matches!(outcome, Some(OpOutcome::Finalized { repeated: true, .. }));
                report.counts.repeated += usize::from(repeated);
                tenure.ends.push(Ending { begun: op.begun, end: *end, happened, fenced, repeated });
            }
            _ => {}
        }
    }
}
