//! Releases leases in the background: of entries that were dropped without being ended, and of claims whose caller was
//! gone.
//!
//! A release does not count the attempt, so it is tried until it succeeds or the lease has run out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::{EntryId, LeaseToken, QueueName};
use tidegate_store::{Requeue, RequeueAt, Store, WaitingClaim};
use tokio::sync::{mpsc, oneshot};

use super::wake::WakeUps;
use crate::backoff::Backoff;
use crate::batch::verbs::Batchers;
use crate::error::is_transient;
use crate::metrics::Meters;

const BATCH: usize = 1_000;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A lease to be released.
#[derive(Debug, Clone)]
pub(crate) struct Release {
    pub(crate) id: EntryId,
    pub(crate) token: LeaseToken,
    pub(crate) queue: QueueName,
    /// When the lease runs out by itself.
    pub(crate) until: Instant,
}

/// A waiting claim that was withdrawn after the store had answered it.
#[derive(Debug)]
pub(crate) struct LateClaim {
    pub(crate) claim: WaitingClaim,
    pub(crate) queue: QueueName,
    pub(crate) lease: Duration,
}

impl LateClaim {
    /// The leases that it got. Its answer is there or will come soon.
    async fn releases(mut self) -> Vec<Release> {
        let claimed = self.claim.answer().await.and_then(Result::ok).unwrap_or_default();
        let until = self.claim.taken_at() + self.lease;
        let release = |id, token| Release { id, token, queue: self.queue.clone(), until };
        claimed.iter().map(|entry| release(entry.id, entry.token)).collect()
    }
}

/// What the background task is asked to do.
#[derive(Debug)]
pub(crate) enum BackgroundTask {
    Release(Release),
    Late(LateClaim),
    /// Answered once every release asked for before has been tried.
    Flush(oneshot::Sender<()>),
}

/// Runs until the last handle is dropped, then closes the store unless it is used elsewhere or not this queue's own.
pub(crate) async fn run(
    store: Option<Arc<dyn Store>>,
    batchers: Batchers,
    meters: Arc<Meters>,
    wake_ups: Arc<WakeUps>,
    mut tasks: mpsc::UnboundedReceiver<BackgroundTask>,
) {
    let mut inbox = Vec::new();
    let mut held: Vec<Release> = Vec::new();
    let mut pauses = Pauses::new();
    // The last handle was dropped: no more tasks will come.
    let mut over = false;
    loop {
        if held.is_empty() {
            if over || tasks.recv_many(&mut inbox, BATCH).await == 0 {
                break;
            }
        } else if over {
            tokio::time::sleep(pauses.current).await;
        } else {
            over = tokio::time::timeout(pauses.current, tasks.recv_many(&mut inbox, BATCH)).await == Ok(0);
        }
        let mut flushed = Vec::new();
        for task in inbox.drain(..) {
            match task {
                BackgroundTask::Release(release) => held.push(release),
                BackgroundTask::Late(late) => held.extend(late.releases().await),
                BackgroundTask::Flush(reply) => flushed.push(reply),
            }
        }
        let tried = held.len();
        held = give_back(&batchers, &meters, &wake_ups, held).await;
        pauses.tried(tried, held.len());
        if !flushed.is_empty() {
            batchers.release.idle().await;
        }
        for reply in flushed {
            let _ = reply.send(());
        }
    }
    batchers.idle().await;
    drop(batchers);
    if let Some(store) = store
        && Arc::strong_count(&store) == 1
    {
        store.close().await;
    }
}

/// The pause before what is still held is tried again.
#[derive(Debug)]
struct Pauses {
    backoff: Backoff,
    current: Duration,
}

impl Pauses {
    fn new() -> Self {
        Self { backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE), current: FIRST_PAUSE }
    }

    /// After a try with `tried` leases, of which `left` are to be tried again. Only a try that got nowhere counts as a
    /// failure; one of nothing, for a flush, does not.
    fn tried(&mut self, tried: usize, left: usize) {
        if left == 0 || left < tried {
            self.backoff.succeeded();
        }
        self.current = if left == 0 { FIRST_PAUSE } else { self.backoff.failed() };
    }
}

/// Tries to release all; returns those to be tried again.
async fn give_back(batchers: &Batchers, meters: &Meters, wake_ups: &WakeUps, mut held: Vec<Release>) -> Vec<Release> {
    let now = Instant::now();
    held.retain(|release| release.until > now);
    let requeue = |release: &Release| Requeue {
        id: release.id,
        token: release.token,
        when: RequeueAt::Now,
        counts: false,
        aside: false,
        error: None,
        attempt: None,
    };
    let answers = batchers.release.call_many(held.iter().map(requeue).collect()).await;
    let mut again = Vec::new();
    for (release, answer) in held.into_iter().zip(answers) {
        match answer {
            Ok(()) => {
                meters.released.increment(1);
                wake_ups.wake(&release.queue);
            }
            Err(error) if is_transient(&error) && !batchers.release.is_closed() => again.push(release),
            Err(error) => {
                tracing::debug!(entry = %release.id, %error, "releasing a dropped entry failed: its lease runs out");
            }
        }
    }
    again
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_start_at_the_first_and_double_while_nothing_is_released() {
        let mut pauses = Pauses::new();
        let mut after = |tried, left| {
            pauses.tried(tried, left);
            pauses.current.as_millis()
        };
        assert_eq!([(); 8].map(|()| after(1, 1)), [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert_eq!(after(3, 2), 100, "one was released");
        assert_eq!(after(2, 2), 200);
        assert_eq!(after(2, 0), 100);
        assert_eq!([after(0, 0), after(0, 0)], [100, 100], "a flush of nothing is no failure");
        assert_eq!(after(1, 1), 100);
    }
}
