//! Schedules and their ticks.

use async_trait::async_trait;

use crate::error::Result;
use crate::values::{DueSchedules, Published, ScheduleSpec, ScheduleView, Tick};

/// The verbs for schedules. Each is one transaction.
#[async_trait]
pub trait Schedules: std::fmt::Debug + Send + Sync {
    /// Creates a schedule, or changes the one of that name. Its next tick stays unless the expression or the time zone
    /// changes; an unchanged definition writes nothing.
    async fn put_schedule(&self, spec: ScheduleSpec) -> Result<ScheduleView>;

    /// One schedule; `None` when there is none of that name.
    async fn schedule(&self, name: &str) -> Result<Option<ScheduleView>>;

    /// All schedules, by name.
    async fn list_schedules(&self) -> Result<Vec<ScheduleView>>;

    /// Removes a schedule, and returns whether it existed. What it published stays.
    async fn delete_schedule(&self, name: &str) -> Result<bool>;

    /// Pauses or resumes a schedule. Ticks during the pause do not count as missed: the next tick after it comes next.
    async fn pause_schedule(&self, name: &str, paused: bool) -> Result<ScheduleView>;

    /// Schedules that are due, the longest overdue first, at most `limit`.
    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules>;

    /// Publishes the events of a tick and moves the schedule on, in one transaction, if the schedule still waits for
    /// `expected`. `None`, with nothing written, when another process was faster or the schedule was changed, paused or
    /// removed. If an event cannot be published, that is the error, and nothing is written either.
    async fn tick(&self, tick: Tick) -> Result<Option<Vec<Published>>>;
}
