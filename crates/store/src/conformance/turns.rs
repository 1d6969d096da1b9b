//! Turns within a group: ranks, stepping aside, kept places, expiry; and quotas of lanes.

use std::collections::{BTreeMap, HashSet};

use tidegate_core::{End, EntryId, LeaseToken, NewEvent, Why};

use super::scene::*;
use crate::ErrorKind;
use crate::values::*;

fn of(group: &str) -> NewEvent {
    event("t").group(group)
}

/// A retry for which the entry steps aside.
fn aside(claimed: &Claimed, wait: u64) -> Requeue {
    Requeue { aside: true, ..retry(claimed, RequeueAt::After(seconds(wait))) }
}

fn failed(claimed: &Claimed) -> Finalize {
    Finalize { errors: Some(r#"["no"]"#.into()), ..end(claimed, End::Failed) }
}

async fn claimed(store: &AnyStore, id: EntryId) -> Claimed {
    let head = claim_one(store).await;
    assert_eq!(head.id, id);
    head
}

async fn phase(store: &AnyStore, id: EntryId) -> EntryPhase {
    view(store, id).await.phase
}

pub(super) async fn a_smaller_rank_goes_first(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("g").rank(5), of("g").rank(7), of("g").rank(5), of("g").rank(-1)]).await;
    let other = publish_one(&store, of("h").rank(9)).await;
    assert_eq!(view(&store, ids[1]).await.rank, 7);
    assert_eq!(claim_ids(&store, 9).await, [ids[3], other], "each group has its own order");
    for (before, expected) in [(3, 0), (0, 2), (2, 1)] {
        finalize(&store, end_by_id(ids[before], End::Completed)).await.unwrap();
        assert_eq!(claim_ids(&store, 9).await, [ids[expected]]);
    }
}

pub(super) async fn a_head_that_was_not_started_is_overtaken(scene: Scene) {
    let store = scene.open().await;
    let first = publish_one(&store, of("g").rank(5)).await;
    let equal = publish_one(&store, of("g").rank(5)).await;
    assert_eq!(phase(&store, equal).await, EntryPhase::Parked);
    let delayed = publish_one(&store, of("g").rank(4).delay(seconds(30))).await;
    assert_eq!(phase(&store, first).await, EntryPhase::Parked, "it gave way");
    assert_eq!(claim(&store, 9).await, [], "the new head is not due yet");
    let urgent = publish_one(&store, of("g").rank(1)).await;
    let head = claimed(&store, urgent).await;
    let late = publish_one(&store, of("g").rank(0)).await;
    assert_eq!(claim(&store, 9).await, [], "what was started is not overtaken");
    requeue(&store, release(&head)).await.unwrap();
    assert_eq!(phase(&store, late).await, EntryPhase::Parked, "not even once it was given back");
    let head = claimed(&store, urgent).await;
    complete(&store, &head).await;
    let head = claimed(&store, late).await;
    complete(&store, &head).await;
    assert_eq!(claim(&store, 9).await, [], "the delayed one is next by its rank");
    scene.advance(30);
    for id in [delayed, first, equal] {
        let head = claimed(&store, id).await;
        complete(&store, &head).await;
    }
    assert_eq!(depth(&store).await.total(), 0);
}

pub(super) async fn a_failure_steps_aside_and_comes_back(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("g"), of("g"), of("g")]).await;
    let head = claimed(&store, ids[0]).await;
    requeue(&store, aside(&head, 30)).await.unwrap();
    assert_eq!(phase(&store, ids[0]).await, EntryPhase::Aside { due: scene.moment(30) });
    assert_eq!(store.why(ids[0]).await.unwrap(), Why::SteppedAside { at: scene.moment(30) });
    assert_eq!(depth(&store).await.delayed, 1);
    assert_eq!(kind(requeue(&store, aside(&head, 30)).await), ErrorKind::Fenced, "the lease was given back");
    let second = claimed(&store, ids[1]).await;
    scene.advance(31);
    store.maintain().await.unwrap();
    assert_eq!(claim(&store, 9).await, [], "one of a group at a time");
    complete(&store, &second).await;
    let again = claimed(&store, ids[0]).await;
    assert_eq!((again.attempts, again.last_error.as_deref()), (2, Some("it failed")), "before those behind it");
    complete(&store, &again).await;
    assert_eq!(claim_ids(&store, 9).await, [ids[2]]);
}

pub(super) async fn what_is_aside_alone_is_found_when_due(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, of("g")).await;
    let head = claimed(&store, id).await;
    requeue(&store, aside(&head, 30)).await.unwrap();
    scene.advance(29);
    store.maintain().await.unwrap();
    assert_eq!(claim(&store, 9).await, []);
    scene.advance(1);
    // A claim finds it without upkeep.
    let head = claimed(&store, id).await;
    requeue(&store, aside(&head, 30)).await.unwrap();
    // What comes meanwhile runs first: a group does not wait for what is aside.
    let next = publish_one(&store, of("g")).await;
    let other = claimed(&store, next).await;
    complete(&store, &other).await;
    scene.advance(30);
    assert_eq!(store.maintain().await.unwrap().promoted, 1);
    assert_eq!(phase(&store, id).await, EntryPhase::Waiting { due: Some(scene.now()) });
    let head = claimed(&store, id).await;
    complete(&store, &head).await;
}

pub(super) async fn a_head_is_not_overtaken_while_one_aside_is_due(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, of("g")).await;
    requeue(&store, aside(&claimed(&store, id).await, 20)).await.unwrap();
    let head = publish_one(&store, of("g").rank(5)).await;
    scene.advance(21);
    let urgent = publish_one(&store, of("g").rank(1)).await;
    assert_eq!(phase(&store, urgent).await, EntryPhase::Parked, "it would only be in the way of the one aside");
    let first = claimed(&store, head).await;
    assert_eq!(store.why(id).await.unwrap(), Why::BehindInGroup { group: "g".into(), ahead: 1 });
    complete(&store, &first).await;
    let second = claimed(&store, id).await;
    complete(&store, &second).await;
    assert_eq!(claim_ids(&store, 9).await, [urgent]);
}

pub(super) async fn aside_without_a_group_is_a_retry(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    let head = claimed(&store, id).await;
    requeue(&store, aside(&head, 30)).await.unwrap();
    assert_eq!(phase(&store, id).await, EntryPhase::Waiting { due: Some(scene.moment(30)) });
    scene.advance(30);
    claimed(&store, id).await;
}

pub(super) async fn what_is_aside_can_be_ended_and_replaced(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("g").replace_waiting("k"), of("g")]).await;
    let head = claimed(&store, ids[0]).await;
    requeue(&store, aside(&head, 30)).await.unwrap();
    let replaced = try_publish(&store, NewEvent::new("t", "[2]").group("g").replace_waiting("k")).await.unwrap();
    assert_eq!((replaced.id, replaced.outcome), (ids[0], PublishOutcome::Replaced));
    assert_eq!(phase(&store, ids[0]).await, EntryPhase::Aside { due: scene.moment(30) });
    cancel(&store, ids[0]).await.unwrap();
    assert_eq!(claim_ids(&store, 9).await, [ids[1]]);
    scene.advance(60);
    store.maintain().await.unwrap();
    assert_eq!(claim_ids(&store, 9).await, [ids[1]], "its lease ran out; the other has ended");
}

pub(super) async fn an_exhausted_entry_keeps_its_place(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("g").keep_place(), of("g")]).await;
    let head = claimed(&store, ids[0]).await;
    let told = Finalized { repeated: false, end: End::Failed };
    assert_eq!(finalize(&store, failed(&head)).await.unwrap(), told);
    assert_eq!(phase(&store, ids[0]).await, EntryPhase::Kept { end: End::Failed });
    assert_eq!(store.why(ids[0]).await.unwrap(), Why::KeepsPlace { end: End::Failed });
    assert_eq!(view(&store, ids[0]).await.error.as_deref(), Some(r#"["no"]"#));
    assert_eq!((depth(&store).await.delayed, depth(&store).await.parked), (1, 1));
    let repeated = Finalized { repeated: true, end: End::Failed };
    assert_eq!(finalize(&store, failed(&head)).await.unwrap(), repeated, "a repeat is told so");
    let stale = Finalize { token: Some(LeaseToken(head.token.0 - 1)), ..failed(&head) };
    assert_eq!(kind(finalize(&store, stale).await), ErrorKind::Fenced);
    scene.advance(1_000_000);
    store.maintain().await.unwrap();
    assert_eq!(claim(&store, 9).await, [], "nothing of its group runs");
    assert_eq!(dead_letters(&store).await, [], "it is live");
    assert_eq!(kind(discard(&store, ids[0]).await), ErrorKind::Conflict);
    assert_eq!(redrive(&store, ids[0]).await.unwrap(), 2);
    let again = claimed(&store, ids[0]).await;
    assert_eq!((again.generation, again.attempts, again.last_error.as_deref()), (2, 1, None));
    assert_eq!(kind(finalize(&store, failed(&head)).await), ErrorKind::Fenced, "a repeat of the old generation");
    complete(&store, &again).await;
    assert_eq!(claim_ids(&store, 9).await, [ids[1]]);
}

pub(super) async fn a_dead_worker_leaves_its_last_attempt_kept(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![of("g").max_retries(0).keep_place(), of("g"), event("t")]).await;
    let taken = claim(&store, 1).await;
    assert_eq!(super::scene::ids(&taken), [ids[0]]);
    scene.advance(60);
    assert_eq!(claim_ids(&store, 9).await, [ids[2]], "another one instead");
    assert_eq!(phase(&store, ids[0]).await, EntryPhase::Kept { end: End::Failed });
    assert_eq!(kind(finalize(&store, end(&taken[0], End::Completed)).await), ErrorKind::Fenced);
    let exhausted: u64 =
        store.take_exhausted().iter().map(|(_, end, count)| count * u64::from(*end == End::Failed)).sum();
    assert_eq!(exhausted, 1);
    cancel(&store, ids[0]).await.unwrap();
    assert_eq!(ended(&view(&store, ids[0]).await), Some(End::Cancelled));
    assert_eq!(claim_ids(&store, 9).await, [ids[1]]);
}

pub(super) async fn a_kept_entry_ends_when_it_expires(scene: Scene) {
    let store = scene.open().await;
    let expiring = |group: &str| of(group).keep_place().expires_after(seconds(100));
    let ids = publish(&store, vec![expiring("g"), of("g"), expiring("h"), of("h")]).await;
    for head in claim(&store, 9).await {
        finalize(&store, failed(&head)).await.unwrap();
    }
    scene.advance(99);
    assert_eq!(store.maintain().await.unwrap().expired, 0);
    assert_eq!(claim(&store, 9).await, []);
    scene.advance(1);
    let freed = claim_ids(&store, 9).await;
    assert_eq!(freed, [ids[1], ids[3]], "the claim itself ends them");
    for id in [ids[0], ids[2]] {
        let view = view(&store, id).await;
        assert_eq!((ended(&view), view.error.as_deref()), (Some(End::Failed), Some(r#"["no"]"#)), "as what it was");
    }
    assert_eq!(dead_letters(&store).await, [ids[0], ids[2]]);
    redrive(&store, ids[0]).await.unwrap();
    let view = view(&store, ids[0]).await;
    assert_eq!(view.expires_at, None, "a redrive does not expire at once");
}

pub(super) async fn a_new_generation_keeps_rank_and_place(scene: Scene) {
    let store = scene.open().await;
    let first = publish_one(&store, of("g").rank(-4).keep_place().expires_after(seconds(5_000))).await;
    let head = claimed(&store, first).await;
    finalize(&store, Finalize { token: None, ..failed(&head) }).await.unwrap();
    assert_eq!(dead_letters(&store).await, [first], "ended manually, it is a dead letter like others");
    let other = publish_one(&store, of("g").rank(3)).await;
    redrive(&store, first).await.unwrap();
    let shown = view(&store, first).await;
    assert_eq!((shown.rank, shown.expires_at.is_some()), (-4, true));
    assert_eq!(phase(&store, other).await, EntryPhase::Parked, "the redriven one overtakes by its rank");
    let again = claimed(&store, first).await;
    finalize(&store, failed(&again)).await.unwrap();
    assert_eq!(phase(&store, first).await, EntryPhase::Kept { end: End::Failed }, "it keeps its place again");
}

pub(super) async fn a_key_of_a_kept_entry_makes_a_new_one(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, of("g").keep_place().replace_waiting("k")).await;
    let head = claimed(&store, id).await;
    finalize(&store, failed(&head)).await.unwrap();
    let published = try_publish(&store, NewEvent::new("t", "[2]").group("g").replace_waiting("k")).await.unwrap();
    assert_eq!(published.outcome, PublishOutcome::Created);
    assert_eq!(view(&store, id).await.fact.payload.as_ref(), b"{}");
}

pub(super) async fn a_kept_entry_keeps_what_its_handlers_answered(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, of("g").keep_place()).await;
    let head = claimed(&store, id).await;
    let results = r#"{"a":{"result":"SUCCESS"}}"#;
    finalize(&store, Finalize { results: Some(results.into()), ..failed(&head) }).await.unwrap();
    let known = || async { store.handled(vec![id]).await.unwrap().remove(0) };
    let expected = HandlerHistory { states: Vec::new(), previous: Some(results.into()) };
    assert_eq!(known().await, expected);
    redrive(&store, id).await.unwrap();
    assert_eq!(known().await, expected, "a handler that succeeded does not run again");
    let again = claimed(&store, id).await;
    finalize(&store, Finalize { results: Some("{}".into()), ..failed(&again) }).await.unwrap();
    assert_eq!(known().await.previous.as_deref(), Some("{}"), "the last word counts");
}

pub(super) async fn a_replaced_entry_takes_the_new_expiry(scene: Scene) {
    let store = scene.open().await;
    let keyed = |payload: &str| NewEvent::new("t", payload.to_owned()).replace_waiting("k");
    let first = publish_one(&store, keyed("1").expires_after(seconds(10))).await;
    scene.advance(5);
    let replaced = try_publish(&store, keyed("2").expires_after(seconds(10))).await.unwrap();
    assert_eq!((replaced.id, replaced.outcome), (first, PublishOutcome::Replaced));
    scene.advance(6);
    assert_eq!(store.maintain().await.unwrap().expired, 0, "the first expiry is forgotten");
    assert_eq!(view(&store, first).await.expires_at, Some(scene.moment(4)));
    scene.advance(4);
    let created = try_publish(&store, keyed("3")).await.unwrap();
    assert_eq!(created.outcome, PublishOutcome::Created, "contents of an expired entry would never be delivered");
    let next = claimed(&store, created.id).await;
    assert_eq!(next.fact.payload.as_ref(), b"3");
    assert_eq!(ended(&view(&store, first).await), Some(End::Cancelled));
    complete(&store, &next).await;
    let last = publish_one(&store, keyed("4").expires_after(seconds(10))).await;
    assert_eq!(publish_one(&store, keyed("5")).await, last);
    assert_eq!(view(&store, last).await.expires_at, None);
}

pub(super) async fn a_claim_ends_a_bounded_number_of_entries(scene: Scene) {
    let store = scene.open().await;
    publish(&store, vec![of("g").expires_after(seconds(1)); 50]).await;
    let last = publish_one(&store, of("g")).await;
    let other = publish_one(&store, event("other")).await;
    scene.advance(1);
    // Each scan finds one of a group. What the first one claimed does not wait for all of them.
    assert_eq!(claim_ids(&store, 9).await, [other]);
    assert_eq!(claim_ids(&store, 9).await, [last], "the next claim goes on");
}

pub(super) async fn a_claim_cancels_what_expired(scene: Scene) {
    let store = scene.open().await;
    let expiring = || event("t").expires_after(seconds(10));
    let grouped = || of("g").expires_at(scene.moment(10));
    let ids = publish(&store, vec![expiring(), expiring(), event("t"), grouped(), grouped(), of("g")]).await;
    assert_eq!(view(&store, ids[0]).await.expires_at, Some(scene.moment(10)));
    scene.advance(9);
    let taken = claim_one(&store).await;
    assert_eq!(taken.id, ids[0]);
    scene.advance(1);
    assert_eq!(claim_ids(&store, 9).await, [ids[2], ids[5]], "its group goes on");
    for id in [ids[1], ids[3], ids[4]] {
        let view = view(&store, id).await;
        assert_eq!(ended(&view), Some(End::Cancelled));
        assert!(view.error.as_ref().is_some_and(|error| error.contains("expired")), "{view:?}");
    }
    complete(&store, &taken).await;
}

pub(super) async fn upkeep_cancels_what_expired_wherever_it_waits(scene: Scene) {
    let store = scene.open().await;
    let expiring = |event: NewEvent| event.expires_after(seconds(50));
    let ids = publish(
        &store,
        vec![
            expiring(event("fresh")),
            expiring(event("timed").delay(seconds(1_000))),
            of("g"),
            expiring(of("g")),
            expiring(of("h")),
            expiring(event("held")),
            event("t"),
        ],
    )
    .await;
    let take = |types: &'static [&'static str]| store.claim(want_types(1, types));
    let held = take(&["held"]).await.unwrap().remove(0);
    let group = store.claim(want_types(9, &["t"])).await.unwrap();
    let stepping = group.iter().find(|claimed| claimed.id == ids[4]).expect("its head was claimed");
    requeue(&store, aside(stepping, 40)).await.unwrap();
    scene.advance(49);
    assert_eq!(store.maintain().await.unwrap().expired, 0);
    extend(&store, &held, seconds(100)).await.unwrap();
    scene.advance(1);
    let mut expired = 0;
    for _ in 0..5 {
        expired += store.maintain().await.unwrap().expired;
    }
    assert_eq!(expired, 4, "fresh, timed, parked and aside");
    for id in [ids[0], ids[1], ids[3], ids[4]] {
        assert_eq!(ended(&view(&store, id).await), Some(End::Cancelled), "{id}");
    }
    assert_eq!(ended(&view(&store, ids[5]).await), None, "a worker holds it");
    complete(&store, &held).await;
}

pub(super) async fn quotas_bound_each_lane(scene: Scene) {
    let store = scene.open().await;
    let mut batch: Vec<NewEvent> = ["a", "a", "a", "b", "b", "c"].map(event).into();
    batch.push(event("a").priority(-1));
    batch.push(event("a").delay(seconds(1)));
    let ids = publish(&store, batch).await;
    scene.advance(1);
    let quotas = BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 0)]);
    let claim = Claim { quotas, ..want(9) };
    let taken = super::scene::ids(&store.claim(claim.clone()).await.unwrap());
    assert_eq!(taken, [ids[6], ids[0], ids[1], ids[5]], "two of each lane of type a, none of b");
    let few = super::scene::ids(&store.claim(Claim { max: 1, ..claim.clone() }).await.unwrap());
    assert_eq!(few, [ids[2]], "never more than asked for");
    assert_eq!(super::scene::ids(&store.claim(claim).await.unwrap()), [ids[7]]);
    assert_eq!(claim_ids(&store, 9).await, [ids[3], ids[4]], "without quotas the rest is there");
}

pub(super) async fn quotas_take_the_first_by_number(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![event("a").delay(seconds(2)), event("a").delay(seconds(1))]).await;
    scene.advance(3);
    let claim = Claim { quotas: BTreeMap::from([("a".to_owned(), 1)]), ..want(9) };
    assert_eq!(super::scene::ids(&store.claim(claim.clone()).await.unwrap()), [ids[0]]);
    assert_eq!(super::scene::ids(&store.claim(claim).await.unwrap()), [ids[1]]);
}

pub(super) async fn quotas_hold_though_entries_end_in_the_claim(scene: Scene) {
    let store = scene.open().await;
    let old = publish(&store, vec![event("a").expires_after(seconds(1)); 3]).await;
    let ids = publish(&store, ["a", "a", "a", "b"].map(event).into()).await;
    scene.advance(1);
    let claim = Claim { quotas: BTreeMap::from([("a".to_owned(), 2)]), ..want(9) };
    assert_eq!(super::scene::ids(&store.claim(claim).await.unwrap()), [ids[0], ids[1], ids[3]]);
    assert_eq!(ended(&view(&store, old[0]).await), Some(End::Cancelled));
}

pub(super) async fn turns_hold_however_many_race(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let publishers = (0..4_i32).map(|publisher| {
        let store = store.clone();
        tokio::spawn(async move {
            for number in 0..25 {
                let group = format!("g{}", number % 3);
                publish_one(&store, event("t").group(group).rank((publisher * 7 + number) % 5)).await;
            }
        })
    });
    let publishers: Vec<_> = publishers.collect();
    let workers = (0..4_u32).map(|worker| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut done = HashSet::new();
            let mut quiet = 0;
            while quiet < 200 {
                let taken = claim(&store, 3).await;
                let groups: HashSet<_> = taken.iter().map(|claimed| claimed.group.clone()).collect();
                assert_eq!(groups.len(), taken.len(), "two of a group were given out at once");
                quiet = if taken.is_empty() { quiet + 1 } else { 0 };
                for claimed in taken {
                    if claimed.attempts == 1 && (claimed.id.get() + i64::from(worker)) % 4 == 0 {
                        let aside = Requeue { aside: true, ..retry(&claimed, RequeueAt::After(seconds(0))) };
                        requeue(&store, aside).await.unwrap();
                    } else {
                        complete(&store, &claimed).await;
                        assert!(done.insert(claimed.id));
                    }
                }
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
            done.len()
        })
    });
    let workers: Vec<_> = workers.collect();
    for publisher in publishers {
        publisher.await.unwrap();
    }
    let mut done = 0;
    for worker in workers {
        done += worker.await.unwrap();
    }
    while done < 100 {
        let rest = claim_until(&store, 1).await;
        complete(&store, &rest[0]).await;
        done += 1;
    }
    assert_eq!((done, depth(&store).await.total()), (100, 0));
}
