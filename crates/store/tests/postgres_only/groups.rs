//! Group locks: few, taken in one order, never held while waiting for a row; and groups that lost their head.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::{EntryId, NewEvent};
use tidegate_store::Claim;
use tidegate_store::api::*;

use crate::scene::*;

fn of(group: usize) -> NewEvent {
    event("t").group(format!("g{group}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn however_many_groups_a_batch_has_it_takes_few_locks() {
    let database = Database::new().await;
    let store = database.open().await;
    database
        .execute(
            "CREATE TABLE locks_seen (held bigint);
             CREATE FUNCTION note_locks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO locks_seen SELECT count(*) FROM pg_locks
                 WHERE locktype = 'advisory' AND pid = pg_backend_pid();
                 RETURN NULL;
             END $$;
             CREATE TRIGGER note_locks AFTER UPDATE ON tidegate.event_queue EXECUTE FUNCTION note_locks()",
        )
        .await;
    let batch: Vec<NewEvent> = (0..2_000).map(|number| of(number / 2)).collect();
    publish(&store, batch).await;
    let claimed = claim(&store, 1_000).await;
    assert_eq!(claimed.len(), 1_000);
    complete(&store, &claimed).await;
    let mut caller = database.connect().await;
    let tx = caller.transaction().await.unwrap();
    store.publish_in(&tx, (0..1_000).map(of).collect()).await.unwrap();
    tx.commit().await.unwrap();
    store.maintain().await.unwrap();
    let row = database.connect().await.query_one("SELECT max(held), count(*) FROM locks_seen", &[]).await.unwrap();
    let (most, seen): (i64, i64) = (row.get(0), row.get(1));
    assert!(seen >= 3, "promotions were seen");
    assert!((1..=128).contains(&most), "{most} locks were held at once");
    assert_eq!(claim(&store, 2_000).await.len(), 1_000, "one of each group");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn heads_end_while_their_followers_are_sorted_in_without_a_deadlock() {
    const GROUPS: usize = 100;
    let database = Database::new().await;
    // Later than the lock timeout, so that a deadlock ends in an error instead of being detected and retried.
    database.execute("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''60s''', current_database()); END $$").await;
    let (store, other) = (database.open().await, database.open().await);
    publish(&store, (0..GROUPS).map(of).collect()).await;
    for round in 0..8 {
        let heads = claim(&store, GROUPS).await;
        assert_eq!(heads.len(), GROUPS, "round {round}");
        let mut caller = database.connect().await;
        let tx = caller.transaction().await.unwrap();
        let followers = store.publish_in(&tx, (0..GROUPS).map(of).collect()).await.unwrap();
        tx.commit().await.unwrap();
        let (ended, sorted) = tokio::join!(store.finalize(heads.iter().map(end).collect()), other.maintain());
        for answer in ended.unwrap() {
            answer.unwrap();
        }
        sorted.unwrap();
        store.maintain().await.unwrap();
        let expected: Vec<EntryId> = followers.iter().map(|published| published.id).collect();
        let next = claim(&other, GROUPS).await;
        assert_eq!(ids(&next), expected, "round {round}");
        complete(&other, &next).await;
        publish(&store, (0..GROUPS).map(of).collect()).await;
    }
}

/// Parked entries are replaced and cancelled while their heads end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_waits_in_a_circle_for_the_rows_of_groups() {
    const GROUPS: usize = 40;
    let database = Database::new().await;
    database.execute("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''60s''', current_database()); END $$").await;
    let (store, other) = (database.open().await, database.open().await);
    for round in 0..6 {
        let keyed = |number: usize| of(number).replace_waiting(format!("{round}-{number}"));
        publish(&store, (0..GROUPS).map(of).collect()).await;
        let followers = publish(&store, (0..GROUPS).map(keyed).collect()).await;
        let last = publish(&store, (0..GROUPS).map(of).collect()).await;
        let heads = claim(&store, GROUPS).await;
        assert_eq!(heads.len(), GROUPS, "round {round}");
        // In the opposite order to the ends of the heads.
        let replacing: Vec<NewEvent> = (0..GROUPS / 2).rev().map(keyed).collect();
        let cancelled: Vec<EntryId> = followers[GROUPS / 2..].iter().rev().copied().collect();
        let (ended, replaced, gone) = tokio::join!(
            store.finalize(heads.iter().map(end).collect()),
            other.publish(replacing),
            other.cancel(cancelled),
        );
        for answer in ended.unwrap() {
            answer.unwrap();
        }
        let replaced: Vec<EntryId> = replaced.unwrap().into_iter().map(|answer| answer.unwrap().id).collect();
        gone.unwrap().into_iter().for_each(|answer| answer.unwrap());
        let mut left: BTreeSet<EntryId> = replaced.into_iter().chain(last).collect();
        eventually("every group is worked off", async || {
            let claimed = claim(&store, GROUPS).await;
            left.retain(|id| claimed.iter().all(|claimed| claimed.id != *id));
            complete(&store, &claimed).await;
            left.is_empty()
        })
        .await;
    }
}

/// A parked entry that an open transaction of the application has changed does not block the end of its head.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_open_transaction_on_a_follower_does_not_hold_up_the_end_of_its_head() {
    let database = Database::new().await;
    let store = database.open().await;
    let follower = event("t").group("g").replace_waiting("k");
    let published = publish(&store, vec![event("t").group("g"), follower.clone()]).await;
    let head = claim(&store, 1).await;
    let mut caller = database.connect().await;
    let tx = caller.transaction().await.unwrap();
    store.publish_in(&tx, vec![follower]).await.unwrap();
    // If this waited for the row, it would wait forever: this task holds the open transaction.
    complete(&store, &head).await;
    assert_eq!(claim(&store, 9).await, []);
    tx.commit().await.unwrap();
    eventually("the follower is claimable", async || ids(&claim(&store, 9).await) == published[1..]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn groups_that_lost_their_head_are_mended_and_counted() {
    let database = Database::new().await;
    let store = database.open().await;
    let published = publish(&store, (0..6).map(|number| of(number / 2)).collect()).await;
    let heads = claim(&store, 9).await;
    assert_eq!(heads.len(), 3);
    database.execute("DELETE FROM tidegate.event_queue WHERE group_key IN ('g0', 'g2') AND place < 2").await;
    assert_eq!(claim(&store, 9).await, []);
    // A new process: its first upkeep looks for groups without a head.
    let other = database.open().await;
    let upkeep = other.maintain().await.unwrap();
    assert_eq!((upkeep.groups_mended, upkeep.promoted), (2, 2));
    assert_eq!(ids(&claim(&store, 9).await), [published[1], published[5]]);
    let third = database.open().await;
    assert_eq!(third.maintain().await.unwrap().groups_mended, 0, "a group with a leased head has one");
}

/// A group whose promotion is still pending is not counted as one that lost its head.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_head_that_a_callers_transaction_ended_is_no_lost_head() {
    let database = Database::new().await;
    let store = database.open().await;
    let published = publish(&store, vec![of(1), of(1)]).await;
    let head = claim(&store, 1).await;
    let mut caller = database.connect().await;
    let tx = caller.transaction().await.unwrap();
    store.finalize_in(&tx, vec![end(&head[0])]).await.unwrap();
    tx.commit().await.unwrap();
    let upkeep = store.maintain().await.unwrap();
    assert_eq!(upkeep.groups_mended, 0);
    assert_eq!(ids(&claim(&store, 9).await), published[1..]);
}

/// An entry that another transaction has locked costs its lane neither its quota nor the claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_locked_entry_does_not_use_up_the_quota_of_its_lane() {
    let database = Database::new().await;
    let store = database.open().await;
    let ids = publish(&store, vec![event("a"), event("a"), event("b")]).await;
    let mut own = database.connect().await;
    let tx = own.transaction().await.unwrap();
    tx.execute("SELECT FROM tidegate.event_queue WHERE id = $1 FOR UPDATE", &[&ids[0].get()]).await.unwrap();
    let quotas = BTreeMap::from([("a".to_owned(), 1)]);
    let taken = store.claim(Claim { quotas, ..want(9) }).await.unwrap();
    assert_eq!(taken.iter().map(|entry| entry.id).collect::<Vec<_>>(), [ids[1], ids[2]]);
    tx.rollback().await.unwrap();
}
