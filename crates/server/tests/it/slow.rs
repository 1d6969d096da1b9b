//! Senders that take their time are cut off.

use std::time::{Duration, Instant};

use tidegate_server::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::scene::{PATIENCE, Scene};

async fn impatient() -> Scene {
    let mut options = Options::default();
    options.limits.head_time = Duration::from_millis(300);
    options.limits.body_time = Duration::from_millis(300);
    Scene::sqlite_with(options).await
}

/// What the server says before it closes the connection.
async fn until_closed(stream: &mut TcpStream) -> String {
    let mut said = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await;
    read.expect("the server keeps the connection").ok();
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_trickles_in_is_cut_off() {
    let scene = impatient().await;
    let started = Instant::now();
    let mut stream = TcpStream::connect(scene.address()).await.unwrap();
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\nx-slow: ").await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let trickle = tokio::spawn(async move {
        while writer.write_all(b"a").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut said = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, reader.read_to_end(&mut said)).await;
    assert!(closed.is_ok(), "the server keeps the connection");
    assert!(started.elapsed() >= Duration::from_millis(250));
    trickle.abort();
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_says_nothing_is_cut_off() {
    let scene = impatient().await;
    let mut stream = TcpStream::connect(scene.address()).await.unwrap();
    until_closed(&mut stream).await;
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_never_ends_is_cut_off() {
    let scene = impatient().await;
    let mut stream = TcpStream::connect(scene.address()).await.unwrap();
    let head =
        "POST /events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let endless = tokio::spawn(async move {
        while writer.write_all(b"1\r\n \r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let mut said = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, reader.read_to_end(&mut said)).await;
    assert!(closed.is_ok(), "the server keeps the connection");
    let said = String::from_utf8_lossy(&said);
    assert!(said.starts_with("HTTP/1.1 408"), "{said}");
    assert!(said.contains("request_timeout"), "{said}");
    endless.abort();
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stops_halfway_is_cut_off() {
    let scene = impatient().await;
    let mut stream = TcpStream::connect(scene.address()).await.unwrap();
    let head = "POST /events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let said = until_closed(&mut stream).await;
    assert!(said.starts_with("HTTP/1.1 408"), "{said}");
    scene.close().await;
}
