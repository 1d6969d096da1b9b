//! Payloads go out exactly as they came in; batches answer each of their items; traces go from publisher to worker.

use reqwest::Method;
use serde_json::{Value, json};

use crate::scene::{Scene, on_both, send};

on_both!(
    payloads_go_out_as_they_came_in,
    batches_answer_each_item,
    claims_of_many,
    a_claim_hands_out_no_more_than_it_may_in_bytes
);

async fn payloads_go_out_as_they_came_in(scene: Scene) {
    let payloads = [
        r#"{"b":1.0,  "a":1e2,"a":2}"#,
        r#""text with \u0000 and \ud83d\ude00""#,
        "[1,2.50,-0.0,12345678901234567890123]",
        "null",
        "true",
        "  {\n\t\"x\" : [ ] }",
    ];
    for payload in payloads {
        let body = format!(r#"{{"title":"t","tags":"raw","payload":{payload}}}"#);
        let expected = format!("\"payload\":{}", payload.trim());
        let created = scene.post_text("/events", body).await;
        assert_eq!(created.status.as_u16(), 201, "{}", created.text);
        assert!(created.text.contains(&expected), "{} has no {expected}", created.text);
        let taken = scene.get("/events/subscribe?tags=raw&worker_id=w").await;
        assert!(taken.text.contains(&expected), "{} has no {expected}", taken.text);
        let id = taken.json()["id"].as_i64().unwrap();
        let shown = scene.get(&format!("/events/{id}")).await;
        assert!(shown.text.contains(&expected), "{} has no {expected}", shown.text);
    }
    scene.close().await;
}

async fn batches_answer_each_item(scene: Scene) {
    let items = json!([
        { "title": "one", "tags": ["x", "y"], "payload": 1 },
        { "title": "", "tags": "x" },
        { "title": "three", "tags": "x", "max_retries": 0 },
        7,
        { "title": "five", "tags": "x", "queue": "nowhere" },
    ]);
    let answer = scene.post("/events/batch", json!({ "events": items })).await.expect(200);
    let results = answer["results"].as_array().unwrap();
    let statuses: Vec<i64> = results.iter().map(|result| result["status"].as_i64().unwrap()).collect();
    assert_eq!(statuses, [201, 400, 201, 400, 404], "{answer}");
    assert_eq!(results[0]["event"]["tags"], "x,y");
    assert_eq!(results[1]["code"], "invalid_request");
    assert!(results[0]["event"]["id"].as_i64() < results[2]["event"]["id"].as_i64());

    let claimed = scene.post("/events/claim", json!({ "tags": "x", "worker_id": "w", "max": 10 })).await.expect(200);
    let events = claimed["events"].as_array().unwrap();
    assert_eq!(events.len(), 2, "{claimed}");
    let done = json!({ "worker_id": "w", "events": [
        { "id": events[0]["id"], "lease": events[0]["lease"], "status_code": 200 },
        { "id": 999_999 },
        { "id": "x" },
        { "id": events[1]["id"], "worker_id": "another worker" },
    ] });
    let answer = scene.post("/events/complete", done).await.expect(200);
    let statuses: Vec<i64> =
        answer["results"].as_array().unwrap().iter().map(|result| result["status"].as_i64().unwrap()).collect();
    assert_eq!(statuses, [200, 404, 400, 409], "{answer}");
    assert_eq!(answer["results"][0]["action"], "COMPLETED");
    let failed = json!({ "events": [{ "id": events[1]["id"], "worker_id": "w", "error_message": "no" }] });
    let answer = scene.post("/events/fail", failed).await.expect(200);
    assert_eq!(answer["results"][0]["status"], 400, "{answer}");
    assert_eq!(answer["results"][0]["code"], "max_retries_exceeded");
    assert_eq!(scene.status(events[1]["id"].as_i64().unwrap()).await, "FAILED");
    scene.close().await;
}

async fn claims_of_many(scene: Scene) {
    let items: Vec<Value> =
        (0..250).map(|n| json!({ "title": format!("{n}"), "tags": "many", "payload": n })).collect();
    scene.post("/events/batch", json!({ "events": items })).await.expect(200);
    let mut seen = Vec::new();
    for expected in [100, 100, 50, 0] {
        let body = json!({ "tags": "many", "worker_id": "w", "max": 100 });
        let events = scene.post("/events/claim", body).await.expect(200)["events"].as_array().unwrap().clone();
        assert_eq!(events.len(), expected);
        seen.extend(events.iter().map(|event| event["payload"].as_i64().unwrap()));
    }
    assert_eq!(seen, (0..250).collect::<Vec<i64>>());
    scene.close().await;
}

async fn a_claim_hands_out_no_more_than_it_may_in_bytes(scene: Scene) {
    let payload = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    let event = |_| tidegate::NewEvent::new("t", payload.clone()).title("large").tags(["large"]);
    let published = scene.queue.publish_many((0..20).map(event).collect()).await;
    assert!(published.iter().all(Result::is_ok));
    let mut taken = 0;
    while taken < 20 {
        let claimed = scene.post("/events/claim", json!({ "tags": "large", "worker_id": "w", "max": 1000 })).await;
        assert!(claimed.text.len() < 9 << 20, "{} bytes", claimed.text.len());
        let count = claimed.expect(200)["events"].as_array().unwrap().len();
        assert!((1..=8).contains(&count), "{count}");
        taken += count;
    }
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_goes_from_publisher_to_worker() {
    let scene = Scene::sqlite().await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let body = json!({ "title": "t", "tags": "traced" });
    let request = scene.request(Method::POST, "/events").header("traceparent", trace).json(&body);
    send(request).await.expect(201);
    let taken = scene.take("traced", "w").await;
    assert_eq!(taken["traceparent"], trace);
    let request = scene.request(Method::POST, "/events").header("traceparent", "nonsense").json(&body);
    send(request).await.expect(201);
    assert!(scene.take("traced", "w").await.get("traceparent").is_none());
    scene.close().await;
}
