//! Repeated publishes and reports take effect once.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::scene::{Scene, on_both, send};

on_both!(
    a_completion_said_a_hundred_times_is_recorded_once,
    a_final_failure_said_again_gets_its_400_again,
    a_stale_worker_changes_nothing,
    a_key_answers_with_the_first_event,
    a_repeat_under_a_deduplication_id_shows_the_stored_event,
    a_repeat_is_the_same_request_whatever_the_queue_adds_to_it,
    a_repeat_is_answered_whatever_the_state_of_the_queue,
    a_key_of_a_batch_is_not_that_of_a_single_event,
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
    // Without a lease the report is about the worker's last recorded attempt.
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
    assert_eq!(failed.len(), 2, "each attempt has a record of its own: {failed:?}");
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

async fn a_repeat_under_a_deduplication_id_shows_the_stored_event(scene: Scene) {
    let body = json!({ "title": "first", "tags": "e,f", "payload": { "n": 1 }, "deduplication_id": "once" });
    let first = scene.post("/events", body.clone()).await.expect(201);
    scene.take("e", "w").await;
    let other = json!({
        "title": "second", "tags": "g", "payload": { "n": 1 }, "deduplication_id": "once", "description": "x",
        "priority": 5, "max_retries": 9,
    });
    let again = scene.post("/events", other.clone()).await.expect(200);
    let shown = scene.get(&format!("/events/{}", first["id"])).await.expect(200);
    assert_eq!(again, shown, "a repeat is answered with what is stored");
    assert_eq!(
        (&again["title"], &again["tags"], &again["status"]),
        (&json!("first"), &json!("e,f"), &json!("PROCESSING"))
    );
    // In a batch too, also for a key whose first use is in the same batch.
    let fresh = json!({ "title": "third", "tags": "e", "deduplication_id": "twice" });
    let batch = json!({ "events": [other, fresh.clone(), fresh] });
    let answer = scene.post("/events/batch", batch).await.expect(200);
    let status = |n: usize| answer["results"][n]["status"].as_i64().unwrap();
    assert_eq!([status(0), status(1), status(2)], [200, 201, 200], "{answer}");
    assert_eq!(answer["results"][0]["event"], shown);
    assert_eq!(answer["results"][2]["event"]["id"], answer["results"][1]["event"]["id"]);
    scene.post(&format!("/events/{}/complete", first["id"]), json!({ "worker_id": "w" })).await.expect(200);
    assert_eq!(scene.post("/events", body.clone()).await.expect(200)["status"], "COMPLETED");
    let mut changed = body;
    changed["payload"]["n"] = 2.into();
    scene.post("/events", changed).await.refused(422, "key_reused");
    scene.close().await;
}

async fn a_repeat_is_the_same_request_whatever_the_queue_adds_to_it(scene: Scene) {
    let body = json!({ "title": "t", "tags": "d" });
    let publish = |body: &Value| send(scene.request(Method::POST, "/events").header("Idempotency-Key", "k").json(body));
    let first = publish(&body).await.expect(201);
    scene.put("/queues/default", json!({ "max_retries": 7 })).await.expect(200);
    // Queue settings are cached briefly: publish until a new event has them.
    let started = std::time::Instant::now();
    while scene.post("/events", body.clone()).await.expect(201)["max_retries"] != 7 {
        assert!(started.elapsed() < crate::scene::PATIENCE);
    }
    let again = publish(&body).await.expect(200);
    assert_eq!((&again["id"], &again["max_retries"]), (&first["id"], &json!(3)));
    let mut other = body;
    other["max_retries"] = 3.into();
    publish(&other).await.refused(422, "key_reused");
    scene.close().await;
}

async fn a_repeat_is_answered_whatever_the_state_of_the_queue(scene: Scene) {
    scene.put("/queues/small", json!({ "depth_limit": 2 })).await.expect(200);
    let keyed = json!({ "title": "t", "tags": "d", "queue": "small" });
    let mut deduplicated = keyed.clone();
    deduplicated["deduplication_id"] = "once".into();
    let publish = |body: &Value| {
        let request = scene.request(Method::POST, "/events").json(body);
        send(if *body == keyed { request.header("Idempotency-Key", "k") } else { request })
    };
    let first = [publish(&keyed).await.expect(201), publish(&deduplicated).await.expect(201)];
    let fresh = json!({ "title": "new", "tags": "d", "queue": "small" });
    let check = async |state: &str, new: u16| {
        for (body, first) in [&keyed, &deduplicated].into_iter().zip(&first) {
            assert_eq!(publish(body).await.expect(200)["id"], first["id"], "{state}");
        }
        assert_eq!(publish(&fresh).await.status.as_u16(), new, "{state}");
        let batch = json!({ "events": [deduplicated, fresh] });
        let answer = scene.post("/events/batch", batch).await.expect(200);
        assert_eq!(
            (&answer["results"][0]["status"], &answer["results"][1]["status"]),
            (&json!(200), &json!(new)),
            "{state}"
        );
    };
    check("full", 429).await;
    scene.post("/queues/small/drain", json!({})).await.expect(200);
    check("draining", 429).await;
    scene.put("/queues/small", json!({ "depth_limit": null })).await.expect(200);
    check("draining without a depth limit", 429).await;
    let mut other = deduplicated.clone();
    other["payload"] = 1.into();
    publish(&other).await.refused(422, "key_reused");
    scene.post("/queues/small/pause", json!({})).await.expect(200);
    check("paused", 201).await;
    scene.close().await;
}

async fn a_key_of_a_batch_is_not_that_of_a_single_event(scene: Scene) {
    let event = json!({ "title": "t", "tags": "d" });
    let single =
        |key: &'static str| send(scene.request(Method::POST, "/events").header("Idempotency-Key", key).json(&event));
    let batch = |key: &'static str| {
        let body = json!({ "events": [event, event] });
        send(scene.request(Method::POST, "/events/batch").header("Idempotency-Key", key).json(&body))
    };
    let statuses = |answer: Value| -> Vec<i64> {
        answer["results"].as_array().unwrap().iter().map(|one| one["status"].as_i64().unwrap()).collect()
    };
    assert_eq!(statuses(batch("abc").await.expect(200)), [201, 201]);
    for key in ["abc", "abc/0", "abc/1", "batch:0:abc", "single:batch:0:abc"] {
        single(key).await.expect(201);
        single(key).await.expect(200);
    }
    assert_eq!(statuses(batch("abc").await.expect(200)), [200, 200]);
    single("a\tb").await.refused(400, "invalid_request");
    scene.close().await;
}
