//! [`QueuedEvent`]: one claimed entry under its lease, as a value that is consumed by ending, requeueing or releasing
//! it. Knows nothing of handlers.

use std::fmt;
use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{AbortHandle, Abortable, Aborted};
use serde::de::DeserializeOwned;
use tidegate_core::{End, QueueName, RetryPolicy, Timestamp};
use tidegate_store::{Claimed, Extend, Finalize, Finalized, Requeue, RequeueAt};

use super::lease::Lease;
use super::retry_window::RetryWindow;
use super::shared::Shared;
use crate::background::release::Release;
use crate::background::wake::delay_of;
use crate::batch::claim_key::ClaimKey;
use crate::batch::verbs::Ending;
use crate::error::{Error, ErrorKind, Result, is_transient};
use crate::options::check_lease;

/// Where a claimed entry came from; every [`QueuedEvent`] holds one.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: ClaimKey,
}

/// One claimed entry. It dereferences to its data ([`Claimed`]: `id`, `attempts`, `lease_until`, `fact` …), and is
/// consumed by one of [`complete`](Self::complete), [`fail`](Self::fail), [`finalize`](Self::finalize),
/// [`retry_at`](Self::retry_at), [`snooze`](Self::snooze), [`release`](Self::release).
///
/// Dropped without any of them, it is released in the background, and the attempt does not count.
///
/// When the database is down or busy, each of them is tried again while the lease lasts, for at most 30 s
/// ([`Limits::deadline`](crate::Limits::deadline)); then the error is returned and the entry is released.
#[must_use = "an entry that is dropped without being ended is released and claimed again"]
pub struct QueuedEvent {
    /// Shared with its handlers.
    data: Arc<Claimed>,
    held: HeldLease,
    claimed: Instant,
    /// What is recorded of the attempt, if it counts.
    record: Option<String>,
}

/// Releases the lease when it is dropped.
struct HeldLease {
    /// `None` once dropping must not release: a flush decides, or the lease was handed over.
    origin: Option<Arc<Origin>>,
    lease: Arc<Lease>,
}

/// What follows from a failed attempt; see [`QueuedEvent::fail`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The entry is retried.
    Retry {
        /// The delay until it is due again.
        after: Duration,
    },
    /// The attempts are exhausted: the entry ended as a dead letter.
    Ended(End),
}

/// How an attempt ended; see [`QueuedEvent::attempt`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt<T> {
    /// It ran to its end.
    Done(T),
    /// It panicked. The lease is still held.
    Panicked,
    /// It was stopped or not begun, because the lease was lost.
    Lost,
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
    /// An entry claimed by a call that began at `from` and was answered at `now`.
    pub(crate) fn new(data: Claimed, origin: Arc<Origin>, from: Instant, now: Instant) -> Self {
        let length = Duration::try_from(data.lease_until.duration_since(data.claimed_at)).unwrap_or_default();
        let lease = Arc::new(Lease::new(data.id, data.token, from, length));
        Self { data: Arc::new(data), held: HeldLease { origin: Some(origin), lease }, claimed: now, record: None }
    }

    /// Has the attempt at a job recorded: JSON text of at most [`MAX_ATTEMPT_BYTES`](crate::MAX_ATTEMPT_BYTES), written
    /// together with what follows from the attempt, if that counts. Entries that are not jobs refuse it then.
    pub fn with_attempt(mut self, record: impl Into<String>) -> Self {
        self.record = Some(record.into());
        self
    }

    /// The event's type.
    #[must_use]
    pub fn event_type(&self) -> &str {
        &self.data.fact.event_type
    }

    /// The payload, byte for byte as it was published.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.data.fact.payload
    }

    /// Deserializes the payload from JSON.
    ///
    /// # Errors
    /// `Invalid` when it is not JSON or does not match `T`.
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

    /// Ends the entry as COMPLETED.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost: another worker has it, or it ended otherwise.
    pub async fn complete(self) -> Result<Finalized> {
        self.end_as(End::Completed, None, None).await
    }

    /// Ends the entry as COMPLETED, or as COMPLETED_WITH_ERRORS when errors are given.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost.
    pub async fn finalize<E: Into<String>>(self, errors: impl IntoIterator<Item = E>) -> Result<Finalized> {
        let (end, errors) = end_for(errors);
        self.end_as(end, errors, None).await
    }

    /// Ends the entry in any way, with errors and handlers' results as JSON text.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost.
    pub async fn end_as(mut self, end: End, errors: Option<String>, results: Option<String>) -> Result<Finalized> {
        let item = Finalize {
            id: self.data.id,
            token: Some(self.data.token),
            end,
            errors,
            results,
            attempt: self.record.take(),
        };
        let mut window = self.retry_window();
        loop {
            let Some(origin) = self.held.origin.clone() else { return Err(Error::fenced()) };
            let batcher = &origin.shared.batchers.finish;
            let ending = Ending { item: item.clone(), queue: origin.key.queue.clone() };
            let ticket = match batcher.submit(ending).await {
                Ok(ticket) => ticket,
                Err(error) if is_transient(&error) && !batcher.is_closed() && self.may_retry(&mut window).await => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.held.origin = None; // the flush decides from here on, even if this future is dropped
            let answer = ticket.answer().await;
            match answer {
                Err(error) if may_end_later(&error) => {
                    let closed = batcher.is_closed();
                    self.held.origin = Some(origin);
                    if closed || !self.may_retry(&mut window).await {
                        return Err(error);
                    }
                }
                answer => {
                    if answer.is_ok() {
                        self.count_end(&origin);
                    }
                    return answer;
                }
            }
        }
    }

    /// Reports that the attempt failed. The entry is retried by the retry policy of the event, else of its queue, else
    /// of this handle; after the last attempt it ends with the error as its publisher chose (COMPLETED_WITH_ERRORS or
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
        self.requeue(RequeueAt::After(after), true, false, Some(error)).await?;
        Ok(Failure::Retry { after })
    }

    /// Requeues the entry for a retry at a moment of database time. The attempt counts.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost.
    pub async fn retry_at(self, at: Timestamp, error: impl Into<String>) -> Result<()> {
        self.requeue(RequeueAt::At(at), true, false, Some(error.into())).await
    }

    /// Requeues the entry for a retry after `delay`. The attempt counts.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost.
    pub async fn retry_after(self, delay: Duration, error: impl Into<String>) -> Result<()> {
        self.requeue(RequeueAt::After(delay), true, false, Some(error.into())).await
    }

    /// As [`retry_after`](Self::retry_after), and lets the others of its group run until then.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost.
    pub async fn step_aside(self, delay: Duration, error: impl Into<String>) -> Result<()> {
        self.requeue(RequeueAt::After(delay), true, true, Some(error.into())).await
    }

    /// Gives the lease back: the entry can be claimed at once, in its old place. The attempt does not count.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost.
    pub async fn release(self) -> Result<()> {
        self.requeue(RequeueAt::Now, false, false, None).await
    }

    /// Gives the lease back; the entry is due again after `delay`. The attempt does not count.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost.
    pub async fn snooze(self, delay: Duration) -> Result<()> {
        self.requeue(RequeueAt::After(delay), false, false, None).await
    }

    /// Extends the lease to `lease` from now, and returns its new end.
    ///
    /// # Errors
    /// `Invalid` when `lease` is out of range, `Fenced` when the lease was lost: stop the attempt then.
    pub async fn extend(&mut self, lease: Duration) -> Result<Timestamp> {
        check_lease(lease)?;
        let Some(origin) = self.held.origin.clone() else { return Err(Error::fenced()) };
        let item = Extend { id: self.data.id, token: self.data.token, lease };
        let sent = Instant::now();
        let until = origin.shared.batchers.extend.call(item).await?;
        Arc::make_mut(&mut self.data).lease_until = until;
        self.held.lease.extended(sent, lease);
        Ok(until)
    }

    /// Runs an attempt, which is dropped when the lease is lost or the caller is gone. Only a lease that is kept (see
    /// [`Jobs::claim`](crate::Jobs::claim)) outlasts the time for which it was taken.
    pub async fn attempt<T>(&self, work: impl Future<Output = T> + Send) -> Attempt<T> {
        let lease = self.lease();
        if !lease.holds(Instant::now()) {
            return Attempt::Lost;
        }
        let (stop, stopped) = AbortHandle::new_pair();
        lease.works_in(stop);
        let ended = Abortable::new(AssertUnwindSafe(work).catch_unwind(), stopped).await;
        lease.attempt_over();
        match ended {
            Ok(Ok(answer)) => Attempt::Done(answer),
            Ok(Err(_)) => Attempt::Panicked,
            Err(Aborted) => Attempt::Lost,
        }
    }

    /// Returns the data without releasing the lease: the caller ends the entry by id and token, or the lease runs out.
    #[must_use]
    pub fn into_parts(mut self) -> Claimed {
        self.held.origin = None;
        Arc::unwrap_or_clone(self.data)
    }

    /// Drops the value without releasing the lease, for instance after a transaction of the caller ended the entry.
    pub fn forget(mut self) {
        self.held.origin = None;
    }

    /// Hands the lease over, for instance to a worker in another process: it is no longer released when this value is
    /// dropped, and ends by a report, by [`EventQueue::finish`](crate::EventQueue::finish), or by running out.
    #[must_use = "it is the only record of the lease"]
    pub fn hand_over(mut self) -> Claimed {
        self.disarm();
        Claimed::clone(&self.data)
    }

    /// Dropping the event no longer releases its lease. Returns what [`arm`](Self::arm) needs to undo this.
    pub(crate) fn disarm(&mut self) -> Option<Arc<Origin>> {
        self.held.origin.take()
    }

    pub(crate) fn arm(&mut self, origin: Option<Arc<Origin>>) {
        self.held.origin = origin;
    }

    /// The lease, shared with the lease keeper.
    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.held.lease
    }

    /// The delay before the next attempt, by the first retry policy there is: of the event, of its queue, `otherwise`,
    /// of this handle.
    pub(crate) fn retry_delay(&self, otherwise: Option<&RetryPolicy>) -> Duration {
        let own = self.data.fact.retry.as_ref().or(self.data.queue_retry.as_deref()).or(otherwise);
        let default = || self.held.origin.as_ref().map(|origin| &origin.shared.options.retry);
        let random = rand::random();
        own.or_else(default).map_or(Duration::ZERO, |policy| policy.delay(self.data.attempts, random))
    }

    pub(crate) fn data(&self) -> &Arc<Claimed> {
        &self.data
    }

    /// The queue it was claimed from; `None` after [`disarm`](Self::disarm).
    pub(crate) fn queue(&self) -> Option<&QueueName> {
        self.held.origin.as_ref().map(|origin| &origin.key.queue)
    }

    pub(crate) fn claimed_since(&self) -> Instant {
        self.claimed
    }

    async fn requeue(mut self, when: RequeueAt, counts: bool, aside: bool, error: Option<String>) -> Result<()> {
        let attempt = self.record.take().filter(|_| counts);
        let item = Requeue { id: self.data.id, token: self.data.token, when, counts, aside, error, attempt };
        let mut window = self.retry_window();
        loop {
            let Some(origin) = self.held.origin.clone() else { return Err(Error::fenced()) };
            let batcher = &origin.shared.batchers.requeue;
            let ticket = match batcher.submit(item.clone()).await {
                Ok(ticket) => ticket,
                Err(error) if is_transient(&error) && !batcher.is_closed() && self.may_retry(&mut window).await => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.held.origin = None;
            match ticket.answer().await {
                Err(error) if is_transient(&error) => {
                    let closed = batcher.is_closed();
                    self.held.origin = Some(origin);
                    if closed || !self.may_retry(&mut window).await {
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
                        None => origin.shared.wake_ups.wake(&origin.key.queue),
                        Some(delay) => origin.shared.wake_ups.wake_after(&origin.key.queue, delay),
                    }
                    return Ok(());
                }
            }
        }
    }

    fn count_end(&self, origin: &Origin) {
        origin.shared.meters.claim_to_finish.record(self.claimed.elapsed().as_secs_f64());
        if self.data.group.is_some() {
            origin.shared.wake_ups.wake(&origin.key.queue); // for the next entry of its group
        }
    }

    /// Calls may be retried while the lease lasts, but not beyond the deadline of the limits.
    fn retry_window(&self) -> RetryWindow {
        let longest = self.held.origin.as_ref().map_or(Duration::ZERO, |origin| origin.shared.options.limits.deadline);
        RetryWindow::new(Instant::now(), longest)
    }

    /// Sleeps before the next try; false, without sleeping, when the window closes before then.
    async fn may_retry(&self, window: &mut RetryWindow) -> bool {
        // The lease is asked every time, for it may have been extended.
        if !window.is_open(Instant::now(), self.held.lease.until()) {
            return false;
        }
        tokio::time::sleep(window.next_pause()).await;
        true
    }
}

/// Whether an end may be retried after this error. Ending twice under one token is the same as once, so indeterminate
/// errors are included.
pub(crate) fn may_end_later(error: &Error) -> bool {
    is_transient(error) || error.kind() == ErrorKind::Indeterminate
}

/// COMPLETED without errors, else COMPLETED_WITH_ERRORS with the errors as a JSON list.
pub(crate) fn end_for<E: Into<String>>(errors: impl IntoIterator<Item = E>) -> (End, Option<String>) {
    let errors: Vec<String> = errors.into_iter().map(Into::into).collect();
    if errors.is_empty() { (End::Completed, None) } else { (End::CompletedWithErrors, Some(json_list(errors))) }
}

pub(crate) fn json_list(errors: impl IntoIterator<Item = String>) -> String {
    serde_json::Value::from_iter(errors).to_string()
}
