//! `tidegate jobs`, `groups` and `pools` against a server that answers as it is told.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::stub::Stub;
use crate::{error, text, tidegate};

const ID: &str = "0HZXEQ5Y8JY5Z";

/// Many are changed only if that is said, and piece by piece, each where the last one ended.
#[test]
fn many_jobs_are_changed_piece_by_piece() {
    let pieces = AtomicUsize::new(0);
    let stub = Stub::start(move |request| {
        assert_eq!(request, "POST /api/dispatch-jobs/bulk");
        let answer = match pieces.fetch_add(1, Ordering::SeqCst) {
            0 => json!({ "done": 10_000, "refused": 1, "more": true, "nextCursor": "next" }),
            _ => json!({ "done": 5, "refused": 0, "more": false }),
        };
        (200, answer.to_string())
    });
    let run = |args: &[&str]| tidegate(args).env("TIDEGATE_URL", &stub.url).output().unwrap();
    let refused = run(&["jobs", "retry", "--status", "ERROR"]);
    assert!(!refused.status.success() && error(&refused).contains("--yes"), "{}", error(&refused));
    assert!(stub.requests().is_empty(), "nothing was sent");
    let both = run(&["jobs", "retry", ID, "--status", "ERROR"]);
    assert!(!both.status.success(), "an id and a filter: {}", text(&both));
    let done = run(&["jobs", "retry", "--status", "ERROR", "--yes", "--reason", "repaired"]);
    assert!(done.status.success(), "{}", error(&done));
    assert_eq!(text(&done).trim(), "10005 retried, 1 could not be");
    assert_eq!(stub.requests().len(), 2);
}

#[test]
fn jobs_are_shown_with_their_attempts() {
    let stub = Stub::start(|request| {
        let attempt = json!({
            "attemptNumber": 1, "generation": 1, "attemptedAt": "2030-01-31T10:30:00Z", "durationMillis": 7,
            "status": "CLIENT_ERROR", "responseCode": 404, "errorMessage": "the receiver answered 404\u{1b}[2J",
        });
        let job = json!({ "id": ID, "status": "ERROR", "code": "t", "attemptCount": 1, "attempts": [attempt] });
        let answer = match request {
            path if path.starts_with("GET /api/dispatch-jobs?") => json!({ "items": [job], "nextCursor": "next" }),
            path if path.ends_with("/why") => json!({ "jobId": ID, "reason": "blocks_group" }),
            _ => job,
        };
        (200, answer.to_string())
    });
    let run = |args: &[&str]| {
        let output = tidegate(args).env("TIDEGATE_URL", &stub.url).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", error(&output));
        output
    };
    let listed = run(&["jobs", "list", "--status", "ERROR", "--group", "a:b"]);
    assert!(text(&listed).contains(ID) && error(&listed).contains("--cursor next"), "{}", text(&listed));
    assert!(stub.requests()[0].contains("messageGroup=a%3Ab"), "{:?}", stub.requests());
    let shown = text(&run(&["jobs", "show", ID]));
    assert!(shown.contains("CLIENT_ERROR") && shown.contains("404") && !shown.contains('\u{1b}'), "{shown}");
    assert!(text(&run(&["jobs", "why", ID])).contains("blocks_group"));
    assert!(text(&run(&["jobs", "ignore", ID])).contains("ignored: ERROR"));
    let json: serde_json::Value = serde_json::from_str(&text(&run(&["jobs", "show", ID, "--json"]))).unwrap();
    assert_eq!(json["attempts"][0]["responseCode"], 404);
}

#[test]
fn groups_and_pools_are_tables() {
    let stub = Stub::start(|request| {
        let group = json!({
            "messageGroup": "hook:g", "blockedSince": "2030-01-31T10:30:00Z", "waiting": "1000+", "reason": "404",
            "blockedBy": { "id": ID },
        });
        let holds = json!({
            "inUse": 3, "waiting": "1000+", "waitingSubscriptions": 2, "oldestWaitingSeconds": 12, "suspended": false,
            "slots": [{ "node": "n", "slots": 4, "wanted": 3 }],
        });
        let pool = json!({ "id": ID, "code": "slow", "status": "ACTIVE", "concurrency": 10, "holds": holds });
        let items = if request.contains("groups") { json!([group]) } else { json!([pool]) };
        (200, json!({ "items": items }).to_string())
    });
    let run = |args: &[&str]| {
        let output = tidegate(args).env("TIDEGATE_URL", &stub.url).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", error(&output));
        text(&output)
    };
    let groups = run(&["groups"]);
    assert!(groups.contains("hook:g") && groups.contains(ID) && groups.contains("1000+"), "{groups}");
    let pools = run(&["pools", "list"]);
    assert!(pools.contains("slow") && pools.contains("3/10"), "{pools}");
    let shown = run(&["pools", "show", "slow"]);
    assert!(shown.contains("oldestWaitingSeconds") && shown.contains("NODE"), "{shown}");
}
