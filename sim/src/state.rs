//! Reads the contents of the database with plain SQL, without the library under test.

pub(crate) mod deliver;
pub(crate) mod ingest;

use std::error::Error;
use std::path::Path;

/// The contents of a database in one snapshot.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    /// The number of rows of `events`.
    pub(crate) facts: u64,
    pub(crate) live: Vec<LiveRow>,
    pub(crate) log: Vec<LogRow>,
}

/// A row of `event_queue`; `key` is read from the payload of its fact.
#[derive(Debug, Clone)]
pub(crate) struct LiveRow {
    pub(crate) id: i64,
    pub(crate) key: String,
    pub(crate) token: i64,
    pub(crate) attempts: u32,
    pub(crate) leased: bool,
}

/// A row of `event_log`; `finished_at` in microseconds, `key` from the payload of its fact.
#[derive(Debug, Clone)]
pub(crate) struct LogRow {
    pub(crate) id: i64,
    pub(crate) generation: u32,
    pub(crate) key: String,
    pub(crate) token: i64,
    pub(crate) attempts: u32,
    pub(crate) max_attempts: u32,
    pub(crate) status: i16,
    pub(crate) superseded: bool,
    pub(crate) finished_at: i64,
}

/// A row of `event_audit`.
#[derive(Debug, Clone)]
pub(crate) struct AuditRow {
    pub(crate) entry: i64,
    pub(crate) action: i16,
    pub(crate) token: i64,
    pub(crate) worker: Option<String>,
}

impl State {
    /// Every row as (entry, key); an entry with several generations appears several times.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (i64, &str)> {
        let live = self.live.iter().map(|row| (row.id, row.key.as_str()));
        live.chain(self.log.iter().map(|row| (row.id, row.key.as_str())))
    }

    /// Every row as (entry, token); an entry with several generations appears several times.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = (i64, i64)> {
        let live = self.live.iter().map(|row| (row.id, row.token));
        live.chain(self.log.iter().map(|row| (row.id, row.token)))
    }
}

/// The key that a payload carries: its first line, without the quotes of a JSON string.
pub(crate) fn key_of(payload: &[u8]) -> String {
    let line = payload.split(|byte| *byte == b'\n').next().unwrap_or_default();
    String::from_utf8_lossy(line).trim_matches('"').to_owned()
}

type Failure = Box<dyn Error + Send + Sync>;

/// Reads a Postgres database in one snapshot.
pub(crate) async fn read_postgres(url: &str) -> Result<State, Failure> {
    let (mut client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    let driver = tokio::spawn(connection);
    let snapshot = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await?;
    let facts: i64 = snapshot.query_one("SELECT count(*) FROM tidegate.events", &[]).await?.get("count");
    let live = snapshot
        .query(
            "SELECT q.id, e.payload, q.token, q.attempts, q.lease_until IS NOT NULL AS leased
             FROM tidegate.event_queue q LEFT JOIN tidegate.events e ON e.id = q.event_id",
            &[],
        )
        .await?;
    let log = snapshot
        .query(
            "SELECT g.id, g.generation, e.payload, g.token, g.attempts, g.max_attempts, g.status, g.superseded <> 0 AS superseded,
                    (extract(epoch FROM g.finished_at) * 1000000)::bigint AS finished_at
             FROM tidegate.event_log g LEFT JOIN tidegate.events e ON e.id = g.event_id",
            &[],
        )
        .await?;
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    let key = |payload: Option<Vec<u8>>| payload.map_or_else(|| "(no fact)".into(), |payload| key_of(&payload));
    let live = live.iter().map(|row| {
        Ok::<_, tokio_postgres::Error>(LiveRow {
            id: row.try_get("id")?,
            key: key(row.try_get("payload")?),
            token: row.try_get("token")?,
            attempts: count(row.try_get("attempts")?),
            leased: row.try_get("leased")?,
        })
    });
    let log = log.iter().map(|row| {
        Ok::<_, tokio_postgres::Error>(LogRow {
            id: row.try_get("id")?,
            generation: count(row.try_get("generation")?),
            key: key(row.try_get("payload")?),
            token: row.try_get("token")?,
            attempts: count(row.try_get("attempts")?),
            max_attempts: count(row.try_get("max_attempts")?),
            status: row.try_get("status")?,
            superseded: row.try_get("superseded")?,
            finished_at: row.try_get("finished_at")?,
        })
    });
    let (live, log) = (live.collect::<Result<_, _>>()?, log.collect::<Result<_, _>>()?);
    let state = State { facts: u64::try_from(facts)?, live, log };
    snapshot.commit().await?;
    drop(client);
    driver.await??;
    Ok(state)
}

/// Reads a SQLite database in one snapshot.
pub(crate) fn read_sqlite(path: &Path) -> Result<State, Failure> {
    let mut connection = rusqlite::Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    let snapshot = connection.transaction()?;
    let facts: i64 = snapshot.query_row("SELECT count(*) AS count FROM tidegate_events", [], |row| row.get("count"))?;
    let key = |payload: Option<Vec<u8>>| payload.map_or_else(|| "(no fact)".into(), |payload| key_of(&payload));
    let live = snapshot
        .prepare(
            "SELECT q.id, CAST(e.payload AS BLOB) AS payload, q.token, q.attempts, q.lease_until IS NOT NULL AS leased
             FROM tidegate_event_queue q LEFT JOIN tidegate_events e ON e.id = q.event_id",
        )?
        .query_map([], |row| {
            Ok(LiveRow {
                id: row.get("id")?,
                key: key(row.get("payload")?),
                token: row.get("token")?,
                attempts: row.get("attempts")?,
                leased: row.get("leased")?,
            })
        })?
        .collect::<Result<_, _>>()?;
    let log = snapshot
        .prepare(
            "SELECT g.id, g.generation, CAST(e.payload AS BLOB) AS payload, g.token, g.attempts, g.max_attempts, g.status,
                    g.superseded, g.finished_at
             FROM tidegate_event_log g LEFT JOIN tidegate_events e ON e.id = g.event_id",
        )?
        .query_map([], |row| {
            Ok(LogRow {
                id: row.get("id")?,
                generation: row.get("generation")?,
                key: key(row.get("payload")?),
                token: row.get("token")?,
                attempts: row.get("attempts")?,
                max_attempts: row.get("max_attempts")?,
                status: row.get("status")?,
                superseded: row.get("superseded")?,
                finished_at: row.get("finished_at")?,
            })
        })?
        .collect::<Result<_, _>>()?;
    Ok(State { facts: u64::try_from(facts)?, live, log })
}

/// Reads the audit of a Postgres database.
pub(crate) async fn read_audit_postgres(url: &str) -> Result<Vec<AuditRow>, Failure> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    let driver = tokio::spawn(connection);
    let rows = client.query("SELECT entry_id, action, token, worker FROM tidegate.event_audit", &[]).await?;
    let rows = rows.iter().map(|row| {
        Ok::<_, tokio_postgres::Error>(AuditRow {
            entry: row.try_get("entry_id")?,
            action: row.try_get("action")?,
            token: row.try_get("token")?,
            worker: row.try_get("worker")?,
        })
    });
    let rows = rows.collect::<Result<_, _>>()?;
    drop(client);
    driver.await??;
    Ok(rows)
}

/// Reads the audit of a SQLite database.
pub(crate) fn read_audit_sqlite(path: &Path) -> Result<Vec<AuditRow>, Failure> {
    let connection = rusqlite::Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    let mut query = connection.prepare("SELECT entry_id, action, token, worker FROM tidegate_event_audit")?;
    let rows = query.query_map([], |row| {
        Ok(AuditRow {
            entry: row.get("entry_id")?,
            action: row.get("action")?,
            token: row.get("token")?,
            worker: row.get("worker")?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}
