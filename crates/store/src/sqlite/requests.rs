//! Idempotency keys: a repeated request is answered with its first result. Works inside a publish's transaction.

use tidegate_core::{Idempotency, Tsid};

use crate::error::Result;
use crate::sqlite::engine::tx::{Tx, entry_id, later, moment};
use crate::values::entries::other_request;
use crate::values::{PublishOutcome, Published};

/// The answer to a repeated request of a client: its first result, or an error if the request differs. `None` for a
/// first one.
pub(super) fn repeated(tx: &Tx<'_>, client: i64, request: &Idempotency) -> Result<Option<Result<Published>>> {
    let sql = &tx.sql().requests;
    let known = tx.row(&sql.known, (client, &request.key))?;
    let Some(known) = known.filter(|known| known.expires_at > tx.now) else { return Ok(None) };
    if known.fingerprint != Some(request.fingerprint) {
        return Ok(Some(Err(other_request(&request.key))));
    }
    let created_at = tx.row(&sql.published_at, [known.event_id])?.map_or(tx.now, |at| at.0);
    Ok(Some(Ok(Published {
        id: entry_id(known.entry_id)?,
        event_id: Tsid::from_i64(known.event_id),
        outcome: PublishOutcome::Duplicate,
        created_at: moment(created_at)?,
        max_attempts: 0, // known to the caller
    })))
}

/// Takes the idempotency key of a request for a new entry.
pub(super) fn take(tx: &Tx<'_>, client: i64, request: &Idempotency, id: i64, event_id: Tsid) -> Result<()> {
    let expires = later(tx.now, request.window)?;
    let key = (client, &request.key, id, event_id.to_i64(), expires, request.fingerprint);
    tx.execute(&tx.sql().requests.take, key).map(drop)
}
