//! What the API tells about an event: its two ids, who did what to it, why it waits, and how it is counted.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tidegate_server::{Keyring, Metrics, Options, Scope};

use crate::scene::{PATIENCE, Scene, on_both, send};

on_both!(
    reports_and_logs_tell_both_ids,
    why_knows_tags,
    an_abandoned_event_says_by_whom,
    a_queue_can_require_the_lease,
);

/// Calls `asked` until it returns true.
async fn until(what: &str, mut asked: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !asked().await {
        assert!(started.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn logs(scene: &Scene, id: i64) -> Vec<Value> {
    let shown = scene.get(&format!("/events/{id}?include_logs=true")).await.expect(200);
    shown["logs"].as_array().unwrap().clone()
}

async fn reports_and_logs_tell_both_ids(scene: Scene) {
    let id = scene.publish("a").await;
    let event_id = scene.get(&format!("/events/{id}")).await.expect(200)["event_id"].clone();
    let check = |answer: &Value| assert_eq!((&answer["event_id"], &answer["event_tsid"]), (&json!(id), &event_id));
    check(&scene.get(&format!("/events/{id}/why")).await.expect(200));
    scene.take("a", "w").await;
    let worker = json!({ "worker_id": "w" });
    for path in ["start", "start", "heartbeat", "complete", "complete"] {
        check(&scene.post(&format!("/events/{id}/{path}"), worker.clone()).await.expect(200));
    }
    check(&scene.get(&format!("/events/{id}/why")).await.expect(200));
    let logs = logs(&scene, id).await;
    assert_eq!(logs.len(), 3);
    logs.iter().for_each(check);
    let many = scene.post("/events/complete", json!({ "worker_id": "w", "events": [{ "id": id }] })).await.expect(200);
    check(&many["results"][0]);
    scene.close().await;
}

async fn why_knows_tags(scene: Scene) {
    let (wanted, unwanted) = (scene.publish("wanted").await, scene.publish("unwanted").await);
    scene.publish("wanted").await;
    let why = async |id: i64| scene.get(&format!("/events/{id}/why")).await.expect(200);
    // A worker for this tag alone; it claims the first event.
    assert_eq!(scene.take("wanted", "w").await["id"], wanted);
    let second = wanted + 2;
    until("the worker is known", async || why(second).await["reason"] == "ready").await;
    let answer = why(unwanted).await;
    assert_eq!((&answer["reason"], &answer["tags"]), (&json!("no_live_consumer"), &json!(["unwanted"])));
    scene.close().await;
}

async fn an_abandoned_event_says_by_whom(scene: Scene) {
    let id = scene.publish("a").await;
    scene.get("/events/subscribe?tags=a&worker_id=lost&lease_seconds=1").await.expect(200);
    let taken = scene.get("/events/subscribe?tags=a&worker_id=next&wait=30").await.expect(200);
    assert_eq!((&taken["id"], &taken["attempts"]), (&json!(id), &json!(2)));
    let told: Vec<(String, String)> = logs(&scene, id)
        .await
        .iter()
        .map(|log| (log["action"].as_str().unwrap().to_owned(), log["worker_id"].as_str().unwrap().to_owned()))
        .collect();
    let expected = [("PICKED", "lost"), ("ABANDONED", "lost"), ("PICKED", "next")];
    assert_eq!(told, expected.map(|(action, worker)| (action.to_owned(), worker.to_owned())));
    scene.close().await;
}

async fn a_queue_can_require_the_lease(scene: Scene) {
    scene.put("/queues/default", json!({ "require_lease": true })).await.expect(200);
    let id = scene.publish("a").await;
    let lease = scene.take("a", "w").await["lease"].clone();
    let path = format!("/events/{id}/complete");
    let refused = scene.post(&path, json!({ "worker_id": "w" })).await.refused(400, "invalid_request");
    assert!(refused.contains("lease"), "{refused}");
    assert_eq!(scene.status(id).await, "PROCESSING");
    scene.post(&path, json!({ "worker_id": "w", "lease": lease })).await.expect(200);
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_gets_the_trace_with_its_state() {
    let scene = Scene::sqlite().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let body = json!({ "title": "t", "tags": "a" });
    let request = scene.request(Method::POST, "/events").json(&body);
    send(request.header("traceparent", trace).header("tracestate", "vendor=1,other=2")).await.expect(201);
    let taken = scene.take("a", "w").await;
    assert_eq!((&taken["traceparent"], &taken["tracestate"]), (&json!(trace), &json!("vendor=1,other=2")));
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_by_hand_names_the_key() {
    let mut scene = Scene::guarded_sqlite().await;
    let keys = Keyring::new(scene.queue.clone());
    scene.with_key(keys.create("ops", &[Scope::Admin], None).await.unwrap().secret);
    let body = json!({ "title": "t", "tags": "a", "max_retries": 0 });
    let id = scene.post("/events", body).await.expect(201)["id"].as_i64().unwrap();
    let post = async |path: &str| scene.post(&format!("/events/{id}/{path}"), json!({})).await.expect(200);
    let fail = async || {
        scene.take("a", "w").await;
        scene.post(&format!("/events/{id}/fail"), json!({ "worker_id": "w" })).await.expect(400);
    };
    fail().await;
    post("redrive").await;
    fail().await;
    scene.post("/events/redrive", json!({})).await.expect(200);
    scene.take("a", "w").await;
    post("reset?reason=stuck").await;
    post("cancel").await;
    let logs = logs(&scene, id).await;
    let manual: Vec<(&str, &Value)> = logs
        .iter()
        .filter(|log| log.get("actor").is_some())
        .map(|log| (log["action"].as_str().unwrap(), &log["actor"]))
        .collect();
    let ops = &json!("ops");
    assert_eq!(manual, [("REDRIVEN", ops), ("REDRIVEN", ops), ("RESET", ops), ("CANCELLED", ops)]);
    assert!(logs.iter().filter(|log| log.get("actor").is_some()).all(|log| log["worker_id"].is_null()));
    assert!(logs.iter().any(|log| log["reason"] == "stuck"));
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_makes_a_stale_worker_fresh() {
    let mut options = Options::default();
    options.stale_after = Duration::from_secs(1);
    let scene = Scene::sqlite_with(options).await;
    let id = scene.publish("a").await;
    scene.get("/events/subscribe?tags=a&worker_id=w&lease_seconds=3600").await.expect(200);
    let stale = async || {
        let answer = scene.get("/workers").await.expect(200);
        answer["workers"].as_array().unwrap().iter().any(|worker| worker["worker_id"] == "w" && worker["stale"] == true)
    };
    until("the worker is stale", &stale).await;
    until("the worker is not stale any more", async || {
        scene.post(&format!("/events/{id}/start"), json!({ "worker_id": "w" })).await.expect(200);
        !stale().await
    })
    .await;
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_and_times_of_pull_workers_are_counted_by_queue() {
    let mut options = Options::default();
    options.metrics = Metrics::install();
    let scene = Scene::sqlite_with(options).await;
    scene.put("/queues/mail", json!({})).await.expect(200);
    let publish = async |retries: u32| {
        let body = json!({ "title": "t", "tags": "a", "queue": "mail", "max_retries": retries });
        scene.post("/events", body).await.expect(201)["id"].as_i64().unwrap()
    };
    let take = async || scene.get("/events/subscribe?queue=mail&worker_id=w").await.expect(200);
    let done = publish(0).await;
    take().await;
    scene.post(&format!("/events/{done}/complete"), json!({ "worker_id": "w" })).await.expect(200);
    let failed = publish(0).await;
    take().await;
    scene.post(&format!("/events/{failed}/fail"), json!({ "worker_id": "w" })).await.expect(400);
    let cancelled = publish(0).await;
    scene.post(&format!("/events/{cancelled}/cancel"), json!({})).await.expect(200);
    let lost = publish(0).await;
    scene.get("/events/subscribe?queue=mail&worker_id=w&lease_seconds=1").await.expect(200);
    until("its only attempt is used up", async || {
        scene.get("/events/subscribe?queue=mail&worker_id=w").await;
        scene.status(lost).await == "FAILED"
    })
    .await;
    let shown = scene.get("/metrics").await.text;
    let value = |line: &str| {
        let found = shown.lines().find_map(|shown| shown.strip_prefix(line)).map(|rest| rest.trim().to_owned());
        found.unwrap_or_else(|| panic!("{line} is not in {shown}"))
    };
    assert_eq!(value("tidegate_finalized_total{queue=\"mail\",end=\"COMPLETED\"}"), "1");
    assert_eq!(value("tidegate_finalized_total{queue=\"mail\",end=\"FAILED\"}"), "2", "one reported, one exhausted");
    assert_eq!(value("tidegate_finalized_total{queue=\"mail\",end=\"CANCELLED\"}"), "1");
    assert_eq!(value("tidegate_claim_to_finish_seconds_count"), "2");
    until("depths of all queues", async || {
        let shown = scene.get("/metrics").await.text;
        ["mail", "default"].iter().all(|queue| shown.contains(&format!("tidegate_depth{{queue=\"{queue}\"")))
    })
    .await;
    scene.close().await;
}
