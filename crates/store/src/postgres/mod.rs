//! PostgreSQL: many nodes on one database.
//!
//! Claims use SKIP LOCKED on narrow rows, batches use `unnest`, and the hot path has no leader. Owns connections,
//! statements and what happens when answers are lost; must not know handlers or batchers. See ARCHITECTURE.md for the
//! rules.

mod added;
mod attempts;
mod audit;
mod caller;
mod claim;
mod dead_letters;
mod deduplication;
mod dispatch;
mod end;
mod engine;
mod expiry;
mod fact_keys;
mod facts;
mod flags;
mod groups;
mod handlers;
mod heartbeat;
mod holders;
mod ingest;
mod ingest_plan;
mod ingest_rows;
mod inspect;
mod items;
mod jobs;
mod keys;
mod lanes;
mod listing;
mod log_counts;
mod maintenance;
mod marks;
mod open;
mod partitions;
mod probe;
mod projections;
mod publish;
mod queues;
mod requests;
mod resources;
mod retain;
mod retain_facts;
mod schedules;
mod statements;
mod tags;
mod undeliverable;
mod upkeep;
mod wakeups;
mod workers;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::{Depth, End, EntryId, Generation, NewEvent, QueueConfig, QueueName, Timestamp, Tsid, Why};
use tokio::sync::broadcast;

pub use self::caller::{PostgresConnection, PostgresTx};
pub use self::engine::options::PostgresOptions;
pub use self::engine::store::PostgresStore;
use crate::api;
use crate::error::{Error, Result};
use crate::values::dispatch::without_refused;
use crate::values::{
    Backend, Batch, Census, Claim, Claimed, DeadLetters, EntryView, Extend, Family, Finalize, Finalized, ListQuery,
    LiveConsumer, ManualAction, Page, Probe, Published, QueueChange, Requeue, Retained, Retention, Upkeep, Wake,
    WorkersPage, WorkersQuery,
};

impl api::Families for PostgresStore {
    fn family(&self, family: Family) -> Arc<dyn api::Store> {
        Arc::new(self.of(family))
    }
}

impl PostgresStore {
    /// Refuses a verb that jobs do not have.
    fn refuse_jobs(&self, why: &'static str) -> Result<()> {
        match self.inner.family {
            Family::Entries => Ok(()),
            Family::Jobs => Err(Error::invalid(why)),
        }
    }
}

#[async_trait]
impl api::Queue for PostgresStore {
    fn backend(&self) -> Backend {
        Backend::Postgres
    }

    async fn publish(&self, events: Vec<NewEvent>) -> Result<Batch<Published>> {
        self.detached(|inner| async move { inner.publish(events).await }).await
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>> {
        self.detached(|inner| async move { inner.claim(claim).await }).await
    }

    async fn finalize(&self, items: Vec<Finalize>) -> Result<Batch<Finalized>> {
        let family = self.inner.family;
        let finalize = |items| self.detached(|inner| async move { inner.finalize(items).await });
        without_refused(items, |item| item.check(family), finalize).await
    }

    async fn extend(&self, items: Vec<Extend>) -> Result<Batch<Timestamp>> {
        self.detached(|inner| async move { inner.extend(items).await }).await
    }

    async fn requeue(&self, items: Vec<Requeue>) -> Result<Batch<()>> {
        let family = self.inner.family;
        let requeue = |items| self.detached(|inner| async move { inner.requeue(items).await });
        without_refused(items, |item| item.check(family), requeue).await
    }

    fn take_exhausted(&self) -> Vec<(QueueName, End, u64)> {
        self.inner.exhausted.take()
    }

    fn wakeups(&self) -> broadcast::Receiver<Wake> {
        self.inner.wakes.subscribe()
    }

    fn wake(&self, _queues: BTreeSet<QueueName>) {
        self.inner.find_late_entries();
        self.inner.shared.outbox.add(self.inner.family, &BTreeSet::new(), true);
    }

    async fn close(&self) {
        self.opened.end_tasks();
        self.inner.resign().await;
        self.inner.shared.database.pool.close();
        self.inner.shared.heart.pool.close();
    }
}

#[async_trait]
impl api::Entries for PostgresStore {
    async fn cancel_manually(&self, items: Vec<ManualAction>) -> Result<Batch<()>> {
        self.detached(|inner| async move { inner.cancel(items).await }).await
    }

    async fn redrive_manually(&self, items: Vec<ManualAction>) -> Result<Batch<Generation>> {
        self.detached(|inner| async move { inner.redrive(items, dead_letters::Again::Redrive).await }).await
    }

    async fn discard(&self, ids: Vec<EntryId>) -> Result<Batch<()>> {
        self.detached(|inner| async move { inner.discard(ids).await }).await
    }

    async fn entries(&self, ids: Vec<EntryId>) -> Result<Vec<Option<EntryView>>> {
        self.detached(|inner| async move { inner.entries(ids).await }).await
    }

    async fn dead_letters(&self, query: DeadLetters) -> Result<Vec<EntryView>> {
        self.detached(|inner| async move { inner.dead_letters(query).await }).await
    }

    async fn why(&self, id: EntryId) -> Result<Why> {
        self.detached(|inner| async move { inner.why(id).await }).await
    }

    async fn queues_of(&self, ids: Vec<EntryId>) -> Result<Vec<Option<QueueName>>> {
        self.detached(|inner| async move { inner.queues_of(&ids).await }).await
    }

    async fn event_of(&self, id: EntryId) -> Result<Option<Tsid>> {
        self.detached(|inner| async move { inner.event_of(id).await }).await
    }

    async fn list(&self, query: ListQuery) -> Result<Page> {
        self.refuse_jobs("jobs are not listed here")?;
        self.attended(|inner| async move { inner.list(query).await }).await
    }
}

#[async_trait]
impl api::Queues for PostgresStore {
    async fn depths(&self) -> Result<Vec<(QueueName, Depth)>> {
        self.detached(|inner| async move { inner.depths().await }).await
    }

    async fn depth(&self, queue: &QueueName) -> Result<Depth> {
        let queue = queue.clone();
        self.detached(|inner| async move { inner.depth(&queue).await }).await
    }

    async fn census(&self) -> Result<Census> {
        self.detached(|inner| async move { inner.census().await }).await
    }

    async fn queues(&self) -> Result<Vec<QueueConfig>> {
        self.detached(|inner| async move { inner.queues().await }).await
    }

    async fn queue(&self, name: &QueueName) -> Result<Option<QueueConfig>> {
        let name = name.clone();
        self.detached(|inner| async move { inner.queue_config(&name).await }).await
    }

    async fn put_queue(&self, name: &QueueName, change: QueueChange) -> Result<QueueConfig> {
        let name = name.clone();
        self.detached(|inner| async move { inner.put_queue(&name, change).await }).await
    }

    async fn consumers_seen(&self, consumers: Vec<LiveConsumer>) -> Result<Batch<()>> {
        self.detached(|inner| async move { inner.consumers_seen(consumers).await }).await
    }

    async fn oldest(&self) -> Result<Vec<(QueueName, Option<Duration>)>> {
        self.detached(|inner| async move { inner.oldest().await }).await
    }

    async fn workers_page(&self, query: WorkersQuery) -> Result<WorkersPage> {
        self.attended(|inner| async move { inner.workers(query).await }).await
    }

    async fn claimable(&self, queue: &QueueName, tags: Vec<String>) -> Result<Vec<String>> {
        self.refuse_jobs("jobs have no tags")?;
        let queue = queue.clone();
        self.detached(|inner| async move { inner.claimable(&queue, &tags).await }).await
    }
}

#[async_trait]
impl api::Maintenance for PostgresStore {
    async fn beat(&self) -> Result<Option<Duration>> {
        self.detached(|inner| async move { inner.beat().await }).await
    }

    async fn elect(&self, task: &'static str, lease: Duration) -> Result<bool> {
        self.detached(|inner| async move { inner.elect(task, lease).await }).await
    }

    async fn maintain(&self) -> Result<Upkeep> {
        let opened = Arc::clone(&self.opened);
        self.detached(|_| async move { opened.maintain().await }).await
    }

    async fn probe(&self) -> Result<Probe> {
        self.detached(|inner| async move { inner.probe().await }).await
    }

    async fn retain(&self, retention: Retention) -> Result<Retained> {
        let opened = Arc::clone(&self.opened);
        self.detached(|_| async move { opened.retain(retention).await }).await
    }
}
