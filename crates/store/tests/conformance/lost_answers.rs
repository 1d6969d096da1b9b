//! PostgreSQL connections that are lost after COMMIT was sent and before its answer came.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::{End, NewEvent, QueueName};
use tidegate_store::api::*;
use tidegate_store::postgres::{PostgresOptions, PostgresStore};
use tidegate_store::{
    Claim, Claimed, EntryPhase, ErrorKind, Family, Ingest, IngestAnswer, JobAttempt, LimitAsk, ManualAction, PoolKey,
    PutResource, Requeue, RequeueAt, Target,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// COMMIT as a query message of PostgreSQL's protocol.
const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";

/// A proxy between the store and the server. When `armed`, it forwards the next COMMIT, waits for the answer and, after
/// `hang_up`, closes the connection instead of forwarding the answer. With `swallows`, it does not forward the COMMIT
/// itself. `lost` counts the answers that were lost.
#[derive(Debug, Default)]
struct Wire {
    armed: AtomicBool,
    swallows: AtomicBool,
    lost: AtomicUsize,
    hang_up: Notify,
}

impl Wire {
    async fn serve(self: Arc<Self>, listener: TcpListener, server: String) {
        while let Ok((client, _)) = listener.accept().await {
            let (wire, server) = (Arc::clone(&self), server.clone());
            tokio::spawn(async move {
                if let Ok(server) = TcpStream::connect(server).await {
                    // When either side closes, so does the other.
                    let _ = wire.pass(client, server).await;
                }
            });
        }
    }

    async fn pass(&self, mut client: TcpStream, mut server: TcpStream) -> std::io::Result<()> {
        let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut losing = false;
        loop {
            tokio::select! {
                read = client.read(&mut up) => {
                    let sent = &up[..read?];
                    if sent.is_empty() {
                        return Ok(());
                    }
                    let commits = sent.windows(COMMIT.len()).any(|part| part == COMMIT);
                    losing |= commits && self.armed.swap(false, Ordering::SeqCst);
                    if losing && self.swallows.load(Ordering::SeqCst) {
                        drop(server);
                        self.lost.fetch_add(1, Ordering::SeqCst);
                        self.hang_up.notified().await;
                        return Ok(());
                    }
                    server.write_all(sent).await?;
                }
                read = server.read(&mut down) => {
                    let answer = &down[..read?];
                    if answer.is_empty() {
                        return Ok(());
                    }
                    if losing {
                        self.lost.fetch_add(1, Ordering::SeqCst);
                        self.hang_up.notified().await;
                        return Ok(());
                    }
                    client.write_all(answer).await?;
                }
            }
        }
    }
}

struct Scene {
    url: String,
    wire: Arc<Wire>,
    store: PostgresStore,
}

impl Scene {
    async fn new() -> Self {
        let url = tokio::task::spawn_blocking(tidegate_testing::fresh_database).await.unwrap();
        let config: tokio_postgres::Config = url.parse().unwrap();
        let (host, port) = (config.get_hosts().first().cloned(), config.get_ports().first().copied().unwrap_or(5432));
        let Some(tokio_postgres::config::Host::Tcp(host)) = host else {
            panic!("the server is not reached by TCP: {url}")
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let through = url.replacen(&format!("{host}:{port}"), &listener.local_addr().unwrap().to_string(), 1);
        assert_ne!(through, url);
        let wire = Arc::new(Wire::default());
        tokio::spawn(Arc::clone(&wire).serve(listener, format!("{host}:{port}")));
        let store = PostgresStore::open(&through, PostgresOptions::default()).await.unwrap();
        Self { url, wire, store }
    }

    async fn leased(&self, count: usize) -> Vec<tidegate_core::EntryId> {
        self.store.publish(vec![NewEvent::new("t", "{}"); count]).await.unwrap();
        self.store.claim(claim(count)).await.unwrap().into_iter().map(|claimed| claimed.id).collect()
    }

    /// Makes the next COMMIT lose its answer, and its connection at once.
    fn lose_the_next_answer(&self) {
        self.wire.hang_up.notify_one();
        self.wire.armed.store(true, Ordering::SeqCst);
    }

    async fn end(self) {
        assert_eq!(self.wire.lost.load(Ordering::SeqCst), 1, "one answer was lost");
        self.store.close().await;
        let url = self.url;
        tokio::task::spawn_blocking(move || tidegate_testing::drop_database(&url)).await.unwrap().unwrap();
    }
}

fn claim(max: usize) -> Claim {
    Claim {
        queue: QueueName::default(),
        types: None,
        max,
        lease: Duration::from_secs(60),
        worker: "w".into(),
        quotas: BTreeMap::new(),
        tags: None,
        audit: true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_whose_answer_was_lost_is_ours() {
    let scene = Scene::new().await;
    let ids = scene.leased(3).await;
    scene.store.cancel(vec![ids[2]]).await.unwrap().remove(0).unwrap();
    scene.lose_the_next_answer();
    let answers = scene.store.cancel(ids.clone()).await.unwrap();
    assert!(answers[0].is_ok() && answers[1].is_ok(), "{answers:?}");
    assert!(answers[2].is_err(), "this one was cancelled before");
    for view in scene.store.entries(ids).await.unwrap() {
        assert!(matches!(view.unwrap().phase, EntryPhase::Ended { end: End::Cancelled, .. }));
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_whose_answer_was_lost_is_ours_and_happened_once() {
    let scene = Scene::new().await;
    let ids = scene.leased(2).await;
    scene.lose_the_next_answer();
    let reset = |id| ManualAction { id, actor: None, reason: Some("by hand".into()) };
    let answers = scene.store.reset(ids.iter().copied().map(reset).collect()).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    for id in ids {
        let view = scene.store.entries(vec![id]).await.unwrap().remove(0).unwrap();
        assert!(matches!(view.phase, EntryPhase::Waiting { .. }), "{view:?}");
        assert_eq!(view.token.0, 2, "its token was raised once");
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_was_lost_is_ours() {
    let scene = Scene::new().await;
    scene.store.publish(vec![NewEvent::new("t", "{}")]).await.unwrap();
    let held = scene.store.claim(claim(1)).await.unwrap().remove(0);
    scene.lose_the_next_answer();
    scene.store.requeue(vec![release(&held)]).await.unwrap().remove(0).unwrap();
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_was_lost_is_not_called_fenced_when_the_entry_has_moved_on() {
    let scene = Scene::new().await;
    let other = PostgresStore::open(&scene.url, PostgresOptions::default()).await.unwrap();
    scene.store.publish(vec![NewEvent::new("t", "{}")]).await.unwrap();
    let held = scene.store.claim(claim(1)).await.unwrap().remove(0);
    scene.wire.armed.store(true, Ordering::SeqCst);
    let releasing = scene.store.requeue(vec![release(&held)]);
    let meanwhile = async {
        while scene.wire.lost.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let next = other.claim(claim(1)).await.unwrap().remove(0);
        assert_eq!((next.token.0, next.attempts), (2, 1), "the entry was released");
        scene.wire.hang_up.notify_one();
    };
    let (answers, ()) = tokio::join!(releasing, meanwhile);
    assert_eq!(answers.unwrap().remove(0).unwrap_err().kind(), ErrorKind::Indeterminate);
    other.close().await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_lost_is_not_taken_for_a_later_one_of_the_same_worker() {
    let scene = Scene::new().await;
    let other = PostgresStore::open(&scene.url, PostgresOptions::default()).await.unwrap();
    scene.store.publish(vec![NewEvent::new("t", "{}")]).await.unwrap();
    scene.wire.swallows.store(true, Ordering::SeqCst);
    scene.wire.armed.store(true, Ordering::SeqCst);
    let claiming = scene.store.claim(claim(1));
    let meanwhile = async {
        while scene.wire.lost.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The entry's row is unlocked once the server notices that the connection is gone.
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        let next = loop {
            if let Some(next) = other.claim(claim(1)).await.unwrap().pop() {
                break next;
            }
            assert!(std::time::Instant::now() < deadline, "the entry never became free");
        };
        scene.wire.hang_up.notify_one();
        next
    };
    let (lost, next) = tokio::join!(claiming, meanwhile);
    assert_eq!(next.token.0, 1, "the first claim never happened");
    assert!(lost.unwrap().is_empty(), "only one of the two holds it");
    other.close().await;
    scene.end().await;
}

/// The code of the new one is taken, and the version of the changed one is another, by the batch itself.
#[tokio::test(flavor = "multi_thread")]
async fn resources_whose_answer_was_lost_are_ours_and_written_once() {
    for swallows in [false, true] {
        let scene = Scene::new().await;
        let create = |code: &str| PutResource::Create {
            id: None,
            kind: "pool".into(),
            client: None,
            code: code.into(),
            body: "{}".into(),
        };
        let known = scene.store.put_resources(vec![create("known")]).await.unwrap().remove(0).unwrap();
        let before = scene.store.catalogue_version().await.unwrap();
        scene.wire.swallows.store(swallows, Ordering::SeqCst);
        scene.lose_the_next_answer();
        let (id, kind, expected) = (known.id, known.kind.clone(), Some(known.version));
        let change = PutResource::Change { id, kind, expected, body: "1".into() };
        let answers = scene.store.put_resources(vec![create("new"), change]).await.unwrap();
        let after = scene.store.catalogue_version().await.unwrap();
        for answer in answers {
            let written = answer.unwrap();
            assert_eq!(written.version, after.number);
            assert_eq!(scene.store.resource("pool", written.id).await.unwrap(), Some(written));
        }
        assert_eq!(after.number, before.number + 1);
        scene.wire.swallows.store(false, Ordering::SeqCst);
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ingest_whose_answer_was_lost_is_written_once() {
    let scene = Scene::new().await;
    let to = Target::new(QueueName::default());
    let item = |targets| Ingest::new(NewEvent::new("t", "{}"), targets);
    // Its lane exists, so that the next COMMIT is that of the ingest.
    scene.leased(1).await;
    scene.lose_the_next_answer();
    let batch = vec![item(vec![]), item(vec![to.clone(), to])];
    let IngestAnswer::Done(answers) = scene.store.ingest(batch, None).await.unwrap() else {
        panic!("no version was named")
    };
    let numbers: Vec<_> = answers.into_iter().flat_map(|answer| answer.unwrap().targets).collect();
    let claimed = scene.store.claim(claim(9)).await.unwrap();
    assert_eq!(claimed.iter().map(|held| held.id).collect::<Vec<_>>(), numbers);
    assert_eq!(scene.store.census().await.unwrap().events, 3);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_whose_answer_was_lost_is_recorded_once() {
    let scene = Scene::new().await;
    let jobs = scene.store.family(Family::Jobs);
    jobs.publish(vec![NewEvent::new("t", "{}")]).await.unwrap();
    let held = jobs.claim(Claim { audit: false, ..claim(1) }).await.unwrap().remove(0);
    scene.lose_the_next_answer();
    let retry = Requeue { counts: true, attempt: Some("1".into()), ..release(&held) };
    jobs.requeue(vec![retry]).await.unwrap().remove(0).unwrap();
    let recorded = jobs.job_attempts(held.id).await.unwrap();
    assert_eq!(recorded, [JobAttempt { generation: 1, attempt: 1, record: "1".into() }]);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_whose_answer_was_lost_are_granted_once() {
    let scene = Scene::new().await;
    let pool = PoolKey::default_of(None);
    let ask = |wanted| vec![LimitAsk { pool, concurrency: 10, in_use: 0, wanted, rate: None }];
    let hold = Duration::from_secs(60);
    scene.lose_the_next_answer();
    assert_eq!(scene.store.limits("a", ask(4), hold).await.unwrap()[0].slots, 4);
    assert_eq!(scene.store.limits("b", ask(9), hold).await.unwrap()[0].slots, 6);
    scene.end().await;
}

fn release(held: &Claimed) -> Requeue {
    Requeue {
        id: held.id,
        token: held.token,
        when: RequeueAt::Now,
        counts: false,
        aside: false,
        error: None,
        attempt: None,
    }
}
