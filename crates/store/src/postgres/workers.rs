//! The list of workers on PostgreSQL: who consumes from queues, and who holds entries.

use std::collections::BTreeMap;

use tidegate_core::{EntryId, QueueName, Tsid};
use tokio_postgres::types::ToSql;

use crate::error::{Error, Result};
use crate::list_gate::Kind;
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::values::workers::{Workers, judge_workers, seen};
use crate::values::{WorkersPage, WorkersQuery};

/// Entries listed per worker, at most; the count beside them covers all.
const SHOWN: usize = 100;

impl Inner {
    pub(super) async fn workers(&self, query: WorkersQuery) -> Result<WorkersPage> {
        let now = self.database_time().await.map_err(Fault::into_error)?;
        let known = self.in_turn(Kind::workers(query.client), |tx| async move {
            self.known_workers(&tx, query.client).await.map(|known| (known, query))
        });
        let (known, query) = known.await?;
        Ok(judge_workers(known, now, &query))
    }

    async fn known_workers(&self, tx: &Tx, client: Option<Tsid>) -> Result<Workers, Fault> {
        let sql = &self.sql.attempts;
        let client = client.map(Tsid::to_i64);
        let mut known = BTreeMap::new();
        for row in tx.rows(&sql.consumers, &[&client]).await? {
            let queue = queue_of(row.client_id, row.name)?;
            seen(&mut known, row.worker, queue, row.seen_at.into());
        }
        let held = if client.is_some() { &sql.held_of_client } else { &sql.held };
        let params: &[&(dyn ToSql + Sync)] = if client.is_some() { &[&client] } else { &[] };
        for row in tx.rows(held, params).await? {
            let queue = queue_of(row.client_id, row.name)?;
            let view = seen(&mut known, row.worker.unwrap_or_default(), queue, row.seen_at.into());
            view.held += 1;
            if view.holds.len() < SHOWN {
                view.holds.push(EntryId::new(row.id).map_err(Error::from)?);
            }
        }
        tx.end_reading().await?;
        Ok(known)
    }
}

fn queue_of(client: Option<i64>, name: String) -> Result<QueueName> {
    Ok(QueueName::of(client.map(Tsid::from_i64), name)?)
}
