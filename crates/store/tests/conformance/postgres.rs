//! A PostgreSQL database for one case.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::{Availability, DedupMode, End, NewEvent, Tsid};
use tidegate_store::api::*;
use tidegate_store::conformance::{CallerTx, Fixture};
use tidegate_store::postgres::{PostgresOptions, PostgresStore};
use tidegate_store::{Backend, Finalize, Finalized, Published, Result, StoreOptions};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Transaction};

#[derive(Debug)]
pub(crate) struct Postgres {
    url: String,
    stores: Mutex<Vec<Arc<PostgresStore>>>,
}

impl Postgres {
    pub(crate) async fn new() -> Self {
        let url = tokio::task::spawn_blocking(tidegate_testing::fresh_database).await.unwrap();
        let fixture = Self { url, stores: Mutex::default() };
        fixture.connect().await.batch_execute("CREATE TABLE own (number integer NOT NULL)").await.unwrap();
        fixture
    }

    async fn connect(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    async fn count(&self, statement: &str) -> u64 {
        let count: i64 = self.connect().await.query_one(statement, &[]).await.unwrap().get(0);
        u64::try_from(count).unwrap()
    }
}

#[async_trait]
impl Fixture for Postgres {
    fn backend(&self) -> Backend {
        Backend::Postgres
    }

    async fn open(&self, options: StoreOptions) -> Result<Arc<dyn Store>> {
        let mut settings = PostgresOptions::default();
        settings.store = options;
        let store = Arc::new(PostgresStore::open(&self.url, settings).await?);
        self.stores.lock().unwrap().push(store.clone());
        Ok(store)
    }

    async fn begin(&self) -> Box<dyn CallerTx> {
        let store = self.stores.lock().unwrap().last().unwrap().clone();
        // A transaction borrows its client, so the client is leaked: it lives as long as the test process.
        let client: &'static mut Client = Box::leak(Box::new(self.connect().await));
        let transaction = client.transaction().await.unwrap();
        Box::new(Caller { transaction, store })
    }

    async fn own_rows(&self) -> u64 {
        self.count("SELECT count(*) FROM own").await
    }

    async fn set_schema(&self, version: i32, oldest_compatible: i32) {
        let statement = "UPDATE tidegate.meta SET schema_version = $1, oldest_compatible = $2";
        assert_eq!(self.connect().await.execute(statement, &[&version, &oldest_compatible]).await.unwrap(), 1);
    }

    async fn age_heartbeat(&self, by: Duration) {
        let statement = "UPDATE tidegate.heartbeat SET at = at - $1 * interval '1 second'";
        assert_eq!(self.connect().await.execute(statement, &[&by.as_secs_f64()]).await.unwrap(), 1);
    }

    async fn sql(&self, statement: &str) {
        self.connect().await.batch_execute(&named(statement)).await.unwrap();
    }

    async fn number(&self, query: &str) -> i64 {
        self.connect().await.query_one(&named(query), &[]).await.unwrap().get(0)
    }

    async fn lose_fact(&self, event: Tsid) {
        let statement = "DELETE FROM tidegate.events WHERE id = $1";
        assert_eq!(self.connect().await.execute(statement, &[&event.to_i64()]).await.unwrap(), 1);
    }

    async fn somebody_waits(&self) -> Option<bool> {
        let waiting = "SELECT count(*) FROM pg_stat_activity \
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        Some(self.count(waiting).await > 0)
    }

    async fn forgotten_transactions(&self) -> u64 {
        self.count(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
        )
        .await
    }

    async fn finish(&self) {
        let stores = std::mem::take(&mut *self.stores.lock().unwrap());
        for store in stores {
            store.close().await;
        }
        let url = self.url.clone();
        tokio::task::spawn_blocking(move || tidegate_testing::drop_database(&url)).await.unwrap().unwrap();
    }
}

/// The table that cases call `meta` has another name here.
fn named(statement: &str) -> String {
    statement.replace("tidegate.meta", "tidegate.store")
}

/// A transaction on a connection of the application.
struct Caller {
    transaction: Transaction<'static>,
    store: Arc<PostgresStore>,
}

#[async_trait]
impl CallerTx for Caller {
    async fn publish_in(&mut self, events: Vec<NewEvent>) -> Result<Vec<Published>> {
        self.store.publish_in(&self.transaction, events).await
    }

    async fn finalize_in(&mut self, items: Vec<Finalize>) -> Result<Vec<Finalized>> {
        self.store.finalize_in(&self.transaction, items).await
    }

    async fn publish_sql(&mut self, event: &NewEvent) -> std::result::Result<(), String> {
        let (delay, at) = match event.available {
            Availability::Now => (None, None),
            Availability::After(delay) => (Some(delay.as_secs_f64()), None),
            Availability::At(at) => (None, Some(at)),
        };
        let statement = "SELECT tidegate.publish($1, $2::bytea, queue => $3, priority => $4, \
                         delay => $5::float8 * interval '1 second', message_group => $6, deduplication_id => $7, \
                         max_attempts => $8, source => $9, subject => $10, content_type => $11, correlation_id => $12, \
                         causation_id => $13, attributes => $14, tags => $15, title => $16, description => $17, \
                         event_time => $18, available_at => $19, replace_waiting => $20, retry => $21, \
                         max_retries => $22, external_id => $23)";
        let key = event.deduplication.as_ref().map(|deduplication| &deduplication.key);
        let replace = event.deduplication.as_ref().map(|deduplication| deduplication.mode == DedupMode::ReplaceWaiting);
        let (payload, queue, priority) = (event.payload.as_ref(), event.queue.name(), i32::from(event.priority));
        let attempts = i32::try_from(event.max_attempts).unwrap();
        let retries = (event.exhausted_as == End::Failed).then_some(attempts - 1);
        let attempts = retries.is_none().then_some(attempts);
        let tags = (!event.tags.is_empty()).then(|| event.tags.join(","));
        let retry = event.retry.as_ref().map(|policy| serde_json::to_string(policy).unwrap());
        let values: [&(dyn ToSql + Sync); 23] = [
            &event.event_type,
            &payload,
            &queue,
            &priority,
            &delay,
            &event.group,
            &key,
            &attempts,
            &event.source,
            &event.subject,
            &event.content_type,
            &event.correlation_id,
            &event.causation_id,
            &event.attributes,
            &tags,
            &event.title,
            &event.description,
            &event.time,
            &at,
            &replace,
            &retry,
            &retries,
            &event.external_id,
        ];
        match self.transaction.query_one(statement, &values).await {
            Ok(_) => Ok(()),
            Err(error) => Err(error.as_db_error().map_or_else(|| error.to_string(), |said| said.message().to_owned())),
        }
    }

    async fn run_sql(&mut self, statement: &str) -> std::result::Result<(), String> {
        let said =
            |error: tokio_postgres::Error| error.as_db_error().map_or_else(String::new, |said| said.message().into());
        self.transaction.batch_execute(statement).await.map_err(said)
    }

    async fn write_own_row(&mut self) {
        self.transaction.execute("INSERT INTO own VALUES (1)", &[]).await.unwrap();
    }

    async fn commit(self: Box<Self>) {
        self.transaction.commit().await.unwrap();
    }

    async fn rollback(self: Box<Self>) {
        self.transaction.rollback().await.unwrap();
    }
}
