//! Facts with any number of targets: written by ingest, removed by retention.

use crate::postgres::engine::row::row;
use crate::postgres::statements::publish::DUE;
use crate::sql::{Columns as _, Only, statements};
use crate::values::fact_keys::TERM;

/// The tables whose rows refer to facts by a number within the fact's range; for a log also its whole key, so that no other
/// index is used (see the module of all statements).
pub(super) const REFERRING: [(&str, &str); 4] = [
    ("{ns}.event_queue", ""),
    ("{ns}.event_log", " AND (r.id, r.generation) > (e.first_number, 0)"),
    ("{ns}.dispatch_queue", ""),
    ("{ns}.dispatch_log", " AND (r.id, r.generation) > (e.first_number, 0)"),
];

row! {
    /// A fact with a range of numbers.
    pub(in crate::postgres) struct RangedFact {
        id: i64 = "e.id",
        first_number: i64 = "e.first_number",
        is_old: bool = "e.created_at < {now} - $2::bigint * interval '1 microsecond'",
        /// Nothing refers to it.
        is_free: bool = "{is_free}",
    }
}

/// Whether no row refers to the fact `e` (primary keys: few rows, since the numbers of a
/// range were drawn together, and one for each target that was added).
fn is_free() -> String {
    let free = REFERRING.map(|(table, key)| {
        format!(
            "NOT EXISTS (SELECT FROM {table} r
                         WHERE r.id >= e.first_number AND r.id <= e.last_number{key} AND e.id = r.event_id OFFSET 0)"
        )
    });
    format!("{} AND {}", free.join(" AND "), super::added::none_is_left())
}

/// The columns of [`RangedFact`].
fn ranged_columns() -> String {
    RangedFact::list().replace("{is_free}", &is_free())
}

const REMOVE_FREE: &str = "
    WITH gone AS (
        DELETE FROM {ns}.events e
        WHERE e.id = ANY ($1::bigint[]) AND e.first_number + 0 IS NOT NULL AND {is_free}
        RETURNING e.id, coalesce(e.client_id, 0) AS client_id, e.terms
    ), found AS MATERIALIZED (
        SELECT t.place
        FROM gone g
        CROSS JOIN LATERAL generate_series(1, coalesce(length(g.terms), 0), {term}) AS n(first)
        CROSS JOIN LATERAL (
            SELECT t.ctid AS place FROM {ns}.fact_terms t
            WHERE t.term = substring(g.terms FROM n.first FOR {term}) AND t.client_id = g.client_id AND g.id = t.event_id
            OFFSET 0
        ) AS t
    ), keys AS MATERIALIZED (
        SELECT k.place FROM gone g CROSS JOIN LATERAL (
            SELECT d.ctid AS place FROM {ns}.deduplication d WHERE d.client_id = 0 AND d.kind = 7 AND d.scope = g.id
            OFFSET 0
        ) AS k
    ), added AS (
        DELETE FROM {ns}.deduplication d USING keys k WHERE d.ctid = k.place
    ), terms AS (
        DELETE FROM {ns}.fact_terms t USING found f WHERE t.ctid = f.place
    )
    SELECT count(*) FROM gone";

statements! {
    /// Statements about facts with any number of targets.
    pub(in crate::postgres) struct Ingest {
        /// Writes facts with their ranges of numbers (inserts only).
        write_facts = "
            INSERT INTO {ns}.events (id, created_at, client_id, event_type, payload, content_type, source, subject, time,
                external_id, correlation_id, causation_id, attributes, title, description, tags, retry, first_number,
                last_number, targets, terms)
            SELECT i.id, $1::timestamptz, i.client_id, i.event_type, i.payload, i.content_type, i.source, i.subject,
                   i.time, i.external_id, i.correlation_id, i.causation_id, i.attributes, i.title, i.description, i.tags,
                   i.retry, i.first_number, i.last_number, i.targets, i.terms
            FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::text[],
                $9::timestamptz[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[],
                $16::text[], $17::text[], $18::bigint[], $19::bigint[], $20::integer[], $21::bytea[])
                AS i(id, client_id, event_type, payload, content_type, source, subject, time, external_id,
                     correlation_id, causation_id, attributes, title, description, tags, retry, first_number,
                     last_number, targets, terms)";
        /// Writes terms of facts (inserts only).
        write_terms = "
            INSERT INTO {ns}.fact_terms (term, client_id, event_id)
            SELECT i.term, i.client_id, i.event_id
            FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) AS i(term, client_id, event_id)";
        /// Writes the entries of facts, and their tags (inserts only).
        write_targets = &"
            WITH input AS MATERIALIZED (
                SELECT $1::timestamptz AS now, i.*
                FROM unnest($2::bigint[], $3::bigint[], $4::timestamptz[], $5::bigint[], $6::bigint[], $7::integer[],
                    $8::integer[], $9::integer[], $10::smallint[], $11::smallint[], $12::text[], $13::smallint[],
                    $14::text[], $15::integer[], $16::timestamptz[], $17::bigint[], $18::smallint[])
                    AS i(id, event_id, due_at, delay_us, client_id, lane, queue_id, max_attempts, place, exhausted_as,
                         group_key, priority, tags, rank, expires_at, expires_us, flags)
            ), entries AS (
                INSERT INTO {live} (id, event_id, due_at, client_id, lane, queue_id, max_attempts, place, exhausted_as,
                    group_key, flags, rank, expires_at)
                SELECT id, event_id, {due}, client_id, lane, queue_id, max_attempts, place, exhausted_as, group_key,
                       flags, rank, coalesce(expires_at, now + expires_us * interval '1 microsecond')
                FROM input
            )
            INSERT INTO {ns}.event_tags (entry_id, rank, queue_id, state, priority, tag, client_id)
            SELECT i.id, CASE WHEN i.place = 1 THEN (extract(epoch FROM {due}) * 1000000)::bigint ELSE i.id END,
                   i.queue_id, least(i.place, 2), i.priority, t.tag, i.client_id
            FROM input i CROSS JOIN LATERAL unnest(string_to_array(i.tags, ',')) AS t(tag)
            WHERE i.tags IS NOT NULL".replace("{due}", DUE);
        /// Facts with a range, by their first number (events_first_number, from where the last batch stopped).
        ranged_facts: RangedFact = &format!("
            SELECT {} FROM {{ns}}.events e
            WHERE e.first_number > $3::bigint ORDER BY e.first_number LIMIT $4::bigint", ranged_columns());
        /// Removes facts that nothing refers to, with their terms and the keys of what was added to
        /// them (events', fact_terms' and deduplication's primary keys). Returns how
        /// many facts.
        remove_free: Only<i64> = &REMOVE_FREE.replace("{is_free}", &is_free()).replace("{term}", &TERM.to_string());
    }
}
