//! Wake-ups, in this process and across processes: one connection listens for notifications and sends them, debounced and
//! outside of any publishing transaction. Wake-ups are hints: losing one costs time, never an entry.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::poll_fn;
use tidegate_core::QueueName;
use tokio_postgres::{AsyncMessage, Client, Connection, Socket};

use crate::postgres::engine::errors::{Fault, classify};
use crate::postgres::engine::notify::{self, Heard, Outbox};
use crate::postgres::engine::store::{Inner, Opened};
use crate::postgres::engine::tls::Target;
use crate::values::Wake;

/// The least time between two notifications.
const DEBOUNCE: Duration = Duration::from_millis(20);

impl Inner {
    /// Wakes consumers in this and in other processes: these queues have something to claim.
    pub(super) fn announce(&self, queues: impl IntoIterator<Item = i32>) {
        let queues: BTreeSet<i32> = queues.into_iter().collect();
        if queues.is_empty() {
            return;
        }
        self.wake_local(&queues);
        self.shared.outbox.add(self.family, &queues, false);
    }

    fn wake_local(&self, queues: &BTreeSet<i32>) {
        let catalog = self.catalog.read().unwrap_or_else(PoisonError::into_inner);
        let names = queues.iter().map(|id| catalog.queue_by_id(*id).map(|queue| queue.name.clone()));
        let wake = names.collect::<Option<BTreeSet<QueueName>>>().map_or(Wake::Any, Wake::Queues);
        // An error only means that nobody listens.
        let _ = self.wakes.send(wake);
    }

    /// After the commit of a caller's own transaction: sorts in arrivals, probes below the marks, then wakes consumers.
    pub(super) fn find_late_entries(&self) {
        let Some(inner) = self.me.upgrade() else { return };
        tokio::spawn(async move {
            if let Err(error) = inner.sort_arrivals().await {
                tracing::debug!(%error, "could not sort in arrivals, a claim or upkeep will");
            }
            if let Err(fault) = inner.probe_below().await {
                tracing::debug!(error = %fault.into_error(), "could not probe below the marks, the next probe will");
            }
            let _ = inner.wakes.send(Wake::Any);
        });
    }
}

impl Opened {
    /// Handles a notification of another process, or of this one.
    fn heard(&self, payload: &str) {
        let (family, heard) = notify::read(payload);
        match heard {
            Heard::Queues(queues) => self.family(family).wake_local(&queues),
            Heard::Late => self.family(family).find_late_entries(),
        }
    }
}

/// Listens and sends until the store is dropped; reconnects when the connection breaks.
pub(super) async fn run(opened: Weak<Opened>, outbox: Arc<Outbox>, target: Target, channel: String) {
    let mut pause = Duration::from_millis(50);
    while opened.strong_count() > 0 {
        match session(&opened, &target, &channel, &outbox).await {
            Ok(()) => pause = Duration::from_millis(50),
            Err(fault) => {
                tracing::debug!(
                    error = %fault.into_error(),
                    "lost the connection for wake-ups of other processes, connecting again; polling goes on"
                );
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(5));
            }
        }
    }
}

async fn session(opened: &Weak<Opened>, target: &Target, channel: &str, outbox: &Outbox) -> Result<(), Fault> {
    let (client, connection) = target.connect().await.map_err(classify)?;
    let listening = listen(opened, connection);
    let sending = send(opened, &client, channel, outbox);
    tokio::pin!(listening, sending);
    tokio::select! {
        () = &mut listening => Ok(()),
        sent = &mut sending => sent,
    }
}

async fn listen<S>(opened: &Weak<Opened>, mut connection: Connection<Socket, S>)
where
    S: tokio_postgres::tls::TlsStream + Unpin,
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        let Some(opened) = opened.upgrade() else { return };
        if let AsyncMessage::Notification(notification) = message {
            opened.heard(notification.payload());
        }
    }
}

async fn send(opened: &Weak<Opened>, client: &Client, channel: &str, outbox: &Outbox) -> Result<(), Fault> {
    // A wake-up need not be durable.
    client.batch_execute(&format!("SET synchronous_commit = off; LISTEN \"{channel}\"")).await?;
    // Notifications that were sent before LISTEN were missed.
    for inner in opened.upgrade().iter().flat_map(|opened| &opened.families) {
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
