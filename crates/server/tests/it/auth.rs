//! API keys: which ones are accepted, what their scopes allow, and which client's events they show.

use reqwest::Method;
use serde_json::json;
use tidegate::Tsid;
use tidegate_server::{Keyring, Options, Scope, Server, ServerError};

use crate::scene::{Scene, send};

async fn guarded() -> Scene {
    let mut options = Options::default();
    options.auth.required = true;
    Scene::sqlite_with(options).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_key_does_what_its_scopes_say() {
    let mut scene = guarded().await;
    let keys = Keyring::new(scene.queue.clone());
    let event = json!({ "title": "t", "tags": "a" });
    let refused = scene.post("/events", event.clone()).await;
    refused.refused(401, "unauthorized");
    assert!(refused.headers["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
    for open in ["/livez", "/readyz", "/openapi.json"] {
        scene.get(open).await.expect(200);
    }
    let calls = [
        (Scope::Publish, Method::POST, "/events", 201),
        (Scope::Consume, Method::GET, "/events/subscribe?tags=none&worker_id=w", 204),
        (Scope::Read, Method::GET, "/events", 200),
        (Scope::Read, Method::GET, "/events/1", 200),
        (Scope::Read, Method::GET, "/events/1?include_logs=true", 200),
        (Scope::Read, Method::GET, "/events/1/why", 200),
        (Scope::Read, Method::GET, "/queues", 200),
        (Scope::Read, Method::GET, "/queues/default", 200),
        (Scope::Read, Method::GET, "/queues/default/metrics", 200),
        (Scope::Read, Method::GET, "/projections", 200),
        (Scope::Read, Method::GET, "/projections/none", 404),
        (Scope::Read, Method::GET, "/projections/none/key", 404),
        (Scope::Manage, Method::GET, "/workers", 200),
        (Scope::Admin, Method::POST, "/events/1/reset", 409),
    ];
    for granted in Scope::ALL {
        scene.with_key(keys.create("k", &[granted], None).await.unwrap().secret);
        for (needed, method, path, status) in calls.clone() {
            let answer = send(scene.request(method, path).json(&event)).await;
            let reads = granted == Scope::Manage && needed == Scope::Read;
            let expected = if granted == needed || granted == Scope::Admin || reads { status } else { 403 };
            assert_eq!(answer.status.as_u16(), expected, "{granted:?} {path}: {}", answer.text);
        }
    }
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_shown_once_and_can_be_revoked() {
    let mut scene = guarded().await;
    let keys = Keyring::new(scene.queue.clone());
    let key = keys.create("ci", &[Scope::Publish, Scope::Manage], None).await.unwrap();
    scene.with_key(&key.secret);
    scene.get("/events").await.expect(200);
    let listed = keys.list().await.unwrap();
    assert_eq!(
        (listed[0].name.as_str(), listed[0].scopes.as_slice()),
        ("ci", &["publish".to_owned(), "manage".into()][..])
    );
    assert!(!format!("{listed:?}").contains(&key.secret));

    let mut other = key.secret.clone();
    let last = if other.ends_with('A') { "B" } else { "A" };
    other.replace_range(other.len() - 1.., last);
    for bad in [other.as_str(), "tg_", "", "Bearer", "tg_nonsense", &"x".repeat(5000)] {
        let request = scene.http.get(format!("http://{}/events", scene.address())).bearer_auth(bad);
        send(request).await.refused(401, "unauthorized");
    }
    let basic = scene.http.get(format!("http://{}/events", scene.address())).basic_auth("u", Some(&key.secret));
    send(basic).await.refused(401, "unauthorized");

    keys.revoke(key.info.id).await.unwrap();
    scene.get("/events").await.refused(401, "unauthorized");
    assert!(keys.create("none", &[], None).await.is_err());
    scene.close().await;
}

/// Keys are cached after their first use; a revocation or a new key on this node takes effect at once all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_is_refused_by_the_next_request_and_a_new_one_accepted() {
    let mut scene = guarded().await;
    let keys = Keyring::new(scene.queue.clone());
    for round in 0..20 {
        let key = keys.create("k", &[Scope::Read], None).await.unwrap();
        scene.with_key(&key.secret);
        for _ in 0..2 {
            scene.get("/events").await.expect(200);
        }
        keys.revoke(key.info.id).await.unwrap();
        assert_eq!(scene.get("/events").await.status.as_u16(), 401, "round {round}");
    }
    scene.close().await;
}

/// Made-up keys do not evict known ones: a known key works beside any number of them, and each of them is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_made_up_keys_is_refused_and_holds_nobody_up() {
    let mut scene = guarded().await;
    let keys = Keyring::new(scene.queue.clone());
    scene.with_key(keys.create("k", &[Scope::Read], None).await.unwrap().secret);
    let made_up = |n: usize| {
        let request = scene.http.get(format!("http://{}/events", scene.address()));
        let key = format!("tg_{n:043}");
        async move { send(request.bearer_auth(key)).await.status.as_u16() }
    };
    for round in 0..4 {
        let flood = futures_util::future::join_all((0..500).map(|n| made_up(round * 500 + n)));
        let known = futures_util::future::join_all((0..20).map(|_| scene.get("/events")));
        let (flood, known) = tokio::join!(flood, known);
        assert!(flood.iter().all(|status| *status == 401), "{flood:?}");
        known.iter().for_each(|answer| drop(answer.expect(200)));
    }
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_sees_the_workers_of_its_own_queues_only() {
    let mut scene = guarded().await;
    let keys = Keyring::new(scene.queue.clone());
    let mut secrets = Vec::new();
    for n in 1..=2 {
        let secret = keys.create("k", &[Scope::Admin], Some(Tsid::from_i64(n))).await.unwrap().secret;
        scene.with_key(&secret);
        scene.publish("a").await;
        scene.take("a", &format!("worker-of-{n}")).await;
        secrets.push(secret);
    }
    for (n, secret) in secrets.iter().enumerate() {
        scene.with_key(secret);
        let answer = scene.get("/workers").await.expect(200);
        let names: Vec<&str> =
            answer["workers"].as_array().unwrap().iter().map(|worker| worker["worker_id"].as_str().unwrap()).collect();
        assert_eq!(names, [format!("worker-of-{}", n + 1)], "{answer}");
    }
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_see_only_what_is_theirs() {
    let mut scene = guarded().await;
    let keys = Keyring::new(scene.queue.clone());
    let (one, two) = (Tsid::from_i64(1), Tsid::from_i64(2));
    let key_of_one = keys.create("one", &[Scope::Admin], Some(one)).await.unwrap().secret;
    let key_of_two = keys.create("two", &[Scope::Admin], Some(two)).await.unwrap().secret;
    let unscoped = keys.create("all", &[Scope::Admin], None).await.unwrap().secret;

    scene.with_key(&key_of_one);
    let id = scene.publish("shared").await;
    let own = scene.get(&format!("/events/{id}")).await.expect(200);
    assert_eq!(own["queue"], "default");

    scene.with_key(&key_of_two);
    scene.get(&format!("/events/{id}")).await.refused(404, "not_found");
    scene.get(&format!("/events/{id}/why")).await.refused(404, "not_found");
    assert_eq!(scene.get("/events").await.expect(200)["total"], 0);
    let none = scene.get("/events/subscribe?tags=shared&worker_id=w").await;
    assert_eq!(none.status.as_u16(), 204);
    for verb in ["complete", "fail", "start", "heartbeat", "reset", "redrive", "cancel"] {
        scene.post(&format!("/events/{id}/{verb}"), json!({ "worker_id": "w" })).await.refused(404, "not_found");
    }
    let batch = scene.post("/events/complete", json!({ "worker_id": "w", "events": [{ "id": id }] })).await.expect(200);
    assert_eq!(batch["results"][0]["status"], 404);
    let queues = scene.get("/queues").await.expect(200);
    assert!(!queues.to_string().contains(&one.to_string()), "{queues}");
    scene.get(&format!("/queues/{one}%2Fdefault")).await.refused(404, "not_found");
    assert_eq!(scene.get("/metrics").await.status.as_u16(), 403);

    scene.with_key(&key_of_one);
    let taken = scene.take("shared", "w").await;
    assert_eq!(taken["id"], id);
    scene.post(&format!("/events/{id}/complete"), json!({ "worker_id": "w" })).await.expect(200);
    scene.with_key(&unscoped);
    assert_eq!(scene.get("/events").await.expect(200)["total"], 1);
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_loopback_a_server_without_keys_does_not_start() {
    let scene = Scene::sqlite().await;
    let everywhere = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let refused = Server::new(scene.queue.clone(), Options::default()).unwrap().start(everywhere);
    assert!(matches!(refused, Err(ServerError::OpenToOthers(_))));
    scene.close().await;
}
