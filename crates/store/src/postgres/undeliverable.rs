//! Entries that cannot be delivered: their attempts are exhausted, or their fact is missing. They end as dead letters, so
//! that they block no other entry. Pure: the ends are written by `claim` and `groups`.

use tidegate_core::{End, EntryId, LeaseToken};

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::row::count;
use crate::postgres::statements::claim::LeasedRow;
use crate::values::Finalize;
use crate::values::entries::{exhausted_errors, missing_fact_errors};

/// How an entry ends that cannot be delivered.
pub(super) fn exhausted_as(id: i64, code: i16) -> Result<End> {
    let unknown = || Error::new(ErrorKind::Corrupt, format!("entry {id} has an unknown end"));
    End::from_code(code).ok_or_else(unknown)
}

/// The end of an entry that was abandoned with all attempts used.
pub(super) fn end_exhausted(row: &LeasedRow) -> Result<Finalize> {
    Ok(Finalize {
        id: EntryId::new(row.id)?,
        token: Some(LeaseToken(row.token)),
        end: exhausted_as(row.id, row.exhausted_as)?,
        errors: Some(exhausted_errors(count(row.max_attempts), row.last_error.as_deref())),
        results: None,
    })
}

/// The end of a claimed entry whose fact is missing.
pub(super) fn end_missing(row: &LeasedRow) -> Result<Finalize> {
    let item = end_without_fact(row.id, row.exhausted_as, row.event_id, row.last_error.as_deref())?;
    Ok(Finalize { token: Some(LeaseToken(row.token)), ..item })
}

/// The end of an entry whose fact is missing, whoever holds it.
pub(super) fn end_without_fact(
    id: i64,
    exhausted_as: i16,
    event_id: i64,
    last_error: Option<&str>,
) -> Result<Finalize> {
    tracing::error!(entry = id, event_id, "the event of an entry is missing: the entry is a dead letter now");
    Ok(Finalize {
        id: EntryId::new(id)?,
        token: None,
        end: self::exhausted_as(id, exhausted_as)?,
        errors: Some(missing_fact_errors(event_id, last_error)),
        results: None,
    })
}
