//! No event is missed and none counted twice: late commits, crashes of readers, another cluster.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::projection::Documents;
use tidegate::{EntryId, Error, ErrorKind, EventLogProjectionBuilder, EventQueue, NewEvent, Projection, QueuedEvent};

use crate::databases::{Place, on_each_database};
use crate::support::soon;

const WRITERS: usize = 16;
const EVENTS: usize = 1_600;

/// Which entries a document has seen, in order.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Seen(Vec<i64>);

async fn seen_by(queue: &EventQueue, name: &str) -> Projection<Documents<Seen>> {
    EventLogProjectionBuilder::new(name)
        .batch_size(7)
        .reader_lease(Duration::from_millis(50))
        .poll_interval(Duration::from_millis(2))
        .documents::<Seen>()
        .on::<u64, _, _>(
            "counted",
            |event| format!("{}", event.data % 10),
            |seen, event| {
                let mut seen: Seen = seen.unwrap_or_default();
                seen.0.push(event.id.get());
                Some(seen)
            },
        )
        .open(queue)
        .await
        .unwrap()
}

/// Everything seen, with repeats.
async fn all(projection: &Projection<Documents<Seen>>) -> Vec<i64> {
    let documents = projection.list("", None, 100).await.unwrap();
    let mut all: Vec<i64> = documents.into_iter().flat_map(|(_, seen)| seen.0).collect();
    all.sort_unstable();
    all
}

async fn claimed(queue: &EventQueue, count: usize) -> Vec<QueuedEvent> {
    let events = (0..count).map(|n| NewEvent::new("counted", n.to_string())).collect();
    for answer in queue.publish_many(events).await {
        answer.unwrap();
    }
    let mut held = Vec::new();
    while held.len() < count {
        held.extend(queue.poll_many(count - held.len()).await.unwrap());
    }
    held.sort_by_key(|event| event.id);
    held
}

/// Ends entries in transactions of random length.
enum Writer {
    Sqlite(EventQueue),
    Postgres(EventQueue, Box<tokio_postgres::Client>),
}

async fn client(place: &Place) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&place.address(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Writer {
    async fn new(place: &Place, queue: &EventQueue) -> Self {
        match place {
            Place::Sqlite(_) => Self::Sqlite(queue.clone()),
            Place::Postgres(_) => Self::Postgres(queue.clone(), Box::new(client(place).await)),
        }
    }

    /// Ends these in one transaction, which is rolled back at random. Returns those that ended.
    async fn end(&mut self, events: Vec<QueuedEvent>) -> Vec<EntryId> {
        let ids: Vec<EntryId> = events.iter().map(|event| event.id).collect();
        let rolled_back = rand::random_ratio(1, 5);
        let none: [&str; 0] = [];
        match self {
            Self::Sqlite(queue) => {
                let outcome = queue.transaction(move |tx| {
                    for event in &events {
                        tx.finalize(event, none)?;
                    }
                    if rolled_back { Err(Error::new(ErrorKind::Conflict, "changed my mind")) } else { Ok(()) }
                });
                assert_eq!(outcome.await.is_err(), rolled_back);
            }
            Self::Postgres(queue, client) => {
                let mut tx = client.transaction().await.unwrap();
                for event in &events {
                    queue.finalize_in(&mut tx, event, none).await.unwrap();
                    let nap = f64::from(rand::random_range(0..20_u32)) * 0.001;
                    tx.query("SELECT pg_sleep($1)", &[&nap]).await.unwrap();
                }
                if rolled_back { tx.rollback().await.unwrap() } else { tx.commit().await.unwrap() }
            }
        }
        if rolled_back { Vec::new() } else { ids }
    }
}

/// A reader that polls for `id > last`, and so misses late commits.
struct Naive {
    place: NaiveConnection,
    last: i64,
    seen: BTreeSet<i64>,
}

enum NaiveConnection {
    Sqlite(rusqlite::Connection),
    Postgres(tokio_postgres::Client),
}

impl Naive {
    async fn new(place: &Place) -> Self {
        let place = match place {
            Place::Sqlite(folder) => {
                NaiveConnection::Sqlite(rusqlite::Connection::open(folder.path().join("queue.db")).unwrap())
            }
            Place::Postgres(_) => NaiveConnection::Postgres(client(place).await),
        };
        Self { place, last: 0, seen: BTreeSet::new() }
    }

    async fn read(&mut self) {
        let ids: Vec<i64> = match &self.place {
            NaiveConnection::Sqlite(connection) => {
                let mut sql =
                    connection.prepare("SELECT id FROM tidegate_event_log WHERE id > ?1 ORDER BY id").unwrap();
                sql.query_map([self.last], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
            }
            NaiveConnection::Postgres(client) => {
                let sql = "SELECT id FROM tidegate.event_log WHERE id > $1 ORDER BY id";
                client.query(sql, &[&self.last]).await.unwrap().iter().map(|row| row.get(0)).collect()
            }
        };
        self.last = ids.last().copied().unwrap_or(self.last);
        self.seen.extend(ids);
    }
}

/// Runs a reader that is cut off again and again at a random moment. Returns how often that was.
async fn crash_often(place_queue: EventQueue, done: Arc<AtomicBool>) -> usize {
    let mut crashes = 0;
    while !done.load(Ordering::SeqCst) {
        let projection = seen_by(&place_queue, "seen").await;
        let life = Duration::from_micros(rand::random_range(500..80_000));
        let _ = tokio::time::timeout(life, projection.run(std::future::pending())).await;
        crashes += 1;
    }
    crashes
}

on_each_database! {
    async fn none_is_missed_and_none_counted_twice(place) {
        let queue = place.open().await;
        let mut events = claimed(&queue, EVENTS).await;
        let mut naive = Naive::new(place).await;
        let done = Arc::new(AtomicBool::new(false));
        let reader = tokio::spawn(crash_often(queue.clone(), Arc::clone(&done)));

        // One in the middle ends first, and the naive reader reads it at once.
        let early = events.remove(EVENTS / 2);
        let mut expected: BTreeSet<i64> = BTreeSet::from([early.id.get()]);
        early.complete().await.unwrap();
        naive.read().await;

        let mut writers = tokio::task::JoinSet::new();
        let mut shares: Vec<Vec<QueuedEvent>> = (0..WRITERS).map(|_| Vec::new()).collect();
        for (n, event) in events.into_iter().enumerate() {
            shares[n % WRITERS].push(event);
        }
        for mut share in shares {
            let mut writer = Writer::new(place, &queue).await;
            writers.spawn(async move {
                let mut ended = Vec::new();
                while !share.is_empty() {
                    let some = share.len().min(rand::random_range(1..6));
                    ended.extend(writer.end(share.drain(..some).collect()).await);
                }
                ended
            });
        }
        while let Some(ended) = writers.join_next().await {
            expected.extend(ended.unwrap().iter().map(|id| id.get()));
            naive.read().await;
        }
        let meanwhile = seen_by(&queue, "seen").await.status().await.unwrap().events;
        done.store(true, Ordering::SeqCst);
        let crashes = soon("the last crash", reader).await.unwrap();
        let projection = seen_by(&queue, "seen").await;
        soon("the rest", projection.catch_up()).await.unwrap();

        assert!(expected.len() > EVENTS / 2 && expected.len() < EVENTS, "some were rolled back: {}", expected.len());
        assert!(meanwhile > 0, "it read while others wrote");
        assert!(crashes > 2, "the reader crashed {crashes} times");
        let seen = all(&projection).await;
        let expected: Vec<i64> = expected.into_iter().collect();
        assert_eq!(seen, expected, "each once");
        assert_eq!(projection.status().await.unwrap().events, expected.len() as u64);
        assert!(naive.seen.len() < expected.len(), "a reader of `id > last` misses some: {}", naive.seen.len());

        let again = seen_by(&queue, "again").await;
        soon("a rebuild", again.catch_up()).await.unwrap();
        assert_eq!(all(&again).await, expected);
        queue.close().await;
    }
}

/// An open transaction with a smaller transaction id and a smaller entry id commits after later ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_commit_is_waited_for() {
    let place = Place::postgres();
    let queue = place.open().await;
    let events = claimed(&queue, 3).await;
    let none: [&str; 0] = [];
    let mut late = client(&place).await;
    let mut tx = late.transaction().await.unwrap();
    queue.finalize_in(&mut tx, &events[0], none).await.unwrap();
    let mut naive = Naive::new(&place).await;
    let ids: Vec<i64> = events.iter().map(|event| event.id.get()).collect();
    let mut events = events.into_iter();
    let held = events.next().unwrap();
    for event in events {
        event.complete().await.unwrap();
    }
    naive.read().await;
    let projection = seen_by(&queue, "seen").await;
    let passed = tokio::time::timeout(Duration::from_millis(100), projection.run(std::future::pending())).await;
    assert!(passed.is_err());
    assert!(all(&projection).await.is_empty(), "it waits for the open transaction");
    let lag = projection.lag().await.unwrap();
    assert_eq!(lag.rows, 2);
    assert!(lag.held_by.is_some_and(|holder| holder.pid.is_some()));
    tx.commit().await.unwrap();
    drop(held);
    soon("the rest", projection.catch_up()).await.unwrap();
    assert_eq!(all(&projection).await, ids);
    naive.read().await;
    assert_eq!(naive.seen.len(), 2, "the naive reader has missed the first");
    queue.close().await;
}

/// A dump restored into a cluster that counts transactions from the beginning goes on without a gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_in_a_new_cluster_goes_on_without_a_gap() {
    let place = Place::postgres();
    let burn = "DO $$ BEGIN FOR i IN 1..4000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";
    client(&place).await.batch_execute(burn).await.unwrap();
    let queue = place.open().await;
    let projection = seen_by(&queue, "seen").await;
    let mut events = claimed(&queue, 60).await;
    let unread = events.split_off(40);
    let mut ids: Vec<i64> = unread.iter().chain(&events).map(|event| event.id.get()).collect();
    ids.sort_unstable();
    complete(&queue, events).await;
    soon("the first part", projection.catch_up()).await.unwrap();
    let before = projection.status().await.unwrap().position;
    complete(&queue, unread).await;
    queue.close().await;

    let restored = tokio::task::spawn_blocking({
        let from = place.address();
        move || restore(&from)
    });
    let (server, url) = restored.await.unwrap();
    let (fresh, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let behind = "SELECT max(xid::text::bigint) > pg_current_xact_id()::text::bigint FROM tidegate.event_log";
    assert!(fresh.query_one(behind, &[]).await.unwrap().get::<_, bool>(0), "the new cluster counts from the beginning");

    let strict = EventQueue::builder().migrate(false).open(&url).await;
    assert_eq!(strict.unwrap_err().kind(), ErrorKind::Schema, "without migrations it is refused");
    for round in 0..2 {
        let queue = EventQueue::open(&url).await.unwrap();
        let projection = seen_by(&queue, "seen").await;
        let more = claimed(&queue, 30).await;
        ids.extend(more.iter().map(|event| event.id.get()));
        complete(&queue, more).await;
        soon("the rest", projection.catch_up()).await.unwrap();
        assert_eq!(all(&projection).await, ids, "round {round}");
        assert!(projection.status().await.unwrap().position > before);
        let rebuilt = seen_by(&queue, &format!("again{round}")).await;
        soon("a rebuild", rebuilt.catch_up()).await.unwrap();
        assert_eq!(all(&rebuilt).await, ids);
        queue.close().await;
    }
    drop(fresh);
    tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
}

/// The same after retention has emptied the log: readers and counts keep their positions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_log_in_a_new_cluster_goes_on_after_what_was_read() {
    let place = Place::postgres();
    let queue = place.open().await;
    let projection = seen_by(&queue, "seen").await;
    let events = claimed(&queue, 10).await;
    let mut ids: Vec<i64> = events.iter().map(|event| event.id.get()).collect();
    complete(&queue, events).await;
    soon("the first part", projection.catch_up()).await.unwrap();
    queue.close().await;
    // This looks like a cluster whose transaction ids are a million behind those stored.
    client(&place)
        .await
        .batch_execute(
            "DELETE FROM tidegate.event_log;
             UPDATE tidegate.projections SET xid = (xid::text::bigint + 1000000)::text::xid8;
             UPDATE tidegate.log_counts SET xid = (xid::text::bigint + 2000000)::text::xid8, counts = '{10,0,0,0}'",
        )
        .await
        .unwrap();
    for round in 0..2 {
        let queue = place.open().await;
        let projection = seen_by(&queue, "seen").await;
        let more = claimed(&queue, 10).await;
        ids.extend(more.iter().map(|event| event.id.get()));
        complete(&queue, more).await;
        soon("the rest", projection.catch_up()).await.unwrap();
        assert_eq!(all(&projection).await, ids, "round {round}");
        queue.close().await;
    }
    let counted = "SELECT c.counts[1] + (SELECT count(*) FROM tidegate.event_log g WHERE g.xid >= c.xid)
                   FROM tidegate.log_counts c";
    let counted: i64 = client(&place).await.query_one(counted, &[]).await.unwrap().get(0);
    assert_eq!(counted, 30, "ten that retention removed, and twenty since");
}

async fn complete(queue: &EventQueue, events: Vec<QueuedEvent>) {
    for answer in queue.finalize_many(events).await {
        answer.unwrap();
    }
}

/// Dumps the database and restores it into a server of its own.
fn restore(from: &str) -> (tidegate_testing::PgServer, String) {
    let settings = tidegate_testing::PgSettings { fsync: false, ..tidegate_testing::PgSettings::default() };
    let server = tidegate_testing::PgServer::start(settings).unwrap();
    let url = server.create_database();
    let dump = std::process::Command::new(server.program("pg_dump")).arg(from).output().unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &dump.stdout).unwrap();
    let mut psql = std::process::Command::new(server.program("psql"));
    let output = psql.args(["-q", "-v", "ON_ERROR_STOP=1", "-f"]).arg(file.path()).arg(&url).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (server, url)
}
