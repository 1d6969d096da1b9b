//! Which subscriptions an event goes to, in process: among very many and among ten, three of which match.

use std::hint::black_box;
use std::time::Instant;

use tidegate::Tsid;
use tidegate_core::matching::{Binding, Index};

use super::{Bench, known};
use crate::Result;
use crate::report::Measured;
use crate::runner::{interleave, median, short};
use crate::scale::Scale;

/// Subscriptions of the small side.
const FEW: usize = 10;
/// How many match each event.
const MATCHING: usize = 3;
/// The sets of parts that are `*`, each used by as many subscriptions as any other. Bit 0 is the first part.
const SETS: usize = 16;

/// What subscriptions ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Exact,
    Wildcard,
}

/// Runs the selected disciplines of this family.
///
/// # Errors
/// When an event does not find its three subscriptions.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut outcomes = Vec::new();
    for (name, by) in [("matching_exact", By::Exact), ("matching_wildcard", By::Wildcard)] {
        if !bench.wanted.has(name) {
            continue;
        }
        let Scale { runs, matches, subscriptions, .. } = bench.scale;
        let (many, few) = (index(subscriptions, by)?, index(FEW, by)?);
        let one = [0];
        let pair =
            interleave(name, runs, async || micros(&many, &one, matches), async || micros(&few, &one, matches)).await?;
        // The same event again and again leaves all that it needs in the processor's caches. Here each event is of
        // another type.
        let all: Vec<usize> = (0..subscriptions / FEW).map(|group| group * 7_919 % (subscriptions / FEW)).collect();
        let spread: Vec<f64> = (0..runs).map(|_| micros(&many, &all, matches)).collect::<Result<_>>()?;
        let note = format!("events of {} types in turn: {} µs", all.len(), short(median(&spread)));
        outcomes.push(Measured::beside(known(name)?, pair).note(note));
    }
    Ok(outcomes)
}

/// Subscriptions in groups of ten, of which three ask for the events of the group's type and seven for none that occur.
fn index(count: usize, by: By) -> Result<Index<usize>> {
    let mut index = Index::default();
    for number in 0..count {
        let (group, member) = (number / FEW, number % FEW);
        let event_type = if member < MATCHING { event_type(group) } else { format!("absent{number}:a:b:c") };
        let pattern = match by {
            By::Exact => event_type,
            By::Wildcard => with_wildcards(&event_type, number),
        };
        let binding = Binding { pattern: pattern.parse()?, version: None };
        index.insert(Tsid::from_i64(i64::try_from(number)? + 1), None, vec![binding], number);
    }
    Ok(index)
}

/// The type of a group's events. Its parts are the group's own, so that no pattern that keeps one matches another group's.
fn event_type(group: usize) -> String {
    format!("shop{group}:area{group}:thing{group}:event{group}")
}

/// Puts `*` for some of the four parts, but not for all: nothing would be left that tells groups apart.
fn with_wildcards(event_type: &str, number: usize) -> String {
    let set = number % (SETS - 1);
    let part = |(at, part)| if set >> at & 1 == 1 { "*" } else { part };
    let parts: Vec<&str> = event_type.split(':').enumerate().map(part).collect();
    // Of an absent type, what stands apart is its first part.
    if event_type.starts_with("absent") { format!("absent{number}:{}", parts[1..].join(":")) } else { parts.join(":") }
}

/// Microseconds per event; the types of these groups take turns.
fn micros(index: &Index<usize>, groups: &[usize], events: usize) -> Result<f64> {
    let types: Vec<String> = groups.iter().map(|group| event_type(*group)).collect();
    for event_type in &types {
        let found = index.matching(None, event_type, None).len();
        if found != MATCHING {
            return Err(format!("{event_type} matches {found} subscriptions instead of {MATCHING}").into());
        }
    }
    let start = Instant::now();
    for event_type in types.iter().cycle().take(events) {
        black_box(index.matching(None, black_box(event_type), None));
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / events as f64)
}
