//! Two servers on one database: what is changed on one node holds for the very next request on the other.

use reqwest::Method;
use serde_json::{Value, json};
use tidegate::{EventQueue, Timestamp};
use tidegate_server::{Handle, Keyring, Options, Scope, Server};

use crate::scene::{Answer, Scene, on_both, send, shared_secrets};

/// How often a case is repeated: nothing here may depend on how much time has passed.
const ROUNDS: u32 = 10;
/// The type of the gateway's events.
const GATEWAY_TYPE: &str = "shop:orders:order:created";

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
        if scene.postgres_address().is_some() {
            options.gateway.secrets = shared_secrets();
        }
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

/// Publishes to the gateway of the other node, and returns the answer.
async fn event_there(other: &Node, scene: &Scene, key: &str, body: Value) -> Answer {
    other.call(scene, key, Method::POST, "/api/events", body).await
}

/// Queues of the entries that an event on the other node is made into.
async fn queues_there(other: &Node, scene: &Scene, key: &str) -> Vec<String> {
    let body = json!({ "type": GATEWAY_TYPE, "source": "/x", "data": { "n": 1 } });
    let stored = event_there(other, scene, key, body).await.expect(201);
    let entries = stored["entries"].as_array().unwrap().iter();
    entries.map(|entry| entry["queue"].as_str().unwrap().to_owned()).collect()
}

async fn a_changed_subscription_counts_for_the_next_event(mut scene: Scene) {
    let other = Node::beside(&scene).await;
    let key = Keyring::new(scene.queue.clone()).create("k", &[Scope::Admin], None).await.unwrap().secret;
    scene.with_key(&key);
    scene.put("/queues/a", json!({})).await.expect(200);
    scene.put("/queues/b", json!({})).await.expect(200);
    for round in 0..ROUNDS {
        let body = |target: &str| {
            json!({
                "code": format!("s{round}"), "name": "n", "target": target,
                "eventTypes": [{ "eventTypeCode": GATEWAY_TYPE }],
            })
        };
        let made = scene.post("/api/subscriptions", body("queue:a")).await.expect(201);
        let path = format!("/api/subscriptions/{}", made["id"].as_str().unwrap());
        assert_eq!(queues_there(&other, &scene, &key).await, ["a"], "created, round {round}");
        scene.put(&path, body("queue:b")).await.expect(200);
        assert_eq!(queues_there(&other, &scene, &key).await, ["b"], "changed, round {round}");
        scene.post(&format!("{path}/pause"), json!({})).await.expect(200);
        assert_eq!(queues_there(&other, &scene, &key).await, [""; 0], "paused, round {round}");
        scene.post(&format!("{path}/resume"), json!({})).await.expect(200);
        assert_eq!(queues_there(&other, &scene, &key).await, ["b"], "resumed, round {round}");
        send(scene.request(Method::DELETE, &path)).await.expect(204);
        assert_eq!(queues_there(&other, &scene, &key).await, [""; 0], "deleted, round {round}");
    }
    other.close().await;
    scene.close().await;
}

async fn a_changed_type_counts_for_the_next_event(mut scene: Scene) {
    let other = Node::beside(&scene).await;
    let key = Keyring::new(scene.queue.clone()).create("k", &[Scope::Admin], None).await.unwrap().secret;
    scene.with_key(&key);
    for round in 0..ROUNDS {
        let code = format!("shop:orders:order:r{round}");
        let body = json!({ "type": code, "source": "/x", "data": { "n": 1 } });
        let status = async || event_there(&other, &scene, &key, body.clone()).await.status.as_u16();
        assert_eq!(status().await, 201, "not registered");
        let made = scene.post("/api/event-types", json!({ "code": code, "name": "n" })).await.expect(201);
        let path = format!("/api/event-types/{}", made["id"].as_str().unwrap());
        let version = |number: &str, kind: &str| {
            let schema = json!({ "type": "object", "properties": { "n": { "type": kind } } });
            json!({ "version": number, "mimeType": "application/json", "schemaType": "JSON_SCHEMA", "schema": schema })
        };
        scene.post(&format!("{path}/versions"), version("1.0", "string")).await.expect(201);
        assert_eq!(status().await, 201, "no version is in use");
        scene.post(&format!("{path}/versions/1.0/finalise"), json!({})).await.expect(200);
        assert_eq!(status().await, 422, "it must be a string, round {round}");
        scene.post(&format!("{path}/versions"), version("2.0", "integer")).await.expect(201);
        scene.post(&format!("{path}/versions/2.0/finalise"), json!({})).await.expect(200);
        assert_eq!(status().await, 201, "an integer, round {round}");
        scene.post(&format!("{path}/archive"), json!({})).await.expect(200);
        assert_eq!(status().await, 422, "archived, round {round}");
    }
    other.close().await;
    scene.close().await;
}

/// While another node changes something a hundred times a second, every event is stored once.
async fn a_flood_of_changes_does_not_stop_events(mut scene: Scene) {
    let other = Node::beside(&scene).await;
    let key = Keyring::new(scene.queue.clone()).create("k", &[Scope::Admin], None).await.unwrap().secret;
    scene.with_key(&key);
    let done = std::sync::atomic::AtomicBool::new(false);
    let changing = async {
        let mut every = tokio::time::interval(std::time::Duration::from_millis(10));
        for number in 0..200 {
            every.tick().await;
            let body = json!({
                "code": format!("s{number}"), "name": "n", "target": "queue:default",
                "eventTypes": [{ "eventTypeCode": "a:*:c:d" }],
            });
            scene.post("/api/subscriptions", body).await.expect(201);
        }
        done.store(true, std::sync::atomic::Ordering::SeqCst);
    };
    let publishing = async |number: usize| {
        let mut stored = 0;
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            let id = format!("{number}-{stored}");
            let body = json!({ "type": GATEWAY_TYPE, "source": "/x", "deduplicationId": id, "data": stored });
            event_there(&other, &scene, &key, body).await.expect(201);
            stored += 1;
        }
        stored
    };
    let ((), one, two) = tokio::join!(changing, publishing(1), publishing(2));
    assert!(one > 20 && two > 20, "{one} and {two} events while settings were changed 200 times");
    other.close().await;
    scene.close().await;
}

/// The same event reaches two nodes at once: one stores it, and both answer with it.
async fn an_event_on_both_nodes_at_once_is_stored_once(mut scene: Scene) {
    let other = Node::beside(&scene).await;
    let key = Keyring::new(scene.queue.clone()).create("k", &[Scope::Admin], None).await.unwrap().secret;
    scene.with_key(&key);
    let body = json!({
        "code": "s", "name": "n", "target": "queue:default", "eventTypes": [{ "eventTypeCode": GATEWAY_TYPE }],
    });
    scene.post("/api/subscriptions", body).await.expect(201);
    for round in 0..20 {
        let body = json!({
            "type": GATEWAY_TYPE, "source": "/x", "deduplicationId": format!("d{round}"), "data": round,
        });
        let here = (0..3).map(|_| scene.post("/api/events", body.clone()));
        let there = (0..3).map(|_| event_there(&other, &scene, &key, body.clone()));
        let (here, there) = tokio::join!(futures_util::future::join_all(here), futures_util::future::join_all(there));
        let answers: Vec<Answer> = here.into_iter().chain(there).collect();
        let new = answers.iter().filter(|answer| answer.status.as_u16() == 201).count();
        assert_eq!(new, 1, "round {round}: {:?}", answers.iter().map(|answer| answer.status).collect::<Vec<_>>());
        let first = answers[0].json();
        for answer in &answers {
            let shown = answer.json();
            assert_eq!((&shown["id"], &shown["entries"]), (&first["id"], &first["entries"]), "round {round}");
        }
    }
    assert_eq!(scene.get("/events?limit=1").await.expect(200)["total"], 20);
    other.close().await;
    scene.close().await;
}

on_both!(with keys:
    a_changed_subscription_counts_for_the_next_event,
    a_changed_type_counts_for_the_next_event,
    a_flood_of_changes_does_not_stop_events,
    an_event_on_both_nodes_at_once_is_stored_once,
    a_revoked_key_is_refused_by_the_next_request,
    a_changed_setting_holds_for_the_next_claim,
    keys_that_are_changed_by_plain_sql_are_noticed,
    an_expired_key_is_refused,
);
