//! Projections on PostgreSQL. The log is read in the order of (transaction, entry) below the oldest transaction that still
//! runs; each write is one statement that compares token and position.

use std::collections::{HashMap, HashSet};
use std::error::Error as StdError;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::FutureExt;
use tidegate_core::{End, EntryId, Timestamp, Tsid};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Row, Transaction};

use super::connection::Begin;
use super::errors::Fault;
use super::row::{self, count};
use super::{Inner, PostgresStore};
use crate::error::{Error, ErrorKind, Result};
use crate::projections::{
    Blocker, Change, Document, Failed, Lag, ListDocuments, LogPage, LogRow, Position, ProjectionFailure, ProjectionId,
    ProjectionState, ProjectionView, Projections, ReadLog, Reader, SWEEP, Step,
};
use crate::store::Fact;

/// A transaction's full number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Xid(u64);

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

type Param<'a> = &'a (dyn ToSql + Sync);

impl PostgresStore {
    /// Moves a projection's position in the caller's transaction, together with what it writes there. A position or token
    /// that is not the stored one aborts the transaction: it can then only be rolled back.
    ///
    /// # Errors
    /// `Fenced`, and what the database says.
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
        let moved =
            tx.execute(&inner.projections.advance, &params).await.map_err(|error| Fault::from(error).into_error())?;
        if moved == 1 { Ok(()) } else { Err(abort(tx).await) }
    }

    /// Makes a version active in the caller's transaction, as [`Projections::activate`] does.
    ///
    /// # Errors
    /// `Fenced`, and what the database says.
    pub async fn activate_projection_in(&self, tx: &Transaction<'_>, id: &ProjectionId, token: i64) -> Result<()> {
        let inner = &self.inner;
        let params: [Param<'_>; 4] = [&inner.now(), &id.name, &id.version, &token];
        let row = tx.query_one(&inner.projections.activate, &params).await;
        let switched: i64 = row.map_err(|error| Fault::from(error).into_error())?.get(0);
        if switched == 1 { Ok(()) } else { Err(abort(tx).await) }
    }
}

/// An error inside the transaction is the only way to make sure that it cannot commit.
async fn abort(tx: &Transaction<'_>) -> Error {
    let _ = tx.batch_execute("DO $$ BEGIN RAISE EXCEPTION 'tidegate: the projection has another reader'; END $$").await;
    lost_reader()
}

fn lost_reader() -> Error {
    Error::new(ErrorKind::Fenced, "the projection has another reader, has moved meanwhile, or is retired")
}

/// A step as the database takes it.
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
    // A hundred years are enough for any lease, and fit into what the database can add.
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX).min(3_153_600_000_000_000)
}

/// Documents by what happens to them.
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
    /// One statement, which is its own transaction.
    async fn rows(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let reader = self.database.reader_patiently().await?;
        reader.query(sql, params).await.map_err(Fault::into_error)
    }

    async fn touched(&self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        let reader = self.database.reader_patiently().await?;
        reader.execute(sql, params).await.map_err(Fault::into_error)
    }

    async fn register(&self, id: &ProjectionId) -> Result<ProjectionView> {
        let key: [Param<'_>; 2] = [&id.name, &id.version];
        let known = self.rows(&self.projections.view, &key).await?;
        if let Some(row) = known.first() {
            return view(row);
        }
        let made = self
            .database
            .transact(
                Begin::Write,
                &|_| Ok(()),
                &|tx| {
                    async move {
                        // Two first versions of one name must not both be active.
                        let lock = format!("tidegate:{}:{}", self.options.store.namespace, id.name);
                        let sql = "SELECT count(pg_advisory_xact_lock(hashtextextended($1, 4712)))";
                        tx.query(sql, &[&lock]).await?;
                        tx.execute(&self.projections.register, &[&self.now(), &id.name, &id.version]).await?;
                        Ok(())
                    }
                    .boxed()
                },
                // What is registered stays so.
                &|_, ()| async { Ok(false) }.boxed(),
            )
            .await;
        made.map_err(Fault::into_error)?;
        match self.rows(&self.projections.view, &key).await?.first() {
            Some(row) => view(row),
            None => Ok(outdated(id, self.now().unwrap_or_else(Timestamp::now))),
        }
    }

    async fn read_log(&self, query: ReadLog) -> Result<LogPage> {
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let params: [Param<'_>; 3] = [&Xid(query.after.commit), &query.after.id, &limit];
        let rows = self.rows(&self.projections.read, &params).await?;
        let exhausted = rows.len() < query.limit;
        let end = rows.last().map_or(query.after, position);
        let wanted: Vec<&Row> =
            rows.iter().filter(|row| End::from_code(row.get(4)).is_some_and(|end| query.ends.contains(&end))).collect();
        let mut facts = self.logged_facts(&wanted, query.types.as_deref()).await?;
        let mut found = Vec::with_capacity(wanted.len());
        // An entry that ended in two generations has one fact.
        let mut seen = HashSet::with_capacity(wanted.len());
        let repeated = wanted.iter().any(|row| !seen.insert(row.get::<_, i64>(3)));
        for row in wanted {
            let event_id: i64 = row.get(3);
            let fact = if repeated { facts.get(&event_id).cloned() } else { facts.remove(&event_id) };
            // A fact of another type, or one that retention took, is not wanted.
            if let Some(fact) = fact {
                found.push(log_row(row, fact)?);
            }
        }
        Ok(LogPage { rows: found, end, exhausted })
    }

    /// Facts of log rows. Entries that end together were mostly published together: then one walk finds them all.
    async fn logged_facts(&self, rows: &[&Row], types: Option<&[String]>) -> Result<HashMap<i64, Fact>> {
        let mut ids: Vec<i64> = rows.iter().map(|row| row.get(3)).collect();
        ids.sort_unstable();
        let entries = rows.iter().map(|row| row.get::<_, i64>(1));
        let (low, high) = entries.fold((i64::MAX, 0), |(low, high), id| (low.min(id), high.max(id)));
        let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return Ok(HashMap::new()) };
        let by_id = |row: &Row| (row.get(row::FACT_COLUMNS), row::fact(row, 0));
        if (high - low) / self.options.store.ids.step < 2 * ids.len() as i64 {
            let most = 2 * ids.len() as i64 + 1;
            let found = self.rows(&self.projections.facts_between, &[first, &types, last, &most]).await?;
            if (found.len() as i64) < most {
                return Ok(found.iter().map(by_id).collect());
            }
        }
        let found = self.rows(&self.projections.facts, &[&ids, &types]).await?;
        Ok(found.iter().map(by_id).collect())
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
        let moved = if changes.is_empty() {
            self.touched(&self.projections.advance, &params[..10]).await?
        } else {
            let rows = self.rows(&self.projections.apply, &params).await?;
            rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs())
        };
        if moved == 1 { Ok(()) } else { Err(lost_reader()) }
    }

    async fn list_documents(&self, id: &ProjectionId, query: ListDocuments) -> Result<Vec<Document>> {
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let params: [Param<'_>; 6] = [&id.name, &id.version, &query.prefix, &query.after, &limit, &query.start()];
        let rows = self.rows(&self.projections.list_documents, &params).await?;
        let read = |row: &Row| Document { key: row.get(0), document: Bytes::from(row.get::<_, Vec<u8>>(1)) };
        Ok(rows.iter().map(read).collect())
    }

    async fn lag(&self, id: &ProjectionId, bound: u32) -> Result<Lag> {
        let most = i64::from(bound) + 1;
        let rows = self.rows(&self.projections.lag, &[&self.now(), &id.name, &id.version, &most]).await?;
        let row = rows.first().ok_or_else(|| id.missing())?;
        let unread: i64 = row.get(0);
        let (oldest, now): (Option<Timestamp>, Timestamp) = (row.get(1), row.get(2));
        let mut lag = Lag {
            rows: unread.unsigned_abs().min(u64::from(bound)),
            more: unread == most,
            age: oldest.and_then(|at| Duration::try_from(now.duration_since(at)).ok()).unwrap_or_default(),
            held_by: None,
        };
        if row.get::<_, Option<bool>>(3) == Some(true) {
            let open = self.rows(&self.projections.holder, &[]).await?;
            lag.held_by = open.first().map(|row| Blocker {
                pid: row.get(0),
                name: row.get(1),
                state: row.get(2),
                since: row.get(3),
            });
        }
        Ok(lag)
    }
}

/// How a version below the active one stands: it is not kept.
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

fn position(row: &Row) -> Position {
    Position { commit: row.get::<_, Xid>(0).0, id: row.get(1) }
}

fn log_row(row: &Row, fact: Fact) -> Result<LogRow> {
    Ok(LogRow {
        position: position(row),
        id: EntryId::new(row.get(1))?,
        generation: row.get::<_, i32>(2).unsigned_abs(),
        event_id: Tsid::from_i64(row.get(3)),
        end: End::from_code(row.get(4)).ok_or_else(|| Error::new(ErrorKind::Corrupt, "an entry has an unknown end"))?,
        finished_at: row.get(5),
        fact,
    })
}

fn view(row: &Row) -> Result<ProjectionView> {
    let reader: Option<String> = row.get(6);
    let failure = match row.get::<_, Option<String>>(10) {
        None => None,
        Some(error) => Some(ProjectionFailure {
            entry: row.get::<_, Option<i64>>(8).map(EntryId::new).transpose()?,
            failures: count(row.get(9)),
            error,
            retry_at: row.get::<_, Option<Timestamp>>(11).unwrap_or_default(),
        }),
    };
    Ok(ProjectionView {
        id: ProjectionId { name: row.get(0), version: row.get(1) },
        state: ProjectionState::from_code(row.get(2))?,
        position: Position { commit: row.get::<_, Xid>(3).0, id: row.get(4) },
        events: row.get::<_, i64>(5).unsigned_abs(),
        reader: reader.zip(row.get(7)),
        failure,
        updated_at: row.get(12),
    })
}

#[async_trait]
impl Projections for PostgresStore {
    async fn register(&self, id: &ProjectionId) -> Result<ProjectionView> {
        let id = ProjectionId::new(id.name.clone(), id.version)?;
        self.detached(|inner| async move { inner.register(&id).await }).await
    }

    async fn take_reader(&self, id: &ProjectionId, reader: &str, lease: Duration) -> Result<Option<Reader>> {
        let (id, reader) = (id.clone(), reader.to_owned());
        self.detached(|inner| async move {
            let params: [Param<'_>; 5] = [&inner.now(), &id.name, &id.version, &reader, &micros(lease)];
            let rows = inner.rows(&inner.projections.take, &params).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            Ok(Some(Reader {
                token: row.get(0),
                position: Position { commit: row.get::<_, Xid>(1).0, id: row.get(2) },
                state: ProjectionState::from_code(row.get(3))?,
            }))
        })
        .await
    }

    async fn keep_reader(&self, id: &ProjectionId, token: i64, lease: Duration) -> Result<()> {
        let id = id.clone();
        self.detached(|inner| async move {
            let params: [Param<'_>; 5] = [&inner.now(), &id.name, &id.version, &token, &micros(lease)];
            let kept = inner.touched(&inner.projections.keep, &params).await?;
            if kept == 1 { Ok(()) } else { Err(lost_reader()) }
        })
        .await
    }

    async fn leave_reader(&self, id: &ProjectionId, token: i64) -> Result<()> {
        let id = id.clone();
        self.detached(|inner| async move {
            let params: [Param<'_>; 4] = [&inner.now(), &id.name, &id.version, &token];
            inner.touched(&inner.projections.leave, &params).await.map(drop)
        })
        .await
    }

    async fn read_log(&self, query: ReadLog) -> Result<LogPage> {
        self.detached(|inner| async move { inner.read_log(query).await }).await
    }

    async fn apply(&self, step: Step, changes: Vec<Change>) -> Result<()> {
        self.detached(|inner| async move { inner.apply(step, changes).await }).await
    }

    async fn fail(&self, failure: Failed) -> Result<()> {
        self.detached(|inner| async move {
            let Failed { id, token, entry, error, retry_after, lease } = failure;
            let (entry, error) = (entry.map(EntryId::get), error.replace('\0', "\u{fffd}"));
            let (retry_after, lease) = (micros(retry_after), micros(lease));
            let params: [Param<'_>; 8] =
                [&inner.now(), &id.name, &id.version, &token, &entry, &error, &retry_after, &lease];
            let noted = inner.touched(&inner.projections.fail, &params).await?;
            if noted == 1 { Ok(()) } else { Err(lost_reader()) }
        })
        .await
    }

    async fn documents(&self, id: &ProjectionId, keys: Vec<String>) -> Result<Vec<Option<Bytes>>> {
        let id = id.clone();
        self.detached(|inner| async move {
            let rows = inner.rows(&inner.projections.documents, &[&id.name, &id.version, &keys]).await?;
            let found: HashMap<&str, Bytes> =
                rows.iter().map(|row| (row.get(0), Bytes::from(row.get::<_, Vec<u8>>(1)))).collect();
            Ok(keys.iter().map(|key| found.get(key.as_str()).cloned()).collect())
        })
        .await
    }

    async fn list_documents(&self, id: &ProjectionId, query: ListDocuments) -> Result<Vec<Document>> {
        let id = id.clone();
        self.detached(|inner| async move { inner.list_documents(&id, query).await }).await
    }

    async fn activate(&self, id: &ProjectionId, token: i64) -> Result<()> {
        let id = id.clone();
        self.detached(|inner| async move {
            let params: [Param<'_>; 4] = [&inner.now(), &id.name, &id.version, &token];
            let rows = inner.rows(&inner.projections.activate, &params).await?;
            if rows.first().map(|row| row.get::<_, i64>(0)) == Some(1) { Ok(()) } else { Err(lost_reader()) }
        })
        .await
    }

    async fn remove(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.detached(|inner| async move {
            let removed = inner.touched(&inner.projections.remove, &[&inner.now(), &name]).await?;
            Ok(removed > 0)
        })
        .await
    }

    async fn sweep(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.detached(|inner| async move {
            if inner.touched(&inner.projections.sweep_documents, &[&name, &SWEEP]).await? > 0 {
                return Ok(true);
            }
            inner.touched(&inner.projections.sweep_versions, &[&name]).await?;
            Ok(false)
        })
        .await
    }

    async fn projections(&self) -> Result<Vec<ProjectionView>> {
        self.detached(
            |inner| async move { inner.rows(&inner.projections.views, &[]).await?.iter().map(view).collect() },
        )
        .await
    }

    async fn active(&self, name: &str) -> Result<Option<ProjectionView>> {
        let name = name.to_owned();
        self.detached(|inner| async move {
            inner.rows(&inner.projections.active, &[&name]).await?.first().map(view).transpose()
        })
        .await
    }

    async fn lag(&self, id: &ProjectionId, bound: u32) -> Result<Lag> {
        let id = id.clone();
        self.detached(|inner| async move { inner.lag(&id, bound).await }).await
    }

    async fn logged_at(&self, entry: EntryId) -> Result<Option<Position>> {
        self.detached(|inner| async move {
            let rows = inner.rows(&inner.projections.logged_at, &[&entry.get()]).await?;
            Ok(rows.first().map(position))
        })
        .await
    }
}
