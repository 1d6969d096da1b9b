//! Entries whose expiry has passed. A claim ends those that it finds; upkeep ends the others, wherever they wait.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::postgres::engine::connection::{Begin, Tx};
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::values::Finalize;

/// Most entries that one round ends.
const AT_ONCE: i64 = 1000;

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
            Ok((count, queues)) => {
                self.announce(queues);
                Ok(count)
            }
            Err(Fault::StaleHeartbeat) => Ok(0),
            Err(fault) => Err(fault.into_error()),
        }
    }

    async fn end_some_expired(&self, tx: &Tx) -> Result<(u64, BTreeSet<i32>), Fault> {
        let rows = tx.rows(&self.sql.end.lock_expired, &[&self.now(), &AT_ONCE]).await?;
        if rows.is_empty() {
            return Ok((0, BTreeSet::new()));
        }
        tx.draw_xid().await?;
        let ends = rows.into_iter().map(Finalize::try_from).collect::<Result<Vec<_>>>()?;
        let count = ends.len() as u64;
        Ok((count, self.end_for_good(tx, ends).await?))
    }
}
