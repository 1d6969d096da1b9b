//! `tidegate jobs`, `groups` and `pools` against a server that answers as it is told, and what `pools` changes on a real one.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::stub::Stub;
use crate::{Server, error, text, tidegate};

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

#[test]
fn pools_are_suspended_resumed_and_limited() {
    let server = Server::start(&[]);
    let file = server.dir.path().join("pool.yaml");
    std::fs::write(&file, "kind: Pool\ncode: partners\nname: Partners\nconcurrency: 20\nrateLimitPerMinute: 600\n")
        .unwrap();
    server.run(&["apply", "--yes", "--file", file.to_str().unwrap()]);
    let shows = |status: &str, concurrency: u32, rate: Option<u32>| {
        let found = server.json(&["pools", "show", "partners"]);
        let fields = ["name", "status", "concurrency", "rateLimitPerMinute"].map(|field| found[field].clone());
        assert_eq!(fields, [json!("Partners"), json!(status), json!(concurrency), json!(rate)], "{found}");
    };
    shows("ACTIVE", 20, Some(600));
    assert_eq!(server.run(&["pools", "suspend", "partners"]), "partners is suspended");
    shows("SUSPENDED", 20, Some(600));
    let said = server.run(&["pools", "set", "partners", "--concurrency", "5"]);
    assert_eq!(said, "partners delivers 5 at once, 600 per minute");
    shows("SUSPENDED", 5, Some(600));
    let id = server.json(&["pools", "show", "partners"])["id"].as_str().unwrap().to_owned();
    assert_eq!(server.run(&["pools", "resume", &id]), "partners is active");
    server.run(&["pools", "set", "partners", "--rate", "none", "--concurrency", "6"]);
    shows("ACTIVE", 6, None);
    assert_eq!(server.json(&["pools", "set", "partners", "--rate", "7"])["rateLimitPerMinute"], 7);
    for wrong in [&["pools", "set", "partners"][..], &["pools", "set", "partners", "--rate", "many"]] {
        let refused = tidegate(wrong).env("TIDEGATE_URL", &server.url).output().unwrap();
        assert!(!refused.status.success() && error(&refused).contains("--rate"), "{}", error(&refused));
    }
    let none = ["pools", "set", "partners", "--concurrency", "0"];
    let refused = tidegate(&none).env("TIDEGATE_URL", &server.url).output().unwrap();
    assert!(error(&refused).contains("concurrency must be 1"), "{}", error(&refused));
    shows("ACTIVE", 6, Some(7));
}

/// What somebody else has changed since the pool was read stays: the change is made again on that.
#[test]
fn a_pool_is_read_again_when_it_has_changed_meanwhile() {
    let changes = AtomicUsize::new(0);
    let stub = Stub::start(move |request| {
        let pool = json!({ "id": ID, "code": "slow", "name": "n", "status": "ACTIVE", "concurrency": 10 });
        if request.starts_with("PUT") && changes.fetch_add(1, Ordering::SeqCst) == 0 {
            return (412, json!({ "error": "it has changed", "code": "precondition_failed" }).to_string());
        }
        let answer = if request.contains('?') { json!({ "items": [pool] }) } else { pool };
        (200, answer.to_string())
    });
    let output = tidegate(&["pools", "suspend", "slow"]).env("TIDEGATE_URL", &stub.url).output().unwrap();
    assert!(output.status.success(), "{}", error(&output));
    let path = format!("/api/dispatch-pools/{ID}");
    let (read, change) = (format!("GET {path}"), format!("PUT {path}"));
    assert_eq!(stub.requests()[1..], [read.clone(), change.clone(), read, change]);
}
