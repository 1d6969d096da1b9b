//! Plain SQL on SQLite that writes the same rows as Tidegate's pull workers: the fact, the entry, its tag, the audit of
//! the claim and of the end, and the log row with its tag. One connection, three transactions per batch.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Transaction, params};

use super::sqlite::{expect_rows, open};
use crate::Result;
use crate::runner::rate;
use crate::scale::{PAYLOAD, REQUEST, payload};

const TABLES: &str = "
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, created_at INTEGER NOT NULL, event_type TEXT NOT NULL, title TEXT, description TEXT,
        tags TEXT, payload BLOB NOT NULL
    );
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY, event_id INTEGER NOT NULL, status INTEGER NOT NULL DEFAULT 0,
        attempts INTEGER NOT NULL DEFAULT 0, max_attempts INTEGER NOT NULL, lease_until INTEGER, started_at INTEGER,
        worker TEXT
    );
    CREATE INDEX jobs_fresh ON jobs (status) WHERE status = 0;
    CREATE INDEX jobs_leased ON jobs (lease_until) WHERE status = 1;
    CREATE TABLE job_tags (
        tag TEXT NOT NULL, job_id INTEGER NOT NULL, status INTEGER NOT NULL, rank INTEGER NOT NULL,
        PRIMARY KEY (tag, job_id)
    ) WITHOUT ROWID;
    CREATE INDEX job_tags_rank ON job_tags (tag, status, rank, job_id);
    CREATE TABLE job_log (
        seq INTEGER PRIMARY KEY, id INTEGER NOT NULL, event_id INTEGER NOT NULL, finished_at INTEGER NOT NULL,
        started_at INTEGER, attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL, status INTEGER NOT NULL, worker TEXT
    );
    CREATE UNIQUE INDEX job_log_key ON job_log (id);
    CREATE TABLE log_tags (
        tag TEXT NOT NULL, status INTEGER NOT NULL, job_id INTEGER NOT NULL, PRIMARY KEY (tag, status, job_id)
    ) WITHOUT ROWID;
    CREATE TABLE audit (
        id INTEGER PRIMARY KEY AUTOINCREMENT, job_id INTEGER NOT NULL, action INTEGER NOT NULL, worker TEXT,
        attempt INTEGER NOT NULL, status_code INTEGER, created_at INTEGER NOT NULL
    );
    CREATE INDEX audit_job ON audit (job_id, id);";

const PUBLISH: [&str; 3] = [
    "INSERT INTO events (id, created_at, event_type, title, description, tags, payload)
     VALUES (?1, unixepoch(), 'event', 'a title', 'what it is about', 'bench', ?2)",
    "INSERT INTO jobs (id, event_id, max_attempts) VALUES (?1, ?1, 4)",
    "INSERT INTO job_tags (tag, job_id, status, rank) VALUES ('bench', ?1, 0, ?1)",
];
const FIND: &str = "
    SELECT job_id, payload FROM job_tags JOIN events ON events.id = job_id
    WHERE job_tags.tag = 'bench' AND status = 0 ORDER BY rank LIMIT ?1";
const CLAIM: [&str; 3] = [
    "UPDATE jobs SET status = 1, attempts = attempts + 1, lease_until = unixepoch() + 60, started_at = unixepoch(),
         worker = 'worker' WHERE id = ?1",
    "UPDATE job_tags SET status = 3, rank = unixepoch() + 60 WHERE tag = 'bench' AND job_id = ?1",
    "INSERT INTO audit (job_id, action, worker, attempt, created_at) VALUES (?1, 0, 'worker', 1, unixepoch())",
];
const END: [&str; 5] = [
    "INSERT INTO job_log (id, event_id, finished_at, started_at, attempts, max_attempts, status, worker)
     SELECT id, event_id, unixepoch(), started_at, attempts, max_attempts, 0, worker FROM jobs WHERE id = ?1",
    "DELETE FROM jobs WHERE id = ?1",
    "DELETE FROM job_tags WHERE tag = 'bench' AND job_id = ?1",
    "INSERT INTO log_tags (tag, status, job_id) VALUES ('bench', 0, ?1)",
    "INSERT INTO audit (job_id, action, worker, attempt, status_code, created_at)
     VALUES (?1, 2, 'worker', 1, 200, unixepoch())",
];

/// Publishes, claims and completes in batches for this long; returns events per second.
///
/// # Errors
/// When a statement fails, or log or audit rows are missing at the end.
pub(crate) fn cycle(file: &Path, time: Duration) -> Result<f64> {
    let mut connection = open(file, TABLES)?;
    let body = payload(PAYLOAD).into_bytes();
    let batch = i64::try_from(REQUEST)?;
    let start = Instant::now();
    let mut done: i64 = 0;
    while start.elapsed() < time {
        let publish = connection.transaction()?;
        for id in done + 1..=done + batch {
            publish.prepare_cached(PUBLISH[0])?.execute(params![id, body])?;
            each(&publish, &PUBLISH[1..], id)?;
        }
        publish.commit()?;

        let take = connection.transaction()?;
        let claimed: Vec<(i64, Vec<u8>)> = take
            .prepare_cached(FIND)?
            .query_map([batch], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        for (id, _) in &claimed {
            each(&take, &CLAIM, *id)?;
        }
        take.commit()?;

        let end = connection.transaction()?;
        for (id, _) in &claimed {
            each(&end, &END, *id)?;
        }
        end.commit()?;
        done += batch;
    }
    let took = start.elapsed();
    let done = usize::try_from(done)?;
    expect_rows(&connection, "job_log", done)?;
    expect_rows(&connection, "audit", 2 * done)?;
    Ok(rate(done, took))
}

fn each(transaction: &Transaction<'_>, statements: &[&str], id: i64) -> Result<()> {
    for statement in statements {
        transaction.prepare_cached(statement)?.execute([id])?;
    }
    Ok(())
}
