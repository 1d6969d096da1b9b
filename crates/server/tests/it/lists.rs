//! Pages of events.

use serde_json::{Value, json};

use crate::scene::{Scene, on_both};

on_both!(filters_pages_and_cursors);

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
