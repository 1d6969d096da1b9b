//! Lists of events, audit rows and workers: filters, totals, pages and cursors.

use serde_json::{Value, json};

use crate::scene::{Scene, on_both};

on_both!(
    filters_pages_and_cursors,
    offsets_are_bounded_and_invent_no_total,
    tags_that_name_none_are_refused,
    an_audit_comes_in_pages,
    workers_come_in_pages,
);

fn ids(page: &Value) -> Vec<i64> {
    page["events"].as_array().unwrap().iter().map(|event| event["id"].as_i64().unwrap()).collect()
}

async fn filters_pages_and_cursors(scene: Scene) {
    scene.put("/queues/side", json!({})).await.expect(200);
    let events: Vec<Value> = (0..45)
        .map(|n| {
            json!({
                "title": format!("event {n}"),
                "tags": if n % 2 == 0 { "even" } else { "odd,rare" },
                "queue": if n < 5 { "side" } else { "default" },
                "type": if n % 3 == 0 { "third" } else { "other" },
            })
        })
        .collect();
    let answer = scene.post("/events/batch", json!({ "events": events })).await.expect(200);
    let all: Vec<i64> =
        answer["results"].as_array().unwrap().iter().map(|result| result["event"]["id"].as_i64().unwrap()).collect();
    let done = scene.post("/events/claim", json!({ "tags": "even", "worker_id": "w", "max": 3 })).await.expect(200);
    let done: Vec<Value> =
        done["events"].as_array().unwrap().iter().map(|event| json!({ "id": event["id"] })).collect();
    assert_eq!(done.len(), 3);
    scene.post("/events/complete", json!({ "worker_id": "w", "events": done })).await.expect(200);

    for (query, total) in [
        ("", 45),
        ("status=COMPLETED", 3),
        ("status=PENDING", 42),
        ("status=FAILED", 0),
        ("tags=even", 23),
        ("tags=rare", 22),
        ("tags=even,odd", 45),
        ("tags=nothing", 0),
        ("status=COMPLETED&tags=even", 3),
        ("status=COMPLETED&tags=odd", 0),
        ("queue=side", 5),
        ("type=third", 15),
        ("worker_id=w", 3),
        ("from=2100-01-01T00:00:00Z", 0),
        ("to=2100-01-01T00:00:00Z&queue=side", 5),
    ] {
        let page = scene.get(&format!("/events?limit=1000&{query}")).await.expect(200);
        assert_eq!(page["events"].as_array().unwrap().len(), total, "{query}: {page}");
        assert_eq!(page["total"], total, "{query}");
        assert_eq!(page["total_capped"], false, "{query}");
    }

    let mut expected = all.clone();
    expected.reverse();
    let mut by_offset = Vec::new();
    for offset in (0..60).step_by(20) {
        let page = scene.get(&format!("/events?limit=20&offset={offset}")).await.expect(200);
        assert_eq!(page["offset"], offset);
        by_offset.extend(ids(&page));
    }
    assert_eq!(by_offset, expected);
    let mut by_cursor = Vec::new();
    let mut cursor = String::new();
    for _ in 0..20 {
        let page = scene.get(&format!("/events?limit=7{cursor}")).await.expect(200);
        by_cursor.extend(ids(&page));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(by_cursor, expected);
    scene.close().await;
}

async fn offsets_are_bounded_and_invent_no_total(scene: Scene) {
    for _ in 0..3 {
        scene.publish("x,y").await;
    }
    let told = scene.get("/events?tags=x,y&offset=1000000").await.refused(400, "invalid_request");
    assert!(told.contains("cursor"), "{told}");
    let page = scene.get("/events?tags=x,y&offset=10000").await.expect(200);
    assert_eq!((&page["total"], &page["total_capped"]), (&json!(3), &json!(false)), "{page}");
    scene.close().await;
}

async fn tags_that_name_none_are_refused(scene: Scene) {
    let id = scene.publish("a").await;
    for path in ["/events?tags=,,,", "/events?tags=%20,%20", "/events/subscribe?tags=,,,&queue=default&worker_id=w"] {
        let told = scene.get(path).await.refused(400, "invalid_request");
        assert!(told.contains("tags"), "{path}: {told}");
    }
    assert_eq!(scene.status(id).await, "PENDING", "no worker got it");
    scene.close().await;
}

async fn an_audit_comes_in_pages(scene: Scene) {
    let body = json!({ "title": "t", "tags": "a", "max_retries": 100, "retry": { "kind": "fixed", "delay_ms": 0 } });
    let id = scene.post("/events", body).await.expect(201)["id"].as_i64().unwrap();
    let message = "m".repeat(60_000);
    for _ in 0..30 {
        scene.get("/events/subscribe?tags=a&worker_id=w&wait=10").await.expect(200);
        let failed = json!({ "worker_id": "w", "error_message": message });
        scene.post(&format!("/events/{id}/fail"), failed).await.expect(200);
    }
    let whole = scene.get(&format!("/events/{id}?include_logs=true&logs_limit=1000")).await.expect(200);
    let shown = whole["logs"].as_array().unwrap().len();
    assert!((20..60).contains(&shown), "cut at a megabyte of messages, not at {shown} rows");
    for limit in [7, 1000] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/events/{id}?include_logs=true&logs_limit={limit}{cursor}");
            let page = scene.get(&path).await.expect(200);
            let logs = page["logs"].as_array().unwrap();
            assert!(logs.len() <= limit);
            seen.extend(logs.iter().map(|row| row["action"].as_str().unwrap().to_owned()));
            match page["logs_next_cursor"].as_str() {
                Some(next) => cursor = format!("&logs_cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen.len(), 60, "{seen:?}");
        assert_eq!(seen.iter().filter(|action| *action == "FAILED").count(), 30, "{seen:?}");
    }
    scene.get(&format!("/events/{id}?include_logs=true&logs_cursor=7")).await.refused(400, "invalid_request");
    scene.close().await;
}

async fn workers_come_in_pages(scene: Scene) {
    for number in 0..5 {
        scene.publish("a").await;
        scene.take("a", &format!("host-{number}:1")).await;
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = scene.get(&format!("/workers?limit=2{cursor}")).await.expect(200);
        let workers = page["workers"].as_array().unwrap();
        assert!(workers.len() <= 2);
        seen.extend(workers.iter().map(|worker| worker["worker_id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, (0..5).map(|number| format!("host-{number}:1")).collect::<Vec<_>>());
    scene.get("/workers?cursor=x").await.refused(400, "invalid_request");
    scene.get("/workers?limit=0").await.refused(400, "invalid_request");
    scene.close().await;
}
