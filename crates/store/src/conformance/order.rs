//! The order of claims: by priority, then by number.

use tidegate_core::{EntryId, NewEvent};

use super::scene::*;
use crate::values::*;

pub(super) async fn oldest_first(scene: Scene) {
    let store = scene.open().await;
    let mut published = Vec::new();
    for _ in 0..20 {
        published.push(publish_one(&store, event("t")).await);
    }
    assert!(published.is_sorted());
    assert_eq!(claim_ids(&store, 7).await, published[..7]);
    assert_eq!(claim_ids(&store, 100).await, published[7..]);
}

pub(super) async fn priority_before_order(scene: Scene) {
    let store = scene.open().await;
    let priorities = [0, 5, -3, 0, 100, -100, 5];
    let ids = publish(&store, priorities.map(|priority| event("t").priority(priority)).to_vec()).await;
    let expected = [5, 2, 0, 3, 1, 6, 4].map(|index: usize| ids[index]);
    assert_eq!(claim_ids(&store, 3).await, expected[..3]);
    let late = publish_one(&store, event("t").priority(-1)).await;
    assert_eq!(claim_ids(&store, 1).await, [late]);
    assert_eq!(claim_ids(&store, 9).await, expected[3..]);
}

pub(super) async fn order_within_one_batch(scene: Scene) {
    let store = scene.open().await;
    let types = ["a", "b", "c"];
    let batch: Vec<NewEvent> = (0..300).map(|number| NewEvent::new(types[number % 3], number.to_string())).collect();
    let published = publish(&store, batch).await;
    assert!(published.windows(2).all(|pair| pair[0] < pair[1]), "ids rise in the order of the items");
    let claimed = claim(&store, 300).await;
    assert_eq!(ids(&claimed), published);
    for (number, claimed) in claimed.iter().enumerate() {
        assert_eq!(claimed.fact.payload, number.to_string());
    }
}

pub(super) async fn a_release_keeps_its_place(scene: Scene) {
    let store = scene.open().await;
    let published = publish(&store, events(3)).await;
    let first = claim_one(&store).await;
    requeue(&store, release(&first)).await.unwrap();
    assert_eq!(claim_ids(&store, 3).await, published);
}

pub(super) async fn priorities_across_types(scene: Scene) {
    let store = scene.open().await;
    let batch = [("a", 1), ("b", 0), ("c", -1), ("a", -1), ("b", 1)];
    let ids = publish(&store, batch.map(|(kind, priority)| event(kind).priority(priority)).to_vec()).await;
    assert_eq!(claim_ids(&store, 9).await, [ids[2], ids[3], ids[1], ids[0], ids[4]]);
}

/// Types past the first 256 share one lane; a claim by type still gets only its own.
pub(super) async fn more_types_than_lanes(scene: Scene) {
    let store = scene.open().await;
    let batch: Vec<NewEvent> = (0..600).map(|number| event(&format!("type.{}", number % 300))).collect();
    let published = publish(&store, batch).await;
    for kind in [0, 255, 256, 299] {
        let claimed = store.claim(want_types(10, &[&format!("type.{kind}")])).await.unwrap();
        assert_eq!(ids(&claimed), [published[kind], published[kind + 300]], "type {kind}");
        assert!(claimed.iter().all(|claimed| claimed.fact.event_type == format!("type.{kind}")));
    }
    assert_eq!(store.claim(want_types(10, &["type.300"])).await.unwrap(), []);
    let taken: Vec<usize> = [0, 255, 256, 299].into_iter().flat_map(|kind| [kind, kind + 300]).collect();
    let rest: Vec<EntryId> = (0..600).filter(|index| !taken.contains(index)).map(|index| published[index]).collect();
    assert_eq!(claim_ids(&store, 600).await, rest, "the rest, in order");
}

pub(super) async fn late_starts_do_not_hide_earlier_entries(scene: Scene) {
    let store = scene.open().await;
    let published = publish(&store, events(10)).await;
    let claimed = claim(&store, 10).await;
    requeue(&store, release(&claimed[2])).await.unwrap();
    requeue(&store, release(&claimed[0])).await.unwrap();
    let fresh = publish_one(&store, event("t")).await;
    let other = scene.open().await;
    assert_eq!(claim_ids(&other, 9).await, [published[0], published[2], fresh]);
}

pub(super) async fn retried_entries_and_fresh_ones_share_one_order(scene: Scene) {
    let store = scene.open().await;
    let published = publish(&store, events(4)).await;
    let claimed = claim(&store, 2).await;
    requeue(&store, retry(&claimed[1], RequeueAt::After(seconds(1)))).await.unwrap();
    complete(&store, &claimed[0]).await;
    assert_eq!(claim_ids(&store, 1).await, [published[2]]);
    scene.advance(1);
    assert_eq!(claim_ids(&store, 9).await, [published[1], published[3]]);
}
