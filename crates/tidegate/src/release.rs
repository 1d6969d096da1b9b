//! Gives leases back in the background: of entries dropped without a verdict, and of claims whose caller was gone.
//!
//! A release never uses up an attempt, so it is tried until it succeeds or the lease has run out anyway.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::{EntryId, LeaseToken, QueueName};
use tidegate_store::{Requeue, RequeueAt, Standing, Store};
use tokio::sync::{mpsc, oneshot};

use crate::error::is_transient;
use crate::metrics::Meters;
use crate::shared::Lanes;
use crate::wake::Bells;

const BATCH: usize = 1_000;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A lease to be given back.
#[derive(Debug, Clone)]
pub(crate) struct Release {
    pub(crate) id: EntryId,
    pub(crate) token: LeaseToken,
    pub(crate) queue: QueueName,
    /// When the lease has run out by itself.
    pub(crate) until: Instant,
}

/// A claim that was taken back too late.
#[derive(Debug)]
pub(crate) struct Late {
    pub(crate) claim: Standing,
    pub(crate) queue: QueueName,
    pub(crate) lease: Duration,
}

impl Late {
    /// What it got. The answer is there, or on its way.
    async fn releases(mut self) -> Vec<Release> {
        let claimed = self.claim.answer().await.and_then(Result::ok).unwrap_or_default();
        let until = self.claim.taken_at() + self.lease;
        let release = |id, token| Release { id, token, queue: self.queue.clone(), until };
        claimed.iter().map(|entry| release(entry.id, entry.token)).collect()
    }
}

/// What the background is asked to do.
#[derive(Debug)]
pub(crate) enum Errand {
    Release(Release),
    Late(Late),
    /// Answers once everything asked before was tried.
    Flush(oneshot::Sender<()>),
}

/// Runs until every handle is gone; the store is closed then, unless somebody else still uses it.
pub(crate) async fn run(
    store: Arc<dyn Store>,
    lanes: Lanes,
    meters: Arc<Meters>,
    bells: Arc<Bells>,
    mut errands: mpsc::UnboundedReceiver<Errand>,
) {
    let mut inbox = Vec::new();
    let mut held: Vec<Release> = Vec::new();
    let mut pause = FIRST_PAUSE;
    // Every handle is gone: nobody asks for anything any more.
    let mut over = false;
    loop {
        if held.is_empty() {
            if over || errands.recv_many(&mut inbox, BATCH).await == 0 {
                break;
            }
        } else if over {
            tokio::time::sleep(pause).await;
        } else {
            over = tokio::time::timeout(pause, errands.recv_many(&mut inbox, BATCH)).await == Ok(0);
        }
        let mut flushed = Vec::new();
        for errand in inbox.drain(..) {
            match errand {
                Errand::Release(release) => held.push(release),
                Errand::Late(late) => held.extend(late.releases().await),
                Errand::Flush(reply) => flushed.push(reply),
            }
        }
        let before = held.len();
        held = give_back(&lanes, &meters, &bells, held).await;
        pause = if held.len() < before { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        if !flushed.is_empty() {
            lanes.release.idle().await;
        }
        for reply in flushed {
            let _ = reply.send(());
        }
    }
    lanes.idle().await;
    drop(lanes);
    if Arc::strong_count(&store) == 1 {
        store.close().await;
    }
}

/// Tries to give all back; answers those that are worth another try.
async fn give_back(lanes: &Lanes, meters: &Meters, bells: &Bells, mut held: Vec<Release>) -> Vec<Release> {
    let now = Instant::now();
    held.retain(|release| release.until > now);
    let requeue = |release: &Release| Requeue {
        id: release.id,
        token: release.token,
        when: RequeueAt::Now,
        counts: false,
        error: None,
    };
    let answers = lanes.release.call_many(held.iter().map(requeue).collect()).await;
    let mut again = Vec::new();
    for (release, answer) in held.into_iter().zip(answers) {
        match answer {
            Ok(()) => {
                meters.released.increment(1);
                bells.ring(&release.queue);
            }
            Err(error) if is_transient(&error) && !lanes.release.is_closed() => again.push(release),
            Err(error) => tracing::debug!(entry = %release.id, %error, "a dropped entry was not released"),
        }
    }
    again
}
