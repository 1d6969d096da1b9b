//! Schema versions: which programs run on which schema, with and without migration.

use tidegate_core::End;

use super::scene::*;
use crate::ErrorKind::Schema;
use crate::values::*;

pub(super) async fn a_newer_schema_is_refused(scene: Scene) {
    scene.open().await.close().await;
    scene.fixture.set_schema(SCHEMA_VERSION + 5, SCHEMA_VERSION + 1).await;
    let refused = scene.fixture.open(scene.options()).await.expect_err("a newer schema");
    assert_eq!(refused.kind(), Schema);
    let said = refused.to_string();
    assert!(said.contains(&(SCHEMA_VERSION + 5).to_string()), "it names the version: {said}");
    scene.fixture.set_schema(SCHEMA_VERSION, 1).await;
    publish_one(&scene.open().await, event("t")).await;
}

pub(super) async fn a_newer_but_compatible_schema_works(scene: Scene) {
    scene.open().await.close().await;
    scene.fixture.set_schema(SCHEMA_VERSION + 5, SCHEMA_VERSION).await;
    for migrate in [true, false] {
        let store = scene.open_with(StoreOptions { migrate, ..scene.options() }).await;
        publish_one(&store, event("t")).await;
        complete(&store, &claim_one(&store).await).await;
    }
    scene.fixture.set_schema(SCHEMA_VERSION, 1).await;
}

pub(super) async fn an_older_schema_is_refused_without_migration(scene: Scene) {
    scene.open().await.close().await;
    scene.fixture.set_schema(SCHEMA_VERSION - 1, 0).await;
    let options = StoreOptions { migrate: false, ..scene.options() };
    assert_eq!(scene.fixture.open(options).await.expect_err("an older schema").kind(), Schema);
    scene.fixture.set_schema(SCHEMA_VERSION, 1).await;
}

pub(super) async fn an_empty_database_is_refused_without_migration(scene: Scene) {
    let options = StoreOptions { migrate: false, ..scene.options() };
    assert_eq!(scene.fixture.open(options.clone()).await.expect_err("no schema").kind(), Schema);
    scene.open().await.close().await;
    publish_one(&scene.open_with(options).await, event("t")).await;
}

pub(super) async fn the_same_program_twice(scene: Scene) {
    let first = scene.open().await;
    let id = publish_one(&first, event("t")).await;
    let second = scene.open().await;
    assert_eq!(claim_ids(&second, 9).await, [id]);
    assert_eq!(claim(&first, 9).await, []);
    assert_eq!(first.queues().await.unwrap(), second.queues().await.unwrap());
}

pub(super) async fn concurrent_first_starts(scene: Scene) {
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let scene = scene.clone();
        starts.spawn(async move { scene.open().await });
    }
    let stores = starts.join_all().await;
    for (number, store) in stores.iter().enumerate() {
        publish_one(store, event("t")).await;
        assert_eq!(census(&stores[0]).await.events, number as u64 + 1);
    }
    assert_eq!(stores[3].queues().await.unwrap().len(), 1);
}

/// What a newer program's migration does last.
async fn upgrade(scene: &Scene, oldest_compatible: i32) {
    scene.fixture.set_schema(SCHEMA_VERSION + 5, oldest_compatible).await;
    scene.fixture.sql("UPDATE tidegate.meta SET catalogue_version = catalogue_version + 1").await;
}

/// Whatever a process does first after the upgrade is refused, and so is everything after that.
pub(super) async fn an_upgrade_stops_processes_that_run(scene: Scene) {
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(scene.open().await);
    }
    let ids = publish(&stores[0], events(4)).await;
    let held = claim_one(&stores[0]).await;
    let before = census(&stores[0]).await;
    upgrade(&scene, SCHEMA_VERSION + 1).await;
    let refused = refused_publish(&stores[0]).await;
    assert_eq!(refused.kind(), Schema);
    let said = refused.to_string();
    for part in [SCHEMA_VERSION + 5, SCHEMA_VERSION + 1, SCHEMA_VERSION] {
        assert!(said.contains(&part.to_string()), "{said}");
    }
    assert_eq!(kind(stores[1].claim(want(9)).await), Schema);
    assert_eq!(kind(stores[2].finalize(vec![end(&held, End::Completed)]).await), Schema);
    assert_eq!(kind(stores[3].finalize(vec![end_by_id(ids[3], End::Completed)]).await), Schema);
    let longer = Extend { id: held.id, token: held.token, lease: seconds(60) };
    assert_eq!(kind(stores[4].extend(vec![longer]).await), Schema);
    assert_eq!(kind(stores[5].requeue(vec![release(&held)]).await), Schema);
    assert_eq!(kind(stores[6].catalogue_version().await), Schema);
    assert_eq!(kind(stores[7].probe().await), Schema, "readiness shows it");
    // From then on, even if somebody sets the version back.
    scene.fixture.set_schema(SCHEMA_VERSION, 1).await;
    for store in &stores {
        assert_eq!(refused_publish(store).await.kind(), Schema);
        assert_eq!(kind(store.claim(want(9)).await), Schema);
        assert_eq!(kind(store.finalize(vec![end(&held, End::Completed)]).await), Schema);
        assert_eq!(kind(store.entries(ids.clone()).await), Schema);
        assert_eq!(kind(store.keys().await), Schema);
        assert_eq!(kind(store.maintain().await), Schema);
        assert_eq!(kind(store.probe().await), Schema);
        store.close().await;
    }
    let newer = scene.open().await;
    assert_eq!(census(&newer).await, before, "nothing was written");
    complete(&newer, &held).await;
}

async fn refused_publish(store: &AnyStore) -> crate::Error {
    store.publish(events(1)).await.expect_err("the batch is refused")
}

pub(super) async fn an_upgrade_that_this_program_can_bear_stops_nobody(scene: Scene) {
    let store = scene.open().await;
    upgrade(&scene, SCHEMA_VERSION).await;
    publish_one(&store, event("t")).await;
    complete(&store, &claim_one(&store).await).await;
    store.probe().await.unwrap();
    scene.fixture.set_schema(SCHEMA_VERSION, 1).await;
}

/// Also in transactions of the application.
pub(super) async fn an_upgrade_stops_callers_transactions(scene: Scene) {
    let store = scene.open().await;
    publish_one(&store, event("t")).await;
    let held = claim_one(&store).await;
    upgrade(&scene, SCHEMA_VERSION + 1).await;
    let mut caller = scene.begin().await;
    assert_eq!(kind(caller.finalize_in(vec![end(&held, End::Completed)]).await), Schema);
    caller.rollback().await;
    let mut caller = scene.begin().await;
    assert_eq!(kind(caller.publish_in(events(1)).await), Schema);
    caller.rollback().await;
    scene.fixture.set_schema(SCHEMA_VERSION, 1).await;
    complete(&scene.open().await, &held).await;
}
