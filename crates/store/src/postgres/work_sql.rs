//! The statements of tags, audit, lists, counts and retention, with the index that serves each.

use super::projections_sql::BOUND;
use crate::listing::STRETCH;

/// Statements with the namespace filled in.
#[derive(Debug)]
pub(super) struct WorkSql {
    pub(super) claimable: String,
    pub(super) claim_tagged: String,
    pub(super) claim_tagged_audited: String,
    pub(super) lease_tags: String,
    pub(super) follow: String,
    pub(super) end_tags: String,
    pub(super) put_tags: String,
    pub(super) shift_tag_leases: String,
    pub(super) known_requests: String,
    pub(super) take_requests: String,
    pub(super) add_audit: String,
    pub(super) audit_picked: String,
    pub(super) audit_abandoned: String,
    pub(super) audit_released: String,
    pub(super) audit_started_over: String,
    pub(super) audit_cancelled: String,
    pub(super) touch: String,
    pub(super) resets_stand: String,
    pub(super) event_of: String,
    pub(super) audit: String,
    pub(super) last_verdicts: String,
    pub(super) last_starts: String,
    pub(super) claimed_for: String,
    pub(super) queues_of: String,
    pub(super) lock_live: String,
    pub(super) reset: String,
    pub(super) uncounted: String,
    pub(super) lock_counts: String,
    pub(super) forget_counts: String,
    pub(super) count_upto: String,
    pub(super) count_log: String,
    pub(super) forget_stretches: String,
    pub(super) consumers: String,
    pub(super) held: String,
    pub(super) held_of_client: String,
    pub(super) forget_audit: String,
    pub(super) old_rows: String,
    pub(super) lock_old_rows: String,
    pub(super) forget_entries: String,
    pub(super) uncount: String,
    pub(super) uncount_clients: String,
    pub(super) put_key: String,
    pub(super) keys: String,
    pub(super) keys_by_hash: String,
    pub(super) revoke_key: String,
    pub(super) keys_used: String,
}

/// The columns of an audit row, as `work::read_audit` reads them.
const AUDIT: &str = "a.id, a.entry_id, a.action, a.worker, a.generation, a.attempt, a.token, a.status_code, \
    a.execution_time_ms, a.message, a.next_retry_at, a.retry_count, a.max_retries, a.created_at";
/// The event of an entry (event_queue's or event_log's primary key), where it is not known from the entry itself.
const EVENT_OF: &str = "coalesce((SELECT q.event_id FROM {ns}.event_queue q WHERE q.id = {id}), \
    (SELECT g.event_id FROM {ns}.event_log g WHERE g.id = {id} ORDER BY g.generation DESC LIMIT 1))";
/// What is shown of an API key.
const KEY: &str = "id, name, scopes, client_id, created_at, last_used_at, revoked_at";
const NOW: &str = "coalesce($1::timestamptz, statement_timestamp())";
/// The type of the entry behind a tag's row.
const TYPE_OF: &str = "(SELECT e.event_type FROM {ns}.events e \
    WHERE e.id = (SELECT q.event_id FROM {ns}.event_queue q WHERE q.id = t.entry_id))";
/// Where a live entry stands among those of its tags.
const STATE: &str = "CASE WHEN q.lease_until IS NOT NULL THEN 3 ELSE least(q.place, 2) END";
const RANK: &str = "CASE WHEN q.lease_until IS NOT NULL THEN (extract(epoch FROM q.lease_until) * 1000000)::bigint \
    WHEN q.place = 1 THEN (extract(epoch FROM q.due_at) * 1000000)::bigint ELSE q.id END";

impl WorkSql {
    /// `claim` fills in what a lease changes and answers; `audited` says whether the audit keeps it.
    pub(super) fn new(namespace: &str, claim: impl Fn(&str, bool) -> String) -> Self {
        let fill = |text: &str| {
            text.replace("{bound}", BOUND)
                .replace("{stretch}", &STRETCH.to_string())
                .replace("{audit_of}", &format!("{AUDIT}, {}", EVENT_OF.replace("{id}", "a.entry_id")))
                .replace("{audit}", AUDIT)
                .replace("{event_of}", &EVENT_OF.replace("{id}", "$1"))
                .replace("{key}", KEY)
                .replace("{state}", STATE)
                .replace("{rank}", RANK)
                .replace("{type_of}", TYPE_OF)
                .replace("{now_us}", "(extract(epoch FROM {now}) * 1000000)::bigint")
                .replace("{now}", NOW)
                .replace("{ns}", namespace)
        };
        Self {
            claimable: fill(CLAIMABLE),
            claim_tagged: fill(&claim(TAKE_TAGGED, false)),
            claim_tagged_audited: fill(&claim(TAKE_TAGGED, true)),
            lease_tags: fill(LEASE_TAGS),
            follow: fill(FOLLOW),
            end_tags: fill(END_TAGS),
            put_tags: fill(PUT_TAGS),
            shift_tag_leases: fill(SHIFT_TAG_LEASES),
            known_requests: fill(KNOWN_REQUESTS),
            take_requests: fill(TAKE_REQUESTS),
            add_audit: fill(ADD_AUDIT),
            audit_picked: fill(AUDIT_PICKED),
            audit_abandoned: fill(AUDIT_ABANDONED),
            audit_released: fill(AUDIT_RELEASED),
            audit_started_over: fill(AUDIT_STARTED_OVER),
            audit_cancelled: fill(AUDIT_CANCELLED),
            touch: fill(TOUCH),
            resets_stand: fill(RESETS_STAND),
            event_of: fill("SELECT {event_of}"),
            // event_audit_entry.
            audit: fill(
                "SELECT {audit_of} FROM {ns}.event_audit a WHERE a.entry_id = $1 AND a.id > $2 \
                 ORDER BY a.entry_id, a.id LIMIT $3::bigint",
            ),
            last_verdicts: fill(LAST_VERDICTS),
            last_starts: fill(LAST_STARTS),
            claimed_for: fill(CLAIMED_FOR),
            queues_of: fill(QUEUES_OF),
            lock_live: fill(LOCK_LIVE),
            reset: fill(RESET),
            uncounted: fill(UNCOUNTED),
            lock_counts: fill("SELECT xid::text FROM {ns}.log_counts FOR UPDATE"),
            forget_counts: fill(FORGET_COUNTS),
            count_upto: fill(COUNT_UPTO),
            count_log: fill(COUNT_LOG),
            forget_stretches: fill(FORGET_STRETCHES),
            consumers: fill(
                "SELECT c.worker, n.name, c.seen_at, n.client_id FROM {ns}.consumers c JOIN {ns}.queues n ON n.id = c.queue_id \
                 WHERE $1::bigint IS NULL OR n.client_id = $1::bigint",
            ),
            held: fill(HELD),
            held_of_client: fill(HELD_OF_CLIENT),
            forget_audit: fill(FORGET_AUDIT),
            old_rows: fill(&format!("{OLD_ROWS}{OLD_ROWS_FROM}")),
            lock_old_rows: fill(&format!("{OLD_ROWS}{OLD_ROWS_OF}")),
            forget_entries: fill(FORGET_ENTRIES),
            uncount: fill(UNCOUNT),
            uncount_clients: fill(UNCOUNT_CLIENTS),
            put_key: fill(
                "INSERT INTO {ns}.api_keys (hash, name, scopes, client_id, created_at) VALUES ($2, $3, $4, $5, {now}) \
                 ON CONFLICT (hash) DO NOTHING RETURNING {key}",
            ),
            keys: fill("SELECT {key} FROM {ns}.api_keys ORDER BY id"),
            // Unique index on the hash.
            keys_by_hash: fill("SELECT {key}, hash FROM {ns}.api_keys WHERE hash = ANY ($1::bytea[])"),
            revoke_key: fill(
                "UPDATE {ns}.api_keys SET revoked_at = coalesce(revoked_at, {now}) WHERE id = $2 RETURNING {key}",
            ),
            keys_used: fill(
                "UPDATE {ns}.api_keys SET last_used_at = {now} - $3::bigint * interval '1 microsecond' \
                 WHERE id = ANY ($2::bigint[])",
            ),
        }
    }
}

/// Offers the first of each tag and priority, from its mark on, and state (event_tags_rank) and takes the first of those by priority and id
/// that nobody else is taking.
const TAKE_TAGGED: &str = "
WITH offered AS MATERIALIZED (
    SELECT o.entry_id AS id, p.priority
    FROM unnest($2::text[], $3::smallint[], $10::bigint[]) AS p(tag, priority, mark)
    CROSS JOIN LATERAL (
        (SELECT t.entry_id FROM {ns}.event_tags t
         WHERE t.queue_id = $4 AND t.tag = p.tag AND t.state = 0 AND t.priority = p.priority AND t.rank >= p.mark
           AND ($5::text[] IS NULL OR {type_of} = ANY ($5::text[]))
         ORDER BY t.rank, t.entry_id LIMIT $6)
        UNION ALL
        (SELECT t.entry_id FROM {ns}.event_tags t
         WHERE t.queue_id = $4 AND t.tag = p.tag AND t.state = 1 AND t.priority = p.priority AND t.rank <= {now_us}
           AND ($5::text[] IS NULL OR {type_of} = ANY ($5::text[]))
         ORDER BY t.rank, t.entry_id LIMIT $6)
        UNION ALL
        (SELECT t.entry_id FROM {ns}.event_tags t
         WHERE t.queue_id = $4 AND t.tag = p.tag AND t.state = 3 AND t.priority = p.priority AND t.rank <= {now_us}
           AND ($5::text[] IS NULL OR {type_of} = ANY ($5::text[]))
         ORDER BY t.rank, t.entry_id LIMIT $6)
    ) AS o
    GROUP BY o.entry_id, p.priority
    ORDER BY p.priority, o.entry_id LIMIT $6
), taken AS MATERIALIZED (
    SELECT q.ctid
    FROM offered o CROSS JOIN LATERAL (
        SELECT q.ctid FROM {ns}.event_queue q
        WHERE q.id = o.id AND q.place < 2 AND (q.place = 0 OR q.due_at <= {now})
          AND (q.lease_until IS NULL OR q.lease_until <= {now})
        FOR UPDATE SKIP LOCKED
    ) AS q
    LIMIT $7
)";

/// Which tags have something to claim: a look at the first of each priority and state (event_tags_rank).
const CLAIMABLE: &str = "
WITH priorities AS MATERIALIZED (
    SELECT DISTINCT l.priority FROM {ns}.lanes l JOIN {ns}.queues n ON n.id = l.queue_id
    WHERE l.queue_id = $2 AND n.state <> $4
)
SELECT w.tag FROM unnest($3::text[]) AS w(tag)
WHERE EXISTS (
    SELECT FROM priorities p CROSS JOIN LATERAL (
        (SELECT FROM {ns}.event_tags t
         WHERE t.queue_id = $2 AND t.tag = w.tag AND t.state = 0 AND t.priority = p.priority LIMIT 1)
        UNION ALL
        (SELECT FROM {ns}.event_tags t
         WHERE t.queue_id = $2 AND t.tag = w.tag AND t.state = 1 AND t.priority = p.priority AND t.rank <= {now_us} LIMIT 1)
        UNION ALL
        (SELECT FROM {ns}.event_tags t
         WHERE t.queue_id = $2 AND t.tag = w.tag AND t.state = 3 AND t.priority = p.priority AND t.rank <= {now_us} LIMIT 1)
    ) AS found)";

/// Leased entries stand by the end of their lease (event_tags' primary key). As in all statements here that change tags by
/// their place: whoever changes the tags of an entry has locked the entry in a statement before, so the place
/// holds. A tag is found as the first at or after its key: only the primary key has that order.
const LEASE_TAGS: &str = "
WITH found AS MATERIALIZED (
    SELECT f.place, i.rank FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS i(tag, id, rank)
    CROSS JOIN LATERAL (
        SELECT n.place FROM (
            SELECT t.ctid AS place, t.tag, t.entry_id FROM {ns}.event_tags t
            WHERE (t.tag, t.entry_id) >= (i.tag, i.id) ORDER BY t.tag, t.entry_id LIMIT 1
        ) AS n WHERE n.tag = i.tag AND n.entry_id = i.id
    ) AS f
)
UPDATE {ns}.event_tags t SET state = 3, rank = f.rank FROM found f WHERE t.ctid = f.place";

/// The tags of live entries follow them to where they wait now (primary keys).
const FOLLOW: &str = "
WITH found AS MATERIALIZED (
    SELECT f.place, {state} AS state, {rank} AS rank
    FROM unnest($1::bigint[]) AS i(id)
    CROSS JOIN LATERAL (SELECT * FROM {ns}.event_queue q WHERE q.id = i.id OFFSET 0) AS q
    CROSS JOIN LATERAL unnest(string_to_array(
        (SELECT e.tags FROM {ns}.events e WHERE e.id = q.event_id), ',')) AS x(tag)
    CROSS JOIN LATERAL (
        SELECT n.place FROM (
            SELECT t.ctid AS place, t.tag, t.entry_id FROM {ns}.event_tags t
            WHERE (t.tag, t.entry_id) >= (x.tag, q.id) ORDER BY t.tag, t.entry_id LIMIT 1
        ) AS n WHERE n.tag = x.tag AND n.entry_id = q.id
    ) AS f
)
UPDATE {ns}.event_tags t SET state = f.state, rank = f.rank FROM found f WHERE t.ctid = f.place";

/// The tags of ended entries go to the log (primary keys).
const END_TAGS: &str = "
WITH ended AS MATERIALIZED (
    SELECT i.id, i.status, x.tag, (SELECT n.client_id FROM {ns}.queues n WHERE n.id = i.queue_id) AS client_id
    FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::integer[]) AS i(id, event_id, status, queue_id)
    CROSS JOIN LATERAL unnest(string_to_array(
        (SELECT e.tags FROM {ns}.events e WHERE e.id = i.event_id), ',')) AS x(tag)
), found AS MATERIALIZED (
    SELECT f.place FROM ended x CROSS JOIN LATERAL (
        SELECT n.place FROM (
            SELECT t.ctid AS place, t.tag, t.entry_id FROM {ns}.event_tags t
            WHERE (t.tag, t.entry_id) >= (x.tag, x.id) ORDER BY t.tag, t.entry_id LIMIT 1
        ) AS n WHERE n.tag = x.tag AND n.entry_id = x.id
    ) AS f
), gone AS (
    DELETE FROM {ns}.event_tags t USING found f WHERE t.ctid = f.place
)
INSERT INTO {ns}.log_tags (entry_id, status, tag, client_id) SELECT id, status, tag, client_id FROM ended
ON CONFLICT (tag, status, entry_id) DO NOTHING";

/// Entries that are live again, or have another fact, have their tags among the live ones (primary keys).
const PUT_TAGS: &str = "
WITH back AS MATERIALIZED (
    SELECT q.id, q.queue_id, q.client_id, {state} AS state, {rank} AS rank,
           coalesce(l.priority, -q.lane - 1000) AS priority, x.tag
    FROM unnest($1::bigint[]) AS i(id)
    CROSS JOIN LATERAL (SELECT * FROM {ns}.event_queue q WHERE q.id = i.id OFFSET 0) AS q
    LEFT JOIN LATERAL (SELECT * FROM {ns}.lanes l WHERE l.id = q.lane OFFSET 0) AS l ON true
    CROSS JOIN LATERAL unnest(string_to_array(
        (SELECT e.tags FROM {ns}.events e WHERE e.id = q.event_id), ',')) AS x(tag)
), found AS MATERIALIZED (
    SELECT f.place FROM back b CROSS JOIN LATERAL (
        SELECT t.ctid AS place FROM {ns}.log_tags t
        WHERE t.tag = b.tag AND t.status IN (1, 2) AND t.entry_id = b.id OFFSET 0
    ) AS f
), gone AS (
    DELETE FROM {ns}.log_tags t USING found f WHERE t.ctid = f.place
)
INSERT INTO {ns}.event_tags (entry_id, rank, queue_id, state, priority, tag, client_id)
SELECT id, rank, queue_id, state, priority, tag, client_id FROM back
ON CONFLICT (tag, entry_id) DO NOTHING";

/// After an outage, like the leases themselves (all live tags).
const SHIFT_TAG_LEASES: &str = "
UPDATE {ns}.event_tags
SET rank = rank + (extract(epoch FROM $1::timestamptz - $2::timestamptz) * 1000000)::bigint
WHERE state = 3 AND rank > (extract(epoch FROM $2::timestamptz) * 1000000)::bigint";

/// Requests that are known and not expired (deduplication's primary key, then events').
const KNOWN_REQUESTS: &str = "
SELECT i.ord::integer, d.entry_id, d.event_id, e.created_at, d.fingerprint
FROM unnest($2::bigint[], $3::text[]) WITH ORDINALITY AS i(client_id, key, ord)
CROSS JOIN LATERAL (
    SELECT * FROM {ns}.deduplication d
    WHERE d.client_id = i.client_id AND d.kind = 1 AND d.scope = 0 AND d.key = i.key AND d.expires_at > {now} OFFSET 0
) AS d
LEFT JOIN LATERAL (SELECT e.created_at FROM {ns}.events e WHERE e.id = d.event_id OFFSET 0) AS e ON true";

/// Takes keys of requests that are free or expired. Keys come sorted.
const TAKE_REQUESTS: &str = "
INSERT INTO {ns}.deduplication AS d (client_id, kind, scope, key, entry_id, event_id, expires_at, fingerprint)
SELECT i.client_id, 1, 0, i.key, i.entry_id, i.event_id, {now} + i.window_us * interval '1 microsecond', i.fingerprint
FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
    AS i(client_id, key, entry_id, event_id, window_us, fingerprint)
ON CONFLICT (client_id, kind, scope, key) DO UPDATE
    SET entry_id = excluded.entry_id, event_id = excluded.event_id, expires_at = excluded.expires_at,
        fingerprint = excluded.fingerprint
    WHERE d.expires_at <= {now}
RETURNING d.key";

/// Appends.
const ADD_AUDIT: &str = "
INSERT INTO {ns}.event_audit AS a (entry_id, action, worker, generation, attempt, token, status_code, execution_time_ms,
                                   message, next_retry_at, retry_count, max_retries, created_at)
SELECT i.entry_id, i.action, i.worker, i.generation, i.attempt, i.token, i.status_code, i.execution_time_ms, i.message,
       i.next_retry_at, i.retry_count, i.max_retries, {now}
FROM unnest($2::bigint[], $3::smallint[], $4::text[], $5::integer[], $6::integer[], $7::bigint[], $8::integer[],
            $9::bigint[], $10::text[], $11::timestamptz[], $12::integer[], $13::integer[])
    AS i(entry_id, action, worker, generation, attempt, token, status_code, execution_time_ms, message, next_retry_at,
         retry_count, max_retries)
RETURNING {audit}";

/// Appends: who picked what.
const AUDIT_PICKED: &str = "
INSERT INTO {ns}.event_audit (entry_id, action, worker, generation, attempt, token, created_at, execution_time_ms)
SELECT i.id, 0, $2, i.generation, i.attempt, i.token, {now}, $7
FROM unnest($3::bigint[], $4::integer[], $5::integer[], $6::bigint[]) AS i(id, generation, attempt, token)";

/// Appends: where the last thing known (event_audit_entry, from its end) is that somebody else held it under an older
/// token, that one abandoned it.
const AUDIT_ABANDONED: &str = "
INSERT INTO {ns}.event_audit (entry_id, action, worker, generation, attempt, token, created_at)
SELECT l.entry_id, 5, l.worker, l.generation, l.attempt, l.token, {now}
FROM unnest($2::bigint[], $3::bigint[]) AS i(id, token)
CROSS JOIN LATERAL (
    SELECT * FROM {ns}.event_audit a WHERE a.entry_id = i.id ORDER BY a.id DESC LIMIT 1
) AS l
WHERE l.action IN (0, 1) AND l.token < i.token";

/// Appends: given back by its holder.
const AUDIT_RELEASED: &str = "
INSERT INTO {ns}.event_audit (entry_id, action, worker, generation, attempt, token, message, created_at)
SELECT l.entry_id, 4, l.worker, l.generation, l.attempt, l.token, i.message, {now}
FROM unnest($2::bigint[], $3::bigint[], $4::text[]) AS i(id, token, message)
CROSS JOIN LATERAL (
    SELECT * FROM {ns}.event_audit a WHERE a.entry_id = i.id ORDER BY a.id DESC LIMIT 1
) AS l
WHERE l.action IN (0, 1) AND l.token = i.token";

/// Appends: put back or started over by hand, as the entry stands now (event_queue's primary key).
const AUDIT_STARTED_OVER: &str = "
INSERT INTO {ns}.event_audit (entry_id, action, worker, generation, attempt, token, message, created_at)
SELECT q.id, $5::smallint, i.actor, q.generation, q.attempts, q.token, i.message, {now}
FROM unnest($2::bigint[], $3::text[], $4::text[]) AS i(id, actor, message)
CROSS JOIN LATERAL (SELECT * FROM {ns}.event_queue q WHERE q.id = i.id OFFSET 0) AS q
RETURNING entry_id, id";

/// Appends: ended by hand, by its last row of the log (event_log's primary key).
const AUDIT_CANCELLED: &str = "
INSERT INTO {ns}.event_audit (entry_id, action, worker, generation, attempt, token, message, created_at)
SELECT g.id, 7, i.actor, g.generation, g.attempts, g.token, i.message, {now}
FROM unnest($2::bigint[], $3::text[], $4::text[]) AS i(id, actor, message)
CROSS JOIN LATERAL (
    SELECT * FROM {ns}.event_log g WHERE g.id = i.id ORDER BY g.generation DESC LIMIT 1
) AS g";

/// A sign of life of whoever holds these (event_queue's primary key; no index knows the column).
const TOUCH: &str = "
UPDATE {ns}.event_queue SET updated_at = {now} WHERE id = ANY ($2::bigint[])";

/// Which of these audit rows are there (event_audit's primary key).
const RESETS_STAND: &str = "
SELECT a.id FROM unnest($1::bigint[], $2::bigint[]) AS i(entry_id, id)
CROSS JOIN LATERAL (
    SELECT a.id FROM {ns}.event_audit a WHERE a.id = i.id AND a.entry_id = i.entry_id AND a.action = 6 OFFSET 0
) AS a";

/// What workers last reported about entries (event_audit_entry, from its end).
const LAST_VERDICTS: &str = "
SELECT {audit_of}
FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS i(id, worker, token)
CROSS JOIN LATERAL (
    SELECT * FROM {ns}.event_audit v
    WHERE v.entry_id = i.id AND v.worker = i.worker AND (i.token IS NULL OR v.token = i.token) AND v.action IN (2, 3)
    ORDER BY v.id DESC LIMIT 1
) AS a";

/// Starts under these tokens (event_audit_entry, from its end).
const LAST_STARTS: &str = "
SELECT {audit_of}
FROM unnest($1::bigint[], $2::bigint[]) AS i(id, token)
CROSS JOIN LATERAL (
    SELECT * FROM {ns}.event_audit v WHERE v.entry_id = i.id AND v.token = i.token AND v.action = 1
    ORDER BY v.id DESC LIMIT 1
) AS a";

/// Live entries, locked in the order of their ids (event_queue's primary key).
const LOCK_LIVE: &str = "
SELECT q.id, q.token, q.leased, q.worker, q.attempts, q.max_attempts, q.generation, q.queue_id, e.retry, q.event_id,
       q.processing_started_at, e.attributes
FROM unnest($1::bigint[]) AS i(id)
CROSS JOIN LATERAL (
    SELECT q.*, q.lease_until IS NOT NULL AS leased FROM {ns}.event_queue q WHERE q.id = i.id FOR UPDATE
) AS q
CROSS JOIN LATERAL (SELECT e.retry, e.attributes FROM {ns}.events e WHERE e.id = q.event_id OFFSET 0) AS e";

/// How long claims asked for (event_audit_entry): the row of a claim holds it where the others hold how long work took.
const CLAIMED_FOR: &str = "
SELECT i.id, a.execution_time_ms
FROM unnest($1::bigint[], $2::bigint[]) AS i(id, token)
CROSS JOIN LATERAL (
    SELECT v.execution_time_ms FROM {ns}.event_audit v
    WHERE v.entry_id = i.id AND v.token = i.token AND v.action = 0 ORDER BY v.id DESC LIMIT 1
) AS a
WHERE a.execution_time_ms IS NOT NULL";

/// The queues of entries, live or ended (both primary keys).
const QUEUES_OF: &str = "
SELECT i.id, coalesce((SELECT q.queue_id FROM {ns}.event_queue q WHERE q.id = i.id),
                      (SELECT g.queue_id FROM {ns}.event_log g WHERE g.id = i.id ORDER BY g.generation DESC LIMIT 1))
FROM unnest($1::bigint[]) AS i(id)";

/// Puts held entries back by hand (event_queue's primary key).
const RESET: &str = "
UPDATE {ns}.event_queue q
SET lease_until = NULL, worker = NULL, token = q.token + 1, attempts = q.attempts - 1, place = 1, due_at = {now},
    updated_at = {now}
WHERE q.id = ANY ($2::bigint[]) AND q.lease_until IS NOT NULL
RETURNING q.id, q.queue_id, q.flags";

/// Whether there are rows to be counted, and whether the cluster's transaction ids started anew (event_log_commits).
const UNCOUNTED: &str = "
SELECT EXISTS (SELECT FROM {ns}.event_log g
               WHERE g.xid >= c.xid AND g.xid < {bound}),
       c.xid > {bound}
FROM {ns}.log_counts c";

/// Starts counting anew.
const FORGET_COUNTS: &str = "
WITH gone AS (DELETE FROM {ns}.tag_counts), clients AS (DELETE FROM {ns}.client_counts)
UPDATE {ns}.log_counts SET xid = '0', counts = '{0,0,0,0}'";

/// Up to which transaction to count now: some 20,000 rows (event_log_commits), at most up to the oldest that runs.
const COUNT_UPTO: &str = "
SELECT greatest(
    coalesce(
        (SELECT g.xid FROM {ns}.event_log g
         WHERE g.xid >= $1::text::xid8 AND g.xid < {bound}
         ORDER BY g.xid, g.id OFFSET 20000 LIMIT 1),
        {bound}),
    least((($1::text)::numeric + 1)::text::xid8, {bound}))::text";

/// Adds the rows of finished transactions, read once (event_log_commits) and grouped at once, since most of them ended alike,
/// to the counts: by status, by tag (events' primary key) and by client. Also notes which stretches of the log hold ends of a
/// lane and of a worker: a worker under its client and, for lists across clients, under client 0. Tags are looked up after the
/// grouping: as a part of its key they would make it a sort.
const COUNT_LOG: &str = "
WITH ended AS MATERIALIZED (
    SELECT g.status, g.client_id, g.lane, g.worker, g.id >> {stretch} AS stretch, count(*) AS rows,
           array_agg(g.event_id) FILTER (WHERE g.flags & 1 <> 0) AS with_tags
    FROM {ns}.event_log g WHERE g.xid >= $1::text::xid8 AND g.xid < $2::text::xid8
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
    SELECT g.client_id, '', g.status, sum(g.rows) FROM ended g WHERE g.client_id IS NOT NULL GROUP BY g.client_id, g.status
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
    counts = ARRAY[c.counts[1] + n.completed, c.counts[2] + n.errors, c.counts[3] + n.failed, c.counts[4] + n.cancelled]
FROM (
    SELECT coalesce(sum(g.rows) FILTER (WHERE g.status = 0), 0)::bigint AS completed,
           coalesce(sum(g.rows) FILTER (WHERE g.status = 1), 0)::bigint AS errors,
           coalesce(sum(g.rows) FILTER (WHERE g.status = 2), 0)::bigint AS failed,
           coalesce(sum(g.rows) FILTER (WHERE g.status = 3), 0)::bigint AS cancelled
    FROM ended g
) AS n";

/// What workers hold (the live table, whole: the worker list is asked for by people).
const HELD: &str = "
SELECT q.worker, n.name, coalesce(q.updated_at, q.processing_started_at, q.lease_until), q.id, n.client_id
FROM {ns}.event_queue q
CROSS JOIN LATERAL (SELECT n.name, n.client_id FROM {ns}.queues n WHERE n.id = q.queue_id OFFSET 0) AS n
WHERE q.lease_until IS NOT NULL";

/// The same for a client (event_queue_client, the queues' primary key).
const HELD_OF_CLIENT: &str = "
SELECT q.worker, n.name, coalesce(q.updated_at, q.processing_started_at, q.lease_until), q.id, n.client_id
FROM {ns}.event_queue q CROSS JOIN LATERAL (SELECT * FROM {ns}.queues n WHERE n.id = q.queue_id OFFSET 0) AS n
WHERE q.client_id = $1::bigint AND q.lease_until IS NOT NULL";

/// Old audit rows, from the start of the primary key.
const FORGET_AUDIT: &str = "
DELETE FROM {ns}.event_audit a WHERE a.ctid = ANY (ARRAY(
    SELECT o.place FROM (SELECT ctid AS place, created_at FROM {ns}.event_audit ORDER BY id LIMIT $3::bigint) AS o
    WHERE o.created_at < {now} - $2::bigint * interval '1 microsecond'
))";

/// Log rows: whether each is old enough, was counted, and was read by every projection; and whether its event was published
/// after everything that may go.
const OLD_ROWS: &str = "
SELECT g.id, g.event_id, g.status, g.superseded, coalesce(g.flags, 0::smallint),
       g.xid < c.xid
       AND g.finished_at < {now} - (CASE WHEN g.status IN (1, 2) AND g.superseded = 0 THEN $3::bigint ELSE $2::bigint END)
                                   * interval '1 microsecond'
       AND NOT EXISTS (SELECT FROM {ns}.projections p
                       WHERE p.state < 2 AND (p.xid, p.id) < (g.xid, g.id)),
       to_timestamp(((g.event_id >> 22) + 1577836800000) / 1000.0)
           >= {now} - least($2::bigint, $3::bigint) * interval '1 microsecond',
       g.client_id
FROM {ns}.event_log g CROSS JOIN {ns}.log_counts c";

/// From a number on (event_log's primary key).
const OLD_ROWS_FROM: &str = "
WHERE g.id > $4::bigint ORDER BY g.id, g.generation LIMIT $5::bigint";

/// Of these entries, which nobody changes meanwhile (event_log's primary key).
const OLD_ROWS_OF: &str = "
WHERE g.id = ANY ($4::bigint[]) ORDER BY g.id, g.generation FOR UPDATE OF g";

/// Removes ended entries (primary keys), whose log rows and counts are locked.
const FORGET_ENTRIES: &str = "
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
    DELETE FROM {ns}.events e WHERE e.id = ANY ($2::bigint[])
), rows AS MATERIALIZED (
    SELECT g.* FROM unnest($1::bigint[]) AS i(id) CROSS JOIN LATERAL (
        SELECT g.tableoid AS part, g.ctid AS place FROM {ns}.event_log g
        WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) OFFSET 0
    ) AS g
)
DELETE FROM {ns}.event_log g USING rows r WHERE g.ctid = r.place AND g.tableoid = r.part";

/// Takes removed rows off the counts.
const UNCOUNT: &str = "
UPDATE {ns}.log_counts c
SET counts = ARRAY[c.counts[1] - $1::bigint, c.counts[2] - $2::bigint, c.counts[3] - $3::bigint, c.counts[4] - $4::bigint]";

/// Takes off the stretches of removed entries what is no longer in them (log_lanes_stretch, log_workers_stretch, event_log's
/// primary key). Whoever counts waits, so that nothing is added meanwhile.
const FORGET_STRETCHES: &str = "
WITH touched AS MATERIALIZED (
    SELECT DISTINCT i.id >> {stretch} AS stretch FROM unnest($1::bigint[]) AS i(id)
), kept AS MATERIALIZED (
    SELECT t.stretch, g.lane, g.status, g.worker, coalesce(g.client_id, 0) AS client_id
    FROM touched t
    CROSS JOIN LATERAL generate_series(t.stretch << {stretch}, ((t.stretch + 1) << {stretch}) - 1) AS i(id)
    CROSS JOIN LATERAL (
        SELECT g.lane, g.status, g.worker, g.client_id FROM {ns}.event_log g
        WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) OFFSET 0
    ) AS g
), lanes AS MATERIALIZED (
    SELECT x.place FROM touched t CROSS JOIN LATERAL (
        SELECT x.ctid AS place, x.lane, x.status FROM {ns}.log_lanes x WHERE x.stretch = t.stretch OFFSET 0
    ) AS x
    WHERE ROW(t.stretch, x.lane, x.status)::text <> ALL (ARRAY(SELECT ROW(k.stretch, k.lane, k.status)::text FROM kept k))
), workers AS MATERIALIZED (
    SELECT x.place FROM touched t CROSS JOIN LATERAL (
        SELECT x.ctid AS place, x.client_id, x.worker, x.status FROM {ns}.log_workers x WHERE x.stretch = t.stretch OFFSET 0
    ) AS x
    WHERE ROW(t.stretch, x.client_id, x.worker, x.status)::text <> ALL (ARRAY(
        SELECT ROW(k.stretch, c.client_id, k.worker, k.status)::text
        FROM kept k CROSS JOIN LATERAL (VALUES (0::bigint), (k.client_id)) AS c(client_id)))
), of_lanes AS (
    DELETE FROM {ns}.log_lanes x USING lanes f WHERE x.ctid = f.place
)
DELETE FROM {ns}.log_workers x USING workers f WHERE x.ctid = f.place";

/// The same by client (client_counts' primary key).
const UNCOUNT_CLIENTS: &str = "
WITH found AS MATERIALIZED (
    SELECT f.place, i.rows FROM unnest($1::bigint[], $2::smallint[], $3::bigint[]) AS i(client_id, status, rows)
    CROSS JOIN LATERAL (
        SELECT c.ctid AS place FROM {ns}.client_counts c
        WHERE c.client_id = i.client_id AND c.tag = '' AND c.status = i.status OFFSET 0
    ) AS f
)
UPDATE {ns}.client_counts c SET rows = c.rows - f.rows FROM found f WHERE c.ctid = f.place";
