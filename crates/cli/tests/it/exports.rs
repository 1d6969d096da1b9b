//! What an export brings back, and what applies at the same time leave.

use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::apply::Scene;
use crate::{error, text, tidegate};

/// Documents of every kind, each with every field at another value than its default.
const EVERY_FIELD: &str = r#"
kind: Client
code: acme
name: Acme Ltd
---
kind: Queue
name: mail
client: acme
state: paused
depth_limit: 1234
lease_seconds: 77
max_retries: 5
retry: { kind: list, delays_ms: [1, 2, 3] }
require_lease: true
---
kind: Pool
code: partners
client: acme
name: Partners of Acme
concurrency: 20
rateLimitPerMinute: 600
status: SUSPENDED
---
kind: EventType
code: shop:orders:order:created
name: Order created
description: "An order, created"
status: CURRENT
versions:
  - version: "1.0"
    status: DEPRECATED
    schemaType: JSON_SCHEMA
    mimeType: application/vnd.order+json
    strict: true
    schema: '{"type": "object", "required": ["total"]}'
  - version: "1.1"
    status: CURRENT
    schemaType: JSON_SCHEMA
    mimeType: application/json
    force: { reason: "the field is always there" }
    schema: '{"type": "object", "required": ["total", "currency"]}'
  - version: "2.0"
    status: FINALISING
    schemaType: PROTO
    mimeType: application/x-protobuf
    message: Order
    schema: |
      syntax = "proto3";
      message Order { int64 total = 1; }
---
kind: Schema
name: address
description: Where somebody lives
schemaType: XSD
mimeType: text/xml
content: |
  <xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
    <xs:element name="address" type="xs:string"/>
  </xs:schema>
---
kind: Subscription
code: order-mails
client: acme
name: Order mails
description: "Mails: one per order"
status: PAUSED
eventTypes:
  - { eventType: "shop:orders:order:created", specVersion: "1.1" }
  - { eventTypeCode: "shop:*:line:*", specVersion: "3.0" }
target: https://example.com/hook?a=b
queue: own-transport
mode: BLOCK_ON_ERROR
dispatchPool: partners
timeoutSeconds: 7
maxRetries: 8
retryStrategy: { type: exponential, baseSeconds: 2, maxSeconds: 200 }
maxAgeSeconds: 3600
delaySeconds: 9
sequence: -4
dataOnly: false
customConfig:
  - { key: team, value: orders }
serviceAccount: sender
filter:
  - { gte: { data/amount: 12345678901234567890.12345678901234567890 } }
  - { any: [{ prefix: { subject: "order:" } }, { exact: { context.region: eu } }] }
---
kind: Schedule
name: nightly report
cron: 30 2 * * MON-FRI
timezone: Europe/Berlin
missed: all
paused: true
event:
  type: report.wanted
  payload: { digits: 0.10000000000000000000001, big: 99999999999999999999, list: [1, 2.5, null, "x", 0.30000000000000000000003] }
  content_type: application/vnd.report+json
  title: Nightly report
  description: What happened
  tags: [reports, nightly]
  queue: mail
  client: acme
  source: /reports
  subject: "report:nightly"
  external_id: e-1
  correlation_id: c-1
  causation_id: c-0
  attributes: { region: eu }
  priority: -5
  delay_seconds: 60
  message_group: reports
  rank: 3
  keep_place: true
  deduplication_id: d-1
  deduplication_mode: replace_waiting
  deduplication_seconds: 7200
  expires_after_seconds: 86400
  max_retries: 4
  retries_of_queue: true
  exhausted_as: COMPLETED_WITH_ERRORS
  retry: { kind: exponential, base_ms: 1000, max_ms: 60000, factor: 3.0, jitter: 0.5 }
---
kind: Schedule
name: once
cron: "@daily"
missed: skip
event: { type: t, payload_base64: "AP/+", content_type: application/octet-stream, expires_at: "2099-01-01T00:00:00Z" }
"#;

/// Whether one value holds all that another says.
#[track_caller]
fn holds(found: &Value, said: &Value, place: &str) {
    match (found, said) {
        (Value::Object(found), Value::Object(said)) => {
            for (name, said) in said {
                holds(found.get(name).unwrap_or(&Value::Null), said, &format!("{place}.{name}"));
            }
        }
        (Value::Array(found), Value::Array(said)) => {
            assert_eq!(found.len(), said.len(), "{place}: {found:?}");
            for (at, said) in said.iter().enumerate() {
                holds(&found[at], said, &format!("{place}[{at}]"));
            }
        }
        (Value::Number(found), Value::Number(said)) => assert_eq!(found.as_f64(), said.as_f64(), "{place}"),
        _ => assert_eq!(found, said, "{place}"),
    }
}

/// Makes the account that a subscription of the client names: documents make none, and it belongs to the client.
fn make_sender(scene: &Scene) {
    let client = scene.server.json(&["clients", "create", "acme", "--name", "Acme Ltd"]);
    scene.server.run(&["accounts", "create", "sender", "--client", client["id"].as_str().unwrap()]);
}

/// What documents say, as JSON: an export of a server that has nothing else.
fn exported(scene: &Scene) -> Vec<Value> {
    let text = scene.server.run(&["export", "--json"]);
    serde_json::from_str(&text).unwrap()
}

#[test]
fn every_field_comes_back_from_an_export() {
    let scene = Scene::new(EVERY_FIELD);
    make_sender(&scene);
    scene.applied(&[]);
    let found = exported(&scene);
    let said = [
        json!({ "kind": "Client", "code": "acme", "name": "Acme Ltd" }),
        json!({
            "kind": "Queue", "name": "mail", "client": "acme", "state": "paused", "depth_limit": 1234,
            "lease_seconds": 77, "max_retries": 5, "retry": { "kind": "list", "delays_ms": [1, 2, 3] },
            "require_lease": true,
        }),
        json!({
            "kind": "Pool", "code": "partners", "client": "acme", "name": "Partners of Acme", "concurrency": 20,
            "rateLimitPerMinute": 600, "status": "SUSPENDED",
        }),
        json!({
            "kind": "EventType", "code": "shop:orders:order:created", "name": "Order created",
            "description": "An order, created", "status": "CURRENT",
            "versions": [
                {
                    "version": "1.0", "status": "DEPRECATED", "schemaType": "JSON_SCHEMA", "strict": true,
                    "mimeType": "application/vnd.order+json",
                },
                {
                    "version": "1.1", "status": "CURRENT", "schemaType": "JSON_SCHEMA", "mimeType": "application/json",
                    "force": { "reason": "the field is always there" },
                },
                {
                    "version": "2.0", "status": "FINALISING", "schemaType": "PROTO", "message": "Order",
                    "mimeType": "application/x-protobuf",
                },
            ],
        }),
        json!({
            "kind": "Schema", "name": "address", "description": "Where somebody lives", "schemaType": "XSD",
            "mimeType": "text/xml",
        }),
        json!({
            "kind": "Subscription", "code": "order-mails", "client": "acme", "name": "Order mails",
            "description": "Mails: one per order", "status": "PAUSED",
            "eventTypes": [
                { "eventType": "shop:orders:order:created", "specVersion": "1.1" },
                { "eventTypeCode": "shop:*:line:*", "specVersion": "3.0" },
            ],
            "target": "https://example.com/hook?a=b", "queue": "own-transport", "mode": "BLOCK_ON_ERROR",
            "dispatchPool": "partners", "timeoutSeconds": 7, "maxRetries": 8,
            "retryStrategy": { "type": "exponential", "baseSeconds": 2, "maxSeconds": 200 }, "maxAgeSeconds": 3600,
            "delaySeconds": 9, "sequence": -4, "dataOnly": false, "customConfig": [{ "key": "team", "value": "orders" }],
            "serviceAccount": "sender",
        }),
        json!({
            "kind": "Schedule", "name": "nightly report", "cron": "30 2 * * MON-FRI", "timezone": "Europe/Berlin",
            "missed": "all", "paused": true,
            "event": {
                "type": "report.wanted", "content_type": "application/vnd.report+json", "title": "Nightly report",
                "description": "What happened", "tags": ["reports", "nightly"], "queue": "mail", "client": "acme",
                "source": "/reports", "subject": "report:nightly", "external_id": "e-1", "correlation_id": "c-1",
                "causation_id": "c-0", "attributes": { "region": "eu" }, "priority": -5, "delay_seconds": 60,
                "message_group": "reports", "rank": 3, "keep_place": true, "deduplication_id": "d-1",
                "deduplication_mode": "replace_waiting", "deduplication_seconds": 7200, "expires_after_seconds": 86400,
                "max_retries": 4, "retries_of_queue": true, "exhausted_as": "COMPLETED_WITH_ERRORS",
                "retry": { "kind": "exponential", "base_ms": 1000, "max_ms": 60000, "factor": 3.0, "jitter": 0.5 },
            },
        }),
        json!({
            "kind": "Schedule", "name": "once", "missed": "skip",
            "event": {
                "type": "t", "payload_base64": "AP/+", "content_type": "application/octet-stream",
                "expires_at": "2099-01-01T00:00:00Z",
            },
        }),
    ];
    for said in &said {
        let is_this = |one: &&Value| {
            ["kind", "code", "name"].iter().all(|name| said[*name].is_null() || one[*name] == said[*name])
        };
        let found = found.iter().find(is_this).unwrap_or_else(|| panic!("{said} is not among {found:?}"));
        holds(found, said, said["kind"].as_str().unwrap());
    }
    let schema =
        |at: usize| found.iter().find(|one| one["kind"] == "EventType").unwrap()["versions"][at]["schema"].to_string();
    assert!(schema(0).contains("required") && schema(2).contains("int64 total"), "{found:?}");
    let content = &found.iter().find(|one| one["kind"] == "Schema").unwrap()["content"];
    assert!(content.as_str().unwrap().contains("xs:string"));

    // On another server they make the same, digit for digit.
    for arguments in [&["export"][..], &["export", "--json"]] {
        let written = scene.server.run(arguments);
        assert!(written.contains("0.30000000000000000000003"), "{written}");
        for digits in ["12345678901234567890.12345678901234567890", "0.10000000000000000000001", "99999999999999999999"]
        {
            assert!(
                written.contains(&format!(": {digits}\n")) || written.contains(&format!(": {digits},")),
                "{digits}: {written}"
            );
        }
        let other = Scene::new(&written);
        make_sender(&other);
        let (plan, has_changes) = scene.checked(&[]);
        assert!(!has_changes, "{plan}");
        other.applied(&[]);
        assert_eq!(other.server.run(arguments), written);
        let shown = other.server.run(&["subscriptions", "show", "order-mails", "--json"]);
        assert!(shown.contains("12345678901234567890.12345678901234567890"), "{shown}");
        // A change beyond the digits of a double is a change.
        other.write(&written.replace("0.10000000000000000000001", "0.10000000000000000000002"));
        assert!(other.checked(&[]).1);
        other.applied(&[]);
        assert!(other.server.run(arguments).contains("0.10000000000000000000002"));
        other.server.stop();
    }
    scene.server.stop();
}

/// Runs two applies at once, each of a folder under the name of a set.
fn at_once(scene: &Scene, all: [(&Path, &str); 2]) -> [Output; 2] {
    let start = |(folder, set): (&Path, &str)| {
        let mut command = tidegate(&["apply", "-f", folder.to_str().unwrap(), "--set", set, "--yes"]);
        command.env("TIDEGATE_URL", &scene.server.url).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    all.map(start).map(|child| child.wait_with_output().unwrap())
}

fn pools(prefix: &str, count: usize) -> String {
    (0..count).map(|at| format!("---\nkind: Pool\ncode: {prefix}{at}\nconcurrency: {}\n", at + 1)).collect()
}

/// Of two applies of one set at once, each completes or is refused with words; what they made is there, once, and the set's. Sets
/// beside each other do not touch.
#[test]
fn two_applies_at_once_lose_nothing() {
    let scene = Scene::new("");
    let there = || scene.server.run(&["export", "pools"]).matches("kind: Pool").count();
    let folder = |name: &str| {
        let folder = scene.server.dir.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("all.yaml"), pools(name, 25)).unwrap();
        folder
    };
    for round in 0..3 {
        let (one, two) = (folder("one"), folder("two"));
        for output in at_once(&scene, [(&one, "same"), (&one, "same")]) {
            let said = format!("{}{}", text(&output), error(&output));
            assert!(output.status.code().is_some_and(|code| code < 2) && !said.contains("panicked"), "{round}: {said}");
        }
        scene.write(&pools("one", 25));
        scene.applied(&["--set", "same"]);
        assert!(!scene.checked(&["--set", "same", "--prune"]).1);
        assert_eq!(there(), 25, "{round}");
        scene.write("");
        scene.applied(&["--set", "same", "--prune"]);
        assert_eq!(there(), 0, "{round}: all of them were the set's");
        for output in at_once(&scene, [(&one, "one"), (&two, "two")]) {
            assert!(output.status.success(), "{round}: {}{}", text(&output), error(&output));
        }
        assert_eq!(there(), 50, "{round}");
        for (set, left) in [("one", 25), ("two", 0)] {
            scene.applied(&["--set", set, "--prune"]);
            assert_eq!(there(), left, "{round}: each set has its own");
        }
    }
    scene.server.stop();
}
