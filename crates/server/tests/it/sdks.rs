//! The official SDKs of CloudEvents against a running server: what they send, in all modes, is stored, gets to those who
//! subscribed to it, and is the same event to the SDK that reads it. The programs that use the SDKs are in `tests/sdks`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::scene::{Scene, on_both};

on_both!(python, javascript);

/// What `scripts/install-sdks` was told to install: these files are copied to where it installed them.
const PINNED: [(&str, &str); 2] = [
    ("requirements.txt", include_str!("../sdks/requirements.txt")),
    ("package.json", include_str!("../sdks/package.json")),
];

async fn python(scene: Scene) {
    let mut program = Command::new(installed("python/bin/python"));
    program.arg(program_file("send.py"));
    // 13 events in three modes by the present API; 9 in binary and 10 in other modes by the older one.
    check(scene, program, 3 * 13 + 9 + 2 * 10).await;
}

async fn javascript(scene: Scene) {
    let mut program = Command::new("node");
    program.arg(program_file("send.cjs")).env("NODE_PATH", installed("node_modules"));
    // 12 events in binary mode and 13 in the others.
    check(scene, program, 12 + 2 * 13).await;
}

/// Runs a program, which fails by itself when it reads anything else than it sent, and checks that it sent so many events.
async fn check(scene: Scene, mut program: Command, events: u64) {
    let all = json!({
        "code": "all", "name": "all", "eventTypes": [{ "eventTypeCode": "com.example.someevent" }],
        "target": "queue:default",
    });
    scene.post("/api/subscriptions", all).await.expect(201);
    program.arg(scene.address());
    let output = tokio::task::spawn_blocking(move || program.output()).await.unwrap();
    let output = output.unwrap_or_else(|error| panic!("{error}: {MISSING}"));
    let [said, wrong] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{}: {said}{wrong}", output.status);
    let said: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said:?} {wrong}"));
    assert_eq!(said["stored"], events, "events stored");
    // Each is read at least once, and most once more in the answer to a repeat.
    assert!(said["read"].as_u64().unwrap() > events, "{said}");
    let entries = scene.get("/events?limit=1").await.expect(200);
    assert_eq!(entries["total"], events, "each event has an entry, a repeat has none of its own");
    scene.close().await;
}

const MISSING: &str =
    "run scripts/install-sdks, which installs the SDKs of CloudEvents, or scripts/test, which runs it";

/// A path below the folder of the SDKs.
fn installed(path: &str) -> PathBuf {
    let sdks = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("sdks");
    for (file, pinned) in PINNED {
        let found = std::fs::read_to_string(sdks.join(file)).unwrap_or_default();
        assert!(found == pinned, "{} is not as in crates/server/tests/sdks: {MISSING}", sdks.join(file).display());
    }
    let path = sdks.join(path);
    assert!(path.exists(), "there is no {}: {MISSING}", path.display());
    path
}

fn program_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdks").join(name)
}
