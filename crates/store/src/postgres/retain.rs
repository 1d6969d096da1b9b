//! Retention on PostgreSQL: removes old audit rows, log rows of a family and facts in small batches. Finding old rows takes no lock; only rows
//! to be removed are locked, and checked again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidegate_core::EntryId;
use tokio_postgres::types::ToSql;

use crate::error::Result;
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::{Inner, Opened};
use crate::postgres::flags::is_tagged;
use crate::postgres::items::micros;
use crate::postgres::statements::retain::OldRow;
use crate::sql::Statement;
use crate::values::{Family, Retained, Retention};

/// How long one batch searches for rows that can be removed.
pub(super) const SEARCH_FOR: Duration = Duration::from_millis(100);

/// What a search of the log found.
#[derive(Debug, Default)]
struct Found {
    /// Entries that can be removed.
    ids: Vec<i64>,
    /// Where the next search continues; `None` at the end.
    next: Option<i64>,
}

impl Opened {
    /// Removes one batch of each family's log, and of what the families share. The next one begins where the first of
    /// them stopped.
    pub(super) async fn retain(&self, retention: Retention) -> Result<Retained> {
        let of_jobs = Retention { audit: None, facts: None, ..retention };
        let jobs = self.family(Family::Jobs).retain(of_jobs).await?;
        let mut retained = self.family(Family::Entries).retain(retention).await?;
        retained.entries += jobs.entries;
        retained.next = [retained.next, jobs.next].into_iter().flatten().min();
        Ok(retained)
    }
}

impl Inner {
    pub(super) async fn retain(&self, retention: Retention) -> Result<Retained> {
        let batch = retention.batch.clamp(1, 10_000) as i64;
        let mut retained = Retained::default();
        if let Some(age) = retention.audit {
            let params: [&(dyn ToSql + Sync); 3] = [&self.now(), &micros(age), &batch];
            retained.audit = self.execute(&self.sql.retain.forget_audit, &params).await?;
        }
        if retention.log.is_some() || retention.dead_letters.is_some() {
            self.retain_log(&retention, batch, &mut retained).await?;
        }
        if let Some(age) = retention.facts {
            self.remove_facts(age, retention.facts_from, batch, &mut retained).await?;
        }
        Ok(retained)
    }

    async fn retain_log(&self, retention: &Retention, batch: i64, retained: &mut Retained) -> Result<()> {
        let found = self.find_old(retention, batch).await?;
        retained.next = found.next.map(EntryId::new).transpose()?;
        if !found.ids.is_empty() {
            let ids = &found.ids;
            // Not repeated if the answer to the commit is lost: what is still there is found again.
            let removed = self
                .write(|tx| async move { self.remove_entries(&tx, retention, ids).await }, |_, _| async { Ok(true) });
            retained.entries = removed.await?;
        }
        Ok(())
    }

    /// Walks the log by number until something can be removed, for at most [`SEARCH_FOR`]. Stops where everything was
    /// published too recently to be removed: entries end after they were published.
    async fn find_old(&self, retention: &Retention, mut batch: i64) -> Result<Found> {
        let began = Instant::now();
        let mut from = retention.from.map_or(0, EntryId::get);
        loop {
            let (log, dead) = ages(retention);
            let params: [&(dyn ToSql + Sync); 5] = [&self.now(), &log, &dead, &from, &batch];
            let (old_rows, _) = self.old_rows();
            let rows = self.read(|tx| async move { tx.rows(old_rows, &params).await }).await?;
            let full = rows.len() as i64 == batch;
            let mut entries = by_entry(&rows);
            // The last entry of a full batch may have further generations.
            if full && entries.len() == 1 {
                batch *= 2;
                continue;
            }
            if full {
                entries.pop();
            }
            let done: Option<i64> = entries.last().and_then(|rows| rows.first()).map(|row| row.id);
            let young = rows.iter().all(|row| row.is_young == Some(true));
            let ids: Vec<i64> = entries.into_iter().filter_map(removable).collect();
            let next = if full && !young { done } else { None };
            match next {
                Some(next) if ids.is_empty() && began.elapsed() < SEARCH_FOR => from = next,
                next => return Ok(Found { ids, next }),
            }
        }
    }

    /// The statements that find old log rows of this family: those above a number, and those of given entries, locked.
    fn old_rows(&self) -> (&Statement<OldRow>, &Statement<OldRow>) {
        let sql = &self.sql.retain;
        match self.family {
            Family::Entries => (&sql.old_rows, &sql.lock_old_rows),
            Family::Jobs => (&sql.old_jobs, &sql.lock_old_jobs),
        }
    }

    /// Locks these entries, and removes those that can still be removed. Returns how many.
    async fn remove_entries(&self, tx: &Tx, retention: &Retention, ids: &[i64]) -> Result<u64, Fault> {
        let sql = &self.sql.retain;
        if self.family == Family::Entries {
            // Counting waits for this lock, so that every row is added to the counts once and subtracted once.
            tx.query(&self.sql.log_counts.lock, &[]).await?;
        }
        let (log, dead) = ages(retention);
        let params: [&(dyn ToSql + Sync); 4] = [&self.now(), &log, &dead, &ids];
        let (_, lock_old_rows) = self.old_rows();
        let rows = tx.rows(lock_old_rows, &params).await?;
        let gone = Gone::new(&by_entry(&rows));
        if self.family == Family::Jobs {
            tx.execute(&sql.forget_jobs, &[&gone.ids, &gone.events]).await?;
        } else if !gone.ids.is_empty() {
            let (events, statuses, clients) = &gone.tagged;
            tx.execute(&sql.forget_entries, &[&gone.ids, &gone.events, events, statuses, clients]).await?;
            tx.execute(&sql.forget_stretches, &[&gone.ids]).await?;
            let [completed, errors, failed, cancelled] = gone.counts;
            tx.execute(&sql.uncount, &[&completed, &errors, &failed, &cancelled]).await?;
            if !gone.clients.is_empty() {
                let clients: Vec<i64> = gone.clients.keys().map(|(client, _)| *client).collect();
                let statuses: Vec<i16> = gone.clients.keys().map(|(_, status)| *status).collect();
                let rows: Vec<i64> = gone.clients.values().copied().collect();
                tx.execute(&sql.uncount_clients, &[&clients, &statuses, &rows]).await?;
            }
        }
        Ok(gone.ids.len() as u64)
    }
}

/// How old ended entries and dead letters must be, in microseconds; `None` for those that are kept.
fn ages(retention: &Retention) -> (Option<i64>, Option<i64>) {
    (retention.log.map(micros), retention.dead_letters.map(micros))
}

/// Log rows that come by number, entry by entry.
fn by_entry(rows: &[OldRow]) -> Vec<&[OldRow]> {
    rows.chunk_by(|a, b| a.id == b.id).collect()
}

/// The number of an entry, given its log rows by generation, if all of them can be removed.
fn removable(rows: &[OldRow]) -> Option<i64> {
    let last = rows.last()?;
    // If its last row was redriven, the entry is live.
    let lives = last.superseded == 1;
    let old = rows.iter().all(|row| row.is_old == Some(true));
    (!lives && old).then_some(last.id)
}

/// Entries to be removed, as arrays.
#[derive(Default)]
struct Gone {
    ids: Vec<i64>,
    events: Vec<i64>,
    /// For each log row of a tagged entry: its event, end and client.
    tagged: (Vec<i64>, Vec<i16>, Vec<Option<i64>>),
    /// Rows by end.
    counts: [i64; 4],
    /// Rows by client and end.
    clients: BTreeMap<(i64, i16), i64>,
}

impl Gone {
    fn new(entries: &[&[OldRow]]) -> Self {
        let mut gone = Self::default();
        for rows in entries {
            let (Some(id), Some(last)) = (removable(rows), rows.last()) else { continue };
            gone.ids.push(id);
            gone.events.push(last.event_id);
            for row in *rows {
                let counted = usize::try_from(row.status).ok();
                if let Some(count) = counted.and_then(|status| gone.counts.get_mut(status)) {
                    *count += 1;
                }
                if let Some(client) = row.client_id {
                    *gone.clients.entry((client, row.status)).or_default() += 1;
                }
                if is_tagged(Some(row.flags)) {
                    gone.tagged.0.push(row.event_id);
                    gone.tagged.1.push(row.status);
                    gone.tagged.2.push(row.client_id);
                }
            }
        }
        gone
    }
}
