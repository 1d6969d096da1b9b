//! Entries whose expiry has passed. A claim ends those that it finds; upkeep ends the others, wherever they wait.

use std::collections::BTreeSet;

use tidegate_core::End;

use crate::error::Result;
use crate::postgres::engine::connection::{Begin, Tx};
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::postgres::flags::{is_audited, is_kept};
use crate::values::Finalize;

/// Most entries that one round ends.
const AT_ONCE: i64 = 1000;

/// What one round ended.
#[derive(Debug, Default)]
struct Expired {
    count: u64,
    /// Queues in which others were promoted.
    promoted: BTreeSet<i32>,
    /// Queue and end of each entry, without those that were kept and told as exhausted before.
    told: Vec<(i32, End)>,
}

impl Inner {
    /// Ends entries whose expiry has passed and that no worker holds, and promotes in their groups. Returns how many. A
    /// lease must not seem to have run out while the heartbeat is old: the next round comes after a beat.
    pub(super) async fn end_expired(&self) -> Result<u64> {
        let ended = self
            .transact(
                Begin::Lazy,
                |prelude| self.accept_clock(prelude),
                |tx| async move { self.end_some_expired(&tx).await },
                // Running it again is harmless: what ended is not found again.
                |_, _| async { Ok(false) },
            )
            .await;
        match ended {
            Ok(expired) => {
                self.announce(expired.promoted);
                let catalog = self.catalog().await?;
                for (queue_id, end) in expired.told {
                    if let Some(queue) = catalog.queue_by_id(queue_id) {
                        self.exhausted.add(&queue.name, end);
                    }
                }
                Ok(expired.count)
            }
            Err(Fault::StaleHeartbeat) => Ok(0),
            Err(fault) => Err(fault.into_error()),
        }
    }

    async fn end_some_expired(&self, tx: &Tx) -> Result<Expired, Fault> {
        let rows = tx.rows(&self.sql.end.lock_expired, &[&self.now(), &AT_ONCE]).await?;
        if rows.is_empty() {
            return Ok(Expired::default());
        }
        tx.draw_xid().await?;
        let mut expired = Expired { count: rows.len() as u64, ..Expired::default() };
        let mut ends = Vec::with_capacity(rows.len());
        let abandoned = rows.iter().filter(|row| row.is_leased && is_audited(row.flags));
        let abandoned: Vec<(i64, i64)> = abandoned.map(|row| (row.id, row.token + 1)).collect();
        self.audit_claim(tx, &abandoned, &[], None).await?;
        for row in rows {
            let (queue_id, was_kept) = (row.queue_id, is_kept(row.flags));
            let end = Finalize::try_from(row)?;
            expired.told.extend((!was_kept).then_some((queue_id, end.end)));
            ends.push(end);
        }
        expired.promoted = self.end_for_good(tx, ends).await?;
        Ok(expired)
    }
}
