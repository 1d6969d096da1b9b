//! Claims of pull workers: from the caller's queue, waiting among the other waiters if nothing can be claimed yet.

use std::time::Duration;

use tidegate::{QueueName, QueuedEvent};

use crate::access::Caller;
use crate::error::Result;
use crate::handover::Handover;
use crate::service::Service;
use crate::waiters::WaitKey;
use crate::wire::claims::Wanted;

/// Claims events, and returns them with their queue. Waiting ends when the server stops or the caller hangs up.
pub(crate) async fn claim(
    service: &Service,
    caller: &Caller,
    wanted: Wanted,
    handover: &Handover,
) -> Result<(Vec<QueuedEvent>, QueueName)> {
    let queue = caller.queue(wanted.client.as_deref(), wanted.queue.as_deref())?;
    let lease = match wanted.claim.lease {
        Some(lease) => lease,
        None => {
            let version = service.queues.version(caller).await?;
            wanted.claim.lease(&service.queues.settings(&queue, version).await?, service.options.lease)
        }
    };
    let key = WaitKey { queue: queue.clone(), tags: wanted.claim.tags.clone(), lease };
    let consumer = service.queues.handle(&queue).await?.pull_consumer(wanted.claim, lease)?;
    let wait = if service.is_stopping() { Duration::ZERO } else { wanted.wait };
    let events = tokio::select! {
        events = service.waiters.claim(key, &consumer, wanted.count, wait) => events?,
        () = service.stopped() => Vec::new(),
        () = handover.gone(), if !wait.is_zero() => Vec::new(),
    };
    if !events.is_empty() && handover.is_gone().await {
        return Ok((Vec::new(), queue)); // dropping `events` releases their leases
    }
    Ok((events, queue))
}
