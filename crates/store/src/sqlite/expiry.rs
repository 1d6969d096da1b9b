//! Entries past their expiry, which upkeep and claims end.

use tidegate_core::{End, LeaseToken};

use crate::error::Result;
use crate::sqlite::audit::audit_takeover;
use crate::sqlite::end::{Ending, end_live};
use crate::sqlite::engine::row::Shown;
use crate::sqlite::engine::tx::{Tx, moment};
use crate::sqlite::flags::{is_audited, is_kept};
use crate::sqlite::found::{Live, live};
use crate::sqlite::handlers;
use crate::sqlite::statements::end::ExpiredRow;
use crate::values::entries::expired_errors;

/// The most entries that one round of upkeep ends.
const AT_ONCE: i64 = 1000;

/// Ends entries past their expiry that nobody works on. Returns how many.
pub(super) fn expire(tx: &mut Tx<'_>) -> Result<u64> {
    let mut ended = 0;
    for ExpiredRow { id, last_error } in tx.rows(&tx.sql().end.expired, (tx.now, AT_ONCE))? {
        let Some(live) = live(tx, id)? else { continue };
        if live.leased && is_audited(live.flags) {
            audit_takeover(tx, id, LeaseToken(live.token.0 + 1))?;
        }
        end_expired(tx, id, &live, last_error.map(|Shown(error)| error).as_deref(), false)?;
        ended += 1;
    }
    Ok(ended)
}

/// Ends an entry whose expiry has passed. A kept one was told as exhausted before, and ends as that: the expiry only frees
/// its place.
pub(super) fn end_expired(
    tx: &mut Tx<'_>,
    id: i64,
    live: &Live,
    last_error: Option<&str>,
    raise_token: bool,
) -> Result<()> {
    let results = handlers::history(tx, id)?.results();
    let results = results.as_deref();
    if is_kept(live.flags) {
        return end_live(tx, id, live, &Ending { results, ..Ending::new(live.exhausted_as()?) });
    }
    let errors = expired_errors(moment(live.expires_at.unwrap_or(tx.now))?, last_error);
    tx.count_ended(live.queue_id, End::Cancelled)?;
    end_live(tx, id, live, &Ending { errors: Some(&errors), results, raise_token, ..Ending::new(End::Cancelled) })
}
