//! [`EventQueue`], the handle that applications hold. This file has the handle itself, how it is started, named and
//! closed; each other file has what it does in one subject. Knows neither SQL nor handlers.
//!
//! | file | subject |
//! |---|---|
//! | [`opening`] | the builder and database addresses |
//! | [`publishing`], [`claiming`], [`ending`], [`leases`] | what publishers and consumers of this process do |
//! | [`attempts`] | pull workers: reports, heartbeats |
//! | [`entries`], [`dead_letters`], [`queues`], [`retention`], [`health`], [`keys`] | what operators do |
//! | [`transactions`] | publish and finalize in a transaction of the application |
//! | [`schedules`], [`scheduler`], [`projections`] | schedules, and views of the log by name |
//!
//! [`consumer`] claims, [`delivery`] is one claimed entry, [`lease`] its lease, [`shared`] what all handles share.

pub(crate) mod attempts;
mod claiming;
pub(crate) mod consumer;
pub(crate) mod dead_letters;
pub(crate) mod delivery;
mod ending;
mod entries;
pub(crate) mod health;
pub(crate) mod lease;
mod leases;
pub(crate) mod native;
pub(crate) mod opening;
pub(crate) mod projections;
mod publishing;
mod queues;
mod retention;
mod retry_window;
pub(crate) mod scheduler;
pub(crate) mod schedules;
pub(crate) mod serving;
pub(crate) mod shared;
pub(crate) mod transactions;

use std::sync::Arc;

use tidegate_core::{EntryId, QueueName};
use tidegate_store::{Backend, ManualAction, QueueChange, Store};

use self::consumer::Consumer;
use self::native::{DatabasePlace, Native};
use self::shared::{Closes, Shared};
use crate::background;
use crate::batch::claim_key::ClaimKey;
use crate::error::{Result, lost};
use crate::options::Options;

/// A durable queue. Clones are cheap handles of the same queue.
///
/// Background tasks end with the last handle; [`close`](Self::close) flushes and stops them in order.
#[derive(Debug, Clone)]
pub struct EventQueue {
    pub(crate) consumer: Consumer,
    /// The name under which the audit records manual actions through this handle.
    actor: Option<Arc<str>>,
}

impl EventQueue {
    pub(crate) async fn start(options: Options, store: Arc<dyn Store>, native: Native) -> Result<Self> {
        make_queue(&*store, &options.queue).await?;
        let key = ClaimKey {
            queue: options.queue.clone(),
            types: None,
            lease: options.lease,
            worker: options.worker.clone(),
            tags: None,
            audit: false,
        };
        let (shared, signals) = Shared::new(options, store, native);
        background::start(&shared, signals);
        Ok(Self::over(Consumer::new(shared, Arc::default(), key)))
    }

    fn over(consumer: Consumer) -> Self {
        // Looked up now, so that clones of the handle share the batcher.
        consumer.batcher();
        Self { consumer, actor: None }
    }

    /// A handle whose manual actions (cancel, redrive, reset) the audit records under this name.
    ///
    /// ```
    /// # async fn example(queue: tidegate::EventQueue, id: tidegate::EntryId) -> tidegate::Result<()> {
    /// queue.acting_as("ann@example.com").cancel(id).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn acting_as(&self, actor: impl AsRef<str>) -> Self {
        Self { consumer: self.consumer.clone(), actor: Some(actor.as_ref().into()) }
    }

    /// A manual action through this handle, as the audit records it.
    pub(crate) fn manual(&self, id: EntryId, reason: Option<String>) -> ManualAction {
        ManualAction { id, actor: self.actor.as_deref().map(Into::into), reason }
    }

    /// Another queue in the same database, over the same batchers and connections. Created if it does not exist.
    ///
    /// # Errors
    /// `Invalid` when the name is not valid, or any error of the store.
    pub async fn named(&self, queue: impl Into<String>) -> Result<Self> {
        self.of(QueueName::new(queue)?).await
    }

    /// As [`named`](Self::named), for a queue that may belong to a client.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn of(&self, queue: QueueName) -> Result<Self> {
        make_queue(&*self.shared().store, &queue).await?;
        let consumer = self.consumer.changed(|key| key.queue = queue);
        Ok(Self { actor: self.actor.clone(), ..Self::over(consumer) })
    }

    /// The queue's name.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.consumer.key.queue
    }

    /// The kind of database that holds the queue.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.shared().store.backend()
    }

    /// Where that database is.
    #[must_use]
    pub fn database_place(&self) -> DatabasePlace {
        self.shared().native.0.place()
    }

    /// The store that holds the queue.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared().store
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.consumer.shared
    }

    /// Stops claiming, flushes admitted calls, releases dropped entries, stops background tasks and closes the store.
    /// Entries that callers still hold keep their lease until it runs out. Calling it twice is fine.
    pub async fn close(&self) {
        let (shared, claims) = (Arc::clone(self.shared()), Arc::clone(&self.consumer.claims));
        // In a task of its own, so that a caller that drops this future does not leave the queue half closed.
        let closing = tokio::spawn(async move { shared.close(claims.close(), Closes::Store).await });
        if closing.await.is_err() {
            tracing::error!(error = %lost(), "closing the queue failed: leases of dropped entries may have to run out");
        }
    }
}

/// Creates the queue unless it exists.
async fn make_queue(store: &dyn Store, queue: &QueueName) -> Result<()> {
    if store.queue(queue).await?.is_none() {
        store.put_queue(queue, QueueChange::default()).await?;
    }
    Ok(())
}
