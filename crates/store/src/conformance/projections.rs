//! Projections: the log is read in commit order by one reader, positions move with documents, versions take over.

use std::time::Duration;

use bytes::Bytes;
use tidegate_core::{End, EntryId, NewEvent};

use super::scene::{
    AnyStore, LEASE, Scene, end_by_id, event, events, eventually, finalize, kind, publish, publish_one, redrive,
    seconds, view,
};
use crate::api::*;
use crate::error::ErrorKind;
use crate::values::*;

fn log(store: &AnyStore) -> &dyn Store {
    store.as_ref()
}

fn version(version: i32) -> ProjectionId {
    ProjectionId::new("totals", version).expect("a projection's name")
}

fn query(after: Position, limit: usize) -> ReadLog {
    ReadLog { after, ends: vec![End::Completed], types: None, limit }
}

async fn read(store: &AnyStore, after: Position, limit: usize) -> LogPage {
    log(store).read_log(query(after, limit)).await.expect("the log is read")
}

fn entries(page: &LogPage) -> Vec<EntryId> {
    page.rows.iter().map(|row| row.id).collect()
}

/// Publishes and completes `count` events, and waits until readers may see them.
async fn logged(store: &AnyStore, count: usize) -> Vec<EntryId> {
    let ids = publish(store, events(count)).await;
    let ends = ids.iter().map(|id| end_by_id(*id, End::Completed)).collect();
    store.finalize(ends).await.expect("they end");
    readable(store, ids[count - 1]).await;
    ids
}

/// Ends an entry and waits until readers may see it: any open transaction on the server holds readers back.
async fn ended(store: &AnyStore, id: EntryId, how: End) {
    finalize(store, end_by_id(id, how)).await.expect("it ends");
    readable(store, id).await;
}

async fn readable(store: &AnyStore, id: EntryId) {
    let at = log(store).logged_at(id).await.expect("looked up").expect("it ended");
    eventually("the end is readable", || async { read(store, Position::START, 1000).await.end >= at }).await;
}

async fn reader(store: &AnyStore, id: &ProjectionId, name: &str) -> Option<Reader> {
    log(store).take_reader(id, name, LEASE).await.expect("the request for the lease is answered")
}

/// Registers version 1 and takes its reader lease.
async fn first_reader(store: &AnyStore) -> (ProjectionId, Reader) {
    let id = version(1);
    log(store).register(&id).await.expect("the projection is registered");
    let reader = reader(store, &id, "r").await.expect("the reader lease is free");
    (id, reader)
}

fn step(id: &ProjectionId, token: i64, from: Position, to: Position) -> Step {
    Step { id: id.clone(), token, from, to, events: 1, lease: LEASE }
}

fn put(key: &str, document: &str, existed: bool) -> Change {
    Change { key: key.into(), document: Some(Bytes::copy_from_slice(document.as_bytes())), existed }
}

fn remove(key: &str) -> Change {
    Change { key: key.into(), document: None, existed: true }
}

async fn document(store: &AnyStore, id: &ProjectionId, key: &str) -> Option<String> {
    let found = log(store).documents(id, vec![key.into()]).await.expect("documents are read").remove(0);
    found.map(|document| String::from_utf8(document.to_vec()).expect("text"))
}

async fn view_of(store: &AnyStore, version: i32) -> ProjectionView {
    let views = log(store).projections().await.expect("they are listed");
    views.into_iter().find(|view| view.id.version == version).expect("the version is there")
}

pub(super) async fn the_log_is_read_in_order_with_its_facts(scene: Scene) {
    let store = scene.open().await;
    let mut event = NewEvent::new("order.placed", "{\"n\":1}");
    (event.subject, event.source) = (Some("o-1".into()), Some("shop".into()));
    let first = publish_one(&store, event).await;
    ended(&store, first, End::Completed).await;
    let rest = logged(&store, 4).await;
    let page = read(&store, Position::START, 100).await;
    assert_eq!(entries(&page), [vec![first], rest].concat());
    assert!(page.exhausted);
    assert!(page.rows.windows(2).all(|pair| pair[0].position < pair[1].position));
    assert_eq!(page.rows.last().map(|row| row.position), Some(page.end));
    let row = &page.rows[0];
    assert_eq!((row.end, row.generation, row.finished_at), (End::Completed, 1, scene.now()));
    assert_eq!(row.event_id, view(&store, first).await.event_id);
    assert_eq!((row.fact.event_type.as_str(), &row.fact.payload[..]), ("order.placed", &b"{\"n\":1}"[..]));
    assert_eq!((row.fact.subject.as_deref(), row.fact.source.as_deref()), (Some("o-1"), Some("shop")));
}

pub(super) async fn pages_follow_each_other(scene: Scene) {
    let store = scene.open().await;
    let ids = logged(&store, 25).await;
    let (mut after, mut seen) = (Position::START, Vec::new());
    for _ in 0..10 {
        let page = read(&store, after, 10).await;
        assert_eq!(page.exhausted, page.rows.len() < 10);
        seen.extend(entries(&page));
        after = page.end;
        if page.exhausted {
            break;
        }
    }
    assert_eq!(seen, ids);
    let nothing = read(&store, after, 10).await;
    assert_eq!(nothing, LogPage { rows: Vec::new(), end: after, exhausted: true });
    let more = logged(&store, 1).await;
    assert_eq!(entries(&read(&store, after, 10).await), more);
}

pub(super) async fn unwanted_rows_are_walked_over(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![event("a"), event("b"), event("a"), event("b"), event("c")]).await;
    for (id, how) in ids.iter().zip([End::Completed, End::Completed, End::Failed, End::Cancelled, End::Completed]) {
        ended(&store, *id, how).await;
    }
    let of_type = |types: &[&str], ends: Vec<End>| {
        let types = types.iter().map(|name| (*name).to_owned()).collect();
        ReadLog { after: Position::START, ends, types: Some(types), limit: 100 }
    };
    let end = read(&store, Position::START, 100).await.end;
    for (query, wanted) in [
        (of_type(&["a"], vec![End::Completed]), vec![ids[0]]),
        (of_type(&["a"], vec![End::Completed, End::Failed]), vec![ids[0], ids[2]]),
        (of_type(&["a", "b"], End::ALL.to_vec()), ids[..4].to_vec()),
        (of_type(&["nothing"], End::ALL.to_vec()), vec![]),
        (of_type(&["c"], vec![]), vec![]),
    ] {
        let page = log(&store).read_log(query).await.expect("the log is read");
        assert_eq!((entries(&page), page.end, page.exhausted), (wanted, end, true));
    }
    let two = log(&store).read_log(ReadLog { limit: 2, ..of_type(&["c"], vec![End::Completed]) }).await.expect("read");
    assert!(two.rows.is_empty() && !two.exhausted && two.end < end, "two rows were walked over: {two:?}");
}

pub(super) async fn each_generation_has_its_row(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, event("t")).await;
    ended(&store, id, End::Failed).await;
    let failed = log(&store).logged_at(id).await.expect("looked up").expect("it ended");
    redrive(&store, id).await.expect("it is redriven");
    assert_eq!(log(&store).logged_at(id).await.expect("looked up"), None, "it is live again");
    ended(&store, id, End::Completed).await;
    let completed = log(&store).logged_at(id).await.expect("looked up").expect("it ended");
    assert!(failed < completed);
    let all = ReadLog { ends: End::ALL.to_vec(), ..query(Position::START, 10) };
    let page = log(&store).read_log(all).await.expect("the log is read");
    let rows: Vec<_> = page.rows.iter().map(|row| (row.id, row.generation, row.end, row.position)).collect();
    assert_eq!(rows, [(id, 1, End::Failed, failed), (id, 2, End::Completed, completed)]);
}

/// Readers miss neither an entry with a lower id that ends later nor an end that commits later.
pub(super) async fn late_ends_and_late_commits_are_read(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, events(4)).await;
    ended(&store, ids[3], End::Completed).await;
    let first = read(&store, Position::START, 10).await;
    assert_eq!(entries(&first), [ids[3]]);

    let mut late = scene.begin().await;
    late.finalize_in(vec![end_by_id(ids[0], End::Completed)]).await.expect("it ends in an open transaction");
    if scene.is_sqlite() {
        late.commit().await;
        finalize(&store, end_by_id(ids[2], End::Completed)).await.expect("it ends");
    } else {
        finalize(&store, end_by_id(ids[2], End::Completed)).await.expect("it ends meanwhile");
        let held = read(&store, first.end, 10).await;
        assert!(held.rows.is_empty(), "an earlier commit may still come: {held:?}");
        assert_eq!(held.end, first.end);
        let (id, token) = first_reader(&store).await;
        log(&store).apply(step(&id, token.token, Position::START, first.end), vec![]).await.expect("it moves");
        // Transactions of other databases may hold readers back as well, but only for a moment.
        eventually("the lag names the transaction that holds readers back", || async {
            let lag = log(&store).lag(&id, 100).await.expect("the lag is counted");
            assert_eq!(lag.rows, 1);
            let holder = lag.held_by.expect("a transaction holds readers back");
            holder.pid.is_some() && holder.state.starts_with("idle in transaction")
        })
        .await;
        late.commit().await;
    }
    eventually("everything readable", || async { read(&store, first.end, 10).await.rows.len() == 2 }).await;
    let rest = read(&store, first.end, 10).await;
    assert_eq!(entries(&rest), [ids[0], ids[2]], "in the order of their transactions");

    let mut gone = scene.begin().await;
    gone.finalize_in(vec![end_by_id(ids[1], End::Completed)]).await.expect("it ends");
    gone.rollback().await;
    assert!(read(&store, rest.end, 10).await.rows.is_empty(), "a rolled-back end is never read");
}

pub(super) async fn position_and_documents_move_together(scene: Scene) {
    let store = scene.open().await;
    logged(&store, 3).await;
    let (id, held) = first_reader(&store).await;
    let rows = read(&store, Position::START, 10).await.rows;
    let at: Vec<Position> = rows.iter().map(|row| row.position).collect();
    let changes = vec![put("a", "1", false), put("b", "2", false)];
    log(&store).apply(step(&id, held.token, Position::START, at[0]), changes).await.expect("it moves");
    assert_eq!(document(&store, &id, "a").await.as_deref(), Some("1"));

    let changes = vec![put("a", "10", true), remove("b"), put("c", "3", false)];
    log(&store).apply(step(&id, held.token, at[0], at[1]), changes.clone()).await.expect("it moves on");
    let all = log(&store).documents(&id, ["c", "b", "a"].map(String::from).to_vec()).await.expect("read");
    let all: Vec<Option<&[u8]>> = all.iter().map(Option::as_deref).collect();
    assert_eq!(all, [Some(&b"3"[..]), None, Some(&b"10"[..])]);

    let again = log(&store).apply(step(&id, held.token, at[0], at[1]), vec![put("a", "99", true)]).await;
    assert_eq!(kind(again), ErrorKind::Fenced, "a repeat changes nothing");
    let other_token = log(&store).apply(step(&id, held.token + 1, at[1], at[2]), vec![put("a", "99", true)]).await;
    assert_eq!(kind(other_token), ErrorKind::Fenced);
    assert_eq!(document(&store, &id, "a").await.as_deref(), Some("10"));
    let view = view_of(&store, 1).await;
    assert_eq!((view.position, view.events), (at[1], 2));
    log(&store).apply(step(&id, held.token, at[1], at[2]), vec![]).await.expect("it moves without documents");
    assert_eq!(view_of(&store, 1).await.position, at[2]);
}

pub(super) async fn one_reader_at_a_time(scene: Scene) {
    let (store, other) = (scene.open().await, scene.open().await);
    let (id, first) = first_reader(&store).await;
    assert_eq!(first.position, Position::START);
    assert_eq!(reader(&other, &id, "other").await, None, "another reader holds the lease");
    let again = reader(&store, &id, "r").await.expect("its holder may take it again");
    assert!(again.token > first.token);
    scene.advance(59);
    log(&store).keep_reader(&id, again.token, LEASE).await.expect("the lease is extended");
    scene.advance(59);
    assert_eq!(reader(&other, &id, "other").await, None, "the lease was extended");
    scene.advance(2);
    let taken = reader(&other, &id, "other").await.expect("the lease ran out");
    assert!(taken.token > again.token);
    assert_eq!(kind(log(&store).keep_reader(&id, again.token, LEASE).await), ErrorKind::Fenced);
    let late = log(&store).apply(step(&id, again.token, Position::START, Position::START), vec![put("a", "1", false)]);
    assert_eq!(kind(late.await), ErrorKind::Fenced);
    log(&store).leave_reader(&id, again.token).await.expect("leaving under an old token is no error");
    assert_eq!(view_of(&store, 1).await.reader.map(|(name, _)| name).as_deref(), Some("other"));
    log(&other).leave_reader(&id, taken.token).await.expect("it leaves");
    assert!(reader(&store, &id, "r").await.is_some(), "the lease is free at once");
}

pub(super) async fn concurrent_readers_get_one_lease(scene: Scene) {
    let store = scene.open().await;
    log(&store).register(&version(1)).await.expect("the projection is registered");
    let mut asking = tokio::task::JoinSet::new();
    for number in 0..8 {
        let store = store.clone();
        asking.spawn(async move { reader(&store, &version(1), &format!("r{number}")).await });
    }
    let taken = asking.join_all().await;
    assert_eq!(taken.iter().flatten().count(), 1);
}

pub(super) async fn a_failure_is_shown_and_cleared(scene: Scene) {
    let store = scene.open().await;
    let ids = logged(&store, 1).await;
    let (id, held) = first_reader(&store).await;
    let failed = Failed {
        id: id.clone(),
        token: held.token,
        entry: Some(ids[0]),
        error: "no such \0 customer".into(),
        retry_after: seconds(5),
        lease: LEASE,
    };
    log(&store).fail(failed.clone()).await.expect("the failure is recorded");
    log(&store).fail(failed.clone()).await.expect("the failure is recorded again");
    let failure = view_of(&store, 1).await.failure.expect("the failure is shown");
    assert_eq!((failure.entry, failure.failures, failure.retry_at), (Some(ids[0]), 2, scene.moment(5)));
    assert!(failure.error.starts_with("no such "), "{failure:?}");
    assert_eq!(kind(log(&store).fail(Failed { token: held.token - 1, ..failed }).await), ErrorKind::Fenced);
    let end = read(&store, Position::START, 10).await.end;
    log(&store).apply(step(&id, held.token, Position::START, end), vec![]).await.expect("it moves");
    assert_eq!(view_of(&store, 1).await.failure, None);
}

pub(super) async fn a_failure_of_another_event_counts_anew(scene: Scene) {
    let store = scene.open().await;
    let ids = logged(&store, 2).await;
    let (id, held) = first_reader(&store).await;
    for (entry, failures) in [(ids[0], 1), (ids[0], 2), (ids[1], 1), (ids[1], 2)] {
        let failed = Failed {
            id: id.clone(),
            token: held.token,
            entry: Some(entry),
            error: "no".into(),
            retry_after: seconds(5),
            lease: LEASE,
        };
        log(&store).fail(failed).await.expect("the failure is recorded");
        let failure = view_of(&store, 1).await.failure.expect("the failure is shown");
        assert_eq!((failure.entry, failure.failures), (Some(entry), failures));
    }
}

pub(super) async fn a_failure_of_no_event_is_shown_and_cleared(scene: Scene) {
    let store = scene.open().await;
    let (id, held) = first_reader(&store).await;
    let error = "the table is missing".to_owned();
    let failed =
        Failed { id: id.clone(), token: held.token, entry: None, error, retry_after: seconds(5), lease: LEASE };
    for failures in 1..=2 {
        log(&store).fail(failed.clone()).await.expect("the failure is recorded");
        let failure = view_of(&store, 1).await.failure.expect("the failure is shown");
        assert_eq!((failure.entry, failure.failures), (None, failures));
        assert_eq!(failure.error, failed.error);
    }
    log(&store).activate(&id, held.token).await.expect("it takes over");
    assert_eq!(view_of(&store, 1).await.failure, None);
    log(&store).fail(failed).await.expect("the failure is recorded");
    // A step that does not move clears it too: there may be nothing new to read.
    log(&store).apply(step(&id, held.token, Position::START, Position::START), vec![]).await.expect("it moves");
    assert_eq!(view_of(&store, 1).await.failure, None);
}

pub(super) async fn a_new_version_takes_over(scene: Scene) {
    let store = scene.open().await;
    logged(&store, 1).await;
    let end = read(&store, Position::START, 10).await.end;
    let (old, old_reader) = first_reader(&store).await;
    assert_eq!(view_of(&store, 1).await.state, ProjectionState::Active, "the first version is active at once");
    log(&store)
        .apply(step(&old, old_reader.token, Position::START, end), vec![put("a", "1", false)])
        .await
        .expect("ok");

    let new = version(2);
    assert_eq!(log(&store).register(&new).await.expect("registered").state, ProjectionState::Building);
    let new_reader = reader(&store, &new, "r").await.expect("each version has its reader");
    assert_eq!(new_reader.position, Position::START, "it begins at the oldest row");
    log(&store)
        .apply(step(&new, new_reader.token, Position::START, end), vec![put("a", "2", false)])
        .await
        .expect("ok");
    assert_eq!(document(&store, &old, "a").await.as_deref(), Some("1"), "both versions exist side by side");
    assert_eq!(kind(log(&store).activate(&new, new_reader.token + 1).await), ErrorKind::Fenced);
    log(&store).activate(&new, new_reader.token).await.expect("it takes over");
    assert_eq!(view_of(&store, 1).await.state, ProjectionState::Retired);
    assert_eq!(view_of(&store, 2).await.state, ProjectionState::Active);

    let late = log(&store).apply(step(&old, old_reader.token, end, end), vec![put("b", "1", false)]).await;
    assert_eq!(kind(late), ErrorKind::Fenced, "the old reader is fenced");
    assert_eq!(reader(&store, &old, "r").await, None);
    while log(&store).sweep("totals").await.expect("it is swept") {}
    assert_eq!(document(&store, &old, "a").await, None);
    assert_eq!(document(&store, &new, "a").await.as_deref(), Some("2"));
    let left: Vec<i32> = log(&store).projections().await.expect("listed").iter().map(|view| view.id.version).collect();
    assert_eq!(left, [2]);
    assert_eq!(log(&store).register(&old).await.expect("asked").state, ProjectionState::Retired, "versions only go up");
    assert_eq!(log(&store).projections().await.expect("listed").len(), 1, "an old version is not created again");
}

pub(super) async fn documents_are_listed_by_prefix_and_page(scene: Scene) {
    let store = scene.open().await;
    let (id, held) = first_reader(&store).await;
    let keys = ["a", "b%", "b/1", "b/10", "b/2", "b_", "ü", "B"];
    let changes = keys.iter().map(|key| put(key, key, false)).collect();
    log(&store).apply(step(&id, held.token, Position::START, Position::START), changes).await.expect("written");
    let list = |prefix: &str, after: Option<&str>, limit: usize| {
        let query = ListDocuments { prefix: prefix.into(), after: after.map(Into::into), limit };
        let (store, id) = (store.clone(), id.clone());
        async move {
            let found = log(&store).list_documents(&id, query).await.expect("listed");
            assert!(found.iter().all(|document| document.key.as_bytes() == document.document));
            found.into_iter().map(|document| document.key).collect::<Vec<_>>()
        }
    };
    assert_eq!(list("", None, 100).await, ["B", "a", "b%", "b/1", "b/10", "b/2", "b_", "ü"]);
    assert_eq!(list("b/", None, 100).await, ["b/1", "b/10", "b/2"]);
    assert_eq!(list("b%", None, 100).await, ["b%"]);
    assert_eq!(list("b", None, 2).await, ["b%", "b/1"]);
    assert_eq!(list("b", Some("b/1"), 2).await, ["b/10", "b/2"]);
    assert_eq!(list("b/", Some("a"), 2).await, ["b/1", "b/10"], "after a key before the prefix");
    assert!(list("b/", Some("b_"), 2).await.is_empty(), "after a key behind the prefix");
    assert_eq!(list("", Some(""), 1).await, ["B"]);
    assert_eq!(list("", Some("b_"), 100).await, ["ü"]);
    assert_eq!(list("ü", None, 2).await, ["ü"]);
    assert!(list("x", None, 2).await.is_empty());
}

pub(super) async fn lag_is_counted_up_to_a_bound(scene: Scene) {
    let store = scene.open().await;
    let (id, held) = first_reader(&store).await;
    assert_eq!(log(&store).lag(&id, 10).await.expect("counted"), Lag::default());
    logged(&store, 5).await;
    scene.advance(30);
    logged(&store, 1).await;
    let lag = log(&store).lag(&id, 10).await.expect("counted");
    assert_eq!((lag.rows, lag.more, lag.age), (6, false, Duration::from_secs(30)));
    let some = log(&store).lag(&id, 4).await.expect("counted");
    assert_eq!((some.rows, some.more), (4, true));
    let end = read(&store, Position::START, 5).await.end;
    log(&store).apply(step(&id, held.token, Position::START, end), vec![]).await.expect("it moves");
    let lag = log(&store).lag(&id, 10).await.expect("counted");
    assert_eq!((lag.rows, lag.age), (1, Duration::ZERO));
    assert_eq!(kind(log(&store).lag(&version(9), 10).await), ErrorKind::NotFound);
}

pub(super) async fn bad_names_are_refused(scene: Scene) {
    let store = scene.open().await;
    for (name, version) in [("", 1), ("a\0b", 1), ("a", 0), ("a", -1)] {
        let id = ProjectionId { name: name.into(), version };
        assert_eq!(kind(log(&store).register(&id).await), ErrorKind::Invalid, "{name:?} {version}");
    }
}
