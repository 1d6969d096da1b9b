//! Migrations under traffic, and the schema that they leave.

use std::time::{Duration, Instant};

use tidegate_core::QueueName;
use tidegate_store::api::*;
use tidegate_store::postgres::{PostgresOptions, PostgresStore};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::scene::*;

const SCHEMA_5: &str = include_str!("../fixtures/schema-5.sql");
const SCHEMA_13: &str = include_str!("../fixtures/schema-13.sql");

/// A database with schema version 5.
pub(crate) async fn schema_5_database() -> Database {
    let database = Database::new().await;
    database.execute(SCHEMA_5).await;
    database
}

/// A database with schema version 13.
pub(crate) async fn schema_13_database() -> Database {
    let database = Database::new().await;
    database.execute(SCHEMA_13).await;
    database
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_that_waits_for_a_lock_holds_up_publishers_only_for_a_moment() {
    let database = schema_5_database().await;
    let reader = database.connect().await;
    reader.batch_execute("BEGIN; SELECT FROM tidegate.event_queue LIMIT 1").await.unwrap();
    let url = database.0.clone();
    let opening = tokio::spawn(async move { open_at(&url).await });
    let watcher = database.connect().await;
    let waits =
        "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'tidegate.event_queue'::regclass)";
    eventually("the migration waits", async || watcher.query_one(waits, &[]).await.unwrap().get(0)).await;
    let publisher = database.connect().await;
    let (began, mut worst, mut published) = (Instant::now(), Duration::ZERO, 0);
    // Long enough for the migration to give up on the lock and try again more than once.
    while began.elapsed() < Duration::from_secs(3) {
        let start = Instant::now();
        publisher.execute("SELECT tidegate.publish('t.migrated', '{}'::bytea)", &[]).await.unwrap();
        worst = worst.max(start.elapsed());
        published += 1;
    }
    assert!(worst < Duration::from_secs(2), "a publisher waited for {worst:?}");
    assert!(!opening.is_finished());
    reader.batch_execute("COMMIT").await.unwrap();
    let store = opening.await.unwrap();
    let mut claimed = 0;
    eventually("everything published meanwhile is claimed", async || {
        let types = Some(vec!["t.migrated".to_owned()]);
        claimed += store.claim(tidegate_store::Claim { types, ..want(100) }).await.unwrap().len();
        claimed == published
    })
    .await;
    store.close().await;
}

/// A backend caches name lookups, also that a name does not exist, until it next locks a table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_waits_while_another_makes_the_schema_finds_it_made() {
    let database = Database::new().await;
    let first = database.open().await;
    let id = publish(&first, vec![event("t")]).await[0];
    first.close().await;
    database.execute("ALTER SCHEMA tidegate RENAME TO hidden").await;
    let other = database.connect().await;
    other
        .batch_execute("BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('tidegate:tidegate', 4711))")
        .await
        .unwrap();
    let url = database.0.clone();
    let opening = tokio::spawn(async move { open_at(&url).await });
    let watcher = database.connect().await;
    let waits = "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
        WHERE NOT l.granted AND l.locktype = 'advisory' AND d.datname = current_database())";
    eventually("the start waits", async || watcher.query_one(waits, &[]).await.unwrap().get(0)).await;
    other.batch_execute("ALTER SCHEMA hidden RENAME TO tidegate; COMMIT").await.unwrap();
    let store = opening.await.unwrap();
    assert_eq!(ids(&store.claim(want(9)).await.unwrap()), [id]);
    store.close().await;
}

/// A machine that vanished does not close its connections, and TCP notices only after hours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_whose_machine_is_gone_gives_its_turn_to_the_next() {
    let database = schema_5_database().await;
    let port = database.0.parse::<tokio_postgres::Config>().unwrap().get_ports()[0];
    let line = tidegate_testing::Proxy::start(port).unwrap();
    let reader = database.connect().await;
    reader.batch_execute("BEGIN; SELECT FROM tidegate.event_queue LIMIT 1").await.unwrap();
    let url = line.url(&database.0);
    let gone = tokio::spawn(async move { PostgresStore::open(&url, PostgresOptions::default()).await });
    let turn = "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
        WHERE l.granted AND l.locktype = 'advisory' AND d.datname = current_database())";
    let watcher = database.connect().await;
    eventually("the migration lock is held", async || watcher.query_one(turn, &[]).await.unwrap().get(0)).await;
    line.go_silent();
    reader.batch_execute("COMMIT").await.unwrap();
    let store = tokio::time::timeout(Duration::from_secs(100), database.open()).await.expect("the next one migrates");
    publish(&store, vec![event("t")]).await;
    gone.abort();
    store.close().await;
}

/// Indexes over text with another collation than "C".
async fn by_other_collations(client: &Client) -> Vec<String> {
    let query = "SELECT c.relname::text FROM pg_index x JOIN pg_class c ON c.oid = x.indexrelid
        CROSS JOIN LATERAL unnest(x.indcollation::oid[]) AS u(collation_id)
        JOIN pg_collation l ON l.oid = u.collation_id
        WHERE c.relnamespace = 'tidegate'::regnamespace AND l.collname <> 'C' ORDER BY 1";
    client.query(query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_index_over_text_is_ordered_by_bytes() {
    let fresh = Database::new().await;
    fresh.open().await.close().await;
    assert_eq!(by_other_collations(&fresh.connect().await).await, Vec::<String>::new());
    let migrated = schema_5_database().await;
    migrated.execute("GRANT SELECT ON tidegate.entries TO PUBLIC").await;
    migrated.open().await.close().await;
    let client = migrated.connect().await;
    assert_eq!(by_other_collations(&client).await, Vec::<String>::new());
    let kept = "SELECT has_table_privilege('public', 'tidegate.entries', 'SELECT')";
    assert!(client.query_one(kept, &[]).await.unwrap().get::<_, bool>(0), "privileges on the view are kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_of_the_callers_on_ours_does_not_stop_a_migration() {
    let database = schema_5_database().await;
    database.execute("CREATE VIEW public.mine AS SELECT id, queue FROM tidegate.entries").await;
    let store = database.open().await;
    let id = publish(&store, vec![event("t.new").group("g")]).await[0];
    let query = format!("SELECT queue FROM public.mine WHERE id = {}", id.get());
    assert_eq!(database.connect().await.query_one(&query, &[]).await.unwrap().get::<_, String>(0), "default");
    store.close().await;
}

/// A statement that a connection has prepared may return other types after a migration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_were_prepared_before_a_change_of_the_schema_go_on() {
    let database = Database::new().await;
    let store = database.open().await;
    let grouped = || vec![event("t").group("g")];
    publish(&store, grouped()).await;
    complete(&store, &claim(&store, 1).await).await;
    // A publish to an unknown queue reads the catalogue, so that its statements are prepared too.
    let nowhere = event("t").queue(QueueName::new("nowhere").unwrap());
    assert!(store.publish(vec![nowhere]).await.unwrap()[0].is_err());
    let change = "DROP VIEW tidegate.entries;
        ALTER TABLE tidegate.event_queue ALTER COLUMN group_key TYPE text COLLATE \"POSIX\";
        ALTER TABLE tidegate.queues ALTER COLUMN name TYPE text COLLATE \"POSIX\";
        UPDATE tidegate.store SET catalogue_version = catalogue_version + 1";
    database.execute(change).await;
    publish(&store, grouped()).await;
    let claimed = claim(&store, 1).await;
    assert_eq!(claimed.len(), 1);
    complete(&store, &claimed).await;
    store.close().await;
}

/// What a program of schema 13 reads first in each of its transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_an_older_program_are_told_to_upgrade() {
    let database = schema_5_database().await;
    database.open().await.close().await;
    let client = database.connect().await;
    let reads = [
        "SELECT m.catalogue_stamp FROM tidegate.meta m CROSS JOIN tidegate.heartbeat h",
        "SELECT pg_current_xact_id()::text, (SELECT catalogue_stamp FROM tidegate.meta)",
        "SELECT m.generation FROM tidegate.meta m",
    ];
    for read in reads {
        let error = client.query(read, &[]).await.unwrap_err();
        let said = error.as_db_error().unwrap();
        assert!(said.message().contains("upgrade"), "{read}: {said}");
        assert_eq!(said.code(), &tokio_postgres::error::SqlState::UNDEFINED_COLUMN, "a schema that does not fit");
    }
    // Its start reads the version, and is refused by it.
    let version = "SELECT schema_version, oldest_compatible, id_offset, id_step FROM tidegate.meta";
    assert!(client.query_one(version, &[]).await.unwrap().get::<_, i32>("oldest_compatible") >= 14);
}

/// What a program of schema 13 runs: transactions that read the catalogue first, and single statements that lock other
/// tables before it.
const OLD_TRAFFIC: [&str; 2] = [
    "BEGIN; SELECT generation FROM tidegate.meta; SELECT pg_sleep(0.02);
     UPDATE tidegate.event_queue SET updated_at = updated_at WHERE id = (SELECT min(id) FROM tidegate.event_queue);
     COMMIT",
    "SELECT count(*), (SELECT generation FROM tidegate.meta), pg_sleep(0.02)
     FROM tidegate.event_queue q LEFT JOIN tidegate.events e ON e.id = q.event_id",
];

/// Runs the same again and again until it is told to upgrade.
async fn run_until_refused(client: Client, sql: &str) {
    loop {
        let Err(error) = client.batch_execute(sql).await else { continue };
        let said = error.as_db_error().unwrap();
        if said.code() == &SqlState::T_R_DEADLOCK_DETECTED {
            client.batch_execute("ROLLBACK").await.unwrap();
            continue;
        }
        assert!(said.message().contains("upgrade"), "{said}");
        return;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_gets_its_locks_from_programs_that_never_pause() {
    let database = schema_13_database().await;
    let mut traffic = Vec::new();
    for sql in OLD_TRAFFIC.into_iter().cycle().take(8) {
        traffic.push(tokio::spawn(run_until_refused(database.connect().await, sql)));
    }
    let store =
        tokio::time::timeout(Duration::from_secs(30), database.open()).await.expect("it migrates under traffic");
    for client in traffic {
        client.await.unwrap();
    }
    publish(&store, vec![event("t")]).await;
    store.close().await;
}

/// A transaction that found the version fit must not do its work on the next schema.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_waits_for_transactions_that_have_read_the_version() {
    let database = schema_13_database().await;
    let (reader, watcher) = (database.connect().await, database.connect().await);
    reader.batch_execute("BEGIN; SELECT generation FROM tidegate.meta").await.unwrap();
    let url = database.0.clone();
    let opening = tokio::spawn(async move { open_at(&url).await });
    let waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'tidegate.meta'::regclass)";
    eventually("the migration waits", async || watcher.query_one(waits, &[]).await.unwrap().get(0)).await;
    reader.batch_execute("COMMIT").await.unwrap();
    opening.await.unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_to_the_version_are_kept_under_its_old_name() {
    let database = schema_13_database().await;
    database.execute("GRANT SELECT, UPDATE ON tidegate.meta TO PUBLIC").await;
    database.open().await.close().await;
    let kept = "SELECT has_table_privilege('public', r, 'SELECT') AND has_table_privilege('public', r, 'UPDATE')
            AND NOT has_table_privilege('public', r, 'DELETE')
        FROM unnest(ARRAY['tidegate.meta', 'tidegate.store']) AS r";
    for row in database.connect().await.query(kept, &[]).await.unwrap() {
        assert!(row.get::<_, bool>(0));
    }
}
