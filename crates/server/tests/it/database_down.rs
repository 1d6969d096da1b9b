//! When the database refuses the server, HTTP callers learn that it is unavailable, and nothing else.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio_postgres::Client;

use crate::scene::{PATIENCE, Scene};

async fn connect(address: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(address, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A server that logs in to a new database as `role`, a connection of the database's owner, and the owner's URL.
pub(crate) async fn served_as(role: &str) -> (Scene, Client, String) {
    let url = tokio::task::spawn_blocking(tidegate_testing::fresh_database).await.unwrap();
    let owner = connect(&url).await;
    let database: String = owner.query_one("SELECT current_database()::text", &[]).await.unwrap().get(0);
    let made = format!("CREATE ROLE {role} LOGIN; GRANT ALL ON DATABASE {database} TO {role}");
    owner.batch_execute(&made).await.unwrap();
    let scene = Scene::at(&url.replace("tidegate@", &format!("{role}@"))).await;
    (scene, owner, url)
}

/// Publishes until an event is refused, and checks that the error names no internals.
async fn refused_without_internals(scene: &Scene, role: &str) {
    let started = Instant::now();
    loop {
        let answer = scene.post("/events", json!({ "title": "An event", "tags": "t", "payload": {} })).await;
        if answer.status.is_server_error() {
            let said = answer.refused(503, "unavailable");
            assert!(answer.headers.contains_key("retry-after"), "{said}");
            for word in [role, "tidegate.", "role", "permission denied"] {
                assert!(!said.contains(word), "{word} in {said}");
            }
            return;
        }
        assert!(answer.status.is_success(), "{}", answer.text);
        assert!(started.elapsed() < PATIENCE, "never refused");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) async fn leave(scene: Scene, owner: Client, role: &str, url: String) {
    scene.close().await;
    owner.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
    drop(owner);
    tokio::task::spawn_blocking(move || tidegate_testing::drop_database(&url)).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_is_withdrawn_is_unavailable_and_names_nobody() {
    let role = format!("locked_{}", std::process::id());
    let (scene, owner, url) = served_as(&role).await;
    let out = format!(
        "ALTER ROLE {role} NOLOGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"
    );
    owner.batch_execute(&out).await.unwrap();
    refused_without_internals(&scene, &role).await;
    leave(scene, owner, &role, url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_withdrawn_is_unavailable_and_names_nothing() {
    let role = format!("poor_{}", std::process::id());
    let (scene, owner, url) = served_as(&role).await;
    owner.batch_execute(&format!("REVOKE ALL ON ALL TABLES IN SCHEMA tidegate FROM {role}")).await.unwrap();
    refused_without_internals(&scene, &role).await;
    leave(scene, owner, &role, url).await;
}
