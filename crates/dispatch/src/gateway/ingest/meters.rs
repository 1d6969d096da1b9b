//! What is counted about ingest. No label names a client, a type or a subscription.

use metrics::{Counter, counter};

use super::Accepted;
use crate::gateway::error::Result;

/// The counters.
#[derive(Clone)]
pub(in crate::gateway) struct Meters {
    stored: Counter,
    repeated: Counter,
    refused: Counter,
    made: Counter,
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}

impl Default for Meters {
    fn default() -> Self {
        let ingested = |result: &'static str| counter!("tidegate_ingested_total", "result" => result);
        Self {
            stored: ingested("stored"),
            repeated: ingested("repeated"),
            refused: ingested("refused"),
            made: counter!("tidegate_matched_total"),
        }
    }
}

impl Meters {
    /// Counts an answer.
    pub(super) fn count(&self, answer: &Result<Accepted>) {
        match answer {
            Ok(accepted) if accepted.deduplicated => self.repeated.increment(1),
            Ok(Accepted { view, .. }) => {
                self.stored.increment(1);
                self.made.increment((view.jobs.len() + view.entries.len() + view.left_out.unwrap_or(0)) as u64);
            }
            Err(_) => self.refused.increment(1),
        }
    }
}
