//! Brings the schema up to date, under a lock, forward only: the steps in one transaction, large indexes outside of it (see
//! [`indexes`]).

use std::time::{Duration, Instant};

use tokio_postgres::{Client, GenericClient, Transaction};

use super::PostgresOptions;
use super::errors::{Fault, classify};
use super::indexes::{self, Builder};
use crate::error::{Error, ErrorKind, Result};
use crate::store::SCHEMA_VERSION;

/// Each step: the version it leads to, the oldest program that can run on it, and its statements. Their locks last until all
/// are done, so that none takes long once it has a lock on a table; indexes over large ones are listed in [`indexes`].
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
pub(super) const LOCK_PATIENCE: &str = "250ms";
/// How long a migration tries to get its locks.
const TRY_FOR: Duration = Duration::from_secs(60);

/// A build takes as long as it takes, whatever the role or the database allows others. But a session that is silent between
/// two statements belongs to a machine that is gone, and its turn must not last until the network tells.
const UNHURRIED: &str = "SELECT set_config(name, CASE name WHEN 'idle_session_timeout' THEN '10s' ELSE '0' END, false)
    FROM pg_settings
    WHERE name IN ('statement_timeout', 'transaction_timeout', 'lock_timeout', 'idle_session_timeout')";

/// Bears with locks that are not granted, for a while.
pub(super) struct Patience(Instant);

impl Patience {
    pub(super) fn new() -> Self {
        Self(Instant::now() + TRY_FOR)
    }

    /// Whether trying again may help: others were in the way.
    pub(super) fn may_help(fault: &Fault) -> bool {
        match fault {
            Fault::Again(_) => true,
            Fault::Final(error) => error.kind() == ErrorKind::Busy,
            _ => false,
        }
    }

    /// Waits a moment, or gives up.
    pub(super) async fn bear(&self, fault: Fault) -> Result<(), Fault> {
        if !Self::may_help(&fault) || Instant::now() >= self.0 {
            return Err(fault);
        }
        tracing::debug!(error = %fault.into_error(), "the migration waits for a lock");
        tokio::time::sleep(Duration::from_millis(rand::random_range(100..500))).await;
        Ok(())
    }
}

/// Checks the schema and, if asked to, migrates it.
pub(super) async fn migrate(client: &mut Client, options: &PostgresOptions) -> Result<()> {
    client.batch_execute(UNHURRIED).await?;
    let upgrade = (1..SCHEMA_VERSION).contains(&standing(client, options).await.map_err(Fault::into_error)?);
    let done = if upgrade { in_turn(client, options).await } else { steps(client, options).await };
    let version = done.map_err(Fault::into_error)?;
    finish(client, options, version).await.map_err(Fault::into_error)
}

/// Brings an older schema up to date; one process at a time, which holds up no writer for longer than a moment.
async fn in_turn(client: &mut Client, options: &PostgresOptions) -> Result<i32, Fault> {
    let builder = Builder::new(client, options);
    builder.take_turn().await?;
    // Somebody else may have done it meanwhile.
    if (1..indexes::KEYS_STEP).contains(&standing(client, options).await?) {
        builder.build_keys().await?;
    }
    let version = steps(client, options).await?;
    let builder = Builder::new(client, options);
    builder.build_missing().await?;
    builder.end_turn().await?;
    Ok(version)
}

/// Sees to it that the indexes are there, also when another process stopped before they were.
async fn finish(client: &Client, options: &PostgresOptions, version: i32) -> Result<(), Fault> {
    // Which indexes a newer schema has is for newer programs to say.
    if version > SCHEMA_VERSION {
        return Ok(());
    }
    let builder = Builder::new(client, options);
    let missing = builder.missing().await?;
    if missing.is_empty() {
        return Ok(());
    }
    if !options.store.migrate {
        return Err(schema_error(format!(
            "the schema {} still lacks indexes ({}): run `tidegate migrate` or open with migrate, or wait until the migration \
             that builds them is done",
            options.schema(),
            missing.join(", ")
        )));
    }
    builder.take_turn().await?;
    builder.build_missing().await?;
    builder.end_turn().await
}

/// Runs the steps. A transaction that does not get a lock at once is rolled back and tried again, so that traffic goes on in
/// between. Answers the schema's version.
async fn steps(client: &mut Client, options: &PostgresOptions) -> Result<i32, Fault> {
    let patience = Patience::new();
    loop {
        match run(client, options).await {
            Ok(version) => return Ok(version),
            Err(fault) => patience.bear(fault).await?,
        }
    }
}

/// The version of the schema, 0 where there is none; an error where this program may not run on it.
async fn standing(client: &impl GenericClient, options: &PostgresOptions) -> Result<i32, Fault> {
    let (store, ns) = (&options.store, &options.schema());
    let meta = format!("{ns}.meta");
    // Not by to_regclass, which believes what this connection once knew of the name, also that it was free.
    let exists = "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relname = 'meta'";
    let exists = client.query_opt(exists, &[&store.namespace]).await?.is_some();
    let (version, oldest) = if exists {
        let row = client
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
            "the schema {ns} is of version {version}, this program needs {SCHEMA_VERSION}: run `tidegate migrate` or open with migrate"
        )));
    }
    Ok(version)
}

async fn run(client: &mut Client, options: &PostgresOptions) -> Result<i32, Fault> {
    let store = &options.store;
    let ns = &options.schema();
    let tx = client.transaction().await?;
    // One transaction of this kind at a time per database and namespace; others wait here, then find it done.
    tx.batch_execute("SET LOCAL lock_timeout = '60s'").await?;
    let lock = format!("tidegate:{}", store.namespace);
    tx.query_one("SELECT count(pg_advisory_xact_lock(hashtextextended($1, 4711)))", &[&lock]).await?;
    tx.batch_execute(&format!("SET LOCAL lock_timeout = '{LOCK_PATIENCE}'")).await?;
    let meta = format!("{ns}.meta");
    let version = standing(&tx, options).await?;
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
    if version == 0 {
        indexes::make_all(&tx, ns).await?;
    }
    // Publishers by plain SQL are held to this program's limit.
    let limit = store.payload_limit.0;
    tx.batch_execute(&format!("UPDATE {meta} SET payload_limit = {limit} WHERE payload_limit <> {limit}")).await?;
    super::order::continue_order(&tx, ns, store.migrate).await?;
    tx.commit().await?;
    Ok(version.max(SCHEMA_VERSION))
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
