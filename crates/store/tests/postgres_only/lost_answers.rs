//! Answers that are lost on the way: a proxy between a store and the server drops a connection at its COMMIT.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_store::Store;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::scene::*;

/// Passes bytes on both ways. Once armed, the next COMMIT is not passed on: the server loses its client at once, while the
/// client hears of it only when told.
#[derive(Default)]
struct Proxy {
    armed: AtomicBool,
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
        while let Ok(length) = from_client.read(&mut piece).await {
            let sent = &piece[..length];
            let commits = sent.windows(7).any(|bytes| bytes == b"COMMIT\0");
            if commits && self.armed.swap(false, Ordering::SeqCst) {
                drop(to_server);
                // The client's side stays open until then.
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

/// The claim did not happen, and a later one of the same worker got the same token: that one is not taken for the first.
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
    tokio::time::timeout(PATIENCE, proxy.caught.notified()).await.expect("the claim is to be committed");
    let mut second = Vec::new();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while second.is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "the server has rolled the first claim back");
        second = claim(&near, 1).await;
    }
    assert_eq!((ids(&second), second[0].token.0), (published, 1), "the same token as the lost claim's");
    proxy.let_go.notify_one();
    assert_eq!(first.await.unwrap(), [], "one lease, one holder");
    complete(&near, &second).await;
    far.close().await;
}
