//! Resources and the catalogue version, where transactions and connections meet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_store::PutResource;
use tidegate_store::api::*;
use tokio_postgres::Client;

use crate::scene::*;

const WAITING: &str = "SELECT EXISTS (SELECT FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1)";

/// A version that is committed while the deletion waits must not stay in the history: whoever has read it would never
/// hear of the deletion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_by_plain_sql_is_seen_whatever_is_committed_meanwhile() {
    let database = Database::new().await;
    let store = database.open().await;
    let (kind, code, body) = ("pool".to_owned(), "a".to_owned(), "{}".to_owned());
    store.put_resources(vec![PutResource::Create { id: None, kind, client: None, code, body }]).await.unwrap();
    let (other, deleter, watcher) = (database.connect().await, database.connect().await, database.connect().await);
    let raise = "BEGIN; UPDATE tidegate.store SET catalogue_version = catalogue_version + 1";
    other.batch_execute(raise).await.unwrap();
    let deleting = tokio::spawn(async move {
        deleter.batch_execute("BEGIN; DELETE FROM tidegate.resources").await.unwrap();
        deleter
    });
    eventually("the deletion waits", async || {
        watcher.query_one(WAITING, &[&"%DELETE FROM tidegate.resources%"]).await.unwrap().get(0)
    })
    .await;
    other.batch_execute("COMMIT").await.unwrap();
    let deleter = deleting.await.unwrap();
    let read = store.resource_changes(None, None).await.unwrap();
    assert_eq!(read.items.len(), 1, "the deletion is not committed");
    deleter.batch_execute("COMMIT").await.unwrap();
    let read = store.resource_changes(None, Some(read.version)).await.unwrap();
    assert!(read.complete && read.items.is_empty(), "{read:?}");
    store.close().await;
}

async fn connections(client: &Client) -> BTreeSet<i32> {
    let query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()";
    client.query(query, &[]).await.unwrap().iter().map(|row| row.get("pid")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_the_version_that_hang_up_cost_no_connection() {
    let database = Database::new().await;
    let store = Arc::new(database.open().await);
    store.catalogue_version().await.unwrap();
    let (holder, watcher) = (database.connect().await, database.connect().await);
    let before = connections(&watcher).await;
    holder.batch_execute("BEGIN; LOCK TABLE tidegate.store IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let caller = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.catalogue_version().await })
    };
    eventually("the read waits", async || watcher.query_one(WAITING, &[&"%catalogue_version%"]).await.unwrap().get(0))
        .await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    // Time enough to close a connection.
    tokio::time::sleep(Duration::from_millis(200)).await;
    holder.batch_execute("COMMIT").await.unwrap();
    store.catalogue_version().await.unwrap();
    let after = connections(&watcher).await;
    assert!(after.is_superset(&before), "{before:?} {after:?}");
    store.close().await;
}
