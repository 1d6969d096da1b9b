//! Projections on SQLite. Rows of the log are numbered in the order of their commits, since there is one writer at a time:
//! a position is such a number.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, params};
use tidegate_core::{End, EntryId, Tsid};

use super::errors::damaged;
use super::jobs::Urgency;
use super::tx::{Tx, entry_id, later, moment};
use super::unreadable::shown;
use super::{SqliteStore, facts};
use crate::error::{Error, ErrorKind, Result};
use crate::projections::{
    Change, Document, Failed, Lag, ListDocuments, LogPage, LogRow, Position, ProjectionFailure, ProjectionId,
    ProjectionState, ProjectionView, Projections, ReadLog, Reader, SWEEP, Step,
};

impl SqliteStore {
    /// Moves a projection's position in the caller's transaction, together with what it writes there. When it fails, the
    /// caller must roll back.
    ///
    /// # Errors
    /// `Fenced` when the token or the position is not the stored one.
    pub fn advance_projection_in(&self, conn: &Connection, step: &Step) -> Result<()> {
        self.within(conn, |tx| advance(tx, step))
    }

    /// Makes a version active in the caller's transaction, as [`Projections::activate`] does.
    ///
    /// # Errors
    /// `Fenced` when the token is not the reader's.
    pub fn activate_projection_in(&self, conn: &Connection, id: &ProjectionId, token: i64) -> Result<()> {
        self.within(conn, |tx| activate(tx, id, token))
    }
}

fn lost_reader() -> Error {
    Error::new(ErrorKind::Fenced, "the projection has another reader, has moved meanwhile, or is retired")
}

/// A write that touched its one row, or came too late.
fn one(touched: usize) -> Result<()> {
    if touched == 1 { Ok(()) } else { Err(lost_reader()) }
}

fn at(seq: i64) -> Position {
    Position { commit: seq.unsigned_abs(), id: 0 }
}

fn seq(position: Position) -> i64 {
    i64::try_from(position.commit).unwrap_or(i64::MAX)
}

fn state(code: i16) -> Result<ProjectionState> {
    ProjectionState::from_code(code)
}

fn register(tx: &Tx<'_>, id: &ProjectionId) -> Result<ProjectionView> {
    let sql = tx.sql();
    tx.prepare(&sql.register_projection)?.execute((&id.name, id.version, tx.now))?;
    let mut statement = tx.prepare(&sql.projection)?;
    let mut rows = statement.query((&id.name, id.version))?;
    match rows.next()? {
        Some(row) => view(row),
        // Below the active one: it is not kept.
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
    let taken: Option<(i64, i64, i16)> = tx
        .prepare(&tx.sql().take_projection)?
        .query_row((&id.name, id.version, reader, until, tx.now), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let Some((token, seq, code)) = taken else { return Ok(None) };
    Ok(Some(Reader { token, position: at(seq), state: state(code)? }))
}

fn read_log(tx: &Tx<'_>, query: &ReadLog) -> Result<LogPage> {
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let mut statement = tx.prepare(&tx.sql().read_log)?;
    let mut rows = statement.query((seq(query.after), limit))?;
    let mut page = LogPage { rows: Vec::new(), end: query.after, exhausted: false };
    let mut walked = 0;
    while let Some(row) = rows.next()? {
        walked += 1;
        page.end = at(row.get(0)?);
        page.rows.extend(log_row(row, query)?);
    }
    page.exhausted = walked < query.limit;
    Ok(page)
}

/// A row, if it is wanted and its fact is there: retention may have taken it.
fn log_row(row: &Row<'_>, query: &ReadLog) -> Result<Option<LogRow>> {
    let end = End::from_code(row.get(4)?).ok_or_else(|| damaged("an entry has an unknown end"))?;
    if !query.ends.contains(&end) {
        return Ok(None);
    }
    let Some(event_type) = shown(row, 7)? else { return Ok(None) };
    if query.types.as_ref().is_some_and(|types| !types.contains(&event_type)) {
        return Ok(None);
    }
    Ok(Some(LogRow {
        position: at(row.get(0)?),
        id: entry_id(row.get(1)?)?,
        generation: row.get(2)?,
        event_id: Tsid::from_i64(row.get(3)?),
        end,
        finished_at: moment(row.get(5)?)?,
        fact: facts::show(row, 6)?,
    }))
}

fn advance(tx: &Tx<'_>, step: &Step) -> Result<()> {
    let events = i64::try_from(step.events).unwrap_or(i64::MAX);
    let until = later(tx.now, step.lease)?;
    one(tx.prepare(&tx.sql().advance_projection)?.execute(params![
        step.id.name,
        step.id.version,
        step.token,
        seq(step.from),
        seq(step.to),
        events,
        until,
        tx.now
    ])?)
}

fn apply(tx: &Tx<'_>, step: &Step, changes: &[Change]) -> Result<()> {
    advance(tx, step)?;
    let sql = tx.sql();
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
    one(tx.prepare(&tx.sql().fail_projection)?.execute(params![
        failure.id.name,
        failure.id.version,
        failure.token,
        failure.entry.map(EntryId::get),
        failure.error,
        retry_at,
        until,
        tx.now
    ])?)
}

fn documents(tx: &Tx<'_>, id: &ProjectionId, keys: &[String]) -> Result<Vec<Option<Bytes>>> {
    let mut statement = tx.prepare(&tx.sql().document)?;
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let document: Option<Vec<u8>> =
            statement.query_row((&id.name, id.version, key), |row| row.get(0)).optional()?;
        found.push(document.map(Bytes::from));
    }
    Ok(found)
}

fn list_documents(tx: &Tx<'_>, id: &ProjectionId, query: &ListDocuments) -> Result<Vec<Document>> {
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let mut statement = tx.prepare(&tx.sql().list_documents)?;
    let bounds = params![id.name, id.version, query.prefix, query.after, limit, query.start()];
    let rows = statement
        .query_map(bounds, |row| Ok(Document { key: row.get(0)?, document: Bytes::from(row.get::<_, Vec<u8>>(1)?) }))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn activate(tx: &Tx<'_>, id: &ProjectionId, token: i64) -> Result<()> {
    let sql = tx.sql();
    one(tx.prepare(&sql.activate_projection)?.execute((&id.name, id.version, token, tx.now))?)?;
    tx.prepare(&sql.retire_projections)?.execute((&id.name, id.version, tx.now))?;
    Ok(())
}

fn sweep(tx: &Tx<'_>, name: &str) -> Result<bool> {
    let sql = tx.sql();
    if tx.prepare(&sql.sweep_documents)?.execute((name, SWEEP))? > 0 {
        return Ok(true);
    }
    tx.prepare(&sql.sweep_projections)?.execute([name])?;
    Ok(false)
}

fn projections(tx: &Tx<'_>) -> Result<Vec<ProjectionView>> {
    let mut statement = tx.prepare(&tx.sql().projections)?;
    let mut rows = statement.query([])?;
    let mut views = Vec::new();
    while let Some(row) = rows.next()? {
        views.push(view(row)?);
    }
    Ok(views)
}

fn view(row: &Row<'_>) -> Result<ProjectionView> {
    let reader: Option<String> = row.get(5)?;
    let until = row.get::<_, Option<i64>>(6)?.map(moment).transpose()?;
    let failure = match row.get::<_, Option<String>>(9)? {
        None => None,
        Some(error) => Some(ProjectionFailure {
            entry: row.get::<_, Option<i64>>(7)?.map(entry_id).transpose()?,
            failures: row.get(8)?,
            error,
            retry_at: moment(row.get::<_, Option<i64>>(10)?.unwrap_or_default())?,
        }),
    };
    Ok(ProjectionView {
        id: ProjectionId { name: row.get(0)?, version: row.get(1)? },
        state: state(row.get(2)?)?,
        position: at(row.get(3)?),
        events: row.get::<_, i64>(4)?.unsigned_abs(),
        reader: reader.zip(until),
        failure,
        updated_at: moment(row.get(11)?)?,
    })
}

fn lag(tx: &Tx<'_>, id: &ProjectionId, bound: u32) -> Result<Lag> {
    let sql = tx.sql();
    let position: Option<i64> =
        tx.prepare(&sql.projection)?.query_row((&id.name, id.version), |row| row.get(3)).optional()?;
    let position = position.ok_or_else(|| id.missing())?;
    let most = i64::from(bound) + 1;
    let unread: i64 = tx.prepare(&sql.unread)?.query_row((position, most), |row| row.get(0))?;
    let first: Option<i64> = tx.prepare(&sql.first_unread)?.query_row([position], |row| row.get(0)).optional()?;
    let age = first.map_or(0, |at| tx.now.saturating_sub(at).max(0));
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
        self.write(Urgency::Finish, move |tx| register(tx, &id)).await
    }

    async fn take_reader(&self, id: &ProjectionId, reader: &str, lease: Duration) -> Result<Option<Reader>> {
        let (id, reader) = (id.clone(), reader.to_owned());
        self.write(Urgency::Claim, move |tx| take(tx, &id, &reader, lease)).await
    }

    async fn keep_reader(&self, id: &ProjectionId, token: i64, lease: Duration) -> Result<()> {
        let id = id.clone();
        self.write(Urgency::Finish, move |tx| {
            let until = later(tx.now, lease)?;
            one(tx.prepare(&tx.sql().keep_projection)?.execute((&id.name, id.version, token, until))?)
        })
        .await
    }

    async fn leave_reader(&self, id: &ProjectionId, token: i64) -> Result<()> {
        let id = id.clone();
        self.write(Urgency::Finish, move |tx| {
            tx.prepare(&tx.sql().leave_projection)?.execute((&id.name, id.version, token, tx.now))?;
            Ok(())
        })
        .await
    }

    async fn read_log(&self, query: ReadLog) -> Result<LogPage> {
        self.read(move |tx| read_log(tx, &query)).await
    }

    async fn apply(&self, step: Step, changes: Vec<Change>) -> Result<()> {
        self.write(Urgency::Publish, move |tx| apply(tx, &step, &changes)).await
    }

    async fn fail(&self, failure: Failed) -> Result<()> {
        self.write(Urgency::Finish, move |tx| fail(tx, &failure)).await
    }

    async fn documents(&self, id: &ProjectionId, keys: Vec<String>) -> Result<Vec<Option<Bytes>>> {
        let id = id.clone();
        self.read(move |tx| documents(tx, &id, &keys)).await
    }

    async fn list_documents(&self, id: &ProjectionId, query: ListDocuments) -> Result<Vec<Document>> {
        let id = id.clone();
        self.read(move |tx| list_documents(tx, &id, &query)).await
    }

    async fn activate(&self, id: &ProjectionId, token: i64) -> Result<()> {
        let id = id.clone();
        self.write(Urgency::Finish, move |tx| activate(tx, &id, token)).await
    }

    async fn remove(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        let remove = move |tx: &mut Tx<'_>| Ok(tx.prepare(&tx.sql().remove_projection)?.execute((name, tx.now))? > 0);
        self.write(Urgency::Finish, remove).await
    }

    async fn sweep(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.write(Urgency::Publish, move |tx| sweep(tx, &name)).await
    }

    async fn projections(&self) -> Result<Vec<ProjectionView>> {
        self.read(|tx| projections(tx)).await
    }

    async fn active(&self, name: &str) -> Result<Option<ProjectionView>> {
        let name = name.to_owned();
        self.read(move |tx| {
            let mut statement = tx.prepare(&tx.sql().active_projection)?;
            let mut rows = statement.query([name])?;
            rows.next()?.map(view).transpose()
        })
        .await
    }

    async fn lag(&self, id: &ProjectionId, bound: u32) -> Result<Lag> {
        let id = id.clone();
        self.read(move |tx| lag(tx, &id, bound)).await
    }

    async fn logged_at(&self, entry: EntryId) -> Result<Option<Position>> {
        self.read(move |tx| {
            let found: Option<i64> =
                tx.prepare(&tx.sql().logged_at)?.query_row([entry.get()], |row| row.get(0)).optional()?;
            Ok(found.map(at))
        })
        .await
    }
}
