//! The library's metrics.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tidegate::{
    Delivered, End, Event, EventLogProjectionBuilder, EventManager, EventQueue, Finalize, NewEvent, RetryPolicy, Store,
};

use crate::databases::Place;
use crate::memory::MemoryStore;
use crate::support::eventually;

/// One number per metric: the total of a counter, how many values a histogram got, the value of a gauge.
#[derive(Default)]
struct Counts(Mutex<HashMap<String, Arc<AtomicU64>>>);

impl Counts {
    fn slot(&self, key: &Key) -> Arc<AtomicU64> {
        let labels: String = key.labels().map(|label| format!(",{}={}", label.key(), label.value())).collect();
        let name = format!("{}{labels}", key.name());
        Arc::clone(self.0.lock().unwrap().entry(name).or_default())
    }

    /// Whether a metric was recorded under any labels.
    fn has(&self, name: &str) -> bool {
        let is_it = |known: &String| known == name || known.starts_with(&format!("{name},"));
        self.0.lock().unwrap().keys().any(is_it)
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

// One thread, so that all tasks see the recorder of this thread.
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
        ("tidegate_finalized_total,queue=default,end=COMPLETED", 2),
        ("tidegate_finalized_total,queue=default,end=COMPLETED_WITH_ERRORS", 1),
        ("tidegate_finalized_total,queue=default,end=CANCELLED", 1),
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

#[derive(Debug, serde::Deserialize, serde::Serialize)]
struct Counted;

impl Event for Counted {
    const TYPE: &'static str = "counted";
}

fn counted() -> NewEvent {
    NewEvent::new("counted", "null")
}

/// The names in the table of the crate's documentation.
fn documented() -> Vec<&'static str> {
    let rows = include_str!("../../src/lib.rs").lines().filter_map(|line| line.strip_prefix("//! | `"));
    rows.filter_map(|row| row.split('`').next()).filter(|name| name.starts_with("tidegate_")).collect()
}

#[tokio::test(flavor = "current_thread")]
async fn every_documented_metric_is_recorded() {
    let counts = Counts::default();
    let _guard = metrics::set_default_local_recorder(&counts);
    let place = Place::sqlite();
    let queue = place.open_with(|builder| builder.retry(RetryPolicy::fixed(Duration::from_secs(60)))).await;
    let manager = EventManager::builder(&queue)
        .on("counts", |_: Delivered<Counted>| async { Ok::<_, String>(()) })
        .build()
        .unwrap();
    let projection = EventLogProjectionBuilder::new("counts")
        .documents::<u64>()
        .on::<Counted, _, _>("counted", |_| "all".to_owned(), |count, _| Some(count.unwrap_or(0) + 1))
        .on::<Counted, _, _>("refused", |_| "all".to_owned(), |_, _| Err::<Option<u64>, _>("refused"))
        .open(&queue)
        .await
        .unwrap();
    queue.publish(counted()).await.unwrap();
    manager.drain().await.unwrap();
    projection.catch_up().await.unwrap();
    queue.publish(NewEvent::new("refused", "null")).await.unwrap();
    queue.poll().await.unwrap().unwrap().complete().await.unwrap();
    projection.catch_up().await.unwrap_err();
    for _ in 0..2 {
        queue.publish(NewEvent::new("other", "null")).await.unwrap();
    }
    let held = queue.poll().await.unwrap().unwrap();
    queue.cancel(held.id).await.unwrap();
    queue.extend(held.id, held.token, Duration::from_secs(1)).await.unwrap_err();
    held.forget();
    let held = queue.poll().await.unwrap().unwrap();
    let (id, token) = (held.id, held.token);
    held.forget();
    queue.release(id, token).await.unwrap();
    queue.poll().await.unwrap().unwrap().fail("later").await.unwrap();

    let (running, stop) = (projection.clone(), Arc::new(tokio::sync::Notify::new()));
    let stopped = Arc::clone(&stop);
    let reading = tokio::spawn(async move { running.run(async { stopped.notified().await }).await });
    let store = MemoryStore::new();
    store.mend_groups(3);
    let mended = EventQueue::builder().with_store(Arc::clone(&store) as Arc<dyn Store>).await.unwrap();
    let documented = documented();
    assert!(documented.len() >= 20, "{documented:?}");
    // Only a reader that makes progress shows its lag, and this one is stopped: the second projection below shows it.
    queue.finalize(queue.publish(counted()).await.unwrap().id, [""; 0]).await.unwrap();
    let lag = ["tidegate_projection_lag_events", "tidegate_projection_lag_seconds"];
    let missing = || -> Vec<&str> { documented.iter().copied().filter(|name| !counts.has(name)).collect() };
    eventually("everything is recorded", || async { missing().iter().all(|name| lag.contains(name)) }).await;
    stop.notify_one();
    reading.await.unwrap().unwrap();
    assert_eq!(counts.of("tidegate_groups_mended_total"), 3);
    assert!(counts.of("tidegate_projection_failures_total,projection=counts") >= 1);
    assert_eq!(counts.of("tidegate_projection_events_total,projection=counts"), 1);
    assert_eq!(counts.of("tidegate_handled_total,handler=counts,result=SUCCESS"), 1);
    assert_eq!(counts.of("tidegate_handler_seconds,handler=counts"), 1);

    follow_until(&queue, || missing().is_empty()).await;
    mended.close().await;
    queue.close().await;
}

/// Runs a projection that makes progress until its lag is shown.
async fn follow_until(queue: &EventQueue, shown: impl Fn() -> bool) {
    let projection = EventLogProjectionBuilder::new("follows")
        .documents::<u64>()
        .on::<Counted, _, _>("counted", |_| "all".to_owned(), |count, _| Some(count.unwrap_or(0) + 1))
        .open(queue)
        .await
        .unwrap();
    let stop = Arc::new(tokio::sync::Notify::new());
    let stopped = Arc::clone(&stop);
    let reading = tokio::spawn(async move { projection.run(async { stopped.notified().await }).await });
    eventually("the lag is shown", || async { shown() }).await;
    stop.notify_one();
    reading.await.unwrap().unwrap();
}

/// Ended entries of a queue: COMPLETED, COMPLETED_WITH_ERRORS, FAILED, CANCELLED.
fn ends(counts: &Counts, queue: &str) -> [u64; 4] {
    [End::Completed, End::CompletedWithErrors, End::Failed, End::Cancelled]
        .map(|end| counts.of(&format!("tidegate_finalized_total,queue={queue},end={end}")))
}

#[tokio::test(flavor = "current_thread")]
async fn every_way_to_end_is_counted_under_its_queue() {
    let counts = Counts::default();
    let _guard = metrics::set_default_local_recorder(&counts);
    let place = Place::sqlite();
    let first = place.open().await;
    let queue = first.named("mail").await.unwrap();
    let poll = async || {
        queue.publish(counted()).await.unwrap();
        queue.poll().await.unwrap().unwrap()
    };
    poll().await.complete().await.unwrap();
    assert_eq!(ends(&counts, "mail"), [1, 0, 0, 0]);
    queue.finalize_many(vec![poll().await, poll().await]).await;
    assert_eq!(ends(&counts, "mail"), [3, 0, 0, 0]);
    poll().await.finalize(["wrong"]).await.unwrap();
    let held = poll().await;
    let item =
        Finalize { id: held.id, token: Some(held.token), end: End::Failed, errors: None, results: None, attempt: None };
    queue.finish(item.clone()).await.unwrap();
    queue.finish(item).await.unwrap();
    held.forget();
    assert_eq!(ends(&counts, "mail"), [3, 1, 1, 0], "a repeat does not count");

    // An end in a transaction of the application counts once it commits.
    let held = poll().await;
    let refused = queue.transaction(move |tx| {
        tx.finalize(&held, [""; 0])?;
        Err::<(), _>(tidegate::Error::invalid("no"))
    });
    refused.await.unwrap_err();
    assert_eq!(ends(&counts, "mail"), [3, 1, 1, 0], "nothing was committed");
    let manager = EventManager::builder(&queue)
        .handler_tx("counts", |_: Delivered<Counted>, _| Box::pin(async { Ok::<_, tidegate::Error>(()) }))
        .build()
        .unwrap();
    eventually("the handler has run", || async {
        manager.drain().await.unwrap();
        queue.depth().await.unwrap().total() == 0
    })
    .await;
    assert_eq!(ends(&counts, "mail"), [4, 1, 1, 0], "by the manager's transaction");
    assert_eq!(counts.of("tidegate_claim_to_finish_seconds"), 5, "and its time, but not that of the end by id");
    let held = poll().await;
    queue.transaction(move |tx| tx.finalize(&held, ["wrong"]).map(drop)).await.unwrap();
    assert_eq!(ends(&counts, "mail"), [4, 2, 1, 0]);

    // A manual action through a handle of another queue.
    let id = queue.publish(counted()).await.unwrap().id;
    first.cancel(id).await.unwrap();
    assert_eq!(ends(&counts, "mail"), [4, 2, 1, 1]);

    // A claim that finds an exhausted entry.
    queue.publish(counted().max_attempts(1)).await.unwrap();
    let short = queue.consumer().lease(Duration::from_millis(1)).unwrap();
    short.poll().await.unwrap().unwrap().forget();
    eventually("it is exhausted", || async {
        assert!(queue.poll().await.unwrap().is_none());
        ends(&counts, "mail") == [4, 3, 1, 1]
    })
    .await;
    assert_eq!(ends(&counts, "default"), [0, 0, 0, 0]);
    first.close().await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_batch_counts_the_time_of_what_it_has_ended() {
    let counts = Counts::default();
    let _guard = metrics::set_default_local_recorder(&counts);
    let place = Place::sqlite();
    let queue = place.open().await;
    queue.publish_many(vec![counted(), counted()]).await;
    let held = queue.poll_many(2).await.unwrap();
    queue.release(held[0].id, held[0].token).await.unwrap();
    let ended = queue.finalize_many(held).await;
    assert_eq!(ended.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true]);
    assert_eq!(counts.of("tidegate_claim_to_finish_seconds"), 1);
    queue.close().await;
}

#[tokio::test(flavor = "current_thread")]
async fn queues_beyond_the_limit_share_a_label() {
    let counts = Counts::default();
    let _guard = metrics::set_default_local_recorder(&counts);
    let place = Place::sqlite();
    let first = place.open_with(|builder| builder.with(|options| options.queue_labels = 2)).await;
    for name in ["a", "b", "c", "d"] {
        let queue = first.named(name).await.unwrap();
        for _ in 0..2 {
            queue.publish(counted()).await.unwrap();
        }
        queue.poll().await.unwrap().unwrap().complete().await.unwrap();
    }
    let queues = ["default", "a", "b", "c", "d"];
    let labelled = |metric: &str| {
        let all: Vec<&str> =
            queues.into_iter().filter(|queue| counts.has(&format!("{metric},queue={queue}"))).collect();
        all
    };
    let ready = |queue: &str| f64::from_bits(counts.of(&format!("tidegate_depth,queue={queue},state=ready")));
    eventually("depths are shown", || async { counts.has("tidegate_depth,queue=_other,state=ready") }).await;
    let shown = labelled("tidegate_depth");
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert_eq!(labelled("tidegate_finalized_total"), shown, "the same ones everywhere");
    let total: f64 = shown.iter().map(|queue| ready(queue)).sum::<f64>() + ready("_other");
    assert_eq!(total, 4.0, "none is left out");
    let completed: u64 = shown.iter().map(|queue| ends(&counts, queue)[0]).sum();
    assert_eq!(completed + ends(&counts, "_other")[0], 4);
    assert!(counts.has("tidegate_oldest_age_seconds,queue=_other"));
    first.close().await;
}
