//! The statements of projections, with the index that serves each. `{ns}` is the namespace; `{now}` is the moment: a
//! parameter that only tests set, else the statement's own time.

use super::sql::FACT;

/// Statements with the namespace filled in.
#[derive(Debug)]
pub(super) struct Sql {
    pub(super) register: String,
    pub(super) take: String,
    pub(super) keep: String,
    pub(super) leave: String,
    pub(super) read: String,
    pub(super) facts: String,
    pub(super) facts_between: String,
    pub(super) apply: String,
    pub(super) advance: String,
    pub(super) fail: String,
    pub(super) documents: String,
    pub(super) list_documents: String,
    pub(super) activate: String,
    pub(super) remove: String,
    pub(super) sweep_documents: String,
    pub(super) sweep_versions: String,
    pub(super) views: String,
    pub(super) view: String,
    pub(super) active: String,
    pub(super) lag: String,
    pub(super) holder: String,
    pub(super) logged_at: String,
}

impl Sql {
    pub(super) fn new(namespace: &str) -> Self {
        let fill = |text: &str| {
            text.replace("{bound}", BOUND)
                .replace("{now}", "coalesce($1::timestamptz, statement_timestamp())")
                .replace("{fact}", FACT)
                .replace("{ns}", namespace)
        };
        Self {
            register: fill(REGISTER),
            take: fill(TAKE),
            keep: fill(KEEP),
            leave: fill(LEAVE),
            read: fill(READ),
            facts: fill(FACTS),
            facts_between: fill(FACTS_BETWEEN),
            apply: fill(&format!("WITH moved AS ({ADVANCE} RETURNING 1){APPLY}")),
            advance: fill(ADVANCE),
            fail: fill(FAIL),
            documents: fill(DOCUMENTS),
            list_documents: fill(LIST_DOCUMENTS),
            activate: fill(ACTIVATE),
            remove: fill(REMOVE),
            sweep_documents: fill(SWEEP_DOCUMENTS),
            sweep_versions: fill(SWEEP_VERSIONS),
            views: fill(&format!("{VIEW} ORDER BY name, version")),
            view: fill(&format!("{VIEW} WHERE name = $1 AND version = $2")),
            active: fill(&format!("{VIEW} WHERE name = $1 AND state = 1")),
            lag: fill(LAG),
            holder: fill(HOLDER),
            logged_at: fill(LOGGED_AT),
        }
    }
}

/// Every transaction below this is over, and what it committed is visible to this statement: no earlier row can come any
/// more. It must be asked for in the statement that reads, since both go by its snapshot.
pub(super) const BOUND: &str = "(SELECT CASE WHEN m.log_xid_offset = 0 THEN pg_snapshot_xmin(pg_current_snapshot()) \
    ELSE (pg_snapshot_xmin(pg_current_snapshot())::text::bigint + m.log_xid_offset)::text::xid8 END FROM {ns}.meta m)";

/// A new version, unless one at or above it is active (projections' primary key). The first of a name is active at once;
/// the caller holds the name's lock.
const REGISTER: &str = "
INSERT INTO {ns}.projections (name, version, state, created_at, updated_at)
SELECT $2, $3, CASE WHEN EXISTS (SELECT FROM {ns}.projections p WHERE p.name = $2 AND p.state < 2) THEN 0 ELSE 1 END,
       {now}, {now}
WHERE NOT EXISTS (SELECT FROM {ns}.projections p WHERE p.name = $2 AND p.state = 1 AND p.version >= $3)
ON CONFLICT (name, version) DO NOTHING";

/// Projections' primary key. One who asks again keeps what he has.
const TAKE: &str = "
UPDATE {ns}.projections p
SET reader = $4, reader_until = {now} + $5::bigint * interval '1 microsecond', updated_at = {now},
    token = greatest(token + 1, (SELECT m.token_base FROM {ns}.meta m))
WHERE name = $2 AND version = $3 AND state < 2 AND (reader IS NULL OR reader = $4 OR reader_until <= {now})
RETURNING token, xid, id, state";

/// Projections' primary key.
const KEEP: &str = "
UPDATE {ns}.projections SET reader_until = {now} + $5::bigint * interval '1 microsecond'
WHERE name = $2 AND version = $3 AND token = $4 AND state < 2 AND reader IS NOT NULL";

/// Projections' primary key.
const LEAVE: &str = "
UPDATE {ns}.projections SET reader = NULL, reader_until = NULL, updated_at = {now}
WHERE name = $2 AND version = $3 AND token = $4";

/// The next rows of the log (event_log_commits, merged over the partitions).
const READ: &str = "
SELECT g.xid, g.id, g.generation, g.event_id, g.status, g.finished_at
FROM {ns}.event_log g
WHERE (g.xid, g.id) > ($1, $2) AND g.xid < {bound}
ORDER BY g.xid, g.id LIMIT $3";

/// Facts of wanted types (events' primary key).
const FACTS: &str = "
SELECT {fact}, e.id FROM {ns}.events e
WHERE e.id = ANY ($1::bigint[]) AND ($2::text[] IS NULL OR e.event_type = ANY ($2))";

/// The same for neighbours: one walk along events' primary key.
const FACTS_BETWEEN: &str = "
SELECT {fact}, e.id FROM {ns}.events e
WHERE e.id >= $1 AND e.id <= $3 AND ($2::text[] IS NULL OR e.event_type = ANY ($2))
ORDER BY e.id LIMIT $4";

/// Moves a position (projections' primary key; no index knows the columns that change).
const ADVANCE: &str = "
UPDATE {ns}.projections
SET xid = $7, id = $8, events = events + $9, reader_until = {now} + $10::bigint * interval '1 microsecond',
    failed_entry = NULL, failures = 0, error = NULL, retry_at = NULL, updated_at = {now}
WHERE name = $2 AND version = $3 AND token = $4 AND xid = $5 AND id = $6 AND state < 2";

/// Documents that are new, changed and gone, if and when the position moved (projection_documents' primary key). Those
/// that were there are updated outright: finding out by a conflict locks each row first. Each is looked up by its key, since
/// a plain join may as well walk over all documents.
const APPLY: &str = ", added AS (
    INSERT INTO {ns}.projection_documents AS d (projection, version, key, document)
    SELECT $2, $3, i.key, i.document FROM moved, unnest($11::text[], $12::bytea[]) AS i(key, document)
    ON CONFLICT (projection, version, key) DO UPDATE SET document = excluded.document
), present AS MATERIALIZED (
    SELECT f.place, i.document FROM moved, unnest($13::text[], $14::bytea[]) AS i(key, document)
    CROSS JOIN LATERAL (
        SELECT d.ctid AS place FROM {ns}.projection_documents d
        WHERE d.projection = $2 AND d.version = $3 AND d.key = i.key LIMIT 1
    ) AS f
), changed AS (
    UPDATE {ns}.projection_documents d SET document = p.document FROM present p WHERE d.ctid = p.place
), leaving AS MATERIALIZED (
    SELECT f.place FROM moved, unnest($15::text[]) AS i(key)
    CROSS JOIN LATERAL (
        SELECT d.ctid AS place FROM {ns}.projection_documents d
        WHERE d.projection = $2 AND d.version = $3 AND d.key = i.key LIMIT 1
    ) AS f
), removed AS (
    DELETE FROM {ns}.projection_documents d USING leaving l WHERE d.ctid = l.place
)
SELECT count(*) FROM moved";

/// Projections' primary key.
const FAIL: &str = "
UPDATE {ns}.projections
SET failures = CASE WHEN failed_entry IS NOT DISTINCT FROM $5 THEN failures + 1 ELSE 1 END, failed_entry = $5, error = $6,
    retry_at = {now} + $7::bigint * interval '1 microsecond',
    reader_until = {now} + $8::bigint * interval '1 microsecond', updated_at = {now}
WHERE name = $2 AND version = $3 AND token = $4 AND state < 2";

/// Projection_documents' primary key, for each.
const DOCUMENTS: &str = "
SELECT i.key, f.document FROM unnest($3::text[]) AS i(key)
CROSS JOIN LATERAL (
    SELECT d.document FROM {ns}.projection_documents d
    WHERE d.projection = $1 AND d.version = $2 AND d.key = i.key LIMIT 1
) AS f";

/// Projection_documents' primary key, from the prefix or the last key on.
const LIST_DOCUMENTS: &str = "
SELECT key, document FROM {ns}.projection_documents
WHERE projection = $1 AND version = $2 AND key >= $6 AND starts_with(key, $3) AND ($4::text IS NULL OR key > $4)
ORDER BY key LIMIT $5";

/// The version becomes active, those below are retired and their readers fenced (projections' primary key). Other
/// versions change only if this one does.
const ACTIVATE: &str = "
WITH switched AS (
    UPDATE {ns}.projections
    SET state = 1, failed_entry = NULL, failures = 0, error = NULL, retry_at = NULL, updated_at = {now}
    WHERE name = $2 AND version = $3 AND token = $4 AND state < 2
    RETURNING 1
), retired AS (
    UPDATE {ns}.projections p
    SET state = 2, token = token + 1, reader = NULL, reader_until = NULL, failed_entry = NULL, failures = 0, error = NULL,
        retry_at = NULL, updated_at = {now}
    FROM switched WHERE p.name = $2 AND p.version < $3 AND p.state < 2
)
SELECT count(*) FROM switched";

/// All versions of a name; their readers are fenced (projections' primary key).
const REMOVE: &str = "
UPDATE {ns}.projections
SET state = 2, token = token + 1, reader = NULL, reader_until = NULL, failed_entry = NULL, failures = 0, error = NULL,
    retry_at = NULL, updated_at = {now}
WHERE name = $2";

/// Projection_documents' primary key, per retired version.
const SWEEP_DOCUMENTS: &str = "
WITH gone AS MATERIALIZED (
    SELECT f.place FROM {ns}.projections p
    CROSS JOIN LATERAL (
        SELECT d.ctid AS place FROM {ns}.projection_documents d
        WHERE d.projection = p.name AND d.version = p.version LIMIT $2
    ) AS f
    WHERE p.name = $1 AND p.state = 2 LIMIT $2
)
DELETE FROM {ns}.projection_documents d USING gone g WHERE d.ctid = g.place";

/// Projections' primary key.
const SWEEP_VERSIONS: &str = "
DELETE FROM {ns}.projections p WHERE p.name = $1 AND p.state = 2
AND (SELECT true FROM {ns}.projection_documents d WHERE d.projection = p.name AND d.version = p.version LIMIT 1) IS NULL";

const VIEW: &str = "
SELECT name, version, state, xid, id, events, reader, reader_until, failed_entry, failures, error, retry_at, updated_at
FROM {ns}.projections";

/// Counts what was not read, also what cannot be read yet (event_log_commits).
const LAG: &str = "
SELECT (SELECT count(*) FROM (SELECT FROM {ns}.event_log g WHERE (g.xid, g.id) > (p.xid, p.id) LIMIT $4) AS unread),
       first.finished_at, {now}, first.xid >= {bound}
FROM {ns}.projections p
LEFT JOIN LATERAL (
    SELECT g.xid, g.finished_at FROM {ns}.event_log g WHERE (g.xid, g.id) > (p.xid, p.id) ORDER BY g.xid, g.id LIMIT 1
) AS first ON true
WHERE p.name = $2 AND p.version = $3";

/// The oldest transaction that may still write.
const HOLDER: &str = "
SELECT pid, name, state, since FROM (
    SELECT pid, coalesce(application_name, '') AS name, coalesce(state, '') AS state, xact_start AS since,
           age(backend_xid) AS age
    FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
    UNION ALL
    SELECT NULL, gid, 'prepared', prepared, age(transaction) FROM pg_prepared_xacts
) AS open ORDER BY age DESC LIMIT 1";

/// Both primary keys.
const LOGGED_AT: &str = "
SELECT g.xid, g.id FROM {ns}.event_log g
WHERE g.id = $1 AND NOT EXISTS (SELECT FROM {ns}.event_queue q WHERE q.id = $1)
ORDER BY g.generation DESC LIMIT 1";
