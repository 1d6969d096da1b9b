//! What operators use: queues, workers, dead letters and metrics.

use serde_json::{Value, json};

use crate::scene::{Scene, on_both};

on_both!(
    queues_are_made_set_up_paused_and_drained,
    workers_are_known_by_what_they_do,
    dead_letters_start_over,
    a_heartbeat_keeps_the_lease_that_the_claim_asked_for,
);

async fn queues_are_made_set_up_paused_and_drained(scene: Scene) {
    let made =
        scene.put("/queues/mail", json!({ "max_retries": 1, "lease_seconds": 5, "depth_limit": 2 })).await.expect(200);
    assert_eq!((&made["name"], &made["state"], &made["max_retries"]), (&json!("mail"), &json!("active"), &json!(1)));
    let kept = scene.put("/queues/mail", json!({ "max_retries": null })).await.expect(200);
    assert_eq!((&kept["max_retries"], &kept["lease_seconds"]), (&Value::Null, &json!(5)));
    scene.put("/queues/mail", json!({ "max_retries": 1 })).await.expect(200);
    for bad in [json!({ "lease_seconds": 0 }), json!({ "max_retries": -1 }), json!({ "unknown": 1 }), json!([])] {
        scene.put("/queues/mail", bad).await.refused(400, "invalid_request");
    }
    scene.put("/queues/a%20b", json!({})).await.refused(400, "invalid_request");
    scene.put("/queues/a%2Fb", json!({})).await.expect(200);
    let names = scene.get("/queues").await.expect(200);
    let names: Vec<&str> =
        names["queues"].as_array().unwrap().iter().map(|queue| queue["name"].as_str().unwrap()).collect();
    assert!(["default", "mail", "a/b"].iter().all(|name| names.contains(name)), "{names:?}");

    let event = json!({ "title": "t", "tags": "m", "queue": "mail" });
    let first = scene.post("/events", event.clone()).await.expect(201);
    assert_eq!((&first["max_retries"], &first["queue"]), (&json!(1), &json!("mail")));
    scene.post("/events", event.clone()).await.expect(201);
    let full = scene.post("/events", event.clone()).await;
    full.refused(429, "queue_full");
    assert!(full.headers.contains_key("retry-after"));
    let metrics = scene.get("/queues/mail/metrics").await.expect(200);
    assert_eq!((&metrics["ready"], &metrics["depth"]), (&json!(2), &json!(2)));

    assert_eq!(scene.post("/queues/mail/pause", json!({})).await.expect(200)["state"], "paused");
    let none = scene.get("/events/subscribe?queue=mail&worker_id=w").await;
    assert_eq!(none.status.as_u16(), 204);
    let why = scene.get(&format!("/events/{}/why", first["id"])).await.expect(200);
    assert_eq!(why["reason"], "queue_paused");
    scene.post("/queues/mail/resume", json!({})).await.expect(200);
    let taken = scene.get("/events/subscribe?queue=mail&worker_id=w").await.expect(200);
    assert_eq!(taken["id"], first["id"]);
    scene.post("/queues/mail/drain", json!({})).await.expect(200);
    scene.post("/events", event).await.refused(429, "queue_full");
    let second = scene.get("/events/subscribe?queue=mail&worker_id=w").await.expect(200);
    for id in [&taken["id"], &second["id"]] {
        scene.post(&format!("/events/{id}/complete"), json!({ "worker_id": "w" })).await.expect(200);
    }
    assert_eq!(scene.get("/queues/mail/metrics").await.expect(200)["drained"], true);
    scene.close().await;
}

async fn workers_are_known_by_what_they_do(scene: Scene) {
    let id = scene.publish("a").await;
    scene.take("a", "worker-07:4711").await;
    let answer = scene.get("/workers").await.expect(200);
    let workers = answer["workers"].as_array().unwrap();
    let worker =
        workers.iter().find(|worker| worker["worker_id"] == "worker-07:4711").unwrap_or_else(|| panic!("{answer}"));
    assert_eq!((&worker["hostname"], &worker["pid"]), (&json!("worker-07"), &json!(4711)));
    assert_eq!((&worker["held"], &worker["holds"], &worker["stale"]), (&json!(1), &json!([id]), &json!(false)));
    scene.close().await;
}

async fn a_heartbeat_keeps_the_lease_that_the_claim_asked_for(scene: Scene) {
    let length = |answer: &Value| {
        let until: tidegate::Timestamp = answer["lease_until"].as_str().unwrap().parse().unwrap();
        until.duration_since(tidegate::Timestamp::now()).as_secs()
    };
    let id = scene.publish("a").await;
    let taken = scene.get("/events/subscribe?tags=a&worker_id=w&lease_seconds=3600").await.expect(200);
    assert!(length(&taken) > 3_000);
    let path = format!("/events/{id}/heartbeat");
    for _ in 0..2 {
        let kept = scene.post(&path, json!({ "worker_id": "w" })).await.expect(200);
        assert!(length(&kept) > 3_000, "{kept}");
    }
    let shorter = scene.post(&path, json!({ "worker_id": "w", "lease_seconds": 100 })).await.expect(200);
    assert!((50..=101).contains(&length(&shorter)), "{shorter}");
    let logs = scene.get(&format!("/events/{id}?include_logs=true")).await.expect(200);
    assert!(logs["logs"][0].get("execution_time_ms").is_none(), "{logs}");
    scene.close().await;
}

async fn dead_letters_start_over(scene: Scene) {
    let body = json!({ "title": "t", "tags": "dead", "max_retries": 0 });
    let mut ids = Vec::new();
    for _ in 0..3 {
        let id = scene.post("/events", body.clone()).await.expect(201)["id"].as_i64().unwrap();
        scene.take("dead", "w").await;
        scene
            .post(&format!("/events/{id}/fail"), json!({ "worker_id": "w", "error_message": "broken" }))
            .await
            .expect(400);
        ids.push(id);
    }
    let one = scene.post(&format!("/events/{}/redrive", ids[0]), json!({})).await.expect(200);
    assert_eq!((&one["status"], &one["generation"]), (&json!("PENDING"), &json!(2)));
    scene.post(&format!("/events/{}/redrive", ids[0]), json!({})).await.refused(409, "conflict");
    let rest = scene.post("/events/redrive", json!({ "error_contains": "broken" })).await.expect(200);
    assert_eq!(rest["redriven"], 2);
    for _ in 0..3 {
        scene.take("dead", "w").await;
    }
    let id = scene.publish("unwanted").await;
    assert_eq!(scene.post(&format!("/events/{id}/cancel"), json!({})).await.expect(200)["status"], "CANCELLED");
    scene.post(&format!("/events/{id}/cancel"), json!({})).await.refused(409, "already_ended");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_live_in_one_process_and_one_shows_metrics() {
    let mut options = tidegate_server::Options::default();
    options.metrics = tidegate_server::Metrics::install();
    assert!(options.metrics.is_some(), "one recorder per process");
    let (first, second) = (Scene::sqlite_with(options).await, Scene::sqlite().await);
    first.publish("a").await;
    second.publish("a").await;
    let body = json!({
        "code": "s", "name": "n", "target": "queue:default", "eventTypes": [{ "eventTypeCode": "a.b" }],
    });
    first.post("/api/subscriptions", body).await.expect(201);
    let event = json!({ "type": "a.b", "source": "/x", "deduplicationId": "1" });
    first.post("/api/events", event.clone()).await.expect(201);
    first.post("/api/events", event).await.expect(200);
    let shown = first.get("/metrics").await;
    assert_eq!(shown.status.as_u16(), 200);
    for name in [
        "tidegate_published_total",
        "tidegate_http_requests_total",
        "tidegate_http_seconds_bucket",
        "tidegate_ingested_total{result=\"stored\"} 1",
        "tidegate_ingested_total{result=\"repeated\"} 1",
        "tidegate_matched_total 1",
    ] {
        assert!(shown.text.contains(name), "{name} in {}", shown.text);
    }
    assert!(shown.text.contains("route=\"/events\""), "{}", shown.text);
    second.get("/metrics").await.refused(404, "not_found");
    first.close().await;
    second.close().await;
}
