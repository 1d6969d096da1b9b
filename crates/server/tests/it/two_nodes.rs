//! Two servers on one Postgres: every event is claimed once, whichever node a worker asks, and a pause on one node
//! applies to the other at once.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tidegate::EventQueue;
use tidegate_server::{Handle, Options, Server};

use crate::scene::{PATIENCE, Scene, send};

const EVENTS: usize = 300;

struct Other {
    queue: EventQueue,
    server: Handle,
}

impl Other {
    async fn beside(scene: &Scene) -> Self {
        let queue = EventQueue::open(scene.postgres_url()).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server::new(queue.clone(), Options::default()).unwrap().start(listener).unwrap();
        Self { queue, server }
    }

    fn base(&self) -> String {
        format!("http://{}", self.server.address())
    }

    async fn close(self) {
        self.server.stop().await.unwrap();
        self.queue.close().await;
    }
}

/// Claims up to ten events and returns their numbers.
async fn claim(scene: &Scene, base: &str, worker: &str, wait: u32) -> Vec<i64> {
    let body = json!({ "tags": "all", "worker_id": worker, "max": 10, "wait": wait });
    let taken = send(scene.http.post(format!("{base}/events/claim")).json(&body)).await.expect(200);
    taken["events"].as_array().unwrap().iter().map(|event| event["id"].as_i64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_on_either_node_get_everything_once() {
    let scene = Scene::postgres().await;
    let other = Other::beside(&scene).await;
    let bases = [format!("http://{}", scene.address()), other.base()];
    let taken: Mutex<HashMap<i64, Vec<String>>> = Mutex::default();
    let work = |number: usize| {
        let (scene, base, taken) = (&scene, &bases[number % 2], &taken);
        async move {
            let worker = format!("w{number}");
            let started = Instant::now();
            while taken.lock().unwrap().len() < EVENTS {
                assert!(started.elapsed() < PATIENCE, "{} of {EVENTS} were taken", taken.lock().unwrap().len());
                let ids = claim(scene, base, &worker, 1).await;
                if ids.is_empty() {
                    continue;
                }
                ids.iter().for_each(|id| taken.lock().unwrap().entry(*id).or_default().push(worker.clone()));
                let items: Vec<Value> = ids.iter().map(|id| json!({ "id": id })).collect();
                let body = json!({ "worker_id": worker, "events": items });
                let done = send(scene.http.post(format!("{base}/events/complete")).json(&body)).await.expect(200);
                assert!(done["results"].as_array().unwrap().iter().all(|one| one["status"] == 200), "{done}");
            }
        }
    };
    let publish = |number: usize| {
        let (scene, base) = (&scene, &bases[number % 2]);
        async move {
            let event = json!({ "title": "An event", "tags": "all", "payload": number });
            send(scene.http.post(format!("{base}/events")).json(&event)).await.expect(201);
        }
    };
    tokio::join!(join_all((0..8).map(work)), join_all((0..EVENTS).map(publish)));
    let taken = taken.into_inner().unwrap();
    assert_eq!(taken.len(), EVENTS);
    assert!(taken.values().all(|workers| workers.len() == 1), "{taken:?}");
    let on_other = taken.values().flatten().filter(|worker| ["w1", "w3", "w5", "w7"].contains(&worker.as_str()));
    let on_other = on_other.count();
    assert!((1..EVENTS).contains(&on_other), "{on_other} of {EVENTS} were taken on the second node");
    other.close().await;
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_on_one_node_holds_on_the_other_at_once() {
    let scene = Scene::postgres().await;
    let other = Other::beside(&scene).await;
    let there = other.base();
    for round in 0..10 {
        for _ in 0..30 {
            scene.publish("all").await;
        }
        let paused = AtomicBool::new(false);
        let taking = join_all((0..4).map(|number| {
            let (scene, there, paused) = (&scene, &there, &paused);
            async move {
                let mut after = 0;
                // After the pause each worker claims ten times more; one of these claims waits.
                let mut rest = 10;
                while rest > 0 {
                    let was_paused = paused.load(Ordering::SeqCst);
                    let wait = u32::from(number == 0 && rest == 5);
                    let taken = claim(scene, there, &format!("w{number}"), wait).await;
                    if was_paused {
                        after += taken.len();
                        rest -= 1;
                    }
                }
                after
            }
        }));
        let pausing = async {
            // The workers are running once this node sees leases that the other has given.
            let started = Instant::now();
            while scene.get("/queues/default/metrics").await.expect(200)["leased"] == 0 {
                assert!(started.elapsed() < PATIENCE);
            }
            scene.post("/queues/default/pause", json!({})).await.expect(200);
            paused.store(true, Ordering::SeqCst);
            for _ in 0..5 {
                scene.publish("all").await;
            }
        };
        let (after, ()) = tokio::time::timeout(PATIENCE, async { tokio::join!(taking, pausing) }).await.unwrap();
        assert_eq!(after.iter().sum::<usize>(), 0, "round {round}: {after:?} were handed out after the pause");
        scene.post("/queues/default/resume", json!({})).await.expect(200);
        end_all(&scene, &there).await;
    }
    other.close().await;
    scene.close().await;
}

/// Ends everything that a round left, leased or not, so that the next round starts with nothing leased.
async fn end_all(scene: &Scene, there: &str) {
    let started = Instant::now();
    loop {
        claim(scene, there, "w0", 0).await;
        let held = scene.get("/events?status=PROCESSING&limit=100").await.expect(200);
        let held = held["events"].as_array().unwrap();
        for event in held {
            let path = format!("/events/{}/complete", event["id"]);
            scene.post(&path, json!({ "worker_id": event["worker_id"] })).await.expect(200);
        }
        if held.is_empty() && scene.get("/queues/default/metrics").await.expect(200)["depth"] == 0 {
            return;
        }
        assert!(started.elapsed() < PATIENCE);
    }
}
