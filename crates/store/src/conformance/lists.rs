//! Lists and their totals; and what retention removes.

use std::sync::atomic::Ordering;

use tidegate_core::{AttemptOutcome, End, EntryId, NewEvent, QueueName, Status, Tsid};

use super::scene::*;
use super::work::*;
use crate::values::Position;
use crate::values::*;

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

/// Publishes 18 entries: every status with no, one and two tags. Returns them with status and tags, youngest first.
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
    assert_eq!((none.items.len(), none.total), (0, 25), "a limit of zero returns only the total");
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
    assert_eq!((ids_of(&capped), capped.total_capped), (vec![third], true), "there are more, so the total is capped");
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

fn of(client: i64, name: &str) -> QueueName {
    QueueName::of(Tsid::from_i64(client), name).expect("a queue's name")
}

/// Publishes `count` events into a queue and ends the first half. Returns all ids, youngest first.
async fn half_ended(store: &AnyStore, queue: &QueueName, kind: &str, tag: &str, count: usize) -> Vec<EntryId> {
    let made = (0..count).map(|_| event(kind).queue(queue.clone()).tags([tag.to_owned()])).collect();
    let mut ids = publish(store, made).await;
    let half = ids[..count / 2].iter().map(|id| end_by_id(*id, End::Completed)).collect();
    for answer in store.finalize(half).await.unwrap() {
        answer.unwrap();
    }
    ids.reverse();
    ids
}

/// However many entries other clients have, a page of one client, queue, type, worker, tag or status is full, and its
/// total is exact.
pub(super) async fn pages_are_full_among_others(scene: Scene) {
    let store = scene.open().await;
    let (mine, other) = (of(7, "mail"), of(8, "mail"));
    for queue in [&mine, &other] {
        store.put_queue(queue, QueueChange::default()).await.unwrap();
    }
    let own = half_ended(&store, &mine, "rare", "own", 30).await;
    let failed = publish_one(&store, event("rare").queue(mine.clone()).tags(["own"])).await;
    let ends = vec![end_by_id(failed, End::Failed)];
    store.finalize(ends).await.unwrap();
    let claimed = store.claim(Claim { queue: mine.clone(), worker: "me".into(), ..want(2) }).await.unwrap();
    let held: Vec<EntryId> = ids(&claimed).into_iter().rev().collect();
    complete(&store, &claimed[0]).await;
    scene.advance(3600);
    for _ in 0..12 {
        half_ended(&store, &other, "common", "all", 1_000).await;
    }
    let mut mail = own.clone();
    mail.insert(0, failed);
    let client = Some(Tsid::from_i64(7));
    let completed: Vec<EntryId> =
        own.iter().copied().filter(|id| own[15..].contains(id) || *id == claimed[0].id).collect();
    let query = ListQuery { client, ..ListQuery::default() };
    let cases = [
        (query.clone(), mail.clone()),
        (ListQuery { status: Some(Status::Completed), ..query.clone() }, completed.clone()),
        (ListQuery { status: Some(Status::Failed), ..query.clone() }, vec![failed]),
        (ListQuery { status: Some(Status::Processing), ..query.clone() }, vec![held[0]]),
        (ListQuery { tags: vec!["own".into()], ..query.clone() }, mail.clone()),
        (ListQuery { tags: vec!["own".into()], status: Some(Status::Completed), ..query.clone() }, completed),
        (ListQuery { tags: vec!["all".into()], ..query.clone() }, vec![]),
        (ListQuery { queue: Some(mine.clone()), ..query.clone() }, mail.clone()),
        (ListQuery { queue: Some(mine), ..ListQuery::default() }, mail.clone()),
        (ListQuery { event_type: Some("rare".into()), ..query.clone() }, mail.clone()),
        (ListQuery { event_type: Some("rare".into()), ..ListQuery::default() }, mail.clone()),
        (ListQuery { event_type: Some("common".into()), ..query.clone() }, vec![]),
        (ListQuery { worker: Some("me".into()), ..query.clone() }, held.clone()),
        (ListQuery { worker: Some("me".into()), ..ListQuery::default() }, held),
        (ListQuery { to: Some(scene.now()), ..ListQuery::default() }, mail.clone()),
        (ListQuery { from: Some(scene.now()), ..query }, vec![]),
    ];
    for counted in [false, true] {
        for (query, expected) in &cases {
            let found = page(&store, query.clone()).await;
            assert_eq!(ids_of(&found), *expected, "{query:?}");
            let total = (found.total, found.total_capped, found.next);
            assert_eq!(total, (expected.len() as u64, false, None), "counted {counted}: {query:?}");
            let two = page(&store, ListQuery { limit: 2, offset: 1, ..query.clone() }).await;
            assert_eq!(ids_of(&two), expected.iter().skip(1).take(2).copied().collect::<Vec<_>>(), "{query:?}");
        }
        store.maintain().await.unwrap();
    }
}

/// Reads all pages of a query, and some from the middle: they are full, in order, and the last says that it is the last.
async fn check_pages(store: &AnyStore, mut query: ListQuery, expected: &[EntryId], when: &str) {
    let (mut found, full) = (Vec::new(), query.limit);
    loop {
        let one = page(store, query.clone()).await;
        found.extend(ids_of(&one));
        let left = expected.len() - found.len().min(expected.len());
        assert!(one.items.len() == full || left == 0, "{when}: {query:?}: {} of {left}", one.items.len());
        let Some(next) = one.next else { break };
        query.before = Some(next);
    }
    assert_eq!(found, expected, "{when}: {query:?}");
    let query = ListQuery { before: None, limit: expected.len(), ..query };
    let all = page(store, query.clone()).await;
    let answer = (ids_of(&all), all.next, all.total, all.total_capped);
    assert_eq!(answer, (expected.to_vec(), None, expected.len() as u64, false), "{when}: {query:?}");
    // About as many entries are left as the first step searches stretches (16): the page may be full before the search
    // has reached the end, and must still say that it is the last.
    for left in 15..=16.min(expected.len().saturating_sub(1)) {
        let (before, rest) = (expected[expected.len() - left - 1], &expected[expected.len() - left..]);
        let last = page(store, ListQuery { before: Some(before), limit: left, ..query.clone() }).await;
        assert_eq!((ids_of(&last), last.next), (rest.to_vec(), None), "{when}: {query:?}");
    }
    let some = page(store, ListQuery { offset: 3, limit: 20, ..query }).await;
    assert_eq!(ids_of(&some), expected.iter().skip(3).take(20).copied().collect::<Vec<_>>(), "{when}");
}

/// However far apart the entries of a queue, a type or a worker are in the log, pages are full and show each entry once
/// and in order: counted, not counted and half counted, and after redrives and retention.
pub(super) async fn pages_are_full_however_far_apart_their_entries_are(scene: Scene) {
    let store = scene.open().await;
    let (rare, common) = (of(7, "rare"), of(8, "common"));
    for queue in [&rare, &common] {
        store.put_queue(queue, QueueChange::default()).await.unwrap();
    }
    let mut own = Vec::new();
    let round = async |own: &mut Vec<EntryId>, end: End| {
        let id = publish_one(&store, event("rare").queue(rare.clone())).await;
        let one = Claim { queue: rare.clone(), worker: "me".into(), ..want(1) };
        assert_eq!(ids(&store.claim(one).await.unwrap()), [id]);
        finalize(&store, end_by_id(id, end)).await.unwrap();
        own.insert(0, id);
        // Entries of another client, claimed by a worker of the same name.
        let others = publish(&store, (0..50).map(|_| event("common").queue(common.clone())).collect()).await;
        let all = Claim { queue: common.clone(), worker: "me".into(), ..want(50) };
        assert_eq!(store.claim(all).await.unwrap().len(), 50);
        let ends = others.iter().map(|id| end_by_id(*id, End::Completed)).collect();
        assert!(store.finalize(ends).await.unwrap().iter().all(Result::is_ok));
    };
    let check = async |expected: &[EntryId], of_worker: &[EntryId], when: &str| {
        let client = Some(Tsid::from_i64(7));
        let base = ListQuery { limit: 5, ..ListQuery::default() };
        let cases = [
            (ListQuery { queue: Some(rare.clone()), ..base.clone() }, expected),
            (ListQuery { event_type: Some("rare".into()), ..base.clone() }, expected),
            (ListQuery { worker: Some("me".into()), client, ..base.clone() }, of_worker),
            (ListQuery { event_type: Some("rare".into()), worker: Some("me".into()), client, ..base }, of_worker),
        ];
        for (query, expected) in cases {
            check_pages(&store, query, expected, when).await;
        }
    };
    for at in 0..40 {
        round(&mut own, if at % 4 == 0 { End::Failed } else { End::Completed }).await;
    }
    check(&own, &own, "not counted").await;
    store.maintain().await.unwrap();
    check(&own, &own, "counted").await;
    let failed = ListQuery { queue: Some(rare.clone()), ..in_status(Status::Failed) };
    let every_fourth = |own: &[EntryId]| own.iter().skip(3).step_by(4).copied().collect::<Vec<_>>();
    assert_eq!(ids_of(&page(&store, failed).await), every_fourth(&own));
    round(&mut own, End::Completed).await;
    check(&own, &own, "half counted").await;
    redrive(&store, own[40]).await.unwrap();
    check(&own, &own[..40], "after a redrive").await;
    finalize(&store, end_by_id(own[40], End::Completed)).await.unwrap();
    check(&own, &own[..40], "after it ended again").await;
    store.maintain().await.unwrap();
    check(&own, &own[..40], "all counted").await;
    let all = page(&store, ListQuery { worker: Some("me".into()), limit: 1_000, ..ListQuery::default() }).await;
    assert!(all.items.len() == 1_000 && all.items.is_sorted_by(|a, b| a.id > b.id));
    scene.advance(100);
    eventually("old entries are removed", || async {
        store.maintain().await.unwrap();
        run_retention(&store, OLD).await.entries == 0 && page(&store, ListQuery::default()).await.total <= 9
    })
    .await;
    let left = every_fourth(&own[1..40]);
    check(&left, &left, "after retention").await;
    round(&mut own, End::Completed).await;
    store.maintain().await.unwrap();
    let left = [&own[..1], &left[..]].concat();
    check(&left, &left, "after retention, counted").await;
}

/// Client totals stay exact through redrives and retention.
pub(super) async fn totals_of_a_client_follow_redrives_and_retention(scene: Scene) {
    let store = scene.open().await;
    let mine = of(7, "mail");
    store.put_queue(&mine, QueueChange::default()).await.unwrap();
    let made = publish(&store, (0..9).map(|_| event("t").queue(mine.clone()).tags(["a", "b"])).collect()).await;
    for (at, id) in made.iter().enumerate() {
        let end = if at < 6 { End::Failed } else { End::Completed };
        finalize(&store, end_by_id(*id, end)).await.unwrap();
    }
    let check = |failed: u64, completed: u64, pending: u64, when: &'static str| {
        let store = &store;
        async move {
            for tags in [vec![], vec!["a".to_owned()]] {
                let client = Some(Tsid::from_i64(7));
                let query = ListQuery { client, tags, ..ListQuery::default() };
                let parts = [
                    (Some(Status::Failed), failed),
                    (Some(Status::Completed), completed),
                    (Some(Status::Pending), pending),
                    (Some(Status::Processing), 0),
                    (None, failed + completed + pending),
                ];
                for (status, expected) in parts {
                    let found = page(store, ListQuery { status, ..query.clone() }).await;
                    assert_eq!(found.total, expected, "{when}: {status:?} {query:?}");
                    assert_eq!(found.items.len() as u64, expected, "{when}: {status:?} {query:?}");
                }
            }
        }
    };
    check(6, 3, 0, "at first").await;
    redrive(&store, made[0]).await.unwrap();
    redrive(&store, made[1]).await.unwrap();
    check(4, 3, 2, "after redrives").await;
    store.maintain().await.unwrap();
    check(4, 3, 2, "counted").await;
    finalize(&store, end_by_id(made[0], End::Completed)).await.unwrap();
    check(4, 4, 1, "partly counted").await;
    scene.advance(100);
    let gone = std::sync::atomic::AtomicU64::new(0);
    eventually("old entries are removed", || async {
        store.maintain().await.unwrap();
        gone.fetch_add(run_retention(&store, OLD).await.entries, Ordering::SeqCst);
        gone.load(Ordering::SeqCst) >= 4
    })
    .await;
    check(4, 0, 1, "after retention").await;
}

pub(super) async fn an_offset_invents_no_total(scene: Scene) {
    let store = scene.open().await;
    publish(&store, (0..5).map(|_| job()).collect()).await;
    let beyond = page(&store, ListQuery { offset: 10_000, ..with_tags(&["email", "urgent"]) }).await;
    assert_eq!((beyond.items.len(), beyond.total, beyond.total_capped), (0, 5, false));
    let far = ListQuery { offset: 10_001, limit: 1, ..ListQuery::default() };
    let refused = work(&store).list(far).await.unwrap_err();
    assert_eq!(refused.kind(), crate::ErrorKind::Invalid);
    assert!(refused.to_string().contains("cursor"), "{refused}");
}

/// Entries that arrived by plain SQL are listed before they are sorted in, also when they ended before that.
pub(super) async fn what_has_just_arrived_is_listed(scene: Scene) {
    let store = scene.open().await;
    let mut tx = scene.begin().await;
    for _ in 0..2 {
        tx.publish_sql(&event("new.type")).await.unwrap();
    }
    tx.commit().await;
    let query = ListQuery { event_type: Some("new.type".into()), ..ListQuery::default() };
    let found = page(&store, query.clone()).await;
    assert_eq!(found.items.len(), 2);
    store.cancel(vec![found.items[0].id]).await.unwrap();
    for query in [query, ListQuery { queue: Some(default_queue()), ..ListQuery::default() }] {
        assert_eq!(page(&store, query).await.items.len(), 2);
    }
}

/// A list that exceeds its time limit is stopped with an error that says what to do.
pub(super) async fn a_list_that_takes_too_long_is_stopped(scene: Scene) {
    let options = StoreOptions { list_timeout: std::time::Duration::ZERO, ..scene.options() };
    let store = scene.open_with(options).await;
    let made = publish(&store, (0..2_000).map(|_| job()).collect()).await;
    let refused = work(&store).list(ListQuery { limit: 1_000, ..with_tags(&["email"]) }).await.unwrap_err();
    assert_eq!(refused.kind(), crate::ErrorKind::Busy);
    assert!(refused.to_string().contains("narrow the filter"), "{refused}");
    let again = scene.open().await;
    assert_eq!(page(&again, ListQuery::default()).await.total, made.len() as u64);
}

/// Many lists at once: some are refused as busy, none delays a publish, and one that is cancelled frees its turn.
pub(super) async fn lists_take_turns(scene: Scene) {
    let store = std::sync::Arc::new(scene.open_with(StoreOptions { max_lists: 1, ..scene.options() }).await);
    publish(&store, (0..3_000).map(|_| job()).collect()).await;
    let tags: Vec<String> = (0..31).map(|n| format!("t{n}")).chain(["email".to_owned()]).collect();
    let ask = || {
        let (store, tags) = (store.clone(), tags.clone());
        tokio::spawn(async move {
            let query = ListQuery { tags, limit: 1_000, offset: 1_500, ..ListQuery::default() };
            work(&store).list(query).await.map(|page| page.items.len())
        })
    };
    let asked: Vec<_> = (0..64).map(|_| ask()).collect();
    publish_one(&store, job()).await;
    let cancelled = ask();
    cancelled.abort();
    let mut served = 0;
    for answer in asked {
        match answer.await.unwrap() {
            Ok(items) => {
                assert_eq!(items, 1_000);
                served += 1;
            }
            Err(error) => assert_eq!(error.kind(), crate::ErrorKind::Busy, "{error}"),
        }
    }
    assert!((1..64).contains(&served), "{served} were served");
    assert_eq!(page(&store, ListQuery::default()).await.total, 3_001);
}

pub(super) async fn audit_and_workers_in_pages(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job().max_retries(9)).await;
    for _ in 0..5 {
        pick_one(&store, "w:1").await;
        fail_by(&store, id, "w:1").await.unwrap();
        scene.advance(301);
    }
    let all = work(&store).audit(id).await.unwrap();
    assert_eq!(all.len(), 10);
    let (mut seen, mut after) = (Vec::new(), 0);
    loop {
        let part = work(&store).audit_page(id, after, 3).await.unwrap();
        let Some(last) = part.last() else { break };
        assert!(part.len() <= 3);
        after = last.id;
        seen.extend(part);
    }
    assert_eq!(seen, all);

    let client = Tsid::from_i64(7);
    let queues = [default_queue(), of(7, "mail")];
    store.put_queue(&queues[1], QueueChange::default()).await.unwrap();
    for number in 0..7 {
        let consumer = |queue: &QueueName| LiveConsumer {
            worker: format!("w{number}"),
            queue: queue.clone(),
            types: None,
            tags: Vec::new(),
        };
        store.consumers_seen(queues.iter().map(consumer).collect()).await.unwrap();
    }
    let (mut names, mut query) =
        (Vec::new(), WorkersQuery { limit: 3, client: Some(client), ..WorkersQuery::default() });
    loop {
        let part = work(&store).workers_page(query.clone()).await.unwrap();
        assert!(part.workers.len() <= 3 && part.workers.iter().all(|worker| worker.client == Some(client)));
        names.extend(part.workers.into_iter().map(|worker| worker.worker));
        query.after = part.next;
        if query.after.is_none() {
            break;
        }
    }
    assert_eq!(names, (0..7).map(|number| format!("w{number}")).collect::<Vec<_>>());
    assert_eq!(work(&store).workers(seconds(30)).await.unwrap().len(), 14, "seven of them without a client");
}

/// Publishes an event, claims its entry and reports the outcome as a worker would.
async fn work_off(store: &AnyStore, event: NewEvent, outcome: AttemptOutcome) -> EntryId {
    let id = publish_one(store, event).await;
    pick_one(store, "w:1").await;
    report(store, by(id, "w:1"), outcome).await.unwrap();
    id
}

/// Runs retention until nothing is left to remove; returns what was removed in total.
async fn run_retention(store: &AnyStore, retention: Retention) -> Retained {
    let mut all = Retained::default();
    let mut step = retention;
    loop {
        let done = work(store).retain(step).await.expect("old rows are removed");
        all.audit += done.audit;
        all.entries += done.entries;
        step.from = done.next;
        if done.next.is_none() && done.audit == 0 {
            return all;
        }
    }
}

/// An entry that was redriven and then replaced has another fact than its first generation had.
pub(super) async fn retention_removes_the_last_fact_of_an_entry(scene: Scene) {
    let store = scene.open().await;
    let first = publish_one(&store, event("t").replace_waiting("k").tags(["a"])).await;
    finalize(&store, end_by_id(first, End::Failed)).await.unwrap();
    redrive(&store, first).await.unwrap();
    assert_eq!(publish_one(&store, event("t").replace_waiting("k").tags(["b"])).await, first);
    let replaced = claim_one(&store).await;
    complete(&store, &replaced).await;
    assert_eq!(census(&store).await.events, 1);
    scene.advance(100);
    let retention = Retention { log: Some(seconds(50)), ..Retention::default() };
    eventually("the entry is removed", || async {
        store.maintain().await.unwrap();
        run_retention(&store, retention).await.entries == 1
    })
    .await;
    assert_eq!(census(&store).await.events, 0);
    assert_eq!(page(&store, with_tags(&["b"])).await.total, 0);
}

pub(super) async fn retention_forgets_what_nobody_needs(scene: Scene) {
    let store = scene.open().await;
    let mut done = Vec::new();
    for _ in 0..5 {
        done.push(work_off(&store, job(), AttemptOutcome::Completed).await);
    }
    let dead = work_off(&store, job().max_retries(0), AttemptOutcome::Failed).await;
    let again = work_off(&store, job().max_retries(0), AttemptOutcome::Failed).await;
    redrive(&store, again).await.unwrap();
    let waiting = publish_one(&store, event("t").tags(["w"])).await;
    scene.advance(100);
    let young = work_off(&store, job().priority(-1), AttemptOutcome::Completed).await;
    let retention = Retention { audit: Some(seconds(50)), log: Some(seconds(50)), batch: 2, ..Retention::default() };
    assert_eq!(run_retention(&store, retention).await.entries, 0, "rows that are not counted yet stay");
    // Counting stops at the oldest running transaction, which may be one of another database on the server.
    let gone = std::sync::atomic::AtomicU64::new(0);
    eventually("old entries are removed", || async {
        store.maintain().await.unwrap();
        gone.fetch_add(run_retention(&store, retention).await.entries, Ordering::SeqCst);
        gone.load(Ordering::SeqCst) >= 5
    })
    .await;
    assert_eq!(gone.into_inner(), 5, "not the dead letter, the redriven entry or the young one");
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
    assert_eq!(run_retention(&store, forced).await.entries, 1);
    assert_eq!(ids_of(&page(&store, ListQuery::default()).await), [young, waiting, again]);
    assert_eq!(ids(&claim(&store, 9).await), [again, waiting], "live entries are intact");
    census(&store).await;
}

/// A log row stays until every active projection has read it.
pub(super) async fn retention_waits_for_projections(scene: Scene) {
    let store = scene.open().await;
    let projections = store.as_ref();
    let projection = crate::values::projections::ProjectionId { name: "totals".into(), version: 1 };
    projections.register(&projection).await.expect("the projection is registered");
    let id = work_off(&store, job(), AttemptOutcome::Completed).await;
    scene.advance(100);
    let retention = Retention { log: Some(seconds(50)), batch: 100, ..Retention::default() };
    eventually("the row is counted", || async {
        store.maintain().await.unwrap();
        projections.read_log(everything()).await.unwrap().rows.len() == 1
    })
    .await;
    store.maintain().await.unwrap();
    assert_eq!(run_retention(&store, retention).await.entries, 0, "the projection has not read it");

    let reader = projections.take_reader(&projection, "r", LEASE).await.unwrap().expect("the reader lease is free");
    let end = projections.read_log(everything()).await.unwrap().end;
    let step = crate::values::projections::Step {
        id: projection,
        token: reader.token,
        from: Position::START,
        to: end,
        events: 1,
        lease: LEASE,
    };
    projections.apply(step, Vec::new()).await.expect("the position moves");
    eventually("the row is removed", || async {
        store.maintain().await.unwrap();
        run_retention(&store, retention).await.entries == 1
    })
    .await;
    assert_eq!(store.entries(vec![id]).await.unwrap(), [None]);
}

/// Reads the whole log for a version and moves its position to the end.
async fn read_all(store: &AnyStore, version: i32) {
    let projections = store.as_ref();
    let id = crate::values::projections::ProjectionId { name: "totals".into(), version };
    let reader = projections.take_reader(&id, "r", LEASE).await.unwrap().expect("the reader lease is free");
    let to = projections.read_log(everything()).await.unwrap().end;
    let step = crate::values::projections::Step {
        id,
        token: reader.token,
        from: Position::START,
        to,
        events: 1,
        lease: LEASE,
    };
    projections.apply(step, Vec::new()).await.expect("the position moves");
}

/// A store with two versions of a projection and one old log row, which is counted and which neither version has read.
async fn logged_for_two_versions(scene: &Scene) -> (AnyStore, EntryId) {
    let store = scene.open().await;
    let projections = store.as_ref();
    for version in [1, 2] {
        let id = crate::values::projections::ProjectionId { name: "totals".into(), version };
        projections.register(&id).await.expect("the projection is registered");
    }
    let id = work_off(&store, job(), AttemptOutcome::Completed).await;
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
    facts: None,
    batch: 100,
    from: None,
    facts_from: None,
};

/// A new version is built beside the active one: log rows that it has not read yet must stay.
pub(super) async fn retention_waits_for_a_version_that_is_being_built(scene: Scene) {
    let (store, id) = logged_for_two_versions(&scene).await;
    read_all(&store, 1).await;
    for _ in 0..3 {
        store.maintain().await.unwrap();
        assert_eq!(run_retention(&store, OLD).await.entries, 0, "version 2 has not read it");
    }
    read_all(&store, 2).await;
    eventually("the row is removed", || async {
        store.maintain().await.unwrap();
        run_retention(&store, OLD).await.entries == 1
    })
    .await;
    assert_eq!(store.entries(vec![id]).await.unwrap(), [None]);
}

pub(super) async fn a_removed_projection_holds_no_row_back(scene: Scene) {
    let (store, id) = logged_for_two_versions(&scene).await;
    let projections = store.as_ref();
    read_all(&store, 1).await;
    let two = crate::values::projections::ProjectionId { name: "totals".into(), version: 2 };
    let reader = projections.take_reader(&two, "r", LEASE).await.unwrap().expect("the reader lease is free");
    assert!(!projections.remove("nobody").await.unwrap());
    assert!(projections.remove("totals").await.unwrap());
    let to = projections.read_log(everything()).await.unwrap().end;
    let step = crate::values::projections::Step {
        id: two,
        token: reader.token,
        from: Position::START,
        to,
        events: 1,
        lease: LEASE,
    };
    assert_eq!(kind(projections.apply(step, Vec::new()).await), crate::ErrorKind::Fenced);
    eventually("the row is removed", || async {
        store.maintain().await.unwrap();
        run_retention(&store, OLD).await.entries == 1
    })
    .await;
    assert_eq!(store.entries(vec![id]).await.unwrap(), [None]);
    while projections.sweep("totals").await.unwrap() {}
    assert_eq!(projections.projections().await.unwrap(), []);
    assert_eq!(projections.active("totals").await.unwrap(), None);
}

fn everything() -> crate::values::projections::ReadLog {
    let ends = tidegate_core::End::ALL.to_vec();
    crate::values::projections::ReadLog { after: Position::START, types: None, ends, limit: 100 }
}
