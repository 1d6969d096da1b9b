//! An unknown field or parameter is refused; the error names it and the nearest known one.

use reqwest::Method;
use serde_json::{Value, json};

use crate::scene::{Scene, send};

/// Posts a body that must be refused; the error names the unknown field and the nearest known one.
async fn refuse(scene: &Scene, path: &str, body: Value, field: &str, nearest: &str) {
    let text = scene.post(path, body).await.refused(400, "invalid_request");
    assert!(text.contains(&format!("\"{field}\"")) && text.contains(nearest), "{path}: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_of_bodies_are_named() {
    let scene = Scene::sqlite().await;
    let event = |name: &str, value: Value| {
        let mut body = json!({ "title": "t", "tags": "a" });
        body[name] = value;
        body
    };
    refuse(&scene, "/events", event("delay", json!(3600)), "delay", "delay_seconds").await;
    refuse(&scene, "/events", event("dedup_id", json!("k")), "dedup_id", "deduplication_id").await;
    refuse(&scene, "/events", event("maxRetries", json!(1)), "maxRetries", "max_retries").await;
    refuse(&scene, "/events", event("a`b, expected `c", json!(1)), "a`b, expected `c", "").await;
    let retry = json!({ "kind": "fixed", "delay_ms": 5, "delay": 7 });
    refuse(&scene, "/events", event("retry", retry), "delay", "delay_ms").await;
    let batch = json!({ "events": [event("delay", json!(1)), event("priority", json!(1))], });
    let answer = scene.post("/events/batch", batch).await.expect(200);
    assert_eq!((&answer["results"][0]["status"], &answer["results"][1]["status"]), (&json!(400), &json!(201)));
    assert!(answer["results"][0]["error"].as_str().unwrap().contains("delay_seconds"), "{answer}");
    refuse(&scene, "/events/batch", json!({ "event": [] }), "event", "events").await;
    let id = scene.publish("b").await;
    refuse(&scene, "/events/claim", json!({ "tag": "b", "worker_id": "w" }), "tag", "tags").await;
    scene.take("b", "w").await;
    let report = |name: &str| json!({ "worker_id": "w", name: 1 });
    for (verb, sent, nearest) in [
        ("start", "leese", "lease"),
        ("heartbeat", "lease_second", "lease_seconds"),
        ("complete", "status", "status_code"),
        ("fail", "error", "error_message"),
    ] {
        refuse(&scene, &format!("/events/{id}/{verb}"), report(sent), sent, nearest).await;
    }
    let items = json!({ "worker_id": "w", "events": [{ "id": id, "token": 1, "leas": 1 }] });
    let answer = scene.post("/events/complete", items).await.expect(200);
    assert_eq!(answer["results"][0]["status"], 400, "{answer}");
    refuse(&scene, "/events/fail", json!({ "worker": "w", "events": [{ "id": id }] }), "worker", "worker_id").await;
    refuse(&scene, "/events/redrive", json!({ "errors": "x" }), "errors", "error_contains").await;
    let text = scene.put("/queues/q", json!({ "lease": 5 })).await.refused(400, "invalid_request");
    assert!(text.contains("lease_seconds"), "{text}");
    assert_eq!(scene.status(id).await, "PROCESSING");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_parameters_of_queries_are_named() {
    let scene = Scene::sqlite().await;
    for (method, path, sent, nearest) in [
        (Method::GET, "/events?state=FAILED", "state", "status"),
        (Method::GET, "/events?status=FAILED&tag=a", "tag", "tags"),
        (Method::GET, "/events?%73tate=", "state", "status"),
        (Method::GET, "/events/subscribe?tags=a&worker_id=w&timeout=5", "timeout", ""),
        (Method::GET, "/events/subscribe?tags=a&worker=w", "worker", "worker_id"),
        (Method::GET, "/events/1?logs=true", "logs", "include_logs"),
        (Method::GET, "/events/1/why?x", "x", ""),
        (Method::POST, "/events?delay_seconds=60", "delay_seconds", ""),
        (Method::POST, "/events/1/reset?reson=x", "reson", "reason"),
        (Method::GET, "/queues?limit=1", "limit", ""),
        (Method::GET, "/projections/p?limits=1", "limits", "limit"),
    ] {
        let body = json!({ "title": "t", "tags": "a" });
        let text = send(scene.request(method, path).json(&body)).await.refused(400, "invalid_request");
        assert!(text.contains(&format!("\"{sent}\"")) && text.contains(nearest), "{path}: {text}");
    }
    assert_eq!(scene.get("/events").await.expect(200)["total"], 0);
    for path in ["/events?&", "/events?", "/livez?x=1", "/events/subscribe?tags=a&worker_id=w&tags=b"] {
        assert!(scene.get(path).await.status.is_success(), "{path}");
    }
    let head = send(scene.request(Method::HEAD, "/events?limit=5")).await;
    assert_eq!(head.status.as_u16(), 200);
    scene.close().await;
}
