//! Publishing: facts, entries and deduplication keys.

use rusqlite::{CachedStatement, OptionalExtension, params};
use tidegate_core::id::ENTRY_ID_LIMIT;
use tidegate_core::{Availability, DedupMode, Deduplication, Idempotency, NewEvent, QueueState, Tsid};

use super::settle::promote;
use super::tags::{self, State, TAGGED};
use super::tx::{Tx, entry_id, later, micros, moment, no_queue};
use super::unreadable::shown;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Batch, PublishOutcome, Published};

/// The bits of an entry's number that its event's id holds.
const TSID_SEQUENCE: i64 = (1 << 22) - 1;

/// One answer for one event; the outer error fails the batch.
type Answer = Result<Result<Published>>;

/// Publishes a batch.
pub(super) fn publish(tx: &mut Tx<'_>, events: &[NewEvent]) -> Result<Batch<Published>> {
    let mut batch = Publishing::begin(tx)?;
    let mut answers = Vec::with_capacity(events.len());
    for event in events {
        let answer = match event.check(batch.tx.shared.options.payload_limit) {
            Ok(()) => batch.publish(event)?,
            Err(error) => Err(error.into()),
        };
        answers.push(answer);
    }
    batch.end()?;
    Ok(answers)
}

/// A batch under way, with the statements that every event needs.
struct Publishing<'t, 'c> {
    tx: &'t mut Tx<'c>,
    insert_fact: CachedStatement<'c>,
    insert_plain_fact: CachedStatement<'c>,
    insert_entry: CachedStatement<'c>,
    first_id: i64,
    next_id: i64,
    /// Entries in queues with a limit, by the queue's place in `Known`.
    depths: Vec<(usize, i64)>,
    /// Facts are written, their entries not yet.
    run: Option<Run>,
}

/// Neighbours that go straight into one lane and differ only in their numbers: one statement writes their entries.
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
    /// The part of the number that an event's id does not hold.
    high: i64,
}

impl<'t, 'c> Publishing<'t, 'c> {
    fn begin(tx: &'t mut Tx<'c>) -> Result<Self> {
        let sql = tx.sql();
        let next_id = tx.number(&sql.next_entry_id)?;
        let insert_fact = tx.prepare(&sql.insert_fact)?;
        let insert_plain_fact = tx.prepare(&sql.insert_plain_fact)?;
        let insert_entry = tx.prepare(&sql.insert_entry)?;
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
            self.tx.prepare(&self.tx.sql().save_entry_id)?.execute([self.next_id])?;
        }
        Ok(())
    }

    fn draw(&mut self) -> Result<i64> {
        let id = self.next_id;
        if id >= ENTRY_ID_LIMIT {
            return Err(Error::new(ErrorKind::Full, "all entry ids are used up"));
        }
        self.next_id += self.tx.shared.options.ids.step;
        Ok(id)
    }

    fn publish(&mut self, event: &NewEvent) -> Answer {
        let Some(queue) = self.tx.find_queue(&event.queue)? else { return Ok(Err(no_queue(&event.queue))) };
        if let Some(request) = &event.idempotency
            && let Some(answer) = self.repeated_request(event, request)?
        {
            return Ok(answer);
        }
        // A repeat is answered whatever the queue accepts; new contents are not a repeat.
        let is_draining = self.tx.known.queues[queue].state == QueueState::Draining;
        if let Some(dedup) = &event.deduplication
            && !(is_draining && dedup.mode == DedupMode::ReplaceWaiting)
            && let Some(answer) = self.repeat(queue, event, dedup)?
        {
            return Ok(answer);
        }
        if is_draining {
            return Ok(Err(crate::store::draining(&event.queue)));
        }
        if self.is_full(queue)? {
            return Ok(Err(Error::new(ErrorKind::Full, format!("queue {} is full", event.queue))));
        }
        match self.tx.lane(queue, &event.event_type, event.priority)? {
            Ok(lane) => self.create(queue, lane, event).map(Ok),
            Err(refused) => Ok(Err(refused)),
        }
    }

    fn create(&mut self, queue: usize, lane: i64, event: &NewEvent) -> Result<Published> {
        let now = self.tx.now;
        let id = self.draw()?;
        let due = match event.available {
            Availability::Now => None,
            Availability::At(at) => Some(micros(at).max(now)),
            Availability::After(delay) => Some(later(now, delay)?),
        };
        let place = if event.group.is_some() { 2 } else { i16::from(due.is_some()) };
        let event_id = self.write_fact(id, &event.event_type, event)?;
        let queue_id = self.tx.known.queues[queue].id;
        let keyed = event.deduplication.is_some() || event.idempotency.is_some();
        if place == 0 && !keyed && event.tags.is_empty() {
            let (max_attempts, exhausted_as) = (event.max_attempts, event.exhausted_as.code());
            let (high, client) = (id & !TSID_SEQUENCE, event.queue.client().map(Tsid::to_i64));
            self.add_to_run(id, RunKind { lane, queue_id, client, max_attempts, exhausted_as, high })?;
            self.tx.wake(queue);
            return self.published(id, event_id, PublishOutcome::Created, now);
        }
        self.insert_entry.execute(params![
            id,
            event_id.to_i64(),
            due,
            event.queue.client().map(Tsid::to_i64),
            lane,
            queue_id,
            event.max_attempts,
            place,
            event.exhausted_as.code(),
            event.group,
            (!event.tags.is_empty()).then_some(TAGGED),
        ])?;
        let rank = match (place, due) {
            (0, _) => (State::Ready, id),
            (1, Some(due)) => (State::Timed, due),
            _ => (State::Parked, id),
        };
        let of_queue = (queue_id, event.queue.client().map(Tsid::to_i64));
        tags::put_new(self.tx, id, of_queue, event.priority, rank, &event.tags)?;
        if let Some(request) = &event.idempotency {
            let expires = later(now, request.window)?;
            let key = params![client(event), request.key, id, event_id.to_i64(), expires, request.fingerprint];
            self.tx.prepare(&self.tx.sql().put_request)?.execute(key)?;
        }
        if let Some(dedup) = &event.deduplication {
            let expires = later(now, dedup.window)?;
            let key = params![client(event), queue_id, dedup.key, id, event_id.to_i64(), expires];
            self.tx.prepare(&self.tx.sql().put_key)?.execute(key)?;
        }
        match &event.group {
            Some(group) => drop(promote(self.tx, queue_id, group)?),
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

    /// Writes the entries whose facts stand already. Nobody else can have written between the first and the last.
    fn write_run(&mut self) -> Result<()> {
        let Some(Run { first, last, kind }) = self.run.take() else { return Ok(()) };
        let event_id = |id| Tsid::from_parts(self.tx.now / 1000, id).to_i64();
        let statement = &self.tx.sql().insert_run;
        self.tx.prepare(statement)?.execute((
            event_id(first),
            event_id(last),
            kind.high,
            kind.lane,
            kind.queue_id,
            kind.max_attempts,
            kind.exhausted_as,
            kind.client,
        ))?;
        Ok(())
    }

    /// Writes the fact; `number` makes its id unique within the millisecond.
    fn write_fact(&mut self, number: i64, event_type: &str, event: &NewEvent) -> Result<Tsid> {
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

    /// What a repeated request answers: its first result, unless it was another request.
    fn repeated_request(&mut self, event: &NewEvent, request: &Idempotency) -> Result<Option<Result<Published>>> {
        let sql = self.tx.sql();
        let found: Option<(i64, i64, i64, Option<i64>)> = self
            .tx
            .prepare(&sql.find_request)?
            .query_row(params![client(event), request.key], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })
            .optional()?;
        let Some((id, held, _, fingerprint)) = found.filter(|key| key.2 > self.tx.now) else { return Ok(None) };
        if fingerprint != Some(request.fingerprint) {
            return Ok(Some(Err(crate::store::other_request(&request.key))));
        }
        let created_at = self.tx.prepare(&sql.fact_body)?.query_row([held], |row| row.get(2)).optional()?;
        let event_id = Tsid::from_i64(held);
        self.published(id, event_id, PublishOutcome::Duplicate, created_at.unwrap_or(self.tx.now))
            .map(|first| Some(Ok(first)))
    }

    /// What a repeated key answers, or `None` when the publish goes on as a new entry.
    fn repeat(&mut self, queue: usize, event: &NewEvent, dedup: &Deduplication) -> Result<Option<Result<Published>>> {
        let sql = self.tx.sql();
        let scope = self.tx.known.queues[queue].id;
        let found: Option<(i64, i64, i64)> = self
            .tx
            .prepare(&sql.find_key)?
            .query_row(params![client(event), scope, dedup.key], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        let Some((id, held, _)) = found.filter(|key| key.2 > self.tx.now) else { return Ok(None) };
        match dedup.mode {
            DedupMode::KeepFirst => self.keep_first(id, held, event, dedup).map(Some),
            DedupMode::ReplaceWaiting => {
                let replaced = self.replace_waiting(id, held, scope, event, dedup)?;
                Ok(replaced.map(Ok))
            }
        }
    }

    fn keep_first(&mut self, id: i64, held: i64, event: &NewEvent, dedup: &Deduplication) -> Answer {
        let sql = self.tx.sql();
        let mut statement = self.tx.prepare(&sql.fact_body)?;
        let mut rows = statement.query([held])?;
        let mut created_at = self.tx.now;
        if let Some(row) = rows.next()? {
            created_at = row.get(2)?;
            let same = row.get_ref(0)?.as_str().ok() == Some(event.event_type.as_str())
                && row.get_ref(1)?.as_blob().ok() == Some(&event.payload[..]);
            if !same {
                let message = format!("deduplication key {:?} stands for another event", dedup.key);
                return Ok(Err(Error::new(ErrorKind::Conflict, message)));
            }
        }
        self.published(id, Tsid::from_i64(held), PublishOutcome::Duplicate, created_at).map(Ok)
    }

    /// The waiting entry gets a new fact under its old type, for that is where it waits; the old fact goes, and with it
    /// what handlers answered about it.
    fn replace_waiting(
        &mut self,
        id: i64,
        held: i64,
        scope: i64,
        event: &NewEvent,
        dedup: &Deduplication,
    ) -> Result<Option<Published>> {
        let sql = self.tx.sql();
        let now = self.tx.now;
        let number = self.next_id;
        let event_id = Tsid::from_parts(now / 1000, number);
        let tagged = !event.tags.is_empty();
        if self.tx.prepare(&sql.replace_waiting)?.execute((id, event_id.to_i64(), now, tagged))? == 0 {
            return Ok(None);
        }
        self.draw()?;
        let event_type: Option<String> =
            self.tx.prepare(&sql.fact_body)?.query_row([held], |row| shown(row, 0)).optional()?.flatten();
        self.write_fact(number, event_type.as_deref().unwrap_or(&event.event_type), event)?;
        tags::remove(self.tx, id, &tags::of_fact(self.tx, held)?)?;
        tags::put(self.tx, id, &event.tags)?;
        self.tx.prepare(&sql.delete_fact)?.execute([held])?;
        self.tx.prepare(&sql.forget_answers)?.execute([id])?;
        self.tx.prepare(&sql.point_key)?.execute(params![client(event), scope, dedup.key, event_id.to_i64()])?;
        self.published(id, event_id, PublishOutcome::Replaced, now).map(Some)
    }

    /// Whether the queue holds as much as it may. Counted once per batch, then kept.
    fn is_full(&mut self, queue: usize) -> Result<bool> {
        let known = &self.tx.known.queues[queue];
        let Some(limit) = known.depth_limit else { return Ok(false) };
        let position = match self.depths.iter().position(|(of, _)| *of == queue) {
            Some(position) => position,
            None => {
                let sql = self.tx.sql();
                let count = self.tx.prepare(&sql.count_queue)?.query_row((known.id, limit), |row| row.get(0))?;
                self.depths.push((queue, count));
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

    fn published(&self, id: i64, event_id: Tsid, outcome: PublishOutcome, created_at: i64) -> Result<Published> {
        Ok(Published { id: entry_id(id)?, event_id, outcome, created_at: moment(created_at)? })
    }
}

/// A retry policy as it is stored.
fn retry_text(event: &NewEvent) -> Result<Option<String>> {
    let write = |policy| serde_json::to_string(policy);
    event
        .retry
        .as_ref()
        .map(write)
        .transpose()
        .map_err(|error| Error::invalid("the retry policy cannot be written").with_source(error))
}

/// Whose keys these are; the anchor level's are 0.
fn client(event: &NewEvent) -> i64 {
    event.owner().map_or(0, Tsid::to_i64)
}
