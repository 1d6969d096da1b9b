//! Events, subscriptions, clients and keys over HTTP: what is stored, who gets it, and what is refused with which words.

use reqwest::Method;
use serde_json::{Value, json};
use tidegate::Tsid;
use tidegate_server::{Keyring, Scope};

use crate::scene::{Answer, Scene, on_both, send};

on_both!(
    an_event_goes_to_those_that_ask_for_it,
    an_entry_holds_the_data_or_the_whole_event,
    a_trace_goes_from_the_request_to_the_worker,
    all_modes_store_the_same_event,
    data_survives_byte_for_byte,
    repeats_are_answered_with_the_first,
    events_are_judged_by_their_type,
    a_batch_answers_for_each_event,
    events_are_found_by_what_they_carry,
    subscriptions_have_their_fields_and_defaults,
    what_is_wrong_with_a_subscription_is_named,
    a_change_counts_from_the_next_event_on,
    groups_and_delays_reach_the_entry,
    webhooks_become_jobs,
    bad_events_are_refused_and_leave_nothing,
);

const TYPE: &str = "shop:orders:order:created";

fn event(id: &str) -> Value {
    json!({
        "specversion": "1.0", "id": id, "source": "/shop", "type": TYPE, "subject": "order:1",
        "datacontenttype": "application/json", "data": { "amount": 5 },
    })
}

async fn cloud_event(scene: &Scene, body: &str) -> Answer {
    let request = scene.request(Method::POST, "/api/events").header("content-type", "application/cloudevents+json");
    send(request.body(body.to_owned())).await
}

async fn subscribe(scene: &Scene, code: &str, more: Value) -> Value {
    let mut body = json!({
        "code": code, "name": code, "eventTypes": [{ "eventTypeCode": "shop:*:order:*" }], "target": "queue:default",
    });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    scene.post("/api/subscriptions", body).await.expect(201)
}

async fn an_event_goes_to_those_that_ask_for_it(scene: Scene) {
    scene.put("/queues/mail", json!({})).await.expect(200);
    subscribe(&scene, "all-orders", json!({})).await;
    subscribe(&scene, "mail", json!({ "target": "queue:mail", "eventTypes": [{ "eventTypeCode": TYPE }] })).await;
    subscribe(&scene, "other", json!({ "eventTypes": [{ "eventTypeCode": "shop:*:line:*" }] })).await;
    let filter = json!({ "gte": { "data/amount": 100 } });
    subscribe(&scene, "dear", json!({ "filter": filter })).await;
    let answer = cloud_event(&scene, &event("1").to_string()).await;
    let location = answer.headers["location"].to_str().unwrap().to_owned();
    let stored = answer.expect(201);
    assert_eq!(location, format!("/api/events/{}", stored["id"].as_str().unwrap()));
    assert_eq!((&stored["externalId"], &stored["deduplicated"]), (&json!("1"), &json!(false)), "{stored}");
    let queues: Vec<&str> =
        stored["entries"].as_array().unwrap().iter().map(|entry| entry["queue"].as_str().unwrap()).collect();
    assert_eq!(queues, ["default", "mail"], "{stored}");
    // The pull worker's side.
    let taken = scene.post("/events/claim", json!({ "worker_id": "w:1", "queue": "mail", "max": 5 })).await.expect(200);
    let entry = &taken["events"][0];
    assert_eq!((&entry["title"], &entry["payload"]), (&json!("order:1"), &json!({ "amount": 5 })), "{taken}");
    assert_eq!(entry["tags"], json!(TYPE), "{taken}");
    let shown = scene.get(&location).await.expect(200);
    let status = |at: usize| shown["entries"][at]["status"].as_str().unwrap().to_owned();
    assert_eq!((status(0), status(1)), ("PENDING".into(), "PROCESSING".into()), "{shown}");
    let none = cloud_event(&scene, &event("2").to_string().replace("shop:orders", "bank:orders")).await.expect(201);
    assert_eq!((&none["entries"], &none["dispatchJobs"]), (&json!([]), &json!([])));
    scene.close().await;
}

async fn an_entry_holds_the_data_or_the_whole_event(scene: Scene) {
    subscribe(&scene, "data", json!({})).await;
    subscribe(&scene, "whole", json!({ "dataOnly": false })).await;
    let mut sent = event("1");
    sent["correlationid"] = json!("c-1");
    sent["shop"] = json!("berlin");
    let stored = cloud_event(&scene, &sent.to_string()).await.expect(201);
    let taken =
        scene.post("/events/claim", json!({ "worker_id": "w:1", "queue": "default", "max": 5 })).await.expect(200);
    assert_eq!(taken["events"][0]["payload"], json!({ "amount": 5 }), "{taken}");
    assert_eq!(taken["events"][1]["payload"], sent, "{taken}");
    let whole = scene.get(&format!("/events/{}", stored["entries"][1]["id"])).await.expect(200);
    assert_eq!(whole["payload"], sent, "{whole}");
    // An event that has no id of its producer gets its own.
    let own = json!({ "type": TYPE, "source": "/shop", "data": [1] });
    let stored = scene.post("/api/events", own).await.expect(201);
    let whole = scene.get(&format!("/events/{}", stored["entries"][1]["id"])).await.expect(200);
    assert_eq!((&whole["payload"]["id"], &whole["payload"]["data"]), (&stored["id"], &json!([1])), "{whole}");
    scene.close().await;
}

async fn a_trace_goes_from_the_request_to_the_worker(scene: Scene) {
    subscribe(&scene, "all", json!({})).await;
    let trace = |part: char| format!("00-{}-00f067aa0ba902b7-01", part.to_string().repeat(32));
    let mut own = event("2");
    own["traceparent"] = json!(trace('b'));
    for (body, expected) in [(event("1"), trace('a')), (own, trace('b'))] {
        let request = scene.request(Method::POST, "/api/events").header("traceparent", trace('a'));
        let request = request.header("content-type", "application/cloudevents+json").body(body.to_string());
        let stored = send(request).await.expect(201);
        assert_eq!(stored["extensions"]["traceparent"], json!(expected), "{stored}");
        let taken = scene.post("/events/claim", json!({ "worker_id": "w:1", "queue": "default" })).await.expect(200);
        assert_eq!(taken["events"][0]["traceparent"], json!(expected), "{taken}");
    }
    scene.close().await;
}

async fn all_modes_store_the_same_event(scene: Scene) {
    let structured = cloud_event(&scene, &event("s").to_string()).await.expect(201);
    let binary = scene.request(Method::POST, "/api/events").header("content-type", "application/json");
    let binary = binary.header("ce-specversion", "1.0").header("ce-id", "b").header("ce-source", "/shop");
    let binary = binary.header("ce-type", TYPE).header("CE-Subject", "order:1").body(r#"{ "amount": 5 }"#);
    let binary = send(binary).await.expect(201);
    let own = json!({ "type": TYPE, "source": "/shop", "subject": "order:1", "data": "{\"amount\": 5}" });
    let own = scene.post("/api/events", own).await.expect(201);
    for (name, found) in [("structured", &structured), ("binary", &binary), ("own", &own)] {
        for (field, value) in [
            ("type", json!(TYPE)),
            ("source", json!("/shop")),
            ("subject", json!("order:1")),
            ("data", json!({ "amount": 5 })),
        ] {
            assert_eq!(found[field], value, "{name}: {found}");
        }
    }
    let batch = send(
        scene
            .request(Method::POST, "/api/events/batch")
            .header("content-type", "application/cloudevents-batch+json")
            .body(json!([event("x"), event("s"), { "specversion": "1.0" }]).to_string()),
    )
    .await
    .expect(200);
    let statuses: Vec<u64> =
        batch["results"].as_array().unwrap().iter().map(|one| one["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 200, 400], "{batch}");
    assert_eq!(batch["results"][1]["id"], structured["id"]);
    // Read back as a CloudEvent.
    let path = format!("/api/events/{}", structured["id"].as_str().unwrap());
    let read = send(scene.request(Method::GET, &path).header("accept", "application/cloudevents+json")).await;
    assert_eq!(read.headers["content-type"], "application/cloudevents+json");
    let read = read.expect(200);
    assert_eq!((&read["id"], &read["data"]), (&json!("s"), &json!({ "amount": 5 })), "{read}");
    scene.close().await;
}

async fn data_survives_byte_for_byte(scene: Scene) {
    subscribe(&scene, "all", json!({})).await;
    for (id, data) in [
        ("numbers", r#"{"a": 1.0e2,  "b":12345678901234567890.12345678901234567890, "a": 2}"#),
        ("nul", r#""\u0000""#),
        ("spaces", "[ 1 ,\t2 ]"),
        ("null", "null"),
    ] {
        let body =
            format!(r#"{{"specversion": "1.0", "id": "{id}", "source": "/s", "type": "{TYPE}", "data": {data}}}"#);
        let stored = cloud_event(&scene, &body).await;
        assert!(stored.text.contains(data), "{id}: {}", stored.text);
        let stored = stored.expect(201);
        let shown = scene.get(&format!("/api/events/{}", stored["id"].as_str().unwrap())).await;
        assert!(shown.text.contains(&format!("\"data\":{data}")), "{id}: {}", shown.text);
        let entry = scene.get(&format!("/events/{}", stored["entries"][0]["id"])).await;
        assert!(entry.text.contains(&format!("\"payload\":{data}")), "{id}: {}", entry.text);
    }
    let bytes = scene.request(Method::POST, "/api/events").header("content-type", "application/octet-stream");
    let bytes = bytes.header("ce-specversion", "1.0").header("ce-id", "bytes").header("ce-source", "/s");
    let bytes = send(bytes.header("ce-type", TYPE).body(vec![0_u8, 255, 254])).await.expect(201);
    assert_eq!(bytes["dataBase64"], "AP/+", "{bytes}");
    scene.close().await;
}

async fn repeats_are_answered_with_the_first(scene: Scene) {
    subscribe(&scene, "all", json!({})).await;
    let first = cloud_event(&scene, &event("1").to_string()).await.expect(201);
    let again = cloud_event(&scene, &event("1").to_string()).await.expect(200);
    assert_eq!((&again["id"], &again["entries"]), (&first["id"], &first["entries"]), "{again}");
    assert_eq!(again["deduplicated"], true);
    let mut other = event("1");
    other["data"] = json!({ "amount": 6 });
    cloud_event(&scene, &other.to_string()).await.refused(422, "key_reused");
    let own =
        |amount: i64| json!({ "type": TYPE, "source": "/x", "deduplicationId": "d-1", "data": { "amount": amount } });
    let first = scene.post("/api/events", own(1)).await.expect(201);
    assert_eq!(scene.post("/api/events", own(1)).await.expect(200)["id"], first["id"]);
    let refused = scene.post("/api/events", own(2)).await;
    assert!(refused.refused(422, "key_reused").contains("d-1"));
    // Without any key, each is an event of its own.
    let bare = json!({ "type": TYPE, "source": "/x" });
    let (one, two) = (scene.post("/api/events", bare.clone()).await, scene.post("/api/events", bare).await);
    assert_ne!(one.expect(201)["id"], two.expect(201)["id"]);
    scene.close().await;
}

async fn registered(scene: &Scene, versions: &[(&str, Value)]) -> String {
    let made = scene.post("/api/event-types", json!({ "code": TYPE, "name": "Order created" })).await.expect(201);
    let path = format!("/api/event-types/{}", made["id"].as_str().unwrap());
    for (version, schema) in versions {
        let body = json!({
            "version": version, "mimeType": "application/json", "schemaType": "JSON_SCHEMA", "schema": schema,
        });
        scene.post(&format!("{path}/versions"), body).await.expect(201);
    }
    path
}

async fn events_are_judged_by_their_type(scene: Scene) {
    let schema = json!({ "type": "object", "required": ["amount"], "properties": { "amount": { "type": "number" } } });
    let path = registered(&scene, &[("1.0", schema.clone()), ("2.0", json!({ "type": "object" }))]).await;
    let send_own = async |data: Value, version: Option<&str>| {
        let body = json!({ "type": TYPE, "source": "/x", "data": data, "schemaVersion": version });
        scene.post("/api/events", body).await
    };
    assert_eq!(send_own(json!([]), None).await.expect(201)["schemaVersion"], Value::Null, "no version is in use");
    send_own(json!({}), Some("1.0")).await.refused(422, "unprocessable");
    scene.post(&format!("{path}/versions/1.0/finalise"), json!({})).await.expect(200);
    let refused = send_own(json!({ "amount": "5" }), None).await;
    assert_eq!(refused.json()["violations"][0]["path"], "data/amount", "{}", refused.text);
    refused.refused(422, "unprocessable");
    assert_eq!(send_own(json!({ "amount": 5 }), None).await.expect(201)["schemaVersion"], "1.0");
    assert!(send_own(json!({}), Some("9.9")).await.refused(422, "unprocessable").contains("9.9"));
    assert!(send_own(json!({}), Some("2.0")).await.refused(422, "unprocessable").contains("FINALISING"));
    scene.post(&format!("{path}/versions/2.0/finalise"), json!({})).await.expect(200);
    assert_eq!(send_own(json!({}), None).await.expect(201)["schemaVersion"], "2.0", "the highest one");
    scene.post(&format!("{path}/versions/1.0/deprecate"), json!({})).await.expect(200);
    let warned = send_own(json!({ "amount": 1 }), Some("1.0")).await.expect(201);
    assert!(warned["warnings"][0].as_str().unwrap().contains("DEPRECATED"), "{warned}");
    // By CloudEvents' own attribute.
    let mut named = event("by-schema");
    named["dataschema"] = json!("https://example.com/schemas/orders/1.0");
    named["data"] = json!({});
    cloud_event(&scene, &named.to_string()).await.refused(422, "unprocessable");
    // Bindings by version.
    let of = |version: &str| json!({ "eventTypes": [{ "eventTypeCode": TYPE, "specVersion": version }] });
    subscribe(&scene, "of-1", of("1.0")).await;
    subscribe(&scene, "of-2", of("2.0")).await;
    let entries = |stored: Value| stored["entries"].as_array().unwrap().len();
    assert_eq!(entries(send_own(json!({ "amount": 1 }), Some("1.0")).await.expect(201)), 1);
    scene.post(&format!("{path}/archive"), json!({})).await.expect(200);
    assert!(send_own(json!({}), None).await.refused(422, "unprocessable").contains("archived"));
    scene.close().await;
}

async fn a_batch_answers_for_each_event(scene: Scene) {
    registered(&scene, &[("1.0", json!({ "type": "object" }))]).await;
    let one = |id: i64| json!({ "type": "a.b", "source": "/x", "deduplicationId": id.to_string() });
    let body = json!({ "events": [one(1), { "type": "a.b" }, one(1), one(2), { "nope": 1 }] });
    let answer = scene.post("/api/events/batch", body).await.expect(200);
    let results = answer["results"].as_array().unwrap();
    let statuses: Vec<u64> = results.iter().map(|one| one["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 400, 200, 201, 400], "{answer}");
    assert_eq!(results[0]["id"], results[2]["id"]);
    assert!(results[1]["error"].as_str().unwrap().contains("source"), "{answer}");
    scene.post("/api/events/batch", json!({})).await.refused(400, "invalid_request");
    scene.post("/api/events/batch", json!({ "events": [] })).await.expect(200);
    scene.close().await;
}

async fn events_are_found_by_what_they_carry(scene: Scene) {
    for number in 0..6 {
        let body = json!({
            "type": format!("shop:orders:order:{}", if number % 2 == 0 { "even" } else { "odd" }),
            "source": format!("/s{}", number % 3), "subject": format!("order:{number}"),
            "correlationId": "c", "messageGroup": format!("g{}", number % 2),
            "contextData": [{ "key": "region", "value": if number < 3 { "eu" } else { "us" } }],
            "data": number,
        });
        scene.post("/api/events", body).await.expect(201);
    }
    let found = async |query: &str| -> Vec<i64> {
        let page = scene.get(&format!("/api/events?{query}")).await.expect(200);
        page["items"].as_array().unwrap().iter().map(|one| one["data"].as_i64().unwrap()).collect()
    };
    assert_eq!(found("").await, [5, 4, 3, 2, 1, 0]);
    for (query, expected) in [
        ("type=shop:orders:order:even", &[4, 2, 0][..]),
        ("type=shop:*:order:odd", &[5, 3, 1]),
        ("source=/s1", &[4, 1]),
        ("subject=order:3", &[3]),
        ("correlationId=c&source=/s2", &[5, 2]),
        ("messageGroup=g1", &[5, 3, 1]),
        ("context.region=eu", &[2, 1, 0]),
        ("context.region=eu&messageGroup=g0", &[2, 0]),
        ("externalId=none", &[]),
        ("to=2020-01-01T00:00:00Z", &[]),
        ("from=2020-01-01T00:00:00Z&context.region=us", &[5, 4, 3]),
    ] {
        assert_eq!(found(query).await, expected, "{query}");
    }
    let first = scene.get("/api/events?limit=4").await.expect(200);
    let cursor = first["nextCursor"].as_str().unwrap();
    assert_eq!(found(&format!("limit=4&cursor={cursor}")).await, [1, 0]);
    scene.get("/api/events?nope=1").await.refused(400, "invalid_request");
    scene.get("/api/events?type=a:*").await.refused(400, "invalid_request");
    scene.get("/api/events?from=yesterday").await.refused(400, "invalid_request");
    scene.get("/api/events/0000000000001").await.refused(404, "not_found");
    scene.close().await;
}

async fn subscriptions_have_their_fields_and_defaults(scene: Scene) {
    let made = subscribe(&scene, "all", json!({})).await;
    for (field, value) in [
        ("status", json!("ACTIVE")),
        ("mode", json!("IMMEDIATE")),
        ("sequence", json!(99)),
        ("timeoutSeconds", json!(30)),
        ("maxRetries", json!(3)),
        ("maxAgeSeconds", json!(86_400)),
        ("delaySeconds", json!(0)),
        ("dataOnly", json!(true)),
        ("customConfig", json!([])),
        ("clientId", Value::Null),
    ] {
        assert_eq!(made[field], value, "{field}: {made}");
    }
    assert!(made["signingSecret"].as_str().unwrap().starts_with("whsec_"), "{made}");
    let path = format!("/api/subscriptions/{}", made["id"].as_str().unwrap());
    let shown = scene.get(&path).await;
    let tag = shown.headers["etag"].to_str().unwrap().to_owned();
    assert_eq!(shown.expect(200)["signingSecret"], Value::Null, "shown once");
    let pool = json!({ "code": "pool", "name": "A pool" });
    let pool = scene.post("/api/dispatch-pools", pool).await.expect(201)["id"].as_str().unwrap().to_owned();
    let account = json!({ "code": "account", "name": "An account", "authType": "NONE" });
    let account = scene.post("/api/service-accounts", account).await.expect(201)["id"].as_str().unwrap().to_owned();
    let all = json!({
        "name": "All", "description": "d", "eventTypes": [{ "eventTypeCode": "a.b", "specVersion": "1.0" }],
        "target": "https://example.com/hook", "queue": "q", "mode": "BLOCK_ON_ERROR",
        "dispatchPoolId": pool, "timeoutSeconds": 5, "maxRetries": 0,
        "retryStrategy": { "type": "list", "delaysSeconds": [1, 2] }, "maxAgeSeconds": 60, "delaySeconds": 9,
        "sequence": -1, "dataOnly": false, "customConfig": [{ "key": "k", "value": "v" }],
        "serviceAccountId": account, "filter": [{ "exact": { "subject": "x" } }],
    });
    let put = send(scene.request(Method::PUT, &path).header("if-match", &tag).json(&all)).await.expect(200);
    for (field, value) in all.as_object().unwrap() {
        assert_eq!(&put[field], value, "{field}: {put}");
    }
    send(scene.request(Method::PUT, &path).header("if-match", &tag).json(&all))
        .await
        .refused(412, "precondition_failed");
    assert_eq!(scene.post(&format!("{path}/pause"), json!({})).await.expect(200)["status"], "PAUSED");
    assert_eq!(scene.post(&format!("{path}/resume"), json!({})).await.expect(200)["status"], "ACTIVE");
    let page = scene.get("/api/subscriptions").await.expect(200);
    assert_eq!(page["items"].as_array().unwrap().len(), 1);
    send(scene.request(Method::DELETE, &path)).await.expect(204);
    scene.get(&path).await.refused(404, "not_found");
    // The code is free again, its secret too.
    let again = subscribe(&scene, "all", json!({})).await;
    assert_ne!(again["signingSecret"], made["signingSecret"]);
    scene.close().await;
}

async fn what_is_wrong_with_a_subscription_is_named(scene: Scene) {
    subscribe(&scene, "taken", json!({})).await;
    for (field, value, named) in [
        ("code", json!("a:b"), "code"),
        ("code", json!(""), "code"),
        ("name", json!(""), "name"),
        ("eventTypes", json!([]), "eventTypes"),
        ("eventTypes", json!([{}]), "eventTypes[0]"),
        ("eventTypes", json!([{ "eventTypeCode": "a:b*:c:d" }]), "eventTypes[0].eventTypeCode"),
        ("eventTypes", json!([{ "eventTypeId": "0000000000001" }]), "eventTypes[0].eventTypeId"),
        ("eventTypes", json!([{ "eventTypeCode": "a.b", "specVersion": "1" }]), "eventTypes[0].specVersion"),
        ("target", json!("https://user:secret@example.com/"), "credentials"),
        ("target", json!("https://example.com/#f"), "fragment"),
        ("target", json!("https://example.com:0/"), "port 0"),
        ("target", json!("ftp://example.com/"), "target"),
        ("target", json!("http://example.com/"), "allowed_targets"),
        ("target", json!("queue:none"), "there is no queue none"),
        ("timeoutSeconds", json!(0), "timeoutSeconds"),
        ("maxAgeSeconds", json!(0), "maxAgeSeconds"),
        ("mode", json!("SOMEHOW"), "mode"),
        ("retryStrategy", json!({ "type": "list", "delaysSeconds": [] }), "retryStrategy"),
        ("customConfig", json!([{ "key": "k", "value": "1" }, { "key": "k", "value": "2" }]), "customConfig[1].key"),
        ("filter", json!({ "exact": { "Type": "x" } }), "/filter/0/exact/Type"),
        ("filter", json!({ "like": { "type": "x" } }), "/filter/0/like"),
        ("clientId", json!("0000000000009"), "clientId"),
        ("nope", json!(1), "nope"),
    ] {
        let mut body = json!({
            "code": "new", "name": "n", "eventTypes": [{ "eventTypeCode": "a.b" }], "target": "queue:default",
        });
        body[field] = value.clone();
        let text = scene.post("/api/subscriptions", body).await.refused(400, "invalid_request");
        assert!(text.contains(named), "{field} {value}: {text}");
    }
    let taken = json!({
        "code": "taken", "name": "n", "eventTypes": [{ "eventTypeCode": "a.b" }], "target": "queue:default",
    });
    scene.post("/api/subscriptions", taken).await.refused(409, "conflict");
    assert_eq!(scene.get("/api/subscriptions").await.expect(200)["items"].as_array().unwrap().len(), 1);
    scene.close().await;
}

async fn a_change_counts_from_the_next_event_on(scene: Scene) {
    let made = subscribe(&scene, "all", json!({})).await;
    let path = format!("/api/subscriptions/{}", made["id"].as_str().unwrap());
    let count = async |id: &str| {
        let stored = cloud_event(&scene, &event(id).to_string()).await.expect(201);
        stored["entries"].as_array().unwrap().len()
    };
    assert_eq!(count("1").await, 1);
    scene.post(&format!("{path}/pause"), json!({})).await.expect(200);
    assert_eq!(count("2").await, 0);
    let preview = scene.post(&format!("{path}/preview"), json!({})).await.expect(200);
    let ids: Vec<&Value> = preview["items"].as_array().unwrap().iter().map(|one| &one["externalId"]).collect();
    assert_eq!(ids, ["2", "1"], "paused or not");
    scene.post(&format!("{path}/resume"), json!({})).await.expect(200);
    assert_eq!(count("3").await, 1);
    subscribe(&scene, "second", json!({})).await;
    assert_eq!(count("4").await, 2);
    send(scene.request(Method::DELETE, &path)).await.expect(204);
    assert_eq!(count("5").await, 1);
    scene.close().await;
}

async fn groups_and_delays_reach_the_entry(scene: Scene) {
    for queue in ["plain", "late"] {
        scene.put(&format!("/queues/{queue}"), json!({})).await.expect(200);
    }
    subscribe(&scene, "plain", json!({ "target": "queue:plain" })).await;
    subscribe(&scene, "late", json!({ "target": "queue:late", "delaySeconds": 3600 })).await;
    let mut sent = event("1");
    (sent["messagegroup"], sent["contextdata"]) = (json!("g"), json!("[{\"key\":\"region\",\"value\":\"eu\"}]"));
    let stored = cloud_event(&scene, &sent.to_string()).await.expect(201);
    let entry = async |at: usize| scene.get(&format!("/events/{}", stored["entries"][at]["id"])).await.expect(200);
    let plain = entry(0).await;
    assert_eq!(plain["message_group"], "plain:g", "{plain}");
    assert_eq!(plain["tags"], json!(format!("{TYPE},region:eu")), "{plain}");
    let claim =
        async |queue: &str| scene.post("/events/claim", json!({ "worker_id": "w:1", "queue": queue, "max": 5 })).await;
    assert_eq!(claim("late").await.expect(200)["events"], json!([]), "not due");
    assert_eq!(claim("plain").await.expect(200)["events"][0]["payload"], sent["data"]);
    scene.close().await;
}

async fn webhooks_become_jobs(scene: Scene) {
    let hook = json!({ "target": "https://example.com/hook", "mode": "NEXT_ON_ERROR" });
    let made = subscribe(&scene, "hook", hook).await;
    let stored = cloud_event(&scene, &event("1").to_string()).await.expect(201);
    let job = &stored["dispatchJobs"][0];
    assert_eq!((&job["subscriptionId"], &job["status"]), (&made["id"], &json!("QUEUED")), "{stored}");
    assert_eq!(job["id"].as_str().unwrap().len(), 13);
    let shown = scene.get(&format!("/api/events/{}", stored["id"].as_str().unwrap())).await.expect(200);
    assert_eq!(shown["dispatchJobs"], stored["dispatchJobs"]);
    assert_eq!(shown["entries"], json!([]));
    let listed = scene.get("/events").await.expect(200);
    assert_eq!(listed["total"], 0, "jobs are not entries");
    scene.close().await;
}

async fn bad_events_are_refused_and_leave_nothing(scene: Scene) {
    let without = |field: &str| {
        let mut event = event("1");
        event.as_object_mut().unwrap().remove(field);
        event.to_string()
    };
    let with = |field: &str, value: Value| {
        let mut event = event("1");
        event[field] = value;
        event.to_string()
    };
    for (body, named) in [
        (without("id"), "id"),
        (without("source"), "source"),
        (without("type"), "type"),
        (with("specversion", json!("0.3")), "specversion"),
        (with("data_base64", json!("AA==")), "data_base64"),
        (with("UPPER", json!("x")), "UPPER"),
        (with("time", json!("yesterday")), "time"),
        (with("ext", json!({ "a": 1 })), "ext"),
        (with("long", json!("x".repeat(70_000))), "context attributes"),
        ("{".into(), "JSON"),
        ("[]".into(), "event"),
    ] {
        let text = cloud_event(&scene, &body).await.refused(400, "invalid_request");
        assert!(text.contains(named), "{body:.200}: {text}");
    }
    let odd = scene.request(Method::POST, "/api/events").header("content-type", "text/plain").body("x");
    send(odd).await.refused(415, "unsupported_media_type");
    let batch = scene.request(Method::POST, "/api/events");
    let batch = batch.header("content-type", "application/cloudevents-batch+json").body("[]");
    send(batch).await.refused(400, "invalid_request");
    scene
        .post("/api/events", json!({ "type": "a", "source": "/x", "data": "y".repeat(2 << 20) }))
        .await
        .refused(413, "payload_too_large");
    scene.post("/api/events", json!({ "type": "a", "source": "/x", "idd": 1 })).await.refused(400, "invalid_request");
    assert_eq!(scene.get("/api/events").await.expect(200)["items"], json!([]), "nothing was written");
    scene.close().await;
}

/// Clients see and reach nothing of each other.
async fn clients_are_apart(mut scene: Scene) {
    let keys = Keyring::new(scene.queue.clone());
    let anchor = keys.create("anchor", &[Scope::Admin], None).await.unwrap().secret;
    scene.with_key(&anchor);
    let mut made = Vec::new();
    for code in ["acme", "bank"] {
        let client = scene.post("/api/clients", json!({ "code": code, "name": code })).await.expect(201);
        let id = client["id"].as_str().unwrap().to_owned();
        let body = json!({ "name": code, "scopes": ["admin"], "clientId": id });
        let key = scene.post("/api/keys", body).await.expect(201)["key"].as_str().unwrap().to_owned();
        made.push((id, key));
    }
    let [(acme, acme_key), (bank, bank_key)] = made.try_into().unwrap();
    subscribe(&scene, "everybody", json!({})).await;
    scene.with_key(&acme_key);
    let own = subscribe(&scene, "own", json!({})).await;
    assert_eq!(own["clientId"], json!(acme));
    let stored = cloud_event(&scene, &event("1").to_string()).await.expect(201);
    assert_eq!(stored["entries"].as_array().unwrap().len(), 1, "the anchor's entry is not the client's: {stored}");
    let (event_path, own_path) = (
        format!("/api/events/{}", stored["id"].as_str().unwrap()),
        format!("/api/subscriptions/{}", own["id"].as_str().unwrap()),
    );
    scene.with_key(&bank_key);
    let same = cloud_event(&scene, &event("1").to_string()).await.expect(201);
    assert_ne!(same["id"], stored["id"], "a key of another client's is free");
    assert_eq!(same["entries"], json!([]), "the anchor's is not shown: {same}");
    scene.get(&event_path).await.refused(404, "not_found");
    scene.get(&own_path).await.refused(404, "not_found");
    send(scene.request(Method::DELETE, &own_path)).await.refused(404, "not_found");
    scene.post(&format!("{own_path}/pause"), json!({})).await.refused(404, "not_found");
    scene.post(&format!("{own_path}/preview"), json!({})).await.refused(404, "not_found");
    scene.get(&format!("/api/events?clientId={acme}")).await.refused(403, "forbidden");
    scene.get(&format!("/api/clients/{acme}")).await.refused(404, "not_found");
    scene.post("/api/clients", json!({ "code": "c", "name": "c" })).await.refused(403, "forbidden");
    let foreign = json!({ "name": "k", "scopes": ["read"], "clientId": acme });
    scene.post("/api/keys", foreign).await.refused(403, "forbidden");
    for (path, count) in [("/api/events", 1), ("/api/subscriptions", 0), ("/api/clients", 1), ("/api/keys", 1)] {
        let page = scene.get(path).await.expect(200);
        assert_eq!(page["items"].as_array().unwrap().len(), count, "{path}: {page}");
    }
    scene.with_key(&anchor);
    let whole = scene.get(&event_path).await.expect(200);
    assert_eq!(whole["entries"].as_array().unwrap().len(), 2, "its own and the anchor's: {whole}");
    let clients = format!("/api/clients/{bank}");
    send(scene.request(Method::DELETE, &clients)).await.refused(409, "conflict");
    let key = scene.get("/api/keys").await.expect(200)["items"].as_array().unwrap().clone();
    let of_bank = key.iter().find(|key| key["clientId"] == json!(bank)).unwrap()["id"].clone();
    send(scene.request(Method::DELETE, &format!("/api/keys/{of_bank}"))).await.expect(200);
    send(scene.request(Method::DELETE, &clients)).await.expect(204);
    scene.with_key(&bank_key);
    scene.get("/api/events").await.refused(401, "unauthorized");
    assert_eq!(Tsid::to_string(&acme.parse::<Tsid>().unwrap()), acme);
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_apart_on_sqlite() {
    clients_are_apart(Scene::guarded_sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_apart_on_postgres() {
    clients_are_apart(Scene::guarded_postgres().await).await;
}
