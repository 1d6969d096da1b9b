//! Checks histories with handlers: each event ends once, a handler whose success was recorded does not run again, and
//! what was written in the transaction that ended an event is stored exactly once.
//!
//! A success is recorded under its lease, with the entry locked. A later claim (both times are database time) found the
//! entry free again, so it came after that commit and must have seen the record.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use tidegate_core::End;

use super::{Invariant, Report, check_census, check_drained, check_refused, publishes};
use crate::history::{Claim, Intent, Op, OpOutcome};
use crate::state::{LogRow, State};

/// What the database holds about handlers, besides the state.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// The results in the log rows that are not superseded, by entry.
    pub(crate) results: HashMap<i64, String>,
    /// The rows that `handler_tx` wrote: entry and token.
    pub(crate) effects: Vec<(i64, i64)>,
    /// When the success of an entry's handler was recorded, in database time; by (entry, handler).
    pub(crate) durable: HashMap<(i64, String), i64>,
}

/// The names of the handlers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handlers<'a> {
    pub(crate) plain: &'a [&'a str],
    pub(crate) in_tx: &'a str,
}

impl<'a> Handlers<'a> {
    fn all(self) -> impl Iterator<Item = &'a str> {
        self.plain.iter().copied().chain([self.in_tx])
    }
}

/// How much a history exercised.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) published: usize,
    pub(crate) ended: usize,
    pub(crate) runs: usize,
    /// Runs of a handler that had run for the same entry before.
    pub(crate) again: usize,
    /// Of these, runs of a handler that had succeeded before without its success being durable.
    pub(crate) repeated: usize,
    /// Runs without an answer: the process was killed or the handler was stopped.
    pub(crate) cut: usize,
    pub(crate) durable: usize,
    /// Durable successes whose entry was claimed again afterwards, so that the handler could have run again wrongly.
    pub(crate) reclaimed: usize,
    pub(crate) effects: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { published, ended, runs, again, repeated, cut, durable, reclaimed, effects } = self;
        write!(
            f,
            "{published} published, {ended} ended, {runs} runs of handlers ({again} again, {repeated} of them after a \
             success that was not durable; {cut} unanswered), {durable} durable successes ({reclaimed} claimed again), \
             {effects} effects"
        )
    }
}

/// Checks all invariants of histories with handlers.
pub(crate) fn check(history: &[Op], state: &State, evidence: &Evidence, handlers: Handlers<'_>) -> (Report, Tally) {
    let mut report = Report::default();
    let attempts = Attempts::index(history, &mut report);
    publishes::check(history, state, &mut report);
    check_census(history, &mut report);
    check_refused(history, &mut report);
    check_drained(state, &mut report);
    let ends = check_ends(state, &mut report);
    for row in ends.values() {
        check_results(row, evidence, handlers, &mut report);
        check_answers(row, &attempts, handlers, &mut report);
    }
    check_effects(&ends, evidence, &mut report);
    check_durable(&attempts, evidence, &mut report);
    check_retries(&attempts, handlers, &mut report);
    let mut tally = attempts.tally(evidence);
    tally.published = report.counts.acknowledged;
    tally.ended = ends.len();
    (report, tally)
}

/// The runs of handlers for an entry under one lease.
#[derive(Debug)]
struct Attempt<'a> {
    claim: &'a Claim,
    process: &'a str,
    /// Whether each handler answered with success; `None` when there was no answer.
    runs: BTreeMap<&'a str, Option<bool>>,
}

/// All leases under which handlers ran, by entry and token.
#[derive(Debug, Default)]
struct Attempts<'a> {
    by_id: HashMap<i64, BTreeMap<i64, Attempt<'a>>>,
}

impl<'a> Attempts<'a> {
    fn index(history: &'a [Op], report: &mut Report) -> Self {
        let mut attempts = Self::default();
        for op in history {
            let Intent::Handle { handler, claim } = &op.intent else { continue };
            let success = match op.outcome {
                Some(OpOutcome::Handled { success }) => Some(success),
                _ => None,
            };
            let fresh = || Attempt { claim, process: &op.process, runs: BTreeMap::new() };
            let attempt = attempts.by_id.entry(claim.id).or_default().entry(claim.token).or_insert_with(fresh);
            let (id, token) = (claim.id, claim.token);
            if attempt.process != op.process || attempt.claim.claimed_at != claim.claimed_at {
                let detail = format!("entry {id}: token {token} went to {} and {}", attempt.process, op.process);
                report.violate(Invariant::TokensRise, detail);
            }
            if attempt.runs.insert(handler, success).is_some() {
                let detail = format!("entry {id}: {handler} ran twice under token {token} of {}", op.process);
                report.violate(Invariant::SuccessStays, detail);
            }
        }
        attempts
    }

    fn of(&self, id: i64) -> impl DoubleEndedIterator<Item = &Attempt<'a>> {
        self.by_id.get(&id).into_iter().flat_map(BTreeMap::values)
    }

    fn tally(&self, evidence: &Evidence) -> Tally {
        let (durable, effects) = (evidence.durable.len(), evidence.effects.len());
        let mut tally = Tally { durable, effects, ..Tally::default() };
        for attempts in self.by_id.values() {
            let mut known: HashMap<&str, bool> = HashMap::new();
            for (handler, success) in attempts.values().flat_map(|attempt| &attempt.runs) {
                tally.runs += 1;
                tally.cut += usize::from(success.is_none());
                let before = known.get(handler).copied();
                tally.again += usize::from(before.is_some());
                tally.repeated += usize::from(before == Some(true));
                known.insert(handler, before == Some(true) || *success == Some(true));
            }
        }
        for ((id, _), since) in &evidence.durable {
            tally.reclaimed += usize::from(self.of(*id).any(|attempt| attempt.claim.claimed_at > *since));
        }
        tally
    }
}

/// Every ended entry has exactly one log row that is not superseded, with the status completed. Returns these rows.
fn check_ends<'a>(state: &'a State, report: &mut Report) -> HashMap<i64, &'a LogRow> {
    let mut ends: HashMap<i64, &LogRow> = HashMap::new();
    for row in state.log.iter().filter(|row| !row.superseded) {
        if let Some(other) = ends.insert(row.id, row) {
            report.violate(Invariant::OneEnd, format!("entry {} ended as {other:?} and as {row:?}", row.id));
        }
        if row.status != End::Completed.code() {
            report.violate(Invariant::EndsAreTrue, format!("the entry did not end as completed: {row:?}"));
        }
    }
    for row in &state.log {
        if !ends.contains_key(&row.id) {
            report.violate(Invariant::OneEnd, format!("all log rows of entry {} are superseded: {row:?}", row.id));
        }
    }
    for row in &state.live {
        if ends.contains_key(&row.id) {
            report.violate(Invariant::OneEnd, format!("entry {} is live and ended", row.id));
        }
    }
    ends
}

/// The log row holds a success of each handler and nothing else.
fn check_results(row: &LogRow, evidence: &Evidence, handlers: Handlers<'_>, report: &mut Report) {
    let text = evidence.results.get(&row.id).map_or("", String::as_str);
    let results: BTreeMap<String, serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
    let expected: HashSet<&str> = handlers.all().collect();
    let succeeded = results.iter().filter(|(_, value)| value["result"] == "SUCCESS").map(|(name, _)| name.as_str());
    if results.len() != expected.len() || succeeded.collect::<HashSet<_>>() != expected {
        report.violate(Invariant::ResultsTrue, format!("entry {} ended with the results {text:?}", row.id));
    }
}

/// Every handler did answer with success, the `handler_tx` under the lease that ended the entry, and there was no claim
/// after the end.
fn check_answers(row: &LogRow, attempts: &Attempts<'_>, handlers: Handlers<'_>, report: &mut Report) {
    let id = row.id;
    for handler in handlers.all() {
        let mut answers = attempts.of(id).filter(|attempt| attempt.runs.get(handler) == Some(&Some(true)));
        let answered = match handler == handlers.in_tx {
            true => answers.any(|attempt| attempt.claim.token == row.token),
            false => answers.next().is_some(),
        };
        if !answered {
            let detail = format!("entry {id} ended under token {}, but {handler} did not succeed", row.token);
            report.violate(Invariant::ResultsTrue, detail);
        }
    }
    for attempt in
        attempts.of(id).filter(|attempt| attempt.claim.token > row.token || attempt.claim.claimed_at > row.finished_at)
    {
        let detail =
            format!("entry {id} ended under token {}, but {} worked on it under {}", row.token, attempt.process, {
                attempt.claim.token
            });
        report.violate(Invariant::EndsAreTrue, detail);
    }
}

/// Every ended entry has one effect, written under the lease that ended it; there are no others.
fn check_effects(ends: &HashMap<i64, &LogRow>, evidence: &Evidence, report: &mut Report) {
    let mut effects: HashMap<i64, Vec<i64>> = HashMap::new();
    for (id, token) in &evidence.effects {
        effects.entry(*id).or_default().push(*token);
    }
    for (id, row) in ends {
        let tokens = effects.remove(id).unwrap_or_default();
        if tokens != [row.token] {
            let detail = format!("entry {id} ended under token {}, its effects under {tokens:?}", row.token);
            report.violate(Invariant::EffectsOnce, detail);
        }
    }
    for (id, tokens) in effects {
        report.violate(Invariant::EffectsOnce, format!("entry {id} has effects under {tokens:?}, but did not end"));
    }
}

/// A handler does not run under a claim that was made after its success was recorded.
fn check_durable(attempts: &Attempts<'_>, evidence: &Evidence, report: &mut Report) {
    for ((id, handler), since) in &evidence.durable {
        let late =
            |attempt: &&Attempt<'_>| attempt.claim.claimed_at > *since && attempt.runs.contains_key(handler.as_str());
        for attempt in attempts.of(*id).filter(late) {
            let detail = format!(
                "entry {id}: {handler} had succeeded durably at {since}, but ran again in {} under token {}, claimed {} us \
                 later",
                attempt.process,
                attempt.claim.token,
                attempt.claim.claimed_at - since
            );
            report.violate(Invariant::SuccessStays, detail);
        }
    }
}

/// When an entry is claimed again before its lease expired and a handler had failed, the manager gave the lease back
/// for a retry, with the successes of the other handlers recorded. They must not run again, even if the witness missed
/// the record.
fn check_retries(attempts: &Attempts<'_>, handlers: Handlers<'_>, report: &mut Report) {
    for (id, attempts) in &attempts.by_id {
        for (attempt, next) in attempts.values().zip(attempts.values().skip(1)) {
            let failed = attempt.runs.values().any(|success| *success == Some(false));
            let given_back =
                next.claim.token == attempt.claim.token + 1 && next.claim.claimed_at < attempt.claim.lease_until;
            if !failed || !given_back {
                continue;
            }
            let succeeded = |handler: &&&str| attempt.runs.get(**handler) == Some(&Some(true));
            for handler in handlers.plain.iter().filter(succeeded) {
                if next.runs.contains_key(handler) {
                    let detail = format!(
                        "entry {id}: {handler} had succeeded under token {} of {}, which was given back, but ran again in \
                         {} under token {}",
                        attempt.claim.token, attempt.process, next.process, next.claim.token
                    );
                    report.violate(Invariant::SuccessStays, detail);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
