//! Transactions of the application's own. One that async code holds open sends its steps to the writer one by one; as
//! other writers wait meanwhile, one that is idle for too long is rolled back.

use std::future::Future;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tidegate_core::NewEvent;
use tokio::sync::{Mutex, oneshot};

use crate::error::{Error, ErrorKind, Result};
use crate::sqlite::engine::errors::{closed, rolled_back};
use crate::sqlite::engine::jobs::{Urgency, job};
use crate::sqlite::engine::own_calls::{HELD, number};
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::{end, publish};
use crate::values::{Finalize, Finalized, Published};

type Step = Box<dyn FnOnce(Result<&Connection>) + Send>;

enum Message {
    Step(Step),
    Commit,
}

/// An open transaction. Dropping it without a commit rolls it back.
#[derive(Debug)]
pub struct SqliteTx {
    messages: mpsc::Sender<Message>,
    outcome: Mutex<oneshot::Receiver<Result<()>>>,
    /// Why the writer has ended it, if it has.
    over: Arc<OnceLock<Error>>,
    store: usize,
}

impl SqliteStore {
    /// Runs a closure in a transaction of its own on the store's writer: what it writes, and what it publishes and
    /// finalizes with [`publish_in`](Self::publish_in) and [`finalize_in`](Self::finalize_in), commits together. An
    /// error or a panic rolls it back. All other writers wait meanwhile, so it should be short, and it must not wait
    /// for this store: a call of the store from inside the closure is refused.
    ///
    /// # Errors
    /// The closure's own error, or that of the commit.
    pub async fn transaction<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let (job, answer) = job(self.family, move |tx: &mut Tx<'_>| work(tx.conn));
        self.enqueue(Urgency::Alone, job)?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Publishes within the caller's own transaction on the same file. All events or none: the first one that is
    /// refused is the error, and the transaction is as before the call. After the commit, call [`Store::wake`].
    ///
    /// # Errors
    /// As [`Store::publish`]; `Busy` when another connection holds the write lock, or has written since this
    /// transaction first read. A transaction that reads before it publishes is best begun with `BEGIN IMMEDIATE`.
    pub fn publish_in(&self, conn: &Connection, events: Vec<NewEvent>) -> Result<Vec<Published>> {
        if events.iter().any(|event| event.idempotency.is_some()) {
            return Err(Error::invalid("an idempotency key needs a transaction of its own: use publish"));
        }
        self.within(conn, |tx| publish::publish(tx, &events)?.into_iter().collect())
    }

    /// Finalizes within the caller's own transaction on the same file, so that its effects happen exactly once: a lease
    /// that is no longer held, even because the same lease ended the entry before, rolls back the caller's whole
    /// transaction.
    ///
    /// # Errors
    /// `Fenced` after such a rollback; otherwise as [`Store::finalize`], with the transaction as before the call.
    pub fn finalize_in(&self, conn: &Connection, items: Vec<Finalize>) -> Result<Vec<Finalized>> {
        items.iter().try_for_each(|item| item.check(self.family))?;
        let outcome = self.within(conn, |tx| {
            let answers: Vec<Finalized> = end::finalize(tx, &items)?.into_iter().collect::<Result<_>>()?;
            let again = answers.iter().zip(&items).any(|(answer, item)| answer.repeated && item.token.is_some());
            if again { Err(Error::fenced()) } else { Ok(answers) }
        });
        if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Fenced) && !conn.is_autocommit() {
            conn.execute_batch("ROLLBACK")?;
        }
        outcome
    }

    /// Begins a transaction of its own on the store's writer. It is rolled back when no step comes for `idle_timeout`,
    /// as other writers wait for it.
    ///
    /// # Errors
    /// When the store is closed or has stopped, and `Invalid` from within another transaction of the same store.
    pub fn begin(&self, idle_timeout: Duration) -> Result<SqliteTx> {
        let (messages, inbox) = mpsc::channel();
        let over = Arc::new(OnceLock::new());
        let reason = Arc::clone(&over);
        let (job, outcome) = job(self.family, move |tx: &mut Tx<'_>| {
            serve(tx.conn, &inbox, idle_timeout).inspect_err(|error| {
                // Set only here, so it cannot fail.
                let _ = reason.set(error.clone());
            })
        });
        self.enqueue(Urgency::Alone, job)?;
        Ok(SqliteTx { messages, outcome: Mutex::new(outcome), over, store: number(&self.inner.inbox) })
    }
}

/// Runs steps until the commit is requested.
fn serve(conn: &Connection, inbox: &mpsc::Receiver<Message>, idle_timeout: Duration) -> Result<()> {
    let started = Instant::now();
    loop {
        match inbox.recv_timeout(idle_timeout) {
            // Outside the transaction the step would commit by itself.
            Ok(Message::Step(step)) if conn.is_autocommit() => step(Err(rolled_back())),
            Ok(Message::Step(step)) => step(Ok(conn)),
            Ok(Message::Commit) if conn.is_autocommit() => return Err(rolled_back()),
            Ok(Message::Commit) => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Conflict, "the transaction was dropped without a commit"));
            }
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!(
                    held_for = ?started.elapsed(),
                    idle_for = ?idle_timeout,
                    "a transaction was rolled back: it was idle while all other writers waited for it. Do slow work \
                     before or after the transaction, and publish with the transaction's own publish"
                );
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!(
                        "the transaction was rolled back: it was idle for {idle_timeout:?} and held up all writers"
                    ),
                ));
            }
        }
    }
}

impl SqliteTx {
    /// Runs a future of the task that holds this transaction. Calls of the same store from within it are refused
    /// instead of waiting for the transaction to end.
    pub async fn scope<F: Future>(&self, work: F) -> F::Output {
        let mut held = HELD.try_with(Vec::clone).unwrap_or_default();
        held.push(self.store);
        HELD.scope(held, work).await
    }

    /// Checks that the writer has not ended the transaction.
    ///
    /// # Errors
    /// Why it was ended.
    pub fn check(&self) -> Result<()> {
        self.over.get().map_or(Ok(()), |reason| Err(reason.clone()))
    }

    /// Runs a step inside the transaction.
    ///
    /// # Errors
    /// The step's own error, or why the transaction was ended.
    pub async fn run<T, F>(&self, step: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let (sender, answer) = oneshot::channel();
        let step: Step = Box::new(move |conn| {
            // The caller may have dropped its future, and the transaction with it.
            let _ = sender.send(conn.and_then(step));
        });
        if self.messages.send(Message::Step(step)).is_ok()
            && let Ok(answer) = answer.await
        {
            return answer;
        }
        Err(self.ended().await)
    }

    /// Commits, and returns once the commit is durable.
    ///
    /// # Errors
    /// The error of the commit; nothing was written then, unless it is `Indeterminate`.
    pub async fn commit(self) -> Result<()> {
        self.check()?;
        // If the writer has ended the transaction already, the outcome says why.
        let _ = self.messages.send(Message::Commit);
        self.outcome.into_inner().await.unwrap_or_else(|_| Err(closed()))
    }

    /// Why no step is run any more, waiting for the writer to report it if necessary.
    async fn ended(&self) -> Error {
        let mut outcome = self.outcome.lock().await;
        if let Err(reason) = self.check() {
            return reason;
        }
        let reason = (&mut *outcome).await.unwrap_or_else(|_| Err(closed())).err().unwrap_or_else(closed);
        self.over.get_or_init(|| reason).clone()
    }
}
