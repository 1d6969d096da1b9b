//! The counts that totals and lists start from, on PostgreSQL: upkeep adds the log rows of transactions that are over.

use crate::error::Result;
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::postgres::statements::log_counts::UncountedRow;
use crate::sql::Only;

/// Most counting transactions in one round of upkeep.
const ROUNDS: usize = 10;

impl Inner {
    /// Adds log rows of transactions that are over to the counts, so that totals need not read them.
    pub(super) async fn count_log(&self) -> Result<()> {
        for _ in 0..ROUNDS {
            let Some(UncountedRow { uncounted, anew }) = self.uncounted().await.map_err(Fault::into_error)? else {
                break;
            };
            if !uncounted && !anew {
                break;
            }
            // Not repeated if the answer to the commit is lost: the next round continues from the stored counts.
            self.write(|tx| async move { self.count_some(&tx, anew).await }, |_, ()| async { Ok(true) }).await?;
        }
        Ok(())
    }

    async fn uncounted(&self) -> Result<Option<UncountedRow>, Fault> {
        self.shared.database.reader().await?.row(&self.sql.log_counts.uncounted, &[]).await
    }

    async fn count_some(&self, tx: &Tx, anew: bool) -> Result<(), Fault> {
        let sql = &self.sql.log_counts;
        let Some(Only(from)) = tx.row(&sql.lock, &[]).await? else { return Ok(()) };
        if anew {
            tx.execute(&sql.start_over, &[]).await?;
            return Ok(());
        }
        let Some(Only(upto)) = tx.row(&sql.upto, &[&from]).await? else { return Ok(()) };
        tx.execute(&sql.add, &[&from, &upto]).await?;
        Ok(())
    }
}
