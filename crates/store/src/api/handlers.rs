//! What handlers answered while their entry is still live.

use async_trait::async_trait;
use tidegate_core::EntryId;

use crate::error::Result;
use crate::values::{Batch, HandlerHistory, HandlerState};

/// Keeps the answers of handlers, so that a handler that succeeded does not run again.
#[async_trait]
pub trait HandlerStates: Send + Sync {
    /// Records answers under leases: `Fenced` where the lease is not held. A later answer of a handler replaces its
    /// earlier one.
    async fn record_handled(&self, items: Vec<HandlerState>) -> Result<Batch<()>>;

    /// What is recorded about these entries, in the order of the ids.
    async fn handled(&self, ids: Vec<EntryId>) -> Result<Vec<HandlerHistory>>;

    /// Removes at most `limit` records of entries that have ended, and returns how many it removed.
    async fn forget_handled(&self, limit: usize) -> Result<u64>;
}
