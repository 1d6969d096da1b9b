//! Leases of an answer: held until the answer was flushed to the network, released if it never was.
//!
//! A subscriber that hangs up must leak no lease. The body owns the leases until the connection takes its bytes; from
//! then on the connection owns them until it has flushed. Dropping the owner before that releases the leases.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tidegate::QueuedEvent;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::peer::Peer;

/// The leases whose answers a connection has written but not flushed yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Handover {
    leases: Arc<Mutex<Vec<QueuedEvent>>>,
    /// The caller that gets them; `None` in tests without a connection.
    peer: Option<Peer>,
}

impl Handover {
    pub(crate) fn new(peer: Peer) -> Self {
        Self { leases: Arc::default(), peer: Some(peer) }
    }

    /// Waits until the caller has hung up.
    pub(crate) async fn gone(&self) {
        match &self.peer {
            Some(peer) => peer.closed().await,
            None => std::future::pending().await,
        }
    }

    /// Whether the caller has hung up.
    pub(crate) async fn is_gone(&self) -> bool {
        match &self.peer {
            Some(peer) => peer.is_closed().await,
            None => false,
        }
    }

    fn written(&self, leases: Vec<QueuedEvent>) {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).extend(leases);
    }

    /// The answer is sent: the leases belong to the worker now.
    fn flushed(&self) {
        let leases = std::mem::take(&mut *self.leases.lock().unwrap_or_else(PoisonError::into_inner));
        leases.into_iter().for_each(QueuedEvent::forget);
    }
}

/// A response body that owns the leases of the events in it.
#[derive(Debug)]
pub(crate) struct LeasedBody {
    bytes: Option<Bytes>,
    leases: Vec<QueuedEvent>,
    handover: Handover,
}

impl LeasedBody {
    pub(crate) fn new(bytes: Bytes, leases: Vec<QueuedEvent>, handover: Handover) -> Self {
        Self { bytes: Some(bytes), leases, handover }
    }
}

impl Body for LeasedBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = self.bytes.take().map(|bytes| {
            let leases = std::mem::take(&mut self.leases);
            self.handover.written(leases);
            Ok(Frame::data(bytes))
        });
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// A stream that hands the leases over to the worker once everything written was flushed.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    stream: S,
    handover: Handover,
}

impl<S> Watched<S> {
    pub(crate) fn new(stream: S, handover: Handover) -> Self {
        Self { stream, handover }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes the stream only when it has nothing left to write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.handover.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
