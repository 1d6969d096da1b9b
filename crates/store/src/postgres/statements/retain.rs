//! Retention: what is removed when it is old.

use crate::listing::STRETCH;
use crate::postgres::engine::row::row;
use crate::sql::statements;

row! {
    /// A log row that retention looks at.
    pub(in crate::postgres) struct OldRow {
        id: i64,
        event_id: i64,
        status: i16,
        superseded: i16,
        flags: i16,
        client_id: Option<i64>,
        /// It may be removed: it is old enough, was counted, and was read by every projection.
        is_old: Option<bool>,
        /// Its event is too young for its entry to be removed, however that ended.
        is_young: Option<bool>,
    }
}

/// Reads [`OldRow`]s.
const OLD_ROWS: &str = "
    SELECT g.id, g.event_id, g.status, g.superseded, coalesce(g.flags, 0::smallint) AS flags, g.client_id,
           g.xid < c.xid
           AND g.finished_at < {now} - (CASE WHEN g.status IN (1, 2) AND g.superseded = 0 THEN $3::bigint
                                             ELSE $2::bigint END) * interval '1 microsecond'
           AND NOT EXISTS (SELECT FROM {ns}.projections p
                           WHERE p.state < 2 AND (p.xid, p.id) < (g.xid, g.id)) AS is_old,
           to_timestamp(((g.event_id >> 22) + 1577836800000) / 1000.0)
               >= {now} - least($2::bigint, $3::bigint) * interval '1 microsecond' AS is_young
    FROM {log} g CROSS JOIN {ns}.log_counts c";

/// Reads [`OldRow`]s of jobs, which are neither counted nor read by projections.
const OLD_JOBS: &str = "
    SELECT g.id, g.event_id, g.status, g.superseded, coalesce(g.flags, 0::smallint) AS flags, g.client_id,
           g.finished_at < {now} - (CASE WHEN g.status IN (1, 2) AND g.superseded = 0 THEN $3::bigint
                                         ELSE $2::bigint END) * interval '1 microsecond' AS is_old,
           to_timestamp(((g.event_id >> 22) + 1577836800000) / 1000.0)
               >= {now} - least($2::bigint, $3::bigint) * interval '1 microsecond' AS is_young
    FROM {ns}.dispatch_log g";

/// The log rows above a number, and those of given entries, which it locks.
const ABOVE: &str = " WHERE g.id > $4::bigint ORDER BY g.id, g.generation LIMIT $5::bigint";
const LOCKED: &str = " WHERE g.id = ANY ($4::bigint[]) ORDER BY g.id, g.generation FOR UPDATE OF g";

/// For the stretches of removed entries, removes the lanes and workers that have no entry left there.
const FORGET_STRETCHES: &str = "
    WITH touched AS MATERIALIZED (
        SELECT DISTINCT i.id >> {stretch} AS stretch FROM unnest($1::bigint[]) AS i(id)
    ), kept AS MATERIALIZED (
        SELECT t.stretch, g.lane, g.status, g.worker, coalesce(g.client_id, 0) AS client_id
        FROM touched t
        CROSS JOIN LATERAL generate_series(t.stretch << {stretch}, ((t.stretch + 1) << {stretch}) - 1) AS i(id)
        CROSS JOIN LATERAL (
            SELECT g.lane, g.status, g.worker, g.client_id FROM {log} g
            WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) OFFSET 0
        ) AS g
    ), lanes AS MATERIALIZED (
        SELECT x.place FROM touched t CROSS JOIN LATERAL (
            SELECT x.ctid AS place, x.lane, x.status FROM {ns}.log_lanes x WHERE x.stretch = t.stretch OFFSET 0
        ) AS x
        WHERE ROW(t.stretch, x.lane, x.status)::text <> ALL (ARRAY(
            SELECT ROW(k.stretch, k.lane, k.status)::text FROM kept k))
    ), workers AS MATERIALIZED (
        SELECT x.place FROM touched t CROSS JOIN LATERAL (
            SELECT x.ctid AS place, x.client_id, x.worker, x.status FROM {ns}.log_workers x
            WHERE x.stretch = t.stretch OFFSET 0
        ) AS x
        WHERE ROW(t.stretch, x.client_id, x.worker, x.status)::text <> ALL (ARRAY(
            SELECT ROW(k.stretch, c.client_id, k.worker, k.status)::text
            FROM kept k CROSS JOIN LATERAL (VALUES (0::bigint), (k.client_id)) AS c(client_id)))
    ), of_lanes AS (
        DELETE FROM {ns}.log_lanes x USING lanes f WHERE x.ctid = f.place
    )
    DELETE FROM {ns}.log_workers x USING workers f WHERE x.ctid = f.place";

statements! {
    /// Statements about retention.
    pub(in crate::postgres) struct Retain {
        /// Removes old audit rows (event_audit's primary key, from its start).
        forget_audit = "
            DELETE FROM {ns}.event_audit a WHERE a.ctid = ANY (ARRAY(
                SELECT o.place
                FROM (SELECT ctid AS place, created_at FROM {ns}.event_audit ORDER BY id LIMIT $3::bigint) AS o
                WHERE o.created_at < {now} - $2::bigint * interval '1 microsecond'
            ))";
        /// Log rows above a number (event_log's primary key).
        old_rows: OldRow = &[OLD_ROWS, ABOVE].concat();
        /// The same of jobs (dispatch_log's primary key).
        old_jobs: OldRow = &[OLD_JOBS, ABOVE].concat();
        /// Log rows of these entries, locked (event_log's primary key).
        lock_old_rows: OldRow = &[OLD_ROWS, LOCKED].concat();
        /// The same of jobs (dispatch_log's primary key).
        lock_old_jobs: OldRow = &[OLD_JOBS, LOCKED].concat();
        /// Removes ended jobs with their attempts and the facts that are theirs alone (primary keys). The caller has locked
        /// the log rows.
        forget_jobs = "
            WITH facts AS (
                DELETE FROM {ns}.events e WHERE e.id = ANY ($2::bigint[]) AND e.first_number IS NULL
            ), attempts AS (
                DELETE FROM {ns}.dispatch_attempts a WHERE a.job = ANY ($1::bigint[])
            ), tasks AS (
                DELETE FROM {ns}.dispatch_tasks t WHERE t.job = ANY ($1::bigint[])
            ), rows AS MATERIALIZED (
                SELECT g.* FROM unnest($1::bigint[]) AS i(id) CROSS JOIN LATERAL (
                    SELECT g.tableoid AS part, g.ctid AS place FROM {ns}.dispatch_log g
                    WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) OFFSET 0
                ) AS g
            )
            DELETE FROM {ns}.dispatch_log g USING rows r WHERE g.ctid = r.place AND g.tableoid = r.part";
        /// Removes ended entries with their tags and the facts that are theirs alone, and takes them off the counts by tag
        /// (primary keys). The caller has locked the log rows and `log_counts`.
        forget_entries = "
            WITH tagged AS MATERIALIZED (
                SELECT f.place
                FROM unnest($1::bigint[], $2::bigint[]) AS i(id, event_id)
                CROSS JOIN LATERAL unnest(string_to_array(
                    (SELECT e.tags FROM {ns}.events e WHERE e.id = i.event_id), ',')) AS x(tag)
                CROSS JOIN LATERAL (
                    SELECT t.ctid AS place FROM {ns}.log_tags t
                    WHERE t.tag = x.tag AND t.status IN (0, 1, 2, 3) AND t.entry_id = i.id OFFSET 0
                ) AS f
            ), tags AS (
                DELETE FROM {ns}.log_tags t USING tagged f WHERE t.ctid = f.place
            ), counted AS MATERIALIZED (
                SELECT f.place, n.rows FROM (
                    SELECT x.tag, r.status, count(*) AS rows
                    FROM unnest($3::bigint[], $4::smallint[]) AS r(event_id, status)
                    CROSS JOIN LATERAL unnest(string_to_array(
                        (SELECT e.tags FROM {ns}.events e WHERE e.id = r.event_id), ',')) AS x(tag)
                    GROUP BY x.tag, r.status
                ) AS n CROSS JOIN LATERAL (
                    SELECT c.ctid AS place FROM {ns}.tag_counts c WHERE c.tag = n.tag AND c.status = n.status OFFSET 0
                ) AS f
            ), uncounted AS (
                UPDATE {ns}.tag_counts c SET rows = c.rows - n.rows FROM counted n WHERE c.ctid = n.place
            ), of_clients AS MATERIALIZED (
                SELECT f.place, n.rows FROM (
                    SELECT r.client_id, x.tag, r.status, count(*) AS rows
                    FROM unnest($3::bigint[], $4::smallint[], $5::bigint[]) AS r(event_id, status, client_id)
                    CROSS JOIN LATERAL unnest(string_to_array(
                        (SELECT e.tags FROM {ns}.events e WHERE e.id = r.event_id), ',')) AS x(tag)
                    WHERE r.client_id IS NOT NULL
                    GROUP BY r.client_id, x.tag, r.status
                ) AS n CROSS JOIN LATERAL (
                    SELECT c.ctid AS place FROM {ns}.client_counts c
                    WHERE c.client_id = n.client_id AND c.tag = n.tag AND c.status = n.status OFFSET 0
                ) AS f
            ), uncounted_clients AS (
                UPDATE {ns}.client_counts c SET rows = c.rows - n.rows FROM of_clients n WHERE c.ctid = n.place
            ), facts AS (
                DELETE FROM {ns}.events e WHERE e.id = ANY ($2::bigint[]) AND e.first_number IS NULL
            ), rows AS MATERIALIZED (
                SELECT g.* FROM unnest($1::bigint[]) AS i(id) CROSS JOIN LATERAL (
                    SELECT g.tableoid AS part, g.ctid AS place FROM {log} g
                    WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) OFFSET 0
                ) AS g
            )
            DELETE FROM {log} g USING rows r WHERE g.ctid = r.place AND g.tableoid = r.part";
        /// For the stretches of removed entries, removes the lanes and workers that have no entry left there
        /// (log_lanes_stretch, log_workers_stretch, event_log's primary key). The caller has locked `log_counts`, so
        /// that counting adds none meanwhile.
        forget_stretches = &FORGET_STRETCHES.replace("{stretch}", &STRETCH.to_string());
        /// Takes removed rows off the counts by status (one row).
        uncount = "
            UPDATE {ns}.log_counts c
            SET counts = ARRAY[c.counts[1] - $1::bigint, c.counts[2] - $2::bigint, c.counts[3] - $3::bigint,
                               c.counts[4] - $4::bigint]";
        /// Takes removed rows off the counts by client (client_counts' primary key).
        uncount_clients = "
            WITH found AS MATERIALIZED (
                SELECT f.place, i.rows
                FROM unnest($1::bigint[], $2::smallint[], $3::bigint[]) AS i(client_id, status, rows)
                CROSS JOIN LATERAL (
                    SELECT c.ctid AS place FROM {ns}.client_counts c
                    WHERE c.client_id = i.client_id AND c.tag = '' AND c.status = i.status OFFSET 0
                ) AS f
            )
            UPDATE {ns}.client_counts c SET rows = c.rows - f.rows FROM found f WHERE c.ctid = f.place";
    }
}
