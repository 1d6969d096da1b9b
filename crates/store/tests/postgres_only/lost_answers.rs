//! Lost answers: a proxy between a store and the server drops a connection at its COMMIT.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_store::api::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

use crate::scene::*;

/// The code of a cancel request, which follows the message's length.
const CANCEL_REQUEST: [u8; 4] = 80_877_102_u32.to_be_bytes();

/// Forwards bytes both ways, except cancel requests. When `armed`, the next COMMIT is not forwarded: the server loses
/// its client at once, the client notices only after `let_go`. A change of `hung_up` closes all client connections; the
/// server notices only after `let_go`.
#[derive(Default)]
struct Proxy {
    armed: AtomicBool,
    hung_up: watch::Sender<u32>,
    caught: Notify,
    let_go: Notify,
}

impl Proxy {
    async fn start(self: &Arc<Self>, server: &str) -> String {
        let config: tokio_postgres::Config = server.parse().unwrap();
        let target = config.get_ports()[0];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = self.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(proxy.clone().pass(client, target));
            }
        });
        format!("postgres://{}@127.0.0.1:{port}/{}", config.get_user().unwrap(), config.get_dbname().unwrap())
    }

    async fn pass(self: Arc<Self>, client: TcpStream, target: u16) {
        let server = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
        let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
            (client.into_split(), server.into_split());
        let answers = tokio::spawn(async move {
            let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
            to_client
        });
        let mut piece = vec![0; 1 << 16];
        let mut hung_up = self.hung_up.subscribe();
        loop {
            let length = tokio::select! {
                length = from_client.read(&mut piece) => length.unwrap_or(0),
                _ = hung_up.changed() => {
                    answers.abort();
                    drop(from_client);
                    // Keeps the server's side open.
                    return self.let_go.notified().await;
                }
            };
            let sent = &piece[..length];
            let commits = sent.windows(7).any(|bytes| bytes == b"COMMIT\0");
            if sent.get(4..8) == Some(&CANCEL_REQUEST) {
                return;
            }
            if commits && self.armed.swap(false, Ordering::SeqCst) {
                drop(to_server);
                // Keeps the client's side open.
                let _to_client = answers.await;
                self.caught.notify_one();
                self.let_go.notified().await;
                return;
            }
            if length == 0 || to_server.write_all(sent).await.is_err() {
                break;
            }
        }
        drop(to_server);
        let _ = answers.await;
    }
}

/// The first claim was rolled back, and a later one of the same worker got the same token. The store must not take the
/// later claim for the first one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_claim_that_was_lost_is_not_mistaken_for_a_later_one_of_the_same_worker() {
    let database = Database::new().await;
    let proxy = Arc::new(Proxy::default());
    let far = Arc::new(open_at(&proxy.start(&database.0).await).await);
    let near = database.open().await;
    let published = publish(&near, vec![event("t")]).await;
    proxy.armed.store(true, Ordering::SeqCst);
    let first = tokio::spawn({
        let far = far.clone();
        async move { claim(&far, 1).await }
    });
    tokio::time::timeout(PATIENCE, proxy.caught.notified()).await.expect("the claim reaches its COMMIT");
    let mut second = Vec::new();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while second.is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "the server did not roll the first claim back");
        second = claim(&near, 1).await;
    }
    assert_eq!((ids(&second), second[0].token.0), (published, 1), "the same token as the lost claim's");
    proxy.let_go.notify_one();
    assert_eq!(first.await.unwrap(), [], "one lease, one holder");
    complete(&near, &second).await;
    far.close().await;
}

/// The connection is lost while the server still works on the COMMIT. No later transaction has ended, so a snapshot
/// ends below the transaction's id; it must not be taken for one that never existed and run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_commit_that_still_runs_is_waited_for() {
    let database = Database::new().await;
    let proxy = Arc::new(Proxy::default());
    let far = Arc::new(open_at(&proxy.start(&database.0).await).await);
    let slow = "
        CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER wait_at_commit AFTER INSERT ON tidegate.event_queue
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_commit()";
    database.execute(slow).await;
    let gate = database.connect().await;
    gate.execute("SELECT pg_advisory_lock(4711)", &[]).await.unwrap();
    let published = tokio::spawn({
        let far = far.clone();
        async move { publish(&far, vec![event("t")]).await }
    });
    let waits = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND query = 'COMMIT' AND wait_event_type = 'Lock'";
    eventually("the COMMIT runs", async || gate.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 1).await;
    proxy.hung_up.send_modify(|times| *times += 1);
    // The commit was looked up; or the publish was run again, which the last assertion refuses.
    let asked = "SELECT count(*) FILTER (WHERE query LIKE '%pg_xact_status%' AND state = 'idle') > 0
                     OR count(*) FILTER (WHERE query = 'COMMIT' AND wait_event_type = 'Lock') > 1
                 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    eventually("the commit is looked up", async || gate.query_one(asked, &[]).await.unwrap().get(0)).await;
    gate.execute("SELECT pg_advisory_unlock(4711)", &[]).await.unwrap();
    let published = published.await.unwrap();
    let there = gate.query("SELECT id FROM tidegate.event_queue", &[]).await.unwrap();
    let there: Vec<i64> = there.iter().map(|row| row.get(0)).collect();
    assert_eq!(there, published.iter().map(|id| id.get()).collect::<Vec<_>>());
    proxy.let_go.notify_waiters();
    far.close().await;
}
