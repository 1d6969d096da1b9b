//! A TCP connection that takes a bounded number of bytes and can be cut from outside. Knows nothing of what it carries.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How many bytes may come for each request, with what TLS and HTTP need for themselves.
pub(in crate::webhook) const PER_REQUEST: i64 = 512 * 1_024;

/// What a connection may still receive.
#[derive(Debug)]
pub(in crate::webhook) struct Meter {
    left: AtomicI64,
    cut: AtomicBool,
    reader: AtomicWaker,
}

impl Meter {
    /// For a handshake and one request.
    pub(super) fn new() -> Self {
        Self { left: AtomicI64::new(PER_REQUEST), cut: AtomicBool::new(false), reader: AtomicWaker::new() }
    }

    /// One more request, of at most so many at once: what was not received for others cannot be saved up.
    pub(in crate::webhook) fn grant(&self, at_once: usize) {
        let most = PER_REQUEST.saturating_mul(i64::try_from(at_once).unwrap_or(i64::MAX));
        let more = |left: i64| Some(left.saturating_add(PER_REQUEST).min(most));
        // Never fails: there is always a value.
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Whether more came than is taken.
    pub(in crate::webhook) fn is_spent(&self) -> bool {
        self.left.load(Ordering::Relaxed) < 0
    }

    /// Ends the connection, whatever is under way.
    pub(in crate::webhook) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.reader.wake();
    }

    fn check(&self) -> io::Result<()> {
        if self.cut.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was given up"));
        }
        if self.is_spent() {
            return Err(io::Error::other("the receiver sends more than is taken"));
        }
        Ok(())
    }
}

/// The connection.
pub(super) struct Line {
    tcp: TcpStream,
    meter: Arc<Meter>,
}

impl Line {
    pub(super) fn new(tcp: TcpStream, meter: Arc<Meter>) -> Self {
        Self { tcp, meter }
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

impl AsyncRead for Line {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // First, so that a cut from now on is noticed.
        self.meter.reader.register(cx.waker());
        self.meter.check()?;
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.tcp).poll_read(cx, buf);
        let came = i64::try_from(buf.filled().len() - before).unwrap_or(i64::MAX);
        if came > 0 {
            self.meter.left.fetch_sub(came, Ordering::Relaxed);
        }
        polled
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.meter.check()?;
        Pin::new(&mut self.tcp).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.meter.check()?;
        Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
