//! Jobs as operators see them. Statements that look for jobs go down an index from a number on, youngest first; whoever reads
//! them stops after a bounded number.

use crate::sql::{Only, statements};
use crate::sqlite::engine::row::{Shown, row};
use crate::sqlite::statements::added::made_at;
use crate::sqlite::statements::entries::{ShownEnded, ShownLive, shown_ended, shown_live};

row! {
    /// What a job was sorted by.
    pub(in crate::sqlite) struct LaneTypeRow {
        lane_type: Option<Shown>,
    }
}

row! {
    /// A job that is looked at.
    pub(in crate::sqlite) struct SeenRow {
        id: i64,
        client_id: Option<i64>,
        lane: i64,
        /// The state, as `JobState` says.
        state: i16,
    }
}

row! {
    /// The head of a group.
    pub(in crate::sqlite) struct HeadRow {
        id: i64 = "id",
        queue_id: i64 = "queue_id",
        group_key: Shown = "group_key",
        is_kept: bool = "coalesce(flags, 0) & 8 <> 0",
    }
}

row! {
    /// A live job, as far as counting needs it.
    pub(in crate::sqlite) struct HeldRow {
        /// When it was made, in microseconds.
        made_at: i64,
        due_at: Option<i64>,
        is_free: bool,
        is_leased: bool,
    }
}

row! {
    /// The slots of a pool that a node holds.
    pub(in crate::sqlite) struct SlotsRow {
        node: String,
        slots: u32,
        wanted: u32,
    }
}

row! {
    /// A lane of jobs.
    pub(in crate::sqlite) struct JobLaneRow {
        id: i64,
        queue: String,
        client_id: Option<i64>,
        lane_type: Shown,
    }
}

row! {
    /// The numbers that a fact remembers.
    pub(in crate::sqlite) struct NumbersRow {
        first_number: Option<i64>,
        last_number: Option<i64>,
    }
}

/// What a job was sorted by, as `l` in a statement.
const LANE_TYPE: &str = ", CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END AS lane_type";

/// A statement that reads a job, with what it was sorted by. Its columns may have a FROM of their own.
fn with_lane_type(text: &str) -> String {
    let of = |table: &str| format!(" FROM {table} q JOIN");
    let with = |text: String, table: &str| text.replacen(&of(table), &format!("{LANE_TYPE}{}", of(table)), 1);
    with(with(text.to_owned(), "{live}"), "{log}")
}

/// The same without the payload.
fn without_payload(text: &str) -> String {
    text.replace("coalesce(e.payload, x'') AS payload", "x'' AS payload")
}

/// What counting needs of some live jobs.
fn held(which: &str) -> String {
    let made = made_at("q");
    format!(
        "SELECT coalesce({made}, ((q.event_id >> 22) + 1577836800000) * 1000) AS made_at, q.due_at,
                q.lease_until IS NULL AND coalesce(q.flags, 0) & 8 = 0 AS is_free, q.lease_until IS NOT NULL AS is_leased
         FROM {{live}} q {which}"
    )
}

/// Live jobs that are looked at.
macro_rules! live {
    ($condition:literal) => {
        concat!(
            "SELECT id, client_id, lane,
                    CASE WHEN lease_until IS NOT NULL THEN -2 WHEN flags & 8 THEN -1 WHEN place IN (2, 3) THEN -3
                         ELSE -4 END AS state
             FROM {live} ",
            $condition,
            " AND id < ?1 AND id > ?2 ORDER BY id DESC LIMIT ?3"
        )
    };
}

statements! {
    /// Statements about jobs.
    pub(in crate::sqlite) struct Jobs {
        /// A live job with its event. Primary keys.
        live: (ShownLive, LaneTypeRow) = &with_lane_type(&shown_live());
        /// An ended job with its event. Index dispatch_log_key, from its end, then primary keys.
        ended: (ShownEnded, LaneTypeRow) = &with_lane_type(&shown_ended());
        /// A live job without its payload. Primary keys.
        live_summary: (ShownLive, LaneTypeRow) = &without_payload(&with_lane_type(&shown_live()));
        /// An ended job without its payload. Index dispatch_log_key, from its end, then primary keys.
        ended_summary: (ShownEnded, LaneTypeRow) = &without_payload(&with_lane_type(&shown_ended()));
        /// Whether a job, live or ended, is of an event with an id between two, or was added to its event. Primary key;
        /// index dispatch_log_key.
        may_be: Only<bool> = "
            SELECT EXISTS (SELECT 1 FROM {live}
                           WHERE id = ?1 AND (event_id BETWEEN ?2 AND ?3 OR coalesce(flags, 0) & 32))
                OR EXISTS (SELECT 1 FROM {log} INDEXED BY {log}_key
                           WHERE id = ?1 AND (event_id BETWEEN ?2 AND ?3 OR coalesce(flags, 0) & 32))";
        /// Live jobs. Primary key.
        look_live: SeenRow = live!("WHERE true");
        /// Live jobs of a client. Index dispatch_queue_client.
        look_live_of_client: SeenRow = live!("INDEXED BY {live}_client WHERE client_id = ?4");
        /// Ended jobs. Index dispatch_log_key.
        look_ended: SeenRow = "
            SELECT id, client_id, lane, status AS state FROM {log} INDEXED BY {log}_key
            WHERE id < ?1 AND id > ?2 AND superseded <> 1 ORDER BY id DESC LIMIT ?3";
        /// The lanes of a type, of a client's queues or of all. The queues, whole, and index lanes_key.
        lanes_of_type: Only<i64> = "
            SELECT l.id FROM {queues} n CROSS JOIN {lanes} l ON l.queue_id = n.id
            WHERE (?1 IS NULL OR n.client_id = ?1)
              AND CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END = ?2";
        /// The lanes whose types begin like this, of a client's queues or of all. The queues, whole, and index lanes_key.
        lanes_of_prefix: Only<i64> = "
            SELECT l.id FROM {queues} n CROSS JOIN {lanes} l ON l.queue_id = n.id
            WHERE (?1 IS NULL OR n.client_id = ?1)
              AND substr(CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END, 1, length(?2)) = ?2";
        /// Notes that an ended job is ignored. Primary key.
        ignore = "UPDATE {log} SET results = ?2 WHERE seq = ?1";
        /// What is noted about an ended job. Primary key.
        note: Only<Option<Shown>> = "SELECT results FROM {log} WHERE seq = ?1";
        /// Heads of groups after a queue and a group. Index dispatch_queue_group_head.
        heads: HeadRow = "
            SELECT {columns} FROM {live} INDEXED BY {live}_group_head
            WHERE place < 2 AND group_key IS NOT NULL AND (queue_id, group_key) > (?1, ?2)
            ORDER BY queue_id, group_key LIMIT ?3";
        /// The same of one queue. Index dispatch_queue_group_head.
        heads_of_queue: HeadRow = "
            SELECT {columns} FROM {live} INDEXED BY {live}_group_head
            WHERE place < 2 AND group_key IS NOT NULL AND queue_id = ?1 AND group_key > ?2
            ORDER BY queue_id, group_key LIMIT ?3";
        /// How many jobs are parked in the group of one, up to a bound. Primary key, then index dispatch_queue_parked.
        behind: Only<i64> = "
            SELECT count(*) FROM (
                SELECT 1 FROM {live} h CROSS JOIN {live} q INDEXED BY {live}_parked
                    ON q.queue_id = h.queue_id AND q.group_key = h.group_key
                WHERE h.id = ?1 AND q.place IN (2, 3) LIMIT ?2)";
        /// The lane of a queue by its type. Index dispatch_lanes_key.
        lane_by_type: Only<i64> = "
            SELECT id FROM {lanes} INDEXED BY {lanes}_key WHERE queue_id = ?1 AND coalesce(event_type, '') = ?2";
        /// Fresh jobs of a lane. Index dispatch_queue_fresh.
        fresh_of_lane: HeldRow = &held("INDEXED BY {live}_fresh WHERE q.lane = ?1 AND q.place = 0 ORDER BY q.id LIMIT ?2");
        /// Timed jobs of a lane. Index dispatch_queue_timed.
        timed_of_lane: HeldRow =
            &held("INDEXED BY {live}_timed WHERE q.lane = ?1 AND q.place = 1 ORDER BY q.due_at LIMIT ?2");
        /// How many jobs are parked in some groups, up to a bound. Index dispatch_queue_parked.
        parked_in: Only<i64> = "
            SELECT count(*) FROM (
                SELECT 1 FROM {live} INDEXED BY {live}_parked
                WHERE queue_id = ?1 AND group_key = ?2 AND place IN (2, 3) LIMIT ?3)";
        /// The same for groups that begin with this and a colon. Index dispatch_queue_parked.
        parked_below: Only<i64> = "
            SELECT count(*) FROM (
                SELECT 1 FROM {live} INDEXED BY {live}_parked
                WHERE queue_id = ?1 AND group_key > ?2 || ':' AND group_key < ?2 || ';' AND place IN (2, 3) LIMIT ?3)";
        /// The slots of a pool that nodes hold. Primary key.
        held: SlotsRow = "
            SELECT {columns} FROM {ns}_dispatch_slots WHERE pool = ?1 AND client_id = ?2 AND until > ?3 ORDER BY node";
        /// Whether any node holds slots. The table, up to the first such row.
        has_nodes: Only<bool> = "SELECT EXISTS (SELECT 1 FROM {ns}_dispatch_slots WHERE until > ?1)";
        /// Lanes by number. Primary keys.
        lanes: JobLaneRow = "
            SELECT l.id, n.name AS queue, n.client_id,
                   CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END AS lane_type
            FROM {lanes} l CROSS JOIN {queues} n ON n.id = l.queue_id
            WHERE l.id > ?1 AND l.state < 2 AND coalesce(l.event_type, l.was_type) IS NOT NULL ORDER BY l.id LIMIT ?2";
        /// Fresh jobs of a lane that nobody holds. Index dispatch_queue_fresh.
        fresh_free: Only<i64> = "
            SELECT id FROM {live} INDEXED BY {live}_fresh
            WHERE lane = ?1 AND place = 0 AND lease_until IS NULL ORDER BY id LIMIT ?2";
        /// Its timed, parked and aside jobs that nobody holds. Index dispatch_queue_waiting.
        waiting_free: Only<i64> = "
            SELECT id FROM {live} INDEXED BY {live}_waiting
            WHERE lane = ?1 AND place > 0 AND place <> 3 AND lease_until IS NULL ORDER BY id LIMIT ?2";
        /// The numbers that were drawn for a fact. Primary key.
        numbers_of_fact: NumbersRow = "SELECT first_number, last_number FROM {ns}_events WHERE id = ?1";
    }
}
