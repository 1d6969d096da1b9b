//! Projections and how they read the log: the tables `projections`, which is small, and `projection_documents`.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::sql::{Only, statements};
use crate::sqlite::engine::row::{Moment, Shown, row};
use crate::sqlite::engine::tx::entry_id;
use crate::sqlite::statements::facts::ShownFactRow;
use crate::values::{Document, Position, ProjectionFailure, ProjectionId, ProjectionState, ProjectionView, Reader};

/// The position of the log row with this number.
pub(in crate::sqlite) fn at(seq: i64) -> Position {
    Position { commit: seq.unsigned_abs(), id: 0 }
}

row! {
    /// A version of a projection.
    pub(in crate::sqlite) struct ProjectionRow {
        name: String,
        version: i32,
        state: i16,
        seq: i64,
        events: i64,
        reader: Option<String>,
        reader_until: Option<Moment>,
        failed_entry: Option<i64>,
        failures: u32,
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
                entry: row.failed_entry.map(entry_id).transpose()?,
                failures: row.failures,
                error,
                retry_at: row.retry_at.map(Into::into).unwrap_or_default(),
            }),
        };
        Ok(Self {
            id: ProjectionId { name: row.name, version: row.version },
            state: ProjectionState::from_code(row.state)?,
            position: at(row.seq),
            events: row.events.unsigned_abs(),
            reader: row.reader.zip(row.reader_until.map(Into::into)),
            failure,
            updated_at: row.updated_at.into(),
        })
    }
}

row! {
    /// A reader's lease that was taken.
    pub(in crate::sqlite) struct ReaderRow {
        token: i64,
        seq: i64,
        state: i16,
    }
}

impl TryFrom<ReaderRow> for Reader {
    type Error = Error;

    fn try_from(row: ReaderRow) -> Result<Self> {
        Ok(Self { token: row.token, position: at(row.seq), state: ProjectionState::from_code(row.state)? })
    }
}

row! {
    /// What decides whether a reader wants a row of the log.
    pub(in crate::sqlite) struct LoggedRow {
        seq: i64 = "g.seq",
        status: i16 = "g.status",
        /// `None` when the fact is missing.
        event_type: Option<Shown> = "e.event_type",
    }
}

row! {
    /// The rest of a row of the log, without its fact.
    pub(in crate::sqlite) struct EndedRow {
        id: i64 = "g.id",
        generation: u32 = "g.generation",
        event_id: i64 = "g.event_id",
        finished_at: Moment = "g.finished_at",
        flags: Option<i64> = "g.flags",
    }
}

row! {
    /// A document.
    pub(in crate::sqlite) struct DocumentRow {
        key: String,
        document: Vec<u8>,
    }
}

impl From<DocumentRow> for Document {
    fn from(row: DocumentRow) -> Self {
        Self { key: row.key, document: Bytes::from(row.document) }
    }
}

statements! {
    /// Statements about projections.
    pub(in crate::sqlite) struct Projections {
        /// All versions of all projections. Primary key, whole: projections are few.
        versions: ProjectionRow = "SELECT {columns} FROM {ns}_projections ORDER BY name, version";
        /// One version of a projection. Primary key.
        version: ProjectionRow = "SELECT {columns} FROM {ns}_projections WHERE name = ?1 AND version = ?2";
        /// The active version of a projection. Primary key, all versions of a name.
        active: ProjectionRow = "SELECT {columns} FROM {ns}_projections WHERE name = ?1 AND state = 1";
        /// Creates a version of a projection. The first one of a name is active at once; none is created below the
        /// active one. Primary key, all versions of a name.
        register = "
            INSERT OR IGNORE INTO {ns}_projections (name, version, state, created_at, updated_at)
            SELECT ?1, ?2, NOT EXISTS (SELECT 1 FROM {ns}_projections WHERE name = ?1 AND state < 2), ?3, ?3
            WHERE NOT EXISTS (SELECT 1 FROM {ns}_projections WHERE name = ?1 AND state = 1 AND version >= ?2)";
        /// Takes the reader's lease; the present reader may take it again. Primary key.
        take: ReaderRow = "
            UPDATE {ns}_projections SET reader = ?3, reader_until = ?4, token = token + 1, updated_at = ?5
            WHERE name = ?1 AND version = ?2 AND state < 2 AND (reader IS NULL OR reader = ?3 OR reader_until <= ?5)
            RETURNING {columns}";
        /// Extends the reader's lease. Primary key.
        keep = "
            UPDATE {ns}_projections SET reader_until = ?4
            WHERE name = ?1 AND version = ?2 AND token = ?3 AND state < 2 AND reader IS NOT NULL";
        /// Gives the reader's lease back. Primary key.
        leave = "
            UPDATE {ns}_projections SET reader = NULL, reader_until = NULL, updated_at = ?4
            WHERE name = ?1 AND version = ?2 AND token = ?3";
        /// The next rows of the log, in commit order. The log's primary key, and the facts' primary key for each.
        read_log: (LoggedRow, (EndedRow, ShownFactRow)) = "
            SELECT {columns} FROM {log} g LEFT JOIN {ns}_events e ON e.id = g.event_id
            WHERE g.seq > ?1 ORDER BY g.seq LIMIT ?2";
        /// Moves a projection's position and clears its failure. Primary key.
        advance = "
            UPDATE {ns}_projections SET seq = ?5, events = events + ?6, reader_until = ?7, updated_at = ?8,
                failed_entry = NULL, failures = 0, error = NULL, retry_at = NULL
            WHERE name = ?1 AND version = ?2 AND token = ?3 AND seq = ?4 AND state < 2";
        /// Records a failure of a projection. Primary key.
        fail = "
            UPDATE {ns}_projections SET
                failures = CASE WHEN failed_entry IS ?4 THEN failures + 1 ELSE 1 END,
                failed_entry = ?4, error = ?5, retry_at = ?6, reader_until = ?7, updated_at = ?8
            WHERE name = ?1 AND version = ?2 AND token = ?3 AND state < 2";
        /// Makes a version active. Primary key.
        activate = "
            UPDATE {ns}_projections SET state = 1, updated_at = ?4,
                failed_entry = NULL, failures = 0, error = NULL, retry_at = NULL
            WHERE name = ?1 AND version = ?2 AND token = ?3 AND state < 2";
        /// Retires the versions below one and fences their readers. Primary key, all versions of a name.
        retire = "
            UPDATE {ns}_projections SET state = 2, token = token + 1, reader = NULL, reader_until = NULL,
                failed_entry = NULL, failures = 0, error = NULL, retry_at = NULL, updated_at = ?3
            WHERE name = ?1 AND version < ?2 AND state < 2";
        /// Retires all versions of a projection and fences their readers. Primary key, all versions of a name.
        remove = "
            UPDATE {ns}_projections SET state = 2, token = token + 1, reader = NULL, reader_until = NULL,
                failed_entry = NULL, failures = 0, error = NULL, retry_at = NULL, updated_at = ?2
            WHERE name = ?1";
        /// Creates a document, or replaces it. Primary key.
        put_document = "
            INSERT INTO {ns}_projection_documents (projection, version, key, document) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT (projection, version, key) DO UPDATE SET document = excluded.document";
        /// Changes a document. Primary key.
        change_document = "
            UPDATE {ns}_projection_documents SET document = ?4 WHERE projection = ?1 AND version = ?2 AND key = ?3";
        /// Removes a document. Primary key.
        remove_document = "
            DELETE FROM {ns}_projection_documents WHERE projection = ?1 AND version = ?2 AND key = ?3";
        /// Reads a document. Primary key.
        document: Only<Vec<u8>> = "
            SELECT document FROM {ns}_projection_documents WHERE projection = ?1 AND version = ?2 AND key = ?3";
        /// Documents with a prefix, after a key. Primary key, from the prefix or that key on.
        list_documents: DocumentRow = "
            SELECT {columns} FROM {ns}_projection_documents WHERE projection = ?1 AND version = ?2
            AND key >= ?6 AND substr(key, 1, length(?3)) = ?3 AND (?4 IS NULL OR key > ?4) ORDER BY key LIMIT ?5";
        /// Removes documents of retired versions. Primary keys, per retired version.
        sweep_documents = "
            DELETE FROM {ns}_projection_documents WHERE (projection, version, key) IN (
                SELECT d.projection, d.version, d.key FROM {ns}_projections p
                JOIN {ns}_projection_documents d ON d.projection = p.name AND d.version = p.version
                WHERE p.name = ?1 AND p.state = 2 LIMIT ?2)";
        /// Removes retired versions without documents. Primary keys.
        sweep_versions = "
            DELETE FROM {ns}_projections WHERE name = ?1 AND state = 2 AND NOT EXISTS (
                SELECT 1 FROM {ns}_projection_documents d
                WHERE d.projection = {ns}_projections.name AND d.version = {ns}_projections.version)";
        /// The number of unread log rows, up to a bound. The log's primary key.
        unread: Only<i64> = "SELECT count(*) FROM (SELECT 1 FROM {log} WHERE seq > ?1 LIMIT ?2)";
        /// When the first unread log row was written, in microseconds. The log's primary key.
        first_unread: Only<i64> = "SELECT finished_at FROM {log} WHERE seq > ?1 ORDER BY seq LIMIT 1";
        /// The log row of an entry that is not live. Index event_log_key; the queue's primary key.
        logged_at: Only<i64> = "
            SELECT seq FROM {log} WHERE id = ?1
            AND NOT EXISTS (SELECT 1 FROM {live} q WHERE q.id = ?1) ORDER BY generation DESC LIMIT 1";
    }
}
