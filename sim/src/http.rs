//! A minimal HTTP/1.1 client with keep-alive. Returns the answer, or that it was lost.
//!
//! Must not know events. An answer that cannot be parsed counts as lost: the request may have been executed.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than any long poll; a later answer counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
const MAX_BYTES: usize = 4 << 20;

/// A complete answer. The body is `Null` when there is none.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

/// No answer came. The request may have been executed.
#[derive(Debug)]
pub(crate) struct Lost;

/// One connection, kept open until a request fails or goes to another server.
#[derive(Debug, Default)]
pub(crate) struct Client {
    stream: Option<(SocketAddr, TcpStream)>,
}

impl Client {
    /// Sends a request with a body of JSON and waits for its answer, for at most `ANSWER_TIMEOUT`.
    pub(crate) async fn send(
        &mut self,
        server: SocketAddr,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, Lost> {
        self.send_as("application/json", server, method, path, body).await
    }

    /// As [`send`](Self::send), with a body of another media type.
    pub(crate) async fn send_as(
        &mut self,
        media_type: &str,
        server: SocketAddr,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, Lost> {
        let kept = self.stream.take().filter(|(address, _)| *address == server);
        let exchange = async {
            let mut stream = match kept {
                Some((_, stream)) => stream,
                None => TcpStream::connect(server).await.map_err(|_| Lost)?,
            };
            // Without the option requests are only slower.
            let _ = stream.set_nodelay(true);
            stream.write_all(&request(media_type, method, path, body)).await.map_err(|_| Lost)?;
            let answer = read(&mut stream).await?;
            Ok((stream, answer))
        };
        let (stream, answer) = tokio::time::timeout(ANSWER_TIMEOUT, exchange).await.map_err(|_| Lost)??;
        self.stream = Some((server, stream));
        Ok(answer)
    }
}

fn request(media_type: &str, method: &str, path: &str, body: Option<&Value>) -> Vec<u8> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {media_type}\r\ncontent-length: {length}\r\n\r\n\
         {body}"
    )
    .into_bytes()
}

async fn read(stream: &mut TcpStream) -> Result<Answer, Lost> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let (status, length) = read_head(&bytes[..head]).ok_or(Lost)?;
            let body = head + 4..head + 4 + length;
            if bytes.len() >= body.end {
                let body = &bytes[body];
                let body =
                    if body.is_empty() { Value::Null } else { serde_json::from_slice(body).map_err(|_| Lost)? };
                return Ok(Answer { status, body });
            }
        }
        if bytes.len() > MAX_BYTES || stream.read_buf(&mut bytes).await.map_err(|_| Lost)? == 0 {
            return Err(Lost);
        }
    }
}

/// Status and length of the body. `None` when it cannot be parsed or has no length: the server always sends one,
/// except with 204.
fn read_head(head: &[u8]) -> Option<(u16, usize)> {
    let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let mut lengths = lines.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())
    });
    match lengths.next() {
        Some(length) => Some((status, length?)),
        None => (status == 204).then_some((status, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_or_refused() {
        assert_eq!(read_head(b"HTTP/1.1 201 Created\r\nContent-Length: 12\r\nx: y"), Some((201, 12)));
        assert_eq!(read_head(b"HTTP/1.1 204 No Content\r\nx: y"), Some((204, 0)));
        for bad in ["", "HTTP/1.1 ", "HTTP/1.1 200 OK", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\ncontent-length: -1", "GET /"]
        {
            assert_eq!(read_head(bad.as_bytes()), None, "{bad}");
        }
    }
}
