//! Queues that requests name: their handles, and their settings for pull workers, cached for a moment.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate::{EventQueue, QueueChange, QueueConfig, QueueName, QueueSettings, QueueStatus};

use crate::error::{ApiError, Code, Result};

/// How long queue settings are cached: a change on another node is noticed within this time.
const SETTINGS_LAST: Duration = Duration::from_secs(1);

/// The queues of the database. Each method answers 404 when there is no such queue.
#[derive(Debug)]
pub(crate) struct KnownQueues {
    queue: EventQueue,
    settings: Mutex<HashMap<QueueName, (QueueSettings, Instant)>>,
    handles: Mutex<HashMap<QueueName, EventQueue>>,
}

impl KnownQueues {
    pub(crate) fn new(queue: EventQueue) -> Self {
        let handles = Mutex::new(HashMap::from([(queue.name().clone(), queue.clone())]));
        Self { queue, settings: Mutex::default(), handles }
    }

    /// The settings of a queue for pull workers, cached for up to [`SETTINGS_LAST`].
    pub(crate) async fn settings(&self, name: &QueueName) -> Result<QueueSettings> {
        let known = lock(&self.settings).get(name).cloned();
        if let Some((settings, at)) = known
            && at.elapsed() < SETTINGS_LAST
        {
            return Ok(settings);
        }
        Ok(self.config(name).await?.settings)
    }

    /// The configuration of a queue, read from the database.
    pub(crate) async fn config(&self, name: &QueueName) -> Result<QueueConfig> {
        let config = self.queue.find_config(name).await?.ok_or_else(|| missing(name))?;
        self.remember(&config);
        Ok(config)
    }

    /// The configuration of a queue, and how many entries it holds.
    pub(crate) async fn status(&self, name: &QueueName) -> Result<QueueStatus> {
        self.queue.queue_status(name).await?.ok_or_else(|| missing(name))
    }

    /// Changes a queue, or creates it.
    pub(crate) async fn change(&self, name: &QueueName, change: QueueChange) -> Result<QueueConfig> {
        let config = self.queue.change_queue(name, change).await?;
        self.remember(&config);
        Ok(config)
    }

    /// The library's handle of a queue.
    pub(crate) async fn handle(&self, name: &QueueName) -> Result<EventQueue> {
        if let Some(handle) = lock(&self.handles).get(name) {
            return Ok(handle.clone());
        }
        let handle = self.queue.find(name).await?.ok_or_else(|| missing(name))?;
        lock(&self.handles).insert(name.clone(), handle.clone());
        Ok(handle)
    }

    fn remember(&self, config: &QueueConfig) {
        lock(&self.settings).insert(config.name.clone(), (config.settings.clone(), Instant::now()));
    }
}

fn missing(queue: &QueueName) -> ApiError {
    ApiError::new(Code::NotFound, format!("there is no queue {}: create it with PUT /queues/NAME", queue.name()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
