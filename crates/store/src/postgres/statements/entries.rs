//! Single entries as people see them, and dead letters.

use tidegate_core::{End, EntryId, LeaseToken, Place, Tsid};

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::row::{Moment, count, queue_name, row};
use crate::postgres::flags::is_in_envelope;
use crate::postgres::statements::added::made_at;
use crate::postgres::statements::facts::FactRow;
use crate::sql::{Columns as _, Only, statements};
use crate::values::{Census, EntryPhase, EntryView, Fact};

row! {
    /// An entry, live or ended. The expressions are those of a live one.
    pub(in crate::postgres) struct EntryRow {
        id: i64 = "q.id",
        event_id: i64 = "q.event_id",
        queue: String = "n.name",
        queue_client: Option<i64> = "n.client_id",
        generation: i32 = "q.generation",
        attempts: i32 = "q.attempts",
        max_attempts: i32 = "q.max_attempts",
        token: i64 = "q.token",
        lane: i32 = "q.lane",
        priority: Option<i16> = "l.priority",
        group_key: Option<String> = "q.group_key",
        rank: i32 = "q.rank",
        expires_at: Option<Moment> = "q.expires_at",
        /// The end that a live entry got that keeps its place.
        kept_as: Option<i16> = "CASE WHEN q.flags & 8 <> 0 THEN q.exhausted_as END",
        /// `None` for an ended entry.
        place: Option<i16> = "q.place",
        due_at: Option<Moment> = "q.due_at",
        lease_until: Option<Moment> = "q.lease_until",
        processing_started_at: Option<Moment> = "q.processing_started_at",
        finished_at: Option<Moment> = "NULL::timestamptz",
        status: Option<i16> = "NULL::smallint",
        superseded: i16 = "0::smallint",
        worker: Option<String> = "q.worker",
        error: Option<String> = "q.last_error",
        results: Option<String> = "NULL::text",
        flags: Option<i16> = "q.flags",
        updated_at: Moment = "coalesce(q.updated_at, e.created_at, {q_made})",
    }
}

impl TryFrom<(EntryRow, FactRow)> for EntryView {
    type Error = Error;

    fn try_from((mut row, fact): (EntryRow, FactRow)) -> Result<Self> {
        let id = EntryId::new(row.id)?;
        let (fact, event_id) = (Fact::from(fact), Tsid::from_i64(row.event_id));
        Ok(Self {
            id,
            phase: row.phase(id)?,
            event_id,
            queue: queue_name(row.queue, row.queue_client)?,
            generation: count(row.generation),
            attempts: count(row.attempts),
            max_attempts: count(row.max_attempts),
            token: LeaseToken(row.token),
            // The lane of an arrival says which priority it has.
            priority: row.priority.unwrap_or((-row.lane - 1000) as i16),
            group: row.group_key,
            rank: row.rank,
            expires_at: row.expires_at.map(Into::into),
            error: row.error,
            results: row.results,
            updated_at: row.updated_at.into(),
            fact: if is_in_envelope(row.flags) { fact.in_envelope(event_id) } else { fact },
        })
    }
}

impl EntryRow {
    fn phase(&mut self, id: EntryId) -> Result<EntryPhase> {
        let stage = Stage {
            place: self.place,
            is_grouped: self.group_key.is_some(),
            due_at: self.due_at,
            lease_until: self.lease_until,
            processing_started_at: self.processing_started_at,
            kept_as: self.kept_as.and_then(End::from_code),
            finished_at: self.finished_at,
            status: self.status,
            superseded: self.superseded,
            worker: self.worker.take(),
        };
        stage.phase(id)
    }
}

/// What of an entry says where it is in its life.
pub(in crate::postgres) struct Stage {
    /// `None` for an ended entry.
    pub(in crate::postgres) place: Option<i16>,
    pub(in crate::postgres) is_grouped: bool,
    pub(in crate::postgres) due_at: Option<Moment>,
    pub(in crate::postgres) lease_until: Option<Moment>,
    pub(in crate::postgres) processing_started_at: Option<Moment>,
    pub(in crate::postgres) kept_as: Option<End>,
    pub(in crate::postgres) finished_at: Option<Moment>,
    pub(in crate::postgres) status: Option<i16>,
    pub(in crate::postgres) superseded: i16,
    pub(in crate::postgres) worker: Option<String>,
}

impl Stage {
    pub(in crate::postgres) fn phase(self, id: EntryId) -> Result<EntryPhase> {
        let Some(place) = self.place else {
            let (Some(end), Some(at)) = (self.status.and_then(End::from_code), self.finished_at) else {
                return Err(Error::new(ErrorKind::Corrupt, format!("entry {id} has an unknown end")));
            };
            let superseded = self.superseded != 0;
            return Ok(EntryPhase::Ended { end, at: at.into(), worker: self.worker, superseded });
        };
        if let Some(until) = self.lease_until {
            let since = self.processing_started_at.unwrap_or(until).into();
            return Ok(EntryPhase::Leased { worker: self.worker.unwrap_or_default(), since, until: until.into() });
        }
        if let Some(end) = self.kept_as {
            return Ok(EntryPhase::Kept { end });
        }
        let due = self.due_at.map(Into::into);
        Ok(match (Place::from_code(place), due) {
            (Some(Place::Fresh), _) => EntryPhase::Waiting { due: None },
            (Some(Place::Parked), _) => EntryPhase::Parked,
            (Some(Place::Arrived), _) if self.is_grouped => EntryPhase::Parked,
            (Some(Place::Aside), Some(due)) => EntryPhase::Aside { due },
            _ => EntryPhase::Waiting { due },
        })
    }
}

row! {
    /// What `why` needs to know about a live entry.
    pub(in crate::postgres) struct WhyRow {
        lease_until: Option<Moment>,
        worker: Option<String>,
        place: i16,
        due_at: Option<Moment>,
        group_key: Option<String>,
        rank: i32,
        kept_as: Option<i16>,
        queue_id: i32,
        queue_state: i16,
        event_type: String,
        tags: Option<String>,
        now: Moment,
    }
}

row! {
    /// An entry that a redrive or a reset started over.
    pub(in crate::postgres) struct RedrivenRow {
        id: i64,
        generation: i32,
        queue_id: i32,
        group_key: Option<String>,
        flags: Option<i16>,
    }
}

row! {
    /// Counts of everything.
    pub(in crate::postgres) struct CensusRow {
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

/// Entries with their facts, live (`q`) and ended (`g`).
pub(in crate::postgres) const BY_NUMBER: &str = "
    SELECT {entry}, {q_fact}
    FROM unnest($1::bigint[]) AS i(id)
    CROSS JOIN LATERAL (SELECT * FROM {live} q WHERE q.id = i.id OFFSET 0) AS q
    CROSS JOIN LATERAL (SELECT * FROM {queues} n WHERE n.id = q.queue_id OFFSET 0) AS n
    LEFT JOIN LATERAL (SELECT * FROM {lanes} l WHERE l.id = q.lane OFFSET 0) AS l ON true
    LEFT JOIN LATERAL (SELECT * FROM {ns}.events e WHERE e.id = q.event_id OFFSET 0) AS e ON true
    UNION ALL
    SELECT g.id, g.event_id, n.name, n.client_id, g.generation, g.attempts, g.max_attempts, g.token, g.lane, l.priority,
           g.group_key, g.rank, g.expires_at, NULL, NULL, NULL, NULL, g.processing_started_at, g.finished_at, g.status, g.superseded, g.worker,
           g.errors, g.results, g.flags, g.finished_at, {g_fact}
    FROM unnest($1::bigint[]) AS i(id)
    CROSS JOIN LATERAL (
        SELECT * FROM {log} g
        WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) AND g.superseded <> 1 OFFSET 0
    ) AS g
    CROSS JOIN LATERAL (SELECT * FROM {queues} n WHERE n.id = g.queue_id OFFSET 0) AS n
    LEFT JOIN LATERAL (SELECT * FROM {lanes} l WHERE l.id = g.lane OFFSET 0) AS l ON true
    LEFT JOIN LATERAL (SELECT * FROM {ns}.events e WHERE e.id = g.event_id OFFSET 0) AS e ON true";

/// Fills in the columns of entries and their facts. If a fact is missing, its type is that of the entry's lane and its
/// moment the one that the event's id contains. The moment of an entry that was added to its fact is its own.
pub(in crate::postgres) fn with_facts(sql: &str) -> String {
    let mut text = sql.replace("{entry}", &EntryRow::list());
    for entry in ["q", "g"] {
        let made = format!("to_timestamp((({entry}.event_id >> 22) + 1577836800000) / 1000.0)");
        let fact = FactRow::list()
            .replace("e.event_type AS", "coalesce(e.event_type, l.event_type, '') AS")
            .replace("e.payload AS", "coalesce(e.payload, ''::bytea) AS")
            .replace("e.created_at AS", &format!("coalesce({}, e.created_at, {made}) AS", made_at(entry)));
        text = text.replace(&format!("{{{entry}_fact}}"), &fact).replace(&format!("{{{entry}_made}}"), &made);
    }
    text
}

/// Starts new generations of ended entries; see [`Entries::redrive`]. One whose lane is gone arrives anew, and finds a lane by
/// the type of the one that it had.
pub(in crate::postgres) const REDRIVE: &str = "
    WITH dead AS MATERIALIZED (
        SELECT g.* FROM unnest($2::bigint[]) AS i(id) CROSS JOIN LATERAL (
            SELECT g.*, g.tableoid AS part, g.ctid AS at FROM {log} g
            WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0)
              AND g.superseded + 0 = 0 AND {which}
            FOR UPDATE
        ) AS g
    ), marked AS (
        UPDATE {log} g SET superseded = 1 FROM dead d WHERE g.ctid = d.at AND g.tableoid = d.part
    )
    INSERT INTO {live} (id, event_id, due_at, token, client_id, lane, queue_id, attempts, max_attempts,
                        generation, place, exhausted_as, group_key, flags, rank, expires_at)
    SELECT d.id, d.event_id, {now}, d.token + $3::bigint, d.client_id,
           CASE WHEN l.state > 0 AND l.was_type IS NULL THEN -l.priority - 1000 ELSE d.lane END, d.queue_id, 0, d.max_attempts,
           d.generation + 1, CASE WHEN l.state > 0 THEN 3 WHEN d.group_key IS NULL THEN 1 ELSE 2 END,
           d.exhausted_as, d.group_key, d.flags, d.rank,
           CASE WHEN d.expires_at > {now} THEN d.expires_at END
    FROM dead d
    LEFT JOIN LATERAL (SELECT l.state, l.priority, l.was_type FROM {lanes} l WHERE l.id = d.lane OFFSET 0) AS l ON true
    RETURNING {columns}";

statements! {
    /// Statements about entries.
    pub(in crate::postgres) struct Entries {
        /// Entries with their facts, live or ended, the latest generation of each (primary keys). An entry whose fact
        /// is missing is shown without contents.
        by_number: (EntryRow, FactRow) = &with_facts(BY_NUMBER);
        /// What `why` needs to know about a live entry (primary keys).
        why: WhyRow = "
            SELECT q.lease_until, q.worker, q.place, q.due_at, q.group_key, q.rank,
                   CASE WHEN q.flags & 8 <> 0 THEN q.exhausted_as END AS kept_as, q.queue_id, n.state AS queue_state,
                   coalesce(e.event_type, '') AS event_type, e.tags, {now} AS now
            FROM (SELECT * FROM {live} q WHERE q.id = $2 OFFSET 0) AS q
            CROSS JOIN LATERAL (SELECT * FROM {queues} n WHERE n.id = q.queue_id OFFSET 0) AS n
            LEFT JOIN LATERAL (SELECT * FROM {ns}.events e WHERE e.id = q.event_id OFFSET 0) AS e ON true";
        /// How many entries of a group come before a parked one: its head, what is aside and due, up to 1,000, and those
        /// parked before it (event_queue_group_head, event_queue_aside, event_queue_parked).
        ahead_in_group: Only<i64> = "
            SELECT (SELECT count(*) FROM {live} q WHERE q.queue_id = $2 AND q.group_key = $3 AND q.place < 2)
                 + (SELECT count(*) FROM (
                        SELECT FROM {live} q
                        WHERE q.queue_id = $2 AND q.group_key >= $3 AND q.group_key <= $3 AND q.place = 4
                          AND q.due_at <= {now} AND q.id <> $5
                        ORDER BY q.group_key, q.due_at, q.id LIMIT 1000
                    ) AS due)
                 + (SELECT count(*) FROM {live} q
                    WHERE q.queue_id = $2 AND q.group_key = $3 AND q.place IN (2, 3) AND (q.rank, q.id) < ($4, $5))";
        /// How many claimable entries of a queue come before one, up to 1,000 (event_queue_fresh, event_queue_timed).
        ahead_in_queue: Only<i64> = "
            WITH me AS MATERIALIZED (
                SELECT q.id, q.queue_id, (SELECT l.priority FROM {lanes} l WHERE l.id = q.lane) AS priority
                FROM {live} q WHERE q.id = $2
            )
            SELECT count(*) FROM (
                SELECT FROM me CROSS JOIN LATERAL (
                    SELECT l.id, l.priority FROM {lanes} l
                    WHERE l.queue_id = me.queue_id AND l.priority <= me.priority AND l.state < 2 OFFSET 0
                ) AS l CROSS JOIN LATERAL (
                    (SELECT FROM {live} q
                     WHERE q.lane = l.id AND q.place = 0 AND q.lease_until IS NULL
                       AND (l.priority < me.priority OR q.id < me.id)
                     LIMIT 1000)
                    UNION ALL
                    (SELECT FROM {live} q
                     WHERE q.lane = l.id AND q.place = 1 AND q.due_at <= {now}
                       AND q.lease_until IS NULL AND (l.priority < me.priority OR q.id < me.id)
                     LIMIT 1000)
                ) AS before
                LIMIT 1000
            ) AS counted";
        /// Numbers of dead letters of a queue (event_log_dead_letters).
        dead_letters: Only<i64> = "
            SELECT g.id FROM {log} g
            WHERE g.queue_id = $1 AND g.id > $2 AND g.status IN (1, 2) AND g.superseded = 0
              AND ($3::text IS NULL OR (SELECT e.event_type FROM {ns}.events e WHERE e.id = g.event_id) = $3)
            ORDER BY g.id LIMIT $4";
        /// Starts new generations of dead letters (event_log's and lanes' primary keys; `+ 0` keeps the planner from
        /// event_log_dead_letters). Only `superseded` ever changes in a log row, so a row that still qualifies once it
        /// is locked is where it was found. An entry whose lane takes no more entries becomes an arrival, to be sorted
        /// in.
        redrive: RedrivenRow = &REDRIVE.replace("{which}", "g.status IN (1, 2) AND ($3::bigint = 0 OR g.status = 2)");
        /// Starts new generations of entries that are kept, in their place (event_queue's primary key).
        redrive_kept: RedrivenRow = "
            UPDATE {live} q
            SET generation = q.generation + 1, attempts = 0, token = q.token + $3::bigint, place = 1, due_at = {now},
                last_error = NULL, flags = q.flags & ~8::smallint, updated_at = {now},
                expires_at = CASE WHEN q.expires_at > {now} THEN q.expires_at END
            WHERE q.id = ANY ($2::bigint[]) AND q.flags & 8 <> 0
            RETURNING {columns}";
        /// Takes dead letters off the list (event_log's primary key; `+ 0` as above).
        discard: Only<i64> = "
            WITH dead AS MATERIALIZED (
                SELECT g.* FROM unnest($1::bigint[]) AS i(id) CROSS JOIN LATERAL (
                    SELECT g.tableoid AS part, g.ctid AS at FROM {log} g
                    WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) AND g.status IN (1, 2)
                      AND g.superseded + 0 = 0
                    FOR UPDATE
                ) AS g
            )
            UPDATE {log} g SET superseded = 2 FROM dead d WHERE g.ctid = d.at AND g.tableoid = d.part
            RETURNING g.id";
        /// Whether a dead letter was discarded (event_log's primary key).
        discarded: Only<i32> = "SELECT 1 FROM {log} g WHERE g.id = $1::bigint AND g.superseded = 2";
        /// Counts everything in one snapshot, for tests (walks over events, event_queue and event_log).
        census: CensusRow = "
            SELECT (SELECT count(*) FROM {ns}.events) AS events,
                   (SELECT count(*) FROM {ns}.event_queue WHERE lease_until IS NULL)
                       + (SELECT count(*) FROM {ns}.dispatch_queue WHERE lease_until IS NULL) AS waiting,
                   (SELECT count(*) FROM {ns}.event_queue WHERE lease_until IS NOT NULL)
                       + (SELECT count(*) FROM {ns}.dispatch_queue WHERE lease_until IS NOT NULL) AS leased,
                   (SELECT count(*) FROM {ns}.event_log WHERE superseded <> 1)
                       + (SELECT count(*) FROM {ns}.dispatch_log WHERE superseded <> 1) AS ended";
    }
}
