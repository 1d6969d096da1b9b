//! Converts between events and the statements' parameters and rows: places, keys, arrays of columns. Pure: the
//! statements themselves are run by `publish`, `caller` and `claim`.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::{Availability, DedupMode, EntryId, Expiry, NewEvent, Place, Timestamp, Tsid};
use tokio_postgres::types::ToSql;

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::catalogue::Queue;
use crate::postgres::flags;
use crate::postgres::statements::publish::PublishedRow;
use crate::values::{PublishOutcome, Published};

/// An event to publish, with its index in the batch and its queue and lane.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) index: usize,
    pub(super) event: NewEvent,
    pub(super) queue_id: i32,
    pub(super) lane: i32,
}

impl Item {
    /// An event for a lane of a queue, with the attempts that the queue gives it.
    pub(super) fn new(index: usize, event: &NewEvent, queue: &Queue, lane: i32) -> Self {
        let mut event = event.clone();
        event.max_attempts = event.attempts_in(&queue.settings);
        Self { index, event, queue_id: queue.id, lane }
    }

    /// What was published, with the attempts of this item: statements do not return them.
    pub(super) fn published(&self, published: Published) -> Published {
        Published { max_attempts: self.event.max_attempts, ..published }
    }
}

pub(super) fn key(item: &Item) -> Option<&str> {
    item.event.deduplication.as_ref().map(|dedup| dedup.key.as_str())
}

/// The client that scopes the item's keys; 0 where it belongs to none.
pub(super) fn client(item: &Item) -> i64 {
    item.event.owner().map_or(0, Tsid::to_i64)
}

pub(super) fn mode(item: &Item) -> DedupMode {
    item.event.deduplication.as_ref().map_or(DedupMode::KeepFirst, |dedup| dedup.mode)
}

/// The error for a deduplication key that was used for an event with other contents.
pub(super) fn other_body(key: &str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!("deduplication key {key:?} stands for another event: use another key or the same contents"),
    )
}

/// A duration in whole microseconds, the database's resolution; at most a hundred years.
pub(super) fn micros(duration: Duration) -> i64 {
    const CENTURY: i64 = 100 * 366 * 24 * 3600 * 1_000_000;
    i64::try_from(duration.as_micros()).map_or(CENTURY, |micros| micros.min(CENTURY))
}

/// Replaces NUL, the one character that PostgreSQL cannot store, by U+FFFD.
pub(super) fn clean(text: Option<&str>) -> Option<Cow<'_, str>> {
    text.map(|text| if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{FFFD}")) } else { Cow::Borrowed(text) })
}

impl TryFrom<PublishedRow> for Published {
    type Error = Error;

    fn try_from(row: PublishedRow) -> Result<Self> {
        Ok(Self {
            id: EntryId::new(row.id)?,
            event_id: Tsid::from_i64(row.event_id),
            outcome: PublishOutcome::Created,
            created_at: row.created_at.into(),
            max_attempts: 0, // see `Item::published`
        })
    }
}

/// The arrays of the publish statement.
#[derive(Debug)]
pub(super) struct Columns<'a> {
    now: Option<Timestamp>,
    ids: Vec<Option<i64>>,
    /// The clients that the facts belong to.
    clients: Vec<Option<i64>>,
    types: Vec<&'a str>,
    payloads: Vec<&'a [u8]>,
    texts: [Vec<Option<&'a str>>; 8],
    times: Vec<Option<Timestamp>>,
    lanes: Vec<i32>,
    queues: Vec<i32>,
    places: Vec<i16>,
    dues: Vec<Option<Timestamp>>,
    delays: Vec<Option<i64>>,
    max_attempts: Vec<i32>,
    exhausted: Vec<i16>,
    described: [Vec<Option<&'a str>>; 2],
    tags: Vec<Option<String>>,
    retries: Vec<Option<String>>,
    priorities: Vec<i16>,
    /// The clients that the entries belong to: those of their queues.
    owners: Vec<Option<i64>>,
    flags: Vec<Option<i16>>,
    ranks: Vec<i32>,
    expiries: Vec<Option<Timestamp>>,
    /// Expiries that are given as an age, in microseconds.
    ages: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    /// `arriving` is for a caller's own transaction: grouped and delayed entries become arrivals, sorted in after its
    /// commit. Without `ids`, the statement draws the numbers.
    pub(super) fn new(items: &[&'a Item], ids: Option<&[i64]>, now: Option<Timestamp>, arriving: bool) -> Self {
        let text = |read: fn(&NewEvent) -> &Option<String>| -> Vec<Option<&'a str>> {
            items.iter().map(|item| read(&item.event).as_deref()).collect()
        };
        let due = |item: &&Item| match item.event.available {
            Availability::At(at) => Some(at),
            _ => None,
        };
        let delay = |item: &&Item| match item.event.available {
            Availability::After(delay) => Some(micros(delay)),
            _ => None,
        };
        Self {
            now,
            ids: (0..items.len()).map(|index| ids.map(|ids| ids[index])).collect(),
            clients: items.iter().map(|item| item.event.owner().map(Tsid::to_i64)).collect(),
            types: items.iter().map(|item| item.event.event_type.as_str()).collect(),
            payloads: items.iter().map(|item| Bytes::as_ref(&item.event.payload)).collect(),
            texts: [
                text(|event| &event.content_type),
                text(|event| &event.source),
                text(|event| &event.subject),
                text(|event| &event.external_id),
                text(|event| &event.correlation_id),
                text(|event| &event.causation_id),
                text(|event| &event.attributes),
                text(|event| &event.group),
            ],
            times: items.iter().map(|item| item.event.time).collect(),
            lanes: items.iter().map(|item| item.lane).collect(),
            queues: items.iter().map(|item| item.queue_id).collect(),
            places: items.iter().map(|item| place(&item.event, arriving)).collect(),
            dues: items.iter().map(due).collect(),
            delays: items.iter().map(delay).collect(),
            max_attempts: items.iter().map(|item| item.event.max_attempts as i32).collect(),
            exhausted: items.iter().map(|item| item.event.exhausted_as.code()).collect(),
            described: [text(|event| &event.title), text(|event| &event.description)],
            tags: items.iter().map(|item| tags(&item.event)).collect(),
            retries: items.iter().map(|item| retry(&item.event)).collect(),
            priorities: items.iter().map(|item| item.event.priority).collect(),
            owners: items.iter().map(|item| item.event.queue.client().map(Tsid::to_i64)).collect(),
            flags: items.iter().map(|item| flags::of(&item.event)).collect(),
            ranks: items.iter().map(|item| item.event.rank).collect(),
            expiries: items.iter().map(|item| expiry(&item.event)).collect(),
            ages: items.iter().map(|item| age(&item.event)).collect(),
        }
    }

    /// The parameters of the statement for events without options.
    pub(super) fn plain_params(&self) -> [&(dyn ToSql + Sync); 7] {
        [&self.now, &self.types, &self.payloads, &self.lanes, &self.queues, &self.max_attempts, &self.exhausted]
    }

    /// The parameters of the general statement.
    pub(super) fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        let [content_type, source, subject, external_id, correlation_id, causation_id, attributes, group] = &self.texts;
        let [title, description] = &self.described;
        vec![
            &self.now,
            &self.ids,
            &self.clients,
            &self.types,
            &self.payloads,
            content_type,
            source,
            subject,
            &self.times,
            external_id,
            correlation_id,
            causation_id,
            attributes,
            &self.lanes,
            &self.queues,
            &self.places,
            &self.dues,
            &self.delays,
            group,
            &self.max_attempts,
            &self.exhausted,
            title,
            description,
            &self.tags,
            &self.retries,
            &self.priorities,
            &self.owners,
            &self.flags,
            &self.ranks,
            &self.expiries,
            &self.ages,
        ]
    }
}

/// An event's tags as they are stored; `None` without any.
pub(super) fn tags(event: &NewEvent) -> Option<String> {
    (!event.tags.is_empty()).then(|| event.tags.join(","))
}

/// An event's retry policy as it is stored.
pub(super) fn retry(event: &NewEvent) -> Option<String> {
    event.retry.as_ref().and_then(|policy| serde_json::to_string(policy).ok())
}

/// The moment at which an event expires, if it names one.
pub(super) fn expiry(event: &NewEvent) -> Option<Timestamp> {
    match event.expires {
        Some(Expiry::At(at)) => Some(at),
        _ => None,
    }
}

/// After how many microseconds an event expires, if it names an age.
pub(super) fn age(event: &NewEvent) -> Option<i64> {
    match event.expires {
        Some(Expiry::After(age)) => Some(micros(age)),
        _ => None,
    }
}

/// Whether an event has only a type and a payload, is due at once and never expires, and has no turn in a group.
pub(super) fn is_plain(event: &NewEvent) -> bool {
    let has_turn = event.group.is_some() || event.rank != 0 || event.keeps_place;
    event.is_bare_fact() && !has_turn && event.available == Availability::Now && event.expires.is_none()
}

fn place(event: &NewEvent, arriving: bool) -> i16 {
    place_of(event.group.as_deref(), event.available, arriving)
}

/// The place of a new entry.
pub(super) fn place_of(group: Option<&str>, available: Availability, arriving: bool) -> i16 {
    let place = match (group.is_some(), available, arriving) {
        (false, Availability::Now, _) => Place::Fresh,
        (_, _, true) => Place::Arrived,
        (true, ..) => Place::Parked,
        (false, ..) => Place::Timed,
    };
    place.code()
}
