//! Schedules: cron expressions that publish an event per tick, once across all processes that run a
//! [`Scheduler`](crate::Scheduler).

use tidegate_core::{MissedTicks, NewEvent};
use tidegate_store::{Published, ScheduleSpec, ScheduleView};

use super::EventQueue;
use crate::error::{Error, ErrorKind, Result};

/// A schedule to be [put](Schedules::put): when it ticks, and what each tick publishes.
///
/// ```
/// use tidegate::{MissedTicks, NewEvent, Schedule};
/// let report = Schedule::new("nightly report", "30 2 * * *", NewEvent::new("report.wanted", "{}"))
///     .timezone("Europe/Berlin")
///     .missed(MissedTicks::Once);
/// ```
///
/// The expression has five fields (`minute hour day month weekday`), or six with seconds in front; see
/// [`Cron`](crate::Cron) for what they may hold and how clock changes are treated. Each event carries its tick's
/// moment as its `time` and, with the schedule's name, in its attributes (`scheduled_for`, `schedule`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    spec: ScheduleSpec,
}

impl Schedule {
    /// A schedule in UTC that publishes one event for all missed ticks together. The name identifies it.
    pub fn new(name: impl Into<String>, cron: impl Into<String>, event: NewEvent) -> Self {
        let (name, cron, timezone) = (name.into(), cron.into(), "UTC".to_owned());
        Self { spec: ScheduleSpec { name, cron, timezone, missed: MissedTicks::default(), event } }
    }

    /// Sets the time zone of the expression, by its IANA name; UTC by default.
    #[must_use]
    pub fn timezone(mut self, timezone: impl Into<String>) -> Self {
        self.spec.timezone = timezone.into();
        self
    }

    /// Sets what happens to ticks at which no scheduler was running; one event for all of them by default.
    #[must_use]
    pub fn missed(mut self, missed: MissedTicks) -> Self {
        self.spec.missed = missed;
        self
    }
}

/// The schedules of a database. See [`EventQueue::schedules`].
#[derive(Debug, Clone)]
pub struct Schedules {
    queue: EventQueue,
}

impl EventQueue {
    /// The schedules of this database. At least one process must run a [`Scheduler`](crate::Scheduler).
    ///
    /// ```
    /// # async fn example(queue: tidegate::EventQueue) -> tidegate::Result<()> {
    /// use tidegate::{NewEvent, Schedule};
    /// let hourly = Schedule::new("cleanup", "@hourly", NewEvent::new("cleanup.wanted", "{}"));
    /// let view = queue.schedules().put(hourly).await?;
    /// println!("first at {}", view.next_at);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn schedules(&self) -> Schedules {
        Schedules { queue: self.clone() }
    }
}

impl Schedules {
    fn store(&self) -> &dyn tidegate_store::Schedules {
        self.queue.store().as_ref()
    }

    /// Creates a schedule, or changes the one of that name. Its next tick stays unless its expression or zone changes,
    /// so every process may put its schedules at each start. An event that names no queue goes into this handle's.
    ///
    /// # Errors
    /// `Invalid` when the name, the expression, the zone or the event is not valid, `NotFound` when the event's queue
    /// does not exist; nothing is written then.
    pub async fn put(&self, mut schedule: Schedule) -> Result<ScheduleView> {
        self.queue.address(&mut schedule.spec.event);
        self.store().put_schedule(schedule.spec).await
    }

    /// All schedules, by name.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn list(&self) -> Result<Vec<ScheduleView>> {
        self.store().list_schedules().await
    }

    /// The schedule of this name; `None` when there is none.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn get(&self, name: &str) -> Result<Option<ScheduleView>> {
        self.store().schedule(name).await
    }

    /// Removes a schedule; false when there is none of that name. Events that it published stay.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn delete(&self, name: &str) -> Result<bool> {
        self.store().delete_schedule(name).await
    }

    /// Pauses a schedule.
    ///
    /// # Errors
    /// `NotFound` when there is none of that name.
    pub async fn pause(&self, name: &str) -> Result<ScheduleView> {
        self.store().pause_schedule(name, true).await
    }

    /// Resumes a schedule with its next tick from now. Ticks while it was paused do not count as missed.
    ///
    /// # Errors
    /// `NotFound` when there is none of that name.
    pub async fn resume(&self, name: &str) -> Result<ScheduleView> {
        self.store().pause_schedule(name, false).await
    }

    /// Publishes the event of a schedule now, as a tick at this moment, paused or not. The schedule goes on as if nothing had
    /// happened.
    ///
    /// ```
    /// # async fn example(queue: tidegate::EventQueue) -> tidegate::Result<()> {
    /// let published = queue.schedules().run_now("cleanup").await?;
    /// println!("entry {}", published.id);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `NotFound` when there is none of that name, and those of [`EventQueue::publish`].
    pub async fn run_now(&self, name: &str) -> Result<Published> {
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no schedule {name:?}"));
        let schedule = self.get(name).await?.ok_or_else(missing)?;
        let now = self.store().due_schedules(1).await?.now;
        self.queue.publish(schedule.spec.event_at(now)?).await
    }
}
