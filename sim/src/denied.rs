//! Calls that are tried again while they are denied. Busy and unavailable say that nothing changed and that the caller
//! should try again: on a loaded machine that is no failure of a scenario.

use std::future::Future;
use std::time::{Duration, Instant};

use tidegate::{Claimed, ErrorKind, EventQueue, Finalize};
use tidegate_core::End;

use crate::workload::BACK_OFF;

/// How long a call is tried again.
const TRIED_FOR: Duration = Duration::from_secs(120);

/// Whether the library says that nothing changed and that the caller should try again.
pub(crate) fn is_denied(error: &tidegate::Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unavailable)
}

/// Calls until the answer is not a denial, for at most two minutes.
pub(crate) async fn retried<T, F>(call: impl FnMut() -> F) -> tidegate::Result<T>
where
    F: Future<Output = tidegate::Result<T>>,
{
    retried_for(TRIED_FOR, call).await
}

async fn retried_for<T, F>(limit: Duration, mut call: impl FnMut() -> F) -> tidegate::Result<T>
where
    F: Future<Output = tidegate::Result<T>>,
{
    let deadline = Instant::now() + limit;
    loop {
        match call().await {
            Err(error) if is_denied(&error) && Instant::now() < deadline => tokio::time::sleep(BACK_OFF).await,
            answer => return answer,
        }
    }
}

/// Completes an entry whose lease was handed over. An event that is completed by itself is released when that is
/// denied for too long, and handed out again.
pub(crate) async fn complete(queue: &EventQueue, held: &Claimed) -> tidegate::Result<()> {
    let end = Finalize {
        id: held.id,
        token: Some(held.token),
        end: End::Completed,
        errors: None,
        results: None,
        attempt: None,
    };
    retried(|| queue.finish(end.clone())).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denials(count: u32, kind: ErrorKind) -> impl FnMut() -> std::future::Ready<tidegate::Result<u32>> {
        let mut calls = 0;
        move || {
            calls += 1;
            std::future::ready(if calls > count { Ok(calls) } else { Err(tidegate::Error::new(kind, "no")) })
        }
    }

    #[tokio::test]
    async fn only_denials_are_tried_again_and_not_for_ever() {
        for kind in [ErrorKind::Busy, ErrorKind::Unavailable] {
            assert_eq!(retried(denials(2, kind)).await.unwrap(), 3);
        }
        assert_eq!(retried(denials(1, ErrorKind::Fenced)).await.unwrap_err().kind(), ErrorKind::Fenced);
        let endless = retried_for(Duration::ZERO, denials(u32::MAX, ErrorKind::Busy)).await;
        assert_eq!(endless.unwrap_err().kind(), ErrorKind::Busy);
    }
}
