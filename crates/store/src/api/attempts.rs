//! Attempts of workers outside this process: reports, heartbeats, resets, and their audit.

use async_trait::async_trait;
use tidegate_core::EntryId;

use crate::error::Result;
use crate::values::{AuditRow, Batch, Heartbeat, Held, Holder, ManualAction, Report, Reported};

/// Audit rows read per page by [`Attempts::audit`].
const AUDIT_PAGE: usize = 1_000;

/// The verbs for workers outside this process.
#[async_trait]
pub trait Attempts: std::fmt::Debug + Send + Sync + 'static {
    /// Ends attempts: the entry ends or is requeued for a retry, and the audit records it, in one transaction. A repeat
    /// of what this worker reported about this attempt returns the recorded row (`repeated`) and writes nothing.
    /// `Fenced` for a worker that is not the holder, `NotFound` for an unknown entry, `Invalid` where the queue
    /// requires a lease and none is named.
    async fn report(&self, items: Vec<Report>) -> Result<Batch<Reported>>;

    /// Records that workers began their attempts, which also shows that they are alive. A repeat returns the first
    /// record. `Fenced` and `NotFound` as for reports.
    async fn started(&self, items: Vec<Holder>) -> Result<Batch<AuditRow>>;

    /// Extends leases and returns them as they are now. `Fenced` and `NotFound` as for reports.
    async fn heartbeat(&self, items: Vec<Heartbeat>) -> Result<Batch<Held>>;

    /// Resets entries: those that are PROCESSING, FAILED or kept become PENDING, anything else is a `Conflict`. The
    /// token rises, so that the old holder is fenced. From FAILED or kept a new generation starts with all its retries;
    /// from PROCESSING the retry count stays as it was.
    async fn reset(&self, items: Vec<ManualAction>) -> Result<Batch<()>>;

    /// The audit of an entry, in order: at most `limit` rows with numbers above `after`.
    async fn audit_page(&self, id: EntryId, after: i64, limit: usize) -> Result<Vec<AuditRow>>;

    /// The whole audit of an entry, in order, read page by page.
    async fn audit(&self, id: EntryId) -> Result<Vec<AuditRow>> {
        let mut rows: Vec<AuditRow> = Vec::new();
        loop {
            let after = rows.last().map_or(0, |row| row.id);
            let page = self.audit_page(id, after, AUDIT_PAGE).await?;
            let more = page.len() == AUDIT_PAGE;
            rows.extend(page);
            if !more {
                return Ok(rows);
            }
        }
    }
}
