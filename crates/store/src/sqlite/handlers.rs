//! What handlers answered, on SQLite.

use async_trait::async_trait;
use rusqlite::OptionalExtension;
use tidegate_core::EntryId;

use super::SqliteStore;
use super::jobs::Urgency;
use super::tx::Tx;
use crate::error::{Error, Result};
use crate::handlers::{HandlerHistory, HandlerState, HandlerStates};
use crate::store::Batch;

#[async_trait]
impl HandlerStates for SqliteStore {
    async fn record_handled(&self, items: Vec<HandlerState>) -> Result<Batch<()>> {
        self.write(Urgency::Finish, move |tx| record(tx, &items)).await
    }

    async fn handled(&self, ids: Vec<EntryId>) -> Result<Vec<HandlerHistory>> {
        self.read(move |tx| ids.iter().map(|id| history(tx, id.get())).collect()).await
    }

    async fn forget_handled(&self, limit: usize) -> Result<u64> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.write(Urgency::Publish, move |tx| Ok(tx.prepare(&tx.sql().forget_handled)?.execute([limit])? as u64)).await
    }
}

fn record(tx: &Tx<'_>, items: &[HandlerState]) -> Result<Batch<()>> {
    let mut statement = tx.prepare(&tx.sql().record_handled)?;
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        let held = statement.execute((item.id.get(), item.token.0, &item.handler, &item.result, tx.now))? > 0;
        answers.push(if held { Ok(()) } else { Err(Error::fenced()) });
    }
    Ok(answers)
}

pub(super) fn history(tx: &Tx<'_>, id: i64) -> Result<HandlerHistory> {
    let sql = tx.sql();
    let states = tx
        .prepare(&sql.handled)?
        .query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let previous = tx.prepare(&sql.last_results)?.query_row([id], |row| row.get(0)).optional()?.flatten();
    Ok(HandlerHistory { states, previous })
}
