//! Projections on PostgreSQL. Reads the log in the order of (transaction id, entry), below the oldest transaction that
//! is still running; each write is one statement that compares token and position.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_core::{End, EntryId, Timestamp, Tsid};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Transaction};

use crate::api::Projections;
use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::{Inner, PostgresStore};
use crate::postgres::flags::is_in_envelope;
use crate::postgres::statements::projections::{LoggedRow, Xid};
use crate::sql::{FromRow, Only, Statement};
use crate::values::{
    Blocker, Change, Document, Fact, Failed, Family, Lag, ListDocuments, LogPage, LogRow, Position, ProjectionId,
    ProjectionState, ProjectionView, ReadLog, Reader, SWEEP, Step,
};

type Param<'a> = &'a (dyn ToSql + Sync);

impl PostgresStore {
    /// Moves a projection's position in the caller's transaction, together with what the caller writes there. If
    /// position or token are not the stored ones, the transaction is aborted: it can then only be rolled back.
    ///
    /// # Errors
    /// `Fenced` when another reader has the projection or it has moved; else the database's error.
    pub async fn advance_projection_in(&self, tx: &Transaction<'_>, step: &Step) -> Result<()> {
        let inner = &self.inner;
        let StepParams { now, from, to, events, lease } = StepParams::new(inner, step);
        let params: [Param<'_>; 10] = [
            &now,
            &step.id.name,
            &step.id.version,
            &step.token,
            &from,
            &step.from.id,
            &to,
            &step.to.id,
            &events,
            &lease,
        ];
        let moved = tx.execute(&*inner.sql.projections.advance, &params).await?;
        if moved == 1 { Ok(()) } else { Err(abort(tx).await) }
    }

    /// Makes a version active in the caller's transaction, as [`Projections::activate`] does.
    ///
    /// # Errors
    /// `Fenced` when another reader has the projection or it is retired; else the database's error.
    pub async fn activate_projection_in(&self, tx: &Transaction<'_>, id: &ProjectionId, token: i64) -> Result<()> {
        let inner = &self.inner;
        let params: [Param<'_>; 4] = [&inner.now(), &id.name, &id.version, &token];
        let row = tx.query_one(&*inner.sql.projections.activate, &params).await?;
        let Only(switched) = Only::<i64>::read(&row, 0)?;
        if switched == 1 { Ok(()) } else { Err(abort(tx).await) }
    }
}

/// Makes sure that the caller's transaction cannot commit, which only an error inside it does.
async fn abort(tx: &Transaction<'_>) -> Error {
    let _ = tx.batch_execute("DO $$ BEGIN RAISE EXCEPTION 'tidegate: the projection has another reader'; END $$").await;
    lost_reader()
}

fn lost_reader() -> Error {
    Error::new(ErrorKind::Fenced, "the projection has another reader, has moved meanwhile, or is retired")
}

/// Checks that a write touched its one row; if not, the reader was too late.
fn one(touched: u64) -> Result<()> {
    if touched == 1 { Ok(()) } else { Err(lost_reader()) }
}

/// A step as parameters of the statements.
struct StepParams {
    now: Option<Timestamp>,
    from: Xid,
    to: Xid,
    events: i64,
    lease: i64,
}

impl StepParams {
    fn new(inner: &Inner, step: &Step) -> Self {
        Self {
            now: inner.now(),
            from: Xid(step.from.commit),
            to: Xid(step.to.commit),
            events: i64::try_from(step.events).unwrap_or(i64::MAX),
            lease: micros(step.lease),
        }
    }
}

fn micros(duration: Duration) -> i64 {
    // A hundred years, in microseconds: long enough for any lease, and the sum stays within the database's range.
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX).min(3_153_600_000_000_000)
}

/// Documents by what happens to them, as arrays of keys and contents.
#[derive(Default)]
struct Changes<'a> {
    added: (Vec<&'a str>, Vec<&'a [u8]>),
    changed: (Vec<&'a str>, Vec<&'a [u8]>),
    removed: Vec<&'a str>,
}

impl<'a> Changes<'a> {
    fn new(changes: &'a [Change]) -> Self {
        let mut sorted = Self::default();
        for change in changes {
            let column = match (&change.document, change.existed) {
                (Some(_), false) => &mut sorted.added,
                (Some(_), true) => &mut sorted.changed,
                (None, _) => {
                    sorted.removed.push(&change.key);
                    continue;
                }
            };
            column.0.push(&change.key);
            column.1.push(change.document.as_deref().unwrap_or_default());
        }
        sorted
    }
}

impl Inner {
    /// Runs a single statement that writes, which is its own transaction, and reads its first row. It does not run
    /// again if its answer is lost: a reader that does not know takes its lease again.
    async fn write_one<R: FromRow<Row>>(&self, statement: &Statement<R>, params: &[Param<'_>]) -> Result<Option<R>> {
        let tx = self.shared.database.reader_patiently().await?;
        tx.row(statement, params).await.map_err(Fault::into_error)
    }

    /// The same for a statement without rows; returns how many it changed.
    async fn touched(&self, statement: &Statement, params: &[Param<'_>]) -> Result<u64> {
        let tx = self.shared.database.reader_patiently().await?;
        tx.execute(statement, params).await.map_err(Fault::into_error)
    }

    /// Reads the first row of a single statement.
    async fn read_one<R: FromRow<Row>>(&self, statement: &Statement<R>, params: &[Param<'_>]) -> Result<Option<R>> {
        self.read(|tx| async move { tx.row(statement, params).await }).await
    }

    /// Reads all rows of a single statement.
    async fn read_rows<R: FromRow<Row>>(&self, statement: &Statement<R>, params: &[Param<'_>]) -> Result<Vec<R>> {
        self.read(|tx| async move { tx.rows(statement, params).await }).await
    }

    async fn register(&self, id: &ProjectionId) -> Result<ProjectionView> {
        let sql = &self.sql.projections;
        let key: [Param<'_>; 2] = [&id.name, &id.version];
        if let Some(known) = self.read_one(&sql.version, &key).await? {
            return known.try_into();
        }
        // Registering twice changes nothing.
        self.write_again(|tx| async move {
            // Two first versions of one name must not both be active.
            let lock = format!("tidegate:{}:{}", self.shared.options.store.namespace, id.name);
            tx.execute(&sql.lock_name, &[&lock]).await?;
            tx.execute(&sql.register, &[&self.now(), &id.name, &id.version]).await?;
            Ok(())
        })
        .await?;
        match self.read_one(&sql.version, &key).await? {
            Some(made) => made.try_into(),
            None => Ok(outdated(id, self.now().unwrap_or_else(Timestamp::now))),
        }
    }

    async fn take_reader(&self, id: &ProjectionId, reader: &str, lease: Duration) -> Result<Option<Reader>> {
        let params: [Param<'_>; 5] = [&self.now(), &id.name, &id.version, &reader, &micros(lease)];
        let taken = self.write_one(&self.sql.projections.take, &params).await?;
        taken.map(Reader::try_from).transpose()
    }

    async fn keep_reader(&self, id: &ProjectionId, token: i64, lease: Duration) -> Result<()> {
        let params: [Param<'_>; 5] = [&self.now(), &id.name, &id.version, &token, &micros(lease)];
        one(self.touched(&self.sql.projections.keep, &params).await?)
    }

    async fn leave_reader(&self, id: &ProjectionId, token: i64) -> Result<()> {
        let params: [Param<'_>; 4] = [&self.now(), &id.name, &id.version, &token];
        self.touched(&self.sql.projections.leave, &params).await.map(drop)
    }

    async fn read_log(&self, query: ReadLog) -> Result<LogPage> {
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let params: [Param<'_>; 3] = [&Xid(query.after.commit), &query.after.id, &limit];
        let rows = self.read_rows(&self.sql.projections.read_log, &params).await?;
        let exhausted = rows.len() < query.limit;
        let end = rows.last().map_or(query.after, position);
        let is_wanted = |row: &&LoggedRow| End::from_code(row.status).is_some_and(|end| query.ends.contains(&end));
        let wanted: Vec<&LoggedRow> = rows.iter().filter(is_wanted).collect();
        let mut facts = self.logged_facts(&wanted, query.types.as_deref()).await?;
        let mut found = Vec::with_capacity(wanted.len());
        // An entry that ended in two generations has one fact.
        let mut seen = HashSet::with_capacity(wanted.len());
        let repeated = wanted.iter().any(|row| !seen.insert(row.event_id));
        for row in wanted {
            let fact = if repeated { facts.get(&row.event_id).cloned() } else { facts.remove(&row.event_id) };
            // No fact: it is of another type, or retention has removed it.
            if let Some(fact) = fact {
                found.push(log_row(row, fact)?);
            }
        }
        Ok(LogPage { rows: found, end, exhausted })
    }

    /// Facts of log rows. Entries that end together were mostly published together: then one walk along the key finds
    /// them.
    async fn logged_facts(&self, rows: &[&LoggedRow], types: Option<&[String]>) -> Result<HashMap<i64, Fact>> {
        let sql = &self.sql.projections;
        let mut ids: Vec<i64> = rows.iter().map(|row| row.event_id).collect();
        ids.sort_unstable();
        let entries = rows.iter().map(|row| row.id);
        let (low, high) = entries.fold((i64::MAX, 0), |(low, high), id| (low.min(id), high.max(id)));
        let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return Ok(HashMap::new()) };
        let most = 2 * ids.len() as i64 + 1;
        let mut found = None;
        if (high - low) / self.shared.options.store.ids.step < 2 * ids.len() as i64 {
            let near = self.read_rows(&sql.facts_between, &[first, &types, last, &most]).await?;
            found = Some(near).filter(|near| (near.len() as i64) < most);
        }
        let found = match found {
            Some(found) => found,
            None => self.read_rows(&sql.facts, &[&ids, &types]).await?,
        };
        Ok(found.into_iter().map(|(fact, event)| (event.id, fact.into())).collect())
    }

    async fn apply(&self, step: Step, changes: Vec<Change>) -> Result<()> {
        let StepParams { now, from, to, events, lease } = StepParams::new(self, &step);
        let Changes { added, changed, removed } = Changes::new(&changes);
        let params: [Param<'_>; 15] = [
            &now,
            &step.id.name,
            &step.id.version,
            &step.token,
            &from,
            &step.from.id,
            &to,
            &step.to.id,
            &events,
            &lease,
            &added.0,
            &added.1,
            &changed.0,
            &changed.1,
            &removed,
        ];
        let sql = &self.sql.projections;
        let moved = if changes.is_empty() {
            self.touched(&sql.advance, &params[..10]).await?
        } else {
            self.write_one(&sql.apply, &params).await?.map_or(0, |moved| moved.0.unsigned_abs())
        };
        one(moved)
    }

    async fn fail_projection(&self, failure: Failed) -> Result<()> {
        let Failed { id, token, entry, error, retry_after, lease } = failure;
        let (entry, error) = (entry.map(EntryId::get), error.replace('\0', "\u{fffd}"));
        let (retry_after, lease) = (micros(retry_after), micros(lease));
        let params: [Param<'_>; 8] = [&self.now(), &id.name, &id.version, &token, &entry, &error, &retry_after, &lease];
        one(self.touched(&self.sql.projections.fail, &params).await?)
    }

    async fn documents(&self, id: &ProjectionId, keys: &[String]) -> Result<Vec<Option<Bytes>>> {
        let rows = self.read_rows(&self.sql.projections.documents, &[&id.name, &id.version, &keys]).await?;
        let found: HashMap<String, Bytes> = rows.into_iter().map(|row| (row.key, Bytes::from(row.document))).collect();
        Ok(keys.iter().map(|key| found.get(key).cloned()).collect())
    }

    async fn list_documents(&self, id: &ProjectionId, query: ListDocuments) -> Result<Vec<Document>> {
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let params: [Param<'_>; 6] = [&id.name, &id.version, &query.prefix, &query.after, &limit, &query.start()];
        let rows = self.read_rows(&self.sql.projections.list_documents, &params).await?;
        Ok(rows.into_iter().map(Document::from).collect())
    }

    async fn activate_projection(&self, id: &ProjectionId, token: i64) -> Result<()> {
        let params: [Param<'_>; 4] = [&self.now(), &id.name, &id.version, &token];
        let switched = self.write_one(&self.sql.projections.activate, &params).await?;
        one(switched.map_or(0, |switched| switched.0.unsigned_abs()))
    }

    async fn remove_projection(&self, name: &str) -> Result<bool> {
        Ok(self.touched(&self.sql.projections.remove, &[&self.now(), &name]).await? > 0)
    }

    async fn sweep_projection(&self, name: &str) -> Result<bool> {
        let sql = &self.sql.projections;
        if self.touched(&sql.sweep_documents, &[&name, &SWEEP]).await? > 0 {
            return Ok(true);
        }
        self.touched(&sql.sweep_versions, &[&name]).await?;
        Ok(false)
    }

    async fn projections(&self) -> Result<Vec<ProjectionView>> {
        let rows = self.read_rows(&self.sql.projections.versions, &[]).await?;
        rows.into_iter().map(ProjectionView::try_from).collect()
    }

    async fn active_projection(&self, name: &str) -> Result<Option<ProjectionView>> {
        let active = self.read_one(&self.sql.projections.active, &[&name]).await?;
        active.map(ProjectionView::try_from).transpose()
    }

    async fn lag(&self, id: &ProjectionId, bound: u32) -> Result<Lag> {
        let most = i64::from(bound) + 1;
        let sql = &self.sql.projections;
        let row = self.read_one(&sql.lag, &[&self.now(), &id.name, &id.version, &most]).await?;
        let row = row.ok_or_else(|| id.missing())?;
        let age = row.oldest.and_then(|oldest| Duration::try_from(row.now.0.duration_since(oldest.0)).ok());
        let mut lag = Lag {
            rows: row.unread.unsigned_abs().min(u64::from(bound)),
            more: row.unread == most,
            age: age.unwrap_or_default(),
            held_by: None,
        };
        if row.is_held == Some(true) {
            lag.held_by = self.read_one(&sql.holder, &[]).await?.map(Blocker::from);
        }
        Ok(lag)
    }

    async fn logged_at(&self, entry: EntryId) -> Result<Option<Position>> {
        Ok(self.read_one(&self.sql.projections.logged_at, &[&entry.get()]).await?.map(Position::from))
    }
}

/// The view of a version below the active one, which is not stored.
fn outdated(id: &ProjectionId, now: Timestamp) -> ProjectionView {
    ProjectionView {
        id: id.clone(),
        state: ProjectionState::Retired,
        position: Position::START,
        events: 0,
        reader: None,
        failure: None,
        updated_at: now,
    }
}

fn position(row: &LoggedRow) -> Position {
    Position { commit: row.xid.0, id: row.id }
}

fn log_row(row: &LoggedRow, fact: Fact) -> Result<LogRow> {
    let event_id = Tsid::from_i64(row.event_id);
    Ok(LogRow {
        position: position(row),
        id: EntryId::new(row.id)?,
        generation: row.generation.unsigned_abs(),
        event_id,
        end: End::from_code(row.status).ok_or_else(|| Error::new(ErrorKind::Corrupt, "an entry has an unknown end"))?,
        finished_at: row.finished_at.into(),
        fact: if is_in_envelope(row.flags) { fact.in_envelope(event_id) } else { fact },
    })
}

#[async_trait]
impl Projections for PostgresStore {
    async fn register(&self, id: &ProjectionId) -> Result<ProjectionView> {
        let id = ProjectionId::new(id.name.clone(), id.version)?;
        self.of(Family::Entries).detached(|inner| async move { inner.register(&id).await }).await
    }

    async fn take_reader(&self, id: &ProjectionId, reader: &str, lease: Duration) -> Result<Option<Reader>> {
        let (id, reader) = (id.clone(), reader.to_owned());
        self.of(Family::Entries).detached(|inner| async move { inner.take_reader(&id, &reader, lease).await }).await
    }

    async fn keep_reader(&self, id: &ProjectionId, token: i64, lease: Duration) -> Result<()> {
        let id = id.clone();
        self.of(Family::Entries).detached(|inner| async move { inner.keep_reader(&id, token, lease).await }).await
    }

    async fn leave_reader(&self, id: &ProjectionId, token: i64) -> Result<()> {
        let id = id.clone();
        self.of(Family::Entries).detached(|inner| async move { inner.leave_reader(&id, token).await }).await
    }

    async fn read_log(&self, query: ReadLog) -> Result<LogPage> {
        self.of(Family::Entries).detached(|inner| async move { inner.read_log(query).await }).await
    }

    async fn apply(&self, step: Step, changes: Vec<Change>) -> Result<()> {
        self.of(Family::Entries).detached(|inner| async move { inner.apply(step, changes).await }).await
    }

    async fn fail(&self, failure: Failed) -> Result<()> {
        self.of(Family::Entries).detached(|inner| async move { inner.fail_projection(failure).await }).await
    }

    async fn documents(&self, id: &ProjectionId, keys: Vec<String>) -> Result<Vec<Option<Bytes>>> {
        let id = id.clone();
        self.of(Family::Entries).detached(|inner| async move { inner.documents(&id, &keys).await }).await
    }

    async fn list_documents(&self, id: &ProjectionId, query: ListDocuments) -> Result<Vec<Document>> {
        let id = id.clone();
        self.of(Family::Entries).detached(|inner| async move { inner.list_documents(&id, query).await }).await
    }

    async fn activate(&self, id: &ProjectionId, token: i64) -> Result<()> {
        let id = id.clone();
        self.of(Family::Entries).detached(|inner| async move { inner.activate_projection(&id, token).await }).await
    }

    async fn remove(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.of(Family::Entries).detached(|inner| async move { inner.remove_projection(&name).await }).await
    }

    async fn sweep(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.of(Family::Entries).detached(|inner| async move { inner.sweep_projection(&name).await }).await
    }

    async fn projections(&self) -> Result<Vec<ProjectionView>> {
        self.of(Family::Entries).detached(|inner| async move { inner.projections().await }).await
    }

    async fn active(&self, name: &str) -> Result<Option<ProjectionView>> {
        let name = name.to_owned();
        self.of(Family::Entries).detached(|inner| async move { inner.active_projection(&name).await }).await
    }

    async fn lag(&self, id: &ProjectionId, bound: u32) -> Result<Lag> {
        let id = id.clone();
        self.of(Family::Entries).detached(|inner| async move { inner.lag(&id, bound).await }).await
    }

    async fn logged_at(&self, entry: EntryId) -> Result<Option<Position>> {
        self.of(Family::Entries).detached(|inner| async move { inner.logged_at(entry).await }).await
    }
}
