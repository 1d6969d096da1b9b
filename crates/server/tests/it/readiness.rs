//! `/readyz` fails while a write or a claim would not succeed, whatever the reason, and recovers afterwards.

use std::time::Instant;

use serde_json::{Value, json};

use crate::database_down::{leave, served_as};
use crate::scene::{PATIENCE, Scene};

/// Asks `/readyz` until it answers with this status.
async fn becomes(scene: &Scene, status: u16) -> Value {
    let started = Instant::now();
    loop {
        let answer = scene.get("/readyz").await;
        if answer.status.as_u16() == status {
            return answer.json();
        }
        assert!(started.elapsed() < PATIENCE, "it still answers {} {}", answer.status, answer.text);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

async fn is_failing(scene: &Scene) {
    let answer = becomes(scene, 503).await;
    assert_eq!(answer["status"], "failing", "{answer}");
    let told = answer["error"].as_str().unwrap();
    // No key is needed, so the answer has no paths, roles or error texts of the database.
    for word in ["tidegate.db", "/", "role", "permission", "lock"] {
        assert!(!told.contains(word), "{told}");
    }
    assert_eq!(scene.get("/livez").await.expect(200)["status"], "ok", "a restart would not help");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_lock_is_told_until_it_is_gone() {
    let scene = Scene::sqlite().await;
    assert_eq!(becomes(&scene, 200).await, json!({ "status": "ok" }));
    let foreign = rusqlite::Connection::open(scene.sqlite_file()).unwrap();
    foreign.execute_batch("BEGIN IMMEDIATE").unwrap();
    is_failing(&scene).await;
    foreign.execute_batch("ROLLBACK").unwrap();
    becomes(&scene, 200).await;
    scene.publish("a").await;
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_file_is_told() {
    let scene = Scene::sqlite().await;
    becomes(&scene, 200).await;
    std::fs::remove_file(scene.sqlite_file()).unwrap();
    is_failing(&scene).await;
    scene.post("/events", json!({ "title": "t", "tags": "a" })).await.refused(503, "unavailable");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_claims_need_and_is_gone_is_told() {
    let scene = Scene::sqlite().await;
    becomes(&scene, 200).await;
    let foreign = rusqlite::Connection::open(scene.sqlite_file()).unwrap();
    foreign.execute_batch("ALTER TABLE tidegate_events RENAME TO elsewhere").unwrap();
    is_failing(&scene).await;
    foreign.execute_batch("ALTER TABLE elsewhere RENAME TO tidegate_events").unwrap();
    becomes(&scene, 200).await;
    scene.close().await;
}

/// What the migration of a newer program does last.
const UPGRADE: &str = "UPDATE {meta} SET oldest_compatible = 1000, catalogue_version = catalogue_version + 1";

async fn needs_a_newer_program(scene: &Scene) {
    is_failing(scene).await;
    let told = becomes(scene, 503).await;
    assert!(told["error"].as_str().unwrap().contains("newer program"), "{told}");
    let event = json!({ "title": "t", "tags": "a" });
    scene.post("/events", event).await.refused(503, "unavailable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_upgraded_is_told() {
    let scene = Scene::sqlite().await;
    becomes(&scene, 200).await;
    let newer = rusqlite::Connection::open(scene.sqlite_file()).unwrap();
    newer.execute_batch(&UPGRADE.replace("{meta}", "tidegate_meta")).unwrap();
    needs_a_newer_program(&scene).await;
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_upgraded_is_told() {
    let scene = Scene::postgres().await;
    becomes(&scene, 200).await;
    owner(&scene).await.batch_execute(&UPGRADE.replace("{meta}", "tidegate.store")).await.unwrap();
    needs_a_newer_program(&scene).await;
    scene.close().await;
}

async fn owner(scene: &Scene) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(scene.postgres_url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_became_read_only_is_told() {
    let scene = Scene::postgres().await;
    becomes(&scene, 200).await;
    let owner = owner(&scene).await;
    let database: String = owner.query_one("SELECT current_database()::text", &[]).await.unwrap().get(0);
    let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
                  AND pid <> pg_backend_pid()";
    let set = |value: &str| format!("ALTER DATABASE {database} SET default_transaction_read_only = {value}");
    owner.batch_execute(&set("on")).await.unwrap();
    owner.query(others, &[]).await.unwrap();
    is_failing(&scene).await;
    owner.batch_execute(&format!("SET default_transaction_read_only = off; {}", set("off"))).await.unwrap();
    owner.query(others, &[]).await.unwrap();
    becomes(&scene, 200).await;
    scene.publish("a").await;
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_were_revoked_are_told() {
    let role = format!("unready_{}", std::process::id());
    let (scene, owner, url) = served_as(&role).await;
    becomes(&scene, 200).await;
    owner.batch_execute(&format!("REVOKE ALL ON ALL TABLES IN SCHEMA tidegate FROM {role}")).await.unwrap();
    is_failing(&scene).await;
    owner.batch_execute(&format!("GRANT ALL ON ALL TABLES IN SCHEMA tidegate TO {role}")).await.unwrap();
    becomes(&scene, 200).await;
    leave(scene, owner, &role, url).await;
}
