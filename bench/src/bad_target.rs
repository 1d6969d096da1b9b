//! Targets of webhooks that are of no use: each takes an attempt and gives nothing for it, in a way of its own.

use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use tidegate_dispatch::AllowedTarget;
use tidegate_dispatch::webhook::connect::{Resolve, ResolveError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::Result;

/// The name of the target whose address is never found.
const NAME: &str = "hangs.test";
/// How long a slow target takes for a byte.
const PER_BYTE: Duration = Duration::from_secs(1);

/// What is wrong with a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bad {
    /// It refuses connections.
    Dead,
    /// Its name is looked up, and nothing comes back.
    Dns,
    /// It accepts connections and says nothing.
    Silent,
    /// It answers a byte per second.
    Slow,
}

/// A bad target; it ends when this value is dropped, and with it the connections that are open.
#[derive(Debug)]
pub(crate) struct BadTarget {
    host: String,
    /// Keeps a port on which nobody listens from being given to somebody else.
    _bound: Option<TcpSocket>,
    task: Option<JoinHandle<()>>,
}

impl Drop for BadTarget {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl BadTarget {
    /// Starts one.
    ///
    /// # Errors
    /// When it has no port.
    pub(crate) async fn start(bad: Bad) -> Result<Self> {
        match bad {
            Bad::Dns => Ok(Self { host: NAME.into(), _bound: None, task: None }),
            Bad::Dead => {
                let bound = TcpSocket::new_v4()?;
                bound.bind("127.0.0.1:0".parse()?)?;
                Ok(Self { host: bound.local_addr()?.to_string(), _bound: Some(bound), task: None })
            }
            Bad::Silent | Bad::Slow => {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                let host = listener.local_addr()?.to_string();
                let task = tokio::spawn(async move {
                    let mut open = JoinSet::new();
                    while let Ok((stream, _)) = listener.accept().await {
                        open.spawn(take(stream, bad));
                    }
                });
                Ok(Self { host, _bound: None, task: Some(task) })
            }
        }
    }

    /// Where webhooks for it go.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.host)
    }
}

/// Takes what a connection brings until it is closed.
async fn take(stream: TcpStream, bad: Bad) {
    let (mut read, mut write) = stream.into_split();
    let drip = async {
        // A header that does not end.
        for byte in b"HTTP/1.1 200 OK\r\nx: ".iter().chain(std::iter::repeat(&b'x')) {
            tokio::time::sleep(PER_BYTE).await;
            if write.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
    };
    let swallow = async {
        let mut buffer = [0; 1024];
        while matches!(read.read(&mut buffer).await, Ok(1..)) {}
    };
    match bad {
        Bad::Slow => tokio::select! { () = drip => {}, () = swallow => {} },
        Bad::Dead | Bad::Dns | Bad::Silent => swallow.await,
    }
}

/// What has to be allowed for webhooks to be sent to such targets, and to receivers on this machine.
///
/// # Errors
/// Never: what is allowed is constant.
pub(crate) fn allowed() -> Result<Vec<AllowedTarget>> {
    Ok(vec!["127.0.0.1".parse()?, NAME.parse()?])
}

/// Never finds an address. Receivers on this machine have addresses already.
#[derive(Debug)]
pub(crate) struct NeverFound;

impl Resolve for NeverFound {
    fn resolve(
        &self,
        _: String,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<Vec<IpAddr>, ResolveError>> + Send + 'static>> {
        Box::pin(std::future::pending())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    async fn said(bad: Bad, within: Duration) -> std::io::Result<usize> {
        let target = BadTarget::start(bad).await.unwrap();
        let mut stream = TcpStream::connect(&target.host).await?;
        stream.write_all(b"POST / HTTP/1.1\r\n\r\n").await?;
        timeout(within, stream.read(&mut [0; 100])).await.unwrap_or(Ok(0))
    }

    #[tokio::test]
    async fn each_is_bad_in_its_way() {
        let refused = said(Bad::Dead, PER_BYTE).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        assert_eq!(said(Bad::Silent, 2 * PER_BYTE).await.unwrap(), 0);
        assert_eq!(said(Bad::Slow, 30 * PER_BYTE).await.unwrap(), 1);
        assert!(timeout(PER_BYTE, NeverFound.resolve(NAME.into())).await.is_err());
    }
}
