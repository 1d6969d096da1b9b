//! The frames in which verbs run on the database: reading, and writing by what has to happen when the answer to a commit
//! is lost.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio_postgres::types::ToSql;

use super::connection::{Begin, Prelude, Tx};
use super::errors::Fault;
use super::store::Inner;
use crate::error::Result;
use crate::sql::Statement;

impl Inner {
    /// Reads, outside any transaction. If the connection is lost, it reads again over another one, for `retry_for`.
    pub(in crate::postgres) async fn read<T, F>(&self, work: impl Fn(Arc<Tx>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let deadline = Instant::now() + self.shared.options.retry_for;
        loop {
            let reader = Arc::new(self.shared.database.reader_patiently().await?);
            match work(reader).await {
                Err(Fault::Lost(_)) if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(10)).await,
                read => return read.map_err(Fault::into_error),
            }
        }
    }

    /// Runs one statement, which is a transaction of its own, and returns how many rows it changed. It is not run again
    /// if its answer is lost.
    pub(in crate::postgres) async fn execute(
        &self,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64> {
        let reader = self.shared.database.reader().await.map_err(Fault::into_error)?;
        reader.execute(statement, params).await.map_err(Fault::into_error)
    }

    /// Writes what may be written twice: if the answer to the commit is lost, it runs again.
    pub(in crate::postgres) async fn write_again<'a, T, F>(
        &'a self,
        work: impl Fn(Arc<Tx>) -> F + Send + Sync + 'a,
    ) -> Result<T>
    where
        T: Send + Sync + 'a,
        F: Future<Output = Result<T, Fault>> + Send + 'a,
    {
        self.write(work, |_, _| async { Ok(false) }).await
    }

    /// Writes what must not be written twice: if the answer to the commit is lost, `confirm` finds out, once the
    /// transaction is over, whether it took place. It runs again if it did not.
    pub(in crate::postgres) async fn write<'a, T, F, C>(
        &'a self,
        work: impl Fn(Arc<Tx>) -> F + Send + Sync + 'a,
        confirm: impl Fn(Arc<Tx>, &T) -> C + Send + Sync + 'a,
    ) -> Result<T>
    where
        T: Send + Sync + 'a,
        F: Future<Output = Result<T, Fault>> + Send + 'a,
        C: Future<Output = Result<bool, Fault>> + Send + 'a,
    {
        self.transact(Begin::Write, |_| Ok(()), work, confirm).await.map_err(Fault::into_error)
    }

    /// Changes the catalogue, then reads it again.
    pub(in crate::postgres) async fn configure<'a, T, F>(
        &'a self,
        work: impl Fn(Arc<Tx>) -> F + Send + Sync + 'a,
    ) -> Result<T>
    where
        T: Send + Sync + 'a,
        F: Future<Output = Result<T, Fault>> + Send + 'a,
    {
        let changed = self.write_again(work).await?;
        self.reload_catalog().await?;
        Ok(changed)
    }

    /// The frame below the others: `accept` decides by what the transaction reads at its start whether it may commit.
    pub(in crate::postgres) async fn transact<'a, T, F, C>(
        &'a self,
        begin: Begin,
        accept: impl Fn(Prelude) -> Result<(), Fault> + Send + Sync + 'a,
        work: impl Fn(Arc<Tx>) -> F + Send + Sync + 'a,
        confirm: impl Fn(Arc<Tx>, &T) -> C + Send + Sync + 'a,
    ) -> Result<T, Fault>
    where
        T: Send + Sync + 'a,
        F: Future<Output = Result<T, Fault>> + Send + 'a,
        C: Future<Output = Result<bool, Fault>> + Send + 'a,
    {
        self.shared
            .database
            .transact(begin, &accept, &|tx| work(tx).boxed(), &|tx, value| confirm(tx, value).boxed())
            .await
    }
}
