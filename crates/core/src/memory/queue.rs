//! One memory queue: its events, who holds which, and what has to be written. Decides everything and performs nothing:
//! it reads no clock, and what has to be stored waits in it as records until [`Queue::cut`] makes a blob of them.
//!
//! With the durability `journal` every change is recorded, and whoever made it is answered once the blob that
//! [`Queue::awaits`] names is stored; an event can be claimed from then on. With `snapshot` only what is left when a blob
//! is cut is recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashTable};
use jiff::Timestamp;

use super::cells::{Cell, Cells, Phase, Trouble};
use super::config::{Config, Durability};
use super::event::Event;
use super::journal::{Journal, MOST_UNCUT};
use super::lanes::Lanes;
use super::leases::Leases;
use super::progress::Progress;
use super::record::{Standing, State, Totals};
use super::token::Epoch;
use crate::id::{ENTRY_ID_LIMIT, EntryId};
use crate::name::QueueName;
use crate::queue::{Depth, QueueState};

mod claim;
mod dead;
mod list;
mod outcome;
mod persist;
mod restore;
mod status;
#[cfg(test)]
mod tests;

pub use claim::{Batch, Claimed, Wanted};
pub use dead::{DeadLetter, RedriveRefused};
pub use list::{Listed, ListedPhase};
pub use outcome::{LeaseRefused, Nacked};
pub use persist::Checkpoint;
pub use status::StatusRefused;

pub(super) use dead::Dead;
pub(super) use restore::Restored;

/// A memory queue. See the module.
///
/// ```
/// use std::time::Duration;
/// use serde_json::value::RawValue;
/// use tidegate_core::memory::{Config, Durability, Epoch, Event, EventFields, Queue, Wanted};
/// use tidegate_core::{QueueName, Timestamp};
/// let (name, now) = (QueueName::new("mail").unwrap(), Timestamp::UNIX_EPOCH);
/// let mut queue = Queue::new(name, Config::default(), Durability::Journal, Epoch::FIRST, now);
/// let payload = RawValue::from_string("{\"to\":\"a@example.org\"}".into()).unwrap();
/// let event = Event::new(&EventFields::new("evt_1", "mail.sent", &payload), now).unwrap();
/// queue.publish(event, now).unwrap();
/// // It can be claimed once it is stored.
/// let blob = queue.cut(256 << 10, now).unwrap();
/// queue.saved(blob.key.seq);
/// let batch = queue.claim(&Wanted::new("worker"), now);
/// let claimed = &batch.events[0];
/// assert_eq!(claimed.event.payload(), payload.get().as_bytes());
/// queue.ack(claimed.number, claimed.token, now).unwrap();
/// assert_eq!((queue.depth().total(), queue.checkpoint_id()), (0, Some("evt_1")));
/// ```
#[derive(Debug)]
pub struct Queue {
    name: QueueName,
    config: Config,
    durability: Durability,
    status: QueueState,
    created_at: i64,
    updated_at: i64,
    cells: Cells,
    dead: BTreeMap<u64, Dead>,
    /// The numbers of live events and dead letters by event id.
    index: HashTable<u64>,
    hasher: DefaultHashBuilder,
    lanes: Lanes,
    leases: Leases,
    delayed: BTreeSet<(i64, u64)>,
    /// The number of the next event.
    next: u64,
    /// The first number that cannot be claimed, because it is not stored yet.
    stored_before: u64,
    progress: Progress,
    totals: Totals,
    /// Above the highWatermark, and not below the low one since.
    is_slow: bool,
    /// No batch is given out before.
    next_batch: i64,
    journal: Journal,
    /// Live events without a home, which are all from this number on.
    unsaved: usize,
    unsaved_from: u64,
    unsaved_dead: Vec<u64>,
    last_cut: i64,
    last_checkpoint: u64,
}

/// What a publish did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// A new event.
    Added(EntryId),
    /// The same event is in the queue already.
    Repeated(EntryId),
}

/// Why an event was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublishRefused {
    /// Another event with this id is in the queue.
    #[error("another event with this eventId is in the queue: a repeat must have the same contents")]
    Conflict,
    /// It has as many events as it may have.
    #[error("the queue is full: it has maxQueueDepth ({0}) live events")]
    Full(u32),
    /// It accepts nothing.
    #[error("the queue is draining: it accepts no events until it is resumed")]
    Draining,
    /// More was published than the store has written.
    #[error("the queue waits for its store: too much is not written yet")]
    Behind,
}

/// Microseconds, as moments are kept.
pub(super) fn micros(at: Timestamp) -> i64 {
    at.as_microsecond()
}

/// The moment for microseconds; the nearest one there is.
pub(super) fn moment(micros: i64) -> Timestamp {
    let edge = if micros < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_microsecond(micros).unwrap_or(edge)
}

fn after(now: i64, delay: Duration) -> i64 {
    let latest = Timestamp::MAX.as_microsecond();
    now.saturating_add(i64::try_from(delay.as_micros()).unwrap_or(i64::MAX)).min(latest)
}

/// A hash as it is kept, spread over all bits that a table looks at.
const fn spread(hash: u32) -> u64 {
    (hash as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// The public form of a number. Numbers are below the limit of entry ids, or no event is accepted.
fn entry(number: u64) -> EntryId {
    EntryId::new(number as i64).expect("numbers of events are entry ids")
}

fn number_of(id: EntryId) -> u64 {
    // Entry ids are above 0.
    id.get() as u64
}

impl Queue {
    /// A new, empty, active queue.
    #[must_use]
    pub fn new(name: QueueName, config: Config, durability: Durability, epoch: Epoch, now: Timestamp) -> Self {
        let now = micros(now);
        let state = State {
            status: QueueState::Active,
            durability,
            config,
            created_at: now,
            updated_at: now,
            next_number: 1,
            totals: Totals::default(),
            checkpoint: 0,
            checkpoint_id: "".into(),
        };
        let mut journal = Journal::new(&name, epoch, 1);
        // The state of a new queue is to be stored.
        journal.change_state();
        Self::with_state(name, state, journal, now)
    }

    fn with_state(name: QueueName, state: State, journal: Journal, now: i64) -> Self {
        let progress = Progress { through: state.checkpoint, id: state.checkpoint_id.into(), ends: BTreeMap::new() };
        Self {
            name,
            config: state.config,
            durability: state.durability,
            status: state.status,
            created_at: state.created_at,
            updated_at: state.updated_at,
            cells: Cells::default(),
            dead: BTreeMap::new(),
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            lanes: Lanes::default(),
            leases: Leases::default(),
            delayed: BTreeSet::new(),
            next: state.next_number,
            stored_before: if state.durability == Durability::Journal { state.next_number } else { u64::MAX },
            progress,
            totals: state.totals,
            is_slow: false,
            next_batch: i64::MIN,
            journal,
            unsaved: 0,
            unsaved_from: state.next_number,
            unsaved_dead: Vec::new(),
            last_cut: now,
            last_checkpoint: state.checkpoint,
        }
    }

    /// The queue's client and name.
    #[must_use]
    pub const fn name(&self) -> &QueueName {
        &self.name
    }

    /// Its configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// What of it survives a crash.
    #[must_use]
    pub const fn durability(&self) -> Durability {
        self.durability
    }

    /// Whether it accepts and delivers events.
    #[must_use]
    pub const fn status(&self) -> QueueState {
        self.status
    }

    /// Whether it is draining and empty.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        matches!(self.status, QueueState::Draining) && self.cells.len() == 0
    }

    /// The epoch of its owner.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.journal.epoch()
    }

    /// What it has done.
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Live events. Those whose lease has expired count as leased until something is claimed.
    #[must_use]
    pub fn depth(&self) -> Depth {
        let (delayed, leased) = (self.delayed.len(), self.leases.held());
        let ready = self.cells.len() - delayed - leased;
        Depth { ready: ready as u64, delayed: delayed as u64, parked: 0, leased: leased as u64 }
    }

    /// How many dead letters there are.
    #[must_use]
    pub fn dead_letters(&self) -> usize {
        self.dead.len()
    }

    /// Whether publishers are to be slowed: from above the highWatermark until a fifth below it.
    #[must_use]
    pub const fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// The last event of the longest prefix of ended ones; `None` while none has ended.
    #[must_use]
    pub fn checkpoint_id(&self) -> Option<&str> {
        Some(self.progress.id.as_str()).filter(|id| !id.is_empty())
    }

    /// The number of that event; 0 while none has ended.
    #[must_use]
    pub const fn checkpoint(&self) -> u64 {
        self.progress.through
    }

    /// The number of a live event or dead letter.
    #[must_use]
    pub fn find(&self, event_id: &str) -> Option<EntryId> {
        let hash = self.hash_of(event_id.as_bytes());
        self.find_hashed(hash, event_id.as_bytes()).map(entry)
    }

    fn hash_of(&self, event_id: &[u8]) -> u32 {
        (self.hasher.hash_one(event_id) >> 32) as u32
    }

    fn find_hashed(&self, hash: u32, event_id: &[u8]) -> Option<u64> {
        let is_it = |number: &u64| {
            self.event(*number).is_some_and(|(known, event)| known == hash && event.id_bytes() == event_id)
        };
        self.index.find(spread(hash), is_it).copied()
    }

    /// A live event or dead letter, with the hash of its id.
    fn event(&self, number: u64) -> Option<(u32, &Event)> {
        let cell = self.cells.get(number).map(|cell| (cell.hash, &cell.event));
        cell.or_else(|| self.dead.get(&number).map(|dead| (dead.hash, &dead.event)))
    }

    /// Publishes one event. A repeat is answered even when the queue is full or draining.
    ///
    /// # Errors
    /// When another event has its id, or the queue accepts no new event.
    pub fn publish(&mut self, event: Event, now: Timestamp) -> Result<Published, PublishRefused> {
        let hash = self.hash_of(event.id_bytes());
        if let Some(number) = self.find_hashed(hash, event.id_bytes()) {
            let is_same = self.event(number).is_some_and(|(_, known)| known.is_same(&event));
            return if is_same { Ok(Published::Repeated(entry(number))) } else { Err(PublishRefused::Conflict) };
        }
        self.check_accepts()?;
        self.updated_at = micros(now);
        Ok(Published::Added(entry(self.add(event, hash, None))))
    }

    fn check_accepts(&self) -> Result<(), PublishRefused> {
        if self.status == QueueState::Draining {
            return Err(PublishRefused::Draining);
        }
        if self.cells.len() >= self.config.max_queue_depth as usize || self.next >= ENTRY_ID_LIMIT as u64 {
            return Err(PublishRefused::Full(self.config.max_queue_depth));
        }
        if self.journal.uncut_bytes() > MOST_UNCUT { Err(PublishRefused::Behind) } else { Ok(()) }
    }

    /// Adds an event at the end, new or with its last failure.
    fn add(&mut self, event: Event, hash: u32, trouble: Option<Box<Trouble>>) -> u64 {
        let number = self.next;
        self.next += 1;
        let home = match (self.durability, &trouble) {
            (Durability::Snapshot, _) => {
                self.unsaved += 1;
                0
            }
            (Durability::Journal, None) => self.journal.published(number, &event),
            (Durability::Journal, Some(_)) => {
                let standing = Standing { trouble: trouble.clone(), ..Standing::default() };
                self.journal.rewritten(number, &standing, &event)
            }
        };
        let lane = self.lanes.enter(event.pattern_bytes());
        let cell = Cell { event, phase: Phase::Fresh { next: 0 }, home, trouble, lane, hash, claim: 0, retries: 0 };
        self.cells.insert(number, cell);
        self.lanes.append(lane, number, &mut self.cells);
        self.index_insert(hash, number);
        self.is_slow |= self.cells.len() > self.config.high_watermark as usize;
        number
    }

    fn index_insert(&mut self, hash: u32, number: u64) {
        let (cells, dead) = (&self.cells, &self.dead);
        let hash_at = |number: &u64| {
            let hash = cells.get(*number).map(|cell| cell.hash);
            spread(hash.or_else(|| dead.get(number).map(|dead| dead.hash)).unwrap_or_default())
        };
        self.index.insert_unique(spread(hash), number, hash_at);
    }

    fn index_remove(&mut self, hash: u32, number: u64) {
        if let Ok(found) = self.index.find_entry(spread(hash), |other| *other == number) {
            found.remove();
        }
        // A queue that was deep once does not keep its index for ever.
        if self.index.capacity() > 4_096 && self.index.len() * 8 < self.index.capacity() {
            let (cells, dead) = (&self.cells, &self.dead);
            let hash_at = |number: &u64| {
                let hash = cells.get(*number).map(|cell| cell.hash);
                spread(hash.or_else(|| dead.get(number).map(|dead| dead.hash)).unwrap_or_default())
            };
            self.index.shrink_to(self.index.len() * 2, hash_at);
        }
    }

    /// Takes an event out of what is live. It stays in the index.
    fn take_out(&mut self, number: u64) -> Option<Cell> {
        let cell = self.cells.remove(number)?;
        self.lanes.leave(cell.lane);
        self.unsaved -= usize::from(cell.home == 0);
        let change = self.progress.end(number, &cell.event, cell.home, &self.cells, self.next);
        if change.added {
            self.journal.enter(cell.home, 0);
        }
        if let Some(home) = change.removed {
            self.journal.leave(home, 0);
        }
        if self.cells.len() <= self.config.low_watermark() as usize {
            self.is_slow = false;
        }
        self.journal.change_state();
        Some(cell)
    }
}
