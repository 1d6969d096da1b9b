//! Entry and event ids: the id space, and that no id is used twice.

use std::collections::HashSet;

use tidegate_core::{EntryId, IdSpace};

use super::scene::*;
use crate::values::*;

pub(super) async fn ids_follow_offset_and_step(scene: Scene) {
    let options = StoreOptions { ids: IdSpace::new(3, 10).unwrap(), ..scene.options() };
    let store = scene.open_with(options.clone()).await;
    let raw = |ids: Vec<EntryId>| ids.into_iter().map(EntryId::get).collect::<Vec<_>>();
    let mut drawn = raw(publish(&store, events(3)).await);
    store.close().await;
    let store = scene.open_with(options).await;
    drawn.extend(raw(publish(&store, events(2)).await));
    let mut caller = scene.begin().await;
    drawn.push(caller.publish_in(events(1)).await.unwrap()[0].id.get());
    caller.publish_sql(&event("t")).await.unwrap();
    caller.commit().await;
    drawn.extend(raw(ids(&claim_until(&store, 7).await)[6..].to_vec()));
    assert_eq!(drawn[0], 3);
    assert_eq!(drawn.len(), 7);
    assert!(drawn.windows(2).all(|pair| pair[1] > pair[0]), "{drawn:?}");
    assert!(drawn.iter().all(|id| id % 10 == 3), "{drawn:?}");
}

pub(super) async fn another_id_space_is_refused(scene: Scene) {
    let ids = IdSpace::new(3, 10).unwrap();
    scene.open_with(StoreOptions { ids, ..scene.options() }).await.close().await;
    for (offset, step) in [(1, 1), (4, 10), (3, 11)] {
        let options = StoreOptions { ids: IdSpace { offset, step }, ..scene.options() };
        let refused = scene.fixture.open(options).await.expect_err("another id space");
        let said = refused.to_string();
        assert!(said.contains('3') && said.contains("10"), "the error names the stored id space: {said}");
        assert_eq!(refused.kind(), crate::ErrorKind::Invalid, "{refused:?}");
    }
    for (offset, step) in [(0, 1), (4, 3), (1, 0), (1, 2000)] {
        let options = StoreOptions { ids: IdSpace { offset, step }, ..scene.options() };
        let refused = scene.fixture.open(options).await.expect_err("an invalid id space");
        assert_eq!(refused.kind(), crate::ErrorKind::Invalid);
    }
}

pub(super) async fn ids_are_never_used_again(scene: Scene) {
    let mut seen = HashSet::new();
    for _ in 0..3 {
        let store = scene.open().await;
        for id in publish(&store, events(3)).await {
            assert!(seen.insert(id), "{id} was used twice");
            finalize(&store, end_by_id(id, tidegate_core::End::Completed)).await.unwrap();
        }
        store.close().await;
    }
}

pub(super) async fn event_ids_are_unique_and_sort_by_time(scene: Scene) {
    let store = scene.open().await;
    let mut event_ids = Vec::new();
    for _ in 0..5 {
        let answers = store.publish(events(100)).await.unwrap();
        let batch: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().event_id).collect();
        assert!(batch.iter().all(|id| id.unix_ms() == scene.now().as_millisecond()));
        event_ids.extend(batch);
        scene.advance(1);
    }
    assert!(event_ids.is_sorted());
    assert_eq!(event_ids.iter().collect::<HashSet<_>>().len(), 500);
}

pub(super) async fn two_processes_draw_apart(scene: Scene) {
    let stores = [scene.open().await, scene.open().await];
    let mut last = None;
    for number in 0..20 {
        let id = publish_one(&stores[number % 2], event("t")).await;
        assert!(last < Some(id), "a publish gets a higher id than those acknowledged before it");
        last = Some(id);
    }
}
