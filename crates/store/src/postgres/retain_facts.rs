//! Retention of facts that were stored with no or several targets: each goes when it is old and nothing refers to it.
//! Rows that refer to such a fact are made in its own transaction, or added under a lock on it; so what is locked here and then
//! found free stays free.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::EntryId;
use tokio_postgres::types::ToSql;

use crate::error::Result;
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::store::Inner;
use crate::postgres::items::micros;
use crate::postgres::retain::SEARCH_FOR;
use crate::sql::Only;
use crate::values::Retained;

/// What a search found: facts to remove, and where the next batch begins.
#[derive(Debug, Default)]
struct Found {
    ids: Vec<i64>,
    next: Option<i64>,
}

impl Inner {
    /// Removes one batch of facts.
    pub(super) async fn remove_facts(
        &self,
        age: Duration,
        from: Option<EntryId>,
        batch: i64,
        retained: &mut Retained,
    ) -> Result<()> {
        let found = self.find_free(micros(age), from.map_or(0, EntryId::get), batch).await?;
        retained.next_facts = found.next.map(EntryId::new).transpose()?;
        if !found.ids.is_empty() {
            let ids = &found.ids;
            // Not repeated if its answer is lost: what is still there is found again.
            let remove = |tx: Arc<Tx>| async move {
                let locked = tx.rows(&self.sql.added.lock_free, &[ids]).await?;
                let locked: Vec<i64> = locked.into_iter().map(|Only(id)| id).collect();
                // Another statement, so that it sees what was added until then.
                tx.row(&self.sql.ingest.remove_free, &[&locked]).await
            };
            let removed = self.write(remove, |_, _| async { Ok(true) }).await?;
            retained.facts = removed.map_or(0, |Only(removed)| removed.unsigned_abs());
        }
        Ok(())
    }

    /// Walks along the facts by their first number until some can be removed, for at most [`SEARCH_FOR`]. A batch in which
    /// all are too young ends the round: numbers follow moments.
    async fn find_free(&self, age: i64, mut from: i64, batch: i64) -> Result<Found> {
        let began = Instant::now();
        loop {
            let params: [&(dyn ToSql + Sync); 4] = [&self.now(), &age, &from, &batch];
            let facts = self.read(|tx| async move { tx.rows(&self.sql.ingest.ranged_facts, &params).await }).await?;
            let is_full = facts.len() as i64 == batch;
            let next = facts.last().map(|fact| fact.first_number).filter(|_| is_full);
            let old = || facts.iter().filter(|fact| fact.is_old);
            let ids: Vec<i64> = old().filter(|fact| fact.is_free).map(|fact| fact.id).collect();
            match next.filter(|_| old().next().is_some()) {
                Some(next) if ids.is_empty() && began.elapsed() < SEARCH_FOR => from = next,
                next => return Ok(Found { ids, next }),
            }
        }
    }
}
