//! Pull workers: their reports, heartbeats and releases, and who they are. Concurrent reports and heartbeats are
//! batched. Knows nothing of HTTP.

use std::time::Duration;

use tidegate_store::{
    AuditRow, Heartbeat, HeartbeatLease, Held, Holder, Report, ReportResult, Reported, Requeue, RequeueAt, WorkerView,
    WorkersPage, WorkersQuery,
};

use super::EventQueue;
use super::entries::one;
use crate::error::Result;
use crate::options::check_lease;
use crate::trace;

impl EventQueue {
    /// Records the attempt outcome of a pull worker: ends or retries the entry, and writes the audit. Concurrent calls
    /// share transactions.
    ///
    /// # Errors
    /// `Fenced` when the worker does not hold the entry, `NotFound` for an unknown entry, `Invalid` when the queue
    /// requires a lease token and none is given, or any error of the store.
    pub async fn report(&self, report: Report) -> Result<Reported> {
        let answer = self.shared().batchers.report.call(report).await?;
        self.wake_for_retries(std::slice::from_ref(&answer));
        Ok(answer)
    }

    /// As [`report`](Self::report) for several reports, with one result each.
    pub async fn report_many(&self, reports: Vec<Report>) -> Vec<Result<Reported>> {
        let answers = self.shared().batchers.report.call_many(reports).await;
        self.wake_for_retries(answers.iter().flatten());
        answers
    }

    /// Has waiters poll when the retries of these reports become due.
    fn wake_for_retries<'a>(&self, answers: impl IntoIterator<Item = &'a Reported>) {
        let wake_ups = &self.shared().wake_ups;
        for reported in answers {
            trace::reported(reported.row.entry, reported);
            match reported.result {
                ReportResult::RetryScheduled { next_retry_at } => {
                    let delay = next_retry_at.duration_since(reported.row.created_at);
                    // A report has the number of its entry, not the queue.
                    wake_ups.wake_all_after(Duration::try_from(delay).unwrap_or_default());
                }
                ReportResult::Completed | ReportResult::Exhausted { .. } => {}
            }
        }
    }

    /// Records in the audit that a pull worker has started its attempt.
    ///
    /// # Errors
    /// `Fenced` and `NotFound` as for [`report`](Self::report), or any error of the store.
    pub async fn started(&self, holder: Holder) -> Result<AuditRow> {
        let id = holder.id;
        one(self.store().started(vec![holder]).await?, id)
    }

    /// Extends the lease of a pull worker.
    ///
    /// # Errors
    /// `Invalid` when the lease is out of range, `Fenced` and `NotFound` as for [`report`](Self::report), or any error
    /// of the store.
    pub async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<Held> {
        check_lease(heartbeat.lease.otherwise())?;
        self.shared().batchers.heartbeat.call(heartbeat).await
    }

    /// Releases the entry of a pull worker: it can be claimed at once, and the attempt does not count.
    ///
    /// # Errors
    /// `Fenced` and `NotFound` as for [`report`](Self::report), or any error of the store.
    pub async fn give_back(&self, holder: Holder) -> Result<()> {
        let shared = self.shared();
        let id = holder.id;
        // A requeue needs the lease token, which the holder may not have given: the heartbeat returns it.
        let lease = HeartbeatLease::AsClaimed { otherwise: shared.options.lease };
        let held = self.heartbeat(Heartbeat { holder, lease }).await?;
        let requeue = Requeue {
            id,
            token: held.token,
            when: RequeueAt::Now,
            counts: false,
            aside: false,
            error: None,
            attempt: None,
        };
        shared.batchers.release.call(requeue).await?;
        shared.meters.released.increment(1);
        shared.wake_ups.wake_all();
        Ok(())
    }

    /// All workers that hold entries or were seen within a day. A worker that holds entries and was silent for
    /// `stale_after` is marked as stale.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn workers(&self, stale_after: Duration) -> Result<Vec<WorkerView>> {
        self.store().workers(stale_after).await
    }

    /// Part of the workers, by client and name.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub async fn workers_page(&self, query: WorkersQuery) -> Result<WorkersPage> {
        self.store().workers_page(query).await
    }
}
