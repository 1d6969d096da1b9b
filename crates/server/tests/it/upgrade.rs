//! A server on a database of an earlier version: keys keep their rights, and clients find their own queues and events.

use serde_json::json;

use crate::scene::Scene;

/// The fixtures have two keys: one of no client, which sees everything, and one of the client that owns the queue
/// `mail`.
async fn keys_and_queues_are_kept(mut scene: Scene, all: &str, theirs: &str) {
    scene.with_key(theirs);
    // A failed event comes first once its retry is due, which depends on how old the fixture is.
    let mut event = scene.get("/events/subscribe?queue=mail&worker_id=new:1").await.expect(200);
    if event["attempts"] == 2 {
        event = scene.get("/events/subscribe?queue=mail&worker_id=new:1").await.expect(200);
    }
    assert_eq!(event["title"], "task 3", "{event}");
    let done = json!({ "worker_id": "new:1", "lease": event["lease"] });
    scene.post(&format!("/events/{}/complete", event["id"]), done).await.expect(200);
    scene.post("/queues/mail/pause", json!({})).await.refused(403, "forbidden");
    scene.get("/events/subscribe?worker_id=new:1&tags=work").await.expect(204); // nothing in its own default queue

    scene.with_key(all);
    let mut event = scene.get("/events/subscribe?tags=work&worker_id=new:2").await.expect(200);
    if event["attempts"] == 2 {
        event = scene.get("/events/subscribe?tags=work&worker_id=new:2").await.expect(200);
    }
    assert_eq!(event["title"], "task 3", "{event}");
    let theirs = scene.get("/queues/mail?client=0000000000007").await.expect(200);
    assert_eq!((&theirs["name"], &theirs["client"]), (&json!("mail"), &json!("0000000000007")));
    let queues = scene.get("/queues").await.expect(200);
    assert!(!queues.to_string().contains('/'), "{queues}");
    let listed = scene.get("/events?client=0000000000007").await.expect(200);
    assert!(listed["total"].as_u64().is_some_and(|total| total >= 4), "{listed}");
    let details = scene.get("/events/1?include_logs=true").await.expect(200);
    assert_eq!(details["status"], "COMPLETED", "{details}");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sqlite_file_of_schema_5_serves_its_clients() {
    let scene = Scene::sqlite_of(include_bytes!("../../../store/tests/fixtures/schema-5.db")).await;
    let all = "tg_FljQuVa-lT7-2SNL3XPmRQ29t5VECLOD2ZpydlGoMwP";
    keys_and_queues_are_kept(scene, all, "tg_Jv9mSXCmewqxBv7ldZkjEsiG5NxMUPPhr0pE_nSKKap").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_database_of_schema_5_serves_its_clients() {
    let scene = Scene::postgres_of(include_str!("../../../store/tests/fixtures/schema-5.sql")).await;
    let all = "tg_wVsynwkcqBMSmPtgjcBKOFd06CpxonRK_b33v_ObucI";
    keys_and_queues_are_kept(scene, all, "tg_DgOzaMaCgJoANCAi4Z9uHsiLpKqFPjeUjwwYxgcT181").await;
}
