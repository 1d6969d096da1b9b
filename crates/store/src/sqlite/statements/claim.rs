//! Claims: which entries are offered and leased.

use rusqlite::Row;

use crate::error::Result;
use crate::sql::{Columns, FromRow, Only, statements};
use crate::sqlite::engine::row::row;
use crate::sqlite::statements::facts::FactRow;

/// Bytes that a waiting row reserves for what a claim writes: three moments and a worker's name.
pub(in crate::sqlite) const ROOM: usize = 48;

row! {
    /// A live entry that can be claimed, as `q` in a statement.
    pub(in crate::sqlite) struct ClaimableRow {
        id: i64 = "q.id",
        event_id: i64 = "q.event_id",
        generation: u32 = "q.generation",
        attempts: u32 = "q.attempts",
        max_attempts: u32 = "q.max_attempts",
        token: i64 = "q.token",
        exhausted_as: i16 = "q.exhausted_as",
        group_key: Option<String> = "q.group_key",
        last_error: Option<String> = "q.last_error",
        flags: Option<i64> = "q.flags",
        expires_at: Option<i64> = "q.expires_at",
        /// There is no fact.
        is_missing: bool = "e.event_type IS NULL",
    }
}

/// An entry that can be claimed, with its fact unless that is missing from the table of events.
#[derive(Debug)]
pub(in crate::sqlite) struct OfferRow {
    pub(in crate::sqlite) entry: ClaimableRow,
    pub(in crate::sqlite) fact: Option<FactRow>,
}

impl OfferRow {
    /// The column with the event's type, by which offers are chosen without reading them.
    pub(in crate::sqlite) const EVENT_TYPE: &str = "event_type";

    /// The number of the entry, also where the rest of the row cannot be read.
    pub(in crate::sqlite) fn number(row: &Row<'_>) -> Result<i64> {
        Only::read(row, 0).map(|Only(id)| id)
    }
}

impl Columns for OfferRow {
    const COUNT: usize = <(ClaimableRow, FactRow)>::COUNT;

    #[cfg(test)]
    fn names() -> Vec<Option<&'static str>> {
        <(ClaimableRow, FactRow)>::names()
    }

    fn list() -> String {
        <(ClaimableRow, FactRow)>::list()
    }
}

impl FromRow<Row<'_>> for OfferRow {
    fn read(row: &Row<'_>, at: usize) -> Result<Self> {
        let entry = ClaimableRow::read(row, at)?;
        let fact = (!entry.is_missing).then(|| FactRow::read(row, at + ClaimableRow::COUNT)).transpose()?;
        Ok(Self { entry, fact })
    }
}

row! {
    /// The last leased entry of a range, and when the first lease in it ends.
    pub(in crate::sqlite) struct LeasedBelow {
        last: Option<i64> = "max(id)",
        first_end: Option<i64> = "min(lease_until)",
    }
}

statements! {
    /// Statements about claims.
    pub(in crate::sqlite) struct Claim {
        /// The next lane that holds fresh entries. Index event_queue_fresh.
        next_fresh_lane: Only<Option<i64>> = "
            SELECT min(lane) FROM {live} INDEXED BY {live}_fresh WHERE place = 0 AND lane BETWEEN ?1 AND ?2";
        /// The next lane that holds timed entries. Index event_queue_timed.
        next_timed_lane: Only<Option<i64>> = "
            SELECT min(lane) FROM {live} INDEXED BY {live}_timed WHERE place = 1 AND lane BETWEEN ?1 AND ?2";
        /// Claimable fresh entries of a lane. Index event_queue_fresh, from the lane's low-water mark on, and the
        /// facts' primary key; stepped only as far as needed.
        fresh: OfferRow = "
            SELECT {columns} FROM {live} q INDEXED BY {live}_fresh LEFT JOIN {ns}_events e ON e.id = q.event_id
            WHERE q.lane = ?1 AND q.place = 0 AND q.id > ?3 AND (q.lease_until IS NULL OR q.lease_until <= ?2)
            ORDER BY q.id";
        /// Claimable timed entries of a lane. Index event_queue_timed and the facts' primary key; stepped only as far
        /// as needed.
        timed: OfferRow = "
            SELECT {columns} FROM {live} q INDEXED BY {live}_timed LEFT JOIN {ns}_events e ON e.id = q.event_id
            WHERE q.lane = ?1 AND q.place = 1 AND q.due_at <= ?2 AND (q.lease_until IS NULL OR q.lease_until <= ?2)
            ORDER BY q.due_at, q.id";
        /// Claimable entries with a tag, by priority and state. Index event_tags_rank, then primary keys; stepped only
        /// as far as needed.
        tagged: OfferRow = "
            SELECT {columns} FROM {ns}_event_tags t INDEXED BY {ns}_event_tags_rank
            CROSS JOIN {live} q ON q.id = t.entry_id LEFT JOIN {ns}_events e ON e.id = q.event_id
            WHERE t.queue_id = ?1 AND t.tag = ?2 AND t.state = ?3 AND t.priority = ?4 AND t.rank <= ?5
              AND q.place < 2 AND (q.place = 0 OR q.due_at <= ?6) AND (q.lease_until IS NULL OR q.lease_until <= ?6)
            ORDER BY t.rank, t.entry_id";
        /// The last leased fresh entry of a range and the first end of a lease, for the low-water mark. Index
        /// event_queue_fresh, over what was claimed and what was leased before it.
        leased_below: LeasedBelow = "
            SELECT {columns} FROM {live} INDEXED BY {live}_fresh
            WHERE lane = ?1 AND place = 0 AND id > ?2 AND id <= ?3 AND lease_until > ?4";
        /// Leases a run of neighbours. Primary key; changes no indexed column, and the rows keep their length.
        take = "
            UPDATE {live} SET lease_until = ?3, processing_started_at = ?4, updated_at = ?4, token = token + 1,
                attempts = attempts + 1, worker = ?5, room = zeroblob(?6)
            WHERE id BETWEEN ?1 AND ?2";
        /// The same for an audited claim.
        take_audited = "
            UPDATE {live} SET lease_until = ?3, processing_started_at = ?4, updated_at = ?4, token = token + 1,
                attempts = attempts + 1, worker = ?5, room = zeroblob(?6), flags = coalesce(flags, 0) | 2
            WHERE id BETWEEN ?1 AND ?2";
    }
}
