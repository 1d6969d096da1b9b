//! Service accounts over HTTP: their fields, what is refused with which words, whose they are, how subscriptions name them, and
//! how signing secrets are replaced. No answer after the first has a secret.

use reqwest::Method;
use serde_json::{Value, json};
use tidegate::Tsid;
use tidegate_server::{Keyring, Scope};

use crate::scene::{Scene, on_both, send};

on_both!(
    accounts_have_their_fields_and_show_no_secret,
    what_is_wrong_with_an_account_is_named_and_repeats_no_secret,
    a_token_stays_until_another_is_said,
    an_account_that_a_subscription_names_stays,
    naming_and_deleting_at_once_leaves_no_dangling_name,
    deleted_by_many_at_once_it_is_gone_for_all,
    signing_secrets_are_replaced,
    a_client_with_accounts_is_not_deleted,
);

const PATH: &str = "/api/service-accounts";

async fn account(scene: &Scene, code: &str) -> Value {
    let body = json!({ "code": code, "name": code, "authType": "BEARER", "token": "t0ken-of-the-test" });
    scene.post(PATH, body).await.expect(201)
}

fn subscription(code: &str, account: &Value) -> Value {
    json!({
        "code": code, "name": code, "eventTypes": [{ "eventTypeCode": "a:b:c:d" }], "target": "queue:default",
        "serviceAccountId": account["id"],
    })
}

fn path(of: &Value) -> String {
    format!("{PATH}/{}", of["id"].as_str().unwrap())
}

async fn accounts_have_their_fields_and_show_no_secret(scene: Scene) {
    let body =
        json!({ "code": "shop", "name": "Shop", "authType": "BASIC", "username": "tide", "password": "pa55word" });
    let answer = scene.post(PATH, body).await;
    let (location, tag) = (answer.headers["location"].clone(), answer.headers["etag"].clone());
    let mut made = answer.expect(201);
    assert_eq!(location.to_str().unwrap(), path(&made));
    assert!(made["signingSecret"].as_str().unwrap().starts_with("whsec_"));
    made.as_object_mut().unwrap().remove("signingSecret");
    for (field, value) in [
        ("code", json!("shop")),
        ("clientId", Value::Null),
        ("authType", json!("BASIC")),
        ("username", json!("tide")),
        ("passwordSet", json!(true)),
        ("tokenSet", json!(false)),
    ] {
        assert_eq!(made[field], value, "{field}: {made}");
    }
    let shown = scene.get(&path(&made)).await;
    assert_eq!((&shown.headers["etag"], shown.expect(200)), (&tag, made.clone()));
    assert_eq!(scene.get(PATH).await.expect(200)["items"], json!([made]));
    scene.post(PATH, json!({ "code": "shop", "name": "n", "authType": "NONE" })).await.refused(409, "conflict");
    scene.close().await;
}

async fn what_is_wrong_with_an_account_is_named_and_repeats_no_secret(scene: Scene) {
    let bearer = |extra: Value| {
        let mut body = json!({ "code": "a", "name": "a", "authType": "BEARER" });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    for (body, why) in [
        (json!({ "name": "a", "authType": "NONE" }), "code is required"),
        (json!({ "code": "a", "name": "a" }), "authType"),
        (json!({ "code": "a", "authType": "NONE" }), "name"),
        (json!({ "code": "a:b", "name": "a", "authType": "NONE" }), "code must have"),
        (json!({ "code": "a", "name": "a", "authType": "S3CRET" }), "authType must be NONE, BEARER or BASIC"),
        (json!({ "code": "a", "name": "a", "authType": "NONE", "token": "s3cret" }), "not for authType NONE"),
        (json!({ "code": "a", "name": "a", "authType": "BASIC", "password": "s3cret" }), "username is required"),
        (json!({ "code": "a", "name": "a", "authType": "BASIC", "username": "u" }), "password is required"),
        (bearer(json!({})), "token is required"),
        (bearer(json!({ "token": "s3cret s3cret" })), "a token has"),
        (bearer(json!({ "token": "s3cret", "username": "s3cret" })), "for authType BASIC only"),
        (bearer(json!({ "token": 53_000_003 })), "token is invalid: it must be a string"),
        (bearer(json!({ "token": ["s3cret"] })), "token is invalid"),
        (bearer(json!({ "token": { "s3cret": 1 } })), "token is invalid"),
        (bearer(json!({ "token": true })), "token is invalid"),
        (bearer(json!({ "tokn": "s3cret" })), "tokn"),
    ] {
        let said = scene.post(PATH, body.clone()).await.refused(400, "invalid_request");
        assert!(said.contains(why), "{body}: {said}");
        assert!(!said.to_lowercase().contains("s3cret") && !said.contains("53000003"), "{body}: {said}");
    }
    for text in [
        r#"{"code":"a","name":"a","authType":"BEARER","token":"s3cret"#,
        r#"{"code":"a","name":"a","authType":"BEARER","token":"s3cret",,}"#,
        r#"{"code":"a","name":"a","authType":"BEARER","token" "s3cret"}"#,
        r#"{"code":"a","name":"a","authType":"BEARER","token":"s3cret\x"}"#,
        r#"{"code":"a","name":"a","authType":"BEARER","token":s3cret}"#,
        r#"["s3cret"]"#,
        r#""s3cret""#,
    ] {
        let answer = scene.post_text(PATH, text).await;
        assert_eq!(answer.status.as_u16(), 400, "{}", answer.text);
        assert!(!answer.text.contains("s3cret"), "{text}: {}", answer.text);
    }
    let none = Tsid::from_i64(7).to_string();
    scene.get(&format!("{PATH}/{none}")).await.refused(404, "not_found");
    scene.get(&format!("{PATH}/x")).await.refused(404, "not_found");
    assert_eq!(scene.get(PATH).await.expect(200)["items"], json!([]));
    scene.close().await;
}

async fn a_token_stays_until_another_is_said(scene: Scene) {
    let made = account(&scene, "shop").await;
    let at = path(&made);
    let put = |body: Value| scene.put(&at, body);
    let kept = put(json!({ "name": "another", "authType": "BEARER" })).await;
    let tag = kept.headers["etag"].clone();
    assert_eq!((kept.expect(200)["name"].clone(), kept.json()["tokenSet"].clone()), (json!("another"), json!(true)));
    let changed = put(json!({ "name": "another", "authType": "BEARER", "token": "an0ther" })).await;
    changed.expect(200);
    assert_ne!(changed.headers["etag"], tag, "what cannot be seen has changed");
    let stale = scene.request(Method::PUT, &path(&made)).header("if-match", tag);
    send(stale.json(&json!({ "name": "n", "authType": "NONE" }))).await.refused(412, "precondition_failed");
    let said = put(json!({ "name": "n", "authType": "BASIC", "username": "u" })).await.refused(400, "invalid_request");
    assert!(said.contains("password is required"), "{said}");
    put(json!({ "name": "n", "authType": "BASIC", "username": "u", "password": "" })).await.expect(200);
    let renamed = put(json!({ "name": "n", "authType": "BASIC", "username": "v" })).await.expect(200);
    assert_eq!((&renamed["username"], &renamed["passwordSet"]), (&json!("v"), &json!(true)));
    put(json!({ "name": "n", "authType": "NONE" })).await.expect(200);
    put(json!({ "name": "n", "authType": "BEARER" })).await.refused(400, "invalid_request");
    let said = put(json!({ "code": "other", "name": "n", "authType": "NONE" })).await.refused(400, "invalid_request");
    assert!(said.contains("code of a service account cannot be changed"), "{said}");
    scene.close().await;
}

async fn an_account_that_a_subscription_names_stays(scene: Scene) {
    let made = account(&scene, "shop").await;
    let unknown = json!({ "id": Tsid::from_i64(7).to_string() });
    let said = scene.post("/api/subscriptions", subscription("a", &unknown)).await.refused(400, "invalid_request");
    assert!(said.contains("serviceAccountId: there is no service account"), "{said}");
    let naming = scene.post("/api/subscriptions", subscription("naming", &made)).await.expect(201);
    assert_eq!(naming["serviceAccountId"], made["id"]);
    let refused = send(scene.request(Method::DELETE, &path(&made))).await.refused(409, "conflict");
    assert!(refused.contains("the subscription naming") && refused.contains("service account shop"), "{refused}");
    let of = format!("/api/subscriptions/{}", naming["id"].as_str().unwrap());
    let mut other = subscription("naming", &made);
    other.as_object_mut().unwrap().remove("serviceAccountId");
    scene.put(&of, other).await.expect(200);
    send(scene.request(Method::DELETE, &path(&made))).await.expect(204);
    scene.get(&path(&made)).await.refused(404, "not_found");
    account(&scene, "shop").await;
    scene.close().await;
}

/// Whoever is first wins: either the subscription names an account that is there, or the account is gone and it was refused.
async fn naming_and_deleting_at_once_leaves_no_dangling_name(scene: Scene) {
    for round in 0..15 {
        let made = account(&scene, &format!("a{round}")).await;
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

/// Deletions that do not say what they were read from never answer that something has changed.
async fn deleted_by_many_at_once_it_is_gone_for_all(scene: Scene) {
    for round in 0..10 {
        let made = account(&scene, &format!("account-{round}")).await;
        let calls = (0..8).map(|_| send(scene.request(Method::DELETE, &path(&made))));
        let answers = futures_util::future::join_all(calls).await;
        let is_gone = |status: u16| matches!(status, 204 | 404);
        assert!(answers.iter().all(|answer| is_gone(answer.status.as_u16())), "{answers:?}");
    }
    scene.close().await;
}

async fn signing_secrets_are_replaced(scene: Scene) {
    let made = account(&scene, "shop").await;
    let named = scene.post("/api/subscriptions", subscription("s", &made)).await.expect(201);
    let of_subscription = format!("/api/subscriptions/{}", named["id"].as_str().unwrap());
    for (path, first) in [(path(&made), &made["signingSecret"]), (of_subscription, &named["signingSecret"])] {
        let rotate = format!("{path}/rotate-secret");
        let told = send(scene.request(Method::POST, &rotate)).await.expect(200);
        assert_ne!(&told["signingSecret"], first);
        assert_eq!(told["scheme"], "v1");
        let until: tidegate::Timestamp = told["othersValidUntil"].as_str().unwrap().parse().unwrap();
        let left = until.duration_since(tidegate::Timestamp::now()).as_secs();
        assert!((86_390..=86_400).contains(&left), "{left}");
        let told = scene.post(&rotate, json!({ "overlapSeconds": 0, "scheme": "v1a" })).await.expect(200);
        assert_eq!(told["othersValidUntil"], Value::Null);
        assert!(told["publicKey"].as_str().unwrap().starts_with("whpk_") && told.get("signingSecret").is_none());
        for _ in 0..3 {
            scene.post(&rotate, json!({})).await.expect(200);
        }
        let said = scene.post(&rotate, json!({})).await.refused(409, "conflict");
        assert!(said.contains("4 secrets are valid already"), "{said}");
        scene.post(&rotate, json!({ "overlapSeconds": 0 })).await.expect(200);
        for (body, why) in [
            (json!({ "overlapSeconds": 2_592_001 }), "overlapSeconds must be 0 to 2592000"),
            (json!({ "overlapSeconds": -1 }), "overlapSeconds"),
            (json!({ "scheme": "v2" }), "scheme must be v1 or v1a"),
            (json!({ "overlap": 1 }), "overlap"),
        ] {
            let said = scene.post(&rotate, body).await.refused(400, "invalid_request");
            assert!(said.contains(why), "{said}");
        }
    }
    let none = Tsid::from_i64(7).to_string();
    for kind in ["service-accounts", "subscriptions"] {
        scene.post(&format!("/api/{kind}/{none}/rotate-secret"), json!({})).await.refused(404, "not_found");
    }
    scene.close().await;
}

async fn a_client_with_accounts_is_not_deleted(scene: Scene) {
    let client = scene.post("/api/clients", json!({ "code": "one", "name": "one" })).await.expect(201);
    let body = json!({ "code": "a", "name": "a", "authType": "NONE", "clientId": client["id"] });
    let made = scene.post(PATH, body).await.expect(201);
    let of = format!("/api/clients/{}", client["id"].as_str().unwrap());
    let said = send(scene.request(Method::DELETE, &of)).await.refused(409, "conflict");
    assert!(said.contains("service accounts"), "{said}");
    send(scene.request(Method::DELETE, &path(&made))).await.expect(204);
    send(scene.request(Method::DELETE, &of)).await.expect(204);
    scene.close().await;
}

mod with_keys {
    use super::*;

    on_both! {
        with keys:
        a_client_has_accounts_of_its_own,
        an_account_serves_its_own_client_alone,
    }

    async fn a_client_has_accounts_of_its_own(mut scene: Scene) {
        let keys = Keyring::new(scene.queue.clone());
        let unscoped = keys.create("all", &[Scope::Admin], None).await.unwrap().secret;
        scene.with_key(&unscoped);
        let client = |code: &'static str| json!({ "code": code, "name": code });
        let one = scene.post("/api/clients", client("one")).await.expect(201)["id"].as_str().unwrap().to_owned();
        let two = scene.post("/api/clients", client("two")).await.expect(201)["id"].as_str().unwrap().to_owned();
        let own = |id: &str| json!({ "code": "a", "name": "a", "clientId": id, "authType": "BEARER", "token": "t" });
        let of_one = scene.post(PATH, own(&one)).await.expect(201);
        let of_two = scene.post(PATH, own(&two)).await.expect(201);
        let of_all = account(&scene, "a").await;

        let key = keys.create("one", &[Scope::Admin], Some(one.parse().unwrap())).await.unwrap().secret;
        scene.with_key(&key);
        let listed = scene.get(PATH).await.expect(200);
        assert_eq!(listed["items"].as_array().unwrap().len(), 1, "only its own: {listed}");
        for other in [&of_two, &of_all] {
            scene.get(&path(other)).await.refused(404, "not_found");
            scene.put(&path(other), json!({ "name": "mine", "authType": "NONE" })).await.refused(404, "not_found");
            scene.post(&format!("{}/rotate-secret", path(other)), json!({})).await.refused(404, "not_found");
            send(scene.request(Method::DELETE, &path(other))).await.refused(404, "not_found");
        }
        scene.post(PATH, own(&two)).await.refused(403, "forbidden");
        scene.put("/queues/default", json!({})).await.expect(200);
        scene.post("/api/subscriptions", subscription("own", &of_one)).await.expect(201);
        let said = scene.post("/api/subscriptions", subscription("x", &of_two)).await.refused(400, "invalid_request");
        assert!(said.contains("serviceAccountId"), "{said}");

        scene.with_key(&unscoped);
        let said = scene.post("/api/subscriptions", subscription("x", &of_one)).await.refused(400, "invalid_request");
        assert!(said.contains("serviceAccountId"), "{said}");
        scene.post("/api/subscriptions", subscription("anchor", &of_all)).await.expect(201);
        send(scene.request(Method::DELETE, &path(&of_all))).await.refused(409, "conflict");
        let reader = keys.create("reader", &[Scope::Read], None).await.unwrap().secret;
        scene.with_key(reader);
        scene.get(PATH).await.expect(200);
        scene.post(PATH, own(&one)).await.refused(403, "forbidden");
        scene.post(&format!("{}/rotate-secret", path(&of_one)), json!({})).await.refused(403, "forbidden");
        scene.close().await;
    }

    /// Whoever could name an account of the anchor level would be sent its token, and could have anything signed with its secret.
    async fn an_account_serves_its_own_client_alone(mut scene: Scene) {
        let keys = Keyring::new(scene.queue.clone());
        let unscoped = keys.create("all", &[Scope::Admin], None).await.unwrap().secret;
        scene.with_key(&unscoped);
        let client =
            scene.post("/api/clients", json!({ "code": "one", "name": "one" })).await.expect(201)["id"].clone();
        let anchor = account(&scene, "anchor").await;
        let own = json!({ "code": "own", "name": "n", "authType": "NONE", "clientId": client });
        let own = scene.post(PATH, own).await.expect(201);
        let key = keys.create("one", &[Scope::Admin], Some(client.as_str().unwrap().parse().unwrap())).await.unwrap();
        let task = |account: &Value| {
            let payload = json!({ "n": 1 });
            json!({ "code": "t", "targetUrl": "https://e.com/", "payload": payload, "serviceAccountId": account["id"] })
        };
        let unknown = format!("serviceAccountId: there is no service account {}", anchor["id"].as_str().unwrap());
        let refused = async |scene: &Scene, path: &str, body: Value| {
            assert_eq!(scene.post(path, body).await.refused(400, "invalid_request"), unknown, "as one that nobody has");
        };
        for caller in [&key.secret, &unscoped] {
            scene.with_key(caller);
            let of_client = |mut body: Value| {
                body["clientId"] = client.clone();
                body
            };
            refused(&scene, "/api/dispatch-jobs", of_client(task(&anchor))).await;
            let batch = json!({ "jobs": [of_client(task(&anchor)), of_client(task(&own))] });
            let results = scene.post("/api/dispatch-jobs/batch", batch).await.expect(200)["results"].clone();
            assert_eq!((&results[0]["status"], &results[0]["error"]), (&json!(400), &json!(unknown)), "{results}");
            assert_eq!(results[1]["status"], 201, "{results}");
            let webhook = |code: &str, account: &Value| {
                let mut body = of_client(subscription(code, account));
                body["target"] = json!("https://e.com/");
                body
            };
            refused(&scene, "/api/subscriptions", webhook("x", &anchor)).await;
            let made = scene.post("/api/subscriptions", webhook("s", &own)).await.expect(201);
            let of = format!("/api/subscriptions/{}", made["id"].as_str().unwrap());
            let said = scene.put(&of, webhook("s", &anchor)).await.refused(400, "invalid_request");
            assert_eq!(said, unknown);
            send(scene.request(Method::DELETE, &of)).await.expect(204);
        }
        // What belongs to no client names those of the anchor level, and no others.
        scene.post("/api/dispatch-jobs", task(&anchor)).await.expect(201);
        scene.post("/api/subscriptions", subscription("s", &anchor)).await.expect(201);
        scene.post("/api/dispatch-jobs", task(&own)).await.refused(400, "invalid_request");
        scene.close().await;
    }
}
