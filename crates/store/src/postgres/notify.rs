//! Wake-ups across processes: one connection that listens and, debounced and outside any publishing transaction, tells
//! others. Hints only: losing them costs time, never an event.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::poll_fn;
use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, Client, Connection, Socket};

use super::Inner;
use super::errors::{Fault, classify};
use super::tls::Target;
use crate::store::Wake;

/// The least time between two notifications.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// The payload that says: a caller's own transaction committed, look below the marks and at arrivals.
const LATE: &str = "late";

/// Queues that others are to be told about.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pending: Mutex<Pending>,
    ready: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    queues: BTreeSet<i32>,
    late: bool,
}

impl Outbox {
    /// Notes queues that got work.
    pub(super) fn add(&self, queues: &BTreeSet<i32>, late: bool) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.queues.extend(queues);
        pending.late |= late;
        drop(pending);
        self.ready.notify_one();
    }

    fn take(&self) -> Vec<String> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = std::mem::take(&mut *pending);
        let mut payloads = Vec::new();
        if !pending.queues.is_empty() {
            let numbers: Vec<String> = pending.queues.iter().map(i32::to_string).collect();
            // A notification carries less than 8,000 bytes.
            payloads.extend(numbers.chunks(500).map(|chunk| chunk.join(",")));
        }
        payloads.extend(pending.late.then(|| LATE.to_owned()));
        payloads
    }
}

/// Listens and tells until the store is gone, reconnecting when the connection breaks.
pub(super) async fn run(inner: Weak<Inner>, target: Target, channel: String) {
    let mut pause = Duration::from_millis(50);
    loop {
        let Some(strong) = inner.upgrade() else { return };
        let outbox = Arc::clone(&strong.outbox);
        drop(strong);
        match session(&inner, &target, &channel, &outbox).await {
            Ok(()) => pause = Duration::from_millis(50),
            Err(fault) => {
                tracing::debug!(error = %fault.into_error(), "wake-ups from other processes are interrupted");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(5));
            }
        }
    }
}

async fn session(inner: &Weak<Inner>, target: &Target, channel: &str, outbox: &Outbox) -> Result<(), Fault> {
    let (client, connection) = target.connect().await.map_err(classify)?;
    let listening = listen(inner, connection);
    let telling = tell(inner, &client, channel, outbox);
    tokio::pin!(listening, telling);
    tokio::select! {
        () = &mut listening => Ok(()),
        told = &mut telling => told,
    }
}

async fn listen<S>(inner: &Weak<Inner>, mut connection: Connection<Socket, S>)
where
    S: tokio_postgres::tls::TlsStream + Unpin,
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        let Some(inner) = inner.upgrade() else { return };
        if let AsyncMessage::Notification(notification) = message {
            inner.heard(notification.payload());
        }
    }
}

async fn tell(inner: &Weak<Inner>, client: &Client, channel: &str, outbox: &Outbox) -> Result<(), Fault> {
    // A hint need not be durable.
    client.batch_execute(&format!("SET synchronous_commit = off; LISTEN \"{channel}\"")).await?;
    // Until now hints may have passed unheard.
    if let Some(inner) = inner.upgrade() {
        let _ = inner.wakes.send(Wake::Any);
    }
    let notify = client.prepare("SELECT pg_notify($1, $2)").await?;
    loop {
        outbox.ready.notified().await;
        for payload in outbox.take() {
            client.execute(&notify, &[&channel, &payload]).await?;
        }
        tokio::time::sleep(DEBOUNCE).await;
    }
}

/// What a notification says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Queues(BTreeSet<i32>),
    Late,
}

pub(super) fn read(payload: &str) -> Heard {
    let numbers: Result<BTreeSet<i32>, _> = payload.split(',').map(str::parse).collect();
    numbers.map_or(Heard::Late, Heard::Queues)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_round_trip() {
        let outbox = Outbox::default();
        outbox.add(&BTreeSet::from([3, 1]), true);
        outbox.add(&BTreeSet::from([2]), false);
        let payloads = outbox.take();
        assert_eq!(payloads, ["1,2,3", "late"]);
        assert_eq!(read(&payloads[0]), Heard::Queues(BTreeSet::from([1, 2, 3])));
        assert_eq!(read(&payloads[1]), Heard::Late);
        assert_eq!(read(""), Heard::Late);
        assert!(outbox.take().is_empty());
    }
}
