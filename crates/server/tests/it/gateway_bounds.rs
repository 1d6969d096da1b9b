//! The gateway at its bounds: the longest attributes, many subscriptions, queues that take nothing, events that retention has
//! removed, and rows that a newer program has written.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tidegate::{ChangeResource, PutResource, Retention, Tsid};
use tidegate_server::{Keyring, Metrics, Options, Scope};

use crate::scene::{Answer, Scene, on_both, send};

on_both!(
    gateway_made,
    bytes_stay,
    many_subscriptions_have_a_job_each,
    the_longest_attributes_are_taken,
    entries_have_the_retries_of_their_queue,
    a_repeat_of_what_is_gone_is_answered_from_what_was_sent,
    a_binding_names_one_type,
    a_preview_knows_which_events_were_validated,
    lists_and_batches_say_what_they_leave_out,
    what_cannot_be_read_spoils_no_list,
    a_client_with_pools_stays,
);

const TYPE: &str = "shop:orders:order:created";

fn subscription(code: &str, target: &str) -> Value {
    json!({ "code": code, "name": code, "eventTypes": [{ "eventTypeCode": TYPE }], "target": target })
}

async fn subscribe(scene: &Scene, code: &str, target: &str) -> Value {
    scene.post("/api/subscriptions", subscription(code, target)).await.expect(201)
}

/// So many subscriptions with webhooks; their ids.
async fn hooks(scene: &Scene, count: usize) -> Vec<String> {
    let one = async |at: usize| {
        let made = subscribe(scene, &format!("hook-{at}"), "https://example.com/hook").await;
        made["id"].as_str().unwrap().to_owned()
    };
    let mut ids = Vec::new();
    for first in (0..count).step_by(50) {
        ids.extend(join_all((first..count.min(first + 50)).map(one)).await);
    }
    ids
}

fn ids(page: &Value, field: &str) -> Vec<String> {
    page["items"].as_array().unwrap().iter().map(|one| one[field].as_str().unwrap().to_owned()).collect()
}

fn count(of: &Value, field: &str) -> usize {
    of[field].as_array().unwrap().len()
}

/// An event that was made through the gateway is found by its source and its id there.
async fn gateway_made(scene: Scene) {
    for (id, source) in [("1", "/shop"), ("2", "/shop"), ("1", "/bank")] {
        let sent = json!({ "specversion": "1.0", "id": id, "source": source, "type": TYPE, "data": [id, source] });
        let request = scene.request(Method::POST, "/api/events").header("content-type", "application/cloudevents+json");
        let stored = send(request.body(sent.to_string())).await.expect(201);
        let found = scene.get(&format!("/api/events?source={source}&externalId={id}")).await.expect(200);
        assert_eq!(ids(&found, "id"), [stored["id"].as_str().unwrap()], "{found}");
        assert_eq!(found["items"][0]["data"], sent["data"]);
    }
    assert_eq!(count(&scene.get("/api/events?externalId=1").await.expect(200), "items"), 2);
    assert_eq!(count(&scene.get("/api/events?source=/none&externalId=1").await.expect(200), "items"), 0);
    scene.close().await;
}

/// Data come back byte for byte on every path: in every mode in, and as an answer, in lists, as a CloudEvent, to a worker, to a
/// consumer and within an envelope out.
async fn bytes_stay(scene: Scene) {
    scene.put("/queues/whole", json!({})).await.expect(200);
    subscribe(&scene, "data", "queue:default").await;
    let mut whole = subscription("whole", "queue:whole");
    whole["dataOnly"] = json!(false);
    scene.post("/api/subscriptions", whole).await.expect(201);
    let consumer = scene.queue.named("whole").await.unwrap();
    let data = r#"{"b": 1.0e2,  "a":12345678901234567890.12345678901234567890, "a": "\u0000\/é", "z":[ ]}"#;
    let structured =
        |id: &str| format!(r#"{{"specversion":"1.0","id":"{id}","source":"/s","type":"{TYPE}","data":{data}}}"#);
    let post = |path: &str, media_type: &str, body: String| {
        send(scene.request(Method::POST, path).header("content-type", media_type).body(body))
    };
    let own = |id: &str| format!(r#"{{"type":"{TYPE}","source":"/s","deduplicationId":"{id}","data":{data}}}"#);
    let binary = scene.request(Method::POST, "/api/events").header("content-type", "application/json");
    let binary = binary.header("ce-specversion", "1.0").header("ce-id", "binary").header("ce-source", "/s");
    let answers: Vec<(&str, Answer)> = vec![
        ("own", post("/api/events", "application/json", own("own")).await),
        ("structured", post("/api/events", "application/cloudevents+json", structured("structured")).await),
        ("binary", send(binary.header("ce-type", TYPE).body(data)).await),
        ("batch", post("/api/events/batch", "application/json", format!(r#"{{"events":[{}]}}"#, own("batch"))).await),
        (
            "batched",
            post("/api/events/batch", "application/cloudevents-batch+json", format!("[{}]", structured("batched")))
                .await,
        ),
    ];
    for (mode, answer) in answers {
        let shown = format!("\"data\":{data}");
        assert!(answer.status.is_success() && answer.text.contains(&shown), "{mode}: {}", answer.text);
        let body = answer.json();
        let stored = if body["results"].is_array() { &body["results"][0] } else { &body };
        let path = format!("/api/events/{}", stored["id"].as_str().unwrap());
        let again = scene.get(&path).await;
        assert!(again.text.contains(&shown), "{mode}, shown: {}", again.text);
        let listed = scene.get("/api/events?limit=1").await;
        assert!(listed.text.contains(&shown), "{mode}, listed: {}", listed.text);
        let event = send(scene.request(Method::GET, &path).header("accept", "application/cloudevents+json")).await;
        assert!(event.text.contains(&shown), "{mode}, as a CloudEvent: {}", event.text);
        let entry = scene.get(&format!("/events/{}", stored["entries"][0]["id"])).await;
        assert!(entry.text.contains(&format!("\"payload\":{data}")), "{mode}, the entry: {}", entry.text);
        let body = json!({ "worker_id": "w:1", "queue": "default", "max": 1 });
        let taken = scene.post("/events/claim", body).await;
        assert!(taken.text.contains(&format!("\"payload\":{data}")), "{mode}, to a worker: {}", taken.text);
        let held = consumer.poll().await.unwrap().unwrap();
        let envelope = String::from_utf8(held.payload().to_vec()).unwrap();
        assert!(envelope.contains(&shown), "{mode}, in an envelope: {envelope}");
        held.complete().await.unwrap();
    }
    // What is no text goes through as it is, too.
    let bytes: Vec<u8> = (0..=255).collect();
    let request = scene.request(Method::POST, "/api/events").header("content-type", "application/octet-stream");
    let request = request.header("ce-specversion", "1.0").header("ce-id", "bytes").header("ce-source", "/s");
    send(request.header("ce-type", TYPE).body(bytes.clone())).await.expect(201);
    let held = scene.queue.poll().await.unwrap().unwrap();
    assert_eq!(held.payload()[..], bytes);
    held.complete().await.unwrap();
    scene.close().await;
}

/// Far more targets than one transaction writes: every event has a job for each subscription, and no other.
async fn many_subscriptions_have_a_job_each(scene: Scene) {
    let mut hooks = hooks(&scene, 300).await;
    hooks.sort_unstable();
    let events: Vec<Value> = (0..80).map(|at| json!({ "type": TYPE, "source": "/s", "data": at })).collect();
    let answer = scene.post("/api/events/batch", json!({ "events": events })).await.expect(200);
    let mut numbers = Vec::new();
    for (at, result) in answer["results"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&result["status"], &result["data"]), (&json!(201), &json!(at)), "{result}");
        let stored = scene.get(&format!("/api/events/{}", result["id"].as_str().unwrap())).await.expect(200);
        assert_eq!(stored["truncated"], Value::Null, "a single event shows everything");
        let jobs = stored["dispatchJobs"].as_array().unwrap();
        let mut of: Vec<&str> = jobs.iter().map(|job| job["subscriptionId"].as_str().unwrap()).collect();
        of.sort_unstable();
        assert_eq!(of, hooks, "event {at}");
        numbers.extend(jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
    }
    assert!(numbers.is_sorted(), "the events of a batch are written in order");
    numbers.dedup();
    assert_eq!(numbers.len(), 80 * 300);
    scene.close().await;
}

async fn the_longest_attributes_are_taken(scene: Scene) {
    let code = "c".repeat(100);
    subscribe(&scene, &code, "queue:default").await;
    let mut ordered = subscription("ordered", "https://example.com/");
    ordered["mode"] = json!("BLOCK_ON_ERROR");
    ordered["code"] = json!("o".repeat(100));
    scene.post("/api/subscriptions", ordered).await.expect(201);
    let group = "g".repeat(255);
    let pairs: Vec<Value> = (0..100).map(|at| json!({ "key": format!("k{at}"), "value": format!("v{at}") })).collect();
    let sent = json!({ "type": TYPE, "source": "/s", "messageGroup": group, "contextData": pairs });
    let stored = scene.post("/api/events", sent).await.expect(201);
    assert_eq!((count(&stored, "entries"), count(&stored, "dispatchJobs")), (1, 1), "{stored}");
    let entry = scene.get(&format!("/events/{}", stored["entries"][0]["id"])).await.expect(200);
    assert_eq!(entry["message_group"], json!(format!("{code}:{group}")));
    for query in ["context.k0=v0", "context.k99=v99", &format!("messageGroup={group}&context.k64=v64")] {
        let found = scene.get(&format!("/api/events?{query}")).await.expect(200);
        assert_eq!(ids(&found, "id"), [stored["id"].as_str().unwrap()], "{query}");
    }
    let taken = scene.post("/events/claim", json!({ "worker_id": "w:1", "queue": "default" })).await.expect(200);
    assert_eq!(taken["events"][0]["message_group"], entry["message_group"]);
    scene.close().await;
}

async fn entries_have_the_retries_of_their_queue(scene: Scene) {
    scene.put("/queues/once", json!({ "max_retries": 1 })).await.expect(200);
    subscribe(&scene, "once", "queue:once").await;
    let stored = scene.post("/api/events", json!({ "type": TYPE, "source": "/s" })).await.expect(201);
    let path = format!("/events/{}", stored["entries"][0]["id"]);
    assert_eq!(scene.get(&path).await.expect(200)["max_retries"], 1);
    scene.put("/queues/once", json!({ "max_retries": 5 })).await.expect(200);
    let stored = scene.post("/api/events", json!({ "type": TYPE, "source": "/s" })).await.expect(201);
    let path = format!("/events/{}", stored["entries"][0]["id"]);
    assert_eq!(scene.get(&path).await.expect(200)["max_retries"], 5, "the next event has what is said now");
    scene.close().await;
}

async fn a_repeat_of_what_is_gone_is_answered_from_what_was_sent(scene: Scene) {
    let sent = json!({ "type": TYPE, "source": "/s", "subject": "x", "deduplicationId": "d", "data": { "a": 1.0 } });
    let first = scene.post("/api/events", sent.clone()).await.expect(201);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let all = Retention { facts: Some(Duration::from_millis(1)), batch: 10, ..Retention::default() };
    assert_eq!(scene.queue.retain(all).await.unwrap().facts, 1);
    scene.get(&format!("/api/events/{}", first["id"].as_str().unwrap())).await.refused(404, "not_found");
    let again = scene.post("/api/events", sent.clone()).await.expect(200);
    assert_eq!((&again["id"], &again["deduplicated"]), (&first["id"], &json!(true)), "{again}");
    for field in ["type", "source", "subject", "data", "deduplicationId"] {
        assert_eq!(again[field], sent[field], "{field}");
    }
    assert_eq!((&again["entries"], &again["dispatchJobs"]), (&json!([]), &json!([])));
    let batch = scene.post("/api/events/batch", json!({ "events": [sent] })).await.expect(200);
    assert_eq!((&batch["results"][0]["status"], &batch["results"][0]["id"]), (&json!(200), &first["id"]));
    scene.close().await;
}

async fn a_binding_names_one_type(scene: Scene) {
    let made = scene.post("/api/event-types", json!({ "code": TYPE, "name": "t" })).await.expect(201);
    let with = |code: &str, binding: Value| json!({ "code": code, "name": "n", "eventTypes": [binding], "target": "queue:default" });
    for other in ["shop:orders:order:paid", "shop:*:order:*"] {
        let body = with("both", json!({ "eventTypeId": made["id"], "eventTypeCode": other }));
        let said = scene.post("/api/subscriptions", body).await.refused(400, "invalid_request");
        assert!(said.contains("eventTypes[0].eventTypeCode") && said.contains(TYPE) && said.contains(other), "{said}");
    }
    let id = made["id"].as_str().unwrap();
    for (code, binding) in [
        ("id", json!({ "eventTypeId": id })),
        ("both", json!({ "eventTypeId": id, "eventTypeCode": TYPE })),
        ("lower", json!({ "eventTypeId": id.to_lowercase() })),
    ] {
        let stored = scene.post("/api/subscriptions", with(code, binding)).await.expect(201);
        assert_eq!(stored["eventTypes"][0], json!({ "eventTypeId": id, "eventTypeCode": TYPE }), "{code}");
        // What was shown can be sent back.
        let path = format!("/api/subscriptions/{}", stored["id"].as_str().unwrap());
        scene.put(&path, with(code, stored["eventTypes"][0].clone())).await.expect(200);
    }
    scene.close().await;
}

/// A version that an event names says nothing where nobody validated it by that.
async fn a_preview_knows_which_events_were_validated(scene: Scene) {
    let body = json!({
        "code": "of-1", "name": "n", "target": "queue:default",
        "eventTypes": [{ "eventTypeCode": TYPE, "specVersion": "1.0" }],
    });
    let made = scene.post("/api/subscriptions", body).await.expect(201);
    let path = format!("/api/subscriptions/{}/preview", made["id"].as_str().unwrap());
    let publish = async || {
        let sent = json!({ "type": TYPE, "source": "/s", "schemaVersion": "1.0", "data": {} });
        let stored = scene.post("/api/events", sent).await.expect(201);
        assert_eq!(stored["schemaVersion"], "1.0");
        (stored["id"].as_str().unwrap().to_owned(), count(&stored, "entries"))
    };
    let (unregistered, entries) = publish().await;
    assert_eq!(entries, 0);
    assert_eq!(scene.post(&path, json!({})).await.expect(200)["items"], json!([]), "{unregistered} was not validated");
    let kind = scene.post("/api/event-types", json!({ "code": TYPE, "name": "t" })).await.expect(201);
    let versions = format!("/api/event-types/{}/versions", kind["id"].as_str().unwrap());
    let version = json!({
        "version": "1.0", "mimeType": "application/json", "schemaType": "JSON_SCHEMA", "schema": { "type": "object" },
    });
    scene.post(&versions, version).await.expect(201);
    scene.post(&format!("{versions}/1.0/finalise"), json!({})).await.expect(200);
    let (validated, entries) = publish().await;
    assert_eq!(entries, 1);
    let preview = scene.post(&path, json!({})).await.expect(200);
    assert_eq!(ids(&preview, "id"), [validated], "the other one is as it was when it was stored");
    scene.close().await;
}

async fn lists_and_batches_say_what_they_leave_out(scene: Scene) {
    let hooks = hooks(&scene, 103).await;
    let sent = json!({ "type": TYPE, "source": "/s", "deduplicationId": "d" });
    let single = scene.post("/api/events", sent.clone()).await.expect(201);
    assert_eq!((count(&single, "dispatchJobs"), &single["truncated"]), (103, &Value::Null));
    let preview = format!("/api/subscriptions/{}/preview", hooks[0]);
    let many = json!({ "events": [{ "type": TYPE, "source": "/s" }, sent] });
    let batch = scene.post("/api/events/batch", many).await.expect(200);
    let listed = scene.get("/api/events").await.expect(200);
    let preview = scene.post(&preview, json!({})).await.expect(200);
    let cut =
        [&batch["results"][0], &batch["results"][1], &listed["items"][0], &listed["items"][1], &preview["items"][0]];
    for (at, one) in cut.into_iter().enumerate() {
        let said = (count(one, "dispatchJobs"), &one["truncated"], &one["notShown"]);
        assert_eq!(said, (100, &json!(true), &json!(3)), "{at}: {one}");
        let whole = scene.get(&format!("/api/events/{}", one["id"].as_str().unwrap())).await.expect(200);
        assert_eq!(
            (count(&whole, "dispatchJobs"), &whole["truncated"], &whole["notShown"]),
            (103, &Value::Null, &Value::Null)
        );
    }
    scene.close().await;
}

/// A row in a form that this program does not know.
async fn newer(scene: &Scene, kind: &str, client: Option<Tsid>, code: &str, body: &str) -> String {
    let (kind, code, body) = (kind.to_owned(), code.to_owned(), body.to_owned());
    let put = PutResource::Create { id: None, kind, client, code, body };
    let made = scene.queue.resources().change(vec![ChangeResource::Put(put)]).await.unwrap();
    made[0].id.to_string()
}

async fn what_cannot_be_read_spoils_no_list(scene: Scene) {
    let pool = scene.post("/api/dispatch-pools", json!({ "code": "b", "name": "b" })).await.expect(201);
    let pool_path = format!("/api/dispatch-pools/{}", pool["id"].as_str().unwrap());
    newer(&scene, "dispatch_pool", None, "a", "{}").await;
    subscribe(&scene, "b", "queue:default").await;
    let body = json!({ "said_by": "a newer program", "pool": pool["id"] }).to_string();
    let unread = newer(&scene, "subscription", None, "a", &body).await;
    newer(&scene, "subscription", None, "c", "[]").await;
    subscribe(&scene, "d", "queue:default").await;
    for (path, codes) in [("/api/subscriptions", vec!["b", "d"]), ("/api/dispatch-pools", vec!["b"])] {
        assert_eq!(ids(&scene.get(path).await.expect(200), "code"), codes, "{path}");
        let (mut seen, mut query) = (Vec::new(), "limit=1".to_owned());
        loop {
            let page = scene.get(&format!("{path}?{query}")).await.expect(200);
            seen.extend(ids(&page, "code"));
            let Some(cursor) = page["nextCursor"].as_str() else { break };
            query = format!("limit=1&cursor={cursor}");
        }
        assert_eq!(seen, codes, "{path}, page by page");
    }
    let stored = scene.post("/api/events", json!({ "type": TYPE, "source": "/s" })).await.expect(201);
    assert_eq!(count(&stored, "entries"), 2, "nor the events of others");
    let said = send(scene.request(Method::DELETE, &pool_path)).await.refused(409, "conflict");
    assert!(said.contains(&unread), "it may name the pool: {said}");
    send(scene.request(Method::DELETE, &format!("/api/subscriptions/{unread}"))).await.expect(204);
    send(scene.request(Method::DELETE, &pool_path)).await.expect(204);
    // A client has what nobody can read, too.
    let client = scene.post("/api/clients", json!({ "code": "acme", "name": "Acme" })).await.expect(201);
    let id = client["id"].as_str().unwrap();
    let unread = newer(&scene, "subscription", Some(id.parse().unwrap()), "a", "{}").await;
    let path = format!("/api/clients/{id}");
    assert!(send(scene.request(Method::DELETE, &path)).await.refused(409, "conflict").contains("subscriptions"));
    send(scene.request(Method::DELETE, &format!("/api/subscriptions/{unread}"))).await.expect(204);
    send(scene.request(Method::DELETE, &path)).await.expect(204);
    scene.close().await;
}

async fn a_client_with_pools_stays(scene: Scene) {
    let client = scene.post("/api/clients", json!({ "code": "acme", "name": "Acme" })).await.expect(201);
    let id = client["id"].as_str().unwrap();
    let pool = json!({ "code": "p", "name": "p", "clientId": id });
    let pool = scene.post("/api/dispatch-pools", pool).await.expect(201);
    let path = format!("/api/clients/{id}");
    let said = send(scene.request(Method::DELETE, &path)).await.refused(409, "conflict");
    assert!(said.contains("acme") && said.contains("dispatch pools"), "{said}");
    let pool = format!("/api/dispatch-pools/{}", pool["id"].as_str().unwrap());
    send(scene.request(Method::DELETE, &pool)).await.expect(204);
    send(scene.request(Method::DELETE, &path)).await.expect(204);
    scene.close().await;
}

/// A queue of the anchor level that takes nothing refuses the events of clients without being named to them.
async fn a_queue_that_takes_nothing_is_not_named(mut scene: Scene) {
    let keys = Keyring::new(scene.queue.clone());
    let anchor = keys.create("anchor", &[Scope::Admin], None).await.unwrap().secret;
    scene.with_key(&anchor);
    scene.put("/queues/hidden-full", json!({ "depth_limit": 1 })).await.expect(200);
    scene.put("/queues/hidden-drained", json!({})).await.expect(200);
    let client = scene.post("/api/clients", json!({ "code": "acme", "name": "Acme" })).await.expect(201);
    let key = json!({ "name": "k", "scopes": ["admin"], "clientId": client["id"] });
    let key = scene.post("/api/keys", key).await.expect(201)["key"].as_str().unwrap().to_owned();
    let mut full = subscription("full", "queue:hidden-full");
    full["eventTypes"] = json!([{ "eventTypeCode": "full" }]);
    scene.post("/api/subscriptions", full).await.expect(201);
    let mut drained = subscription("drained", "queue:hidden-drained");
    drained["eventTypes"] = json!([{ "eventTypeCode": "drained" }]);
    scene.post("/api/subscriptions", drained).await.expect(201);
    scene.post("/queues/hidden-drained/drain", json!({})).await.expect(200);
    scene.with_key(&key);
    let event = |name: &str| json!({ "type": name, "source": "/s" });
    scene.post("/api/events", event("full")).await.expect(201);
    let mut texts = Vec::new();
    for name in ["full", "drained"] {
        let refused = scene.post("/api/events", event(name)).await;
        assert_eq!(refused.headers["retry-after"], "1");
        texts.push(refused.refused(429, "queue_full"));
        let batch =
            scene.post("/api/events/batch", json!({ "events": [event(name), event("free")] })).await.expect(200);
        let statuses = [&batch["results"][0]["status"], &batch["results"][1]["status"]];
        assert_eq!(statuses, [429, 201], "{batch}");
        texts.push(batch["results"][0]["error"].as_str().unwrap().to_owned());
    }
    assert!(texts.iter().all(|text| *text == texts[0] && !text.contains("hidden")), "{texts:?}");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_takes_nothing_is_not_named_on_sqlite() {
    a_queue_that_takes_nothing_is_not_named(Scene::guarded_sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_takes_nothing_is_not_named_on_postgres() {
    a_queue_that_takes_nothing_is_not_named(Scene::guarded_postgres().await).await;
}

/// Metrics are read without a client's credentials: nothing that goes through the gateway names itself in them.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_name_nobody() {
    let mut options = Options::default();
    options.metrics = Metrics::install();
    let scene = Scene::sqlite_with(options).await;
    let client =
        scene.post("/api/clients", json!({ "code": "naming-client", "name": "naming-client" })).await.expect(201);
    scene.post("/api/event-types", json!({ "code": "naming:a:b:c", "name": "n" })).await.expect(201);
    let mut names = vec!["naming".to_owned(), client["id"].as_str().unwrap().to_owned()];
    for target in ["queue:default", "https://naming.example/"] {
        let mut body = subscription(&format!("naming-{}", &target[..5]), target);
        body["eventTypes"] = json!([{ "eventTypeCode": "naming:*:*:*" }]);
        let made = scene.post("/api/subscriptions", body).await.expect(201);
        names.push(made["id"].as_str().unwrap().to_owned());
    }
    let sent = json!({
        "type": "naming:a:b:c", "source": "/naming", "subject": "naming", "messageGroup": "naming-group",
        "deduplicationId": "naming-id", "clientId": client["id"],
        "contextData": [{ "key": "naming-key", "value": "naming-value" }],
    });
    let stored = scene.post("/api/events", sent.clone()).await.expect(201);
    names.push(stored["id"].as_str().unwrap().to_owned());
    scene.post("/api/events", sent).await.expect(200);
    scene.get("/api/events?context.naming-key=naming-value&type=naming:a:b:c").await.expect(200);
    scene.post("/api/events", json!({ "type": "naming", "source": "" })).await.expect(400);
    let shown = scene.get("/metrics").await.text;
    assert!(shown.contains("tidegate_ingested_total{result=\"stored\"}"), "{shown}");
    for name in names {
        assert!(!shown.contains(&name), "{name}: {shown}");
    }
    scene.close().await;
}

/// A conflict is an answer of every operation that writes over what it has read.
#[test]
fn conflicts_are_documented() {
    let document: Value = serde_json::from_str(&tidegate_server::openapi()).unwrap();
    let writes = |path: &str| {
        ["/api/subscriptions", "/api/clients", "/api/dispatch-pools"].iter().any(|of| path.starts_with(of))
    };
    let mut seen = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let is_one_event = path == "/api/events" && method == "post";
            let writes_over = method != "get" && !path.ends_with("/preview") && !path.ends_with("/replay");
            if is_one_event || (writes(path) && writes_over) {
                seen += 1;
                assert!(operation["responses"]["409"].is_object(), "{method} {path}");
            }
        }
    }
    assert_eq!(seen, 14);
}
