//! Results of maintenance, and what retention keeps.

use std::time::Duration;

use tidegate_core::EntryId;

/// What one round of upkeep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Upkeep {
    /// Entries that became claimable: arrivals sorted in, group heads promoted.
    pub promoted: u64,
    /// Expired deduplication and idempotency keys that were removed.
    pub keys_expired: u64,
    /// Entries past their expiry that were ended.
    pub expired: u64,
    /// The length of an outage that this round detected; all leases were moved by it.
    pub outage: Option<Duration>,
    /// Groups with parked entries but no head, whose first entry was promoted. This only happens when rows were removed
    /// by other programs, or by a fault.
    pub groups_mended: u64,
}

/// What a successful probe reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Probe {
    /// The length of SQLite's write-ahead log in bytes; `None` where there is none.
    pub wal_bytes: Option<u64>,
}

/// What one small batch of retention removes. `None` keeps everything of that kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// Removes audit rows older than this.
    pub audit: Option<Duration>,
    /// Removes entries that ended longer ago than this, except dead letters and what a projection has not read. A fact of
    /// exactly one entry goes with it.
    pub log: Option<Duration>,
    /// Removes dead letters that ended longer ago than this, although they could be redriven.
    pub dead_letters: Option<Duration>,
    /// Removes facts older than this that were stored with no or several targets and that nothing refers to any more.
    pub facts: Option<Duration>,
    /// The most rows to examine in this batch.
    pub batch: usize,
    /// Where the last batch of this round stopped among the entries; `None` to begin a round.
    pub from: Option<EntryId>,
    /// Where it stopped among the facts; `None` to begin a round.
    pub facts_from: Option<EntryId>,
}

/// What one batch of retention did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retained {
    /// Audit rows removed.
    pub audit: u64,
    /// Ended entries removed.
    pub entries: u64,
    /// Facts removed, beside those that went with their only entry.
    pub facts: u64,
    /// Where the next batch begins among the entries; `None` at the end of the round.
    pub next: Option<EntryId>,
    /// Where the next batch begins among the facts; `None` at the end of the round.
    pub next_facts: Option<EntryId>,
}
