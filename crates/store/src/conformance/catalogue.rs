//! The catalogue version: what raises it, and that a process which knows one history of the database notices another.

use tidegate_core::QueueState;

use super::scene::*;
use crate::ErrorKind::NotFound;
use crate::values::*;

const VERSION: &str = "SELECT catalogue_version FROM tidegate.meta";

/// Publishes an event of every type through each store and claims it through the other.
async fn works_across(one: &AnyStore, other: &AnyStore, types: &[&str]) {
    for (from, to) in [(one, other), (other, one)] {
        for name in types {
            let id = publish_one(from, event(name)).await;
            let claimed = claim_one(to).await;
            assert_eq!(claimed.id, id, "{name}");
            complete(to, &claimed).await;
        }
    }
}

pub(super) async fn a_version_that_was_set_back_stops_nobody(scene: Scene) {
    let (one, other) = (scene.open().await, scene.open().await);
    works_across(&one, &other, &["a", "b"]).await;
    scene.fixture.sql("UPDATE tidegate.meta SET catalogue_version = catalogue_version - 1").await;
    works_across(&one, &other, &["a", "b"]).await;
    works_across(&one, &other, &["c"]).await;
    scene.fixture.sql("UPDATE tidegate.meta SET catalogue_version = 1").await;
    works_across(&one, &other, &["a", "d"]).await;
    one.put_queue(&queue("late"), QueueChange::default()).await.unwrap();
    publish_one(&other, event("t").queue(queue("late"))).await;
}

/// A restore lost the last change, and another change then reaches the same version number.
pub(super) async fn an_equal_version_of_another_history_is_noticed(scene: Scene) {
    let one = scene.open().await;
    publish_one(&one, event("first")).await;
    complete(&one, &claim_one(&one).await).await;
    let before = scene.fixture.number(VERSION).await;
    publish_one(&one, event("lost")).await;
    complete(&one, &claim_one(&one).await).await;
    let known = scene.fixture.number(VERSION).await;
    assert!(known > before);
    scene.fixture.sql("DELETE FROM tidegate.lanes WHERE event_type = 'lost'").await;
    scene.fixture.sql(&format!("UPDATE tidegate.meta SET catalogue_version = {before}")).await;
    let other = scene.open().await;
    while scene.fixture.number(VERSION).await < known {
        let number = scene.fixture.number(VERSION).await;
        publish_one(&other, event(&format!("other{number}"))).await;
        complete(&other, &claim_one(&other).await).await;
    }
    works_across(&one, &other, &["lost", "first"]).await;
}

pub(super) async fn reading_and_unchanged_changes_leave_the_version(scene: Scene) {
    let store = scene.open().await;
    let name = queue("billing");
    let change = QueueChange { depth_limit: Some(Some(7)), ..QueueChange::default() };
    let made = store.put_queue(&name, change.clone()).await.unwrap();
    publish_one(&store, event("t").queue(name.clone())).await;
    let before = scene.fixture.number(VERSION).await;
    for _ in 0..3 {
        assert_eq!(store.queue(&name).await.unwrap(), Some(made.clone()));
        assert_eq!(store.queue(&queue("nowhere")).await.unwrap(), None);
        assert_eq!(store.queues().await.unwrap().len(), 2);
        assert_eq!(store.put_queue(&name, QueueChange::default()).await.unwrap(), made);
        assert_eq!(store.put_queue(&name, change.clone()).await.unwrap(), made);
        let same = QueueChange { state: Some(QueueState::Active), ..QueueChange::default() };
        assert_eq!(store.put_queue(&name, same).await.unwrap(), made);
        publish_one(&store, event("t").queue(name.clone())).await;
        store.claim(Claim { queue: name.clone(), ..want(9) }).await.unwrap();
        store.maintain().await.unwrap();
    }
    assert_eq!(scene.fixture.number(VERSION).await, before);
    store.put_queue(&name, QueueChange { depth_limit: Some(None), ..change }).await.unwrap();
    assert!(scene.fixture.number(VERSION).await > before, "an actual change raises the version");
}

pub(super) async fn changes_by_plain_sql_are_seen(scene: Scene) {
    let (one, other) = (scene.open().await, scene.open().await);
    let name = queue("by.hand");
    one.put_queue(&name, QueueChange::default()).await.unwrap();
    let claimed = |store: AnyStore| {
        let name = name.clone();
        async move { store.claim(Claim { queue: name, ..want(9) }).await.map(|claimed| claimed.len()) }
    };
    publish_one(&other, event("t").queue(name.clone())).await;
    scene.fixture.sql("UPDATE tidegate.queues SET state = 1 WHERE name = 'by.hand'").await;
    assert_eq!((claimed(one.clone()).await.unwrap(), claimed(other.clone()).await.unwrap()), (0, 0), "paused");
    scene.fixture.sql("UPDATE tidegate.queues SET state = 0 WHERE name = 'by.hand'").await;
    assert_eq!((claimed(one.clone()).await.unwrap(), claimed(other.clone()).await.unwrap()), (1, 0));
    scene
        .fixture
        .sql("DELETE FROM tidegate.lanes WHERE queue_id IN (SELECT id FROM tidegate.queues WHERE name = 'by.hand')")
        .await;
    scene.fixture.sql("DELETE FROM tidegate.queues WHERE name = 'by.hand'").await;
    for store in [&one, &other] {
        assert_eq!(kind(claimed(store.clone()).await), NotFound);
        assert_eq!(kind(try_publish(store, event("t").queue(name.clone())).await), NotFound);
        assert_eq!(store.queues().await.unwrap().len(), 1);
    }
}

/// However many versions it missed, and whatever they changed.
pub(super) async fn a_process_that_slept_through_many_changes_catches_up(scene: Scene) {
    let (one, sleeper) = (scene.open().await, scene.open().await);
    publish_one(&sleeper, event("t")).await;
    for number in 0..40 {
        one.put_queue(&queue(&format!("q{number}")), QueueChange::default()).await.unwrap();
        publish_one(&one, event("t").queue(queue(&format!("q{number}")))).await;
    }
    for number in (0..40).rev() {
        let name = queue(&format!("q{number}"));
        assert_eq!(sleeper.claim(Claim { queue: name, ..want(9) }).await.unwrap().len(), 1);
    }
    // Further behind than the catalogue history reaches.
    scene.fixture.sql("UPDATE tidegate.meta SET catalogue_version = catalogue_version + 5000").await;
    scene.fixture.sql("DELETE FROM tidegate.catalogue_history").await;
    one.put_queue(&queue("last"), QueueChange::default()).await.unwrap();
    publish_one(&sleeper, event("t").queue(queue("last"))).await;
    assert_eq!(sleeper.queues().await.unwrap().len(), 42);
}
