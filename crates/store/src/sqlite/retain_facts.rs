//! Retention of facts that were stored with no or several targets: each goes when it is old and nothing refers to it.

use std::time::{Duration, Instant};

use tidegate_core::EntryId;

use crate::error::Result;
use crate::sqlite::engine::jobs::Urgency;
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::{Tx, entry_id};
use crate::sqlite::retain::{SEARCH_TIME, before};
use crate::values::Retained;
use crate::values::fact_keys::TERM;

/// What a search found: facts to remove, and where the next batch begins.
#[derive(Debug, Default)]
struct Found {
    ids: Vec<i64>,
    next: Option<i64>,
}

impl SqliteStore {
    /// Removes one batch of facts.
    pub(super) async fn remove_facts(
        &self,
        age: Duration,
        from: Option<EntryId>,
        batch: i64,
        retained: &mut Retained,
    ) -> Result<()> {
        let from = from.map_or(0, EntryId::get);
        let found = self.read(move |tx| find(tx, age, from, batch)).await?;
        retained.next_facts = found.next.map(entry_id).transpose()?;
        if !found.ids.is_empty() {
            retained.facts = self.write(Urgency::Publish, move |tx| remove(tx, &found.ids)).await?;
        }
        Ok(())
    }
}

/// Walks along the facts by their first number until some can be removed, for at most [`SEARCH_TIME`]. A batch in which all
/// are too young ends the round: numbers follow moments.
fn find(tx: &Tx<'_>, age: Duration, mut from: i64, batch: i64) -> Result<Found> {
    let began = Instant::now();
    let limit = before(tx, age);
    loop {
        let facts = tx.rows(&tx.sql().ingest.ranged_facts, (from, batch))?;
        let is_full = facts.len() as i64 == batch;
        let next = facts.last().map(|fact| fact.first_number).filter(|_| is_full);
        let old = || facts.iter().filter(|fact| fact.created_at < limit);
        let ids: Vec<i64> = old().filter(|fact| fact.is_free).map(|fact| fact.id).collect();
        match next.filter(|_| old().next().is_some()) {
            Some(next) if ids.is_empty() && began.elapsed() < SEARCH_TIME => from = next,
            next => return Ok(Found { ids, next }),
        }
    }
}

/// Removes those of these facts that nothing refers to, with their terms and the keys of what was added to them, and returns how many.
fn remove(tx: &Tx<'_>, ids: &[i64]) -> Result<u64> {
    let mut removed = 0;
    for id in ids {
        for gone in tx.rows(&tx.sql().ingest.remove_free, [id])? {
            for term in gone.terms.unwrap_or_default().chunks_exact(TERM) {
                tx.execute(&tx.sql().ingest.remove_term, (term, gone.client_id.unwrap_or(0), id))?;
            }
            tx.execute(&tx.sql().added.forget, [id])?;
            removed += 1;
        }
    }
    Ok(removed)
}
