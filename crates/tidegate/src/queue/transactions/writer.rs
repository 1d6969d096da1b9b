//! A closure of the application in one transaction on SQLite's writer.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_core::{End, EntryId, NewEvent, QueueName};
use tidegate_store::{Finalize, Finalized, Published};

use crate::error::{Error, Result};
use crate::queue::EventQueue;
use crate::queue::delivery::{QueuedEvent, end_for};
use crate::queue::native::Native;

/// A transaction on SQLite's writer, shared by the application and the queue.
pub struct Tx<'a> {
    store: &'a tidegate_store::sqlite::SqliteStore,
    connection: &'a rusqlite::Connection,
    queue: &'a EventQueue,
    queues: RefCell<BTreeSet<QueueName>>,
    /// Entries that were ended, to be counted after the commit.
    ended: RefCell<Vec<(QueueName, End)>>,
}

impl std::fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tx").field("queue", self.queue.name()).finish_non_exhaustive()
    }
}

impl Tx<'_> {
    /// The connection, for the application's own statements. Do not run BEGIN, COMMIT or ROLLBACK on it.
    #[must_use]
    pub fn connection(&self) -> &rusqlite::Connection {
        self.connection
    }

    /// Publishes an event.
    ///
    /// # Errors
    /// As [`EventQueue::publish`]; when the closure returns the error, everything is rolled back.
    pub fn publish(&self, mut event: NewEvent) -> Result<Published> {
        self.queue.address(&mut event);
        let queue = event.queue.clone();
        let published = self.store.publish_in(self.connection, vec![event])?;
        self.queues.borrow_mut().insert(queue);
        published.into_iter().next().ok_or_else(|| Error::invalid("nothing was published"))
    }

    /// Ends a claimed entry. Drop the event after the commit.
    ///
    /// # Errors
    /// `Fenced` when the lease was lost; when the closure returns the error, everything is rolled back.
    pub fn finalize<E: Into<String>>(
        &self,
        event: &QueuedEvent,
        errors: impl IntoIterator<Item = E>,
    ) -> Result<Finalized> {
        let (end, errors) = end_for(errors);
        let item = Finalize { id: event.id, token: Some(event.token), end, errors, results: None, attempt: None };
        self.finish_in(event.queue().unwrap_or_else(|| self.queue.name()), item)
    }

    /// Ends an entry by its id alone, no matter which worker holds it.
    ///
    /// # Errors
    /// `NotFound` when there is no such entry.
    pub fn finalize_id<E: Into<String>>(&self, id: EntryId, errors: impl IntoIterator<Item = E>) -> Result<Finalized> {
        let (end, errors) = end_for(errors);
        self.finish(Finalize { id, token: None, end, errors, results: None, attempt: None })
    }

    /// Ends an entry in any way.
    ///
    /// # Errors
    /// `Fenced` when a token is given whose lease is not held, `NotFound` when there is no such entry.
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
    /// together, or are rolled back when it returns an error. It should be short: other writers wait.
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
    /// The error of the closure or of the store; `Invalid` when the queue was not opened on SQLite.
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
            self.shared().committed(queues);
        }
        Ok(answer)
    }
}
