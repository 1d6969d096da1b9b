//! What the verbs work with inside one transaction: the connection, the time, and what is known of the catalogue. Knows
//! nothing of threads and commits.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::{CachedStatement, Connection, Params, Row};
use tidegate_core::{EntryId, QueueName, Timestamp};

use crate::error::Result;
use crate::sql::{FromRow, Only, Statement};
use crate::sqlite::engine::errors::damaged;
use crate::sqlite::statements::Sql;
use crate::values::Family;

use crate::sqlite::engine::catalogue::Known;
use crate::sqlite::engine::families::PerFamily;
use crate::sqlite::engine::shared::Shared;

/// What transactions know of a family, and what the present one has done to it.
#[derive(Debug, Default)]
pub(in crate::sqlite) struct FamilyState {
    pub(in crate::sqlite) known: Known,
    /// Queues in which something became claimable.
    pub(in crate::sqlite) woken: BTreeSet<QueueName>,
}

/// One transaction, ours or a caller's.
pub(in crate::sqlite) struct Tx<'c> {
    pub(in crate::sqlite) conn: &'c Connection,
    pub(in crate::sqlite) shared: &'c Shared,
    /// The family whose tables the statements are about.
    pub(in crate::sqlite) family: Family,
    pub(in crate::sqlite) known: &'c mut Known,
    /// The time of this job, in microseconds since 1970.
    pub(in crate::sqlite) now: i64,
    /// Queues in which something became claimable.
    pub(in crate::sqlite) woken: &'c mut BTreeSet<QueueName>,
    /// `known` and `woken` of the other family.
    other: (&'c mut Known, &'c mut BTreeSet<QueueName>),
    /// The number of the next log row, once it was read.
    log_seq: Option<i64>,
}

impl<'c> Tx<'c> {
    pub(in crate::sqlite) fn new(
        conn: &'c Connection,
        shared: &'c Shared,
        states: &'c mut PerFamily<FamilyState>,
        family: Family,
    ) -> Self {
        let (FamilyState { known, woken }, other) = states.split(family);
        let other = (&mut other.known, &mut other.woken);
        Self { conn, shared, family, known, now: shared.time.now(), woken, other, log_seq: None }
    }

    /// Does something in a family, which may be another one.
    pub(in crate::sqlite) fn in_family<T>(
        &mut self,
        family: Family,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        if family == self.family {
            return work(self);
        }
        let before = self.family;
        self.switch_to(family);
        let done = work(self);
        self.switch_to(before);
        done
    }

    fn switch_to(&mut self, family: Family) {
        self.family = family;
        std::mem::swap(&mut self.known, &mut self.other.0);
        std::mem::swap(&mut self.woken, &mut self.other.1);
    }

    /// Writes back what was kept in memory. Part of the transaction.
    pub(in crate::sqlite) fn finish(&mut self) -> Result<()> {
        if let Some(next) = self.log_seq.take() {
            self.execute(&self.sql().transactions.save_log_seq, [next])?;
        }
        Ok(())
    }

    /// The number of the next log row.
    pub(in crate::sqlite) fn log_seq(&mut self) -> Result<i64> {
        match self.log_seq {
            Some(next) => Ok(next),
            None => Ok(*self.log_seq.insert(self.number(&self.sql().transactions.next_log_seq)?)),
        }
    }

    /// Records that this many numbers of log rows were used.
    pub(in crate::sqlite) fn log_seq_used(&mut self, count: usize) {
        self.log_seq = self.log_seq.map(|next| next + count as i64);
    }

    pub(in crate::sqlite) fn sql(&self) -> &'c Sql {
        self.shared.sql.of(self.family)
    }

    pub(in crate::sqlite) fn prepare(&self, sql: &'c str) -> Result<CachedStatement<'c>> {
        Ok(self.conn.prepare_cached(sql)?)
    }

    /// Runs a statement and reads its rows.
    pub(in crate::sqlite) fn rows<R>(&self, statement: &'c Statement<R>, params: impl Params) -> Result<Vec<R>>
    where
        R: for<'r> FromRow<Row<'r>>,
    {
        let mut read = Vec::new();
        self.each_row(statement, params, |row| {
            read.push(row);
            Ok(())
        })?;
        Ok(read)
    }

    /// Runs a statement and reads its rows one after the other.
    pub(in crate::sqlite) fn each_row<R>(
        &self,
        statement: &'c Statement<R>,
        params: impl Params,
        mut take: impl FnMut(R) -> Result<()>,
    ) -> Result<()>
    where
        R: for<'r> FromRow<Row<'r>>,
    {
        let mut prepared = self.prepare(statement)?;
        let mut rows = prepared.query(params)?;
        while let Some(row) = rows.next()? {
            take(R::read(row, 0)?)?;
        }
        Ok(())
    }

    /// Runs a statement and reads its first row, if there is one.
    pub(in crate::sqlite) fn row<R>(&self, statement: &'c Statement<R>, params: impl Params) -> Result<Option<R>>
    where
        R: for<'r> FromRow<Row<'r>>,
    {
        self.prepare(statement)?.query(params)?.next()?.map(|row| R::read(row, 0)).transpose()
    }

    /// Runs a statement and returns how many rows it changed.
    pub(in crate::sqlite) fn execute(&self, statement: &'c Statement, params: impl Params) -> Result<usize> {
        Ok(self.prepare(statement)?.execute(params)?)
    }

    /// The number that a statement with a single row returns.
    pub(in crate::sqlite) fn number(&self, sql: &'c str) -> Result<i64> {
        let Only(number) = self.prepare(sql)?.query_row([], |row| Ok(Only::read(row, 0)))??;
        Ok(number)
    }

    /// Records that something became claimable in a queue.
    pub(in crate::sqlite) fn wake(&mut self, queue: usize) {
        let name = &self.known.queues[queue].name;
        if !self.woken.contains(name) {
            self.woken.insert(name.clone());
        }
    }

    pub(in crate::sqlite) fn wake_id(&mut self, queue_id: i64) -> Result<()> {
        let queue = self.queue_by_id(queue_id)?;
        self.wake(queue);
        Ok(())
    }
}

/// A stored moment. One out of range is shown as the first or the last possible moment.
pub(in crate::sqlite) fn moment(micros: i64) -> Result<Timestamp> {
    let micros = micros.clamp(Timestamp::MIN.as_second() * 1_000_000, Timestamp::MAX.as_second() * 1_000_000);
    Timestamp::from_microsecond(micros).map_err(|error| damaged("a stored moment is out of range").with_source(error))
}

/// A moment as the database stores it. It stops before the last microseconds, which could not be read back.
pub(in crate::sqlite) fn micros(at: Timestamp) -> i64 {
    at.as_microsecond().clamp(Timestamp::MIN.as_second() * 1_000_000, Timestamp::MAX.as_second() * 1_000_000)
}

pub(in crate::sqlite) fn later(now: i64, duration: Duration) -> Result<i64> {
    Ok(micros(tidegate_core::entry::later(moment(now)?, duration)))
}

pub(in crate::sqlite) fn entry_id(raw: i64) -> Result<EntryId> {
    EntryId::new(raw).map_err(|error| damaged("a stored entry id is out of range").with_source(error))
}
