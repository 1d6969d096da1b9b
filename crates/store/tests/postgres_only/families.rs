//! Two families in one database: upkeep, the heartbeat, wake-ups and retention of both, and what promotion does with rows
//! that others have locked.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{End, EntryId, QueueName};
use tidegate_store::api::*;
use tidegate_store::{EntryPhase, Family, Finalize, QueueChange, Requeue, RequeueAt, Retention, Wake};
use tokio_postgres::Client;

use crate::scene::*;

async fn phase(store: &Arc<dyn Store>, id: EntryId) -> EntryPhase {
    store.entries(vec![id]).await.unwrap().remove(0).expect("it is known").phase
}

async fn publish_to(store: &Arc<dyn Store>, event: tidegate_core::NewEvent) -> EntryId {
    store.publish(vec![event]).await.unwrap().remove(0).unwrap().id
}

/// The handles of both families of a store.
fn families(store: &impl Families) -> [Arc<dyn Store>; 2] {
    Family::ALL.map(|family| store.family(family))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_moves_the_leases_of_both_families() {
    let database = Database::new().await;
    let store = database.open().await;
    let families = families(&store);
    store.maintain().await.unwrap();
    let mut held = Vec::new();
    for family in &families {
        publish_to(family, event("t")).await;
        held.push(family.claim(want(1)).await.unwrap().remove(0));
    }
    database.execute("UPDATE tidegate.heartbeat SET at = at - interval '600 seconds'").await;
    assert!(families[1].beat().await.unwrap().is_some(), "any handle writes the heartbeat");
    for (family, held) in families.iter().zip(held) {
        let EntryPhase::Leased { until, .. } = phase(family, held.id).await else { panic!("it is held") };
        assert!(until.duration_since(held.lease_until).as_secs() >= 599, "{until}");
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_in_one_family_leaves_the_upkeep_of_the_other() {
    for (broken, works) in [("group_notes", 1), ("dispatch_notes", 0)] {
        let database = Database::new().await;
        let store = database.open().await;
        let families = families(&store);
        let old = publish_to(&families[works], event("t").expires_after(Duration::from_millis(1))).await;
        database.execute(&format!("ALTER TABLE tidegate.{broken} RENAME TO hidden")).await;
        let kind = store.maintain().await.unwrap_err().kind();
        assert_eq!(kind, tidegate_store::ErrorKind::Schema, "the fault is told");
        eventually("the other family is tended", async || {
            let _ = store.maintain().await;
            matches!(phase(&families[works], old).await, EntryPhase::Ended { end: End::Cancelled, .. })
        })
        .await;
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_wakes_its_own_family_in_every_process() {
    let database = Database::new().await;
    let (here, there) = (database.open().await, database.open().await);
    let queue = QueueName::new("q").unwrap();
    // The families have other numbers for the same name, and the same numbers for other names.
    let (entries, jobs) = (here.family(Family::Entries), here.family(Family::Jobs));
    entries.put_queue(&QueueName::new("other").unwrap(), QueueChange::default()).await.unwrap();
    jobs.put_queue(&queue, QueueChange::default()).await.unwrap();
    there.maintain().await.unwrap();
    let (mut of_jobs, mut of_entries) = (there.family(Family::Jobs).wakeups(), there.wakeups());
    eventually("a job wakes the other process", async || {
        publish_to(&jobs, event("t").queue(queue.clone())).await;
        let woken = tokio::time::timeout(Duration::from_millis(500), of_jobs.recv()).await;
        matches!(woken, Ok(Ok(Wake::Queues(queues))) if queues.contains(&queue))
    })
    .await;
    while let Ok(wake) = of_entries.try_recv() {
        assert_eq!(wake, Wake::Any, "no queue of entries had anything");
    }
    for store in [here, there] {
        store.close().await;
    }
}

async fn facts(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM tidegate.events", &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_through_a_handle_removes_the_family_s_own() {
    let database = Database::new().await;
    let store = database.open().await;
    let (client, families) = (database.connect().await, families(&store));
    for family in &families {
        for event_type in ["done", "failed", "live"] {
            let id = publish_to(family, event(event_type)).await;
            let end = match event_type {
                "done" => End::Completed,
                "failed" => End::Failed,
                _ => continue,
            };
            let end = Finalize { id, token: None, end, errors: None, results: None, attempt: None };
            family.finalize(vec![end]).await.unwrap().remove(0).unwrap();
        }
    }
    let past = Some(Duration::ZERO);
    let retention = Retention { audit: None, log: past, dead_letters: None, batch: 100, ..Retention::default() };
    assert_eq!(families[1].retain(retention).await.unwrap().entries, 1, "what was completed");
    assert_eq!((facts(&client).await, families[1].census().await.unwrap().ended), (5, 3));
    let retention = Retention { dead_letters: past, ..retention };
    assert_eq!(families[1].retain(retention).await.unwrap().entries, 1, "dead letters too");
    assert_eq!((facts(&client).await, families[1].census().await.unwrap().waiting), (4, 2));
    // Entries are removed once they are counted.
    let mut removed = 0;
    eventually("entries are removed", async || {
        store.maintain().await.unwrap();
        removed += store.retain(retention).await.unwrap().entries;
        removed == 2
    })
    .await;
    assert_eq!(facts(&client).await, 2, "those of what is live");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_is_locked_is_overtaken_once_it_is_free() {
    let database = Database::new().await;
    let store = database.open().await;
    for (family, table) in families(&store).iter().zip(["event_queue", "dispatch_queue"]) {
        let head = publish_to(family, event("t").group("g").rank(5)).await;
        let other = database.connect().await;
        let lock = format!("BEGIN; SELECT FROM tidegate.{table} WHERE id = {} FOR UPDATE", head.get());
        other.batch_execute(&lock).await.unwrap();
        let urgent = publish_to(family, event("t").group("g").rank(1)).await;
        assert_eq!(phase(family, urgent).await, EntryPhase::Parked, "nobody waits for a locked head");
        other.batch_execute("COMMIT").await.unwrap();
        store.maintain().await.unwrap();
        assert_eq!(phase(family, head).await, EntryPhase::Parked);
        let claimed = family.claim(want(9)).await.unwrap();
        assert_eq!(ids(&claimed), [urgent]);
    }
    store.close().await;
}

/// What a claim changes must be in no index, neither as a column nor in its condition: then the update is heap-only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_index_knows_what_a_claim_changes() {
    let database = Database::new().await;
    database.open().await.close().await;
    let query = "SELECT pg_get_indexdef(x.indexrelid) FROM pg_index x
        WHERE x.indrelid IN ('tidegate.event_queue'::regclass, 'tidegate.dispatch_queue'::regclass)";
    let rows = database.connect().await.query(query, &[]).await.unwrap();
    assert!(rows.len() > 16, "only {} indexes were found", rows.len());
    let changed = ["lease_until", "processing_started_at", "updated_at", "token", "attempts", "worker", "flags"];
    for definition in rows.iter().map(|row| row.get::<_, String>(0)) {
        assert!(!changed.iter().any(|column| definition.contains(column)), "{definition}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_aside_is_found_behind_many_whose_groups_are_busy() {
    let database = Database::new().await;
    let store = database.open().await;
    let jobs = store.family(Family::Jobs);
    let mut last = None;
    for number in 0..3 {
        let group = format!("g{number}");
        publish_to(&jobs, event("t").group(group.clone())).await;
        let claimed = jobs.claim(want(1)).await.unwrap().remove(0);
        let aside = Requeue {
            id: claimed.id,
            token: claimed.token,
            when: RequeueAt::After(Duration::from_millis(50)),
            counts: true,
            aside: true,
            error: None,
            attempt: None,
        };
        jobs.requeue(vec![aside]).await.unwrap().remove(0).unwrap();
        if number < 2 {
            publish_to(&jobs, event("busy").group(group)).await;
            assert_eq!(jobs.claim(want(1)).await.unwrap().len(), 1, "the next of the group runs");
        }
        last = Some(claimed.id);
    }
    let mut found = Vec::new();
    eventually("it is claimed", async || {
        found.extend(ids(&jobs.claim(want(9)).await.unwrap()));
        !found.is_empty()
    })
    .await;
    assert_eq!(found, [last.unwrap()]);
    store.close().await;
}
