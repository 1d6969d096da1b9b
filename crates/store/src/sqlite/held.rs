//! A transaction on the writer that async code holds open: its steps are sent over one by one. Other writers wait
//! meanwhile, so one that nobody goes on with is rolled back after a while. Also knows which tasks and threads hold the
//! writer, so that a call which would wait for itself is refused at once.

use std::cell::Cell;
use std::future::Future;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{Mutex, oneshot};

use super::SqliteStore;
use super::errors::{closed, rolled_back};
use super::jobs::{Urgency, job};
use super::tx::Tx;
use super::writer::Inbox;
use crate::error::{Error, ErrorKind, Result};

tokio::task_local! {
    /// The stores whose writer this task holds.
    static HELD: Vec<usize>;
}

thread_local! {
    /// The store whose writer this thread is.
    static WRITER_OF: Cell<usize> = const { Cell::new(0) };
}

/// A number that no other open store has.
fn number(inbox: &Arc<Inbox>) -> usize {
    Arc::as_ptr(inbox).addr()
}

/// Says that this thread is the store's writer.
pub(super) fn mark_thread(inbox: &Arc<Inbox>) {
    WRITER_OF.set(number(inbox));
}

/// Refuses a call from whoever holds the writer: it would wait for itself.
pub(super) fn refuse_own_call(inbox: &Arc<Inbox>) -> Result<()> {
    let this = number(inbox);
    if WRITER_OF.get() == this || HELD.try_with(|held| held.contains(&this)).unwrap_or(false) {
        return Err(Error::invalid(
            "this call would wait for the transaction that it is made in: use the transaction's own methods \
             (its publish, execute and query), or make the call after the transaction",
        ));
    }
    Ok(())
}

type Step = Box<dyn FnOnce(Result<&Connection>) + Send>;

enum Message {
    Step(Step),
    Commit,
}

/// An open transaction. Dropped without a commit, it is rolled back.
#[derive(Debug)]
pub struct SqliteTx {
    messages: mpsc::Sender<Message>,
    outcome: Mutex<oneshot::Receiver<Result<()>>>,
    /// Why it is over, should the writer have ended it.
    over: Arc<OnceLock<Error>>,
    store: usize,
}

impl SqliteStore {
    /// Begins a transaction of its own on the store's writer. It is rolled back when no step comes for as long as
    /// `patience`, for other writers wait.
    ///
    /// # Errors
    /// When the store is closed or has stopped, and `Invalid` from within another transaction of the same store.
    pub fn begin(&self, patience: Duration) -> Result<SqliteTx> {
        let (messages, inbox) = mpsc::channel();
        let over = Arc::new(OnceLock::new());
        let reason = Arc::clone(&over);
        let (job, outcome) = job(move |tx: &mut Tx<'_>| {
            serve(tx.conn, &inbox, patience).inspect_err(|error| {
                // Set only here.
                let _ = reason.set(error.clone());
            })
        });
        self.enqueue(Urgency::Alone, job)?;
        Ok(SqliteTx { messages, outcome: Mutex::new(outcome), over, store: number(&self.inner.inbox) })
    }
}

/// Runs steps until it is told to commit.
fn serve(conn: &Connection, inbox: &mpsc::Receiver<Message>, patience: Duration) -> Result<()> {
    let started = Instant::now();
    loop {
        match inbox.recv_timeout(patience) {
            // Outside the transaction a step would be committed by itself.
            Ok(Message::Step(step)) if conn.is_autocommit() => step(Err(rolled_back())),
            Ok(Message::Step(step)) => step(Ok(conn)),
            Ok(Message::Commit) if conn.is_autocommit() => return Err(rolled_back()),
            Ok(Message::Commit) => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Conflict, "the transaction was given up"));
            }
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!(
                    held_for = ?started.elapsed(),
                    idle_for = ?patience,
                    "a transaction was rolled back: it did nothing while all other writers waited for it. Do slow work \
                     before or after the transaction, and publish with the transaction's own publish"
                );
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!("the transaction was rolled back: it held up all writers and did nothing for {patience:?}"),
                ));
            }
        }
    }
}

impl SqliteTx {
    /// Runs work of the task that holds this transaction. Calls of the same store from within it are refused instead of
    /// waiting for the transaction to end.
    pub async fn scope<F: Future>(&self, work: F) -> F::Output {
        let mut held = HELD.try_with(Vec::clone).unwrap_or_default();
        held.push(self.store);
        HELD.scope(held, work).await
    }

    /// Says why the transaction is over, if the writer has ended it.
    ///
    /// # Errors
    /// The reason.
    pub fn check(&self) -> Result<()> {
        self.over.get().map_or(Ok(()), |reason| Err(reason.clone()))
    }

    /// Runs a step inside the transaction.
    ///
    /// # Errors
    /// The step's own, or why the transaction is over.
    pub async fn run<T, F>(&self, step: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let (sender, answer) = oneshot::channel();
        let step: Step = Box::new(move |conn| {
            // Nobody there to hear it: the caller dropped its future, and the transaction with it.
            let _ = sender.send(conn.and_then(step));
        });
        if self.messages.send(Message::Step(step)).is_ok()
            && let Ok(answer) = answer.await
        {
            return answer;
        }
        Err(self.ended().await)
    }

    /// Commits, and answers once it is durable.
    ///
    /// # Errors
    /// What the commit met; nothing was written then.
    pub async fn commit(self) -> Result<()> {
        self.check()?;
        // Should the writer have gone on already, the outcome says why.
        let _ = self.messages.send(Message::Commit);
        self.outcome.into_inner().await.unwrap_or_else(|_| Err(closed()))
    }

    /// Why no step is served any more. The writer says so soon, if it has not yet.
    async fn ended(&self) -> Error {
        let mut outcome = self.outcome.lock().await;
        if let Err(reason) = self.check() {
            return reason;
        }
        let reason = (&mut *outcome).await.unwrap_or_else(|_| Err(closed())).err().unwrap_or_else(closed);
        self.over.get_or_init(|| reason).clone()
    }
}
