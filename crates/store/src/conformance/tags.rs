//! Tags: which entries a claim by tag takes, whatever place they wait in.

use std::collections::HashSet;
use std::sync::Arc;

use tidegate_core::{End, EntryId, NewEvent, QueueState};

use super::scene::*;
use crate::values::*;

fn tagged(tags: &[&str]) -> NewEvent {
    event("t").tags(tags.iter().copied())
}

fn want_tags(max: usize, tags: &[&str]) -> Claim {
    Claim { tags: Some(tags.iter().map(|tag| (*tag).to_owned()).collect()), ..want(max) }
}

async fn claim_tags(store: &AnyStore, max: usize, tags: &[&str]) -> Vec<Claimed> {
    store.claim(want_tags(max, tags)).await.expect("the claim is answered")
}

async fn tagged_ids(store: &AnyStore, max: usize, tags: &[&str]) -> Vec<EntryId> {
    ids(&claim_tags(store, max, tags).await)
}

pub(super) async fn any_of_the_tags_matches(scene: Scene) {
    let store = scene.open().await;
    let events = [tagged(&["a"]), tagged(&["b", "x"]), tagged(&["c"]), tagged(&["a", "b"]), event("t")];
    let ids = publish(&store, events.to_vec()).await;
    assert_eq!(tagged_ids(&store, 9, &["nobody"]).await, []);
    let claimed = claim_tags(&store, 9, &["b", "a", "b"]).await;
    assert_eq!(super::scene::ids(&claimed), [ids[0], ids[1], ids[3]]);
    assert_eq!(claimed[1].fact.tags, ["b", "x"]);
    assert_eq!(tagged_ids(&store, 9, &["a", "b", "x"]).await, [], "all of them are leased");
    assert_eq!(tagged_ids(&store, 9, &["c"]).await, [ids[2]]);
    assert_eq!(claim_ids(&store, 9).await, [ids[4]]);
}

pub(super) async fn claims_by_tag_go_by_priority_then_order(scene: Scene) {
    let store = scene.open().await;
    let events = [
        tagged(&["a"]),
        tagged(&["b"]).priority(-1),
        tagged(&["a", "b"]),
        tagged(&["a"]).priority(-1),
        tagged(&["b"]).priority(5),
    ];
    let ids = publish(&store, events.to_vec()).await;
    assert_eq!(tagged_ids(&store, 3, &["a", "b"]).await, [ids[1], ids[3], ids[0]]);
    assert_eq!(tagged_ids(&store, 3, &["a", "b"]).await, [ids[2], ids[4]]);
}

pub(super) async fn claims_with_and_without_tags_share_entries(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![tagged(&["a"]), tagged(&["a"]), tagged(&["b"])]).await;
    assert_eq!(claim_ids(&store, 1).await, [ids[0]]);
    assert_eq!(tagged_ids(&store, 9, &["a"]).await, [ids[1]], "a held entry is not offered by its tag");
    assert_eq!(claim_ids(&store, 9).await, [ids[2]], "nor the other way round");
    assert_eq!(tagged_ids(&store, 9, &["a", "b"]).await, []);
}

pub(super) async fn delayed_and_retried_entries_come_when_due(scene: Scene) {
    let store = scene.open().await;
    let late = publish_one(&store, tagged(&["a"]).delay(seconds(100))).await;
    let soon = publish_one(&store, tagged(&["a"])).await;
    let claimed = claim_tags(&store, 9, &["a"]).await;
    assert_eq!(super::scene::ids(&claimed), [soon]);
    requeue(&store, retry(&claimed[0], RequeueAt::After(seconds(50)))).await.unwrap();
    assert_eq!(tagged_ids(&store, 9, &["a"]).await, []);
    scene.advance(50);
    assert_eq!(tagged_ids(&store, 9, &["a"]).await, [soon]);
    scene.advance(50);
    assert_eq!(tagged_ids(&store, 1, &["a"]).await, [late]);
}

pub(super) async fn an_abandoned_entry_is_found_by_its_tag(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![tagged(&["a"]), tagged(&["a"])]).await;
    let first = claim_tags(&store, 1, &["a"]).await;
    let second = claim_one(&store).await;
    scene.advance(59);
    extend(&store, &second, seconds(60)).await.unwrap();
    scene.advance(1);
    assert_eq!(tagged_ids(&store, 9, &["a"]).await, [ids[0]], "the second holder extended its lease");
    scene.advance(59);
    let taken = claim_tags(&store, 9, &["a"]).await;
    assert_eq!(super::scene::ids(&taken), [ids[1]]);
    assert_eq!(kind(finalize(&store, end(&first[0], End::Completed)).await), crate::ErrorKind::Fenced);
    complete(&store, &taken[0]).await;
    scene.advance(600);
    assert_eq!(tagged_ids(&store, 9, &["a"]).await, [ids[0]], "an ended entry is not offered again");
}

pub(super) async fn a_released_entry_is_found_again(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, tagged(&["a"])).await;
    for round in 0..3 {
        let claimed = claim_tags(&store, 1, &["a"]).await;
        assert_eq!(super::scene::ids(&claimed), [id], "round {round}");
        requeue(&store, release(&claimed[0])).await.unwrap();
    }
}

/// However far claims of the tag have come meanwhile, a released entry is first again by its number.
pub(super) async fn a_released_entry_goes_first_again_at_once(scene: Scene) {
    let store = scene.open().await;
    for round in 0..6 {
        let first = publish_one(&store, tagged(&["a"])).await;
        let held = claim_tags(&store, 1, &["a"]).await;
        assert_eq!(ids(&held), [first], "round {round}");
        // Long enough for the tag's low-water mark to pass it, where the store has one.
        let until = tokio::time::Instant::now() + std::time::Duration::from_millis(150);
        while tokio::time::Instant::now() < until {
            publish_one(&store, tagged(&["a"])).await;
            complete(&store, &claim_tags(&store, 1, &["a"]).await[0]).await;
        }
        let behind = publish_one(&store, tagged(&["a"])).await;
        requeue(&store, release(&held[0])).await.unwrap();
        let again = claim_tags(&store, 1, &["a"]).await;
        assert_eq!(ids(&again), [first], "not the one behind it, in round {round}");
        complete(&store, &again[0]).await;
        finalize(&store, end_by_id(behind, End::Completed)).await.unwrap();
    }
}

pub(super) async fn groups_keep_their_order(scene: Scene) {
    let store = scene.open().await;
    let of = |group: &str, tag: &str| tagged(&[tag]).group(group);
    let ids = publish(&store, vec![of("g", "a"), of("g", "b"), of("g", "a"), of("h", "a")]).await;
    assert_eq!(tagged_ids(&store, 9, &["b"]).await, [], "the second waits for the first");
    let heads = claim_tags(&store, 9, &["a"]).await;
    assert_eq!(super::scene::ids(&heads), [ids[0], ids[3]]);
    complete(&store, &heads[0]).await;
    assert_eq!(tagged_ids(&store, 9, &["a"]).await, [], "the third waits for the second");
    let second = claim_tags(&store, 9, &["b"]).await;
    assert_eq!(super::scene::ids(&second), [ids[1]]);
    complete(&store, &second[0]).await;
    assert_eq!(tagged_ids(&store, 9, &["a"]).await, [ids[2]]);
}

pub(super) async fn queues_types_and_pauses_hold(scene: Scene) {
    let store = scene.open().await;
    store.put_queue(&queue("q"), QueueChange::default()).await.unwrap();
    let elsewhere = publish_one(&store, tagged(&["a"]).queue(queue("q"))).await;
    let here = publish(&store, vec![tagged(&["a"]), event("u").tags(["a"])]).await;
    let typed = Claim { types: Some(vec!["u".into()]), ..want_tags(9, &["a"]) };
    assert_eq!(ids(&store.claim(typed).await.unwrap()), [here[1]]);
    let pause = QueueChange { state: Some(QueueState::Paused), ..QueueChange::default() };
    store.put_queue(&default_queue(), pause).await.unwrap();
    assert_eq!(tagged_ids(&store, 9, &["a"]).await, []);
    let other = Claim { queue: queue("q"), ..want_tags(9, &["a"]) };
    assert_eq!(ids(&store.claim(other).await.unwrap()), [elsewhere]);
}

pub(super) async fn which_tags_have_something_to_claim(scene: Scene) {
    let store = scene.open().await;
    let claimable = async |tags: &[&str]| {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let mut found = store.claimable(&default_queue(), tags).await.unwrap();
        found.sort_unstable();
        found
    };
    let all = ["late", "low", "none", "ready", "second"];
    assert_eq!(claimable(&all).await, [] as [&str; 0]);
    publish_one(&store, tagged(&["ready", "other"])).await;
    publish_one(&store, tagged(&["low"]).priority(7)).await;
    publish_one(&store, tagged(&["late"]).delay(seconds(10))).await;
    publish(&store, vec![tagged(&["ready"]).group("g"), tagged(&["second"]).group("g")]).await;
    assert_eq!(claimable(&all).await, ["low", "ready"]);
    assert_eq!(claimable(&["low"]).await, ["low"]);
    scene.advance(10);
    assert_eq!(claimable(&all).await, ["late", "low", "ready"]);
    let pause = |state| QueueChange { state: Some(state), ..QueueChange::default() };
    store.put_queue(&default_queue(), pause(QueueState::Paused)).await.unwrap();
    assert_eq!(claimable(&all).await, [] as [&str; 0]);
    store.put_queue(&default_queue(), pause(QueueState::Active)).await.unwrap();
    let claimed = claim_tags(&store, 9, &["ready", "low", "late"]).await;
    assert_eq!(claimed.len(), 4);
    assert_eq!(claimable(&all).await, [] as [&str; 0]);
    for entry in claimed.iter().filter(|entry| entry.group.is_some()) {
        complete(&store, entry).await;
    }
    assert_eq!(claimable(&all).await, ["second"], "the next entry of the group");
    scene.advance(60);
    assert_eq!(claimable(&all).await, ["late", "low", "ready", "second"], "leases have run out");
    assert_eq!(kind(store.claimable(&queue("nowhere"), Vec::new()).await), crate::ErrorKind::NotFound);
}

pub(super) async fn ended_and_redriven_entries(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![tagged(&["a"]), tagged(&["a"]), tagged(&["a"])]).await;
    cancel(&store, ids[0]).await.unwrap();
    let claimed = claim_tags(&store, 1, &["a"]).await;
    assert_eq!(super::scene::ids(&claimed), [ids[1]]);
    finalize(&store, end(&claimed[0], End::Failed)).await.unwrap();
    finalize(&store, end_by_id(ids[2], End::Completed)).await.unwrap();
    assert_eq!(tagged_ids(&store, 9, &["a"]).await, []);
    redrive(&store, ids[1]).await.unwrap();
    assert_eq!(tagged_ids(&store, 9, &["a"]).await, [ids[1]]);
}

pub(super) async fn exhausted_entries_are_not_offered_again(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![tagged(&["a"]).max_attempts(1), tagged(&["a"])]).await;
    assert_eq!(tagged_ids(&store, 1, &["a"]).await, [ids[0]]);
    scene.advance(60);
    assert_eq!(tagged_ids(&store, 9, &["a"]).await, [ids[1]]);
    assert_eq!(ended(&view(&store, ids[0]).await), Some(End::CompletedWithErrors));
}

pub(super) async fn replaced_contents_bring_their_own_tags(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, tagged(&["a", "b"]).replace_waiting("k")).await;
    let again = try_publish(&store, tagged(&["b", "c"]).replace_waiting("k")).await.unwrap();
    assert_eq!((again.id, again.outcome), (id, PublishOutcome::Replaced));
    assert_eq!(tagged_ids(&store, 9, &["a"]).await, []);
    let claimed = claim_tags(&store, 9, &["c"]).await;
    assert_eq!((super::scene::ids(&claimed), &claimed[0].fact.tags), (vec![id], &vec!["b".to_owned(), "c".to_owned()]));
}

pub(super) async fn tags_in_a_callers_transaction(scene: Scene) {
    let store = scene.open().await;
    let mut tx = scene.begin().await;
    let events = vec![tagged(&["a"]), tagged(&["a"]).group("g"), tagged(&["a"]).delay(seconds(100))];
    let made = tx.publish_in(events).await.unwrap();
    tx.commit().await;
    store.wake([default_queue()].into());
    store.maintain().await.unwrap();
    let claimed = claim_tags(&store, 9, &["a"]).await;
    assert_eq!(ids(&claimed), [made[0].id, made[1].id]);
    scene.advance(100);
    let mut tx = scene.begin().await;
    tx.finalize_in(vec![end(&claimed[0], End::Completed)]).await.unwrap();
    tx.commit().await;
    assert_eq!(tagged_ids(&store, 9, &["a"]).await, [made[1].id, made[2].id], "an ended entry is not offered");
}

pub(super) async fn bad_tags_are_refused(scene: Scene) {
    let store = scene.open().await;
    for bad in ["", "a,b", " a", "a\0", "\n"] {
        assert_eq!(kind(store.claim(want_tags(1, &[bad])).await), crate::ErrorKind::Invalid, "{bad:?}");
        assert_eq!(kind(try_publish(&store, tagged(&[bad])).await), crate::ErrorKind::Invalid, "{bad:?}");
    }
    let many: Vec<String> = (0..33).map(|number| number.to_string()).collect();
    assert_eq!(kind(try_publish(&store, event("t").tags(many)).await), crate::ErrorKind::Invalid);
    let hostile = "'; DROP TABLE events; -- %_\\ {}";
    let id = publish_one(&store, tagged(&[hostile])).await;
    assert_eq!(tagged_ids(&store, 1, &[hostile]).await, [id]);
}

pub(super) async fn many_claimers_by_tag_get_each_entry_once(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let events = (0..200).map(|n: usize| tagged(&["hot", ["x", "y"][n % 2]])).collect();
    let published: HashSet<EntryId> = publish(&store, events).await.into_iter().collect();
    let store = Arc::new(store);
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..8 {
        let store = Arc::clone(&store);
        let tags: &[&str] = [&["hot"][..], &["x"], &["y"], &["x", "y"]][worker % 4];
        workers.spawn(async move {
            let mut taken = Vec::new();
            loop {
                let claimed = claim_tags(&store, 3, tags).await;
                if claimed.is_empty() {
                    return taken;
                }
                for entry in claimed {
                    complete(&store, &entry).await;
                    taken.push(entry.id);
                }
            }
        });
    }
    let mut taken: Vec<EntryId> = workers.join_all().await.into_iter().flatten().collect();
    // A worker may stop while other claims hold the locks of rows it wants. Nothing is released, so the rest is ready.
    taken.extend(tagged_ids(&store, 200, &["hot"]).await);
    assert_eq!(taken.len(), 200);
    assert_eq!(taken.into_iter().collect::<HashSet<_>>(), published);
}
