//! Dispatch pools over HTTP: their fields and defaults, what is refused with which words, whose they are, and how
//! subscriptions name them.

use reqwest::Method;
use serde_json::{Value, json};
use tidegate::Tsid;
use tidegate_server::{Keyring, Scope};

use crate::scene::{Scene, on_both, send};

on_both!(
    pools_have_their_fields_and_defaults,
    what_is_wrong_with_a_pool_is_named,
    a_change_is_made_on_what_was_read,
    a_pool_that_a_subscription_names_stays,
    naming_and_deleting_at_once_leaves_no_dangling_name,
    deleted_by_many_at_once_it_is_gone_for_all,
);

async fn pool(scene: &Scene, code: &str) -> Value {
    scene.post("/api/dispatch-pools", json!({ "code": code, "name": code })).await.expect(201)
}

fn subscription(code: &str, pool: &Value) -> Value {
    json!({
        "code": code, "name": code, "eventTypes": [{ "eventTypeCode": "a:b:c:d" }], "target": "queue:default",
        "dispatchPoolId": pool["id"],
    })
}

/// A pool as it is shown, without what it holds.
fn said(mut shown: Value) -> Value {
    shown.as_object_mut().unwrap().remove("holds").unwrap_or_else(|| panic!("what it holds is missing: {shown}"));
    shown
}

fn path(of: &Value) -> String {
    format!("/api/dispatch-pools/{}", of["id"].as_str().unwrap())
}

async fn pools_have_their_fields_and_defaults(scene: Scene) {
    let answer = scene.post("/api/dispatch-pools", json!({ "code": "slow", "name": "Slow partners" })).await;
    let location = answer.headers["location"].to_str().unwrap().to_owned();
    let made = answer.expect(201);
    assert_eq!(location, path(&made));
    for (field, value) in [
        ("code", json!("slow")),
        ("clientId", Value::Null),
        ("concurrency", json!(10)),
        ("rateLimitPerMinute", Value::Null),
        ("status", json!("ACTIVE")),
    ] {
        assert_eq!(made[field], value, "{field}: {made}");
    }
    let all = json!({ "name": "n", "concurrency": 3, "rateLimitPerMinute": 60, "status": "SUSPENDED" });
    let changed = scene.put(&location, all.clone()).await.expect(200);
    for (field, value) in all.as_object().unwrap() {
        assert_eq!(changed[field], *value, "{changed}");
    }
    assert_eq!(said(scene.get(&location).await.expect(200)), changed);
    let back = scene.put(&location, json!({ "code": "slow", "name": "n" })).await.expect(200);
    assert_eq!(
        (&back["concurrency"], &back["status"]),
        (&json!(10), &json!("ACTIVE")),
        "what is absent has its default"
    );
    for code in ["a", "b", "c"] {
        pool(&scene, code).await;
    }
    let first = scene.get("/api/dispatch-pools?limit=3").await.expect(200);
    let cursor = first["nextCursor"].as_str().unwrap();
    let second = scene.get(&format!("/api/dispatch-pools?limit=3&cursor={cursor}")).await.expect(200);
    let codes = |page: &Value| -> Vec<String> {
        page["items"].as_array().unwrap().iter().map(|one| one["code"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((codes(&first), codes(&second)), (vec!["a".into(), "b".into(), "c".into()], vec!["slow".into()]));
    assert!(second["nextCursor"].is_null());
    send(scene.request(Method::DELETE, &location)).await.expect(204);
    scene.get(&location).await.refused(404, "not_found");
    scene.close().await;
}

async fn what_is_wrong_with_a_pool_is_named(scene: Scene) {
    let good = json!({ "code": "a", "name": "a" });
    let cases = [
        (json!({ "code": "a b" }), "code must"),
        (json!({ "code": null }), "code is required"),
        (json!({ "name": "" }), "name must"),
        (json!({ "concurrency": 0 }), "concurrency must be 1 to 10000"),
        (json!({ "concurrency": 10_001 }), "concurrency must be 1 to 10000"),
        (json!({ "concurrency": -1 }), "concurrency"),
        (json!({ "rateLimitPerMinute": 0 }), "rateLimitPerMinute must be 1 to 10000000"),
        (json!({ "status": "PAUSED" }), "SUSPENDED"),
        (json!({ "rateLimit": 1 }), "rateLimitPerMinute"),
        (json!({ "clientId": "0000000000009" }), "clientId: there is no client"),
    ];
    for (change, why) in cases {
        let mut body = good.clone();
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        let said = scene.post("/api/dispatch-pools", body).await.refused(400, "invalid_request");
        assert!(said.contains(why), "{change}: {said}");
    }
    assert_eq!(scene.get("/api/dispatch-pools").await.expect(200)["items"], json!([]), "nothing was written");
    let made = scene.post("/api/dispatch-pools", good.clone()).await.expect(201);
    let said = scene.post("/api/dispatch-pools", good).await.refused(409, "conflict");
    assert!(said.contains("there is a dispatch pool a already"), "{said}");
    let said = scene.put(&path(&made), json!({ "code": "b", "name": "b" })).await.refused(400, "invalid_request");
    assert!(said.contains("code of a dispatch pool cannot be changed"), "{said}");
    scene.get("/api/dispatch-pools/x").await.refused(404, "not_found");
    scene.close().await;
}

async fn a_change_is_made_on_what_was_read(scene: Scene) {
    let made = pool(&scene, "a").await;
    let tag = scene.get(&path(&made)).await.headers["etag"].clone();
    let put = |tag: &reqwest::header::HeaderValue, name: &str| {
        let request = scene.request(Method::PUT, &path(&made)).header("if-match", tag);
        send(request.json(&json!({ "name": name })))
    };
    let newer = put(&tag, "b").await;
    newer.expect(200);
    put(&tag, "c").await.refused(412, "precondition_failed");
    let stale = send(scene.request(Method::DELETE, &path(&made)).header("if-match", &tag)).await;
    stale.refused(412, "precondition_failed");
    send(scene.request(Method::DELETE, &path(&made)).header("if-match", &newer.headers["etag"])).await.expect(204);
    scene.close().await;
}

async fn a_pool_that_a_subscription_names_stays(scene: Scene) {
    let made = pool(&scene, "slow").await;
    let unknown = json!({ "id": Tsid::from_i64(7).to_string() });
    let said = scene.post("/api/subscriptions", subscription("a", &unknown)).await.refused(400, "invalid_request");
    assert!(said.contains("dispatchPoolId: there is no dispatch pool"), "{said}");
    let naming = scene.post("/api/subscriptions", subscription("naming", &made)).await.expect(201);
    assert_eq!(naming["dispatchPoolId"], made["id"]);
    let refused = send(scene.request(Method::DELETE, &path(&made))).await.refused(409, "conflict");
    assert!(refused.contains("the subscription naming") && refused.contains("dispatch pool slow"), "{refused}");
    let of = format!("/api/subscriptions/{}", naming["id"].as_str().unwrap());
    let said = scene.put(&of, subscription("naming", &unknown)).await.refused(400, "invalid_request");
    assert!(said.contains("dispatchPoolId"), "{said}");
    let mut other = subscription("naming", &made);
    other.as_object_mut().unwrap().remove("dispatchPoolId");
    scene.put(&of, other).await.expect(200);
    send(scene.request(Method::DELETE, &path(&made))).await.expect(204);
    scene.close().await;
}

/// Whoever is first wins: either the subscription names a pool that is there, or the pool is gone and it was refused.
async fn naming_and_deleting_at_once_leaves_no_dangling_name(scene: Scene) {
    for round in 0..15 {
        let made = pool(&scene, &format!("p{round}")).await;
        let naming = scene.post("/api/subscriptions", subscription(&format!("s{round}"), &made));
        let deleting = send(scene.request(Method::DELETE, &path(&made)));
        let (named, deleted) = tokio::join!(naming, deleting);
        let outcome = (named.status.as_u16(), deleted.status.as_u16());
        let is_there = scene.get(&path(&made)).await.status.as_u16() == 200;
        assert!(matches!(outcome, (201, 409 | 412) | (400 | 409, 204)), "{outcome:?}: {} {}", named.text, deleted.text);
        assert_eq!(is_there, outcome.0 == 201, "{outcome:?}");
    }
    scene.close().await;
}

mod with_keys {
    use super::*;

    on_both! {
        with keys:
        a_client_has_pools_of_its_own,
    }

    async fn a_client_has_pools_of_its_own(mut scene: Scene) {
        let keys = Keyring::new(scene.queue.clone());
        let unscoped = keys.create("all", &[Scope::Admin], None).await.unwrap().secret;
        scene.with_key(&unscoped);
        let client = |code: &'static str| json!({ "code": code, "name": code });
        let one = scene.post("/api/clients", client("one")).await.expect(201)["id"].as_str().unwrap().to_owned();
        let two = scene.post("/api/clients", client("two")).await.expect(201)["id"].as_str().unwrap().to_owned();
        let own = |id: &str| json!({ "code": "slow", "name": "slow", "clientId": id });
        let of_one = scene.post("/api/dispatch-pools", own(&one)).await.expect(201);
        let of_two = scene.post("/api/dispatch-pools", own(&two)).await.expect(201);
        let of_all = pool(&scene, "slow").await;
        assert_eq!(of_one["clientId"], json!(one), "a code is unique per client");

        let key = keys.create("one", &[Scope::Admin], Some(one.parse().unwrap())).await.unwrap().secret;
        scene.with_key(&key);
        let listed = scene.get("/api/dispatch-pools").await.expect(200);
        assert_eq!(listed["items"].as_array().unwrap().len(), 1, "only its own");
        assert_eq!(said(listed["items"][0].clone()), of_one);
        for other in [&of_two, &of_all] {
            scene.get(&path(other)).await.refused(404, "not_found");
            scene.put(&path(other), json!({ "name": "mine" })).await.refused(404, "not_found");
            send(scene.request(Method::DELETE, &path(other))).await.refused(404, "not_found");
        }
        scene.post("/api/dispatch-pools", own(&two)).await.refused(403, "forbidden");
        scene.get(&format!("/api/dispatch-pools?clientId={two}")).await.refused(403, "forbidden");
        scene.put("/queues/default", json!({})).await.expect(200);
        scene.post("/api/subscriptions", subscription("own", &of_one)).await.expect(201);
        scene.post("/api/subscriptions", subscription("anchor", &of_all)).await.expect(201);
        let said = scene.post("/api/subscriptions", subscription("x", &of_two)).await.refused(400, "invalid_request");
        assert!(said.contains("dispatchPoolId"), "{said}");

        scene.with_key(&unscoped);
        let said = scene.post("/api/subscriptions", subscription("x", &of_one)).await.refused(400, "invalid_request");
        assert!(
            said.contains("dispatchPoolId"),
            "a subscription of the anchor level names pools of that level: {said}"
        );
        send(scene.request(Method::DELETE, &path(&of_all))).await.refused(409, "conflict");
        let reader = keys.create("reader", &[Scope::Read], None).await.unwrap().secret;
        scene.with_key(reader);
        scene.get("/api/dispatch-pools").await.expect(200);
        scene.post("/api/dispatch-pools", own(&one)).await.refused(403, "forbidden");
        scene.close().await;
    }
}

/// Deletions that do not say what they were read from never answer that something has changed.
async fn deleted_by_many_at_once_it_is_gone_for_all(scene: Scene) {
    for round in 0..20 {
        let made = pool(&scene, &format!("pool-{round}")).await;
        let calls = (0..8).map(|_| send(scene.request(Method::DELETE, &path(&made))));
        let answers = futures_util::future::join_all(calls).await;
        let is_gone = |status: u16| matches!(status, 204 | 404);
        assert!(answers.iter().all(|answer| is_gone(answer.status.as_u16())), "{answers:?}");
        scene.get(&path(&made)).await.expect(404);
    }
    scene.close().await;
}
