//! The examples on the API pages can be sent as they are.

use reqwest::Method;
use serde_json::{Value, json};

use crate::scene::{Scene, send};

/// Operations whose example needs a projection, which cannot be made over HTTP.
const NEEDS_MORE: [&str; 3] = ["show_projection", "projection_document", "remove_projection"];

#[tokio::test(flavor = "multi_thread")]
async fn every_example_of_the_description_can_be_sent_as_it_stands() {
    let document: Value = serde_json::from_str(&tidegate_server::openapi()).unwrap();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            if NEEDS_MORE.contains(&id) {
                continue;
            }
            // The state that the examples assume: one event, held by the worker that they name.
            let scene = Scene::sqlite().await;
            assert_eq!(scene.publish("email").await, 1, "the examples name event 1");
            scene.take("email", "worker-02:8742").await;
            if path.starts_with("/schedules/") && id != "put_schedule" {
                let body = json!({ "cron": "@yearly", "event": { "type": "report.wanted" } });
                scene.put("/schedules/nightly%20report", body).await.expect(200);
            }
            let (path, query) = filled(&known(&scene, path, id).await, operation);
            let request = scene.request(method.to_uppercase().parse::<Method>().unwrap(), &path).query(&query);
            let body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str();
            let request = match body.map(|name| &document.pointer(&name[1..]).unwrap()["example"]) {
                Some(Value::Null) => panic!("the body of {id} has no example: the API pages would make one up"),
                Some(example) => request.json(example),
                None => request,
            };
            let answer = send(request).await;
            // A reset or a redrive may conflict with the state of the event, which is no fault of the example. Without
            // a recorder there is no /metrics.
            let fits = answer.status.is_success() || answer.status.as_u16() == 409 || id == "metrics";
            assert!(fits, "{id}: {} {}", answer.status, answer.text);
            scene.close().await;
        }
    }
}

/// What is made for paths that name one of them.
const MADE: [(&str, &str); 8] = [
    ("/api/events", r#"{"type": "a.b", "source": "/s"}"#),
    (
        "/api/subscriptions",
        r#"{"code": "order-mails", "name": "n", "eventTypes": [{"eventTypeCode": "a.b"}], "target": "queue:default"}"#,
    ),
    ("/api/dispatch-pools", r#"{"code": "partners", "name": "n"}"#),
    ("/api/applied-sets", r#"{"code": "default", "items": []}"#),
    ("/api/clients", r#"{"code": "c", "name": "n"}"#),
    ("/api/keys", r#"{"name": "k", "scopes": ["read"]}"#),
    ("/api/service-accounts", r#"{"code": "shop", "name": "n", "authType": "NONE"}"#),
    ("/api/dispatch-jobs", r#"{"code": "c", "targetUrl": "https://example.com/", "payload": 1}"#),
];

/// A path with the id of an event type, a schema and the like that exists, in place of the one of the examples.
async fn known(scene: &Scene, path: &str, operation: &str) -> String {
    let id = if path.starts_with("/api/event-types/{id}") {
        let body = json!({ "code": "a:b:c:d", "name": "n" });
        let made = scene.post("/api/event-types", body).await.expect(201);
        let id = made["id"].as_str().unwrap().to_owned();
        if operation != "add_version" {
            let version = json!({
                "version": "1.0", "mimeType": "application/json", "schemaType": "JSON_SCHEMA", "schema": {}
            });
            scene.post(&format!("/api/event-types/{id}/versions"), version).await.expect(201);
        }
        id
    } else if path.starts_with("/api/schemas/{id}") {
        let body = json!({
            "name": "n", "mimeType": "application/json", "schemaType": "JSON_SCHEMA", "content": {}
        });
        scene.post("/api/schemas", body).await.expect(201)["id"].as_str().unwrap().to_owned()
    } else if let Some((path, body)) = MADE.iter().find(|(made, _)| path.starts_with(&format!("{made}/{{id}}"))) {
        let made = scene.post(path, serde_json::from_str(body).unwrap()).await.expect(201);
        made["id"].as_str().map_or_else(|| made["id"].to_string(), str::to_owned)
    } else {
        return path.to_owned();
    };
    path.replace("{id}", &id)
}

/// The path and the query, with the example of each parameter filled in as the API pages do.
fn filled(path: &str, operation: &Value) -> (String, Vec<(String, String)>) {
    let (mut path, mut query) = (path.to_owned(), Vec::new());
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap();
        let example = [&parameter["example"], &parameter["schema"]["example"]].into_iter().find(|one| !one.is_null());
        let Some(example) = example else {
            assert_ne!(parameter["required"], true, "{name} of {path} has no example");
            continue;
        };
        let text = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
        match parameter["in"].as_str() {
            Some("path") => path = path.replace(&format!("{{{name}}}"), &text),
            Some("query") => query.push((name.to_owned(), text)),
            _ => {}
        }
    }
    (path, query)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_address_leads_to_pages_with_the_products_name() {
    let scene = Scene::sqlite().await;
    let page = scene.get("/").await; // the client follows the redirect
    assert_eq!(page.status.as_u16(), 200);
    assert!(page.text.contains("<title>Tidegate</title>"), "{}", page.text);
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_of_another_type_is_named_in_the_words_of_the_api() {
    let scene = Scene::sqlite().await;
    for (body, expected) in [
        (json!({ "title": "t", "tags": "a", "priority": "high" }), "priority is invalid"),
        (json!({ "title": "t", "tags": 7 }), "tags is invalid: it must be a string or a list of strings"),
        (json!({ "title": 7, "tags": "a" }), "title is invalid"),
    ] {
        let text = scene.post("/events", body).await.refused(400, "invalid_request");
        assert!(text.starts_with(expected), "{text}");
        for word in ["i16", "enum", "struct", "line", "column", "the body cannot be read"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }
    let body = json!({ "events": [{ "id": 1, "worker_id": "w", "status_code": "ok" }] });
    let answer = scene.post("/events/complete", body).await.expect(200);
    let text = answer["results"][0]["error"].as_str().unwrap();
    assert!(text.contains("status_code is invalid") && !text.contains("i32"), "{text}");
    scene.close().await;
}
