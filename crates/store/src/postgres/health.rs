//! Whether the database answers. While it is known not to, calls are refused at once instead of each waiting for itself,
//! and a probe on a connection of its own finds out when it is back. Knows nothing of queues.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::errors::{Fault, chain, classify};
use super::tls::Target;
use crate::error::{Error, ErrorKind};

/// How long a call waits for a database that is known to be down.
const PATIENCE: Duration = Duration::from_millis(700);
/// A statement that takes longer than this is a reason to look whether anything is answered at all.
pub(super) const SLOW: Duration = Duration::from_secs(2);
/// A probe that takes longer than this says that the database is down.
const PROBE_LIMIT: Duration = Duration::from_secs(3);
/// The pause between probes of a database that is down.
const PROBE_PAUSE: Duration = Duration::from_millis(200);
/// The least time between two log lines about what the database refuses.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// What is known of the database.
#[derive(Debug)]
pub(super) struct Health {
    down: watch::Sender<Option<Down>>,
    suspected: Notify,
    told: Mutex<Option<Instant>>,
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
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { down: watch::channel(None).0, suspected: Notify::new(), told: Mutex::default() })
    }

    /// Has the probe look at the database.
    pub(super) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Lets a call through, or refuses it after a moment while the database is down.
    pub(super) async fn admit(&self) -> Result<(), Fault> {
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

    /// Ends when the database has been down for a moment: those who wait for it need not wait any longer.
    pub(super) async fn gone(&self) -> Error {
        let mut state = self.down.subscribe();
        loop {
            // The sender lives as long as `self`, so that the channel cannot be closed.
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

    /// Logs what the database refuses, which callers are not told: logins, rights. Now and then, since every call may
    /// meet it.
    pub(super) fn note(&self, fault: &Fault) {
        let Fault::Final(error) = fault else { return };
        let Some(cause) = std::error::Error::source(error).filter(|_| error.kind() == ErrorKind::Unavailable) else {
            return;
        };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|told| told.elapsed() > TELL_EVERY) {
            *told = Some(Instant::now());
            tracing::error!(cause = %chain(cause), "the database refuses to work: {error}");
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

/// Looks at the database whenever there is a reason to, until the task is ended.
pub(super) async fn run(health: Arc<Health>, target: Target) {
    loop {
        health.suspected.notified().await;
        while let Some(why) = failure(&target).await {
            health.set_down(why);
            sleep(PROBE_PAUSE).await;
        }
        health.set_up();
    }
}

/// Why the database does not answer. One that refuses a login, or has no connection to spare, does answer.
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
    let driver = Stopped(driver);
    let answer = client.simple_query("SELECT 1").await;
    drop(client);
    drop(driver);
    answer.map(|_| ())
}

/// A task that ends with its owner.
struct Stopped(tokio::task::JoinHandle<()>);

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.abort();
    }
}
