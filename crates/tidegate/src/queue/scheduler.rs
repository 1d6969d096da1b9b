//! The scheduler's loop: publishes what is due. When a tick is due, and what happens to missed ones, is decided in
//! `tidegate_core::schedule`; the store guarantees that each tick is published once.

use std::future::Future;
use std::time::Duration;

use tidegate_core::Timestamp;
use tidegate_store::{DueSchedules, ScheduleView, Schedules, Tick};

use super::EventQueue;
use crate::error::{Error, Result};

/// Most due schedules read in one round.
const ROUND: usize = 500;
/// Most rounds of one pass; the rest is left to the next pass.
const MAX_ROUNDS: usize = 1_000;
/// The default of [`Scheduler::reread_every`].
const REREAD: Duration = Duration::from_secs(1);

/// Runs the schedules of a database. Any number of processes may run one: each tick is published once.
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

/// The result of one pass over all due schedules.
#[derive(Debug, Default)]
struct Pass {
    published: usize,
    error: Option<Error>,
    /// How long until the next known tick, in database time.
    next: Option<Duration>,
}

impl Scheduler {
    /// A scheduler of the queue's database.
    #[must_use]
    pub fn new(queue: EventQueue) -> Self {
        Self { queue, reread: REREAD }
    }

    /// Sets how long it waits at most before it reads the schedules again; 1 s by default. It wakes by itself for ticks
    /// that it knows of; this bounds the delay after another process puts a schedule or the database's clock is set.
    #[must_use]
    pub fn reread_every(mut self, interval: Duration) -> Self {
        self.reread = interval.max(Duration::from_millis(1));
        self
    }

    /// Runs until `shutdown` completes or the queue is closed. A schedule that fails (its queue is full, say) is
    /// retried and does not delay others; after an error of the database it tries again.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = shutdown => {}
            () = self.work() => {}
        }
    }

    /// Publishes what is due now, and returns the number of events. For tests with a clock of their own, and for
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
    /// The first error, after every due schedule was tried.
    pub async fn run_due(&self) -> Result<usize> {
        let pass = self.pass().await;
        pass.error.map_or(Ok(pass.published), Err)
    }

    fn store(&self) -> &dyn Schedules {
        self.queue.store().as_ref()
    }

    async fn work(&self) {
        while !self.queue.shared().is_closed() {
            let pass = self.pass().await;
            if let Some(error) = &pass.error
                && !self.queue.shared().is_closed()
            {
                tracing::warn!(%error, "running due schedules failed, retrying");
            }
            tokio::time::sleep(pass.next.unwrap_or(self.reread).min(self.reread)).await;
        }
    }

    async fn pass(&self) -> Pass {
        let mut pass = Pass::default();
        for _ in 0..MAX_ROUNDS {
            let found = match self.store().due_schedules(ROUND).await {
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

    /// Runs the schedules that were found; returns whether there may be more to do at once.
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
                    tracing::debug!(schedule = schedule.spec.name, %error, "schedule failed");
                    pass.error.get_or_insert(error);
                }
            }
        }
        pass.next = next.and_then(|next| Duration::try_from(next.duration_since(found.now)).ok());
        moved && more
    }

    /// Runs one schedule; returns its next tick and how many events this process published.
    async fn tick(&self, schedule: &ScheduleView, now: Timestamp) -> Result<(Timestamp, usize)> {
        let Some(tick) = Tick::of(schedule, now)? else { return Ok((schedule.next_at, 0)) };
        let next_at = tick.next_at;
        // `None`: another process published this tick, which is normal when several schedulers run.
        let published = self.store().tick(tick).await?.map_or(0, |events| events.len());
        self.queue.shared().meters.published.increment(published as u64);
        Ok((next_at, published))
    }
}
