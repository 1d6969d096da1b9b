//! Callers that go away leak nothing: no lease, no transaction, no connection.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::scene::{PATIENCE, Scene, on_both};

on_both!(a_subscriber_that_hangs_up_holds_nothing, aborted_requests_leave_nothing_behind);

async fn subscribe_raw(scene: &Scene, tag: &str, worker: &str, wait: u32) -> TcpStream {
    let mut stream = TcpStream::connect(scene.address()).await.unwrap();
    let request = format!(
        "GET /events/subscribe?tags={tag}&worker_id={worker}&wait={wait} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn a_subscriber_that_hangs_up_holds_nothing(scene: Scene) {
    for round in 0..10 {
        let tag = format!("h{round}");
        let gone = subscribe_raw(&scene, &tag, "gone", 30).await;
        // Some hang up before they wait, some while they do.
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        drop(gone);
        let id = scene.publish(&tag).await;
        let started = Instant::now();
        let taken = scene.take(&tag, "here").await;
        assert_eq!(taken["id"], id);
        assert_eq!(taken["attempts"], 1, "a hang-up counts no attempt");
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
    scene.close().await;
}

async fn aborted_requests_leave_nothing_behind(scene: Scene) {
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut open = Vec::new();
    for n in 0..500 {
        let body = json!({ "title": "t", "tags": "abort", "payload": n }).to_string();
        let request = match n % 3 {
            0 => format!(
                "POST /events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ),
            1 => format!("GET /events/subscribe?tags=abort&worker_id=a{n}&wait=5 HTTP/1.1\r\nhost: x\r\n\r\n"),
            _ => "GET /events?limit=5 HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(),
        };
        let mut stream = TcpStream::connect(scene.address()).await.unwrap();
        let cut = if next(4) == 0 { next(request.len() as u64) as usize } else { request.len() };
        stream.write_all(&request.as_bytes()[..cut]).await.unwrap();
        match next(3) {
            0 => drop(stream),
            1 => {
                let mut some = [0_u8; 1];
                let _ = tokio::time::timeout(Duration::from_millis(next(5)), stream.read(&mut some)).await;
            }
            _ => open.push(stream),
        }
        if open.len() > 20 {
            open.clear();
        }
    }
    drop(open);
    // Everything still works, and everything that was left alone can be had.
    let id = scene.publish("after").await;
    assert_eq!(scene.take("after", "w").await["id"], id);
    let started = Instant::now();
    loop {
        let depth = scene.get("/queues/default/metrics").await.expect(200);
        let claimed = scene.post("/events/claim", json!({ "tags": "abort", "worker_id": "w", "max": 1000 })).await;
        let ids: Vec<_> = claimed.expect(200)["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| json!({ "id": event["id"] }))
            .collect();
        if !ids.is_empty() {
            scene.post("/events/complete", json!({ "worker_id": "w", "events": ids })).await.expect(200);
        }
        if depth["ready"] == 0 && ids.is_empty() {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{depth}");
    }
    assert!(scene.queue.health().await.is_good());
    scene.close().await;
}
