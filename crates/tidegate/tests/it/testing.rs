//! `TestQueue`, the kit for applications' own tests.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::time::Duration;

use futures_util::FutureExt;
use serde::Deserialize;
use tidegate::testing::TestQueue;
use tidegate::{EntryPhase, EventBus, NewEvent, RetryPolicy, Router, Timestamp};

use crate::support::soon;

const HOUR: Duration = Duration::from_secs(3600);

#[derive(Debug, Deserialize, PartialEq)]
struct Order {
    number: u64,
}

fn order(number: u64) -> NewEvent {
    NewEvent::new("order.created", format!("{{\"number\": {number}}}"))
}

async fn panic_of(future: impl Future<Output = ()>) -> String {
    let panic = AssertUnwindSafe(future).catch_unwind().await.expect_err("the assertion fails");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[tokio::test]
async fn published_tells_everything_in_order() {
    let queue = TestQueue::new().await;
    assert!(queue.published().await.is_empty());
    for number in 0..1_200 {
        queue.publish(order(number)).await.unwrap();
    }
    queue.named("other").await.unwrap().publish(NewEvent::new("mail.wanted", "null")).await.unwrap();
    queue.poll().await.unwrap().unwrap().complete().await.unwrap();
    let published = queue.published().await;
    assert_eq!(published.len(), 1_201);
    assert!(published.is_sorted_by_key(|view| view.id));
    assert!(matches!(published[0].phase, EntryPhase::Ended { .. }));
    assert_eq!(published[1_200].queue.name(), "other");
    let orders = queue.assert_published::<Order>("order.created").await;
    assert!(orders.iter().map(|order| order.number).eq(0..1_200));
    queue.close().await;
}

#[tokio::test]
async fn assertions_show_what_was_there() {
    let queue = TestQueue::new().await;
    let message = panic_of(async { drop(queue.assert_published::<Order>("order.created").await) }).await;
    assert!(message.contains("nothing at all"), "{message}");
    queue.publish(order(7)).await.unwrap();
    queue.publish(NewEvent::new("mail.wanted", "\"who\"")).await.unwrap();
    let message = panic_of(async { drop(queue.assert_published::<Order>("order.paid").await) }).await;
    assert!(message.contains("order.paid") && message.contains("1 × \"order.created\""), "{message}");
    let message = panic_of(async { drop(queue.assert_published::<Order>("mail.wanted").await) }).await;
    assert!(message.contains("\"who\"") && message.contains("Order"), "{message}");
    let message = panic_of(queue.assert_not_published("order.created")).await;
    assert!(message.contains("1 times") && message.contains("{\"number\": 7}"), "{message}");
    queue.assert_not_published("order.paid").await;
    queue.close().await;
}

#[tokio::test]
async fn time_stands_still_until_it_is_moved() {
    let queue = TestQueue::with(|builder| builder.retry(RetryPolicy::list([HOUR]))).await;
    assert_eq!(queue.now(), "2030-01-01T00:00:00Z".parse::<Timestamp>().unwrap());
    queue.publish(order(1)).await.unwrap();
    queue.poll().await.unwrap().unwrap().fail("not today").await.unwrap();
    assert!(queue.poll().await.unwrap().is_none());
    let waiter = tokio::spawn({
        let queue = queue.handle();
        async move { queue.next(100 * HOUR).await.unwrap().unwrap().attempts }
    });
    queue.advance(HOUR);
    assert_eq!(soon("the waiter claims again", waiter).await.unwrap(), 2);
    assert_eq!(queue.clock().now(), queue.now());
    queue.close().await;
}

#[tokio::test]
async fn each_is_alone_and_nothing_is_on_disk() {
    let (one, other) = (TestQueue::new().await, TestQueue::new().await);
    one.publish(order(1)).await.unwrap();
    assert!(other.published().await.is_empty());
    let connection = one.connect().unwrap();
    let path = connection.path().unwrap_or_default().to_owned();
    assert!(!Path::new(&path).exists(), "{path}");
    let count = |connection: &rusqlite::Connection| {
        connection.query_row("SELECT count(*) FROM tidegate_events", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(count(&connection), 1);
    one.close().await;
    other.close().await;
}

#[tokio::test]
async fn an_application_shares_the_database() {
    let queue = TestQueue::new().await;
    let mut connection = queue.connect().unwrap();
    connection.execute_batch("CREATE TABLE own (number INTEGER)").unwrap();
    for commits in [false, true] {
        let mut tx = connection.transaction().unwrap();
        tx.execute("INSERT INTO own VALUES (1)", []).unwrap();
        let receipt = queue.publish_in(&mut tx, order(1)).await.unwrap();
        if commits {
            tx.commit().unwrap();
            receipt.wake();
        } else {
            tx.rollback().unwrap();
        }
    }
    assert_eq!(queue.assert_published::<Order>("order.created").await.len(), 1);
    // An open read on another connection delays a commit, and does not fail it.
    let reading = connection.transaction().unwrap();
    reading.query_row("SELECT count(*) FROM own", [], |row| row.get::<_, i64>(0)).unwrap();
    let publishing = tokio::spawn({
        let queue = queue.handle();
        async move { queue.publish(order(2)).await }
    });
    tokio::time::timeout(Duration::from_millis(50), async {
        while !publishing.is_finished() {
            tokio::task::yield_now().await
        }
    })
    .await
    .expect_err("the commit waits");
    reading.finish().unwrap();
    soon("the publish", publishing).await.unwrap().unwrap();
    queue.transaction(|tx| tx.publish(order(3))).await.unwrap();
    assert_eq!(queue.assert_published::<Order>("order.created").await.len(), 3);
    queue.close().await;
}

#[tokio::test]
async fn drain_works_until_idle() {
    let queue = TestQueue::new().await;
    let bus = EventBus::new(queue.handle()).unwrap();
    let router = Router::new().on("order.created", {
        let bus = bus.clone();
        move |order: Order| {
            let bus = bus.clone();
            async move {
                let next = NewEvent::new("order.created", format!("{{\"number\": {}}}", order.number + 1));
                match order.number {
                    0..5 => bus.publish(next).await.map(drop),
                    5 => bus.publish(next.delay(HOUR)).await.map(drop),
                    _ => Ok(()),
                }
            }
        }
    });
    let worker = bus.worker(router).unwrap();
    bus.publish(order(0)).await.unwrap();
    assert_eq!(worker.drain().await.unwrap(), 6);
    assert_eq!(worker.drain().await.unwrap(), 0);
    queue.advance(HOUR);
    assert_eq!(worker.drain().await.unwrap(), 1);
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_while_writing_never_fails() {
    let queue = TestQueue::new().await;
    let writing = tokio::spawn({
        let queue = queue.handle();
        async move {
            for number in 0..100 {
                queue.publish(order(number)).await.unwrap();
            }
        }
    });
    let mut reads = 0;
    while !writing.is_finished() || reads == 0 {
        queue.depth().await.unwrap();
        reads += 1;
    }
    writing.await.unwrap();
    assert_eq!(queue.published().await.len(), 100);
    queue.close().await;
}
