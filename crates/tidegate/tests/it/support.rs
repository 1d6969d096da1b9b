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

/// How long each processor of this virtual machine has been ready and not been run by its host, so far; nothing where the
/// system does not tell. What stood still for so long cannot have been in time.
pub(crate) fn stolen() -> Vec<Duration> {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let processors = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu "));
    let ticks = processors.filter_map(|line| line.split_ascii_whitespace().nth(8)?.parse().ok());
    ticks.map(|ticks: u64| Duration::from_millis(ticks * 10)).collect()
}

/// The longest that a processor stood still since [`stolen`] told `before`.
pub(crate) fn stolen_since(before: &[Duration]) -> Duration {
    let lost = stolen().into_iter().zip(before).map(|(now, before)| now.saturating_sub(*before));
    lost.max().unwrap_or_default()
}

/// Gives other tasks this many turns.
pub(crate) async fn yields(turns: usize) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}
