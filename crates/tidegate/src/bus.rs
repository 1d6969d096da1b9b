//! The older, simpler face of the queue: publish, poll, finalise with yes or no, a router from event type to handler and
//! a worker loop over it.
//!
//! Owns routing and the loop. Leases, attempts and the log are the queue's; this knows no SQL and keeps no state of its
//! own, so that events published here can be handled anywhere else and the reverse.

mod router;
mod worker;

use std::time::Duration;

use tidegate_core::{End, EntryId, NewEvent};
use tidegate_store::{Finalize, Finalized, Published};

use crate::consumer::Consumer;
use crate::delivery::QueuedEvent;
use crate::error::Result;
use crate::queue::EventQueue;

pub use router::{RouteError, Router};
pub use worker::BusWorker;

/// How long an event may be processed before another worker may take it over, when nobody says otherwise.
pub const ABANDONED_AFTER: Duration = Duration::from_secs(5 * 60);

/// Durable, at-least-once processing with one verdict per event: it went well, or it failed.
///
/// ```
/// # async fn example(queue: tidegate::EventQueue) -> tidegate::Result<()> {
/// use tidegate::{EventBus, NewEvent};
/// let bus = EventBus::new(queue)?;
/// bus.publish(NewEvent::new("order.created", r#"{"number": 1}"#)).await?;
/// while let Some(event) = bus.poll().await? {
///     let success = event.json::<serde_json::Value>().is_ok();
///     bus.finalize(event.id, success).await?; // COMPLETED or FAILED
/// }
/// # Ok(()) }
/// ```
///
/// Instead of a loop of one's own, [`worker`](Self::worker) runs a [`Router`].
#[derive(Debug, Clone)]
pub struct EventBus {
    queue: EventQueue,
    consumer: Consumer,
}

impl EventBus {
    /// A bus over a queue. An event counts as abandoned [after 5 minutes](ABANDONED_AFTER).
    ///
    /// # Errors
    /// None that this length of lease can cause.
    pub fn new(queue: EventQueue) -> Result<Self> {
        let consumer = queue.consumer().lease(ABANDONED_AFTER)?;
        Ok(Self { queue, consumer })
    }

    /// After how long of processing another worker may take an event over.
    ///
    /// # Errors
    /// When it is not within a millisecond and a year.
    pub fn abandoned_after(mut self, timeout: Duration) -> Result<Self> {
        self.consumer = self.consumer.lease(timeout)?;
        Ok(self)
    }

    /// The queue beneath.
    #[must_use]
    pub fn queue(&self) -> &EventQueue {
        &self.queue
    }

    /// Publishes an event: it waits with no attempts. One whose attempts are used up ends as FAILED.
    ///
    /// # Errors
    /// As [`EventQueue::publish`].
    pub async fn publish(&self, mut event: NewEvent) -> Result<Published> {
        event.exhausted_as = End::Failed;
        self.queue.publish(event).await
    }

    /// Takes the next event, or none, without waiting for one; its attempts rise by one. Eligible are those that wait,
    /// and those that somebody has been processing for longer than the abandonment timeout.
    ///
    /// # Errors
    /// The store's.
    pub async fn poll(&self) -> Result<Option<QueuedEvent>> {
        self.consumer.poll().await
    }

    /// Moves an event to the log as COMPLETED or FAILED. One that has ended stays as it ended.
    ///
    /// # Errors
    /// `NotFound` when there is no such event, or the store's.
    pub async fn finalize(&self, id: EntryId, success: bool) -> Result<Finalized> {
        let end = if success { End::Completed } else { End::Failed };
        self.queue.finish(Finalize { id, token: None, end, errors: None, results: None }).await
    }

    /// A worker that takes the router's event types, and no others, from this bus.
    ///
    /// # Errors
    /// `Invalid` when the router has no route, two for one type, or one for something that is no type.
    pub fn worker(&self, router: Router) -> Result<BusWorker> {
        router.check()?;
        let consumer = self.consumer.types(router.types())?;
        Ok(BusWorker::new(consumer, router))
    }
}
