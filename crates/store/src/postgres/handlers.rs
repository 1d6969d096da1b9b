//! What handlers answered, on PostgreSQL.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt;
use tidegate_core::EntryId;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connection::{Begin, Tx};
use super::errors::Fault;
use super::{Inner, PostgresStore};
use crate::error::{Error, Result};
use crate::handlers::{HandlerHistory, HandlerState, HandlerStates};
use crate::store::Batch;

/// Answers that one statement of the sweep looks at.
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
        // Recording twice is the same as once, so a lost answer is answered by running again.
        let confirm = |_: Arc<Tx>, _: &Batch<()>| async { Ok(false) }.boxed();
        let work = |tx| async move { self.record_items(tx, items).await }.boxed();
        let done = self.database.transact(Begin::Write, &|_| Ok(()), &work, &confirm).await;
        done.map_err(Fault::into_error)
    }

    async fn record_items(&self, tx: Arc<Tx>, items: &[HandlerState]) -> Result<Batch<()>, Fault> {
        // In order of ids, as every lock is taken; of two answers of one handler under one lease the later counts.
        let mut last: BTreeMap<(i64, i64, &str), &str> = BTreeMap::new();
        for item in items {
            last.insert((item.id.get(), item.token.0, &item.handler), &item.result);
        }
        let ids: Vec<i64> = last.keys().map(|key| key.0).collect();
        let tokens: Vec<i64> = last.keys().map(|key| key.1).collect();
        let handlers: Vec<&str> = last.keys().map(|key| key.2).collect();
        let results: Vec<&str> = last.values().copied().collect();
        let rows = tx.query(&self.sql.record_handled, &[&self.now(), &ids, &tokens, &handlers, &results]).await?;
        let held: HashSet<(i64, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let answer = |item: &HandlerState| {
            if held.contains(&(item.id.get(), item.token.0)) { Ok(()) } else { Err(Error::fenced()) }
        };
        Ok(items.iter().map(answer).collect())
    }

    async fn handled(&self, ids: Vec<EntryId>) -> Result<Vec<HandlerHistory>> {
        let numbers: Vec<i64> = ids.iter().map(|id| id.get()).collect();
        let rows = self.database.read_patiently(&self.sql.handled, &[&numbers]).await?;
        let mut known = histories(&rows);
        Ok(numbers.iter().map(|id| known.remove(id).unwrap_or_default()).collect())
    }

    /// The same inside a transaction, by entry.
    pub(super) async fn handled_in(&self, tx: &Tx, ids: &[i64]) -> Result<HashMap<i64, HandlerHistory>, Fault> {
        Ok(histories(&tx.query(&self.sql.handled, &[&ids]).await?))
    }

    async fn forget_handled(&self, limit: usize) -> Result<u64> {
        let reader = self.database.reader().await.map_err(Fault::into_error)?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let (mut gone, mut after): (i64, (i64, String)) = (0, (0, String::new()));
        while gone < limit {
            // Each statement is its own transaction; a lost answer costs nothing.
            let params: [&(dyn ToSql + Sync); 4] = [&(limit - gone), &after.0, &after.1, &SWEPT_AT_ONCE];
            let rows = reader.query(&self.sql.forget_handled, &params).await.map_err(Fault::into_error)?;
            let Some(row) = rows.first() else { break };
            gone += row.get::<_, i64>(0);
            after = (row.get(1), row.get(2));
        }
        Ok(gone as u64)
    }
}

fn histories(rows: &[Row]) -> HashMap<i64, HandlerHistory> {
    let mut known: HashMap<i64, HandlerHistory> = HashMap::new();
    for row in rows {
        let history = known.entry(row.get(0)).or_default();
        let (handler, result): (Option<String>, Option<String>) = (row.get(1), row.get(2));
        match handler {
            Some(handler) => history.states.push((handler, result.unwrap_or_default())),
            None => history.previous = result,
        }
    }
    known
}
