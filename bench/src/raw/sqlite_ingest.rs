//! Plain SQL on SQLite that writes the same rows as an ingest of events with one subscription: the fact with what it is
//! found by, its key, its term, the entry, and its two tags. One connection, a transaction per batch.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Transaction, params};

use super::sqlite::{expect_rows, open};
use super::{hash, hex};
use crate::Result;
use crate::runner::rate;
use crate::scale::{PAYLOAD, REQUEST, payload};

const TABLES: &str = "
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, created_at INTEGER NOT NULL, client_id INTEGER, event_type TEXT NOT NULL, source TEXT,
        subject TEXT, correlation_id TEXT, attributes TEXT, payload BLOB NOT NULL, title TEXT, tags TEXT,
        first_number INTEGER, last_number INTEGER, targets INTEGER, terms BLOB
    );
    CREATE INDEX events_first_number ON events (first_number) WHERE first_number IS NOT NULL;
    CREATE INDEX events_client ON events (client_id) WHERE first_number IS NOT NULL;
    CREATE INDEX events_type ON events (client_id, event_type) WHERE first_number IS NOT NULL;
    CREATE INDEX events_source ON events (source, client_id) WHERE first_number IS NOT NULL AND source IS NOT NULL;
    CREATE INDEX events_subject ON events (subject, client_id) WHERE first_number IS NOT NULL AND subject IS NOT NULL;
    CREATE INDEX events_correlation ON events (correlation_id, client_id)
        WHERE first_number IS NOT NULL AND correlation_id IS NOT NULL;
    CREATE TABLE event_keys (
        client_id INTEGER NOT NULL, kind INTEGER NOT NULL, key TEXT NOT NULL, event_id INTEGER NOT NULL,
        expires_at INTEGER NOT NULL, fingerprint INTEGER, PRIMARY KEY (client_id, kind, key)
    ) WITHOUT ROWID;
    CREATE INDEX event_keys_expiry ON event_keys (expires_at);
    CREATE TABLE event_terms (
        term BLOB NOT NULL, client_id INTEGER NOT NULL, event_id INTEGER NOT NULL, PRIMARY KEY (term, client_id, event_id)
    ) WITHOUT ROWID;
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY, event_id INTEGER NOT NULL, lane INTEGER NOT NULL, queue_id INTEGER NOT NULL,
        status INTEGER NOT NULL DEFAULT 0, attempts INTEGER NOT NULL DEFAULT 0, max_attempts INTEGER NOT NULL,
        expires_at INTEGER, worker TEXT, room BLOB
    );
    CREATE INDEX jobs_fresh ON jobs (lane) WHERE status = 0;
    CREATE INDEX jobs_expiry ON jobs (expires_at) WHERE expires_at IS NOT NULL;
    CREATE TABLE job_tags (
        tag TEXT NOT NULL, job_id INTEGER NOT NULL, queue_id INTEGER NOT NULL, status INTEGER NOT NULL,
        rank INTEGER NOT NULL, PRIMARY KEY (tag, job_id)
    ) WITHOUT ROWID;
    CREATE INDEX job_tags_rank ON job_tags (queue_id, tag, status, rank, job_id);";

const EVENT: &str = "
    INSERT INTO events (id, created_at, event_type, source, subject, correlation_id, attributes, payload, title, tags,
        first_number, last_number, targets, terms)
    VALUES (?1, unixepoch() * 1000000, 'shop:orders:order:created', '/shop', ?2, ?3, ?4, ?5, ?2, ?6, ?1, ?1, 1, ?7)";
// What a repeat does must be asked for, even where there is none.
const KEY: &str = "
    INSERT INTO event_keys (client_id, kind, key, event_id, expires_at, fingerprint)
    VALUES (0, 4, ?1, ?2, (unixepoch() + 86400) * 1000000, ?2) ON CONFLICT DO NOTHING";
const TERM: &str = "INSERT INTO event_terms (term, client_id, event_id) VALUES (?1, 0, ?2)";
const JOB: &str = "
    INSERT INTO jobs (id, event_id, lane, queue_id, max_attempts, expires_at, room)
    VALUES (?1, ?1, 1, 2, 20, (unixepoch() + 86400) * 1000000, zeroblob(48))";
const TAG: &str = "INSERT INTO job_tags (tag, job_id, queue_id, status, rank) VALUES (?1, ?2, 2, 0, ?2)";

/// Writes batches for this long; returns events per second.
///
/// # Errors
/// When a statement fails, or rows are missing at the end.
pub(crate) fn batches(file: &Path, time: Duration) -> Result<f64> {
    let mut connection = open(file, TABLES)?;
    connection.set_prepared_statement_cache_capacity(32);
    let body = payload(PAYLOAD).into_bytes();
    let batch = i64::try_from(REQUEST)?;
    let start = Instant::now();
    let mut done: i64 = 0;
    while start.elapsed() < time {
        let transaction = connection.transaction()?;
        for number in done + 1..=done + batch {
            write(&transaction, number, &body)?;
        }
        transaction.commit()?;
        done += batch;
    }
    let took = start.elapsed();
    let done = usize::try_from(done)?;
    for (table, rows) in [("events", 1), ("event_keys", 1), ("event_terms", 1), ("jobs", 1), ("job_tags", 2)] {
        expect_rows(&connection, table, rows * done)?;
    }
    Ok(rate(done, took))
}

fn write(transaction: &Transaction<'_>, number: i64, body: &[u8]) -> Result<()> {
    let customer = number % 10_000;
    let attributes =
        format!(r#"{{"deduplicationid":"order-{number}","contextdata":[["customer","customer-{customer}"]]}}"#);
    let tags = ["shop:orders:order:created".to_owned(), format!("customer:customer-{customer}")];
    let (subject, request) = (format!("order:{number}"), format!("request-{}", number / 10));
    transaction.prepare_cached(EVENT)?.execute(params![
        number,
        subject,
        request,
        attributes,
        body,
        tags.join(","),
        hash(customer)
    ])?;
    transaction.prepare_cached(KEY)?.execute(params![hex(number), number])?;
    transaction.prepare_cached(TERM)?.execute(params![hash(customer), number])?;
    transaction.prepare_cached(JOB)?.execute([number])?;
    for tag in tags {
        transaction.prepare_cached(TAG)?.execute(params![tag, number])?;
    }
    Ok(())
}
