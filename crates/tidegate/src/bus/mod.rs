//! The older, simpler API of the queue: publish, poll, finalize as completed or failed, a router from event type to
//! handler, and a worker loop over it.
//!
//! Owns routing and the loop. Leases, attempts and the log belong to the queue; the bus knows no SQL and keeps no state
//! of its own, so events published here can be handled anywhere else and vice versa.

mod router;
mod worker;

use std::time::Duration;

use tidegate_core::{End, EntryId, NewEvent};
use tidegate_store::{Finalize, Finalized, Published};

pub use self::router::{RouteError, Router};
pub use self::worker::BusWorker;
use crate::error::Result;
use crate::queue::EventQueue;
use crate::queue::consumer::Consumer;
use crate::queue::delivery::QueuedEvent;

/// The default of [`EventBus::abandoned_after`].
pub const ABANDONED_AFTER: Duration = Duration::from_secs(5 * 60);

/// Durable, at-least-once processing with one attempt outcome per event: completed or failed.
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
    /// None: the default lease is valid.
    pub fn new(queue: EventQueue) -> Result<Self> {
        let consumer = queue.consumer().lease(ABANDONED_AFTER)?;
        Ok(Self { queue, consumer })
    }

    /// Sets how long an event may be processed without a heartbeat before another worker may take it over.
    ///
    /// # Errors
    /// `Invalid` when it is not between 1 ms and 366 days.
    pub fn abandoned_after(mut self, timeout: Duration) -> Result<Self> {
        self.consumer = self.consumer.lease(timeout)?;
        Ok(self)
    }

    /// The queue of this bus.
    #[must_use]
    pub fn queue(&self) -> &EventQueue {
        &self.queue
    }

    /// Publishes an event. It ends as FAILED when its attempts are exhausted.
    ///
    /// # Errors
    /// As [`EventQueue::publish`].
    pub async fn publish(&self, mut event: NewEvent) -> Result<Published> {
        event.exhausted_as = End::Failed;
        self.queue.publish(event).await
    }

    /// Claims the next event, or none, without waiting for one; its attempts rise by one. Events whose lease has ended
    /// (see [`abandoned_after`](Self::abandoned_after)) are claimed too.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn poll(&self) -> Result<Option<QueuedEvent>> {
        self.consumer.poll().await
    }

    /// Ends an event as COMPLETED or FAILED. One that has ended already stays as it is.
    ///
    /// # Errors
    /// `NotFound` when there is no such event, or any error of the store.
    pub async fn finalize(&self, id: EntryId, success: bool) -> Result<Finalized> {
        let end = if success { End::Completed } else { End::Failed };
        self.queue.finish(Finalize { id, token: None, end, errors: None, results: None, attempt: None }).await
    }

    /// A worker that claims the event types of the router, and no others.
    ///
    /// # Errors
    /// `Invalid` when the router has no route, two routes for one type, or a route for an invalid type.
    pub fn worker(&self, router: Router) -> Result<BusWorker> {
        router.check()?;
        let consumer = self.consumer.types(router.types())?;
        Ok(BusWorker::new(consumer, router))
    }
}
