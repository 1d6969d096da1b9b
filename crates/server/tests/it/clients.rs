//! Clients over HTTP: which client owns a queue, what an unscoped caller publishes for it, and which workers it sees.

use reqwest::Method;
use serde_json::{Value, json};
use tidegate::Tsid;
use tidegate_server::{Keyring, Scope};

use crate::scene::{Scene, on_both, send};

const ONE: &str = "0000000000001";
const TWO: &str = "0000000000002";

/// A key of each of two clients and one of no client.
struct Keys {
    one: String,
    two: String,
    unscoped: String,
}

async fn keys(scene: &Scene) -> Keys {
    let keys = Keyring::new(scene.queue.clone());
    let make = |name: &'static str, client: Option<i64>| {
        let keys = &keys;
        async move { keys.create(name, &[Scope::Admin], client.map(Tsid::from_i64)).await.unwrap().secret }
    };
    Keys { one: make("one", Some(1)).await, two: make("two", Some(2)).await, unscoped: make("all", None).await }
}

async fn what_an_unscoped_caller_publishes_for_a_client_is_the_clients(mut scene: Scene) {
    let keys = keys(&scene).await;
    scene.with_key(&keys.unscoped);
    scene.put(&format!("/queues/mail?client={ONE}"), json!({ "max_retries": 7 })).await.expect(200);
    let body = json!({ "title": "x", "tags": "a", "queue": "mail", "client": ONE });
    let event = scene.post("/events", body.clone()).await.expect(201);
    assert_eq!((&event["queue"], &event["client"]), (&json!("mail"), &json!(ONE)));
    assert_eq!(event["max_retries"], 7, "the settings of the client's own queue apply");
    let id = event["id"].as_i64().unwrap();

    scene.with_key(&keys.two);
    scene.get(&format!("/events/{id}")).await.refused(404, "not_found");
    scene.post("/events", body.clone()).await.refused(403, "forbidden");
    scene.get(&format!("/queues/mail?client={ONE}")).await.refused(403, "forbidden");
    scene.get("/queues/mail").await.refused(404, "not_found");

    scene.with_key(&keys.one);
    assert_eq!(scene.get("/events").await.expect(200)["total"], 1);
    let taken = scene.get("/events/subscribe?queue=mail&worker_id=w").await.expect(200);
    assert_eq!(taken["id"], id);
    scene.post(&format!("/events/{id}/complete"), json!({ "worker_id": "w" })).await.expect(200);
    assert_eq!(scene.status(id).await, "COMPLETED");

    scene.with_key(&keys.unscoped);
    scene.post("/events", body).await.expect(201);
    assert_eq!(
        scene.get("/events/subscribe?queue=mail&worker_id=w").await.status.as_u16(),
        404,
        "no queue without a client has that name"
    );
    let taken = scene.get(&format!("/events/subscribe?queue=mail&client={ONE}&worker_id=w")).await.expect(200);
    let claim = json!({ "queue": "mail", "client": ONE, "worker_id": "w" });
    assert_eq!(scene.post("/events/claim", claim).await.expect(200)["events"], json!([]));
    scene.post(&format!("/events/{}/complete", taken["id"]), json!({ "worker_id": "w" })).await.expect(200);
    scene.get("/queues/mail?client=nobody").await.refused(400, "invalid_request");
    scene.get("/queues/mail?client=0000000000000").await.refused(400, "invalid_request");
    scene.close().await;
}

async fn each_client_sees_its_own_worker_of_a_name(mut scene: Scene) {
    let keys = keys(&scene).await;
    for key in [&keys.one, &keys.two] {
        scene.with_key(key);
        scene.publish("a").await;
        scene.take("a", "same:1").await;
    }
    for (key, client) in [(&keys.one, ONE), (&keys.two, TWO)] {
        scene.with_key(key);
        let workers = scene.get("/workers").await.expect(200);
        let seen: Vec<&Value> = workers["workers"].as_array().unwrap().iter().map(|worker| &worker["client"]).collect();
        assert_eq!(seen, [client], "{workers}");
        assert_eq!(workers["workers"][0]["held"], 1, "{workers}");
    }
    scene.with_key(&keys.unscoped);
    assert_eq!(scene.get("/workers").await.expect(200)["workers"].as_array().unwrap().len(), 2);
    scene.close().await;
}

async fn two_puts_of_a_queue_at_once_both_count(mut scene: Scene) {
    let keys = keys(&scene).await;
    scene.with_key(&keys.one);
    for round in 1..=20 {
        let path = format!("/queues/q{round}");
        let (lease, limit) = (json!({ "lease_seconds": round }), json!({ "max_retries": round }));
        let put = |body: Value| send(scene.request(Method::PUT, &path).json(&body));
        let (one, two) = tokio::join!(put(lease), put(limit));
        one.expect(200);
        two.expect(200);
        let queue = scene.get(&path).await.expect(200);
        assert_eq!((&queue["lease_seconds"], &queue["max_retries"]), (&json!(round), &json!(round)), "{queue}");
    }
    scene.close().await;
}

/// A cursor is opaque, and valid only for lists of the client that it was given to.
async fn a_cursor_belongs_to_its_client(mut scene: Scene) {
    let keys = keys(&scene).await;
    for key in [&keys.one, &keys.two] {
        scene.with_key(key);
        for _ in 0..4 {
            scene.publish("a").await;
        }
    }
    scene.with_key(&keys.one);
    let page = scene.get("/events?limit=2").await.expect(200);
    let cursor = page["next_cursor"].as_str().unwrap();
    assert!(cursor.len() > 16, "{cursor} is not opaque");
    let rest = scene.get(&format!("/events?limit=9&cursor={cursor}")).await.expect(200);
    assert_eq!(rest["events"].as_array().unwrap().len(), 2);
    for other in [&keys.two, &keys.unscoped] {
        scene.with_key(other);
        scene.get(&format!("/events?cursor={cursor}")).await.refused(400, "invalid_request");
    }
    scene.close().await;
}

on_both! {
    with keys:
    a_cursor_belongs_to_its_client,
    what_an_unscoped_caller_publishes_for_a_client_is_the_clients,
    each_client_sees_its_own_worker_of_a_name,
    two_puts_of_a_queue_at_once_both_count,
}
