//! The source document, request by request: each example gives the documented status and body, values aside.

use serde_json::{Value, json};
use tidegate::Timestamp;

use crate::scene::{Scene, on_both, send};

on_both!(
    a_job_is_published_taken_and_completed,
    a_failure_is_retried_and_the_last_one_ends_it,
    events_are_listed,
    a_publisher_and_two_workers
);

/// The event that the document publishes.
fn mail() -> Value {
    json!({
        "title": "Send Email Notification",
        "description": "Send welcome email to new user",
        "tags": "email,priority-high,notification",
        "payload": {
            "user_id": 12345,
            "email": "user@example.com",
            "template": "welcome",
            "variables": { "name": "Alice", "signup_date": "2025-12-24" }
        }
    })
}

#[track_caller]
fn has_fields(body: &Value, fields: &[(&str, Value)]) {
    for (name, expected) in fields {
        assert_eq!(body.get(*name), Some(expected), "{name} in {body}");
    }
}

#[track_caller]
fn is_moment(body: &Value, name: &str) -> Timestamp {
    let text = body[name].as_str().unwrap_or_else(|| panic!("{name} in {body}"));
    assert!(text.ends_with('Z'), "{name} is not UTC: {text}");
    text.parse().unwrap()
}

async fn a_job_is_published_taken_and_completed(scene: Scene) {
    let created = scene.post("/events", mail()).await.expect(201);
    let id = created["id"].as_i64().unwrap();
    let mut expected: Vec<(&str, Value)> = vec![
        ("title", "Send Email Notification".into()),
        ("description", "Send welcome email to new user".into()),
        ("tags", "email,priority-high,notification".into()),
        ("status", "PENDING".into()),
        ("payload", mail()["payload"].clone()),
        ("retry_count", 0.into()),
        ("max_retries", 3.into()),
        ("next_retry_at", Value::Null),
    ];
    has_fields(&created, &expected);
    assert_eq!(is_moment(&created, "created_at"), is_moment(&created, "updated_at"));

    let taken = scene.get("/events/subscribe?tags=email,notification&worker_id=worker-02:8742").await.expect(200);
    has_fields(
        &taken,
        &[
            ("id", id.into()),
            ("title", "Send Email Notification".into()),
            ("tags", "email,priority-high,notification".into()),
            ("status", "PROCESSING".into()),
            ("payload", mail()["payload"].clone()),
            ("retry_count", 0.into()),
            ("max_retries", 3.into()),
            ("created_at", created["created_at"].clone()),
            ("attempts", 1.into()),
        ],
    );
    assert!(taken["lease"].is_i64());
    assert!(is_moment(&taken, "lease_until") > Timestamp::now());

    let none = scene.get("/events/subscribe?tags=email,notification&worker_id=worker-02:8742").await;
    assert_eq!((none.status.as_u16(), none.text.as_str()), (204, ""));

    let body = json!({ "worker_id": "worker-02:8742", "execution_time_ms": 1250, "status_code": 200 });
    let done = scene.post(&format!("/events/{id}/complete"), body).await.expect(200);
    has_fields(
        &done,
        &[
            ("event_id", id.into()),
            ("worker_id", "worker-02:8742".into()),
            ("action", "COMPLETED".into()),
            ("status_code", 200.into()),
            ("execution_time_ms", 1250.into()),
        ],
    );
    is_moment(&done, "created_at");

    let shown = scene.get(&format!("/events/{id}?include_logs=true")).await.expect(200);
    expected[3].1 = "COMPLETED".into();
    has_fields(&shown, &expected);
    assert_eq!(shown["created_at"], created["created_at"]);
    has_logs(&shown, &done);
    assert!(scene.get(&format!("/events/{id}")).await.expect(200).get("logs").is_none());
    scene.close().await;
}

/// The logs of an event that `worker-02:8742` took and completed, with the answer to the latter.
fn has_logs(shown: &Value, done: &Value) {
    let logs = shown["logs"].as_array().unwrap();
    assert_eq!(logs.len(), 2, "{shown}");
    has_fields(&logs[0], &[("worker_id", "worker-02:8742".into()), ("action", "PICKED".into())]);
    for absent in ["status_code", "error_message", "execution_time_ms"] {
        assert!(logs[0].get(absent).is_none(), "{absent} in {}", logs[0]);
    }
    has_fields(
        &logs[1],
        &[
            ("worker_id", "worker-02:8742".into()),
            ("action", "COMPLETED".into()),
            ("status_code", 200.into()),
            ("execution_time_ms", 1250.into()),
            ("created_at", done["created_at"].clone()),
        ],
    );
    assert!(logs[0]["id"].as_i64() < logs[1]["id"].as_i64());
    assert!(is_moment(&logs[0], "created_at") <= is_moment(&logs[1], "created_at"));
}

async fn a_failure_is_retried_and_the_last_one_ends_it(scene: Scene) {
    let id = scene.post("/events", mail()).await.expect(201)["id"].as_i64().unwrap();
    scene.take("email", "worker-02:8742").await;
    let body = json!({
        "worker_id": "worker-02:8742", "execution_time_ms": 5000, "status_code": 500,
        "error_message": "Connection timeout: mail server unreachable. Will retry."
    });
    let failed = scene.post(&format!("/events/{id}/fail"), body.clone()).await.expect(200);
    has_fields(
        &failed,
        &[
            ("event_id", id.into()),
            ("worker_id", "worker-02:8742".into()),
            ("action", "FAILED".into()),
            ("status_code", 500.into()),
            ("error_message", body["error_message"].clone()),
            ("execution_time_ms", 5000.into()),
            ("retry_scheduled", true.into()),
        ],
    );
    let wait = is_moment(&failed, "next_retry_at").duration_since(is_moment(&failed, "created_at"));
    assert!((wait.as_millis() - 300_000).abs() < 1_000, "{wait:?}"); // the two moments are taken one after the other
    let shown = scene.get(&format!("/events/{id}")).await.expect(200);
    has_fields(
        &shown,
        &[("status", "PENDING".into()), ("retry_count", 1.into()), ("next_retry_at", failed["next_retry_at"].clone())],
    );

    // The same with retries that are due at once: the fourth failure is the last.
    let mut quick = mail();
    quick["tags"] = "quick".into();
    quick["retry"] = json!({ "kind": "fixed", "delay_ms": 0 });
    let id = scene.post("/events", quick).await.expect(201)["id"].as_i64().unwrap();
    for attempt in 0..3 {
        let taken = scene.take("quick", "w:1").await;
        assert_eq!((taken["retry_count"].as_i64(), taken["attempts"].as_i64()), (Some(attempt), Some(attempt + 1)));
        let failed = scene.post(&format!("/events/{id}/fail"), json!({ "worker_id": "w:1" })).await.expect(200);
        assert_eq!(failed["retry_scheduled"], true);
    }
    scene.take("quick", "w:1").await;
    let last = scene.post(&format!("/events/{id}/fail"), json!({ "worker_id": "w:1" })).await.expect(400);
    has_fields(
        &last,
        &[("error", "Max retries exceeded".into()), ("retry_count", 3.into()), ("max_retries", 3.into())],
    );
    let shown = scene.get(&format!("/events/{id}?include_logs=true")).await.expect(200);
    has_fields(&shown, &[("status", "FAILED".into()), ("retry_count", 3.into()), ("next_retry_at", Value::Null)]);
    let actions: Vec<&str> =
        shown["logs"].as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["PICKED", "FAILED", "PICKED", "FAILED", "PICKED", "FAILED", "PICKED", "FAILED"]);

    let reset = scene.post(&format!("/events/{id}/reset?reason=worker_timeout"), Value::Null).await.expect(200);
    has_fields(&reset, &[("status", "PENDING".into()), ("retry_count", 0.into()), ("next_retry_at", Value::Null)]);
    let shown = scene.get(&format!("/events/{id}?include_logs=true")).await.expect(200);
    let row = shown["logs"].as_array().unwrap().last().unwrap().clone();
    has_fields(&row, &[("action", "RESET".into()), ("reason", "worker_timeout".into())]);
    scene.close().await;
}

async fn events_are_listed(scene: Scene) {
    let done = scene.post("/events", mail()).await.expect(201)["id"].as_i64().unwrap();
    scene.take("email", "w:1").await;
    scene.post(&format!("/events/{done}/complete"), json!({ "worker_id": "w:1" })).await.expect(200);
    let payment = json!({ "title": "Process Payment", "tags": "payment,priority-high", "payload": 1 });
    let waiting = scene.post("/events", payment).await.expect(201)["id"].as_i64().unwrap();
    scene.take("payment", "w:1").await;
    scene.post(&format!("/events/{waiting}/fail"), json!({ "worker_id": "w:1" })).await.expect(200);

    let page = scene.get("/events?limit=10").await.expect(200);
    has_fields(&page, &[("total", 2.into()), ("limit", 10.into()), ("offset", 0.into())]);
    let events = page["events"].as_array().unwrap();
    let find = |id: i64| events.iter().find(|event| event["id"] == id).unwrap();
    has_fields(
        find(done),
        &[
            ("title", "Send Email Notification".into()),
            ("status", "COMPLETED".into()),
            ("tags", "email,priority-high,notification".into()),
            ("retry_count", 0.into()),
        ],
    );
    assert!(find(done).get("next_retry_at").is_none());
    has_fields(
        find(waiting),
        &[
            ("title", "Process Payment".into()),
            ("status", "PENDING".into()),
            ("tags", "payment,priority-high".into()),
            ("retry_count", 1.into()),
        ],
    );
    is_moment(find(waiting), "next_retry_at");
    for event in events {
        is_moment(event, "created_at");
        is_moment(event, "updated_at");
        assert!(event.get("payload").is_none() && event.get("description").is_none(), "{event}");
    }
    let pending = scene.get("/events?status=PENDING&limit=10").await.expect(200);
    assert_eq!((pending["total"].as_i64(), &pending["events"][0]["id"]), (Some(1), &json!(waiting)));
    let defaults = scene.get("/events").await.expect(200);
    has_fields(&defaults, &[("limit", 20.into()), ("offset", 0.into())]);
    scene.close().await;
}

async fn a_publisher_and_two_workers(scene: Scene) {
    let body = json!({
        "title": "Batch Report Generation", "tags": "reporting,batch",
        "payload": { "report_type": "sales", "month": "2025-12" }
    });
    let created = scene.post("/events", body).await.expect(201);
    assert_eq!(created["description"], Value::Null);
    let id = created["id"].as_i64().unwrap();
    let taken = scene.get("/events/subscribe?tags=reporting&worker_id=worker-03:9100").await.expect(200);
    assert_eq!((&taken["id"], &taken["status"]), (&json!(id), &json!("PROCESSING")));
    let none = scene.get("/events/subscribe?tags=payment&worker_id=worker-04:9101").await;
    assert_eq!(none.status.as_u16(), 204);
    let holder = json!({ "worker_id": "worker-03:9100", "lease": taken["lease"] });
    let started = scene.post(&format!("/events/{id}/start"), holder.clone()).await.expect(200);
    has_fields(&started, &[("action", "STARTED".into()), ("event_id", id.into())]);
    let kept = scene.post(&format!("/events/{id}/heartbeat"), holder).await.expect(200);
    assert!(is_moment(&kept, "lease_until") >= is_moment(&taken, "lease_until"));
    let body = json!({ "worker_id": "worker-03:9100", "execution_time_ms": 15000, "status_code": 200 });
    scene.post(&format!("/events/{id}/complete"), body).await.expect(200);
    assert_eq!(scene.status(id).await, "COMPLETED");
    let why = scene.get(&format!("/events/{id}/why")).await.expect(200);
    assert_eq!(why["reason"], "ended");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_committed_description_is_the_generated_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let generated = tidegate_server::openapi();
    if std::env::var_os("TIDEGATE_WRITE_OPENAPI").is_some() {
        std::fs::write(path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == generated,
        "docs/openapi.json is out of date: run this test with TIDEGATE_WRITE_OPENAPI=1 and commit the file"
    );
}

#[test]
fn every_operation_has_a_name_of_its_own() {
    let described: Value = serde_json::from_str(&tidegate_server::openapi()).unwrap();
    let operations =
        described["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
    let mut names: Vec<&str> = operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "clients are generated with these names: {names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_description_and_its_pages_are_served_without_a_network() {
    let scene = Scene::sqlite().await;
    let described = scene.get("/openapi.json").await.expect(200);
    assert_eq!(described["openapi"], "3.1.0");
    let paths = ["/events", "/events/subscribe", "/events/{id}/complete", "/queues/{name}", "/workers", "/projections"];
    for path in paths {
        assert!(described["paths"].get(path).is_some(), "{path}");
    }
    let page = scene.get("/docs/").await;
    assert_eq!(page.status.as_u16(), 200);
    assert!(page.text.contains("swagger"), "{}", page.text);
    assert!(!page.text.contains("https://"), "{}", page.text);
    let script = scene.get("/docs/swagger-initializer.js").await;
    assert!(script.text.contains("/openapi.json"), "{}", script.text);
    scene.get("/docs/../../etc/passwd").await.refused(404, "not_found");
    let live = send(scene.request(reqwest::Method::GET, "/livez")).await.expect(200);
    assert_eq!(live["status"], "ok");
    assert_eq!(scene.get("/readyz").await.expect(200)["status"], "ok");
    scene.close().await;
}
