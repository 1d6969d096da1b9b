//! A small HTTP/1.1 client that generates load: one keep-alive connection, one request at a time, no needless copies.
//! Knows no resources, and understands only responses with a content-length.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Result;

/// A response head longer than this many bytes is an error.
const MAX_HEAD: usize = 16 << 10;
/// Free bytes in the buffer before each read.
const READ: usize = 4 << 10;

/// A keep-alive connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// The headers that all requests have in common.
    head: String,
    request: Vec<u8>,
    read: Vec<u8>,
}

/// A response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer<'a> {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The whole body.
    pub(crate) body: &'a [u8],
}

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// When the connection fails.
    pub(crate) async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        // A server without keys only answers requests that name it by a loopback name.
        Ok(Self { stream, head: "host: localhost\r\n".into(), request: Vec::new(), read: Vec::new() })
    }

    /// Sends this API key with every request.
    #[must_use]
    pub(crate) fn with_key(mut self, key: &str) -> Self {
        self.head.push_str(&format!("authorization: Bearer {key}\r\n"));
        self
    }

    /// Sends a request and waits for the whole response.
    ///
    /// # Errors
    /// When the connection breaks, or the response is not understood.
    pub(crate) async fn call(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Answer<'_>> {
        self.send(method, path, body).await?;
        self.answer().await
    }

    /// Waits for the whole response to the request that was sent.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn answer(&mut self) -> Result<Answer<'_>> {
        self.read.clear();
        let (status, start, length) = loop {
            if let Some(head) = head(&self.read)? {
                break head;
            }
            self.fill().await?;
        };
        while self.read.len() < start + length {
            self.fill().await?;
        }
        Ok(Answer { status, body: &self.read[start..start + length] })
    }

    /// Like [`Self::call`], but returns the body, and any other status than this one is an error.
    ///
    /// # Errors
    /// As [`Self::call`], and when the status is another.
    pub(crate) async fn expect(&mut self, status: u16, method: &str, path: &str, body: &[u8]) -> Result<&[u8]> {
        let answer = self.call(method, path, body).await?;
        if answer.status == status {
            return Ok(answer.body);
        }
        let text = String::from_utf8_lossy(answer.body);
        Err(format!("{method} {path} answered {} instead of {status}: {text}", answer.status).into())
    }

    /// Sends a request without waiting for the response.
    ///
    /// # Errors
    /// When the connection breaks.
    pub(crate) async fn send(&mut self, method: &str, path: &str, body: &[u8]) -> Result<()> {
        self.request.clear();
        for part in [method, " ", path, " HTTP/1.1\r\n", &self.head] {
            self.request.extend_from_slice(part.as_bytes());
        }
        if !body.is_empty() {
            let head = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
            self.request.extend_from_slice(head.as_bytes());
        }
        self.request.extend_from_slice(b"\r\n");
        self.request.extend_from_slice(body);
        Ok(self.stream.write_all(&self.request).await?)
    }

    async fn fill(&mut self) -> Result<()> {
        self.read.reserve(READ);
        if self.stream.read_buf(&mut self.read).await? == 0 {
            return Err("the server closed the connection".into());
        }
        Ok(())
    }
}

/// Status, offset of the body and length of the body; `None` while the head is incomplete.
fn head(read: &[u8]) -> Result<Option<(u16, usize, usize)>> {
    let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if read.len() > MAX_HEAD { Err("the response head is longer than 16 KiB".into()) } else { Ok(None) };
    };
    let text = std::str::from_utf8(&read[..end])?;
    let mut lines = text.split("\r\n");
    let status =
        lines.next().and_then(|line| line.split(' ').nth(1)).ok_or("the response has no status")?.parse::<u16>()?;
    let length =
        lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = match length {
        Some((_, value)) => value.trim().parse::<usize>()?,
        None if status == 204 => 0,
        None => return Err("the response has no content-length".into()),
    };
    Ok(Some((status, end + 4, length)))
}

#[cfg(test)]
mod tests {
    use tidegate::EventQueue;
    use tidegate_server::{Keyring, Options, Scope, Server};

    use super::*;

    #[test]
    fn heads_are_read_when_they_are_complete() {
        let whole = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(head(whole).unwrap(), Some((201, whole.len() - 2, 2)));
        assert_eq!(head(&whole[..30]).unwrap(), None);
        assert_eq!(head(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap(), Some((204, 27, 0)));
        assert!(head(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
    }

    async fn status(required: bool, with_key: bool) -> u16 {
        let folder = tempfile::tempdir().unwrap();
        let queue = EventQueue::open(folder.path().join("tidegate.db").to_string_lossy()).await.unwrap();
        let key = Keyring::new(queue.clone()).create("bench", &[Scope::Read], None).await.unwrap().secret;
        let mut options = Options::default();
        options.auth.required = required;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut connection = Connection::open(listener.local_addr().unwrap()).await.unwrap();
        if with_key {
            connection = connection.with_key(&key);
        }
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let server = Server::new(queue.clone(), options).unwrap();
        let stopped = async move { drop(stopped.await) };
        let serving = tokio::spawn(async move { server.run(listener, stopped).await });
        let status = connection.call("GET", "/events", b"").await.unwrap().status;
        drop((stop, connection));
        serving.await.unwrap().unwrap();
        queue.close().await;
        status
    }

    #[tokio::test]
    async fn servers_let_the_load_in() {
        assert_eq!(status(false, false).await, 200, "an open server");
        assert_eq!(status(true, true).await, 200, "one with keys");
        assert_eq!(status(true, false).await, 401, "one with keys, without one");
    }
}
