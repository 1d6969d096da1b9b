//! Long polls: subscribers are woken soon, get one event each, and are answered when the wait or the server ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use tidegate::EventQueue;
use tidegate_server::{Options, Server};

use crate::scene::{PATIENCE, Scene, on_both};

on_both!(a_waiting_subscriber_is_told, waiting_subscribers_get_one_each, a_wait_without_an_event_ends);

async fn a_waiting_subscriber_is_told(scene: Scene) {
    let scene = Arc::new(scene);
    for round in 0..5 {
        let tag = format!("t{round}");
        let waiting = {
            let (scene, tag) = (Arc::clone(&scene), tag.clone());
            tokio::spawn(async move {
                let path = format!("/events/subscribe?tags={tag}&worker_id=w&wait=20");
                let taken = scene.get(&path).await.expect(200);
                (taken["id"].as_i64().unwrap(), Instant::now())
            })
        };
        // The subscriber may or may not wait already: an event published before it waits is claimed at once.
        tokio::task::yield_now().await;
        let id = scene.publish(&tag).await;
        let (taken, at) = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
        assert_eq!(taken, id);
        assert!(at.elapsed() < PATIENCE);
    }
    Arc::into_inner(scene).unwrap().close().await;
}

async fn waiting_subscribers_get_one_each(scene: Scene) {
    let takers = join_all((0..30).map(|n| {
        let path = format!("/events/subscribe?tags=shared&worker_id=w{n}&wait=30");
        let scene = &scene;
        async move { scene.get(&path).await.expect(200)["id"].as_i64().unwrap() }
    }));
    let publishing = async {
        let mut ids = Vec::new();
        for _ in 0..30 {
            ids.push(scene.publish("shared").await);
        }
        ids
    };
    let both = async { tokio::join!(takers, publishing) };
    let (mut taken, published) = tokio::time::timeout(PATIENCE, both).await.unwrap();
    taken.sort_unstable();
    assert_eq!(taken, published);
    scene.close().await;
}

async fn a_wait_without_an_event_ends(scene: Scene) {
    let started = Instant::now();
    let none = scene.get("/events/subscribe?tags=none&worker_id=w&wait=1").await;
    assert_eq!(none.status.as_u16(), 204);
    assert!(started.elapsed() >= Duration::from_millis(900), "{:?}", started.elapsed());
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_long_polls_at_once() {
    let mut scene = Scene::sqlite().await;
    let waiting = {
        let request = scene.request(reqwest::Method::GET, "/events/subscribe?tags=a&worker_id=w&wait=60");
        tokio::spawn(async move { request.send().await.map(|response| response.status().as_u16()) })
    };
    // The worker is listed once it has polled.
    let started = Instant::now();
    while scene.get("/workers").await.expect(200)["workers"].as_array().unwrap().is_empty() {
        assert!(started.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let started = Instant::now();
    scene.stop_server().await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(waiting.await.unwrap().unwrap(), 204);
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_node_tells_its_subscribers_and_a_pause_holds_there() {
    let scene = Scene::postgres().await;
    let queue = EventQueue::open(scene.postgres_url()).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = Server::new(queue.clone(), Options::default()).unwrap().start(listener).unwrap();
    let there = format!("http://{}", other.address());
    let subscribe = |tag: &str| {
        let request = scene.http.get(format!("{there}/events/subscribe?tags={tag}&worker_id=there&wait=20"));
        tokio::spawn(async move { request.send().await.unwrap().json::<serde_json::Value>().await.unwrap() })
    };
    let waiting = subscribe("far");
    let id = scene.publish("far").await;
    let taken = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(taken["id"], id);

    scene.post("/queues/default/pause", json!({})).await.expect(200);
    scene.publish("held").await;
    let held = scene.http.get(format!("{there}/events/subscribe?tags=held&worker_id=there")).send().await.unwrap();
    assert_eq!(held.status().as_u16(), 204);
    let waiting = subscribe("held");
    scene.post("/queues/default/resume", json!({})).await.expect(200);
    tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
    other.stop().await.unwrap();
    queue.close().await;
    scene.close().await;
}
