//! What pull workers need of a queue: reports on attempts, signs of life, the audit, lists, who is at work, retention. It
//! merges concurrent reports; it knows no wire.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::{End, EntryId, QueueName, Tsid};
use tidegate_store::{
    AuditRow, Heartbeat, HeartbeatLease, Held, Holder, KeyStore, ListQuery, Page, Report, Reported, Requeue, RequeueAt,
    Retained, Retention, Store, Verdict, WorkStore, WorkerView, WorkersPage, WorkersQuery,
};

use crate::coalescer::{Coalescer, LaneLimits};
use crate::error::{Error, ErrorKind, Result};
use crate::metrics::Meters;
use crate::queue::EventQueue;

/// The task of retention, for which one process of many is elected; and how long it stays so without a sign of life.
const RETENTION: &str = "retention";
const RETENTION_LEASE: Duration = Duration::from_secs(60);

/// What a store without pull workers answers.
fn unsupported() -> Error {
    Error::new(ErrorKind::Invalid, "this store has no pull workers")
}

fn work(store: &Arc<dyn Store>) -> Result<&dyn WorkStore> {
    store.work().ok_or_else(unsupported)
}

/// Reports of concurrent callers, as batches.
pub(crate) fn report_lane(
    limits: LaneLimits,
    store: &Arc<dyn Store>,
    meters: &Arc<Meters>,
) -> Coalescer<Report, Reported> {
    let (store, meters) = (Arc::clone(store), Arc::clone(meters));
    let weigh = |item: &Report| 256 + item.error_message.as_ref().map_or(0, String::len);
    Coalescer::new("report", limits, weigh, move |items| {
        let (store, meters) = (Arc::clone(&store), Arc::clone(&meters));
        async move {
            let answers = work(&store)?.report(items).await?;
            for reported in answers.iter().flatten().filter(|reported| !reported.repeated) {
                let end = match reported.verdict {
                    Verdict::Completed => End::Completed,
                    Verdict::Exhausted { .. } => End::Failed,
                    Verdict::RetryScheduled { .. } => {
                        meters.retried.increment(1);
                        continue;
                    }
                };
                meters.ended(reported.queue.as_ref().unwrap_or(&QueueName::default()), end, 1);
                if let Some(held) = reported.held_for {
                    meters.claim_to_finish.record(held.as_secs_f64());
                }
            }
            meters.lost_leases(&answers);
            Ok(answers)
        }
    })
}

/// Signs of life of concurrent callers, as batches.
pub(crate) fn heartbeat_lane(
    limits: LaneLimits,
    store: &Arc<dyn Store>,
    meters: &Arc<Meters>,
) -> Coalescer<Heartbeat, Held> {
    let (store, meters) = (Arc::clone(store), Arc::clone(meters));
    Coalescer::new(
        "heartbeat",
        limits,
        |_| 128,
        move |items| {
            let (store, meters) = (Arc::clone(&store), Arc::clone(&meters));
            async move {
                let answers = work(&store)?.heartbeat(items).await?;
                meters.lost_leases(&answers);
                Ok(answers)
            }
        },
    )
}

impl EventQueue {
    /// Ends an attempt of a pull worker, and audits it. Concurrent calls share transactions.
    ///
    /// # Errors
    /// `Fenced` for whoever holds nothing, `NotFound` for an unknown entry, `Invalid` where the queue requires a lease and
    /// none is named, or the store's.
    pub async fn report(&self, report: Report) -> Result<Reported> {
        let answer = self.shared().lanes.report.call(report).await?;
        self.rang(std::slice::from_ref(&answer));
        Ok(answer)
    }

    /// The same for many, each answered for itself.
    pub async fn report_many(&self, reports: Vec<Report>) -> Vec<Result<Reported>> {
        let answers = self.shared().lanes.report.call_many(reports).await;
        self.rang(answers.iter().flatten());
        answers
    }

    /// A retry becomes due later; the next of a group may be due now.
    fn rang<'a>(&self, answers: impl IntoIterator<Item = &'a Reported>) {
        let bells = &self.shared().bells;
        for reported in answers {
            crate::trace::reported(reported.row.entry, reported);
            match reported.verdict {
                Verdict::RetryScheduled { next_retry_at } => {
                    let delay = next_retry_at.duration_since(reported.row.created_at);
                    // A report names an entry, not its queue.
                    bells.ring_all_after(Duration::try_from(delay).unwrap_or_default());
                }
                Verdict::Completed | Verdict::Exhausted { .. } => {}
            }
        }
    }

    /// Those of these tags under which something can be claimed now.
    ///
    /// # Errors
    /// `NotFound` when there is no such queue, or the store's.
    pub async fn claimable(&self, queue: &QueueName, tags: Vec<String>) -> Result<Vec<String>> {
        work(self.store())?.claimable(queue, tags).await
    }

    /// Records that a pull worker began.
    ///
    /// # Errors
    /// `Fenced`, `NotFound`, or the store's.
    pub async fn started(&self, holder: Holder) -> Result<AuditRow> {
        let id = holder.id;
        one(work(self.store())?.started(vec![holder]).await?, id)
    }

    /// A pull worker's sign of life: extends its lease.
    ///
    /// # Errors
    /// `Fenced`, `NotFound`, or the store's.
    pub async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<Held> {
        crate::options::check_lease(heartbeat.lease.otherwise())?;
        self.shared().lanes.heartbeat.call(heartbeat).await
    }

    /// A pull worker gives its entry back: it can be claimed at once, and the attempt does not count.
    ///
    /// # Errors
    /// `Fenced`, `NotFound`, or the store's.
    pub async fn give_back(&self, holder: Holder) -> Result<()> {
        let shared = self.shared();
        let id = holder.id;
        // The worker's name alone says nothing to a requeue: the token does.
        let lease = HeartbeatLease::AsClaimed { otherwise: shared.options.lease };
        let held = self.heartbeat(Heartbeat { holder, lease }).await?;
        let requeue = Requeue { id, token: held.token, when: RequeueAt::Now, counts: false, error: None };
        shared.lanes.release.call(requeue).await?;
        shared.meters.released.increment(1);
        shared.bells.ring_all();
        Ok(())
    }

    /// Puts an entry back by hand: PROCESSING or FAILED becomes PENDING.
    ///
    /// # Errors
    /// `Conflict` when it is neither, `NotFound`, or the store's.
    pub async fn reset(&self, id: EntryId, reason: Option<String>) -> Result<()> {
        one(work(self.store())?.reset(vec![self.by_hand(id, reason)]).await?, id)?;
        self.shared().bells.ring_all();
        Ok(())
    }

    /// The queues of entries, live or ended, without reading the entries.
    ///
    /// # Errors
    /// The store's.
    pub async fn queues_of(&self, ids: Vec<EntryId>) -> Result<Vec<Option<QueueName>>> {
        work(self.store())?.queues_of(ids).await
    }

    /// The id of an entry's event, live or ended, without reading it.
    ///
    /// # Errors
    /// The store's.
    pub async fn event_of(&self, id: EntryId) -> Result<Option<Tsid>> {
        work(self.store())?.event_of(id).await
    }

    /// What happened to an entry, in order.
    ///
    /// # Errors
    /// The store's.
    pub async fn audit(&self, id: EntryId) -> Result<Vec<AuditRow>> {
        work(self.store())?.audit(id).await
    }

    /// Part of what happened to an entry, in order: at most `limit` rows with numbers above `after`.
    ///
    /// # Errors
    /// The store's.
    pub async fn audit_page(&self, id: EntryId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
        work(self.store())?.audit_page(id, after, limit).await
    }

    /// Entries, live or ended, the youngest first. A list takes its turn with other lists and a bounded time, so that
    /// nothing else waits for it; dropped, it stops.
    ///
    /// # Errors
    /// `Invalid` for a query that nobody can answer, `Busy` when it takes too long or too many run at once, or the store's.
    pub async fn list(&self, query: ListQuery) -> Result<Page> {
        work(self.store())?.list(query).await
    }

    /// Who is at work, and who looks stale.
    ///
    /// # Errors
    /// The store's.
    pub async fn workers(&self, stale_after: Duration) -> Result<Vec<WorkerView>> {
        work(self.store())?.workers(stale_after).await
    }

    /// Part of who is at work, by client and name.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub async fn workers_page(&self, query: WorkersQuery) -> Result<WorkersPage> {
        work(self.store())?.workers_page(query).await
    }

    /// Forgets one small batch of what is old; see [`retain_all`](Self::retain_all).
    ///
    /// # Errors
    /// The store's.
    pub async fn retain(&self, retention: Retention) -> Result<Retained> {
        work(self.store())?.retain(retention).await
    }

    /// Forgets what is old, batch by batch with a pause between them, so that others go first.
    ///
    /// # Errors
    /// The store's; what was forgotten before it stays forgotten.
    pub async fn retain_all(&self, retention: Retention, pause: Duration) -> Result<Retained> {
        let mut all = Retained::default();
        let mut step = retention;
        while self.retain_step(&mut step, &mut all).await? && !self.shared().is_closed() {
            tokio::time::sleep(pause).await;
        }
        Ok(all)
    }

    /// As [`retain_all`](Self::retain_all), where many processes share one database: one of them is elected, the others do
    /// nothing and get `None`. It stops after `budget`, and goes on from the start the next time.
    ///
    /// # Errors
    /// The store's; what was forgotten before it stays forgotten.
    pub async fn retain_for_all(
        &self,
        retention: Retention,
        pause: Duration,
        budget: Duration,
    ) -> Result<Option<Retained>> {
        let began = Instant::now();
        let mut all = Retained::default();
        let mut step = retention;
        loop {
            if !self.store().elect(RETENTION, RETENTION_LEASE).await? {
                return Ok(None);
            }
            let more = self.retain_step(&mut step, &mut all).await?;
            if !more || self.shared().is_closed() || began.elapsed() >= budget {
                return Ok(Some(all));
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// One batch; whether there may be more.
    async fn retain_step(&self, step: &mut Retention, all: &mut Retained) -> Result<bool> {
        let done = self.retain(*step).await?;
        all.audit += done.audit;
        all.entries += done.entries;
        let more_audit = step.audit.is_some() && done.audit >= step.batch.max(1) as u64;
        if done.next.is_none() {
            (step.log, step.dead_letters) = (None, None);
        }
        step.from = done.next;
        Ok(done.next.is_some() || more_audit)
    }

    /// API keys, where the store keeps them.
    ///
    /// # Errors
    /// When it does not.
    pub fn keys(&self) -> Result<&dyn KeyStore> {
        self.store().keys().ok_or_else(|| Error::new(ErrorKind::Invalid, "this store keeps no API keys"))
    }
}

fn one<T>(answers: Vec<Result<T>>, id: EntryId) -> Result<T> {
    answers.into_iter().next().unwrap_or_else(|| Err(Error::no_entry(id)))
}
