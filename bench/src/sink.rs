//! A receiver of webhooks as they are written with a framework: it reads the body, counts it and answers 200.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::serve::ListenerExt;
use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::Result;

/// How long it may take nothing before a run fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked at how much it has taken.
const LOOK: Duration = Duration::from_millis(1);

/// What is called with the body of each request.
type OnBody = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// A running receiver; it ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Sink {
    address: SocketAddr,
    taken: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sink {
    /// Starts a receiver.
    ///
    /// # Errors
    /// When it cannot listen.
    pub(crate) async fn start() -> Result<Self> {
        Self::calling(Arc::new(|_| ())).await
    }

    /// Starts a receiver that calls this with each body.
    ///
    /// # Errors
    /// When it cannot listen.
    pub(crate) async fn calling(on_body: OnBody) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let router = Router::new().fallback(async move |body: Bytes| {
            on_body(&body);
            count.fetch_add(1, Ordering::Relaxed);
        });
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true); // without it the receiver is only slower
        });
        // Ends only with this process, or when it is aborted.
        let task = tokio::spawn(async move { drop(axum::serve(listener, router).await) });
        Ok(Self { address, taken, task })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many requests it has answered.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// Waits until receivers have taken so many requests together.
///
/// # Errors
/// When they take nothing for a minute.
pub(crate) async fn until_taken(sinks: &[Sink], count: usize) -> Result<Instant> {
    let (mut before, mut progress) = (0, Instant::now());
    loop {
        let taken = sinks.iter().map(Sink::taken).sum();
        if taken >= count {
            return Ok(Instant::now());
        }
        if taken != before {
            (before, progress) = (taken, Instant::now());
        } else if progress.elapsed() > PATIENCE {
            return Err(format!("no webhook in 60 s; {taken} of {count} were delivered").into());
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Connection;

    #[tokio::test]
    async fn requests_are_counted_on_one_connection() {
        let sink = Sink::start().await.unwrap();
        let mut connection = Connection::open(sink.address()).await.unwrap();
        for _ in 0..3 {
            connection.expect(200, "POST", "/", b"{}").await.unwrap();
        }
        until_taken(std::slice::from_ref(&sink), 3).await.unwrap();
        assert_eq!(sink.taken(), 3);
    }
}
