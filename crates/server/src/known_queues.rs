//! Queues that requests name: their handles, and their settings, cached for exactly one catalogue version.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate::{CatalogueVersion, EventQueue, QueueChange, QueueConfig, QueueName, QueueSettings, QueueStatus};

use crate::access::Caller;
use crate::error::{ApiError, Code, Result};

/// The queues of the database. Each method answers 404 when there is no such queue.
#[derive(Debug)]
pub(crate) struct KnownQueues {
    queue: EventQueue,
    settings: Mutex<Settings>,
    handles: Mutex<HashMap<QueueName, EventQueue>>,
}

/// The settings of queues at one catalogue version.
#[derive(Debug, Default)]
struct Settings {
    version: Option<CatalogueVersion>,
    of: HashMap<QueueName, QueueSettings>,
}

impl KnownQueues {
    pub(crate) fn new(queue: EventQueue) -> Self {
        let handles = Mutex::new(HashMap::from([(queue.name().clone(), queue.clone())]));
        Self { queue, settings: Mutex::default(), handles }
    }

    /// The catalogue version that a request goes by: read once, after the request arrived.
    pub(crate) async fn version(&self, caller: &Caller) -> Result<CatalogueVersion> {
        match caller.version() {
            Some(version) => Ok(version),
            None => Ok(self.queue.catalogue_version().await?),
        }
    }

    /// The settings of a queue at a catalogue version, or at a later one.
    pub(crate) async fn settings(&self, name: &QueueName, version: CatalogueVersion) -> Result<QueueSettings> {
        if let Some(settings) = lock(&self.settings).at(version).get(name) {
            return Ok(settings.clone());
        }
        // Read after the version: once these are newer, no request goes by that version any more.
        let settings = self.config(name).await?.settings;
        lock(&self.settings).at(version).insert(name.clone(), settings.clone());
        Ok(settings)
    }

    /// The configuration of a queue, read from the database.
    pub(crate) async fn config(&self, name: &QueueName) -> Result<QueueConfig> {
        self.queue.find_config(name).await?.ok_or_else(|| missing(name))
    }

    /// The configuration of a queue, and how many entries it holds.
    pub(crate) async fn status(&self, name: &QueueName) -> Result<QueueStatus> {
        self.queue.queue_status(name).await?.ok_or_else(|| missing(name))
    }

    /// Changes a queue, or creates it.
    pub(crate) async fn change(&self, name: &QueueName, change: QueueChange) -> Result<QueueConfig> {
        Ok(self.queue.change_queue(name, change).await?)
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
}

impl Settings {
    /// The settings that are known at a version; those of another one are forgotten.
    fn at(&mut self, version: CatalogueVersion) -> &mut HashMap<QueueName, QueueSettings> {
        if self.version != Some(version) {
            (self.version, self.of) = (Some(version), HashMap::new());
        }
        &mut self.of
    }
}

fn missing(queue: &QueueName) -> ApiError {
    ApiError::new(Code::NotFound, format!("there is no queue {}: create it with PUT /queues/NAME", queue.name()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
