//! Lists that block in the database: they end, leave no statement running and do not delay other calls.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::End;
use tidegate_store::api::*;
use tidegate_store::postgres::PostgresStore;
use tidegate_store::{ErrorKind, Finalize, ListQuery, Page, Result, Retention};
use tokio_postgres::Client;

use crate::scene::*;

/// The number of list statements that run now.
async fn running(client: &Client) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
               AND pid <> pg_backend_pid() AND query LIKE '%event_log%'";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

fn ask(store: &Arc<PostgresStore>) -> tokio::task::JoinHandle<Result<Page>> {
    let store = Arc::clone(store);
    tokio::spawn(async move {
        let lists = store;
        lists.list(ListQuery { limit: 10, ..ListQuery::default() }).await
    })
}

/// A store whose log is locked until the first client ends its transaction; the second client is for watching.
async fn stuck(database: &Database) -> (Arc<PostgresStore>, Client, Client) {
    let store = Arc::new(database.open().await);
    publish(&store, vec![event("t")]).await;
    let (holder, watcher) = (database.connect().await, database.connect().await);
    holder.batch_execute("BEGIN; LOCK TABLE tidegate.event_log IN ACCESS EXCLUSIVE MODE").await.unwrap();
    (store, holder, watcher)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_caller_that_goes_away_stops_its_list() {
    let database = Database::new().await;
    let (store, holder, watcher) = stuck(&database).await;
    let asked = ask(&store);
    eventually("the list runs", async || running(&watcher).await == 1).await;
    asked.abort();
    let began = tokio::time::Instant::now();
    eventually("the list is stopped", async || running(&watcher).await == 0).await;
    assert!(began.elapsed() < Duration::from_millis(1_500), "stopped by its caller, not by the time limit");
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(ask(&store).await.unwrap().unwrap().total, 1);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lists_that_are_stuck_end_and_hold_up_nobody() {
    let database = Database::new().await;
    let (store, holder, watcher) = stuck(&database).await;
    let asked: Vec<_> = (0..200).map(|_| ask(&store)).collect();
    eventually("lists run", async || running(&watcher).await > 0).await;
    assert!(running(&watcher).await <= 5, "at most five run at once");
    for _ in 0..20 {
        tokio::time::timeout(Duration::from_secs(1), publish(&store, vec![event("t")]))
            .await
            .expect("publishing goes on");
    }
    for answer in asked {
        let error = answer.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    }
    eventually("nothing is left running", async || running(&watcher).await == 0).await;
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(ask(&store).await.unwrap().unwrap().total, 21);
    store.close().await;
}

/// The stretches of a lane or a worker are removed together with their entries, also above older entries that stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_forgets_where_entries_were() {
    let database = Database::new().await;
    let store = database.open().await;
    let client = database.connect().await;
    let stretches = async || {
        let sql = "SELECT (SELECT count(*) FROM tidegate.log_lanes), (SELECT count(*) FROM tidegate.log_workers)";
        let row = client.query_one(sql, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    publish(&store, (0..320).map(|_| event("t")).collect()).await;
    let claimed = claim(&store, 320).await;
    let failed = Finalize { end: End::Failed, ..end(&claimed[0]) };
    store.finalize(vec![failed]).await.unwrap().remove(0).unwrap();
    complete(&store, &claimed[1..]).await;
    eventually("the entries are counted", async || {
        store.maintain().await.unwrap();
        stretches().await == (12, 12)
    })
    .await;
    let old = Retention { log: Some(Duration::ZERO), batch: 100, ..Retention::default() };
    eventually("the entries are removed", async || store.retain(old).await.unwrap().entries == 0).await;
    assert_eq!(client.query_one("SELECT count(*) FROM tidegate.event_log", &[]).await.unwrap().get::<_, i64>(0), 1);
    assert_eq!(stretches().await, (1, 1));
    store.close().await;
}
