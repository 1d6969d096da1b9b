//! Behind PgBouncer: a pool in session mode works; one in transaction mode is refused, and the error says what to do.

use std::time::Duration;

use tidegate::{ErrorKind, EventQueue, NewEvent};
use tidegate_testing::{PoolMode, Pooler};

use crate::databases::Place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_in_transaction_mode_is_refused() {
    let place = Place::postgres();
    let pooler = Pooler::start(&place.address(), PoolMode::Transaction).unwrap();
    let error = EventQueue::open(pooler.url(&place.address())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("session mode"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_in_session_mode_works() {
    let place = Place::postgres();
    let pooler = Pooler::start(&place.address(), PoolMode::Session).unwrap();
    let queue = EventQueue::open(pooler.url(&place.address())).await.unwrap();
    queue.publish(NewEvent::new("t", "{}")).await.unwrap();
    queue.next(Duration::from_secs(10)).await.unwrap().unwrap().complete().await.unwrap();
    queue.close().await;
    drop(pooler);
}
