//! Projections on SQLite. As there is one writer at a time, log rows are numbered in commit order, and a position is
//! such a number.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, Row, params};
use tidegate_core::{End, EntryId, Tsid};

use crate::api::Projections;
use crate::error::{Error, ErrorKind, Result};
use crate::sql::{Columns, FromRow, Only};
use crate::sqlite::engine::errors::damaged;
use crate::sqlite::engine::jobs::Urgency;
use crate::sqlite::engine::row::Shown;
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::{Tx, entry_id, later, moment};
use crate::sqlite::flags::is_in_envelope;
use crate::sqlite::statements::facts::ShownFactRow;
use crate::sqlite::statements::projections::{EndedRow, LoggedRow, at};
use crate::values::{
    Change, Document, Fact, Failed, Lag, ListDocuments, LogPage, LogRow, Position, ProjectionId, ProjectionState,
    ProjectionView, ReadLog, Reader, SWEEP, Step,
};

impl SqliteStore {
    /// Moves a projection's position in the caller's transaction, together with what it writes there. If this fails,
    /// the caller must roll back.
    ///
    /// # Errors
    /// `Fenced` when the token or the position is not the stored one.
    pub fn advance_projection_in(&self, conn: &Connection, step: &Step) -> Result<()> {
        self.entries_handle().within(conn, |tx| advance(tx, step))
    }

    /// Makes a version active in the caller's transaction, as [`Projections::activate`] does.
    ///
    /// # Errors
    /// `Fenced` when the token is not the reader's.
    pub fn activate_projection_in(&self, conn: &Connection, id: &ProjectionId, token: i64) -> Result<()> {
        self.entries_handle().within(conn, |tx| activate(tx, id, token))
    }
}

fn lost_reader() -> Error {
    Error::new(ErrorKind::Fenced, "the projection has another reader, has moved meanwhile, or is retired")
}

/// Checks that a write touched its one row; if not, the reader was too late.
fn one(touched: usize) -> Result<()> {
    if touched == 1 { Ok(()) } else { Err(lost_reader()) }
}

fn seq(position: Position) -> i64 {
    i64::try_from(position.commit).unwrap_or(i64::MAX)
}

fn register(tx: &Tx<'_>, id: &ProjectionId) -> Result<ProjectionView> {
    let sql = &tx.sql().projections;
    tx.execute(&sql.register, (&id.name, id.version, tx.now))?;
    match tx.row(&sql.version, (&id.name, id.version))? {
        Some(row) => row.try_into(),
        // A version below the active one is not stored.
        None => Ok(ProjectionView {
            id: id.clone(),
            state: ProjectionState::Retired,
            position: Position::START,
            events: 0,
            reader: None,
            failure: None,
            updated_at: moment(tx.now)?,
        }),
    }
}

fn take(tx: &Tx<'_>, id: &ProjectionId, reader: &str, lease: Duration) -> Result<Option<Reader>> {
    let until = later(tx.now, lease)?;
    let taken = tx.row(&tx.sql().projections.take, (&id.name, id.version, reader, until, tx.now))?;
    taken.map(Reader::try_from).transpose()
}

fn read_log(tx: &Tx<'_>, query: &ReadLog) -> Result<LogPage> {
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let mut statement = tx.prepare(&tx.sql().projections.read_log)?;
    let mut rows = statement.query((seq(query.after), limit))?;
    let mut page = LogPage { rows: Vec::new(), end: query.after, exhausted: false };
    let mut walked = 0;
    while let Some(row) = rows.next()? {
        walked += 1;
        let logged = LoggedRow::read(row, 0)?;
        page.end = at(logged.seq);
        if let Some(end) = wanted(&logged, query)? {
            page.rows.push(log_row(row, logged.seq, end)?);
        }
    }
    page.exhausted = walked < query.limit;
    Ok(page)
}

/// How an entry ended, if its row matches and its fact still exists: retention may have removed it.
fn wanted(row: &LoggedRow, query: &ReadLog) -> Result<Option<End>> {
    let end = End::from_code(row.status).ok_or_else(|| damaged("an entry has an unknown end"))?;
    let is_of_type = |event_type: &Shown| query.types.as_ref().is_none_or(|types| types.contains(&event_type.0));
    Ok(Some(end).filter(|end| query.ends.contains(end) && row.event_type.as_ref().is_some_and(is_of_type)))
}

/// The rest of a row of the log.
fn log_row(row: &Row<'_>, seq: i64, end: End) -> Result<LogRow> {
    let (ended, fact) = <(EndedRow, ShownFactRow)>::read(row, LoggedRow::COUNT)?;
    let (fact, event_id) = (Fact::from(fact), Tsid::from_i64(ended.event_id));
    Ok(LogRow {
        position: at(seq),
        id: entry_id(ended.id)?,
        generation: ended.generation,
        event_id,
        end,
        finished_at: ended.finished_at.into(),
        fact: if is_in_envelope(ended.flags) { fact.in_envelope(event_id) } else { fact },
    })
}

fn advance(tx: &Tx<'_>, step: &Step) -> Result<()> {
    let events = i64::try_from(step.events).unwrap_or(i64::MAX);
    let until = later(tx.now, step.lease)?;
    let (from, to) = (seq(step.from), seq(step.to));
    let moved = (&step.id.name, step.id.version, step.token, from, to, events, until, tx.now);
    one(tx.execute(&tx.sql().projections.advance, moved)?)
}

fn apply(tx: &Tx<'_>, step: &Step, changes: &[Change]) -> Result<()> {
    advance(tx, step)?;
    let sql = &tx.sql().projections;
    let (name, version) = (step.id.name.as_str(), step.id.version);
    let mut put = tx.prepare(&sql.put_document)?;
    let mut change_one = tx.prepare(&sql.change_document)?;
    let mut remove = tx.prepare(&sql.remove_document)?;
    for change in changes {
        match &change.document {
            Some(document) if change.existed => {
                change_one.execute((name, version, &change.key, document.as_ref()))?;
            }
            Some(document) => {
                put.execute((name, version, &change.key, document.as_ref()))?;
            }
            None => {
                remove.execute((name, version, &change.key))?;
            }
        }
    }
    Ok(())
}

fn fail(tx: &Tx<'_>, failure: &Failed) -> Result<()> {
    let (retry_at, until) = (later(tx.now, failure.retry_after)?, later(tx.now, failure.lease)?);
    let (id, entry) = (&failure.id, failure.entry.map(EntryId::get));
    let failed = (&id.name, id.version, failure.token, entry, &failure.error, retry_at, until, tx.now);
    one(tx.execute(&tx.sql().projections.fail, failed)?)
}

fn documents(tx: &Tx<'_>, id: &ProjectionId, keys: &[String]) -> Result<Vec<Option<Bytes>>> {
    let mut statement = tx.prepare(&tx.sql().projections.document)?;
    let mut find = |key: &String| -> Result<_> {
        let mut rows = statement.query((&id.name, id.version, key))?;
        let found = rows.next()?.map(|row| Only::<Vec<u8>>::read(row, 0)).transpose()?;
        Ok(found.map(|document| Bytes::from(document.0)))
    };
    keys.iter().map(&mut find).collect()
}

fn list_documents(tx: &Tx<'_>, id: &ProjectionId, query: &ListDocuments) -> Result<Vec<Document>> {
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let bounds = params![id.name, id.version, query.prefix, query.after, limit, query.start()];
    let rows = tx.rows(&tx.sql().projections.list_documents, bounds)?;
    Ok(rows.into_iter().map(Document::from).collect())
}

fn activate(tx: &Tx<'_>, id: &ProjectionId, token: i64) -> Result<()> {
    let sql = &tx.sql().projections;
    one(tx.execute(&sql.activate, (&id.name, id.version, token, tx.now))?)?;
    tx.execute(&sql.retire, (&id.name, id.version, tx.now)).map(drop)
}

fn sweep(tx: &Tx<'_>, name: &str) -> Result<bool> {
    let sql = &tx.sql().projections;
    if tx.execute(&sql.sweep_documents, (name, SWEEP))? > 0 {
        return Ok(true);
    }
    tx.execute(&sql.sweep_versions, [name])?;
    Ok(false)
}

fn lag(tx: &Tx<'_>, id: &ProjectionId, bound: u32) -> Result<Lag> {
    let sql = &tx.sql().projections;
    let version = tx.row(&sql.version, (&id.name, id.version))?.ok_or_else(|| id.missing())?;
    let most = i64::from(bound) + 1;
    let unread = tx.row(&sql.unread, (version.seq, most))?.map_or(0, |unread| unread.0);
    let first = tx.row(&sql.first_unread, [version.seq])?;
    let age = first.map_or(0, |at| tx.now.saturating_sub(at.0).max(0));
    Ok(Lag {
        rows: unread.unsigned_abs().min(u64::from(bound)),
        more: unread == most,
        age: Duration::from_micros(age.unsigned_abs()),
        held_by: None,
    })
}

#[async_trait]
impl Projections for SqliteStore {
    async fn register(&self, id: &ProjectionId) -> Result<ProjectionView> {
        let id = ProjectionId::new(id.name.clone(), id.version)?;
        self.entries_handle().write(Urgency::End, move |tx| register(tx, &id)).await
    }

    async fn take_reader(&self, id: &ProjectionId, reader: &str, lease: Duration) -> Result<Option<Reader>> {
        let (id, reader) = (id.clone(), reader.to_owned());
        self.entries_handle().write(Urgency::Claim, move |tx| take(tx, &id, &reader, lease)).await
    }

    async fn keep_reader(&self, id: &ProjectionId, token: i64, lease: Duration) -> Result<()> {
        let id = id.clone();
        self.entries_handle()
            .write(Urgency::End, move |tx| {
                let until = later(tx.now, lease)?;
                one(tx.execute(&tx.sql().projections.keep, (&id.name, id.version, token, until))?)
            })
            .await
    }

    async fn leave_reader(&self, id: &ProjectionId, token: i64) -> Result<()> {
        let id = id.clone();
        self.entries_handle()
            .write(Urgency::End, move |tx| {
                tx.execute(&tx.sql().projections.leave, (&id.name, id.version, token, tx.now)).map(drop)
            })
            .await
    }

    async fn read_log(&self, query: ReadLog) -> Result<LogPage> {
        self.entries_handle().read(move |tx| read_log(tx, &query)).await
    }

    async fn apply(&self, step: Step, changes: Vec<Change>) -> Result<()> {
        self.entries_handle().write(Urgency::Publish, move |tx| apply(tx, &step, &changes)).await
    }

    async fn fail(&self, failure: Failed) -> Result<()> {
        self.entries_handle().write(Urgency::End, move |tx| fail(tx, &failure)).await
    }

    async fn documents(&self, id: &ProjectionId, keys: Vec<String>) -> Result<Vec<Option<Bytes>>> {
        let id = id.clone();
        self.entries_handle().read(move |tx| documents(tx, &id, &keys)).await
    }

    async fn list_documents(&self, id: &ProjectionId, query: ListDocuments) -> Result<Vec<Document>> {
        let id = id.clone();
        self.entries_handle().read(move |tx| list_documents(tx, &id, &query)).await
    }

    async fn activate(&self, id: &ProjectionId, token: i64) -> Result<()> {
        let id = id.clone();
        self.entries_handle().write(Urgency::End, move |tx| activate(tx, &id, token)).await
    }

    async fn remove(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.entries_handle()
            .write(Urgency::End, move |tx| Ok(tx.execute(&tx.sql().projections.remove, (name, tx.now))? > 0))
            .await
    }

    async fn sweep(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.entries_handle().write(Urgency::Publish, move |tx| sweep(tx, &name)).await
    }

    async fn projections(&self) -> Result<Vec<ProjectionView>> {
        self.entries_handle()
            .read(|tx| {
                let rows = tx.rows(&tx.sql().projections.versions, [])?;
                rows.into_iter().map(ProjectionView::try_from).collect()
            })
            .await
    }

    async fn active(&self, name: &str) -> Result<Option<ProjectionView>> {
        let name = name.to_owned();
        self.entries_handle()
            .read(move |tx| {
                let active = tx.row(&tx.sql().projections.active, [name])?;
                active.map(ProjectionView::try_from).transpose()
            })
            .await
    }

    async fn lag(&self, id: &ProjectionId, bound: u32) -> Result<Lag> {
        let id = id.clone();
        self.entries_handle().read(move |tx| lag(tx, &id, bound)).await
    }

    async fn logged_at(&self, entry: EntryId) -> Result<Option<Position>> {
        self.entries_handle()
            .read(move |tx| {
                let found = tx.row(&tx.sql().projections.logged_at, [entry.get()])?;
                Ok(found.map(|seq| at(seq.0)))
            })
            .await
    }
}
