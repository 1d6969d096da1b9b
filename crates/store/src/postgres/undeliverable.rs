//! Entries that a claim finds and does not deliver: their attempts are exhausted, their expiry has passed, or their fact is
//! missing. They end, so that they block no other entry, or are kept where they are. Pure: `claim`, `expiry` and `groups`
//! write what is decided here.

use tidegate_core::{End, EntryId, LeaseToken, Timestamp};

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::row::count;
use crate::postgres::flags::{is_kept, keeps_place};
use crate::postgres::statements::claim::LeasedRow;
use crate::postgres::statements::end::ExpiredRow;
use crate::values::Finalize;
use crate::values::entries::{exhausted_errors, expired_errors, missing_fact_errors};

/// What becomes of a claimed entry that is not delivered.
#[derive(Debug)]
pub(super) enum Undelivered {
    /// It ends.
    Ends(Finalize),
    /// It ends, and this claim was no attempt.
    EndsUncounted(Finalize),
    /// It is exhausted and keeps its place.
    Kept(Finalize),
}

impl Undelivered {
    /// How it ends, or is told as exhausted.
    pub(super) fn end(&self) -> End {
        let (Self::Ends(item) | Self::EndsUncounted(item) | Self::Kept(item)) = self;
        item.end
    }
}

/// Decides about a claimed entry; `None` if it can be delivered, should its fact be there.
pub(super) fn undelivered(row: &LeasedRow) -> Result<Option<Undelivered>> {
    let claimed_at = Timestamp::from(row.processing_started_at);
    let expired_at = row.expires_at.map(Timestamp::from).filter(|expires| *expires <= claimed_at);
    if let Some(expired_at) = expired_at {
        let last_error = row.last_error.as_deref();
        let end = end_expired(row.id, (row.flags, row.exhausted_as), expired_at, last_error)?;
        return Ok(Some(Undelivered::EndsUncounted(end)));
    }
    if row.attempts <= row.max_attempts {
        return Ok(None);
    }
    let errors = exhausted_errors(count(row.max_attempts), row.last_error.as_deref());
    let end = Finalize { errors: Some(errors), ..ends_as(row.id, exhausted_as(row.id, row.exhausted_as)?)? };
    Ok(Some(match keeps_place(row.flags) {
        true => Undelivered::Kept(Finalize { token: Some(LeaseToken(row.token)), ..end }),
        false => Undelivered::Ends(end),
    }))
}

/// How an entry ends that cannot be delivered.
pub(super) fn exhausted_as(id: i64, code: i16) -> Result<End> {
    let unknown = || Error::new(ErrorKind::Corrupt, format!("entry {id} has an unknown end"));
    End::from_code(code).ok_or_else(unknown)
}

/// The end of an entry whose fact is missing, whoever holds it.
pub(super) fn end_without_fact(
    id: i64,
    exhausted_as: i16,
    event_id: i64,
    last_error: Option<&str>,
) -> Result<Finalize> {
    tracing::error!(entry = id, event_id, "the event of an entry is missing: the entry is a dead letter now");
    let errors = Some(missing_fact_errors(event_id, last_error));
    Ok(Finalize { errors, ..ends_as(id, self::exhausted_as(id, exhausted_as)?)? })
}

impl TryFrom<ExpiredRow> for Finalize {
    type Error = Error;

    fn try_from(row: ExpiredRow) -> Result<Self> {
        let expired_at = row.expires_at.map(Timestamp::from).unwrap_or_default();
        end_expired(row.id, (row.flags, row.exhausted_as), expired_at, row.last_error.as_deref())
    }
}

/// The end of an entry whose expiry has passed: it is cancelled, but a kept one is told as what it was.
fn end_expired(
    id: i64,
    (flags, exhausted_as): (Option<i16>, i16),
    expired_at: Timestamp,
    last_error: Option<&str>,
) -> Result<Finalize> {
    if is_kept(flags) {
        return ends_as(id, self::exhausted_as(id, exhausted_as)?);
    }
    Ok(Finalize { errors: Some(expired_errors(expired_at, last_error)), ..ends_as(id, End::Cancelled)? })
}

/// An end whoever holds the entry, with the error of its last attempt.
fn ends_as(id: i64, end: End) -> Result<Finalize> {
    Ok(Finalize { id: EntryId::new(id)?, token: None, end, errors: None, results: None, attempt: None })
}
