//! The audit on PostgreSQL: rows are only ever appended, in the transaction of what they tell.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use tidegate_core::{Action, EntryId, LeaseToken, Timestamp, Tsid};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::connection::Tx;
use super::errors::Fault;
use super::items::clean;
use super::row::count;
use super::{Inner, tags};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Claimed;
use crate::turns::Kind;
use crate::work::{AuditRow, ByHand};

impl Inner {
    /// The audit of a claim: who was taken over from, who picked what.
    pub(super) async fn audit_claim(
        &self,
        tx: &Tx,
        audited: &[(i64, i64)],
        claimed: &[(i16, Claimed)],
        worker: Option<(&str, Duration)>,
    ) -> Result<(), Fault> {
        if !audited.is_empty() {
            let (ids, tokens): (Vec<i64>, Vec<i64>) = audited.iter().copied().unzip();
            tx.execute(&self.sql.work.audit_abandoned, &[&self.now(), &ids, &tokens]).await?;
        }
        let Some((worker, lease)) = worker.filter(|_| !claimed.is_empty()) else { return Ok(()) };
        let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        let ids: Vec<i64> = claimed.iter().map(|(_, entry)| entry.id.get()).collect();
        let generations: Vec<i32> = claimed.iter().map(|(_, entry)| entry.generation as i32).collect();
        let attempts: Vec<i32> = claimed.iter().map(|(_, entry)| entry.attempts as i32).collect();
        let tokens: Vec<i64> = claimed.iter().map(|(_, entry)| entry.token.0).collect();
        tx.execute(
            &self.sql.work.audit_picked,
            &[&self.now(), &worker, &ids, &generations, &attempts, &tokens, &lease],
        )
        .await?;
        Ok(())
    }

    /// Audited leases were given back. Rows are what the requeue statement answers.
    pub(super) async fn audit_released(&self, tx: &Tx, rows: &[Row]) -> Result<(), Fault> {
        let audited: Vec<&Row> = rows.iter().filter(|row| tags::is_audited(row.get(3))).collect();
        if audited.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = audited.iter().map(|row| row.get(0)).collect();
        let tokens: Vec<i64> = audited.iter().map(|row| row.get(1)).collect();
        let errors: Vec<Option<&str>> = audited.iter().map(|row| row.get(4)).collect();
        tx.execute(&self.sql.work.audit_released, &[&self.now(), &ids, &tokens, &errors]).await?;
        Ok(())
    }

    pub(super) async fn add_audit(&self, tx: &Tx, rows: &[AuditRow]) -> Result<HashMap<i64, AuditRow>, Fault> {
        if rows.is_empty() {
            return Ok(HashMap::new());
        }
        let number = |count: Option<u32>| count.map(|count| i32::try_from(count).unwrap_or(i32::MAX));
        let ids: Vec<i64> = rows.iter().map(|row| row.entry.get()).collect();
        let actions: Vec<i16> = rows.iter().map(|row| row.action.code()).collect();
        // One column for both: an action is a worker's or done by hand.
        let workers: Vec<Option<&str>> =
            rows.iter().map(|row| row.worker.as_deref().or(row.actor.as_deref())).collect();
        let generations: Vec<i32> = rows.iter().map(|row| row.generation as i32).collect();
        let attempts: Vec<i32> = rows.iter().map(|row| row.attempt as i32).collect();
        let tokens: Vec<i64> = rows.iter().map(|row| row.token.0).collect();
        let codes: Vec<Option<i32>> = rows.iter().map(|row| row.status_code).collect();
        let times: Vec<Option<i64>> = rows.iter().map(|row| row.execution_time_ms).collect();
        let messages: Vec<_> = rows.iter().map(|row| clean(row.message.as_deref())).collect();
        let retries: Vec<Option<Timestamp>> = rows.iter().map(|row| row.next_retry_at).collect();
        let counts: Vec<Option<i32>> = rows.iter().map(|row| number(row.retry_count)).collect();
        let limits: Vec<Option<i32>> = rows.iter().map(|row| number(row.max_retries)).collect();
        let written = tx
            .query(
                &self.sql.work.add_audit,
                &[
                    &self.now(),
                    &ids,
                    &actions,
                    &workers,
                    &generations,
                    &attempts,
                    &tokens,
                    &codes,
                    &times,
                    &messages,
                    &retries,
                    &counts,
                    &limits,
                ],
            )
            .await?;
        let mut written = read_rows(&written)?;
        for row in rows {
            // What is written names the entry only.
            if let Some(written) = written.get_mut(&row.entry.get()) {
                written.event_id = row.event_id;
            }
        }
        Ok(written)
    }

    /// Entries were put back or started over by hand; answers the rows by entry.
    pub(super) async fn audit_started_over(
        &self,
        tx: &Tx,
        items: &[&ByHand],
        action: Action,
    ) -> Result<HashMap<i64, i64>, Fault> {
        let (ids, actors, reasons) = columns(items);
        let params: [&(dyn ToSql + Sync); 5] = [&self.now(), &ids, &actors, &reasons, &action.code()];
        let rows = tx.query(&self.sql.work.audit_started_over, &params).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    /// Entries were ended by hand.
    pub(super) async fn audit_cancelled(&self, tx: &Tx, items: &[&ByHand]) -> Result<(), Fault> {
        if items.is_empty() {
            return Ok(());
        }
        let (ids, actors, reasons) = columns(items);
        tx.execute(&self.sql.work.audit_cancelled, &[&self.now(), &ids, &actors, &reasons]).await?;
        Ok(())
    }

    pub(super) async fn event_of(&self, id: EntryId) -> Result<Option<Tsid>> {
        let rows = self.database.read_patiently(&self.sql.work.event_of, &[&id.get()]).await?;
        Ok(rows.first().and_then(|row| row.get::<_, Option<i64>>(0)).map(Tsid::from_i64))
    }

    pub(super) async fn audit(&self, id: EntryId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.in_turn(Kind::AUDIT, |tx| async move {
            let rows = tx.query(&self.sql.work.audit, &[&id.get(), &after, &limit]).await?;
            tx.end_reading().await?;
            rows.iter().map(read_audit).collect::<Result<Vec<_>>>().map_err(Fault::from)
        })
        .await
    }
}

type Texts<'a> = Vec<Option<Cow<'a, str>>>;

/// Ids, who and why.
fn columns<'a>(items: &[&'a ByHand]) -> (Vec<i64>, Texts<'a>, Texts<'a>) {
    let ids = items.iter().map(|item| item.id.get()).collect();
    let actors = items.iter().map(|item| clean(item.actor.as_deref())).collect();
    (ids, actors, items.iter().map(|item| clean(item.reason.as_deref())).collect())
}

pub(super) fn read_rows(rows: &[Row]) -> Result<HashMap<i64, AuditRow>, Fault> {
    let mut read = HashMap::with_capacity(rows.len());
    for row in rows {
        read.insert(row.get(1), read_audit(row)?);
    }
    Ok(read)
}

/// Reads the columns of an audit row.
fn read_audit(row: &Row) -> Result<AuditRow> {
    let action = Action::from_code(row.get(2))
        .ok_or_else(|| Error::new(ErrorKind::Corrupt, "an audit row has an unknown action"))?;
    let number = |column: usize| row.get::<_, Option<i32>>(column).map(count);
    Ok(AuditRow {
        id: row.get(0),
        entry: EntryId::new(row.get(1))?,
        event_id: row.try_get::<_, Option<i64>>(14).ok().flatten().map(Tsid::from_i64),
        action,
        worker: row.get::<_, Option<String>>(3).filter(|_| !action.is_by_hand()),
        actor: row.get::<_, Option<String>>(3).filter(|_| action.is_by_hand()),
        generation: count(row.get(4)),
        attempt: count(row.get(5)),
        token: LeaseToken(row.get(6)),
        status_code: row.get(7),
        // The row of a claim holds the lease there.
        execution_time_ms: row.get::<_, Option<i64>>(8).filter(|_| action != Action::Picked),
        message: row.get(9),
        next_retry_at: row.get(10),
        retry_count: number(11),
        max_retries: number(12),
        created_at: row.get(13),
    })
}
