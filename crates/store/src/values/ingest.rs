//! Facts with any number of targets: what is ingested, and the answer.

use std::future::Future;
use std::sync::Arc;

use tidegate_core::event::DEFAULT_MAX_ATTEMPTS;
use tidegate_core::name::check_group;
use tidegate_core::{
    Availability, End, EntryId, Expiry, NewEvent, PayloadLimit, QueueName, QueueSettings, Timestamp, Tsid,
};

use crate::error::{Error, ErrorKind, Result};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::values::fact_keys::TERM;
use crate::values::{Batch, CatalogueVersion, FactKey, FactTerm, Family};

/// The most targets of one fact.
pub const MAX_TARGETS: usize = 10_000;
/// The most terms of one fact.
pub const MAX_TERMS: usize = 128;
/// The most bytes that the text of a task may have.
pub const MAX_TASK_BYTES: usize = 64 << 10;
/// The most facts and targets that one transaction writes, unless a single fact has more.
pub const MAX_INGEST_ROWS: usize = 10_000;

/// A fact to be stored, and the entries and jobs to be made for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingest {
    /// The fact: type, payload, client and the other attributes of an event. What concerns its entry (queue, group,
    /// priority, keys, …) is ignored; the targets say it.
    pub fact: NewEvent,
    /// Where it goes, at most [`MAX_TARGETS`]. A fact without targets is stored all the same.
    pub targets: Vec<Target>,
    /// At most one of each kind. While one of them is known, the fact is not stored again: see [`IngestOutcome`].
    pub keys: Vec<FactKey>,
    /// By what else it is found, at most [`MAX_TERMS`]. A fact with terms stands alone.
    pub terms: Vec<FactTerm>,
    /// Whether it has the retention of facts even with exactly one entry, and is found by a search. Otherwise such a fact
    /// goes with its entry, and that of a single task with its job.
    pub stands_alone: bool,
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
    /// Where it goes instead, if that lane is one too many of its kind.
    pub spare_lane: Option<SpareLane>,
    /// Of a job, what is said about it alone: at most [`MAX_TASK_BYTES`] that the store does not read.
    pub task: Option<Arc<str>>,
    /// Its group, if it has one; it may be longer than those of events that are published.
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
    /// Whether it carries the whole event as a CloudEvent in structured mode, instead of the data alone. Jobs ignore it:
    /// whoever delivers them decides.
    pub in_envelope: bool,
    /// Attempts after which it is exhausted.
    pub max_attempts: u32,
    /// Whether the queue's own number of retries, if it sets one, replaces `max_attempts`.
    pub retries_of_queue: bool,
    /// How it ends when it is exhausted.
    pub exhausted_as: End,
}

/// Bounds how many lanes of a kind a queue has: from there on, jobs that would need a further one share a few.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpareLane {
    /// What the types of such lanes begin with.
    pub kind: &'static str,
    /// How many of them a queue has before the spare ones are used. Several processes at once may make a few more.
    pub most: usize,
    /// The type by which the job is sorted into a lane then.
    pub lane_type: String,
}

/// The answer to an ingest of a fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingested {
    /// The fact's id; of a duplicate, that of the first.
    pub event_id: Tsid,
    /// When it was stored, in database time.
    pub created_at: Timestamp,
    /// The numbers of its entries and jobs, in the order of the targets; none for a duplicate.
    pub targets: Vec<EntryId>,
    /// Whether it is new.
    pub outcome: IngestOutcome,
}

/// Whether an ingest stored a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngestOutcome {
    /// The fact is new.
    New,
    /// Nothing was written: the answer names the first fact under the same key.
    Duplicate,
}

/// The answer to an ingest of a batch.
#[derive(Debug, Clone)]
pub enum IngestAnswer {
    /// It took place; an answer for each item.
    Done(Batch<Ingested>),
    /// Nothing was written: the catalogue has this version, not the one that was asked for.
    Stale(CatalogueVersion),
}

impl Target {
    /// An entry of this queue with every option at its default.
    #[must_use]
    pub fn new(queue: QueueName) -> Self {
        Self {
            family: Family::Entries,
            queue,
            lane_type: None,
            spare_lane: None,
            task: None,
            group: None,
            rank: 0,
            priority: 0,
            available: Availability::Now,
            expires: None,
            keeps_place: false,
            in_envelope: false,
            max_attempts: DEFAULT_MAX_ATTEMPTS,
            retries_of_queue: false,
            exhausted_as: End::CompletedWithErrors,
        }
    }

    /// The type by which it is sorted into a lane.
    #[must_use]
    pub fn type_of_lane<'a>(&'a self, fact: &'a NewEvent) -> &'a str {
        self.lane_type.as_deref().unwrap_or(&fact.event_type)
    }

    /// The type by which it is sorted into a lane of a queue that has lanes of these types.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn type_among<'a, 't>(
        &'a self,
        fact: &'a NewEvent,
        has: impl FnOnce(&str) -> bool,
        types: impl Iterator<Item = &'t str>,
    ) -> &'a str {
        let own = self.type_of_lane(fact);
        match &self.spare_lane {
            Some(spare) if !has(own) && spare.is_used(types) => &spare.lane_type,
            _ => own,
        }
    }

    /// The attempts after which it is exhausted in a queue with these settings.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn attempts_in(&self, settings: &QueueSettings) -> u32 {
        settings.attempts(self.retries_of_queue, self.max_attempts)
    }

    /// Whether it needs a lane of its own: claims find out by the fact which type an entry of a shared lane has.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn needs_own_lane(&self, fact: &NewEvent) -> bool {
        self.type_of_lane(fact) != fact.event_type
    }

    fn check_task(&self) -> Result<()> {
        match &self.task {
            None => Ok(()),
            Some(_) if self.family != Family::Jobs => Err(Error::invalid("only a job can have a task")),
            Some(task) if task.len() > MAX_TASK_BYTES => {
                Err(Error::invalid(format!("the text of a task may have {MAX_TASK_BYTES} bytes at most")))
            }
            Some(task) if task.contains('\0') => Err(Error::invalid("the text of a task must not contain NUL")),
            Some(_) => Ok(()),
        }
    }

    /// Checks its fields as those of an event that is published.
    fn check(&self, fact: &NewEvent) -> Result<()> {
        if self.queue.client().is_some_and(|client| fact.client != Some(client)) {
            return Err(Error::invalid(format!(
                "the fact does not belong to the client of queue {}: name that client in the fact, or another queue",
                self.queue.name()
            )));
        }
        self.check_task()?;
        self.group.as_deref().map_or(Ok(()), check_group)?;
        let mut event = NewEvent::new(self.type_of_lane(fact), "").queue(self.queue.clone());
        // The group itself is checked: it may be longer than an event's.
        (event.group, event.keeps_place) = (self.group.as_ref().map(|_| "g".to_owned()), self.keeps_place);
        (event.priority, event.available, event.expires) = (self.priority, self.available, self.expires);
        (event.max_attempts, event.exhausted_as) = (self.max_attempts, self.exhausted_as);
        Ok(event.check(PayloadLimit::default())?)
    }
}

impl SpareLane {
    /// Whether it is to be used in a queue that has lanes of these types.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    fn is_used<'t>(&self, types: impl Iterator<Item = &'t str>) -> bool {
        types.filter(|lane| lane.starts_with(self.kind)).take(self.most).count() == self.most
    }
}

impl Ingest {
    /// A fact and its targets, without keys and terms.
    #[must_use]
    pub fn new(fact: NewEvent, targets: Vec<Target>) -> Self {
        Self { fact, targets, keys: Vec::new(), terms: Vec::new(), stands_alone: false }
    }

    /// Checks every field of the fact, of its targets, and of its keys and terms.
    ///
    /// # Errors
    /// `Invalid`, with the first field that is wrong and what would be accepted.
    pub fn check(&self, limit: PayloadLimit) -> Result<()> {
        bare(&self.fact).check(limit)?;
        if self.targets.len() > MAX_TARGETS {
            let count = self.targets.len();
            return Err(Error::invalid(format!("the fact has {count} targets: it may have {MAX_TARGETS}")));
        }
        self.targets.iter().try_for_each(|target| target.check(&self.fact))?;
        if self.terms.len() > MAX_TERMS {
            let count = self.terms.len();
            return Err(Error::invalid(format!("the fact has {count} terms: it may have {MAX_TERMS}")));
        }
        let is_repeated = |(at, key): (usize, &FactKey)| self.keys[..at].iter().any(|other| other.kind == key.kind);
        if self.keys.iter().enumerate().any(is_repeated) {
            return Err(Error::invalid("the fact has two keys of one kind: it may have one of each"));
        }
        self.keys.iter().try_for_each(FactKey::check)
    }

    /// Whether the fact has exactly one entry, as a published one has, or one task: it is then removed with that, and
    /// records no range of numbers.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn is_single(&self) -> bool {
        let is_alone = self.stands_alone || !self.terms.is_empty();
        !is_alone && matches!(&self.targets[..], [target] if target.family == Family::Entries || target.task.is_some())
    }

    /// The client that scopes its keys and terms; 0 where it belongs to none.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn client(&self) -> i64 {
        self.fact.client.map_or(0, Tsid::to_i64)
    }

    /// The hashes of its terms, each once, in order.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn term_hashes(&self) -> Vec<[u8; TERM]> {
        let mut hashes: Vec<[u8; TERM]> = self.terms.iter().map(FactTerm::hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }

    /// What it costs a transaction, in rows; see [`MAX_INGEST_ROWS`].
    #[must_use]
    pub fn rows(&self) -> usize {
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

/// What a transaction that ingests did.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) enum Part {
    /// It took place.
    Done(Batch<Ingested>),
    /// Nothing was written: the catalogue has this version.
    Stale(CatalogueVersion),
}

/// Writes a batch in transactions of bounded size, the first of which finds out whether the catalogue has the version asked
/// for: then what was decided under it was still right when the batch came. An error before anything was written is the
/// answer to the whole batch; a later one is the answer to each item that is not written.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) async fn in_parts<F>(
    items: Vec<Ingest>,
    mut under: Option<CatalogueVersion>,
    write: impl Fn(Vec<Ingest>, Option<CatalogueVersion>) -> F,
) -> Result<IngestAnswer>
where
    F: Future<Output = Result<Part>>,
{
    let count = items.len();
    let mut answers = Vec::with_capacity(count);
    for part in parts(items) {
        let error = match write(part, under).await {
            Ok(Part::Done(written)) => {
                answers.extend(written);
                under = None;
                continue;
            }
            Ok(Part::Stale(version)) => return Ok(IngestAnswer::Stale(version)),
            Err(error) if answers.is_empty() => return Err(error),
            Err(error) => error,
        };
        answers.resize_with(count, || Err(error.clone()));
        break;
    }
    Ok(IngestAnswer::Done(answers))
}

/// Splits a batch into parts of at most [`MAX_INGEST_ROWS`] rows, or of one item.
fn parts(items: Vec<Ingest>) -> Vec<Vec<Ingest>> {
    let mut parts: Vec<Vec<Ingest>> = Vec::new();
    let mut rows = 0;
    for item in items {
        rows += item.rows();
        match parts.last_mut() {
            Some(part) if rows <= MAX_INGEST_ROWS => part.push(item),
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
        Ingest::new(NewEvent::new("t", "{}"), vec![Target::new(QueueName::default()); targets])
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
