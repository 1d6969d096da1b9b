//! The caller's end of a connection: whether it is still open, and whether the caller reads its answers.
//!
//! A caller may close its sending half after a request and still read the answer; over TCP that looks the same as
//! hanging up. So most requests are still answered, within a grace period; those that hand out leases treat it as a
//! hang-up.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// A request that takes longer than this is watched for a hang-up.
const WATCHED_AFTER: Duration = Duration::from_millis(100);
/// A request is aborted this long after its caller hung up.
const GRACE: Duration = Duration::from_secs(2);
/// How often a connection with unread bytes is checked for a hang-up.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// Bytes per second that a caller must read at least.
const LEAST_RATE: u32 = 16 << 10;

/// A handle of a connection for the requests on it.
#[derive(Debug, Clone)]
pub(crate) struct Peer(Arc<TcpStream>);

impl Peer {
    /// Waits until the caller has closed its sending half, or the whole connection.
    pub(crate) async fn closed(&self) {
        let mut byte = [0];
        loop {
            match self.0.peek(&mut byte).await {
                Ok(0) | Err(_) => return,
                // Unread bytes of a pipelined request hide the end of the stream from `peek`.
                Ok(_) if self.0.ready(Interest::READABLE).await.is_ok_and(|ready| ready.is_read_closed()) => return,
                Ok(_) => sleep(CHECK_EVERY).await,
            }
        }
    }

    /// Whether the caller has closed its sending half, or the whole connection.
    pub(crate) async fn is_closed(&self) -> bool {
        tokio::select! {
            biased;
            () = self.closed() => true,
            () = std::future::ready(()) => false,
        }
    }

    /// Waits until the caller can no longer be expected to read the answer.
    pub(crate) async fn given_up(&self) {
        sleep(WATCHED_AFTER).await;
        self.closed().await;
        sleep(GRACE).await;
    }
}

/// The stream of a connection. Writes fail with `TimedOut` when the caller reads its answer too slowly.
#[derive(Debug)]
pub(crate) struct PeerStream {
    peer: Peer,
    /// How long the caller may take to read an answer, plus a second for every [`LEAST_RATE`] bytes of it.
    time: Duration,
    stalled: Option<Stalled>,
}

/// An answer that the caller has not read completely: a write was pending since it began.
#[derive(Debug)]
struct Stalled {
    since: Instant,
    written: u64,
    alarm: Pin<Box<Sleep>>,
}

impl PeerStream {
    pub(crate) fn new(stream: TcpStream, time: Duration) -> Self {
        Self { peer: Peer(Arc::new(stream)), time, stalled: None }
    }

    pub(crate) fn peer(&self) -> Peer {
        self.peer.clone()
    }

    fn write(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.peer.0.poll_write_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => {
                    ready!(self.poll_alarm(cx));
                    let text = "the caller does not read its answer";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)));
                }
            }
            match write(&self.peer.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    if let (Some(stalled), Ok(bytes)) = (&mut self.stalled, &written) {
                        stalled.written += *bytes as u64;
                    }
                    return Poll::Ready(written);
                }
            }
        }
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let new = || Stalled { since: Instant::now(), written: 0, alarm: Box::pin(sleep(self.time)) };
        let stalled = self.stalled.get_or_insert_with(new);
        let allowed = self.time + Duration::from_secs(stalled.written) / LEAST_RATE;
        stalled.alarm.as_mut().reset(stalled.since + allowed);
        stalled.alarm.as_mut().poll(cx)
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = &self.peer.0;
        loop {
            ready!(stream.poll_read_ready(cx))?;
            match stream.try_read_buf(buf) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, |stream| stream.try_write(buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |stream| stream.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// hyper flushes when it has nothing left to write: the answer is sent.
    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stalled = None;
        Poll::Ready(Ok(()))
    }

    /// Does nothing: the connection closes when the stream is dropped, right after this.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
