//! Events that were worked off with handlers: each ends once, what had succeeded durably does not run again, and what
//! was written in the transaction that ended an event is there once.
//!
//! A success is recorded under its lease, with the entry locked: a claim that was made after that moment (both are
//! database time) found the entry free again, so it came after the commit and must have seen the record.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use tidegate_core::End;

use super::{Invariant, Report, check_census, check_drained, check_refused, publishes};
use crate::history::{Claim, Intent, Op, Outcome};
use crate::state::{LogRow, State};

/// What the database says of handlers, besides the log.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// The results in the log rows that stand, by entry.
    pub(crate) results: HashMap<i64, String>,
    /// The effects that are there: entry and token.
    pub(crate) effects: Vec<(i64, i64)>,
    /// Since when an entry's handler is recorded to have succeeded.
    pub(crate) durable: HashMap<(i64, String), i64>,
}

/// Which handlers there are.
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
    /// Of these, runs of one that had succeeded before, which nobody knew durably.
    pub(crate) repeated: usize,
    /// Runs that were cut off.
    pub(crate) cut: usize,
    pub(crate) durable: usize,
    /// Durable successes whose entry was claimed again afterwards: here a handler could have run again wrongly.
    pub(crate) tempted: usize,
    pub(crate) effects: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { published, ended, runs, again, repeated, cut, durable, tempted, effects } = self;
        write!(
            f,
            "{published} published, {ended} ended, {runs} runs of handlers ({again} again, {repeated} of them after a \
             success that was not durable; {cut} cut off), {durable} durable successes ({tempted} claimed again), \
             {effects} effects"
        )
    }
}

/// Checks everything.
pub(crate) fn check(history: &[Op], state: &State, evidence: &Evidence, handlers: Handlers<'_>) -> (Report, Tally) {
    let mut report = Report::default();
    let turns = Turns::index(history, &mut report);
    publishes::check(history, state, &mut report);
    check_census(history, &mut report);
    check_refused(history, &mut report);
    check_drained(state, &mut report);
    let ends = check_ends(state, &mut report);
    for row in ends.values() {
        check_results(row, evidence, handlers, &mut report);
        check_answers(row, &turns, handlers, &mut report);
    }
    check_effects(&ends, evidence, &mut report);
    check_durable(&turns, evidence, &mut report);
    check_retries(&turns, handlers, &mut report);
    let mut tally = turns.tally(evidence);
    tally.published = report.counts.acknowledged;
    tally.ended = ends.len();
    (report, tally)
}

/// What was done for an entry under one lease.
#[derive(Debug)]
struct Turn<'a> {
    claim: &'a Claim,
    process: &'a str,
    /// Handlers and whether they answered success; nothing when they were cut off.
    runs: BTreeMap<&'a str, Option<bool>>,
}

/// All leases under which handlers ran, by entry and token.
#[derive(Debug, Default)]
struct Turns<'a> {
    by_id: HashMap<i64, BTreeMap<i64, Turn<'a>>>,
}

impl<'a> Turns<'a> {
    fn index(history: &'a [Op], report: &mut Report) -> Self {
        let mut turns = Self::default();
        for op in history {
            let Intent::Handle { handler, claim } = &op.intent else { continue };
            let success = match op.outcome {
                Some(Outcome::Handled { success }) => Some(success),
                _ => None,
            };
            let fresh = || Turn { claim, process: &op.process, runs: BTreeMap::new() };
            let turn = turns.by_id.entry(claim.id).or_default().entry(claim.token).or_insert_with(fresh);
            let (id, token) = (claim.id, claim.token);
            if turn.process != op.process || turn.claim.claimed_at != claim.claimed_at {
                let detail = format!("entry {id}: token {token} went to {} and {}", turn.process, op.process);
                report.violate(Invariant::TokensRise, detail);
            }
            if turn.runs.insert(handler, success).is_some() {
                let detail = format!("entry {id}: {handler} ran twice under token {token} of {}", op.process);
                report.violate(Invariant::SuccessStays, detail);
            }
        }
        turns
    }

    fn of(&self, id: i64) -> impl DoubleEndedIterator<Item = &Turn<'a>> {
        self.by_id.get(&id).into_iter().flat_map(BTreeMap::values)
    }

    fn tally(&self, evidence: &Evidence) -> Tally {
        let (durable, effects) = (evidence.durable.len(), evidence.effects.len());
        let mut tally = Tally { durable, effects, ..Tally::default() };
        for turns in self.by_id.values() {
            let mut known: HashMap<&str, bool> = HashMap::new();
            for (handler, success) in turns.values().flat_map(|turn| &turn.runs) {
                tally.runs += 1;
                tally.cut += usize::from(success.is_none());
                let before = known.get(handler).copied();
                tally.again += usize::from(before.is_some());
                tally.repeated += usize::from(before == Some(true));
                known.insert(handler, before == Some(true) || *success == Some(true));
            }
        }
        for ((id, _), since) in &evidence.durable {
            tally.tempted += usize::from(self.of(*id).any(|turn| turn.claim.claimed_at > *since));
        }
        tally
    }
}

/// Every entry has one log row that stands, and is completed. Answers these rows.
fn check_ends<'a>(state: &'a State, report: &mut Report) -> HashMap<i64, &'a LogRow> {
    let mut ends: HashMap<i64, &LogRow> = HashMap::new();
    for row in state.log.iter().filter(|row| !row.superseded) {
        if let Some(other) = ends.insert(row.id, row) {
            report.violate(Invariant::OneEnd, format!("entry {} ended as {other:?} and as {row:?}", row.id));
        }
        if row.status != End::Completed.code() {
            report.violate(Invariant::EndsAreTrue, format!("it did not end as completed: {row:?}"));
        }
    }
    for row in &state.log {
        if !ends.contains_key(&row.id) {
            report.violate(Invariant::OneEnd, format!("no row of entry {} stands: {row:?}", row.id));
        }
    }
    for row in &state.live {
        if ends.contains_key(&row.id) {
            report.violate(Invariant::OneEnd, format!("entry {} is live and ended", row.id));
        }
    }
    ends
}

/// The log says that all handlers succeeded, no more and no less.
fn check_results(row: &LogRow, evidence: &Evidence, handlers: Handlers<'_>, report: &mut Report) {
    let text = evidence.results.get(&row.id).map_or("", String::as_str);
    let results: BTreeMap<String, serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
    let expected: HashSet<&str> = handlers.all().collect();
    let succeeded = results.iter().filter(|(_, value)| value["result"] == "SUCCESS").map(|(name, _)| name.as_str());
    if results.len() != expected.len() || succeeded.collect::<HashSet<_>>() != expected {
        report.violate(Invariant::ResultsTrue, format!("entry {} ended with the results {text:?}", row.id));
    }
}

/// Every handler really answered so before the end, the last one under the lease that ended it, and none ran later.
fn check_answers(row: &LogRow, turns: &Turns<'_>, handlers: Handlers<'_>, report: &mut Report) {
    let id = row.id;
    for handler in handlers.all() {
        let mut answers = turns.of(id).filter(|turn| turn.runs.get(handler) == Some(&Some(true)));
        let answered = match handler == handlers.in_tx {
            true => answers.any(|turn| turn.claim.token == row.token),
            false => answers.next().is_some(),
        };
        if !answered {
            let detail = format!("entry {id} ended under token {}, but {handler} did not answer so", row.token);
            report.violate(Invariant::ResultsTrue, detail);
        }
    }
    for turn in turns.of(id).filter(|turn| turn.claim.token > row.token || turn.claim.claimed_at > row.finished_at) {
        let detail =
            format!("entry {id} ended under token {}, but {} worked on it under {}", row.token, turn.process, {
                turn.claim.token
            });
        report.violate(Invariant::EndsAreTrue, detail);
    }
}

/// One effect per ended entry, of the lease that ended it; none else.
fn check_effects(ends: &HashMap<i64, &LogRow>, evidence: &Evidence, report: &mut Report) {
    let mut effects: HashMap<i64, Vec<i64>> = HashMap::new();
    for (id, token) in &evidence.effects {
        effects.entry(*id).or_default().push(*token);
    }
    for (id, row) in ends {
        let tokens = effects.remove(id).unwrap_or_default();
        if tokens != [row.token] {
            let detail = format!("entry {id} ended under token {}, its effects are of {tokens:?}", row.token);
            report.violate(Invariant::EffectsOnce, detail);
        }
    }
    for (id, tokens) in effects {
        report.violate(Invariant::EffectsOnce, format!("entry {id} has effects of {tokens:?}, but did not end"));
    }
}

/// No run under a claim that came after its success was recorded.
fn check_durable(turns: &Turns<'_>, evidence: &Evidence, report: &mut Report) {
    for ((id, handler), since) in &evidence.durable {
        let late = |turn: &&Turn<'_>| turn.claim.claimed_at > *since && turn.runs.contains_key(handler.as_str());
        for turn in turns.of(*id).filter(late) {
            let detail = format!(
                "entry {id}: {handler} had succeeded durably at {since}, but ran again in {} under token {}, claimed {} us \
                 later",
                turn.process,
                turn.claim.token,
                turn.claim.claimed_at - since
            );
            report.violate(Invariant::SuccessStays, detail);
        }
    }
}

/// A lease that somebody else got before it ran out was given back in good order: after a handler failed, with the
/// successes of the others recorded. So they run no more, whether or not anybody saw the record.
fn check_retries(turns: &Turns<'_>, handlers: Handlers<'_>, report: &mut Report) {
    for (id, turns) in &turns.by_id {
        for (turn, next) in turns.values().zip(turns.values().skip(1)) {
            let failed = turn.runs.values().any(|success| *success == Some(false));
            let given_back = next.claim.token == turn.claim.token + 1 && next.claim.claimed_at < turn.claim.lease_until;
            if !failed || !given_back {
                continue;
            }
            let succeeded = |handler: &&&str| turn.runs.get(**handler) == Some(&Some(true));
            for handler in handlers.plain.iter().filter(succeeded) {
                if next.runs.contains_key(handler) {
                    let detail = format!(
                        "entry {id}: {handler} had succeeded under token {} of {}, which was given back, but ran again in \
                         {} under token {}",
                        turn.claim.token, turn.process, next.process, next.claim.token
                    );
                    report.violate(Invariant::SuccessStays, detail);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
