//! Reads what ingest has written with plain SQL: facts, and everything that refers to them.

use std::path::Path;

use super::{Failure, key_of};

/// The statements, with `{p}` where the namespace goes.
const FACTS: &str = "SELECT id, payload, targets FROM {p}events";
const ENTRIES: &str = "SELECT DISTINCT id, event_id FROM (
    SELECT id, event_id FROM {p}event_queue UNION ALL SELECT id, event_id FROM {p}event_log) AS e";
const JOBS: &str = "SELECT DISTINCT id, event_id FROM (
    SELECT id, event_id FROM {p}dispatch_queue UNION ALL SELECT id, event_id FROM {p}dispatch_log) AS j";
const KEYS: &str = "SELECT kind, event_id FROM {p}deduplication WHERE kind IN (4, 5)";
const TERMS: &str = "SELECT 0, event_id FROM {p}fact_terms";

/// What one snapshot holds. Rows that refer to facts are pairs of their own number and the fact's id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ingested {
    pub(crate) facts: Vec<FactRow>,
    pub(crate) entries: Vec<(i64, i64)>,
    pub(crate) jobs: Vec<(i64, i64)>,
    pub(crate) keys: Vec<(i64, i64)>,
    pub(crate) terms: Vec<(i64, i64)>,
}

/// A row of `events`; `key` is read from the payload.
#[derive(Debug, Clone)]
pub(crate) struct FactRow {
    pub(crate) id: i64,
    pub(crate) key: String,
    /// How many entries and jobs it says it has.
    pub(crate) targets: Option<i64>,
}

/// Reads a Postgres database in one snapshot.
pub(crate) async fn read_postgres(url: &str) -> Result<Ingested, Failure> {
    let (mut client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    let driver = tokio::spawn(connection);
    let snapshot = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await?;
    let mut read = Ingested::default();
    let facts = FACTS.replace("targets", "targets::bigint AS targets").replace("{p}", "tidegate.");
    for row in snapshot.query(&facts, &[]).await? {
        let payload: Vec<u8> = row.try_get("payload")?;
        read.facts.push(FactRow { id: row.try_get("id")?, key: key_of(&payload), targets: row.try_get("targets")? });
    }
    for (statement, rows) in read.referring() {
        let statement = format!("SELECT a::bigint, b FROM ({}) AS r(a, b)", statement.replace("{p}", "tidegate."));
        for row in snapshot.query(&statement, &[]).await? {
            rows.push((row.try_get(0)?, row.try_get(1)?));
        }
    }
    snapshot.commit().await?;
    drop(client);
    driver.await??;
    Ok(read)
}

/// Reads a SQLite database in one snapshot.
pub(crate) fn read_sqlite(path: &Path) -> Result<Ingested, Failure> {
    let mut connection = rusqlite::Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    let snapshot = connection.transaction()?;
    let mut read = Ingested::default();
    let facts = FACTS.replace("payload", "CAST(payload AS BLOB)").replace("{p}", "tidegate_");
    read.facts = snapshot
        .prepare(&facts)?
        .query_map([], |row| {
            let payload: Vec<u8> = row.get(1)?;
            Ok(FactRow { id: row.get(0)?, key: key_of(&payload), targets: row.get(2)? })
        })?
        .collect::<Result<_, _>>()?;
    for (statement, rows) in read.referring() {
        let mut statement = snapshot.prepare(&statement.replace("{p}", "tidegate_"))?;
        *rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    }
    Ok(read)
}

impl Ingested {
    /// The statements about rows that refer to facts, and where these go.
    fn referring(&mut self) -> [(&'static str, &mut Vec<(i64, i64)>); 4] {
        let Self { entries, jobs, keys, terms, .. } = self;
        [(ENTRIES, entries), (JOBS, jobs), (KEYS, keys), (TERMS, terms)]
    }
}
