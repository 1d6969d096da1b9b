//! Idempotency keys: a repeated request is answered with its first result. Works inside a publish's transaction.

use std::collections::HashMap;

use tidegate_core::{EntryId, Timestamp, Tsid};
use tokio_postgres::types::ToSql;

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::postgres::items::{Item, client, micros};
use crate::postgres::statements::requests::KnownRow;
use crate::values::entries::other_request;
use crate::values::{PublishOutcome, Published};

impl Inner {
    /// Answers items whose idempotency key is known, with the first result or with an error if the request differs.
    /// Returns the others.
    pub(super) async fn answer_known_requests<'a>(
        &self,
        tx: &Tx,
        items: Vec<&'a Item>,
        answers: &mut Vec<(usize, Result<Published>)>,
    ) -> Result<Vec<&'a Item>, Fault> {
        if items.iter().all(|item| item.event.idempotency.is_none()) {
            return Ok(items);
        }
        let clients: Vec<i64> = items.iter().map(|item| client(item)).collect();
        let keys: Vec<Option<&str>> =
            items.iter().map(|item| item.event.idempotency.as_ref().map(|request| request.key.as_str())).collect();
        let rows = tx.rows(&self.sql.requests.known, &[&self.now(), &clients, &keys]).await?;
        let known: HashMap<usize, &KnownRow> = rows.iter().map(|row| (row.item as usize - 1, row)).collect();
        let mut fresh = Vec::with_capacity(items.len());
        for (position, item) in items.into_iter().enumerate() {
            match (known.get(&position), &item.event.idempotency) {
                (Some(row), Some(request)) => {
                    let same = row.fingerprint == Some(request.fingerprint);
                    let answer = if same { Ok(read_first(row)?) } else { Err(other_request(&request.key)) };
                    answers.push((item.index, answer));
                }
                _ => fresh.push(item),
            }
        }
        Ok(fresh)
    }

    /// Takes the idempotency keys of new items. The transaction has to run again if another one took a key meanwhile.
    pub(super) async fn take_requests(&self, tx: &Tx, items: &[&Item], published: &[Published]) -> Result<(), Fault> {
        let mut rows: Vec<(i64, &str, i64, i64, i64, i64)> = items
            .iter()
            .zip(published)
            .filter_map(|(item, made)| {
                let request = item.event.idempotency.as_ref()?;
                let (entry, event) = (made.id.get(), made.event_id.to_i64());
                Some((client(item), request.key.as_str(), entry, event, micros(request.window), request.fingerprint))
            })
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        rows.sort_unstable();
        let clients: Vec<i64> = rows.iter().map(|row| row.0).collect();
        let keys: Vec<&str> = rows.iter().map(|row| row.1).collect();
        let entries: Vec<i64> = rows.iter().map(|row| row.2).collect();
        let events: Vec<i64> = rows.iter().map(|row| row.3).collect();
        let windows: Vec<i64> = rows.iter().map(|row| row.4).collect();
        let fingerprints: Vec<i64> = rows.iter().map(|row| row.5).collect();
        let now = self.now();
        let params: [&(dyn ToSql + Sync); 7] = [&now, &clients, &keys, &entries, &events, &windows, &fingerprints];
        let taken = tx.rows(&self.sql.requests.take, &params).await?;
        if taken.len() < rows.len() {
            let why = "another request took the idempotency key; try again";
            return Err(Fault::Again(Error::new(ErrorKind::Busy, why)));
        }
        Ok(())
    }
}

fn read_first(row: &KnownRow) -> Result<Published, Fault> {
    Ok(Published {
        id: EntryId::new(row.entry_id).map_err(Error::from)?,
        event_id: Tsid::from_i64(row.event_id),
        outcome: PublishOutcome::Duplicate,
        created_at: row.created_at.map_or(Timestamp::UNIX_EPOCH, Into::into),
        max_attempts: 0, // see `Item::published`
    })
}
