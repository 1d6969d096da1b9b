//! Keeps the log's order going when a dump was restored into another cluster.
//!
//! Readers go by the number of the transaction that wrote a row. A new cluster counts transactions from the beginning, so
//! rows to come would stand before those restored, where no reader looks any more. From then on their number is moved
//! past the highest one restored.

use tokio_postgres::Transaction;

use super::errors::Fault;
use crate::error::{Error, ErrorKind};

/// Moves the numbers to come past those stored, if the cluster's are not. The caller holds the migration's lock.
pub(super) async fn continue_order(tx: &Transaction<'_>, ns: &str, may_migrate: bool) -> Result<(), Fault> {
    // Index event_log_commits, from its end; the others are small. Retention may have emptied the log, while readers and
    // counts still go by what it held: rows to come must stand after those positions too, and not below where counting
    // goes on. A visible row that was written here is below the snapshot's xmax.
    let highest = format!(
        "SELECT greatest(
             (SELECT g.xid::text::bigint FROM {ns}.event_log g ORDER BY g.xid DESC, g.id DESC LIMIT 1),
             (SELECT p.xid::text::bigint FROM {ns}.projections p ORDER BY p.xid DESC LIMIT 1),
             (SELECT c.xid::text::bigint - 1 FROM {ns}.log_counts c))"
    );
    let next = format!("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint + log_xid_offset FROM {ns}.meta");
    let Some(highest) = tx.query_one(&highest, &[]).await?.get::<_, Option<i64>>(0) else { return Ok(()) };
    let next: i64 = tx.query_one(&next, &[]).await?.get(0);
    if highest < next {
        return Ok(());
    }
    if !may_migrate {
        return Err(Error::new(
            ErrorKind::Schema,
            format!(
                "the schema {ns} was restored from another cluster: open it once with migrate, so that its log goes on"
            ),
        )
        .into());
    }
    // Every transaction has a number above 0, so each of its rows stands after the highest restored. The change reaches
    // all partitions, and every insert waits for it or comes before it.
    tx.batch_execute(&format!(
        "ALTER TABLE {ns}.event_log ALTER COLUMN xid
             SET DEFAULT (pg_current_xact_id()::text::bigint + {highest})::text::xid8;
         UPDATE {ns}.meta SET log_xid_offset = {highest}"
    ))
    .await?;
    tracing::info!(offset = highest, "the log was restored from another cluster: its order goes on");
    Ok(())
}
