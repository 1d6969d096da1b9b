//! Publishing: facts, entries and idempotency keys.

use rusqlite::{CachedStatement, params};
use tidegate_core::id::ENTRY_ID_LIMIT;
use tidegate_core::{Availability, DedupMode, NewEvent, Place, QueueState, Tsid};

use crate::error::{Error, ErrorKind, Result};
use crate::sqlite::engine::catalogue::no_queue;
use crate::sqlite::engine::tx::{Tx, entry_id, later, micros, moment};
use crate::sqlite::flags::{KEEPS_PLACE, TAGGED};
use crate::sqlite::groups::promote_by_rank;
use crate::sqlite::requests;
use crate::sqlite::tags::{self, State};
use crate::values::{Batch, Family, PublishOutcome, Published};

/// The bits of an entry's number that are part of its event's id.
const TSID_SEQUENCE: i64 = (1 << 22) - 1;

/// One answer for one event; the outer error fails the batch.
pub(super) type Answer = Result<Result<Published>>;

/// Publishes a batch.
pub(super) fn publish(tx: &mut Tx<'_>, events: &[NewEvent]) -> Result<Batch<Published>> {
    let mut batch = Publishing::begin(tx)?;
    let mut answers = Vec::with_capacity(events.len());
    for event in events {
        let answer = match event.check(batch.tx.shared.options.payload_limit) {
            Ok(()) if batch.tx.family == Family::Jobs && !event.tags.is_empty() => {
                Err(Error::invalid("jobs have no tags"))
            }
            Ok(()) => batch.publish(event)?,
            Err(error) => Err(error.into()),
        };
        answers.push(answer);
    }
    batch.end()?;
    Ok(answers)
}

/// A batch being published, with the statements that every event needs.
pub(super) struct Publishing<'t, 'c> {
    pub(super) tx: &'t mut Tx<'c>,
    insert_fact: CachedStatement<'c>,
    insert_plain_fact: CachedStatement<'c>,
    insert_entry: CachedStatement<'c>,
    first_id: i64,
    pub(super) next_id: i64,
    /// The number of entries in queues with a limit, by the queue's index in `Known`.
    depths: Vec<(usize, i64)>,
    /// Entries whose facts are written, but not yet the entries themselves.
    run: Option<Run>,
}

/// Fresh neighbours of one lane that differ only in their numbers: one statement writes their entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: i64,
    last: i64,
    kind: RunKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RunKind {
    lane: i64,
    queue_id: i64,
    client: Option<i64>,
    max_attempts: u32,
    exhausted_as: i16,
    /// The part of the entry's number that is not part of the event's id.
    high: i64,
}

impl<'t, 'c> Publishing<'t, 'c> {
    fn begin(tx: &'t mut Tx<'c>) -> Result<Self> {
        let sql = tx.sql();
        let next_id = tx.number(&sql.publish.next_entry_id)?;
        let insert_fact = tx.prepare(&sql.publish.put_fact)?;
        let insert_plain_fact = tx.prepare(&sql.publish.put_plain_fact)?;
        let insert_entry = tx.prepare(&sql.publish.put_entry)?;
        Ok(Self {
            tx,
            insert_fact,
            insert_plain_fact,
            insert_entry,
            first_id: next_id,
            next_id,
            depths: Vec::new(),
            run: None,
        })
    }

    fn end(mut self) -> Result<()> {
        self.write_run()?;
        if self.next_id != self.first_id {
            self.tx.execute(&self.tx.sql().publish.save_entry_id, [self.next_id])?;
        }
        Ok(())
    }

    pub(super) fn draw(&mut self) -> Result<i64> {
        let id = self.next_id;
        if id >= ENTRY_ID_LIMIT {
            return Err(Error::new(ErrorKind::Full, "all entry ids are used up"));
        }
        self.next_id += self.tx.shared.options.ids.step;
        Ok(id)
    }

    fn publish(&mut self, event: &NewEvent) -> Answer {
        let Some(queue) = self.tx.find_queue(&event.queue)? else { return Ok(Err(no_queue(&event.queue))) };
        let max_attempts = event.attempts_in(&self.tx.known.queues[queue].settings);
        let answer = self.publish_into(queue, max_attempts, event)?;
        Ok(answer.map(|published| Published { max_attempts, ..published }))
    }

    fn publish_into(&mut self, queue: usize, max_attempts: u32, event: &NewEvent) -> Answer {
        if let Some(request) = &event.idempotency
            && let Some(answer) = requests::repeated(self.tx, client(event), request)?
        {
            return Ok(answer);
        }
        // A repeat is answered even while the queue is draining; new contents are not a repeat.
        let is_draining = self.tx.known.queues[queue].state == QueueState::Draining;
        if let Some(dedup) = &event.deduplication
            && !(is_draining && dedup.mode == DedupMode::ReplaceWaiting)
            && let Some(answer) = self.repeat(queue, event, dedup)?
        {
            return Ok(answer);
        }
        if is_draining {
            return Ok(Err(crate::values::queues::draining(&event.queue)));
        }
        if self.is_full(queue)? {
            return Ok(Err(Error::new(ErrorKind::Full, format!("queue {} is full", event.queue))));
        }
        match self.tx.lane(queue, &event.event_type, event.priority)? {
            Ok(lane) => self.create(queue, lane, max_attempts, event).map(Ok),
            Err(refused) => Ok(Err(refused)),
        }
    }

    fn create(&mut self, queue: usize, lane: i64, max_attempts: u32, event: &NewEvent) -> Result<Published> {
        let now = self.tx.now;
        let id = self.draw()?;
        let due = match event.available {
            Availability::Now => None,
            Availability::At(at) => Some(micros(at).max(now)),
            Availability::After(delay) => Some(later(now, delay)?),
        };
        let place = match (&event.group, due) {
            (Some(_), _) => Place::Parked,
            (None, Some(_)) => Place::Timed,
            (None, None) => Place::Fresh,
        };
        let event_id = self.write_fact(id, &event.event_type, event)?;
        let queue_id = self.tx.known.queues[queue].id;
        if place == Place::Fresh && is_plain(event) {
            let exhausted_as = event.exhausted_as.code();
            let (high, client) = (id & !TSID_SEQUENCE, event.queue.client().map(Tsid::to_i64));
            self.add_to_run(id, RunKind { lane, queue_id, client, max_attempts, exhausted_as, high })?;
            self.tx.wake(queue);
            return self.published(id, event_id, PublishOutcome::Created, now);
        }
        let expires = self.expires_at(event)?;
        self.insert_entry.execute(params![
            id,
            event_id.to_i64(),
            due,
            event.queue.client().map(Tsid::to_i64),
            lane,
            queue_id,
            max_attempts,
            place.code(),
            event.exhausted_as.code(),
            event.group,
            flags_of(event),
            expires,
            event.rank,
        ])?;
        let rank = match (place, due) {
            (Place::Fresh, _) => (State::Ready, id),
            (Place::Timed, Some(due)) => (State::Timed, due),
            _ => (State::Parked, id),
        };
        let of_queue = (queue_id, event.queue.client().map(Tsid::to_i64));
        tags::put_at(self.tx, id, of_queue, event.priority, rank, &event.tags)?;
        if let Some(request) = &event.idempotency {
            requests::take(self.tx, client(event), request, id, event_id)?;
        }
        if let Some(dedup) = &event.deduplication {
            self.take_key(queue_id, event, dedup, (id, event_id))?;
        }
        match &event.group {
            Some(group) => drop(promote_by_rank(self.tx, queue_id, group)?),
            None if due.is_none_or(|due| due <= now) => self.tx.wake(queue),
            None => {}
        }
        self.published(id, event_id, PublishOutcome::Created, now)
    }

    fn add_to_run(&mut self, id: i64, kind: RunKind) -> Result<()> {
        let step = self.tx.shared.options.ids.step;
        match &mut self.run {
            Some(run) if run.kind == kind && run.last + step == id => run.last = id,
            _ => {
                self.write_run()?;
                self.run = Some(Run { first: id, last: id, kind });
            }
        }
        Ok(())
    }

    /// Writes the entries whose facts are written already. No other writer can have written in between.
    fn write_run(&mut self) -> Result<()> {
        let Some(Run { first, last, kind }) = self.run.take() else { return Ok(()) };
        let event_id = |id| Tsid::from_parts(self.tx.now / 1000, id).to_i64();
        let RunKind { lane, queue_id, client, max_attempts, exhausted_as, high } = kind;
        let run = (event_id(first), event_id(last), high, lane, queue_id, max_attempts, exhausted_as, client);
        self.tx.execute(&self.tx.sql().publish.put_run, run)?;
        Ok(())
    }

    /// Writes the fact; `number` makes its id unique within the millisecond.
    pub(super) fn write_fact(&mut self, number: i64, event_type: &str, event: &NewEvent) -> Result<Tsid> {
        let event_id = Tsid::from_parts(self.tx.now / 1000, number);
        if event.is_bare_fact() {
            self.insert_plain_fact.execute((event_id.to_i64(), self.tx.now, event_type, &event.payload[..]))?;
            return Ok(event_id);
        }
        self.insert_fact.execute(params![
            event_id.to_i64(),
            self.tx.now,
            event.owner().map(Tsid::to_i64),
            event_type,
            event.content_type,
            event.source,
            event.subject,
            event.time.map(micros),
            event.external_id,
            event.correlation_id,
            event.causation_id,
            event.attributes,
            &event.payload[..],
            event.title,
            event.description,
            tags::write(&event.tags),
            retry_text(event)?,
        ])?;
        Ok(event_id)
    }

    /// When an event that is published now expires.
    pub(super) fn expires_at(&self, event: &NewEvent) -> Result<Option<i64>> {
        event.expires.map(|expiry| Ok(micros(expiry.moment(moment(self.tx.now)?)))).transpose()
    }

    /// Whether the queue is at its limit. Counted once per batch, then tracked.
    fn is_full(&mut self, queue: usize) -> Result<bool> {
        let known = &self.tx.known.queues[queue];
        let Some(limit) = known.depth_limit else { return Ok(false) };
        let position = match self.depths.iter().position(|(of, _)| *of == queue) {
            Some(position) => position,
            None => {
                let count = self.tx.row(&self.tx.sql().publish.count_entries, (known.id, limit))?;
                self.depths.push((queue, count.map_or(0, |count| count.0)));
                self.depths.len() - 1
            }
        };
        let depth = &mut self.depths[position].1;
        if *depth >= limit {
            return Ok(true);
        }
        *depth += 1;
        Ok(false)
    }

    pub(super) fn published(
        &self,
        id: i64,
        event_id: Tsid,
        outcome: PublishOutcome,
        created_at: i64,
    ) -> Result<Published> {
        let (id, created_at) = (entry_id(id)?, moment(created_at)?);
        Ok(Published { id, event_id, outcome, created_at, max_attempts: 0 }) // known to the caller
    }
}

/// Whether a run may write its entry: it has nothing that a neighbour may not have.
fn is_plain(event: &NewEvent) -> bool {
    event.deduplication.is_none()
        && event.idempotency.is_none()
        && event.tags.is_empty()
        && event.expires.is_none()
        && event.rank == 0
}

/// The flags of a new entry.
fn flags_of(event: &NewEvent) -> Option<i64> {
    let tagged = if event.tags.is_empty() { 0 } else { TAGGED };
    let keeps = if event.keeps_place { KEEPS_PLACE } else { 0 };
    Some(tagged | keeps).filter(|flags| *flags != 0)
}

/// A retry policy as it is stored.
pub(super) fn retry_text(event: &NewEvent) -> Result<Option<String>> {
    let write = |policy| serde_json::to_string(policy);
    event
        .retry
        .as_ref()
        .map(write)
        .transpose()
        .map_err(|error| Error::invalid("the retry policy cannot be encoded as JSON").with_source(error))
}

/// The client whose keys these are; 0 where there is none.
pub(super) fn client(event: &NewEvent) -> i64 {
    event.owner().map_or(0, Tsid::to_i64)
}
