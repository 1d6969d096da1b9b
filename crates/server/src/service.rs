//! What all handlers share: the queue, settings of queues, rooms for those who wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate::{EventQueue, QueueName};
use tidegate_core::{QueueConfig, QueueSettings};
use tidegate_store::Retention;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::auth::Authenticator;
use crate::bodies::Bodies;
use crate::error::{ApiError, Code, Result};
use crate::options::Options;
use crate::waiting::Rooms;

/// A change of a queue's settings on another node is noticed after this long at the latest.
const SETTINGS_LAST: Duration = Duration::from_secs(1);
const NOTE_KEYS_EVERY: Duration = Duration::from_secs(10);
/// Rows that one step of retention looks at, and the pause after it.
const RETENTION_BATCH: usize = 500;
const RETENTION_PAUSE: Duration = Duration::from_millis(50);
/// A round of retention may take half of the time between two rounds, and at least half of this.
const RETENTION_AT_LEAST: Duration = Duration::from_secs(10);

/// The state of a server.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) queue: EventQueue,
    pub(crate) options: Options,
    pub(crate) auth: Authenticator,
    pub(crate) rooms: Rooms,
    pub(crate) bodies: Arc<Bodies>,
    stopping: watch::Receiver<bool>,
    settings: Mutex<HashMap<QueueName, (QueueSettings, Instant)>>,
    handles: Mutex<HashMap<QueueName, EventQueue>>,
}

impl Service {
    pub(crate) fn new(
        queue: EventQueue,
        options: Options,
        auth: Authenticator,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let handles = Mutex::new(HashMap::from([(queue.name().clone(), queue.clone())]));
        let bodies = Arc::new(Bodies::new(options.limits.bodies_bytes));
        let (rooms, settings) = (Rooms::default(), Mutex::default());
        Self { queue, options, auth, rooms, bodies, stopping, settings, handles }
    }

    /// Waits until the server stops.
    pub(crate) async fn stopped(&self) {
        // The other end lives as long as the server; when it is gone that is a stop too.
        let _ = self.stopping.clone().wait_for(|stopping| *stopping).await;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// What pull workers get in a queue. 404 when there is none.
    pub(crate) async fn settings(&self, queue: &QueueName) -> Result<QueueSettings> {
        let known = lock(&self.settings).get(queue).cloned();
        if let Some((settings, at)) = known
            && at.elapsed() < SETTINGS_LAST
        {
            return Ok(settings);
        }
        Ok(self.config(queue).await?.settings)
    }

    /// A queue's configuration, fresh. A client's default queue is made when it is first named.
    pub(crate) async fn config(&self, queue: &QueueName) -> Result<QueueConfig> {
        let mut found = self.queue.config_of(queue).await?;
        if found.is_none() && queue.client().is_some() && queue.name() == QueueName::DEFAULT {
            found = Some(self.queue.of(queue.clone()).await?.config().await?);
        }
        let missing = || {
            let text = format!("there is no queue {}: create it with PUT /queues/NAME", queue.name());
            ApiError::new(Code::NotFound, text)
        };
        let config = found.ok_or_else(missing)?;
        self.remember(&config);
        Ok(config)
    }

    pub(crate) fn remember(&self, config: &QueueConfig) {
        lock(&self.settings).insert(config.name.clone(), (config.settings.clone(), Instant::now()));
    }

    /// A handle of a queue that exists.
    pub(crate) async fn handle(&self, queue: &QueueName) -> Result<EventQueue> {
        if let Some(handle) = lock(&self.handles).get(queue) {
            return Ok(handle.clone());
        }
        let handle = self.queue.of(queue.clone()).await?;
        lock(&self.handles).insert(queue.clone(), handle.clone());
        Ok(handle)
    }

    /// What has to be done now and then, until it is aborted.
    pub(crate) fn start_upkeep(self: &Arc<Self>) -> JoinHandle<()> {
        let service = Arc::clone(self);
        let now_and_then = async move {
            let mut tick = tokio::time::interval(NOTE_KEYS_EVERY);
            loop {
                tick.tick().await;
                service.auth.keys().note_used().await;
                if let Some(metrics) = &service.options.metrics {
                    metrics.0.run_upkeep();
                }
            }
        };
        // Beside the rest, so that a long round holds nothing up.
        let service = Arc::clone(self);
        let retention = async move {
            loop {
                tokio::time::sleep(service.options.retention.every.max(Duration::from_secs(1))).await;
                service.forget_what_is_old().await;
            }
        };
        let service = Arc::clone(self);
        tokio::spawn(async move { tokio::join!(now_and_then, retention, service.rooms.look(&service.queue)).0 })
    }

    /// Removes what is older than the settings say, in small steps that let others go first.
    async fn forget_what_is_old(&self) {
        let kept = &self.options.retention;
        let retention = Retention {
            audit: kept.audit,
            log: kept.log,
            dead_letters: kept.dead_letters,
            batch: RETENTION_BATCH,
            from: None,
        };
        if (kept.audit, kept.log, kept.dead_letters) == (None, None, None) {
            return;
        }
        let budget = kept.every.max(RETENTION_AT_LEAST) / 2;
        match self.queue.retain_for_all(retention, RETENTION_PAUSE, budget).await {
            Ok(Some(done)) if done.audit + done.entries > 0 => {
                tracing::info!(audit = done.audit, entries = done.entries, "retention removed what was old");
            }
            // Nothing was old, or another node does it.
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "retention failed: old rows stay until the next round"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
