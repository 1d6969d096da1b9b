//! Checks events that went to nodes which were killed: each is there completely and once, or not at all, and whoever was
//! asked about it gave one answer.
//!
//! Which entries, jobs, keys and terms an event must have follows from its number.

use std::collections::{HashMap, HashSet};
use std::fmt;

use tidegate::Tsid;

use super::{Invariant, Report};
use crate::state::ingest::Ingested;

/// What an event must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) entries: usize,
    pub(crate) jobs: usize,
    /// Whether it has a deduplication id, and whether it has a source and an id.
    pub(crate) keys: (bool, bool),
    /// Whether it has a message group, by which it is found.
    pub(crate) group: bool,
    /// Its pairs of context data, by which it is found.
    pub(crate) pairs: usize,
}

impl Shape {
    /// The shape of the event of a number.
    pub(crate) fn of(number: u64) -> Self {
        let (entries, jobs) = match number % 4 {
            0 => (0, 0),
            1 => (0, 1),
            _ => (2, 2),
        };
        let keys = [(true, false), (false, true), (true, true)][(number / 4 % 3) as usize];
        let pairs = if number.is_multiple_of(2) { 0 } else { 2 };
        Self { entries, jobs, keys, group: !number.is_multiple_of(5), pairs }
    }

    fn rows(self) -> Rows {
        let (named, identity) = self.keys;
        Rows {
            entries: self.entries,
            jobs: self.jobs,
            keys: usize::from(named) + usize::from(identity),
            terms: self.pairs + usize::from(self.group),
        }
    }
}

/// How many rows refer to a fact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Rows {
    entries: usize,
    jobs: usize,
    keys: usize,
    terms: usize,
}

/// The final answer to an event, from one node.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    pub(crate) number: u64,
    pub(crate) id: String,
    /// 201 rather than 200.
    pub(crate) created: bool,
    pub(crate) entries: Vec<i64>,
    pub(crate) jobs: Vec<String>,
    /// How many tries before had no answer.
    pub(crate) lost: u32,
    /// Whether another node got it at the same time.
    pub(crate) at_once: bool,
}

/// The answers that all clients got.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) accepted: Vec<Accepted>,
    /// Unexpected answers: all requests of this load are valid.
    pub(crate) refused: Vec<String>,
}

/// How much a run exercised.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) events: usize,
    pub(crate) answers: usize,
    /// Answers to events that were sent again for lack of an answer, and those of them that had been stored before.
    pub(crate) sent_again: usize,
    pub(crate) stored_before: usize,
    /// Answers to events that two nodes got at once.
    pub(crate) at_once: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, answers, sent_again, stored_before, at_once } = self;
        write!(
            f,
            "{events} events stored once with all that belongs to them ({answers} answers, {at_once} of them by two nodes at \
             once; {sent_again} after lost ones, {stored_before} of which had been stored)"
        )
    }
}

/// Checks a snapshot, of whatever moment: nothing is there in part, nothing twice, and nothing that nobody sent.
pub(crate) fn check_snapshot(stored: &Ingested, sent: u64, report: &mut Report) {
    let mut rows: HashMap<i64, Rows> = stored.facts.iter().map(|fact| (fact.id, Rows::default())).collect();
    let mut refer = |what: &str, of: &[(i64, i64)], count: fn(&mut Rows) -> &mut usize| {
        for (number, event) in of {
            match rows.get_mut(event) {
                Some(rows) => *count(rows) += 1,
                None => report.violate(Invariant::AllOrNone, format!("{what} {number} has no fact {event}")),
            }
        }
    };
    refer("entry", &stored.entries, |rows| &mut rows.entries);
    refer("job", &stored.jobs, |rows| &mut rows.jobs);
    refer("a key of kind", &stored.keys, |rows| &mut rows.keys);
    refer("term", &stored.terms, |rows| &mut rows.terms);
    let mut seen = HashSet::new();
    for fact in &stored.facts {
        let Some(number) = number_of(&fact.key).filter(|number| *number < sent) else {
            report.violate(Invariant::NothingTwice, format!("{:?} was never sent", fact.key));
            continue;
        };
        if !seen.insert(number) {
            report.violate(Invariant::NothingTwice, format!("event {number} is stored more than once"));
        }
        let (found, expected) = (rows.get(&fact.id).copied().unwrap_or_default(), Shape::of(number).rows());
        let said = fact.targets == i64::try_from(expected.entries + expected.jobs).ok();
        if found != expected || !said {
            let text =
                format!("event {number} says {:?} targets and has {found:?} instead of {expected:?}", fact.targets);
            report.violate(Invariant::AllOrNone, text);
        }
    }
}

/// Checks all answers of a run against what is stored at its end.
pub(crate) fn check(seen: &Seen, stored: &Ingested, sent: u64) -> (Report, Tally) {
    let mut report = Report::default();
    for refused in &seen.refused {
        report.violate(Invariant::NothingRefused, refused.clone());
    }
    check_snapshot(stored, sent, &mut report);
    let facts: HashMap<u64, i64> =
        stored.facts.iter().filter_map(|fact| Some((number_of(&fact.key)?, fact.id))).collect();
    let mut made: HashMap<i64, (Vec<i64>, Vec<i64>)> = HashMap::new();
    stored.entries.iter().for_each(|(number, event)| made.entry(*event).or_default().0.push(*number));
    stored.jobs.iter().for_each(|(number, event)| made.entry(*event).or_default().1.push(low(*number)));
    let (mut created, mut answered) = (HashSet::new(), HashSet::new());
    for one in &seen.accepted {
        answered.insert(one.number);
        let Some(fact) = facts.get(&one.number) else {
            let text = format!("event {} was answered as {}, now missing", one.number, one.id);
            report.violate(Invariant::AcknowledgedIsThere, text);
            continue;
        };
        let (entries, jobs) = made.get(fact).cloned().unwrap_or_default();
        let id = Tsid::from_i64(*fact).to_string();
        let jobs_said = one.jobs.iter().filter_map(|id| Some(low(id.parse::<Tsid>().ok()?.to_i64()))).collect();
        if one.id != id || sorted(one.entries.clone()) != sorted(entries) || sorted(jobs_said) != sorted(jobs) {
            report.violate(Invariant::OneAnswer, format!("{one:?} is not what is stored as {id}"));
        }
        if one.created && !created.insert(one.number) {
            report.violate(Invariant::NothingTwice, format!("event {} was answered as new more than once", one.number));
        }
    }
    for number in facts.keys().filter(|number| !answered.contains(*number)) {
        report.violate(Invariant::NothingTwice, format!("event {number} is stored and was never answered"));
    }
    (report, tally(seen, stored))
}

/// The number of the event that has this payload.
fn number_of(key: &str) -> Option<u64> {
    key.strip_prefix('e')?.parse().ok()
}

/// The part of a job's number that its id has, too.
fn low(number: i64) -> i64 {
    number & ((1 << 22) - 1)
}

fn sorted(mut numbers: Vec<i64>) -> Vec<i64> {
    numbers.sort_unstable();
    numbers
}

fn tally(seen: &Seen, stored: &Ingested) -> Tally {
    let again = seen.accepted.iter().filter(|one| one.lost > 0);
    Tally {
        events: stored.facts.len(),
        answers: seen.accepted.len(),
        sent_again: again.clone().count(),
        stored_before: again.filter(|one| !one.created).count(),
        at_once: seen.accepted.iter().filter(|one| one.at_once).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::ingest::FactRow;

    /// Event 3, which has all there is, was stored after a lost answer, and event 0, which has a key alone.
    fn good() -> (Seen, Ingested) {
        let shape = Shape::of(3);
        assert_eq!((shape.entries, shape.jobs, shape.keys, shape.group, shape.pairs), (2, 2, (true, false), true, 2));
        let id = |number| Tsid::from_i64(number).to_string();
        let answer = |number, fact, created| Accepted {
            number,
            id: id(fact),
            created,
            entries: if number == 3 { vec![11, 12] } else { Vec::new() },
            jobs: if number == 3 { vec![id((7 << 22) + 14), id((7 << 22) + 13)] } else { Vec::new() },
            lost: 1,
            at_once: true,
        };
        let fact = |id, number: u64, targets| FactRow { id, key: format!("e{number}"), targets: Some(targets) };
        let stored = Ingested {
            facts: vec![fact(100, 3, 4), fact(200, 0, 0)],
            entries: vec![(11, 100), (12, 100)],
            jobs: vec![(13, 100), (14, 100)],
            keys: vec![(4, 100), (4, 200)],
            terms: vec![(0, 100), (0, 100), (0, 100)],
        };
        (
            Seen {
                accepted: vec![answer(3, 100, true), answer(3, 100, false), answer(0, 200, false)],
                ..Seen::default()
            },
            stored,
        )
    }

    #[track_caller]
    fn finds(invariant: Invariant, spoil: impl FnOnce(&mut Seen, &mut Ingested)) {
        let (mut seen, mut stored) = good();
        spoil(&mut seen, &mut stored);
        let (report, _) = check(&seen, &stored, 4);
        assert!(report.violations.iter().any(|one| one.invariant == invariant), "{invariant:?}: {}", report.explain());
    }

    #[test]
    fn a_good_run_passes() {
        let (seen, stored) = good();
        let (report, tally) = check(&seen, &stored, 4);
        assert!(report.violations.is_empty(), "{}", report.explain());
        assert_eq!(
            (tally.events, tally.answers, tally.sent_again, tally.stored_before, tally.at_once),
            (2, 3, 3, 2, 3)
        );
    }

    #[test]
    fn events_in_part_are_found() {
        finds(Invariant::AllOrNone, |_, stored| {
            stored.entries.pop();
        });
        finds(Invariant::AllOrNone, |_, stored| {
            stored.jobs.pop();
        });
        finds(Invariant::AllOrNone, |_, stored| {
            stored.keys.pop();
        });
        finds(Invariant::AllOrNone, |_, stored| {
            stored.terms.pop();
        });
        finds(Invariant::AllOrNone, |_, stored| stored.facts[0].targets = Some(3));
        finds(Invariant::AllOrNone, |_, stored| drop(stored.facts.remove(0)));
        finds(Invariant::AllOrNone, |_, stored| stored.jobs.push((15, 200)));
    }

    #[test]
    fn lost_and_doubled_events_are_found() {
        finds(Invariant::AcknowledgedIsThere, |_, stored| drop(stored.facts.pop()));
        finds(Invariant::NothingTwice, |_, stored| stored.facts.push(stored.facts[1].clone()));
        finds(Invariant::NothingTwice, |_, stored| stored.facts[1].key = "e4".into());
        finds(Invariant::NothingTwice, |_, stored| stored.facts[1].key = "x".into());
        finds(Invariant::NothingTwice, |seen, _| seen.accepted[1].created = true);
        finds(Invariant::NothingTwice, |seen, _| drop(seen.accepted.pop()));
        finds(Invariant::NothingRefused, |seen, _| seen.refused.push("500".into()));
    }

    #[test]
    fn answers_that_differ_are_found() {
        finds(Invariant::OneAnswer, |seen, _| seen.accepted[1].id = seen.accepted[2].id.clone());
        finds(Invariant::OneAnswer, |seen, _| {
            seen.accepted[1].entries.pop();
        });
        finds(Invariant::OneAnswer, |seen, _| drop(seen.accepted[0].jobs.pop()));
    }
}
