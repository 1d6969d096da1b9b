//! Keys of facts: a repeated fact is answered with the first one. Rows of the table `deduplication` of kinds of their own,
//! under hashes of the keys. Works inside the transaction that ingests.

use std::collections::HashMap;

use tidegate_core::{Timestamp, Tsid};
use tokio_postgres::types::ToSql;

use crate::error::{Error, ErrorKind, Result};
use crate::failpoint::ingest_failpoint;
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::postgres::ingest::Numbered;
use crate::postgres::ingest_plan::Planned;
use crate::postgres::items::micros;
use crate::postgres::statements::deduplication::Drawn;
use crate::values::fact_keys::{self, KnownKey};
use crate::values::{FactKey, FactKeyKind, Ingest, IngestOutcome, Ingested};

/// A key as it is stored: client, kind and hash.
pub(super) type StoredKey = (i64, i16, String);

/// The keys of an item as they are stored.
pub(super) fn stored_keys(item: &Ingest) -> Vec<StoredKey> {
    item.keys.iter().map(|key| (item.client(), key.kind.code(), key.hash())).collect()
}

/// The keys that are known, from before or by the earlier items of a batch, and when their facts were stored.
#[derive(Debug, Default)]
pub(super) struct Known {
    keys: HashMap<StoredKey, KnownKey>,
    stored_at: HashMap<i64, Timestamp>,
}

impl Known {
    /// The answer to a repeat: the first fact, or an error if that is another one. `None` for a new item.
    pub(super) fn repeated(&self, plan: &Planned<'_>) -> Result<Option<Ingested>> {
        let known: Vec<(FactKeyKind, KnownKey)> = (plan.item.keys.iter().zip(&plan.keys))
            .filter_map(|(key, stored)| Some((key.kind, *self.keys.get(stored)?)))
            .collect();
        let of = |key: &FactKey| known.iter().find(|(kind, _)| *kind == key.kind).map(|(_, known)| *known);
        let first = fact_keys::repeated(&plan.item.keys, of)?;
        first.map(|event_id| self.first(event_id)).transpose()
    }

    /// The first fact as the answer to a repeat. Its id tells about when it was stored, even once it is gone.
    fn first(&self, event_id: i64) -> Result<Ingested> {
        let id = Tsid::from_i64(event_id);
        let made = || Timestamp::from_millisecond(id.unix_ms()).unwrap_or(Timestamp::UNIX_EPOCH);
        let created_at = self.stored_at.get(&event_id).copied().unwrap_or_else(made);
        Ok(Ingested { event_id: id, created_at, targets: Vec::new(), outcome: IngestOutcome::Duplicate })
    }

    /// Adds the keys of an item that is to be written.
    pub(super) fn add(&mut self, plan: &Planned<'_>, fact: &Drawn) {
        for (key, stored) in plan.item.keys.iter().zip(&plan.keys) {
            let known = KnownKey { event_id: fact.event_id, fingerprint: Some(key.fingerprint) };
            self.keys.insert(stored.clone(), known);
            self.stored_at.insert(fact.event_id, fact.now);
        }
    }
}

impl Inner {
    /// Looks up the keys of items.
    pub(super) async fn known_facts(&self, tx: &Tx, plans: &[Planned<'_>]) -> Result<Known, Fault> {
        let keys: Vec<&StoredKey> = plans.iter().flat_map(|plan| &plan.keys).collect();
        if keys.is_empty() {
            return Ok(Known::default());
        }
        let clients: Vec<i64> = keys.iter().map(|key| key.0).collect();
        let kinds: Vec<i16> = keys.iter().map(|key| key.1).collect();
        let hashes: Vec<&str> = keys.iter().map(|key| key.2.as_str()).collect();
        let rows = tx.rows(&self.sql.requests.known_facts, &[&self.now(), &clients, &kinds, &hashes]).await?;
        let mut known = Known::default();
        for row in rows {
            let Some(key) = keys.get((row.item - 1) as usize) else { continue };
            known.keys.insert((*key).clone(), KnownKey { event_id: row.event_id, fingerprint: row.fingerprint });
            known.stored_at.extend(row.created_at.map(|at| (row.event_id, at.into())));
        }
        Ok(known)
    }

    /// Takes the keys of new facts. The transaction has to run again if another one took a key meanwhile.
    pub(super) async fn take_facts(&self, tx: &Tx, items: &[Numbered<'_>]) -> Result<(), Fault> {
        let mut rows: Vec<(&StoredKey, i64, i64, i64)> = Vec::new();
        for one in items {
            let Some(fact) = one.fact() else { continue };
            let keys = one.item.keys.iter().zip(one.keys);
            rows.extend(keys.map(|(key, stored)| (stored, fact.event_id, micros(key.window), key.fingerprint)));
        }
        if rows.is_empty() {
            return Ok(());
        }
        rows.sort_unstable();
        let clients: Vec<i64> = rows.iter().map(|row| row.0.0).collect();
        let kinds: Vec<i16> = rows.iter().map(|row| row.0.1).collect();
        let hashes: Vec<&str> = rows.iter().map(|row| row.0.2.as_str()).collect();
        let events: Vec<i64> = rows.iter().map(|row| row.1).collect();
        let windows: Vec<i64> = rows.iter().map(|row| row.2).collect();
        let fingerprints: Vec<i64> = rows.iter().map(|row| row.3).collect();
        let now = self.now();
        let params: [&(dyn ToSql + Sync); 7] = [&now, &clients, &kinds, &hashes, &events, &windows, &fingerprints];
        if tx.execute(&self.sql.requests.take_facts, &params).await? < rows.len() as u64 {
            let why = "another ingest took the key of an event; try again";
            return Err(Fault::Again(Error::new(ErrorKind::Busy, why)));
        }
        ingest_failpoint("keys");
        Ok(())
    }
}
