//! What handlers answered about live entries, on PostgreSQL.

use std::collections::{BTreeMap, HashMap, HashSet};

use async_trait::async_trait;
use tidegate_core::EntryId;
use tokio_postgres::types::ToSql;

use crate::api::HandlerStates;
use crate::error::{Error, Result};
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::{Inner, PostgresStore};
use crate::postgres::statements::handlers::HandledRow;
use crate::values::{Batch, HandlerHistory, HandlerState};

/// Rows that one statement of the sweep reads.
const SWEPT_AT_ONCE: i64 = 1000;

#[async_trait]
impl HandlerStates for PostgresStore {
    async fn record_handled(&self, items: Vec<HandlerState>) -> Result<Batch<()>> {
        self.detached(|inner| async move { inner.record_handled(items).await }).await
    }

    async fn handled(&self, ids: Vec<EntryId>) -> Result<Vec<HandlerHistory>> {
        self.detached(|inner| async move { inner.handled(ids).await }).await
    }

    async fn forget_handled(&self, limit: usize) -> Result<u64> {
        self.detached(|inner| async move { inner.forget_handled(limit).await }).await
    }
}

impl Inner {
    async fn record_handled(&self, items: Vec<HandlerState>) -> Result<Batch<()>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let items = &items;
        // Recording twice is the same as once.
        self.write_again(|tx| async move { self.record_items(&tx, items).await }).await
    }

    async fn record_items(&self, tx: &Tx, items: &[HandlerState]) -> Result<Batch<()>, Fault> {
        // Sorted by id, the order in which entries are locked. Of a handler's answers under one lease the last counts.
        let mut last: BTreeMap<(i64, i64, &str), &str> = BTreeMap::new();
        for item in items {
            last.insert((item.id.get(), item.token.0, &item.handler), &item.result);
        }
        let ids: Vec<i64> = last.keys().map(|key| key.0).collect();
        let tokens: Vec<i64> = last.keys().map(|key| key.1).collect();
        let handlers: Vec<&str> = last.keys().map(|key| key.2).collect();
        let results: Vec<&str> = last.values().copied().collect();
        let record = &self.sql.handlers.record;
        let rows = tx.rows(record, &[&self.now(), &ids, &tokens, &handlers, &results]).await?;
        let held: HashSet<(i64, i64)> = rows.iter().map(|row| (row.id, row.token)).collect();
        let answer = |item: &HandlerState| {
            if held.contains(&(item.id.get(), item.token.0)) { Ok(()) } else { Err(Error::fenced()) }
        };
        Ok(items.iter().map(answer).collect())
    }

    async fn handled(&self, ids: Vec<EntryId>) -> Result<Vec<HandlerHistory>> {
        let numbers: Vec<i64> = ids.iter().map(|id| id.get()).collect();
        let numbers = &numbers;
        let mut known = self.read(|tx| async move { self.handled_in(&tx, numbers).await }).await?;
        Ok(numbers.iter().map(|id| known.remove(id).unwrap_or_default()).collect())
    }

    /// As [`Self::handled`], within a transaction and by entry.
    pub(super) async fn handled_in(&self, tx: &Tx, ids: &[i64]) -> Result<HashMap<i64, HandlerHistory>, Fault> {
        Ok(histories(tx.rows(&self.sql.handlers.handled, &[&ids]).await?))
    }

    async fn forget_handled(&self, limit: usize) -> Result<u64> {
        let reader = self.shared.database.reader().await.map_err(Fault::into_error)?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let (mut gone, mut after): (i64, (i64, String)) = (0, (0, String::new()));
        while gone < limit {
            // Each statement is a transaction of its own; a lost answer costs nothing.
            let params: [&(dyn ToSql + Sync); 4] = [&(limit - gone), &after.0, &after.1, &SWEPT_AT_ONCE];
            let part = reader.row(&self.sql.handlers.forget, &params).await.map_err(Fault::into_error)?;
            let Some(part) = part else { break };
            gone += part.gone;
            after = (part.entry_id, part.handler);
        }
        Ok(gone as u64)
    }
}

fn histories(rows: Vec<HandledRow>) -> HashMap<i64, HandlerHistory> {
    let mut known: HashMap<i64, HandlerHistory> = HashMap::new();
    for row in rows {
        let history = known.entry(row.entry_id).or_default();
        match row.handler.as_deref() {
            // What a kept entry was exhausted with is younger than the log.
            Some("") => history.previous = row.result,
            Some(handler) => history.states.push((handler.to_owned(), row.result.unwrap_or_default())),
            None => history.previous = history.previous.take().or(row.result),
        }
    }
    known
}
