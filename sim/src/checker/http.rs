//! Checks events that went through a server which was killed: its answers are true, and every event ends once.
//!
//! Clients repeat a request until it is answered. So every request has an answer in the end, which must agree with the
//! database, whichever of the repeats took effect.

use std::collections::{HashMap, HashSet};
use std::fmt;

use tidegate_core::{Action, End};

use super::{Invariant, Report, check_drained};
use crate::state::{AuditRow, State};

/// The final answer to a publisher: 201 or 200.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    pub(crate) key: String,
    pub(crate) id: i64,
    /// 201 rather than 200.
    pub(crate) created: bool,
    /// How many tries before had no answer.
    pub(crate) lost: u32,
}

/// A lease that was handed out to a worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Handed {
    pub(crate) id: i64,
    pub(crate) lease: i64,
    pub(crate) worker: String,
}

/// The final answer to a worker that completed an event.
#[derive(Debug, Clone)]
pub(crate) struct Completed {
    pub(crate) handed: Handed,
    /// 200 rather than 409.
    pub(crate) done: bool,
    /// How many tries before had no answer.
    pub(crate) lost: u32,
}

/// The answers that all clients got.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) accepted: Vec<Accepted>,
    pub(crate) handed: Vec<Handed>,
    pub(crate) completed: Vec<Completed>,
    /// Unexpected answers: all requests of this load are valid.
    pub(crate) refused: Vec<String>,
}

/// How much a run exercised.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) events: usize,
    /// Publishes that were repeated for lack of an answer, and those of them that had already happened.
    pub(crate) published_again: usize,
    pub(crate) published_before: usize,
    pub(crate) completed_again: usize,
    /// Completions that were answered 409: the lease was lost.
    pub(crate) too_late: usize,
    /// Events that took more than one attempt.
    pub(crate) retaken: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, published_again, published_before, completed_again, too_late, retaken } = self;
        write!(
            f,
            "{events} events published and completed once ({published_again} publishes repeated, {published_before} of \
             them had happened; {completed_again} completes repeated; {retaken} events retaken, {too_late} workers too \
             late)"
        )
    }
}

/// Checks all invariants of a run with a server.
pub(crate) fn check(seen: &Seen, state: &State, audit: &[AuditRow]) -> (Report, Tally) {
    let mut report = Report::default();
    for refused in &seen.refused {
        report.violate(Invariant::NothingRefused, refused.clone());
    }
    check_published(seen, state, &mut report);
    check_handed(seen, &mut report);
    check_ends(seen, state, audit, &mut report);
    check_drained(state, &mut report);
    (report, tally(seen, state))
}

fn check_published(seen: &Seen, state: &State, report: &mut Report) {
    let mut there: HashMap<&str, HashSet<i64>> = HashMap::new();
    for (id, key) in state.entries() {
        there.entry(key).or_default().insert(id);
    }
    let entries: usize = there.values().map(HashSet::len).sum();
    if state.facts != entries as u64 {
        report.violate(Invariant::OneEntryPerFact, format!("{} facts, {entries} entries", state.facts));
    }
    let mut created = HashSet::new();
    let mut known = HashSet::new();
    for Accepted { key, id, created: is_new, .. } in &seen.accepted {
        known.insert(key.as_str());
        if !there.get(key.as_str()).is_some_and(|ids| ids.contains(id)) {
            report.violate(Invariant::AcknowledgedIsThere, format!("{key} was answered as event {id}, now missing"));
        }
        if *is_new && !created.insert(key.as_str()) {
            report.violate(Invariant::NothingTwice, format!("{key} was answered as new more than once"));
        }
    }
    for (key, ids) in &there {
        if ids.len() > 1 {
            report.violate(Invariant::NothingTwice, format!("{key} is stored more than once: {ids:?}"));
        }
        // Publishers repeat until they are answered, so every stored event was answered.
        if !known.contains(key) {
            report.violate(Invariant::NothingTwice, format!("{key} is stored as {ids:?}, but was never answered"));
        }
    }
}

/// A lease is handed out once, to one worker.
fn check_handed(seen: &Seen, report: &mut Report) {
    let mut holders = HashMap::new();
    for Handed { id, lease, worker } in &seen.handed {
        if let Some(other) = holders.insert((id, lease), worker) {
            report.violate(Invariant::TokensRise, format!("lease {lease} of event {id} went to {other} and {worker}"));
        }
    }
}

fn check_ends(seen: &Seen, state: &State, audit: &[AuditRow], report: &mut Report) {
    let mut rows: HashMap<i64, Vec<&AuditRow>> = HashMap::new();
    for row in audit.iter().filter(|row| row.action == Action::Completed.code()) {
        rows.entry(row.entry).or_default().push(row);
    }
    let mut logged = HashSet::new();
    let done: HashSet<&Handed> = seen.completed.iter().filter(|one| one.done).map(|one| &one.handed).collect();
    for log in &state.log {
        if !logged.insert(log.id) {
            report.violate(Invariant::OneEnd, format!("event {} is in the log more than once", log.id));
        }
        if log.status != End::Completed.code() {
            report.violate(Invariant::EndsAreTrue, format!("event {} ended with status {}", log.id, log.status));
        }
        match rows.get(&log.id).map(Vec::as_slice) {
            Some([row]) => {
                let ender = Handed { id: log.id, lease: row.token, worker: row.worker.clone().unwrap_or_default() };
                if row.token != log.token || !done.contains(&ender) {
                    let text = format!("{ender:?} is audited, but was not answered 200 or is not lease {}", log.token);
                    report.violate(Invariant::EndsAreTrue, text);
                }
            }
            rows => {
                let count = rows.map_or(0, <[_]>::len);
                report.violate(Invariant::OneEnd, format!("event {} has {count} COMPLETED rows in the audit", log.id));
            }
        }
    }
    for Completed { handed, done, .. } in &seen.completed {
        let is_end = rows.get(&handed.id).is_some_and(|rows| {
            rows.iter().any(|row| row.token == handed.lease && row.worker.as_deref() == Some(&handed.worker))
        });
        if *done && !(is_end && logged.contains(&handed.id)) {
            report.violate(Invariant::EndsAreTrue, format!("{handed:?} was answered 200, but did not end the event"));
        }
        if !*done && is_end {
            report.violate(Invariant::FencingTrue, format!("{handed:?} was answered 409, but did end the event"));
        }
    }
}

fn tally(seen: &Seen, state: &State) -> Tally {
    let again = seen.accepted.iter().filter(|accepted| accepted.lost > 0);
    Tally {
        events: state.log.len(),
        published_again: again.clone().count(),
        published_before: again.filter(|accepted| !accepted.created).count(),
        completed_again: seen.completed.iter().filter(|completed| completed.lost > 0).count(),
        too_late: seen.completed.iter().filter(|completed| !completed.done).count(),
        retaken: state.log.iter().filter(|row| row.attempts > 1).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{LiveRow, LogRow};

    /// Event 1 was claimed by `late` under lease 5, which expired, and then claimed under lease 9 and completed by `w`.
    fn good() -> (Seen, State, Vec<AuditRow>) {
        let handed = |lease, worker: &str| Handed { id: 1, lease, worker: worker.into() };
        let seen = Seen {
            accepted: vec![Accepted { key: "k".into(), id: 1, created: true, lost: 1 }],
            handed: vec![handed(5, "late"), handed(9, "w")],
            completed: vec![
                Completed { handed: handed(9, "w"), done: true, lost: 2 },
                Completed { handed: handed(5, "late"), done: false, lost: 0 },
            ],
            refused: Vec::new(),
        };
        let log = LogRow {
            id: 1,
            generation: 1,
            key: "k".into(),
            token: 9,
            attempts: 2,
            max_attempts: 1000,
            status: End::Completed.code(),
            superseded: false,
            finished_at: 0,
        };
        let audit = |action: Action, token, worker: &str| AuditRow {
            entry: 1,
            action: action.code(),
            token,
            worker: Some(worker.into()),
        };
        let audit =
            vec![audit(Action::Picked, 5, "late"), audit(Action::Picked, 9, "w"), audit(Action::Completed, 9, "w")];
        (seen, State { facts: 1, live: Vec::new(), log: vec![log] }, audit)
    }

    #[track_caller]
    fn finds(invariant: Invariant, spoil: impl FnOnce(&mut Seen, &mut State, &mut Vec<AuditRow>)) {
        let (mut seen, mut state, mut audit) = good();
        spoil(&mut seen, &mut state, &mut audit);
        let (report, _) = check(&seen, &state, &audit);
        assert!(report.violations.iter().any(|one| one.invariant == invariant), "{invariant:?}: {}", report.explain());
    }

    #[test]
    fn a_good_run_passes() {
        let (seen, state, audit) = good();
        let (report, tally) = check(&seen, &state, &audit);
        assert!(report.violations.is_empty(), "{}", report.explain());
        assert_eq!((tally.events, tally.published_again, tally.published_before), (1, 1, 0));
        assert_eq!((tally.completed_again, tally.too_late, tally.retaken), (1, 1, 1));
    }

    #[test]
    fn lost_and_doubled_publishes_are_found() {
        finds(Invariant::AcknowledgedIsThere, |_, state, _| state.log.clear());
        finds(Invariant::AcknowledgedIsThere, |seen, _, _| seen.accepted[0].id = 2);
        finds(Invariant::NothingTwice, |seen, _, _| seen.accepted.push(seen.accepted[0].clone()));
        finds(Invariant::NothingTwice, |_, state, _| state.log.push(LogRow { id: 2, ..state.log[0].clone() }));
        finds(Invariant::NothingTwice, |seen, _, _| seen.accepted.clear());
        finds(Invariant::OneEntryPerFact, |_, state, _| state.facts = 2);
        finds(Invariant::NothingRefused, |seen, _, _| seen.refused.push("500".into()));
    }

    #[test]
    fn ends_that_are_doubled_wrong_or_missing_are_found() {
        finds(Invariant::OneEnd, |_, state, _| state.log.push(state.log[0].clone()));
        finds(Invariant::OneEnd, |_, _, audit| audit.push(audit[2].clone()));
        finds(Invariant::OneEnd, |_, _, audit| audit.truncate(2));
        finds(Invariant::EndsAreTrue, |_, state, _| state.log[0].status = End::Failed.code());
        finds(Invariant::EndsAreTrue, |_, state, _| state.log[0].token = 5);
        finds(Invariant::EndsAreTrue, |seen, _, _| seen.completed[1].done = true);
        finds(Invariant::EndsAreTrue, |seen, _, _| seen.completed.clear());
        finds(Invariant::FencingTrue, |seen, _, _| seen.completed[0].done = false);
        finds(Invariant::TokensRise, |seen, _, _| seen.handed[0].lease = 9);
        finds(Invariant::Drained, |_, state, _| {
            let (id, key) = (2, "x".to_owned());
            state.live.push(LiveRow { id, key, token: 1, attempts: 0, leased: false });
        });
    }
}
