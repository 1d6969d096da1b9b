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
use crate::error::{ApiError, Code, Result};
use crate::options::Options;
use crate::tenant::Tenant;
use crate::waiting::Rooms;

/// A change of a queue's settings on another node is noticed after this long at the latest.
const SETTINGS_LAST: Duration = Duration::from_secs(1);
const NOTE_KEYS_EVERY: Duration = Duration::from_secs(10);
/// Rows that one step of retention looks at, and the pause after it.
const RETENTION_BATCH: usize = 500;
const RETENTION_PAUSE: Duration = Duration::from_millis(50);

/// The state of a server.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) queue: EventQueue,
    pub(crate) options: Options,
    pub(crate) auth: Authenticator,
    pub(crate) rooms: Rooms,
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
        Self { queue, options, auth, rooms: Rooms::default(), stopping, settings: Mutex::default(), handles }
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
    pub(crate) async fn settings(&self, queue: &QueueName, tenant: Tenant) -> Result<QueueSettings> {
        let known = lock(&self.settings).get(queue).cloned();
        if let Some((settings, at)) = known
            && at.elapsed() < SETTINGS_LAST
        {
            return Ok(settings);
        }
        Ok(self.config(queue, tenant).await?.settings)
    }

    /// A queue's configuration, fresh. A client's own default queue is made when it is first named.
    pub(crate) async fn config(&self, queue: &QueueName, tenant: Tenant) -> Result<QueueConfig> {
        let mut found = self.queue.queues().await?.into_iter().find(|config| config.name == *queue);
        if found.is_none() && tenant.0.is_some() && tenant.shown(queue) == QueueName::DEFAULT {
            found = Some(self.queue.named(queue.as_str()).await?.config().await?);
        }
        let missing = || {
            let text = format!("there is no queue {}: create it with PUT /queues/NAME", tenant.shown(queue));
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
        let handle = self.queue.named(queue.as_str()).await?;
        lock(&self.handles).insert(queue.clone(), handle.clone());
        Ok(handle)
    }

    /// What has to be done now and then, until it is aborted.
    pub(crate) fn start_upkeep(self: &Arc<Self>) -> JoinHandle<()> {
        let service = Arc::clone(self);
        let now_and_then = async move {
            let mut tick = tokio::time::interval(NOTE_KEYS_EVERY);
            let mut due = Instant::now();
            loop {
                tick.tick().await;
                service.auth.keys().note_used().await;
                if let Some(metrics) = &service.options.metrics {
                    metrics.0.run_upkeep();
                }
                if due.elapsed() >= service.options.retention.every {
                    due = Instant::now();
                    service.forget_what_is_old().await;
                }
            }
        };
        let service = Arc::clone(self);
        tokio::spawn(async move { tokio::join!(now_and_then, service.rooms.look(&service.queue)).0 })
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
        match self.queue.retain_all(retention, RETENTION_PAUSE).await {
            Ok(done) if done.audit + done.entries > 0 => {
                tracing::info!(audit = done.audit, entries = done.entries, "forgot what was old");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "what is old was not forgotten"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
