//! What the library counts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tidegate::{EventQueue, NewEvent, RetryPolicy, Store};

use crate::memory::MemoryStore;
use crate::support::eventually;

/// Counts events per metric: what counters add up to, how often histograms were fed, what gauges show.
#[derive(Default)]
struct Counts(Mutex<HashMap<String, Arc<AtomicU64>>>);

impl Counts {
    fn slot(&self, key: &Key) -> Arc<AtomicU64> {
        let labels: String = key.labels().map(|label| format!(",{}={}", label.key(), label.value())).collect();
        let name = format!("{}{labels}", key.name());
        Arc::clone(self.0.lock().unwrap().entry(name).or_default())
    }

    fn of(&self, name: &str) -> u64 {
        self.0.lock().unwrap().get(name).map_or(0, |count| count.load(Ordering::SeqCst))
    }
}

struct Fed(Arc<AtomicU64>);

impl metrics::HistogramFn for Fed {
    fn record(&self, _value: f64) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Recorder for Counts {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.slot(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.slot(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Fed(self.slot(key))))
    }
}

// One thread, so that the recorder of this thread is the one everybody sees.
#[tokio::test(flavor = "current_thread")]
async fn everything_that_happens_is_counted() {
    let counts = Counts::default();
    let _guard = metrics::set_default_local_recorder(&counts);
    let store = MemoryStore::new();
    let retry = RetryPolicy::fixed(Duration::from_secs(60));
    let queue = EventQueue::builder().retry(retry).with_store(Arc::clone(&store) as Arc<dyn Store>).await.unwrap();
    for answer in queue.publish_many((0..7).map(|_| NewEvent::new("t", "{}")).collect()).await {
        answer.unwrap();
    }
    let mut held = queue.poll_many(10).await.unwrap();
    let cancelled = held.pop().unwrap();
    queue.cancel(cancelled.id).await.unwrap();
    assert!(queue.extend(cancelled.id, cancelled.token, Duration::from_secs(1)).await.is_err(), "lost");
    cancelled.forget();
    held.pop().unwrap().fail("no").await.unwrap();
    held.pop().unwrap().finalize(["no"]).await.unwrap();
    held.pop().unwrap().release().await.unwrap();
    drop(held.pop());
    queue.finalize_many(held).await;

    eventually("the drop is counted", || async { counts.of("tidegate_released_total") == 2 }).await;
    let expected = [
        ("tidegate_published_total", 7),
        ("tidegate_claimed_total", 7),
        ("tidegate_publish_to_claim_seconds", 7),
        ("tidegate_finalized_total,end=COMPLETED", 2),
        ("tidegate_finalized_total,end=COMPLETED_WITH_ERRORS", 1),
        ("tidegate_finalized_total,end=CANCELLED", 1),
        ("tidegate_claim_to_finish_seconds", 3),
        ("tidegate_retried_total", 1),
        ("tidegate_leases_lost_total", 1),
        ("tidegate_batch_size,lane=publish", 1),
        ("tidegate_flush_seconds,lane=finish", 2),
        ("tidegate_flush_seconds,lane=claim", 1),
    ];
    for (name, count) in expected {
        assert_eq!(counts.of(name), count, "{name}");
    }
    eventually("the gauges are shown", || async {
        f64::from_bits(counts.of("tidegate_depth,queue=default,state=ready")) == 2.0
    })
    .await;
    queue.close().await;
}
