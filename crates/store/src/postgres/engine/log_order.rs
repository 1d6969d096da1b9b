//! Keeps the log in order after a dump was restored into another cluster.
//!
//! Readers go by the id of the transaction that wrote a row. A new cluster counts transaction ids from the beginning,
//! so new rows would sort before the restored ones, where no reader reads any more. So from the restore on, an offset
//! is added that moves the ids of new rows past the highest restored one.

use tokio_postgres::{Row, Transaction};

use crate::error::{Error, ErrorKind};
use crate::postgres::engine::errors::Fault;
use crate::postgres::statements::Sql;
use crate::sql::{FromRow, Statement};
use crate::values::Family;

/// Moves the transaction ids of new rows past the stored ones, unless the cluster's own are. The caller holds the
/// migration's lock.
pub(in crate::postgres) async fn continue_order(
    tx: &Transaction<'_>,
    ns: &str,
    may_migrate: bool,
) -> Result<(), Fault> {
    let sql = &Sql::new(ns, Family::Entries).projections;
    let Some(highest) = read(tx, &sql.highest_xid).await?.0 else { return Ok(()) };
    let next = read(tx, &sql.next_xid).await?.0;
    if highest < next {
        return Ok(());
    }
    if !may_migrate {
        return Err(Error::new(
            ErrorKind::Schema,
            format!(
                "the schema {ns} was restored from another cluster: run `tidegate migrate` or open it once with \
                 migrate, so that new log rows are ordered after the restored ones"
            ),
        )
        .into());
    }
    // Transaction ids are above 0, so every new row comes after the highest restored one. The new default applies to
    // all partitions, and every insert either waits for it or comes before it.
    tx.batch_execute(&format!(
        "ALTER TABLE {ns}.event_log ALTER COLUMN xid
             SET DEFAULT (pg_current_xact_id()::text::bigint + {highest})::text::xid8;
         UPDATE {ns}.store SET log_xid_offset = {highest}"
    ))
    .await?;
    tracing::info!(offset = highest, "restored from another cluster: new log rows are ordered after the old ones");
    Ok(())
}

/// Runs a statement that returns one row, and reads it.
async fn read<R: FromRow<Row>>(tx: &Transaction<'_>, statement: &Statement<R>) -> Result<R, Fault> {
    Ok(R::read(&tx.query_one(&**statement, &[]).await?, 0)?)
}
