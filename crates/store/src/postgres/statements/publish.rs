//! Publishing: facts and entries.

use crate::postgres::engine::row::{Moment, row};
use crate::sql::{Only, statements};

row! {
    /// A new entry.
    pub(in crate::postgres) struct PublishedRow {
        id: i64,
        event_id: i64,
        created_at: Moment,
    }
}

row! {
    /// The id of the transaction and the catalogue's stamp: what its prelude would have read.
    pub(in crate::postgres) struct CarriedRow {
        xid: String,
        stamp: i64,
    }
}

row! {
    /// What a caller's own transaction sees.
    pub(in crate::postgres) struct CallerRow {
        /// The catalogue's stamp.
        stamp: i64,
        /// Whether each of its statements sees what was committed before it.
        reads_committed: bool,
    }
}

/// When an event of the input is due; null if at once.
pub(in crate::postgres) const DUE: &str = "
    CASE WHEN coalesce(due_at, now + delay_us * interval '1 microsecond') IS NOT NULL
         THEN greatest(now, coalesce(due_at, now + delay_us * interval '1 microsecond')) END";

statements! {
    /// Statements about publishing.
    pub(in crate::postgres) struct Publish {
        /// Publishes: writes facts, entries and tags in one statement (inserts only). Ids are drawn here, in the items'
        /// order, unless the caller drew them. Also returns the transaction's id and the catalogue's stamp.
        write: (PublishedRow, CarriedRow) = &"
            WITH moment AS MATERIALIZED (
                SELECT m.now, (floor(extract(epoch FROM m.now) * 1000)::bigint - 1577836800000) << 22 AS tsid
                FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) AS m
            ), input AS MATERIALIZED (
                SELECT coalesce(i.given_id, nextval('{ns}.entry_id')) AS id, m.now, m.tsid, i.*
                FROM moment AS m, unnest($2::bigint[], $3::bigint[], $4::text[], $5::bytea[], $6::text[], $7::text[],
                    $8::text[], $9::timestamptz[], $10::text[], $11::text[], $12::text[], $13::text[], $14::integer[],
                    $15::integer[], $16::smallint[], $17::timestamptz[], $18::bigint[], $19::text[], $20::integer[],
                    $21::smallint[], $22::text[], $23::text[], $24::text[], $25::text[], $26::smallint[], $27::bigint[],
                    $28::smallint[], $29::integer[], $30::timestamptz[], $31::bigint[])
                    AS i(given_id, client_id, event_type, payload, content_type, source, subject, time, external_id,
                         correlation_id, causation_id, attributes, lane, queue_id, place, due_at, delay_us, group_key,
                         max_attempts, exhausted_as, title, description, tags, retry, priority, queue_client, flags,
                         rank, expires_at, expires_us)
            ), facts AS (
                INSERT INTO {ns}.events (id, created_at, client_id, event_type, payload, content_type, source, subject,
                    time, external_id, correlation_id, causation_id, attributes, title, description, tags, retry)
                SELECT tsid | (id & 4194303), now, client_id, event_type, payload, content_type, source, subject,
                       time, external_id, correlation_id, causation_id, attributes, title, description, tags, retry
                FROM input
            ), entries AS (
                INSERT INTO {live} (id, event_id, due_at, client_id, lane, queue_id, max_attempts, place, exhausted_as,
                    group_key, flags, rank, expires_at)
                SELECT id, tsid | (id & 4194303), {due}, queue_client, lane, queue_id, max_attempts, place,
                       exhausted_as, group_key, flags, rank,
                       coalesce(expires_at, now + expires_us * interval '1 microsecond')
                FROM input
            ), tagged AS (
                INSERT INTO {ns}.event_tags (entry_id, rank, queue_id, state, priority, tag, client_id)
                SELECT i.id, CASE WHEN i.place = 1 THEN (extract(epoch FROM {due}) * 1000000)::bigint ELSE i.id END,
                       i.queue_id, least(i.place, 2), i.priority, t.tag, i.queue_client
                FROM input i CROSS JOIN LATERAL unnest(string_to_array(i.tags, ',')) AS t(tag)
                WHERE i.tags IS NOT NULL
            )
            SELECT id, tsid | (id & 4194303) AS event_id, now AS created_at, (SELECT pg_current_xact_id()::text) AS xid,
                   (SELECT stamp FROM {ns}.store) AS stamp
            FROM input".replace("{due}", DUE);
        /// Publishes events without any option, which is the usual case: fewer arrays to unnest.
        write_plain: (PublishedRow, CarriedRow) = "
            WITH moment AS MATERIALIZED (
                SELECT m.now, (floor(extract(epoch FROM m.now) * 1000)::bigint - 1577836800000) << 22 AS tsid
                FROM (SELECT coalesce($1::timestamptz, clock_timestamp()) AS now) AS m
            ), input AS MATERIALIZED (
                SELECT nextval('{ns}.entry_id') AS id, m.now, m.tsid, i.*
                FROM moment AS m,
                    unnest($2::text[], $3::bytea[], $4::integer[], $5::integer[], $6::integer[], $7::smallint[])
                    AS i(event_type, payload, lane, queue_id, max_attempts, exhausted_as)
            ), facts AS (
                INSERT INTO {ns}.events (id, created_at, event_type, payload)
                SELECT tsid | (id & 4194303), now, event_type, payload FROM input
            ), entries AS (
                INSERT INTO {live} (id, event_id, lane, queue_id, max_attempts, place, exhausted_as)
                SELECT id, tsid | (id & 4194303), lane, queue_id, max_attempts, 0, exhausted_as FROM input
            )
            SELECT id, tsid | (id & 4194303) AS event_id, now AS created_at, (SELECT pg_current_xact_id()::text) AS xid,
                   (SELECT stamp FROM {ns}.store) AS stamp
            FROM input";
        /// Counts the live entries of a queue, up to a limit (event_queue_fresh and event_queue_timed of the queue's
        /// lanes, event_queue_parked, event_queue_aside_due).
        count_entries: Only<i64> = "
            SELECT count(*) FROM (
                SELECT FROM {lanes} l CROSS JOIN LATERAL (
                    (SELECT FROM {live} q WHERE q.lane = l.id AND q.place = 0 LIMIT $2)
                    UNION ALL
                    (SELECT FROM {live} q WHERE q.lane = l.id AND q.place = 1 LIMIT $2)
                ) AS claimable
                WHERE l.queue_id = $1
                UNION ALL
                (SELECT FROM {live} q WHERE q.queue_id = $1 AND q.place IN (2, 3) LIMIT $2)
                UNION ALL
                (SELECT FROM {live} q WHERE q.queue_id = $1 AND q.place = 4 LIMIT $2)
                LIMIT $2
            ) AS held";
        /// Whether a fact exists (events' primary key).
        fact_exists: Only<bool> = "SELECT EXISTS (SELECT FROM {ns}.events WHERE id = $1)";
        /// What a caller's own transaction sees (one row). Draws the transaction's id.
        caller: (CallerRow, Only<String>) = "
            SELECT stamp,
                   current_setting('transaction_isolation') = 'read committed' AS reads_committed,
                   pg_current_xact_id()::text AS xid
            FROM {ns}.store";
        /// Whether each statement of a caller's own transaction sees what was committed before it.
        reads_committed: Only<bool> = "SELECT current_setting('transaction_isolation') = 'read committed'";
    }
}
