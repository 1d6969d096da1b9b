//! Namespaces: several independent stores in one database.

use super::scene::*;
use crate::values::*;

pub(super) async fn two_in_one_database_do_not_see_each_other(scene: Scene) {
    let named = |name: &str| StoreOptions { namespace: name.into(), ..scene.options() };
    let first = scene.open_with(named("first")).await;
    let second = scene.open_with(named("second_2")).await;
    let here = publish_one(&first, event("t").deduplicate("k").group("g")).await;
    first.put_queue(&queue("only.here"), QueueChange::default()).await.unwrap();
    assert_eq!(census(&second).await, Census::default());
    assert_eq!(second.queues().await.unwrap().len(), 1);
    assert_eq!(claim(&second, 9).await, []);
    let there = try_publish(&second, event("u").deduplicate("k").group("g")).await.unwrap();
    assert_eq!(there.outcome, PublishOutcome::Created);
    assert_eq!(claim_ids(&first, 9).await, [here]);
    assert_eq!(claim_ids(&second, 9).await, [there.id]);
    assert_eq!((census(&first).await.events, census(&second).await.events), (1, 1));
}

pub(super) async fn bad_namespaces_are_refused(scene: Scene) {
    for name in ["", "Upper", "1st", "a-b", "a b", "a\"b", "a;b", "ü", "_x", &"n".repeat(41)] {
        let options = StoreOptions { namespace: name.into(), ..scene.options() };
        let refused = scene.fixture.open(options).await.expect_err("a bad namespace");
        assert_eq!(refused.kind(), crate::ErrorKind::Invalid, "{name:?}");
    }
    let longest = StoreOptions { namespace: "n".repeat(40), ..scene.options() };
    publish_one(&scene.open_with(longest).await, event("t")).await;
}
