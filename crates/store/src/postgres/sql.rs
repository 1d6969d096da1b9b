//! Every statement of the PostgreSQL store, with the index that serves it. `{ns}` is the namespace, `{now}` the moment:
//! a parameter that only tests set, else the statement's own time (stable, so that indexes can use it).
//!
//! Plans are made once per connection, perhaps while tables are empty, so no statement may leave the planner a choice
//! that full tables make wrong: a table is found by `= ANY` on its key, by a range of it, or for each row of what is given
//! by `LATERAL (… OFFSET 0)`, which can be planned in one direction only. A plain join could as well walk the whole table.
//! While a table is empty all of its indexes look alike. So where another index knows a key's column as well, the key is
//! compared a second time as a whole (`(id, generation) > (x, 0)`): that says nothing new, but makes the primary key the
//! cheapest. And where only the first rows by id of a lane are wanted, they are ordered by (lane, id) from a pair on: by id
//! alone the primary key has them too, and a lane with little in it would be looked for among all. The test `plans` holds
//! every statement to all this.

use super::lanes::LaneSql;
use super::list_sql::ListSql;
use super::work_sql::WorkSql;

/// Statements with the namespace filled in.
#[derive(Debug)]
pub(super) struct Sql {
    pub(super) work: WorkSql,
    pub(super) lists: ListSql,
    pub(super) claim_of_many_audited: String,
    pub(super) filled_lanes: String,
    pub(super) claim_of_one_audited: String,
    pub(super) catalog: String,
    pub(super) lanes: LaneSql,
    pub(super) publish: String,
    pub(super) publish_plain: String,
    pub(super) draw_ids: String,
    pub(super) known_keys: String,
    pub(super) take_keys: String,
    pub(super) lock_waiting: String,
    pub(super) replace_facts: String,
    pub(super) count_entries: String,
    pub(super) lock_stripes: String,
    pub(super) promote: String,
    pub(super) claim_of_many: String,
    pub(super) claim_of_one: String,
    pub(super) facts: String,
    pub(super) facts_between: String,
    pub(super) facts_bounded: String,
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
    pub(super) depths: String,
    pub(super) census: String,
    pub(super) make_queue: String,
    pub(super) lock_queue: String,
    pub(super) put_queue: String,
    pub(super) consumers_seen: String,
    pub(super) arrivals: String,
    pub(super) sort_in: String,
    pub(super) note_groups: String,
    pub(super) take_notes: String,
    pub(super) headless: String,
    pub(super) forget_tags: String,
    pub(super) heartbeat: String,
    pub(super) lock_heartbeat: String,
    pub(super) oldest: String,
    pub(super) beat: String,
    pub(super) probe: String,
    pub(super) shift_leases: String,
    pub(super) shift_leases_back: String,
    pub(super) expire_keys: String,
    pub(super) elect: String,
    pub(super) resign: String,
    pub(super) forget_consumers: String,
    pub(super) fact_exists: String,
    pub(super) lease_stands: String,
}

/// The columns of a fact, as `row::fact` reads them.
pub(super) const FACT: &str = "e.client_id, e.event_type, e.payload, e.content_type, e.source, e.subject, e.time, e.external_id, \
    e.correlation_id, e.causation_id, e.attributes, e.created_at, e.title, e.description, e.tags, e.retry";

/// The columns of a fact, without a payload that has more than so many bytes: its length is known without reading it.
fn fact_up_to(bytes: &str) -> String {
    FACT.replace("e.payload", &format!("CASE WHEN octet_length(e.payload) <= {bytes}::bigint THEN e.payload END"))
}

/// Facts by id (events' primary key).
const FACTS: &str = "SELECT {fact}, e.id FROM {ns}.events e WHERE e.id = ANY ($1::bigint[])";

/// The same by a walk along the key.
const FACTS_BETWEEN: &str =
    "SELECT {fact}, e.id FROM {ns}.events e WHERE e.id >= $1 AND e.id <= $2 ORDER BY e.id LIMIT $3";

/// Facts by id, without the payload where it and those before it have more than so many bytes; the first always has its own
/// (events' primary key). A window has to keep every row, so this is asked only where payloads are large.
const FACTS_BOUNDED: &str = "
SELECT {fact}, e.id FROM (
    SELECT f.*, sum(octet_length(f.payload)) OVER (ORDER BY f.id) AS bytes
    FROM {ns}.events f WHERE f.id = ANY ($1::bigint[])
) AS e";
const PAYLOAD_WITHIN: &str = "CASE WHEN e.bytes <= $2::bigint OR e.bytes = octet_length(e.payload) THEN e.payload END";

/// Fills in the facts of entries (`q` live, `g` ended) that may be missing: their type is then their lane's, and their moment
/// the one that the event's id holds.
fn shown(sql: &str) -> String {
    let mut text = sql.to_owned();
    for row in ["q", "g"] {
        let made = format!("to_timestamp((({row}.event_id >> 22) + 1577836800000) / 1000.0)");
        let fact = FACT
            .replace("e.event_type", "coalesce(e.event_type, l.event_type, '')")
            .replace("e.payload", "coalesce(e.payload, ''::bytea)")
            .replace("e.created_at", &format!("coalesce(e.created_at, {made})"));
        text = text.replace(&format!("{{{row}_fact}}"), &fact).replace(&format!("{{{row}_made}}"), &made);
    }
    text
}

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
            lists: ListSql::new(namespace),
            claim_of_many_audited: fill(&lease_audited(&format!("{LANES}{TAKE_OF_LANES}{LEASE_TAKEN}"), "$8", "$9")),
            filled_lanes: fill(FILLED_LANES),
            claim_of_one_audited: fill(&lease_audited(CLAIM_OF_ONE, "$6", "$7")),
            catalog: fill(CATALOG),
            lanes: LaneSql::new(namespace),
            publish: fill(&PUBLISH.replace("{due}", DUE)),
            publish_plain: fill(PUBLISH_PLAIN),
            draw_ids: fill(DRAW_IDS),
            known_keys: fill(KNOWN_KEYS),
            take_keys: fill(TAKE_KEYS),
            lock_waiting: fill(LOCK_WAITING),
            replace_facts: fill(REPLACE_FACTS),
            count_entries: fill(COUNT_ENTRIES),
            lock_stripes: fill("SELECT count(pg_advisory_xact_lock(k)) FROM unnest($1::bigint[]) AS k"),
            promote: fill(PROMOTE),
            claim_of_many: fill(&lease(&format!("{LANES}{TAKE_OF_LANES}{LEASE_TAKEN}"), "$8", "$9")),
            claim_of_one: fill(&lease(CLAIM_OF_ONE, "$6", "$7")),
            facts: fill(&FACTS.replace("{fact}", &fact_up_to("$2"))),
            facts_between: fill(&FACTS_BETWEEN.replace("{fact}", &fact_up_to("$4"))),
            facts_bounded: fill(&FACTS_BOUNDED.replace("{fact}", &FACT.replace("e.payload", PAYLOAD_WITHIN))),
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
            entries: fill(&shown(ENTRIES)),
            dead_letters: fill(DEAD_LETTERS),
            why: fill(WHY),
            ahead_in_group: fill(AHEAD_IN_GROUP),
            ahead_in_queue: fill(AHEAD_IN_QUEUE),
            live_consumer: fill(LIVE_CONSUMER),
            depth: fill(DEPTH),
            depths: fill(DEPTHS),
            census: fill(CENSUS),
            make_queue: fill(MAKE_QUEUE),
            lock_queue: fill(LOCK_QUEUE),
            put_queue: fill(PUT_QUEUE),
            consumers_seen: fill(CONSUMERS_SEEN),
            arrivals: fill(ARRIVALS),
            sort_in: fill(SORT_IN),
            note_groups: fill("INSERT INTO {ns}.group_notes SELECT * FROM unnest($1::integer[], $2::text[])"),
            take_notes: fill(TAKE_NOTES),
            headless: fill(HEADLESS),
            forget_tags: fill("DELETE FROM {ns}.event_tags t WHERE t.entry_id = ANY ($1::bigint[])"),
            heartbeat: fill("SELECT at, clock_timestamp() FROM {ns}.heartbeat"),
            lock_heartbeat: fill("SELECT at, clock_timestamp() FROM {ns}.heartbeat FOR UPDATE"),
            oldest: fill(OLDEST),
            beat: fill("UPDATE {ns}.heartbeat SET at = $1"),
            // Touches no row, but is refused where nothing can be written.
            probe: fill("UPDATE {ns}.heartbeat SET at = at WHERE false"),
            shift_leases: fill(SHIFT_LEASES),
            shift_leases_back: fill(SHIFT_LEASES_BACK),
            expire_keys: fill(EXPIRE_KEYS),
            elect: fill(ELECT),
            resign: fill("DELETE FROM {ns}.maintenance WHERE holder = $1::text"),
            forget_consumers: fill(FORGET_CONSUMERS),
            fact_exists: fill("SELECT EXISTS (SELECT FROM {ns}.events WHERE id = $1)"),
            lease_stands: fill(LEASE_STANDS),
        }
    }
}

/// The catalogue's version, and what changed since the one known ($1 with stamp $2), if that is in this database's history
/// (catalogue_history's primary key, queues_version, lanes_version, catalogue_removed_version); else everything. Nothing
/// where the stamps are equal. Queues come before lanes.
const CATALOG: &str = "
WITH known AS MATERIALIZED (
    SELECT m.generation AS version, m.catalogue_stamp AS stamp,
           CASE WHEN m.catalogue_stamp = $2::bigint AND $1::bigint >= 0 THEN 9223372036854775807
                WHEN $1::bigint <= m.generation
                     AND EXISTS (SELECT FROM {ns}.catalogue_history h WHERE h.version = $1::bigint AND h.stamp = $2::bigint)
                THEN $1::bigint ELSE -1 END AS since
    FROM {ns}.meta m
)
SELECT k.version, k.stamp, k.since < 0, r.kind, r.id, r.queue_id, r.name, r.client_id, r.state, r.depth_limit, r.settings,
       r.event_type, r.priority
FROM known k LEFT JOIN LATERAL (
    SELECT 0::smallint AS kind, q.id, q.id AS queue_id, q.name, q.client_id, q.state, q.depth_limit, q.settings,
           NULL::text AS event_type, NULL::smallint AS priority
    FROM {ns}.queues q WHERE q.version > k.since
    UNION ALL
    SELECT 1::smallint, l.id, l.queue_id, NULL, NULL, l.state, NULL, NULL,
           CASE WHEN l.state = 0 THEN l.event_type ELSE l.was_type END, l.priority
    FROM {ns}.lanes l WHERE l.version > k.since AND (k.since >= 0 OR l.state < 2)
    UNION ALL
    SELECT (2 + d.kind)::smallint, d.id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM {ns}.catalogue_removed d WHERE d.version > k.since AND k.since >= 0
) AS r ON true
ORDER BY r.kind";

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
        $22::text[], $23::text[], $24::text[], $25::text[], $26::smallint[], $27::bigint[])
        AS i(given_id, client_id, event_type, payload, content_type, source, subject, time, external_id, correlation_id,
             causation_id, attributes, lane, queue_id, place, due_at, delay_us, group_key, max_attempts, exhausted_as,
             title, description, tags, retry, priority, queue_client)
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
           queue_client, lane, queue_id, max_attempts, place, exhausted_as, group_key,
           CASE WHEN tags IS NOT NULL THEN 1::smallint END
    FROM input
), tagged AS (
    INSERT INTO {ns}.event_tags (entry_id, rank, queue_id, state, priority, tag, client_id)
    SELECT i.id, CASE WHEN i.place = 1 THEN (extract(epoch FROM {due}) * 1000000)::bigint ELSE i.id END, i.queue_id,
           least(i.place, 2), i.priority, t.tag, i.queue_client
    FROM input i CROSS JOIN LATERAL unnest(string_to_array(i.tags, ',')) AS t(tag)
    WHERE i.tags IS NOT NULL
)
SELECT id, tsid | (id & 4194303), now, (SELECT pg_current_xact_id()::text), (SELECT catalogue_stamp FROM {ns}.meta) FROM input";

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
SELECT id, tsid | (id & 4194303), now, (SELECT pg_current_xact_id()::text), (SELECT catalogue_stamp FROM {ns}.meta) FROM input";

/// Numbers of entries to come, with their events' ids and the moment that these hold.
const DRAW_IDS: &str = "
WITH moment AS MATERIALIZED (
    SELECT coalesce($1::timestamptz, clock_timestamp()) AS now
), drawn AS MATERIALIZED (
    SELECT nextval('{ns}.entry_id') AS id FROM generate_series(1, $2::integer)
)
SELECT d.id, ((extract(epoch FROM m.now) * 1000)::bigint - 1577836800000) << 22 | (d.id & 4194303), m.now
FROM moment m CROSS JOIN drawn d";

/// Keys that are known and not expired, with what they stand for (deduplication's primary key, then events' and
/// event_queue's). Here and below, rows are looked up one by one (LATERAL, OFFSET 0): a plan made while a table was empty
/// must not walk along all of it later.
const KNOWN_KEYS: &str = "
SELECT i.ord::integer, d.entry_id, d.event_id, e.created_at,
       e.id IS NULL OR (e.event_type = i.event_type AND e.payload = i.payload) AS same,
       coalesce(q.waiting, false), q.group_key
FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bytea[]) WITH ORDINALITY
    AS i(client_id, scope, key, event_type, payload, ord)
CROSS JOIN LATERAL (
    SELECT d.entry_id, d.event_id, d.expires_at FROM {ns}.deduplication d
    WHERE d.client_id = i.client_id AND d.kind = 0 AND d.scope = i.scope AND d.key = i.key OFFSET 0
) AS d
LEFT JOIN LATERAL (
    SELECT e.id, e.created_at, e.event_type, e.payload FROM {ns}.events e WHERE e.id = d.event_id OFFSET 0
) AS e ON true
LEFT JOIN LATERAL (
    SELECT q.lease_until IS NULL AS waiting, q.group_key FROM {ns}.event_queue q WHERE q.id = d.entry_id OFFSET 0
) AS q ON true
WHERE d.expires_at > coalesce($1::timestamptz, statement_timestamp())";

/// Takes keys that are free or expired, or that still stand for the entry that was seen ($8, by the position of the new
/// entry in $5): its publisher takes the key over, or, where both are one entry, gives it another fact (deduplication's
/// primary key). Keys come sorted. Answers those that were taken.
const TAKE_KEYS: &str = "
INSERT INTO {ns}.deduplication AS d (client_id, kind, scope, key, entry_id, event_id, expires_at)
SELECT i.client_id, 0, i.scope, i.key, i.entry_id, i.event_id,
       coalesce($1::timestamptz, statement_timestamp()) + i.window_us * interval '1 microsecond'
FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[])
    AS i(client_id, scope, key, entry_id, event_id, window_us)
ON CONFLICT (client_id, kind, scope, key) DO UPDATE
    SET entry_id = excluded.entry_id, event_id = excluded.event_id,
        expires_at = CASE WHEN d.entry_id = excluded.entry_id THEN d.expires_at ELSE excluded.expires_at END
    WHERE d.expires_at <= coalesce($1::timestamptz, statement_timestamp())
       OR d.entry_id = ($8::bigint[])[array_position($5::bigint[], excluded.entry_id)]
RETURNING d.key";

/// Locks entries that wait (event_queue's primary key) and that nobody else is taking: what they hold is read by the next
/// statement, since this one may see rows as they were before it got its locks.
const LOCK_WAITING: &str = "
SELECT l.id FROM unnest($1::bigint[]) AS i(id)
CROSS JOIN LATERAL (
    SELECT q.id FROM {ns}.event_queue q WHERE q.id = i.id AND q.lease_until IS NULL OFFSET 0 FOR UPDATE SKIP LOCKED
) AS l";

/// Gives waiting entries, which are locked, other facts (primary keys). What handlers answered goes with the old ones. An
/// entry keeps its type, for that is where it waits; one whose fact is missing gets one again.
const REPLACE_FACTS: &str = "
WITH input AS MATERIALIZED (
    SELECT i.*, q.row_at, q.old_id, o.created_at, o.event_type AS old_type, o.tags AS old_tags,
           coalesce(o.client_id, q.client_id) AS client_id
    FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::text[],
        $9::timestamptz[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[],
        $17::text[])
        AS i(id, new_id, event_type, payload, content_type, source, subject, time, external_id, correlation_id,
             causation_id, attributes, title, description, tags, retry)
    CROSS JOIN LATERAL (
        SELECT q.ctid AS row_at, q.event_id AS old_id, q.client_id FROM {ns}.event_queue q WHERE q.id = i.id OFFSET 0
    ) AS q
    LEFT JOIN LATERAL (
        SELECT e.created_at, e.event_type, e.tags, e.client_id FROM {ns}.events e WHERE e.id = q.old_id OFFSET 0
    ) AS o ON true
), old AS (
    DELETE FROM {ns}.events e WHERE e.id = ANY (ARRAY(SELECT i.old_id FROM input i))
), fact AS (
    INSERT INTO {ns}.events (id, created_at, client_id, event_type, payload, content_type, source, subject, time,
                             external_id, correlation_id, causation_id, attributes, title, description, tags, retry)
    SELECT i.new_id, coalesce(i.created_at, $1::timestamptz), i.client_id, coalesce(i.old_type, i.event_type), i.payload,
           i.content_type, i.source, i.subject, i.time, i.external_id, i.correlation_id, i.causation_id, i.attributes,
           i.title, i.description, i.tags, i.retry
    FROM input i
), entry AS (
    UPDATE {ns}.event_queue q
    SET event_id = i.new_id,
        flags = CASE WHEN i.tags IS NOT NULL THEN coalesce(q.flags, 0::smallint) | 1::smallint
                ELSE nullif(q.flags & 2::smallint, 0) END
    FROM input i WHERE q.ctid = i.row_at
), untagged AS (
    DELETE FROM {ns}.event_tags t WHERE t.ctid = ANY (ARRAY(
        SELECT l.row_at FROM input i
        CROSS JOIN LATERAL unnest(string_to_array(i.old_tags, ',')) AS x(tag)
        CROSS JOIN LATERAL (
            SELECT t.ctid AS row_at FROM {ns}.event_tags t
            WHERE t.tag >= x.tag AND t.tag <= x.tag AND t.entry_id = i.id ORDER BY t.tag, t.entry_id LIMIT 1
        ) AS l
        WHERE NOT x.tag = ANY (coalesce(string_to_array(i.tags, ','), '{}'))
    ))
), answers AS (
    DELETE FROM {ns}.event_handler_states s WHERE s.entry_id = ANY ($2::bigint[])
)
SELECT i.id, i.new_id, coalesce(i.created_at, $1::timestamptz) FROM input i";

/// Counts up to a limit (event_queue_fresh and event_queue_timed of the queue's lanes, event_queue_parked).
const COUNT_ENTRIES: &str = "
SELECT count(*) FROM (
    SELECT FROM {ns}.lanes l CROSS JOIN LATERAL (
        (SELECT FROM {ns}.event_queue q WHERE q.lane = l.id AND q.place = 0 LIMIT $2)
        UNION ALL
        (SELECT FROM {ns}.event_queue q WHERE q.lane = l.id AND q.place = 1 LIMIT $2)
    ) AS claimable
    WHERE l.queue_id = $1
    UNION ALL
    (SELECT FROM {ns}.event_queue q WHERE q.queue_id = $1 AND q.place >= 2 LIMIT $2)
    LIMIT $2
) AS held";

/// Makes the first entry that waits in each free group claimable (event_queue_group_head, event_queue_parked). One that
/// arrived by a caller's own transaction keeps its turn: if its lane is not known yet, the group waits until it is sorted
/// in. The caller holds the groups' locks, and waits for nothing here: where somebody else has locked the entry, a note says
/// that the group is to be looked at again. (The range over one group, in its order, is what only event_queue_parked
/// serves, where an equality might be looked for along the primary key; and by its number an entry is found only there.)
const PROMOTE: &str = "
WITH heads AS MATERIALIZED (
    SELECT g.queue_id, g.group_key, h.id
    FROM unnest($2::integer[], $3::text[]) AS g(queue_id, group_key)
    CROSS JOIN LATERAL (
        SELECT q.id, q.lane FROM {ns}.event_queue q
        WHERE q.queue_id = g.queue_id AND q.group_key >= g.group_key AND q.group_key <= g.group_key AND q.place >= 2
        ORDER BY q.group_key, q.id LIMIT 1
    ) AS h
    WHERE h.lane > 0 AND NOT EXISTS (
        SELECT FROM {ns}.event_queue b
        WHERE b.queue_id = g.queue_id AND b.group_key = g.group_key AND b.place < 2 OFFSET 0
    )
), locked AS MATERIALIZED (
    SELECT l.id FROM heads h CROSS JOIN LATERAL (
        SELECT q.id FROM {ns}.event_queue q WHERE q.id = h.id AND q.place + 0 >= 2 OFFSET 0 FOR UPDATE SKIP LOCKED
    ) AS l
), noted AS (
    INSERT INTO {ns}.group_notes (queue_id, group_key)
    SELECT h.queue_id, h.group_key FROM heads h WHERE h.id NOT IN (SELECT l.id FROM locked l)
)
UPDATE {ns}.event_queue q
SET place = 1, due_at = greatest(q.due_at, coalesce($1::timestamptz, statement_timestamp()))
WHERE q.id = ANY (ARRAY(SELECT l.id FROM locked l))
RETURNING q.queue_id, q.id, q.flags";

/// Some groups that have parked entries, from one on, and whether one lacks a head though nothing is under way that would
/// give it one (event_queue_parked, one step per group; event_queue_group_head; group_notes, which is small).
const HEADLESS: &str = "
WITH RECURSIVE groups AS (
    (SELECT q.queue_id, q.group_key, q.place FROM {ns}.event_queue q
     WHERE q.place >= 2 AND q.group_key IS NOT NULL AND (q.queue_id, q.group_key) > ($1::integer, $2::text)
     ORDER BY q.queue_id, q.group_key, q.id LIMIT 1)
    UNION ALL
    SELECT n.* FROM groups g CROSS JOIN LATERAL (
        SELECT q.queue_id, q.group_key, q.place FROM {ns}.event_queue q
        WHERE q.place >= 2 AND q.group_key IS NOT NULL AND (q.queue_id, q.group_key) > (g.queue_id, g.group_key)
        ORDER BY q.queue_id, q.group_key, q.id LIMIT 1
    ) AS n
)
SELECT g.queue_id, g.group_key, g.place = 2
    AND NOT EXISTS (SELECT FROM {ns}.event_queue b
                    WHERE b.queue_id = g.queue_id AND b.group_key = g.group_key AND b.place < 2 OFFSET 0)
    AND NOT EXISTS (SELECT FROM {ns}.group_notes n
                    WHERE n.queue_id = g.queue_id AND n.group_key = g.group_key OFFSET 0)
FROM groups g LIMIT $3";

/// Offers the first of each lane and path (event_queue_fresh, event_queue_timed) and takes the first of those by priority
/// and id that nobody else is taking. Rows are locked only once they are chosen, so that many lanes do not lock many rows:
/// what was offered is read in its order, and no further than needed. They are locked by where they lie (ctid), which costs
/// one page each instead of a way down the primary key; a row that was changed since the statement began is looked at again by
/// PostgreSQL, and left alone if it is leased by now.
const TAKE_OF_LANES: &str = " offered AS MATERIALIZED (
    SELECT o.at, l.priority
    FROM lanes l CROSS JOIN LATERAL (
        (SELECT q.id, q.ctid AS at FROM {ns}.event_queue q
         WHERE (q.lane, q.id) >= (l.lane, l.mark) AND q.lane <= l.lane AND q.place = 0
           AND (q.lease_until IS NULL OR q.lease_until <= coalesce($1::timestamptz, statement_timestamp()))
           AND (NOT l.shared
                OR (SELECT e.event_type FROM {ns}.events e WHERE e.id = q.event_id) = ANY ($10::text[]))
         ORDER BY q.lane, q.id LIMIT $11)
        UNION ALL
        (SELECT q.id, q.ctid AS at FROM {ns}.event_queue q
         WHERE q.lane = l.lane AND q.place = 1 AND q.due_at >= l.due_mark
           AND q.due_at <= coalesce($1::timestamptz, statement_timestamp())
           AND (q.lease_until IS NULL OR q.lease_until <= coalesce($1::timestamptz, statement_timestamp()))
           AND (NOT l.shared
                OR (SELECT e.event_type FROM {ns}.events e WHERE e.id = q.event_id) = ANY ($10::text[]))
         ORDER BY q.due_at, q.id LIMIT $11)
    ) AS o
    ORDER BY l.priority, o.id LIMIT $11
), taken AS MATERIALIZED (
    SELECT q.ctid
    FROM offered o CROSS JOIN LATERAL (
        SELECT q.ctid FROM {ns}.event_queue q
        WHERE q.ctid = o.at AND q.place < 2
          AND (q.lease_until IS NULL OR q.lease_until <= coalesce($1::timestamptz, statement_timestamp()))
        FOR UPDATE SKIP LOCKED
    ) AS q
    LIMIT $7
)";

/// The lanes of a claim.
const LANES: &str = "
WITH lanes AS MATERIALIZED (
    SELECT * FROM unnest($2::integer[], $3::smallint[], $4::bigint[], $5::timestamptz[], $6::boolean[])
        AS l(lane, priority, mark, due_mark, shared)
),";

/// Finds those of some lanes ($1, sorted) that hold something by stepping from one that does to the next, so that empty ones
/// cost nothing (event_queue_fresh, event_queue_timed). A step that ends in another lane goes on at the next one of ours:
/// every step passes at least one of them.
const FILLED_LANES: &str = "
WITH RECURSIVE fresh AS (
    SELECT 0 AS lane
    UNION ALL
    SELECT n.lane FROM fresh f CROSS JOIN LATERAL (
        SELECT q.lane FROM {ns}.event_queue q
        WHERE q.place = 0 AND q.lane >= ($1::integer[])[width_bucket(f.lane, $1::integer[]) + 1]
          AND q.lane <= ($1::integer[])[cardinality($1::integer[])]
        ORDER BY q.lane LIMIT 1
    ) AS n
), timed AS (
    SELECT 0 AS lane
    UNION ALL
    SELECT n.lane FROM timed t CROSS JOIN LATERAL (
        SELECT q.lane FROM {ns}.event_queue q
        WHERE q.place = 1 AND q.lane >= ($1::integer[])[width_bucket(t.lane, $1::integer[]) + 1]
          AND q.lane <= ($1::integer[])[cardinality($1::integer[])]
        ORDER BY q.lane LIMIT 1
    ) AS n
)
SELECT s.lane FROM (SELECT f.lane FROM fresh f UNION SELECT t.lane FROM timed t) AS s
WHERE ($1::integer[])[width_bucket(s.lane, $1::integer[])] = s.lane";

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
            WHERE (f.lane, f.id) >= ($2, $3) AND f.lane <= $2 AND f.place = 0
              AND (f.lease_until IS NULL OR f.lease_until <= coalesce($1::timestamptz, statement_timestamp()))
            ORDER BY f.lane, f.id LIMIT $5 FOR UPDATE SKIP LOCKED
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
    token = greatest(q.token + 1, (SELECT m.token_base FROM {ns}.meta m)), attempts = q.attempts + 1, worker = {worker}";

/// The columns of a leased entry, as `claim::read_claimed` reads them.
const LEASED: &str = "q.id, q.event_id, q.generation, q.attempts, q.max_attempts, q.token, q.processing_started_at, \
    q.lease_until, q.last_error, q.group_key, q.lane, q.exhausted_as, q.flags";

/// The first row of each lane and path at or above a mark, and below another, that is under no lease at a moment ($4), where
/// one is given, else claimable or not. Where another is given ($5), leases that began since are not passed, and of those that
/// were passed the last entry, the first ones and the first end are told (event_queue_fresh, event_queue_timed). Rows that are
/// gone are read by every part, so none is run in vain.
const FIRST_ROWS: &str = "
SELECT l.lane, f.id, t.due_at, h.last, h.first, u.first, least(h.until, u.until)
FROM unnest($1::integer[], $2::bigint[], $3::timestamptz[], $6::bigint[], $7::timestamptz[])
    AS l(lane, mark, due_mark, below, due_below)
LEFT JOIN LATERAL (
    SELECT q.id FROM {ns}.event_queue q
    WHERE (q.lane, q.id) >= (l.lane, l.mark) AND (q.lane, q.id) < (l.lane, l.below) AND q.place = 0
      AND (q.lease_until IS NULL OR q.lease_until <= coalesce($4::timestamptz, 'infinity')
           OR q.processing_started_at > $5::timestamptz)
    ORDER BY q.lane, q.id LIMIT 1
) AS f ON true
LEFT JOIN LATERAL (
    SELECT q.due_at FROM {ns}.event_queue q
    WHERE q.lane = l.lane AND q.place = 1 AND q.due_at >= l.due_mark AND q.due_at < l.due_below
      AND (q.lease_until IS NULL OR q.lease_until <= coalesce($4::timestamptz, 'infinity')
           OR q.processing_started_at > $5::timestamptz)
    ORDER BY q.due_at, q.id LIMIT 1
) AS t ON true
CROSS JOIN LATERAL (
    SELECT max(q.id) AS last, min(q.id) AS first, min(q.lease_until) AS until FROM {ns}.event_queue q
    WHERE $5::timestamptz IS NOT NULL AND q.place = 0 AND (q.lane, q.id) >= (l.lane, l.mark)
      AND (q.lane, q.id) < (l.lane, coalesce(f.id, 9223372036854775807)) AND q.lease_until > $4::timestamptz
) AS h
CROSS JOIN LATERAL (
    SELECT min(q.due_at) AS first, min(q.lease_until) AS until FROM {ns}.event_queue q
    WHERE $5::timestamptz IS NOT NULL AND q.lane = l.lane AND q.place = 1 AND q.due_at >= l.due_mark
      AND q.due_at <= coalesce(t.due_at, 'infinity')
      AND q.lease_until > $4::timestamptz
) AS u";

/// Moves entries from the queue to the log (event_queue's primary key). Ids come sorted and distinct: the other arrays are
/// read at the place where a binary search finds the id. A token of -1 stands for whoever holds it.
const FINALIZE: &str = "
WITH gone AS (
    DELETE FROM {ns}.event_queue q
    WHERE q.id = ANY ($2::bigint[])
      AND (($3::bigint[])[width_bucket(q.id, $2::bigint[])] = -1
           OR q.lease_until IS NOT NULL AND q.token = ($3::bigint[])[width_bucket(q.id, $2::bigint[])])
    RETURNING q.*, width_bucket(q.id, $2::bigint[]) AS at
)
INSERT INTO {ns}.event_log (id, event_id, finished_at, processing_started_at, token, client_id, generation, lane, queue_id,
                            attempts, max_attempts, status, exhausted_as, group_key, worker, errors, results, flags)
SELECT id, event_id, coalesce($1::timestamptz, statement_timestamp()), processing_started_at, token, client_id, generation,
       lane, queue_id, least(attempts, max_attempts), max_attempts, ($4::smallint[])[at], exhausted_as, group_key, worker,
       coalesce(($5::text[])[at], CASE WHEN ($4::smallint[])[at] <> 0 THEN last_error END), ($6::text[])[at], flags
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
SELECT q.id, q.token, NULL::smallint, q.leased, q.generation
FROM unnest($1::bigint[]) AS i(id) CROSS JOIN LATERAL (
    SELECT q.id, q.token, q.lease_until IS NOT NULL AS leased, q.generation
    FROM {ns}.event_queue q WHERE q.id = i.id OFFSET 0
) AS q
UNION ALL
SELECT g.id, g.token, g.status, false, g.generation
FROM unnest($1::bigint[]) AS i(id) CROSS JOIN LATERAL (
    SELECT g.id, g.token, g.status, g.generation
    FROM {ns}.event_log g
    WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) AND g.superseded <> 1 OFFSET 0
) AS g";

/// Moves the end of leases (event_queue's primary key). Ids come sorted and distinct.
const EXTEND: &str = "
UPDATE {ns}.event_queue q
SET lease_until = coalesce($1::timestamptz, statement_timestamp())
                  + ($4::bigint[])[width_bucket(q.id, $2::bigint[])] * interval '1 microsecond',
    updated_at = coalesce($1::timestamptz, statement_timestamp())
WHERE q.id = ANY ($2::bigint[]) AND q.token = ($3::bigint[])[width_bucket(q.id, $2::bigint[])]
  AND q.lease_until IS NOT NULL
RETURNING q.id, q.token, q.lease_until, q.flags, q.updated_at";

/// Gives leases back (event_queue's primary key). Ids come sorted and distinct. Where neither place nor due moment changes
/// (kind 0), the update stays heap-only; kind 1 names a moment, kind 2 a delay.
const REQUEUE: &str = "
UPDATE {ns}.event_queue q
SET lease_until = NULL,
    updated_at = coalesce($1::timestamptz, statement_timestamp()),
    (attempts, last_error, place, due_at) = (
        SELECT q.attempts - CASE WHEN ($7::boolean[])[i.at] THEN 0 ELSE 1 END,
               coalesce(($8::text[])[i.at], q.last_error),
               CASE WHEN ($4::smallint[])[i.at] = 0 THEN q.place ELSE 1 END,
               CASE ($4::smallint[])[i.at]
               WHEN 0 THEN q.due_at
               WHEN 1 THEN greatest(coalesce($1::timestamptz, statement_timestamp()), ($5::timestamptz[])[i.at])
               ELSE coalesce($1::timestamptz, statement_timestamp()) + ($6::bigint[])[i.at] * interval '1 microsecond' END
        FROM (SELECT width_bucket(q.id, $2::bigint[]) AS at OFFSET 0) AS i
    )
WHERE q.id = ANY ($2::bigint[]) AND q.token = ($3::bigint[])[width_bucket(q.id, $2::bigint[])]
  AND q.lease_until IS NOT NULL
RETURNING q.id, q.token, q.queue_id, q.flags, ($8::text[])[width_bucket(q.id, $2::bigint[])], q.due_at, q.lane, q.place";

/// Starts new generations of dead letters (event_log's and lanes' primary keys; `+ 0` keeps the index of all dead letters
/// out). Only `superseded` ever changes in a log row, so one that was locked as it was found stays where it is. One whose
/// lane takes no more entries becomes an arrival, to be sorted in.
const REDRIVE: &str = "
WITH dead AS MATERIALIZED (
    SELECT g.* FROM unnest($2::bigint[]) AS i(id) CROSS JOIN LATERAL (
        SELECT g.*, g.tableoid AS part, g.ctid AS at FROM {ns}.event_log g
        WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0)
          AND g.status IN (1, 2) AND g.superseded + 0 = 0 AND ($3::bigint = 0 OR g.status = 2)
        FOR UPDATE
    ) AS g
), marked AS (
    UPDATE {ns}.event_log g SET superseded = 1 FROM dead d WHERE g.ctid = d.at AND g.tableoid = d.part
)
INSERT INTO {ns}.event_queue (id, event_id, due_at, token, client_id, lane, queue_id, attempts, max_attempts, generation,
                              place, exhausted_as, group_key, flags)
SELECT d.id, d.event_id, coalesce($1::timestamptz, statement_timestamp()), d.token + $3::bigint, d.client_id,
       CASE WHEN l.state > 0 THEN -l.priority - 1000 ELSE d.lane END, d.queue_id, 0, d.max_attempts, d.generation + 1,
       CASE WHEN l.state > 0 THEN 3 WHEN d.group_key IS NULL THEN 1 ELSE 2 END, d.exhausted_as, d.group_key, d.flags
FROM dead d LEFT JOIN LATERAL (SELECT l.state, l.priority FROM {ns}.lanes l WHERE l.id = d.lane OFFSET 0) AS l ON true
RETURNING id, generation, queue_id, group_key, flags, place";

/// Takes dead letters out of the list (event_log's primary key; `+ 0` as above).
const DISCARD: &str = "
WITH dead AS MATERIALIZED (
    SELECT g.* FROM unnest($1::bigint[]) AS i(id) CROSS JOIN LATERAL (
        SELECT g.tableoid AS part, g.ctid AS at FROM {ns}.event_log g
        WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) AND g.status IN (1, 2) AND g.superseded + 0 = 0
        FOR UPDATE
    ) AS g
)
UPDATE {ns}.event_log g SET superseded = 2 FROM dead d WHERE g.ctid = d.at AND g.tableoid = d.part
RETURNING g.id";

/// Records handlers' answers where the lease is held (event_queue's primary key). The lock keeps others from taking the
/// entry over before this commits.
const RECORD_HANDLED: &str = "
WITH held AS MATERIALIZED (
    SELECT q.id, q.token, q.generation, i.handler, i.result
    FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[]) AS i(id, token, handler, result)
    CROSS JOIN LATERAL (
        SELECT q.id, q.token, q.generation FROM {ns}.event_queue q
        WHERE q.id = i.id AND q.token = i.token AND q.lease_until IS NOT NULL FOR SHARE
    ) AS q
), recorded AS (
    INSERT INTO {ns}.event_handler_states (entry_id, handler, generation, result, recorded_at)
    SELECT id, handler, generation, result, coalesce($1::timestamptz, statement_timestamp()) FROM held
    ON CONFLICT (entry_id, handler) DO UPDATE
        SET generation = excluded.generation, result = excluded.result, recorded_at = excluded.recorded_at
)
SELECT id, token FROM held";

/// What handlers answered (primary keys); a null handler stands for the results of the generation before, as long as the
/// entry has the same fact.
const HANDLED: &str = "
SELECT s.entry_id, s.handler, s.result FROM {ns}.event_handler_states s WHERE s.entry_id = ANY($1::bigint[])
UNION ALL
SELECT g.id, NULL, g.results
FROM unnest($1::bigint[]) AS i(id)
CROSS JOIN LATERAL (
    SELECT g.id, g.event_id, g.results FROM {ns}.event_log g
    WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) ORDER BY g.generation DESC LIMIT 1
) AS g
WHERE g.results IS NOT NULL AND g.event_id = (SELECT q.event_id FROM {ns}.event_queue q WHERE q.id = i.id)";

/// Forgets answers about entries that have ended, in a stretch of the table, and says where it ended (primary keys).
const FORGET_HANDLED: &str = "
WITH looked AS MATERIALIZED (
    SELECT s.ctid AS place, s.entry_id, s.handler FROM {ns}.event_handler_states s
    WHERE (s.entry_id, s.handler) > ($2::bigint, $3::text) ORDER BY s.entry_id, s.handler LIMIT $4::bigint
), gone AS (
    DELETE FROM {ns}.event_handler_states s WHERE s.ctid = ANY (ARRAY(
        SELECT l.place FROM looked l
        WHERE NOT EXISTS (SELECT FROM {ns}.event_queue q WHERE q.id = l.entry_id OFFSET 0)
        LIMIT $1::bigint
    )) RETURNING s.entry_id
)
SELECT (SELECT count(*) FROM gone), l.entry_id, l.handler FROM looked l ORDER BY l.entry_id DESC, l.handler DESC LIMIT 1";

/// Whether a dead letter was discarded (primary key).
const DISCARDED: &str = "SELECT 1 FROM {ns}.event_log g WHERE g.id = $1::bigint AND g.superseded = 2";

/// Entries with their facts, live or ended; the latest generation of each (both primary keys). One whose fact is missing is
/// shown without contents.
const ENTRIES: &str = "
SELECT q.id, q.event_id, n.name, q.generation, q.attempts, q.max_attempts, q.token, l.priority, q.group_key,
       q.place, q.due_at, q.lease_until, q.processing_started_at, NULL::timestamptz, NULL::smallint, q.worker,
       0::smallint, q.last_error, NULL::text, q.lane, coalesce(q.updated_at, e.created_at, {q_made}), n.client_id, {q_fact}
FROM unnest($1::bigint[]) AS i(id)
CROSS JOIN LATERAL (SELECT * FROM {ns}.event_queue q WHERE q.id = i.id OFFSET 0) AS q
CROSS JOIN LATERAL (SELECT * FROM {ns}.queues n WHERE n.id = q.queue_id OFFSET 0) AS n
LEFT JOIN LATERAL (SELECT * FROM {ns}.lanes l WHERE l.id = q.lane OFFSET 0) AS l ON true
LEFT JOIN LATERAL (SELECT * FROM {ns}.events e WHERE e.id = q.event_id OFFSET 0) AS e ON true
UNION ALL
SELECT g.id, g.event_id, n.name, g.generation, g.attempts, g.max_attempts, g.token, l.priority, g.group_key,
       NULL, NULL, NULL, g.processing_started_at, g.finished_at, g.status, g.worker,
       g.superseded, g.errors, g.results, g.lane, g.finished_at, n.client_id, {g_fact}
FROM unnest($1::bigint[]) AS i(id)
CROSS JOIN LATERAL (SELECT * FROM {ns}.event_log g
    WHERE g.id = i.id AND (g.id, g.generation) > (i.id, 0) AND g.superseded <> 1 OFFSET 0) AS g
CROSS JOIN LATERAL (SELECT * FROM {ns}.queues n WHERE n.id = g.queue_id OFFSET 0) AS n
LEFT JOIN LATERAL (SELECT * FROM {ns}.lanes l WHERE l.id = g.lane OFFSET 0) AS l ON true
LEFT JOIN LATERAL (SELECT * FROM {ns}.events e WHERE e.id = g.event_id OFFSET 0) AS e ON true";

/// Ids of dead letters of a queue (event_log_dead_letters).
const DEAD_LETTERS: &str = "
SELECT g.id FROM {ns}.event_log g
WHERE g.queue_id = $1 AND g.id > $2 AND g.status IN (1, 2) AND g.superseded = 0
  AND ($3::text IS NULL OR (SELECT e.event_type FROM {ns}.events e WHERE e.id = g.event_id) = $3)
ORDER BY g.id LIMIT $4";

/// What `why` needs to know about a live entry (primary keys).
const WHY: &str = "
SELECT q.lease_until, q.worker, q.place, q.due_at, q.group_key, q.queue_id, n.state, coalesce(e.event_type, ''),
       coalesce($1::timestamptz, statement_timestamp()), e.tags
FROM (SELECT * FROM {ns}.event_queue q WHERE q.id = $2 OFFSET 0) AS q
CROSS JOIN LATERAL (SELECT * FROM {ns}.queues n WHERE n.id = q.queue_id OFFSET 0) AS n
LEFT JOIN LATERAL (SELECT * FROM {ns}.events e WHERE e.id = q.event_id OFFSET 0) AS e ON true";

/// Others of a group that go first (event_queue_group_head, event_queue_parked).
const AHEAD_IN_GROUP: &str = "
SELECT (SELECT count(*) FROM {ns}.event_queue q WHERE q.queue_id = $1 AND q.group_key = $2 AND q.place < 2)
     + (SELECT count(*) FROM {ns}.event_queue q WHERE q.queue_id = $1 AND q.group_key = $2 AND q.place >= 2 AND q.id < $3)";

/// Claimable entries of a queue before one, up to 1,000 (event_queue_fresh, event_queue_timed).
const AHEAD_IN_QUEUE: &str = "
WITH me AS MATERIALIZED (
    SELECT q.id, q.queue_id, (SELECT l.priority FROM {ns}.lanes l WHERE l.id = q.lane) AS priority
    FROM {ns}.event_queue q WHERE q.id = $2
)
SELECT count(*) FROM (
    SELECT FROM me CROSS JOIN LATERAL (
        SELECT l.id, l.priority FROM {ns}.lanes l
        WHERE l.queue_id = me.queue_id AND l.priority <= me.priority AND l.state < 2 OFFSET 0
    ) AS l CROSS JOIN LATERAL (
        (SELECT FROM {ns}.event_queue q
         WHERE q.lane = l.id AND q.place = 0 AND q.lease_until IS NULL AND (l.priority < me.priority OR q.id < me.id)
         LIMIT 1000)
        UNION ALL
        (SELECT FROM {ns}.event_queue q
         WHERE q.lane = l.id AND q.place = 1 AND q.due_at <= coalesce($1::timestamptz, statement_timestamp())
           AND q.lease_until IS NULL AND (l.priority < me.priority OR q.id < me.id)
         LIMIT 1000)
    ) AS before
    LIMIT 1000
) AS counted";

/// Whether somebody who takes one of these, types or marked tags, was seen lately (consumers, small).
const LIVE_CONSUMER: &str = "
SELECT EXISTS (
    SELECT FROM {ns}.consumers c
    WHERE c.queue_id = $2 AND (c.types IS NULL OR c.types && $3::text[])
      AND c.seen_at > coalesce($1::timestamptz, statement_timestamp()) - interval '60 seconds'
)";

/// Counts one queue: all of its entries, lane by lane (lanes_key, event_queue_fresh, event_queue_timed), parked and arrived
/// ones besides (event_queue_parked).
const DEPTH: &str = "
SELECT count(*) FILTER (WHERE lease_until IS NULL AND (place = 0 OR place IN (1, 3) AND group_key IS NULL AND
                              coalesce(due_at, '-infinity') <= coalesce($1::timestamptz, statement_timestamp())
                              OR place = 1 AND due_at <= coalesce($1::timestamptz, statement_timestamp()))),
       count(*) FILTER (WHERE lease_until IS NULL AND (place = 1 OR place = 3 AND group_key IS NULL)
                              AND due_at > coalesce($1::timestamptz, statement_timestamp())),
       count(*) FILTER (WHERE place = 2 OR place = 3 AND group_key IS NOT NULL),
       count(*) FILTER (WHERE lease_until IS NOT NULL)
FROM (
    SELECT h.* FROM {ns}.lanes l CROSS JOIN LATERAL (
        SELECT q.place, q.due_at, q.group_key, q.lease_until FROM {ns}.event_queue q WHERE q.lane = l.id AND q.place = 0
        UNION ALL
        SELECT q.place, q.due_at, q.group_key, q.lease_until FROM {ns}.event_queue q WHERE q.lane = l.id AND q.place = 1
        OFFSET 0
    ) AS h
    WHERE l.queue_id = $2
    UNION ALL
    SELECT q.place, q.due_at, q.group_key, q.lease_until FROM {ns}.event_queue q WHERE q.queue_id = $2 AND q.place >= 2
) AS q";

/// Counts every queue that holds something (reads all of them).
const DEPTHS: &str = "
SELECT count(*) FILTER (WHERE lease_until IS NULL AND (place = 0 OR place IN (1, 3) AND group_key IS NULL AND
                              coalesce(due_at, '-infinity') <= coalesce($1::timestamptz, statement_timestamp())
                              OR place = 1 AND due_at <= coalesce($1::timestamptz, statement_timestamp()))),
       count(*) FILTER (WHERE lease_until IS NULL AND (place = 1 OR place = 3 AND group_key IS NULL)
                              AND due_at > coalesce($1::timestamptz, statement_timestamp())),
       count(*) FILTER (WHERE place = 2 OR place = 3 AND group_key IS NOT NULL),
       count(*) FILTER (WHERE lease_until IS NOT NULL), queue_id
FROM {ns}.event_queue GROUP BY queue_id";

/// Since when the first entry of each lane could have been claimed. Lanes that hold something are found by stepping from one
/// to the next (event_queue_fresh, event_queue_timed), so empty lanes cost nothing.
const OLDEST: &str = "
WITH RECURSIVE fresh AS (
    (SELECT q.lane FROM {ns}.event_queue q WHERE q.place = 0 AND q.lane > 0 ORDER BY q.lane LIMIT 1)
    UNION ALL
    SELECT n.lane FROM fresh f CROSS JOIN LATERAL (
        SELECT q.lane FROM {ns}.event_queue q WHERE q.place = 0 AND q.lane > f.lane ORDER BY q.lane LIMIT 1
    ) AS n
), timed AS (
    (SELECT q.lane FROM {ns}.event_queue q WHERE q.place = 1 AND q.lane > 0 ORDER BY q.lane LIMIT 1)
    UNION ALL
    SELECT n.lane FROM timed t CROSS JOIN LATERAL (
        SELECT q.lane FROM {ns}.event_queue q WHERE q.place = 1 AND q.lane > t.lane ORDER BY q.lane LIMIT 1
    ) AS n
)
SELECT l.queue_id, extract(epoch FROM coalesce($1::timestamptz, statement_timestamp()) - o.since)::float8
FROM (
    SELECT f.lane, h.since FROM fresh f CROSS JOIN LATERAL (
        SELECT to_timestamp(((q.event_id >> 22) + 1577836800000) / 1000.0) AS since FROM {ns}.event_queue q
        WHERE q.lane >= f.lane AND q.lane <= f.lane AND q.place = 0
          AND (q.lease_until IS NULL OR q.lease_until <= coalesce($1::timestamptz, statement_timestamp()))
        ORDER BY q.lane, q.id LIMIT 1
    ) AS h
    UNION ALL
    SELECT t.lane, h.since FROM timed t CROSS JOIN LATERAL (
        SELECT q.due_at AS since FROM {ns}.event_queue q
        WHERE q.lane = t.lane AND q.place = 1 AND q.due_at <= coalesce($1::timestamptz, statement_timestamp())
          AND (q.lease_until IS NULL OR q.lease_until <= coalesce($1::timestamptz, statement_timestamp()))
        ORDER BY q.due_at, q.id LIMIT 1
    ) AS h
) AS o CROSS JOIN LATERAL (SELECT l.queue_id FROM {ns}.lanes l WHERE l.id = o.lane OFFSET 0) AS l";

/// Counts everything in one snapshot (reads everything).
const CENSUS: &str = "
SELECT (SELECT count(*) FROM {ns}.events),
       (SELECT count(*) FROM {ns}.event_queue WHERE lease_until IS NULL),
       (SELECT count(*) FROM {ns}.event_queue WHERE lease_until IS NOT NULL),
       (SELECT count(*) FROM {ns}.event_log WHERE superseded <> 1)";

/// Creates a queue unless there is one (queues_name).
const MAKE_QUEUE: &str = "
INSERT INTO {ns}.queues (name, client_id) VALUES ($1::text, $2::bigint)
ON CONFLICT (coalesce(client_id, 0), name) DO NOTHING";

/// A queue as it stands, locked (queues_name). The lock lets lanes be added meanwhile.
const LOCK_QUEUE: &str = "
SELECT id, state, depth_limit, settings FROM {ns}.queues
WHERE coalesce(client_id, 0) = coalesce($2::bigint, 0) AND name = $1::text FOR NO KEY UPDATE";

/// Changes a queue (queues' primary key).
const PUT_QUEUE: &str = "
UPDATE {ns}.queues SET state = $2::smallint, depth_limit = $3::bigint, settings = $4::text WHERE id = $1::integer";

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

/// Entries that callers' own transactions left to be sorted in (event_queue_arrived; events' primary key). Nothing is
/// locked yet: the locks of their groups come first.
const ARRIVALS: &str = "
SELECT q.id, q.queue_id, q.lane, e.event_type, q.group_key, q.exhausted_as, q.event_id
FROM (
    SELECT * FROM {ns}.event_queue q WHERE q.place = 3 ORDER BY q.id LIMIT 1000
) AS q
LEFT JOIN LATERAL (SELECT e.event_type FROM {ns}.events e WHERE e.id = q.event_id OFFSET 0) AS e ON true";

/// Sorts arrivals in: grouped ones are parked, others are timed, due now or at their own moment (event_queue's primary
/// key). One that somebody else has locked or sorted in is passed over.
const SORT_IN: &str = "
WITH found AS MATERIALIZED (
    SELECT l.id FROM unnest($2::bigint[]) AS i(id) CROSS JOIN LATERAL (
        SELECT q.id FROM {ns}.event_queue q WHERE q.id = i.id AND q.place + 0 = 3 OFFSET 0 FOR UPDATE SKIP LOCKED
    ) AS l
)
UPDATE {ns}.event_queue q
SET lane = ($3::integer[])[array_position($2::bigint[], q.id)],
    place = CASE WHEN q.group_key IS NULL THEN 1 ELSE 2 END,
    due_at = CASE WHEN q.group_key IS NULL THEN greatest(q.due_at, coalesce($1::timestamptz, statement_timestamp()))
             ELSE q.due_at END
WHERE q.id = ANY (ARRAY(SELECT f.id FROM found f))
RETURNING q.id, q.flags";

/// After an outage: moves leases that were still held when the store was last known to work.
const SHIFT_LEASES: &str = "
UPDATE {ns}.event_queue
SET lease_until = lease_until + ($1::timestamptz - $2::timestamptz), updated_at = $1::timestamptz
WHERE lease_until > $2::timestamptz";

/// After the clock went back: leases that were written while it was ahead, which their moment says, begin anew. One that was
/// written before ends in time as it is.
const SHIFT_LEASES_BACK: &str = "
UPDATE {ns}.event_queue
SET lease_until = $1::timestamptz + (lease_until - updated_at), updated_at = $1::timestamptz
WHERE lease_until IS NOT NULL AND updated_at > clock_timestamp()
RETURNING id, flags";

/// Forgets expired keys in small steps (deduplication_expiry).
const EXPIRE_KEYS: &str = "
DELETE FROM {ns}.deduplication d USING (
    SELECT ctid AS place FROM {ns}.deduplication
    WHERE expires_at <= coalesce($1::timestamptz, statement_timestamp()) ORDER BY expires_at LIMIT 1000
    FOR UPDATE SKIP LOCKED
) AS old
WHERE d.ctid = old.place";

/// Takes or keeps the lease of a task (maintenance's primary key).
const ELECT: &str = "
INSERT INTO {ns}.maintenance AS m (task, holder, until)
VALUES ($2::text, $3::text, coalesce($1::timestamptz, statement_timestamp()) + $4::bigint * interval '1 microsecond')
ON CONFLICT (task) DO UPDATE SET holder = excluded.holder, until = excluded.until
    WHERE m.holder = excluded.holder OR m.until <= coalesce($1::timestamptz, statement_timestamp())";

/// Forgets consumers that were not seen for long (the table, whole: a day's consumers).
const FORGET_CONSUMERS: &str = "
DELETE FROM {ns}.consumers
WHERE seen_at < coalesce($1::timestamptz, statement_timestamp()) - $2::bigint * interval '1 microsecond'";

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
