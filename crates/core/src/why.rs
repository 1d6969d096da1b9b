//! Why an entry is not running.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::entry::End;

/// The closed set of reasons. The first that applies is given, in the order of the variants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Why {
    /// It ended.
    Ended {
        /// How.
        end: End,
        /// When.
        at: Timestamp,
    },
    /// A worker holds it.
    Leased {
        /// Who.
        worker: String,
        /// Until when.
        until: Timestamp,
    },
    /// Its worker's lease ran out; the next claim takes it over.
    Abandoned {
        /// Who held it.
        worker: String,
        /// When the lease ran out.
        since: Timestamp,
    },
    /// Others of its group go first.
    BehindInGroup {
        /// The group.
        group: String,
        /// How many.
        ahead: u64,
    },
    /// Its queue is paused.
    QueuePaused,
    /// It is not due yet.
    DueAt {
        /// When it is.
        at: Timestamp,
    },
    /// No consumer that takes its type, whatever the tags, or one of its tags was seen lately.
    NoLiveConsumer {
        /// The type.
        event_type: String,
        /// Its tags.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        tags: Vec<String>,
    },
    /// Nothing holds it back: it is next, or others that were published earlier are.
    Ready {
        /// How many entries of its queue can be claimed before it, counted up to 1,000.
        ahead: u64,
    },
}
