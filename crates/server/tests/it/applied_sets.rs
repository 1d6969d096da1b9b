//! Applied sets over HTTP: kept as they are said, changed on what was read, and apart by client.

use reqwest::Method;
use serde_json::{Value, json};
use tidegate_server::{Keyring, Scope};

use crate::scene::{Scene, on_both, send};

on_both!(a_set_is_kept_as_it_is_said);

async fn a_set_is_kept_as_it_is_said(scene: Scene) {
    let items = json!([
        { "kind": "Subscription", "client": "acme", "code": "mails", "identity": "0HZXEQ5Y8JY5Z" },
        { "kind": "Queue", "code": "mail", "pending": "ff" },
    ]);
    let made = scene.post("/api/applied-sets", json!({ "code": "default", "items": items })).await.expect(201);
    assert_eq!(made["items"], items);
    let path = format!("/api/applied-sets/{}", made["id"].as_str().unwrap());
    let tag = scene.get(&path).await.headers["etag"].clone();
    let put = |tag: &reqwest::header::HeaderValue| {
        send(scene.request(Method::PUT, &path).header("if-match", tag).json(&json!({ "items": [] })))
    };
    put(&tag).await.expect(200);
    put(&tag).await.refused(412, "precondition_failed");
    scene.post("/api/applied-sets", json!({ "code": "default", "items": [] })).await.refused(409, "conflict");
    for (items, why) in [
        (json!([{ "kind": "", "code": "a" }]), "items[0].kind"),
        (json!([{ "kind": "a", "code": "x".repeat(256) }]), "items[0].code"),
        (json!([{ "kind": "a", "code": "b", "identiy": "c" }]), "identity"),
        (Value::Array(vec![json!({ "kind": "a", "code": "b" }); 4_001]), "at most 4000"),
    ] {
        let said = scene.put(&path, json!({ "items": items })).await.refused(400, "invalid_request");
        assert!(said.contains(why), "{said}");
    }
    let many = Value::Array(vec![json!({ "kind": "Subscription", "code": "b".repeat(100) }); 4_000]);
    scene.put(&path, json!({ "items": many })).await.expect(200);
    send(scene.request(Method::DELETE, &path)).await.expect(204);
    scene.get(&path).await.refused(404, "not_found");
    scene.close().await;
}

mod with_keys {
    use super::*;

    on_both! {
        with keys:
        a_client_has_sets_of_its_own,
    }

    async fn a_client_has_sets_of_its_own(mut scene: Scene) {
        let keys = Keyring::new(scene.queue.clone());
        let all = keys.create("all", &[Scope::Manage], None).await.unwrap().secret;
        let one = keys.create("one", &[Scope::Manage], Some(tidegate::Tsid::from_i64(1))).await.unwrap().secret;
        let body = json!({ "code": "default", "items": [] });
        scene.with_key(&all);
        let of_all = scene.post("/api/applied-sets", body.clone()).await.expect(201);
        scene.with_key(&one);
        let own = scene.post("/api/applied-sets", body).await.expect(201);
        assert_eq!(scene.get("/api/applied-sets").await.expect(200)["items"], json!([own]));
        let path = format!("/api/applied-sets/{}", of_all["id"].as_str().unwrap());
        scene.get(&path).await.refused(404, "not_found");
        send(scene.request(Method::DELETE, &path)).await.refused(404, "not_found");
        scene.close().await;
    }
}
