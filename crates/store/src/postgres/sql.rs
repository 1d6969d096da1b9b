//! Every statement of the PostgreSQL store, with the index that serves it. `{ns}` is the namespace, `{now}` the moment:
//! a parameter that only tests set, else the statement's own time (stable, so that indexes can use it).

use super::work_sql::WorkSql;

/// Statements with the namespace filled in.
#[derive(Debug)]
pub(super) struct Sql {
    pub(super) work: WorkSql,
    pub(super) claim_of_many_audited: String,
    pub(super) claim_of_one_audited: String,
    pub(super) catalog: String,
    pub(super) add_lanes: String,
    pub(super) bump_generation: String,
    pub(super) publish: String,
    pub(super) publish_plain: String,
    pub(super) draw_ids: String,
    pub(super) known_keys: String,
    pub(super) take_keys: String,
    pub(super) replace_fact: String,
    pub(super) count_entries: String,
    pub(super) lock_groups: String,
    pub(super) promote: String,
    pub(super) claim_of_many: String,
    pub(super) claim_of_one: String,
    pub(super) facts: String,
    pub(super) facts_between: String,
    pub(super) first_rows: String,
    pub(super) finalize: String,
    pub(super) finalize_run: String,
    pub(super) look_up: String,
    pub(super) extend: String,
    pub(super) requeue: String,
    pub(super) redrive: String,
    pub(super) discard: String,
    pub(super) discarded: String,
    pub(super) record_handled: String,
    pub(super) handled: String,
    pub(super) forget_handled: String,
    pub(super) entries: String,
    pub(super) dead_letters: String,
    pub(super) why: String,
    pub(super) ahead_in_group: String,
    pub(super) ahead_in_queue: String,
    pub(super) live_consumer: String,
    pub(super) depth: String,
    pub(super) census: String,
    pub(super) put_queue: String,
    pub(super) consumers_seen: String,
    pub(super) arrivals: String,
    pub(super) sort_in: String,
    pub(super) note_groups: String,
    pub(super) take_notes: String,
    pub(super) heartbeat: String,
    pub(super) beat: String,
    pub(super) shift_leases: String,
    pub(super) expire_keys: String,
    pub(super) fact_exists: String,
    pub(super) lease_stands: String,
}

/// The columns of a fact, as `row::fact` reads them.
pub(super) const FACT: &str = "e.client_id, e.event_type, e.payload, e.content_type, e.source, e.subject, e.time, e.external_id, \
    e.correlation_id, e.causation_id, e.attributes, e.created_at, e.title, e.description, e.tags, e.retry";

/// Fills in how a claim leases, and that the audit knows of it.
fn lease_audited(sql: &str, length: &str, worker: &str) -> String {
    let sql = sql.replace("{lease}", &format!("{LEASE}, flags = coalesce(q.flags, 0::smallint) | 2::smallint"));
    lease(&sql, length, worker)
}

/// Fills in how a claim leases.
fn lease(sql: &str, length: &str, worker: &str) -> String {
    sql.replace("{leased}", LEASED).replace("{lease}", LEASE).replace("{length}", length).replace("{worker}", worker)
}

impl Sql {
    pub(super) fn new(namespace: &str) -> Self {
        let fill = |text: &str| text.replace("{ns}", namespace).replace("{fact}", FACT);
        let tagged = |taken: &str, audited: bool| {
            let sql = format!("{taken}{LEASE_TAKEN}");
            if audited { lease_audited(&sql, "$8", "$9") } else { lease(&sql, "$8", "$9") }
        };
        Self {
            work: WorkSql::new(namespace, tagged),
            claim_of_many_audited: fill(&lease_audited(&format!("{TAKE_OF_MANY}{LEASE_TAKEN}"), "$8", "$9")),
            claim_of_one_audited: fill(&lease_audited(CLAIM_OF_ONE, "$6", "$7")),
            catalog: fill(CATALOG),
            add_lanes: fill(ADD_LANES),
            bump_generation: fill("UPDATE {ns}.meta SET generation = generation + 1 RETURNING generation"),
            publish: fill(&PUBLISH.replace("{due}", DUE)),
            publish_plain: fill(PUBLISH_PLAIN),
            draw_ids: fill("SELECT nextval('{ns}.entry_id') FROM generate_series(1, $1::integer)"),
            known_keys: fill(KNOWN_KEYS),
            take_keys: fill(TAKE_KEYS),
            replace_fact: fill(REPLACE_FACT),
            count_entries: fill(COUNT_ENTRIES),
            lock_groups: fill("SELECT count(pg_advisory_xact_lock(k)) FROM unnest($1::bigint[]) AS k"),
            promote: fill(PROMOTE),
            claim_of_many: fill(&lease(&format!("{TAKE_OF_MANY}{LEASE_TAKEN}"), "$8", "$9")),
            claim_of_one: fill(&lease(CLAIM_OF_ONE, "$6", "$7")),
            facts: fill("SELECT {fact}, e.id FROM {ns}.events e WHERE e.id = ANY ($1::bigint[])"),
            facts_between: fill(
                "SELECT {fact}, e.id FROM {ns}.events e WHERE e.id >= $1 AND e.id <= $2 ORDER BY e.id LIMIT $3",
            ),
            first_rows: fill(FIRST_ROWS),
            finalize: fill(FINALIZE),
            finalize_run: fill(FINALIZE_RUN),
            look_up: fill(LOOK_UP),
            extend: fill(EXTEND),
            requeue: fill(REQUEUE),
            redrive: fill(REDRIVE),
            discard: fill(DISCARD),
            discarded: fill(DISCARDED),
            record_handled: fill(RECORD_HANDLED),
            handled: fill(HANDLED),
            forget_handled: fill(FORGET_HANDLED),
            entries: fill(ENTRIES),
            dead_letters: fill(DEAD_LETTERS),
            why: fill(WHY),
            ahead_in_group: fill(AHEAD_IN_GROUP),
            ahead_in_queue: fill(AHEAD_IN_QUEUE),
            live_consumer: fill(LIVE_CONSUMER),
            depth: fill(DEPTH),
            census: fill(CENSUS),
            put_queue: fill(PUT_QUEUE),
            consumers_seen: fill(CONSUMERS_SEEN),
            arrivals: fill(ARRIVALS),
            sort_in: fill(SORT_IN),
            note_groups: fill("INSERT INTO {ns}.group_notes SELECT * FROM unnest($1::integer[], $2::text[])"),
            take_notes: fill(TAKE_NOTES),
            heartbeat: fill("SELECT at, clock_timestamp() FROM {ns}.heartbeat FOR UPDATE"),
            beat: fill("UPDATE {ns}.heartbeat SET at = clock_timestamp()"),
            shift_leases: fill(SHIFT_LEASES),
            expire_keys: fill(EXPIRE_KEYS),
            fact_exists: fill("SELECT EXISTS (SELECT FROM {ns}.events WHERE id = $1)"),
            lease_stands: fill(LEASE_STANDS),
        }
    }
}

/// All queues with their lanes (small tables, read whole).
const CATALOG: &str = "
SELECT m.generation, q.id, q.name, q.state, q.depth_limit, l.id, l.event_type, l.priority, q.settings
FROM {ns}.meta m CROSS JOIN {ns}.queues q LEFT JOIN {ns}.lanes l ON l.queue_id = q.id
WHERE q.client_id IS NULL";

/// New lanes; one that another process added meanwhile is kept (lanes_key).
const ADD_LANES: &str = "
INSERT INTO {ns}.lanes (queue_id, priority, event_type)
SELECT * FROM unnest($1::integer[], $2::smallint[], $3::text[])
ON CONFLICT (queue_id, coalesce(event_type, ''), priority) DO NOTHING";

/// Facts and entries in one statement. Ids are drawn here, in the items' order, unless the caller drew them.
const PUBLISH: &str = "
WITH moment AS MATERIALIZED (
    SELECT m.now, ((extract(epoch FROM m.now) * 1000)::bigint - 1577836800000) << 22 AS tsid
    FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) AS m
), input AS MATERIALIZED (
    SELECT coalesce(i.given_id, nextval('{ns}.entry_id')) AS id, m.now, m.tsid, i.*
    FROM moment AS m, unnest($2::bigint[], $3::bigint[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::text[],
        $9::timestamptz[], $10::text[], $11::text[], $12::text[], $13::text[], $14::integer[], $15::integer[],
        $16::smallint[], $17::timestamptz[], $18::bigint[], $19::text[], $20::integer[], $21::smallint[],
        $22::text[], $23::text[], $24::text[], $25::text[], $26::smallint[])
        AS i(given_id, client_id, event_type, payload, content_type, source, subject, time, external_id, correlation_id,
             causation_id, attributes, lane, queue_id, place, due_at, delay_us, group_key, max_attempts, exhausted_as,
             title, description, tags, retry, priority)
), facts AS (
    INSERT INTO {ns}.events (id, created_at, client_id, event_type, payload, content_type, source, subject, time,
                             external_id, correlation_id, causation_id, attributes, title, description, tags, retry)
    SELECT tsid | (id & 4194303), now, client_id, event_type, payload, content_type, source, subject, time, external_id,
           correlation_id, causation_id, attributes, title, description, tags, retry
    FROM input
), entries AS (
    INSERT INTO {ns}.event_queue (id, event_id, due_at, client_id, lane, queue_id, max_attempts, place, exhausted_as,
                                  group_key, flags)
    SELECT id, tsid | (id & 4194303), {due},
           client_id, lane, queue_id, max_attempts, place, exhausted_as, group_key,
           CASE WHEN tags IS NOT NULL THEN 1::smallint END
    FROM input
), tagged AS (
    INSERT INTO {ns}.event_tags (entry_id, rank, queue_id, state, priority, tag)
    SELECT i.id, CASE WHEN i.place = 1 THEN (extract(epoch FROM {due}) * 1000000)::bigint ELSE i.id END, i.queue_id,
           least(i.place, 2), i.priority, t.tag
    FROM input i CROSS JOIN LATERAL unnest(string_to_array(i.tags, ',')) AS t(tag)
    WHERE i.tags IS NOT NULL
)
SELECT id, tsid | (id & 4194303), now, (SELECT pg_current_xact_id()::text), (SELECT generation FROM {ns}.meta) FROM input";

/// When an event of the input is due, if it is not at once.
const DUE: &str = "CASE WHEN coalesce(due_at, now + delay_us * interval '1 microsecond') IS NOT NULL
                THEN greatest(now, coalesce(due_at, now + delay_us * interval '1 microsecond')) END";

/// The same for events without any option, which is the usual case: fewer arrays to take apart.
const PUBLISH_PLAIN: &str = "
WITH moment AS MATERIALIZED (
    SELECT m.now, ((extract(epoch FROM m.now) * 1000)::bigint - 1577836800000) << 22 AS tsid
    FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) AS m
), input AS MATERIALIZED (
    SELECT nextval('{ns}.entry_id') AS id, m.now, m.tsid, i.*
    FROM moment AS m, unnest($2::text[], $3::bytea[], $4::integer[], $5::integer[], $6::integer[], $7::smallint[])
        AS i(event_type, payload, lane, queue_id, max_attempts, exhausted_as)
), facts AS (
    INSERT INTO {ns}.events (id, created_at, event_type, payload)
    SELECT tsid | (id & 4194303), now, event_type, payload FROM input
), entries AS (
    INSERT INTO {ns}.event_queue (id, event_id, lane, queue_id, max_attempts, place, exhausted_as)
    SELECT id, tsid | (id & 4194303), lane, queue_id, max_attempts, 0, exhausted_as FROM input
)
SELECT id, tsid | (id & 4194303), now, (SELECT pg_current_xact_id()::text), (SELECT generation FROM {ns}.meta) FROM input";

/// Keys that are known and not expired, with what they stand for (deduplication's primary key, then events' and
/// event_queue's).
const KNOWN_KEYS: &str = "
SELECT i.ord::integer, d.entry_id, d.event_id, e.created_at,
       e.id IS NULL OR (e.event_type = i.event_type AND e.payload = i.payload) AS same,
       EXISTS (SELECT FROM {ns}.event_queue q WHERE q.id = d.entry_id AND q.lease_until IS NULL) AS waiting
FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bytea[]) WITH ORDINALITY
    AS i(client_id, scope, key, event_type, payload, ord)
JOIN {ns}.deduplication d ON d.client_id = i.client_id AND d.kind = 0 AND d.scope = i.scope AND d.key = i.key
LEFT JOIN {ns}.events e ON e.id = d.event_id
WHERE d.expires_at > coalesce($1::timestamptz, statement_timestamp())";

/// Takes keys that are free, expired, or whose entry no longer waits (takeover). Keys come sorted.
const TAKE_KEYS: &str = "
INSERT INTO {ns}.deduplication AS d (client_id, kind, scope, key, entry_id, event_id, expires_at)
SELECT i.client_id, 0, i.scope, i.key, i.entry_id, i.event_id,
       coalesce($1::timestamptz, statement_timestamp()) + i.window_us * interval '1 microsecond'
FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[])
    AS i(client_id, scope, key, entry_id, event_id, window_us)
ON CONFLICT (client_id, kind, scope, key) DO UPDATE
    SET entry_id = excluded.entry_id, event_id = excluded.event_id, expires_at = excluded.expires_at
    WHERE d.expires_at <= coalesce($1::timestamptz, statement_timestamp()) OR $8::boolean
RETURNING d.key";

/// Gives a waiting entry another fact. Answers nothing when the entry no longer waits.
const REPLACE_FACT: &str = "
WITH moment AS MATERIALIZED (
    SELECT coalesce($1::timestamptz, clock_timestamp()) AS now, nextval('{ns}.entry_id') & 4194303 AS low
), waiting AS MATERIALIZED (
    SELECT q.id, q.event_id AS old_id,
           ((extract(epoch FROM m.now) * 1000)::bigint - 1577836800000) << 22 | m.low AS new_id
    FROM {ns}.event_queue q CROSS JOIN moment m
    WHERE q.id = $2 AND q.lease_until IS NULL FOR UPDATE OF q
), old AS (
    DELETE FROM {ns}.events e USING waiting w WHERE e.id = w.old_id RETURNING e.*
), fact AS (
    INSERT INTO {ns}.events (id, created_at, client_id, event_type, payload, content_type, source, subject, time,
                             external_id, correlation_id, causation_id, attributes, title, description, tags, retry)
    SELECT w.new_id, o.created_at, o.client_id, o.event_type, $3::bytea, $4::text, $5::text, $6::text, $7::timestamptz,
           $8::text, $9::text, $10::text, $11::text, $15::text, $16::text, $17::text, $18::text
    FROM waiting w CROSS JOIN old o
), entry AS (
    UPDATE {ns}.event_queue q
    SET event_id = w.new_id,
        flags = CASE WHEN $17::text IS NOT NULL THEN coalesce(q.flags, 0::smallint) | 1::smallint ELSE nullif(q.flags & 2::smallint, 0) END
    FROM waiting w WHERE q.id = w.id
), untagged AS (
    DELETE FROM {ns}.event_tags t USING waiting w CROSS JOIN old o
    WHERE t.entry_id = w.id AND t.tag = ANY (string_to_array(o.tags, ','))
      AND NOT t.tag = ANY (coalesce(string_to_array($17::text, ','), '{}'))
), key AS (
    UPDATE {ns}.deduplication d SET event_id = w.new_id FROM waiting w
    WHERE d.client_id = $14 AND d.kind = 0 AND d.scope = $12 AND d.key = $13
)
SELECT w.new_id, o.created_at, w.id FROM waiting w CROSS JOIN old o";

/// Counts up to a limit over the lanes' places (event_queue's indexes by lane, parked and arrived).
const COUNT_ENTRIES: &str = "
SELECT count(*) FROM (SELECT FROM {ns}.event_queue WHERE queue_id = $1 LIMIT $2) AS held";

/// Makes the first entry that waits in each free group claimable (event_queue_group_head, event_queue_parked). One that
/// arrived by a caller's own transaction keeps its turn: if its lane is not known yet, the group waits until it is sorted
/// in. The caller holds the groups' locks.
const PROMOTE: &str = "
WITH heads AS MATERIALIZED (
    SELECT h.id
    FROM unnest($2::integer[], $3::text[]) AS g(queue_id, group_key)
    CROSS JOIN LATERAL (
        SELECT q.id, q.lane FROM {ns}.event_queue q
        WHERE q.queue_id = g.queue_id AND q.group_key = g.group_key AND q.place >= 2
        ORDER BY q.id LIMIT 1
    ) AS h
    WHERE h.lane > 0 AND NOT EXISTS (
        SELECT FROM {ns}.event_queue b
        WHERE b.queue_id = g.queue_id AND b.group_key = g.group_key AND b.place < 2
    )
)
UPDATE {ns}.event_queue q
SET place = 1, due_at = greatest(q.due_at, coalesce($1::timestamptz, statement_timestamp()))
FROM heads h WHERE q.id = h.id
RETURNING q.queue_id, q.id, q.flags";

/// Offers the first of each lane and path (event_queue_fresh, event_queue_timed) and takes the first of those by priority
/// and id that nobody else is taking. Rows are locked only once they are chosen, so that many lanes do not lock many rows.
const TAKE_OF_MANY: &str = "
WITH lanes AS MATERIALIZED (
    SELECT * FROM unnest($2::integer[], $3::smallint[], $4::bigint[], $5::timestamptz[], $6::boolean[])
        AS l(lane, priority, mark, due_mark, shared)
), offered AS MATERIALIZED (
    SELECT o.id, l.priority
    FROM lanes l CROSS JOIN LATERAL (
        (SELECT q.id FROM {ns}.event_queue q
         WHERE q.lane = l.lane AND q.place = 0 AND q.id >= l.mark
           AND (q.lease_until IS NULL OR q.lease_until <= coalesce($1::timestamptz, statement_timestamp()))
           AND (NOT l.shared OR EXISTS (SELECT FROM {ns}.events e WHERE e.id = q.event_id AND e.event_type = ANY ($10::text[])))
         ORDER BY q.id LIMIT $11)
        UNION ALL
        (SELECT q.id FROM {ns}.event_queue q
         WHERE q.lane = l.lane AND q.place = 1 AND q.due_at >= l.due_mark
           AND q.due_at <= coalesce($1::timestamptz, statement_timestamp())
           AND (q.lease_until IS NULL OR q.lease_until <= coalesce($1::timestamptz, statement_timestamp()))
           AND (NOT l.shared OR EXISTS (SELECT FROM {ns}.events e WHERE e.id = q.event_id AND e.event_type = ANY ($10::text[])))
         ORDER BY q.due_at, q.id LIMIT $11)
    ) AS o
    ORDER BY l.priority, o.id LIMIT $11
), taken AS MATERIALIZED (
    SELECT q.ctid
    FROM offered o JOIN {ns}.event_queue q ON q.id = o.id
    WHERE q.place < 2
      AND (q.lease_until IS NULL OR q.lease_until <= coalesce($1::timestamptz, statement_timestamp()))
    ORDER BY o.priority, o.id LIMIT $7
    FOR UPDATE OF q SKIP LOCKED
)";

/// Leases what was taken. There is always one row, which says how many were offered.
const LEASE_TAKEN: &str = ", leased AS (
    UPDATE {ns}.event_queue q SET {lease}
    FROM taken t WHERE q.ctid = t.ctid
    RETURNING {leased}
)
SELECT q.*, o.count FROM (SELECT count(*) FROM offered) AS o LEFT JOIN leased q ON true";

/// The same for a single lane, which is the usual case and the fast one: rows are locked as they are found in the indexes
/// (event_queue_fresh, event_queue_timed), others' are passed over, and they go straight into the update.
const CLAIM_OF_ONE: &str = "
UPDATE {ns}.event_queue q SET {lease}
WHERE q.ctid = ANY (ARRAY(
    SELECT both_paths.ctid FROM (
        SELECT * FROM (
            SELECT f.ctid, f.id FROM {ns}.event_queue f
            WHERE f.lane = $2 AND f.place = 0 AND f.id >= $3
              AND (f.lease_until IS NULL OR f.lease_until <= coalesce($1::timestamptz, statement_timestamp()))
            ORDER BY f.id LIMIT $5 FOR UPDATE SKIP LOCKED
        ) AS fresh
        UNION ALL
        SELECT * FROM (
            SELECT t.ctid, t.id FROM {ns}.event_queue t
            WHERE t.lane = $2 AND t.place = 1 AND t.due_at >= $4
              AND t.due_at <= coalesce($1::timestamptz, statement_timestamp())
              AND (t.lease_until IS NULL OR t.lease_until <= coalesce($1::timestamptz, statement_timestamp()))
            ORDER BY t.due_at, t.id LIMIT $5 FOR UPDATE SKIP LOCKED
        ) AS timed
    ) AS both_paths
    ORDER BY both_paths.id LIMIT $5
))
RETURNING {leased}, NULL::bigint";

/// What a lease changes: no column that an index knows.
const LEASE: &str = "
    lease_until = coalesce($1::timestamptz, statement_timestamp()) + {length}::bigint * interval '1 microsecond',
    processing_started_at = coalesce($1::timestamptz, statement_timestamp()),
    updated_at = coalesce($1::timestamptz, statement_timestamp()),
    token = q.token + 1, attempts = q.attempts + 1, worker = {worker}";

/// The columns of a leased entry, as `claim::read_claimed` reads them.
const LEASED: &str = "q.id, q.event_id, q.generation, q.attempts, q.max_attempts, q.token, q.processing_started_at, \
    q.lease_until, q.last_error, q.group_key, q.lane, q.exhausted_as, q.flags";

/// The first row of each lane and path at or above a mark, claimable or not (event_queue_fresh, event_queue_timed).
const FIRST_ROWS: &str = "
SELECT l.lane,
       (SELECT q.id FROM {ns}.event_queue q
        WHERE q.lane = l.lane AND q.place = 0 AND q.id >= l.mark ORDER BY q.id LIMIT 1),
       (SELECT q.due_at FROM {ns}.event_queue q
        WHERE q.lane = l.lane AND q.place = 1 AND q.due_at >= l.due_mark ORDER BY q.due_at, q.id LIMIT 1)
FROM unnest($1::integer[], $2::bigint[], $3::timestamptz[]) AS l(lane, mark, due_mark)";

/// Moves entries from the queue to the log (event_queue's primary key). Ids come sorted and distinct.
const FINALIZE: &str = "
WITH gone AS (
    DELETE FROM {ns}.event_queue q
    USING unnest($2::bigint[], $3::bigint[], $4::smallint[], $5::text[], $6::text[])
        AS i(id, token, status, errors, results)
    WHERE q.id = i.id AND (i.token IS NULL OR (q.token = i.token AND q.lease_until IS NOT NULL))
    RETURNING q.*, i.status, i.errors, i.results
)
INSERT INTO {ns}.event_log (id, event_id, finished_at, processing_started_at, token, client_id, generation, lane, queue_id,
                            attempts, max_attempts, status, exhausted_as, group_key, worker, errors, results, flags)
SELECT id, event_id, coalesce($1::timestamptz, statement_timestamp()), processing_started_at, token, client_id, generation,
       lane, queue_id, least(attempts, max_attempts), max_attempts, status, exhausted_as, group_key, worker,
       coalesce(errors, CASE WHEN status <> 0 THEN last_error END), results, flags
FROM gone
RETURNING id, queue_id, group_key, flags, event_id, status";

/// The same for a run of neighbouring ids that all end alike without errors, which is the usual case: one walk along
/// event_queue's primary key, each token found by its position.
const FINALIZE_RUN: &str = "
WITH gone AS (
    DELETE FROM {ns}.event_queue q
    WHERE q.id >= $2 AND q.id <= $3 AND q.lease_until IS NOT NULL AND q.token = ($4::bigint[])[(q.id - $2) / $5::bigint + 1]
    RETURNING q.*
)
INSERT INTO {ns}.event_log (id, event_id, finished_at, processing_started_at, token, client_id, generation, lane, queue_id,
                            attempts, max_attempts, status, exhausted_as, group_key, worker, errors,
                            results, flags)
SELECT id, event_id, coalesce($1::timestamptz, statement_timestamp()), processing_started_at, token, client_id, generation,
       lane, queue_id, attempts, max_attempts, $6::smallint, exhausted_as, group_key, worker,
       CASE WHEN $6::smallint <> 0 THEN last_error END, $7::text, flags
FROM gone
RETURNING id, queue_id, group_key, flags, event_id, status";

/// Where entries are now (both primary keys).
const LOOK_UP: &str = "
SELECT q.id, q.token, NULL::smallint, q.lease_until IS NOT NULL, q.generation
FROM unnest($1::bigint[]) AS i(id) JOIN {ns}.event_queue q ON q.id = i.id
UNION ALL
SELECT g.id, g.token, g.status, false, g.generation
FROM unnest($1::bigint[]) AS i(id) JOIN {ns}.event_log g ON g.id = i.id
WHERE g.superseded <> 1";

/// Moves the end of leases (event_queue's primary key).
const EXTEND: &str = "
UPDATE {ns}.event_queue q
SET lease_until = coalesce($1::timestamptz, statement_timestamp()) + i.lease_us * interval '1 microsecond',
    updated_at = coalesce($1::timestamptz, statement_timestamp())
FROM unnest($2::bigint[], $3::bigint[], $4::bigint[]) AS i(id, token, lease_us)
WHERE q.id = i.id AND q.token = i.token AND q.lease_until IS NOT NULL
RETURNING q.id, q.token, q.lease_until, q.flags";

/// Gives leases back (event_queue's primary key). Where neither place nor due moment changes, the update stays heap-only.
const REQUEUE: &str = "
UPDATE {ns}.event_queue q
SET lease_until = NULL,
    updated_at = coalesce($1::timestamptz, statement_timestamp()),
    attempts = q.attempts - CASE WHEN i.counts THEN 0 ELSE 1 END,
    last_error = coalesce(i.error, q.last_error),
    place = CASE WHEN i.due_at IS NULL AND i.delay_us IS NULL THEN q.place ELSE 1 END,
    due_at = CASE WHEN i.due_at IS NULL AND i.delay_us IS NULL THEN q.due_at
             ELSE greatest(coalesce($1::timestamptz, statement_timestamp()), i.due_at,
                           coalesce($1::timestamptz, statement_timestamp()) + i.delay_us * interval '1 microsecond') END
FROM unnest($2::bigint[], $3::bigint[], $4::timestamptz[], $5::bigint[], $6::boolean[], $7::text[])
    AS i(id, token, due_at, delay_us, counts, error)
WHERE q.id = i.id AND q.token = i.token AND q.lease_until IS NOT NULL
RETURNING q.id, q.token, q.queue_id, q.flags, i.error, q.due_at";

/// Starts new generations of dead letters (event_log's primary key).
const REDRIVE: &str = "
WITH dead AS MATERIALIZED (
    SELECT g.* FROM unnest($2::bigint[]) AS i(id) JOIN {ns}.event_log g ON g.id = i.id
    WHERE g.status IN (1, 2) AND g.superseded = 0 AND ($3::bigint = 0 OR g.status = 2) FOR UPDATE OF g
), marked AS (
    UPDATE {ns}.event_log g SET superseded = 1 FROM dead d WHERE g.id = d.id AND g.generation = d.generation
)
INSERT INTO {ns}.event_queue (id, event_id, due_at, token, client_id, lane, queue_id, attempts, max_attempts, generation,
                              place, exhausted_as, group_key, last_error, flags)
SELECT d.id, d.event_id, coalesce($1::timestamptz, statement_timestamp()), d.token + $3::bigint, d.client_id, d.lane,
       d.queue_id, 0, d.max_attempts, d.generation + 1, CASE WHEN d.group_key IS NULL THEN 1 ELSE 2 END, d.exhausted_as,
       d.group_key, d.errors, d.flags
FROM dead d
RETURNING id, generation, queue_id, group_key, flags";

/// Takes dead letters out of the list (event_log's primary key).
const DISCARD: &str = "
UPDATE {ns}.event_log g SET superseded = 2 FROM unnest($1::bigint[]) AS i(id)
WHERE g.id = i.id AND g.status IN (1, 2) AND g.superseded = 0
RETURNING g.id";

/// Records handlers' answers where the lease is held (event_queue's primary key). The lock keeps others from taking the
/// entry over before this commits.
const RECORD_HANDLED: &str = "
WITH held AS MATERIALIZED (
    SELECT q.id, q.token, q.generation, i.handler, i.result
    FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[]) AS i(id, token, handler, result)
    JOIN {ns}.event_queue q ON q.id = i.id AND q.token = i.token AND q.lease_until IS NOT NULL
    FOR SHARE OF q
), recorded AS (
    INSERT INTO {ns}.event_handler_states (entry_id, handler, generation, result, recorded_at)
    SELECT id, handler, generation, result, coalesce($1::timestamptz, statement_timestamp()) FROM held
    ON CONFLICT (entry_id, handler) DO UPDATE
        SET generation = excluded.generation, result = excluded.result, recorded_at = excluded.recorded_at
)
SELECT id, token FROM held";

/// What handlers answered (primary keys); a null handler stands for the results of the generation before.
const HANDLED: &str = "
SELECT s.entry_id, s.handler, s.result FROM {ns}.event_handler_states s WHERE s.entry_id = ANY($1::bigint[])
UNION ALL
SELECT g.id, NULL, g.results
FROM unnest($1::bigint[]) AS i(id)
CROSS JOIN LATERAL (
    SELECT g.id, g.results FROM {ns}.event_log g WHERE g.id = i.id ORDER BY g.generation DESC LIMIT 1
) AS g
WHERE g.results IS NOT NULL";

/// Forgets answers about entries that have ended (primary keys).
const FORGET_HANDLED: &str = "
DELETE FROM {ns}.event_handler_states s
WHERE (s.entry_id, s.handler) IN (
    SELECT s.entry_id, s.handler FROM {ns}.event_handler_states s
    WHERE NOT EXISTS (SELECT FROM {ns}.event_queue q WHERE q.id = s.entry_id)
    LIMIT $1::bigint
)";

/// Whether a dead letter was discarded (primary key).
const DISCARDED: &str = "SELECT 1 FROM {ns}.event_log g WHERE g.id = $1::bigint AND g.superseded = 2";

/// Entries with their facts, live or ended; the latest generation of each (both primary keys).
const ENTRIES: &str = "
SELECT q.id, q.event_id, n.name, q.generation, q.attempts, q.max_attempts, q.token, l.priority, q.group_key,
       q.place, q.due_at, q.lease_until, q.processing_started_at, NULL::timestamptz, NULL::smallint, q.worker,
       0::smallint, q.last_error, NULL::text, q.lane, coalesce(q.updated_at, e.created_at), {fact}
FROM unnest($1::bigint[]) AS i(id)
JOIN {ns}.event_queue q ON q.id = i.id
JOIN {ns}.queues n ON n.id = q.queue_id
LEFT JOIN {ns}.lanes l ON l.id = q.lane
JOIN {ns}.events e ON e.id = q.event_id
UNION ALL
SELECT g.id, g.event_id, n.name, g.generation, g.attempts, g.max_attempts, g.token, l.priority, g.group_key,
       NULL, NULL, NULL, g.processing_started_at, g.finished_at, g.status, g.worker,
       g.superseded, g.errors, g.results, g.lane, g.finished_at, {fact}
FROM unnest($1::bigint[]) AS i(id)
JOIN {ns}.event_log g ON g.id = i.id
JOIN {ns}.queues n ON n.id = g.queue_id
LEFT JOIN {ns}.lanes l ON l.id = g.lane
JOIN {ns}.events e ON e.id = g.event_id
WHERE g.superseded <> 1";

/// Ids of dead letters of a queue (event_log_dead_letters).
const DEAD_LETTERS: &str = "
SELECT g.id FROM {ns}.event_log g
WHERE g.queue_id = $1 AND g.id > $2 AND g.status IN (1, 2) AND g.superseded = 0
  AND ($3::text IS NULL OR EXISTS (SELECT FROM {ns}.events e WHERE e.id = g.event_id AND e.event_type = $3))
ORDER BY g.id LIMIT $4";

/// What `why` needs to know about a live entry (primary keys).
const WHY: &str = "
SELECT q.lease_until, q.worker, q.place, q.due_at, q.group_key, q.queue_id, n.state, e.event_type,
       coalesce($1::timestamptz, statement_timestamp())
FROM {ns}.event_queue q JOIN {ns}.queues n ON n.id = q.queue_id JOIN {ns}.events e ON e.id = q.event_id
WHERE q.id = $2";

/// Others of a group that go first (event_queue_group_head, event_queue_parked).
const AHEAD_IN_GROUP: &str = "
SELECT (SELECT count(*) FROM {ns}.event_queue q WHERE q.queue_id = $1 AND q.group_key = $2 AND q.place < 2)
     + (SELECT count(*) FROM {ns}.event_queue q WHERE q.queue_id = $1 AND q.group_key = $2 AND q.place >= 2 AND q.id < $3)";

/// Claimable entries of a queue before one, up to 1,000 (event_queue_fresh, event_queue_timed).
const AHEAD_IN_QUEUE: &str = "
WITH me AS MATERIALIZED (
    SELECT q.id, q.queue_id, l.priority FROM {ns}.event_queue q LEFT JOIN {ns}.lanes l ON l.id = q.lane WHERE q.id = $2
)
SELECT count(*) FROM (
    SELECT FROM me CROSS JOIN {ns}.lanes l CROSS JOIN LATERAL (
        SELECT FROM {ns}.event_queue q
        WHERE q.lane = l.id AND q.place = 0 AND q.lease_until IS NULL AND (l.priority < me.priority OR q.id < me.id)
        UNION ALL
        SELECT FROM {ns}.event_queue q
        WHERE q.lane = l.id AND q.place = 1 AND q.due_at <= coalesce($1::timestamptz, statement_timestamp())
          AND q.lease_until IS NULL AND (l.priority < me.priority OR q.id < me.id)
    ) AS before
    WHERE l.queue_id = me.queue_id AND l.priority <= me.priority
    LIMIT 1000
) AS counted";

/// Whether somebody who takes a type was seen lately (consumers, small).
const LIVE_CONSUMER: &str = "
SELECT EXISTS (
    SELECT FROM {ns}.consumers c
    WHERE c.queue_id = $2 AND (c.types IS NULL OR $3 = ANY (c.types))
      AND c.seen_at > coalesce($1::timestamptz, statement_timestamp()) - interval '60 seconds'
)";

/// Counts one queue (reads the whole queue).
const DEPTH: &str = "
SELECT count(*) FILTER (WHERE lease_until IS NULL AND (place = 0 OR place IN (1, 3) AND group_key IS NULL AND
                              coalesce(due_at, '-infinity') <= coalesce($1::timestamptz, statement_timestamp())
                              OR place = 1 AND due_at <= coalesce($1::timestamptz, statement_timestamp()))),
       count(*) FILTER (WHERE lease_until IS NULL AND (place = 1 OR place = 3 AND group_key IS NULL)
                              AND due_at > coalesce($1::timestamptz, statement_timestamp())),
       count(*) FILTER (WHERE place = 2 OR place = 3 AND group_key IS NOT NULL),
       count(*) FILTER (WHERE lease_until IS NOT NULL)
FROM {ns}.event_queue WHERE queue_id = $2";

/// Counts everything in one snapshot (reads everything).
const CENSUS: &str = "
SELECT (SELECT count(*) FROM {ns}.events),
       (SELECT count(*) FROM {ns}.event_queue WHERE lease_until IS NULL),
       (SELECT count(*) FROM {ns}.event_queue WHERE lease_until IS NOT NULL),
       (SELECT count(*) FROM {ns}.event_log WHERE superseded <> 1)";

/// Creates a queue or changes it (queues_name).
const PUT_QUEUE: &str = "
INSERT INTO {ns}.queues AS q (name, state, depth_limit, settings)
VALUES ($1, coalesce($2::smallint, 0), CASE WHEN $3::boolean THEN $4::bigint END, $6::text)
ON CONFLICT (coalesce(client_id, 0), name) DO UPDATE
    SET state = coalesce($2::smallint, q.state),
        depth_limit = CASE WHEN $3::boolean THEN $4::bigint ELSE q.depth_limit END,
        settings = CASE WHEN $5::boolean THEN $6::text ELSE q.settings END
RETURNING state, depth_limit, settings";

/// Notes live consumers (consumers' primary key). In one order, so that processes that name the same ones never wait for
/// each other in a circle.
const CONSUMERS_SEEN: &str = "
INSERT INTO {ns}.consumers AS c (worker, queue_id, types, seen_at)
SELECT i.worker, i.queue_id,
       CASE WHEN i.types IS NOT NULL THEN ARRAY (SELECT jsonb_array_elements_text(i.types::jsonb)) END,
       coalesce($1::timestamptz, statement_timestamp())
FROM unnest($2::text[], $3::integer[], $4::text[]) AS i(worker, queue_id, types)
ORDER BY i.worker, i.queue_id
ON CONFLICT (worker, queue_id) DO UPDATE SET types = excluded.types, seen_at = excluded.seen_at";

/// Entries that callers' own transactions left to be sorted in (event_queue_arrived).
const ARRIVALS: &str = "
SELECT q.id, q.queue_id, q.lane, e.event_type, q.group_key
FROM {ns}.event_queue q JOIN {ns}.events e ON e.id = q.event_id
WHERE q.place = 3 ORDER BY q.id LIMIT 1000 FOR UPDATE OF q SKIP LOCKED";

/// Sorts arrivals in: grouped ones are parked, others are timed, due now or at their own moment.
const SORT_IN: &str = "
UPDATE {ns}.event_queue q
SET lane = i.lane,
    place = CASE WHEN q.group_key IS NULL THEN 1 ELSE 2 END,
    due_at = CASE WHEN q.group_key IS NULL THEN greatest(q.due_at, coalesce($1::timestamptz, statement_timestamp()))
             ELSE q.due_at END
FROM unnest($2::bigint[], $3::integer[]) AS i(id, lane)
WHERE q.id = i.id AND q.place = 3
RETURNING q.id, q.flags";

/// After an outage: moves leases that were still held when the store was last known to work.
const SHIFT_LEASES: &str = "
UPDATE {ns}.event_queue SET lease_until = lease_until + ($1::timestamptz - $2::timestamptz)
WHERE lease_until > $2::timestamptz";

/// Forgets expired keys in small steps (deduplication_expiry).
const EXPIRE_KEYS: &str = "
DELETE FROM {ns}.deduplication d USING (
    SELECT client_id, kind, scope, key FROM {ns}.deduplication
    WHERE expires_at <= coalesce($1::timestamptz, statement_timestamp()) ORDER BY expires_at LIMIT 1000
    FOR UPDATE SKIP LOCKED
) AS old
WHERE d.client_id = old.client_id AND d.kind = old.kind AND d.scope = old.scope AND d.key = old.key";

/// Whether a claim whose answer was lost did happen (event_queue's primary key). Its moment tells it from a later claim of
/// the same worker, which gets the same token if this one was lost.
const LEASE_STANDS: &str = "
SELECT EXISTS (
    SELECT FROM {ns}.event_queue
    WHERE id = $1 AND token = $2 AND worker = $3 AND processing_started_at = $4 AND lease_until IS NOT NULL
)";

/// Groups whose head a caller's own transaction ended (a small table, usually empty).
const TAKE_NOTES: &str = "
DELETE FROM {ns}.group_notes n WHERE n.ctid IN (
    SELECT ctid FROM {ns}.group_notes LIMIT 1000 FOR UPDATE SKIP LOCKED
) RETURNING queue_id, group_key";
