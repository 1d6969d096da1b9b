//! Lists of entries and their totals. A statement that finds candidates returns numbers of entries below `$1`, youngest
//! first, at most `$2`; `$3` are the wanted ends, `$4` is the live part (`LivePart`), and lists by stretches
//! (`STRETCH`) search at most `$5` of them. The first column of an index is compared with `= ANY (ARRAY[x])` and the
//! rows are ordered by all of its columns: `a = x ORDER BY id` could also be planned as a walk along the primary key,
//! which takes very long where few rows have that `a`.

use crate::listing::STRETCH;
use crate::postgres::engine::row::{Moment, row};
use crate::postgres::statements::added::made_at;
use crate::sql::{Only, statements};

row! {
    /// A candidate of a list by stretches. Every row says down to which number all stretches were searched (`None` if
    /// nothing is left below); if nothing was found, a row without an entry does.
    pub(in crate::postgres) struct NearRow {
        id: Option<i64>,
        down_to: Option<i64>,
    }
}

row! {
    /// A lane, and whether it may hold other entries than the wanted ones.
    pub(in crate::postgres) struct LaneRow {
        id: i32,
        mixed: bool,
    }
}

row! {
    /// When the first entry at or above a number was published, if there is one.
    pub(in crate::postgres) struct PublishedRow {
        pivot: i64,
        published_at: Option<Moment>,
    }
}

row! {
    /// An entry as lists show it.
    pub(in crate::postgres) struct SummaryRow {
        id: i64,
        event_id: i64,
        name: String,
        attempts: i32,
        max_attempts: i32,
        priority: i16,
        group_key: Option<String>,
        worker: Option<String>,
        updated_at: Moment,
        /// The code of its end; -1 while it is held, -2 while it waits.
        status: i16,
        due_at: Option<Moment>,
        event_type: String,
        title: Option<String>,
        tags: Option<String>,
        client_id: Option<i64>,
        created_at: Moment,
    }
}

row! {
    /// A total, in parts.
    pub(in crate::postgres) struct TotalRow {
        /// Ended entries that are counted.
        counted: i64,
        /// Entries that ended since: those that were read, and those of them that fit.
        since: i64,
        since_fitting: i64,
        /// Counted entries that were redriven.
        redriven: i64,
        /// Live entries: those that were read, and those of them that fit.
        live: i64,
        live_fitting: i64,
    }
}

/// Whether a live entry is in the wanted part.
const WANTED: &str = "$4::integer > 0 AND ($4::integer = 1 OR (q.lease_until IS NOT NULL) = ($4::integer = 3))";

/// The stretches in which a worker ended entries, of one client or, under client 0, of all (log_workers' primary key).
const ENDED_BY: &str = "
    SELECT e.stretch FROM unnest($3::smallint[]) AS s(status) CROSS JOIN LATERAL (
        SELECT x.stretch FROM {ns}.log_workers x
        WHERE x.client_id = ANY (ARRAY[coalesce($7::bigint, 0)]) AND x.worker = $6::text AND x.status = s.status
          AND x.stretch <= ($1::bigint - 1) >> {stretch}
        ORDER BY x.client_id DESC, x.worker DESC, x.status DESC, x.stretch DESC LIMIT $5::bigint
    ) AS e
    GROUP BY e.stretch ORDER BY e.stretch DESC LIMIT $5::bigint";

/// Conditions on a log row: it is of the wanted lanes; it is of the worker and the client.
const OF_LANES: &str = "g.lane + 0 = ANY ($6::integer[])";
const OF_WORKER: &str = "g.worker = $6::text AND ($7::bigint IS NULL OR g.client_id + 0 = $7::bigint)";

/// The last part of a list by stretches: merges the live entries in `found`, ended ones from the stretches in `near`
/// (event_log's primary key), and ended ones that were not counted yet (event_log_commits). Returns the youngest, each
/// once, down to the number to which all stretches were searched, and that number (null if nothing is left below).
const NEAR: &str = "
SELECT c.id, h.down_to
FROM (SELECT CASE WHEN count(*) >= $5::bigint THEN min(n.stretch) << {stretch} END AS down_to FROM near n) AS h
LEFT JOIN LATERAL (
    SELECT c.id FROM (
        SELECT f.id FROM found f
        UNION ALL
        SELECT e.id FROM near n
        CROSS JOIN LATERAL (
            SELECT g.id FROM {log} g
            WHERE g.id >= n.stretch << {stretch} AND g.id < least((n.stretch + 1) << {stretch}, $1::bigint)
              AND g.status + 0 = ANY ($3::smallint[]) AND g.superseded + 0 <> 1 AND {fits}
            ORDER BY g.id DESC, g.generation DESC OFFSET 0
        ) AS e
        UNION ALL
        SELECT g.id FROM {log} g
        WHERE g.xid >= (SELECT l.xid FROM {ns}.log_counts l) AND cardinality($3::smallint[]) > 0
          AND g.id + 0 < $1::bigint
          AND g.status + 0 = ANY ($3::smallint[]) AND g.superseded + 0 <> 1 AND {fits}
    ) AS c WHERE c.id >= coalesce(h.down_to, 0) GROUP BY c.id ORDER BY c.id DESC LIMIT $2::bigint
) AS c ON true ORDER BY c.id DESC";

/// Fills in what lists have in common.
fn list(text: &str) -> String {
    text.replace("{wanted}", WANTED).replace("{stretch}", &STRETCH.to_string())
}

/// Completes a list by stretches, whose log rows have to match a condition.
fn by_stretches(text: &str, fits: &str) -> String {
    list(&format!("{}{}", text.replace("{ended_by}", ENDED_BY), NEAR.replace("{fits}", fits)))
}

/// The moment of publication, which the event's id of `row` contains.
fn made(row: &str) -> String {
    format!("to_timestamp((({row}.event_id >> 22) + 1577836800000) / 1000.0)")
}

/// The highest number of an entry.
pub(in crate::postgres) const LAST_NUMBER: &str = "
    SELECT greatest((SELECT q.id FROM {live} q WHERE q.id > 0 ORDER BY q.id DESC LIMIT 1),
                    (SELECT g.id FROM {log} g WHERE g.id > 0 ORDER BY g.id DESC LIMIT 1), 0)";

/// When the first entry at or above each number was published.
const PUBLISHED_FROM: &str = "
    SELECT i.pivot,
           coalesce({x_added}, (SELECT e.created_at FROM {ns}.events e WHERE e.id = x.event_id), {made})
               AS published_at
    FROM unnest($1::bigint[]) AS i(pivot)
    LEFT JOIN LATERAL (
        SELECT c.id, c.event_id, c.flags FROM (
            (SELECT q.id, q.event_id, q.flags FROM {live} q WHERE q.id >= i.pivot ORDER BY q.id LIMIT 1)
            UNION ALL
            (SELECT g.id, g.event_id, g.flags FROM {log} g WHERE g.id >= i.pivot ORDER BY g.id LIMIT 1)
        ) AS c ORDER BY c.id LIMIT 1
    ) AS x ON true
    ORDER BY i.pivot";

/// As [`PUBLISHED_FROM`], filled in.
pub(in crate::postgres) fn published_from() -> String {
    PUBLISHED_FROM.replace("{made}", &made("x")).replace("{x_added}", &made_at("x"))
}

statements! {
    /// Statements about lists.
    pub(in crate::postgres) struct Lists {
        /// All entries (event_queue's and event_log's primary keys). Leased entries are found by walking over the live
        /// ones: every claim would have to write an index of leases.
        everything: Only<i64> = &list("
            SELECT c.id FROM (
                (SELECT q.id FROM {live} q WHERE q.id < $1::bigint AND {wanted} ORDER BY q.id DESC LIMIT $2::bigint)
                UNION ALL
                (SELECT g.id FROM {log} g
                 WHERE g.id < $1::bigint AND g.superseded + 0 <> 1 AND cardinality($3::smallint[]) > 0
                 ORDER BY g.id DESC LIMIT $2::bigint)
            ) AS c ORDER BY c.id DESC LIMIT $2::bigint");
        /// Entries that ended in one way other than COMPLETED (event_log_ends).
        ended: Only<i64> = "
            SELECT g.id FROM {log} g
            WHERE g.status = $3::smallint AND g.status > 0 AND g.superseded <> 1 AND g.id < $1::bigint
            ORDER BY g.id DESC LIMIT $2::bigint";
        /// Entries of a client (event_queue_client, event_log_client).
        of_client: Only<i64> = &list("
            SELECT c.id FROM (
                (SELECT q.id FROM {live} q
                 WHERE q.client_id IS NOT NULL AND q.client_id = ANY (ARRAY[$5::bigint]) AND q.id < $1::bigint
                   AND {wanted}
                 ORDER BY q.client_id DESC, q.id DESC LIMIT $2::bigint)
                UNION ALL
                SELECT e.id FROM unnest($3::smallint[]) AS s(status) CROSS JOIN LATERAL (
                    SELECT g.id FROM {log} g
                    WHERE g.client_id IS NOT NULL AND g.superseded <> 1
                      AND g.client_id = ANY (ARRAY[$5::bigint]) AND g.status = s.status AND g.id < $1::bigint
                    ORDER BY g.client_id DESC, g.status DESC, g.id DESC LIMIT $2::bigint
                ) AS e
            ) AS c ORDER BY c.id DESC LIMIT $2::bigint");
        /// Entries of some lanes (event_queue_fresh and event_queue_waiting for each lane, event_queue_arrived for
        /// entries that have no lane yet, log_lanes' primary key for each lane and end).
        of_lanes: NearRow = &by_stretches("
            WITH near AS MATERIALIZED (
                SELECT e.stretch
                FROM unnest($6::integer[]) AS l(lane) CROSS JOIN unnest($3::smallint[]) AS s(status)
                CROSS JOIN LATERAL (
                    SELECT x.stretch FROM {ns}.log_lanes x
                    WHERE x.lane = ANY (ARRAY[l.lane]) AND x.status = s.status
                      AND x.stretch <= ($1::bigint - 1) >> {stretch}
                    ORDER BY x.lane DESC, x.status DESC, x.stretch DESC LIMIT $5::bigint
                ) AS e
                GROUP BY e.stretch ORDER BY e.stretch DESC LIMIT $5::bigint
            ), found AS MATERIALIZED (
                SELECT e.id FROM unnest($6::integer[]) AS l(lane) CROSS JOIN LATERAL (
                    SELECT q.id FROM {live} q
                    WHERE q.lane = ANY (ARRAY[l.lane]) AND q.place = 0 AND q.id < $1::bigint AND {wanted}
                    ORDER BY q.lane DESC, q.id DESC LIMIT $2::bigint
                ) AS e
                UNION ALL
                SELECT e.id FROM unnest($6::integer[]) AS l(lane) CROSS JOIN LATERAL (
                    SELECT q.id FROM {live} q
                    WHERE q.lane = ANY (ARRAY[l.lane]) AND q.place IN (1, 2, 4) AND q.id < $1::bigint AND {wanted}
                    ORDER BY q.lane DESC, q.id DESC LIMIT $2::bigint
                ) AS e
                UNION ALL
                (SELECT q.id FROM {live} q
                 WHERE q.place = 3 AND q.id < $1::bigint AND {wanted}
                   AND ($7::bigint IS NULL OR q.client_id = $7::bigint)
                   AND ($8::text IS NULL OR EXISTS (
                       SELECT FROM {queues} n WHERE n.id = q.queue_id AND n.name = $8::text
                       AND coalesce(n.client_id, 0) = coalesce($9::bigint, 0)))
                   AND ($10::text IS NULL
                        OR (SELECT e.event_type FROM {ns}.events e WHERE e.id = q.event_id) = $10::text)
                 ORDER BY q.id DESC LIMIT $2::bigint)
            )", OF_LANES);
        /// Entries with any of some tags, each once (event_tags' and log_tags' primary keys for each tag;
        /// event_tags_rank for leased entries, in each queue).
        of_tags: Only<i64> = "
            SELECT c.id FROM (
                SELECT e.id FROM unnest($5::text[]) AS w(tag) CROSS JOIN LATERAL (
                    SELECT t.entry_id AS id FROM {ns}.event_tags t
                    WHERE t.tag = w.tag AND t.entry_id < $1::bigint AND $4::integer IN (1, 2)
                      AND ($4::integer = 1 OR t.state <> 3)
                    ORDER BY t.tag DESC, t.entry_id DESC LIMIT $2::bigint
                ) AS e
                UNION ALL
                SELECT e.id FROM unnest($5::text[]) AS w(tag)
                CROSS JOIN (SELECT n.id FROM {queues} n WHERE $4::integer = 3) AS n
                CROSS JOIN LATERAL (
                    SELECT t.entry_id AS id FROM {ns}.event_tags t
                    WHERE t.queue_id = n.id AND t.tag = w.tag AND t.state = 3 AND t.entry_id + 0 < $1::bigint
                    ORDER BY t.entry_id + 0 DESC LIMIT $2::bigint
                ) AS e
                UNION ALL
                SELECT e.id FROM unnest($5::text[]) AS w(tag) CROSS JOIN unnest($3::smallint[]) AS s(status)
                CROSS JOIN LATERAL (
                    SELECT t.entry_id AS id FROM {ns}.log_tags t
                    WHERE t.tag = w.tag AND t.status = s.status AND t.entry_id < $1::bigint
                    ORDER BY t.entry_id DESC LIMIT $2::bigint
                ) AS e
            ) AS c GROUP BY c.id ORDER BY c.id DESC LIMIT $2::bigint";
        /// Entries of a client with any of some tags (event_tags_client, event_tags_rank in its queues,
        /// log_tags_client).
        of_tags_of_client: Only<i64> = "
            SELECT c.id FROM (
                SELECT e.id FROM unnest($5::text[]) AS w(tag) CROSS JOIN LATERAL (
                    SELECT t.entry_id AS id FROM {ns}.event_tags t
                    WHERE t.client_id IS NOT NULL AND t.client_id = ANY (ARRAY[$6::bigint]) AND t.tag = w.tag
                      AND t.entry_id < $1::bigint
                      AND $4::integer IN (1, 2) AND ($4::integer = 1 OR t.state <> 3)
                    ORDER BY t.client_id DESC, t.tag DESC, t.entry_id DESC LIMIT $2::bigint
                ) AS e
                UNION ALL
                SELECT e.id FROM unnest($5::text[]) AS w(tag)
                CROSS JOIN (SELECT n.id FROM {queues} n WHERE n.client_id = $6::bigint AND $4::integer = 3) AS n
                CROSS JOIN LATERAL (
                    SELECT t.entry_id AS id FROM {ns}.event_tags t
                    WHERE t.queue_id = n.id AND t.tag = w.tag AND t.state = 3 AND t.entry_id + 0 < $1::bigint
                    ORDER BY t.entry_id + 0 DESC LIMIT $2::bigint
                ) AS e
                UNION ALL
                SELECT e.id FROM unnest($5::text[]) AS w(tag) CROSS JOIN unnest($3::smallint[]) AS s(status)
                CROSS JOIN LATERAL (
                    SELECT t.entry_id AS id FROM {ns}.log_tags t
                    WHERE t.client_id IS NOT NULL AND t.client_id = ANY (ARRAY[$6::bigint]) AND t.tag = w.tag
                      AND t.status = s.status AND t.entry_id < $1::bigint
                    ORDER BY t.client_id DESC, t.tag DESC, t.status DESC, t.entry_id DESC LIMIT $2::bigint
                ) AS e
            ) AS c GROUP BY c.id ORDER BY c.id DESC LIMIT $2::bigint";
        /// Entries that a worker holds or ended (event_queue's primary key; log_workers' primary key for each end).
        of_worker: NearRow = &by_stretches("
            WITH near AS MATERIALIZED ({ended_by}), found AS MATERIALIZED (
                SELECT q.id FROM {live} q
                WHERE q.id < $1::bigint AND q.lease_until IS NOT NULL AND q.worker = $6::text AND $4::integer IN (1, 3)
                ORDER BY q.id DESC LIMIT $2::bigint
            )", OF_WORKER);
        /// Entries of a client that a worker holds or ended (event_queue_client; log_workers' primary key for each
        /// end).
        of_worker_of_client: NearRow = &by_stretches("
            WITH near AS MATERIALIZED ({ended_by}), found AS MATERIALIZED (
                SELECT q.id FROM {live} q
                WHERE q.client_id IS NOT NULL AND q.client_id = ANY (ARRAY[$7::bigint]) AND q.id < $1::bigint
                  AND q.lease_until IS NOT NULL AND q.worker = $6::text AND $4::integer IN (1, 3)
                ORDER BY q.client_id DESC, q.id DESC LIMIT $2::bigint
            )", OF_WORKER);
        /// The lanes of a client, a queue and a type, as far as each is given, and whether a lane may hold other
        /// entries too (queues and lanes are small; event_log_unsorted). An entry that ended before it was sorted in
        /// has a negative lane, whatever its queue.
        lanes_of: LaneRow = "
            WITH RECURSIVE below(lane) AS (
                (SELECT g.lane FROM {log} g
                 WHERE g.lane > -2147483648 AND g.lane < 0 AND g.superseded <> 1 ORDER BY g.lane LIMIT 1)
                UNION ALL
                SELECT (SELECT g.lane FROM {log} g
                        WHERE g.lane > b.lane AND g.lane < 0 AND g.superseded <> 1 ORDER BY g.lane LIMIT 1)
                FROM below b WHERE b.lane IS NOT NULL
            )
            (SELECT l.id, $4::text IS NOT NULL AND l.held_type IS NULL AS mixed
             FROM {queues} n CROSS JOIN LATERAL (
                 SELECT l.id, CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END AS held_type
                 FROM {lanes} l WHERE l.queue_id = n.id OFFSET 0
             ) AS l
             WHERE ($1::bigint IS NULL OR n.client_id = $1::bigint)
               AND ($2::text IS NULL OR n.name = $2::text AND coalesce(n.client_id, 0) = coalesce($3::bigint, 0))
               AND ($4::text IS NULL OR l.held_type IS NULL OR l.held_type = $4::text)
             LIMIT $5::bigint)
            UNION ALL
            SELECT b.lane, true FROM below b WHERE b.lane IS NOT NULL";
        /// The highest number of an entry (event_queue's and event_log's primary keys, from the end).
        last_number: Only<i64> = LAST_NUMBER;
        /// When the first entry at or above each number was published (event_queue's, event_log's and events' primary
        /// keys).
        published_from: PublishedRow = &published_from();
        /// Entries as lists show them (primary keys). An entry that ended as a dead letter may have no fact.
        summaries: SummaryRow = &"
            SELECT q.id, q.event_id, n.name, q.attempts, q.max_attempts,
                   coalesce(l.priority, -q.lane - 1000)::smallint AS priority, q.group_key, q.worker,
                   coalesce(q.updated_at, e.created_at, {q_made}) AS updated_at,
                   CASE WHEN q.lease_until IS NULL THEN -2 ELSE -1 END::smallint AS status,
                   CASE WHEN coalesce(q.flags, 0) & 8 = 0 THEN q.due_at END AS due_at,
                   coalesce(e.event_type, l.event_type, '') AS event_type, e.title, e.tags, n.client_id,
                   coalesce({q_added}, e.created_at, {q_made}) AS created_at
            FROM unnest($1::bigint[]) AS i(id)
            CROSS JOIN LATERAL (SELECT * FROM {live} q WHERE q.id = i.id OFFSET 0) AS q
            CROSS JOIN LATERAL (SELECT * FROM {queues} n WHERE n.id = q.queue_id OFFSET 0) AS n
            LEFT JOIN LATERAL (SELECT * FROM {lanes} l WHERE l.id = q.lane OFFSET 0) AS l ON true
            LEFT JOIN LATERAL (SELECT * FROM {ns}.events e WHERE e.id = q.event_id OFFSET 0) AS e ON true
            UNION ALL
            SELECT g.id, g.event_id, n.name, g.attempts, g.max_attempts,
                   coalesce(l.priority, -g.lane - 1000)::smallint, g.group_key, g.worker, g.finished_at, g.status, NULL,
                   coalesce(e.event_type, l.event_type, ''), e.title, e.tags, n.client_id,
                   coalesce({g_added}, e.created_at, {g_made})
            FROM unnest($1::bigint[]) AS i(id)
            CROSS JOIN LATERAL (
                SELECT * FROM {log} g
                WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) AND g.superseded + 0 <> 1 OFFSET 0
            ) AS g
            CROSS JOIN LATERAL (SELECT * FROM {queues} n WHERE n.id = g.queue_id OFFSET 0) AS n
            LEFT JOIN LATERAL (SELECT * FROM {lanes} l WHERE l.id = g.lane OFFSET 0) AS l ON true
            LEFT JOIN LATERAL (SELECT * FROM {ns}.events e WHERE e.id = g.event_id OFFSET 0) AS e ON true"
            .replace("{q_made}", &made("q")).replace("{g_made}", &made("g"))
            .replace("{q_added}", &made_at("q")).replace("{g_added}", &made_at("g"));
        /// How many entries there are, in parts: ended ones counted so far; ended since (event_log_commits), read and
        /// fitting; redriven ones (event_log_superseded); live ones, read and fitting. Reads at most `$3` rows for each
        /// part. One statement, so that all parts come from one snapshot.
        total: TotalRow = "
            SELECT (SELECT coalesce(sum(c.counts[s + 1]), 0)::bigint
                    FROM {ns}.log_counts c CROSS JOIN unnest($1::smallint[]) AS s) AS counted,
                   since.rows AS since, since.fitting AS since_fitting, again.rows AS redriven,
                   live.rows AS live, live.fitting AS live_fitting
            FROM (SELECT count(*) AS rows, count(*) FILTER (WHERE g.status = ANY ($1::smallint[])) AS fitting
                  FROM (SELECT g.status FROM {log} g
                        WHERE g.xid >= (SELECT xid FROM {ns}.log_counts) AND cardinality($1::smallint[]) > 0
                        LIMIT $3::bigint) AS g
                 ) AS since,
                 (SELECT count(*) AS rows
                  FROM (SELECT FROM {log} g
                        WHERE g.superseded = 1 AND g.status = ANY ($1::smallint[]) LIMIT $3::bigint) AS g
                 ) AS again,
                 (SELECT count(*) AS rows,
                         count(*) FILTER (
                             WHERE $2::integer = 1 OR (q.lease_until IS NOT NULL) = ($2::integer = 3)) AS fitting
                  FROM (SELECT CASE WHEN $2::integer > 1 THEN q.lease_until END AS lease_until
                        FROM {live} q WHERE $2::integer > 0 LIMIT $3::bigint) AS q
                 ) AS live";
        /// The same for one tag (tag_counts' and event_tags' primary keys, event_tags_rank). Facts are looked up row by
        /// row: a join might read the whole table.
        tag_total: TotalRow = "
            SELECT (SELECT coalesce(sum(c.rows), 0)::bigint FROM {ns}.tag_counts c
                    WHERE c.tag = $4::text AND c.status = ANY ($1::smallint[])) AS counted,
                   since.rows AS since, since.fitting AS since_fitting, again.rows AS redriven,
                   live.rows + held.rows AS live,
                   CASE WHEN $2::integer = 3 THEN held.rows ELSE live.rows - held.rows END AS live_fitting
            FROM (SELECT count(*) AS rows,
                         count(*) FILTER (WHERE g.status = ANY ($1::smallint[]) AND g.flags & 1 <> 0
                             AND $4::text = ANY (string_to_array(
                                 (SELECT e.tags FROM {ns}.events e WHERE e.id = g.event_id), ','))) AS fitting
                  FROM (SELECT g.status, g.flags, g.event_id FROM {log} g
                        WHERE g.xid >= (SELECT xid FROM {ns}.log_counts) AND cardinality($1::smallint[]) > 0
                        LIMIT $3::bigint) AS g
                 ) AS since,
                 (SELECT count(*) AS rows
                  FROM (SELECT FROM {log} g
                        WHERE g.superseded = 1 AND g.flags & 1 <> 0 AND g.status = ANY ($1::smallint[])
                          AND $4::text = ANY (string_to_array(
                              (SELECT e.tags FROM {ns}.events e WHERE e.id = g.event_id), ','))
                        LIMIT $3::bigint) AS g
                 ) AS again,
                 (SELECT count(*) AS rows
                  FROM (SELECT FROM {ns}.event_tags t
                        WHERE t.tag = $4::text AND $2::integer IN (1, 2) LIMIT $3::bigint) AS t
                 ) AS live,
                 (SELECT count(*) AS rows
                  FROM (SELECT FROM {queues} n CROSS JOIN LATERAL (
                            SELECT FROM {ns}.event_tags t
                            WHERE t.queue_id = n.id AND t.tag = $4::text AND t.state = 3 OFFSET 0) AS t
                        WHERE $2::integer IN (2, 3) LIMIT $3::bigint) AS t
                 ) AS held";
        /// The same for a client (client_counts' primary key, event_log_commits, event_log_redriven,
        /// event_queue_client).
        client_total: TotalRow = "
            SELECT (SELECT coalesce(sum(c.rows), 0)::bigint FROM {ns}.client_counts c
                    WHERE c.client_id = $4::bigint AND c.tag = '' AND c.status = ANY ($1::smallint[])) AS counted,
                   since.rows AS since, since.fitting AS since_fitting, again.rows AS redriven,
                   live.rows AS live, live.fitting AS live_fitting
            FROM (SELECT count(*) AS rows,
                         count(*) FILTER (WHERE g.client_id = $4::bigint AND g.status = ANY ($1::smallint[])) AS fitting
                  FROM (SELECT g.status, g.client_id FROM {log} g
                        WHERE g.xid >= (SELECT xid FROM {ns}.log_counts) AND cardinality($1::smallint[]) > 0
                        LIMIT $3::bigint) AS g
                 ) AS since,
                 (SELECT count(*) AS rows
                  FROM (SELECT FROM {log} g
                        WHERE g.client_id = $4::bigint AND g.superseded = 1 AND g.status = ANY ($1::smallint[])
                        LIMIT $3::bigint) AS g
                 ) AS again,
                 (SELECT count(*) AS rows,
                         count(*) FILTER (
                             WHERE $2::integer = 1 OR (q.lease_until IS NOT NULL) = ($2::integer = 3)) AS fitting
                  FROM (SELECT CASE WHEN $2::integer > 1 THEN q.lease_until END AS lease_until
                        FROM {live} q WHERE q.client_id = $4::bigint AND $2::integer > 0 LIMIT $3::bigint) AS q
                 ) AS live";
        /// The same for a client and one tag (client_counts' primary key, event_log_commits, event_log_redriven,
        /// event_tags_client, event_tags_rank).
        client_tag_total: TotalRow = "
            SELECT (SELECT coalesce(sum(c.rows), 0)::bigint FROM {ns}.client_counts c
                    WHERE c.client_id = $5::bigint AND c.tag = $4::text AND c.status = ANY ($1::smallint[])) AS counted,
                   since.rows AS since, since.fitting AS since_fitting, again.rows AS redriven,
                   live.rows + held.rows AS live,
                   CASE WHEN $2::integer = 3 THEN held.rows ELSE live.rows - held.rows END AS live_fitting
            FROM (SELECT count(*) AS rows,
                         count(*) FILTER (WHERE g.client_id = $5::bigint AND g.status = ANY ($1::smallint[])
                             AND g.flags & 1 <> 0 AND $4::text = ANY (string_to_array(
                                 (SELECT e.tags FROM {ns}.events e WHERE e.id = g.event_id), ','))) AS fitting
                  FROM (SELECT g.status, g.flags, g.event_id, g.client_id FROM {log} g
                        WHERE g.xid >= (SELECT xid FROM {ns}.log_counts) AND cardinality($1::smallint[]) > 0
                        LIMIT $3::bigint) AS g
                 ) AS since,
                 (SELECT count(*) AS rows
                  FROM (SELECT FROM {log} g
                        WHERE g.client_id = $5::bigint AND g.superseded = 1 AND g.flags & 1 <> 0
                          AND g.status = ANY ($1::smallint[])
                          AND $4::text = ANY (string_to_array(
                              (SELECT e.tags FROM {ns}.events e WHERE e.id = g.event_id), ','))
                        LIMIT $3::bigint) AS g
                 ) AS again,
                 (SELECT count(*) AS rows
                  FROM (SELECT FROM {ns}.event_tags t
                        WHERE t.client_id = $5::bigint AND t.tag = $4::text AND $2::integer IN (1, 2)
                        LIMIT $3::bigint) AS t
                 ) AS live,
                 (SELECT count(*) AS rows
                  FROM (SELECT FROM (SELECT n.id FROM {queues} n WHERE n.client_id = $5::bigint) AS n
                        CROSS JOIN LATERAL (
                            SELECT FROM {ns}.event_tags t
                            WHERE t.queue_id = n.id AND t.tag = $4::text AND t.state = 3 OFFSET 0) AS t
                        WHERE $2::integer IN (2, 3) LIMIT $3::bigint) AS t
                 ) AS held";
    }
}
