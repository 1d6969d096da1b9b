//! Callers that go away leak nothing: no lease, no transaction, no connection.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::scene::{PATIENCE, Scene, on_both};

on_both!(
    a_caller_that_closes_its_sending_half_gets_its_answer,
    a_subscriber_that_hangs_up_holds_nothing,
    an_event_is_back_soon_after_its_subscriber_hung_up,
    aborted_requests_leave_nothing_behind
);

async fn subscribe_raw(scene: &Scene, tag: &str, worker: &str, wait: u32) -> TcpStream {
    let mut stream = TcpStream::connect(scene.address()).await.unwrap();
    let request = format!(
        "GET /events/subscribe?tags={tag}&worker_id={worker}&wait={wait} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn a_caller_that_closes_its_sending_half_gets_its_answer(scene: Scene) {
    let body = json!({ "title": "t", "tags": "half" }).to_string();
    let publish = format!(
        "POST /events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let show = "GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned();
    for (request, status) in [(publish, "HTTP/1.1 201"), (show, "HTTP/1.1 200")].iter().cycle().take(20) {
        let mut stream = TcpStream::connect(scene.address()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut said = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&said);
        assert!(said.starts_with(status), "{request:?}: {said:?}");
    }
    assert_eq!(scene.get("/events?tags=half").await.expect(200)["total"], 10);
    scene.close().await;
}

async fn a_subscriber_that_hangs_up_holds_nothing(scene: Scene) {
    for round in 0..10 {
        let tag = format!("h{round}");
        let gone = subscribe_raw(&scene, &tag, "gone", 30).await;
        // Some hang up before they wait, some while waiting.
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

/// The subscriber is known to be waiting when it hangs up, and the event is published right after.
async fn an_event_is_back_soon_after_its_subscriber_hung_up(scene: Scene) {
    for round in 0..12 {
        let (tag, worker) = (format!("b{round}"), format!("gone{round}"));
        let gone = subscribe_raw(&scene, &tag, &worker, 30).await;
        let started = Instant::now();
        loop {
            let workers = scene.get("/workers").await.expect(200);
            if workers["workers"].as_array().unwrap().iter().any(|one| one["worker_id"] == worker.as_str()) {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "{workers}");
        }
        drop(gone);
        let id = scene.publish(&tag).await;
        let started = Instant::now();
        let taken = scene.take(&tag, "here").await;
        assert_eq!((&taken["id"], &taken["attempts"]), (&json!(id), &json!(1)), "a hang-up counts no attempt");
        assert!(started.elapsed() < Duration::from_secs(1), "round {round}: {:?}", started.elapsed());
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
        let request = match n % 4 {
            0 => format!(
                "POST /events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ),
            1 => format!("GET /events/subscribe?tags=abort&worker_id=a{n}&wait=5 HTTP/1.1\r\nhost: localhost\r\n\r\n"),
            2 => {
                let body =
                    json!({ "tags": "abort", "worker_id": format!("c{n}"), "max": 3, "lease_seconds": 1 }).to_string();
                format!(
                    "POST /events/claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
            _ => "GET /events?limit=5 HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
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
    if let Some(url) = scene.postgres_address() {
        no_transaction_stays_open(url).await;
    }
    // The server still works, and every event that was left behind can be claimed.
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

/// Once all requests are over, no transaction may be idle or open for more than 2 seconds.
async fn no_transaction_stays_open(url: &str) {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
               AND (state LIKE 'idle in transaction%' OR xact_start < now() - interval '2 seconds')";
    let started = Instant::now();
    // The last requests may still be running: wait until none is found several times in a row.
    let mut quiet = 0;
    while quiet < 5 {
        let open: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
        quiet = if open == 0 { quiet + 1 } else { 0 };
        assert!(started.elapsed() < PATIENCE, "{open} transactions are open");
    }
    drop(client);
    driver.await.unwrap().unwrap();
}
