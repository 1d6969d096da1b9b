//! Migrates the tables of one namespace to this program's version, under SQLite's write lock.

use rusqlite::{Connection, OptionalExtension};

use crate::error::{Error, ErrorKind, Result};
use crate::sqlite::engine::plain_sql::{self, SQL_NOW};
use crate::sqlite::statements::claim::ROOM;
use crate::values::options::too_old;
use crate::values::{SCHEMA_VERSION, StoreOptions};

/// The later steps: the version each leads to, the oldest program version that can work with the result, and its SQL.
const STEPS: &[(i32, i32, &str)] = &[
    (2, 1, include_str!("../migrations/0002_handlers.sql")),
    (3, 1, include_str!("../migrations/0003_projections.sql")),
    (4, 1, include_str!("../migrations/0004_schedules.sql")),
    (5, 1, include_str!("../migrations/0005_worker_api.sql")),
    // An older program knows queues by name only, and would create clients' queues again beside theirs.
    (8, 8, include_str!("../migrations/0008_clients.sql")),
    (9, 8, include_str!("../migrations/0009_catalogue.sql")),
    (10, 8, include_str!("../migrations/0010_publish_sql.sql")),
    // An older program does not maintain the counts by client.
    (11, 11, include_str!("../migrations/0011_lists.sql")),
    // For PostgreSQL only: SQLite always ordered text by its bytes.
    (12, 11, ""),
    // For PostgreSQL only: servers with standbys.
    (13, 11, ""),
    // An older program does not know entries that stepped aside or keep their place.
    (14, 14, include_str!("../migrations/0014_families.sql")),
    // An older program looks for keys in a table that is gone.
    (15, 15, include_str!("../migrations/0015_resources.sql")),
    // An older program would remove facts that other entries refer to.
    (FACTS_STEP, 16, include_str!("../migrations/0016_facts.sql")),
    // An older program's list of waiting entries does not match the index.
    (17, 17, include_str!("../migrations/0017_waiting.sql")),
    // The terms of a fact that an older program's retention removes stay: no search finds anything by them.
    (18, 17, include_str!("../migrations/0018_found_facts.sql")),
    // The attempts at a job that an older program's retention removes stay: nothing shows them.
    (19, 17, include_str!("../migrations/0019_dispatch.sql")),
    // What is said about a TASK job that an older program's retention removes stays: nothing shows it.
    (20, 17, include_str!("../migrations/0020_tasks.sql")),
];

/// The step since which facts may have several entries.
const FACTS_STEP: i32 = 16;

struct Meta {
    version: i32,
    oldest_compatible: i32,
    id_offset: i64,
    id_step: i64,
}

/// Checks the schema and, if allowed, migrates it.
pub(in crate::sqlite) fn migrate(conn: &Connection, options: &StoreOptions, now: i64) -> Result<()> {
    match read_meta(conn, &options.namespace)? {
        Some(meta) if meta.version >= SCHEMA_VERSION => check(&meta, options)?,
        _ => {
            conn.execute_batch("BEGIN IMMEDIATE")?;
            let outcome = migrate_locked(conn, options, now).and_then(|()| Ok(conn.execute_batch("COMMIT")?));
            if outcome.is_err() && !conn.is_autocommit() {
                conn.execute_batch("ROLLBACK")?;
            }
            outcome?;
        }
    }
    store_payload_limit(conn, options)
}

/// Stores the payload limit, which also applies to publishing by plain SQL. Writes only if it has changed.
fn store_payload_limit(conn: &Connection, options: &StoreOptions) -> Result<()> {
    let namespace = &options.namespace;
    let limit = i64::try_from(options.payload_limit.0).unwrap_or(i64::MAX);
    let stored: i64 =
        conn.query_row(&format!("SELECT payload_limit FROM {namespace}_meta"), [], |row| row.get("payload_limit"))?;
    if stored != limit {
        conn.execute(&format!("UPDATE {namespace}_meta SET payload_limit = ?1"), [limit])?;
    }
    Ok(())
}

/// Reads the version again under the lock: another process may have migrated meanwhile.
fn migrate_locked(conn: &Connection, options: &StoreOptions, now: i64) -> Result<()> {
    let namespace = &options.namespace;
    let before = read_meta(conn, namespace)?;
    let version = before.as_ref().map_or(0, |meta| meta.version);
    if version < SCHEMA_VERSION && !options.migrate {
        return Err(Error::new(
            ErrorKind::Schema,
            format!(
                "the schema {namespace} has version {version}, this program needs {SCHEMA_VERSION}: migrate it first"
            ),
        ));
    }
    if before.is_none() {
        conn.execute_batch(&first_schema(options, now))?;
    }
    for (to, oldest_compatible, sql) in STEPS.iter().filter(|(to, ..)| *to > version.max(1)) {
        conn.execute_batch(&plain_sql::fill(sql, options))?;
        if *to == FACTS_STEP {
            keep_shared_facts(conn, namespace)?;
        }
        conn.execute(
            &format!("UPDATE {namespace}_meta SET schema_version = ?1, oldest_compatible = max(oldest_compatible, ?2)"),
            (to, oldest_compatible),
        )?;
    }
    if (1..SCHEMA_VERSION).contains(&version) {
        // Processes that run read the catalogue again, and with it whether they still may.
        conn.execute(&format!("UPDATE {namespace}_meta SET catalogue_version = catalogue_version + 1"), [])?;
    }
    match read_meta(conn, namespace)? {
        Some(meta) => check(&meta, options),
        None => Err(Error::new(ErrorKind::Schema, "the schema has no version")),
    }
}

/// Has plain SQL that replaces an entry's contents keep a fact which other entries refer to. Changes the trigger as it is:
/// it is long, and several steps have made it.
fn keep_shared_facts(conn: &Connection, namespace: &str) -> Result<()> {
    let name = format!("{namespace}_publish_checked_insert");
    let find = "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = ?1";
    let trigger: Option<String> = conn.query_row(find, [&name], |row| row.get("sql")).optional()?;
    let removal = "WHERE NEW.replaces AND id = (SELECT q.event_id";
    let Some(trigger) = trigger.filter(|sql| sql.matches(removal).count() == 1) else {
        return Err(Error::new(ErrorKind::Schema, format!("the trigger {name} is not the one of this schema")));
    };
    let kept = trigger.replace(removal, "WHERE NEW.replaces AND first_number IS NULL AND id = (SELECT q.event_id");
    Ok(conn.execute_batch(&format!("DROP TRIGGER {name}; {kept}"))?)
}

/// The first schema with its placeholders filled in.
pub(in crate::sqlite) fn first_schema(options: &StoreOptions, now: i64) -> String {
    include_str!("../migrations/0001_init.sql")
        .replace("{sql_now}", SQL_NOW)
        .replace("{ns}", &options.namespace)
        .replace("{id_offset}", &options.ids.offset.to_string())
        .replace("{id_step}", &options.ids.step.to_string())
        .replace("{payload_limit}", &options.payload_limit.0.to_string())
        .replace("{room}", &ROOM.to_string())
        .replace("{now}", &now.to_string())
}

fn read_meta(conn: &Connection, namespace: &str) -> Result<Option<Meta>> {
    let exists = conn
        .prepare("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1")?
        .exists([format!("{namespace}_meta")])?;
    if !exists {
        return Ok(None);
    }
    let sql = format!("SELECT schema_version, oldest_compatible, id_offset, id_step FROM {namespace}_meta");
    let meta = conn
        .query_row(&sql, [], |row| {
            Ok(Meta {
                version: row.get("schema_version")?,
                oldest_compatible: row.get("oldest_compatible")?,
                id_offset: row.get("id_offset")?,
                id_step: row.get("id_step")?,
            })
        })
        .optional()?;
    meta.map_or_else(|| Err(Error::new(ErrorKind::Schema, format!("{namespace}_meta is empty"))), |meta| Ok(Some(meta)))
}

fn check(meta: &Meta, options: &StoreOptions) -> Result<()> {
    if let Some(error) = too_old(&options.namespace, meta.version, meta.oldest_compatible) {
        return Err(error);
    }
    if (meta.id_offset, meta.id_step) != (options.ids.offset, options.ids.step) {
        return Err(Error::invalid(format!(
            "the database draws its ids from offset {} step {}, not offset {} step {}: that is fixed by the first start",
            meta.id_offset, meta.id_step, options.ids.offset, options.ids.step
        )));
    }
    Ok(())
}
