//! `POST /api/dispatch-jobs` and its batches: what is stored, what a repeat is answered with, what is refused with which
//! words, and whose jobs they are.

use reqwest::Method;
use serde_json::{Value, json};
use tidegate::Tsid;
use tidegate_server::{Keyring, Scope};

use crate::scene::{Scene, on_both, send};

on_both!(
    a_job_has_its_fields_and_defaults,
    all_fields_are_kept,
    what_is_wrong_with_a_job_is_named,
    a_repeat_is_answered_with_the_first,
    twenty_at_once_create_one_job,
    a_batch_answers_for_each_job,
    payloads_are_stored_as_they_are_sent,
    a_job_is_no_event,
    an_account_that_a_job_behind_others_names_is_not_deleted,
);

mod with_keys {
    use super::jobs_are_their_clients;

    crate::scene::on_both! {
        with keys:
        jobs_are_their_clients,
    }
}

const PATH: &str = "/api/dispatch-jobs";

fn job() -> Value {
    json!({ "code": "invoice", "targetUrl": "https://example.com/tasks", "payload": { "n": 1 } })
}

fn with(field: &str, value: Value) -> Value {
    let mut body = job();
    body[field] = value;
    body
}

async fn count(scene: &Scene) -> usize {
    scene.queue.store().waiting_lanes(None).await.unwrap().lanes.len()
}

async fn a_job_has_its_fields_and_defaults(scene: Scene) {
    let answer = scene.post(PATH, job()).await;
    let location = answer.headers["location"].to_str().unwrap().to_owned();
    let made = answer.expect(201);
    assert_eq!(location, format!("{PATH}/{}", made["id"].as_str().unwrap()));
    for (field, value) in [
        ("kind", json!("TASK")),
        ("status", json!("QUEUED")),
        ("code", json!("invoice")),
        ("clientId", Value::Null),
        ("source", json!("/tidegate")),
        ("targetUrl", json!("https://example.com/tasks")),
        ("dataOnly", json!(true)),
        ("mode", json!("IMMEDIATE")),
        ("sequence", json!(99)),
        ("timeoutSeconds", json!(30)),
        ("maxRetries", json!(3)),
    ] {
        assert_eq!(made[field], value, "{field}: {made}");
    }
    assert_eq!(count(&scene).await, 1);
    scene.close().await;
}

async fn all_fields_are_kept(scene: Scene) {
    let pool = scene.post("/api/dispatch-pools", json!({ "code": "p", "name": "p" })).await.expect(201);
    let sent = json!({
        "code": "a:b:c:d", "targetUrl": "https://example.com/x?y=1", "payload": "a,b", "payloadContentType": "text/csv",
        "subject": "order:1", "source": "/shop", "externalId": "e-1", "correlationId": "c-1",
        "headers": { "x-tenant": "t", "x-api-key": "k" }, "dataOnly": false, "mode": "BLOCK_ON_ERROR",
        "messageGroup": "g", "sequence": -5, "dispatchPoolId": pool["id"], "timeoutSeconds": 5, "maxRetries": 0,
        "retryStrategy": { "type": "list", "delaysSeconds": [1, 2] }, "scheduledFor": "2100-01-01T00:00:00Z",
        "expiresAt": "2100-01-02T00:00:00Z", "idempotencyKey": "i-1", "metadata": { "team": ["a", 1.50] },
    });
    let made = scene.post(PATH, sent.clone()).await.expect(201);
    let again = scene.post(PATH, sent.clone()).await.expect(200);
    assert_eq!(again, made, "as it was stored");
    let mut expected = sent;
    expected["headers"]["x-api-key"] = json!("***");
    expected.as_object_mut().unwrap().remove("payload");
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(made[field], *value, "{field}: {made}");
    }

    // The same in the form of all jobs; in lists without what may be long.
    let list = scene.get(&format!("{PATH}?kind=TASK")).await.expect(200);
    let listed = &list["items"][0];
    let shown = scene.get(&format!("{PATH}/{}", listed["id"].as_str().unwrap())).await.expect(200);
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(shown[field], *value, "{field}: {shown}");
        let is_listed = !matches!(field.as_str(), "headers" | "metadata");
        assert_eq!(&listed[field], if is_listed { value } else { &Value::Null }, "{field}: {listed}");
    }
    assert_eq!((&shown["payload"], &shown["attempts"]), (&json!("a,b"), &json!([])));
    scene.close().await;
}

async fn what_is_wrong_with_a_job_is_named(scene: Scene) {
    let nothing = Tsid::from_i64(7).to_string();
    let long = "x".repeat(256);
    for (body, named) in [
        (with("code", json!("")), "code must"),
        (with("code", json!(long)), "code has 256 bytes"),
        (with("targetUrl", json!("queue:default")), "targetUrl must be an https:// URL"),
        (with("targetUrl", json!("example.com")), "targetUrl must be an https:// URL"),
        (with("targetUrl", json!("ftp://example.com/")), "not ftp:"),
        (with("targetUrl", json!("http://example.com/")), "allowed_targets"),
        (with("targetUrl", json!("http://127.0.0.1/")), "allowed_targets"),
        (with("targetUrl", json!("https://a:b@example.com/")), "credentials"),
        (with("targetUrl", json!("https://example.com/#x")), "fragment"),
        (with("targetUrl", json!("https://example.com:0/")), "port 0"),
        (with("targetUrl", json!(format!("https://example.com/{}", "x".repeat(2_048)))), "2048 bytes"),
        (with("payload", Value::Null), "payload is required"),
        (with("payloadContentType", json!("json")), "payloadContentType must be a media type"),
        (with("payloadContentType", json!("text/plain")), "payload must be a string"),
        (with("subject", json!("")), "subject must"),
        (with("source", json!("a b")), "source must be a URI-reference"),
        (with("headers", json!({ "Host": "x" })), "headers: Host"),
        (with("headers", json!({ "authorization": "Bearer x" })), "serviceAccountId"),
        (with("headers", json!({ "webhook-id": "x" })), "headers: webhook-id"),
        (with("headers", json!({ "a": "b\r\nc: d" })), "visible ASCII"),
        (with("headers", json!({ "a": 1 })), "headers"),
        (with("mode", json!("FIFO")), "mode"),
        (with("mode", json!("BLOCK_ON_ERROR")), "messageGroup is required"),
        (with("messageGroup", json!("")), "messageGroup must"),
        (with("sequence", json!(1_u64 << 40)), "sequence"),
        (with("dispatchPoolId", json!("x")), "dispatchPoolId must be an id"),
        (with("dispatchPoolId", json!(nothing)), "dispatchPoolId: there is no dispatch pool"),
        (with("serviceAccountId", json!(nothing)), "serviceAccountId: there is no service account"),
        (with("timeoutSeconds", json!(0)), "timeoutSeconds must be 1 to 3600"),
        (with("maxRetries", json!(1_001)), "maxRetries must be 0 to 1000"),
        (with("retryStrategy", json!({ "type": "list", "delaysSeconds": [] })), "retryStrategy.delaysSeconds"),
        (with("scheduledFor", json!("tomorrow")), "scheduledFor must be a moment"),
        (with("expiresAt", json!("never")), "expiresAt must be a moment"),
        (with("idempotencyKey", json!("")), "idempotencyKey must"),
        (with("idempotencyKey", json!(long)), "idempotencyKey must"),
        (with("metadata", json!([1])), "metadata must be a JSON object"),
        (with("metadata", json!({ "k": "x".repeat(17_000) })), "metadata must be a JSON object of at most"),
        (with("target_url", json!("x")), "target_url"),
        (with("clientId", json!(nothing)), "clientId"),
        (json!({ "code": "c", "payload": 1 }), "targetUrl"),
        (json!({ "targetUrl": "https://example.com/", "payload": 1 }), "code"),
    ] {
        let text = scene.post(PATH, body.clone()).await.refused(400, "invalid_request");
        assert!(text.contains(named), "{body:.200}: {text}");
        let results = scene.post(&format!("{PATH}/batch"), json!({ "jobs": [body] })).await.expect(200);
        let result = &results["results"][0];
        assert_eq!((&result["status"], &result["error"]), (&json!(400), &json!(text)), "in a batch");
    }
    scene.post(&format!("{PATH}/batch"), json!({ "jobs": [], "events": [] })).await.refused(400, "invalid_request");
    let many = json!({ "jobs": vec![job(); 1_001] });
    assert!(scene.post(&format!("{PATH}/batch"), many).await.refused(400, "invalid_request").contains("items"));
    let large = with("payload", json!("x".repeat((1 << 20) + 1)));
    scene.post(PATH, large).await.refused(413, "payload_too_large");
    assert_eq!(count(&scene).await, 0, "nothing is written");
    scene.close().await;
}

async fn a_repeat_is_answered_with_the_first(scene: Scene) {
    let keyed = |key: &str, n: i64| {
        let mut body = with("idempotencyKey", json!(key));
        body["payload"] = json!({ "n": n });
        body
    };
    let first = scene.post(PATH, keyed("k", 1)).await.expect(201);
    assert_eq!(scene.post(PATH, keyed("k", 1)).await.expect(200), first);
    assert!(scene.post(PATH, keyed("k", 2)).await.refused(422, "key_reused").contains("idempotencyKey \"k\""));
    let mut later = keyed("k", 1);
    later["maxRetries"] = json!(4);
    scene.post(PATH, later).await.refused(422, "key_reused");
    let other = scene.post(PATH, keyed("k2", 1)).await.expect(201);
    assert_ne!(other["id"], first["id"]);
    // A key of events is another one.
    let event = json!({ "type": "t", "source": "/s", "data": 1, "deduplicationId": "k" });
    scene.post("/api/events", event).await.expect(201);
    scene.close().await;
}

async fn twenty_at_once_create_one_job(scene: Scene) {
    let calls = (0..20).map(|_| scene.post(PATH, with("idempotencyKey", json!("once"))));
    let answers = futures_util::future::join_all(calls).await;
    let created = answers.iter().filter(|answer| answer.status == 201).count();
    let ids: std::collections::BTreeSet<String> =
        answers.iter().map(|answer| answer.json()["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!((created, ids.len()), (1, 1));
    assert!(answers.iter().all(|answer| answer.status == 201 || answer.status == 200));
    scene.close().await;
}

async fn a_batch_answers_for_each_job(scene: Scene) {
    let jobs = json!({ "jobs": [
        with("idempotencyKey", json!("k")), with("code", json!("")), with("idempotencyKey", json!("k")), job(), 7,
    ] });
    let answer = scene.post(&format!("{PATH}/batch"), jobs).await.expect(200);
    let results = answer["results"].as_array().unwrap();
    let statuses: Vec<u64> = results.iter().map(|result| result["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [201, 400, 200, 201, 400], "{answer}");
    assert_eq!(results[0]["job"]["id"], results[2]["job"]["id"]);
    assert_eq!((&results[3]["job"]["status"], &results[1]["code"]), (&json!("QUEUED"), &json!("invalid_request")));
    assert_eq!(scene.post(&format!("{PATH}/batch"), json!({ "jobs": [] })).await.expect(200)["results"], json!([]));
    scene.close().await;
}

async fn payloads_are_stored_as_they_are_sent(scene: Scene) {
    for (payload, media_type, stored) in [
        (r#"{"a":  1.50, "a":2}"#, None, r#"{"a":  1.50, "a":2}"#),
        (r#""{\"a\": 1}""#, None, r#"{"a": 1}"#),
        (r#""plain""#, None, r#""plain""#),
        (r#""a=1&b=2""#, Some("application/x-www-form-urlencoded"), "a=1&b=2"),
        (r#""<a/>""#, Some("text/xml"), "<a/>"),
        ("12345678901234567890.10", None, "12345678901234567890.10"),
    ] {
        let media_type = media_type.map_or(String::new(), |text| format!(r#","payloadContentType":"{text}""#));
        let body = format!(r#"{{"code":"c","targetUrl":"https://e.com/","payload":{payload}{media_type}}}"#);
        let made = scene.post_text(PATH, body).await.expect(201);
        let id: Tsid = made["id"].as_str().unwrap().parse().unwrap();
        let found = scene.queue.facts().get(vec![id], 1).await.unwrap().remove(0).unwrap();
        assert_eq!(std::str::from_utf8(&found.fact.payload).unwrap(), stored);
    }
    scene.close().await;
}

async fn a_job_is_no_event(scene: Scene) {
    let made = scene.post(PATH, job()).await.expect(201);
    scene.get(&format!("/api/events/{}", made["id"].as_str().unwrap())).await.refused(404, "not_found");
    assert_eq!(scene.get("/api/events").await.expect(200)["items"], json!([]));
    assert_eq!(scene.get("/events").await.expect(200)["total"], 0, "nor an entry");
    // Its type asks for nothing: no subscription gets it.
    let all =
        json!({ "code": "s", "name": "s", "eventTypes": [{ "eventTypeCode": "invoice" }], "target": "queue:default" });
    scene.post("/api/subscriptions", all).await.expect(201);
    scene.post(PATH, job()).await.expect(201);
    assert_eq!(scene.get("/events").await.expect(200)["total"], 0);
    scene.close().await;
}

/// Jobs of one group that name different accounts: that of the second one stays, too.
async fn an_account_that_a_job_behind_others_names_is_not_deleted(scene: Scene) {
    let mut made = Vec::new();
    for code in ["first", "second"] {
        let body = json!({ "code": code, "name": code, "authType": "NONE" });
        let account = scene.post("/api/service-accounts", body).await.expect(201)["id"].clone();
        let mut body = with("serviceAccountId", account.clone());
        body["mode"] = json!("NEXT_ON_ERROR");
        body["messageGroup"] = json!("g");
        let job = scene.post(PATH, body).await.expect(201)["id"].clone();
        made.push((account.as_str().unwrap().to_owned(), job.as_str().unwrap().to_owned()));
    }
    let delete =
        async |account: &str| send(scene.request(Method::DELETE, &format!("/api/service-accounts/{account}"))).await;
    for (account, _) in &made {
        let said = delete(account).await.refused(409, "conflict");
        assert!(said.contains("dispatch jobs"), "{said}");
    }
    let [(first, _), (second, behind)] = &made[..] else { panic!("there are two") };
    scene.post(&format!("{PATH}/{behind}/cancel"), json!({})).await.expect(200);
    delete(second).await.expect(204);
    delete(first).await.refused(409, "conflict");
    scene.close().await;
}

async fn jobs_are_their_clients(scene: Scene) {
    let keys = Keyring::new(scene.queue.clone());
    let admin = keys.create("admin", &[Scope::Admin], None).await.unwrap().secret;
    let call =
        async |key: &str, path: &str, body: Value| send(scene.request_with(key, Method::POST, path).json(&body)).await;
    let client = call(&admin, "/api/clients", json!({ "code": "c", "name": "c" })).await.expect(201)["id"].clone();
    let id: Tsid = client.as_str().unwrap().parse().unwrap();
    let own = keys.create("own", &[Scope::Publish], Some(id)).await.unwrap().secret;
    let reader = keys.create("reader", &[Scope::Read], Some(id)).await.unwrap().secret;
    let other = keys.create("other", &[Scope::Publish], Some(Tsid::from_i64(9))).await.unwrap().secret;
    let keyed = with("idempotencyKey", json!("k"));
    let made = call(&own, PATH, keyed.clone()).await.expect(201);
    assert_eq!(made["clientId"], client);
    let theirs = call(&other, PATH, keyed.clone()).await.expect(201);
    assert_ne!(theirs["id"], made["id"], "each client has keys of its own");
    let mut named = keyed.clone();
    named["clientId"] = client.clone();
    assert_eq!(call(&admin, PATH, named.clone()).await.expect(200)["id"], made["id"]);
    call(&other, PATH, named).await.refused(403, "forbidden");
    call(&reader, PATH, keyed).await.refused(403, "forbidden");
    // A pool of another client is as if it were not there.
    let pool = json!({ "code": "p", "name": "p", "clientId": client });
    let pool = call(&admin, "/api/dispatch-pools", pool).await.expect(201)["id"].clone();
    call(&own, PATH, with("dispatchPoolId", pool.clone())).await.expect(201);
    let refused = call(&other, PATH, with("dispatchPoolId", pool)).await.refused(400, "invalid_request");
    assert!(refused.contains("there is no dispatch pool"), "{refused}");
    scene.close().await;
}
