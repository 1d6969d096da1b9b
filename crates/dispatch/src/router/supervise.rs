//! What becomes of a part of the router that fails within: it is told as an error, or starts again. Knows nothing of jobs.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::mpsc;

use crate::gateway::error::{Result, failed_within};

/// After what time what failed starts again.
const RESTART: Duration = Duration::from_secs(1);

/// Does something in a task of its own and sends what came of it, also if it panics.
pub(super) fn apart<T: Send + 'static, N: Send + 'static>(
    sender: mpsc::UnboundedSender<N>,
    work: impl Future<Output = Result<T>> + Send + 'static,
    tell: impl FnOnce(Result<T>) -> N + Send + 'static,
) {
    tokio::spawn(async move {
        let result = AssertUnwindSafe(work).catch_unwind().await;
        // Fails when nobody listens any more, who needs no news.
        let _ = sender.send(tell(result.unwrap_or_else(|_| Err(failed_within()))));
    });
}

/// Runs something until it ends. When it panics, it is run again after a moment, unless it is to stop by then.
pub(super) async fn again_after_panics<F: Future<Output = ()>>(
    mut run: impl FnMut() -> F,
    is_stopped: impl Future<Output = ()>,
) {
    let mut is_stopped = std::pin::pin!(is_stopped);
    while AssertUnwindSafe(run()).catch_unwind().await.is_err() {
        tracing::error!(
            "the router failed within Tidegate: deliveries pause for a moment; please report what this log says"
        );
        if tokio::time::timeout(RESTART, &mut is_stopped).await.is_ok() {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn what_panics_apart_is_heard_of() {
        let (sender, mut news) = mpsc::unbounded_channel();
        apart(sender.clone(), async { Ok(7) }, |result| result);
        assert_eq!(news.recv().await.unwrap().unwrap(), 7);
        apart(sender, async { panic!("on purpose") }, |result: Result<i32>| result);
        assert!(news.recv().await.unwrap().unwrap_err().to_string().contains("failed within"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_panics_runs_again_until_it_ends_or_is_to_stop() {
        let mut runs = 0;
        let panics_twice = || {
            runs += 1;
            let is_good = runs == 3;
            async move { assert!(is_good, "on purpose") }
        };
        again_after_panics(panics_twice, pending()).await;
        assert_eq!(runs, 3);
        let mut runs = 0;
        let panics = || {
            runs += 1;
            async { panic!("on purpose") }
        };
        again_after_panics(panics, async {}).await;
        assert_eq!(runs, 1);
    }
}
