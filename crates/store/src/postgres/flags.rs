//! The column `flags` of live entries and log rows; null where nothing is set.

use tidegate_core::NewEvent;

use crate::values::{Family, Target};

/// It has tags.
const TAGGED: i16 = 1;
/// A claim of it was audited.
const AUDITED: i16 = 2;
/// It keeps its place when it is exhausted.
const KEEPS_PLACE: i16 = 4;
/// It is exhausted and live. Never set in the log.
const KEPT: i16 = 8;
/// It carries the whole event instead of its data alone.
const IN_ENVELOPE: i16 = 16;

/// It was added to a fact that had been stored before: when, is in the table `deduplication`.
pub(super) const ADDED: i16 = 32;

/// The flags of a new entry.
pub(super) fn of(event: &NewEvent) -> Option<i16> {
    let tagged = if event.tags.is_empty() { 0 } else { TAGGED };
    let keeps_place = if event.keeps_place { KEEPS_PLACE } else { 0 };
    Some(tagged | keeps_place).filter(|flags| *flags != 0)
}

/// The flags of what is made for a fact; only entries have tags.
pub(super) fn of_target(target: &Target, fact: &NewEvent) -> Option<i16> {
    let tagged = if fact.tags.is_empty() || target.family != Family::Entries { 0 } else { TAGGED };
    let keeps_place = if target.keeps_place { KEEPS_PLACE } else { 0 };
    let in_envelope = if target.in_envelope { IN_ENVELOPE } else { 0 };
    Some(tagged | keeps_place | in_envelope).filter(|flags| *flags != 0)
}

/// Whether the entry was added to its fact.
pub(super) fn is_added(flags: Option<i16>) -> bool {
    has(flags, ADDED)
}

/// Whether the entry carries the whole event.
pub(super) fn is_in_envelope(flags: Option<i16>) -> bool {
    has(flags, IN_ENVELOPE)
}

/// Whether an entry has tags.
pub(super) fn is_tagged(flags: Option<i16>) -> bool {
    has(flags, TAGGED)
}

/// Whether a claim of the entry was audited.
pub(super) fn is_audited(flags: Option<i16>) -> bool {
    has(flags, AUDITED)
}

/// Whether the entry keeps its place when it is exhausted.
pub(super) fn keeps_place(flags: Option<i16>) -> bool {
    has(flags, KEEPS_PLACE)
}

/// Whether the entry is exhausted and keeps its place.
pub(super) fn is_kept(flags: Option<i16>) -> bool {
    has(flags, KEPT)
}

fn has(flags: Option<i16>, bit: i16) -> bool {
    flags.is_some_and(|flags| flags & bit != 0)
}
