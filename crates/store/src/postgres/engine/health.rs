//! Whether the database answers. While it is known to be down, calls are refused within a second instead of each
//! waiting for its own timeout, and a probe on a connection of its own finds out when it is back. Knows nothing of
//! queues.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::error::{Error, ErrorKind};
use crate::postgres::engine::errors::{Fault, chain, classify};
use crate::postgres::engine::tls::Target;

/// How long a call waits for a database that is known to be down.
const PATIENCE: Duration = Duration::from_millis(700);
/// A statement that takes longer than this has the database probed.
pub(in crate::postgres) const SLOW: Duration = Duration::from_secs(2);
/// A database that does not answer a probe within this is down.
const PROBE_LIMIT: Duration = Duration::from_secs(3);
/// The pause between probes of a database that is down.
const PROBE_PAUSE: Duration = Duration::from_millis(200);
/// The least time between two log lines about refused requests.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// What is known about the database.
#[derive(Debug)]
pub(in crate::postgres) struct Health {
    down: watch::Sender<Option<Down>>,
    suspected: Notify,
    /// When a refusal was last logged.
    logged: Mutex<Option<Instant>>,
}

#[derive(Debug, Clone)]
struct Down {
    since: Instant,
    why: String,
}

impl Down {
    fn error(&self) -> Error {
        Error::new(ErrorKind::Unavailable, "the database is not available: try again in a moment")
            .with_source(Error::new(ErrorKind::Unavailable, self.why.clone()))
    }
}

impl Health {
    pub(in crate::postgres) fn new() -> Arc<Self> {
        Arc::new(Self { down: watch::channel(None).0, suspected: Notify::new(), logged: Mutex::default() })
    }

    /// Starts the probe.
    pub(in crate::postgres) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Admits a call. While the database is down, waits for it a moment, then refuses the call.
    pub(in crate::postgres) async fn admit(&self) -> Result<(), Fault> {
        if self.down.borrow().is_none() {
            return Ok(());
        }
        let mut down = self.down.subscribe();
        match timeout(PATIENCE, down.wait_for(Option::is_none)).await {
            Ok(_) => Ok(()),
            Err(_) => match &*self.down.borrow() {
                Some(down) => Err(Fault::Final(down.error())),
                None => Ok(()),
            },
        }
    }

    /// Returns once the database has been down for as long as a call waits for it: waiting longer is pointless.
    pub(in crate::postgres) async fn gone(&self) -> Error {
        let mut state = self.down.subscribe();
        loop {
            // The sender lives as long as `self`, so the channel is never closed.
            let Ok(since) = state.wait_for(Option::is_some).await.map(|down| down.as_ref().map(|down| down.since))
            else {
                return std::future::pending().await;
            };
            let Some(since) = since else { continue };
            sleep_until(since + PATIENCE).await;
            if let Some(down) = &*self.down.borrow() {
                return down.error();
            }
        }
    }

    /// Logs why the database refuses requests (logins, privileges), which callers are not told. At most every
    /// [`LOG_EVERY`], since every call may fail this way.
    pub(in crate::postgres) fn note(&self, fault: &Fault) {
        let Fault::Final(error) = fault else { return };
        let Some(cause) = std::error::Error::source(error).filter(|_| error.kind() == ErrorKind::Unavailable) else {
            return;
        };
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|logged| logged.elapsed() > LOG_EVERY) {
            *logged = Some(Instant::now());
            tracing::error!(cause = %chain(cause), "the database refuses requests: {error}");
        }
    }

    fn set_down(&self, why: String) {
        self.down.send_if_modified(|down| {
            let news = down.is_none();
            if news {
                tracing::warn!(%why, "the database does not answer: calls are refused until it does");
                *down = Some(Down { since: Instant::now(), why });
            }
            news
        });
    }

    fn set_up(&self) {
        self.down.send_if_modified(|down| {
            let before = down.take();
            if let Some(before) = &before {
                tracing::info!(after = ?before.since.elapsed(), "the database answers again");
            }
            before.is_some()
        });
    }
}

/// Probes the database whenever there is a reason to, until the task is aborted.
pub(in crate::postgres) async fn run(health: Arc<Health>, target: Target) {
    loop {
        health.suspected.notified().await;
        while let Some(why) = failure(&target).await {
            health.set_down(why);
            sleep(PROBE_PAUSE).await;
        }
        health.set_up();
    }
}

/// Why the database does not answer; `None` if it does. One that refuses a login or has no free connection does answer.
async fn failure(target: &Target) -> Option<String> {
    match timeout(PROBE_LIMIT, probe(target)).await {
        Ok(Err(error)) => match classify(error) {
            Fault::Lost(error) => Some(chain(&error)),
            _ => None,
        },
        Ok(Ok(())) => None,
        Err(_) => Some(format!("no answer within {PROBE_LIMIT:?}")),
    }
}

async fn probe(target: &Target) -> Result<(), tokio_postgres::Error> {
    let (client, driver) = target.connect_driven().await?;
    let driver = AbortOnDrop(driver);
    let answer = client.simple_query("SELECT 1").await;
    drop(client);
    drop(driver);
    answer.map(|_| ())
}

/// Aborts a task when it is dropped.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
