//! Jobs as operators see them. Statements that look for jobs go down the primary keys from a number on, youngest first, and
//! look at a bounded number of them: `$1` and `$2` are the numbers between which they look, `$3` and `$4` how many live and
//! ended ones they look at, `$5` how many they find at most, `$6` the wanted states (`JobState`), `$7` a client and `$8` lanes,
//! as far as these are given.

use crate::postgres::engine::row::{Moment, row};
use crate::postgres::statements::added::made_at;
use crate::postgres::statements::entries::{BY_NUMBER, EntryRow, REDRIVE, RedrivenRow, with_facts};
use crate::postgres::statements::facts::FactRow;
use crate::postgres::statements::lists::{LAST_NUMBER, PublishedRow, published_from};
use crate::sql::{Only, statements};

row! {
    /// What a job was sorted by.
    pub(in crate::postgres) struct LaneTypeRow {
        lane_type: Option<String>,
    }
}

row! {
    /// A job that was found. Every row says down to which number all of them were looked at (`None` if nothing is left
    /// below); if nothing was found, a row without a job does.
    pub(in crate::postgres) struct SeenRow {
        id: Option<i64>,
        down_to: Option<i64>,
    }
}

row! {
    /// The numbers that a fact remembers.
    pub(in crate::postgres) struct NumbersRow {
        first_number: Option<i64>,
        last_number: Option<i64>,
    }
}

row! {
    /// The head of a group.
    pub(in crate::postgres) struct HeadRow {
        id: i64 = "q.id",
        queue_id: i32 = "q.queue_id",
        group_key: String = "q.group_key",
        is_kept: bool = "coalesce(q.flags, 0) & 8 <> 0",
    }
}

row! {
    /// How many jobs wait behind one.
    pub(in crate::postgres) struct BehindRow {
        id: i64,
        behind: i64,
    }
}

row! {
    /// A lane by its queue and type.
    pub(in crate::postgres) struct LaneRow {
        /// Which of the lanes that were asked for, from 1.
        item: i64,
        lane: i32,
        queue_id: i32,
    }
}

row! {
    /// What waits in a lane.
    pub(in crate::postgres) struct HoldsRow {
        item: i64,
        waiting: i64,
        leased: i64,
        /// Whether something was counted up to the bound.
        is_capped: bool,
        /// Since how many microseconds the oldest waits, by the event of the first fresh job and the moment of the first due.
        oldest: Option<i64>,
    }
}

row! {
    /// The slots of a pool that a node holds.
    pub(in crate::postgres) struct HeldRow {
        item: i64,
        node: String,
        slots: i32,
        wanted: i32,
    }
}

row! {
    /// What is known of a pool.
    pub(in crate::postgres) struct PoolRow {
        moment: Option<Moment>,
        has_nodes: bool,
    }
}

row! {
    /// A lane of jobs.
    pub(in crate::postgres) struct JobLaneRow {
        id: i32,
        queue: String,
        client_id: Option<i64>,
        lane_type: String,
    }
}

row! {
    /// A job that failed and is kept.
    pub(in crate::postgres) struct KeptRow {
        id: i64 = "q.id",
        exhausted_as: i16 = "q.exhausted_as",
    }
}

/// A job with its event, and what it was sorted by.
pub(in crate::postgres) type JobRow = (EntryRow, (FactRow, LaneTypeRow));

/// What a job was sorted by, as `l` in a statement.
const LANE_TYPE: &str = "CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END AS lane_type";

/// When a job was made.
fn made_of(job: &str) -> String {
    format!("coalesce({}, to_timestamp((({job}.event_id >> 22) + 1577836800000) / 1000.0))", made_at(job))
}

/// Jobs by number.
fn jobs() -> String {
    let fact = |name: &str| format!("{name}, {LANE_TYPE}");
    with_facts(&BY_NUMBER.replace("{q_fact}", &fact("{q_fact}")).replace("{g_fact}", &fact("{g_fact}")))
}

/// The state of a live job, as `JobState` says.
const STATE: &str = "
    (CASE WHEN q.lease_until IS NOT NULL THEN -2 WHEN q.flags & 8 <> 0 THEN -1
          WHEN q.place IN (2, 3) THEN -3 ELSE -4 END)::smallint";

/// Looks for jobs among the live ones in `{from}` and all ended ones.
const LOOK: &str = "
    WITH live AS MATERIALIZED (
        SELECT q.id, q.client_id, q.lane, {state} AS state FROM {live} q
        WHERE {from} AND q.id < $1::bigint AND q.id > $2::bigint ORDER BY {order} LIMIT $3::bigint
    ), ended AS MATERIALIZED (
        SELECT g.id, g.client_id, g.lane, g.status AS state FROM {log} g
        WHERE g.id < $1::bigint AND g.id > $2::bigint AND g.superseded + 0 <> 1 ORDER BY g.id DESC LIMIT $4::bigint
    )
    SELECT c.id, h.down_to
    FROM (SELECT greatest((SELECT CASE WHEN count(*) >= $3::bigint THEN min(l.id) END FROM live l),
                          (SELECT CASE WHEN count(*) >= $4::bigint THEN min(e.id) END FROM ended e)) AS down_to) AS h
    LEFT JOIN LATERAL (
        SELECT a.id FROM (SELECT * FROM live UNION ALL SELECT * FROM ended) AS a
        WHERE a.id >= coalesce(h.down_to, 0) AND a.state = ANY ($6::smallint[])
          AND ($7::bigint IS NULL OR a.client_id = $7::bigint)
          AND ($8::integer[] IS NULL OR a.lane = ANY ($8::integer[]))
        GROUP BY a.id ORDER BY a.id DESC LIMIT $5::bigint
    ) AS c ON true ORDER BY c.id DESC";

/// Fills in where live jobs are looked for, and in which order of an index.
fn look(from: &str, order: &str) -> String {
    LOOK.replace("{state}", STATE).replace("{from}", from).replace("{order}", order)
}

statements! {
    /// Statements about jobs.
    pub(in crate::postgres) struct Jobs {
        /// Jobs with their events, live or ended, the latest generation of each (primary keys).
        whole: JobRow = &jobs();
        /// The same without payloads (primary keys).
        summaries: JobRow = &jobs().replace("coalesce(e.payload, ''::bytea) AS payload", "''::bytea AS payload");
        /// Those of some numbers that jobs of events with ids between two have, or jobs that were added to their events
        /// (primary keys).
        with_number: Only<i64> = "
            SELECT i.id FROM unnest($1::bigint[]) AS i(id)
            WHERE EXISTS (SELECT FROM {live} q WHERE q.id = i.id
                          AND (q.event_id + 0 BETWEEN $2::bigint AND $3::bigint OR q.flags & 32 <> 0))
               OR EXISTS (SELECT FROM {log} g WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0)
                          AND (g.event_id + 0 BETWEEN $2::bigint AND $3::bigint OR g.flags & 32 <> 0))";
        /// Looks for jobs (dispatch_queue's and dispatch_log's primary keys).
        look: SeenRow = &look("true", "q.id DESC");
        /// Looks for jobs of a client (dispatch_queue_client; dispatch_log's primary key).
        look_of_client: SeenRow = &look(
            "q.client_id IS NOT NULL AND q.client_id = ANY (ARRAY[$7::bigint])", "q.client_id DESC, q.id DESC");
        /// The lanes of these types, or whose types begin like this, of a client's queues or of all (queues and lanes are small).
        lanes_of_types: Only<i32> = "
            SELECT l.id FROM {queues} n CROSS JOIN LATERAL (
                SELECT l.id, CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END AS lane_type
                FROM {lanes} l WHERE l.queue_id = n.id OFFSET 0
            ) AS l
            WHERE ($1::bigint IS NULL OR n.client_id = $1::bigint)
              AND (l.lane_type = ANY ($2::text[]) OR starts_with(l.lane_type, $3::text))";
        /// The numbers that were drawn for a fact (events' primary key).
        numbers_of_fact: NumbersRow = "SELECT e.first_number, e.last_number FROM {ns}.events e WHERE e.id = $1::bigint";
        /// The highest number of a job (dispatch_queue's and dispatch_log's primary keys, from the end).
        last_number: Only<i64> = LAST_NUMBER;
        /// When the first job at or above each number was made (the same, and events' primary key).
        made_from: PublishedRow = &published_from();
        /// Starts new generations of jobs that failed or were cancelled, as `entries.redrive` does of dead letters.
        retry: RedrivenRow = &REDRIVE.replace("{which}", "g.status > 0");
        /// Locks kept jobs (dispatch_queue's primary key).
        lock_kept: KeptRow = "
            SELECT {columns} FROM {live} q WHERE q.id = ANY ($1::bigint[]) AND q.flags & 8 <> 0 ORDER BY q.id FOR UPDATE";
        /// Notes that failed jobs are ignored, unless that is noted (dispatch_log's primary key; `+ 0` as in
        /// `entries.redrive`).
        ignore: Only<i64> = "
            WITH failed AS MATERIALIZED (
                SELECT i.note, g.* FROM unnest($1::bigint[], $2::text[]) AS i(id, note) CROSS JOIN LATERAL (
                    SELECT g.tableoid AS part, g.ctid AS at FROM {log} g
                    WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) AND g.status IN (1, 2)
                      AND g.superseded + 0 = 0 AND g.results IS NULL
                    FOR UPDATE
                ) AS g
            )
            UPDATE {log} g SET results = f.note FROM failed f WHERE g.ctid = f.at AND g.tableoid = f.part
            RETURNING g.id";
        /// Which of these jobs have failed and are ignored (dispatch_log's primary key).
        ignored: Only<i64> = "
            SELECT g.id FROM unnest($1::bigint[]) AS i(id) CROSS JOIN LATERAL (
                SELECT g.id FROM {log} g
                WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) AND g.status IN (1, 2)
                  AND g.superseded + 0 = 0 AND g.results IS NOT NULL OFFSET 0
            ) AS g";
        /// Heads of groups after a queue and a group (dispatch_queue_group_head).
        heads: HeadRow = "
            SELECT {columns} FROM {live} q
            WHERE q.place < 2 AND q.group_key IS NOT NULL AND (q.queue_id, q.group_key) > ($1::integer, $2::text)
            ORDER BY q.queue_id, q.group_key LIMIT $3::bigint";
        /// The same of one queue (dispatch_queue_group_head).
        heads_of_queue: HeadRow = "
            SELECT {columns} FROM {live} q
            WHERE q.place < 2 AND q.group_key IS NOT NULL AND q.queue_id = ANY (ARRAY[$1::integer])
              AND q.group_key > $2::text
            ORDER BY q.queue_id, q.group_key LIMIT $3::bigint";
        /// How many jobs are parked in the groups of these, up to a bound (dispatch_queue's primary key,
        /// dispatch_queue_parked).
        behind: BehindRow = "
            SELECT h.id, b.behind FROM unnest($1::bigint[]) AS i(id)
            CROSS JOIN LATERAL (SELECT q.id, q.queue_id, q.group_key FROM {live} q WHERE q.id = i.id OFFSET 0) AS h
            CROSS JOIN LATERAL (
                SELECT count(*) AS behind FROM (
                    SELECT FROM {live} q
                    WHERE q.queue_id = h.queue_id AND q.group_key = h.group_key AND q.place IN (2, 3) LIMIT $2::bigint
                ) AS p
            ) AS b";
        /// The lanes of queues by their types (dispatch_queues_name, dispatch_lanes_key).
        lanes_by_type: LaneRow = "
            SELECT i.item, l.id AS lane, l.queue_id
            FROM unnest($1::bigint[], $2::text[], $3::text[]) WITH ORDINALITY AS i(client_id, name, lane_type, item)
            CROSS JOIN LATERAL (
                SELECT n.id FROM {queues} n
                WHERE coalesce(n.client_id, 0) = i.client_id AND n.name = i.name OFFSET 0
            ) AS n
            CROSS JOIN LATERAL (
                SELECT l.id, l.queue_id FROM {lanes} l
                WHERE l.queue_id = n.id AND coalesce(l.event_type, '') = i.lane_type OFFSET 0
            ) AS l";
        /// What waits in lanes: fresh and timed jobs by lane, parked ones by the groups that they can be in, each counted up
        /// to a bound (dispatch_queue_fresh, dispatch_queue_timed, dispatch_queue_parked; for added ones deduplication's primary
        /// key).
        holds: HoldsRow = &"
            SELECT i.item, f.rows + t.rows + p.rows AS waiting, f.looked - f.rows + t.leased AS leased,
                   f.looked >= $6::bigint OR t.looked >= $6::bigint OR p.rows >= $6::bigint AS is_capped,
                   (extract(epoch FROM {now} - least(f.first, t.first))
                    * 1000000)::bigint AS oldest
            FROM unnest($2::bigint[], $3::integer[], $4::integer[], $5::text[]) AS i(item, lane, queue_id, groups)
            CROSS JOIN LATERAL (
                SELECT count(*) AS looked, count(*) FILTER (WHERE q.lease_until IS NULL) AS rows,
                       min(q.made_at) FILTER (WHERE q.lease_until IS NULL) AS first
                FROM (SELECT {made} AS made_at, q.lease_until FROM {live} q WHERE q.lane = i.lane AND q.place = 0
                      ORDER BY q.lane, q.id LIMIT $6::bigint) AS q
            ) AS f
            CROSS JOIN LATERAL (
                SELECT count(*) AS looked, count(*) FILTER (WHERE q.is_free) AS rows,
                       count(*) FILTER (WHERE q.lease_until IS NOT NULL) AS leased,
                       min(q.due_at) FILTER (WHERE q.is_free AND q.due_at <= {now}) AS first
                FROM (SELECT q.due_at, q.lease_until, q.lease_until IS NULL AND coalesce(q.flags, 0) & 8 = 0 AS is_free
                      FROM {live} q WHERE q.lane = i.lane AND q.place = 1
                      ORDER BY q.lane, q.due_at, q.id LIMIT $6::bigint) AS q
            ) AS t
            CROSS JOIN LATERAL (
                SELECT count(*) AS rows FROM (
                    (SELECT FROM {live} q
                     WHERE q.queue_id = i.queue_id AND q.group_key = i.groups AND q.place IN (2, 3) LIMIT $6::bigint)
                    UNION ALL
                    (SELECT FROM {live} q
                     WHERE q.queue_id = i.queue_id AND q.group_key > i.groups || ':' AND q.group_key < i.groups || ';'
                       AND q.place IN (2, 3) LIMIT $6::bigint)
                ) AS p
            ) AS p"
            .replace("{made}", &made_of("q"));
        /// The slots of pools that nodes hold (primary key).
        held: HeldRow = "
            SELECT i.item, s.node, s.slots, s.wanted
            FROM unnest($2::bigint[], $3::bigint[]) WITH ORDINALITY AS i(pool, client_id, item)
            CROSS JOIN LATERAL (
                SELECT s.* FROM {ns}.dispatch_slots s
                WHERE s.pool = i.pool AND s.client_id = i.client_id AND s.until > {now} OFFSET 0
            ) AS s
            ORDER BY i.item, s.node";
        /// The moment of a pool, if that is still to come, and whether any node holds slots (dispatch_rates' primary key; of
        /// dispatch_slots rows up to the first such one).
        pool: PoolRow = "
            SELECT (SELECT r.moment FROM {ns}.dispatch_rates r
                    WHERE r.pool = $2::bigint AND r.client_id = $3::bigint AND r.moment > {now}) AS moment,
                   EXISTS (SELECT FROM {ns}.dispatch_slots s WHERE s.until > {now}) AS has_nodes";
        /// Lanes by number (primary keys).
        lanes: JobLaneRow = "
            SELECT l.id, n.name AS queue, n.client_id, l.lane_type
            FROM (
                SELECT l.id, l.queue_id, CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END AS lane_type
                FROM {lanes} l
                WHERE l.id > $1::integer AND l.state < 2 AND coalesce(l.event_type, l.was_type) IS NOT NULL
                ORDER BY l.id LIMIT $2::bigint
            ) AS l
            CROSS JOIN LATERAL (SELECT n.name, n.client_id FROM {queues} n WHERE n.id = l.queue_id OFFSET 0) AS n
            ORDER BY l.id";
        /// Jobs of a lane under no lease, wherever they wait (dispatch_queue_fresh, dispatch_queue_timed,
        /// dispatch_queue_waiting).
        of_lane: Only<i64> = "
            SELECT c.id FROM (
                (SELECT q.id FROM {live} q WHERE q.lane = $1::integer AND q.place = 0 AND q.lease_until IS NULL
                 ORDER BY q.lane, q.id LIMIT $2::bigint)
                UNION ALL
                (SELECT q.id FROM {live} q WHERE q.lane = $1::integer AND q.place = 1 AND q.lease_until IS NULL
                 ORDER BY q.lane, q.due_at, q.id LIMIT $2::bigint)
                UNION ALL
                (SELECT q.id FROM {live} q WHERE q.lane = $1::integer AND q.place IN (2, 4)
                 ORDER BY q.lane, q.id LIMIT $2::bigint)
            ) AS c LIMIT $2::bigint";
    }
}
