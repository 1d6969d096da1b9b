//! The closed set of reasons why an entry is not running.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::entry::End;

/// The reason why an entry is not running: the first that applies, in the order of the variants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Why {
    /// It has ended.
    Ended {
        /// How it ended.
        end: End,
        /// When it ended.
        at: Timestamp,
    },
    /// A worker holds it.
    Leased {
        /// The holder.
        worker: String,
        /// When the lease ends.
        until: Timestamp,
    },
    /// Its lease has expired; the next claim takes it over.
    Abandoned {
        /// The last holder.
        worker: String,
        /// When the lease expired.
        since: Timestamp,
    },
    /// Other entries of its group go first.
    BehindInGroup {
        /// The group.
        group: String,
        /// How many entries go first.
        ahead: u64,
    },
    /// Its attempts are used up, and it keeps its place: nothing else of its group runs before it is redriven, ended
    /// manually or expires.
    KeepsPlace {
        /// How it ends when it expires.
        end: End,
    },
    /// It failed and stepped aside: others of its group run until it is due.
    SteppedAside {
        /// When its retry is due.
        at: Timestamp,
    },
    /// Its queue is paused.
    QueuePaused,
    /// It is not due yet.
    DueAt {
        /// When it is due.
        at: Timestamp,
    },
    /// No consumer was seen lately that takes its type regardless of tags, or one of its tags.
    NoLiveConsumer {
        /// Its event type.
        event_type: String,
        /// Its tags.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        tags: Vec<String>,
    },
    /// Nothing holds it back: it is claimed next, or after entries that go before it.
    Ready {
        /// Entries of its queue that are claimed before it, counted up to 1,000.
        ahead: u64,
    },
}
