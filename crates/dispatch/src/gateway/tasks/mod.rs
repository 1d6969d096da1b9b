//! Tasks: jobs that are posted themselves, not made for a subscription. A task is a fact that nothing but its job refers to:
//! it is no event, and goes with the job. What is said about it alone is stored beside the job.

mod create;
mod headers;
mod lane;
mod values;

use tidegate::{EntryId, Family, Tsid};

pub use values::{CreatedTask, NewTask, Task, TaskRules};

pub(super) use create::TaskBatchers;
pub(crate) use lane::TaskLane;

use super::Gateway;
use super::error::{GatewayError, Result};
use super::ingest::{EventJob, event_of};

/// The number of a job among the targets of its fact, if that is a task.
pub(super) fn task_of(targets: &[tidegate::FactTarget]) -> Option<EntryId> {
    let is_task = |target: &&tidegate::FactTarget| {
        target.family == Family::Jobs && target.lane_type.as_deref().is_some_and(TaskLane::is_one)
    };
    targets.iter().find(is_task).map(|target| target.id)
}

impl Gateway {
    /// A task by its id, as it is now; `None` if there is none.
    ///
    /// # Errors
    /// `Corrupt` when what is stored about it cannot be read, or the store's.
    pub async fn task(&self, id: Tsid) -> Result<Option<CreatedTask>> {
        let facts = self.queue.facts();
        let Some(found) = facts.get(vec![id], 1).await?.pop().flatten() else { return Ok(None) };
        let Some(number) = task_of(&found.targets) else { return Ok(None) };
        let Some(text) = facts.tasks(vec![number]).await?.pop().flatten() else { return Ok(None) };
        let created_at = found.fact.created_at;
        let status = found.targets.into_iter().next().map(|target| EventJob::of(target, created_at).status);
        let unreadable =
            |_| tidegate::Error::new(tidegate::ErrorKind::Corrupt, format!("the task {id} cannot be read"));
        let rules = serde_json::from_str(&text).map_err(unreadable).map_err(GatewayError::from)?;
        let task = Task { client: found.fact.client, event: event_of(&found.fact), rules };
        Ok(Some(CreatedTask { id, created_at, status, is_repeat: false, task }))
    }
}
