//! Queues and their settings, depths, consumers.

use tidegate_core::{Depth, QueueConfig, QueueName};

use crate::error::{Error, Result};
use crate::sql::{Only, statements};
use crate::sqlite::engine::catalogue::{queue_state, read_settings};
use crate::sqlite::engine::row::{queue_name, row};
use crate::sqlite::statements::added::made_at;

row! {
    /// The name of a queue (`n`).
    pub(in crate::sqlite) struct QueueNameRow {
        name: String = "n.name",
        client_id: Option<i64> = "n.client_id",
    }
}

impl TryFrom<QueueNameRow> for QueueName {
    type Error = Error;

    fn try_from(row: QueueNameRow) -> Result<Self> {
        queue_name(row.name, row.client_id)
    }
}

row! {
    /// The configuration of a queue.
    pub(in crate::sqlite) struct ConfigRow {
        name: String,
        client_id: Option<i64>,
        state: i16,
        depth_limit: Option<i64>,
        settings: Option<String>,
    }
}

impl TryFrom<ConfigRow> for QueueConfig {
    type Error = Error;

    fn try_from(row: ConfigRow) -> Result<Self> {
        Ok(Self {
            name: queue_name(row.name, row.client_id)?,
            state: queue_state(row.state)?,
            depth_limit: row.depth_limit.map(i64::unsigned_abs),
            settings: read_settings(row.settings)?,
        })
    }
}

row! {
    /// The number and the state of a queue.
    pub(in crate::sqlite) struct QueueStateRow {
        id: i64,
        state: i16,
    }
}

row! {
    /// The entries of a queue, by what they wait for; null where it has none.
    pub(in crate::sqlite) struct DepthRow {
        ready: Option<i64>,
        delayed: Option<i64>,
        parked: Option<i64>,
        leased: Option<i64>,
    }
}

impl From<DepthRow> for Depth {
    fn from(row: DepthRow) -> Self {
        let count = |count: Option<i64>| count.unwrap_or(0).unsigned_abs();
        Self {
            ready: count(row.ready),
            delayed: count(row.delayed),
            parked: count(row.parked),
            leased: count(row.leased),
        }
    }
}

row! {
    /// Since when the first entry of a lane has been claimable, in microseconds; null where none is.
    pub(in crate::sqlite) struct SinceRow {
        queue_id: i64,
        since: Option<i64>,
    }
}

/// Fills in `{counts}`, the columns of a [`DepthRow`] at the moment `?1`. What stepped aside or is kept waits for a moment
/// or a person, so it counts as delayed.
fn counting(sql: &str) -> String {
    let kept = "coalesce(flags, 0) & 8 <> 0";
    let counts = format!(
        "count(*) FILTER (WHERE lease_until IS NULL AND place < 2 AND (place = 0 OR due_at <= ?1) AND NOT {kept}) AS ready,
         count(*) FILTER (WHERE lease_until IS NULL AND (place = 1 AND due_at > ?1 OR place = 4 OR {kept})) AS delayed,
         count(*) FILTER (WHERE place IN (2, 3)) AS parked,
         count(*) FILTER (WHERE lease_until IS NOT NULL) AS leased"
    );
    sql.replace("{counts}", &counts)
}

statements! {
    /// Statements about queues.
    pub(in crate::sqlite) struct Queues {
        /// A queue by client and name. Index queues_name.
        by_name: QueueStateRow = "
            SELECT {columns} FROM {queues} WHERE coalesce(client_id, 0) = coalesce(?2, 0) AND name = ?1";
        /// All queues in order. Index queues_name, whole: queues are few.
        configs: ConfigRow = "SELECT {columns} FROM {queues} ORDER BY coalesce(client_id, 0), name";
        /// The names and numbers of all queues. The table, whole: queues are few.
        names: (QueueNameRow, Only<i64>) = "SELECT n.name, n.client_id, n.id FROM {queues} n";
        /// Creates a queue. Appends.
        insert = "
            INSERT INTO {queues} (name, state, depth_limit, created_at, settings, client_id)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        /// Changes a queue. Primary key.
        put = "UPDATE {queues} SET state = ?2, depth_limit = ?3, settings = ?4 WHERE id = ?1";
        /// The number of entries in a queue by state. The live table, whole: counting everything reads everything.
        depth: DepthRow = &counting("SELECT {counts} FROM {live} WHERE queue_id = ?2");
        /// The number of entries in every queue by state. The live table, whole: counting everything reads everything.
        depths: (DepthRow, QueueNameRow) = &counting("
            SELECT d.ready, d.delayed, d.parked, d.leased, n.name, n.client_id FROM {queues} n LEFT JOIN (
                SELECT queue_id, {counts}
                FROM {live} GROUP BY queue_id) d ON d.queue_id = n.id");
        /// Since when the first claimable fresh entry of each lane has been claimable. Index event_queue_fresh, from
        /// one lane that holds something to the next.
        oldest_fresh: SinceRow = &"
            WITH RECURSIVE step(lane) AS (
                SELECT min(lane) FROM {live} INDEXED BY {live}_fresh WHERE place = 0
                UNION ALL SELECT (SELECT min(q.lane) FROM {live} q INDEXED BY {live}_fresh
                                  WHERE q.place = 0 AND q.lane > step.lane) FROM step WHERE step.lane IS NOT NULL)
            SELECT l.queue_id, (SELECT coalesce({added}, ((q.event_id >> 22) + 1577836800000) * 1000)
                                FROM {live} q INDEXED BY {live}_fresh WHERE q.lane = step.lane AND q.place = 0
                                AND (q.lease_until IS NULL OR q.lease_until <= ?1) ORDER BY q.id LIMIT 1) AS since
            FROM step CROSS JOIN {lanes} l ON l.id = step.lane".replace("{added}", &made_at("q"));
        /// Since when the first claimable timed entry of each lane has been claimable. Index event_queue_timed, from
        /// one lane that holds something to the next.
        oldest_timed: SinceRow = "
            WITH RECURSIVE step(lane) AS (
                SELECT min(lane) FROM {live} INDEXED BY {live}_timed WHERE place = 1
                UNION ALL SELECT (SELECT min(q.lane) FROM {live} q INDEXED BY {live}_timed
                                  WHERE q.place = 1 AND q.lane > step.lane) FROM step WHERE step.lane IS NOT NULL)
            SELECT l.queue_id, (SELECT q.due_at FROM {live} q INDEXED BY {live}_timed
                                WHERE q.lane = step.lane AND q.place = 1 AND q.due_at <= ?1
                                AND (q.lease_until IS NULL OR q.lease_until <= ?1)
                                ORDER BY q.due_at, q.id LIMIT 1) AS since
            FROM step CROSS JOIN {lanes} l ON l.id = step.lane";
        /// Records that a consumer is alive. Primary key.
        consumer_seen = "
            INSERT OR REPLACE INTO {consumers} (worker, queue_id, types, seen_at) VALUES (?1, ?2, ?3, ?4)";
        /// What the consumers of a queue seen since a moment take. The table, whole: it holds one day of consumers.
        consumers_since: Only<Option<String>> = "
            SELECT types FROM {consumers} WHERE queue_id = ?1 AND seen_at >= ?2";
        /// Removes consumers not seen since a moment. The table, whole: it holds one day of consumers.
        forget_consumers = "DELETE FROM {consumers} WHERE seen_at < ?1";
    }
}
