//! Schedules: what is stored of them, and the verbs that every database has for them.
//!
//! Owns how a schedule and its event are written down, and what changes when one is put again. It knows no SQL, and does
//! not run anything: whoever runs schedules asks for those that are due and offers ticks; the store takes each tick once.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tidegate_core::name::check_text;
use tidegate_core::schedule::{due, first_tick};
use tidegate_core::{
    Availability, Cron, DedupMode, Deduplication, End, EntryId, InvalidCron, MissedTicks, NewEvent, PayloadLimit,
    QueueName, Timestamp, Tsid,
};

use crate::error::{Error, ErrorKind, Result};
use crate::store::Published;

/// The attribute of an event that says for which moment it was scheduled.
pub const SCHEDULED_FOR: &str = "scheduled_for";
/// The attribute of an event that says which schedule published it.
pub const SCHEDULE: &str = "schedule";

/// What a database can do with schedules. Each verb is one transaction.
#[async_trait]
pub trait Schedules: std::fmt::Debug + Send + Sync {
    /// Creates a schedule, or changes the one of that name. Its next tick stays unless the expression or the zone
    /// changes; an unchanged definition writes nothing.
    async fn put_schedule(&self, spec: ScheduleSpec) -> Result<ScheduleView>;

    /// One schedule; `None` when there is none of that name.
    async fn schedule(&self, name: &str) -> Result<Option<ScheduleView>>;

    /// All schedules, by name.
    async fn list_schedules(&self) -> Result<Vec<ScheduleView>>;

    /// Removes one, and says whether there was one. What it published stays.
    async fn delete_schedule(&self, name: &str) -> Result<bool>;

    /// Stops or starts one. Ticks while it was paused are not missed: it goes on with the next one after the start.
    async fn pause_schedule(&self, name: &str, paused: bool) -> Result<ScheduleView>;

    /// Those that are due, the longest first, at most `limit`.
    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules>;

    /// Publishes a tick's events and moves the schedule on, in one transaction, if it still waits for `expected`. `None`
    /// when somebody else was faster, or it was changed, paused or removed; then nothing is written. An event that
    /// cannot be published is the error, and nothing is written either.
    async fn tick(&self, tick: Tick) -> Result<Option<Vec<Published>>>;
}

/// A schedule as it is defined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleSpec {
    /// Its name, 1 to 255 bytes.
    pub name: String,
    /// When it ticks, see [`Cron`].
    pub cron: String,
    /// In which zone.
    pub timezone: String,
    /// What becomes of ticks during which nobody was there.
    pub missed: MissedTicks,
    /// What each tick publishes.
    pub event: NewEvent,
}

/// A schedule as anybody may look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleView {
    /// How it is defined.
    pub spec: ScheduleSpec,
    /// Whether it stands still.
    pub paused: bool,
    /// The tick it waits for.
    pub next_at: Timestamp,
    /// The last tick that it published.
    pub last_at: Option<Timestamp>,
    /// The entry of that tick.
    pub last_entry: Option<EntryId>,
    /// Ticks published so far.
    pub ticks: u64,
    /// When it was made, in database time.
    pub created_at: Timestamp,
    /// When its definition or its state changed last.
    pub updated_at: Timestamp,
}

/// Schedules that are due, and when the next of the others is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueSchedules {
    /// Now, in database time.
    pub now: Timestamp,
    /// Those that wait for a tick up to now.
    pub due: Vec<ScheduleView>,
    /// When the first of those that are not due will be.
    pub next_at: Option<Timestamp>,
}

/// A step of one schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tick {
    /// Of which.
    pub name: String,
    /// The tick it must still wait for.
    pub expected: Timestamp,
    /// The tick it waits for afterwards.
    pub next_at: Timestamp,
    /// What to publish; may be nothing, when ticks are skipped.
    pub events: Vec<NewEvent>,
    /// The last moment that this stands for, if it publishes.
    pub last_at: Option<Timestamp>,
}

impl Tick {
    /// What a schedule shall do at `now`; `None` when its tick is not due.
    ///
    /// # Errors
    /// `Invalid` when its definition can no longer be read, for instance since its zone was abolished.
    pub fn of(schedule: &ScheduleView, now: Timestamp) -> Result<Option<Self>> {
        if schedule.paused || schedule.next_at > now {
            return Ok(None);
        }
        let spec = &schedule.spec;
        let cron = Cron::parse(&spec.cron, &spec.timezone)?;
        let due = due(&cron, spec.missed, schedule.next_at, now);
        let events = due.ticks.iter().map(|tick| spec.event_at(*tick)).collect::<Result<_>>()?;
        Ok(Some(Self {
            name: spec.name.clone(),
            expected: schedule.next_at,
            next_at: due.next_at,
            events,
            last_at: due.ticks.last().copied(),
        }))
    }
}

impl From<InvalidCron> for Error {
    fn from(error: InvalidCron) -> Self {
        Self::invalid(error.to_string()).with_source(error)
    }
}

impl ScheduleSpec {
    /// Checks everything that can be wrong, and answers the expression ready for use.
    ///
    /// # Errors
    /// `Invalid`, and what to change.
    pub fn check(&self, limit: PayloadLimit) -> Result<Cron> {
        check_text("schedule name", &self.name)?;
        let cron = Cron::parse(&self.cron, &self.timezone)?;
        if matches!(self.event.available, Availability::At(_)) {
            return Err(Error::invalid("a schedule's event cannot wait for a fixed moment: use a delay, or none"));
        }
        attributes(&self.event)?;
        let longest = Timestamp::from_second(253_370_764_799).unwrap_or_default();
        self.event_at(longest)?.check(limit)?;
        Ok(cron)
    }

    /// The event of one tick. Its moment is in `time` and in the attributes, next to the schedule's name.
    ///
    /// # Errors
    /// `Invalid` when the event's attributes are not a JSON object.
    pub fn event_at(&self, tick: Timestamp) -> Result<NewEvent> {
        let mut event = self.event.clone();
        let mut attributes = attributes(&event)?;
        attributes.insert(SCHEDULED_FOR.into(), tick.to_string().into());
        attributes.insert(SCHEDULE.into(), self.name.as_str().into());
        event.attributes = Some(Value::Object(attributes).to_string());
        event.time = Some(tick);
        Ok(event)
    }

    /// What is stored of the event.
    pub(crate) fn template(&self) -> Result<String> {
        serde_json::to_string(&Template::new(&self.event))
            .map_err(|error| Error::invalid("the schedule's event cannot be written down").with_source(error))
    }
}

fn attributes(event: &NewEvent) -> Result<Map<String, Value>> {
    match &event.attributes {
        None => Ok(Map::new()),
        Some(text) => serde_json::from_str(text).map_err(|error| {
            Error::invalid("the attributes of a schedule's event must be a JSON object").with_source(error)
        }),
    }
}

/// What a put makes of what is there; `None` when nothing changes.
pub(crate) fn plan_put(
    before: Option<&ScheduleView>,
    spec: &ScheduleSpec,
    cron: &Cron,
    now: Timestamp,
) -> Option<ScheduleView> {
    let Some(before) = before else {
        return Some(ScheduleView {
            spec: spec.clone(),
            paused: false,
            next_at: first_tick(cron, now),
            last_at: None,
            last_entry: None,
            ticks: 0,
            created_at: now,
            updated_at: now,
        });
    };
    if before.spec == *spec {
        return None;
    }
    let same_ticks = before.spec.cron == spec.cron && before.spec.timezone == spec.timezone;
    let next_at = if same_ticks { before.next_at } else { first_tick(cron, now) };
    Some(ScheduleView { spec: spec.clone(), next_at, updated_at: now, ..before.clone() })
}

/// What pausing or resuming makes of what is there; `None` when nothing changes.
pub(crate) fn plan_pause(before: &ScheduleView, paused: bool, now: Timestamp) -> Result<Option<ScheduleView>> {
    if before.paused == paused {
        return Ok(None);
    }
    let next_at = if paused {
        before.next_at
    } else {
        // Never back to a tick that was published already, should the clock have gone back.
        let cron = Cron::parse(&before.spec.cron, &before.spec.timezone)?;
        first_tick(&cron, before.last_at.map_or(now, |last| last.max(now)))
    };
    Ok(Some(ScheduleView { paused, next_at, updated_at: now, ..before.clone() }))
}

pub(crate) fn no_schedule(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no schedule {name:?}"))
}

pub(crate) fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("a stored schedule has {what} that cannot be read"))
}

/// Reads an event that was stored.
pub(crate) fn read_template(text: &str) -> Result<NewEvent> {
    let template: Template = serde_json::from_str(text).map_err(|error| damaged("an event").with_source(error))?;
    template.event()
}

/// An event to be published later, as JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Template {
    queue: QueueName,
    event_type: String,
    /// The payload where it is text,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    payload: Option<String>,
    /// else its bytes in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    payload_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    subject: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    external_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    correlation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    causation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    attributes: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    client: Option<i64>,
    priority: i16,
    delay_us: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    deduplication: Option<Key>,
    max_attempts: u32,
    exhausted_as: i16,
}

#[derive(Debug, Serialize, Deserialize)]
struct Key {
    key: String,
    replaces: bool,
    window_us: u64,
}

impl Template {
    fn new(event: &NewEvent) -> Self {
        let text = std::str::from_utf8(&event.payload).ok();
        let hex = || event.payload.iter().map(|byte| format!("{byte:02x}")).collect();
        let delay = match event.available {
            Availability::After(delay) => delay,
            Availability::Now | Availability::At(_) => Duration::ZERO,
        };
        Self {
            queue: event.queue.clone(),
            event_type: event.event_type.clone(),
            payload: text.map(Into::into),
            payload_hex: text.is_none().then(hex),
            content_type: event.content_type.clone(),
            source: event.source.clone(),
            subject: event.subject.clone(),
            external_id: event.external_id.clone(),
            correlation_id: event.correlation_id.clone(),
            causation_id: event.causation_id.clone(),
            attributes: event.attributes.clone(),
            client: event.client.map(Tsid::to_i64),
            priority: event.priority,
            delay_us: micros(delay),
            group: event.group.clone(),
            deduplication: event.deduplication.as_ref().map(|dedup| Key {
                key: dedup.key.clone(),
                replaces: dedup.mode == DedupMode::ReplaceWaiting,
                window_us: micros(dedup.window),
            }),
            max_attempts: event.max_attempts,
            exhausted_as: event.exhausted_as.code(),
        }
    }

    fn event(self) -> Result<NewEvent> {
        let payload: Bytes = match (self.payload, self.payload_hex) {
            (Some(text), _) => text.into(),
            (None, Some(hex)) => from_hex(&hex).ok_or_else(|| damaged("a payload"))?.into(),
            (None, None) => Bytes::new(),
        };
        let mut event = NewEvent::new(self.event_type, payload)
            .queue(self.queue)
            .priority(self.priority)
            .max_attempts(self.max_attempts);
        event.content_type = self.content_type;
        event.source = self.source;
        event.subject = self.subject;
        event.external_id = self.external_id;
        event.correlation_id = self.correlation_id;
        event.causation_id = self.causation_id;
        event.attributes = self.attributes;
        event.client = self.client.map(Tsid::from_i64);
        event.group = self.group;
        if self.delay_us > 0 {
            event.available = Availability::After(Duration::from_micros(self.delay_us));
        }
        event.deduplication = self.deduplication.map(|key| Deduplication {
            key: key.key,
            mode: if key.replaces { DedupMode::ReplaceWaiting } else { DedupMode::KeepFirst },
            window: Duration::from_micros(key.window_us),
        });
        event.exhausted_as = End::from_code(self.exhausted_as).ok_or_else(|| damaged("an end"))?;
        Ok(event)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(event: NewEvent) -> ScheduleSpec {
        let (name, cron, timezone) = ("s".to_owned(), "* * * * *".to_owned(), "UTC".to_owned());
        ScheduleSpec { name, cron, timezone, missed: MissedTicks::Once, event }
    }

    #[test]
    fn templates_come_back() {
        let mut full =
            NewEvent::new("t", vec![0_u8, 255, 7]).group("g").replace_waiting("k").priority(-3).max_attempts(2);
        full.queue = QueueName::new("billing").unwrap();
        full.available = Availability::After(Duration::from_micros(1_500_001));
        full.client = Some(Tsid::from_i64(77));
        full.exhausted_as = End::Failed;
        full.attributes = Some(r#"{"tags": ["a"]}"#.into());
        (full.source, full.subject) = (Some("shop".into()), Some("order:1".into()));
        (full.external_id, full.content_type) = (Some("x".into()), Some("application/x".into()));
        (full.correlation_id, full.causation_id) = (Some("c".into()), Some("d".into()));
        for event in [full, NewEvent::new("plain", "{\"a\": \"\u{e9}\"}"), NewEvent::new("empty", "").deduplicate("k")]
        {
            assert_eq!(read_template(&spec(event.clone()).template().unwrap()).unwrap(), event);
        }
        assert_eq!(read_template("{}").unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_tick_tells_its_moment() {
        let tick: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let mut event = NewEvent::new("t", "{}");
        event.attributes = Some(r#"{"tags": "a", "scheduled_for": "never"}"#.into());
        let event = spec(event).event_at(tick).unwrap();
        let attributes: Value = serde_json::from_str(event.attributes.as_deref().unwrap()).unwrap();
        assert_eq!(attributes["scheduled_for"], "2026-01-02T03:04:05Z");
        assert_eq!((&attributes["tags"], &attributes["schedule"]), (&"a".into(), &"s".into()));
        assert_eq!(event.time, Some(tick));
    }

    #[test]
    fn each_bad_part_is_named() {
        let good = spec(NewEvent::new("t", "{}"));
        let mut listed = good.clone();
        listed.event.attributes = Some("[1]".into());
        let cases = [
            (ScheduleSpec { name: String::new(), ..good.clone() }, "schedule name"),
            (ScheduleSpec { cron: "61 * * * *".into(), ..good.clone() }, "cron expression"),
            (ScheduleSpec { timezone: "Nowhere".into(), ..good.clone() }, "time zone"),
            (spec(NewEvent::new("", "{}")), "event type"),
            (spec(NewEvent::new("t", "{}").available_at(Timestamp::UNIX_EPOCH)), "fixed moment"),
            (listed, "attributes"),
        ];
        for (bad, expected) in cases {
            let error = bad.check(PayloadLimit::default()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert!(good.check(PayloadLimit::default()).is_ok());
    }
}
