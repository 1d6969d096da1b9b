//! Claims: which entries are offered, taken and leased, and their facts.

use tidegate_core::Timestamp;
use tokio_postgres::Row;

use crate::error::Result;
use crate::postgres::engine::marks::First;
use crate::postgres::engine::row::{Moment, row};
use crate::postgres::statements::facts::{FactRow, fact_with};
use crate::sql::{Columns, FromRow, Only, statements};

row! {
    /// A leased entry.
    pub(in crate::postgres) struct LeasedRow {
        id: i64 = "q.id",
        event_id: i64 = "q.event_id",
        generation: i32 = "q.generation",
        attempts: i32 = "q.attempts",
        max_attempts: i32 = "q.max_attempts",
        token: i64 = "q.token",
        processing_started_at: Moment = "q.processing_started_at",
        lease_until: Moment = "q.lease_until",
        last_error: Option<String> = "q.last_error",
        group_key: Option<String> = "q.group_key",
        lane: i32 = "q.lane",
        exhausted_as: i16 = "q.exhausted_as",
        flags: Option<i16> = "q.flags",
        expires_at: Option<Moment> = "q.expires_at",
    }
}

/// A row of a claim.
#[derive(Debug)]
pub(in crate::postgres) struct ClaimRow {
    /// `None` in the only row of a claim that leased nothing.
    pub(in crate::postgres) leased: Option<LeasedRow>,
    /// How many entries were offered, in every row; `None` where the statement does not count them.
    pub(in crate::postgres) offered: Option<i64>,
}

impl Columns for ClaimRow {
    const COUNT: usize = LeasedRow::COUNT + 1;

    #[cfg(test)]
    fn names() -> Vec<Option<&'static str>> {
        [LeasedRow::names(), vec![Some("offered")]].concat()
    }

    fn list() -> String {
        format!("{}, NULL::bigint AS offered", LeasedRow::list())
    }
}

impl FromRow<Row> for ClaimRow {
    fn read(row: &Row, at: usize) -> Result<Self> {
        let Only(id) = Only::<Option<i64>>::read(row, at)?;
        let leased = id.map(|_| LeasedRow::read(row, at)).transpose()?;
        let Only(offered) = Only::read(row, at + LeasedRow::COUNT)?;
        Ok(Self { leased, offered })
    }
}

row! {
    /// The id of a fact.
    pub(in crate::postgres) struct EventId {
        event_id: i64 = "e.id",
    }
}

row! {
    /// The first row of a lane by each path.
    pub(in crate::postgres) struct FirstOfLane {
        lane: i32 = "l.lane",
        id: Option<i64> = "f.id",
        due: Option<Moment> = "t.due_at",
        last_held: Option<i64> = "h.last",
        held: Option<i64> = "h.first",
        held_due: Option<Moment> = "u.first",
        until: Option<Moment> = "least(h.until, u.until)",
    }
}

impl From<FirstOfLane> for (i32, First) {
    fn from(row: FirstOfLane) -> Self {
        let moment = |moment: Option<Moment>| moment.map(Timestamp::from);
        let first = First {
            id: row.id,
            due: moment(row.due),
            last_held: row.last_held,
            held: row.held,
            held_due: moment(row.held_due),
            until: moment(row.until),
        };
        (row.lane, first)
    }
}

/// Offers the first entries of each lane and path (event_queue_fresh, event_queue_timed) and takes the first of those,
/// by priority and id, that no other transaction is taking. Rows are locked only once they are chosen, so that many
/// lanes do not lock many rows: what was offered is read in order, and no further than needed. Rows are locked by ctid,
/// which reads one page each instead of a descent of the primary key. PostgreSQL rechecks a row that changed since the
/// statement began, and skips it if it is leased by then.
const TAKE_OF_LANES: &str = "
    WITH lanes AS MATERIALIZED (
        SELECT * FROM unnest($2::integer[], $3::smallint[], $4::bigint[], $5::timestamptz[], $6::boolean[])
            AS l(lane, priority, mark, due_mark, shared)
    ), offered AS MATERIALIZED (
        SELECT o.at, l.priority
        FROM lanes l CROSS JOIN LATERAL (
            (SELECT q.id, q.ctid AS at FROM {live} q
             WHERE (q.lane, q.id) >= (l.lane, l.mark) AND q.lane <= l.lane AND q.place = 0
               AND (q.lease_until IS NULL OR q.lease_until <= {now})
               AND (NOT l.shared
                    OR (SELECT e.event_type FROM {ns}.events e WHERE e.id = q.event_id) = ANY ($10::text[]))
             ORDER BY q.lane, q.id LIMIT $11)
            UNION ALL
            (SELECT q.id, q.ctid AS at FROM {live} q
             WHERE q.lane = l.lane AND q.place = 1 AND q.due_at >= l.due_mark AND q.due_at <= {now}
               AND (q.lease_until IS NULL OR q.lease_until <= {now})
               AND (NOT l.shared
                    OR (SELECT e.event_type FROM {ns}.events e WHERE e.id = q.event_id) = ANY ($10::text[]))
             ORDER BY q.due_at, q.id LIMIT $11)
        ) AS o
        ORDER BY l.priority, o.id LIMIT $11
    ), taken AS MATERIALIZED (
        SELECT q.ctid
        FROM offered o CROSS JOIN LATERAL (
            SELECT q.ctid FROM {live} q
            WHERE q.ctid = o.at AND q.place < 2 AND (q.lease_until IS NULL OR q.lease_until <= {now})
            FOR UPDATE SKIP LOCKED
        ) AS q
        LIMIT $7
    )";

/// The same where lanes have quotas ($12): of what a lane offers by both paths, the first so many by id that no other
/// transaction is taking. A lane offers more than its quota only once others were found to be in the way.
const TAKE_WITHIN_QUOTAS: &str = "
    WITH lanes AS MATERIALIZED (
        SELECT * FROM unnest($2::integer[], $3::smallint[], $4::bigint[], $5::timestamptz[], $6::boolean[],
                             $12::bigint[])
            AS l(lane, priority, mark, due_mark, shared, quota)
    ), found AS MATERIALIZED (
        SELECT o.at, o.id, l.priority, l.lane, l.quota
        FROM lanes l CROSS JOIN LATERAL (
            SELECT b.id, b.at FROM (
                (SELECT q.id, q.ctid AS at FROM {live} q
                 WHERE (q.lane, q.id) >= (l.lane, l.mark) AND q.lane <= l.lane AND q.place = 0
                   AND (q.lease_until IS NULL OR q.lease_until <= {now})
                   AND (NOT l.shared
                        OR (SELECT e.event_type FROM {ns}.events e WHERE e.id = q.event_id) = ANY ($10::text[]))
                 ORDER BY q.lane, q.id LIMIT least(l.quota, $7) * ($11 / $7))
                UNION ALL
                (SELECT q.id, q.ctid AS at FROM {live} q
                 WHERE q.lane = l.lane AND q.place = 1 AND q.due_at >= l.due_mark AND q.due_at <= {now}
                   AND (q.lease_until IS NULL OR q.lease_until <= {now})
                   AND (NOT l.shared
                        OR (SELECT e.event_type FROM {ns}.events e WHERE e.id = q.event_id) = ANY ($10::text[]))
                 ORDER BY q.due_at, q.id LIMIT $11)
            ) AS b
            ORDER BY b.id LIMIT least(l.quota, $7) * ($11 / $7)
        ) AS o
        ORDER BY l.priority, o.id LIMIT $11
    ), offered AS (
        SELECT f.id FROM (SELECT *, row_number() OVER (PARTITION BY lane ORDER BY id) AS nth FROM found) AS f
        WHERE f.nth <= f.quota LIMIT $7
    ), locked AS MATERIALIZED (
        SELECT q.ctid, o.id, o.priority, o.lane, o.quota
        FROM found o CROSS JOIN LATERAL (
            SELECT q.ctid FROM {live} q
            WHERE q.ctid = o.at AND q.place < 2 AND (q.lease_until IS NULL OR q.lease_until <= {now})
            FOR UPDATE SKIP LOCKED
        ) AS q
    ), taken AS MATERIALIZED (
        SELECT l.ctid
        FROM (SELECT *, row_number() OVER (PARTITION BY lane ORDER BY id) AS nth FROM locked) AS l
        WHERE l.nth <= l.quota ORDER BY l.priority, l.id LIMIT $7
    )";

/// The end of a claim: leases what was taken. Returns at least one row, since every row says how many were offered.
const LEASE_TAKEN: &str = ", leased AS (
        UPDATE {live} q SET {lease}
        FROM taken t WHERE q.ctid = t.ctid
        RETURNING {leased}
    )
    SELECT q.*, o.offered FROM (SELECT count(*) AS offered FROM offered) AS o LEFT JOIN leased q ON true";

/// A claim from a single lane, which is the usual and the fast case: rows are locked as they are found in the indexes
/// (event_queue_fresh, event_queue_timed), rows locked by others are skipped, and the rest goes straight into the
/// update.
const CLAIM_OF_ONE: &str = "
    UPDATE {live} q SET {lease}
    WHERE q.ctid = ANY (ARRAY(
        SELECT both_paths.ctid FROM (
            SELECT * FROM (
                SELECT f.ctid, f.id FROM {live} f
                WHERE (f.lane, f.id) >= ($2, $3) AND f.lane <= $2 AND f.place = 0
                  AND (f.lease_until IS NULL OR f.lease_until <= {now})
                ORDER BY f.lane, f.id LIMIT $5 FOR UPDATE SKIP LOCKED
            ) AS fresh
            UNION ALL
            SELECT * FROM (
                SELECT t.ctid, t.id FROM {live} t
                WHERE t.lane = $2 AND t.place = 1 AND t.due_at >= $4 AND t.due_at <= {now}
                  AND (t.lease_until IS NULL OR t.lease_until <= {now})
                ORDER BY t.due_at, t.id LIMIT $5 FOR UPDATE SKIP LOCKED
            ) AS timed
        ) AS both_paths
        ORDER BY both_paths.id LIMIT $5
    ))
    RETURNING {columns}";

/// What a lease changes: no indexed column, so the update stays heap-only. A kept entry, which a claim only ends, keeps the
/// token under which its last report may be repeated.
const LEASE: &str = "
        lease_until = {now} + {length}::bigint * interval '1 microsecond',
        processing_started_at = {now},
        updated_at = {now},
        token = CASE WHEN q.flags & 8 <> 0 THEN q.token
                ELSE greatest(q.token + 1, (SELECT m.token_base FROM {ns}.store m)) END,
        attempts = q.attempts + 1,
        worker = {worker}";

/// Whether the claim is audited, which its lease is flagged with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::postgres) enum Audit {
    Off,
    On,
}

/// Fills in what a claim changes and returns.
fn lease(sql: &str, length: &str, worker: &str, audit: Audit) -> String {
    let flags = if audit == Audit::On { ", flags = coalesce(q.flags, 0::smallint) | 2::smallint" } else { "" };
    sql.replace("{lease}", &format!("{LEASE}{flags}"))
        .replace("{leased}", &LeasedRow::list())
        .replace("{length}", length)
        .replace("{worker}", worker)
}

/// Completes a claim whose text up to `taken` is given, where the lease's length is $8 and the worker $9.
pub(in crate::postgres) fn lease_taken(taken: &str, audit: Audit) -> String {
    lease(&format!("{taken}{LEASE_TAKEN}"), "$8", "$9", audit)
}

fn claim_of_one(audit: Audit) -> String {
    lease(CLAIM_OF_ONE, "$6", "$7", audit)
}

/// The columns of a fact, without the payload if it has more than so many bytes. Its length is known without reading
/// it.
fn fact_up_to(bytes: &str) -> String {
    fact_with("payload", &format!("CASE WHEN octet_length(e.payload) <= {bytes}::bigint THEN e.payload END"))
}

/// The columns of a fact, without the payload where the payloads exceed so many bytes together; the first always has
/// its own.
fn fact_within(bytes: &str) -> String {
    let fits = format!("e.bytes <= {bytes}::bigint OR e.bytes = octet_length(e.payload)");
    fact_with("payload", &format!("CASE WHEN {fits} THEN e.payload END"))
}

statements! {
    /// Statements about claims.
    pub(in crate::postgres) struct Claim {
        /// A claim from many lanes (event_queue_fresh, event_queue_timed).
        of_many: ClaimRow = &lease_taken(TAKE_OF_LANES, Audit::Off);
        /// The same for an audited claim.
        of_many_audited: ClaimRow = &lease_taken(TAKE_OF_LANES, Audit::On);
        /// A claim from many lanes, of which some have quotas (event_queue_fresh, event_queue_timed).
        within_quotas: ClaimRow = &lease_taken(TAKE_WITHIN_QUOTAS, Audit::Off);
        /// The same for an audited claim.
        within_quotas_audited: ClaimRow = &lease_taken(TAKE_WITHIN_QUOTAS, Audit::On);
        /// A claim from one lane (event_queue_fresh, event_queue_timed).
        of_one: ClaimRow = &claim_of_one(Audit::Off);
        /// The same for an audited claim.
        of_one_audited: ClaimRow = &claim_of_one(Audit::On);
        /// Finds which of the given lanes ($1, sorted) hold something by stepping from one such lane to the next, so
        /// that empty ones cost nothing (event_queue_fresh, event_queue_timed). A step that ends in another lane
        /// continues at the next given one, so every step passes at least one of them.
        filled_lanes: Only<i32> = "
            WITH RECURSIVE fresh AS (
                SELECT 0 AS lane
                UNION ALL
                SELECT n.lane FROM fresh f CROSS JOIN LATERAL (
                    SELECT q.lane FROM {live} q
                    WHERE q.place = 0 AND q.lane >= ($1::integer[])[width_bucket(f.lane, $1::integer[]) + 1]
                      AND q.lane <= ($1::integer[])[cardinality($1::integer[])]
                    ORDER BY q.lane LIMIT 1
                ) AS n
            ), timed AS (
                SELECT 0 AS lane
                UNION ALL
                SELECT n.lane FROM timed t CROSS JOIN LATERAL (
                    SELECT q.lane FROM {live} q
                    WHERE q.place = 1 AND q.lane >= ($1::integer[])[width_bucket(t.lane, $1::integer[]) + 1]
                      AND q.lane <= ($1::integer[])[cardinality($1::integer[])]
                    ORDER BY q.lane LIMIT 1
                ) AS n
            )
            SELECT s.lane FROM (SELECT f.lane FROM fresh f UNION SELECT t.lane FROM timed t) AS s
            WHERE ($1::integer[])[width_bucket(s.lane, $1::integer[])] = s.lane";
        /// Takes back the attempts of leased entries that end instead of being delivered (event_queue's primary key).
        take_back = "UPDATE {live} q SET attempts = q.attempts - 1 WHERE q.id = ANY ($1::bigint[])";
        /// Facts by id (events' primary key).
        facts: (EventId, FactRow) = &format!(
            "SELECT {}, {} FROM {{ns}}.events e WHERE e.id = ANY ($1::bigint[])",
            EventId::list(),
            fact_up_to("$2")
        );
        /// Facts in a range of ids (a walk along events' primary key).
        facts_between: (EventId, FactRow) = &format!(
            "SELECT {}, {} FROM {{ns}}.events e WHERE e.id >= $1 AND e.id <= $2 ORDER BY e.id LIMIT $3",
            EventId::list(),
            fact_up_to("$4")
        );
        /// Facts by id, without payloads from where they exceed so many bytes together (events' primary key). The
        /// window has to keep every row, so this is used only where payloads are large.
        facts_bounded: (EventId, FactRow) = &format!(
            "SELECT {}, {} FROM (
                SELECT f.*, sum(octet_length(f.payload)) OVER (ORDER BY f.id) AS bytes
                FROM {{ns}}.events f WHERE f.id = ANY ($1::bigint[])
            ) AS e",
            EventId::list(),
            fact_within("$2")
        );
        /// Whether a claim whose answer was lost took place (event_queue's primary key). Its moment tells it from a
        /// later claim by the same worker, which gets the same token if this one did not take place.
        lease_stands: Only<bool> = "
            SELECT EXISTS (
                SELECT FROM {live}
                WHERE id = $1 AND token = $2 AND worker = $3 AND processing_started_at = $4 AND lease_until IS NOT NULL
            )";
        /// The first row of each lane and path, at or above one mark and below another (event_queue_fresh,
        /// event_queue_timed). If a moment is given ($4), rows that are leased then are passed over. If another is
        /// given ($5), leases that began after it are not passed, and of the passed ones the last entry, the first ones
        /// and the first end are answered. Every part reads the dead rows again, so none is run without need.
        first_rows: FirstOfLane = "
            SELECT {columns}
            FROM unnest($1::integer[], $2::bigint[], $3::timestamptz[], $6::bigint[], $7::timestamptz[])
                AS l(lane, mark, due_mark, below, due_below)
            LEFT JOIN LATERAL (
                SELECT q.id FROM {live} q
                WHERE (q.lane, q.id) >= (l.lane, l.mark) AND (q.lane, q.id) < (l.lane, l.below) AND q.place = 0
                  AND (q.lease_until IS NULL OR q.lease_until <= coalesce($4::timestamptz, 'infinity')
                       OR q.processing_started_at > $5::timestamptz)
                ORDER BY q.lane, q.id LIMIT 1
            ) AS f ON true
            LEFT JOIN LATERAL (
                SELECT q.due_at FROM {live} q
                WHERE q.lane = l.lane AND q.place = 1 AND q.due_at >= l.due_mark AND q.due_at < l.due_below
                  AND (q.lease_until IS NULL OR q.lease_until <= coalesce($4::timestamptz, 'infinity')
                       OR q.processing_started_at > $5::timestamptz)
                ORDER BY q.due_at, q.id LIMIT 1
            ) AS t ON true
            CROSS JOIN LATERAL (
                SELECT max(q.id) AS last, min(q.id) AS first, min(q.lease_until) AS until FROM {live} q
                WHERE $5::timestamptz IS NOT NULL AND q.place = 0 AND (q.lane, q.id) >= (l.lane, l.mark)
                  AND (q.lane, q.id) < (l.lane, coalesce(f.id, 9223372036854775807))
                  AND q.lease_until > $4::timestamptz
            ) AS h
            CROSS JOIN LATERAL (
                SELECT min(q.due_at) AS first, min(q.lease_until) AS until FROM {live} q
                WHERE $5::timestamptz IS NOT NULL AND q.lane = l.lane AND q.place = 1 AND q.due_at >= l.due_mark
                  AND q.due_at <= coalesce(t.due_at, 'infinity') AND q.lease_until > $4::timestamptz
            ) AS u";
        /// The database's clock, or the moment that tests set.
        clock: Only<Timestamp> = "SELECT coalesce($1::timestamptz, clock_timestamp())";
    }
}
