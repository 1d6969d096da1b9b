//! Projections over HTTP: their state, their documents, and their removal.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate::projection::Documents;
use tidegate::{EntryId, EventLogProjectionBuilder, EventQueue, NewEvent, Projection, RetryPolicy, Tsid};
use tidegate_server::{Keyring, Options, Scope};

use crate::scene::{Scene, on_both, send};

on_both!(
    projections_are_listed_with_how_they_stand,
    documents_are_read_by_key_whatever_it_is,
    documents_come_in_pages,
    a_stopped_projection_says_why,
    the_version_that_answers_is_the_active_one,
    what_is_not_there_is_told,
    a_projection_can_be_removed,
);

type Sums = Projection<Documents<Value>>;

/// Keeps a sum per key, of amounts times the version. Events without an amount fail.
async fn sums(queue: &EventQueue, name: &str, version: i32) -> Sums {
    EventLogProjectionBuilder::new(name)
        .version(version)
        .retry(RetryPolicy::fixed(Duration::from_secs(3600)))
        .documents::<Value>()
        .on::<Value, _, _>(
            "added",
            |event| event.data["key"].as_str().map(str::to_owned),
            move |state, event| {
                let amount = event.data["amount"].as_i64().ok_or("an amount is missing")?;
                let before = state.and_then(|state| state["sum"].as_i64()).unwrap_or(0);
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Some(
                    json!({ "sum": before + amount * i64::from(version) }),
                ))
            },
        )
        .open(queue)
        .await
        .unwrap()
}

/// Publishes an event and completes it.
async fn logged(queue: &EventQueue, payload: Value) -> EntryId {
    let id = queue.publish(NewEvent::new("added", payload.to_string())).await.unwrap().id;
    queue.finalize(id, Vec::<String>::new()).await.unwrap();
    id
}

async fn add(queue: &EventQueue, key: &str, amount: i64) {
    logged(queue, json!({ "key": key, "amount": amount })).await;
}

fn names(answer: &Value) -> Vec<&str> {
    answer["projections"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect()
}

fn keys(page: &Value) -> Vec<&str> {
    page["documents"].as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap()).collect()
}

async fn projections_are_listed_with_how_they_stand(scene: Scene) {
    assert_eq!(scene.get("/projections").await.expect(200), json!({ "projections": [] }));
    let first = sums(&scene.queue, "sums", 1).await;
    sums(&scene.queue, "a/b c", 3).await;
    for n in 0..3 {
        add(&scene.queue, "ann", n).await;
    }
    first.catch_up().await.unwrap();

    let listed = scene.get("/projections").await.expect(200);
    assert_eq!(names(&listed), ["a/b c", "sums"]);
    let (behind, done) = (&listed["projections"][0], &listed["projections"][1]);
    assert_eq!((&done["version"], &done["state"], &done["events"]), (&json!(1), &json!("active"), &json!(3)));
    assert_eq!((&done["lag"]["rows"], &done["lag"]["more"]), (&json!(0), &json!(false)));
    assert_eq!((&done["stopped"], &done["failure"], &done["reader"]), (&json!(false), &Value::Null, &Value::Null));
    assert_eq!(done["building"], json!([]));
    assert_ne!(done["position"], behind["position"]);
    assert_eq!((&behind["version"], &behind["events"], &behind["lag"]["rows"]), (&json!(3), &json!(0), &json!(3)));
    assert!(behind["lag"]["age_seconds"].as_f64().is_some(), "{behind}");

    let one = scene.get("/projections/sums").await.expect(200);
    assert_eq!(one["updated_at"], done["updated_at"]);
    assert!(one.get("documents").is_none() && one.get("next_after").is_none(), "{one}");
    assert_eq!(scene.get("/projections/a%2Fb%20c").await.expect(200)["name"], "a/b c");

    let log = scene.queue.store();
    log.take_reader(first.id(), "host:1/r", Duration::from_secs(60)).await.unwrap().unwrap();
    let reader = &scene.get("/projections/sums").await.expect(200)["reader"];
    assert_eq!(reader["name"], "host:1/r");
    assert!(reader["until"].as_str().unwrap().parse::<tidegate::Timestamp>().unwrap() > tidegate::Timestamp::now());
    scene.close().await;
}

async fn documents_are_read_by_key_whatever_it_is(scene: Scene) {
    let sums = sums(&scene.queue, "sums", 1).await;
    let keys = [
        ("ann", "ann"),
        ("a/b", "a%2Fb"),
        ("a/b/", "a%2fb%2F"),
        ("grün 🌊", "gr%C3%BCn%20%F0%9F%8C%8A"),
        ("100%", "100%25"),
        ("50%2F", "50%252F"),
        ("a+b", "a+b"),
        ("?q=1&x#y", "%3Fq=1&x%23y"),
        ("{key}", "%7Bkey%7D"),
        ("", ""),
        ("line\nbreak", "line%0Abreak"),
    ];
    for (n, (key, _)) in (1..).zip(keys) {
        add(&scene.queue, key, n).await;
    }
    sums.catch_up().await.unwrap();
    for (n, (key, path)) in (1..).zip(keys) {
        let answer = scene.get(&format!("/projections/sums/{path}")).await;
        assert_eq!(answer.expect(200), json!({ "sum": n }), "{key:?}");
        assert_eq!(answer.headers["content-type"], "application/json");
    }
    scene.close().await;
}

async fn documents_come_in_pages(scene: Scene) {
    let sums = sums(&scene.queue, "sums", 1).await;
    let all = ["", "a", "a/1", "a/2", "b&c", "ü"];
    for key in all {
        add(&scene.queue, key, 1).await;
    }
    sums.catch_up().await.unwrap();
    for limit in 1..=all.len() + 1 {
        let (mut seen, mut after) = (Vec::new(), None::<String>);
        for _ in 0..=all.len() {
            let query = after.iter().map(|key| ("after", key.clone())).chain([("limit", limit.to_string())]);
            let request = scene.request(reqwest::Method::GET, "/projections/sums");
            let request = request.query(&query.collect::<Vec<_>>());
            let page = send(request).await.expect(200);
            assert!(keys(&page).len() <= limit, "{page}");
            assert_eq!(page["documents"][0]["document"], json!({ "sum": 1 }));
            seen.extend(keys(&page).into_iter().map(str::to_owned));
            after = page.get("next_after").map(|key| key.as_str().unwrap().to_owned());
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, all, "in pages of {limit}");
    }
    assert_eq!(keys(&scene.get("/projections/sums?after=b%26c").await.expect(200)), ["ü"]);
    assert_eq!(scene.get("/projections/sums?after=%C3%BC").await.expect(200)["documents"], json!([]));
    for bad in ["limit=0", "limit=101", "limit=-1", "limit=x", "limit=99999999999999999999"] {
        let text = scene.get(&format!("/projections/sums?{bad}")).await.refused(400, "invalid_request");
        assert!(text.contains("from 1 to 100"), "{text}");
    }
    for bad in ["after=%00", "after=%ff", "after=%zz"] {
        scene.get(&format!("/projections/sums?{bad}")).await.refused(400, "invalid_request");
    }
    scene.close().await;
}

async fn a_stopped_projection_says_why(scene: Scene) {
    let sums = sums(&scene.queue, "sums", 1).await;
    add(&scene.queue, "ann", 5).await;
    let bad = logged(&scene.queue, json!({ "key": "bob" })).await;
    add(&scene.queue, "ann", 7).await;
    sums.catch_up().await.unwrap_err();
    for path in ["/projections", "/projections/sums"] {
        let answer = scene.get(path).await.expect(200);
        let one = answer.pointer("/projections/0").unwrap_or(&answer);
        assert_eq!((&one["stopped"], &one["lag"]["rows"], &one["events"]), (&json!(true), &json!(2), &json!(1)));
        let failure = &one["failure"];
        assert_eq!((&failure["event_id"], &failure["failures"]), (&json!(bad.get()), &json!(1)));
        assert!(failure["error"].as_str().unwrap().contains("an amount is missing"), "{failure}");
        assert!(failure["retry_at"].as_str().unwrap().parse::<tidegate::Timestamp>().is_ok(), "{failure}");
    }
    assert_eq!(scene.get("/projections/sums/ann").await.expect(200), json!({ "sum": 5 }), "earlier events are there");
    scene.get("/projections/sums/bob").await.refused(404, "not_found");
    scene.close().await;
}

async fn the_version_that_answers_is_the_active_one(scene: Scene) {
    let first = sums(&scene.queue, "sums", 1).await;
    add(&scene.queue, "ann", 5).await;
    first.catch_up().await.unwrap();
    let second = sums(&scene.queue, "sums", 2).await;
    add(&scene.queue, "bob", 1).await;
    let one = scene.get("/projections/sums?limit=10").await.expect(200);
    assert_eq!((&one["version"], &one["lag"]["rows"], keys(&one)), (&json!(1), &json!(1), vec!["ann"]));
    let next = &one["building"][0];
    assert_eq!((&next["version"], &next["state"], &next["lag"]["rows"]), (&json!(2), &json!("building"), &json!(2)));
    assert_eq!(names(&scene.get("/projections").await.expect(200)), ["sums"], "one row for all versions");
    assert_eq!(scene.get("/projections/sums/ann").await.expect(200), json!({ "sum": 5 }));

    second.catch_up().await.unwrap();
    let one = scene.get("/projections/sums?limit=10").await.expect(200);
    assert_eq!((&one["version"], &one["building"], keys(&one)), (&json!(2), &json!([]), vec!["ann", "bob"]));
    assert_eq!(one["documents"][0]["document"], json!({ "sum": 10 }), "only what the new version made");
    assert_eq!(scene.get("/projections/sums/ann").await.expect(200), json!({ "sum": 10 }));
    scene.close().await;
}

async fn what_is_not_there_is_told(scene: Scene) {
    for path in ["/projections/none", "/projections/none?limit=1", "/projections/none/key", "/projections/none/"] {
        let text = scene.get(path).await.refused(404, "not_found");
        assert!(text.contains("there is no projection \"none\""), "{path}: {text}");
    }
    sums(&scene.queue, "sums", 1).await;
    for (path, key) in [("missing", "missing"), ("a%2Fb", "a/b"), ("", "\"\"")] {
        let text = scene.get(&format!("/projections/sums/{path}")).await.refused(404, "not_found");
        assert!(text.contains("\"sums\"") && text.contains(key), "{text}");
    }
    for bad in ["a%00b", "%ff"] {
        scene.get(&format!("/projections/sums/{bad}")).await.refused(400, "invalid_request");
        scene.get(&format!("/projections/{bad}")).await.refused(400, "invalid_request");
    }
    scene.get(&format!("/projections/{}", "n".repeat(256))).await.refused(400, "invalid_request");
    scene.get("/projections/sums/a/b").await.refused(404, "not_found");
    scene.post("/projections/sums", json!({})).await.refused(405, "method_not_allowed");
    scene.close().await;
}

async fn a_projection_can_be_removed(scene: Scene) {
    let gone = sums(&scene.queue, "a/b", 1).await;
    sums(&scene.queue, "kept", 1).await;
    add(&scene.queue, "ann", 1).await;
    gone.catch_up().await.unwrap();
    let remove = |path: &str| send(scene.request(reqwest::Method::DELETE, path));
    let answer = remove("/projections/a%2Fb").await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (204, ""));
    assert_eq!(names(&scene.get("/projections").await.expect(200)), ["kept"]);
    scene.get("/projections/a%2Fb/ann").await.refused(404, "not_found");
    let text = remove("/projections/a%2Fb").await.refused(404, "not_found");
    assert!(text.contains("there is no projection \"a/b\""), "{text}");
    let again = sums(&scene.queue, "a/b", 1).await;
    again.catch_up().await.unwrap();
    assert_eq!(scene.get("/projections/a%2Fb/ann").await.expect(200), json!({ "sum": 1 }), "built again");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_needs_the_scope_to_manage_and_no_client() {
    let mut options = Options::default();
    options.auth.required = true;
    let mut scene = Scene::sqlite_with(options).await;
    let keys = Keyring::new(scene.queue.clone());
    for scope in Scope::ALL {
        sums(&scene.queue, "sums", 1).await;
        scene.with_key(keys.create("one", &[scope], Some(Tsid::from_i64(1))).await.unwrap().secret);
        send(scene.request(reqwest::Method::DELETE, "/projections/sums")).await.refused(403, "forbidden");
        scene.with_key(keys.create("all", &[scope], None).await.unwrap().secret);
        let answer = send(scene.request(reqwest::Method::DELETE, "/projections/sums")).await;
        let manages = matches!(scope, Scope::Manage | Scope::Admin);
        assert_eq!(answer.status.as_u16(), if manages { 204 } else { 403 }, "{scope:?}: {}", answer.text);
    }
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scope_to_read_reads_and_clients_do_not() {
    let mut options = Options::default();
    options.auth.required = true;
    let mut scene = Scene::sqlite_with(options).await;
    let sums = sums(&scene.queue, "sums", 1).await;
    add(&scene.queue, "", 1).await;
    add(&scene.queue, "ann", 1).await;
    sums.catch_up().await.unwrap();
    let paths = ["/projections", "/projections/sums", "/projections/sums?limit=1", "/projections/sums/ann"];
    let paths = paths.into_iter().chain(["/projections/sums/"]);
    let missing = ["/projections/none", "/projections/none/key", "/projections/sums/none"];
    for path in paths.clone().chain(missing) {
        scene.get(path).await.refused(401, "unauthorized");
    }
    let keys = Keyring::new(scene.queue.clone());
    for scope in Scope::ALL {
        scene.with_key(keys.create("all", &[scope], None).await.unwrap().secret);
        let reads = matches!(scope, Scope::Read | Scope::Manage | Scope::Admin);
        for path in paths.clone() {
            assert_eq!(scene.get(path).await.status.as_u16(), if reads { 200 } else { 403 }, "{scope:?} {path}");
        }
        scene.with_key(keys.create("one", &[scope], Some(Tsid::from_i64(1))).await.unwrap().secret);
        for path in paths.clone().chain(missing) {
            scene.get(path).await.refused(403, "forbidden");
        }
    }
    scene.close().await;
}
