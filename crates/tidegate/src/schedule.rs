//! Schedules: cron expressions that publish an event per tick, once across all processes.
//!
//! Owns the faces that applications use and the loop that looks at the clock. When a tick is due and what becomes of
//! missed ones is decided in `tidegate_core::schedule`; that each happens once is the store's promise.

use std::future::Future;
use std::time::Duration;

use tidegate_core::{MissedTicks, NewEvent, Timestamp};
use tidegate_store::{DueSchedules, ScheduleSpec, ScheduleView, Tick};

use crate::error::{Error, Result};
use crate::queue::EventQueue;

/// Schedules that are looked at in one go.
const ROUND: usize = 500;
/// Rounds of one pass at most; what is left then comes with the next.
const MAX_ROUNDS: usize = 1_000;
/// How long a scheduler relies on what it has read, when nobody says otherwise.
const REREAD: Duration = Duration::from_secs(1);

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
    /// A schedule in UTC with one event for all ticks that were missed. The name is its identity.
    pub fn new(name: impl Into<String>, cron: impl Into<String>, event: NewEvent) -> Self {
        let (name, cron, timezone) = (name.into(), cron.into(), "UTC".to_owned());
        Self { spec: ScheduleSpec { name, cron, timezone, missed: MissedTicks::default(), event } }
    }

    /// In which zone the expression is meant, by its IANA name; UTC by default.
    #[must_use]
    pub fn timezone(mut self, timezone: impl Into<String>) -> Self {
        self.spec.timezone = timezone.into();
        self
    }

    /// What becomes of ticks during which no scheduler was there; one event for all of them by default.
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
    /// The schedules of this database. Something must run them: a [`Scheduler`] in any process, or in several.
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

    fn schedule_store(&self) -> Result<&dyn tidegate_store::Schedules> {
        self.store().schedules().ok_or_else(|| Error::invalid("this store keeps no schedules"))
    }
}

impl Schedules {
    /// Creates a schedule, or changes the one of that name. Its next tick stays unless its expression or zone changes, so
    /// that every process may put its schedules at each start. An event that names no queue goes into this handle's.
    ///
    /// # Errors
    /// `Invalid` when the name, the expression, the zone or the event does not fit, `NotFound` when the event's queue
    /// does not exist; nothing is written then.
    pub async fn put(&self, mut schedule: Schedule) -> Result<ScheduleView> {
        self.queue.address(&mut schedule.spec.event);
        self.queue.schedule_store()?.put_schedule(schedule.spec).await
    }

    /// All of them, by name.
    ///
    /// # Errors
    /// The store's.
    pub async fn list(&self) -> Result<Vec<ScheduleView>> {
        self.queue.schedule_store()?.list_schedules().await
    }

    /// One of them.
    ///
    /// # Errors
    /// The store's.
    pub async fn get(&self, name: &str) -> Result<Option<ScheduleView>> {
        self.queue.schedule_store()?.schedule(name).await
    }

    /// Removes one, and says whether it was there. What it published stays.
    ///
    /// # Errors
    /// The store's.
    pub async fn delete(&self, name: &str) -> Result<bool> {
        self.queue.schedule_store()?.delete_schedule(name).await
    }

    /// Makes one stand still.
    ///
    /// # Errors
    /// `NotFound` when there is none of that name.
    pub async fn pause(&self, name: &str) -> Result<ScheduleView> {
        self.queue.schedule_store()?.pause_schedule(name, true).await
    }

    /// Has one go on with its next tick from now. Ticks while it was paused do not count as missed.
    ///
    /// # Errors
    /// `NotFound` when there is none of that name.
    pub async fn resume(&self, name: &str) -> Result<ScheduleView> {
        self.queue.schedule_store()?.pause_schedule(name, false).await
    }
}

/// Runs the schedules of a database. Any number of processes may: each tick happens once.
///
/// ```
/// # async fn example(queue: tidegate::EventQueue) {
/// use tidegate::Scheduler;
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let scheduler = Scheduler::new(queue);
/// let running = tokio::spawn(async move { scheduler.run(async { drop(stopped.await) }).await });
/// drop(stop);
/// running.await.unwrap();
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Scheduler {
    queue: EventQueue,
    reread: Duration,
}

/// What one pass did.
#[derive(Debug, Default)]
struct Pass {
    published: usize,
    error: Option<Error>,
    /// How long until the next tick that is known, in database time.
    next: Option<Duration>,
}

impl Scheduler {
    /// A scheduler of the queue's database.
    #[must_use]
    pub fn new(queue: EventQueue) -> Self {
        Self { queue, reread: REREAD }
    }

    /// How long at most until it looks at the database again; 1 s by default. It wakes for ticks that it knows of; this
    /// is for schedules that others put, and for changes of the database's clock.
    #[must_use]
    pub fn reread_every(mut self, interval: Duration) -> Self {
        self.reread = interval.max(Duration::from_millis(1));
        self
    }

    /// Runs until `shutdown` completes or the queue is closed. A schedule that fails (its queue is full, say) is tried
    /// again and holds up no other; errors of the database are waited out.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = shutdown => {}
            () = self.work() => {}
        }
    }

    /// Publishes what is due now, and answers how many events that were. For tests with a clock of their own, and for
    /// programs that have a loop already.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> tidegate::Result<()> {
    /// use std::time::Duration;
    /// use tidegate::testing::TestQueue;
    /// use tidegate::{NewEvent, Schedule, Scheduler};
    /// let queue = TestQueue::new().await;
    /// let scheduler = Scheduler::new(queue.handle());
    /// queue.schedules().put(Schedule::new("minutes", "* * * * *", NewEvent::new("minute", "{}"))).await?;
    /// assert_eq!(scheduler.run_due().await?, 0);
    /// queue.advance(Duration::from_secs(60));
    /// assert_eq!(scheduler.run_due().await?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The first, after every schedule was tried.
    pub async fn run_due(&self) -> Result<usize> {
        let pass = self.pass().await;
        pass.error.map_or(Ok(pass.published), Err)
    }

    async fn work(&self) {
        while !self.queue.shared().is_closed() {
            let pass = self.pass().await;
            if let Some(error) = &pass.error
                && !self.queue.shared().is_closed()
            {
                tracing::warn!(%error, "a schedule could not be run, trying again");
            }
            tokio::time::sleep(pass.next.unwrap_or(self.reread).min(self.reread)).await;
        }
    }

    async fn pass(&self) -> Pass {
        let mut pass = Pass::default();
        for _ in 0..MAX_ROUNDS {
            let found = match self.queue.schedule_store() {
                Ok(store) => store.due_schedules(ROUND).await,
                Err(error) => Err(error),
            };
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    pass.error.get_or_insert(error);
                    break;
                }
            };
            if !self.round(&found, &mut pass).await {
                break;
            }
        }
        pass
    }

    /// Does what was found, and says whether another look is worth it at once.
    async fn round(&self, found: &DueSchedules, pass: &mut Pass) -> bool {
        let mut next = found.next_at;
        let (mut moved, mut more) = (false, found.due.len() == ROUND);
        for schedule in &found.due {
            match self.tick(schedule, found.now).await {
                Ok((next_at, published)) => {
                    moved = true;
                    more |= next_at <= found.now;
                    next = Some(next.map_or(next_at, |next| next.min(next_at)));
                    pass.published += published;
                }
                Err(error) => {
                    tracing::debug!(schedule = schedule.spec.name, %error, "a schedule could not be run");
                    pass.error.get_or_insert(error);
                }
            }
        }
        pass.next = next.and_then(|next| Duration::try_from(next.duration_since(found.now)).ok());
        moved && more
    }

    /// One schedule's step: its next tick, and how many events this process published for it.
    async fn tick(&self, schedule: &ScheduleView, now: Timestamp) -> Result<(Timestamp, usize)> {
        let Some(tick) = Tick::of(schedule, now)? else { return Ok((schedule.next_at, 0)) };
        let next_at = tick.next_at;
        // Somebody else being faster is the ordinary case among several.
        let published = self.queue.schedule_store()?.tick(tick).await?.map_or(0, |events| events.len());
        self.queue.shared().meters.published.increment(published as u64);
        Ok((next_at, published))
    }
}
