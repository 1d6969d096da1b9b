//! Routers whose process is killed while they deliver.

#![cfg(target_os = "linux")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tidegate_dispatch::PoolBody;

use crate::receiver::Receiver;
use crate::scene::{Log, Scene, on_both, status, until};

on_both!(slots_of_a_killed_process_are_used_by_the_next_one);

/// Says to the test below on which database it is to be a node.
const DATABASE: &str = "TIDEGATE_TEST_NODE_OF";

/// A process with one node, killed at the latest when this is dropped.
struct Process(Child);

impl Process {
    fn start(scene: &Scene) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "crashes::a_node_that_is_killed", "--nocapture"]);
        Self(command.env(DATABASE, scene.address()).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test by itself: the process that the others kill.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_killed() {
    let Ok(address) = std::env::var(DATABASE) else { return };
    let _node = Scene::at(address).node().await;
    // Until whoever has started it is gone.
    let end = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    let _ = end.await.unwrap();
}

/// A receiver that never answers the first two webhooks.
async fn hanging() -> (Receiver, Log) {
    let log = Log::default();
    let known = log.clone();
    let receiver = Receiver::http(None, move |taken| {
        let before = known.add(taken);
        async move { if before < 2 { std::future::pending().await } else { status(200) } }
    })
    .await;
    (receiver, log)
}

async fn slots_of_a_killed_process_are_used_by_the_next_one(scene: Scene) {
    let (receiver, log) = hanging().await;
    let maker = scene.gateway_alone().await;
    let pool = PoolBody { concurrency: 2, ..PoolBody::new("p".into()) };
    let pool = maker.gateway().create_pool(None, "p", &pool).await.unwrap();
    maker.subscribe("s", &receiver, |body| body.dispatch_pool = Some(pool.id)).await;
    maker.publish_many(6).await;
    let mut process = Process::start(&scene);
    until(|| async { log.taken().len() == 2 }).await;

    // The other one wants slots, and looks for dead nodes at least twice.
    let node = scene.node().await;
    let began = Instant::now();
    until(|| async {
        assert_eq!(log.taken().len(), 2, "a process that lives keeps its slots");
        began.elapsed() > Duration::from_secs(5)
    })
    .await;

    let killed = Instant::now();
    process.kill();
    until(|| async { log.taken().len() == 6 }).await;
    assert!(killed.elapsed() < Duration::from_secs(15), "after {:?}", killed.elapsed());
    node.stop().await;

    // Who starts after the crash does not wait either.
    let mut process = Process::start(&scene);
    log.clear();
    maker.publish_many(4).await;
    until(|| async { log.taken().len() == 2 }).await;
    process.kill();
    let killed = Instant::now();
    let node = scene.node().await;
    until(|| async { log.taken().len() == 4 }).await;
    assert!(killed.elapsed() < Duration::from_secs(15), "after {:?}", killed.elapsed());
    node.stop().await;
    maker.close().await;
}
