//! Indexes over tables that can be large: which there are, and how they are built while others write.
//!
//! The steps of a migration run in one transaction and hold their locks until it commits, so they only make what is
//! quick. What takes longer the larger a table is happens outside of it, one statement at a time, without blocking
//! writers: keys that a step exchanges and the new index of facts are built before it, the other indexes after it. If the process is killed,
//! the next one goes on where it stopped. A database that this run created is empty and gets everything in its
//! transaction.
//!
//! Not here, and why:
//! - primary keys, and the first indexes of event_queue and event_log: made with their tables, or by much older steps;
//! - event_queue_group_head (unique: one head per group): it must exist at every moment, so step 12 rebuilds it in the
//!   transaction, by one walk over the live entries;
//! - queues_name, lanes_key (unique) and the other indexes of the catalogue: their tables are small;
//! - the first indexes of the second family: step 14 makes them with their tables.
//!
//! While event_queue_parked is built anew, finding the next entry of a group walks over live entries: slow, but right.

use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::{Client, Transaction};

use crate::error::{Error, ErrorKind};
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::options::PostgresOptions;
use crate::postgres::engine::patience::{LOCK_PATIENCE, Patience};

/// An index of the newest schema. A new index on a table that can be large is added here, not in a step; a step that
/// drops one removes it from here.
#[derive(Debug)]
struct Index {
    table: &'static str,
    name: &'static str,
    on: &'static str,
    /// Has to run over the table before the index is complete; running it again changes nothing.
    fill: Option<&'static str>,
}

const fn index(table: &'static str, name: &'static str, on: &'static str) -> Index {
    Index { table, name, on, fill: None }
}

/// An index of facts with a range by a text that they may have.
macro_rules! found_by {
    ($name:literal, $column:literal) => {
        index(
            "events",
            concat!("events_", $name),
            concat!(
                "(",
                $column,
                " COLLATE \"C\", (coalesce(client_id, 0)), id) WHERE first_number IS NOT NULL AND ",
                $column,
                " IS NOT NULL"
            ),
        )
    };
}

const INDEXES: &[Index] = &[
    // What is next in a group; first, since promotions wait for it.
    index("event_queue", "event_queue_parked", "(queue_id, group_key, rank, id) WHERE place IN (2, 3)"),
    index("event_queue", "event_queue_aside", "(queue_id, group_key, due_at, id) WHERE place = 4"),
    index("event_queue", "event_queue_aside_due", "(queue_id, due_at) WHERE place = 4"),
    index("event_queue", "event_queue_expiry", "(expires_at) WHERE expires_at IS NOT NULL"),
    // Facts that did not get exactly one entry, for retention.
    index("events", FACTS_INDEX, "(first_number) WHERE first_number IS NOT NULL"),
    // What these are found by. The client comes before what a client could have very many of.
    index("events", "events_client", "((coalesce(client_id, 0)), id) WHERE first_number IS NOT NULL"),
    index(
        "events",
        "events_type",
        "((coalesce(client_id, 0)), event_type COLLATE \"C\", id) WHERE first_number IS NOT NULL",
    ),
    found_by!("source", "source"),
    found_by!("subject", "subject"),
    found_by!("external", "external_id"),
    found_by!("correlation", "correlation_id"),
    Index {
        fill: Some(FILL_EVENT_TAGS),
        ..index("event_tags", "event_tags_client", "(client_id, tag, entry_id) WHERE client_id IS NOT NULL")
    },
    Index {
        fill: Some(FILL_LOG_TAGS),
        ..index("log_tags", "log_tags_client", "(client_id, tag, status, entry_id) WHERE client_id IS NOT NULL")
    },
    index("event_queue", "event_queue_client", "(client_id, id) WHERE client_id IS NOT NULL"),
    // Complements event_queue_fresh: timed and parked entries and those aside, by number.
    index("event_queue", "event_queue_waiting", "(lane, id) WHERE place IN (1, 2, 4)"),
    // Complements dispatch_queue_fresh and dispatch_queue_timed: parked jobs and those aside, by lane. They may be behind heads of
    // other lanes.
    index("dispatch_queue", "dispatch_queue_waiting", "(lane, id) WHERE place IN (2, 4)"),
    index("event_log", "event_log_client", "(client_id, status, id) WHERE client_id IS NOT NULL AND superseded <> 1"),
    // Entries that ended as arrivals, before they had a lane.
    index("event_log", "event_log_unsorted", "(lane) WHERE lane < 0 AND superseded <> 1"),
    index("event_log", "event_log_ends", "(status, id) WHERE status > 0 AND superseded <> 1"),
    index("event_log", "event_log_redriven", "(client_id, status, id) WHERE client_id IS NOT NULL AND superseded = 1"),
];

/// Gives tag rows from before step 11 the client of their queue, a thousand per commit, so that claims do not wait
/// long.
const FILL_EVENT_TAGS: &str = "DO $fill$
DECLARE
    the_row record;
    done    bigint := 0;
BEGIN
    FOR the_row IN
        SELECT t.tag, t.entry_id, n.client_id FROM {ns}.event_tags t JOIN {ns}.queues n ON n.id = t.queue_id
        WHERE n.client_id IS NOT NULL AND t.client_id IS NULL
    LOOP
        UPDATE {ns}.event_tags t SET client_id = the_row.client_id
        WHERE t.tag = the_row.tag AND t.entry_id = the_row.entry_id;
        done := done + 1;
        IF done % 1000 = 0 THEN
            COMMIT;
        END IF;
    END LOOP;
END
$fill$";

/// The same for the tag rows of ended entries, whose log row has the client.
const FILL_LOG_TAGS: &str = "DO $fill$
DECLARE
    the_row record;
    done    bigint := 0;
BEGIN
    FOR the_row IN
        SELECT t.tag, t.status, t.entry_id, g.client_id FROM {ns}.log_tags t
        CROSS JOIN LATERAL (SELECT e.client_id FROM {ns}.event_log e
                            WHERE e.id = t.entry_id AND e.client_id IS NOT NULL LIMIT 1) AS g
        WHERE t.client_id IS NULL
    LOOP
        UPDATE {ns}.log_tags t SET client_id = the_row.client_id
        WHERE t.tag = the_row.tag AND t.status = the_row.status AND t.entry_id = the_row.entry_id;
        done := done + 1;
        IF done % 1000 = 0 THEN
            COMMIT;
        END IF;
    END LOOP;
END
$fill$";

/// Primary keys over text, which [`KEYS_STEP`] changes to the collation "C". They are built beside the old ones, under
/// the table's name with `_by_bytes`, and the step exchanges them.
const KEYS: &[(&str, &str)] = &[
    ("deduplication", "(client_id, kind, scope, key COLLATE \"C\")"),
    ("event_handler_states", "(entry_id, handler COLLATE \"C\")"),
    ("projection_documents", "(projection COLLATE \"C\", version, key)"),
];
pub(in crate::postgres) const KEYS_STEP: i32 = 12;

/// The step that adds [`FACTS_COLUMNS`], and the index over them. Programs of older schemas are refused once it is done, and
/// facts are the largest table: both are made before it, while those programs still run.
pub(in crate::postgres) const FACTS_STEP: i32 = 16;
const FACTS_COLUMNS: &str = "ADD COLUMN IF NOT EXISTS first_number bigint, ADD COLUMN IF NOT EXISTS last_number bigint";
const FACTS_INDEX: &str = "events_first_number";

/// How often a build is tried that collides with other transactions.
const BUILDS: u32 = 5;
/// How often a process that waits for another one's migration logs it.
const LOG_EVERY: Duration = Duration::from_secs(30);

/// Creates all indexes at once, in a database that this transaction created.
pub(in crate::postgres) async fn make_all(tx: &Transaction<'_>, ns: &str) -> Result<(), Fault> {
    let make = |index: &Index| format!("CREATE INDEX {} ON {ns}.{} {};", index.name, index.table, index.on);
    Ok(tx.batch_execute(&INDEXES.iter().map(make).collect::<String>()).await?)
}

/// A connection that builds indexes of one schema, outside of any transaction.
pub(in crate::postgres) struct Builder<'a> {
    client: &'a Client,
    namespace: &'a str,
    ns: String,
}

impl<'a> Builder<'a> {
    pub(in crate::postgres) fn new(client: &'a Client, options: &'a PostgresOptions) -> Self {
        Self { client, namespace: &options.store.namespace, ns: options.schema() }
    }

    /// Waits until no other process migrates, and takes the lock that says so. It is held until [`Self::end_turn`] or
    /// the end of the connection. The lock is tried, not waited for in a statement: a concurrent build would wait for
    /// the snapshot of that statement.
    pub(in crate::postgres) async fn take_turn(&self) -> Result<(), Fault> {
        let lock = format!("tidegate:{}", self.namespace);
        let mut logged: Option<Instant> = None;
        loop {
            let taken = "SELECT pg_try_advisory_lock(hashtextextended($1, 4712)) AS taken";
            if self.client.query_one(taken, &[&lock]).await?.get("taken") {
                return Ok(());
            }
            if logged.is_none_or(|logged| logged.elapsed() >= LOG_EVERY) {
                logged = Some(Instant::now());
                tracing::info!(namespace = self.namespace, "another process is migrating the schema; waiting for it");
            }
            tokio::time::sleep(Duration::from_millis(rand::random_range(50..150))).await;
        }
    }

    pub(in crate::postgres) async fn end_turn(&self) -> Result<(), Fault> {
        let lock = format!("tidegate:{}", self.namespace);
        self.client.query_one("SELECT pg_advisory_unlock(hashtextextended($1, 4712))", &[&lock]).await?;
        Ok(())
    }

    /// The names of the indexes that do not exist or are not valid.
    pub(in crate::postgres) async fn missing(&self) -> Result<Vec<&'static str>, Fault> {
        let names: Vec<&str> = INDEXES.iter().map(|index| index.name).collect();
        let found = "SELECT c.relname::text AS name FROM pg_class c
            JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_index x ON x.indexrelid = c.oid
            WHERE n.nspname = $1 AND c.relname = ANY ($2::text[]) AND x.indisvalid";
        let rows = self.client.query(found, &[&self.namespace, &names]).await?;
        let found: Vec<&str> = rows.iter().map(|row| row.get("name")).collect();
        Ok(names.into_iter().filter(|name| !found.contains(name)).collect())
    }

    /// Builds the missing indexes. The caller has taken its turn.
    pub(in crate::postgres) async fn build_missing(&self) -> Result<(), Fault> {
        let missing = self.missing().await?;
        for index in INDEXES.iter().filter(|index| missing.contains(&index.name)) {
            self.build_index(index).await?;
        }
        Ok(())
    }

    /// Builds the index of [`FACTS_STEP`], and the columns it is over. The caller has taken its turn, and the schema is older
    /// than that step. Programs of that schema name the columns they write, so that they go on meanwhile.
    pub(in crate::postgres) async fn build_facts_index(&self) -> Result<(), Fault> {
        self.quickly(&format!("ALTER TABLE {}.events {FACTS_COLUMNS}", self.ns)).await?;
        for index in INDEXES.iter().filter(|index| index.name == FACTS_INDEX) {
            self.build_index(index).await?;
        }
        Ok(())
    }

    async fn build_index(&self, index: &Index) -> Result<(), Fault> {
        let Index { table, name, on, fill } = index;
        tracing::info!(index = name, table, "building an index; writers are not blocked");
        if let Some(fill) = fill {
            self.fill(&fill.replace("{ns}", &self.ns)).await?;
        }
        let kind = "SELECT relkind = 'p' AS partitioned FROM pg_class WHERE oid = to_regclass($1)";
        let partitioned = self.client.query_opt(kind, &[&format!("{}.{table}", self.ns)]).await?;
        if partitioned.is_some_and(|row| row.get("partitioned")) {
            self.build_by_partitions(table, name, on).await
        } else {
            self.build("INDEX", table, name, on).await
        }
    }

    /// Builds the keys that [`KEYS_STEP`] exchanges. The caller has taken its turn, and the schema is older than that
    /// step. While a key is built, the database may refuse one of two concurrent inserts of the same key with an error,
    /// despite ON CONFLICT.
    pub(in crate::postgres) async fn build_keys(&self) -> Result<(), Fault> {
        for (table, on) in KEYS {
            let exists = "SELECT to_regclass($1) IS NOT NULL AS found";
            if self.client.query_one(exists, &[&format!("{}.{table}", self.ns)]).await?.get("found") {
                tracing::info!(table, "building a new primary key; writers are not blocked");
                self.build("UNIQUE INDEX", table, &format!("{table}_by_bytes"), on).await?;
            }
        }
        Ok(())
    }

    /// Runs a fill; after a collision with other transactions it goes on where it stopped.
    async fn fill(&self, sql: &str) -> Result<(), Fault> {
        let patience = Patience::new();
        loop {
            match self.client.batch_execute(sql).await {
                Ok(()) => return Ok(()),
                Err(error) => patience.bear(error.into()).await?,
            }
        }
    }

    /// Whether an index is valid; `None` if it does not exist.
    async fn is_valid(&self, name: &str) -> Result<Option<bool>, Fault> {
        let valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)";
        let row = self.client.query_opt(valid, &[&format!("{}.{name}", self.ns)]).await?;
        Ok(row.map(|row| row.get("indisvalid")))
    }

    /// Builds an index of one table, unless it exists. The build waits for transactions that wrote to the table, and
    /// none waits for the build.
    async fn build(&self, what: &str, table: &str, name: &str, on: &str) -> Result<(), Fault> {
        let ns = &self.ns;
        let mut tries = 0;
        loop {
            match self.is_valid(name).await? {
                Some(true) => return Ok(()),
                // Left by a build that failed: every write maintains it, and nothing reads it.
                Some(false) => {
                    self.client.batch_execute(&format!("DROP INDEX CONCURRENTLY IF EXISTS {ns}.{name}")).await?;
                }
                None => {}
            }
            tries += 1;
            match self.client.batch_execute(&format!("CREATE {what} CONCURRENTLY {name} ON {ns}.{table} {on}")).await {
                Err(error) => match Fault::from(error) {
                    fault if tries < BUILDS && Patience::may_help(&fault) => {
                        tracing::warn!(index = name, error = %fault.into_error(), "index build failed; trying again");
                    }
                    fault => return Err(fault),
                },
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Builds an index of a partitioned table: first that of each partition, then, under short locks, the parent index
    /// that they are attached to. From then on new partitions get theirs when they are created.
    async fn build_by_partitions(&self, table: &str, name: &str, on: &str) -> Result<(), Fault> {
        let ns = &self.ns;
        let part_name = |part: &str| format!("{part}{}", name.strip_prefix(table).unwrap_or(name));
        // Repeated for partitions that are created meanwhile.
        for _ in 0..BUILDS {
            for part in self.partitions_without(table, name).await? {
                if let Err(fault) = self.build("INDEX", &part, &part_name(&part), on).await {
                    // Retention of a program that still runs may have removed the partition.
                    if self.partitions_without(table, name).await?.contains(&part) {
                        return Err(fault);
                    }
                }
            }
            if self.is_valid(name).await?.is_none() {
                self.quickly(&format!("CREATE INDEX {name} ON ONLY {ns}.{table} {on}")).await?;
            }
            for part in self.partitions_without(table, name).await? {
                let part = part_name(&part);
                if self.is_valid(&part).await? == Some(true) {
                    self.quickly(&format!("ALTER INDEX {ns}.{name} ATTACH PARTITION {ns}.{part}")).await?;
                }
            }
            if self.is_valid(name).await? == Some(true) {
                return Ok(());
            }
        }
        Err(Error::new(
            ErrorKind::Schema,
            format!("the index {ns}.{name} is not valid though its parts were built: drop it and migrate again"),
        )
        .into())
    }

    /// The partitions that have no part of this index.
    async fn partitions_without(&self, table: &str, name: &str) -> Result<Vec<String>, Fault> {
        // PostgreSQL before 14 has no column `inhdetachpending`.
        let query = "SELECT c.relname::text AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = to_regclass($1) AND coalesce(to_jsonb(i) ->> 'inhdetachpending', 'false') = 'false'
              AND NOT EXISTS (SELECT FROM pg_inherits p JOIN pg_index x ON x.indexrelid = p.inhrelid
                              WHERE p.inhparent = to_regclass($2) AND x.indrelid = c.oid)
            ORDER BY c.relname";
        let names = [format!("{}.{table}", self.ns), format!("{}.{name}", self.ns)];
        let rows = self.client.query(query, &[&names[0], &names[1]]).await?;
        Ok(rows.iter().map(|row| row.get("name")).collect())
    }

    /// Runs a statement that is quick once it has its locks. Others queue behind it while it waits for them, so it
    /// gives up soon and tries again.
    async fn quickly(&self, sql: &str) -> Result<(), Fault> {
        let patience = Patience::new();
        let sql = format!("SET LOCAL lock_timeout = '{LOCK_PATIENCE}'; {sql}");
        loop {
            match self.client.batch_execute(&sql).await {
                Ok(()) => return Ok(()),
                Err(error) => patience.bear(error.into()).await?,
            }
        }
    }
}
