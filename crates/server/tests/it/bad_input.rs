//! Every bad input gets a clear 4xx, and nothing is written.

use std::io::Write as _;

use reqwest::Method;
use serde_json::{Value, json};

use crate::scene::{Answer, Scene, send};

async fn published(scene: &Scene) -> i64 {
    scene.get("/events").await.expect(200)["total"].as_i64().unwrap()
}

/// Posts a body to `/events`; it must be refused, and no event stored.
async fn refuse(text: impl Into<reqwest::Body>, status: u16, code: &str, says: &str) {
    let scene = Scene::sqlite().await;
    let error = scene.post_text("/events", text).await.refused(status, code);
    assert!(error.contains(says), "{error:?} does not say {says:?}");
    assert_eq!(published(&scene).await, 0);
    scene.close().await;
}

/// Sends a GET that must be refused.
async fn refuse_get(path: &str, status: u16, code: &str, says: &str) {
    let scene = Scene::sqlite().await;
    let error = scene.get(path).await.refused(status, code);
    assert!(error.contains(says), "{error:?} does not say {says:?}");
    scene.close().await;
}

fn event(change: impl FnOnce(&mut Value)) -> String {
    let mut body = json!({ "title": "t", "tags": "a", "payload": 1 });
    change(&mut body);
    body.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_title() {
    refuse(r#"{"tags":"a"}"#, 400, "invalid_request", "title").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_title() {
    refuse(event(|body| body["title"] = " ".into()), 400, "invalid_request", "title").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_tags() {
    refuse(r#"{"title":"t"}"#, 400, "invalid_request", "tags").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_blank_tags() {
    refuse(event(|body| body["tags"] = " , ,".into()), 400, "invalid_request", "tags").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_tags() {
    let tags: Vec<String> = (0..100_000).map(|n| format!("t{n}")).collect();
    refuse(event(|body| body["tags"] = tags.join(",").into()), 400, "invalid_request", "32").await;
    let list = format!(r#"{{"title":"t","tags":{}}}"#, json!(tags));
    assert!(list.len() < 1 << 20);
    refuse(list, 400, "invalid_request", "32").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_json() {
    for text in ["", "{", "{\"title\":", "title=t", "[1,", "nul", "{\"title\":\"t\"}{"] {
        refuse(text, 400, "invalid_json", "").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn json_of_another_shape() {
    for text in ["[]", "1", "null", "\"x\"", r#"{"title":1,"tags":"a"}"#, r#"{"title":"t","tags":7}"#] {
        refuse(text, 400, "invalid_request", "").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn json_of_depth_10_000() {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    refuse(format!(r#"{{"title":"t","tags":"a","payload":{deep}}}"#), 400, "invalid_json", "nested").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_of_one_mebibyte_and_one_byte() {
    let payload = |length: usize| format!(r#"{{"title":"t","tags":"a","payload":"{}"}}"#, "x".repeat(length - 2));
    refuse(payload((1 << 20) + 1), 413, "payload_too_large", "URI").await;
    let scene = Scene::sqlite().await;
    scene.post_text("/events", payload(1 << 20)).await.expect(201);
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_far_too_large() {
    refuse("x".repeat(3 << 20), 413, "payload_too_large", "URI").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_content_type() {
    let scene = Scene::sqlite().await;
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let request = scene.request(Method::POST, "/events").header("content-type", kind).body(event(|_| ()));
        send(request).await.refused(415, "unsupported_media_type");
    }
    assert_eq!(published(&scene).await, 0);
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gzip_bomb() {
    let scene = Scene::sqlite().await;
    // The content does not matter: compressed bodies are refused before they are unpacked.
    let mut bomb = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    bomb.write_all(&[0; 1000]).unwrap();
    let request = scene.request(Method::POST, "/events").header("content-encoding", "gzip");
    let request = request.header("content-type", "application/json").body(bomb);
    send(request).await.refused(415, "unsupported_media_type");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_utf_8() {
    refuse(b"{\"title\":\"\xff\xfe\",\"tags\":\"a\"}".to_vec(), 400, "invalid_json", "UTF-8").await;
    refuse_get("/events/subscribe?tags=%ff&worker_id=w", 400, "invalid_request", "UTF-8").await;
    refuse_get("/events/%ff", 400, "invalid_id", "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nul_characters() {
    refuse(r#"{"title":"a\u0000b","tags":"a"}"#, 400, "invalid_request", "title").await;
    refuse(r#"{"title":"t","tags":"a\u0000b"}"#, 400, "invalid_request", "tag").await;
    refuse(r#"{"title":"t","tags":"a","description":"\u0000"}"#, 400, "invalid_request", "description").await;
    refuse(r#"{"title":"t","tags":"a","message_group":"\u0000"}"#, 400, "invalid_request", "group").await;
    refuse("{\"title\":\"\0\",\"tags\":\"a\"}", 400, "invalid_json", "").await;
    refuse_get("/events/subscribe?tags=a%00b&worker_id=w", 400, "invalid_request", "tag").await;
    refuse_get("/events/subscribe?tags=a&worker_id=w%00", 400, "invalid_request", "worker_id").await;
    refuse_get("/events?type=%00", 400, "invalid_request", "type").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_out_of_range() {
    for (field, value) in [
        ("max_retries", json!(-1)),
        ("max_retries", json!(4_294_967_296_u64)),
        ("max_retries", json!(1.5)),
        ("max_retries", json!(1_000_001)),
        ("title", json!("ä".repeat(1_001))),
        ("delay_seconds", json!(-1)),
        ("delay_seconds", json!(1e300)),
        ("priority", json!(101)),
        ("priority", json!(70_000)),
        ("retry", json!({ "kind": "fixed", "delay_ms": u64::MAX })),
        ("retry", json!({ "kind": "never" })),
        ("queue", json!("no spaces")),
        ("type", json!("")),
        ("deduplication_id", json!("")),
    ] {
        refuse(event(|body| body[field] = value.clone()), 400, "invalid_request", "").await;
    }
}

/// What the OpenAPI document allows is accepted.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_numbers_and_texts_that_are_allowed() {
    let scene = Scene::sqlite().await;
    let title = "😀".repeat(1_000);
    let body = event(|body| (body["max_retries"], body["title"]) = (json!(1_000_000), json!(title)));
    let made = scene.post_text("/events", body).await.expect(201);
    assert_eq!((&made["max_retries"], &made["title"]), (&json!(1_000_000), &json!(title)));
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_not_there() {
    refuse(event(|body| body["queue"] = "nowhere".into()), 404, "not_found", "nowhere").await;
    refuse_get("/events/subscribe?queue=nowhere&worker_id=w", 404, "not_found", "nowhere").await;
    refuse_get("/queues/nowhere", 404, "not_found", "nowhere").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_without_tags_or_a_name() {
    refuse_get("/events/subscribe?worker_id=w", 400, "invalid_request", "tags").await;
    refuse_get("/events/subscribe?tags=&worker_id=w", 400, "invalid_request", "tags").await;
    refuse_get("/events/subscribe?tags=a", 400, "invalid_request", "worker_id").await;
    refuse_get("/events/subscribe?tags=a&worker_id=", 400, "invalid_request", "worker_id").await;
    let long = "w".repeat(256);
    refuse_get(&format!("/events/subscribe?tags=a&worker_id={long}"), 400, "invalid_request", "worker_id").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_and_leases_out_of_range() {
    for bad in ["wait=61", "wait=-1", "wait=x", "lease_seconds=0", "lease_seconds=86401", "lease_seconds=1e9"] {
        refuse_get(&format!("/events/subscribe?tags=a&worker_id=w&{bad}"), 400, "invalid_request", "").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_and_offsets_out_of_range() {
    for bad in ["limit=-1", "limit=0", "limit=1001", "limit=99999999999999999999", "limit=x", "offset=-1", "offset=1e9"]
    {
        refuse_get(&format!("/events?{bad}"), 400, "invalid_request", "must be a number").await;
    }
    refuse_get("/events?offset=18446744073709551615", 400, "invalid_request", "offset").await;
    refuse_get("/events?cursor=x", 400, "invalid_request", "cursor").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_status() {
    refuse_get("/events?status=DONE", 400, "invalid_request", "status").await;
    refuse_get("/events?from=yesterday", 400, "invalid_request", "from").await;
    refuse_get("/events/1?include_logs=perhaps", 400, "invalid_request", "include_logs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_are_none() {
    for id in ["abc", "-1", "0", "1.5", "9007199254740992", "9223372036854775808", "99999999999999999999999"] {
        refuse_get(&format!("/events/{id}"), 400, "invalid_id", "").await;
    }
    refuse_get("/events/9007199254740991", 404, "not_found", "9007199254740991").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_on_what_is_not_there() {
    let scene = Scene::sqlite().await;
    for verb in ["complete", "fail", "start", "heartbeat"] {
        scene.post(&format!("/events/77/{verb}"), json!({ "worker_id": "w" })).await.refused(404, "not_found");
        scene.post(&format!("/events/77/{verb}"), json!({})).await.refused(400, "invalid_request");
        scene.post(&format!("/events/x/{verb}"), json!({ "worker_id": "w" })).await.refused(400, "invalid_id");
    }
    scene.post("/events/77/reset", json!({})).await.refused(404, "not_found");
    scene.post("/events/77/redrive", json!({})).await.refused(404, "not_found");
    scene.get("/events/77/why").await.refused(404, "not_found");
    for body in [json!({ "execution_time_ms": -1 }), json!({ "status_code": "x" }), json!({ "error_message": "\0" })] {
        let mut report = body;
        report["worker_id"] = "w".into();
        scene.post("/events/77/fail", report).await.refused(400, "invalid_request");
    }
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_and_methods_that_are_none() {
    let scene = Scene::sqlite().await;
    let unmatched: Answer = scene.get("/nothing/here").await;
    unmatched.refused(404, "not_found");
    for (method, path) in [
        (Method::DELETE, "/events"),
        (Method::PATCH, "/events/1"),
        (Method::GET, "/events/batch"),
        (Method::POST, "/events/subscribe"),
        (Method::PUT, "/workers"),
    ] {
        send(scene.request(method, path)).await.refused(405, "method_not_allowed");
    }
    let id = scene.publish("a").await;
    let head = send(scene.request(Method::HEAD, "/events/subscribe?tags=a&worker_id=w")).await;
    assert_eq!(head.status.as_u16(), 405);
    assert_eq!(scene.status(id).await, "PENDING");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_nothing_or_too_many() {
    let scene = Scene::sqlite().await;
    scene.post("/events/batch", json!({ "events": [] })).await.refused(400, "invalid_request");
    let many: Vec<Value> = (0..1001).map(|_| json!({})).collect();
    scene.post("/events/batch", json!({ "events": many })).await.refused(400, "invalid_request");
    scene.post("/events/complete", json!({ "events": [] })).await.refused(400, "invalid_request");
    scene
        .post("/events/claim", json!({ "tags": "a", "worker_id": "w", "max": 0 }))
        .await
        .refused(400, "invalid_request");
    scene.post("/events/claim", json!({ "worker_id": "w" })).await.refused(400, "invalid_request");
    scene.close().await;
}
