//! Keys of facts: a repeated fact is answered with the first one. Rows of the table `deduplication` of kinds of their own,
//! under hashes of the keys. Works inside the transaction that ingests.

use tidegate_core::Tsid;

use crate::error::Result;
use crate::sqlite::engine::tx::{Tx, later, moment};
use crate::values::fact_keys::{self, KnownKey};
use crate::values::{FactKeyKind, Ingest, IngestOutcome, Ingested};

/// The answer to an item whose key is known: the first fact, or an error if that is another one. `None` for a new item.
pub(super) fn repeated(tx: &Tx<'_>, item: &Ingest) -> Result<Option<Result<Ingested>>> {
    let mut known: Vec<(FactKeyKind, KnownKey)> = Vec::new();
    for key in &item.keys {
        let found = tx.row(&tx.sql().requests.known_fact, (item.client(), key.kind.code(), key.hash(), tx.now))?;
        known.extend(found.map(|row| (key.kind, KnownKey { event_id: row.event_id, fingerprint: row.fingerprint })));
    }
    let of = |kind| known.iter().find(|(of, _)| *of == kind).map(|(_, known)| *known);
    match fact_keys::repeated(&item.keys, |key| of(key.kind)) {
        Ok(Some(event_id)) => first(tx, event_id).map(|first| Some(Ok(first))),
        Ok(None) => Ok(None),
        Err(refused) => Ok(Some(Err(refused))),
    }
}

/// The first fact as the answer to a repeat. Its id tells about when it was stored, even once it is gone.
fn first(tx: &Tx<'_>, event_id: i64) -> Result<Ingested> {
    let made = Tsid::from_i64(event_id);
    let created_at = tx.row(&tx.sql().requests.published_at, [event_id])?.map_or(made.unix_ms() * 1000, |at| at.0);
    let (targets, outcome) = (Vec::new(), IngestOutcome::Duplicate);
    Ok(Ingested { event_id: made, created_at: moment(created_at)?, targets, outcome })
}

/// Takes the keys of a new fact.
pub(super) fn take(tx: &Tx<'_>, item: &Ingest, event_id: Tsid) -> Result<()> {
    for key in &item.keys {
        let expires = later(tx.now, key.window)?;
        let row = (item.client(), key.kind.code(), key.hash(), event_id.to_i64(), expires, key.fingerprint);
        tx.execute(&tx.sql().requests.take_fact, row)?;
    }
    Ok(())
}
