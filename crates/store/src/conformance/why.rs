//! `why`: the reason why an entry is not running.

use tidegate_core::{End, EntryId, QueueState, Why};

use super::scene::*;
use crate::values::*;

async fn seen(store: &AnyStore, types: Option<&[&str]>) {
    seen_with_tags(store, types, vec![]).await;
}

async fn seen_with_tags(store: &AnyStore, types: Option<&[&str]>, tags: Vec<WantedTag>) {
    let types = types.map(|types| types.iter().map(|name| (*name).to_owned()).collect());
    let consumer = LiveConsumer { worker: "w".into(), queue: default_queue(), types, tags };
    store.consumers_seen(vec![consumer]).await.unwrap().remove(0).unwrap();
}

pub(super) async fn ready_and_how_many_are_ahead(scene: Scene) {
    let store = scene.open().await;
    seen(&store, None).await;
    let published = publish(&store, events(5)).await;
    for (index, id) in published.iter().enumerate() {
        assert_eq!(store.why(*id).await.unwrap(), Why::Ready { ahead: index as u64 });
    }
    publish_one(&store, event("u").priority(-1)).await;
    assert_eq!(store.why(published[0]).await.unwrap(), Why::Ready { ahead: 1 });
}

pub(super) async fn no_live_consumer_for_its_type(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let no_consumer = Why::NoLiveConsumer { event_type: "t".into(), tags: vec![] };
    assert_eq!(store.why(id).await.unwrap(), no_consumer);
    seen(&store, Some(&["u", "v"])).await;
    assert_eq!(store.why(id).await.unwrap(), no_consumer);
    seen(&store, Some(&["u", "t"])).await;
    assert_eq!(store.why(id).await.unwrap(), Why::Ready { ahead: 0 });
    scene.advance(24 * 3600);
    assert_eq!(store.why(id).await.unwrap(), no_consumer, "the consumer was not seen lately");
    seen(&store, None).await;
    assert_eq!(store.why(id).await.unwrap(), Why::Ready { ahead: 0 });
}

pub(super) async fn no_live_consumer_for_its_tags(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t").tags(["a", "b"])).await;
    let plain = publish_one(&store, event("t")).await;
    let no_consumer = Why::NoLiveConsumer { event_type: "t".into(), tags: vec!["a".into(), "b".into()] };
    let wanted = |tag: &str, of: Option<&str>| WantedTag { tag: tag.into(), event_type: of.map(Into::into) };
    let ready = |why: Why| matches!(why, Why::Ready { .. });
    assert_eq!(store.why(id).await.unwrap(), no_consumer);
    let cases = [
        (vec![wanted("c", None), wanted("t", None)], false),
        (vec![wanted("b", Some("u"))], false),
        (vec![wanted("b", Some("t"))], true),
        (vec![wanted("c", None), wanted("a", None)], true),
    ];
    for (tags, expected) in cases {
        seen_with_tags(&store, Some(&[]), tags.clone()).await;
        let why = store.why(id).await.unwrap();
        assert!(if expected { ready(why.clone()) } else { why == no_consumer }, "{tags:?}: {why:?}");
        assert!(!ready(store.why(plain).await.unwrap()), "no consumer takes entries without tags");
    }
    seen_with_tags(&store, Some(&["t"]), vec![wanted("c", None)]).await;
    assert!(ready(store.why(id).await.unwrap()), "a consumer of the type takes it whatever its tags");
    assert!(ready(store.why(plain).await.unwrap()));
}

pub(super) async fn due_at(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t").delay(seconds(30))).await;
    assert_eq!(store.why(id).await.unwrap(), Why::DueAt { at: scene.moment(30) });
    scene.advance(30);
    seen(&store, None).await;
    assert_eq!(store.why(id).await.unwrap(), Why::Ready { ahead: 0 });
}

pub(super) async fn leased_and_abandoned(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let claimed = claim_one(&store).await;
    let until = claimed.lease_until;
    assert_eq!(store.why(id).await.unwrap(), Why::Leased { worker: "w".into(), until });
    scene.advance(61);
    assert_eq!(store.why(id).await.unwrap(), Why::Abandoned { worker: "w".into(), since: until });
}

pub(super) async fn behind_in_group(scene: Scene) {
    let store = scene.open().await;
    seen(&store, None).await;
    let published = publish(&store, vec![event("t").group("g"); 3]).await;
    assert_eq!(store.why(published[0]).await.unwrap(), Why::Ready { ahead: 0 });
    for (ahead, id) in published.iter().enumerate().skip(1) {
        let expected = Why::BehindInGroup { group: "g".into(), ahead: ahead as u64 };
        assert_eq!(store.why(*id).await.unwrap(), expected);
    }
    complete(&store, &claim_one(&store).await).await;
    assert_eq!(store.why(published[2]).await.unwrap(), Why::BehindInGroup { group: "g".into(), ahead: 1 });
}

pub(super) async fn queue_paused(scene: Scene) {
    let store = scene.open().await;
    let published = publish(&store, vec![event("t"), event("t").delay(seconds(9))]).await;
    let change = QueueChange { state: Some(QueueState::Paused), ..QueueChange::default() };
    store.put_queue(&default_queue(), change).await.unwrap();
    for id in published {
        assert_eq!(store.why(id).await.unwrap(), Why::QueuePaused, "the pause is told before the due moment");
    }
}

pub(super) async fn ended(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    scene.advance(3);
    finalize(&store, end_by_id(id, End::Failed)).await.unwrap();
    let at = scene.now();
    scene.advance(3);
    assert_eq!(store.why(id).await.unwrap(), Why::Ended { end: End::Failed, at });
}

pub(super) async fn unknown_is_not_found(scene: Scene) {
    let store = scene.open().await;
    assert_eq!(kind(store.why(EntryId::new(1).unwrap()).await), crate::ErrorKind::NotFound);
}
