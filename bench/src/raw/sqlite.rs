//! Baselines in plain SQL on SQLite: one connection, WAL, synchronous=FULL, prepared statements.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};

use crate::Result;
use crate::runner::rate;
use crate::scale::{BATCH, PAYLOAD, payload};

const TABLES: &str = "
    CREATE TABLE jobs (
        id          INTEGER PRIMARY KEY AUTOINCREMENT,
        status      INTEGER NOT NULL DEFAULT 0,
        attempts    INTEGER NOT NULL DEFAULT 0,
        created_at  INTEGER NOT NULL,
        lease_until INTEGER,
        event_type  TEXT NOT NULL,
        worker      TEXT,
        payload     BLOB NOT NULL
    );
    CREATE INDEX jobs_status ON jobs (status, id);
    CREATE TABLE job_log (
        id          INTEGER PRIMARY KEY,
        status      INTEGER NOT NULL,
        attempts    INTEGER NOT NULL,
        created_at  INTEGER NOT NULL,
        finished_at INTEGER NOT NULL,
        event_type  TEXT NOT NULL,
        worker      TEXT,
        payload     BLOB NOT NULL
    );";

const INSERT: &str = "INSERT INTO jobs (created_at, event_type, payload) VALUES (unixepoch(), ?1, ?2)";
const CLAIM: &str = "
    UPDATE jobs SET status = 1, attempts = attempts + 1, lease_until = unixepoch() + 60, worker = 'worker'
    WHERE id IN (SELECT id FROM jobs WHERE status = 0 ORDER BY id LIMIT ?1)
    RETURNING id, payload";
const LOG: &str = "
    INSERT INTO job_log (id, status, attempts, created_at, finished_at, event_type, worker, payload)
    SELECT id, 2, attempts, created_at, unixepoch(), event_type, worker, payload FROM jobs WHERE id = ?1";
const DELETE: &str = "DELETE FROM jobs WHERE id = ?1";

/// Version and settings for the header of a report.
pub(crate) fn describe() -> String {
    format!("SQLite {}: journal_mode=WAL, synchronous=FULL on both sides", rusqlite::version())
}

pub(super) fn open(file: &Path, tables: &str) -> Result<Connection> {
    let connection = Connection::open(file)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute_batch(tables)?;
    Ok(connection)
}

/// Publishes, claims and ends in three transactions per batch; returns events per second.
///
/// # Errors
/// When a statement fails, or not every event is in the log at the end.
pub(crate) fn cycle(file: &Path, events: usize) -> Result<f64> {
    let mut connection = open(file, TABLES)?;
    let body = payload(PAYLOAD).into_bytes();
    let batches = events / BATCH;
    let start = Instant::now();
    for _ in 0..batches {
        let publish = connection.transaction()?;
        let mut insert = publish.prepare_cached(INSERT)?;
        for _ in 0..BATCH {
            insert.execute(params!["bench", body])?;
        }
        drop(insert);
        publish.commit()?;

        let take = connection.transaction()?;
        let mut claim = take.prepare_cached(CLAIM)?;
        let claimed =
            claim.query_map([i64::try_from(BATCH)?], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)))?;
        let claimed: Vec<(i64, Vec<u8>)> = claimed.collect::<rusqlite::Result<_>>()?;
        drop(claim);
        take.commit()?;

        let end = connection.transaction()?;
        let (mut log, mut delete) = (end.prepare_cached(LOG)?, end.prepare_cached(DELETE)?);
        for (id, _) in &claimed {
            log.execute([id])?;
            delete.execute([id])?;
        }
        drop((log, delete));
        end.commit()?;
    }
    let took = start.elapsed();
    expect_rows(&connection, "job_log", batches * BATCH)?;
    Ok(rate(batches * BATCH, took))
}

/// Inserts one row per commit; returns events per second.
///
/// # Errors
/// When a statement fails, or rows are missing at the end.
pub(crate) fn publish_single(file: &Path, time: Duration) -> Result<f64> {
    let connection = open(file, TABLES)?;
    let body = payload(PAYLOAD).into_bytes();
    let mut insert = connection.prepare(INSERT)?;
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < time {
        insert.execute(params!["bench", body])?;
        done += 1;
    }
    let took = start.elapsed();
    expect_rows(&connection, "jobs", done)?;
    Ok(rate(done, took))
}

/// Fails when the baseline did not write all its rows, so that its figure does not count.
pub(super) fn expect_rows(connection: &Connection, table: &str, expected: usize) -> Result<()> {
    let count: i64 = connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))?;
    if usize::try_from(count)? == expected {
        return Ok(());
    }
    Err(format!("the baseline left {count} rows in {table}, expected {expected}").into())
}
