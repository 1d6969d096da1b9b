//! What `/metrics` of a server says about deliveries: attempts, what waits, slots in use, blocked groups and open breakers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use axum::Router;
use axum::extract::Path;
use axum::routing::post;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::scene::{PATIENCE, Scene, on_both};

on_both!(
    measured:
    attempts_are_counted_by_pool_and_result,
    what_waits_is_shown_by_pool_until_nothing_does,
    slots_in_use_are_those_of_default_pools_too,
    blocked_groups_are_counted,
    open_breakers_are_counted,
);

/// Where webhooks go: the path says what they are answered with. On `/held` it waits until it is let go.
#[derive(Clone, Default)]
struct Receiver {
    held: Arc<AtomicUsize>,
    go: Arc<Notify>,
}

impl Receiver {
    async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let own = self.clone();
        let held = move || {
            let own = own.clone();
            async move {
                own.held.fetch_add(1, Ordering::SeqCst);
                own.go.notified().await;
            }
        };
        let answer = |Path(status): Path<u16>| async move { StatusCode::from_u16(status).unwrap() };
        let app = Router::new().route("/held", post(held)).route("/answer/{status}", post(answer));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        url
    }
}

async fn subscribe(scene: &Scene, code: &str, target: &str, more: Value) -> Value {
    let types = json!([{ "eventTypeCode": code }]);
    let mut body = json!({ "code": code, "name": code, "eventTypes": types, "target": target, "maxRetries": 0 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    scene.post("/api/subscriptions", body).await.expect(201)
}

/// Publishes an event to the subscription of this code.
async fn publish(scene: &Scene, code: &str) -> String {
    let body = json!({ "type": code, "source": "/s", "data": 1, "messageGroup": "g" });
    scene.post("/api/events", body).await.expect(201)["dispatchJobs"][0]["id"].as_str().unwrap().to_owned()
}

async fn pool(scene: &Scene, code: &str, status: &str) -> String {
    let body = json!({ "code": code, "name": code, "status": status });
    scene.post("/api/dispatch-pools", body).await.expect(201)["id"].as_str().unwrap().to_owned()
}

/// The value of a metric with its labels, if it is shown.
async fn value(scene: &Scene, name: &str) -> Option<f64> {
    let shown = scene.get("/metrics").await.text;
    let found = shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.map(|value| value.parse().unwrap())
}

async fn until(scene: &Scene, name: &str, is_right: impl Fn(f64) -> bool) {
    let began = Instant::now();
    loop {
        let found = value(scene, name).await;
        if found.is_some_and(&is_right) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{name} is {found:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

fn of_pool(metric: &str, pool: &str) -> String {
    format!("{metric}{{pool=\"{pool}\"}}")
}

async fn attempts_are_counted_by_pool_and_result(scene: Scene) {
    let url = Receiver::default().start().await;
    let own = pool(&scene, "own", "ACTIVE").await;
    subscribe(&scene, "good", &format!("{url}/answer/200"), json!({})).await;
    subscribe(&scene, "bad", &format!("{url}/answer/404"), json!({ "dispatchPoolId": own })).await;
    subscribe(&scene, "down", &format!("{url}/answer/500"), json!({ "dispatchPoolId": own })).await;
    for code in ["good", "good", "bad", "down"] {
        publish(&scene, code).await;
    }
    let counted =
        |pool: &str, result: &str| format!("tidegate_deliveries_total{{pool=\"{pool}\",result=\"{result}\"}}");
    for (name, expected) in [
        (counted("default", "success"), 2.0),
        (counted(&own, "client_error"), 1.0),
        (counted(&own, "server_error"), 1.0),
        (of_pool("tidegate_delivery_seconds_count", "default"), 2.0),
        (of_pool("tidegate_delivery_seconds_count", &own), 2.0),
    ] {
        until(&scene, &name, |found| found == expected).await;
    }
    assert!(value(&scene, &of_pool("tidegate_delivery_seconds_sum", &own)).await.is_some_and(|took| took > 0.0));
    scene.close().await;
}

/// A pool that nothing names any more is shown as empty, not as it was when something did.
async fn what_waits_is_shown_by_pool_until_nothing_does(scene: Scene) {
    let held = pool(&scene, "held", "SUSPENDED").await;
    let target = "https://hooks.example/";
    let made = subscribe(&scene, "s", target, json!({ "dispatchPoolId": held })).await;
    for _ in 0..3 {
        publish(&scene, "s").await;
    }
    let (waiting, oldest) = (of_pool("tidegate_jobs_waiting", &held), of_pool("tidegate_jobs_oldest_seconds", &held));
    until(&scene, &waiting, |found| found == 3.0).await;
    until(&scene, &oldest, |found| found > 0.3).await;
    assert_eq!(value(&scene, &of_pool("tidegate_pool_slots_in_use", &held)).await, Some(0.0));
    let other = pool(&scene, "other", "SUSPENDED").await;
    let body = json!({
        "name": "s", "eventTypes": [{ "eventTypeCode": "s" }], "target": target, "dispatchPoolId": other,
    });
    scene.put(&format!("/api/subscriptions/{}", made["id"].as_str().unwrap()), body).await.expect(200);
    until(&scene, &of_pool("tidegate_jobs_waiting", &other), |found| found == 3.0).await;
    for name in [waiting, oldest] {
        until(&scene, &name, |found| found == 0.0).await;
    }
    scene.close().await;
}

async fn slots_in_use_are_those_of_default_pools_too(scene: Scene) {
    let receiver = Receiver::default();
    let url = receiver.start().await;
    let own = pool(&scene, "own", "ACTIVE").await;
    subscribe(&scene, "plain", &format!("{url}/held"), json!({})).await;
    subscribe(&scene, "own", &format!("{url}/held"), json!({ "dispatchPoolId": own })).await;
    for code in ["plain", "plain", "own"] {
        publish(&scene, code).await;
    }
    let in_use = |pool: &str| of_pool("tidegate_pool_slots_in_use", pool);
    until(&scene, &in_use("default"), |found| found == 2.0).await;
    until(&scene, &in_use(&own), |found| found == 1.0).await;
    assert_eq!(receiver.held.load(Ordering::SeqCst), 3);
    receiver.go.notify_waiters();
    for pool in ["default", &own] {
        until(&scene, &in_use(pool), |found| found == 0.0).await;
    }
    scene.close().await;
}

async fn blocked_groups_are_counted(scene: Scene) {
    let url = Receiver::default().start().await;
    for code in ["a", "b"] {
        subscribe(&scene, code, &format!("{url}/answer/404"), json!({ "mode": "BLOCK_ON_ERROR" })).await;
    }
    let (job, _) = (publish(&scene, "a").await, publish(&scene, "b").await);
    until(&scene, "tidegate_groups_blocked", |found| found == 2.0).await;
    scene.post(&format!("/api/dispatch-jobs/{job}/ignore"), json!({})).await.expect(200);
    until(&scene, "tidegate_groups_blocked", |found| found == 1.0).await;
    scene.close().await;
}

async fn open_breakers_are_counted(scene: Scene) {
    let url = Receiver::default().start().await;
    subscribe(&scene, "down", &format!("{url}/answer/500"), json!({})).await;
    for _ in 0..12 {
        publish(&scene, "down").await;
    }
    until(&scene, "tidegate_breakers_open", |found| found == 1.0).await;
    scene.close().await;
}
