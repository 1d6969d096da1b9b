//! Keys: who is let in, for what, and whose events are seen.

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
        (Scope::Manage, Method::GET, "/workers", 200),
        (Scope::Admin, Method::POST, "/events/1/reset", 409),
    ];
    for granted in Scope::ALL {
        scene.with_key(keys.create("k", &[granted], None).await.unwrap().secret);
        for (needed, method, path, status) in calls.clone() {
            let answer = send(scene.request(method, path).json(&event)).await;
            let expected = if granted == needed || granted == Scope::Admin { status } else { 403 };
            assert_eq!(answer.status.as_u16(), expected, "{granted:?} {path}: {}", answer.text);
        }
        scene.get("/events").await.expect(200);
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
    let deadline = std::time::Instant::now() + crate::scene::PATIENCE;
    while scene.get("/events").await.status.as_u16() != 401 {
        assert!(std::time::Instant::now() < deadline, "a revoked key still works");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(keys.create("none", &[], None).await.is_err());
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_see_only_what_is_theirs() {
    let mut scene = guarded().await;
    let keys = Keyring::new(scene.queue.clone());
    let (one, two) = (Tsid::from_i64(1), Tsid::from_i64(2));
    let key_of_one = keys.create("one", &[Scope::Admin], Some(one)).await.unwrap().secret;
    let key_of_two = keys.create("two", &[Scope::Admin], Some(two)).await.unwrap().secret;
    let anchor = keys.create("all", &[Scope::Admin], None).await.unwrap().secret;

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
    scene.with_key(&anchor);
    assert_eq!(scene.get("/events").await.expect(200)["total"], 1);
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_loopback_a_server_without_keys_does_not_start() {
    let scene = Scene::sqlite().await;
    let everywhere = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let refused = Server::new(scene.queue.clone(), Options::default()).unwrap().start(everywhere);
    assert!(matches!(refused, Err(ServerError::OpenToOthers(_))));
    let page =
        scene.request(Method::GET, "/events/subscribe?tags=a&worker_id=w").header("sec-fetch-site", "cross-site");
    send(page).await.refused(403, "forbidden");
    scene.close().await;
}
