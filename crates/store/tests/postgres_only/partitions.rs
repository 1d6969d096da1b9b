//! Partitions that are created or attached while other transactions write.

use tidegate_store::api::*;

use crate::scene::*;

/// Detaches a partition and returns the statement that attaches it again.
async fn detach(database: &Database, parent: &str, name: &str) -> String {
    let bound = format!("SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = 'tidegate.{name}'::regclass");
    let bound: String = database.connect().await.query_one(&bound, &[]).await.unwrap().get(0);
    database.execute(&format!("ALTER TABLE tidegate.{parent} DETACH PARTITION tidegate.{name}")).await;
    format!("ALTER TABLE tidegate.{parent} ATTACH PARTITION tidegate.{name} {bound}")
}

/// Waits until a writer waits for a lock on the table.
async fn until_blocked(database: &Database, table: &str) {
    let waits =
        format!("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'tidegate.{table}'::regclass)");
    let watcher = database.connect().await;
    eventually("a writer waits", async || watcher.query_one(&waits, &[]).await.unwrap().get(0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_while_its_partition_is_attached_goes_there() {
    let database = Database::new().await;
    let store = std::sync::Arc::new(database.open().await);
    let month = database.connect().await.query_one("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMM')", &[]).await;
    let month = format!("events_{}", month.unwrap().get::<_, String>(0));
    let other = database.connect().await;

    let attach = detach(&database, "events", &month).await;
    other.batch_execute(&format!("BEGIN; {attach}")).await.unwrap();
    let publishing = {
        let store = std::sync::Arc::clone(&store);
        tokio::spawn(async move { store.publish(vec![event("t")]).await })
    };
    until_blocked(&database, "events_default").await;
    other.batch_execute("COMMIT").await.unwrap();
    let id = publishing.await.unwrap().unwrap().remove(0).unwrap().id;

    let attach = detach(&database, "event_log", "event_log_0").await;
    let claimed = claim(&store, 1).await;
    assert_eq!(ids(&claimed), [id]);
    other.batch_execute(&format!("BEGIN; {attach}")).await.unwrap();
    let ending = {
        let (store, ends) = (std::sync::Arc::clone(&store), claimed.iter().map(end).collect());
        tokio::spawn(async move { store.finalize(ends).await })
    };
    until_blocked(&database, "event_log_default").await;
    other.batch_execute("COMMIT").await.unwrap();
    ending.await.unwrap().unwrap().remove(0).unwrap();

    let placed = format!("SELECT (SELECT count(*) FROM tidegate.{month}), (SELECT count(*) FROM tidegate.event_log_0)");
    let placed = other.query_one(&placed, &[]).await.unwrap();
    assert_eq!((placed.get::<_, i64>(0), placed.get::<_, i64>(1)), (1, 1));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_with_rows_in_the_default_partition_gets_none_and_works_on() {
    let database = Database::new().await;
    let store = database.open().await;
    detach(&database, "event_log", "event_log_0").await;
    database.execute("DROP TABLE tidegate.event_log_0").await;
    publish(&store, vec![event("t"), event("t")]).await;
    complete(&store, &claim(&store, 1).await).await;
    store.close().await;
    let client = database.connect().await;
    // Opening the store runs the upkeep of partitions.
    let store = database.open().await;
    complete(&store, &claim(&store, 1).await).await;
    let made = "SELECT to_regclass('tidegate.event_log_0') IS NOT NULL, (SELECT count(*) FROM ONLY tidegate.event_log_default)";
    let made = client.query_one(made, &[]).await.unwrap();
    assert_eq!((made.get::<_, bool>(0), made.get::<_, i64>(1)), (false, 2));
    store.close().await;
}
