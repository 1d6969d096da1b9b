//! Entries by number: manual actions answered with the entry, its audit in parts, and why it is not running.

use tidegate_core::{EntryId, Tsid, Why};
use tidegate_store::{AuditRow, EntryView};

use crate::error::{Error, Result};
use crate::queue::EventQueue;

/// Audit rows that are read at once.
const ROWS_AT_ONCE: usize = 20;

/// Part of the audit of an entry.
#[derive(Debug, Clone, Default)]
pub struct AuditPart {
    /// The rows, in order.
    pub rows: Vec<AuditRow>,
    /// The number of the last row when there are more after it.
    pub next: Option<i64>,
}

/// Why an entry is not running.
#[derive(Debug, Clone)]
pub struct Explained {
    /// The reason.
    pub why: Why,
    /// The id of its event; `None` once retention has removed it.
    pub event_id: Option<Tsid>,
}

impl EventQueue {
    /// As [`reset`](Self::reset), and returns the entry as it is then.
    ///
    /// # Errors
    /// As [`reset`](Self::reset).
    pub async fn reset_entry(&self, id: EntryId, reason: Option<String>) -> Result<EntryView> {
        self.reset(id, reason).await?;
        self.entry_after(id).await
    }

    /// As [`redrive`](Self::redrive), and returns the entry as it is then.
    ///
    /// # Errors
    /// As [`redrive`](Self::redrive).
    pub async fn redrive_entry(&self, id: EntryId) -> Result<EntryView> {
        self.redrive(id).await?;
        self.entry_after(id).await
    }

    /// As [`cancel`](Self::cancel), and returns the entry as it is then.
    ///
    /// # Errors
    /// As [`cancel`](Self::cancel).
    pub async fn cancel_entry(&self, id: EntryId) -> Result<EntryView> {
        self.cancel(id).await?;
        self.entry_after(id).await
    }

    async fn entry_after(&self, id: EntryId) -> Result<EntryView> {
        self.entry(id).await?.ok_or_else(|| Error::no_entry(id))
    }

    /// As [`why`](Self::why), with the id of the event.
    ///
    /// # Errors
    /// As [`why`](Self::why).
    pub async fn explain(&self, id: EntryId) -> Result<Explained> {
        let why = self.why(id).await?;
        Ok(Explained { why, event_id: self.event_of(id).await? })
    }

    /// The audit of an entry after the row `after`: up to `limit` rows, and no more once their messages have `bytes`
    /// bytes together. It is read in small steps, so that long messages make the part short instead of large.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn audit_part(&self, id: EntryId, after: i64, limit: usize, bytes: usize) -> Result<AuditPart> {
        let (mut rows, mut read, mut after) = (Vec::new(), 0, after);
        while rows.len() < limit && read < bytes {
            // One row more than wanted tells whether there are more.
            let step = (limit - rows.len()).min(ROWS_AT_ONCE);
            let mut found = self.audit_page(id, after, step + 1).await?;
            let is_last = found.len() <= step;
            found.truncate(step);
            after = found.last().map_or(after, |row| row.id);
            read += found.iter().filter_map(|row| row.message.as_ref()).map(String::len).sum::<usize>();
            rows.append(&mut found);
            if is_last {
                return Ok(AuditPart { rows, next: None });
            }
        }
        Ok(AuditPart { rows, next: Some(after) })
    }
}
