//! Projections and how they read the log: the tables `projections`, which is small, and `projection_documents`.

use std::error::Error as StdError;

use bytes::{BufMut, Bytes, BytesMut};
use tidegate_core::EntryId;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::error::{Error, Result};
use crate::postgres::engine::row::{Moment, count, row};
use crate::postgres::statements::facts::FactRow;
use crate::sql::{Only, statements};
use crate::values::{
    Blocker, Document, Position, ProjectionFailure, ProjectionId, ProjectionState, ProjectionView, Reader,
};

/// A transaction id of 64 bits (`xid8`).
#[derive(Debug, Clone, Copy)]
pub(in crate::postgres) struct Xid(pub(in crate::postgres) u64);

impl<'a> FromSql<'a> for Xid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self(u64::from_be_bytes(raw.try_into()?)))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::XID8
    }
}

impl ToSql for Xid {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.put_u64(self.0);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::XID8
    }

    to_sql_checked!();
}

row! {
    /// A version of a projection.
    pub(in crate::postgres) struct ProjectionRow {
        name: String,
        version: i32,
        state: i16,
        xid: Xid,
        id: i64,
        events: i64,
        reader: Option<String>,
        reader_until: Option<Moment>,
        failed_entry: Option<i64>,
        failures: i32,
        error: Option<String>,
        retry_at: Option<Moment>,
        updated_at: Moment,
    }
}

impl TryFrom<ProjectionRow> for ProjectionView {
    type Error = Error;

    fn try_from(row: ProjectionRow) -> Result<Self> {
        let failure = match row.error {
            None => None,
            Some(error) => Some(ProjectionFailure {
                entry: row.failed_entry.map(EntryId::new).transpose()?,
                failures: count(row.failures),
                error,
                retry_at: row.retry_at.map(Into::into).unwrap_or_default(),
            }),
        };
        Ok(Self {
            id: ProjectionId { name: row.name, version: row.version },
            state: ProjectionState::from_code(row.state)?,
            position: Position { commit: row.xid.0, id: row.id },
            events: row.events.unsigned_abs(),
            reader: row.reader.zip(row.reader_until.map(Into::into)),
            failure,
            updated_at: row.updated_at.into(),
        })
    }
}

row! {
    /// A reader's lease that was taken.
    pub(in crate::postgres) struct ReaderRow {
        token: i64,
        xid: Xid,
        id: i64,
        state: i16,
    }
}

impl TryFrom<ReaderRow> for Reader {
    type Error = Error;

    fn try_from(row: ReaderRow) -> Result<Self> {
        let position = Position { commit: row.xid.0, id: row.id };
        Ok(Self { token: row.token, position, state: ProjectionState::from_code(row.state)? })
    }
}

row! {
    /// A row of the log, without its fact.
    pub(in crate::postgres) struct LoggedRow {
        xid: Xid = "g.xid",
        id: i64 = "g.id",
        generation: i32 = "g.generation",
        event_id: i64 = "g.event_id",
        status: i16 = "g.status",
        finished_at: Moment = "g.finished_at",
        flags: Option<i16> = "g.flags",
    }
}

row! {
    /// The position of a log row.
    pub(in crate::postgres) struct PositionRow {
        xid: Xid = "g.xid",
        id: i64 = "g.id",
    }
}

impl From<PositionRow> for Position {
    fn from(row: PositionRow) -> Self {
        Self { commit: row.xid.0, id: row.id }
    }
}

row! {
    /// The id of a fact.
    pub(in crate::postgres) struct EventId {
        id: i64 = "e.id",
    }
}

row! {
    /// A document.
    pub(in crate::postgres) struct DocumentRow {
        key: String,
        document: Vec<u8>,
    }
}

impl From<DocumentRow> for Document {
    fn from(row: DocumentRow) -> Self {
        Self { key: row.key, document: Bytes::from(row.document) }
    }
}

row! {
    /// How far a version is behind the log.
    pub(in crate::postgres) struct LagRow {
        unread: i64,
        /// When the first unread row was written.
        oldest: Option<Moment>,
        now: Moment,
        /// Whether an open transaction keeps the first unread row from being read.
        is_held: Option<bool>,
    }
}

row! {
    /// An open transaction.
    pub(in crate::postgres) struct HolderRow {
        pid: Option<i32>,
        name: String,
        state: String,
        since: Option<Moment>,
    }
}

impl From<HolderRow> for Blocker {
    fn from(row: HolderRow) -> Self {
        Self { pid: row.pid, name: row.name, state: row.state, since: row.since.map(Into::into) }
    }
}

/// Every transaction below this id is over, and what it committed is visible to this statement, so no earlier row can
/// come any more. It must be part of the statement that reads, since both depend on its snapshot.
pub(in crate::postgres) const BOUND: &str = "
    (SELECT CASE WHEN m.log_xid_offset = 0 THEN pg_snapshot_xmin(pg_current_snapshot())
            ELSE (pg_snapshot_xmin(pg_current_snapshot())::text::bigint + m.log_xid_offset)::text::xid8 END
     FROM {ns}.store m)";

/// Moves a position and extends the lease.
const ADVANCE: &str = "
    UPDATE {ns}.projections
    SET xid = $7, id = $8, events = events + $9, reader_until = {now} + $10::bigint * interval '1 microsecond',
        failed_entry = NULL, failures = 0, error = NULL, retry_at = NULL, updated_at = {now}
    WHERE name = $2 AND version = $3 AND token = $4 AND xid = $5 AND id = $6 AND state < 2";

/// Inserts, updates and deletes documents, only if the position moved. Documents known to exist are updated directly:
/// an upsert would lock each row first. Each is looked up by its key, since a plain join might walk over all documents.
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

statements! {
    /// Statements about projections.
    pub(in crate::postgres) struct Projections {
        /// All versions of all projections (the table, whole).
        versions: ProjectionRow = "SELECT {columns} FROM {ns}.projections ORDER BY name, version";
        /// One version (primary key).
        version: ProjectionRow = "SELECT {columns} FROM {ns}.projections WHERE name = $1 AND version = $2";
        /// The active version (primary key, all versions of a name).
        active: ProjectionRow = "SELECT {columns} FROM {ns}.projections WHERE name = $1 AND state = 1";
        /// Locks the name $1 until the transaction ends.
        lock_name = "SELECT count(pg_advisory_xact_lock(hashtextextended($1, 4712)))";
        /// Adds a version, unless one at or above it is active (primary key). The first version of a name is active at
        /// once. The caller holds the name's lock.
        register = "
            INSERT INTO {ns}.projections (name, version, state, created_at, updated_at)
            SELECT $2, $3,
                   CASE WHEN EXISTS (SELECT FROM {ns}.projections p WHERE p.name = $2 AND p.state < 2)
                        THEN 0 ELSE 1 END,
                   {now}, {now}
            WHERE NOT EXISTS (SELECT FROM {ns}.projections p WHERE p.name = $2 AND p.state = 1 AND p.version >= $3)
            ON CONFLICT (name, version) DO NOTHING";
        /// Takes a reader's lease that is free or expired; its own holder gets it again, under a new token (primary
        /// key).
        take: ReaderRow = "
            UPDATE {ns}.projections p
            SET reader = $4, reader_until = {now} + $5::bigint * interval '1 microsecond', updated_at = {now},
                token = greatest(token + 1, (SELECT m.token_base FROM {ns}.store m))
            WHERE name = $2 AND version = $3 AND state < 2 AND (reader IS NULL OR reader = $4 OR reader_until <= {now})
            RETURNING {columns}";
        /// Extends a reader's lease (primary key).
        keep = "
            UPDATE {ns}.projections SET reader_until = {now} + $5::bigint * interval '1 microsecond'
            WHERE name = $2 AND version = $3 AND token = $4 AND state < 2 AND reader IS NOT NULL";
        /// Gives a reader's lease up (primary key).
        leave = "
            UPDATE {ns}.projections SET reader = NULL, reader_until = NULL, updated_at = {now}
            WHERE name = $2 AND version = $3 AND token = $4";
        /// The next rows of the log (event_log_commits, merged over the partitions).
        read_log: LoggedRow = &"
            SELECT {columns} FROM {log} g
            WHERE (g.xid, g.id) > ($1, $2) AND g.xid < {bound}
            ORDER BY g.xid, g.id LIMIT $3".replace("{bound}", BOUND);
        /// Facts of wanted types (events' primary key).
        facts: (FactRow, EventId) = "
            SELECT {columns} FROM {ns}.events e
            WHERE e.id = ANY ($1::bigint[]) AND ($2::text[] IS NULL OR e.event_type = ANY ($2))";
        /// Facts of wanted types for neighbouring ids: one walk along events' primary key.
        facts_between: (FactRow, EventId) = "
            SELECT {columns} FROM {ns}.events e
            WHERE e.id >= $1 AND e.id <= $3 AND ($2::text[] IS NULL OR e.event_type = ANY ($2))
            ORDER BY e.id LIMIT $4";
        /// Moves a position (primary key; no changed column is indexed).
        advance = ADVANCE;
        /// The same, with changes of documents (their primary key). Returns whether the position moved, as 1 or 0.
        apply: Only<i64> = &format!("WITH moved AS ({ADVANCE} RETURNING 1){APPLY}");
        /// Records a failure and extends the lease (primary key).
        fail = "
            UPDATE {ns}.projections
            SET failures = CASE WHEN failed_entry IS NOT DISTINCT FROM $5 THEN failures + 1 ELSE 1 END,
                failed_entry = $5, error = $6, retry_at = {now} + $7::bigint * interval '1 microsecond',
                reader_until = {now} + $8::bigint * interval '1 microsecond', updated_at = {now}
            WHERE name = $2 AND version = $3 AND token = $4 AND state < 2";
        /// Documents by key (their primary key, for each).
        documents: DocumentRow = "
            SELECT i.key, f.document FROM unnest($3::text[]) AS i(key)
            CROSS JOIN LATERAL (
                SELECT d.document FROM {ns}.projection_documents d
                WHERE d.projection = $1 AND d.version = $2 AND d.key = i.key LIMIT 1
            ) AS f";
        /// A page of documents (their primary key, from the prefix or the last key on).
        list_documents: DocumentRow = "
            SELECT {columns} FROM {ns}.projection_documents
            WHERE projection = $1 AND version = $2 AND key >= $6 AND starts_with(key, $3)
            AND ($4::text IS NULL OR key > $4)
            ORDER BY key LIMIT $5";
        /// Makes a version active, retires lower ones and fences their readers (primary key). Other versions change
        /// only if this one does. Returns whether it does, as 1 or 0.
        activate: Only<i64> = "
            WITH switched AS (
                UPDATE {ns}.projections
                SET state = 1, failed_entry = NULL, failures = 0, error = NULL, retry_at = NULL, updated_at = {now}
                WHERE name = $2 AND version = $3 AND token = $4 AND state < 2
                RETURNING 1
            ), retired AS (
                UPDATE {ns}.projections p
                SET state = 2, token = token + 1, reader = NULL, reader_until = NULL, failed_entry = NULL, failures = 0,
                    error = NULL, retry_at = NULL, updated_at = {now}
                FROM switched WHERE p.name = $2 AND p.version < $3 AND p.state < 2
            )
            SELECT count(*) FROM switched";
        /// Retires all versions of a name and fences their readers (primary key).
        remove = "
            UPDATE {ns}.projections
            SET state = 2, token = token + 1, reader = NULL, reader_until = NULL, failed_entry = NULL, failures = 0,
                error = NULL, retry_at = NULL, updated_at = {now}
            WHERE name = $2";
        /// Deletes some documents of retired versions (their primary key, per version).
        sweep_documents = "
            WITH gone AS MATERIALIZED (
                SELECT f.place FROM {ns}.projections p
                CROSS JOIN LATERAL (
                    SELECT d.ctid AS place FROM {ns}.projection_documents d
                    WHERE d.projection = p.name AND d.version = p.version LIMIT $2
                ) AS f
                WHERE p.name = $1 AND p.state = 2 LIMIT $2
            )
            DELETE FROM {ns}.projection_documents d USING gone g WHERE d.ctid = g.place";
        /// Deletes retired versions that have no documents left (primary keys).
        sweep_versions = "
            DELETE FROM {ns}.projections p WHERE p.name = $1 AND p.state = 2
            AND (SELECT true FROM {ns}.projection_documents d
                 WHERE d.projection = p.name AND d.version = p.version LIMIT 1) IS NULL";
        /// Counts unread log rows up to a bound, including those that cannot be read yet because an older transaction
        /// is open (event_log_commits).
        lag: LagRow = &"
            SELECT (SELECT count(*) FROM (
                        SELECT FROM {log} g WHERE (g.xid, g.id) > (p.xid, p.id) LIMIT $4
                    ) AS unread) AS unread,
                   first.finished_at AS oldest, {now} AS now, first.xid >= {bound} AS is_held
            FROM {ns}.projections p
            LEFT JOIN LATERAL (
                SELECT g.xid, g.finished_at FROM {log} g WHERE (g.xid, g.id) > (p.xid, p.id)
                ORDER BY g.xid, g.id LIMIT 1
            ) AS first ON true
            WHERE p.name = $2 AND p.version = $3".replace("{bound}", BOUND);
        /// The oldest open transaction that has drawn an id, prepared ones included: readers cannot pass it.
        holder: HolderRow = "
            SELECT {columns} FROM (
                SELECT pid, coalesce(application_name, '') AS name, coalesce(state, '') AS state, xact_start AS since,
                       age(backend_xid) AS age
                FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
                UNION ALL
                SELECT NULL, gid, 'prepared', prepared, age(transaction) FROM pg_prepared_xacts
            ) AS open ORDER BY age DESC LIMIT 1";
        /// The position of an entry's last log row, unless the entry is live (event_log's and event_queue's primary
        /// keys).
        logged_at: PositionRow = "
            SELECT {columns} FROM {log} g
            WHERE g.id = $1 AND NOT EXISTS (SELECT FROM {live} q WHERE q.id = $1)
            ORDER BY g.generation DESC LIMIT 1";
        /// The highest transaction id that the log, a position or the counts refer to (event_log_commits, from its end;
        /// the other tables are small). Retention may have emptied the log while readers' positions and the counts
        /// still refer to it: new rows must come after those positions, and not below where counting continues.
        highest_xid: Only<Option<i64>> = "
            SELECT greatest(
                (SELECT g.xid::text::bigint FROM {log} g ORDER BY g.xid DESC, g.id DESC LIMIT 1),
                (SELECT p.xid::text::bigint FROM {ns}.projections p ORDER BY p.xid DESC LIMIT 1),
                (SELECT c.xid::text::bigint - 1 FROM {ns}.log_counts c))";
        /// A bound above the transaction ids of all visible rows that were written in this cluster (one row).
        next_xid: Only<i64> = "
            SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint + log_xid_offset FROM {ns}.store";
    }
}
