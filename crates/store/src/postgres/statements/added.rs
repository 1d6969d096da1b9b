//! Targets that were added to facts which had been stored before: rows of the table `deduplication` of a kind of their own, by
//! the fact (its column `scope`) and a hash of the key. They stay as long as the fact; `fingerprint` is when it was made, in
//! microseconds.

use crate::postgres::engine::row::{Moment, row};
use crate::sql::{Only, statements};

/// What the rows have in common.
const OF_KIND: &str = "d.client_id = 0 AND d.kind = 7";
/// When a target was made.
const MADE_AT: &str = "'epoch'::timestamptz + d.fingerprint * interval '1 microsecond'";

row! {
    /// A target that was added, and the position of what was asked for, counted from 1.
    pub(in crate::postgres) struct AddedRow {
        item: i32 = "i.ord::integer",
        entry_id: i64 = "d.entry_id",
        made_at: Moment = "'epoch'::timestamptz + d.fingerprint * interval '1 microsecond'",
    }
}

/// When an entry was made that was added to its fact, given its table's alias; null for any other (deduplication's primary
/// key).
pub(in crate::postgres) fn made_at(entry: &str) -> String {
    format!(
        "(CASE WHEN {entry}.flags & 32 <> 0 THEN
             (SELECT {MADE_AT} FROM {{ns}}.deduplication d
              WHERE {OF_KIND} AND d.scope = {entry}.event_id AND d.entry_id + 0 = {entry}.id LIMIT 1) END)"
    )
}

/// Whether no live or ended row is one that was added to the fact `e` (deduplication's primary key, then those of the tables
/// that refer to facts).
pub(in crate::postgres) fn none_is_left() -> String {
    let is_there = super::ingest::REFERRING
        .map(|(table, _)| {
            let key = if table.ends_with("log") { " AND (r.id, r.generation) > (d.entry_id, 0)" } else { "" };
            format!("EXISTS (SELECT FROM {table} r WHERE r.id = d.entry_id{key} AND e.id = r.event_id OFFSET 0)")
        })
        .join(" OR ");
    format!(
        "NOT EXISTS (SELECT FROM {{ns}}.deduplication d WHERE {OF_KIND} AND d.scope = e.id AND ({is_there}) OFFSET 0)"
    )
}

statements! {
    /// Statements about targets that were added.
    pub(in crate::postgres) struct Added {
        /// The targets of facts under keys (deduplication's primary key).
        find: AddedRow = &format!("
            SELECT {{columns}}
            FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS i(fact, key, ord)
            CROSS JOIN LATERAL (
                SELECT * FROM {{ns}}.deduplication d WHERE {OF_KIND} AND d.scope = i.fact AND d.key = i.key OFFSET 0
            ) AS d");
        /// The targets that were added to facts (deduplication's primary key).
        of_facts: AddedRow = &format!("
            SELECT {{columns}}
            FROM unnest($1::bigint[]) WITH ORDINALITY AS i(fact, ord)
            CROSS JOIN LATERAL (
                SELECT * FROM {{ns}}.deduplication d WHERE {OF_KIND} AND d.scope = i.fact LIMIT $2::bigint
            ) AS d ORDER BY i.ord, d.entry_id");
        /// When entries were added to facts (deduplication's primary key).
        made_at: AddedRow = &format!("
            SELECT {{columns}}
            FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS i(fact, number, ord)
            CROSS JOIN LATERAL (
                SELECT * FROM {{ns}}.deduplication d
                WHERE {OF_KIND} AND d.scope = i.fact AND d.entry_id + 0 = i.number OFFSET 0
            ) AS d");
        /// Locks those facts that targets can be added to, so that they stay: they are kept apart from their entries (events'
        /// primary key). Those who lock a fact to remove it never wait.
        lock_facts: Only<i64> = "
            SELECT e.id FROM unnest($1::bigint[]) AS i(fact)
            CROSS JOIN LATERAL (
                SELECT e.id FROM {ns}.events e WHERE e.id = i.fact AND e.first_number + 0 IS NOT NULL
                OFFSET 0 FOR KEY SHARE
            ) AS e";
        /// Notes targets, unless their keys are taken (deduplication's primary key). Keys come sorted, so that all
        /// transactions lock them in one order. They never expire: they go with their facts.
        put = "
            INSERT INTO {ns}.deduplication (client_id, kind, scope, key, entry_id, event_id, expires_at, fingerprint)
            SELECT 0, 7, i.fact, i.key, i.number, i.fact, '9999-12-31T00:00:00Z'::timestamptz,
                   (extract(epoch FROM $1::timestamptz) * 1000000)::bigint
            FROM unnest($2::bigint[], $3::text[], $4::bigint[]) AS i(fact, key, number)
            ON CONFLICT (client_id, kind, scope, key) DO NOTHING";
        /// Locks those of these facts that nobody adds targets to (events' primary key).
        lock_free: Only<i64> = "
            SELECT e.id FROM {ns}.events e WHERE e.id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED";
    }
}
