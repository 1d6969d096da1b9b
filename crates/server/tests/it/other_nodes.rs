//! Two servers on one database: what is changed on one node holds for the very next request on the other.

use reqwest::Method;
use serde_json::{Value, json};
use tidegate::{EventQueue, Timestamp};
use tidegate_server::{Handle, Keyring, Options, Scope, Server};

use crate::scene::{Answer, Scene, on_both, send};

/// How often a case is repeated: nothing here may depend on how much time has passed.
const ROUNDS: u32 = 10;

/// A second server on the database of a scene, with a store of its own as in another process.
struct Node {
    queue: EventQueue,
    server: Handle,
}

impl Node {
    async fn beside(scene: &Scene) -> Self {
        let file = || scene.sqlite_file().to_str().unwrap().to_owned();
        let database = scene.postgres_address().map_or_else(file, str::to_owned);
        let queue = EventQueue::open(&database).await.unwrap();
        let mut options = Options::default();
        options.auth.required = true;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server::new(queue.clone(), options).unwrap().start(listener).unwrap();
        Self { queue, server }
    }

    async fn call(&self, scene: &Scene, key: &str, method: Method, path: &str, body: Value) -> Answer {
        let url = format!("http://{}{path}", self.server.address());
        send(scene.http.request(method, url).bearer_auth(key).json(&body)).await
    }

    async fn status(&self, scene: &Scene, key: &str) -> u16 {
        self.call(scene, key, Method::GET, "/events", Value::Null).await.status.as_u16()
    }

    async fn close(self) {
        self.server.stop().await.unwrap();
        self.queue.close().await;
    }
}

async fn a_revoked_key_is_refused_by_the_next_request(scene: Scene) {
    let other = Node::beside(&scene).await;
    let keys = Keyring::new(scene.queue.clone());
    let lasting = keys.create("lasting", &[Scope::Read], None).await.unwrap().secret;
    for round in 0..ROUNDS {
        let key = keys.create("k", &[Scope::Read], None).await.unwrap();
        for _ in 0..3 {
            assert_eq!(other.status(&scene, &key.secret).await, 200, "a new key is known everywhere, round {round}");
        }
        keys.revoke(key.info.id).await.unwrap();
        assert_eq!(other.status(&scene, &key.secret).await, 401, "round {round}");
        assert_eq!(send(scene.request_with(&key.secret, Method::GET, "/events")).await.status.as_u16(), 401);
        assert_eq!(other.status(&scene, &lasting).await, 200);
    }
    other.close().await;
    scene.close().await;
}

async fn a_changed_setting_holds_for_the_next_claim(mut scene: Scene) {
    let other = Node::beside(&scene).await;
    let key = Keyring::new(scene.queue.clone()).create("k", &[Scope::Admin], None).await.unwrap().secret;
    scene.with_key(&key);
    for round in 1..=ROUNDS {
        let (seconds, retries) = (1_000 * round, 10 + round);
        let settings = json!({ "lease_seconds": seconds, "max_retries": retries });
        scene.put("/queues/default", settings).await.expect(200);
        let event = json!({ "title": "t", "tags": "a" });
        other.call(&scene, &key, Method::POST, "/events", event).await.expect(201);
        let path = "/events/subscribe?tags=a&worker_id=w";
        let taken = other.call(&scene, &key, Method::GET, path, Value::Null).await.expect(200);
        assert_eq!(taken["max_retries"], retries, "{taken}");
        let until: Timestamp = taken["lease_until"].as_str().unwrap().parse().unwrap();
        let lasts = until.duration_since(Timestamp::now()).as_secs();
        let expected = i64::from(seconds) - 500..=i64::from(seconds) + 60;
        assert!(expected.contains(&lasts), "a lease of {lasts} s, not {seconds}");
    }
    other.close().await;
    scene.close().await;
}

/// A restore may bring a key back, and take one away, without the store.
async fn keys_that_are_changed_by_plain_sql_are_noticed(scene: Scene) {
    let other = Node::beside(&scene).await;
    let key = Keyring::new(scene.queue.clone()).create("k", &[Scope::Read], None).await.unwrap().secret;
    let table = if scene.postgres_address().is_some() { "tidegate.resources" } else { "tidegate_resources" };
    let run = async |statements: Vec<String>| {
        let done = scene.queue.in_transaction(|tx| {
            let statements = statements.clone();
            Box::pin(async move {
                for statement in &statements {
                    tx.execute(statement, &[]).await?;
                }
                Ok(())
            })
        });
        done.await.unwrap();
    };
    let away = vec![format!("CREATE TABLE kept AS SELECT * FROM {table}"), format!("DELETE FROM {table}")];
    let back = vec![format!("INSERT INTO {table} SELECT * FROM kept"), "DROP TABLE kept".to_owned()];
    for _ in 0..3 {
        assert_eq!(other.status(&scene, &key).await, 200);
        run(away.clone()).await;
        for _ in 0..2 {
            assert_eq!(other.status(&scene, &key).await, 401);
        }
        run(back.clone()).await;
    }
    assert_eq!(other.status(&scene, &key).await, 200);
    other.close().await;
    scene.close().await;
}

async fn an_expired_key_is_refused(mut scene: Scene) {
    let keys = Keyring::new(scene.queue.clone());
    let until = async |moment: Timestamp| keys.create_until("k", &[Scope::Read], None, Some(moment)).await.unwrap();
    let hour = std::time::Duration::from_secs(3_600);
    let valid = until(Timestamp::now() + hour).await;
    scene.with_key(&valid.secret);
    scene.get("/events").await.expect(200);
    scene.with_key(until(Timestamp::now() - hour).await.secret);
    for _ in 0..2 {
        scene.get("/events").await.refused(401, "unauthorized");
    }
    assert_eq!(keys.list().await.unwrap()[0].expires_at, valid.info.expires_at);
    scene.close().await;
}

on_both!(with keys:
    a_revoked_key_is_refused_by_the_next_request,
    a_changed_setting_holds_for_the_next_claim,
    keys_that_are_changed_by_plain_sql_are_noticed,
    an_expired_key_is_refused,
);
