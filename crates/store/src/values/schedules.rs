//! Definitions of schedules and their ticks, and the decisions about them that need no database.

use serde_json::{Map, Value};
use tidegate_core::name::check_text;
use tidegate_core::schedule::{due, first_tick};
use tidegate_core::template::DamagedTemplate;
use tidegate_core::{
    Availability, Cron, EntryId, EventTemplate, InvalidCron, MissedTicks, NewEvent, PayloadLimit, Timestamp,
};

use crate::error::{Error, ErrorKind, Result};

/// The attribute of an event with the moment it was scheduled for.
pub const SCHEDULED_FOR: &str = "scheduled_for";

/// The attribute of an event with the name of the schedule that published it.
pub const SCHEDULE: &str = "schedule";

/// The definition of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleSpec {
    /// Its name, 1 to 255 bytes.
    pub name: String,
    /// The cron expression, see [`Cron`].
    pub cron: String,
    /// The time zone of the expression.
    pub timezone: String,
    /// What happens with ticks that no scheduler was running for.
    pub missed: MissedTicks,
    /// The event that each tick publishes.
    pub event: NewEvent,
}

/// A schedule as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleView {
    /// Its definition.
    pub spec: ScheduleSpec,
    /// Whether it is paused.
    pub paused: bool,
    /// The tick it waits for.
    pub next_at: Timestamp,
    /// The last tick that it published.
    pub last_at: Option<Timestamp>,
    /// The entry that this tick published.
    pub last_entry: Option<EntryId>,
    /// Ticks published so far.
    pub ticks: u64,
    /// When it was created, in database time.
    pub created_at: Timestamp,
    /// When its definition or its state last changed.
    pub updated_at: Timestamp,
}

/// Schedules that are due, and when the next of the others is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueSchedules {
    /// Now, in database time.
    pub now: Timestamp,
    /// The schedules whose tick is at or before `now`, the longest overdue first.
    pub due: Vec<ScheduleView>,
    /// When the next of the others is due.
    pub next_at: Option<Timestamp>,
}

/// A tick that a scheduler offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tick {
    /// The name of the schedule.
    pub name: String,
    /// The tick that the schedule must still be waiting for.
    pub expected: Timestamp,
    /// The tick that it waits for afterwards.
    pub next_at: Timestamp,
    /// The events to publish; empty when ticks are skipped.
    pub events: Vec<NewEvent>,
    /// The last tick that `events` stand for; `None` when nothing is published.
    pub last_at: Option<Timestamp>,
}

impl Tick {
    /// The tick of a schedule at `now`; `None` when it is paused or not due.
    ///
    /// # Errors
    /// `Invalid` when its definition is no longer valid, for instance because its time zone was abolished.
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
    /// Checks the definition, and returns the parsed expression.
    ///
    /// # Errors
    /// `Invalid`, with what to change.
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

    /// The event of one tick. The moment of the tick is in `time` and, with the schedule's name, in the attributes.
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

    /// The definition as it will be read back: storing rounds some values.
    fn as_stored(&self) -> Result<Self> {
        Ok(Self { event: read_template(&self.template()?)?, ..self.clone() })
    }

    /// The event as JSON text, as it is stored.
    pub(crate) fn template(&self) -> Result<String> {
        serde_json::to_string(&EventTemplate::from(self.event.clone()))
            .map_err(|error| Error::invalid("the schedule's event cannot be encoded as JSON").with_source(error))
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

/// What a put changes; `None` when nothing changes.
pub(crate) fn plan_put(
    before: Option<&ScheduleView>,
    spec: &ScheduleSpec,
    cron: &Cron,
    now: Timestamp,
) -> Result<Option<ScheduleView>> {
    let spec = spec.as_stored()?;
    let Some(before) = before else {
        return Ok(Some(ScheduleView {
            spec,
            paused: false,
            next_at: first_tick(cron, now),
            last_at: None,
            last_entry: None,
            ticks: 0,
            created_at: now,
            updated_at: now,
        }));
    };
    if before.spec == spec {
        return Ok(None);
    }
    let same_ticks = before.spec.cron == spec.cron && before.spec.timezone == spec.timezone;
    let next_at = if same_ticks { before.next_at } else { first_tick(cron, now) };
    Ok(Some(ScheduleView { spec, next_at, updated_at: now, ..before.clone() }))
}

/// What pausing or resuming changes; `None` when nothing changes.
pub(crate) fn plan_pause(before: &ScheduleView, paused: bool, now: Timestamp) -> Result<Option<ScheduleView>> {
    if before.paused == paused {
        return Ok(None);
    }
    let next_at = if paused {
        before.next_at
    } else {
        // If the clock was set back, do not return to a tick that was published already.
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

/// Reads a stored event.
pub(crate) fn read_template(text: &str) -> Result<NewEvent> {
    let template: EventTemplate = serde_json::from_str(text).map_err(|error| damaged("an event").with_source(error))?;
    template.try_into().map_err(|error: DamagedTemplate| damaged(error.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(event: NewEvent) -> ScheduleSpec {
        let (name, cron, timezone) = ("s".to_owned(), "* * * * *".to_owned(), "UTC".to_owned());
        ScheduleSpec { name, cron, timezone, missed: MissedTicks::Once, event }
    }

    #[test]
    fn a_damaged_event_is_told() {
        for text in ["{}", "", "[]"] {
            assert_eq!(read_template(text).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn a_tick_has_every_field_of_the_event() {
        let event = tidegate_core::template::every_field("t");
        let tick: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let stored = spec(event.clone()).as_stored().unwrap();
        let ticked = stored.event_at(tick).unwrap();
        let mut expected = event;
        (expected.time, expected.attributes) = (Some(tick), ticked.attributes.clone());
        assert_eq!(ticked, expected);
        assert!(ticked.attributes.unwrap().contains("traceparent"));
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
