//! Publish and finalize in the caller's own transaction, on both databases: what is written here commits or rolls back
//! with the caller's own rows.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tidegate_core::{NewEvent, QueueName};
use tidegate_store::{Finalize, Finalized, Published};

use super::receipt::Receipt;
use crate::error::{Error, Result};
use crate::queue::EventQueue;
use crate::queue::delivery::{QueuedEvent, end_for};
use crate::queue::native::NativeRef;

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A transaction of the caller: a `tokio_postgres` transaction, or a `rusqlite` transaction, savepoint or connection.
pub trait CallerTx: sealed::InTransaction {}

impl<T: sealed::InTransaction> CallerTx for T {}

mod sealed {
    use super::{Answer, Finalize, Finalized, NativeRef, NewEvent, Published};

    pub trait InTransaction {
        fn publish<'a>(&'a mut self, native: &'a NativeRef, events: Vec<NewEvent>) -> Answer<'a, Vec<Published>>;
        fn finalize<'a>(&'a mut self, native: &'a NativeRef, items: Vec<Finalize>) -> Answer<'a, Vec<Finalized>>;
    }
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use {crate::queue::native::Native, sealed::InTransaction};

#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn mismatch<T>(needed: &str) -> Result<T> {
    Err(Error::invalid(format!("this is a {needed} transaction, but the queue was not opened on {needed}")))
}

#[cfg(feature = "postgres")]
impl InTransaction for tokio_postgres::Transaction<'_> {
    fn publish<'a>(&'a mut self, native: &'a NativeRef, events: Vec<NewEvent>) -> Answer<'a, Vec<Published>> {
        let this: &Self = self;
        Box::pin(async move {
            match &native.0 {
                Native::Postgres(store) => store.publish_in(this, events).await,
                _ => mismatch("PostgreSQL"),
            }
        })
    }

    fn finalize<'a>(&'a mut self, native: &'a NativeRef, items: Vec<Finalize>) -> Answer<'a, Vec<Finalized>> {
        let this: &Self = self;
        Box::pin(async move {
            match &native.0 {
                Native::Postgres(store) => store.finalize_in(this, items).await,
                _ => mismatch("PostgreSQL"),
            }
        })
    }
}

/// SQLite runs the statements on the caller's thread before it returns; the future is ready at once.
#[cfg(feature = "sqlite")]
macro_rules! in_sqlite {
    ($($kind:ty),*) => {$(
        impl InTransaction for $kind {
            fn publish<'a>(&'a mut self, native: &'a NativeRef, events: Vec<NewEvent>) -> Answer<'a, Vec<Published>> {
                let answer = match &native.0 {
                    Native::Sqlite(store) => store.publish_in(self, events),
                    _ => mismatch("SQLite"),
                };
                Box::pin(std::future::ready(answer))
            }

            fn finalize<'a>(&'a mut self, native: &'a NativeRef, items: Vec<Finalize>) -> Answer<'a, Vec<Finalized>> {
                let answer = match &native.0 {
                    Native::Sqlite(store) => store.finalize_in(self, items),
                    _ => mismatch("SQLite"),
                };
                Box::pin(std::future::ready(answer))
            }
        }
    )*};
}

#[cfg(feature = "sqlite")]
in_sqlite!(rusqlite::Connection, rusqlite::Transaction<'_>, rusqlite::Savepoint<'_>);

impl EventQueue {
    /// Publishes in the caller's transaction: the event exists once that commits. On PostgreSQL other publishers do not
    /// wait for it, except under the same deduplication key. Call [`Receipt::wake`] after the commit.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); the caller's transaction should then be rolled back. `Invalid` when the
    /// transaction is not on the kind of database that the queue was opened on.
    pub fn publish_in<'a, T: CallerTx>(
        &'a self,
        tx: &'a mut T,
        event: NewEvent,
    ) -> impl Future<Output = Result<Receipt>> + Send + 'a {
        self.publish_many_in(tx, vec![event])
    }

    /// Publishes several events in the caller's transaction.
    ///
    /// # Errors
    /// As [`publish_in`](Self::publish_in); an invalid event fails all of them.
    pub fn publish_many_in<'a, T: CallerTx>(
        &'a self,
        tx: &'a mut T,
        mut events: Vec<NewEvent>,
    ) -> impl Future<Output = Result<Receipt>> + Send + 'a {
        events.iter_mut().for_each(|event| self.address(event));
        let queues: BTreeSet<QueueName> = events.iter().map(|event| event.queue.clone()).collect();
        let answer = tx.publish(&self.shared().native, events);
        async move { Ok(Receipt::new(answer.await?, queues, Arc::clone(self.shared()))) }
    }

    /// Ends a claimed entry in the caller's transaction, so that effects in the same database happen exactly once.
    /// After the commit, drop the event. After a rollback it still holds its lease: drop it to release the entry, or
    /// end it otherwise.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost: the transaction must be rolled back.
    pub fn finalize_in<'a, T: CallerTx, E: Into<String>>(
        &'a self,
        tx: &'a mut T,
        event: &QueuedEvent,
        errors: impl IntoIterator<Item = E>,
    ) -> impl Future<Output = Result<Finalized>> + Send + 'a {
        let (end, errors) = end_for(errors);
        let item = Finalize { id: event.id, token: Some(event.token), end, errors, results: None, attempt: None };
        let queue = event.queue().unwrap_or_else(|| self.name()).clone();
        let held = event.claimed_since();
        let answer = tx.finalize(&self.shared().native, vec![item]);
        async move {
            let finalized = answer.await?.into_iter().next().ok_or_else(Error::fenced)?;
            // Counted before the commit, which this code cannot see; a rollback is the exception.
            if !finalized.repeated {
                self.shared().meters.ended(&queue, finalized.end, 1);
                self.shared().meters.claim_to_finish.record(held.elapsed().as_secs_f64());
            }
            Ok(finalized)
        }
    }
}
