//! What only SQLite has: one writer that merges, savepoints, plain SQL through a view, other connections' locks and
//! commits.

mod clock;
mod families;
mod fsync;
mod place;
mod standing;
mod turns;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rusqlite::{Connection, ffi};
use tempfile::TempDir;
use tidegate_core::End;

use super::*;
use crate::api::*;
use crate::error::{Error, ErrorKind};
use crate::values::StoreOptions;

struct Scene {
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("events.db")
    }

    async fn open(&self) -> SqliteStore {
        self.open_with(StoreOptions::default()).await
    }

    async fn open_with(&self, options: StoreOptions) -> SqliteStore {
        SqliteStore::open(self.path(), SqliteOptions::new(options)).await.unwrap()
    }

    /// A connection of the application's own.
    fn connect(&self) -> Connection {
        let conn = Connection::open(self.path()).unwrap();
        conn.busy_timeout(Duration::from_secs(20)).unwrap();
        conn
    }

    fn count(&self, sql: &str) -> i64 {
        self.connect().query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

fn event() -> NewEvent {
    NewEvent::new("t", "{}")
}

fn want(max: usize) -> Claim {
    Claim {
        queue: QueueName::default(),
        types: None,
        max,
        lease: Duration::from_secs(60),
        worker: "w".into(),
        quotas: BTreeMap::new(),
        tags: None,
        audit: false,
    }
}

fn done(claimed: &Claimed) -> Finalize {
    Finalize {
        id: claimed.id,
        token: Some(claimed.token),
        end: End::Completed,
        errors: None,
        results: None,
        attempt: None,
    }
}

/// Holds the writer in a transaction until the sender is dropped, so that jobs queue up behind it.
async fn hold(store: &SqliteStore) -> (std::sync::mpsc::Sender<()>, tokio::task::JoinHandle<Result<()>>) {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let (started, starting) = tokio::sync::oneshot::channel();
    let store = store.clone();
    let holder = tokio::spawn(async move {
        store
            .transaction(move |_| {
                let _ = started.send(());
                let _ = held.recv_timeout(Duration::from_secs(20));
                Ok(())
            })
            .await
    });
    starting.await.unwrap();
    (release, holder)
}

/// The writer's commits so far.
fn commits(store: &SqliteStore) -> u64 {
    store.inner.inbox.commits.load(Ordering::SeqCst)
}

fn waiting(store: &SqliteStore) -> usize {
    format!("{:?}", store.inner.inbox.jobs)
        .split(['[', ']'])
        .nth(1)
        .map_or(0, |counts| counts.split(',').map(|count| count.trim().parse::<usize>().unwrap()).sum())
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_jobs_share_one_commit_and_a_failing_one_spares_the_others() {
    let scene = Scene::new();
    let store = scene.open().await;
    let before = commits(&store);
    let (release, holder) = hold(&store).await;
    let mut publishes = tokio::task::JoinSet::new();
    for number in 0..20 {
        let mine = store.clone();
        publishes.spawn(async move {
            if number % 5 == 4 {
                // Writes first, then fails: everything it wrote must be undone.
                mine.write(Urgency::Publish, |tx| {
                    publish::publish(tx, &[event(), NewEvent::new("of the failing one", "{}")])?;
                    Err::<usize, _>(Error::new(ErrorKind::Conflict, "on purpose"))
                })
                .await
            } else {
                mine.publish(vec![event()]).await.map(|answers| answers.iter().filter(|answer| answer.is_ok()).count())
            }
        });
    }
    eventually("all jobs wait", || waiting(&store) == 20).await;
    drop(release);
    let outcomes = publishes.join_all().await;
    holder.await.unwrap().unwrap();
    assert_eq!(outcomes.iter().filter(|outcome| matches!(outcome, Ok(1))).count(), 16);
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 4);
    assert_eq!(store.census().await.unwrap().events, 16);
    assert_eq!(scene.count("SELECT count(*) FROM tidegate_lanes"), 1, "the failing ones' lane is gone too");
    assert_eq!(commits(&store) - before, 2, "the holder's, and one for all the others");
    store.publish(vec![NewEvent::new("of the failing one", "{}")]).await.unwrap().remove(0).unwrap();
    assert_eq!(store.claim(want(99)).await.unwrap().len(), 17);
}

#[tokio::test(flavor = "multi_thread")]
async fn finishing_goes_before_claiming_and_claiming_before_publishing() {
    let scene = Scene::new();
    let store = scene.open().await;
    let (release, holder) = hold(&store).await;
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut jobs = tokio::task::JoinSet::new();
    for (count, urgency) in [Urgency::Publish, Urgency::Claim, Urgency::End].into_iter().enumerate() {
        let (mine, order) = (store.clone(), order.clone());
        jobs.spawn(async move {
            mine.write(urgency, move |_| {
                order.lock().unwrap().push(urgency);
                Ok(())
            })
            .await
        });
        eventually("it waits", || waiting(&store) == count + 1).await;
    }
    drop(release);
    holder.await.unwrap().unwrap();
    assert!(jobs.join_all().await.into_iter().all(|outcome| outcome.is_ok()));
    assert_eq!(*order.lock().unwrap(), [Urgency::End, Urgency::Claim, Urgency::Publish]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_commits_all_or_nothing_and_survives_a_panic() {
    let scene = Scene::new();
    let store = scene.open().await;
    let publisher = store.clone();
    store
        .transaction(move |conn| {
            conn.execute_batch("CREATE TABLE own (n INTEGER); INSERT INTO own VALUES (1)")?;
            publisher.publish_in(conn, vec![event().group("g"), event().group("g")]).map(drop)
        })
        .await
        .unwrap();
    assert_eq!(store.claim(want(9)).await.unwrap().len(), 1);

    let publisher = store.clone();
    let failed: Result<()> = store
        .transaction(move |conn| {
            conn.execute("INSERT INTO own VALUES (2)", [])?;
            publisher.publish_in(conn, vec![NewEvent::new("new", "{}")])?;
            Err(Error::new(ErrorKind::Conflict, "on purpose"))
        })
        .await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Conflict);
    let panicked: Result<()> = store
        .transaction(|conn| {
            conn.execute("INSERT INTO own VALUES (3)", [])?;
            panic!("on purpose")
        })
        .await;
    assert!(panicked.unwrap_err().to_string().contains("on purpose"));
    let ended: Result<()> = store.transaction(|conn| Ok(conn.execute_batch("ROLLBACK")?)).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!((scene.count("SELECT count(*) FROM own"), store.census().await.unwrap().events), (1, 2));
    store.publish(vec![NewEvent::new("new", "{}")]).await.unwrap().remove(0).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_lease_in_a_callers_transaction_takes_all_of_it_back() {
    let scene = Scene::new();
    let store = scene.open().await;
    store.publish(vec![event()]).await.unwrap();
    let claimed = store.claim(want(1)).await.unwrap().remove(0);
    store.finalize(vec![done(&claimed)]).await.unwrap();
    let conn = scene.connect();
    conn.execute_batch("CREATE TABLE own (n INTEGER); BEGIN IMMEDIATE; INSERT INTO own VALUES (1)").unwrap();
    let error = store.finalize_in(&conn, vec![done(&claimed)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "the same lease ended it before: its effects took place already");
    assert!(conn.is_autocommit());
    assert_eq!(scene.count("SELECT count(*) FROM own"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_lock_is_bounded_backpressure() {
    let scene = Scene::new();
    let options = StoreOptions { lock_timeout: Duration::from_millis(200), ..StoreOptions::default() };
    let store = scene.open_with(options).await;
    let foreign = scene.connect();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (first, second) = tokio::join!(store.publish(vec![event()]), store.claim(want(1)));
    assert_eq!(first.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(second.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(store.census().await.unwrap().events, 0, "readers go on");
    foreign.execute_batch("ROLLBACK").unwrap();
    store.publish(vec![event()]).await.unwrap().remove(0).unwrap();

    // A lock that is released in time is only a delay.
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    let waiter = store.clone();
    let publish = tokio::spawn(async move { waiter.publish(vec![event()]).await });
    eventually("it waits", || waiting(&store) == 1).await;
    foreign.execute_batch("ROLLBACK").unwrap();
    publish.await.unwrap().unwrap().remove(0).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_connections_commit_wakes_and_what_it_wrote_is_delivered() {
    let scene = Scene::new();
    let store = scene.open().await;
    let mut wakeups = store.wakeups();
    let insert = "INSERT INTO tidegate_publish (event_type, payload, message_group) VALUES ('sql', '{}', 'g'), ('sql', '[]', 'g')";
    scene.connect().execute(insert, []).unwrap();
    let woken = tokio::time::timeout(Duration::from_secs(20), wakeups.recv()).await.unwrap().unwrap();
    assert_eq!(woken, Wake::Any);
    let claimed = store.claim(want(9)).await.unwrap();
    assert_eq!((claimed.len(), &claimed[0].fact.payload[..]), (1, &b"{}"[..]), "one of the group");
    store.finalize(vec![done(&claimed[0])]).await.unwrap();
    assert_eq!(store.claim(want(9)).await.unwrap().len(), 1);
    store.publish(vec![event()]).await.unwrap();
    loop {
        match tokio::time::timeout(Duration::from_secs(20), wakeups.recv()).await.unwrap().unwrap() {
            Wake::Queues(queues) if queues.contains(&QueueName::default()) => break,
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_sql_refuses_and_repeats() {
    let scene = Scene::new();
    let store = scene.open().await;
    let conn = scene.connect();
    let insert = "INSERT INTO tidegate_publish (event_type, payload, deduplication_id, queue) VALUES (?1, ?2, ?3, ?4)";
    for _ in 0..2 {
        conn.execute(insert, ("t", "{}", "k", "default")).unwrap();
    }
    let refused = [
        ("t", Some("\"other\""), Some("k"), "default", "another event"),
        ("", Some("{}"), None, "default", "event type"),
        ("t", None, None, "default", "null"),
        ("t", Some("{}"), None, "nowhere", "no such queue"),
    ];
    for (event_type, payload, key, queue, word) in refused {
        let error = conn.execute(insert, (event_type, payload, key, queue)).unwrap_err().to_string();
        assert!(error.contains("tidegate: ") && error.contains(word), "{error}");
    }
    let census = store.census().await.unwrap();
    assert_eq!((census.events, census.waiting), (1, 1));
    assert_eq!(scene.count("SELECT entry_id FROM tidegate_sequence"), 2, "a repeat draws no number");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_moves_leases_that_were_held() {
    let scene = Scene::new();
    let store = scene.open().await;
    store.publish(vec![event()]).await.unwrap();
    let claimed = store.claim(Claim { lease: Duration::from_millis(1), ..want(1) }).await.unwrap().remove(0);
    let hour = 3_600_000_000_i64;
    let conn = scene.connect();
    conn.execute("UPDATE tidegate_heartbeat SET at = at - ?1", [hour]).unwrap();
    conn.execute("UPDATE tidegate_event_queue SET lease_until = lease_until - ?1", [hour]).unwrap();
    assert_eq!(store.claim(want(1)).await.unwrap(), [], "the lease was held when the store went down");
    let until = scene.count("SELECT lease_until FROM tidegate_event_queue");
    assert!(until >= claimed.claimed_at.as_microsecond(), "moved by the gap");
    assert!(store.maintain().await.unwrap().outage.is_none(), "the claim detected it already");
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_do_not_lose_entries_behind_their_marks() {
    let scene = Scene::new();
    let store = scene.open().await;
    store.publish(vec![event(); 10]).await.unwrap();
    let held = store.claim(want(5)).await.unwrap();
    assert_eq!(store.claim(Claim { lease: Duration::ZERO, ..want(2) }).await.unwrap().len(), 2);
    assert_eq!(store.claim(want(2)).await.unwrap()[0].attempts, 2, "a lease that ran out is found again");
    let back = Requeue {
        id: held[3].id,
        token: held[3].token,
        when: crate::values::RequeueAt::Now,
        counts: false,
        aside: false,
        error: None,
        attempt: None,
    };
    store.requeue(vec![back]).await.unwrap();
    assert_eq!(store.claim(want(1)).await.unwrap()[0].id, held[3].id, "one that was given back is found again");
    let short = Extend { id: held[1].id, token: held[1].token, lease: Duration::ZERO };
    store.extend(vec![short]).await.unwrap()[0].as_ref().unwrap();
    assert_eq!(store.claim(want(1)).await.unwrap()[0].id, held[1].id, "one whose lease was cut short too");
    let other = scene.open().await;
    let back = Requeue {
        id: held[0].id,
        token: held[0].token,
        when: crate::values::RequeueAt::Now,
        counts: false,
        aside: false,
        error: None,
        attempt: None,
    };
    other.requeue(vec![back]).await.unwrap();
    assert_eq!(store.claim(want(1)).await.unwrap()[0].id, held[0].id, "and one that another process gave back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_fsync_stops_the_store_for_good() {
    let scene = Scene::new();
    let store = scene.open().await;
    let failure = || rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_FSYNC), None);
    let outcome: Result<()> = store.write(Urgency::Publish, move |_| Err(failure().into())).await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(store.publish(vec![event()]).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(store.census().await.unwrap_err().kind(), ErrorKind::Corrupt);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_files_are_clear_errors() {
    let scene = Scene::new();
    let missing = scene.folder.path().join("nowhere/events.db");
    let error = SqliteStore::open(&missing, SqliteOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    std::fs::write(scene.path(), "this is not a database, and long enough to look like a header of one").unwrap();
    assert_eq!(SqliteStore::open(scene.path(), SqliteOptions::default()).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(SqliteStore::open(":memory:", SqliteOptions::default()).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_futures_leave_nothing_open() {
    let scene = Scene::new();
    let store = scene.open().await;
    let (release, holder) = hold(&store).await;
    for _ in 0..1000 {
        let (publish, claim) = (store.publish(vec![event()]), store.claim(want(1)));
        tokio::select! {
            biased;
            _ = publish => panic!("the writer is held"),
            _ = claim => panic!("the writer is held"),
            () = std::future::ready(()) => {}
        }
    }
    drop(release);
    holder.await.unwrap().unwrap();
    store.publish(vec![event()]).await.unwrap();
    assert_eq!(store.claim(want(2000)).await.unwrap().len(), 1001, "publishes commit, abandoned claims take nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_neighbours_stop_where_something_differs() {
    let scene = Scene::new();
    let ids = tidegate_core::IdSpace::new(3, 10).unwrap();
    let options = StoreOptions { ids, ..StoreOptions::default() };
    let store = scene.open_with(options).await;
    let batch = vec![
        event(),
        event(),
        event().group("g"),
        event(),
        NewEvent::new("other", "{}"),
        event().delay(Duration::from_secs(3600)),
        event(),
        event().max_attempts(3),
        event(),
        event(),
    ];
    let ids: Vec<EntryId> = store.publish(batch).await.unwrap().into_iter().map(|answer| answer.unwrap().id).collect();
    let views = store.entries(ids.clone()).await.unwrap();
    let told = |index: usize| {
        let view = views[index].as_ref().unwrap();
        (view.fact.event_type.as_str(), view.max_attempts, view.group.as_deref())
    };
    assert_eq!(told(2), ("t", 20, Some("g")));
    assert_eq!(told(4), ("other", 20, None));
    assert_eq!(told(7), ("t", 3, None));
    let claimed = store.claim(want(99)).await.unwrap();
    assert_eq!(claimed.len(), 9, "all but the delayed one");
    assert!(claimed.iter().all(|claimed| claimed.attempts == 1 && claimed.token.0 == 1));

    // A stale token and an entry that has ended already, in the middle of what would be a run otherwise.
    let more = store.publish(vec![event(); 20]).await.unwrap();
    let mut items: Vec<Finalize> = store.claim(want(99)).await.unwrap().iter().map(done).collect();
    assert_eq!((items.len(), more.len()), (20, 20));
    items[7].token = Some(tidegate_core::LeaseToken(9));
    store.finalize(vec![items[12].clone()]).await.unwrap();
    let answers = store.finalize(items.clone()).await.unwrap();
    for (index, answer) in answers.iter().enumerate() {
        match index {
            7 => assert_eq!(answer.as_ref().unwrap_err().kind(), ErrorKind::Fenced),
            _ => assert_eq!(answer.as_ref().unwrap().repeated, index == 12, "{index}"),
        }
    }
    let (seqs, last) = (
        scene.count("SELECT count(DISTINCT seq) FROM tidegate_event_log"),
        scene.count("SELECT max(seq) FROM tidegate_event_log"),
    );
    assert_eq!((seqs, last, scene.count("SELECT log_seq FROM tidegate_sequence")), (19, 19, 20));
    let census = store.census().await.unwrap();
    assert_eq!((census.events, census.waiting, census.leased, census.ended), (30, 1, 10, 19));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_and_the_store_works_again_once_there_is_space() {
    let scene = Scene::new();
    let store = scene.open().await;
    store.publish(vec![event()]).await.unwrap().remove(0).unwrap();
    let limit = |pages: i64| move |conn: &Connection| Ok(conn.pragma_update(None, "max_page_count", pages)?);
    let pages = scene.count("PRAGMA page_count");
    store.transaction(limit(pages)).await.unwrap();
    let large = || vec![NewEvent::new("t", vec![7_u8; 100_000]); 3];
    let error = store.publish(large()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("no space"), "{error}");
    assert_eq!(store.census().await.unwrap().events, 1, "nothing half-written");
    store.transaction(limit(1 << 20)).await.unwrap();
    assert!(store.publish(large()).await.unwrap().iter().all(Result::is_ok));
    assert_eq!(store.claim(want(9)).await.unwrap().len(), 4);
}

/// The writer's statements that SQLite compiled again, and how often.
async fn compiled_again(store: &SqliteStore) -> Vec<(String, i32)> {
    let look = |conn: &Connection| {
        let mut found = Vec::new();
        // SAFETY: the connection is ours while the closure runs, and each pointer is to a statement that lives in
        // its cache.
        unsafe {
            let mut statement = ffi::sqlite3_next_stmt(conn.handle(), std::ptr::null_mut());
            while !statement.is_null() {
                let count = ffi::sqlite3_stmt_status(statement, ffi::SQLITE_STMTSTATUS_REPREPARE, 0);
                if count > 0 {
                    let sql = std::ffi::CStr::from_ptr(ffi::sqlite3_sql(statement));
                    found.push((sql.to_string_lossy().into_owned(), count));
                }
                statement = ffi::sqlite3_next_stmt(conn.handle(), statement);
            }
        }
        Ok(found)
    };
    store.transaction(look).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_is_compiled_again_for_other_values() {
    let scene = Scene::new();
    let store = scene.open().await;
    for round in 0..20 {
        let tagged = NewEvent::new("t", "{}").tags(["a", "b"]);
        let grouped = event().group(format!("g{}", round % 3));
        let delayed = event().delay(Duration::from_millis(1));
        for answer in store.publish(vec![tagged.clone(), tagged, event(), grouped, delayed]).await.unwrap() {
            answer.unwrap();
        }
        let by_tag = Claim { tags: Some(vec!["a".into()]), audit: true, ..want(1) };
        let tagged = store.claim(by_tag).await.unwrap();
        let holder = crate::values::Holder { id: tagged[0].id, worker: "w".into(), lease: Some(tagged[0].token) };
        let lease = crate::values::HeartbeatLease::For(Duration::from_secs(round + 1));
        let heartbeat = crate::values::Heartbeat { holder: holder.clone(), lease };
        Attempts::heartbeat(&store, vec![heartbeat]).await.unwrap().remove(0).unwrap();
        let report = crate::values::Report {
            holder,
            outcome: if round % 2 == 0 {
                tidegate_core::AttemptOutcome::Completed
            } else {
                tidegate_core::AttemptOutcome::Failed
            },
            status_code: Some(200),
            execution_time_ms: Some(round as i64),
            error_message: None,
        };
        store.report(vec![report]).await.unwrap().remove(0).unwrap();
        let plain = store.claim(want(2 + round as usize)).await.unwrap();
        let (given_back, ended) = plain.split_at(1);
        let requeue = |entry: &Claimed| Requeue {
            id: entry.id,
            token: entry.token,
            when: crate::values::RequeueAt::Now,
            counts: true,
            aside: false,
            error: None,
            attempt: None,
        };
        store.requeue(given_back.iter().map(requeue).collect()).await.unwrap();
        store.finalize(ended.iter().map(done).collect()).await.unwrap();
        store.maintain().await.unwrap();
    }
    assert_eq!(compiled_again(&store).await, []);
}

/// Recorded stretches of a lane or a worker are removed with their entries, although older entries stay.
#[tokio::test]
async fn retention_forgets_where_entries_were() {
    let scene = Scene::new();
    let store = scene.open().await;
    let stretches = || {
        let count = |table: &str| scene.count(&format!("SELECT count(*) FROM tidegate_{table}"));
        (count("log_lanes"), count("log_workers"))
    };
    store.publish((0..320).map(|_| event()).collect()).await.unwrap();
    let claimed = store.claim(want(320)).await.unwrap();
    let mut ends: Vec<Finalize> = claimed.iter().map(done).collect();
    ends[0].end = End::Failed;
    assert!(store.finalize(ends).await.unwrap().iter().all(Result::is_ok));
    store.maintain().await.unwrap();
    assert_eq!(stretches(), (12, 12));
    let old = crate::Retention { log: Some(Duration::ZERO), batch: 100, ..crate::Retention::default() };
    while store.retain(old).await.unwrap().entries > 0 {}
    assert_eq!(scene.count("SELECT count(*) FROM tidegate_event_log"), 1);
    assert_eq!(stretches(), (1, 1));
    store.close().await;
}
