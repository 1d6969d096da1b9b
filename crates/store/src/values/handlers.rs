//! Answers of handlers.

use std::collections::BTreeMap;

use tidegate_core::{EntryId, LeaseToken};

/// One handler's answer about one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerState {
    /// The entry that was handled.
    pub id: EntryId,
    /// The lease under which the handler ran.
    pub token: LeaseToken,
    /// The handler's name.
    pub handler: String,
    /// The answer, as JSON text.
    pub result: String,
}

/// What is recorded about an entry's handlers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HandlerHistory {
    /// The last answer of each handler: its name, and the answer as JSON text.
    pub states: Vec<(String, String)>,
    /// The results of the previous generation (a JSON object by handler), if the entry was redriven, or those that it was
    /// kept in its place with.
    pub previous: Option<String>,
}

impl HandlerHistory {
    /// All known results as the JSON object by handler that a log row holds; the current generation wins over the
    /// previous one. `None` when there are none.
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
