//! Event types and schemas over HTTP: fields, statuses, entity tags, and what is refused with which words.

use reqwest::Method;
use serde_json::{Value, json};
use tidegate::Tsid;
use tidegate_server::{Keyring, Scope};

use crate::scene::{Answer, Scene, on_both, send};

on_both!(
    a_type_lives_from_its_first_version_to_its_archive,
    changes_go_by_entity_tags,
    data_is_judged_by_its_version,
    schemas_are_kept_on_their_own_and_for_versions,
    what_is_wrong_is_named,
    lists_match_codes_and_go_on_by_cursors,
    versions_and_schemas_go_by_entity_tags,
    schemas_are_listed_in_pages,
    a_schema_of_several_messages_is_kept_on_its_own,
    events_without_a_current_version_are_judged_or_told,
);

const CODE: &str = "shop:orders:order:created";

async fn made(scene: &Scene, code: &str) -> String {
    let body = json!({ "code": code, "name": "Order created", "description": "A customer has ordered." });
    scene.post("/api/event-types", body).await.expect(201)["id"].as_str().unwrap().to_owned()
}

fn version(number: &str, schema: Value) -> Value {
    json!({ "version": number, "mimeType": "application/json", "schemaType": "JSON_SCHEMA", "schema": schema })
}

fn order(required: &[&str]) -> Value {
    json!({ "type": "object", "required": required, "properties": { "orderId": { "type": "string" } } })
}

async fn with(scene: &Scene, method: Method, path: &str, if_match: &str, body: Value) -> Answer {
    send(scene.request(method, path).header("if-match", if_match).json(&body)).await
}

async fn a_type_lives_from_its_first_version_to_its_archive(scene: Scene) {
    let answer = scene.post("/api/event-types", json!({ "code": CODE, "name": "Order created" })).await;
    let location = answer.headers["location"].to_str().unwrap().to_owned();
    let created = answer.expect(201);
    assert_eq!(location, format!("/api/event-types/{}", created["id"].as_str().unwrap()));
    assert_eq!(created["id"].as_str().map(str::len), Some(13));
    for (field, expected) in
        [("code", json!(CODE)), ("description", Value::Null), ("status", json!("CURRENT")), ("specVersions", json!([]))]
    {
        assert_eq!(created[field], expected, "{created}");
    }
    let added = scene.post(&format!("{location}/versions"), version("1.0", order(&["orderId"]))).await.expect(201);
    assert_eq!((&added["version"], &added["status"]), (&json!("1.0"), &json!("FINALISING")));
    scene.post(&format!("{location}/versions/1.0/finalise"), json!({})).await.expect(200);

    // A minor that breaks: refused with what breaks, then wanted, with the reason kept.
    let narrow = version("1.1", order(&["orderId", "total"]));
    let refused = scene.post(&format!("{location}/versions"), narrow.clone()).await;
    assert_eq!(refused.json()["code"], "unprocessable", "{}", refused.text);
    let violations = refused.expect(422)["violations"].clone();
    assert!(violations[0]["message"].as_str().unwrap().contains("total"), "{violations}");
    let mut forced = narrow;
    forced["force"] = json!({ "reason": "nobody orders without a total" });
    let added = scene.post(&format!("{location}/versions"), forced).await.expect(201);
    assert_eq!(added["force"]["reason"], "nobody orders without a total");
    scene.post(&format!("{location}/versions/1.1/finalise"), json!({})).await.expect(200);
    let shown = scene.get(&location).await.expect(200);
    let stages: Vec<&Value> =
        shown["specVersions"].as_array().unwrap().iter().map(|version| &version["status"]).collect();
    assert_eq!(stages, ["DEPRECATED", "CURRENT"], "one CURRENT version of a major");
    let schema: Value = serde_json::from_str(shown["specVersions"][0]["schema"].as_str().unwrap()).unwrap();
    assert_eq!(schema, order(&["orderId"]));

    let fixed = scene.put(&format!("{location}/versions/1.1"), version("1.1", json!({}))).await;
    fixed.refused(409, "conflict");
    let late = send(scene.request(Method::DELETE, &format!("{location}/versions/1.0"))).await;
    late.refused(409, "conflict");
    scene.post(&format!("{location}/versions"), version("2.0", json!({}))).await.expect(201);
    send(scene.request(Method::DELETE, &format!("{location}/versions/2.0"))).await.expect(204);
    scene.post(&format!("{location}/versions/1.1/deprecate"), json!({})).await.expect(200);
    assert_eq!(scene.post(&format!("{location}/archive"), json!({})).await.expect(200)["status"], "ARCHIVE");
    scene.post(&format!("{location}/versions"), version("3.0", json!({}))).await.refused(409, "conflict");
    scene.close().await;
}

async fn changes_go_by_entity_tags(scene: Scene) {
    let id = made(&scene, CODE).await;
    let path = format!("/api/event-types/{id}");
    let read = scene.get(&path).await;
    let tag = read.headers["etag"].to_str().unwrap().to_owned();
    let renamed = with(&scene, Method::PUT, &path, &tag, json!({ "name": "Renamed" })).await;
    assert_ne!(renamed.headers["etag"].to_str().unwrap(), tag);
    assert_eq!(renamed.expect(200)["description"], Value::Null, "what is left out is removed");
    with(&scene, Method::PUT, &path, &tag, json!({ "name": "Late" })).await.refused(412, "precondition_failed");
    with(&scene, Method::POST, &format!("{path}/archive"), &tag, json!({})).await.refused(412, "precondition_failed");
    let add = with(&scene, Method::POST, &format!("{path}/versions"), &tag, version("1.0", json!({}))).await;
    add.refused(412, "precondition_failed");
    with(&scene, Method::PUT, &path, "*", json!({ "name": "Any" })).await.expect(200);
    with(&scene, Method::PUT, &path, "\"of another kind\"", json!({ "name": "x" }))
        .await
        .refused(412, "precondition_failed");
    with(&scene, Method::PUT, &path, "naked", json!({ "name": "x" })).await.refused(400, "invalid_request");
    scene.close().await;
}

async fn data_is_judged_by_its_version(scene: Scene) {
    let id = made(&scene, CODE).await;
    let path = format!("/api/event-types/{id}");
    scene.post(&format!("{path}/validate"), json!({})).await.refused(404, "not_found");
    scene.post(&format!("{path}/versions"), version("1.0", order(&["orderId"]))).await.expect(201);
    let judge = async |query: &str, content_type: Option<&str>, body: &str| {
        let mut request = scene.request(Method::POST, &format!("{path}/validate{query}")).body(body.to_owned());
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        send(request).await
    };
    let good = judge("?version=1.0", Some("application/json"), r#"{"orderId": "1"}"#).await.expect(200);
    assert_eq!(good, json!({ "valid": true, "violations": [], "total": 0, "version": "1.0" }));
    let bad = judge("?version=1.0", None, r#"{"orderId": 1}"#).await.expect(200);
    assert_eq!(
        (&bad["valid"], &bad["total"], &bad["violations"][0]["path"]),
        (&json!(false), &json!(1), &json!("/orderId"))
    );
    let broken = judge("?version=1.0", Some("application/cloudevents+json"), "{\n  \"orderId\": ").await.expect(200);
    assert_eq!((&broken["valid"], &broken["violations"][0]["line"]), (&json!(false), &json!(2)));
    assert_eq!(judge("?version=1.0", None, "").await.expect(200)["valid"], false);
    judge("?version=1.0", Some("application/xml"), "<a/>").await.refused(415, "unsupported_media_type");
    judge("?version=7.0", None, "{}").await.refused(404, "not_found");
    judge("?version=x", None, "{}").await.refused(400, "invalid_request");
    judge("?version=1.0", None, &" ".repeat((1 << 20) + 1)).await.refused(413, "payload_too_large");

    let proto = json!({
        "version": "2.0", "mimeType": "application/protobuf", "schemaType": "PROTO", "message": "shop.Order",
        "schema": "syntax = \"proto3\"; package shop; message Order { string id = 1; int32 total = 2; }"
    });
    scene.post(&format!("{path}/versions"), proto).await.expect(201);
    let good = judge("?version=2.0", Some("application/x-protobuf"), "\u{a}\u{1}7\u{10}\u{5}").await.expect(200);
    assert_eq!(good["valid"], true, "{good}");
    assert_eq!(judge("?version=2.0", Some("application/protobuf"), "\u{a}\u{9}7").await.expect(200)["valid"], false);
    let mapped = judge("?version=2.0", Some("application/json"), r#"{"id": "7", "total": "x"}"#).await.expect(200);
    assert_eq!(mapped["valid"], false, "{mapped}");

    let xsd = json!({
        "version": "3.0", "mimeType": "application/xml", "schemaType": "XSD",
        "schema": "<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\"><xs:element name=\"order\" type=\"xs:int\"/></xs:schema>"
    });
    scene.post(&format!("{path}/versions"), xsd).await.expect(201);
    assert_eq!(judge("?version=3.0", Some("text/xml"), "<order>7</order>").await.expect(200)["valid"], true);
    let bad = judge("?version=3.0", None, "<order>seven</order>").await.expect(200);
    assert_eq!((&bad["valid"], &bad["violations"][0]["path"]), (&json!(false), &json!("/order")), "{bad}");
    scene.close().await;
}

async fn schemas_are_kept_on_their_own_and_for_versions(scene: Scene) {
    let id = made(&scene, CODE).await;
    let body = json!({
        "name": "Order", "mimeType": "application/json", "schemaType": "JSON_SCHEMA", "content": "{\"type\": \"object\"}"
    });
    let alone = scene.post("/api/schemas", body.clone()).await.expect(201);
    assert_eq!(alone["content"], "{\"type\": \"object\"}", "the text is kept as it was sent");
    let mut linked = body.clone();
    (linked["eventTypeId"], linked["version"]) = (json!(id), json!("1.0"));
    let linked = scene.post("/api/schemas", linked).await.expect(201);
    let shown = scene.get(&format!("/api/event-types/{id}")).await.expect(200);
    assert_eq!(shown["specVersions"][0]["schemaId"], linked["id"]);
    assert_eq!(shown["specVersions"][0]["schema"], linked["content"]);
    let path = format!("/api/schemas/{}", linked["id"].as_str().unwrap());
    send(scene.request(Method::DELETE, &path)).await.refused(409, "conflict");
    let mut moved = body.clone();
    (moved["eventTypeId"], moved["version"]) = (json!(id), json!("1.1"));
    scene.put(&path, moved).await.refused(400, "invalid_request");
    let mut changed = body.clone();
    changed["content"] = json!("{}");
    scene.put(&path, changed).await.expect(200);
    let shown = scene.get(&format!("/api/event-types/{id}")).await.expect(200);
    assert_eq!(shown["specVersions"][0]["schema"], "{}", "it is the version's schema");
    let listed = scene.get("/api/schemas").await.expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 2);
    assert!(listed["items"].as_array().unwrap().iter().all(|item| item.get("content").is_none()), "{listed}");
    let path = format!("/api/schemas/{}", alone["id"].as_str().unwrap());
    send(scene.request(Method::DELETE, &path)).await.expect(204);
    scene.get(&path).await.refused(404, "not_found");
    scene.close().await;
}

async fn what_is_wrong_is_named(scene: Scene) {
    let id = made(&scene, CODE).await;
    let refused = scene.post("/api/event-types", json!({ "code": CODE, "name": "again" })).await;
    assert!(refused.refused(409, "conflict").contains(CODE));
    for (body, words) in [
        (json!({ "code": "a:b", "name": "n" }), "code must be application:subdomain:aggregate:event"),
        (json!({ "code": "a:b:c:d" }), "name"),
        (json!({ "code": "a:b:c:d", "name": " " }), "name must have"),
        (json!({ "code": "a:b:c:d", "name": "n", "decription": "x" }), "did you mean \"description\"?"),
    ] {
        let text = scene.post("/api/event-types", body).await.refused(400, "invalid_request");
        assert!(text.contains(words), "{text}");
    }
    let path = format!("/api/event-types/{id}/versions");
    let mut misfit = version("1.0", json!({}));
    misfit["mimeType"] = json!("text/plain");
    let mut unknown = version("1.0", json!({}));
    unknown["schemaType"] = json!("AVRO");
    let mut unnumbered = version("1.0", json!({}));
    unnumbered.as_object_mut().unwrap().remove("version");
    for (body, words) in [
        (misfit, "mimeType \"text/plain\" does not fit schemaType JSON_SCHEMA"),
        (unknown, "schemaType must be JSON_SCHEMA, PROTO or XSD"),
        (version("1", json!({})), "version must be MAJOR.MINOR"),
        (unnumbered, "version is required"),
        (version("1.0", json!(7)), "schema must be text"),
    ] {
        let text = scene.post(&path, body).await.refused(400, "invalid_request");
        assert!(text.contains(words), "{text}");
    }
    for (schema_type, mime_type, schema, line) in [
        ("JSON_SCHEMA", "application/json", "{\n\"type\": 7}", 2),
        ("JSON_SCHEMA", "application/json", "{\n\n", 3),
        ("PROTO", "application/protobuf", "syntax = \"proto3\";\nmessage M { Missing m = 1; }", 2),
        (
            "XSD",
            "application/xml",
            "<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\">\n<xs:element/></xs:schema>",
            2,
        ),
    ] {
        let body = json!({ "version": "1.0", "mimeType": mime_type, "schemaType": schema_type, "schema": schema });
        let refused = scene.post(&path, body).await.expect(422);
        let violation = &refused["violations"][0];
        assert_eq!((&violation["path"], &violation["line"]), (&json!("schema"), &json!(line)), "{refused}");
        assert!(violation["column"].is_u64(), "{refused}");
    }
    scene.post(&path, version("1.0", json!({}))).await.expect(201);
    scene.post(&path, version("1.0", json!({}))).await.refused(409, "conflict");
    scene.get("/api/event-types/0000000000007").await.refused(404, "not_found");
    scene.get("/api/event-types/nonsense").await.refused(404, "not_found");
    scene.get("/api/event-types?sort=code").await.refused(400, "invalid_request");
    scene.close().await;
}

async fn lists_match_codes_and_go_on_by_cursors(scene: Scene) {
    for code in ["a:b:order:x", "a:c:order:y", "a:c:line:y", "b:c:order:z"] {
        made(&scene, code).await;
    }
    let codes = |page: &Value| -> Vec<String> {
        page["items"].as_array().unwrap().iter().map(|item| item["code"].as_str().unwrap().to_owned()).collect()
    };
    let all = scene.get("/api/event-types?code=a:*:order:*&status=CURRENT").await.expect(200);
    assert_eq!(codes(&all), ["a:b:order:x", "a:c:order:y"]);
    assert!(all.get("nextCursor").is_none());
    let first = scene.get("/api/event-types?limit=3").await.expect(200);
    let cursor = first["nextCursor"].as_str().unwrap();
    let rest = scene.get(&format!("/api/event-types?limit=3&cursor={cursor}")).await.expect(200);
    assert_eq!((codes(&first).len(), codes(&rest)), (3, vec!["b:c:order:z".to_owned()]));
    for query in ["code=a:*", "status=OLD", "limit=0", "cursor=abc"] {
        scene.get(&format!("/api/event-types?{query}")).await.refused(400, "invalid_request");
    }
    scene.close().await;
}

async fn versions_and_schemas_go_by_entity_tags(scene: Scene) {
    let id = made(&scene, CODE).await;
    let path = format!("/api/event-types/{id}");
    let tag = |answer: &Answer| answer.headers["etag"].to_str().unwrap().to_owned();
    let old = tag(&scene.get(&path).await);
    let versions = format!("{path}/versions");
    let added = with(&scene, Method::POST, &versions, &old, version("1.0", json!({}))).await;
    let present = tag(&added);
    added.expect(201);
    let one = format!("{versions}/1.0");
    let refused = "precondition_failed";
    with(&scene, Method::POST, &versions, &old, version("2.0", json!({}))).await.refused(412, refused);
    with(&scene, Method::PUT, &one, &old, version("1.0", order(&[]))).await.refused(412, refused);
    with(&scene, Method::DELETE, &one, &old, json!({})).await.refused(412, refused);
    with(&scene, Method::POST, &format!("{one}/finalise"), &old, json!({})).await.refused(412, refused);
    let changed = with(&scene, Method::PUT, &one, &present, version("1.0", order(&[]))).await;
    let (old, present) = (present, tag(&changed));
    let text = changed.expect(200)["schema"].clone();
    assert_eq!(text, json!(order(&[]).to_string()), "nothing of what was refused was done");
    with(&scene, Method::POST, &format!("{one}/finalise"), &old, json!({})).await.refused(412, refused);
    let finalised = with(&scene, Method::POST, &format!("{one}/finalise"), &present, json!({})).await;
    let (old, present) = (present, tag(&finalised));
    assert_eq!(finalised.expect(200)["schema"], text, "with its schema, which is that of the type's tag");
    assert_eq!(tag(&scene.get(&path).await), present);
    with(&scene, Method::POST, &format!("{one}/deprecate"), &old, json!({})).await.refused(412, refused);
    with(&scene, Method::POST, &format!("{one}/deprecate"), &present, json!({})).await.expect(200);

    let mut body = json!({
        "name": "Order", "mimeType": "application/json", "schemaType": "JSON_SCHEMA", "content": "{}"
    });
    let alone = scene.post("/api/schemas", body.clone()).await;
    (body["eventTypeId"], body["version"]) = (json!(id), json!("2.0"));
    let linked = scene.post("/api/schemas", body.clone()).await;
    for made in [alone, linked] {
        let old = tag(&made);
        let path = made.headers["location"].to_str().unwrap().to_owned();
        let is_linked = made.expect(201)["eventTypeId"].is_string();
        assert_eq!(tag(&scene.get(&path).await), old);
        let change = |text: &str| json!({ "name": "O", "mimeType": "application/json", "schemaType": "JSON_SCHEMA", "content": text });
        let changed = with(&scene, Method::PUT, &path, &old, change("{\"type\": \"object\"}")).await;
        let present = tag(&changed);
        assert_ne!(present, old);
        assert_eq!(changed.expect(200)["name"], "O");
        with(&scene, Method::PUT, &path, &old, change("{}")).await.refused(412, refused);
        with(&scene, Method::DELETE, &path, &old, json!({})).await.refused(412, refused);
        assert_eq!(scene.get(&path).await.expect(200)["content"], "{\"type\": \"object\"}");
        if !is_linked {
            with(&scene, Method::DELETE, &path, &present, json!({})).await.expect(204);
        }
    }
    scene.close().await;
}

async fn schemas_are_listed_in_pages(scene: Scene) {
    for at in 0..20 {
        let body = json!({
            "name": format!("s{at:02}"), "mimeType": "application/json", "schemaType": "JSON_SCHEMA", "content": "{}"
        });
        scene.post("/api/schemas", body).await.expect(201);
    }
    let (mut names, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = scene.get(&format!("/api/schemas?limit=9{cursor}")).await.expect(200);
        let items = page["items"].as_array().unwrap();
        names.extend(items.iter().map(|item| item["name"].as_str().unwrap().to_owned()));
        assert!(items.len() <= 9 && items.iter().all(|item| item.get("content").is_none()), "{page}");
        pages += 1;
        let Some(next) = page["nextCursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(pages, 3);
    assert_eq!(names, (0..20).map(|at| format!("s{at:02}")).collect::<Vec<_>>());
    assert_eq!(scene.get("/api/schemas?limit=1000").await.expect(200)["items"].as_array().unwrap().len(), 20);
    let types = scene.get(&format!("/api/event-types?limit=9{cursor}")).await;
    types.refused(400, "invalid_request");
    for query in ["limit=0", "limit=1001", "cursor=abc", &format!("cursor={}", "0".repeat(20_000))] {
        scene.get(&format!("/api/schemas?{query}")).await.refused(400, "invalid_request");
    }
    scene.close().await;
}

async fn a_schema_of_several_messages_is_kept_on_its_own(scene: Scene) {
    let two = "syntax = \"proto3\"; package shop; message Order {} message Line {}";
    let body = json!({ "name": "s", "mimeType": "application/protobuf", "schemaType": "PROTO", "content": two });
    assert_eq!(scene.post("/api/schemas", body.clone()).await.expect(201)["content"], two);
    let mut linked = body.clone();
    (linked["eventTypeId"], linked["version"]) = (json!(made(&scene, CODE).await), json!("1.0"));
    let text = scene.post("/api/schemas", linked).await.refused(422, "unprocessable");
    assert!(text.contains("the message of a version is named where versions of its event type are written"), "{text}");
    scene.close().await;
}

async fn events_without_a_current_version_are_judged_or_told(scene: Scene) {
    let path = format!("/api/event-types/{}", made(&scene, CODE).await);
    let send =
        async |data: Value| scene.post("/api/events", json!({ "type": CODE, "source": "/x", "data": data })).await;
    let stored = send(json!([])).await.expect(201);
    assert!(
        stored.get("warnings").is_none_or(|all| all == &json!([])),
        "without versions there is no warning: {stored}"
    );
    scene.post(&format!("{path}/versions"), version("1.0", order(&["orderId"]))).await.expect(201);
    let stored = send(json!([])).await.expect(201);
    assert_eq!(stored["schemaVersion"], Value::Null);
    assert!(stored["warnings"][0].as_str().unwrap().contains("was not validated"), "{stored}");
    scene.post(&format!("{path}/versions/1.0/finalise"), json!({})).await.expect(200);
    scene.post(&format!("{path}/versions/1.0/deprecate"), json!({})).await.expect(200);
    let stored = send(json!({ "orderId": "1" })).await.expect(201);
    assert_eq!(stored["schemaVersion"], "1.0");
    assert!(stored["warnings"][0].as_str().unwrap().contains("version 1.0 of shop:orders:order:created is DEPRECATED"));
    send(json!([])).await.refused(422, "unprocessable");
    let judged = scene.post(&format!("{path}/validate"), json!([])).await.expect(200);
    assert_eq!((&judged["valid"], &judged["version"]), (&json!(false), &json!("1.0")), "as an event would be");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_read_types_and_do_not_write_them() {
    let mut scene = Scene::guarded_sqlite().await;
    let keys = Keyring::new(scene.queue.clone());
    let anchor = keys.create("anchor", &[Scope::Manage, Scope::Read], None).await.unwrap().secret;
    let client = keys.create("client", &[Scope::Admin], Some(Tsid::from_i64(7))).await.unwrap().secret;
    scene.with_key(anchor);
    let id = made(&scene, CODE).await;
    scene.with_key(client);
    assert_eq!(scene.get(&format!("/api/event-types/{id}")).await.expect(200)["code"], CODE);
    let body = json!({ "code": "a:b:c:d", "name": "n" });
    scene.post("/api/event-types", body).await.refused(403, "forbidden");
    scene.post(&format!("/api/event-types/{id}/archive"), json!({})).await.refused(403, "forbidden");
    scene.close().await;
}
