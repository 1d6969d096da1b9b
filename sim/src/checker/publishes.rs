//! Checks publishes: everything acknowledged is stored, and nothing is stored twice.

use std::collections::{HashMap, HashSet};

use super::{Invariant, Report};
use crate::history::{Answer, Intent, Op, OpOutcome};
use crate::state::State;

/// The publishes of one key.
#[derive(Debug, Default)]
struct Tried<'a> {
    /// The entries it was acknowledged as.
    ids: HashSet<i64>,
    /// Whether one of them was acknowledged as new rather than as a duplicate.
    created: bool,
    /// Publishes that may have happened.
    maybe: usize,
    /// The error of a publish that was denied.
    denied: Option<&'a str>,
    /// Whether it was published under a deduplication key.
    once: bool,
}

pub(super) fn check(history: &[Op], state: &State, report: &mut Report) {
    let tried = gather(history);
    let mut present: HashMap<&str, HashSet<i64>> = HashMap::new();
    for (id, key) in state.entries() {
        present.entry(key).or_default().insert(id);
    }
    let nothing = HashSet::new();
    for (key, tried) in &tried {
        let there = present.get(key).unwrap_or(&nothing);
        report.counts.acknowledged += usize::from(!tried.ids.is_empty());
        if tried.ids.is_empty() && tried.maybe > 0 {
            report.counts.unknown += 1;
            report.counts.unknown_present += usize::from(!there.is_empty());
        }
        for id in tried.ids.difference(there) {
            report.violate(
                Invariant::AcknowledgedIsThere,
                format!("{key} was acknowledged as entry {id}, which is missing"),
            );
        }
        // Stored, although every publish was denied or answered as a duplicate: the denied one did happen.
        if let (Some(error), 0, false, false) = (tried.denied, tried.maybe, tried.created, there.is_empty()) {
            report.violate(Invariant::DeniedIsNotThere, format!("{key} was denied ({error}), but stored: {there:?}"));
            continue;
        }
        let most = if tried.once { 1.min(tried.ids.len() + tried.maybe) } else { tried.ids.len() + tried.maybe };
        if there.len() > most {
            let detail = format!("{key} has the entries {there:?}, but {most} publishes of it may have happened");
            report.violate(Invariant::NothingTwice, detail);
        }
    }
    for (key, there) in present {
        if !tried.contains_key(key) {
            report.violate(Invariant::NothingTwice, format!("{key:?} has the entries {there:?}; it was not published"));
        }
    }
    check_facts(state, report);
}

fn gather(history: &[Op]) -> HashMap<&str, Tried<'_>> {
    let mut all: HashMap<&str, Tried<'_>> = HashMap::new();
    for op in history {
        let Intent::Publish { offers, .. } = &op.intent else { continue };
        for (index, offer) in offers.iter().enumerate() {
            let tried = all.entry(&offer.key).or_default();
            tried.once |= offer.once;
            match &op.outcome {
                None | Some(OpOutcome::Unknown { .. }) => tried.maybe += 1,
                Some(OpOutcome::Published { answers }) => match answers.get(index) {
                    Some(Answer::Created { id }) => {
                        tried.ids.insert(*id);
                        tried.created = true;
                    }
                    Some(Answer::Duplicate { id }) => {
                        tried.ids.insert(*id);
                    }
                    Some(Answer::Refused { .. }) => {}
                    Some(Answer::Denied { error }) => tried.denied = Some(error),
                    Some(Answer::Unknown { .. }) | None => tried.maybe += 1,
                },
                Some(OpOutcome::Denied { error }) => tried.denied = Some(error),
                Some(_) => {}
            }
        }
    }
    all
}

/// Generations of one entry share its fact; two entries never share one.
fn check_facts(state: &State, report: &mut Report) {
    let ids: HashSet<i64> = state.entries().map(|(id, _)| id).collect();
    if ids.len() as u64 != state.facts {
        let detail = format!("{} facts, but {} entries", state.facts, ids.len());
        report.violate(Invariant::OneEntryPerFact, detail);
    }
}
