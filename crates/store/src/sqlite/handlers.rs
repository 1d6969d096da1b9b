//! The answers of handlers on SQLite.

use async_trait::async_trait;
use tidegate_core::EntryId;

use crate::api::HandlerStates;
use crate::error::{Error, Result};
use crate::sqlite::engine::jobs::Urgency;
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::Tx;
use crate::values::{Batch, HandlerHistory, HandlerState};

#[async_trait]
impl HandlerStates for SqliteStore {
    async fn record_handled(&self, items: Vec<HandlerState>) -> Result<Batch<()>> {
        self.write(Urgency::End, move |tx| record(tx, &items)).await
    }

    async fn handled(&self, ids: Vec<EntryId>) -> Result<Vec<HandlerHistory>> {
        self.read(move |tx| ids.iter().map(|id| history(tx, id.get())).collect()).await
    }

    async fn forget_handled(&self, limit: usize) -> Result<u64> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.write(Urgency::Publish, move |tx| Ok(tx.execute(&tx.sql().handlers.forget, [limit])? as u64)).await
    }
}

fn record(tx: &Tx<'_>, items: &[HandlerState]) -> Result<Batch<()>> {
    let mut statement = tx.prepare(&tx.sql().handlers.record)?;
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        let held = statement.execute((item.id.get(), item.token.0, &item.handler, &item.result, tx.now))? > 0;
        answers.push(if held { Ok(()) } else { Err(Error::fenced()) });
    }
    Ok(answers)
}

pub(super) fn history(tx: &Tx<'_>, id: i64) -> Result<HandlerHistory> {
    let sql = &tx.sql().handlers;
    let mut states: Vec<_> = tx.rows(&sql.handled, [id])?.into_iter().map(|row| (row.handler, row.result)).collect();
    // What a kept entry was exhausted with is younger than the log. Sorted by name, it comes first.
    let previous = match states.first() {
        Some((handler, _)) if handler.is_empty() => Some(states.remove(0).1),
        _ => tx.row(&sql.last_results, [id])?.and_then(|results| results.0),
    };
    Ok(HandlerHistory { states, previous })
}
