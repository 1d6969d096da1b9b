//! Idempotency keys and keys of facts: rows of the table `deduplication` of kinds of their own.

use crate::postgres::engine::row::{Moment, row};
use crate::sql::{Only, statements};

row! {
    /// The first result under an idempotency key, and the item that asks for it, counted from 1.
    pub(in crate::postgres) struct KnownRow {
        item: i32 = "i.ord::integer",
        entry_id: i64 = "d.entry_id",
        event_id: i64 = "d.event_id",
        created_at: Option<Moment> = "e.created_at",
        fingerprint: Option<i64> = "d.fingerprint",
    }
}

row! {
    /// The first fact under a key, and the position of the key that was asked for, counted from 1.
    pub(in crate::postgres) struct KnownFactRow {
        item: i32 = "i.ord::integer",
        event_id: i64 = "d.event_id",
        created_at: Option<Moment> = "e.created_at",
        fingerprint: Option<i64> = "d.fingerprint",
    }
}

statements! {
    /// Statements about requests.
    pub(in crate::postgres) struct Requests {
        /// Idempotency keys that are known and not expired (deduplication's primary key, then events').
        known: KnownRow = "
            SELECT {columns}
            FROM unnest($2::bigint[], $3::text[]) WITH ORDINALITY AS i(client_id, key, ord)
            CROSS JOIN LATERAL (
                SELECT * FROM {ns}.deduplication d
                WHERE d.client_id = i.client_id AND d.kind = {request_kind} AND d.scope = 0 AND d.key = i.key
                AND d.expires_at > {now} OFFSET 0
            ) AS d
            LEFT JOIN LATERAL (SELECT e.created_at FROM {ns}.events e WHERE e.id = d.event_id OFFSET 0) AS e ON true";
        /// Takes idempotency keys that are free or expired (deduplication's primary key). Keys come sorted, so that all
        /// transactions lock them in one order.
        take: Only<String> = "
            INSERT INTO {ns}.deduplication AS d
                (client_id, kind, scope, key, entry_id, event_id, expires_at, fingerprint)
            SELECT i.client_id, {request_kind}, 0, i.key, i.entry_id, i.event_id,
                   {now} + i.window_us * interval '1 microsecond', i.fingerprint
            FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
                AS i(client_id, key, entry_id, event_id, window_us, fingerprint)
            ON CONFLICT (client_id, kind, scope, key) DO UPDATE
                SET entry_id = excluded.entry_id, event_id = excluded.event_id, expires_at = excluded.expires_at,
                    fingerprint = excluded.fingerprint
                WHERE d.expires_at <= {now}
            RETURNING d.key";
        /// Keys of facts that are known and not expired (deduplication's primary key, then events').
        known_facts: KnownFactRow = "
            SELECT {columns}
            FROM unnest($2::bigint[], $3::smallint[], $4::text[]) WITH ORDINALITY AS i(client_id, kind, key, ord)
            CROSS JOIN LATERAL (
                SELECT * FROM {ns}.deduplication d
                WHERE d.client_id = i.client_id AND d.kind = i.kind AND d.scope = 0 AND d.key = i.key
                AND d.expires_at > {now} OFFSET 0
            ) AS d
            LEFT JOIN LATERAL (SELECT e.created_at FROM {ns}.events e WHERE e.id = d.event_id OFFSET 0) AS e ON true";
        /// Takes keys of facts that are free or expired (deduplication's primary key). Keys come sorted, so that all
        /// transactions lock them in one order.
        take_facts = "
            INSERT INTO {ns}.deduplication AS d
                (client_id, kind, scope, key, entry_id, event_id, expires_at, fingerprint)
            SELECT i.client_id, i.kind, 0, i.key, 0, i.event_id, {now} + i.window_us * interval '1 microsecond',
                   i.fingerprint
            FROM unnest($2::bigint[], $3::smallint[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[])
                AS i(client_id, kind, key, event_id, window_us, fingerprint)
            ON CONFLICT (client_id, kind, scope, key) DO UPDATE
                SET event_id = excluded.event_id, expires_at = excluded.expires_at, fingerprint = excluded.fingerprint
                WHERE d.expires_at <= {now}";
    }
}
