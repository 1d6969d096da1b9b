//! The heartbeat, and what happens to the leases of all families after an outage or when the clock was set back.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tidegate_core::Timestamp;

use crate::error::Result;
use crate::postgres::engine::connection::{Begin, Prelude, Tx};
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::postgres::flags::is_tagged;

/// The server ends a session that is idle in a transaction for this long (`idle_in_transaction_session_timeout`).
const LONGEST_TRANSACTION: Duration = Duration::from_secs(60);

/// What a heartbeat found out about the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beat {
    InTime,
    /// The last beat is this old: the store was down or blocked.
    AfterOutage(Duration),
    /// The last beat is this far in the future.
    ClockWentBack(Duration),
}

impl Inner {
    /// Refuses to write or to take over a lease while the heartbeat is too old or ahead of the clock. There are no
    /// outages on a clock that tests set.
    pub(super) fn accept_clock(&self, prelude: Prelude) -> Result<(), Fault> {
        if self.now().is_none() && !prelude.heartbeat_near { Err(Fault::StaleHeartbeat) } else { Ok(()) }
    }

    /// Writes the heartbeat, and returns the outage before it, if there was one. After an outage, leases that were held
    /// at the last beat are first moved by the gap. After the clock went back, leases that were written while it was
    /// ahead are first started over from now.
    pub(super) async fn beat(&self) -> Result<Option<Duration>> {
        if self.now().is_some() {
            return Ok(None);
        }
        let beaten = self
            .shared
            .heart
            .transact(Begin::Lazy, &|_| Ok(()), &|tx| async move { self.beat_in(&tx).await }.boxed(), &|_, _| {
                async { Ok(true) }.boxed()
            })
            .await;
        match beaten.map_err(Fault::into_error)? {
            Beat::InTime => Ok(None),
            Beat::AfterOutage(outage) => {
                tracing::warn!(?outage, "the store was down or blocked: leases were moved by that time");
                Ok(Some(outage))
            }
            Beat::ClockWentBack(by) => {
                tracing::warn!(
                    ?by,
                    "the database's clock went back: leases written while it was ahead were started over"
                );
                Ok(None)
            }
        }
    }

    async fn beat_in(&self, tx: &Tx) -> Result<Beat, Fault> {
        let sql = &self.sql.heartbeat;
        let interval = Duration::from_millis(800).min(self.shared.options.store.outage_after / 4);
        let mut found = None;
        // Locked only once it is clear that it has to be written: many nodes read it, one writes it.
        for statement in [&sql.last, &sql.lock] {
            let Some(row) = tx.row(statement, &[]).await? else { return Ok(Beat::InTime) };
            let (last, now) = (Timestamp::from(row.at), Timestamp::from(row.now));
            let gap = now.duration_since(last).unsigned_abs();
            if gap < interval && now >= last {
                return Ok(Beat::InTime);
            }
            found = Some((last, now, gap));
        }
        let Some((last, now, gap)) = found else { return Ok(Beat::InTime) };
        let read_at = Instant::now();
        tx.draw_xid().await?;
        let beat = match gap > self.shared.options.store.outage_after {
            false => {
                if self.clock_went_back_lately() {
                    self.shift_back(tx, now).await?;
                }
                Beat::InTime
            }
            true if now >= last => {
                for of in &self.shared.statements {
                    tx.execute(&of.heartbeat.shift_leases, &[&now, &last]).await?;
                }
                tx.execute(&self.sql.tags.shift_leases, &[&now, &last]).await?;
                tx.execute(&self.sql.dispatch.shift_slots, &[&now, &last]).await?;
                Beat::AfterOutage(gap)
            }
            true => {
                *self.shared.went_back.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                self.shift_back(tx, now).await?;
                Beat::ClockWentBack(gap)
            }
        };
        // Moving many leases may take long, so add the time since `now` was read, by our own monotonic clock. If the
        // database's clock is set meanwhile, the next beat notices.
        let at = now.checked_add(read_at.elapsed()).unwrap_or(now);
        tx.execute(&sql.beat, &[&at]).await?;
        Ok(beat)
    }

    /// Starts leases over that were written while the clock was ahead.
    async fn shift_back(&self, tx: &Tx, now: Timestamp) -> Result<(), Fault> {
        let mut moved = Vec::new();
        for of in &self.shared.statements {
            moved.extend(tx.rows(&of.heartbeat.shift_leases_back, &[&now]).await?);
        }
        let tagged: Vec<i64> = moved.iter().filter(|row| is_tagged(row.flags)).map(|row| row.id).collect();
        self.follow_tags(tx, &tagged).await
    }

    /// Whether a transaction that began before the clock went back may just have committed its leases.
    fn clock_went_back_lately(&self) -> bool {
        let went_back = self.shared.went_back.lock().unwrap_or_else(PoisonError::into_inner);
        went_back.is_some_and(|at| at.elapsed() < LONGEST_TRANSACTION)
    }
}
