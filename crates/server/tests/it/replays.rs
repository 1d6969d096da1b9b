//! Replays, resumes with replay and test events over HTTP.

use serde_json::{Value, json};

use crate::scene::{Scene, on_both};

on_both!(
    stored_events_are_replayed_to_a_queue,
    what_cannot_be_replayed_is_named,
    a_resume_replays_what_a_pause_missed,
    test_events_are_not_replayed_to_others,
    few_callers_wait_for_what_comes_of_a_test,
);

async fn store(scene: &Scene, number: u32) -> Value {
    let event = json!({ "specVersion": "1.0", "type": "shop:orders:order:created", "source": "/s", "data": number });
    scene.post("/api/events", event).await.expect(201)
}

/// A subscription to a queue, and its path.
async fn subscribe(scene: &Scene, code: &str, queue: &str) -> String {
    scene.put(&format!("/queues/{queue}"), json!({})).await;
    let body = json!({
        "code": code, "name": "n", "eventTypes": [{ "eventTypeCode": "shop:*:order:*" }],
        "target": format!("queue:{queue}"),
    });
    let made = scene.post("/api/subscriptions", body).await.expect(201);
    format!("/api/subscriptions/{}", made["id"].as_str().unwrap())
}

fn range() -> Value {
    json!({ "from": "2020-01-01T00:00:00Z", "to": "2100-01-01T00:00:00Z" })
}

/// The payloads that wait in a queue, in order.
async fn waiting(scene: &Scene, queue: &str) -> Vec<Value> {
    let body = json!({ "queue": queue, "worker_id": "w", "max": 50 });
    let answer = scene.post("/events/claim", body).await;
    if answer.status.as_u16() == 204 {
        return Vec::new();
    }
    let claimed = answer.expect(200);
    claimed["events"].as_array().unwrap().iter().map(|event| event["payload"].clone()).collect()
}

async fn stored_events_are_replayed_to_a_queue(scene: Scene) {
    let mut events = Vec::new();
    for number in 1..=3 {
        events.push(store(&scene, number).await);
    }
    let path = subscribe(&scene, "late", "mail").await;
    let done = scene.post(&format!("{path}/replay"), range()).await.expect(200);
    assert_eq!(
        done,
        json!({
            "from": "2020-01-01T00:00:00Z", "to": "2100-01-01T00:00:00Z", "missingOnly": false,
            "replayed": 3, "repeated": 0, "examined": 3,
        })
    );
    assert_eq!(waiting(&scene, "mail").await, [json!(1), json!(2), json!(3)]);
    let shown = scene.get(&format!("/api/events/{}", events[0]["id"].as_str().unwrap())).await.expect(200);
    assert_eq!(shown["entries"][0]["queue"], "mail", "{shown}");
    let again = scene.post(&format!("{path}/replay"), range()).await.expect(200);
    assert_eq!((&again["replayed"], &again["repeated"]), (&0.into(), &3.into()));
    let mut named = range();
    named["replayId"] = "again".into();
    let other = scene.post(&format!("{path}/replay"), named).await.expect(200);
    assert_eq!((&other["replayed"], &other["replayId"]), (&3.into(), &"again".into()));
    let test = scene.post(&format!("{path}/test"), json!({})).await.expect(201);
    assert!(test["entryId"].is_i64() && test["id"].is_null(), "{test}");
    let event = scene.get(&format!("/api/events/{}", test["eventId"].as_str().unwrap())).await.expect(200);
    assert_eq!(event["type"], test["type"]);
    scene.close().await;
}

async fn what_cannot_be_replayed_is_named(scene: Scene) {
    let path = subscribe(&scene, "s", "mail").await;
    let refused = async |field: &str, value: Value| {
        let mut body = range();
        body[field] = value;
        scene.post(&format!("{path}/replay"), body).await.refused(400, "invalid_request")
    };
    assert!(refused("from", json!("yesterday")).await.contains("from"));
    assert!(refused("to", json!("2019-01-01T00:00:00Z")).await.contains("before to"));
    assert!(refused("cursor", json!("nonsense")).await.contains("cursor"));
    assert!(refused("replayId", json!("x".repeat(256))).await.contains("replayId"));
    assert!(refused("since", json!("x")).await.contains("since"));
    let nobody = scene.post("/api/subscriptions/0000000000007/replay", range()).await;
    nobody.refused(404, "not_found");
    scene.post(&format!("{path}/pause"), json!({})).await.expect(200);
    let held = scene.post(&format!("{path}/test"), json!({})).await.refused(409, "conflict");
    assert!(held.contains("paused"), "{held}");
    scene.close().await;
}

async fn a_resume_replays_what_a_pause_missed(scene: Scene) {
    let path = subscribe(&scene, "s", "mail").await;
    scene.post(&format!("{path}/pause"), json!({})).await.expect(200);
    store(&scene, 7).await;
    let resumed = scene.post(&format!("{path}/resume"), json!({ "replay": true })).await.expect(200);
    assert_eq!((&resumed["status"], &resumed["replay"]["replayed"]), (&"ACTIVE".into(), &1.into()));
    assert_eq!(waiting(&scene, "mail").await, [json!(7)]);
    let again = scene.post(&format!("{path}/resume"), json!({ "replay": true })).await.expect(200);
    assert_eq!((&again["replay"]["replayed"], &again["replay"]["repeated"]), (&0.into(), &1.into()));
    let never = subscribe(&scene, "never", "other").await;
    let resumed = scene.post(&format!("{never}/resume"), json!({ "replay": true })).await.expect(200);
    assert!(resumed["replay"].is_null(), "it was never paused");
    scene.close().await;
}

async fn test_events_are_not_replayed_to_others(scene: Scene) {
    let tested = subscribe(&scene, "tested", "mail").await;
    scene.put("/queues/other", json!({})).await;
    let body = json!({
        "code": "all", "name": "n", "eventTypes": [{ "eventTypeCode": "*:*:*:*" }], "target": "queue:other",
    });
    let made = scene.post("/api/subscriptions", body).await.expect(201);
    let all = format!("/api/subscriptions/{}", made["id"].as_str().unwrap());
    scene.post(&format!("{all}/pause"), json!({})).await.expect(200);
    scene.post(&format!("{tested}/test"), json!({})).await.expect(201);
    store(&scene, 1).await;
    let resumed = scene.post(&format!("{all}/resume"), json!({ "replay": true })).await.expect(200);
    assert_eq!(resumed["replay"]["replayed"], 1, "{resumed}");
    let done = scene.post(&format!("{all}/replay"), range()).await.expect(200);
    assert_eq!((&done["replayed"], &done["examined"]), (&json!(1), &json!(2)), "{done}");
    assert_eq!(waiting(&scene, "other").await, [json!(1), json!(1)]);
    // Nor to the subscription that was tested itself.
    assert_eq!(scene.post(&format!("{tested}/replay"), range()).await.expect(200)["replayed"], 1);
    scene.close().await;
}

/// This server delivers nothing, so that nobody's wait ends.
async fn few_callers_wait_for_what_comes_of_a_test(scene: Scene) {
    let body = json!({
        "code": "s", "name": "n", "eventTypes": [{ "eventTypeCode": "*:*:*:*" }], "target": "https://hooks.example/",
    });
    let made = scene.post("/api/subscriptions", body).await.expect(201);
    let path = format!("/api/subscriptions/{}/test", made["id"].as_str().unwrap());
    let waiting = format!("{path}?wait=5");
    let answers = futures_util::future::join_all((0..100).map(|_| scene.post(&waiting, json!({})))).await;
    let (waited, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status.as_u16() == 201);
    assert!(waited.len() == 32 && refused.len() == 68, "{} waited, {} were refused", waited.len(), refused.len());
    for answer in refused {
        let text = answer.refused(503, "busy");
        assert!(text.contains("without wait") && answer.headers.contains_key("retry-after"), "{text}");
    }
    let events = scene.get("/api/events?limit=200").await.expect(200)["items"].as_array().unwrap().len();
    assert_eq!(events, 32, "what is refused is not made");
    scene.post(&path, json!({})).await.expect(201);
    scene.close().await;
}
