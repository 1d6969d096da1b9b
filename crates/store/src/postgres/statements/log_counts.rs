//! How many entries ended, by status, tag and client, and in which stretches of the log: the tables `log_counts`,
//! `tag_counts`, `client_counts`, `log_lanes` and `log_workers`. Totals and lists start from them.

use crate::listing::STRETCH;
use crate::postgres::engine::row::row;
use crate::postgres::statements::projections::BOUND;
use crate::sql::{Only, statements};

row! {
    /// Whether there are log rows to count, and whether counting has to start over.
    pub(in crate::postgres) struct UncountedRow {
        uncounted: bool,
        anew: bool,
    }
}

/// Fills in the length of a stretch, and the transaction id below which all transactions are over.
fn count(text: &str) -> String {
    text.replace("{stretch}", &STRETCH.to_string()).replace("{bound}", BOUND)
}

statements! {
    /// Statements about counts of the log.
    pub(in crate::postgres) struct LogCounts {
        /// Whether there are log rows to count, and whether the cluster's transaction ids started over
        /// (event_log_commits).
        uncounted: UncountedRow = &count("
            SELECT EXISTS (SELECT FROM {log} g WHERE g.xid >= c.xid AND g.xid < {bound}) AS uncounted,
                   c.xid > {bound} AS anew
            FROM {ns}.log_counts c");
        /// Locks the counts; returns up to which transaction rows were counted (one row).
        lock: Only<String> = "SELECT xid::text FROM {ns}.log_counts FOR UPDATE";
        /// Starts counting over.
        start_over = "
            WITH gone AS (DELETE FROM {ns}.tag_counts), clients AS (DELETE FROM {ns}.client_counts)
            UPDATE {ns}.log_counts SET xid = '0', counts = '{0,0,0,0}'";
        /// The transaction id to count up to in this step: some 20,000 rows (event_log_commits), but never past the
        /// oldest transaction that still runs.
        upto: Only<String> = &count("
            SELECT greatest(
                coalesce(
                    (SELECT g.xid FROM {log} g
                     WHERE g.xid >= $1::text::xid8 AND g.xid < {bound}
                     ORDER BY g.xid, g.id OFFSET 20000 LIMIT 1),
                    {bound}),
                least((($1::text)::numeric + 1)::text::xid8, {bound}))::text");
        /// Adds the log rows of finished transactions to the counts by status, by tag (events' primary key) and by
        /// client. Rows are read once (event_log_commits) and grouped first, since most of them ended alike. Also
        /// writes down which stretches of the log hold ended entries of a lane and of a worker: of a worker under its
        /// client and, for lists across clients, under client 0. Tags are looked up after the grouping: as a part of
        /// its key they would turn it into a sort.
        add = &count("
            WITH ended AS MATERIALIZED (
                SELECT g.status, g.client_id, g.lane, g.worker, g.id >> {stretch} AS stretch, count(*) AS rows,
                       array_agg(g.event_id) FILTER (WHERE g.flags & 1 <> 0) AS with_tags
                FROM {log} g WHERE g.xid >= $1::text::xid8 AND g.xid < $2::text::xid8
                GROUP BY g.status, g.client_id, g.lane, g.worker, g.id >> {stretch}
            ), tag_lists AS MATERIALIZED (
                SELECT g.client_id, g.status, e.tags, count(*) AS rows
                FROM ended g
                CROSS JOIN LATERAL unnest(g.with_tags) AS i(event_id)
                CROSS JOIN LATERAL (SELECT e.tags FROM {ns}.events e WHERE e.id = i.event_id OFFSET 0) AS e
                GROUP BY g.client_id, g.status, e.tags
            ), tagged AS MATERIALIZED (
                SELECT t.client_id, x.tag, t.status, sum(t.rows) AS rows
                FROM tag_lists t CROSS JOIN LATERAL unnest(string_to_array(t.tags, ',')) AS x(tag)
                GROUP BY t.client_id, x.tag, t.status
            ), of_tags AS (
                INSERT INTO {ns}.tag_counts AS c (tag, status, rows)
                SELECT t.tag, t.status, sum(t.rows) FROM tagged t GROUP BY t.tag, t.status
                ON CONFLICT (tag, status) DO UPDATE SET rows = c.rows + excluded.rows
            ), of_clients AS (
                INSERT INTO {ns}.client_counts AS c (client_id, tag, status, rows)
                SELECT g.client_id, '', g.status, sum(g.rows) FROM ended g
                WHERE g.client_id IS NOT NULL GROUP BY g.client_id, g.status
                UNION ALL
                SELECT t.client_id, t.tag, t.status, t.rows FROM tagged t WHERE t.client_id IS NOT NULL
                ON CONFLICT (client_id, tag, status) DO UPDATE SET rows = c.rows + excluded.rows
            ), of_lanes AS (
                INSERT INTO {ns}.log_lanes (lane, status, stretch)
                SELECT g.lane, g.status, g.stretch FROM ended g GROUP BY g.lane, g.status, g.stretch
                ON CONFLICT DO NOTHING
            ), of_workers AS (
                INSERT INTO {ns}.log_workers (client_id, worker, status, stretch)
                SELECT x.client_id, g.worker, g.status, g.stretch
                FROM ended g CROSS JOIN LATERAL (VALUES (0::bigint), (g.client_id)) AS x(client_id)
                WHERE g.worker IS NOT NULL AND x.client_id IS NOT NULL
                GROUP BY x.client_id, g.worker, g.status, g.stretch
                ON CONFLICT DO NOTHING
            )
            UPDATE {ns}.log_counts c
            SET xid = $2::text::xid8,
                counts = ARRAY[c.counts[1] + n.completed, c.counts[2] + n.errors, c.counts[3] + n.failed,
                               c.counts[4] + n.cancelled]
            FROM (
                SELECT coalesce(sum(g.rows) FILTER (WHERE g.status = 0), 0)::bigint AS completed,
                       coalesce(sum(g.rows) FILTER (WHERE g.status = 1), 0)::bigint AS errors,
                       coalesce(sum(g.rows) FILTER (WHERE g.status = 2), 0)::bigint AS failed,
                       coalesce(sum(g.rows) FILTER (WHERE g.status = 3), 0)::bigint AS cancelled
                FROM ended g
            ) AS n");
    }
}
