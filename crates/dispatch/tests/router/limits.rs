//! Limits of pools, on several nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate_dispatch::{Match, PoolBody, PoolStatus};

use crate::receiver::Receiver;
use crate::scene::{Scene, on_both, status, until};

on_both!(
    concurrency_holds_across_nodes,
    a_suspended_pool_delivers_nothing_until_it_is_active_again,
    a_rate_holds_across_nodes,
);

/// A receiver that counts how many it has at once, the most, and all.
async fn counting(takes: Duration) -> (Receiver, Arc<[AtomicUsize; 3]>) {
    let counts: Arc<[AtomicUsize; 3]> = Arc::default();
    let known = Arc::clone(&counts);
    let receiver = Receiver::http(None, move |_| {
        let known = Arc::clone(&known);
        async move {
            let now = known[0].fetch_add(1, Ordering::SeqCst) + 1;
            known[1].fetch_max(now, Ordering::SeqCst);
            known[2].fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(takes).await;
            known[0].fetch_sub(1, Ordering::SeqCst);
            status(200)
        }
    })
    .await;
    (receiver, counts)
}

async fn concurrency_holds_across_nodes(scene: Scene) {
    let (receiver, counts) = counting(Duration::from_millis(20)).await;
    let (one, other) = (scene.node().await, scene.node().await);
    let pool = one.gateway.create_pool(None, "p", &PoolBody { concurrency: 3, ..PoolBody::new("p".into()) }).await;
    let pool = pool.unwrap();
    one.subscribe("s", &receiver, |body| body.dispatch_pool = Some(pool.id)).await;
    let mut events = Vec::new();
    for number in 0..100 {
        let node = if number % 2 == 0 { &one } else { &other };
        events.push(node.publish(number, None).await.id);
    }
    one.until_all_are(&events, "COMPLETED").await;
    assert_eq!(counts[2].load(Ordering::SeqCst), 100);
    assert!(counts[1].load(Ordering::SeqCst) <= 3, "{counts:?}");
    one.stop().await;
    other.stop().await;
}

async fn a_suspended_pool_delivers_nothing_until_it_is_active_again(scene: Scene) {
    let (receiver, counts) = counting(Duration::ZERO).await;
    let node = scene.node().await;
    let body = |status| PoolBody { status, ..PoolBody::new("p".into()) };
    let pool = node.gateway.create_pool(None, "p", &body(PoolStatus::Suspended)).await.unwrap();
    node.subscribe("s", &receiver, |body| body.dispatch_pool = Some(pool.id)).await;
    let event = node.publish(1, None).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(counts[2].load(Ordering::SeqCst), 0);
    node.gateway.change_pool(pool.id, None, Match::Any, &body(PoolStatus::Active)).await.unwrap();
    node.until_all_are(&[event.id], "COMPLETED").await;
    node.stop().await;
}

/// 600 a minute are ten a second: over three seconds of a backlog neither many more nor many less.
async fn a_rate_holds_across_nodes(scene: Scene) {
    let (receiver, counts) = counting(Duration::ZERO).await;
    let (one, other) = (scene.node().await, scene.node().await);
    let rated = PoolBody { rate_limit_per_minute: Some(600), ..PoolBody::new("p".into()) };
    let pool = one.gateway.create_pool(None, "p", &rated).await.unwrap();
    one.subscribe("s", &receiver, |body| body.dispatch_pool = Some(pool.id)).await;
    for number in 0..60 {
        one.publish(number, None).await;
    }
    until(|| async { counts[2].load(Ordering::SeqCst) > 0 }).await;
    let (began, before) = (Instant::now(), counts[2].load(Ordering::SeqCst));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (took, came) = (began.elapsed(), counts[2].load(Ordering::SeqCst) - before);
    let most = took.as_millis() as usize / 100 + 2;
    assert!(came <= most, "{came} came in {took:?}, at most {most} may");
    assert!(came > 0);
    one.stop().await;
    other.stop().await;
}
