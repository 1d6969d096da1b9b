//! What a poll returns: one entry under a lease, as a value that a verdict consumes.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use tidegate_core::{End, QueueName, RetryPolicy, Timestamp};
use tidegate_store::{Claimed, Extend, Finalize, Finalized, Requeue, RequeueAt};

use crate::consumer::Origin;
use crate::error::{Error, ErrorKind, Result, is_transient};
use crate::lease::Lease;
use crate::moments::after;
use crate::options::check_lease;
use crate::release::Release;
use crate::shared::Ending;
use crate::wake::delay_of;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// One claimed entry. It reads like its data ([`Claimed`]: `id`, `attempts`, `lease_until`, `fact` …), and ends with one
/// of [`complete`](Self::complete), [`fail`](Self::fail), [`finalize`](Self::finalize), [`retry_at`](Self::retry_at),
/// [`snooze`](Self::snooze), [`release`](Self::release).
///
/// Dropped without a verdict, it is released in the background, and the attempt does not count.
///
/// A verdict that meets a database that is down or busy is tried again while the lease lasts (at most 30 s); if that
/// fails, the error is returned and the entry is released.
#[must_use = "dropped without a verdict, the entry goes back into its queue"]
pub struct QueuedEvent {
    /// Shared with the handlers that work on it.
    data: Arc<Claimed>,
    held: HeldLease,
    claimed: Instant,
}

/// The part that gives the lease back when it is dropped.
struct HeldLease {
    /// Present while the lease is ours to give back.
    origin: Option<Arc<Origin>>,
    lease: Arc<Lease>,
}

/// What became of a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It is tried again after this long.
    Retry {
        /// How long.
        after: Duration,
    },
    /// Its attempts are used up: it is a dead letter.
    Ended(End),
}

impl fmt::Debug for QueuedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedEvent").field("data", &self.data).finish_non_exhaustive()
    }
}

impl Deref for QueuedEvent {
    type Target = Claimed;

    fn deref(&self) -> &Claimed {
        &self.data
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.lease.end();
        if let Some(origin) = self.origin.take() {
            let Lease { id, token, .. } = *self.lease;
            let (queue, until) = (origin.key.queue.clone(), self.lease.until());
            origin.shared.release_later(Release { id, token, queue, until });
        }
    }
}

impl QueuedEvent {
    /// An entry that was claimed by now, by a call that began at `from`.
    pub(crate) fn new(data: Claimed, origin: Arc<Origin>, from: Instant, now: Instant) -> Self {
        let length = Duration::try_from(data.lease_until.duration_since(data.claimed_at)).unwrap_or_default();
        let lease = Arc::new(Lease::new(data.id, data.token, from, length));
        Self { data: Arc::new(data), held: HeldLease { origin: Some(origin), lease }, claimed: now }
    }

    /// The event's type.
    #[must_use]
    pub fn event_type(&self) -> &str {
        &self.data.fact.event_type
    }

    /// The payload's bytes, as they were published.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.data.fact.payload
    }

    /// Reads the payload as JSON.
    ///
    /// # Errors
    /// `Invalid` when it is not JSON, or not of this shape.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(self.payload()).map_err(|error| {
            Error::invalid(format!("the payload of entry {} cannot be read: {error}", self.data.id)).with_source(error)
        })
    }

    /// Whether this is the last attempt: a failure would end the entry.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.data.attempts >= self.data.max_attempts
    }

    /// Ends it as COMPLETED.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost: somebody else has it, or it ended otherwise.
    pub async fn complete(self) -> Result<Finalized> {
        self.end_as(End::Completed, None, None).await
    }

    /// Ends it as COMPLETED, or as COMPLETED_WITH_ERRORS when errors are given.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost.
    pub async fn finalize<E: Into<String>>(self, errors: impl IntoIterator<Item = E>) -> Result<Finalized> {
        let (end, errors) = verdict(errors);
        self.end_as(end, errors, None).await
    }

    /// Ends it in any way, with errors and handlers' results as JSON text.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost.
    pub async fn end_as(mut self, end: End, errors: Option<String>, results: Option<String>) -> Result<Finalized> {
        let item = Finalize { id: self.data.id, token: Some(self.data.token), end, errors, results };
        let mut pause = self.patience();
        loop {
            let Some(origin) = self.held.origin.clone() else { return Err(Error::fenced()) };
            let lane = &origin.shared.lanes.finish;
            let ending = Ending { item: item.clone(), queue: origin.key.queue.clone() };
            let ticket = match lane.submit(ending).await {
                Ok(ticket) => ticket,
                Err(error) if is_transient(&error) && !lane.is_closed() && pause.again().await => continue,
                Err(error) => return Err(error),
            };
            self.held.origin = None; // the flush decides from here, whether or not anybody waits for it
            let answer = ticket.answer().await;
            match answer {
                Err(error) if may_end_later(&error) => {
                    let closed = lane.is_closed();
                    self.held.origin = Some(origin);
                    if closed || !pause.again().await {
                        return Err(error);
                    }
                }
                answer => {
                    if answer.is_ok() {
                        self.count_finish(&origin);
                    }
                    return answer;
                }
            }
        }
    }

    /// Says that the attempt failed: it is tried again by the retry policy of the event, else of its queue, else of this
    /// handle; or, when this was the last attempt, ends with the error as its publisher chose (COMPLETED_WITH_ERRORS, or
    /// FAILED).
    ///
    /// # Errors
    /// `Fenced` when the lease was lost.
    pub async fn fail(self, error: impl Into<String>) -> Result<Failure> {
        let error = error.into();
        if self.is_last_attempt() {
            let end = self.data.exhausted_as;
            let finalized = self.end_as(end, Some(json_list([error])), None).await?;
            return Ok(Failure::Ended(finalized.end));
        }
        let after = self.retry_delay(None);
        self.requeue(RequeueAt::After(after), true, Some(error)).await?;
        Ok(Failure::Retry { after })
    }

    /// Has it tried again at a moment of database time. The attempt counts.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost.
    pub async fn retry_at(self, at: Timestamp, error: impl Into<String>) -> Result<()> {
        self.requeue(RequeueAt::At(at), true, Some(error.into())).await
    }

    /// Has it tried again after a while. The attempt counts.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost.
    pub async fn retry_after(self, delay: Duration, error: impl Into<String>) -> Result<()> {
        self.requeue(RequeueAt::After(delay), true, Some(error.into())).await
    }

    /// Gives it back to be claimed at once, where it was. The attempt does not count.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost.
    pub async fn release(self) -> Result<()> {
        self.requeue(RequeueAt::Now, false, None).await
    }

    /// Gives it back for later. The attempt does not count.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost.
    pub async fn snooze(self, delay: Duration) -> Result<()> {
        self.requeue(RequeueAt::After(delay), false, None).await
    }

    /// Keeps the lease for this long from now, and answers its new end.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost: stop working on it.
    pub async fn extend(&mut self, lease: Duration) -> Result<Timestamp> {
        check_lease(lease)?;
        let Some(origin) = self.held.origin.clone() else { return Err(Error::fenced()) };
        let item = Extend { id: self.data.id, token: self.data.token, lease };
        let sent = Instant::now();
        let until = origin.shared.lanes.extend.call(item).await?;
        Arc::make_mut(&mut self.data).lease_until = until;
        self.held.lease.extended(sent, lease);
        Ok(until)
    }

    /// Takes the data out and leaves the lease to the caller, who ends it by id and token, or to its end.
    #[must_use]
    pub fn into_parts(mut self) -> Claimed {
        self.held.origin = None;
        Arc::unwrap_or_clone(self.data)
    }

    /// Leaves the lease to run out, for instance after the entry was ended in a transaction of the caller.
    pub fn forget(mut self) {
        self.held.origin = None;
    }

    /// Hands the lease over to whoever is told of it, such as a worker in another process: it is no longer given back when
    /// this value goes, and ends by a report, by [`EventQueue::finish`](crate::EventQueue::finish), or by running out.
    #[must_use = "the lease is in it"]
    pub fn hand_over(mut self) -> Claimed {
        self.disarm();
        Claimed::clone(&self.data)
    }

    /// The lease is now somebody else's business: a batch that ends it, or nobody's.
    pub(crate) fn disarm(&mut self) -> Option<Arc<Origin>> {
        self.held.origin.take()
    }

    pub(crate) fn arm(&mut self, origin: Option<Arc<Origin>>) {
        self.held.origin = origin;
    }

    /// The lease, shared with whoever keeps it.
    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.held.lease
    }

    /// How long to wait before the next attempt: by the event's policy, else its queue's, else one of the caller's, else
    /// the one this handle was opened with.
    pub(crate) fn retry_delay(&self, otherwise: Option<&RetryPolicy>) -> Duration {
        let own = self.data.fact.retry.as_ref().or(self.data.queue_retry.as_deref()).or(otherwise);
        let default = || self.held.origin.as_ref().map(|origin| &origin.shared.options.retry);
        let random = rand::random();
        own.or_else(default).map_or(Duration::ZERO, |policy| policy.delay(self.data.attempts, random))
    }

    /// The data, shared.
    pub(crate) fn data(&self) -> &Arc<Claimed> {
        &self.data
    }

    /// The queue it was claimed from, while the lease is ours.
    pub(crate) fn queue(&self) -> Option<&QueueName> {
        self.held.origin.as_ref().map(|origin| &origin.key.queue)
    }

    pub(crate) fn claimed_since(&self) -> Instant {
        self.claimed
    }

    async fn requeue(mut self, when: RequeueAt, counts: bool, error: Option<String>) -> Result<()> {
        let item = Requeue { id: self.data.id, token: self.data.token, when, counts, error };
        let mut pause = self.patience();
        loop {
            let Some(origin) = self.held.origin.clone() else { return Err(Error::fenced()) };
            let lane = &origin.shared.lanes.requeue;
            let ticket = match lane.submit(item.clone()).await {
                Ok(ticket) => ticket,
                Err(error) if is_transient(&error) && !lane.is_closed() && pause.again().await => continue,
                Err(error) => return Err(error),
            };
            self.held.origin = None;
            match ticket.answer().await {
                Err(error) if is_transient(&error) => {
                    let closed = lane.is_closed();
                    self.held.origin = Some(origin);
                    if closed || !pause.again().await {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
                Ok(()) => {
                    let meters = &origin.shared.meters;
                    if counts {
                        meters.retried.increment(1)
                    } else {
                        meters.released.increment(1)
                    }
                    match delay_of(when) {
                        None => origin.shared.bells.ring(&origin.key.queue),
                        Some(delay) => origin.shared.bells.ring_after(&origin.key.queue, delay),
                    }
                    return Ok(());
                }
            }
        }
    }

    fn count_finish(&self, origin: &Origin) {
        origin.shared.meters.claim_to_finish.record(self.claimed.elapsed().as_secs_f64());
        if self.data.group.is_some() {
            origin.shared.bells.ring(&origin.key.queue); // the next of its group
        }
    }

    /// Tries go on while the lease lasts, but not for long.
    pub(crate) fn patience(&self) -> Patience {
        let longest = self.held.origin.as_ref().map_or(Duration::ZERO, |origin| origin.shared.options.limits.deadline);
        let until = after(Instant::now(), longest);
        Patience { lease: Arc::clone(&self.held.lease), until, pause: FIRST_PAUSE }
    }
}

pub(crate) struct Patience {
    /// May be extended meanwhile.
    lease: Arc<Lease>,
    until: Instant,
    pause: Duration,
}

impl Patience {
    /// Waits a little and says whether another try is worth it.
    pub(crate) async fn again(&mut self) -> bool {
        if Instant::now() + self.pause >= self.until.min(self.lease.until()) {
            return false;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}

/// Whether an end should be asked for again. Ending twice under one token is the same as once, so that goes for unknown
/// outcomes too.
pub(crate) fn may_end_later(error: &Error) -> bool {
    is_transient(error) || error.kind() == ErrorKind::Indeterminate
}

/// No errors: COMPLETED. Else COMPLETED_WITH_ERRORS and the errors as a JSON list.
pub(crate) fn verdict<E: Into<String>>(errors: impl IntoIterator<Item = E>) -> (End, Option<String>) {
    let errors: Vec<String> = errors.into_iter().map(Into::into).collect();
    if errors.is_empty() { (End::Completed, None) } else { (End::CompletedWithErrors, Some(json_list(errors))) }
}

pub(crate) fn json_list(errors: impl IntoIterator<Item = String>) -> String {
    serde_json::Value::from_iter(errors).to_string()
}
