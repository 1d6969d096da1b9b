//! A SQLite file for one case.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, params};
use tempfile::TempDir;
use tidegate_core::{Availability, DedupMode, End, NewEvent, Tsid};
use tidegate_store::api::*;
use tidegate_store::conformance::{CallerTx, Fixture};
use tidegate_store::sqlite::{SqliteOptions, SqliteStore};
use tidegate_store::{Backend, Finalize, Finalized, Published, Result, StoreOptions};

#[derive(Debug)]
pub(crate) struct Sqlite {
    folder: TempDir,
    stores: Mutex<Vec<SqliteStore>>,
}

impl Sqlite {
    pub(crate) async fn new() -> Self {
        let fixture = Self { folder: tempfile::tempdir().unwrap(), stores: Mutex::default() };
        fixture.connect().execute_batch("CREATE TABLE own (number INTEGER NOT NULL)").unwrap();
        fixture
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("events.db")
    }

    /// A connection as the application would open it.
    fn connect(&self) -> Connection {
        let connection = Connection::open(self.path()).unwrap();
        connection.busy_timeout(Duration::from_secs(20)).unwrap();
        connection
    }
}

#[async_trait]
impl Fixture for Sqlite {
    fn backend(&self) -> Backend {
        Backend::Sqlite
    }

    async fn open(&self, options: StoreOptions) -> Result<Arc<dyn Store>> {
        let mut settings = SqliteOptions::default();
        settings.store = options;
        let store = SqliteStore::open(self.path(), settings).await?;
        self.stores.lock().unwrap().push(store.clone());
        Ok(Arc::new(store))
    }

    async fn begin(&self) -> Box<dyn CallerTx> {
        let store = self.stores.lock().unwrap().last().unwrap().clone();
        let connection = self.connect();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        Box::new(Caller { connection, store })
    }

    async fn own_rows(&self) -> u64 {
        let count: i64 = self.connect().query_row("SELECT count(*) FROM own", [], |row| row.get(0)).unwrap();
        u64::try_from(count).unwrap()
    }

    async fn set_schema(&self, version: i32, oldest_compatible: i32) {
        let statement = "UPDATE tidegate_meta SET schema_version = ?1, oldest_compatible = ?2";
        assert_eq!(self.connect().execute(statement, [version, oldest_compatible]).unwrap(), 1);
    }

    async fn age_heartbeat(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).unwrap();
        let changed = self.connect().execute("UPDATE tidegate_heartbeat SET at = at - ?1", [micros]).unwrap();
        assert_eq!(changed, 1);
    }

    async fn sql(&self, statement: &str) {
        self.connect().execute_batch(&statement.replace("tidegate.", "tidegate_")).unwrap();
    }

    async fn number(&self, query: &str) -> i64 {
        self.connect().query_row(&query.replace("tidegate.", "tidegate_"), [], |row| row.get(0)).unwrap()
    }

    async fn lose_fact(&self, event: Tsid) {
        let removed = self.connect().execute("DELETE FROM tidegate_events WHERE id = ?1", [event.to_i64()]).unwrap();
        assert_eq!(removed, 1);
    }

    async fn somebody_waits(&self) -> Option<bool> {
        None
    }

    async fn forgotten_transactions(&self) -> u64 {
        let connection = Connection::open(self.path()).unwrap();
        connection.busy_timeout(Duration::ZERO).unwrap();
        u64::from(connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_err())
    }

    async fn drop_namespace(&self, namespace: &str) {
        let connection = self.connect();
        let names = "SELECT type, name FROM sqlite_master WHERE type IN ('view', 'table') AND name GLOB ?1 || '_*'";
        let mut names = connection.prepare(names).unwrap();
        let found = names.query_map([namespace], |row| Ok((row.get("type")?, row.get("name")?))).unwrap();
        let found: Vec<(String, String)> = found.collect::<rusqlite::Result<_>>().unwrap();
        for (kind, name) in found {
            connection.execute_batch(&format!("DROP {kind} IF EXISTS {name}")).unwrap();
        }
    }

    async fn finish(&self) {
        let stores = std::mem::take(&mut *self.stores.lock().unwrap());
        for store in stores {
            store.close().await;
        }
    }
}

/// A transaction on a connection of the application.
struct Caller {
    connection: Connection,
    store: SqliteStore,
}

#[async_trait]
impl CallerTx for Caller {
    async fn publish_in(&mut self, events: Vec<NewEvent>) -> Result<Vec<Published>> {
        self.store.publish_in(&self.connection, events)
    }

    async fn finalize_in(&mut self, items: Vec<Finalize>) -> Result<Vec<Finalized>> {
        self.store.finalize_in(&self.connection, items)
    }

    async fn publish_sql(&mut self, event: &NewEvent) -> std::result::Result<(), String> {
        let (delay, at) = match event.available {
            Availability::Now => (None, None),
            Availability::After(delay) => (Some(i64::try_from(delay.as_millis()).unwrap()), None),
            Availability::At(at) => (None, Some(at.to_string())),
        };
        let statement = "INSERT INTO tidegate_publish (event_type, payload, queue, priority, delay_ms, message_group, \
                         deduplication_id, max_attempts, source, subject, content_type, correlation_id, causation_id, \
                         attributes, tags, title, description, event_time, available_at, replace_waiting, retry, \
                         max_retries, external_id) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, \
                         ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23)";
        let key = event.deduplication.as_ref().map(|deduplication| &deduplication.key);
        let replace = event.deduplication.as_ref().map(|deduplication| deduplication.mode == DedupMode::ReplaceWaiting);
        let retries = (event.exhausted_as == End::Failed).then(|| event.max_attempts - 1);
        let values = params![
            event.event_type,
            event.payload.as_ref(),
            event.queue.name(),
            event.priority,
            delay,
            event.group,
            key,
            retries.is_none().then_some(event.max_attempts),
            event.source,
            event.subject,
            event.content_type,
            event.correlation_id,
            event.causation_id,
            event.attributes,
            (!event.tags.is_empty()).then(|| event.tags.join(",")),
            event.title,
            event.description,
            event.time.map(|time| time.as_microsecond()),
            at,
            replace,
            event.retry.as_ref().map(|policy| serde_json::to_string(policy).unwrap()),
            retries,
            event.external_id,
        ];
        self.connection.execute(statement, values).map(drop).map_err(|error| error.to_string())
    }

    async fn run_sql(&mut self, statement: &str) -> std::result::Result<(), String> {
        self.connection.execute_batch(statement).map_err(|error| error.to_string())
    }

    async fn write_own_row(&mut self) {
        self.connection.execute("INSERT INTO own VALUES (1)", []).unwrap();
    }

    async fn commit(self: Box<Self>) {
        self.connection.execute_batch("COMMIT").unwrap();
    }

    async fn rollback(self: Box<Self>) {
        // A refused `finalize_in` may have rolled the transaction back already.
        if !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK").unwrap();
        }
    }
}
