//! Regular tasks of this process: the store's heartbeat, upkeep with the announcement of consumers, and gauges. Each
//! is a task of its own, so that a slow or failing one does not stop the others.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tidegate_store::Store;
use tokio::sync::watch;

use super::announce::announce;
use super::notes::{Notes, lock};
use crate::error::Result;
use crate::options::Options;
use crate::queue::shared::Shared;

const LONGEST_PAUSE: Duration = Duration::from_secs(15);
const GAUGES_EVERY: Duration = Duration::from_secs(15);
/// After a refresh that took t, the next one waits at least 50t: counting uses at most 2 % of the time.
const GAUGES_SHARE: u32 = 50;

/// Sleeps; false when told to stop, or when the last handle is dropped.
async fn rest(pause: Duration, stop: &mut watch::Receiver<bool>) -> bool {
    tokio::select! {
        () = tokio::time::sleep(pause) => true,
        _ = stop.changed() => false,
    }
}

/// How often the heartbeat is written: several times within the gap that would count as an outage.
pub(crate) fn heartbeat_interval(options: &Options) -> Duration {
    options.upkeep_interval.min(options.store.outage_after / 4).max(Duration::from_millis(10))
}

/// Writes the store's heartbeat, and nothing else, until the queue is closed or its last handle is dropped.
pub(crate) async fn keep_beating(
    store: Arc<dyn Store>,
    notes: Arc<Mutex<Notes>>,
    every: Duration,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        match store.beat().await {
            Ok(outage) => {
                if let Some(outage) = outage {
                    // The store has logged it as a warning, with the leases that it moved.
                    tracing::debug!(?outage, "heartbeat found an outage");
                }
                let mut notes = lock(&notes);
                notes.last_heartbeat = Some(Instant::now());
                notes.heartbeat_error = None;
            }
            Err(error) if *stop.borrow() => {
                tracing::debug!(%error, "heartbeat stopped");
                return;
            }
            Err(error) => {
                let first = lock(&notes).heartbeat_error.replace((Instant::now(), error.clone())).is_none();
                if first {
                    tracing::warn!(%error, "heartbeat failed: no lease expires until it succeeds; retrying");
                }
            }
        }
        if !rest(every, &mut stop).await {
            return;
        }
    }
}

/// Runs upkeep until the queue is closed or its last handle is dropped.
pub(crate) async fn run(shared: Weak<Shared>, every: Duration, mut stop: watch::Receiver<bool>) {
    let mut pause = every;
    loop {
        let Some(strong) = shared.upgrade() else { return };
        match round(&strong).await {
            Ok(()) => pause = every,
            Err(error) if strong.is_closed() => {
                tracing::debug!(%error, "upkeep stopped");
                return;
            }
            Err(error) => {
                pause = (pause * 2).min(LONGEST_PAUSE.max(every));
                tracing::warn!(%error, retry_in = ?pause, "upkeep failed, retrying");
                lock(&strong.notes).last_error = Some((Instant::now(), error));
            }
        }
        drop(strong);
        if !rest(pause, &mut stop).await {
            return;
        }
    }
}

async fn round(shared: &Shared) -> Result<()> {
    let done = shared.store.maintain().await?;
    if done.promoted > 0 {
        shared.wake_ups.wake_all();
    }
    if done.groups_mended > 0 {
        metrics::counter!("tidegate_groups_mended_total").increment(done.groups_mended);
    }
    announce(shared).await?;
    let mut notes = lock(&shared.notes);
    notes.last_upkeep = Some(Instant::now());
    notes.last_error = None;
    Ok(())
}

/// Refreshes the depth and age gauges until the queue is closed or its last handle is dropped.
pub(crate) async fn show_gauges(shared: Weak<Shared>, mut stop: watch::Receiver<bool>) {
    let mut pause = Duration::from_secs(1);
    while rest(pause, &mut stop).await {
        let Some(strong) = shared.upgrade() else { return };
        let started = Instant::now();
        if let Err(error) = refresh_gauges(&strong).await
            && !strong.is_closed()
        {
            tracing::warn!(%error, "refreshing the depth and age gauges failed: they show old values");
        }
        pause = GAUGES_EVERY.max(started.elapsed() * GAUGES_SHARE);
    }
}

async fn refresh_gauges(shared: &Shared) -> Result<()> {
    shared.count_exhausted();
    let ages = shared.store.oldest().await?.into_iter();
    let ages: Vec<_> = ages.map(|(queue, age)| (queue, age.unwrap_or_default().as_secs_f64())).collect();
    shared.meters.show_oldest(&ages);
    shared.meters.show_depths(&shared.store.depths().await?);
    Ok(())
}
