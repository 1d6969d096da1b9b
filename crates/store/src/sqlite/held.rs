//! A transaction on the writer that async code holds open: its steps are sent over one by one. Other writers wait
//! meanwhile, so one that nobody goes on with is rolled back after a while.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::SqliteStore;
use super::errors::closed;
use super::jobs::{Urgency, job};
use super::tx::Tx;
use crate::error::{Error, ErrorKind, Result};

type Step = Box<dyn FnOnce(&Connection) + Send>;

enum Message {
    Step(Step),
    Commit,
}

/// An open transaction. Dropped without a commit, it is rolled back.
#[derive(Debug)]
pub struct SqliteTx {
    messages: mpsc::Sender<Message>,
    outcome: oneshot::Receiver<Result<()>>,
}

impl SqliteStore {
    /// Begins a transaction of its own on the store's writer. It is rolled back when no step comes for as long as
    /// `patience`, for other writers wait.
    ///
    /// # Errors
    /// When the store is closed or has stopped.
    pub fn begin(&self, patience: Duration) -> Result<SqliteTx> {
        let (messages, inbox) = mpsc::channel();
        let (mut job, outcome) = job(move |tx: &mut Tx<'_>| serve(tx.conn, &inbox, patience));
        job.alone = true;
        self.enqueue(Urgency::Claim, job)?;
        Ok(SqliteTx { messages, outcome })
    }
}

/// Runs steps until it is told to commit.
fn serve(conn: &Connection, inbox: &mpsc::Receiver<Message>, patience: Duration) -> Result<()> {
    loop {
        match inbox.recv_timeout(patience) {
            Ok(Message::Step(step)) => step(conn),
            Ok(Message::Commit) if conn.is_autocommit() => {
                return Err(Error::new(ErrorKind::Conflict, "the transaction was rolled back by one of its steps"));
            }
            Ok(Message::Commit) => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ErrorKind::Conflict, "the transaction was given up"));
            }
            Err(RecvTimeoutError::Timeout) => {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!("the transaction was rolled back: it held up all writers and did nothing for {patience:?}"),
                ));
            }
        }
    }
}

impl SqliteTx {
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
            let _ = sender.send(step(conn));
        });
        self.messages.send(Message::Step(step)).map_err(|_| over())?;
        answer.await.unwrap_or_else(|_| Err(over()))
    }

    /// Commits, and answers once it is durable.
    ///
    /// # Errors
    /// What the commit met; nothing was written then.
    pub async fn commit(self) -> Result<()> {
        let sent = self.messages.send(Message::Commit);
        match self.outcome.await {
            Ok(outcome) => outcome,
            Err(_) if sent.is_err() => Err(over()),
            Err(_) => Err(closed()),
        }
    }
}

fn over() -> Error {
    Error::new(ErrorKind::Busy, "the transaction is over: it took too long, or the store was closed; try again")
}
