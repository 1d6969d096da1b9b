//! What handlers answered while their entry is still live: the verbs and their values.

use std::collections::BTreeMap;

use async_trait::async_trait;
use tidegate_core::{EntryId, LeaseToken};

use crate::error::Result;
use crate::store::Batch;

/// Keeps what handlers answered, so that one that succeeded does not run again.
#[async_trait]
pub trait HandlerStates: Send + Sync {
    /// Records answers under leases: `Fenced` where the lease is not held. A later answer of a handler replaces its
    /// earlier one.
    async fn record_handled(&self, items: Vec<HandlerState>) -> Result<Batch<()>>;

    /// What is recorded about entries, in the order of the ids.
    async fn handled(&self, ids: Vec<EntryId>) -> Result<Vec<HandlerHistory>>;

    /// Removes records of entries that have ended, up to a number, and answers how many.
    async fn forget_handled(&self, limit: usize) -> Result<u64>;
}

/// One handler's answer about one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerState {
    /// Which entry.
    pub id: EntryId,
    /// Under which lease.
    pub token: LeaseToken,
    /// Which handler.
    pub handler: String,
    /// What it answered, JSON text.
    pub result: String,
}

/// What is known about an entry's handlers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HandlerHistory {
    /// Handlers and what they answered last, JSON text.
    pub states: Vec<(String, String)>,
    /// The results of the generation before this one, JSON text by handler, if the entry was redriven.
    pub previous: Option<String>,
}

impl HandlerHistory {
    /// Everything that is known, JSON text by handler, as a log row has it; a later answer counts. `None` when nothing
    /// is.
    #[must_use]
    pub fn results(&self) -> Option<String> {
        let previous = self.previous.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let mut all: BTreeMap<String, serde_json::Value> = previous.unwrap_or_default();
        for (handler, text) in &self.states {
            if let Ok(result) = serde_json::from_str(text) {
                all.insert(handler.clone(), result);
            }
        }
        if all.is_empty() { None } else { serde_json::to_string(&all).ok() }
    }
}
