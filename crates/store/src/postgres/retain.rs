//! Forgetting what is old, in small batches, on PostgreSQL.

use std::time::Duration;

use futures_util::FutureExt;
use tidegate_core::EntryId;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Inner;
use super::connection::{Begin, Tx};
use super::errors::Fault;
use super::items::micros;
use crate::error::{Error, Result};
use crate::work::{Retained, Retention};

impl Inner {
    pub(super) async fn retain(&self, retention: Retention) -> Result<Retained> {
        let batch = retention.batch.clamp(1, 10_000) as i64;
        let retention = &retention;
        let retained = self
            .database
            .transact(
                Begin::Write,
                &|_| Ok(()),
                &|tx| async move { self.retain_some(&tx, retention, batch).await }.boxed(),
                // What is gone is gone; what is not is found again.
                &|_, _| async { Ok(true) }.boxed(),
            )
            .await;
        retained.map_err(Fault::into_error)
    }

    async fn retain_some(&self, tx: &Tx, retention: &Retention, batch: i64) -> Result<Retained, Fault> {
        let mut retained = Retained::default();
        if let Some(age) = retention.audit {
            let params: [&(dyn ToSql + Sync); 3] = [&self.now(), &micros(age), &batch];
            retained.audit = tx.execute(&self.sql.work.forget_audit, &params).await?;
        }
        if retention.log.is_some() || retention.dead_letters.is_some() {
            self.forget_entries(tx, retention, batch, &mut retained).await?;
        }
        Ok(retained)
    }

    async fn forget_entries(
        &self,
        tx: &Tx,
        retention: &Retention,
        batch: i64,
        retained: &mut Retained,
    ) -> Result<(), Fault> {
        let sql = &self.sql.work;
        // Whoever counts waits, so that every row is counted once and taken off once.
        tx.query(&sql.lock_counts, &[]).await?;
        let age = |age: Option<Duration>| age.map(micros);
        let from = retention.from.map_or(0, EntryId::get);
        let params: [&(dyn ToSql + Sync); 5] =
            [&self.now(), &age(retention.log), &age(retention.dead_letters), &from, &batch];
        let rows = tx.query(&sql.old_rows, &params).await?;
        let full = rows.len() as i64 == batch;
        let last: Option<i64> = rows.last().map(|row| row.get(0));
        let mut entries: Vec<&[Row]> = rows.chunk_by(|a, b| a.get::<_, i64>(0) == b.get::<_, i64>(0)).collect();
        // The last entry of a full batch may have further generations.
        if full && entries.len() > 1 {
            entries.pop();
        }
        let done: Option<i64> = entries.last().and_then(|rows| rows.first()).map(|row| row.get(0));
        let gone = Gone::new(&entries);
        if !gone.ids.is_empty() {
            tx.execute(&sql.forget_entries, &[&gone.ids, &gone.events, &gone.tagged.0, &gone.tagged.1]).await?;
            let [completed, errors, failed, cancelled] = gone.counts;
            tx.execute(&sql.uncount, &[&completed, &errors, &failed, &cancelled]).await?;
        }
        retained.entries = gone.ids.len() as u64;
        let next = if full { done.or(last) } else { None };
        retained.next = next.map(EntryId::new).transpose().map_err(Error::from)?;
        Ok(())
    }
}

/// Entries to be removed, as arrays.
#[derive(Default)]
struct Gone {
    ids: Vec<i64>,
    events: Vec<i64>,
    /// One for each log row of a tagged entry: its event and how it ended.
    tagged: (Vec<i64>, Vec<i16>),
    counts: [i64; 4],
}

impl Gone {
    fn new(entries: &[&[Row]]) -> Self {
        let mut gone = Self::default();
        for rows in entries {
            let Some(last) = rows.last() else { continue };
            // A last row that was redriven belongs to a live entry.
            let lives = last.get::<_, i16>(3) == 1;
            let old = rows.iter().all(|row| row.get::<_, Option<bool>>(5) == Some(true));
            if lives || !old {
                continue;
            }
            gone.ids.push(last.get(0));
            gone.events.push(last.get(1));
            for row in *rows {
                let status: i16 = row.get(2);
                if let Some(count) = usize::try_from(status).ok().and_then(|status| gone.counts.get_mut(status)) {
                    *count += 1;
                }
                if row.get::<_, i16>(4) & 1 != 0 {
                    gone.tagged.0.push(row.get(1));
                    gone.tagged.1.push(status);
                }
            }
        }
        gone
    }
}
