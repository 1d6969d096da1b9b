//! One attempt: what is sent of a job, and what its outcome changes.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use tidegate::{Attempt, End, MAX_ATTEMPT_BYTES, QueuedEvent, Result, Timestamp, Tsid};
use tidegate_core::pool::backoff::{FailedAttempt, NextAttempt, next_attempt};
use tidegate_core::pool::breaker::CallResult;
use tidegate_core::{RetryPolicy, TraceContext};
use tracing::Instrument as _;

use super::authority::{Authority, NoAuthority};
use super::message::message;
use super::span;
use super::terms::Terms;
use crate::gateway::ingest::job_id;

use crate::webhook::client::{Client, Request, Timeouts};
use crate::webhook::credentials::Credentials;
use crate::webhook::mask::Mask;
use crate::webhook::outcome::{BodyEnd, CUT, Failure, FailureClass, Outcome};
use crate::webhook::signature::{SIGNATURE, sign};
use crate::webhook::verdict::{AttemptStatus, Next, Verdict, call_result, verdict};
use crate::{DispatchMode, RetryStrategy, Target};

/// The longest time that a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);
/// For how long an attempt keeps its slot of which nothing could be sent for a reason on this node, and the shortest time until its
/// job is due again. Without the former a pool with a backlog would claim and give back one job after the other.
const PAUSE: Duration = Duration::from_secs(1);

/// What one attempt needs.
pub(super) struct Delivery {
    pub(super) client: Arc<Client>,
    pub(super) terms: Terms,
    /// Or why its webhook cannot be sent in somebody's name.
    pub(super) authority: std::result::Result<Authority, NoAuthority>,
    /// When it may start, where its pool has a rate.
    pub(super) starts: Option<Instant>,
}

/// What came of an attempt, before it is recorded.
pub(super) struct Tried {
    job: QueuedEvent,
    terms: Terms,
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
        let Self { client, terms, authority, starts } = self;
        let (span, trace) = span::of_attempt(&job, id_of(&job), terms.subscription());
        let mut begun = (Timestamp::now(), Instant::now());
        let work = async {
            begun = begin(starts).await;
            match request(&job, &terms, authority.as_ref(), trace) {
                Ok(request) => {
                    let outcome = client.deliver(&request).await;
                    if matches!(&outcome, Outcome::Failed(failure) if failure.class == FailureClass::Local) {
                        tokio::time::sleep(PAUSE).await;
                    }
                    Came::Outcome(masked(outcome, &terms, authority.as_ref().ok()))
                }
                Err(failure) => Came::NotSent(failure),
            }
        };
        let came = match job.attempt(work.instrument(span.clone())).await {
            Attempt::Done(came) => Some(came),
            Attempt::Panicked => Some(Came::Panic),
            Attempt::Lost => None,
        };
        if let Some(Came::Outcome(Outcome::Answered(answer))) = &came {
            span.record("response_code", answer.status);
        }
        let (started, clock) = begun;
        Tried { job, terms, came, started, took: clock.elapsed() }
    }
}

/// Waits for the moment at which an attempt may start, and takes its time from then on.
async fn begin(starts: Option<Instant>) -> (Timestamp, Instant) {
    if let Some(starts) = starts {
        tokio::time::sleep_until(starts.into()).await;
    }
    (Timestamp::now(), Instant::now())
}

/// An outcome without what was sent of credentials, and of headers that are not shown to anybody.
fn masked(mut outcome: Outcome, terms: &Terms, authority: Option<&Authority>) -> Outcome {
    let (text, is_cut) = match &mut outcome {
        Outcome::Answered(answer) => (&mut answer.body, answer.body_end != BodyEnd::Whole),
        Outcome::Failed(failure) => {
            let is_cut = failure.message.ends_with(CUT);
            (&mut failure.message, is_cut)
        }
    };
    if text.is_empty() {
        return outcome;
    }
    let mut mask = Mask::default();
    if let Some(credentials) = authority.and_then(|authority| authority.credentials.as_ref()) {
        credentials.hide_in(&mut mask);
    }
    if let Terms::Task(rules) = terms {
        let shown = rules.shown_headers();
        let hidden = rules.headers.iter().filter(|(name, value)| shown.get(*name) != Some(*value));
        hidden.for_each(|(_, value)| mask.add_header(value));
    }
    *text = mask.masked(std::mem::take(text), is_cut);
    outcome
}

/// The request of an attempt.
fn request(
    job: &QueuedEvent,
    terms: &Terms,
    authority: std::result::Result<&Authority, &NoAuthority>,
    trace: Option<TraceContext>,
) -> std::result::Result<Request, Failure> {
    let refused = |why: String| Failure::new(FailureClass::Refused, why);
    let url = match terms.target() {
        Some(Target::Webhook(url)) => url,
        Some(Target::Queue(_)) => return Err(refused("the target is no webhook".into())),
        // The node that wrote it, or this one once it is upgraded, can send it.
        None if matches!(terms, Terms::Unreadable) => return Err(Failure::local("a newer program wrote this task")),
        None => return Err(refused("what was said about the task is not there".into())),
    };
    // Never unsigned where a receiver would have to refuse it. Tried again later: the account may be repaired.
    let unnamed = |why: &NoAuthority| Failure::new(FailureClass::InvalidAnswer, why.to_string());
    let authority = authority.map_err(unnamed)?;
    let message = message(&job.fact, job.event_id, terms.data_only());
    // With room for those that the client adds.
    let mut headers = HeaderMap::with_capacity(message.headers.len() + 8);
    let unwritten = |name: &str| refused(format!("the event's attribute {name} cannot be written as a header"));
    for (name, value) in terms.headers().into_iter().flatten() {
        let header = HeaderName::try_from(name).map_err(|_| unwritten(name))?;
        headers.insert(header, HeaderValue::try_from(value).map_err(|_| unwritten(name))?);
    }
    // What is sent of the event comes after what its sender has added, and counts.
    for (name, value) in message.headers {
        let value = HeaderValue::try_from(value).map_err(|_| unwritten(&name))?;
        let header = match name {
            Cow::Borrowed(name) => HeaderName::from_static(name),
            Cow::Owned(name) => HeaderName::try_from(&name).map_err(|_| unwritten(&name))?,
        };
        headers.insert(header, value);
    }
    if let Some(trace) = trace.and_then(|trace| HeaderValue::try_from(trace.traceparent()).ok()) {
        headers.insert(HeaderName::from_static("traceparent"), trace);
    }
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    let signed = sign(&authority.secrets, &id_of(job).to_string(), now, &message.body)
        .map_err(|error| refused(format!("it cannot be signed: {error}")))?;
    headers.extend(signed);
    if authority.secrets.is_empty() {
        headers.remove(SIGNATURE);
    }
    headers.extend(authority.credentials.as_ref().map(Credentials::header));
    let total = terms.timeout();
    let timeouts = Timeouts { connect: CONNECT.min(total), first_byte: total, total };
    Ok(Request { url: url.clone(), headers, body: message.body, timeouts })
}

impl Tried {
    /// What the breaker of its target is told.
    pub(super) fn result(&self) -> CallResult {
        match &self.came {
            None | Some(Came::Panic | Came::NotSent(_)) => CallResult::NotMade,
            Some(Came::Outcome(outcome)) => call_result(outcome),
        }
    }

    pub(super) fn took(&self) -> Duration {
        self.took
    }

    /// Writes down what came of it: the job ends, or is due again later. An attempt of which nothing was sent for a reason on
    /// this node is none: it is neither counted nor recorded.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost; what happened then is not recorded, and somebody else attempts the job again.
    pub(super) async fn record(self) -> Result<Recorded> {
        let Self { job, terms, came, started, took } = self;
        let Some(came) = came else {
            drop(job);
            return Ok(Recorded { due: None, frees_group: false, is_gone: false, status: None });
        };
        let verdict = match &came {
            Came::Outcome(outcome) => verdict(outcome, terms.ack_in_body()),
            Came::NotSent(failure) => verdict(&Outcome::Failed(failure.clone()), false),
            Came::Panic => panicked(),
        };
        let record = record(&came, &verdict, &terms, started, took);
        let is_grouped = job.group.is_some();
        let error = verdict.message.clone().unwrap_or_default();
        let job = job.with_attempt(record);
        let due = match verdict.next {
            Next::Complete => {
                job.complete().await?;
                None
            }
            Next::Retry { after } if !job.is_last_attempt() => {
                let policy = terms.retries();
                let failed = FailedAttempt { number: job.attempts, at: Timestamp::now(), retry_after: after };
                // One that expires before waits for that in its place.
                let (NextAttempt::At(due) | NextAttempt::ExpiresFirst { due }) =
                    next_attempt(&policy, &failed, None, rand::random());
                let delay = Duration::try_from(due.duration_since(failed.at)).unwrap_or_default();
                match terms.mode() {
                    DispatchMode::NextOnError => job.step_aside(delay, error).await?,
                    DispatchMode::Immediate | DispatchMode::BlockOnError => job.retry_after(delay, error).await?,
                }
                Some(Instant::now() + delay)
            }
            Next::Retry { .. } | Next::Fail | Next::Gone => {
                job.end_as(End::Failed, Some(errors(&error)), None).await?;
                None
            }
            Next::Snooze => return snooze(job).await,
        };
        let is_gone = verdict.next == Next::Gone;
        Ok(Recorded { due, frees_group: is_grouped, is_gone, status: Some(verdict.status) })
    }
}

/// Gives a job back; it is due again soon, at another moment than others that are given back now.
async fn snooze(job: QueuedEvent) -> Result<Recorded> {
    let delay = PAUSE.mul_f64(1.0 + 3.0 * rand::random::<f64>());
    job.snooze(delay).await?;
    Ok(Recorded { due: Some(Instant::now() + delay), frees_group: false, is_gone: false, status: None })
}

/// The verdict on an attempt in which this program failed.
fn panicked() -> Verdict {
    let message = "the attempt failed within Tidegate: its log has the reason";
    verdict(&Outcome::Failed(Failure::new(FailureClass::InvalidAnswer, message)), false)
}

/// The record of an attempt. It always fits: one that is too long would be refused, and its job sit until its lease ends.
fn record(came: &Came, verdict: &Verdict, terms: &Terms, started: Timestamp, took: Duration) -> String {
    let answer = match came {
        Came::Outcome(Outcome::Answered(answer)) => Some(answer),
        _ => None,
    };
    let target_url = terms.target().map(Target::to_string).unwrap_or_default();
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
        // Control characters take six times their place.
        if text.len() <= MAX_ATTEMPT_BYTES || !record.shorten() {
            return text;
        }
    }
}

impl Record<'_> {
    /// Halves the text that is missed the least. `false` if there is none left.
    fn shorten(&mut self) -> bool {
        let texts = [Some(&mut self.response_body), self.error_message.as_mut(), Some(&mut self.target_url)];
        let Some(text) = texts.into_iter().flatten().find(|text| !text.is_empty()) else { return false };
        let half = (0..=text.len() / 2).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        *text = &text[..half];
        true
    }
}

/// The errors of a job that failed, as the log keeps them.
fn errors(error: &str) -> String {
    serde_json::to_string(&[error]).unwrap_or_default()
}

impl RetryStrategy {
    /// The policy that it is.
    pub(super) fn policy(&self) -> RetryPolicy {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TaskRules;
    use crate::webhook::outcome::Answer;

    fn terms(target: &str) -> Terms {
        Terms::Task(Box::new(TaskRules::new(target.parse().unwrap())))
    }

    /// What is recorded of an answer with this body, where that went wrong for this reason.
    fn recorded(target: &str, body: String, why: String) -> serde_json::Value {
        let came = Came::Outcome(Outcome::Answered(Answer { status: 200, body, ..Answer::default() }));
        let verdict = Verdict {
            status: AttemptStatus::ConnectionError,
            error: Some(crate::webhook::verdict::ErrorType::Unknown),
            message: Some(why),
            next: Next::Retry { after: None },
        };
        let text = record(&came, &verdict, &terms(target), Timestamp::now(), Duration::MAX);
        assert!(text.len() <= MAX_ATTEMPT_BYTES, "{}", text.len());
        serde_json::from_str(&text).unwrap()
    }

    /// By the clock of the machine: what a record says is not the time of a test.
    #[tokio::test]
    async fn what_an_attempt_waits_for_its_pool_is_not_its_time() {
        let (before, starts) = (Timestamp::now(), Instant::now() + Duration::from_millis(50));
        let (started, clock) = begin(Some(starts)).await;
        assert!(clock >= starts && started.duration_since(before).as_millis() >= 50, "{before} {started}");
    }

    /// In answers and in messages, whole or cut.
    #[test]
    fn what_was_sent_in_confidence_is_not_kept() {
        let mut rules = TaskRules::new("https://e.com/".parse().unwrap());
        let header = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        rules.headers = [("x-api-key", "k3y-7"), ("x-tenant", "tenant-7")].map(header).into();
        let terms = Terms::Task(Box::new(rules));
        let credentials = Credentials::basic("tide", "pa55").ok();
        let authority = Authority { credentials, ..Authority::default() };
        let (said, shown) = ("k3y-7 tenant-7 tide:pa55 pa55 k3", "*** tenant-7 *** *** ***");
        let answer =
            |body: &str, body_end| Outcome::Answered(Answer { body: body.into(), body_end, ..Answer::default() });
        let failure = |message: &str| Outcome::Failed(Failure::new(FailureClass::Connection, message));
        assert_eq!(masked(answer(said, BodyEnd::Long), &terms, Some(&authority)), answer(shown, BodyEnd::Long));
        assert_eq!(masked(answer("k3", BodyEnd::Whole), &terms, None), answer("k3", BodyEnd::Whole));
        let cut = |text: &str| failure(&format!("{text}{CUT}"));
        assert_eq!(masked(cut(said), &terms, Some(&authority)), cut(shown));
    }

    #[test]
    fn a_record_always_fits() {
        let longest = format!("https://e.com/{}", "x".repeat(2_048 - 14));
        let control = |count| "\u{1}".repeat(count);
        let whole = recorded(&longest, "b".repeat(4_096), "e".repeat(1_000));
        assert_eq!(
            (whole["responseBody"].as_str().unwrap().len(), &whole["targetUrl"]),
            (4_096, &longest.as_str().into())
        );
        for (body, error) in [
            (control(4_096), control(1_000)),
            (control(3 * 4_096), control(64 << 10)),
            ("\u{1f980}\u{1}".repeat(5_000), "\\".repeat(70_000)),
            (String::new(), control(1 << 20)),
            (control(1 << 20), String::new()),
        ] {
            let record = recorded(&longest, body, error);
            assert_eq!(record["targetUrl"], longest);
            assert_eq!((&record["status"], &record["responseCode"]), (&"CONNECTION_ERROR".into(), &200.into()));
        }
    }
}
