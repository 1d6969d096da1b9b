//! The receiver of webhooks: reads each, fails at random, and records what it got and when.
//!
//! It must not know when a node is killed: it only sees connections close. A request is in flight from when it was read
//! completely until right before its answer is written, or until its connection closes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::checker::deliver::{Answered, SUBSCRIPTIONS, Taken};
use crate::history::now;
use crate::workload::Failure;

/// Longer than any webhook here.
const MAX_BYTES: usize = 64 << 10;
/// Longer than any node waits for an answer.
const HELD_FOR: Duration = Duration::from_secs(30);

/// The receiver, and all that it took.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    seed: u64,
    /// Of each subscription, once it is created.
    secrets: Mutex<Vec<String>>,
    seen: Mutex<Seen>,
    count: AtomicU64,
}

#[derive(Debug, Default)]
struct Seen {
    taken: Vec<Taken>,
    /// When each connection was closed by its other end.
    closed: Vec<Option<i64>>,
}

/// A webhook as it was read.
struct Webhook {
    path: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// What is done with a request.
enum Act {
    Answer(u16),
    Reset,
    Hold,
}

impl Receiver {
    /// Starts to listen; to be called in the runtime that it runs in.
    pub(super) async fn start(seed: u64) -> Result<Self, Failure> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { seed, ..Shared::default() });
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&serving);
                let number = shared.with(|seen| {
                    seen.closed.push(None);
                    seen.closed.len() - 1
                });
                tokio::spawn(async move {
                    if shared.serve(stream, number).await.is_none() {
                        shared.with(|seen| seen.closed[number] = Some(now()));
                    }
                });
            }
        });
        Ok(Self { address, shared })
    }

    /// By what it verifies signatures from now on: a secret for each subscription, in their order.
    pub(super) fn verify_by(&self, secrets: Vec<String>) {
        *self.shared.secrets.lock().unwrap_or_else(PoisonError::into_inner) = secrets;
    }

    /// How many requests it has taken.
    pub(super) fn count(&self) -> u64 {
        self.shared.count.load(Ordering::Relaxed)
    }

    /// What it has taken so far, each with the moment at which its connection was closed by the other end.
    pub(super) fn taken(&self) -> Vec<Taken> {
        let with_close = |seen: &mut Seen| {
            let close = |one: &Taken| Taken { closed_at: seen.closed[one.connection], ..one.clone() };
            seen.taken.iter().map(close).collect()
        };
        self.shared.with(with_close)
    }
}

impl Shared {
    fn with<T>(&self, work: impl FnOnce(&mut Seen) -> T) -> T {
        work(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Serves a connection until it closes; `Some` if it was this end that closed it.
    async fn serve(&self, mut stream: TcpStream, connection: usize) -> Option<()> {
        let mut rng = StdRng::seed_from_u64(self.seed.wrapping_add(connection as u64));
        // Without the option answers are only slower.
        let _ = stream.set_nodelay(true);
        let mut bytes = Vec::new();
        loop {
            let webhook = read(&mut stream, &mut bytes).await?;
            let taken = self.taken(&webhook, connection);
            let act = act(&taken, &mut rng);
            let index = self.with(|seen| {
                seen.taken.push(Taken { read_at: now(), ..taken });
                seen.taken.len() - 1
            });
            self.count.fetch_add(1, Ordering::Relaxed);
            let end = |answer| {
                self.with(|seen| {
                    let one = &mut seen.taken[index];
                    (one.ended_at, one.answer) = (Some(now()), answer);
                });
            };
            let pause = match act {
                Act::Hold => HELD_FOR,
                _ => Duration::from_micros(rng.random_range(0..25_000)),
            };
            tokio::select! {
                // Nobody sends a second request before the answer: the connection closes.
                _ = stream.read_buf(&mut bytes) => {
                    end(Answered::Nothing);
                    return None;
                }
                () = tokio::time::sleep(pause) => {}
            }
            match act {
                Act::Answer(status) => {
                    end(Answered::Status(status));
                    let text = format!("HTTP/1.1 {status} Status\r\ncontent-length: 2\r\n\r\nok");
                    stream.write_all(text.as_bytes()).await.ok()?;
                }
                Act::Reset => {
                    end(Answered::Reset);
                    let _ = stream.set_zero_linger();
                    return Some(());
                }
                Act::Hold => {
                    end(Answered::Nothing);
                    return Some(());
                }
            }
        }
    }

    /// What is recorded of a request.
    fn taken(&self, webhook: &Webhook, connection: usize) -> Taken {
        let subscription = SUBSCRIPTIONS.iter().position(|one| webhook.path == format!("/{}", one.code));
        let body: Value = serde_json::from_slice(&webhook.body).unwrap_or_default();
        let data = if body["specversion"].is_string() { &body["data"] } else { &body };
        let id = webhook.headers.get("webhook-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
        let unsigned = self.verify(subscription, webhook).err();
        Taken {
            id: id.to_owned(),
            event: data["number"].as_u64(),
            subscription,
            connection,
            read_at: 0,
            ended_at: None,
            closed_at: None,
            answer: Answered::Nothing,
            unsigned,
        }
    }

    fn verify(&self, subscription: Option<usize>, webhook: &Webhook) -> Result<(), String> {
        let secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        let secret = subscription.and_then(|at| secrets.get(at)).ok_or("a path that no subscription has")?;
        let library = standardwebhooks::Webhook::new(secret).map_err(|error| error.to_string())?;
        library.verify(&webhook.body, &webhook.headers).map_err(|error| error.to_string())
    }
}

/// Fails some webhooks for good, and others at random.
fn act(taken: &Taken, rng: &mut StdRng) -> Act {
    let is_permanent = taken.subscription.is_some_and(|at| SUBSCRIPTIONS[at].is_refused(taken.event.unwrap_or(0)));
    match rng.random_range(0..100) {
        _ if is_permanent => Act::Answer(400),
        0..6 => Act::Answer(500),
        6..9 => Act::Reset,
        9 => Act::Hold,
        10..40 => Act::Answer(204),
        _ => Act::Answer(200),
    }
}

/// Reads a request; `None` when the connection ends or what comes is no webhook.
async fn read(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<Webhook> {
    loop {
        if let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let (path, headers) = read_head(&bytes[..head])?;
            let length: usize = headers.get("content-length")?.to_str().ok()?.parse().ok()?;
            let end = head + 4 + length;
            if bytes.len() >= end {
                let body = bytes[head + 4..end].to_vec();
                bytes.drain(..end);
                return Some(Webhook { path, headers, body });
            }
        }
        if bytes.len() > MAX_BYTES || stream.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
}

fn read_head(head: &[u8]) -> Option<(String, HeaderMap)> {
    let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
    let path = lines.next()?.strip_prefix("POST ")?.strip_suffix(" HTTP/1.1")?.to_owned();
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':')?;
        headers.append(HeaderName::try_from(name).ok()?, HeaderValue::try_from(value.trim()).ok()?);
    }
    Some((path, headers))
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("seen", &self.seen).finish_non_exhaustive()
    }
}
