//! A receiver of webhooks as they are written with a framework: it reads the body, counts it and answers 200.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Requests that were answered.
    taken: AtomicUsize,
    /// Requests that it has at present, and the most that it had at once.
    held: AtomicUsize,
    most: AtomicUsize,
    /// For how many microseconds it holds each.
    holds: AtomicU64,
}

/// A request that the receiver has. Also counts those whose sender is killed: they end with their connection.
struct Held<'a>(&'a Counts);

impl<'a> Held<'a> {
    fn by(counts: &'a Counts) -> Self {
        let now = counts.held.fetch_add(1, Ordering::SeqCst) + 1;
        counts.most.fetch_max(now, Ordering::SeqCst);
        Self(counts)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::SeqCst);
    }
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
        let counts: Arc<Counts> = Arc::default();
        let own = Arc::clone(&counts);
        let router = Router::new().fallback(move |body: Bytes| {
            let (counts, on_body) = (Arc::clone(&own), Arc::clone(&on_body));
            async move {
                let _held = Held::by(&counts);
                on_body(&body);
                let holds = counts.holds.load(Ordering::Relaxed);
                if holds > 0 {
                    tokio::time::sleep(Duration::from_micros(holds)).await;
                }
                counts.taken.fetch_add(1, Ordering::Relaxed);
            }
        });
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true); // without it the receiver is only slower
        });
        // Ends only with this process, or when it is aborted.
        let task = tokio::spawn(async move { drop(axum::serve(listener, router).await) });
        Ok(Self { address, counts, task })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many requests it has answered.
    pub(crate) fn taken(&self) -> usize {
        self.counts.taken.load(Ordering::Relaxed)
    }

    /// The most requests that it had at once so far.
    pub(crate) fn most(&self) -> usize {
        self.counts.most.load(Ordering::SeqCst)
    }

    /// Holds each request for so long from now on.
    pub(crate) fn hold(&self, time: Duration) {
        self.counts.holds.store(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
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
        assert_eq!((sink.taken(), sink.most()), (3, 1));
    }

    #[tokio::test]
    async fn requests_at_once_are_counted_until_their_connection_ends() {
        let sink = Sink::start().await.unwrap();
        sink.hold(Duration::from_secs(3_600));
        for connections in [2, 3] {
            let mut senders = Vec::new();
            for _ in 0..connections {
                let mut connection = Connection::open(sink.address()).await.unwrap();
                connection.send("POST", "/", b"{}").await.unwrap();
                senders.push(connection);
            }
            let deadline = Instant::now() + PATIENCE;
            while sink.most() < connections {
                assert!(Instant::now() < deadline, "{sink:?}");
                tokio::time::sleep(LOOK).await;
            }
            drop(senders);
            while sink.counts.held.load(Ordering::SeqCst) > 0 {
                assert!(Instant::now() < deadline, "{sink:?}");
                tokio::time::sleep(LOOK).await;
            }
            assert_eq!((sink.most(), sink.taken()), (connections, 0));
        }
    }
}
