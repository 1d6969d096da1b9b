//! Isolation levels: the store's transactions are READ COMMITTED, a caller's transaction may use any level.

use tidegate_core::NewEvent;
use tidegate_store::api::*;
use tidegate_store::{ErrorKind, PublishOutcome};
use tokio_postgres::{IsolationLevel, Transaction};

use crate::scene::*;

const NOTE_LEVELS: &str = "
CREATE TABLE levels_seen (level text);
CREATE FUNCTION note_level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO levels_seen VALUES (current_setting('transaction_isolation'));
    RETURN NULL;
END $$;
CREATE TRIGGER note_level AFTER INSERT OR UPDATE OR DELETE ON tidegate.event_queue EXECUTE FUNCTION note_level();
CREATE TRIGGER note_level AFTER INSERT OR UPDATE OR DELETE ON tidegate.consumers EXECUTE FUNCTION note_level();
CREATE TRIGGER note_level AFTER INSERT OR UPDATE OR DELETE ON tidegate.deduplication EXECUTE FUNCTION note_level()";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn our_transactions_are_read_committed_whatever_the_default_is() {
    let database = Database::new().await;
    let default = "DO $$ BEGIN EXECUTE format(
        'ALTER DATABASE %I SET default_transaction_isolation = ''repeatable read''', current_database()); END $$";
    database.execute(default).await;
    let store = database.open().await;
    database.execute(NOTE_LEVELS).await;
    publish(&store, vec![event("t"), event("t").group("g"), event("t").deduplicate("k")]).await;
    let claimed = claim(&store, 9).await;
    assert_eq!(claimed.len(), 3);
    let types = None;
    let consumer = tidegate_store::LiveConsumer {
        queue: tidegate_core::QueueName::default(),
        worker: "w".into(),
        types,
        tags: vec![],
    };
    store.consumers_seen(vec![consumer]).await.unwrap();
    let mut own = store.connection().await.unwrap();
    let tx = own.begin().await.unwrap();
    store.publish_in(tx.transaction(), vec![event("u")]).await.unwrap();
    tx.commit().await.unwrap();
    drop(own);
    complete(&store, &claimed).await;
    store.maintain().await.unwrap();
    let seen = database.connect().await.query("SELECT DISTINCT level FROM levels_seen", &[]).await.unwrap();
    let seen: Vec<String> = seen.iter().map(|row| row.get(0)).collect();
    assert_eq!(seen, ["read committed"]);
}

async fn repeatable(client: &mut tokio_postgres::Client) -> Transaction<'_> {
    let tx = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().await.unwrap();
    // The snapshot is taken by the first statement.
    tx.query_one("SELECT count(*) FROM pg_class", &[]).await.unwrap();
    tx
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_repeatable_read_transaction_publishes_new_types_and_finalises() {
    let database = Database::new().await;
    let store = database.open().await;
    publish(&store, vec![event("t")]).await;
    let claimed = claim(&store, 1).await;
    let mut own = database.connect().await;
    let tx = repeatable(&mut own).await;
    store.publish_in(&tx, vec![event("brand.new"), event("t").group("g"), event("t").deduplicate("k")]).await.unwrap();
    store.finalize_in(&tx, vec![end(&claimed[0])]).await.unwrap();
    tx.commit().await.unwrap();
    store.maintain().await.unwrap();
    assert_eq!(claim(&store, 9).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_entry_that_is_named_twice_is_named_in_the_error() {
    let database = Database::new().await;
    let store = database.open().await;
    publish(&store, vec![event("t"), event("t")]).await;
    let claimed = claim(&store, 2).await;
    let mut own = database.connect().await;
    for repeatable_read in [false, true] {
        let tx = if repeatable_read { repeatable(&mut own).await } else { own.transaction().await.unwrap() };
        let items = vec![end(&claimed[1]), end(&claimed[0]), end(&claimed[1])];
        let error = store.finalize_in(&tx, items).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        assert!(error.to_string().contains(&format!("entry {} is named twice", claimed[1].id)), "{error}");
        assert!(tx.execute("SELECT 1", &[]).await.is_err(), "the transaction is aborted");
        tx.rollback().await.unwrap();
    }
    complete(&store, &claimed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_old_snapshot_is_told_what_to_do() {
    let database = Database::new().await;
    let store = database.open().await;
    publish(&store, vec![event("t")]).await;
    let mut own = database.connect().await;

    let tx = repeatable(&mut own).await;
    let claimed = claim(&store, 1).await;
    let error = store.finalize_in(&tx, vec![end(&claimed[0])]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("READ COMMITTED"), "{error}");
    assert!(tx.execute("SELECT 1", &[]).await.is_err(), "the transaction is aborted");
    tx.rollback().await.unwrap();
    let tx = repeatable(&mut own).await;
    store.finalize_in(&tx, vec![end(&claimed[0])]).await.unwrap();
    tx.commit().await.unwrap();

    let keyed = || NewEvent::new("t", "1").deduplicate("k");
    let tx = repeatable(&mut own).await;
    publish(&store, vec![keyed()]).await;
    let error = store.publish_in(&tx, vec![keyed()]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("run it again"), "{error}");
    tx.rollback().await.unwrap();
    let tx = repeatable(&mut own).await;
    assert_eq!(store.publish_in(&tx, vec![keyed()]).await.unwrap()[0].outcome, PublishOutcome::Duplicate);
    tx.commit().await.unwrap();
}

/// The claim's statement waits for the table while it is prepared, and times out. The statement sent beside it then
/// fails only because the transaction is aborted; the caller must get the first error.
#[tokio::test]
async fn a_claim_whose_statement_is_cut_off_is_busy() {
    let database = Database::new().await;
    let name = database.0.rsplit('/').next().unwrap().to_owned();
    database.execute(&format!("ALTER DATABASE {name} SET statement_timeout = '300ms'")).await;
    let store = database.open().await;
    publish(&store, vec![event("a")]).await;
    let other = database.connect().await;
    other.batch_execute("BEGIN; LOCK TABLE tidegate.event_queue IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let error = store.claim(want(1)).await.unwrap_err();
    assert_eq!(error.kind(), tidegate_store::ErrorKind::Busy, "{error}");
    other.batch_execute("COMMIT").await.unwrap();
    assert_eq!(store.claim(want(1)).await.unwrap().len(), 1);
    store.close().await;
}

/// The publisher has seen the entry waiting, but a worker claims it before the publisher gets the key. A held entry is
/// not replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_entry_that_is_claimed_while_its_replacement_waits_for_the_key_is_not_replaced() {
    let database = Database::new().await;
    let (store, other) = (database.open().await, database.open().await);
    let replacing = |payload: &str| NewEvent::new("t", payload.to_owned()).replace_waiting("k");
    let first = publish(&store, vec![replacing("1")]).await;
    let (mut caller, watcher) = (database.connect().await, database.connect().await);
    let tx = caller.transaction().await.unwrap();
    tx.execute("SELECT FROM tidegate.deduplication FOR UPDATE", &[]).await.unwrap();
    let second = replacing("2");
    let publishing = tokio::spawn(async move { other.publish(vec![second]).await });
    eventually("the publisher waits for the key", async || {
        let waiting = "SELECT count(*) > 0 FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        watcher.query_one(waiting, &[]).await.unwrap().get(0)
    })
    .await;
    let held = claim(&store, 1).await;
    assert_eq!(ids(&held), first);
    tx.commit().await.unwrap();
    let made = publishing.await.unwrap().unwrap().remove(0).unwrap();
    assert_eq!(made.outcome, PublishOutcome::Created);
    complete(&store, &held).await;
    let next = claim(&store, 9).await;
    assert_eq!((ids(&next), next[0].fact.payload.as_ref()), (vec![made.id], b"2".as_slice()));
}
