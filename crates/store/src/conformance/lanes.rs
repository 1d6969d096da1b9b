//! Lanes: their limit per queue, and the removal of idle lanes without losing entries.

use tidegate_core::{End, NewEvent};

use super::scene::*;
use crate::ErrorKind::Full;
use crate::values::*;

const LANES: &str = "SELECT count(*) FROM tidegate.lanes WHERE state < 2";
/// Seconds; longer than a lane may be idle (10 minutes).
const LONG: u64 = 700;

async fn open(scene: &Scene, max_lanes: usize) -> AnyStore {
    scene.open_with(StoreOptions { max_lanes, max_job_lanes: max_lanes, ..scene.options() }).await
}

/// Publishes, claims and completes one event.
async fn run(store: &AnyStore, event: NewEvent) {
    let id = publish_one(store, event).await;
    let claimed = claim_one(store).await;
    assert_eq!(claimed.id, id);
    complete(store, &claimed).await;
}

/// Lets time pass and runs upkeep until idle lanes are removed and `left` lanes remain.
async fn idle_away(scene: &Scene, store: &AnyStore, left: i64) {
    scene.advance(LONG);
    eventually("idle lanes are removed", || async {
        store.maintain().await.unwrap();
        scene.advance(20);
        scene.fixture.number(LANES).await == left
    })
    .await;
}

pub(super) async fn one_too_many_is_refused_and_names_the_limit(scene: Scene) {
    let store = open(&scene, 3).await;
    publish(&store, vec![event("a"), event("b"), event("a").priority(1)]).await;
    let answers = store.publish(vec![event("a"), event("c"), event("b").priority(2), event("b")]).await.unwrap();
    assert_eq!(kinds(&answers), [None, Some(Full), Some(Full), None]);
    let said = answers[1].as_ref().unwrap_err().to_string();
    assert!(said.contains("3 lanes") && said.contains("max_lanes"), "{said}");
    let other = queue("other");
    store.put_queue(&other, QueueChange::default()).await.unwrap();
    publish_one(&store, event("c").queue(other)).await;
    assert_eq!(scene.fixture.number(LANES).await, 4, "each queue has its own limit");
    assert_eq!(claim(&store, 9).await.len(), 5);
}

/// Plain SQL does not check the limit: arrivals beyond it share a lane and are delivered.
pub(super) async fn arrivals_beyond_the_limit_are_delivered(scene: Scene) {
    let store = open(&scene, 2).await;
    publish(&store, vec![event("a"), event("b")]).await;
    let mut caller = scene.begin().await;
    for name in ["c", "d", "a"] {
        caller.publish_sql(&event(name)).await.unwrap();
    }
    caller.publish_sql(&event("c").group("g")).await.unwrap();
    caller.commit().await;
    let claimed = claim_until(&store, 6).await;
    let types: Vec<&str> = claimed.iter().map(|claimed| &*claimed.fact.event_type).collect();
    assert_eq!(types.iter().filter(|name| **name == "c").count(), 2, "{types:?}");
    assert!(scene.fixture.number(LANES).await <= 3, "arrivals beyond the limit share a lane");
    assert_eq!(kind(try_publish(&store, event("c")).await), Full);
}

pub(super) async fn idle_lanes_go_and_come_back(scene: Scene) {
    let store = open(&scene, 2).await;
    let other = open(&scene, 2).await;
    run(&store, event("a")).await;
    run(&store, event("b").priority(7)).await;
    assert_eq!(kind(try_publish(&store, event("c")).await), Full);
    idle_away(&scene, &store, 0).await;
    run(&other, event("c")).await;
    run(&store, event("a")).await;
    assert_eq!(kind(try_publish(&other, event("b").priority(7)).await), Full);
    idle_away(&scene, &store, 0).await;
    run(&other, event("b").priority(7)).await;
    let id = publish_one(&other, event("a")).await;
    assert_eq!(claim_ids(&store, 9).await, [id]);
}

pub(super) async fn lanes_in_use_stay(scene: Scene) {
    let store = scene.open().await;
    for name in ["delayed", "parked", "leased", "waiting", "claimed"] {
        run(&store, event(name)).await;
    }
    publish_one(&store, event("delayed").delay(seconds(LONG * 10))).await;
    let leased = publish_one(&store, event("leased").group("g")).await;
    let held = store.claim(Claim { lease: seconds(LONG * 10), ..want(1) }).await.unwrap();
    assert_eq!(ids(&held), [leased]);
    let parked = publish_one(&store, event("parked").group("g")).await;
    let waiting = publish_one(&store, event("waiting")).await;
    for _ in 0..6 {
        scene.advance(LONG / 3);
        store.maintain().await.unwrap();
        let id = publish_one(&store, event("claimed").priority(0)).await;
        let claimed = store.claim(want_types(1, &["claimed"])).await.unwrap();
        assert_eq!(ids(&claimed), [id]);
        complete(&store, &claimed[0]).await;
        store.maintain().await.unwrap();
    }
    assert_eq!(scene.fixture.number(LANES).await, 5);
    assert_eq!(claim_ids(&store, 9).await, [waiting]);
    complete(&store, &held[0]).await;
    assert_eq!(claim_ids(&store, 9).await, [parked]);
}

/// A transaction that was planned while the lane existed commits after the lane was idle long enough to be removed.
pub(super) async fn an_entry_of_a_late_transaction_is_not_lost(scene: Scene) {
    let store = scene.open().await;
    run(&store, event("t")).await;
    let mut caller = scene.begin().await;
    caller.publish_in(vec![event("t"), event("t").group("g")]).await.unwrap();
    if scene.is_sqlite() {
        // The caller's transaction holds the write lock: upkeep cannot remove anything meanwhile.
        caller.commit().await;
        idle_rounds(&scene, &store).await;
    } else {
        idle_rounds(&scene, &store).await;
        caller.commit().await;
    }
    assert_eq!(claim_until(&store, 2).await.len(), 2);
}

async fn idle_rounds(scene: &Scene, store: &AnyStore) {
    scene.advance(LONG);
    for _ in 0..5 {
        store.maintain().await.unwrap();
        scene.advance(20);
    }
}

pub(super) async fn a_dead_letter_of_a_removed_lane_is_redriven(scene: Scene) {
    let store = scene.open().await;
    let alone = publish_one(&store, event("a").priority(-7)).await;
    let grouped = publish_one(&store, event("b").priority(3).group("g")).await;
    let claimed = claim(&store, 9).await;
    let ends = claimed.iter().map(|claimed| end(claimed, End::Failed)).collect();
    store.finalize(ends).await.unwrap();
    idle_away(&scene, &store, 0).await;
    assert_eq!((view(&store, alone).await.priority, view(&store, grouped).await.priority), (-7, 3));
    redrive(&store, grouped).await.unwrap();
    redrive(&store, alone).await.unwrap();
    let claimed = claim_until(&store, 2).await;
    assert!(ids(&claimed).contains(&alone) && ids(&claimed).contains(&grouped));
    assert_eq!((view(&store, alone).await.priority, view(&store, grouped).await.priority), (-7, 3));
}

/// An older program, or a caller with an old snapshot, may leave an entry in a removed lane.
pub(super) async fn an_entry_in_a_removed_lane_is_found(scene: Scene) {
    let store = scene.open().await;
    run(&store, event("t").priority(4)).await;
    idle_away(&scene, &store, 0).await;
    let id = publish_one(&store, event("t").priority(4)).await;
    let stray = "UPDATE tidegate.event_queue SET lane = (SELECT min(id) FROM tidegate.lanes WHERE state = 2)";
    scene.fixture.sql(stray).await;
    assert_eq!(claim(&store, 9).await, []);
    eventually("the entry is found", || async {
        scene.advance(20);
        store.maintain().await.unwrap();
        claim_ids(&store, 9).await == [id]
    })
    .await;
    assert_eq!(view(&store, id).await.priority, 4);
}

/// Forty lanes in each of two queues, with alternating ids. Once those of one queue are empty, entries that come into
/// them are neither missed nor claimed out of order.
pub(super) async fn empty_lanes_are_stepped_over_and_hide_nothing(scene: Scene) {
    let store = scene.open().await;
    let other = queue("other");
    store.put_queue(&other, QueueChange::default()).await.unwrap();
    let kind = |number: usize| event(&format!("t{number}")).priority((number % 3) as i16);
    for number in 0..40 {
        publish(&store, vec![kind(number), kind(number).queue(other.clone())]).await;
    }
    for claimed in claim(&store, 100).await {
        complete(&store, &claimed).await;
    }
    assert_eq!(claim(&store, 9).await, []);
    let low = publish_one(&store, kind(5)).await;
    let high = publish_one(&store, kind(39)).await;
    let delayed = publish_one(&store, kind(9).delay(seconds(5))).await;
    let held = claim(&store, 1).await;
    assert_eq!(ids(&held), [high]);
    let middle = publish_one(&store, kind(1)).await;
    assert_eq!(claim_ids(&store, 9).await, [middle, low]);
    requeue(&store, release(&held[0])).await.unwrap();
    let shared = publish_one(&store, kind(10)).await;
    scene.advance(6);
    assert_eq!(claim_ids(&store, 9).await, [high, delayed, shared]);
    if !scene.is_sqlite() {
        // A transaction that drew lower numbers commits later.
        let mut caller = scene.begin().await;
        let late = caller.publish_in(vec![kind(12), kind(14)]).await.unwrap();
        let first = publish_one(&store, kind(13)).await;
        assert_eq!(claim_ids(&store, 9).await, [first]);
        caller.commit().await;
        assert_eq!(claim_ids(&store, 9).await, [late[0].id, late[1].id]);
    }
    let others = store.claim(Claim { queue: other, ..want(100) }).await.unwrap();
    assert_eq!(others.len(), 40);
}

pub(super) async fn a_shared_lane_among_many_gives_only_what_is_wanted(scene: Scene) {
    const OWN: usize = 20;
    let store = open(&scene, OWN).await;
    let own: Vec<String> = (0..OWN).map(|number| format!("t{number}")).collect();
    publish(&store, own.iter().map(|name| event(name)).collect()).await;
    let mut caller = scene.begin().await;
    for name in ["x", "y", "x"] {
        caller.publish_sql(&event(name)).await.unwrap();
    }
    caller.commit().await;
    store.maintain().await.unwrap();
    // A new process has no low-water marks, so it scans every lane from its start.
    let other = open(&scene, OWN).await;
    let types = |claimed: Vec<Claimed>| claimed.into_iter().map(|entry| entry.fact.event_type).collect::<Vec<_>>();
    let wanted = own.iter().cloned().chain(["x".to_owned()]).collect();
    let mut came = types(other.claim(Claim { types: Some(wanted), ..want(100) }).await.unwrap());
    came.sort();
    let mut expected: Vec<String> = own.into_iter().chain(["x".to_owned(), "x".to_owned()]).collect();
    expected.sort();
    assert_eq!(came, expected);
    assert_eq!(types(claim(&other, 9).await), ["y"]);
}

/// Claims start their scan behind leased entries. Once a lease ends or is released, its entry comes first again.
pub(super) async fn leases_in_front_are_passed_and_found_again(scene: Scene) {
    let store = scene.open().await;
    let other = scene.open().await;
    let published = publish(&store, events(400)).await;
    let held = store.claim(Claim { lease: seconds(60), ..want(100) }).await.unwrap();
    // 50 to 200 claims, for up to a second: low-water marks move meanwhile, where the store has them.
    let began = std::time::Instant::now();
    let mut taken = 100;
    while taken < 300 && (taken < 150 || began.elapsed() < std::time::Duration::from_secs(1)) {
        let claimed = claim_one(&store).await;
        assert_eq!(claimed.id, published[taken]);
        complete(&store, &claimed).await;
        taken += 1;
    }
    requeue(&store, release(&held[7])).await.unwrap();
    assert_eq!(claim_ids(&store, 1).await, [published[7]], "released by this process");
    requeue(&other, release(&held[8])).await.unwrap();
    eventually("one released elsewhere is first", || async { claim_ids(&store, 1).await == [published[8]] }).await;
    scene.advance(61);
    assert_eq!(claim_ids(&store, 100).await, published[..100], "abandoned entries come first");
}
