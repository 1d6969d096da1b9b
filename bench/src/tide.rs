//! Tidegate's side of the disciplines: filling a queue and working it off. Uses only the public API.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidegate::{EventQueue, NewEvent};

use crate::Result;
use crate::runner::at_once;
use crate::scale::{BATCH, CALLERS, payload};

/// The type of every event that is meant to be claimed.
pub(crate) const TYPE: &str = "bench";
/// How long a consumer may get nothing before the run fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// An event of the usual type with a JSON payload of this many bytes; clones share the payload.
pub(crate) fn event(bytes: usize) -> NewEvent {
    NewEvent::new(TYPE, Bytes::from(payload(bytes)))
}

/// Publishes `count` copies of an event as one batch.
///
/// # Errors
/// The first error of any item.
pub(crate) async fn publish(queue: &EventQueue, event: &NewEvent, count: usize) -> Result<()> {
    for answer in queue.publish_many(vec![event.clone(); count]).await {
        answer?;
    }
    Ok(())
}

/// Publishes `count` events in batches from as many callers as the baseline has connections.
///
/// # Errors
/// As [`publish`].
pub(crate) async fn fill(queue: &EventQueue, event: &NewEvent, count: usize) -> Result<()> {
    let left = Arc::new(AtomicUsize::new(count));
    let callers = (0..CALLERS).map(|_| {
        let (queue, event, left) = (queue.clone(), event.clone(), Arc::clone(&left));
        async move {
            while let Some(batch) = take(&left, BATCH) {
                publish(&queue, &event, batch).await?;
            }
            Ok(())
        }
    });
    at_once(callers).await
}

/// Takes up to `most` from `left`; `None` when nothing is left.
fn take(left: &AtomicUsize, most: usize) -> Option<usize> {
    let before =
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(most))).ok()?;
    (before > 0).then_some(before.min(most))
}

/// Claims and finalises in batches, with as many consumers as the baseline has, until `count` entries have ended.
///
/// # Errors
/// When a call fails, or a consumer gets nothing for a minute.
pub(crate) async fn work_off(queue: &EventQueue, count: usize) -> Result<()> {
    let done = Arc::new(AtomicUsize::new(0));
    let consumers = (0..CALLERS).map(|_| consume(queue.clone(), Arc::clone(&done), count));
    at_once(consumers).await
}

async fn consume(queue: EventQueue, done: Arc<AtomicUsize>, count: usize) -> Result<()> {
    let mut progress = Instant::now();
    while done.load(Ordering::Relaxed) < count {
        let ended = cycle_once(&queue).await?;
        if ended > 0 {
            done.fetch_add(ended, Ordering::Relaxed);
            progress = Instant::now();
        } else if progress.elapsed() > PATIENCE {
            return Err(format!("no progress in 60 s; {} of {count} events ended", done.load(Ordering::Relaxed)).into());
        } else {
            // The other consumer holds the last batch, or publishing is slower than consuming.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    Ok(())
}

/// Claims one batch and finalises it; returns the number of entries.
///
/// # Errors
/// When a call fails.
pub(crate) async fn cycle_once(queue: &EventQueue) -> Result<usize> {
    let claimed = queue.poll_many(BATCH).await?;
    let count = claimed.len();
    for answer in queue.finalize_many(claimed).await {
        answer?;
    }
    Ok(count)
}

/// Checks that a run ended every event.
///
/// # Errors
/// When there are not exactly `count` events, or entries are still live.
pub(crate) async fn expect_ended(queue: &EventQueue, count: usize) -> Result<()> {
    let left = queue.depth().await?.total();
    let events = queue.store().census().await?.events;
    if left == 0 && events == count as u64 {
        return Ok(());
    }
    Err(format!("expected {count} events, all ended; found {events} events and {left} live entries").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_shared_out_completely() {
        let left = AtomicUsize::new(2_500);
        let shares: Vec<usize> = std::iter::from_fn(|| take(&left, 1_000)).collect();
        assert_eq!(shares, [1_000, 1_000, 500]);
    }
}
