//! One attempt: what is sent of a job, and what its outcome changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use tidegate::{Attempt, End, MAX_ATTEMPT_BYTES, QueuedEvent, Result, Timestamp, Tsid};
use tidegate_core::RetryPolicy;
use tidegate_core::pool::backoff::{FailedAttempt, NextAttempt, next_attempt};
use tidegate_core::pool::breaker::CallResult;

use super::message::message;
use super::routes::Route;
use crate::gateway::ingest::job_id;
use crate::webhook::client::{Client, Request, Timeouts};
use crate::webhook::outcome::{Failure, FailureClass, Outcome};
use crate::webhook::signature::{SigningSecret, sign};
use crate::webhook::verdict::{AttemptStatus, Next, Verdict, verdict};
use crate::{DispatchMode, RetryStrategy, Target};

/// The longest time that a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);

/// What one attempt needs.
pub(super) struct Delivery {
    pub(super) client: Arc<Client>,
    pub(super) route: Arc<Route>,
    pub(super) secrets: Arc<[SigningSecret]>,
    /// When it may start, where its pool has a rate.
    pub(super) starts: Option<Instant>,
}

/// What came of an attempt, before it is recorded.
pub(super) struct Tried {
    job: QueuedEvent,
    route: Arc<Route>,
    /// `None` if the attempt was stopped: the job is not this node's any more.
    came: Option<Came>,
    started: Timestamp,
    took: Duration,
}

/// What an attempt's record changes besides the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Recorded {
    /// When the job is due again.
    pub(super) due: Option<Instant>,
    /// Another one of its group may be claimable now.
    pub(super) frees_group: bool,
    /// The receiver wants no more webhooks: the subscription is to pause.
    pub(super) is_gone: bool,
    pub(super) status: Option<AttemptStatus>,
}

enum Came {
    Outcome(Outcome),
    /// There was nothing that could be sent.
    NotSent(Failure),
    /// This program failed.
    Panic,
}

/// An attempt as it is kept.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    attempted_at: Timestamp,
    duration_millis: u64,
    status: &'static str,
    target_url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_code: Option<u16>,
    #[serde(skip_serializing_if = "str::is_empty")]
    response_body: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<&'static str>,
}

/// The id of a job, which its webhooks carry: the same for every attempt.
fn id_of(job: &QueuedEvent) -> Tsid {
    job_id(job.fact.created_at, job.id.get())
}

impl Delivery {
    /// Makes the attempt. It ends early when the lease is lost.
    pub(super) async fn run(self, job: QueuedEvent) -> Tried {
        let Self { client, route, secrets, starts } = self;
        let work = async {
            if let Some(starts) = starts {
                tokio::time::sleep_until(starts.into()).await;
            }
            match request(&job, &route, &secrets) {
                Ok(request) => Came::Outcome(client.deliver(&request).await),
                Err(failure) => Came::NotSent(failure),
            }
        };
        let (started, clock) = (Timestamp::now(), Instant::now());
        let came = match job.attempt(work).await {
            Attempt::Done(came) => Some(came),
            Attempt::Panicked => Some(Came::Panic),
            Attempt::Lost => None,
        };
        Tried { job, route, came, started, took: clock.elapsed() }
    }
}

/// The request of an attempt.
fn request(job: &QueuedEvent, route: &Route, secrets: &[SigningSecret]) -> std::result::Result<Request, Failure> {
    let body = &route.subscription.body;
    let refused = |why: String| Failure { class: FailureClass::Refused, message: why };
    let Target::Webhook(url) = &body.target else { return Err(refused("the target is no webhook".into())) };
    if secrets.is_empty() {
        // Never unsigned: a receiver would have to refuse it.
        let why = "the subscription has no signing secret that can be read".to_owned();
        return Err(Failure { class: FailureClass::InvalidAnswer, message: why });
    }
    let message = message(&job.fact, job.event_id, body.data_only);
    let mut headers = HeaderMap::with_capacity(message.headers.len() + 3);
    for (name, value) in &message.headers {
        let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) else {
            return Err(refused(format!("the event's attribute {name} cannot be written as a header")));
        };
        headers.insert(name, value);
    }
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    let signed = sign(secrets, &id_of(job).to_string(), now, &message.body)
        .map_err(|error| refused(format!("it cannot be signed: {error}")))?;
    headers.extend(signed);
    let total = Duration::from_secs(body.timeout_seconds.into());
    let timeouts = Timeouts { connect: CONNECT.min(total), first_byte: total, total };
    Ok(Request { url: url.clone(), headers, body: message.body, timeouts })
}

impl Tried {
    /// What the breaker of its target is told.
    pub(super) fn result(&self) -> CallResult {
        match &self.came {
            None | Some(Came::Panic | Came::NotSent(_)) => CallResult::NotMade,
            Some(Came::Outcome(Outcome::Answered(answer))) => CallResult::of_status(answer.status),
            Some(Came::Outcome(Outcome::Failed(failure))) => match failure.class {
                FailureClass::Refused => CallResult::NotMade,
                FailureClass::Timeout | FailureClass::Connection | FailureClass::InvalidAnswer => CallResult::Failed,
            },
        }
    }

    pub(super) fn took(&self) -> Duration {
        self.took
    }

    /// Writes down what came of it: the job ends, or is due again later.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost; what happened then is not recorded, and somebody else attempts the job again.
    pub(super) async fn record(self) -> Result<Recorded> {
        let Self { job, route, came, started, took } = self;
        let Some(came) = came else {
            drop(job);
            return Ok(Recorded { due: None, frees_group: false, is_gone: false, status: None });
        };
        let body = &route.subscription.body;
        let verdict = match &came {
            Came::Outcome(outcome) => verdict(outcome, false),
            Came::NotSent(failure) => verdict(&Outcome::Failed(failure.clone()), false),
            Came::Panic => panicked(),
        };
        let record = record(&came, &verdict, &route, started, took);
        let is_grouped = job.group.is_some();
        let error = verdict.message.clone().unwrap_or_default();
        let job = job.with_attempt(record);
        let due = match verdict.next {
            Next::Complete => {
                job.complete().await?;
                None
            }
            Next::Retry { after } if !job.is_last_attempt() => {
                let policy = body.retry_strategy.as_ref().map(RetryStrategy::policy).unwrap_or_default();
                let failed = FailedAttempt { number: job.attempts, at: Timestamp::now(), retry_after: after };
                // One that expires before waits for that in its place.
                let (NextAttempt::At(due) | NextAttempt::ExpiresFirst { due }) =
                    next_attempt(&policy, &failed, None, rand::random());
                let delay = Duration::try_from(due.duration_since(failed.at)).unwrap_or_default();
                match body.mode {
                    DispatchMode::NextOnError => job.step_aside(delay, error).await?,
                    DispatchMode::Immediate | DispatchMode::BlockOnError => job.retry_after(delay, error).await?,
                }
                Some(Instant::now() + delay)
            }
            Next::Retry { .. } | Next::Fail | Next::Gone => {
                job.end_as(End::Failed, Some(errors(&error)), None).await?;
                None
            }
        };
        let is_gone = verdict.next == Next::Gone;
        Ok(Recorded { due, frees_group: is_grouped, is_gone, status: Some(verdict.status) })
    }
}

/// The verdict on an attempt in which this program failed.
fn panicked() -> Verdict {
    let message = "the attempt failed within Tidegate: its log has the reason".to_owned();
    verdict(&Outcome::Failed(Failure { class: FailureClass::InvalidAnswer, message }), false)
}

fn record(came: &Came, verdict: &Verdict, route: &Route, started: Timestamp, took: Duration) -> String {
    let answer = match came {
        Came::Outcome(Outcome::Answered(answer)) => Some(answer),
        _ => None,
    };
    let target_url = route.subscription.body.target.to_string();
    let mut record = Record {
        attempted_at: started,
        duration_millis: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        status: verdict.status.as_str(),
        target_url: &target_url,
        response_code: answer.map(|answer| answer.status),
        response_body: answer.map_or("", |answer| &answer.body),
        error_message: verdict.message.as_deref(),
        error_type: verdict.error.map(crate::webhook::verdict::ErrorType::as_str),
    };
    loop {
        // Never fails: texts, numbers and times.
        let text = serde_json::to_string(&record).unwrap_or_default();
        let body = record.response_body;
        if text.len() <= MAX_ATTEMPT_BYTES || body.is_empty() {
            return text;
        }
        // Control characters take six times their place. What is too long could not be recorded at all.
        let half = (0..=body.len() / 2).rev().find(|at| body.is_char_boundary(*at)).unwrap_or(0);
        record.response_body = &body[..half];
    }
}

/// The errors of a job that failed, as the log keeps them.
fn errors(error: &str) -> String {
    serde_json::to_string(&[error]).unwrap_or_default()
}

impl RetryStrategy {
    /// The policy that it is.
    fn policy(&self) -> RetryPolicy {
        let seconds = |seconds: &u32| Duration::from_secs((*seconds).into());
        match self {
            Self::Fixed { delay_seconds } => RetryPolicy::fixed(seconds(delay_seconds)),
            Self::Exponential { base_seconds, max_seconds } => {
                RetryPolicy::exponential(seconds(base_seconds), seconds(max_seconds))
            }
            Self::List { delays_seconds } => RetryPolicy::list(delays_seconds.iter().map(seconds)),
        }
    }
}
