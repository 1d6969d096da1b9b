//! Publishing events. Concurrent calls share transactions.

use tidegate_core::{NewEvent, QueueName};
use tidegate_store::Published;
use tracing::{Instrument, Span};

use super::EventQueue;
use crate::error::Result;
use crate::trace;

impl EventQueue {
    /// Sends an event that names no queue (`default`) to this handle's queue.
    pub(crate) fn address(&self, event: &mut NewEvent) {
        if event.queue == QueueName::default() && self.name() != &event.queue {
            event.queue = self.name().clone();
        }
    }

    /// Publishes an event and waits until it is durable. Concurrent calls share transactions. An event whose queue is
    /// `default` goes into this handle's queue.
    ///
    /// # Errors
    /// `Invalid` (the text says what to change), `Conflict` (the deduplication key belongs to another event), `Full`
    /// (depth limit reached, or the queue is draining), `Busy` (too many calls wait), or any error of the store.
    pub async fn publish(&self, mut event: NewEvent) -> Result<Published> {
        self.address(&mut event);
        let batcher = self.shared().batchers.for_publish(std::slice::from_ref(&event));
        let span = trace::publish(&event);
        batcher.call(event).instrument(span).await
    }

    /// Publishes events in their order, in transactions of at most 1,000 events and 8 MiB, with one result per event.
    /// An invalid event never fails its neighbours.
    pub async fn publish_many(&self, mut events: Vec<NewEvent>) -> Vec<Result<Published>> {
        events.iter_mut().for_each(|event| self.address(event));
        // The spans stay open until the call returns.
        let _spans: Vec<Span> = events.iter().map(trace::publish).filter(|span| !span.is_none()).collect();
        self.shared().batchers.for_publish(&events).call_many(events).await
    }
}
