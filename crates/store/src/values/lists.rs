//! Lists of entries.

use tidegate_core::{EntryId, QueueName, Status, Timestamp, Tsid};

use crate::values::{EntryPhase, EntryView};

/// Which entries to list. An entry must match every field that is set; of the tags, one is enough.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListQuery {
    /// With this status.
    pub status: Option<Status>,
    /// With any of these tags; all entries when empty.
    pub tags: Vec<String>,
    /// In this queue.
    pub queue: Option<QueueName>,
    /// Of this type.
    pub event_type: Option<String>,
    /// Held or ended by this worker.
    pub worker: Option<String>,
    /// In this client's queues.
    pub client: Option<Tsid>,
    /// Published at this moment or later.
    pub from: Option<Timestamp>,
    /// Published before this moment.
    pub to: Option<Timestamp>,
    /// Only entries with a smaller number (a cursor).
    pub before: Option<EntryId>,
    /// The most entries to return.
    pub limit: usize,
    /// How many entries to skip first.
    pub offset: usize,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// The entries, youngest first.
    pub items: Vec<EntrySummary>,
    /// How many entries match in all, before and after this page too, as far as they were counted.
    pub total: u64,
    /// Whether there may be more than `total`.
    pub total_capped: bool,
    /// The cursor of the next page; `None` on the last page. A page may be short although there is a next one.
    pub next: Option<EntryId>,
}

/// An entry in a list: without payload and description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntrySummary {
    /// The entry's number.
    pub id: EntryId,
    /// The event's id.
    pub event_id: Tsid,
    /// Its queue.
    pub queue: QueueName,
    /// Its type.
    pub event_type: String,
    /// A short title for people.
    pub title: Option<String>,
    /// Its tags.
    pub tags: Vec<String>,
    /// The client of its queue.
    pub client: Option<Tsid>,
    /// Where it is in its life.
    pub status: Status,
    /// Attempts so far.
    pub attempts: u32,
    /// The number of attempts after which it ends.
    pub max_attempts: u32,
    /// When it is tried again; `None` unless it waits for a retry.
    pub next_retry_at: Option<Timestamp>,
    /// The worker that holds or ended it.
    pub worker: Option<String>,
    /// Lower values are claimed first.
    pub priority: i16,
    /// Its group, if it has one.
    pub group: Option<String>,
    /// When it was published.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl EntrySummary {
    /// Retries used so far.
    #[must_use]
    pub fn retry_count(&self) -> u32 {
        tidegate_core::attempt::retry_count(self.attempts, self.status == Status::Pending)
    }
}

impl EntryPhase {
    /// The phase as a status.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Waiting { .. } | Self::Parked | Self::Aside { .. } | Self::Kept { .. } => Status::Pending,
            Self::Leased { .. } => Status::Processing,
            Self::Ended { end, .. } => (*end).into(),
        }
    }
}

impl EntryView {
    /// Where it is in its life, as a status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.phase.status()
    }

    /// Retries used so far.
    #[must_use]
    pub fn retry_count(&self) -> u32 {
        let waits = self.status() == Status::Pending && !matches!(self.phase, EntryPhase::Kept { .. });
        tidegate_core::attempt::retry_count(self.attempts, waits)
    }

    /// Retries allowed.
    #[must_use]
    pub fn max_retries(&self) -> u32 {
        self.max_attempts.saturating_sub(1)
    }

    /// When it is tried again; `None` unless it waits for a retry.
    #[must_use]
    pub fn next_retry_at(&self) -> Option<Timestamp> {
        match self.phase {
            EntryPhase::Waiting { due } => next_retry_at(due, self.attempts, self.updated_at),
            EntryPhase::Aside { due } => next_retry_at(Some(due), self.attempts, self.updated_at),
            _ => None,
        }
    }
}

/// A due moment is that of a retry if there was an attempt and the moment was later than `updated_at`, when it was set.
pub(crate) fn next_retry_at(due: Option<Timestamp>, attempts: u32, updated_at: Timestamp) -> Option<Timestamp> {
    due.filter(|due| attempts > 0 && *due > updated_at)
}
