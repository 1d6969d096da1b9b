//! Brings the schema up to date, under a lock, forward only.

use tokio_postgres::Client;

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
];

/// Checks the schema and, if asked to, migrates it.
pub(super) async fn migrate(client: &mut Client, options: &PostgresOptions) -> Result<()> {
    run(client, options).await.map_err(Fault::into_error)
}

async fn run(client: &mut Client, options: &PostgresOptions) -> Result<(), Fault> {
    let store = &options.store;
    let ns = &store.namespace;
    let tx = client.transaction().await?;
    // One migration at a time per database and namespace; others wait here, then find it done.
    tx.batch_execute("SET LOCAL lock_timeout = '60s'").await?;
    tx.query_one("SELECT count(pg_advisory_xact_lock(hashtextextended($1, 4711)))", &[&format!("tidegate:{ns}")])
        .await?;
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
            format!("UPDATE {meta} SET schema_version = {to}, oldest_compatible = {oldest}")
        };
        tx.batch_execute(&record).await?;
    }
    super::order::continue_order(&tx, ns, store.migrate).await?;
    tx.commit().await?;
    Ok(())
}

fn fill(sql: &str, options: &PostgresOptions) -> String {
    let store = &options.store;
    sql.replace("{ns}", &store.namespace)
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
