//! Outages are logged by the store that detects them, and by nothing else.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::EventQueue;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::support::eventually;

/// The targets of warnings that say that the store was down or blocked.
#[derive(Debug, Default, Clone)]
struct Warnings(Arc<Mutex<Vec<String>>>);

/// Whether an event says so.
#[derive(Debug, Default)]
struct IsOutage(bool);

impl Visit for IsOutage {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 |= field.name() == "message" && format!("{value:?}").contains("down or blocked");
    }
}

impl<S: tracing::Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut found = IsOutage::default();
        event.record(&mut found);
        if found.0 && *event.metadata().level() <= tracing::Level::WARN {
            self.0.lock().unwrap().push(event.metadata().target().to_owned());
        }
    }
}

/// Another program holds the database for longer than `outage_after`.
#[test]
fn an_outage_is_logged_once() {
    let warnings = Warnings::default();
    // Global, because SQLite's writer is a thread of its own. What stores of other tests log is right for this one too.
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(warnings.clone())).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tidegate.db");
        let builder = EventQueue::builder().with(|options| {
            options.upkeep_interval = Duration::from_millis(50);
            options.store.outage_after = Duration::from_millis(400);
        });
        let queue = builder.open(file.to_str().unwrap()).await.unwrap();
        eventually("the heartbeat runs", || async { queue.health().await.last_heartbeat.is_some() }).await;
        let other = rusqlite::Connection::open(&file).unwrap();
        other.busy_timeout(Duration::from_secs(10)).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        tokio::time::sleep(Duration::from_millis(1_000)).await;
        other.execute_batch("ROLLBACK").unwrap();
        eventually("the outage is logged", || async { !warnings.0.lock().unwrap().is_empty() }).await;
        // Two more heartbeats: whatever else would log this outage has done so by then.
        for _ in 0..2 {
            let seen = std::time::Instant::now();
            eventually("another heartbeat", || async {
                queue.health().await.last_heartbeat.is_some_and(|ago| ago < seen.elapsed())
            })
            .await;
        }
        queue.close().await;
    });
    let logged = warnings.0.lock().unwrap().clone();
    assert!(logged.iter().all(|target| target.starts_with("tidegate_store")), "{logged:?}");
}
