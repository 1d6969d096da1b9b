//! The bits of the column `flags` of live entries and log rows, null where none is set.

/// It has tags.
pub(super) const TAGGED: i64 = 1;
/// The audit knows of a claim.
pub(super) const AUDITED: i64 = 2;
/// It stays live when it is exhausted, and keeps its place.
pub(super) const KEEPS_PLACE: i64 = 4;
/// It is kept: exhausted and live. Only in the live table.
pub(super) const KEPT: i64 = 8;

/// It carries the whole event instead of its data alone.
pub(super) const IN_ENVELOPE: i64 = 16;

/// It was added to a fact that had been stored before: when, is in the table `deduplication`.
pub(super) const ADDED: i64 = 32;

/// Whether an entry was added to its fact.
pub(super) fn is_added(flags: Option<i64>) -> bool {
    has(flags, ADDED)
}

/// Whether an entry carries the whole event.
pub(super) fn is_in_envelope(flags: Option<i64>) -> bool {
    has(flags, IN_ENVELOPE)
}

/// Whether an entry has tags.
pub(super) fn is_tagged(flags: Option<i64>) -> bool {
    has(flags, TAGGED)
}

/// Whether a claim of the entry was audited.
pub(super) fn is_audited(flags: Option<i64>) -> bool {
    has(flags, AUDITED)
}

/// Whether an entry keeps its place when it is exhausted.
pub(super) fn keeps_place(flags: Option<i64>) -> bool {
    has(flags, KEEPS_PLACE)
}

/// Whether an entry is exhausted and keeps its place.
pub(super) fn is_kept(flags: Option<i64>) -> bool {
    has(flags, KEPT)
}

fn has(flags: Option<i64>, bit: i64) -> bool {
    flags.is_some_and(|flags| flags & bit != 0)
}
