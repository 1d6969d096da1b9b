//! The list of workers on SQLite: who consumes from queues, and who holds entries.

use std::collections::BTreeMap;

use tidegate_core::{QueueName, Tsid};

use crate::error::Result;
use crate::sqlite::engine::tx::{Tx, entry_id, moment};
use crate::values::workers::{judge_workers, seen};
use crate::values::{WorkersPage, WorkersQuery};

/// The most entries listed as held by a worker.
const SHOWN: usize = 100;

pub(super) fn workers(tx: &Tx<'_>, query: &WorkersQuery) -> Result<WorkersPage> {
    let sql = &tx.sql().attempts;
    let client = query.client.map(Tsid::to_i64);
    let mut known = BTreeMap::new();
    for row in tx.rows(&sql.consumers, [client])? {
        let queue = QueueName::of(row.client_id.map(Tsid::from_i64), row.name)?;
        seen(&mut known, row.worker, queue, row.seen_at.into());
    }
    tx.each_row(&sql.held, [client], |row| {
        let queue = QueueName::of(row.client_id.map(Tsid::from_i64), row.name)?;
        let view = seen(&mut known, row.worker.unwrap_or_default(), queue, row.seen_at.into());
        view.held += 1;
        if view.holds.len() < SHOWN {
            view.holds.push(entry_id(row.id)?);
        }
        Ok(())
    })?;
    Ok(judge_workers(known, moment(tx.now)?, query))
}
