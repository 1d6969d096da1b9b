//! What is journalled, record by record: what happened to the events of one queue, and at the end of each blob the
//! queue's own state. Numbers are written as distances from the one before.

use super::cells::Trouble;
use super::codec::{Reader, put_bytes, put_distance, put_number};
use super::config::{Config, Durability, FIELD_COUNT};
use super::event::Event;
use crate::id::ENTRY_ID_LIMIT;
use crate::queue::QueueState;

const PUBLISHED: u8 = 1;
const REWRITTEN: u8 = 2;
const CLAIMED: u8 = 3;
const ACKED: u8 = 4;
const DISCARDED: u8 = 5;
const RETURNED: u8 = 6;
const DEAD_LETTERED: u8 = 7;
const ENDED: u8 = 8;
const STATE: u8 = 9;

const HAS_DUE: u8 = 1;
const HAS_TROUBLE: u8 = 2;
const IS_DEAD: u8 = 4;
const IS_CLAIMED: u8 = 8;

/// What a record says, of the event with this number where there is one.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Record<'a> {
    /// A new event waits.
    Published { number: u64, event: Event },
    /// An event as it stands, whatever was said of it before: redriven, compacted, or part of a snapshot.
    Rewritten { number: u64, standing: Standing, event: Event },
    /// So many events from this one on were claimed.
    Claimed { number: u64, count: u64 },
    /// Processed.
    Acked { number: u64 },
    /// A dead letter that is none any more.
    Discarded { number: u64 },
    /// It waits again: its attempt failed, was abandoned or given back.
    Returned { number: u64, standing: Standing },
    /// Its retries were used up.
    DeadLettered { number: u64, standing: Standing },
    /// The id of an event that has ended, whose record may be gone.
    Ended { number: u64, event_id: &'a str },
    /// The queue's own state after all that was said before.
    State(State),
}

/// How an event stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) retries: u32,
    /// When it is due, in microseconds.
    pub(super) due: Option<i64>,
    pub(super) trouble: Option<Box<Trouble>>,
    /// When it became a dead letter, in microseconds.
    pub(super) dead: Option<i64>,
    pub(super) is_claimed: bool,
}

/// A queue's own state: everything but its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Whether it accepts and delivers events.
    pub status: QueueState,
    /// What survives a crash.
    pub durability: Durability,
    /// Its configuration.
    pub config: Config,
    /// When it was created, in microseconds.
    pub created_at: i64,
    /// When it was last changed, in microseconds.
    pub updated_at: i64,
    /// The number of the next event.
    pub next_number: u64,
    /// What it has done.
    pub totals: Totals,
    /// All events up to this number have ended.
    pub checkpoint: u64,
    /// The id of the event with that number; empty when none has ended.
    pub checkpoint_id: Box<str>,
}

/// What a queue has done since it was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Events that were processed.
    pub processed: u64,
    /// Attempts that failed or were abandoned.
    pub errors: u64,
    /// The time from claim to ack of all processed events together, in microseconds.
    pub processing_micros: u64,
}

impl Totals {
    /// The average time from claim to ack, in milliseconds.
    #[must_use]
    pub fn average_millis(&self) -> f64 {
        self.processing_micros.checked_div(self.processed).unwrap_or_default() as f64 / 1_000.0
    }
}

/// Appends records to the body of a blob.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Writer {
    /// How many records there are.
    pub(super) count: u32,
    last: u64,
}

impl Writer {
    fn begin(&mut self, body: &mut Vec<u8>, tag: u8, number: u64) {
        self.count += 1;
        body.push(tag);
        put_distance(body, self.last, number);
        self.last = number;
    }

    pub(super) fn published(&mut self, body: &mut Vec<u8>, number: u64, event: &Event) {
        self.begin(body, PUBLISHED, number);
        put_bytes(body, event.packed());
    }

    pub(super) fn rewritten(&mut self, body: &mut Vec<u8>, number: u64, standing: &Standing, event: &Event) {
        self.begin(body, REWRITTEN, number);
        put_standing(body, standing);
        put_bytes(body, event.packed());
    }

    pub(super) fn claimed(&mut self, body: &mut Vec<u8>, number: u64, count: u64) {
        self.begin(body, CLAIMED, number);
        put_number(body, count);
        self.last = number + count - 1;
    }

    pub(super) fn acked(&mut self, body: &mut Vec<u8>, number: u64) {
        self.begin(body, ACKED, number);
    }

    pub(super) fn discarded(&mut self, body: &mut Vec<u8>, number: u64) {
        self.begin(body, DISCARDED, number);
    }

    pub(super) fn returned(&mut self, body: &mut Vec<u8>, number: u64, standing: &Standing) {
        self.begin(body, RETURNED, number);
        put_standing(body, standing);
    }

    pub(super) fn dead_lettered(&mut self, body: &mut Vec<u8>, number: u64, standing: &Standing) {
        self.begin(body, DEAD_LETTERED, number);
        put_standing(body, standing);
    }

    pub(super) fn ended(&mut self, body: &mut Vec<u8>, number: u64, event_id: &str) {
        self.begin(body, ENDED, number);
        put_bytes(body, event_id.as_bytes());
    }

    pub(super) fn state(&mut self, body: &mut Vec<u8>, state: &State) {
        self.count += 1;
        body.push(STATE);
        put_state(body, state);
    }
}

fn put_standing(body: &mut Vec<u8>, standing: &Standing) {
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    body.push(
        flag(standing.due.is_some(), HAS_DUE)
            | flag(standing.trouble.is_some(), HAS_TROUBLE)
            | flag(standing.dead.is_some(), IS_DEAD)
            | flag(standing.is_claimed, IS_CLAIMED),
    );
    put_number(body, standing.retries.into());
    if let Some(due) = standing.due {
        body.extend_from_slice(&due.to_le_bytes());
    }
    if let Some(trouble) = &standing.trouble {
        body.extend_from_slice(&trouble.at.to_le_bytes());
        put_bytes(body, trouble.error.as_bytes());
    }
    if let Some(dead) = standing.dead {
        body.extend_from_slice(&dead.to_le_bytes());
    }
}

fn standing(reader: &mut Reader<'_>) -> Option<Standing> {
    let flags = reader.byte()?;
    if flags & !(HAS_DUE | HAS_TROUBLE | IS_DEAD | IS_CLAIMED) != 0 {
        return None;
    }
    let mut standing =
        Standing { retries: reader.small()?, is_claimed: flags & IS_CLAIMED != 0, ..Standing::default() };
    if flags & HAS_DUE != 0 {
        standing.due = Some(reader.i64()?);
    }
    if flags & HAS_TROUBLE != 0 {
        let at = reader.i64()?;
        standing.trouble = Some(Box::new(Trouble { at, error: reader.text()?.into() }));
    }
    if flags & IS_DEAD != 0 {
        standing.dead = Some(reader.i64()?);
    }
    Some(standing)
}

/// Appends a queue's own state, in the one form in which it is written.
pub(super) fn put_state(body: &mut Vec<u8>, state: &State) {
    // A state's code is 0, 1 or 2.
    body.extend_from_slice(&[state.status.code() as u8, state.durability.code()]);
    state.config.numbers().into_iter().for_each(|number| put_number(body, number.into()));
    body.extend_from_slice(&state.created_at.to_le_bytes());
    body.extend_from_slice(&state.updated_at.to_le_bytes());
    let Totals { processed, errors, processing_micros } = state.totals;
    for number in [state.next_number, processed, errors, processing_micros, state.checkpoint] {
        put_number(body, number);
    }
    put_bytes(body, state.checkpoint_id.as_bytes());
}

pub(super) fn read_state(reader: &mut Reader<'_>) -> Option<State> {
    let status = QueueState::from_code(reader.byte()?.into())?;
    let durability = Durability::from_code(reader.byte()?)?;
    let mut numbers = [0; FIELD_COUNT];
    for number in &mut numbers {
        *number = reader.small()?;
    }
    let state = State {
        status,
        durability,
        config: Config::from_numbers(numbers)?,
        created_at: reader.i64()?,
        updated_at: reader.i64()?,
        next_number: reader.number()?,
        totals: Totals { processed: reader.number()?, errors: reader.number()?, processing_micros: reader.number()? },
        checkpoint: reader.number()?,
        checkpoint_id: reader.text()?.into(),
    };
    let fits = state.checkpoint < state.next_number && state.next_number <= ENTRY_ID_LIMIT as u64;
    fits.then_some(state)
}

/// The records of a body, in order. After the first that cannot be read, which is answered as `None`, it ends.
#[derive(Debug)]
pub(super) struct Records<'a> {
    reader: Reader<'a>,
    last: u64,
}

impl<'a> Records<'a> {
    pub(super) const fn new(body: &'a [u8]) -> Self {
        Self { reader: Reader(body), last: 0 }
    }

    fn record(&mut self) -> Option<Record<'a>> {
        let reader = &mut self.reader;
        let tag = reader.byte()?;
        if tag == STATE {
            return read_state(reader).map(Record::State);
        }
        let number = reader.distance(self.last)?;
        let mut last = number;
        let is_number = |number: u64| (1..ENTRY_ID_LIMIT as u64).contains(&number);
        if !is_number(number) {
            return None;
        }
        let record = match tag {
            PUBLISHED => Record::Published { number, event: Event::from_packed(reader.bytes()?)? },
            REWRITTEN => {
                let standing = standing(reader)?;
                Record::Rewritten { number, standing, event: Event::from_packed(reader.bytes()?)? }
            }
            CLAIMED => {
                let count = reader.number()?;
                last = number.checked_add(count)?.checked_sub(1)?;
                if count == 0 || !is_number(last) {
                    return None;
                }
                Record::Claimed { number, count }
            }
            ACKED => Record::Acked { number },
            DISCARDED => Record::Discarded { number },
            RETURNED => Record::Returned { number, standing: standing(reader)? },
            DEAD_LETTERED => Record::DeadLettered { number, standing: standing(reader)? },
            ENDED => Record::Ended { number, event_id: reader.text()? },
            _ => return None,
        };
        self.last = last;
        Some(record)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Option<Record<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let record = self.record();
        if record.is_none() {
            self.reader = Reader(&[]);
        }
        Some(record)
    }
}
