//! Commands against a server that is slow, unavailable or far ahead of them.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::stub::Stub;
use crate::{error, text, tidegate};

/// The server takes the report only after it was unavailable for longer than the lease lasts.
#[test]
fn a_worker_keeps_its_lease_while_it_reports() {
    let reports = AtomicUsize::new(0);
    let claims = AtomicUsize::new(0);
    let stub = Stub::start(move |request| {
        let event = json!({ "id": 7, "title": "t", "tags": "a", "attempts": 1, "lease": 1, "payload": null });
        if request.starts_with("GET /events/subscribe") {
            match claims.fetch_add(1, Ordering::SeqCst) {
                0 => (200, event.to_string()),
                _ => (204, String::new()),
            }
        } else if request == "POST /events/7/complete" && reports.fetch_add(1, Ordering::SeqCst) < 2 {
            (503, json!({ "error": "the database does not answer", "code": "unavailable" }).to_string())
        } else {
            (200, "{}".into())
        }
    });
    let args = ["work", "--tags", "a", "--lease-seconds", "1", "--until-empty", "--", "true"];
    let output = tidegate(&args).env("TIDEGATE_URL", &stub.url).output().unwrap();
    assert!(output.status.success() && error(&output).contains("completed"), "{}", error(&output));
    let requests = stub.requests();
    let mut reporting = requests.iter().skip_while(|request| !request.ends_with("/complete"));
    assert!(reporting.any(|request| request == "POST /events/7/heartbeat"), "{requests:?}");
}

/// A page of events, newest first, from `newest` down, and the cursor of the next page if there is one.
fn page(newest: u64, query: &str) -> Value {
    let parameter = |name: &str| {
        let mut pairs = query.split(['?', '&']).filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).and_then(|(_, value)| value.parse::<u64>().ok())
    };
    let before = parameter("cursor").unwrap_or(newest + 1);
    let limit = parameter("limit").unwrap();
    let events = (1..before).rev().take(limit as usize);
    let event = |id: u64| json!({ "id": id, "created_at": "2030-01-31T10:30:00Z", "title": "t" });
    let last = before.saturating_sub(limit);
    let mut page = json!({ "events": events.map(event).collect::<Vec<_>>() });
    if last > 1 {
        page["next_cursor"] = last.to_string().into();
    }
    page
}

/// 2,500 events are published between two polls.
#[test]
fn a_tail_shows_all_events_however_many_came_at_once() {
    let polls = AtomicUsize::new(0);
    let stub = Stub::start(move |request| {
        let newest = if polls.fetch_add(1, Ordering::SeqCst) == 0 { 3_000 } else { 5_500 };
        (200, page(newest, request).to_string())
    });
    let args = ["tail", "-n", "2", "--count", "2502", "--json"];
    let output = tidegate(&args).env("TIDEGATE_URL", &stub.url).output().unwrap();
    assert!(output.status.success(), "{}", error(&output));
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_u64().unwrap();
    let shown: Vec<u64> = text(&output).lines().map(id).collect();
    assert!(shown.iter().copied().eq(2_999..=5_500), "{} events, {:?}…", shown.len(), &shown[..3]);
}
