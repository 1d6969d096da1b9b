//! Probes about once a second whether the store takes writes and claims. Separate from upkeep, which a blocked store
//! may hold up for long.

use std::sync::Weak;
use std::time::Duration;

use tidegate_store::Probe;
use tokio::sync::watch;

use crate::error::{Error, ErrorKind};
use crate::queue::shared::Shared;

/// A store that takes longer than this for a small write counts as not ready.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Runs until the queue is closed or its last handle is dropped.
pub(crate) async fn run(shared: Weak<Shared>, every: Duration, mut stop: watch::Receiver<bool>) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let answer = tokio::time::timeout(TIMEOUT, strong.store.probe()).await.unwrap_or_else(|_| {
            let message = format!("no write succeeded within {TIMEOUT:?}: the store is blocked or overloaded");
            Err(Error::new(ErrorKind::Unavailable, message))
        });
        if strong.is_closed() {
            return;
        }
        if let Ok(Probe { wal_bytes: Some(bytes), .. }) = &answer {
            metrics::gauge!("tidegate_sqlite_wal_bytes").set(*bytes as f64);
        }
        strong.probed.note(answer);
        drop(strong);
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            // Told to stop, or the last handle was dropped.
            _ = stop.changed() => return,
        }
    }
}
