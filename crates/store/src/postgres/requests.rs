//! Idempotency keys: a repeated request is answered with its first result.

use std::collections::HashMap;

use tidegate_core::{EntryId, Timestamp, Tsid};
use tokio_postgres::Row;

use super::Inner;
use super::connection::Tx;
use super::errors::Fault;
use super::items::{Item, client, micros};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{PublishOutcome, Published, other_request};

impl Inner {
    /// Answers repeats; what remains is new.
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
        let rows = tx.query(&self.sql.work.known_requests, &[&self.now(), &clients, &keys]).await?;
        let known: HashMap<usize, &Row> = rows.iter().map(|row| (row.get::<_, i32>(0) as usize - 1, row)).collect();
        let mut fresh = Vec::with_capacity(items.len());
        for (position, item) in items.into_iter().enumerate() {
            match (known.get(&position), &item.event.idempotency) {
                (Some(row), Some(request)) => {
                    let same = row.get::<_, Option<i64>>(4) == Some(request.fingerprint);
                    let answer = if same { Ok(read_first(row)?) } else { Err(other_request(&request.key)) };
                    answers.push((item.index, answer));
                }
                _ => fresh.push(item),
            }
        }
        Ok(fresh)
    }

    /// Takes the keys of new requests.
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
        let taken = tx
            .query(
                &self.sql.work.take_requests,
                &[&self.now(), &clients, &keys, &entries, &events, &windows, &fingerprints],
            )
            .await?;
        if taken.len() < rows.len() {
            // Somebody else took a key since we looked: look again.
            return Err(Fault::Again(Error::new(ErrorKind::Busy, "an idempotency key was taken meanwhile")));
        }
        Ok(())
    }
}

fn read_first(row: &Row) -> Result<Published, Fault> {
    Ok(Published {
        id: EntryId::new(row.get(1)).map_err(Error::from)?,
        event_id: Tsid::from_i64(row.get(2)),
        outcome: PublishOutcome::Duplicate,
        created_at: super::row::optional_moment(row, 3).unwrap_or(Timestamp::UNIX_EPOCH),
    })
}
