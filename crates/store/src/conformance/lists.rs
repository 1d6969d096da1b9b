//! Lists and their totals; and what retention forgets.

use std::sync::atomic::Ordering;

use tidegate_core::{End, EntryId, NewEvent, Outcome, Status};

use super::scene::*;
use super::work::*;
use crate::projections::Position;
use crate::store::*;
use crate::work::*;

async fn page(store: &AnyStore, query: ListQuery) -> Page {
    let query = ListQuery { limit: if query.limit == 0 { 100 } else { query.limit }, ..query };
    work(store).list(query).await.expect("entries are listed")
}

fn ids_of(page: &Page) -> Vec<EntryId> {
    page.items.iter().map(|item| item.id).collect()
}

fn in_status(status: Status) -> ListQuery {
    ListQuery { status: Some(status), ..ListQuery::default() }
}

fn with_tags(tags: &[&str]) -> ListQuery {
    ListQuery { tags: tags.iter().map(|tag| (*tag).to_owned()).collect(), ..ListQuery::default() }
}

/// Twelve entries in every status, with and without tags; answers them with status and tags.
async fn populate(store: &AnyStore) -> Vec<(EntryId, Status, Vec<&'static str>)> {
    let ends = [Status::Completed, Status::CompletedWithErrors, Status::Failed, Status::Cancelled];
    let mut all = Vec::new();
    for tags in [vec![], vec!["a"], vec!["a", "b"]] {
        for status in ends {
            let id = publish_one(store, event("t").tags(tags.iter().copied())).await;
            finalize(store, end_by_id(id, status.end().unwrap())).await.unwrap();
            all.push((id, status, tags.clone()));
        }
        let id = publish_one(store, event("t").tags(tags.iter().copied()).priority(-9)).await;
        assert_eq!(claim_ids(store, 1).await, [id]);
        all.push((id, Status::Processing, tags.clone()));
        let id = publish_one(store, event("u").tags(tags.iter().copied()).delay(seconds(9))).await;
        all.push((id, Status::Pending, tags.clone()));
    }
    all.reverse();
    all
}

async fn check_all(store: &AnyStore, all: &[(EntryId, Status, Vec<&'static str>)], when: &str) {
    let statuses = Status::ALL.into_iter().map(Some).chain([None]);
    for status in statuses {
        for tags in [vec![], vec!["a"], vec!["b"], vec!["none"], vec!["a", "b"]] {
            let fits = |entry: &&(EntryId, Status, Vec<&str>)| {
                status.is_none_or(|status| status == entry.1)
                    && (tags.is_empty() || tags.iter().any(|tag| entry.2.contains(tag)))
            };
            let expected: Vec<EntryId> = all.iter().filter(fits).map(|entry| entry.0).collect();
            let found = page(store, ListQuery { status, ..with_tags(&tags) }).await;
            assert_eq!(ids_of(&found), expected, "{when}: {status:?} {tags:?}");
            assert_eq!(
                (found.total, found.total_capped),
                (expected.len() as u64, false),
                "{when}: {status:?} {tags:?}"
            );
            assert_eq!(found.next, None);
        }
    }
}

pub(super) async fn every_filter_and_its_total(scene: Scene) {
    let store = scene.open().await;
    let mut all = populate(&store).await;
    check_all(&store, &all, "before anything was counted").await;
    store.maintain().await.unwrap();
    check_all(&store, &all, "after counting").await;
    all.splice(0..0, populate(&store).await);
    check_all(&store, &all, "partly counted").await;
    for entry in all.iter_mut().filter(|entry| entry.1 == Status::Failed) {
        redrive(&store, entry.0).await.unwrap();
        entry.1 = Status::Pending;
    }
    check_all(&store, &all, "after redrives").await;
    let discarded = all.iter().find(|entry| entry.1 == Status::CompletedWithErrors).unwrap().0;
    discard(&store, discarded).await.unwrap();
    store.maintain().await.unwrap();
    check_all(&store, &all, "after a discard").await;
}

pub(super) async fn pages_by_offset_and_cursor(scene: Scene) {
    let store = scene.open().await;
    let mut ids = publish(&store, (0..25).map(|_| job()).collect()).await;
    for id in &ids[..10] {
        finalize(&store, end_by_id(*id, End::Completed)).await.unwrap();
    }
    ids.reverse();
    for query in [ListQuery::default(), with_tags(&["email"]), with_tags(&["email", "urgent"])] {
        let second = page(&store, ListQuery { limit: 10, offset: 10, ..query.clone() }).await;
        assert_eq!(ids_of(&second), ids[10..20]);
        let mut seen = Vec::new();
        let mut next = None;
        loop {
            let part = page(&store, ListQuery { limit: 7, before: next, ..query.clone() }).await;
            seen.extend(ids_of(&part));
            next = part.next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!(seen, ids, "{query:?}");
        let beyond = page(&store, ListQuery { limit: 10, offset: 99, ..query }).await;
        assert_eq!(beyond.items, []);
    }
    let exact = page(&store, ListQuery { limit: 25, ..ListQuery::default() }).await;
    assert_eq!((exact.items.len(), exact.next), (25, None));
    let none = work(&store).list(ListQuery::default()).await.unwrap();
    assert_eq!((none.items.len(), none.total), (0, 25), "a limit of zero asks for the total");
    let huge = ListQuery { limit: 100_000, ..ListQuery::default() };
    assert_eq!(kind(work(&store).list(huge).await), crate::ErrorKind::Invalid);
}

pub(super) async fn other_filters(scene: Scene) {
    let store = scene.open().await;
    store.put_queue(&queue("q"), QueueChange::default()).await.unwrap();
    let first = publish_one(&store, job().queue(queue("q"))).await;
    scene.advance(3600);
    let second = publish_one(&store, event("other")).await;
    let client = tidegate_core::Tsid::from_parts(1_700_000_000_000, 1);
    let theirs = tidegate_core::QueueName::of(client, "mail").unwrap();
    store.put_queue(&theirs, QueueChange::default()).await.unwrap();
    let third = publish_one(&store, job().queue(theirs.clone())).await;
    let claimed = store.claim(Claim { queue: theirs, worker: "w:1".into(), audit: true, ..want(1) }).await.unwrap();
    assert_eq!(ids(&claimed), [third]);
    let cases = [
        (ListQuery { queue: Some(queue("q")), ..ListQuery::default() }, vec![first]),
        (ListQuery { event_type: Some("other".into()), ..ListQuery::default() }, vec![second]),
        (ListQuery { event_type: Some("job".into()), ..ListQuery::default() }, vec![third, first]),
        (ListQuery { worker: Some("w:1".into()), ..ListQuery::default() }, vec![third]),
        (ListQuery { client: Some(client), ..ListQuery::default() }, vec![third]),
        (ListQuery { from: Some(scene.now()), ..ListQuery::default() }, vec![third, second]),
        (ListQuery { to: Some(scene.now()), ..ListQuery::default() }, vec![first]),
        (ListQuery { queue: Some(queue("q")), ..in_status(Status::Processing) }, vec![]),
    ];
    for (query, expected) in cases {
        let found = page(&store, query.clone()).await;
        assert_eq!(ids_of(&found), expected, "{query:?}");
        assert_eq!((found.total, found.total_capped), (expected.len() as u64, false), "{query:?}");
    }
    let capped = page(&store, ListQuery { event_type: Some("job".into()), limit: 1, ..ListQuery::default() }).await;
    assert_eq!((ids_of(&capped), capped.total_capped), (vec![third], true), "there is more, and it says so");
}

pub(super) async fn items_show_what_the_source_shows(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job().priority(4)).await;
    pick_one(&store, "w:1").await;
    scene.advance(1);
    fail_by(&store, id, "w:1").await.unwrap();
    let found = page(&store, ListQuery::default()).await;
    let item = &found.items[0];
    assert_eq!((item.title.as_deref(), item.tags.join(",").as_str()), (Some("Send mail"), "email,urgent"));
    assert_eq!((item.status, item.retry_count(), item.max_attempts, item.priority), (Status::Pending, 1, 4, 4));
    assert_eq!(item.next_retry_at, Some(scene.moment(300)));
    assert_eq!((item.updated_at, item.worker.as_deref()), (scene.now(), None));
    assert!(item.created_at < item.updated_at);
}

/// Ends an entry as a worker would.
async fn work_off(store: &AnyStore, event: NewEvent, outcome: Outcome) -> EntryId {
    let id = publish_one(store, event).await;
    pick_one(store, "w:1").await;
    report(store, by(id, "w:1"), outcome).await.unwrap();
    id
}

async fn forget(store: &AnyStore, retention: Retention) -> Retained {
    let mut all = Retained::default();
    let mut step = retention;
    loop {
        let done = work(store).retain(step).await.expect("old rows are forgotten");
        all.audit += done.audit;
        all.entries += done.entries;
        step.from = done.next;
        if done.next.is_none() && done.audit == 0 {
            return all;
        }
    }
}

pub(super) async fn retention_forgets_what_nobody_needs(scene: Scene) {
    let store = scene.open().await;
    let mut done = Vec::new();
    for _ in 0..5 {
        done.push(work_off(&store, job(), Outcome::Completed).await);
    }
    let dead = work_off(&store, job().max_retries(0), Outcome::Failed).await;
    let again = work_off(&store, job().max_retries(0), Outcome::Failed).await;
    redrive(&store, again).await.unwrap();
    let waiting = publish_one(&store, event("t").tags(["w"])).await;
    scene.advance(100);
    let young = work_off(&store, job().priority(-1), Outcome::Completed).await;
    let retention =
        Retention { audit: Some(seconds(50)), log: Some(seconds(50)), dead_letters: None, batch: 2, from: None };
    assert_eq!(forget(&store, retention).await.entries, 0, "what was not counted yet stays");
    // Counting stops at the oldest running transaction, which may be somebody else's.
    let gone = std::sync::atomic::AtomicU64::new(0);
    eventually("old entries are forgotten", || async {
        store.maintain().await.unwrap();
        gone.fetch_add(forget(&store, retention).await.entries, Ordering::SeqCst);
        gone.load(Ordering::SeqCst) >= 5
    })
    .await;
    assert_eq!(gone.into_inner(), 5, "not the dead letter, not the one that lives again, not the young one");
    for id in &done {
        assert_eq!(store.entries(vec![*id]).await.unwrap(), [None]);
        assert!(work(&store).audit(*id).await.unwrap().is_empty());
    }
    let rest = [young, waiting, again, dead];
    assert_eq!(ids_of(&page(&store, ListQuery::default()).await), rest);
    for query in [ListQuery::default(), in_status(Status::Completed), with_tags(&["email"]), in_status(Status::Failed)]
    {
        let found = page(&store, query.clone()).await;
        assert_eq!(found.total, found.items.len() as u64, "{query:?}");
    }
    assert_eq!(work(&store).audit(young).await.unwrap().len(), 2);
    census(&store).await;
    let forced = Retention { dead_letters: Some(seconds(50)), ..retention };
    assert_eq!(forget(&store, forced).await.entries, 1);
    assert_eq!(ids_of(&page(&store, ListQuery::default()).await), [young, waiting, again]);
    assert_eq!(ids(&claim(&store, 9).await), [again, waiting], "what lives is whole");
    census(&store).await;
}

/// A log row stays until every active projection has read it.
pub(super) async fn retention_waits_for_projections(scene: Scene) {
    let store = scene.open().await;
    let projections = store.projections().expect("the store keeps projections");
    let projection = crate::projections::ProjectionId { name: "totals".into(), version: 1 };
    projections.register(&projection).await.expect("it is registered");
    let id = work_off(&store, job(), Outcome::Completed).await;
    scene.advance(100);
    let retention = Retention { audit: None, log: Some(seconds(50)), dead_letters: None, batch: 100, from: None };
    eventually("the row is counted", || async {
        store.maintain().await.unwrap();
        projections.read_log(everything()).await.unwrap().rows.len() == 1
    })
    .await;
    store.maintain().await.unwrap();
    assert_eq!(forget(&store, retention).await.entries, 0, "the projection has not read it");

    let reader = projections.take_reader(&projection, "r", LEASE).await.unwrap().expect("nobody else reads");
    let end = projections.read_log(everything()).await.unwrap().end;
    let step = crate::projections::Step {
        id: projection,
        token: reader.token,
        from: Position::START,
        to: end,
        events: 1,
        lease: LEASE,
    };
    projections.apply(step, Vec::new()).await.expect("it moves on");
    eventually("the row is forgotten", || async {
        store.maintain().await.unwrap();
        forget(&store, retention).await.entries == 1
    })
    .await;
    assert_eq!(store.entries(vec![id]).await.unwrap(), [None]);
}

/// Reads everything for a version, and moves it there.
async fn read_all(store: &AnyStore, version: i32) {
    let projections = store.projections().expect("the store keeps projections");
    let id = crate::projections::ProjectionId { name: "totals".into(), version };
    let reader = projections.take_reader(&id, "r", LEASE).await.unwrap().expect("nobody else reads");
    let to = projections.read_log(everything()).await.unwrap().end;
    let step = crate::projections::Step { id, token: reader.token, from: Position::START, to, events: 1, lease: LEASE };
    projections.apply(step, Vec::new()).await.expect("it moves on");
}

/// An old entry in the log that a projection's versions 1 and 2 may read, and that is counted.
async fn logged_for_two_versions(scene: &Scene) -> (AnyStore, EntryId) {
    let store = scene.open().await;
    let projections = store.projections().expect("the store keeps projections");
    for version in [1, 2] {
        let id = crate::projections::ProjectionId { name: "totals".into(), version };
        projections.register(&id).await.expect("it is registered");
    }
    let id = work_off(&store, job(), Outcome::Completed).await;
    scene.advance(100);
    eventually("the row is readable", || async {
        store.maintain().await.unwrap();
        projections.read_log(everything()).await.unwrap().rows.len() == 1
    })
    .await;
    (store, id)
}

const OLD: Retention = Retention {
    audit: None,
    log: Some(std::time::Duration::from_secs(50)),
    dead_letters: None,
    batch: 100,
    from: None,
};

/// A new version is built beside the active one: what it has not read yet must stay.
pub(super) async fn retention_waits_for_a_version_that_is_being_built(scene: Scene) {
    let (store, id) = logged_for_two_versions(&scene).await;
    read_all(&store, 1).await;
    for _ in 0..3 {
        store.maintain().await.unwrap();
        assert_eq!(forget(&store, OLD).await.entries, 0, "version 2 has not read it");
    }
    read_all(&store, 2).await;
    eventually("the row is forgotten", || async {
        store.maintain().await.unwrap();
        forget(&store, OLD).await.entries == 1
    })
    .await;
    assert_eq!(store.entries(vec![id]).await.unwrap(), [None]);
}

pub(super) async fn a_removed_projection_holds_no_row_back(scene: Scene) {
    let (store, id) = logged_for_two_versions(&scene).await;
    let projections = store.projections().unwrap();
    read_all(&store, 1).await;
    let two = crate::projections::ProjectionId { name: "totals".into(), version: 2 };
    let reader = projections.take_reader(&two, "r", LEASE).await.unwrap().expect("nobody else reads");
    assert!(!projections.remove("nobody").await.unwrap());
    assert!(projections.remove("totals").await.unwrap());
    let to = projections.read_log(everything()).await.unwrap().end;
    let step =
        crate::projections::Step { id: two, token: reader.token, from: Position::START, to, events: 1, lease: LEASE };
    assert_eq!(kind(projections.apply(step, Vec::new()).await), crate::ErrorKind::Fenced);
    eventually("the row is forgotten", || async {
        store.maintain().await.unwrap();
        forget(&store, OLD).await.entries == 1
    })
    .await;
    assert_eq!(store.entries(vec![id]).await.unwrap(), [None]);
    while projections.sweep("totals").await.unwrap() {}
    assert_eq!(projections.projections().await.unwrap(), []);
    assert_eq!(projections.active("totals").await.unwrap(), None);
}

fn everything() -> crate::projections::ReadLog {
    let ends = tidegate_core::End::ALL.to_vec();
    crate::projections::ReadLog { after: Position::START, types: None, ends, limit: 100 }
}
