//! Publishes in the application's own transactions, through the library or plain SQL, and commits or rolls back.

use std::time::Duration;

use rusqlite::{ErrorCode, OptionalExtension};
use tidegate::NewEvent;
use tokio_postgres::{Client, NoTls};

use super::job::{Failure, sqlite_path};
use super::life::{Life, outcome_of};
use super::plan::Planned;
use super::plan::{answer, split};
use crate::history::{Answer, Intent, OpOutcome};

const NEWEST: &str = "SELECT max(id) FROM tidegate_event_queue";
const BY_KEY: &str = "SELECT entry_id FROM tidegate_deduplication WHERE client_id = 0 AND kind = 0 AND key = ?1
                      AND scope = (SELECT id FROM tidegate_queues WHERE name = 'default')";
const IS_KNOWN: &str = "SELECT FROM tidegate.deduplication WHERE client_id = 0 AND kind = 0 AND key = $1
                        AND scope = (SELECT id FROM tidegate.queues WHERE name = 'default')";

/// The application's own connection, opened on first use and after errors.
#[derive(Debug)]
pub(super) enum Outbox {
    Sqlite(Option<rusqlite::Connection>, String),
    Postgres(Option<Client>, String),
}

impl Outbox {
    pub(super) fn new(address: &str) -> Self {
        match sqlite_path(address) {
            Some(path) => Self::Sqlite(None, path.display().to_string()),
            None => Self::Postgres(None, address.to_owned()),
        }
    }
}

/// Publishes in one transaction, through the library or, with `plain_sql`, as an application in another language would.
pub(super) async fn publish(
    life: &Life,
    outbox: &mut Outbox,
    planned: Vec<Planned>,
    plain_sql: bool,
    commit: bool,
) -> Result<OpOutcome, Failure> {
    let (offers, events) = split(planned);
    let op = life.recorder.intent(Intent::Publish { offers, outbox: true })?;
    let outcome = match outbox {
        Outbox::Sqlite(connection, path) if plain_sql => on_file(connection, path, &events, commit),
        Outbox::Sqlite(..) => on_writer(life, events, commit).await,
        Outbox::Postgres(client, url) => on_postgres(life, client, url, events, plain_sql, commit).await,
    };
    life.recorder.result(op, outcome.clone())?;
    Ok(outcome)
}

fn unknown(error: impl std::fmt::Display) -> OpOutcome {
    OpOutcome::Unknown { error: error.to_string() }
}

/// Inserts into the view `publish`, on a connection that the library does not know.
fn on_file(connection: &mut Option<rusqlite::Connection>, path: &str, events: &[NewEvent], commit: bool) -> OpOutcome {
    let work = |connection: &mut Option<rusqlite::Connection>| -> rusqlite::Result<OpOutcome> {
        if connection.is_none() {
            let opened = rusqlite::Connection::open(path)?;
            opened.busy_timeout(Duration::from_secs(10))?;
            opened.pragma_update(None, "synchronous", "FULL")?;
            *connection = Some(opened);
        }
        let Some(connection) = connection else { return Ok(OpOutcome::RolledBack) };
        let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let mut answers = Vec::new();
        for event in events {
            // The view does not say which events are duplicates.
            let known = match &event.deduplication {
                Some(once) => tx.query_row(BY_KEY, [&once.key], |row| row.get(0)).optional()?,
                None => None,
            };
            tx.execute(
                "INSERT INTO tidegate_publish (event_type, payload, priority, delay_ms, message_group, deduplication_id,
                                               max_attempts)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                rusqlite::params![
                    event.event_type,
                    event.payload.as_ref(),
                    event.priority,
                    delay(event).map(|delay| i64::try_from(delay.as_millis()).unwrap_or(0)),
                    event.group,
                    event.deduplication.as_ref().map(|deduplication| &deduplication.key),
                    event.max_attempts,
                ],
            )?;
            // The transaction holds the write lock, so the new entry has the highest number.
            answers.push(match known {
                None => Answer::Created { id: tx.query_row(NEWEST, [], |row| row.get(0))? },
                Some(id) => Answer::Duplicate { id },
            });
        }
        if commit {
            tx.commit()?
        } else {
            tx.rollback()?
        };
        Ok(if commit { OpOutcome::Published { answers } } else { OpOutcome::RolledBack })
    };
    tokio::task::block_in_place(|| work(connection)).unwrap_or_else(|error| {
        *connection = None;
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => unknown(error),
            // A commit that failed with one of these may have taken place.
            Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) => unknown(error),
            _ => OpOutcome::Refused { error: error.to_string() },
        }
    })
}

/// Publishes with `EventQueue::transaction`, on the library's writer.
async fn on_writer(life: &Life, events: Vec<NewEvent>, commit: bool) -> OpOutcome {
    const ON_PURPOSE: &str = "rolled back on purpose";
    let done = life.queue.transaction(move |tx| {
        let published = events.into_iter().map(|event| tx.publish(event)).collect::<Result<Vec<_>, _>>()?;
        if commit { Ok(published) } else { Err(tidegate::Error::invalid(ON_PURPOSE)) }
    });
    match done.await {
        Ok(published) => OpOutcome::Published { answers: published.iter().map(answer).collect() },
        Err(error) if error.to_string() == ON_PURPOSE => OpOutcome::RolledBack,
        Err(error) => outcome_of(&error),
    }
}

async fn on_postgres(
    life: &Life,
    client: &mut Option<Client>,
    url: &str,
    events: Vec<NewEvent>,
    plain_sql: bool,
    commit: bool,
) -> OpOutcome {
    let outcome = try_postgres(life, client, url, events, plain_sql, commit).await.unwrap_or_else(|error| {
        // SQLSTATE classes of invalid requests: data, constraints, SQL, limits, object state, and raised errors.
        let invalid =
            error.code().is_some_and(|code| ["22", "23", "42", "54", "55", "P0"].contains(&&code.code()[..2]));
        let error = format!("{error}: {}", error.as_db_error().map_or("", |error| error.message()));
        if invalid { OpOutcome::Refused { error } } else { OpOutcome::Unknown { error } }
    });
    if matches!(outcome, OpOutcome::Unknown { .. } | OpOutcome::Refused { .. }) {
        *client = None;
    }
    outcome
}

async fn try_postgres(
    life: &Life,
    client: &mut Option<Client>,
    url: &str,
    events: Vec<NewEvent>,
    plain_sql: bool,
    commit: bool,
) -> Result<OpOutcome, tokio_postgres::Error> {
    if client.is_none() {
        let (opened, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        *client = Some(opened);
    }
    let Some(client) = client else { return Ok(OpOutcome::RolledBack) };
    let mut tx = client.transaction().await?;
    let mut receipt = None;
    let mut answers = Vec::new();
    if plain_sql {
        for event in &events {
            answers.push(call_function(&tx, event).await?);
        }
    } else {
        match life.queue.publish_many_in(&mut tx, events).await {
            Ok(published) => {
                answers.extend(published.iter().map(answer));
                receipt = Some(published);
            }
            Err(error) => {
                let outcome = outcome_of(&error);
                tx.rollback().await?;
                return Ok(outcome);
            }
        }
    }
    if !commit {
        tx.rollback().await?;
        return Ok(OpOutcome::RolledBack);
    }
    tx.commit().await?;
    if let Some(receipt) = receipt {
        receipt.wake();
    }
    Ok(OpOutcome::Published { answers })
}

async fn call_function(
    tx: &tokio_postgres::Transaction<'_>,
    event: &NewEvent,
) -> Result<Answer, tokio_postgres::Error> {
    let delay = delay(event).map(|delay| delay.as_secs_f64());
    let key = event.deduplication.as_ref().map(|deduplication| &deduplication.key);
    // The function does not say which events are duplicates.
    let known = match key {
        Some(key) => tx.query_opt(IS_KNOWN, &[key]).await?.is_some(),
        None => false,
    };
    let max_attempts = i32::try_from(event.max_attempts).unwrap_or(i32::MAX);
    let row = tx
        .query_one(
            "SELECT tidegate.publish(event_type => $1, payload => $2::bytea, priority => $3::smallint, delay => $4 * interval '1 second',
                                     message_group => $5, deduplication_id => $6, max_attempts => $7)",
            &[&event.event_type, &event.payload.as_ref(), &event.priority, &delay, &event.group, &key, &max_attempts],
        )
        .await?;
    let id = row.get(0);
    Ok(if known { Answer::Duplicate { id } } else { Answer::Created { id } })
}

fn delay(event: &NewEvent) -> Option<Duration> {
    match event.available {
        tidegate::Availability::After(delay) => Some(delay),
        tidegate::Availability::Now | tidegate::Availability::At(_) => None,
    }
}
