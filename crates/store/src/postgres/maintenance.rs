//! Maintenance that one process does for all, elected by a lease: lanes that nobody uses, consumers of long ago. Expired keys
//! are everybody's, since several can remove them side by side.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::Timestamp;

use super::Inner;
use super::errors::Fault;
use super::items::micros;
use crate::error::Result;

/// How often the elected process looks after lanes and consumers.
const EVERY: Duration = Duration::from_secs(15);
/// A look at all lanes that took longer than this is followed by a pause of [`LANES_SHARE`] times as long: where vacuum
/// cannot remove dead rows, it reads all of them.
const LANES_SLOW: Duration = Duration::from_millis(500);
const LANES_SHARE: u32 = 50;
/// But for at most this long: an entry in a lane that was removed waits for the look.
const LANES_PAUSE: Duration = Duration::from_secs(600);
/// How long it stays elected without a sign of life.
const LEASE: Duration = Duration::from_secs(60);
/// How long consumers that were not seen are remembered.
const CONSUMERS_KEPT: Duration = Duration::from_secs(24 * 3600);
/// How long one round of upkeep removes expired keys: half of the time, however many there are.
const KEYS_BUDGET: Duration = Duration::from_millis(500);
/// Keys that one statement removes.
const KEYS_AT_ONCE: u64 = 1000;
/// The task that a process is elected for.
const UPKEEP: &str = "upkeep";
/// How long closing waits to give the lease back; it runs out anyway.
const RESIGN_WITHIN: Duration = Duration::from_secs(1);

/// When this process last took its turn, under which name it does, and until when it leaves the lanes alone.
#[derive(Debug)]
pub(super) struct Maintenance {
    name: String,
    last: Mutex<Option<Timestamp>>,
    lanes_from: Mutex<Option<Instant>>,
}

impl Default for Maintenance {
    fn default() -> Self {
        Self { name: format!("{:016x}", rand::random::<u64>()), last: Mutex::default(), lanes_from: Mutex::default() }
    }
}

impl Maintenance {
    fn is_due(&self, now: Timestamp) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // A clock that was set back is no reason to wait for it.
        let due = last.is_none_or(|last| !Duration::try_from(now.duration_since(last)).is_ok_and(|age| age < EVERY));
        if due {
            *last = Some(now);
        }
        due
    }

    fn may_look_at_lanes(&self, now: Instant) -> bool {
        self.lanes_from.lock().unwrap_or_else(PoisonError::into_inner).is_none_or(|from| now >= from)
    }

    fn looked_at_lanes(&self, took: Duration, now: Instant) {
        let from = (took > LANES_SLOW).then(|| now + took.saturating_mul(LANES_SHARE).min(LANES_PAUSE));
        *self.lanes_from.lock().unwrap_or_else(PoisonError::into_inner) = from;
    }
}

impl Inner {
    /// What one process does for all, now and then.
    pub(super) async fn maintain_for_all(&self) -> Result<()> {
        if !self.maintenance.is_due(self.moment()) {
            return Ok(());
        }
        self.note_lanes().await.map_err(Fault::into_error)?;
        if self.elect(UPKEEP, LEASE).await? {
            let began = Instant::now();
            if self.maintenance.may_look_at_lanes(began) {
                self.tend_lanes().await.map_err(Fault::into_error)?;
                self.maintenance.looked_at_lanes(began.elapsed(), Instant::now());
            }
            let reader = self.database.reader().await.map_err(Fault::into_error)?;
            let forget = reader.execute(&self.sql.forget_consumers, &[&self.now(), &micros(CONSUMERS_KEPT)]).await;
            forget.map_err(Fault::into_error)?;
        }
        Ok(())
    }

    /// Makes this process the one that does a task, or keeps it so; false when another one is.
    pub(super) async fn elect(&self, task: &str, lease: Duration) -> Result<bool> {
        let reader = self.database.reader().await.map_err(Fault::into_error)?;
        let elected =
            reader.execute(&self.sql.elect, &[&self.now(), &task, &self.maintenance.name, &micros(lease)]).await;
        Ok(elected.map_err(Fault::into_error)? > 0)
    }

    /// Lets others be elected at once.
    pub(super) async fn resign(&self) {
        let resigned = async {
            let reader = self.database.reader().await?;
            reader.execute(&self.sql.resign, &[&self.maintenance.name]).await
        };
        if let Ok(Err(fault)) = tokio::time::timeout(RESIGN_WITHIN, resigned).await {
            tracing::debug!(error = %fault.into_error(), "the lease of maintenance runs out by itself");
        }
    }

    /// Removes expired keys, statement by statement, as long as there are any and the round has time.
    pub(super) async fn expire_keys(&self) -> Result<u64> {
        let began = Instant::now();
        let mut expired = 0;
        loop {
            let reader = self.database.reader().await.map_err(Fault::into_error)?;
            // One statement, its own transaction; a lost answer costs nothing.
            let gone = reader.execute(&self.sql.expire_keys, &[&self.now()]).await.map_err(Fault::into_error)?;
            expired += gone;
            if gone < KEYS_AT_ONCE || began.elapsed() > KEYS_BUDGET {
                return Ok(expired);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_look_at_the_lanes_is_followed_by_a_long_pause() {
        let (maintenance, now) = (Maintenance::default(), Instant::now());
        assert!(maintenance.may_look_at_lanes(now));
        maintenance.looked_at_lanes(LANES_SLOW, now);
        assert!(maintenance.may_look_at_lanes(now));
        maintenance.looked_at_lanes(LANES_SLOW * 2, now);
        let over = now + LANES_SLOW * 2 * LANES_SHARE;
        assert!(!maintenance.may_look_at_lanes(over - Duration::from_millis(1)) && maintenance.may_look_at_lanes(over));
        maintenance.looked_at_lanes(LANES_PAUSE, over);
        assert!(maintenance.may_look_at_lanes(over + LANES_PAUSE), "not for ever");
        maintenance.looked_at_lanes(Duration::ZERO, over);
        assert!(maintenance.may_look_at_lanes(over));
    }
}
