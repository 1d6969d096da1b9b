//! Publishing, claiming and ending: the verbs that every queue has, wherever it is kept.

use std::collections::BTreeSet;

use async_trait::async_trait;
use tidegate_core::{End, NewEvent, QueueName, Timestamp};
use tokio::sync::broadcast;

use crate::error::Result;
use crate::values::{Backend, Batch, Claim, Claimed, Extend, Finalize, Finalized, Published, Requeue, Wake};
use crate::waiting_claim::WaitingClaim;

/// A queue's own verbs.
///
/// Every write verb is one transaction over a batch. The outer error means that nothing of the batch happened (or, when
/// it is [`ErrorKind::Indeterminate`](crate::ErrorKind::Indeterminate), that it may have); otherwise each item has its
/// own answer. Futures may be dropped at any moment: the call then takes effect completely or not at all.
#[async_trait]
pub trait Queue: std::fmt::Debug + Send + Sync + 'static {
    /// The database behind this store.
    fn backend(&self) -> Backend;

    /// Writes events and their entries. The ids of one call rise in the order of its items.
    async fn publish(&self, events: Vec<NewEvent>) -> Result<Batch<Published>>;

    /// Leases up to `claim.max` eligible entries, by priority and then in order, with payloads of at most
    /// [`MAX_CLAIM_BYTES`] together, so fewer than asked for does not mean that there are no more. Entries whose
    /// attempts are exhausted end here instead. The answer is empty when there is nothing to claim.
    async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>>;

    /// Moves entries to the log. With a token: `Fenced` unless that lease is held; a repeat under the token that ended
    /// the entry is `Ok` with `repeated`. Without a token: the entry ends whether it is held or not, and one that has
    /// ended already is `Ok` with `repeated`.
    async fn finalize(&self, items: Vec<Finalize>) -> Result<Batch<Finalized>>;

    /// Extends leases to `lease` from now and returns their new ends.
    async fn extend(&self, items: Vec<Extend>) -> Result<Batch<Timestamp>>;

    /// Gives leases back, to be claimed at once or later, with or without counting the attempt.
    async fn requeue(&self, items: Vec<Requeue>) -> Result<Batch<()>>;

    /// Entries that claims have ended since the last call (exhausted, or without a fact), by queue and end. No caller
    /// gets an answer about those, so they are counted here.
    fn take_exhausted(&self) -> Vec<(QueueName, End, u64)> {
        Vec::new()
    }

    /// Registers a claim that is answered as soon as something becomes claimable for it. `None`: this store does not
    /// support it, or too many claims wait already. What was claimable before is found by [`claim`](Self::claim) or by
    /// [`WaitingClaim::look`].
    fn claim_when_available(&self, _claim: Claim) -> Option<WaitingClaim> {
        None
    }

    /// Cancels all waiting claims.
    fn cancel_waiting_claims(&self) {}

    /// Refuses a caller that could never be answered: one that holds the transaction that every other call of this
    /// store waits for. To be called in the caller's own task, before the call is handed to another task.
    ///
    /// # Errors
    /// `Invalid`, with what to do instead.
    fn check_caller(&self) -> Result<()> {
        Ok(())
    }

    /// Hints that something may be claimable. Losing one costs time, never an event.
    fn wakeups(&self) -> broadcast::Receiver<Wake>;

    /// Tells the store that the caller's own transaction, which published into these queues, has committed.
    fn wake(&self, queues: BTreeSet<QueueName>);

    /// Stops background work and closes connections. May be called more than once.
    async fn close(&self);
}
