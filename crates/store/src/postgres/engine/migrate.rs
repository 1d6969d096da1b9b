//! Brings the schema up to date, under a lock, forward only: all steps in one transaction, large indexes outside of it
//! (see [`indexes`]).

use tokio_postgres::{Client, GenericClient, Transaction};

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::errors::{Fault, classify};
use crate::postgres::engine::indexes::{self, Builder};
use crate::postgres::engine::options::PostgresOptions;
use crate::postgres::engine::patience::{CYCLE_PATIENCE, LOCK_PATIENCE, Patience};
use crate::values::SCHEMA_VERSION;
use crate::values::options::too_old;

/// Each step: the version it leads to, the oldest program that can run on it, and its statements. All locks are held
/// until the last step is done, so no statement may take long once it has locked a table; indexes over large tables are
/// listed in [`indexes`].
const STEPS: &[(i32, i32, &str)] = &[
    (1, 1, include_str!("../migrations/0001_init.sql")),
    (2, 1, include_str!("../migrations/0002_handlers.sql")),
    (3, 1, include_str!("../migrations/0003_projections.sql")),
    (4, 1, include_str!("../migrations/0004_schedules.sql")),
    (5, 1, include_str!("../migrations/0005_worker_api.sql")),
    // A program that knows queues by name alone would create the queues of clients a second time.
    (8, 8, include_str!("../migrations/0008_clients.sql")),
    (9, 8, include_str!("../migrations/0009_catalogue.sql")),
    (10, 8, include_str!("../migrations/0010_publish_sql.sql")),
    // A program that does not know the counts by client would let them become wrong.
    (11, 11, include_str!("../migrations/0011_lists.sql")),
    (12, 11, include_str!("../migrations/0012_collations.sql")),
    (13, 11, include_str!("../migrations/0013_histories.sql")),
    // A program that does not know what is aside, or kept, would lose it.
    (14, 14, include_str!("../migrations/0014_families.sql")),
    // An older program looks for keys in a table that is gone.
    (15, 15, include_str!("../migrations/0015_resources.sql")),
    // A program that does not know that facts may have several entries would remove a fact with the first of them.
    (16, 16, include_str!("../migrations/0016_facts.sql")),
    // For SQLite only: an index's condition.
    (17, 16, ""),
    // The terms of a fact that an older program's retention removes stay: no search finds anything by them.
    (18, 16, include_str!("../migrations/0018_found_facts.sql")),
    // The attempts at a job that an older program's retention removes stay: nothing shows them.
    (19, 16, include_str!("../migrations/0019_dispatch.sql")),
    // What is said about a TASK job that an older program's retention removes stays: nothing shows it.
    (20, 16, include_str!("../migrations/0020_tasks.sql")),
];

/// The step since which the row with the catalogue's version is in the table `store`, before in `meta`.
const STORE_STEP: i32 = 14;

/// Tables that steps change and that programs use all the time; older schemas do not have all of them.
const BUSY_TABLES: [&str; 7] = ["event_queue", "events", "event_log", "dispatch_log", "lanes", "queues", "api_keys"];

/// Turns off the timeouts that the role or the database sets: an index build takes as long as it takes. A session that
/// is idle for 10 seconds between two statements belongs to a machine that is gone, though; it must not keep its turn
/// until the network reports that.
const UNLIMITED: &str = "SELECT set_config(name, CASE name WHEN 'idle_session_timeout' THEN '10s' ELSE '0' END, false)
    FROM pg_settings
    WHERE name IN ('statement_timeout', 'transaction_timeout', 'lock_timeout', 'idle_session_timeout')";

/// Checks the schema and, if asked to, migrates it.
pub(in crate::postgres) async fn migrate(client: &mut Client, options: &PostgresOptions) -> Result<()> {
    client.batch_execute(UNLIMITED).await?;
    let is_older = (1..SCHEMA_VERSION).contains(&check_version(client, options).await.map_err(Fault::into_error)?);
    let done = if is_older { upgrade(client, options).await } else { steps(client, options).await };
    let version = done.map_err(Fault::into_error)?;
    ensure_indexes(client, options, version).await.map_err(Fault::into_error)
}

/// Brings an older schema up to date. One process at a time does so, and blocks writers only for moments.
async fn upgrade(client: &mut Client, options: &PostgresOptions) -> Result<i32, Fault> {
    let builder = Builder::new(client, options);
    builder.take_turn().await?;
    // Another process may have migrated while this one waited for its turn.
    let version = check_version(client, options).await?;
    if (1..indexes::KEYS_STEP).contains(&version) {
        builder.build_keys().await?;
    }
    if (1..indexes::FACTS_STEP).contains(&version) {
        builder.build_facts_index().await?;
    }
    let version = steps(client, options).await?;
    let builder = Builder::new(client, options);
    builder.build_missing().await?;
    builder.end_turn().await?;
    Ok(version)
}

/// Builds indexes that are missing, as when another process stopped before it had built them all.
async fn ensure_indexes(client: &Client, options: &PostgresOptions, version: i32) -> Result<(), Fault> {
    // Only a newer program knows which indexes a newer schema has.
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

/// Runs the steps and returns the schema's version. A transaction that does not get a lock within [`LOCK_PATIENCE`] is
/// rolled back and tried again, so that traffic continues in between.
async fn steps(client: &mut Client, options: &PostgresOptions) -> Result<i32, Fault> {
    let patience = Patience::new();
    loop {
        match run(client, options).await {
            Ok(version) => return Ok(version),
            Err(fault) => patience.bear(fault).await?,
        }
    }
}

/// The version of the schema, 0 if there is none; an error if this program cannot run on it.
async fn check_version(client: &impl GenericClient, options: &PostgresOptions) -> Result<i32, Fault> {
    let (store, ns) = (&options.store, &options.schema());
    // Under the name that it had before schema 14: that of a view since.
    let meta = format!("{ns}.meta");
    // Not by to_regclass: it may answer from this connection's cache, even that the name did not exist.
    let exists = "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relname = 'meta'";
    let exists = client.query_opt(exists, &[&store.namespace]).await?.is_some();
    let (version, oldest) = if exists {
        let row = client
            .query_one(&format!("SELECT schema_version, oldest_compatible, id_offset, id_step FROM {meta}"), &[])
            .await
            .map_err(|error| not_ours(ns, error))?;
        let (offset, step): (i64, i64) = (row.get("id_offset"), row.get("id_step"));
        if (offset, step) != (store.ids.offset, store.ids.step) {
            return Err(Error::invalid(format!(
                "the database draws entry ids from offset {offset} in steps of {step}: open it with the same values"
            ))
            .into());
        }
        (row.get("schema_version"), row.get("oldest_compatible"))
    } else {
        (0, 0)
    };
    if let Some(error) = too_old(ns, version, oldest) {
        return Err(error.into());
    }
    if version < SCHEMA_VERSION && !store.migrate {
        return Err(schema_error(format!(
            "the schema {ns} has version {version}, this program needs {SCHEMA_VERSION}: run `tidegate migrate` or open with migrate"
        )));
    }
    Ok(version)
}

async fn run(client: &mut Client, options: &PostgresOptions) -> Result<i32, Fault> {
    let store = &options.store;
    let ns = &options.schema();
    let tx = client.transaction().await?;
    // One migration at a time per database and namespace; others wait here and then find it done.
    tx.batch_execute("SET LOCAL lock_timeout = '60s'").await?;
    let lock = format!("tidegate:{}", store.namespace);
    tx.query_one("SELECT count(pg_advisory_xact_lock(hashtextextended($1, 4711)))", &[&lock]).await?;
    tx.batch_execute(&format!("SET LOCAL lock_timeout = '{LOCK_PATIENCE}'")).await?;
    let meta = format!("{ns}.meta");
    let version = check_version(&tx, options).await?;
    if version == 0 {
        make_schema(&tx, &store.namespace).await?;
    } else if version < SCHEMA_VERSION {
        let first = if version < STORE_STEP { "meta" } else { "store" };
        lock_tables(&tx, options, first).await?;
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
    } else if version < SCHEMA_VERSION {
        // Nodes that run read the catalogue again, and with it whether they still may.
        tx.batch_execute(&format!("UPDATE {ns}.store SET catalogue_version = catalogue_version + 1")).await?;
    }
    // Publishers that use plain SQL get this program's limit too.
    let limit = store.payload_limit.0;
    tx.batch_execute(&format!("UPDATE {meta} SET payload_limit = {limit} WHERE payload_limit <> {limit}")).await?;
    crate::postgres::engine::log_order::continue_order(&tx, ns, store.migrate).await?;
    tx.commit().await?;
    Ok(version.max(SCHEMA_VERSION))
}

/// Locks the tables that traffic uses, `first` before the others: most transactions of programs read it before anything else, and none that
/// found its version fit must go on after the steps. A single statement of theirs may have locked other tables before it,
/// and now waits for it: PostgreSQL ends such a statement after its `deadlock_timeout` of a second, and the program runs it
/// again. So all other locks are asked for at once, and for longer than that. Live entries come first: nearly all such
/// statements use them. (It looks for a deadlock only once: one that has other tables locked is met by the next try.)
async fn lock_tables(tx: &Transaction<'_>, options: &PostgresOptions, first: &str) -> Result<(), Fault> {
    let (name, ns) = (&options.store.namespace, options.schema());
    tx.batch_execute(&format!("LOCK TABLE {ns}.{first} IN ACCESS EXCLUSIVE MODE")).await?;
    let tables = "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relname = ANY ($2) ORDER BY array_position($2, c.relname::text)";
    let tables = tx.query(tables, &[name, &BUSY_TABLES.as_slice()]).await?;
    let tables: Vec<String> = tables.iter().map(|row| format!("{ns}.{}", row.get::<_, &str>("relname"))).collect();
    let tables = tables.join(", ");
    tx.batch_execute(&format!(
        "SET LOCAL lock_timeout = '{CYCLE_PATIENCE}';
         LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE;
         SET LOCAL lock_timeout = '{LOCK_PATIENCE}'"
    ))
    .await?;
    Ok(())
}

/// Creates the schema, unless an administrator did: then the role needs no right to create one.
async fn make_schema(tx: &Transaction<'_>, name: &str) -> Result<(), Fault> {
    let exists = tx.query_opt("SELECT FROM pg_namespace WHERE nspname = $1", &[&name]).await?.is_some();
    if !exists {
        tx.batch_execute(&format!("CREATE SCHEMA \"{name}\"")).await?;
    }
    Ok(())
}

fn fill(sql: &str, options: &PostgresOptions) -> String {
    let store = &options.store;
    // As a string literal it is the name of the notification channel, without the quotes of an identifier.
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
