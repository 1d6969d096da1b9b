//! Facts with any number of targets: what is ingested, and the answer.

use std::future::Future;

use tidegate_core::event::DEFAULT_MAX_ATTEMPTS;
use tidegate_core::{Availability, End, EntryId, Expiry, NewEvent, PayloadLimit, QueueName, Timestamp, Tsid};

use crate::error::{Error, ErrorKind, Result};
use crate::values::{Batch, Family};

/// The most targets of one fact.
pub const MAX_TARGETS: usize = 10_000;
/// The most facts and targets that one transaction writes, unless a single fact has more.
const MAX_ROWS: usize = 10_000;

/// A fact to be stored, and the entries and jobs to be made for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingest {
    /// The fact: type, payload, client and the other attributes of an event. What concerns its entry (queue, group,
    /// priority, keys, …) is ignored; the targets say it.
    pub fact: NewEvent,
    /// Where it goes, at most [`MAX_TARGETS`]. A fact without targets is stored all the same.
    pub targets: Vec<Target>,
}

/// An entry or a job to be made for a fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Whether it is an entry or a job.
    pub family: Family,
    /// Its queue. A queue of a client takes only facts of that client.
    pub queue: QueueName,
    /// The event type by which it is sorted into a lane and claimed; the fact's own when `None`. Another type than the
    /// fact's needs a lane of its own: it is refused where only the shared lane is left.
    pub lane_type: Option<String>,
    /// Its group, if it has one.
    pub group: Option<String>,
    /// Order within the group before the number.
    pub rank: i32,
    /// Lower values are claimed first.
    pub priority: i16,
    /// When it may first be claimed.
    pub available: Availability,
    /// From when on it is cancelled instead of claimed.
    pub expires: Option<Expiry>,
    /// Whether it stays live when it is exhausted.
    pub keeps_place: bool,
    /// Attempts after which it is exhausted.
    pub max_attempts: u32,
    /// How it ends when it is exhausted.
    pub exhausted_as: End,
}

/// The answer to an ingest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingested {
    /// The fact's id.
    pub event_id: Tsid,
    /// When it was stored, in database time.
    pub created_at: Timestamp,
    /// The numbers of its entries and jobs, in the order of the targets.
    pub targets: Vec<EntryId>,
}

impl Target {
    /// An entry of this queue with every option at its default.
    #[must_use]
    pub fn new(queue: QueueName) -> Self {
        Self {
            family: Family::Entries,
            queue,
            lane_type: None,
            group: None,
            rank: 0,
            priority: 0,
            available: Availability::Now,
            expires: None,
            keeps_place: false,
            max_attempts: DEFAULT_MAX_ATTEMPTS,
            exhausted_as: End::CompletedWithErrors,
        }
    }

    /// The type by which it is sorted into a lane.
    #[must_use]
    pub fn type_of_lane<'a>(&'a self, fact: &'a NewEvent) -> &'a str {
        self.lane_type.as_deref().unwrap_or(&fact.event_type)
    }

    /// Whether it needs a lane of its own: claims find out by the fact which type an entry of a shared lane has.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn needs_own_lane(&self, fact: &NewEvent) -> bool {
        self.type_of_lane(fact) != fact.event_type
    }

    /// Checks its fields as those of an event that is published.
    fn check(&self, fact: &NewEvent) -> Result<()> {
        if self.queue.client().is_some_and(|client| fact.client != Some(client)) {
            return Err(Error::invalid(format!(
                "the fact does not belong to the client of queue {}: name that client in the fact, or another queue",
                self.queue.name()
            )));
        }
        let mut event = NewEvent::new(self.type_of_lane(fact), "").queue(self.queue.clone());
        (event.group, event.keeps_place) = (self.group.clone(), self.keeps_place);
        (event.priority, event.available, event.expires) = (self.priority, self.available, self.expires);
        (event.max_attempts, event.exhausted_as) = (self.max_attempts, self.exhausted_as);
        Ok(event.check(PayloadLimit::default())?)
    }
}

impl Ingest {
    /// Checks every field of the fact and of its targets.
    ///
    /// # Errors
    /// `Invalid`, with the first field that is wrong and what would be accepted.
    pub fn check(&self, limit: PayloadLimit) -> Result<()> {
        bare(&self.fact).check(limit)?;
        if self.targets.len() > MAX_TARGETS {
            let count = self.targets.len();
            return Err(Error::invalid(format!("the fact has {count} targets: it may have {MAX_TARGETS}")));
        }
        self.targets.iter().try_for_each(|target| target.check(&self.fact))
    }

    /// Whether the fact has exactly one entry, as a published one has: it is then removed with that entry, and records
    /// no range of numbers.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn is_single(&self) -> bool {
        matches!(&self.targets[..], [target] if target.family == Family::Entries)
    }

    fn rows(&self) -> usize {
        1 + self.targets.len()
    }
}

/// A fact with the defaults for all that concerns its entry.
fn bare(fact: &NewEvent) -> NewEvent {
    let default = NewEvent::new("", "");
    let mut bare = fact.clone();
    bare.queue = default.queue;
    (bare.group, bare.keeps_place) = (None, false);
    (bare.deduplication, bare.idempotency) = (None, None);
    (bare.priority, bare.available, bare.expires) = (default.priority, default.available, None);
    (bare.max_attempts, bare.retries_of_queue) = (default.max_attempts, false);
    bare.exhausted_as = default.exhausted_as;
    bare
}

/// Writes a batch in transactions of bounded size. An error before anything was written is the answer to the whole
/// batch; a later one is the answer to each item that is not written.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) async fn in_parts<F>(items: Vec<Ingest>, write: impl Fn(Vec<Ingest>) -> F) -> Result<Batch<Ingested>>
where
    F: Future<Output = Result<Batch<Ingested>>>,
{
    let count = items.len();
    let mut answers = Vec::with_capacity(count);
    for part in parts(items) {
        match write(part).await {
            Ok(written) => answers.extend(written),
            Err(error) if answers.is_empty() => return Err(error),
            Err(error) => {
                answers.resize_with(count, || Err(error.clone()));
                break;
            }
        }
    }
    Ok(answers)
}

/// Splits a batch into parts of at most [`MAX_ROWS`] rows, or of one item.
fn parts(items: Vec<Ingest>) -> Vec<Vec<Ingest>> {
    let mut parts: Vec<Vec<Ingest>> = Vec::new();
    let mut rows = 0;
    for item in items {
        rows += item.rows();
        match parts.last_mut() {
            Some(part) if rows <= MAX_ROWS => part.push(item),
            _ => {
                rows = item.rows();
                parts.push(vec![item]);
            }
        }
    }
    parts
}

/// The error for a target whose lane type would have to share a lane.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn no_own_lane(queue: &QueueName, lane_type: &str) -> Error {
    Error::new(
        ErrorKind::Full,
        format!(
            "queue {queue} has as many event types with lanes of their own as it may, and {lane_type} needs one: use fewer \
             lane types, or wait until unused lanes are removed"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(targets: usize) -> Ingest {
        Ingest { fact: NewEvent::new("t", "{}"), targets: vec![Target::new(QueueName::default()); targets] }
    }

    #[test]
    fn parts_are_bounded_by_rows_and_an_item_is_never_split() {
        let sizes = |targets: &[usize]| {
            let parts = parts(targets.iter().map(|count| item(*count)).collect());
            parts.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[4_999, 4_999, 0, 4_999, 4_998]), [2, 3]);
        assert_eq!(sizes(&[1, 10_000, 1, 1]), [1, 1, 2]);
    }

    #[test]
    fn only_the_fields_of_the_fact_and_of_its_targets_count() {
        let limit = PayloadLimit::default();
        let mut one = item(1);
        one.fact.priority = 1_000;
        one.fact.group = Some(String::new());
        assert!(one.check(limit).is_ok(), "the fact has no group of its own");
        one.targets[0].group = Some(String::new());
        assert_eq!(one.check(limit).unwrap_err().kind(), ErrorKind::Invalid);
        one.targets[0].group = Some("g".into());
        assert!(one.check(limit).is_ok());
        one.targets[0].queue = QueueName::of(Some(Tsid::from_i64(7)), "q").unwrap();
        assert_eq!(one.check(limit).unwrap_err().kind(), ErrorKind::Invalid, "the fact is of no client");
        one.fact.client = Some(Tsid::from_i64(7));
        assert!(one.check(limit).is_ok());
        assert_eq!(item(MAX_TARGETS + 1).check(limit).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
