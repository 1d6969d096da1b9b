//! Extending leases and giving them back, by entry number and lease token.

use std::time::Duration;

use tidegate_core::{EntryId, LeaseToken, Timestamp};
use tidegate_store::{Extend, Requeue, RequeueAt};

use super::EventQueue;
use crate::background::wake::delay_of;
use crate::error::Result;
use crate::options::check_lease;

impl EventQueue {
    /// Extends the lease identified by id and token to `lease` from now, and returns its new end.
    ///
    /// # Errors
    /// `Invalid` when `lease` is out of range, `Fenced` when the lease is not held.
    pub async fn extend(&self, id: EntryId, token: LeaseToken, lease: Duration) -> Result<Timestamp> {
        check_lease(lease)?;
        self.shared().batchers.extend.call(Extend { id, token, lease }).await
    }

    /// Gives the lease identified by id and token back. The attempt does not count.
    ///
    /// # Errors
    /// `Fenced` when the lease is not held.
    pub async fn release(&self, id: EntryId, token: LeaseToken) -> Result<()> {
        self.requeue(Requeue {
            id,
            token,
            when: RequeueAt::Now,
            counts: false,
            aside: false,
            error: None,
            attempt: None,
        })
        .await
    }

    /// Gives a lease back; the entry is due again after `delay`. The attempt does not count.
    ///
    /// # Errors
    /// `Fenced` when the lease is not held.
    pub async fn snooze(&self, id: EntryId, token: LeaseToken, delay: Duration) -> Result<()> {
        self.requeue(Requeue {
            id,
            token,
            when: RequeueAt::After(delay),
            counts: false,
            aside: false,
            error: None,
            attempt: None,
        })
        .await
    }

    /// Gives a lease back: now, after a delay or at a moment, with or without counting the attempt.
    ///
    /// # Errors
    /// `Fenced` when the lease is not held.
    pub async fn requeue(&self, item: Requeue) -> Result<()> {
        let shared = self.shared();
        let (when, counts) = (item.when, item.counts);
        shared.batchers.requeue.call(item).await?;
        if counts {
            shared.meters.retried.increment(1)
        } else {
            shared.meters.released.increment(1)
        }
        match delay_of(when) {
            None => shared.wake_ups.wake(self.name()),
            Some(delay) => shared.wake_ups.wake_after(self.name(), delay),
        }
        Ok(())
    }
}
