//! The audit on PostgreSQL. Rows are only appended, in the transaction of the action that they record.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use tidegate_core::{Action, EntryId, Timestamp, Tsid};
use tokio_postgres::types::ToSql;

use crate::error::{Error, Result};
use crate::list_gate::Kind;
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::postgres::items::clean;
use crate::sql::Only;
use crate::values::{AuditRow, Claimed, ManualAction, Requeue};

impl Inner {
    /// Records a claim: which holders abandoned an entry (`audited`: entries claimed with an audit before, with their
    /// new tokens), and what `worker` claimed, with the lease it asked for. `None` where the claim is not audited, and for
    /// upkeep, which ends what was abandoned and has expired.
    pub(super) async fn audit_claim(
        &self,
        tx: &Tx,
        audited: &[(i64, i64)],
        claimed: &[(i16, Claimed)],
        worker: Option<(&str, Duration)>,
    ) -> Result<(), Fault> {
        if !audited.is_empty() {
            let (ids, tokens): (Vec<i64>, Vec<i64>) = audited.iter().copied().unzip();
            tx.execute(&self.sql.audit.add_abandoned, &[&self.now(), &ids, &tokens]).await?;
        }
        let Some((worker, lease)) = worker.filter(|_| !claimed.is_empty()) else { return Ok(()) };
        let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
        let ids: Vec<i64> = claimed.iter().map(|(_, entry)| entry.id.get()).collect();
        let generations: Vec<i32> = claimed.iter().map(|(_, entry)| entry.generation as i32).collect();
        let attempts: Vec<i32> = claimed.iter().map(|(_, entry)| entry.attempts as i32).collect();
        let tokens: Vec<i64> = claimed.iter().map(|(_, entry)| entry.token.0).collect();
        let params: [&(dyn ToSql + Sync); 7] = [&self.now(), &worker, &ids, &generations, &attempts, &tokens, &lease];
        tx.execute(&self.sql.audit.add_picked, &params).await?;
        Ok(())
    }

    /// Records that audited leases were given back.
    pub(super) async fn audit_released(&self, tx: &Tx, items: &[&Requeue]) -> Result<(), Fault> {
        if items.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = items.iter().map(|item| item.id.get()).collect();
        let tokens: Vec<i64> = items.iter().map(|item| item.token.0).collect();
        let errors: Vec<_> = items.iter().map(|item| clean(item.error.as_deref())).collect();
        tx.execute(&self.sql.audit.add_released, &[&self.now(), &ids, &tokens, &errors]).await?;
        Ok(())
    }

    /// Appends rows; returns them by entry, with their ids and moments.
    pub(super) async fn add_audit(&self, tx: &Tx, rows: &[AuditRow]) -> Result<HashMap<i64, AuditRow>, Fault> {
        if rows.is_empty() {
            return Ok(HashMap::new());
        }
        let number = |count: Option<u32>| count.map(|count| i32::try_from(count).unwrap_or(i32::MAX));
        let ids: Vec<i64> = rows.iter().map(|row| row.entry.get()).collect();
        let actions: Vec<i16> = rows.iter().map(|row| row.action.code()).collect();
        // One column holds both: an action is either a worker's or an operator's.
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
        let params: [&(dyn ToSql + Sync); 13] = [
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
        ];
        let mut written = by_entry(tx.rows(&self.sql.audit.add, &params).await?)?;
        for row in rows {
            // An audit row stores its entry, not the event.
            if let Some(written) = written.get_mut(&row.entry.get()) {
                written.event_id = row.event_id;
            }
        }
        Ok(written)
    }

    /// Records that an operator reset or redrove entries; returns the ids of the audit rows by entry.
    pub(super) async fn audit_started_over(
        &self,
        tx: &Tx,
        items: &[&ManualAction],
        action: Action,
    ) -> Result<HashMap<i64, i64>, Fault> {
        let (ids, actors, reasons) = columns(items);
        let params: [&(dyn ToSql + Sync); 5] = [&self.now(), &ids, &actors, &reasons, &action.code()];
        let rows = tx.rows(&self.sql.audit.add_started_over, &params).await?;
        Ok(rows.into_iter().map(|row| (row.entry_id, row.id)).collect())
    }

    /// Records that an operator cancelled entries, or ignored jobs, which have ended.
    pub(super) async fn audit_ended(&self, tx: &Tx, items: &[&ManualAction], action: Action) -> Result<(), Fault> {
        if items.is_empty() {
            return Ok(());
        }
        let (ids, actors, reasons) = columns(items);
        tx.execute(&self.sql.audit.add_ended, &[&self.now(), &ids, &actors, &reasons, &action.code()]).await?;
        Ok(())
    }

    pub(super) async fn event_of(&self, id: EntryId) -> Result<Option<Tsid>> {
        let id = id.get();
        let found = self.read(|tx| async move { tx.row(&self.sql.audit.event_of, &[&id]).await }).await?;
        Ok(found.and_then(|Only(event)| event).map(Tsid::from_i64))
    }

    pub(super) async fn audit(&self, id: EntryId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.in_turn(Kind::AUDIT, |tx| async move {
            let rows = tx.rows(&self.sql.audit.page, &[&id.get(), &after, &limit]).await?;
            tx.end_reading().await?;
            Ok(rows.into_iter().map(AuditRow::try_from).collect::<Result<Vec<_>>>()?)
        })
        .await
    }
}

type Texts<'a> = Vec<Option<Cow<'a, str>>>;

/// The ids, actors and reasons of manual actions, as the statements' arrays.
fn columns<'a>(items: &[&'a ManualAction]) -> (Vec<i64>, Texts<'a>, Texts<'a>) {
    let ids = items.iter().map(|item| item.id.get()).collect();
    let actors = items.iter().map(|item| clean(item.actor.as_deref())).collect();
    (ids, actors, items.iter().map(|item| clean(item.reason.as_deref())).collect())
}

/// Audit rows by entry.
pub(super) fn by_entry<R>(rows: Vec<R>) -> Result<HashMap<i64, AuditRow>>
where
    AuditRow: TryFrom<R, Error = Error>,
{
    rows.into_iter().map(|row| AuditRow::try_from(row).map(|row| (row.entry.get(), row))).collect()
}
