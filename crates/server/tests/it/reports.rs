//! Edge cases of workers' reports: after an earlier report, on release, without a lease, too late.

use serde_json::{Value, json};
use tidegate_server::Options;

use crate::scene::{Scene, on_both};

on_both!(
    an_error_has_one_shape_while_it_waits_and_once_it_failed,
    a_heartbeat_after_ones_own_report_is_no_lost_lease,
    an_event_that_is_given_back_is_free_at_once_and_uses_up_no_retry,
    a_queue_that_requires_leases_refuses_reports_without,
    an_abandoned_event_says_so,
    a_worker_is_alive_right_after_its_call,
    one_of_many_failures_can_be_the_last,
);

async fn an_error_has_one_shape_while_it_waits_and_once_it_failed(scene: Scene) {
    let quick = json!({ "title": "t", "tags": "a", "max_retries": 1, "retry": { "kind": "fixed", "delay_ms": 0 } });
    let id = scene.post("/events", quick).await.expect(201)["id"].as_i64().unwrap();
    let message = "said \"no\": [1]";
    let report = json!({ "worker_id": "w", "error_message": message });
    scene.take("a", "w").await;
    scene.post(&format!("/events/{id}/fail"), report.clone()).await.expect(200);
    assert_eq!(scene.get(&format!("/events/{id}")).await.expect(200)["last_error"], message);
    assert_eq!(scene.take("a", "w").await["last_error"], message);
    scene.post(&format!("/events/{id}/fail"), report).await.expect(400);
    let failed = scene.get(&format!("/events/{id}")).await.expect(200);
    assert_eq!((&failed["status"], &failed["last_error"]), (&json!("FAILED"), &json!(message)));
    scene.close().await;
}

async fn a_heartbeat_after_ones_own_report_is_no_lost_lease(scene: Scene) {
    let holder = |worker: &str| json!({ "worker_id": worker });
    for verb in ["complete", "fail"] {
        let id = scene.publish(verb).await;
        let lease = scene.take(verb, "w").await["lease"].clone();
        scene.post(&format!("/events/{id}/{verb}"), holder("w")).await.expect(200);
        for late in [holder("w"), json!({ "worker_id": "w", "lease": lease })] {
            scene.post(&format!("/events/{id}/heartbeat"), late).await.refused(409, "already_ended");
        }
        scene.post(&format!("/events/{id}/heartbeat"), holder("x")).await.refused(409, "lease_lost");
    }
    let id = scene.publish("taken").await;
    scene.take("taken", "w").await;
    scene.post(&format!("/events/{id}/reset"), Value::Null).await.expect(200);
    scene.post(&format!("/events/{id}/heartbeat"), holder("w")).await.refused(409, "lease_lost");
    scene.close().await;
}

async fn an_event_that_is_given_back_is_free_at_once_and_uses_up_no_retry(scene: Scene) {
    let id = scene.publish("a").await;
    let lease = scene.take("a", "w").await["lease"].clone();
    let path = format!("/events/{id}/release");
    scene.post(&path, json!({ "worker_id": "x" })).await.refused(409, "lease_lost");
    scene.post(&path, json!({ "worker_id": "w", "lease": -1 })).await.refused(409, "lease_lost");
    let next = scene.get("/events/subscribe?tags=a&worker_id=x&wait=30");
    let given = async {
        let answer = scene.post(&path, json!({ "worker_id": "w", "lease": lease })).await;
        assert_eq!((answer.status.as_u16(), answer.text.as_str()), (204, ""));
    };
    let (next, ()) = tokio::join!(next, given);
    let next = next.expect(200);
    assert_eq!((&next["id"], &next["attempts"], &next["retry_count"]), (&json!(id), &json!(1), &json!(0)));
    scene.post(&path, json!({ "worker_id": "w", "lease": lease })).await.refused(409, "lease_lost");
    scene.post("/events/999999/release", json!({ "worker_id": "w" })).await.refused(404, "not_found");
    scene.close().await;
}

async fn a_queue_that_requires_leases_refuses_reports_without(scene: Scene) {
    scene.put("/queues/strict", json!({ "require_lease": true })).await.expect(200);
    let body = json!({ "title": "t", "tags": "a", "queue": "strict" });
    let id = scene.post("/events", body).await.expect(201)["id"].as_i64().unwrap();
    let taken = scene.get("/events/subscribe?queue=strict&worker_id=w").await.expect(200);
    let refused = scene.post(&format!("/events/{id}/complete"), json!({ "worker_id": "w" })).await;
    assert_eq!(refused.status.as_u16() / 100, 4, "{}", refused.text);
    assert!(refused.text.contains("lease"), "{}", refused.text);
    assert_eq!(scene.status(id).await, "PROCESSING");
    let report = json!({ "worker_id": "w", "lease": taken["lease"] });
    scene.post(&format!("/events/{id}/complete"), report).await.expect(200);
    scene.close().await;
}

async fn an_abandoned_event_says_so(scene: Scene) {
    let id = scene.publish("a").await;
    scene.get("/events/subscribe?tags=a&worker_id=dead&lease_seconds=1").await.expect(200);
    let next = scene.get("/events/subscribe?tags=a&worker_id=heir&wait=60").await.expect(200);
    assert_eq!((&next["id"], &next["attempts"]), (&json!(id), &json!(2)));
    let shown = scene.get(&format!("/events/{id}?include_logs=true")).await.expect(200);
    let rows = shown["logs"].as_array().unwrap().iter();
    let rows: Vec<(&str, &str)> =
        rows.map(|row| (row["action"].as_str().unwrap(), row["worker_id"].as_str().unwrap())).collect();
    assert_eq!(rows, [("PICKED", "dead"), ("ABANDONED", "dead"), ("PICKED", "heir")], "{shown}");
    scene.post(&format!("/events/{id}/complete"), json!({ "worker_id": "dead" })).await.refused(409, "lease_lost");
    scene.close().await;
}

async fn a_worker_is_alive_right_after_its_call(scene: Scene) {
    let alone = scene.publish("other").await;
    assert_eq!(scene.get(&format!("/events/{alone}/why")).await.expect(200)["reason"], "no_live_consumer");
    let none = scene.get("/events/subscribe?tags=a&worker_id=w").await;
    assert_eq!(none.status.as_u16(), 204);
    let id = scene.publish("a").await;
    assert_eq!(scene.get(&format!("/events/{id}/why")).await.expect(200)["reason"], "ready");
    scene.close().await;
}

async fn one_of_many_failures_can_be_the_last(scene: Scene) {
    let mut ids = Vec::new();
    for retries in [0, 3] {
        let body = json!({ "title": "t", "tags": "a", "max_retries": retries });
        ids.push(scene.post("/events", body).await.expect(201)["id"].as_i64().unwrap());
        scene.take("a", "w").await;
    }
    let items: Vec<Value> = ids.iter().map(|id| json!({ "id": id })).collect();
    let answer = scene.post("/events/fail", json!({ "worker_id": "w", "events": items })).await.expect(200);
    let (last, again) = (&answer["results"][0], &answer["results"][1]);
    assert_eq!((&last["status"], &last["code"]), (&json!(400), &json!("max_retries_exceeded")));
    assert_eq!((&again["status"], &again["retry_scheduled"]), (&json!(200), &json!(true)));
    assert_eq!((scene.status(ids[0]).await.as_str(), scene.status(ids[1]).await.as_str()), ("FAILED", "PENDING"));
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_worker_that_holds_something_is_stale() {
    let mut options = Options::default();
    options.stale_after = std::time::Duration::from_millis(1);
    let scene = Scene::sqlite_with(options).await;
    scene.publish("a").await;
    scene.take("a", "w").await;
    let started = std::time::Instant::now();
    loop {
        let workers = scene.get("/workers").await.expect(200);
        if workers["workers"][0]["stale"] == true {
            break;
        }
        assert!(started.elapsed() < crate::scene::PATIENCE, "{workers}");
    }
    scene.close().await;
}
