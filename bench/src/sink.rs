//! A receiver of webhooks that answers 200 to whatever it gets, and counts it. Reads no more of a request than it must.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::Result;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
/// Free bytes in the buffer before each read.
const READ: usize = 8 << 10;
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
        let task = tokio::spawn(async move {
            // A connection ends with its client, which is this process or a child of it.
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&count), Arc::clone(&on_body)));
            }
        });
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

async fn serve(mut stream: TcpStream, taken: Arc<AtomicUsize>, on_body: OnBody) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut read = Vec::with_capacity(READ);
    loop {
        let (start, length) = loop {
            if let Some(head) = head(&read)? {
                break head;
            }
            fill(&mut stream, &mut read).await?;
        };
        while read.len() < start + length {
            fill(&mut stream, &mut read).await?;
        }
        on_body(&read[start..start + length]);
        taken.fetch_add(1, Ordering::Relaxed);
        stream.write_all(ANSWER).await?;
        read.drain(..start + length);
    }
}

async fn fill(stream: &mut TcpStream, read: &mut Vec<u8>) -> Result<()> {
    read.reserve(READ);
    if stream.read_buf(read).await? == 0 {
        return Err("the client closed the connection".into());
    }
    Ok(())
}

/// Offset and length of the body; `None` while the head is incomplete.
fn head(read: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&read[..end])?;
    let length = text
        .split("\r\n")
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .ok_or("a webhook without content-length")?;
    Ok(Some((end + 4, length.1.trim().parse()?)))
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
