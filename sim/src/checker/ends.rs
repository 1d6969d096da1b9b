//! Checks ends: a generation ends once, the log agrees with the operations that ended it, and `Fenced` is true.

use std::collections::{HashMap, HashSet};

use tidegate_core::End;

use super::{Ending, Entries, Happened, Invariant, Report, Tenure};
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
            let first_ends = tenure.ends.iter().filter(|ending| ending.happened == Happened::Yes && !ending.repeated);
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

/// An acknowledged end is in the log under its own token.
fn check_ending(tenure: &Tenure<'_>, ending: &Ending, row: Option<&LogRow>, report: &mut Report) {
    if ending.happened != Happened::Yes {
        return;
    }
    let claim = tenure.claim;
    let context = format!("{} ended entry {} under token {}", tenure.process, claim.id, claim.token);
    match row {
        None => report.violate(Invariant::EndsAreTrue, format!("{context}, but it is not in the log")),
        Some(row) if row.token != claim.token => {
            report.violate(Invariant::EndsAreTrue, format!("{context}, but the log says {row:?}"));
        }
        Some(row) if !ending.repeated && row.status != ending.end => {
            report.violate(Invariant::EndsAreTrue, format!("{context} as {}, but the log says {row:?}", ending.end));
        }
        Some(_) => {}
    }
}

/// A fenced lease did not end the entry; it was given back, or the entry was claimed again. `token` is the entry's
/// highest token in the database.
fn check_fence(tenure: &Tenure<'_>, row: Option<&LogRow>, token: i64, report: &mut Report) {
    let claim = tenure.claim;
    let given_back = tenure.released() != Happened::No || tenure.requeues.iter().any(|r| r.happened != Happened::No);
    if row.is_some_and(|row| row.token == claim.token) {
        let detail = format!("{} was fenced off entry {}, which ended under its token", tenure.process, claim.id);
        report.violate(Invariant::FencingTrue, detail);
    } else if token <= claim.token && !given_back {
        let detail = format!("{} was fenced off entry {}, but no later claim took it", tenure.process, claim.id);
        report.violate(Invariant::FencingTrue, detail);
    }
}

/// A log row was written by an operation that may have ended the entry, or because its attempts were exhausted.
fn check_row(row: &LogRow, entries: &Entries<'_>, report: &mut Report) {
    let tenure = entries.by_id.get(&row.id).and_then(|tenures| tenures.get(&row.token));
    let ended = tenure.is_some_and(|tenure| {
        tenure.ends.iter().any(|ending| ending.end == row.status && ending.happened != Happened::No)
    });
    let dead = End::from_code(row.status).is_some_and(End::is_dead_letter);
    let exhausted = dead && row.attempts == row.max_attempts;
    if !ended && !exhausted {
        report.violate(Invariant::EndsAreTrue, format!("no recorded operation ended {row:?}"));
    }
}
