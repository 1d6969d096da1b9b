//! Ends entries in the application's own transactions.

use tidegate::{End, Finalize, QueuedEvent};
use tokio_postgres::{Client, NoTls};

use super::job::{Failure, sqlite_path};
use super::life::{Life, outcome_of};
use crate::history::{Intent, OpOutcome};

/// Completes an entry and records it.
pub(super) async fn complete(life: &Life, event: QueuedEvent, intent: Intent) -> Result<(), Failure> {
    let op = life.recorder.intent(intent)?;
    let outcome = match sqlite_path(&life.job.address) {
        Some(_) => on_writer(life, &event).await,
        None => on_postgres(life, &event).await,
    };
    life.recorder.result(op, outcome.clone())?;
    // Not before the result is recorded: dropping releases the lease in the background if it is still held.
    drop(event);
    life.back_off(&outcome).await;
    Ok(())
}

async fn on_writer(life: &Life, event: &QueuedEvent) -> OpOutcome {
    let item = Finalize {
        id: event.id,
        token: Some(event.token),
        end: End::Completed,
        errors: None,
        results: None,
        attempt: None,
    };
    match life.queue.transaction(move |tx| tx.finish(item)).await {
        Ok(finalized) => OpOutcome::Finalized { repeated: finalized.repeated, end: finalized.end.code() },
        Err(error) => outcome_of(&error),
    }
}

async fn on_postgres(life: &Life, event: &QueuedEvent) -> OpOutcome {
    let mut client = life.own.lock().await;
    let outcome = try_postgres(life, &mut client, event).await;
    outcome.unwrap_or_else(|error| {
        *client = None;
        OpOutcome::Unknown { error: error.to_string() }
    })
}

async fn try_postgres(
    life: &Life,
    client: &mut Option<Client>,
    event: &QueuedEvent,
) -> Result<OpOutcome, tokio_postgres::Error> {
    if client.as_ref().is_none_or(Client::is_closed) {
        let (opened, connection) = tokio_postgres::connect(&life.job.address, NoTls).await?;
        // Ends with the client, whose calls return the errors of the connection.
        tokio::spawn(connection);
        *client = Some(opened);
    }
    let Some(client) = client else { return Ok(OpOutcome::RolledBack) };
    let mut tx = client.transaction().await?;
    match life.queue.finalize_in(&mut tx, event, None::<String>).await {
        Ok(finalized) => {
            tx.commit().await?;
            Ok(OpOutcome::Finalized { repeated: finalized.repeated, end: finalized.end.code() })
        }
        Err(error) => {
            tx.rollback().await?;
            Ok(outcome_of(&error))
        }
    }
}
