//! Schema versions: which programs run on which schema, with and without migration.

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
