//! Deduplication keys: the table `deduplication`. Rows are looked up one by one (LATERAL, OFFSET 0): a plan that was
//! made while a table was empty must not walk over all of it later.

use tidegate_core::Timestamp;

use crate::postgres::engine::row::{Moment, row};
use crate::sql::{Only, statements};

row! {
    /// What a known key refers to.
    pub(in crate::postgres) struct KnownKey {
        /// The position of the item that asked, from 1 on.
        ord: i32 = "i.ord::integer",
        entry_id: i64 = "d.entry_id",
        event_id: i64 = "d.event_id",
        created_at: Option<Moment> = "e.created_at",
        /// Whether the item has the contents of the key's event.
        same: bool = "e.id IS NULL OR (e.event_type = i.event_type AND e.payload = i.payload)",
        /// Whether the entry is live, under no lease, not expired, and not kept.
        waiting: bool = "coalesce(q.waiting, false)",
        group_key: Option<String> = "q.group_key",
    }
}

row! {
    /// The numbers of an entry that is not written yet, and the moment they were drawn at.
    #[derive(Clone, Copy)]
    pub(in crate::postgres) struct Drawn {
        id: i64 = "d.id",
        event_id: i64 = "(floor(extract(epoch FROM m.now) * 1000)::bigint - 1577836800000) << 22 | (d.id & 4194303)",
        now: Timestamp = "m.now",
    }
}

row! {
    /// A waiting entry that got another fact.
    pub(in crate::postgres) struct ReplacedRow {
        id: i64 = "i.id",
        new_id: i64 = "i.new_id",
        created_at: Moment = "coalesce(i.created_at, $1::timestamptz)",
    }
}

statements! {
    /// Statements about deduplication keys.
    pub(in crate::postgres) struct Deduplication {
        /// Draws numbers of entries, with the ids of their events and the moment that these contain.
        draw_ids: Drawn = "
            WITH moment AS MATERIALIZED (
                SELECT coalesce($1::timestamptz, clock_timestamp()) AS now
            ), drawn AS MATERIALIZED (
                SELECT nextval('{ns}.entry_id') AS id FROM generate_series(1, $2::integer)
            )
            SELECT {columns} FROM moment m CROSS JOIN drawn d";
        /// Deduplication keys that are known and not expired, with their entry and fact (deduplication's primary key,
        /// then events' and event_queue's).
        known: KnownKey = "
            SELECT {columns}
            FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bytea[]) WITH ORDINALITY
                AS i(client_id, scope, key, event_type, payload, ord)
            CROSS JOIN LATERAL (
                SELECT d.entry_id, d.event_id, d.expires_at FROM {ns}.deduplication d
                WHERE d.client_id = i.client_id AND d.kind = {key_kind} AND d.scope = i.scope AND d.key = i.key OFFSET 0
            ) AS d
            LEFT JOIN LATERAL (
                SELECT e.id, e.created_at, e.event_type, e.payload FROM {ns}.events e WHERE e.id = d.event_id OFFSET 0
            ) AS e ON true
            LEFT JOIN LATERAL (
                SELECT q.lease_until IS NULL AND coalesce(q.flags, 0) & 8 = 0
                           AND (q.expires_at IS NULL OR q.expires_at > {now}) AS waiting, q.group_key
                FROM {live} q WHERE q.id = d.entry_id OFFSET 0
            ) AS q ON true
            WHERE d.expires_at > {now}";
        /// Takes keys that are free or expired, or that still name the entry that was seen ($8, by the position of the
        /// new entry in $5): the new entry takes the key over or, if it is the same entry, its fact is replaced
        /// (deduplication's primary key). Keys come sorted. Returns the keys that were taken.
        take = "
            INSERT INTO {ns}.deduplication AS d (client_id, kind, scope, key, entry_id, event_id, expires_at)
            SELECT i.client_id, {key_kind}, i.scope, i.key, i.entry_id, i.event_id,
                   {now} + i.window_us * interval '1 microsecond'
            FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[])
                AS i(client_id, scope, key, entry_id, event_id, window_us)
            ON CONFLICT (client_id, kind, scope, key) DO UPDATE
                SET entry_id = excluded.entry_id, event_id = excluded.event_id,
                    expires_at = CASE WHEN d.entry_id = excluded.entry_id THEN d.expires_at ELSE excluded.expires_at END
                WHERE d.expires_at <= {now}
                   OR d.entry_id = ($8::bigint[])[array_position($5::bigint[], excluded.entry_id)]
            RETURNING d.key";
        /// Locks waiting entries that no other transaction is taking (event_queue's primary key). Their contents are
        /// read by the next statement, since this one may see rows as they were before it got its locks.
        lock_waiting: Only<i64> = "
            SELECT l.id FROM unnest($2::bigint[]) AS i(id)
            CROSS JOIN LATERAL (
                SELECT q.id FROM {live} q
                WHERE q.id = i.id AND q.lease_until IS NULL AND coalesce(q.flags, 0) & 8 = 0
                  AND (q.expires_at IS NULL OR q.expires_at > {now})
                OFFSET 0 FOR UPDATE SKIP LOCKED
            ) AS l";
        /// Replaces the facts of waiting entries, which are locked (primary keys). Handlers' answers about the old
        /// facts are deleted. An entry keeps its type, since its lane depends on it; one whose fact is missing gets one
        /// again. Its expiry is the new event's. A fact with a range of numbers stays: other entries may refer to it.
        replace: ReplacedRow = "
            WITH input AS MATERIALIZED (
                SELECT i.*, q.row_at, q.old_id, o.created_at, o.event_type AS old_type, o.tags AS old_tags,
                       coalesce(o.client_id, q.client_id) AS client_id
                FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::text[],
                    $9::timestamptz[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[],
                    $16::text[], $17::text[], $18::timestamptz[], $19::bigint[])
                    AS i(id, new_id, event_type, payload, content_type, source, subject, time, external_id,
                         correlation_id, causation_id, attributes, title, description, tags, retry, expires_at,
                         expires_us)
                CROSS JOIN LATERAL (
                    SELECT q.ctid AS row_at, q.event_id AS old_id, q.client_id FROM {live} q WHERE q.id = i.id OFFSET 0
                ) AS q
                LEFT JOIN LATERAL (
                    SELECT e.created_at, e.event_type, e.tags, e.client_id
                    FROM {ns}.events e WHERE e.id = q.old_id OFFSET 0
                ) AS o ON true
            ), old AS (
                DELETE FROM {ns}.events e
                WHERE e.id = ANY (ARRAY(SELECT i.old_id FROM input i)) AND e.first_number IS NULL
            ), fact AS (
                INSERT INTO {ns}.events (id, created_at, client_id, event_type, payload, content_type, source, subject,
                    time, external_id, correlation_id, causation_id, attributes, title, description, tags, retry)
                SELECT i.new_id, coalesce(i.created_at, $1::timestamptz), i.client_id,
                       coalesce(i.old_type, i.event_type), i.payload, i.content_type, i.source, i.subject, i.time,
                       i.external_id, i.correlation_id, i.causation_id, i.attributes, i.title, i.description, i.tags,
                       i.retry
                FROM input i
            ), entry AS (
                UPDATE {live} q
                SET event_id = i.new_id,
                    expires_at = coalesce(i.expires_at, $1::timestamptz + i.expires_us * interval '1 microsecond'),
                    flags = CASE WHEN i.tags IS NOT NULL THEN coalesce(q.flags, 0::smallint) | 1::smallint
                            ELSE nullif(q.flags & 6::smallint, 0) END
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
            SELECT {columns} FROM input i";
        /// Deletes expired keys, 1,000 at a time (deduplication_expiry).
        expire = "
            DELETE FROM {ns}.deduplication d USING (
                SELECT ctid AS place FROM {ns}.deduplication
                WHERE expires_at <= {now} ORDER BY expires_at LIMIT 1000
                FOR UPDATE SKIP LOCKED
            ) AS old
            WHERE d.ctid = old.place";
    }
}
