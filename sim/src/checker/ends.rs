//! A generation ends once, as somebody ended it, and fencing tells the truth.

use std::collections::{HashMap, HashSet};

use tidegate_core::End;

use super::{Ending, Entries, Invariant, Report, Tenure, Verdict};
use crate::state::{LogRow, State};

pub(super) fn check(entries: &Entries<'_>, state: &State, report: &mut Report) {
    let mut log: HashMap<(i64, u32), &LogRow> = HashMap::new();
    for row in &state.log {
        if log.insert((row.id, row.generation), row).is_some() {
            let detail = format!("entry {} generation {} is in the log twice", row.id, row.generation);
            report.violate(Invariant::OneEnd, detail);
        }
    }
    let last: HashSet<i64> = state.log.iter().filter(|row| !row.superseded).map(|row| row.id).collect();
    for row in &state.live {
        if last.contains(&row.id) {
            report.violate(Invariant::OneEnd, format!("entry {} is live and ended", row.id));
        }
    }
    let mut tokens: HashMap<i64, i64> = HashMap::new();
    for (id, token) in state.tokens() {
        let highest = tokens.entry(id).or_insert(token);
        *highest = token.max(*highest);
    }
    for (id, tenures) in &entries.by_id {
        let mut ended_by: HashMap<u32, &Tenure<'_>> = HashMap::new();
        for tenure in tenures.values() {
            let row = log.get(&(*id, tenure.claim.generation)).copied();
            for ending in &tenure.ends {
                check_ending(tenure, ending, row, report);
                if ending.fenced {
                    check_fence(tenure, row, tokens.get(id).copied().unwrap_or(0), report);
                }
            }
            let first_ends = tenure.ends.iter().filter(|ending| ending.verdict == Verdict::Done && !ending.repeated);
            for _ in first_ends {
                if let Some(other) = ended_by.insert(tenure.claim.generation, tenure) {
                    let detail = format!("entry {id} was ended by {} and by {}", other.process, tenure.process);
                    report.violate(Invariant::OneEnd, detail);
                }
            }
        }
    }
    for row in &state.log {
        check_row(row, entries, report);
    }
}

/// An acknowledged end stands in the log under its own token.
fn check_ending(tenure: &Tenure<'_>, ending: &Ending, row: Option<&LogRow>, report: &mut Report) {
    if ending.verdict != Verdict::Done {
        return;
    }
    let claim = tenure.claim;
    let said = format!("{} ended entry {} under token {}", tenure.process, claim.id, claim.token);
    match row {
        None => report.violate(Invariant::EndsAreTrue, format!("{said}, but the log does not have it")),
        Some(row) if row.token != claim.token => {
            report.violate(Invariant::EndsAreTrue, format!("{said}, but the log says {row:?}"));
        }
        Some(row) if !ending.repeated && row.status != ending.end => {
            report.violate(Invariant::EndsAreTrue, format!("{said} as {}, but the log says {row:?}", ending.end));
        }
        Some(_) => {}
    }
}

/// A fenced lease was taken over, given back, or ended by somebody else; it did not itself end the entry.
fn check_fence(tenure: &Tenure<'_>, row: Option<&LogRow>, token: i64, report: &mut Report) {
    let claim = tenure.claim;
    let given_back = tenure.released() != Verdict::Not || tenure.requeues.iter().any(|r| r.verdict != Verdict::Not);
    if row.is_some_and(|row| row.token == claim.token) {
        let detail = format!("{} was fenced off entry {}, which ended under its token", tenure.process, claim.id);
        report.violate(Invariant::FencingTrue, detail);
    } else if token <= claim.token && !given_back {
        let detail = format!("{} was fenced off entry {}, but nobody else took it", tenure.process, claim.id);
        report.violate(Invariant::FencingTrue, detail);
    }
}

/// A log row was written by somebody who may have ended it, or because the attempts were used up.
fn check_row(row: &LogRow, entries: &Entries<'_>, report: &mut Report) {
    let tenure = entries.by_id.get(&row.id).and_then(|tenures| tenures.get(&row.token));
    let ended = tenure.is_some_and(|tenure| {
        tenure.ends.iter().any(|ending| ending.end == row.status && ending.verdict != Verdict::Not)
    });
    let dead = End::from_code(row.status).is_some_and(End::is_dead_letter);
    let exhausted = dead && row.attempts == row.max_attempts;
    if !ended && !exhausted {
        report.violate(Invariant::EndsAreTrue, format!("nobody ended {row:?}"));
    }
}
