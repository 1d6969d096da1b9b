//! Publishing and finalising in the caller's own transaction, through the store and with plain SQL.

use std::time::Duration;

use tidegate_core::{End, NewEvent, QueueState};

use super::scene::*;
use crate::ErrorKind::{Busy, Fenced, Invalid};
use crate::values::*;

pub(super) async fn takes_the_retries_of_the_queue(scene: Scene) {
    let store = scene.open().await;
    let settings = SettingsChange { max_retries: Some(Some(7)), ..SettingsChange::default() };
    store.put_queue(&default_queue(), QueueChange { settings, ..QueueChange::default() }).await.unwrap();
    let mut caller = scene.begin().await;
    let asks = event("t").retries_of_queue(3);
    let published = caller.publish_in(vec![asks.clone(), asks.deduplicate("k"), event("t")]).await.unwrap();
    caller.commit().await;
    for (one, expected) in published.iter().zip([8, 8, 20]) {
        assert_eq!((one.max_attempts, view(&store, one.id).await.max_attempts), (expected, expected));
    }
}

pub(super) async fn commits_with_the_callers_rows(scene: Scene) {
    let store = scene.open().await;
    let mut caller = scene.begin().await;
    caller.write_own_row().await;
    let published = caller.publish_in(events(3)).await.unwrap();
    assert_eq!(census(&store).await.events, 0, "nothing is visible before the commit");
    assert_eq!(scene.fixture.own_rows().await, 0);
    caller.commit().await;
    store.wake([default_queue()].into());
    let came = claim_until(&store, 3).await;
    assert_eq!(ids(&came), published.iter().map(|published| published.id).collect::<Vec<_>>());
    assert!(came.iter().zip(&published).all(|(claimed, published)| claimed.event_id == published.event_id));
    assert_eq!(scene.fixture.own_rows().await, 1);
    census(&store).await;
}

pub(super) async fn rolls_back_with_the_callers_rows(scene: Scene) {
    let store = scene.open().await;
    let mut caller = scene.begin().await;
    caller.write_own_row().await;
    let grouped = event("t").group("g");
    caller
        .publish_in(vec![event("t"), event("brand.new"), grouped.clone(), event("t").delay(seconds(1))])
        .await
        .unwrap();
    caller.rollback().await;
    assert_eq!((scene.fixture.own_rows().await, census(&store).await.events), (0, 0));
    scene.advance(100);
    store.maintain().await.unwrap();
    assert_eq!(claim(&store, 9).await, []);
    let next = publish(&store, vec![grouped, event("brand.new")]).await;
    assert_eq!(claim_ids(&store, 9).await, next, "types and groups of the rolled-back transaction can be used");
}

pub(super) async fn an_open_transaction_holds_nobody_up_for_long(scene: Scene) {
    let options = StoreOptions { lock_timeout: Duration::from_millis(300), ..scene.options() };
    let store = scene.open_with(options).await;
    publish_one(&store, event("t")).await;
    let mut caller = scene.begin().await;
    caller.publish_in(vec![event("t"), event("brand.new"), event("t").group("g")]).await.unwrap();
    let others = store.publish(vec![event("t"), event("brand.new"), event("t").group("g")]).await;
    if scene.is_sqlite() {
        assert_eq!(kind(others), Busy, "one writer at a time, and the wait is bounded");
        assert_eq!(depth(&store).await.ready, 1, "readers go on");
        caller.commit().await;
        publish_one(&store, event("t")).await;
    } else {
        assert_eq!(kinds(&others.unwrap()), [None, None, None]);
        let claimed = claim(&store, 9).await;
        assert_eq!(claimed.len(), 4, "others' events are published and claimed meanwhile");
        for claimed in &claimed {
            complete(&store, claimed).await;
        }
        caller.commit().await;
        claim_until(&store, 3).await;
    }
    census(&store).await;
}

pub(super) async fn without_a_wake_it_is_still_delivered(scene: Scene) {
    let store = scene.open().await;
    for round in 0..5 {
        let mut caller = scene.begin().await;
        caller.publish_in(vec![event("t"), event(&format!("new.{round}")), event("t").group("g")]).await.unwrap();
        caller.commit().await;
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        let mut taken = 0;
        while taken < 3 {
            assert!(tokio::time::Instant::now() < deadline, "claims alone did not deliver everything");
            for claimed in claim(&store, 9).await {
                complete(&store, &claimed).await;
                taken += 1;
            }
        }
    }
}

pub(super) async fn upkeep_sorts_arrivals_in(scene: Scene) {
    let store = scene.open().await;
    let mut caller = scene.begin().await;
    caller.publish_in(vec![event("brand.new"), event("t").group("g"), event("u").delay(seconds(9))]).await.unwrap();
    caller.commit().await;
    eventually("everything is sorted in", async || {
        store.maintain().await.unwrap();
        let depth = depth(&store).await;
        (depth.ready, depth.delayed, depth.parked) == (2, 1, 0)
    })
    .await;
    assert_eq!(claim(&store, 9).await.len(), 2);
}

pub(super) async fn every_option_works_in_a_callers_transaction(scene: Scene) {
    let store = scene.open().await;
    store.put_queue(&queue("other"), QueueChange::default()).await.unwrap();
    let mut caller = scene.begin().await;
    let batch = vec![
        event("t").priority(5),
        event("t").priority(-5),
        event("t").delay(seconds(10)),
        event("t").queue(queue("other")),
        event("t").group("g"),
        event("t").group("g"),
        NewEvent::new("t", "1").deduplicate("k"),
        NewEvent::new("t", "1").deduplicate("k"),
    ];
    let published = caller.publish_in(batch).await.unwrap();
    caller.commit().await;
    store.wake([default_queue(), queue("other")].into());
    assert_eq!((published[7].id, published[7].outcome), (published[6].id, PublishOutcome::Duplicate));
    eventually("all arrivals are sorted in", async || {
        store.maintain().await.unwrap();
        depth(&store).await.ready == 4
    })
    .await;
    let came = claim(&store, 9).await;
    let expected = [1, 4, 6, 0].map(|index: usize| published[index].id);
    assert_eq!(ids(&came), expected);
    scene.advance(10);
    assert_eq!(claim_ids(&store, 9).await, [published[2].id]);
    let there = store.claim(Claim { queue: queue("other"), ..want(9) }).await.unwrap();
    assert_eq!(ids(&there), [published[3].id]);
    complete(&store, &came[1]).await;
    assert_eq!(ids(&claim_until(&store, 1).await), [published[5].id]);
}

pub(super) async fn a_late_commit_is_found_below_later_entries(scene: Scene) {
    let store = scene.open_on_database_time().await;
    publish_one(&store, event("t")).await;
    complete(&store, &claim_one(&store).await).await;
    let mut caller = scene.begin().await;
    let late = caller.publish_in(events(1)).await.unwrap()[0].id;
    if !scene.is_sqlite() {
        // Enough traffic with higher numbers for scans to start above it.
        for _ in 0..5 {
            let later = publish(&store, events(200)).await;
            assert!(later[0] > late);
            for chunk in claim(&store, 200).await.chunks(100) {
                let items = chunk.iter().map(|claimed| end(claimed, End::Completed)).collect();
                store.finalize(items).await.unwrap();
            }
        }
    }
    caller.commit().await;
    assert_eq!(ids(&claim_until(&store, 1).await), [late]);
}

/// Longer than low-water marks trail behind what claims have seen (100 ms).
const LONG: Duration = Duration::from_millis(500);

/// Publishes, claims and ends other events for a while, so that low-water marks pass the entries of an open
/// transaction. With a backlog, no claim comes back empty.
async fn traffic(store: &AnyStore, backlog: usize) {
    publish(store, events(backlog)).await;
    let until = tokio::time::Instant::now() + LONG;
    while tokio::time::Instant::now() < until {
        publish(store, events(20)).await;
        let items = claim(store, 20).await.iter().map(|claimed| end(claimed, End::Completed)).collect();
        store.finalize(items).await.unwrap();
    }
}

pub(super) async fn a_commit_that_took_long_is_found_once_nothing_else_is_left(scene: Scene) {
    let store = scene.open_on_database_time().await;
    publish_one(&store, event("t")).await;
    complete(&store, &claim_one(&store).await).await;
    let mut caller = scene.begin().await;
    let late = caller.publish_in(events(1)).await.unwrap()[0].id;
    if !scene.is_sqlite() {
        traffic(&store, 0).await;
    }
    caller.commit().await;
    // Without upkeep and wake-ups: claims alone find it.
    eventually("the late entry comes", async || {
        let found = claim_ids(&store, 9).await;
        assert!(found.is_empty() || found == [late], "{found:?}");
        !found.is_empty()
    })
    .await;
}

pub(super) async fn a_commit_that_took_long_is_found_below_a_backlog(scene: Scene) {
    let store = scene.open_on_database_time().await;
    publish_one(&store, event("t")).await;
    complete(&store, &claim_one(&store).await).await;
    let mut caller = scene.begin().await;
    let late = caller.publish_in(events(1)).await.unwrap()[0].id;
    if !scene.is_sqlite() {
        traffic(&store, 200).await;
    }
    caller.commit().await;
    eventually("the late entry comes though others wait behind it", async || {
        publish(&store, events(5)).await;
        let claimed = claim(&store, 5).await;
        let found = claimed.iter().any(|claimed| claimed.id == late);
        let items = claimed.iter().map(|claimed| end(claimed, End::Completed)).collect();
        store.finalize(items).await.unwrap();
        found
    })
    .await;
}

pub(super) async fn finalize_in_commits_with_effects(scene: Scene) {
    let store = scene.open().await;
    publish_one(&store, event("t")).await;
    let claimed = claim_one(&store).await;
    let mut caller = scene.begin().await;
    caller.write_own_row().await;
    let finalized = caller.finalize_in(vec![end(&claimed, End::Completed)]).await.unwrap();
    assert_eq!(finalized, [Finalized { repeated: false, end: End::Completed }]);
    let follow_up = caller.publish_in(vec![event("follow.up")]).await.unwrap()[0].id;
    caller.commit().await;
    assert_eq!(scene.fixture.own_rows().await, 1);
    assert_eq!(ended(&view(&store, claimed.id).await), Some(End::Completed));
    assert_eq!(ids(&claim_until(&store, 1).await), [follow_up]);
    assert!(finalize(&store, end(&claimed, End::Completed)).await.unwrap().repeated);
    census(&store).await;
}

pub(super) async fn finalize_in_rolls_back_with_effects(scene: Scene) {
    let store = scene.open().await;
    publish_one(&store, event("t")).await;
    let claimed = claim_one(&store).await;
    let mut caller = scene.begin().await;
    caller.write_own_row().await;
    caller.finalize_in(vec![end(&claimed, End::Completed)]).await.unwrap();
    caller.rollback().await;
    assert_eq!(scene.fixture.own_rows().await, 0);
    assert!(matches!(view(&store, claimed.id).await.phase, EntryPhase::Leased { .. }));
    complete(&store, &claimed).await;
}

pub(super) async fn finalize_in_with_a_stale_lease_is_fenced(scene: Scene) {
    let store = scene.open().await;
    publish_one(&store, event("t")).await;
    let zombie = claim_one(&store).await;
    scene.advance(60);
    let holder = claim_one(&store).await;
    let mut caller = scene.begin().await;
    caller.write_own_row().await;
    assert_eq!(kind(caller.finalize_in(vec![end(&zombie, End::Completed)]).await), Fenced);
    caller.rollback().await;
    assert_eq!(scene.fixture.own_rows().await, 0);
    complete(&store, &holder).await;
}

pub(super) async fn finalize_in_frees_the_group(scene: Scene) {
    let store = scene.open().await;
    let published = publish(&store, vec![event("t").group("g"), event("t").group("g")]).await;
    let head = claim_one(&store).await;
    let mut caller = scene.begin().await;
    caller.finalize_in(vec![end(&head, End::Completed)]).await.unwrap();
    caller.commit().await;
    assert_eq!(ids(&claim_until(&store, 1).await), [published[1]]);
}

/// Upkeep has to create a lane first, and must not lose track of the freed group meanwhile.
pub(super) async fn finalize_in_frees_the_group_also_beside_a_new_type(scene: Scene) {
    let store = scene.open().await;
    let published = publish(&store, vec![event("t").group("g"), event("t").group("g")]).await;
    let head = claim_one(&store).await;
    let mut caller = scene.begin().await;
    caller.finalize_in(vec![end(&head, End::Completed)]).await.unwrap();
    caller.commit().await;
    let mut caller = scene.begin().await;
    caller.publish_sql(&event("brand.new")).await.unwrap();
    caller.commit().await;
    store.maintain().await.unwrap();
    let came = claim(&store, 9).await;
    assert!(ids(&came).contains(&published[1]), "the follower is claimable: {came:?}");
    assert_eq!(came.len(), 2);
}

pub(super) async fn a_group_keeps_its_order_across_callers_transactions(scene: Scene) {
    let store = scene.open().await;
    publish_one(&store, event("t")).await;
    complete(&store, &claim_one(&store).await).await;
    // The second type has no lane yet when its event is published.
    for (group, kind) in [("known", "t"), ("unknown", "brand.new")] {
        let mut caller = scene.begin().await;
        caller.publish_sql(&event(kind).group(group)).await.unwrap();
        caller.commit().await;
        let later = publish_one(&store, event("t").group(group)).await;
        let first = claim_until(&store, 1).await;
        assert_eq!(first.len(), 1, "one entry of a group at a time");
        assert_ne!(first[0].id, later, "what was committed first goes first");
        complete(&store, &first[0]).await;
        let second = claim_until(&store, 1).await;
        assert_eq!(ids(&second), [later]);
        complete(&store, &second[0]).await;
    }
}

pub(super) async fn a_bad_event_fails_the_call(scene: Scene) {
    let store = scene.open().await;
    let mut caller = scene.begin().await;
    let refused = caller.publish_in(vec![event("t"), event("t").priority(101)]).await;
    assert_eq!(kind(refused), Invalid);
    caller.rollback().await;
    assert_eq!(census(&store).await.events, 0);
}

pub(super) async fn plain_sql_publishes(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let mut caller = scene.begin().await;
    caller.write_own_row().await;
    let payload: Vec<u8> = (0..=255).collect();
    caller.publish_sql(&NewEvent::new("t", payload.clone())).await.unwrap();
    caller.commit().await;
    store.wake([default_queue()].into());
    let claimed = claim_until(&store, 1).await.remove(0);
    assert_eq!((claimed.fact.event_type.as_str(), claimed.fact.payload.as_ref()), ("t", payload.as_slice()));
    assert_eq!((claimed.attempts, claimed.max_attempts, claimed.generation), (1, 20, 1));
    assert_eq!(claimed.event_id, view(&store, claimed.id).await.event_id);
    complete(&store, &claimed).await;
    assert_eq!(scene.fixture.own_rows().await, 1);
    census(&store).await;
}

pub(super) async fn plain_sql_rolls_back(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let mut caller = scene.begin().await;
    caller.publish_sql(&event("t")).await.unwrap();
    caller.rollback().await;
    store.maintain().await.unwrap();
    assert_eq!(census(&store).await.events, 0);
    assert_eq!(claim(&store, 9).await, []);
}

pub(super) async fn plain_sql_knows_the_options(scene: Scene) {
    let store = scene.open_on_database_time().await;
    store.put_queue(&queue("other"), QueueChange::default()).await.unwrap();
    let mut full = NewEvent::new("full", "x").queue(queue("other")).priority(-3).max_attempts(4).group("g");
    full.source = Some("shop".into());
    full.subject = Some("order:1".into());
    full.content_type = Some("text/plain".into());
    full.correlation_id = Some("c".into());
    full.causation_id = Some("b".into());
    full.attributes = Some("{\"a\":  1}".into());
    let mut caller = scene.begin().await;
    caller.publish_sql(&full).await.unwrap();
    caller.publish_sql(&event("t").delay(seconds(3600))).await.unwrap();
    caller.publish_sql(&event("t").priority(1)).await.unwrap();
    caller.publish_sql(&event("t").priority(-1)).await.unwrap();
    caller.commit().await;
    eventually("all arrivals are sorted in", async || {
        store.maintain().await.unwrap();
        let depth = depth(&store).await;
        (depth.ready, depth.delayed, depth.parked) == (2, 1, 0)
    })
    .await;
    let came = claim(&store, 9).await;
    assert_eq!(came.len(), 2);
    assert!(came[0].id > came[1].id, "priority before order");
    let there = store.claim(Claim { queue: queue("other"), ..want(9) }).await.unwrap().remove(0);
    let fact = &there.fact;
    assert_eq!((there.max_attempts, there.group.as_deref()), (4, Some("g")));
    assert_eq!((&fact.source, &fact.subject, &fact.content_type), (&full.source, &full.subject, &full.content_type));
    assert_eq!((&fact.correlation_id, &fact.causation_id), (&full.correlation_id, &full.causation_id));
    assert_eq!(fact.attributes, full.attributes);
    assert_eq!(view(&store, there.id).await.priority, -3);
}

pub(super) async fn plain_sql_refuses_bad_input(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let long = "x".repeat(256);
    let bad = [
        (event(""), "event type"),
        (event("a\tb"), "event type"),
        (event(&long), "event type"),
        (event("t").priority(101), "priority"),
        (event("t").max_attempts(0), "max attempts"),
        (event("t").group(long.clone()), "message group"),
        (event("t").deduplicate(""), "deduplication id"),
        (event("t").queue(queue("nowhere")), "queue"),
        (NewEvent::new("t", vec![0; (1 << 20) + 1]), "limit"),
    ];
    for (event, expected) in bad {
        let mut caller = scene.begin().await;
        let said = caller.publish_sql(&event).await.expect_err("the event is refused");
        caller.rollback().await;
        assert!(said.contains("tidegate") && said.contains(expected), "{said:?} does not name {expected:?}");
    }
    let change = QueueChange { state: Some(QueueState::Draining), ..QueueChange::default() };
    store.put_queue(&default_queue(), change).await.unwrap();
    let mut caller = scene.begin().await;
    assert!(caller.publish_sql(&event("t")).await.unwrap_err().contains("draining"));
    caller.rollback().await;
    let change = QueueChange { state: Some(QueueState::Active), depth_limit: Some(Some(1)), ..QueueChange::default() };
    store.put_queue(&default_queue(), change).await.unwrap();
    publish_one(&store, event("t")).await;
    let mut caller = scene.begin().await;
    assert!(caller.publish_sql(&event("t")).await.unwrap_err().contains("full"));
    caller.rollback().await;
    assert_eq!(census(&store).await.events, 1);
}

pub(super) async fn plain_sql_deduplicates(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let keyed = NewEvent::new("t", "1").deduplicate("k");
    let first = publish_one(&store, keyed.clone()).await;
    for _ in 0..2 {
        let mut caller = scene.begin().await;
        caller.publish_sql(&keyed).await.unwrap();
        caller.publish_sql(&NewEvent::new("t", "2").deduplicate("by sql")).await.unwrap();
        caller.commit().await;
    }
    let mut caller = scene.begin().await;
    assert!(caller.publish_sql(&NewEvent::new("t", "other").deduplicate("k")).await.is_err());
    caller.rollback().await;
    let repeat = try_publish(&store, NewEvent::new("t", "2").deduplicate("by sql")).await.unwrap();
    assert_eq!(repeat.outcome, PublishOutcome::Duplicate);
    assert_eq!(ids(&claim_until(&store, 2).await), [first, repeat.id]);
    assert_eq!(census(&store).await.events, 2);
}

pub(super) async fn plain_sql_of_a_new_type_is_claimed(scene: Scene) {
    let store = scene.open_on_database_time().await;
    for round in 0..3 {
        let kind = format!("brand.new.{round}");
        let mut caller = scene.begin().await;
        caller.publish_sql(&event(&kind)).await.unwrap();
        caller.publish_sql(&event(&kind)).await.unwrap();
        caller.commit().await;
        eventually("entries of a new type come", async || {
            store.maintain().await.unwrap();
            !store.claim(want_types(1, &[&kind])).await.unwrap().is_empty()
        })
        .await;
        assert_eq!(store.claim(want_types(9, &[&kind])).await.unwrap().len(), 1);
    }
}
