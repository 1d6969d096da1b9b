//! The statements of lists and totals, with the index that serves each. Everything that finds candidates answers numbers of
//! entries below `$1`, youngest first, at most `$2`; `$3` are the ends wanted and `$4` the live part (`LivePart`); lists by
//! stretches (`STRETCH`) look through `$5` of them. An index's first column is compared with `= ANY (ARRAY[x])` and all of its columns order the rows: `a = x ORDER BY id` would
//! as well fit a walk along the primary key, which hardly ends where few rows have that `a`.

use crate::listing::STRETCH;

/// Statements with the namespace filled in.
#[derive(Debug)]
pub(super) struct ListSql {
    pub(super) list_all: String,
    pub(super) list_ended: String,
    pub(super) list_client: String,
    pub(super) list_lanes: String,
    pub(super) list_tags: String,
    pub(super) list_tags_client: String,
    pub(super) list_worker: String,
    pub(super) list_worker_client: String,
    pub(super) lanes_of: String,
    pub(super) last_number: String,
    pub(super) moments: String,
    pub(super) summaries: String,
    pub(super) total: String,
    pub(super) tag_total: String,
    pub(super) client_total: String,
    pub(super) client_tag_total: String,
}

/// Whether a live entry is in the part that is wanted.
const LIVE: &str = "$4::integer > 0 AND ($4::integer = 1 OR (q.lease_until IS NOT NULL) = ($4::integer = 3))";
/// The moment that an event's id holds.
const MADE: &str = "to_timestamp(((x.event_id >> 22) + 1577836800000) / 1000.0)";

/// Fills in what a list by stretches has in common with others, and what is its own.
fn by_stretches(text: &str, fits: &str) -> String {
    text.replace("{near}", NEAR).replace("{ended_by}", ENDED_BY).replace("{fits}", fits)
}

impl ListSql {
    pub(super) fn new(namespace: &str) -> Self {
        let fill = |text: &str| {
            text.replace("{stretch}", &STRETCH.to_string())
                .replace("{live}", LIVE)
                .replace("{q_made}", &MADE.replace("x.", "q."))
                .replace("{g_made}", &MADE.replace("x.", "g."))
                .replace("{x_made}", MADE)
                .replace("{ns}", namespace)
        };
        Self {
            list_all: fill(LIST_ALL),
            list_ended: fill(LIST_ENDED),
            list_client: fill(LIST_CLIENT),
            list_lanes: fill(&by_stretches(LIST_LANES, OF_LANES)),
            list_tags: fill(LIST_TAGS),
            list_tags_client: fill(LIST_TAGS_CLIENT),
            list_worker: fill(&by_stretches(LIST_WORKER, OF_WORKER)),
            list_worker_client: fill(&by_stretches(LIST_WORKER_CLIENT, OF_WORKER)),
            lanes_of: fill(LANES_OF),
            last_number: fill(LAST_NUMBER),
            moments: fill(MOMENTS),
            summaries: fill(SUMMARIES),
            total: fill(TOTAL),
            tag_total: fill(TAG_TOTAL),
            client_total: fill(CLIENT_TOTAL),
            client_tag_total: fill(CLIENT_TAG_TOTAL),
        }
    }
}

/// Both primary keys. Held entries are found by walking over those that wait: an index of leases would be written by every
/// claim.
const LIST_ALL: &str = "
SELECT c.id FROM (
    (SELECT q.id FROM {ns}.event_queue q WHERE q.id < $1::bigint AND {live} ORDER BY q.id DESC LIMIT $2::bigint)
    UNION ALL
    (SELECT g.id FROM {ns}.event_log g
     WHERE g.id < $1::bigint AND g.superseded + 0 <> 1 AND cardinality($3::smallint[]) > 0
     ORDER BY g.id DESC LIMIT $2::bigint)
) AS c ORDER BY c.id DESC LIMIT $2::bigint";

/// event_log_ends.
const LIST_ENDED: &str = "
SELECT g.id FROM {ns}.event_log g
WHERE g.status = $3::smallint AND g.status > 0 AND g.superseded <> 1 AND g.id < $1::bigint
ORDER BY g.id DESC LIMIT $2::bigint";

/// event_queue_client, event_log_client.
const LIST_CLIENT: &str = "
SELECT c.id FROM (
    (SELECT q.id FROM {ns}.event_queue q
     WHERE q.client_id IS NOT NULL AND q.client_id = ANY (ARRAY[$5::bigint]) AND q.id < $1::bigint AND {live}
     ORDER BY q.client_id DESC, q.id DESC LIMIT $2::bigint)
    UNION ALL
    SELECT e.id FROM unnest($3::smallint[]) AS s(status) CROSS JOIN LATERAL (
        SELECT g.id FROM {ns}.event_log g
        WHERE g.client_id IS NOT NULL AND g.superseded <> 1
          AND g.client_id = ANY (ARRAY[$5::bigint]) AND g.status = s.status AND g.id < $1::bigint
        ORDER BY g.client_id DESC, g.status DESC, g.id DESC LIMIT $2::bigint
    ) AS e
) AS c ORDER BY c.id DESC LIMIT $2::bigint";

/// What a list by stretches answers: the youngest of `found`, each once, as far down as everybody looked, and how far that is.
/// What ended comes from the stretches that are `near` (event_log's primary key), and from what was not counted yet
/// (event_log_commits).
const NEAR: &str = "
SELECT c.id, h.down_to
FROM (SELECT CASE WHEN count(*) >= $5::bigint THEN min(n.stretch) << {stretch} END AS down_to FROM near n) AS h
LEFT JOIN LATERAL (
    SELECT c.id FROM (
        SELECT f.id FROM found f
        UNION ALL
        SELECT e.id FROM near n
        CROSS JOIN LATERAL (
            SELECT g.id FROM {ns}.event_log g
            WHERE g.id >= n.stretch << {stretch} AND g.id < least((n.stretch + 1) << {stretch}, $1::bigint)
              AND g.status + 0 = ANY ($3::smallint[]) AND g.superseded + 0 <> 1 AND {fits}
            ORDER BY g.id DESC, g.generation DESC OFFSET 0
        ) AS e
        UNION ALL
        SELECT g.id FROM {ns}.event_log g
        WHERE g.xid >= (SELECT l.xid FROM {ns}.log_counts l) AND cardinality($3::smallint[]) > 0 AND g.id + 0 < $1::bigint
          AND g.status + 0 = ANY ($3::smallint[]) AND g.superseded + 0 <> 1 AND {fits}
    ) AS c WHERE c.id >= coalesce(h.down_to, 0) GROUP BY c.id ORDER BY c.id DESC LIMIT $2::bigint
) AS c ON true ORDER BY c.id DESC";

/// event_queue_fresh and event_queue_waiting for each lane; event_queue_arrived for what has none yet; log_lanes' primary key
/// for each lane and end.
const LIST_LANES: &str = "
WITH near AS MATERIALIZED (
    SELECT e.stretch
    FROM unnest($6::integer[]) AS l(lane) CROSS JOIN unnest($3::smallint[]) AS s(status) CROSS JOIN LATERAL (
        SELECT x.stretch FROM {ns}.log_lanes x
        WHERE x.lane = ANY (ARRAY[l.lane]) AND x.status = s.status AND x.stretch <= ($1::bigint - 1) >> {stretch}
        ORDER BY x.lane DESC, x.status DESC, x.stretch DESC LIMIT $5::bigint
    ) AS e
    GROUP BY e.stretch ORDER BY e.stretch DESC LIMIT $5::bigint
), found AS MATERIALIZED (
    SELECT e.id FROM unnest($6::integer[]) AS l(lane) CROSS JOIN LATERAL (
        SELECT q.id FROM {ns}.event_queue q
        WHERE q.lane = ANY (ARRAY[l.lane]) AND q.place = 0 AND q.id < $1::bigint AND {live}
        ORDER BY q.lane DESC, q.id DESC LIMIT $2::bigint
    ) AS e
    UNION ALL
    SELECT e.id FROM unnest($6::integer[]) AS l(lane) CROSS JOIN LATERAL (
        SELECT q.id FROM {ns}.event_queue q
        WHERE q.lane = ANY (ARRAY[l.lane]) AND q.place IN (1, 2) AND q.id < $1::bigint AND {live}
        ORDER BY q.lane DESC, q.id DESC LIMIT $2::bigint
    ) AS e
    UNION ALL
    (SELECT q.id FROM {ns}.event_queue q
     WHERE q.place = 3 AND q.id < $1::bigint AND {live} AND ($7::bigint IS NULL OR q.client_id = $7::bigint)
       AND ($8::text IS NULL OR EXISTS (SELECT FROM {ns}.queues n WHERE n.id = q.queue_id AND n.name = $8::text
                                        AND coalesce(n.client_id, 0) = coalesce($9::bigint, 0)))
       AND ($10::text IS NULL OR (SELECT e.event_type FROM {ns}.events e WHERE e.id = q.event_id) = $10::text)
     ORDER BY q.id DESC LIMIT $2::bigint)
){near}";

/// The primary keys of both tables of tags, for each tag; event_tags_rank for what is held, in each queue. An entry with two
/// of the tags comes once.
const LIST_TAGS: &str = "
SELECT c.id FROM (
    SELECT e.id FROM unnest($5::text[]) AS w(tag) CROSS JOIN LATERAL (
        SELECT t.entry_id AS id FROM {ns}.event_tags t
        WHERE t.tag = w.tag AND t.entry_id < $1::bigint AND $4::integer IN (1, 2) AND ($4::integer = 1 OR t.state <> 3)
        ORDER BY t.tag DESC, t.entry_id DESC LIMIT $2::bigint
    ) AS e
    UNION ALL
    SELECT e.id FROM unnest($5::text[]) AS w(tag)
    CROSS JOIN (SELECT n.id FROM {ns}.queues n WHERE $4::integer = 3) AS n
    CROSS JOIN LATERAL (
        SELECT t.entry_id AS id FROM {ns}.event_tags t
        WHERE t.queue_id = n.id AND t.tag = w.tag AND t.state = 3 AND t.entry_id + 0 < $1::bigint
        ORDER BY t.entry_id + 0 DESC LIMIT $2::bigint
    ) AS e
    UNION ALL
    SELECT e.id FROM unnest($5::text[]) AS w(tag) CROSS JOIN unnest($3::smallint[]) AS s(status) CROSS JOIN LATERAL (
        SELECT t.entry_id AS id FROM {ns}.log_tags t
        WHERE t.tag = w.tag AND t.status = s.status AND t.entry_id < $1::bigint ORDER BY t.entry_id DESC LIMIT $2::bigint
    ) AS e
) AS c GROUP BY c.id ORDER BY c.id DESC LIMIT $2::bigint";

/// The same for a client (event_tags_client, event_tags_rank in its queues, log_tags_client).
const LIST_TAGS_CLIENT: &str = "
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
    CROSS JOIN (SELECT n.id FROM {ns}.queues n WHERE n.client_id = $6::bigint AND $4::integer = 3) AS n
    CROSS JOIN LATERAL (
        SELECT t.entry_id AS id FROM {ns}.event_tags t
        WHERE t.queue_id = n.id AND t.tag = w.tag AND t.state = 3 AND t.entry_id + 0 < $1::bigint
        ORDER BY t.entry_id + 0 DESC LIMIT $2::bigint
    ) AS e
    UNION ALL
    SELECT e.id FROM unnest($5::text[]) AS w(tag) CROSS JOIN unnest($3::smallint[]) AS s(status) CROSS JOIN LATERAL (
        SELECT t.entry_id AS id FROM {ns}.log_tags t
        WHERE t.client_id IS NOT NULL AND t.client_id = ANY (ARRAY[$6::bigint]) AND t.tag = w.tag
          AND t.status = s.status AND t.entry_id < $1::bigint
        ORDER BY t.client_id DESC, t.tag DESC, t.status DESC, t.entry_id DESC LIMIT $2::bigint
    ) AS e
) AS c GROUP BY c.id ORDER BY c.id DESC LIMIT $2::bigint";

/// The live table's primary key for what is held, and log_workers' for each end.
const LIST_WORKER: &str = "
WITH near AS MATERIALIZED ({ended_by}), found AS MATERIALIZED (
    SELECT q.id FROM {ns}.event_queue q
    WHERE q.id < $1::bigint AND q.lease_until IS NOT NULL AND q.worker = $6::text AND $4::integer IN (1, 3)
    ORDER BY q.id DESC LIMIT $2::bigint
){near}";

/// The same for a client (event_queue_client).
const LIST_WORKER_CLIENT: &str = "
WITH near AS MATERIALIZED ({ended_by}), found AS MATERIALIZED (
    SELECT q.id FROM {ns}.event_queue q
    WHERE q.client_id IS NOT NULL AND q.client_id = ANY (ARRAY[$7::bigint]) AND q.id < $1::bigint
      AND q.lease_until IS NOT NULL AND q.worker = $6::text AND $4::integer IN (1, 3)
    ORDER BY q.client_id DESC, q.id DESC LIMIT $2::bigint
){near}";

/// Where a worker ended something, for a client or, under client 0, for everybody.
const ENDED_BY: &str = "
    SELECT e.stretch FROM unnest($3::smallint[]) AS s(status) CROSS JOIN LATERAL (
        SELECT x.stretch FROM {ns}.log_workers x
        WHERE x.client_id = ANY (ARRAY[coalesce($7::bigint, 0)]) AND x.worker = $6::text AND x.status = s.status
          AND x.stretch <= ($1::bigint - 1) >> {stretch}
        ORDER BY x.client_id DESC, x.worker DESC, x.status DESC, x.stretch DESC LIMIT $5::bigint
    ) AS e
    GROUP BY e.stretch ORDER BY e.stretch DESC LIMIT $5::bigint";

const OF_LANES: &str = "g.lane + 0 = ANY ($6::integer[])";
const OF_WORKER: &str = "g.worker = $6::text AND ($7::bigint IS NULL OR g.client_id + 0 = $7::bigint)";

/// The lanes of a client, a queue and a type, as far as each is given, and whether a lane holds other types too (queues and
/// lanes are small; event_log_unsorted). What ended before it was sorted in has a lane below zero, whatever its queue.
const LANES_OF: &str = "
WITH RECURSIVE below(lane) AS (
    (SELECT g.lane FROM {ns}.event_log g WHERE g.lane > -2147483648 AND g.lane < 0 AND g.superseded <> 1 ORDER BY g.lane LIMIT 1)
    UNION ALL
    SELECT (SELECT g.lane FROM {ns}.event_log g
            WHERE g.lane > b.lane AND g.lane < 0 AND g.superseded <> 1 ORDER BY g.lane LIMIT 1)
    FROM below b WHERE b.lane IS NOT NULL
)
(SELECT l.id, $4::text IS NOT NULL AND l.held_type IS NULL
 FROM {ns}.queues n CROSS JOIN LATERAL (
     SELECT l.id, CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END AS held_type
     FROM {ns}.lanes l WHERE l.queue_id = n.id OFFSET 0
 ) AS l
 WHERE ($1::bigint IS NULL OR n.client_id = $1::bigint)
   AND ($2::text IS NULL OR n.name = $2::text AND coalesce(n.client_id, 0) = coalesce($3::bigint, 0))
   AND ($4::text IS NULL OR l.held_type IS NULL OR l.held_type = $4::text)
 LIMIT $5::bigint)
UNION ALL
SELECT b.lane, true FROM below b WHERE b.lane IS NOT NULL";

/// The ends of both primary keys.
const LAST_NUMBER: &str = "
SELECT greatest((SELECT q.id FROM {ns}.event_queue q WHERE q.id > 0 ORDER BY q.id DESC LIMIT 1),
                (SELECT g.id FROM {ns}.event_log g WHERE g.id > 0 ORDER BY g.id DESC LIMIT 1), 0)";

/// When the first entry at or above each number was published (primary keys).
const MOMENTS: &str = "
SELECT i.pivot, coalesce((SELECT e.created_at FROM {ns}.events e WHERE e.id = x.event_id), {x_made})
FROM unnest($1::bigint[]) AS i(pivot)
LEFT JOIN LATERAL (
    SELECT c.event_id FROM (
        (SELECT q.id, q.event_id FROM {ns}.event_queue q WHERE q.id >= i.pivot ORDER BY q.id LIMIT 1)
        UNION ALL
        (SELECT g.id, g.event_id FROM {ns}.event_log g WHERE g.id >= i.pivot ORDER BY g.id LIMIT 1)
    ) AS c ORDER BY c.id LIMIT 1
) AS x ON true
ORDER BY i.pivot";

/// Entries as lists show them (primary keys). The fact of one that was set aside may be missing.
const SUMMARIES: &str = "
SELECT q.id, q.event_id, n.name, q.attempts, q.max_attempts, coalesce(l.priority, -q.lane - 1000)::smallint, q.group_key,
       q.worker, coalesce(q.updated_at, e.created_at, {q_made}), CASE WHEN q.lease_until IS NULL THEN -2 ELSE -1 END::smallint,
       q.due_at, coalesce(e.event_type, l.event_type, ''), e.title, e.tags, n.client_id, coalesce(e.created_at, {q_made})
FROM unnest($1::bigint[]) AS i(id)
CROSS JOIN LATERAL (SELECT * FROM {ns}.event_queue q WHERE q.id = i.id OFFSET 0) AS q
CROSS JOIN LATERAL (SELECT * FROM {ns}.queues n WHERE n.id = q.queue_id OFFSET 0) AS n
LEFT JOIN LATERAL (SELECT * FROM {ns}.lanes l WHERE l.id = q.lane OFFSET 0) AS l ON true
LEFT JOIN LATERAL (SELECT * FROM {ns}.events e WHERE e.id = q.event_id OFFSET 0) AS e ON true
UNION ALL
SELECT g.id, g.event_id, n.name, g.attempts, g.max_attempts, coalesce(l.priority, -g.lane - 1000)::smallint, g.group_key,
       g.worker, g.finished_at, g.status, NULL, coalesce(e.event_type, l.event_type, ''), e.title, e.tags, n.client_id,
       coalesce(e.created_at, {g_made})
FROM unnest($1::bigint[]) AS i(id)
CROSS JOIN LATERAL (
    SELECT * FROM {ns}.event_log g
    WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) AND g.superseded + 0 <> 1 OFFSET 0
) AS g
CROSS JOIN LATERAL (SELECT * FROM {ns}.queues n WHERE n.id = g.queue_id OFFSET 0) AS n
LEFT JOIN LATERAL (SELECT * FROM {ns}.lanes l WHERE l.id = g.lane OFFSET 0) AS l ON true
LEFT JOIN LATERAL (SELECT * FROM {ns}.events e WHERE e.id = g.event_id OFFSET 0) AS e ON true";

/// How many entries there are, in parts: counted ones; those since (event_log_commits), looked at and fitting; those that live
/// again (event_log_superseded); live ones, looked at and fitting. At most `$3` rows of each are looked at. One statement, one
/// snapshot.
const TOTAL: &str = "
SELECT (SELECT coalesce(sum(c.counts[s + 1]), 0)::bigint FROM {ns}.log_counts c CROSS JOIN unnest($1::smallint[]) AS s),
       since.rows, since.fitting, again.rows, live.rows, live.fitting
FROM (SELECT count(*) AS rows, count(*) FILTER (WHERE g.status = ANY ($1::smallint[])) AS fitting
      FROM (SELECT g.status FROM {ns}.event_log g
            WHERE g.xid >= (SELECT xid FROM {ns}.log_counts) AND cardinality($1::smallint[]) > 0 LIMIT $3::bigint) AS g
     ) AS since,
     (SELECT count(*) AS rows
      FROM (SELECT FROM {ns}.event_log g WHERE g.superseded = 1 AND g.status = ANY ($1::smallint[]) LIMIT $3::bigint) AS g
     ) AS again,
     (SELECT count(*) AS rows,
             count(*) FILTER (WHERE $2::integer = 1 OR (q.lease_until IS NOT NULL) = ($2::integer = 3)) AS fitting
      FROM (SELECT CASE WHEN $2::integer > 1 THEN q.lease_until END AS lease_until
            FROM {ns}.event_queue q WHERE $2::integer > 0 LIMIT $3::bigint) AS q
     ) AS live";

/// The same for one tag (tag_counts', event_tags' primary keys, event_tags_rank). Facts are looked up row by row: as a join
/// they might be read whole.
const TAG_TOTAL: &str = "
SELECT (SELECT coalesce(sum(c.rows), 0)::bigint FROM {ns}.tag_counts c
        WHERE c.tag = $4::text AND c.status = ANY ($1::smallint[])),
       since.rows, since.fitting, again.rows, live.rows + held.rows,
       CASE WHEN $2::integer = 3 THEN held.rows ELSE live.rows - held.rows END
FROM (SELECT count(*) AS rows, count(*) FILTER (WHERE g.status = ANY ($1::smallint[]) AND g.flags & 1 <> 0 AND $4::text = ANY (
                 string_to_array((SELECT e.tags FROM {ns}.events e WHERE e.id = g.event_id), ','))) AS fitting
      FROM (SELECT g.status, g.flags, g.event_id FROM {ns}.event_log g
            WHERE g.xid >= (SELECT xid FROM {ns}.log_counts) AND cardinality($1::smallint[]) > 0 LIMIT $3::bigint) AS g
     ) AS since,
     (SELECT count(*) AS rows
      FROM (SELECT FROM {ns}.event_log g
            WHERE g.superseded = 1 AND g.flags & 1 <> 0 AND g.status = ANY ($1::smallint[])
              AND $4::text = ANY (string_to_array((SELECT e.tags FROM {ns}.events e WHERE e.id = g.event_id), ','))
            LIMIT $3::bigint) AS g
     ) AS again,
     (SELECT count(*) AS rows
      FROM (SELECT FROM {ns}.event_tags t WHERE t.tag = $4::text AND $2::integer IN (1, 2) LIMIT $3::bigint) AS t
     ) AS live,
     (SELECT count(*) AS rows
      FROM (SELECT FROM {ns}.queues n CROSS JOIN LATERAL (
                SELECT FROM {ns}.event_tags t WHERE t.queue_id = n.id AND t.tag = $4::text AND t.state = 3 OFFSET 0) AS t
            WHERE $2::integer IN (2, 3) LIMIT $3::bigint) AS t
     ) AS held";

/// The same for a client (client_counts' primary key, event_log_commits, event_log_redriven, event_queue_client).
const CLIENT_TOTAL: &str = "
SELECT (SELECT coalesce(sum(c.rows), 0)::bigint FROM {ns}.client_counts c
        WHERE c.client_id = $4::bigint AND c.tag = '' AND c.status = ANY ($1::smallint[])),
       since.rows, since.fitting, again.rows, live.rows, live.fitting
FROM (SELECT count(*) AS rows,
             count(*) FILTER (WHERE g.client_id = $4::bigint AND g.status = ANY ($1::smallint[])) AS fitting
      FROM (SELECT g.status, g.client_id FROM {ns}.event_log g
            WHERE g.xid >= (SELECT xid FROM {ns}.log_counts) AND cardinality($1::smallint[]) > 0 LIMIT $3::bigint) AS g
     ) AS since,
     (SELECT count(*) AS rows
      FROM (SELECT FROM {ns}.event_log g
            WHERE g.client_id = $4::bigint AND g.superseded = 1 AND g.status = ANY ($1::smallint[]) LIMIT $3::bigint) AS g
     ) AS again,
     (SELECT count(*) AS rows,
             count(*) FILTER (WHERE $2::integer = 1 OR (q.lease_until IS NOT NULL) = ($2::integer = 3)) AS fitting
      FROM (SELECT CASE WHEN $2::integer > 1 THEN q.lease_until END AS lease_until
            FROM {ns}.event_queue q WHERE q.client_id = $4::bigint AND $2::integer > 0 LIMIT $3::bigint) AS q
     ) AS live";

/// The same for a client's tag (client_counts' primary key, event_log_commits, event_log_redriven, event_tags_client,
/// event_tags_rank).
const CLIENT_TAG_TOTAL: &str = "
SELECT (SELECT coalesce(sum(c.rows), 0)::bigint FROM {ns}.client_counts c
        WHERE c.client_id = $5::bigint AND c.tag = $4::text AND c.status = ANY ($1::smallint[])),
       since.rows, since.fitting, again.rows, live.rows + held.rows,
       CASE WHEN $2::integer = 3 THEN held.rows ELSE live.rows - held.rows END
FROM (SELECT count(*) AS rows,
             count(*) FILTER (WHERE g.client_id = $5::bigint AND g.status = ANY ($1::smallint[]) AND g.flags & 1 <> 0
                 AND $4::text = ANY (string_to_array(
                     (SELECT e.tags FROM {ns}.events e WHERE e.id = g.event_id), ','))) AS fitting
      FROM (SELECT g.status, g.flags, g.event_id, g.client_id FROM {ns}.event_log g
            WHERE g.xid >= (SELECT xid FROM {ns}.log_counts) AND cardinality($1::smallint[]) > 0 LIMIT $3::bigint) AS g
     ) AS since,
     (SELECT count(*) AS rows
      FROM (SELECT FROM {ns}.event_log g
            WHERE g.client_id = $5::bigint AND g.superseded = 1 AND g.flags & 1 <> 0 AND g.status = ANY ($1::smallint[])
              AND $4::text = ANY (string_to_array((SELECT e.tags FROM {ns}.events e WHERE e.id = g.event_id), ','))
            LIMIT $3::bigint) AS g
     ) AS again,
     (SELECT count(*) AS rows
      FROM (SELECT FROM {ns}.event_tags t
            WHERE t.client_id = $5::bigint AND t.tag = $4::text AND $2::integer IN (1, 2) LIMIT $3::bigint) AS t
     ) AS live,
     (SELECT count(*) AS rows
      FROM (SELECT FROM (SELECT n.id FROM {ns}.queues n WHERE n.client_id = $5::bigint) AS n CROSS JOIN LATERAL (
                SELECT FROM {ns}.event_tags t WHERE t.queue_id = n.id AND t.tag = $4::text AND t.state = 3 OFFSET 0) AS t
            WHERE $2::integer IN (2, 3) LIMIT $3::bigint) AS t
     ) AS held";
