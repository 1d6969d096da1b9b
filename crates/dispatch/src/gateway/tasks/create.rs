//! Creates tasks: many callers' tasks are stored together, each with its job, in one transaction.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tidegate::batcher::Batcher;
use tidegate::{
    Availability, Error, ErrorKind, EventQueue, FactKey, Family, Ingest, IngestAnswer, IngestOutcome, Ingested,
    QueueName, Target as Made, Tsid,
};
use tidegate_core::{End, Expiry};

use super::TaskLane;
use super::values::{CreatedTask, NewTask, Task, of_target};
use crate::gateway::Gateway;
use crate::gateway::error::{GatewayError, Result};
use crate::gateway::ingest::JOBS;
use crate::gateway::made::MadeJobs;
use crate::{DispatchMode, Target};

/// How long idempotency keys are remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 3_600);
/// What a task weighs beyond its payload and its text, in bytes.
const OVERHEAD: usize = 512;

/// The batchers of tasks: those that are ordered in groups have one of their own, whose flushes run one after the other.
#[derive(Debug)]
pub(in crate::gateway) struct TaskBatchers {
    plain: Batcher<Call, Ingested>,
    grouped: Batcher<Call, Ingested>,
}

/// A task on its way into the store. A clone costs little.
#[derive(Debug, Clone)]
struct Call(Arc<Ingest>);

impl TaskBatchers {
    pub(in crate::gateway) fn new(queue: &EventQueue, made: &Arc<MadeJobs>) -> Self {
        let batcher = |name, on_postgres| {
            let (queue_of, made) = (queue.clone(), Arc::clone(made));
            Batcher::new(name, queue.batcher_limits(on_postgres), Call::weight, move |calls| {
                let (queue, made) = (queue_of.clone(), Arc::clone(&made));
                async move { flush(&queue, &made, calls).await }
            })
        };
        Self { plain: batcher("tasks", 4), grouped: batcher("tasks_grouped", 1) }
    }

    fn of(&self, is_grouped: bool) -> &Batcher<Call, Ingested> {
        if is_grouped { &self.grouped } else { &self.plain }
    }
}

impl Call {
    fn target(&self) -> Option<&Made> {
        self.0.targets.first()
    }

    fn is_grouped(&self) -> bool {
        self.target().is_some_and(|target| target.group.is_some())
    }

    fn weight(&self) -> usize {
        let text = self.target().and_then(|target| target.task.as_ref()).map_or(0, |text| text.len());
        self.0.fact.payload.len() + text + OVERHEAD
    }
}

/// Stores tasks. Makes the queues of jobs that are missing.
async fn flush(queue: &EventQueue, made: &MadeJobs, calls: Vec<Call>) -> Result<Vec<Result<Ingested, Error>>, Error> {
    let mut answers = write(queue, &calls).await?;
    let is_missing =
        |answer: &Result<Ingested, Error>| answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
    let missing: Vec<usize> =
        answers.iter().enumerate().filter(|(_, answer)| is_missing(answer)).map(|(at, _)| at).collect();
    if !missing.is_empty() {
        let again: Vec<Call> = missing.iter().filter_map(|at| calls.get(*at).cloned()).collect();
        let mut queues: Vec<&QueueName> = again.iter().filter_map(Call::target).map(|target| &target.queue).collect();
        queues.sort_unstable();
        queues.dedup();
        for name in queues {
            queue.make_job_queue(name).await?;
        }
        for (at, answer) in missing.into_iter().zip(write(queue, &again).await?) {
            if let Some(slot) = answers.get_mut(at) {
                *slot = answer;
            }
        }
    }
    let new = calls.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()).filter_map(|(call, _)| call.target());
    let due = new.filter(|target| target.available == Availability::Now);
    made.add_tasks(due.map(|target| target.queue.clone()));
    Ok(answers)
}

async fn write(queue: &EventQueue, calls: &[Call]) -> Result<Vec<Result<Ingested, Error>>, Error> {
    let items = calls.iter().map(|call| Ingest::clone(&call.0)).collect();
    match queue.facts().ingest(items, None).await? {
        IngestAnswer::Done(answers) => Ok(answers),
        IngestAnswer::Stale(_) => {
            Err(Error::new(ErrorKind::Corrupt, "the store found a version stale that none named"))
        }
    }
}

/// Whether what tasks of one batch name is there, looked up once for all of them.
#[derive(Debug, Default)]
struct Named {
    pools: Once<(Option<Tsid>, Option<Tsid>), Result<()>>,
    accounts: Once<(Option<Tsid>, Option<Tsid>), Result<()>>,
}

/// Answers that were looked up, each once.
#[derive(Debug)]
struct Once<K, V>(HashMap<K, V>);

impl<K, V> Default for Once<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, V: Clone> Once<K, V> {
    async fn get(&mut self, key: K, look: impl AsyncFnOnce() -> V) -> V {
        match self.0.entry(key) {
            Entry::Occupied(found) => found.get().clone(),
            Entry::Vacant(place) => place.insert(look().await).clone(),
        }
    }
}

impl Gateway {
    /// Creates a task and its job, which is to be delivered as soon as it is due.
    ///
    /// # Errors
    /// `Invalid`; `KeyReused` when its key stands for another task; or the store's.
    pub async fn create_task(&self, task: NewTask) -> Result<CreatedTask> {
        let (task, call) = self.planned(task, &mut Named::default()).await?;
        let stored = self.task_batchers.of(call.is_grouped()).call(call).await.map_err(GatewayError::from_ingest)?;
        self.created(task, &stored).await
    }

    /// Creates tasks in order, each with an answer of its own; see [`create_task`](Self::create_task).
    pub async fn create_tasks(&self, tasks: Vec<NewTask>) -> Vec<Result<CreatedTask>> {
        let (mut planned, mut named) = (Vec::with_capacity(tasks.len()), Named::default());
        for task in tasks {
            planned.push(self.planned(task, &mut named).await);
        }
        let calls: Vec<Call> = planned.iter().flatten().map(|(_, call)| call.clone()).collect();
        // Of one batcher, so that they are stored in order.
        let batcher = self.task_batchers.of(calls.iter().any(Call::is_grouped));
        let mut stored = batcher.call_many(calls).await.into_iter();
        let mut answers = Vec::with_capacity(planned.len());
        for planned in planned {
            let lost = || Error::new(ErrorKind::Indeterminate, "the store gave no answer for this job");
            answers.push(match planned {
                Ok((task, _)) => match stored.next().unwrap_or_else(|| Err(lost())) {
                    Ok(stored) => self.created(task, &stored).await,
                    Err(error) => Err(GatewayError::from_ingest(error)),
                },
                Err(error) => Err(error),
            });
        }
        answers
    }

    /// A task that was checked, and what is to be stored of it.
    async fn planned(&self, mut task: NewTask, named: &mut Named) -> Result<(Task, Call)> {
        task.check()?;
        task.rules.target_url.check(&self.options.allowed_targets).map_err(of_target)?;
        // Nothing is written with them: the tasks of a pool that is deleted later go to the client's default pool. An
        // account with tasks is not deleted, and those that are created meanwhile wait.
        if let pool @ Some(_) = task.rules.dispatch_pool_id {
            let look = async || self.named_pool(task.client, pool).await.map(drop);
            named.pools.get((task.client, pool), look).await?;
        }
        if let account @ Some(_) = task.rules.service_account_id {
            let look = async || self.named_account(task.client, account).await.map(drop);
            named.accounts.get((task.client, account), look).await?;
        }
        let call = Call(Arc::new(ingest(&task)?));
        Ok((task, call))
    }

    async fn created(&self, task: Task, stored: &Ingested) -> Result<CreatedTask> {
        let (id, created_at) = (stored.event_id, stored.created_at);
        if stored.outcome == IngestOutcome::New {
            return Ok(CreatedTask { id, created_at, status: Some("QUEUED"), is_repeat: false, task });
        }
        // A repeat outlives its first, which retention may have removed: all that is known of it is what was sent again.
        let gone = || CreatedTask { id, created_at, status: None, is_repeat: true, task };
        Ok(self.task(id).await?.map_or_else(gone, |first| CreatedTask { is_repeat: true, ..first }))
    }
}

/// What is stored of a task.
fn ingest(task: &Task) -> Result<Ingest> {
    let (rules, event) = (&task.rules, &task.event);
    let Target::Webhook(url) = &rules.target_url else {
        return Err(GatewayError::Invalid("targetUrl must be an https:// URL".to_owned()));
    };
    let text = serde_json::to_string(rules)
        .map_err(|error| Error::new(ErrorKind::Corrupt, format!("a task cannot be written: {error}")))?;
    let mut target = Made::new(QueueName::of(task.client, JOBS).map_err(Error::from)?);
    let (lane, spare) = TaskLane::of(rules.dispatch_pool_id, rules.service_account_id, url);
    (target.family, target.lane_type, target.spare_lane) = (Family::Jobs, Some(lane), Some(spare));
    if rules.mode != DispatchMode::Immediate {
        (target.group, target.rank) = (event.message_group.clone(), rules.sequence);
    }
    target.keeps_place = rules.mode == DispatchMode::BlockOnError;
    target.max_attempts = rules.max_retries.saturating_add(1);
    target.exhausted_as = End::Failed;
    target.available = rules.scheduled_for.map_or(Availability::Now, Availability::At);
    target.expires = rules.expires_at.map(Expiry::At);
    let mut fact = event.to_fact();
    fact.client = task.client;
    let key = rules.idempotency_key.as_ref();
    let key = key.map(|key| FactKey::task(key, fingerprint(&text, event), REMEMBERED));
    target.task = Some(text.into());
    let mut ingest = Ingest::new(fact, vec![target]);
    ingest.keys = key.into_iter().collect();
    Ok(ingest)
}

/// A hash of what a repeat has in common with the first: all that was said, but for the trace that it belongs to.
fn fingerprint(rules: &str, event: &tidegate_core::cloud_event::CloudEvent) -> i64 {
    let mut hash = Sha256::new();
    let mut add = |text: Option<&[u8]>| {
        hash.update(text.map_or(0, |text| text.len() as u64 + 1).to_le_bytes());
        hash.update(text.unwrap_or_default());
    };
    add(Some(rules.as_bytes()));
    add(Some(event.event_type.as_bytes()));
    add(Some(event.source.as_bytes()));
    for text in [&event.subject, &event.id, &event.correlation_id, &event.message_group, &event.datacontenttype] {
        add(text.as_deref().map(str::as_bytes));
    }
    add(event.data.as_ref().map(|data| &data.bytes[..]));
    let mut first = [0; 8];
    first.copy_from_slice(&hash.finalize()[..8]);
    i64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_many_name_is_looked_up_once() {
        let (mut once, mut looks) = (Once::default(), 0);
        for round in 0..3 {
            for name in ["a", "b"] {
                let look = async || {
                    looks += 1;
                    if name == "a" { Ok(round) } else { Err(format!("{name} {round}")) }
                };
                let expected = if name == "a" { Ok(0) } else { Err("b 0".to_owned()) };
                assert_eq!(once.get(name, look).await, expected);
            }
        }
        assert_eq!(looks, 2);
    }
}
