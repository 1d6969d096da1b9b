//! What is said twice happens once.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::scene::{Scene, on_both, send};

on_both!(
    a_completion_said_a_hundred_times_is_recorded_once,
    a_final_failure_said_again_gets_its_400_again,
    a_stale_worker_changes_nothing,
    a_key_answers_with_the_first_event,
);

async fn logs(scene: &Scene, id: i64) -> Vec<Value> {
    scene.get(&format!("/events/{id}?include_logs=true")).await.expect(200)["logs"].as_array().unwrap().clone()
}

async fn a_completion_said_a_hundred_times_is_recorded_once(scene: Scene) {
    let id = scene.publish("a").await;
    let lease = scene.take("a", "w:1").await["lease"].clone();
    let body = json!({ "worker_id": "w:1", "lease": lease, "status_code": 200, "execution_time_ms": 5 });
    let path = format!("/events/{id}/complete");
    let answers = join_all((0..100).map(|_| scene.post(&path, body.clone()))).await;
    let first = answers[0].expect(200);
    for answer in &answers {
        assert_eq!(answer.expect(200), first);
    }
    assert_eq!(logs(&scene, id).await.len(), 2);
    // Without the lease it is the worker's last recorded attempt.
    let again = scene.post(&path, json!({ "worker_id": "w:1" })).await.expect(200);
    assert_eq!(again, first);
    scene.close().await;
}

async fn a_final_failure_said_again_gets_its_400_again(scene: Scene) {
    let body = json!({ "title": "t", "tags": "b", "max_retries": 1, "retry": { "kind": "fixed", "delay_ms": 0 } });
    let id = scene.post("/events", body).await.expect(201)["id"].as_i64().unwrap();
    let path = format!("/events/{id}/fail");
    let mut leases = Vec::new();
    for _ in 0..2 {
        leases.push(scene.take("b", "w:1").await["lease"].clone());
        let report = json!({ "worker_id": "w:1", "lease": leases.last().unwrap(), "error_message": "no" });
        let answers = join_all((0..20).map(|_| scene.post(&path, report.clone()))).await;
        for answer in &answers {
            assert_eq!((answer.status, answer.json()), (answers[0].status, answers[0].json()));
        }
    }
    let failed: Vec<Value> = logs(&scene, id).await.into_iter().filter(|row| row["action"] == "FAILED").collect();
    assert_eq!(failed.len(), 2, "a later attempt is a record of its own: {failed:?}");
    let first = scene.post(&path, json!({ "worker_id": "w:1", "lease": leases[0] })).await.expect(200);
    assert_eq!(first["retry_scheduled"], true);
    let last = scene.post(&path, json!({ "worker_id": "w:1", "lease": leases[1] })).await.expect(400);
    assert_eq!((&last["retry_count"], &last["max_retries"]), (&json!(1), &json!(1)));
    scene.close().await;
}

async fn a_stale_worker_changes_nothing(scene: Scene) {
    let id = scene.publish("c").await;
    let old = scene.take("c", "w:1").await["lease"].clone();
    scene.post(&format!("/events/{id}/complete"), json!({ "worker_id": "w:2" })).await.refused(409, "lease_lost");
    scene.post(&format!("/events/{id}/reset"), json!({})).await.expect(200);
    let new = scene.take("c", "w:2").await["lease"].clone();
    assert!(old.as_i64() < new.as_i64());
    for verb in ["complete", "fail", "start", "heartbeat"] {
        let path = format!("/events/{id}/{verb}");
        scene.post(&path, json!({ "worker_id": "w:1", "lease": old })).await.refused(409, "lease_lost");
        scene.post(&path, json!({ "worker_id": "w:1" })).await.refused(409, "lease_lost");
        scene.post(&path, json!({ "worker_id": "w:1", "lease": new })).await.refused(409, "lease_lost");
    }
    assert_eq!(scene.status(id).await, "PROCESSING");
    scene.post(&format!("/events/{id}/complete"), json!({ "worker_id": "w:2", "lease": new })).await.expect(200);
    scene
        .post(&format!("/events/{id}/fail"), json!({ "worker_id": "w:1", "lease": old }))
        .await
        .refused(409, "lease_lost");
    assert_eq!(scene.status(id).await, "COMPLETED");
    scene.post(&format!("/events/{id}/reset"), json!({})).await.refused(409, "conflict");
    scene.close().await;
}

async fn a_key_answers_with_the_first_event(scene: Scene) {
    let body = json!({ "title": "t", "tags": "d", "payload": { "n": 1 } });
    let publish = |key: &'static str, body: Value| {
        send(scene.request(Method::POST, "/events").header("Idempotency-Key", key).json(&body))
    };
    let first = publish("k1", body.clone()).await.expect(201);
    let again = publish("k1", body.clone()).await.expect(200);
    assert_eq!((&first["id"], &first["created_at"]), (&again["id"], &again["created_at"]));
    let mut other = body.clone();
    other["payload"]["n"] = 2.into();
    publish("k1", other.clone()).await.refused(422, "key_reused");
    publish("k2", other.clone()).await.expect(201);
    publish("", body.clone()).await.refused(400, "invalid_request");

    let mut deduplicated = body;
    deduplicated["deduplication_id"] = "once".into();
    let first = scene.post("/events", deduplicated.clone()).await.expect(201);
    assert_eq!(scene.post("/events", deduplicated.clone()).await.expect(200)["id"], first["id"]);
    deduplicated["payload"]["n"] = 3.into();
    scene.post("/events", deduplicated).await.refused(422, "key_reused");
    assert_eq!(scene.get("/events?tags=d").await.expect(200)["total"], 3);
    scene.close().await;
}
