//! The server's background tasks: when keys were used, metrics, retention, schedules, and the scan for waiters.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Retained, Retention, Scheduler};
use tokio::task::JoinHandle;

use crate::service::Service;

const NOTE_KEYS_EVERY: Duration = Duration::from_secs(10);
/// How often it is looked whether a key that was missing is there.
const CHECK_SECRETS_EVERY: Duration = Duration::from_secs(60);
/// Rows that one step of retention examines.
const RETENTION_BATCH: usize = 500;
/// Pause between two steps of retention.
const RETENTION_PAUSE: Duration = Duration::from_millis(50);
/// A retention round may take half of `retention.every`, but is always given at least half of this.
const RETENTION_AT_LEAST: Duration = Duration::from_secs(10);

/// Starts the server's background tasks: key usage, metrics, retention, missing keys of secrets, schedules, and the scan for waiters. They run
/// until the handle is aborted.
pub(crate) fn start(service: &Arc<Service>) -> JoinHandle<()> {
    let shared = Arc::clone(service);
    let periodic = async move {
        let mut tick = tokio::time::interval(NOTE_KEYS_EVERY);
        loop {
            tick.tick().await;
            shared.auth.keys().note_used().await;
            if let Some(metrics) = &shared.options.metrics {
                metrics.0.run_upkeep();
            }
        }
    };
    // Separate from the periodic task, so that a long retention round does not delay it.
    let shared = Arc::clone(service);
    let retention = async move {
        loop {
            tokio::time::sleep(shared.options.retention.every.max(Duration::from_secs(1))).await;
            apply_retention(&shared).await;
        }
    };
    let shared = Arc::clone(service);
    let secrets = async move {
        let mut is_first = true;
        loop {
            // Later ones are met by the router.
            if std::mem::take(&mut is_first) || !shared.gateway.missing_keys().is_empty() {
                check_secrets(&shared).await;
            }
            tokio::time::sleep(CHECK_SECRETS_EVERY).await;
        }
    };
    let shared = Arc::clone(service);
    let jobs = async move {
        if shared.options.metrics.is_none() {
            return;
        }
        let mut tick = tokio::time::interval(shared.options.measure_jobs_every.max(Duration::from_millis(10)));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if let Err(error) = shared.gateway.measure_jobs().await {
                tracing::debug!(%error, "what waits to be delivered could not be measured");
            }
        }
    };
    let scheduler = service.options.run_schedules.then(|| Scheduler::new(service.queue.clone()));
    let schedules = async move {
        if let Some(scheduler) = scheduler {
            scheduler.run(std::future::pending()).await;
        }
    };
    let shared = Arc::clone(service);
    tokio::spawn(async move {
        tokio::join!(periodic, retention, secrets, jobs, schedules, shared.waiters.scan(&shared.queue)).0
    })
}

/// Looks whether stored secrets can be read. The gateway logs what cannot be.
async fn check_secrets(service: &Service) {
    if let Err(error) = service.gateway.key_uses().await {
        tracing::warn!(%error, "it could not be looked whether stored secrets can be read; trying again");
    }
}

/// Runs one retention round: removes old audit rows, log rows and facts in small batches with pauses between them.
async fn apply_retention(service: &Service) {
    let kept = &service.options.retention;
    let retention = Retention {
        audit: kept.audit,
        log: kept.log,
        dead_letters: kept.dead_letters,
        facts: kept.facts,
        batch: RETENTION_BATCH,
        ..Retention::default()
    };
    if [kept.audit, kept.log, kept.dead_letters, kept.facts] == [None; 4] {
        return;
    }
    let budget = kept.every.max(RETENTION_AT_LEAST) / 2;
    match service.queue.retain_for_all(retention, RETENTION_PAUSE, budget).await {
        Ok(Some(done)) if done.audit + done.entries + done.facts > 0 => {
            let Retained { audit, entries, facts, .. } = done;
            tracing::info!(audit, entries, facts, "retention removed old rows");
        }
        // Nothing was old enough, or another node is elected for retention.
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "retention failed: old rows stay until the next round"),
    }
}
