//! Publishing and finalising in the caller's own transaction, on both databases.
//!
//! What is written here commits or rolls back with the caller's own rows.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tidegate_core::{NewEvent, QueueName};
use tidegate_store::{Finalize, Finalized, Published};

use crate::delivery::{QueuedEvent, verdict};
use crate::error::{Error, Result};
use crate::queue::EventQueue;
use crate::receipt::Receipt;
use crate::shared::Native;

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A transaction of the caller: of `tokio_postgres`, or a transaction, savepoint or connection of `rusqlite`.
pub trait CallerTx: sealed::InTransaction {}

impl<T: sealed::InTransaction> CallerTx for T {}

pub(crate) mod sealed {
    use super::{Answer, Finalize, Finalized, Native, NewEvent, Published};

    pub trait InTransaction {
        fn publish<'a>(&'a mut self, native: &'a NativeRef, events: Vec<NewEvent>) -> Answer<'a, Vec<Published>>;
        fn finalize<'a>(&'a mut self, native: &'a NativeRef, items: Vec<Finalize>) -> Answer<'a, Vec<Finalized>>;
    }

    /// The store under its own name; opaque outside.
    #[derive(Debug)]
    pub struct NativeRef(pub(crate) Native);
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use sealed::{InTransaction, NativeRef};

#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn mismatch<T>(needed: &str) -> Result<T> {
    Err(Error::invalid(format!("this transaction is of {needed}, but the queue was not opened on {needed}")))
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

/// SQLite works at once, on the caller's thread; only the answer is wrapped.
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
    /// Publishes in the caller's transaction: the event is there if and when that commits. Nothing here blocks others.
    /// Call [`Receipt::wake`] after the commit.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); the caller's transaction should then be rolled back. `Invalid` when the
    /// transaction is not of the database that the queue was opened on.
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
    /// As [`publish_in`](Self::publish_in); one bad event refuses all.
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
    /// After the commit the handle is of no more use: drop it. After a rollback it still holds the entry: drop it to
    /// release, or give another verdict.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost: the transaction must be rolled back.
    pub fn finalize_in<'a, T: CallerTx, E: Into<String>>(
        &'a self,
        tx: &'a mut T,
        event: &QueuedEvent,
        errors: impl IntoIterator<Item = E>,
    ) -> impl Future<Output = Result<Finalized>> + Send + 'a {
        let (end, errors) = verdict(errors);
        let item = Finalize { id: event.id, token: Some(event.token), end, errors, results: None };
        let queue = event.queue().unwrap_or_else(|| self.name()).clone();
        let held = event.claimed_since();
        let answer = tx.finalize(&self.shared().native, vec![item]);
        async move {
            let finalized = answer.await?.into_iter().next().ok_or_else(Error::fenced)?;
            // Whether the caller commits is not told; a rollback is the exception.
            if !finalized.repeated {
                self.shared().meters.ended(&queue, finalized.end, 1);
                self.shared().meters.claim_to_finish.record(held.elapsed().as_secs_f64());
            }
            Ok(finalized)
        }
    }
}

#[cfg(feature = "sqlite")]
pub use on_writer::Tx;

#[cfg(feature = "sqlite")]
mod on_writer {
    use std::cell::RefCell;

    use tidegate_core::{End, EntryId};

    use super::{
        Arc, BTreeSet, Error, EventQueue, Finalize, Finalized, Native, NewEvent, Published, QueueName, QueuedEvent,
        Result, verdict,
    };
    use crate::shared::wake;

    /// A transaction on SQLite's writer, shared by the application and the queue.
    pub struct Tx<'a> {
        store: &'a tidegate_store::sqlite::SqliteStore,
        connection: &'a rusqlite::Connection,
        queue: &'a EventQueue,
        queues: RefCell<BTreeSet<QueueName>>,
        /// What ended, to be counted once it is committed.
        ended: RefCell<Vec<(QueueName, End)>>,
    }

    impl std::fmt::Debug for Tx<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Tx").field("queue", self.queue.name()).finish_non_exhaustive()
        }
    }

    impl Tx<'_> {
        /// The connection, for the application's own statements. Leave BEGIN, COMMIT and ROLLBACK to the queue.
        #[must_use]
        pub fn connection(&self) -> &rusqlite::Connection {
            self.connection
        }

        /// Publishes an event.
        ///
        /// # Errors
        /// As [`EventQueue::publish`]; returned from the closure, it rolls everything back.
        pub fn publish(&self, mut event: NewEvent) -> Result<Published> {
            self.queue.address(&mut event);
            let queue = event.queue.clone();
            let published = self.store.publish_in(self.connection, vec![event])?;
            self.queues.borrow_mut().insert(queue);
            published.into_iter().next().ok_or_else(|| Error::invalid("nothing was published"))
        }

        /// Ends a claimed entry. The handle may be dropped after the commit.
        ///
        /// # Errors
        /// `Fenced` when the lease was lost; returned from the closure, it rolls everything back.
        pub fn finalize<E: Into<String>>(
            &self,
            event: &QueuedEvent,
            errors: impl IntoIterator<Item = E>,
        ) -> Result<Finalized> {
            let (end, errors) = verdict(errors);
            let item = Finalize { id: event.id, token: Some(event.token), end, errors, results: None };
            self.finish_in(event.queue().unwrap_or_else(|| self.queue.name()), item)
        }

        /// Ends an entry by its bare id, whoever holds it.
        ///
        /// # Errors
        /// `NotFound` when there is no such entry.
        pub fn finalize_id<E: Into<String>>(
            &self,
            id: EntryId,
            errors: impl IntoIterator<Item = E>,
        ) -> Result<Finalized> {
            let (end, errors) = verdict(errors);
            self.finish(Finalize { id, token: None, end, errors, results: None })
        }

        /// Ends an entry in any way.
        ///
        /// # Errors
        /// `Fenced` when a lease is named that is not held.
        pub fn finish(&self, item: Finalize) -> Result<Finalized> {
            self.finish_in(self.queue.name(), item)
        }

        fn finish_in(&self, queue: &QueueName, item: Finalize) -> Result<Finalized> {
            let finalized = self.store.finalize_in(self.connection, vec![item])?;
            self.queues.borrow_mut().insert(queue.clone());
            let finalized = finalized.into_iter().next().ok_or_else(Error::fenced)?;
            if !finalized.repeated {
                self.ended.borrow_mut().push((queue.clone(), finalized.end));
            }
            Ok(finalized)
        }
    }

    impl EventQueue {
        /// Runs a closure in one transaction on SQLite's writer: the application's statements and the queue's commit
        /// together, or not at all when it answers an error. It should be short: other writers wait.
        ///
        /// ```
        /// # async fn example(queue: tidegate::EventQueue) -> tidegate::Result<()> {
        /// use tidegate::{Error, NewEvent};
        /// queue
        ///     .transaction(|tx| {
        ///         tx.connection()
        ///             .execute("INSERT INTO orders (id) VALUES (1)", [])
        ///             .map_err(|error| Error::invalid(error.to_string()))?;
        ///         tx.publish(NewEvent::new("order.created", r#"{"id": 1}"#))
        ///     })
        ///     .await?;
        /// # Ok(()) }
        /// ```
        ///
        /// # Errors
        /// The closure's, or the store's. `Invalid` when the queue was not opened on SQLite.
        pub async fn transaction<T, F>(&self, work: F) -> Result<T>
        where
            T: Send + 'static,
            F: FnOnce(&Tx<'_>) -> Result<T> + Send + 'static,
        {
            let Native::Sqlite(store) = &self.shared().native.0 else {
                return Err(Error::invalid("transaction() runs on SQLite's writer: use publish_in on this database"));
            };
            let (queue, inner) = (self.clone(), Arc::clone(store));
            let (answer, queues, ended) = store
                .transaction(move |connection| {
                    let (queues, ended) = (RefCell::default(), RefCell::default());
                    let tx = Tx { store: &inner, connection, queue: &queue, queues, ended };
                    let answer = work(&tx)?;
                    Ok((answer, tx.queues.into_inner(), tx.ended.into_inner()))
                })
                .await?;
            ended.iter().for_each(|(queue, end)| self.shared().meters.ended(queue, *end, 1));
            if !queues.is_empty() {
                wake(self.shared(), queues);
            }
            Ok(answer)
        }
    }
}
