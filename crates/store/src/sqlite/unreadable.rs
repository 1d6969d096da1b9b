//! Rows with values that this program does not write: another type, or bytes that are not UTF-8. SQLite stores whatever
//! it is given, so another program that opens the file can write them. Where a row is only shown, it is shown as it is;
//! a claim ends the entry as a dead letter, so that it blocks no other.

use tidegate_core::End;

use crate::error::{Error, ErrorKind, Result};
use crate::sqlite::end::{Ending, end_live};
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::found::live;
use crate::values::entries::missing_fact_errors;

/// An entry that cannot be read, and why.
#[derive(Debug)]
pub(super) struct Unreadable {
    id: i64,
    reason: String,
}

impl Unreadable {
    /// Records why an entry cannot be read. An error that is not about its contents is returned as it is.
    pub(super) fn new(id: i64, error: Error) -> Result<Self> {
        if error.kind() == ErrorKind::Corrupt { Ok(Self { id, reason: error.to_string() }) } else { Err(error) }
    }

    /// Ends the entry as a dead letter with the reason.
    pub(super) fn end(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(live) = live(tx, self.id)? else { return Ok(()) };
        tracing::error!(
            entry = self.id,
            reason = self.reason,
            "an entry cannot be read and is a dead letter now: publish its event again, then discard it"
        );
        let reason = format!("the stored entry cannot be read: {}", self.reason);
        let errors = serde_json::to_string(&[&reason]).unwrap_or(reason);
        let ending = Ending { errors: Some(&errors), raise_token: true, ..Ending::new(End::Failed) };
        tx.count_ended(live.queue_id, ending.end)?;
        end_live(tx, self.id, &live, &ending)
    }
}

/// Prepares the end of an entry whose fact is missing: its tags are unknown, so all tag rows go. Returns its errors.
pub(super) fn end_without_fact(tx: &Tx<'_>, id: i64, event_id: i64, last_error: Option<&str>) -> Result<String> {
    tracing::error!(
        entry = id,
        event_id,
        "the event of an entry is missing: the entry was ended as a dead letter. Restore the event from a backup and \
         redrive the entry, or discard it"
    );
    tx.execute(&tx.sql().tags.forget, [id])?;
    Ok(missing_fact_errors(event_id, last_error))
}
