//! Brings the schema up to date, under a lock, forward only.

use std::time::{Duration, Instant};

use tokio_postgres::{Client, Transaction};

use super::PostgresOptions;
use super::errors::{Fault, classify};
use crate::error::{Error, ErrorKind, Result};
use crate::store::SCHEMA_VERSION;

/// Each step: the version it leads to, the oldest program that can run on it, and its statements.
const STEPS: &[(i32, i32, &str)] = &[
    (1, 1, include_str!("0001_init.sql")),
    (2, 1, include_str!("0002_handlers.sql")),
    (3, 1, include_str!("0003_projections.sql")),
    (4, 1, include_str!("0004_schedules.sql")),
    (5, 1, include_str!("0005_worker_api.sql")),
    // A program that knows queues by name alone would make clients' queues anew, beside theirs.
    (8, 8, include_str!("0008_clients.sql")),
    (9, 8, include_str!("0009_catalogue.sql")),
    (10, 8, include_str!("0010_publish_sql.sql")),
    // A program that knows nothing of clients' counts would let them go wrong.
    (11, 11, include_str!("0011_lists.sql")),
    (12, 11, include_str!("0012_collations.sql")),
    (13, 11, include_str!("0013_histories.sql")),
];

/// How long a statement of a migration waits for a lock. Whoever comes after it waits behind it, so this is what a
/// migration may hold up others at most, each time.
const LOCK_PATIENCE: &str = "250ms";
/// How long a migration tries to get its locks.
const TRY_FOR: Duration = Duration::from_secs(60);

/// Checks the schema and, if asked to, migrates it. A migration that does not get a lock at once is rolled back and tried
/// again, so that traffic goes on in between.
pub(super) async fn migrate(client: &mut Client, options: &PostgresOptions) -> Result<()> {
    let deadline = Instant::now() + TRY_FOR;
    loop {
        match run(client, options).await.map_err(Fault::into_error) {
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < deadline => {
                tracing::debug!(%error, "the migration waits for a lock");
                tokio::time::sleep(Duration::from_millis(rand::random_range(100..500))).await;
            }
            done => return done,
        }
    }
}

async fn run(client: &mut Client, options: &PostgresOptions) -> Result<(), Fault> {
    let store = &options.store;
    let ns = &options.schema();
    let tx = client.transaction().await?;
    // One migration at a time per database and namespace; others wait here, then find it done.
    tx.batch_execute("SET LOCAL lock_timeout = '60s'").await?;
    let lock = format!("tidegate:{}", store.namespace);
    tx.query_one("SELECT count(pg_advisory_xact_lock(hashtextextended($1, 4711)))", &[&lock]).await?;
    tx.batch_execute(&format!("SET LOCAL lock_timeout = '{LOCK_PATIENCE}'")).await?;
    let meta = format!("{ns}.meta");
    let exists: bool = tx.query_one("SELECT to_regclass($1) IS NOT NULL", &[&meta]).await?.get(0);
    let (version, oldest) = if exists {
        let row = tx
            .query_one(&format!("SELECT schema_version, oldest_compatible, id_offset, id_step FROM {meta}"), &[])
            .await
            .map_err(|error| not_ours(ns, error))?;
        let (offset, step): (i64, i64) = (row.get(2), row.get(3));
        if (offset, step) != (store.ids.offset, store.ids.step) {
            return Err(Error::invalid(format!(
                "the database draws entry ids from offset {offset} in steps of {step}; open it with the same"
            ))
            .into());
        }
        (row.get(0), row.get(1))
    } else {
        (0, 0)
    };
    if oldest > SCHEMA_VERSION {
        return Err(schema_error(format!(
            "the schema {ns} is of version {version} and needs a program of version {oldest} or later; this one is {SCHEMA_VERSION}: upgrade it"
        )));
    }
    if version < SCHEMA_VERSION && !store.migrate {
        return Err(schema_error(format!(
            "the schema {ns} is of version {version}, this program needs {SCHEMA_VERSION}: run the migration or open with migrate"
        )));
    }
    if version == 0 {
        make_schema(&tx, &store.namespace).await?;
    }
    for (to, oldest, sql) in STEPS.iter().filter(|(to, ..)| *to > version) {
        tx.batch_execute(&fill(sql, options)).await?;
        let record = if *to == 1 {
            format!(
                "INSERT INTO {meta} (schema_version, oldest_compatible, id_offset, id_step) VALUES ({to}, {oldest}, {}, {});
                 INSERT INTO {ns}.heartbeat (at) VALUES (clock_timestamp());
                 INSERT INTO {ns}.queues (name) VALUES ('default')",
                store.ids.offset, store.ids.step
            )
        } else {
            format!(
                "UPDATE {meta} SET schema_version = {to}, oldest_compatible = greatest(oldest_compatible, {oldest})"
            )
        };
        tx.batch_execute(&record).await?;
    }
    // Publishers by plain SQL are held to this program's limit.
    let limit = store.payload_limit.0;
    tx.batch_execute(&format!("UPDATE {meta} SET payload_limit = {limit} WHERE payload_limit <> {limit}")).await?;
    super::order::continue_order(&tx, ns, store.migrate).await?;
    tx.commit().await?;
    Ok(())
}

/// Makes the schema, unless an administrator did: then no right to make one is needed.
async fn make_schema(tx: &Transaction<'_>, name: &str) -> Result<(), Fault> {
    let exists = tx.query_opt("SELECT FROM pg_namespace WHERE nspname = $1", &[&name]).await?.is_some();
    if !exists {
        tx.batch_execute(&format!("CREATE SCHEMA \"{name}\"")).await?;
    }
    Ok(())
}

fn fill(sql: &str, options: &PostgresOptions) -> String {
    let store = &options.store;
    // As a text of its own it is the name of the channel.
    sql.replace("'{ns}'", &format!("'{}'", store.namespace))
        .replace("{ns}", &options.schema())
        .replace("{id_offset}", &store.ids.offset.to_string())
        .replace("{id_step}", &store.ids.step.to_string())
        .replace("{payload_limit}", &store.payload_limit.0.to_string())
}

fn schema_error(message: String) -> Fault {
    Error::new(ErrorKind::Schema, message).into()
}

fn not_ours(ns: &str, error: tokio_postgres::Error) -> Fault {
    match classify(error) {
        Fault::Final(error) if error.kind() == ErrorKind::Schema => {
            schema_error(format!("the schema {ns} is not one of Tidegate's: choose another namespace"))
                .with_cause(error)
        }
        fault => fault,
    }
}

impl Fault {
    fn with_cause(self, cause: Error) -> Self {
        match self {
            Self::Final(error) => Self::Final(error.with_source(cause)),
            other => other,
        }
    }
}
