//! The gateway before callers who mean it harm: what they send is refused with words, hurts nobody else, and what is
//! accepted can be read again. What is merely wrong is in `gateway`.

use reqwest::Method;
use serde_json::{Value, json};
use tidegate_server::{KeyInfo, Keyring};

use crate::scene::{Scene, on_both, send};

on_both!(
    targets_that_are_longer_once_encoded_are_refused,
    nul_in_a_query_is_refused_by_name,
    entity_tags_are_compared_letter_by_letter,
    one_of_many_at_once_is_stored,
    a_client_that_is_gone_leaves_nothing_that_works,
);

fn subscription(code: &str) -> Value {
    json!({ "code": code, "name": code, "eventTypes": [{ "eventTypeCode": "a.b" }], "target": "queue:default" })
}

/// A subscription that is stored but cannot be read would spoil every list of its client.
async fn targets_that_are_longer_once_encoded_are_refused(scene: Scene) {
    for (length, status) in [(339, 201), (340, 400), (1_000, 400)] {
        let mut body = subscription(&format!("s{length}"));
        body["target"] = json!(format!("https://e.com/{}", "é".repeat(length)));
        let answer = scene.post("/api/subscriptions", body).await;
        assert_eq!(answer.status.as_u16(), status, "{length}: {}", answer.text);
        assert!(status == 201 || answer.text.contains("target must have at most 2048 bytes"), "{}", answer.text);
    }
    let listed = scene.get("/api/subscriptions").await.expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
    let stored = scene.post("/api/events", json!({ "type": "a.b", "source": "/s" })).await.expect(201);
    assert_eq!(stored["dispatchJobs"].as_array().unwrap().len(), 1, "{stored}");
    scene.close().await;
}

async fn nul_in_a_query_is_refused_by_name(scene: Scene) {
    let lists = [
        (
            "/api/events",
            &["type", "source", "subject", "externalId", "correlationId", "messageGroup", "from", "to"][..],
        ),
        ("/api/events", &["context.a", "clientId", "limit", "cursor"]),
        ("/api/event-types", &["code", "status", "limit", "cursor"]),
        ("/api/subscriptions", &["clientId", "limit", "cursor"]),
        ("/api/clients", &["limit", "cursor"]),
        ("/api/schemas", &["limit", "cursor"]),
        ("/events", &["tags", "cursor"]),
    ];
    for (path, names) in lists {
        for name in names {
            let text = scene.get(&format!("{path}?{name}=a%00b")).await.refused(400, "invalid_request");
            assert!(text.contains(name) && text.contains("NUL"), "{path} {name}: {text}");
        }
    }
    scene.get("/api/events?context.%00=a").await.refused(400, "invalid_request");
    scene.close().await;
}

async fn entity_tags_are_compared_letter_by_letter(scene: Scene) {
    let made = scene.post("/api/subscriptions", subscription("s")).await;
    let tag = made.headers["etag"].to_str().unwrap().trim_matches('"').to_owned();
    let path = format!("/api/subscriptions/{}", made.expect(201)["id"].as_str().unwrap());
    let change = async |tag: &str| {
        let request = scene.request(Method::PUT, &path).header("if-match", tag);
        send(request.json(&subscription("s"))).await
    };
    for other in [format!("\"+{tag}\""), format!("\"0{tag}\""), format!("\" {tag}\""), "\"\"".into(), "\"-1\"".into()] {
        change(&other).await.refused(412, "precondition_failed");
    }
    let unread =
        [format!("\"{tag}\", \"0\""), format!("W/\"{tag}\""), tag.clone(), "\"".into(), format!("*, \"{tag}\"")];
    for unread in unread {
        let text = change(&unread).await.refused(400, "invalid_request");
        assert!(text.contains("If-Match"), "{unread}: {text}");
    }
    change(&format!("\"{tag}\"")).await.expect(200);
    scene.close().await;
}

/// Twenty callers with one key: one event is stored, and the others are told of it, or that they sent another.
async fn one_of_many_at_once_is_stored(scene: Scene) {
    scene.post("/api/subscriptions", subscription("s")).await.expect(201);
    for (key, differ) in [("same", false), ("different", true)] {
        for by_id in [false, true] {
            let name = format!("{key}-{by_id}");
            let body = |at: usize| match by_id {
                false => json!({
                    "type": "a.b", "source": "/s", "deduplicationId": name, "data": if differ { at } else { 0 },
                }),
                true => json!({
                    "specversion": "1.0", "type": "a.b", "source": "/s", "id": name, "data": if differ { at } else { 0 },
                }),
            };
            let media_type = if by_id { "application/cloudevents+json" } else { "application/json" };
            let calls = (0..20).map(|at| {
                let request = scene.request(Method::POST, "/api/events").header("content-type", media_type);
                send(request.body(body(at).to_string()))
            });
            let answers = futures_util::future::join_all(calls).await;
            let with = |status: u16| answers.iter().filter(|answer| answer.status.as_u16() == status).count();
            let expected = if differ { (1, 0, 19) } else { (1, 19, 0) };
            assert_eq!((with(201), with(200), with(422)), expected, "{name}: {answers:?}");
            let mut ids: Vec<Value> =
                answers.iter().filter(|one| one.status.is_success()).map(|one| one.json()).collect();
            let first = ids.pop().unwrap();
            assert!(
                ids.iter().all(|one| (&one["id"], &one["entries"]) == (&first["id"], &first["entries"])),
                "{ids:?}"
            );
        }
    }
    let listed = scene.get("/api/events").await.expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 4, "{listed}");
    assert_eq!(scene.get("/events").await.expect(200)["total"], 4, "each has one entry");
    scene.close().await;
}

/// Whatever is made for a client while it is being deleted: either the client stays, or that goes with it.
async fn a_client_that_is_gone_leaves_nothing_that_works(scene: Scene) {
    let keys = Keyring::new(scene.queue.clone());
    for round in 0..10 {
        let new = json!({ "code": format!("client-{round}"), "name": "c" });
        let client = scene.post("/api/clients", new).await.expect(201)["id"].as_str().unwrap().to_owned();
        let calls = (0..20).map(async |at| match at % 5 {
            0 => send(scene.request(Method::DELETE, &format!("/api/clients/{client}"))).await,
            1 => {
                let key = json!({ "name": "k", "scopes": ["read"], "clientId": client });
                scene.post("/api/keys", key).await
            }
            2 => {
                let pool = json!({ "code": format!("p{at}"), "name": "p", "clientId": client });
                scene.post("/api/dispatch-pools", pool).await
            }
            3 => {
                let job = json!({
                    "code": "c", "targetUrl": "https://example.com/", "payload": 1, "clientId": client,
                    "scheduledFor": "2100-01-01T00:00:00Z",
                });
                match at {
                    3 => scene.post("/api/dispatch-jobs/batch", json!({ "jobs": [job] })).await,
                    _ => scene.post("/api/dispatch-jobs", job).await,
                }
            }
            _ => {
                let mut body = subscription(&format!("s{at}"));
                body["clientId"] = json!(client);
                scene.post("/api/subscriptions", body).await
            }
        });
        futures_util::future::join_all(calls).await;
        if scene.get(&format!("/api/clients/{client}")).await.status.as_u16() == 200 {
            continue;
        }
        let of_client = |key: &&KeyInfo| key.client.is_some_and(|of| of.to_string() == client);
        let all = keys.list().await.unwrap();
        let live: Vec<_> = all.iter().filter(of_client).filter(|key| key.revoked_at.is_none()).collect();
        assert!(live.is_empty(), "{live:?}");
        let left = scene.get(&format!("/api/subscriptions?clientId={client}")).await.expect(200);
        assert_eq!(left["items"], json!([]), "{left}");
        let left = scene.get(&format!("/api/dispatch-pools?clientId={client}")).await.expect(200);
        assert_eq!(left["items"], json!([]), "{left}");
        let left = scene.get(&format!("/api/dispatch-jobs?clientId={client}&status=QUEUED")).await.expect(200);
        assert_eq!(left["items"], json!([]), "{left}");
    }
    scene.close().await;
}

/// What a schema of the OpenAPI document says of a field.
fn described(schema: &str, field: &str) -> Value {
    let document: Value = serde_json::from_str(&tidegate_server::openapi()).unwrap();
    document["components"]["schemas"][schema]["properties"][field].clone()
}

/// Data are any JSON, filters are lists, and attributes of the binary mode are texts: generated clients must take them.
#[test]
fn what_may_be_of_any_type_is_described_so() {
    for schema in ["NewFactBody", "FactAnswer", "CloudEventBody"] {
        assert_eq!(described(schema, "data")["type"], Value::Null, "{schema}");
    }
    assert_eq!(described("SubscriptionText", "filter")["type"], Value::Null, "an expression, or several");
    assert_eq!(described("SubscriptionAnswer", "filter")["type"], json!(["array", "null"]));
    let attribute = described("FactAnswer", "sequence").to_string();
    assert!(attribute.contains("AttributeSchema"), "{attribute}");
    let document: Value = serde_json::from_str(&tidegate_server::openapi()).unwrap();
    for status in ["200", "201"] {
        let content = &document["paths"]["/api/events"]["post"]["responses"][status]["content"];
        assert!(content["application/cloudevents+json"].is_object(), "{status}: {content}");
    }
}
