//! No lease is lost with a body that is never sent, or with a connection that never flushes.

use std::task::Waker;
use std::time::{Duration, Instant};

use tidegate::NewEvent;
use tidegate::testing::TestQueue;

use super::*;

/// A connection that accepts every write; `flushes` is what a flush returns (false: broken pipe).
#[derive(Debug)]
struct Wire {
    flushes: Poll<bool>,
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushes.map(|well| if well { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) })
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

async fn leased(queue: &TestQueue) -> Vec<QueuedEvent> {
    queue.publish(NewEvent::new("t", "{}")).await.unwrap();
    let leases = queue.poll_many(1).await.unwrap();
    assert_eq!(leases.len(), 1);
    leases
}

async fn is_back(queue: &TestQueue) {
    let started = Instant::now();
    while queue.depth().await.unwrap().ready != 1 {
        assert!(started.elapsed() < Duration::from_secs(20), "the lease was not released");
        tokio::task::yield_now().await;
    }
    assert_eq!(queue.poll().await.unwrap().unwrap().attempts, 1, "and its attempt does not count");
}

/// Takes the body's bytes as a connection does, and writes them.
fn write(mut body: LeasedBody, stream: &mut Watched<Wire>) {
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) else { panic!("no frame") };
    let bytes = frame.into_data().unwrap();
    assert!(Pin::new(stream).poll_write(&mut context, &bytes).is_ready());
    assert!(body.is_end_stream());
}

fn flush(stream: &mut Watched<Wire>) -> Poll<io::Result<()>> {
    Pin::new(stream).poll_flush(&mut Context::from_waker(Waker::noop()))
}

fn connection(flushes: Poll<bool>) -> (Watched<Wire>, Handover) {
    let handover = Handover::default();
    (Watched::new(Wire { flushes }, handover.clone()), handover)
}

#[tokio::test]
async fn a_body_that_nobody_took_gives_its_leases_back() {
    let queue = TestQueue::new().await;
    let (mut stream, handover) = connection(Poll::Ready(true));
    let body = LeasedBody::new(Bytes::from_static(b"{}"), leased(&queue).await, handover);
    assert!(flush(&mut stream).is_ready(), "an earlier flush does not concern this body");
    drop(body);
    is_back(&queue).await;
    queue.handle().close().await;
}

#[tokio::test]
async fn what_was_written_and_never_flushed_is_given_back() {
    for flushes in [Poll::Pending, Poll::Ready(false)] {
        let queue = TestQueue::new().await;
        let (mut stream, handover) = connection(flushes);
        write(LeasedBody::new(Bytes::from_static(b"{}"), leased(&queue).await, handover), &mut stream);
        assert!(!matches!(flush(&mut stream), Poll::Ready(Ok(()))));
        assert_eq!(queue.depth().await.unwrap().leased, 1, "it is held while the connection lives");
        drop(stream);
        is_back(&queue).await;
        queue.handle().close().await;
    }
}

#[tokio::test]
async fn what_was_flushed_is_the_workers() {
    let queue = TestQueue::new().await;
    let (mut stream, handover) = connection(Poll::Ready(true));
    write(LeasedBody::new(Bytes::from_static(b"{}"), leased(&queue).await, handover), &mut stream);
    assert!(matches!(flush(&mut stream), Poll::Ready(Ok(()))));
    drop(stream);
    // Releases go in the order of the drops: had the first lease been dropped, it would be released before this one.
    queue.publish(NewEvent::new("other", "{}")).await.unwrap();
    drop(queue.consumer().types(["other"]).unwrap().poll().await.unwrap().unwrap());
    let started = Instant::now();
    while queue.depth().await.unwrap().ready == 0 {
        assert!(started.elapsed() < Duration::from_secs(20));
        tokio::task::yield_now().await;
    }
    assert_eq!(queue.depth().await.unwrap().leased, 1, "it stays under its lease");
    queue.handle().close().await;
}
