//! Who holds what, on SQLite: whether a worker holds the entry that it names.

use tidegate_core::name::check_text;

use crate::error::{Error, Result};
use crate::sqlite::audit::last_report;
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::found::{Live, last_log, live};
use crate::values::attempts::already_reported;
use crate::values::{AuditRow, Holder};

/// One answer for one item; the outer error fails the batch.
pub(super) type Answer<T> = Result<Result<T>>;

/// The entry that this worker holds, or why it holds none.
pub(super) fn held(tx: &Tx<'_>, holder: &Holder) -> Answer<Live> {
    if let Err(error) = check_text("worker", &holder.worker) {
        return Ok(Err(error.into()));
    }
    match live(tx, holder.id.get())? {
        Some(live) if is_held_by(&live, holder) => Ok(Ok(live)),
        Some(live) if live.leased => Ok(Err(Error::fenced())),
        None if last_log(tx, holder.id.get())?.is_none() => Ok(Err(Error::no_entry(holder.id))),
        free => {
            let is_last = |row: AuditRow| free.is_none_or(|live| live.token == row.token);
            let reported = last_report(tx, holder)?.is_some_and(is_last);
            Ok(Err(if reported { already_reported() } else { Error::fenced() }))
        }
    }
}

pub(super) fn is_held_by(live: &Live, holder: &Holder) -> bool {
    live.leased
        && live.worker.as_deref() == Some(holder.worker.as_str())
        && holder.lease.is_none_or(|lease| lease == live.token)
}
