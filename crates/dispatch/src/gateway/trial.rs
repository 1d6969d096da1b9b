//! Test events: an event that only says that it is one, made for a single subscription.

use std::time::{Duration, Instant};

use serde_json::json;
use tidegate::{EntryId, ErrorKind, Ingest, IngestAnswer, Tsid};
use tidegate_core::cloud_event::{CloudEvent, Sent};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::Gateway;
use super::error::{GatewayError, Result};
use super::ingest::{job_id, target_of};
use super::jobs::JobTry;
use super::subscriptions::{Subscription, SubscriptionStatus, Target};

/// The type of test events, by which receivers know them.
pub const TEST_EVENT: &str = "tidegate:dispatch:subscription:test";
/// Where they come from.
const SOURCE: &str = "/tidegate/test";
/// How often it is looked whether an attempt was recorded.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How many callers wait for attempts at once: each of them looks at the database again and again.
const MOST_WAITING: usize = 32;

/// The turns of those that wait for attempts.
#[derive(Debug)]
pub(super) struct Trials(Semaphore);

impl Default for Trials {
    fn default() -> Self {
        Self(Semaphore::new(MOST_WAITING))
    }
}

/// A test event that was made for a subscription.
#[derive(Debug, Clone)]
pub struct TestSent {
    /// The event.
    pub event: Tsid,
    /// The job's id, for a webhook.
    pub job: Option<Tsid>,
    /// The number of the job or entry.
    pub number: EntryId,
    /// The first attempt, if it was waited for and came in time.
    pub attempt: Option<JobTry>,
}

impl Gateway {
    /// Makes a test event for this subscription and no other, whatever it asks for, and waits for the first attempt at its job
    /// for so long.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` for a paused subscription, whose jobs are held; `Busy` when too many wait already; or the store's.
    pub async fn test_subscription(&self, id: Tsid, client: Option<Tsid>, wait: Duration) -> Result<TestSent> {
        let subscription = self.subscription(id, client).await?;
        if subscription.status == SubscriptionStatus::Paused {
            let text = format!("the subscription {} is paused, its jobs are held: resume it first", subscription.code);
            return Err(GatewayError::Conflict(text));
        }
        let is_webhook = matches!(subscription.body.target, Target::Webhook(_));
        let _turn = if is_webhook && !wait.is_zero() { Some(self.turn_to_wait()?) } else { None };
        let event = event(&subscription)?;
        let mut fact = event.to_fact();
        fact.client = subscription.client;
        let target = target_of(&subscription, &event)?;
        let item = Ingest { stands_alone: true, ..Ingest::new(fact, vec![target]) };
        let lost = || GatewayError::Store(tidegate::Error::new(ErrorKind::Indeterminate, "the store gave no answer"));
        let stored = match self.queue.facts().ingest(vec![item], None).await? {
            IngestAnswer::Done(mut answers) => answers.pop().ok_or_else(lost)??,
            IngestAnswer::Stale(_) => return Err(lost()),
        };
        let number = *stored.targets.first().ok_or_else(lost)?;
        self.made.add(Some(subscription.id).filter(|_| subscription.is_due_at_once()).into_iter());
        let attempt = if is_webhook { self.first_attempt(number, wait).await? } else { None };
        let job = is_webhook.then(|| job_id(stored.created_at, number.get()));
        Ok(TestSent { event: stored.event_id, job, number, attempt })
    }

    /// A turn to wait, before anything is made.
    fn turn_to_wait(&self) -> Result<SemaphorePermit<'_>> {
        let text = "too many callers wait for what comes of test events: try again later, or without wait";
        self.trials.0.try_acquire().map_err(|_| tidegate::Error::new(ErrorKind::Busy, text).into())
    }

    /// The first attempt at a job, once it is recorded; `None` if that takes too long.
    async fn first_attempt(&self, job: EntryId, wait: Duration) -> Result<Option<JobTry>> {
        let until = Instant::now() + wait;
        while Instant::now() < until {
            if let Some(first) = self.queue.job_desk().attempts(job).await?.into_iter().next() {
                return Ok(Some(first.into()));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(None)
    }
}

/// The test event of a subscription.
fn event(subscription: &Subscription) -> Result<CloudEvent> {
    let body = json!({
        "specVersion": "1.0", "type": TEST_EVENT, "source": SOURCE, "subject": subscription.code,
        "data": { "test": true, "subscriptionId": subscription.id.to_string(), "code": subscription.code },
    });
    let sent = Sent::from_json(&body.to_string().into());
    Ok(sent.map_err(|error| GatewayError::Invalid(error.to_string()))?.event)
}
