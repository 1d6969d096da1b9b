//! Single entries as people see them, and dead letters.

use tidegate_core::{EntryId, LeaseToken, Place, Tsid};

use crate::error::Result;
use crate::sql::{Columns as _, Only, statements};
use crate::sqlite::engine::row::{Moment, Shown, end_of, queue_name, row};
use crate::sqlite::flags::{is_in_envelope, is_kept};
use crate::sqlite::statements::facts::{ShownFactRow, shown_fact};
use crate::values::{Census, EntryPhase, EntryView, Fact};

row! {
    /// What live and ended entries (`q`) have in common.
    pub(in crate::sqlite) struct EntryRow {
        event_id: i64 = "q.event_id",
        queue: String = "n.name",
        queue_client: Option<i64> = "n.client_id",
        queue_id: i64 = "q.queue_id",
        generation: u32 = "q.generation",
        attempts: u32 = "q.attempts",
        max_attempts: u32 = "q.max_attempts",
        token: i64 = "q.token",
        priority: i16 = "coalesce(l.priority, -1000 - q.lane)",
        group_key: Option<Shown> = "q.group_key",
        worker: Option<Shown> = "q.worker",
        expires_at: Option<Moment> = "q.expires_at",
        rank: i32 = "q.rank",
        entry_flags: Option<i64> = "q.flags",
    }
}

row! {
    /// Where a live entry is in its life.
    pub(in crate::sqlite) struct LivePhaseRow {
        place: i16 = "q.place",
        due_at: Option<Moment> = "q.due_at",
        lease_until: Option<Moment> = "q.lease_until",
        processing_started_at: Option<Moment> = "q.processing_started_at",
        exhausted_as: i16 = "q.exhausted_as",
        flags: Option<i64> = "q.flags",
    }
}

row! {
    /// How an ended entry ended.
    pub(in crate::sqlite) struct EndedPhaseRow {
        status: i16 = "q.status",
        finished_at: Moment = "q.finished_at",
        superseded: bool = "q.superseded",
    }
}

row! {
    /// The rest of a live entry.
    pub(in crate::sqlite) struct LiveRow {
        error: Option<String> = "q.last_error",
        updated_at: Moment = "coalesce(q.updated_at, e.created_at, 0)",
    }
}

row! {
    /// The rest of an ended entry.
    pub(in crate::sqlite) struct EndedRow {
        error: Option<String> = "q.errors",
        results: Option<String> = "q.results",
    }
}

/// A live entry as it is shown.
pub(in crate::sqlite) type ShownLive = ((EntryRow, (LivePhaseRow, LiveRow)), ShownFactRow);
/// An ended entry as it is shown.
pub(in crate::sqlite) type ShownEnded = ((EntryRow, (EndedPhaseRow, EndedRow)), ShownFactRow);

/// A live entry.
pub(in crate::sqlite) fn live_view(id: EntryId, ((mut row, (phase, live)), fact): ShownLive) -> Result<EntryView> {
    let phase = phase.phase(row.worker.take())?;
    view(id, row, Rest { phase, error: live.error, results: None, updated_at: live.updated_at }, fact)
}

impl LivePhaseRow {
    /// The phase of a live entry, given its last holder.
    pub(in crate::sqlite) fn phase(&self, worker: Option<Shown>) -> Result<EntryPhase> {
        let Some(until) = self.lease_until else { return self.phase_of_waiting() };
        Ok(EntryPhase::Leased {
            worker: worker.map(|shown| shown.0).unwrap_or_default(),
            since: self.processing_started_at.unwrap_or(until).into(),
            until: until.into(),
        })
    }

    /// The phase of a live entry that nobody holds.
    fn phase_of_waiting(&self) -> Result<EntryPhase> {
        let due = self.due_at.map(Into::into);
        Ok(match Place::from_code(self.place) {
            _ if is_kept(self.flags) => EntryPhase::Kept { end: end_of(self.exhausted_as)? },
            Some(Place::Fresh | Place::Timed) => EntryPhase::Waiting { due },
            Some(Place::Aside) => EntryPhase::Aside { due: due.unwrap_or_default() },
            Some(Place::Parked | Place::Arrived) | None => EntryPhase::Parked,
        })
    }
}

/// An ended entry.
pub(in crate::sqlite) fn ended_view(id: EntryId, ((mut row, (phase, ended)), fact): ShownEnded) -> Result<EntryView> {
    let (error, results, updated_at) = (ended.error, ended.results, phase.finished_at);
    let phase = phase.phase(row.worker.take())?;
    view(id, row, Rest { phase, error, results, updated_at }, fact)
}

impl EndedPhaseRow {
    /// The phase of an ended entry, given the worker that ended it.
    pub(in crate::sqlite) fn phase(&self, worker: Option<Shown>) -> Result<EntryPhase> {
        let (end, at) = (end_of(self.status)?, self.finished_at.into());
        Ok(EntryPhase::Ended { end, at, worker: worker.map(|shown| shown.0), superseded: self.superseded })
    }
}

/// The part of a view in which live and ended entries differ.
struct Rest {
    phase: EntryPhase,
    error: Option<String>,
    results: Option<String>,
    updated_at: Moment,
}

fn view(id: EntryId, row: EntryRow, rest: Rest, fact: ShownFactRow) -> Result<EntryView> {
    let (fact, event_id) = (Fact::from(fact), Tsid::from_i64(row.event_id));
    Ok(EntryView {
        id,
        event_id,
        queue: queue_name(row.queue, row.queue_client)?,
        generation: row.generation,
        attempts: row.attempts,
        max_attempts: row.max_attempts,
        token: LeaseToken(row.token),
        priority: row.priority,
        group: row.group_key.map(|shown| shown.0),
        rank: row.rank,
        expires_at: row.expires_at.map(Into::into),
        phase: rest.phase,
        error: rest.error,
        results: rest.results,
        updated_at: rest.updated_at.into(),
        fact: if is_in_envelope(row.entry_flags) { fact.in_envelope(event_id) } else { fact },
    })
}

row! {
    /// Counts of everything.
    pub(in crate::sqlite) struct CensusRow {
        events: i64,
        waiting: i64,
        leased: i64,
        ended: i64,
    }
}

impl From<CensusRow> for Census {
    fn from(row: CensusRow) -> Self {
        let [events, waiting, leased, ended] = [row.events, row.waiting, row.leased, row.ended].map(i64::unsigned_abs);
        Self { events, waiting, leased, ended }
    }
}

/// Fills in `{entry}`, the columns of an entry, and `{fact}`, those of its fact, which may be missing.
fn shown(entry: &str, sql: &str) -> String {
    sql.replace("{entry}", entry).replace("{fact}", &shown_fact("q"))
}

const LIVE: &str = "
    SELECT {entry}, {fact} FROM {live} q JOIN {queues} n ON n.id = q.queue_id
    LEFT JOIN {lanes} l ON l.id = q.lane LEFT JOIN {ns}_events e ON e.id = q.event_id WHERE q.id = ?1";
const ENDED: &str = "
    SELECT {entry}, {fact} FROM {log} q JOIN {queues} n ON n.id = q.queue_id
    LEFT JOIN {lanes} l ON l.id = q.lane LEFT JOIN {ns}_events e ON e.id = q.event_id
    WHERE q.id = ?1 ORDER BY q.generation DESC LIMIT 1";

/// Reads a live entry as it is shown.
pub(in crate::sqlite) fn shown_live() -> String {
    shown(&<(EntryRow, (LivePhaseRow, LiveRow))>::list(), LIVE)
}

/// Reads an ended entry as it is shown.
pub(in crate::sqlite) fn shown_ended() -> String {
    shown(&<(EntryRow, (EndedPhaseRow, EndedRow))>::list(), ENDED)
}

statements! {
    /// Statements about entries.
    pub(in crate::sqlite) struct Entries {
        /// A live entry as it is shown. Primary keys.
        live: ShownLive = &shown_live();
        /// An ended entry as it is shown. Index event_log_key, from its end, then primary keys.
        ended: ShownEnded = &shown_ended();
        /// The event of an entry, live or ended. Primary key; index event_log_key.
        event_of: Only<Option<i64>> = "
            SELECT coalesce((SELECT event_id FROM {live} WHERE id = ?1),
                            (SELECT event_id FROM {log} WHERE id = ?1 LIMIT 1))";
        /// The number of entries of a group before this parked one: the head, what stepped aside and is due, and what is
        /// parked before it. Indexes event_queue_group_head, event_queue_aside and event_queue_parked.
        ahead_in_group: Only<i64> = "
            SELECT (SELECT count(*) FROM {live} INDEXED BY {live}_group_head
                    WHERE queue_id = ?1 AND group_key = ?2 AND group_key IS NOT NULL AND place < 2 AND id <> ?3)
                 + (SELECT count(*) FROM {live} INDEXED BY {live}_aside
                    WHERE queue_id = ?1 AND group_key = ?2 AND place = 4 AND due_at <= ?5 AND id <> ?3)
                 + (SELECT count(*) FROM {live} INDEXED BY {live}_parked
                    WHERE queue_id = ?1 AND group_key = ?2 AND place IN (2, 3) AND (rank, id) < (?4, ?3))";
        /// The number of claimable entries of a queue before this one, up to 1,000. Indexes event_queue_fresh and
        /// event_queue_timed, at most as many entries as are counted or skipped as leased.
        ahead_in_queue: Only<i64> = "
            SELECT count(*) FROM (
                SELECT 1 FROM {lanes} l
                CROSS JOIN {live} q INDEXED BY {live}_fresh ON q.lane = l.id AND q.place = 0
                WHERE l.queue_id = ?1 AND l.state = 0 AND (l.priority < ?2 OR l.priority = ?2 AND q.id < ?3)
                AND (q.lease_until IS NULL OR q.lease_until <= ?4)
                UNION ALL
                SELECT 1 FROM {lanes} l
                CROSS JOIN {live} q INDEXED BY {live}_timed ON q.lane = l.id AND q.place = 1 AND q.due_at <= ?4
                WHERE l.queue_id = ?1 AND l.state = 0 AND (l.priority < ?2 OR l.priority = ?2 AND q.id < ?3)
                AND (q.lease_until IS NULL OR q.lease_until <= ?4)
                LIMIT 1000)";
        /// Dead letters of a queue. Index event_log_dead_letters.
        dead_letters: Only<i64> = "
            SELECT id FROM {log} INDEXED BY {log}_dead_letters
            WHERE queue_id = ?1 AND status IN (1, 2) AND superseded = 0 AND id > ?2 ORDER BY id LIMIT ?3";
        /// Dead letters of a queue with one type. Index event_log_dead_letters and the facts' primary key.
        dead_letters_of_type: Only<i64> = "
            SELECT g.id FROM {log} g INDEXED BY {log}_dead_letters
            CROSS JOIN {ns}_events e ON e.id = g.event_id
            WHERE g.queue_id = ?1 AND g.status IN (1, 2) AND g.superseded = 0 AND g.id > ?2 AND e.event_type = ?4
            ORDER BY g.id LIMIT ?3";
        /// Makes an ended entry live again as a new generation. Primary key of the log; adds to the queue's indexes.
        redrive = "
            INSERT INTO {live} (id, event_id, due_at, token, client_id, lane, queue_id, attempts, max_attempts,
                                generation, place, exhausted_as, group_key, updated_at, room, flags, expires_at, rank)
            SELECT id, event_id, ?2, token + ?3, client_id, lane, queue_id, 0, max_attempts, generation + 1,
                   CASE WHEN group_key IS NULL THEN 1 ELSE 2 END, exhausted_as, group_key, ?2, zeroblob({room} - 8),
                   flags, CASE WHEN expires_at > ?2 THEN expires_at END, rank
            FROM {log} WHERE seq = ?1";
        /// Starts a kept entry over as a new generation, where it is. Primary key; moves in event_queue_timed.
        redrive_kept: Only<u32> = "
            UPDATE {live} SET generation = generation + 1, attempts = 0, token = token + ?3, due_at = ?2, updated_at = ?2,
                flags = flags & ~8, last_error = NULL, expires_at = CASE WHEN expires_at > ?2 THEN expires_at END
            WHERE id = ?1 AND flags & 8 RETURNING generation";
        /// Marks a log row as redriven or discarded. Primary key.
        supersede = "UPDATE {log} SET superseded = ?2 WHERE seq = ?1";
        /// Counts of everything, in both families. The tables, whole, the logs by their keys. Of an entry that ended, the
        /// last log row is the only one that was not redriven.
        census: CensusRow = "
            SELECT (SELECT count(*) FROM {ns}_events) AS events,
                   (SELECT count(*) FROM {ns}_event_queue WHERE lease_until IS NULL)
                   + (SELECT count(*) FROM {ns}_dispatch_queue WHERE lease_until IS NULL) AS waiting,
                   (SELECT count(*) FROM {ns}_event_queue WHERE lease_until IS NOT NULL)
                   + (SELECT count(*) FROM {ns}_dispatch_queue WHERE lease_until IS NOT NULL) AS leased,
                   (SELECT count(*) FROM {ns}_event_log INDEXED BY {ns}_event_log_key)
                   - (SELECT count(*) FROM {ns}_event_log INDEXED BY {ns}_event_log_superseded WHERE superseded = 1)
                   + (SELECT count(*) FROM {ns}_dispatch_log INDEXED BY {ns}_dispatch_log_key)
                   - (SELECT count(*) FROM {ns}_dispatch_log INDEXED BY {ns}_dispatch_log_superseded
                      WHERE superseded = 1) AS ended";
    }
}
