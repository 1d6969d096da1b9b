//! SQLite: one file, one writer thread, a few readers.
//!
//! This file is the store's public side: it turns each verb into a job for a thread and waits for the answer. The verbs
//! themselves are in the modules beside it, as functions of a transaction; none of them knows threads or futures.

mod added;
mod arrivals;
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
mod found;
mod groups;
mod handlers;
mod heartbeat;
mod holders;
mod ingest;
mod inspect;
mod jobs;
mod keys;
mod lanes;
mod listing;
mod log_counts;
mod maintenance;
mod offers;
mod open;
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
#[cfg(test)]
mod tests;
mod unreadable;
mod upkeep;
mod workers;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::{Depth, End, EntryId, Generation, NewEvent, QueueConfig, QueueName, Timestamp, Tsid, Why};
use tokio::sync::broadcast;

pub use self::caller::SqliteTx;
use self::engine::errors::closed;
use self::engine::jobs::{Urgency, job};
use self::engine::own_calls;
pub use self::engine::store::SqliteStore;
use self::engine::tx::Tx;
pub use self::open::{SqliteOptions, Synchronous};
use crate::api;
use crate::error::{Error, Result};
use crate::list_gate::Kind;
use crate::values::dispatch::without_refused;
use crate::values::{
    Backend, Batch, Census, Claim, Claimed, DeadLetters, EntryView, Extend, Family, Finalize, Finalized, ListQuery,
    LiveConsumer, ManualAction, Page, Probe, Published, QueueChange, Requeue, Retained, Retention, Upkeep, Wake,
    WorkersPage, WorkersQuery,
};
use crate::waiting_claim::WaitingClaim;

/// How long one round of upkeep, which runs about once a second, may spend on expired keys, however many there are.
const KEYS_BUDGET: Duration = Duration::from_millis(500);

impl api::Families for SqliteStore {
    fn family(&self, family: Family) -> Arc<dyn api::Store> {
        Arc::new(self.of_family(family))
    }
}

impl SqliteStore {
    /// Refuses a verb that jobs do not have.
    fn refuse_jobs(&self, why: &'static str) -> Result<()> {
        match self.family {
            Family::Entries => Ok(()),
            Family::Jobs => Err(Error::invalid(why)),
        }
    }
}

#[async_trait]
impl api::Queue for SqliteStore {
    fn backend(&self) -> Backend {
        Backend::Sqlite
    }

    async fn publish(&self, events: Vec<NewEvent>) -> Result<Batch<Published>> {
        self.write(Urgency::Publish, move |tx| publish::publish(tx, &events)).await
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>> {
        let (mut job, answer) = job(self.family, move |tx: &mut Tx<'_>| claim::claim(tx, &claim));
        // Entries leased for a caller that is gone would be blocked until their lease ends.
        job.skippable = true;
        self.enqueue(Urgency::Claim, job)?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn finalize(&self, items: Vec<Finalize>) -> Result<Batch<Finalized>> {
        let finalize = |items: Vec<Finalize>| self.write(Urgency::End, move |tx| end::finalize(tx, &items));
        without_refused(items, |item| item.check(self.family), finalize).await
    }

    async fn extend(&self, items: Vec<Extend>) -> Result<Batch<Timestamp>> {
        self.write(Urgency::End, move |tx| end::extend(tx, &items)).await
    }

    async fn requeue(&self, items: Vec<Requeue>) -> Result<Batch<()>> {
        let requeue = |items: Vec<Requeue>| self.write(Urgency::End, move |tx| end::requeue(tx, &items));
        without_refused(items, |item| item.check(self.family), requeue).await
    }

    fn take_exhausted(&self) -> Vec<(QueueName, End, u64)> {
        self.inner.shared.exhausted.of(self.family).take()
    }

    fn claim_when_available(&self, claim: Claim) -> Option<WaitingClaim> {
        let (number, answer) = self.inner.inbox.waiting_claims.claim_when_available(self.family, claim)?;
        Some(WaitingClaim::new(number, self.inner.inbox.clone(), answer))
    }

    fn cancel_waiting_claims(&self) {
        self.inner.inbox.waiting_claims.cancel_waiting_claims(self.family);
    }

    fn check_caller(&self) -> Result<()> {
        own_calls::refuse_own_call(&self.inner.inbox)
    }

    fn wakeups(&self) -> broadcast::Receiver<Wake> {
        let receiver = self.inner.inbox.wake.of(self.family).subscribe();
        // The writer polls for other connections' commits only while there are receivers: make it notice this one.
        self.inner.inbox.jobs.nudge();
        receiver
    }

    fn wake(&self, queues: BTreeSet<QueueName>) {
        // It is only a hint: a missing receiver or a closed store does not matter.
        let _ = self.inner.inbox.wake.of(self.family).send(Wake::Queues(queues));
        let (job, _) = job(self.family, arrivals::sort_in);
        let _ = self.enqueue(Urgency::End, job);
    }

    async fn close(&self) {
        let holder = self.inner.name.clone();
        // A store that is closed or has stopped cannot resign: its maintenance lease expires instead.
        let _ = self.write(Urgency::End, move |tx| maintenance::resign(tx, &holder)).await;
        self.inner.close();
        let mut threads = self.inner.threads.clone();
        while threads.changed().await.is_ok() {}
    }
}

#[async_trait]
impl api::Entries for SqliteStore {
    async fn cancel_manually(&self, items: Vec<ManualAction>) -> Result<Batch<()>> {
        self.write(Urgency::End, move |tx| end::cancel(tx, &items)).await
    }

    async fn redrive_manually(&self, items: Vec<ManualAction>) -> Result<Batch<Generation>> {
        self.write(Urgency::Publish, move |tx| dead_letters::redrive(tx, &items)).await
    }

    async fn discard(&self, ids: Vec<EntryId>) -> Result<Batch<()>> {
        self.write(Urgency::Publish, move |tx| dead_letters::discard(tx, &ids)).await
    }

    async fn entries(&self, ids: Vec<EntryId>) -> Result<Vec<Option<EntryView>>> {
        self.read(move |tx| inspect::entries(tx, &ids)).await
    }

    async fn dead_letters(&self, query: DeadLetters) -> Result<Vec<EntryView>> {
        self.read(move |tx| inspect::dead_letters(tx, &query)).await
    }

    async fn why(&self, id: EntryId) -> Result<Why> {
        self.read(move |tx| inspect::why(tx, id)).await
    }

    async fn queues_of(&self, ids: Vec<EntryId>) -> Result<Vec<Option<QueueName>>> {
        self.read(move |tx| ids.iter().map(|id| attempts::queue_of(tx, id.get())).collect()).await
    }

    async fn event_of(&self, id: EntryId) -> Result<Option<Tsid>> {
        self.read(move |tx| inspect::event_of(tx, id)).await
    }

    async fn list(&self, query: ListQuery) -> Result<Page> {
        self.refuse_jobs("jobs are not listed here")?;
        crate::listing::check(&query)?;
        self.read_list(Kind::of(&query), move |tx| listing::list(tx, &query)).await
    }
}

#[async_trait]
impl api::Queues for SqliteStore {
    async fn depths(&self) -> Result<Vec<(QueueName, Depth)>> {
        self.read(|tx| queues::depths(tx)).await
    }

    async fn depth(&self, queue: &QueueName) -> Result<Depth> {
        let queue = queue.clone();
        self.read(move |tx| queues::depth(tx, &queue)).await
    }

    async fn census(&self) -> Result<Census> {
        self.read(|tx| inspect::census(tx)).await
    }

    async fn queues(&self) -> Result<Vec<QueueConfig>> {
        self.read(|tx| queues::queues(tx)).await
    }

    async fn queue(&self, name: &QueueName) -> Result<Option<QueueConfig>> {
        let name = name.clone();
        self.read(move |tx| queues::queue_config(tx, &name)).await
    }

    async fn put_queue(&self, name: &QueueName, change: QueueChange) -> Result<QueueConfig> {
        let name = name.clone();
        self.write(Urgency::End, move |tx| queues::put_queue(tx, &name, change)).await
    }

    async fn consumers_seen(&self, consumers: Vec<LiveConsumer>) -> Result<Batch<()>> {
        self.write(Urgency::Claim, move |tx| queues::consumers_seen(tx, &consumers)).await
    }

    async fn oldest(&self) -> Result<Vec<(QueueName, Option<Duration>)>> {
        self.read(|tx| queues::oldest(tx)).await
    }

    async fn workers_page(&self, query: WorkersQuery) -> Result<WorkersPage> {
        self.read_list(Kind::workers(query.client), move |tx| workers::workers(tx, &query)).await
    }

    async fn claimable(&self, queue: &QueueName, tags: Vec<String>) -> Result<Vec<String>> {
        self.refuse_jobs("jobs have no tags")?;
        let queue = queue.clone();
        self.read(move |tx| tags::claimable(tx, &queue, tags)).await
    }
}

#[async_trait]
impl api::Maintenance for SqliteStore {
    async fn beat(&self) -> Result<Option<Duration>> {
        self.write(Urgency::End, heartbeat::beat).await
    }

    async fn elect(&self, task: &'static str, lease: Duration) -> Result<bool> {
        let holder = self.inner.name.clone();
        self.write(Urgency::Publish, move |tx| maintenance::elect(tx, task, &holder, lease)).await
    }

    async fn maintain(&self) -> Result<Upkeep> {
        let mut upkeep = self.entries_handle().write(Urgency::End, upkeep::maintain).await?;
        let began = std::time::Instant::now();
        let mut forgotten = upkeep.keys_expired;
        // Small transactions of the lowest urgency, until there are no more expired keys or the time is used.
        while forgotten >= upkeep::KEYS as u64 && began.elapsed() < KEYS_BUDGET {
            forgotten = self.write(Urgency::Publish, upkeep::expire_keys).await?;
            upkeep.keys_expired += forgotten;
        }
        self.count_log().await?;
        Ok(upkeep)
    }

    async fn probe(&self) -> Result<Probe> {
        let (mut job, answer) = job(Family::Entries, probe::probe);
        // If the caller no longer waits, the next probe reports.
        job.skippable = true;
        self.enqueue(Urgency::End, job)?;
        answer.await.unwrap_or_else(|_| Err(closed()))?;
        self.inner.inbox.checkpoints.check()?;
        Ok(Probe { wal_bytes: self.inner.inbox.place.wal_bytes() })
    }

    async fn retain(&self, retention: Retention) -> Result<Retained> {
        self.remove_old(retention).await
    }
}
