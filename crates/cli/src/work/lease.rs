//! The lease of a claimed event, extended in the background until it is dropped or lost.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::client::{Client, is_status};

/// How long a heartbeat may take at least.
const PATIENCE: Duration = Duration::from_secs(1);

/// A lease that is extended for as long as this value lives.
#[derive(Debug)]
pub(super) struct KeptLease {
    lost: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl KeptLease {
    /// Extends the lease of an event three times within its length, at most every 100 ms.
    pub(super) fn keep(client: Client, event: u64, holder: &Value, seconds: u64) -> Self {
        let mut beat = holder.clone();
        beat["lease_seconds"] = seconds.into();
        let path = format!("/events/{event}/heartbeat");
        let every = Duration::from_millis((seconds * 1000 / 3).max(100));
        let (lose, lost) = watch::channel(false);
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let kept = tokio::time::timeout(every.max(PATIENCE), client.post(&path, &beat)).await;
                if kept.is_ok_and(|kept| kept.is_err_and(|error| is_status(&error, StatusCode::CONFLICT))) {
                    let _ = lose.send(true);
                    return;
                }
            }
        });
        Self { lost, task }
    }

    /// Completes when the server says that the lease is lost, and never otherwise.
    pub(super) async fn lost(&self) {
        if self.lost.clone().wait_for(|lost| *lost).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for KeptLease {
    fn drop(&mut self) {
        self.task.abort();
    }
}
