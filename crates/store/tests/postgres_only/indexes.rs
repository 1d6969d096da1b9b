//! Indexes that a migration builds while other processes write.

use std::time::Duration;

use tidegate_store::api::*;
use tidegate_store::postgres::{PostgresOptions, PostgresStore};
use tidegate_store::{Claim, ErrorKind};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::migrations::{schema_5_database, schema_13_database};
use crate::scene::*;

/// Longer than a migration may block a writer, also on a slow machine.
const MAX_WAIT: Duration = Duration::from_secs(3);

/// While closed, it blocks a session that has created an index with a matching name, with all locks that the session
/// holds, as if the build took that long.
struct Gate(Client);

impl Gate {
    async fn closed(database: &Database, names: &str) -> Self {
        let client = database.connect().await;
        let gate = format!(
            "SELECT pg_advisory_lock(4242);
             CREATE FUNCTION public.stand_before_gate() RETURNS event_trigger LANGUAGE plpgsql AS $body$
             BEGIN
                 IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity ~ '^tidegate[.]({names})$') THEN
                     WHILE NOT pg_try_advisory_xact_lock_shared(4242) LOOP
                         PERFORM pg_sleep(0.01);
                     END LOOP;
                 END IF;
             END
             $body$;
             CREATE EVENT TRIGGER gate ON ddl_command_end WHEN TAG IN ('CREATE INDEX')
                 EXECUTE FUNCTION public.stand_before_gate()"
        );
        client.batch_execute(&gate).await.unwrap();
        Self(client)
    }

    async fn open(&self) {
        self.0.batch_execute("SELECT pg_advisory_unlock(4242)").await.unwrap();
    }

    /// The process id of a backend that has waited at the gate for longer than this.
    async fn waiting(&self, longer_than: Duration) -> Option<i32> {
        let query = format!(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'
             AND clock_timestamp() - query_start > interval '{} ms'",
            longer_than.as_millis()
        );
        self.0.query_opt(&query, &[]).await.unwrap().map(|row| row.get(0))
    }

    async fn reached(&self) -> i32 {
        let mut found = None;
        eventually("the gate is reached", async || {
            found = self.waiting(Duration::ZERO).await;
            found.is_some()
        })
        .await;
        found.unwrap()
    }
}

fn opening(database: &Database) -> JoinHandle<tidegate_store::Result<PostgresStore>> {
    let url = database.0.clone();
    tokio::spawn(async move { PostgresStore::open(&url, PostgresOptions::default()).await })
}

/// A write to each table that gets indexes, as a program of the old version makes it.
const WRITES: &str = "SELECT tidegate.publish('t.meanwhile', '{}'::bytea);
    UPDATE tidegate.event_log SET superseded = superseded WHERE id = 1;
    UPDATE tidegate.event_tags SET rank = rank;
    UPDATE tidegate.log_tags SET status = status";

/// Writes 25 times, each time without being blocked. Returns the number of events published.
async fn write_on(database: &Database) -> usize {
    let writer = database.connect().await;
    for _ in 0..25 {
        let written = timeout(MAX_WAIT, writer.batch_execute(WRITES)).await;
        written.expect("a writer waited for the migration").unwrap();
    }
    25
}

async fn claims_all(store: &PostgresStore, published: usize) {
    let mut claimed = 0;
    eventually("everything published meanwhile is claimed", async || {
        let types = Some(vec!["t.meanwhile".to_owned()]);
        claimed += store.claim(Claim { types, ..want(100) }).await.unwrap().len();
        claimed == published
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_go_on_while_a_migration_builds_indexes() {
    let database = schema_5_database().await;
    let gate = Gate::closed(&database, "event_tags_.*|event_log_.*").await;
    let opening = opening(&database);
    gate.reached().await;
    let published = write_on(&database).await;
    assert!(!opening.is_finished(), "it opens once all indexes are built");
    gate.open().await;
    let store = opening.await.unwrap().unwrap();
    claims_all(&store, published).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_build_waits_for_an_open_transaction_and_nobody_for_the_build() {
    let database = schema_5_database().await;
    let gate = Gate::closed(&database, "event_tags_.*").await;
    let opening = opening(&database);
    gate.reached().await;
    let holder = database.connect().await;
    let held = "BEGIN; INSERT INTO tidegate.log_tags (entry_id, status, tag) VALUES (1, 0, 'held');
        UPDATE tidegate.event_log SET superseded = superseded WHERE id = 2";
    timeout(MAX_WAIT, holder.batch_execute(held)).await.expect("a writer waited for the migration").unwrap();
    gate.open().await;
    let waits = "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE a.datname = current_database() AND l.locktype = 'virtualxid' AND NOT l.granted)";
    eventually("the build waits", async || holder.query_one(waits, &[]).await.unwrap().get(0)).await;
    let published = write_on(&database).await;
    assert!(!opening.is_finished());
    holder.batch_execute("COMMIT").await.unwrap();
    let store = opening.await.unwrap().unwrap();
    claims_all(&store, published).await;
    store.close().await;
}

/// Keys are exchanged in the transaction of the migration steps; their indexes are built before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_change_are_built_before_the_schema_does() {
    let database = schema_5_database().await;
    let gate = Gate::closed(&database, "(deduplication|event_handler_states|projection_documents)_by_bytes").await;
    let client = database.connect().await;
    let opening = opening(&database);
    gate.reached().await;
    let built = "SELECT pg_relation_filenode('tidegate.deduplication_by_bytes')";
    let built: u32 = client.query_one(built, &[]).await.unwrap().get(0);
    let version = "SELECT schema_version FROM tidegate.meta";
    assert_eq!(client.query_one(version, &[]).await.unwrap().get::<_, i32>(0), 5);
    let publish = "SELECT tidegate.publish('t', '{}'::bytea, deduplication_id => 'once')";
    let first: i64 = client.query_one(publish, &[]).await.unwrap().get(0);
    assert_eq!(client.query_one(publish, &[]).await.unwrap().get::<_, i64>(0), first);
    gate.open().await;
    opening.await.unwrap().unwrap().close().await;
    let key = "SELECT pg_relation_filenode('tidegate.deduplication_pkey'), to_regclass('tidegate.deduplication_by_bytes') IS NULL";
    let row = client.query_one(key, &[]).await.unwrap();
    assert_eq!((row.get::<_, u32>(0), row.get::<_, bool>(1)), (built, true), "the key uses the index built before");
    assert_eq!(client.query_one(publish, &[]).await.unwrap().get::<_, i64>(0), first);
}

/// Facts can be many, and older programs are refused once the steps are done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_programs_go_on_while_the_index_of_facts_is_built() {
    let database = schema_13_database().await;
    let gate = Gate::closed(&database, "events_.*first_number").await;
    let openings = [opening(&database), opening(&database)];
    gate.reached().await;
    let transaction = "SELECT generation, catalogue_stamp FROM tidegate.meta;
        SELECT tidegate.publish('t.meanwhile', '{}'::bytea)";
    timeout(MAX_WAIT, gate.0.batch_execute(transaction)).await.expect("it waited for the migration").unwrap();
    assert!(!openings.iter().any(JoinHandle::is_finished));
    gate.open().await;
    for opening in openings {
        opening.await.unwrap().unwrap().close().await;
    }
    assert_eq!(indexes(&gate.0, ".*").await, fresh_indexes().await);
}

/// The indexes of matching tables: table, name (not of partitions: the database chooses those), parent index, validity
/// and definition. The monthly partitions of `events` are left out, since they depend on the date.
async fn indexes(client: &Client, table: &str) -> Vec<String> {
    let query = format!(
        "SELECT concat_ws(' ', t.relname, CASE WHEN t.relispartition THEN '' ELSE c.relname END, u.relname, x.indisvalid,
                   regexp_replace(pg_get_indexdef(c.oid), '.* USING', ''),
                   CASE WHEN x.indisunique THEN 'unique' END, CASE WHEN x.indisprimary THEN 'primary' END)
         FROM pg_index x JOIN pg_class c ON c.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
         LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class u ON u.oid = i.inhparent
         WHERE t.relnamespace = 'tidegate'::regnamespace AND t.relname ~ '^({table})$' AND t.relname !~ '^events_[0-9]' ORDER BY 1"
    );
    client.query(&query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// The indexes of a database that was created with the current schema.
async fn fresh_indexes() -> Vec<String> {
    let database = Database::new().await;
    database.open().await.close().await;
    indexes(&database.connect().await, ".*").await
}

/// Tag rows of live and ended entries: the number with a wrong client, and the number with a client.
async fn tags(client: &Client) -> (i64, i64) {
    let query = "WITH tags AS (
            SELECT t.client_id, n.client_id AS wanted FROM tidegate.event_tags t JOIN tidegate.queues n ON n.id = t.queue_id
            UNION ALL
            SELECT t.client_id, g.client_id FROM tidegate.log_tags t JOIN tidegate.event_log g ON g.id = t.entry_id)
        SELECT count(*) FILTER (WHERE client_id IS DISTINCT FROM wanted), count(client_id) FROM tags";
    let row = client.query_one(query, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrated_and_fresh_schemas_have_the_same_indexes() {
    let fresh = fresh_indexes().await;
    assert!(fresh.iter().any(|index| index.contains("event_log_redriven")), "{fresh:#?}");
    let database = schema_5_database().await;
    database.open().await.close().await;
    let client = database.connect().await;
    assert_eq!(indexes(&client, ".*").await, fresh);
    assert_eq!(tags(&client).await, (0, 8), "clients of tags were filled in");
    // Partitions that are created later have them too.
    client.batch_execute("SELECT setval('tidegate.entry_id', 100000001)").await.unwrap();
    database.open().await.close().await;
    let (old, new) = (indexes(&client, "event_log_0").await, indexes(&client, "event_log_5").await);
    assert!(!old.is_empty());
    assert_eq!(new, old.iter().map(|index| index.replacen("event_log_0", "event_log_5", 1)).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_that_was_killed_goes_on_where_it_stopped() {
    let fresh = fresh_indexes().await;
    for stop in [
        "deduplication_by_bytes",
        "events_default_first_number",
        "event_tags_client",
        "event_log_0_unsorted",
        "event_log_redriven",
    ] {
        let database = schema_5_database().await;
        let gate = Gate::closed(&database, stop).await;
        let opening = opening(&database);
        let pid = gate.reached().await;
        gate.0.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
        assert_eq!(opening.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable, "{stop}");
        gate.open().await;
        database.open().await.close().await;
        assert_eq!(indexes(&gate.0, ".*").await, fresh, "killed at {stop}");
    }
}

/// Starts to build an index and cancels it while it waits for another transaction, which leaves an invalid index.
async fn break_off(database: &Database, index: &str) {
    let (builder, watcher) = (database.connect().await, database.connect().await);
    let pid: i32 = builder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let build = format!("CREATE INDEX CONCURRENTLY {index}");
    let building = tokio::spawn(async move { builder.batch_execute(&build).await });
    let waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)";
    eventually("the build waits", async || watcher.query_one(waits, &[&pid]).await.unwrap().get(0)).await;
    watcher.execute("SELECT pg_cancel_backend($1)", &[&pid]).await.unwrap();
    building.await.unwrap().expect_err("the build was cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_a_broken_build_left_is_built_again() {
    let database = schema_5_database().await;
    database.open().await.close().await;
    let (client, holder) = (database.connect().await, database.connect().await);
    let whole = indexes(&client, ".*").await;
    client.batch_execute("DROP INDEX tidegate.event_queue_waiting, tidegate.event_log_unsorted").await.unwrap();
    let held = "BEGIN; UPDATE tidegate.event_queue SET token = token; UPDATE tidegate.event_log SET token = token";
    holder.batch_execute(held).await.unwrap();
    break_off(&database, "event_queue_waiting ON tidegate.event_queue (lane, id) WHERE place IN (1, 2, 4)").await;
    break_off(&database, "event_log_0_unsorted ON tidegate.event_log_0 (lane) WHERE lane < 0 AND superseded <> 1")
        .await;
    holder.batch_execute("COMMIT").await.unwrap();
    let broken = "SELECT count(*) FROM pg_index WHERE NOT indisvalid";
    assert_eq!(client.query_one(broken, &[]).await.unwrap().get::<_, i64>(0), 2);
    database.open().await.close().await;
    assert_eq!(indexes(&client, ".*").await, whole);
    assert_eq!(client.query_one(broken, &[]).await.unwrap().get::<_, i64>(0), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_processes_one_builds_and_the_other_waits_without_a_transaction() {
    let database = schema_5_database().await;
    let gate = Gate::closed(&database, "event_log_0_unsorted").await;
    let (one, other) = (opening(&database), opening(&database));
    gate.reached().await;
    let waiter = "SELECT xact_start IS NULL AND backend_xmin IS NULL FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'idle' AND query LIKE '%pg_try_advisory_lock(%'";
    eventually("the other waits", async || gate.0.query_opt(waiter, &[]).await.unwrap().is_some_and(|row| row.get(0)))
        .await;
    // A third process opens when the schema is new but not all of its indexes are built.
    let third = opening(&database);
    write_on(&database).await;
    assert!(![&one, &other, &third].iter().any(|opening| opening.is_finished()));
    gate.open().await;
    for opening in [one, other, third] {
        let store = opening.await.unwrap().unwrap();
        publish(&store, vec![event("t")]).await;
        store.close().await;
    }
    assert_eq!(indexes(&gate.0, ".*").await, fresh_indexes().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_migrate_is_told_that_indexes_are_still_built() {
    let database = schema_5_database().await;
    let gate = Gate::closed(&database, "event_log_0_unsorted").await;
    let opening = opening(&database);
    gate.reached().await;
    let mut options = PostgresOptions::default();
    options.store.migrate = false;
    let refused = PostgresStore::open(&database.0, options.clone()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Schema);
    let said = refused.to_string();
    assert!(said.contains("`tidegate migrate`") && said.contains("event_log_unsorted"), "{said}");
    gate.open().await;
    opening.await.unwrap().unwrap().close().await;
    PostgresStore::open(&database.0, options).await.unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_build_may_take_longer_than_a_statement_of_the_role() {
    let database = schema_5_database().await;
    let gate = Gate::closed(&database, "event_log_0_unsorted").await;
    let url = format!("{}?options=-c%20statement_timeout%3D1000", database.0);
    let opening = tokio::spawn(async move { PostgresStore::open(&url, PostgresOptions::default()).await });
    eventually("the build takes longer", async || gate.waiting(Duration::from_millis(1200)).await.is_some()).await;
    gate.open().await;
    opening.await.unwrap().unwrap().close().await;
}
