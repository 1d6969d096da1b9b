//! Waiting for conditions, with a deadline.

use std::future::Future;
use std::time::{Duration, Instant};

/// Long enough for a slow machine; reached only when something is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a condition holds.
pub(crate) async fn eventually<F, Fut>(what: &str, mut holds: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < PATIENCE, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits for a future, and fails when it takes too long.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("took too long: {what}"))
}

/// Gives other tasks this many turns.
pub(crate) async fn yields(turns: usize) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}
