//! Slow senders and readers are cut off, and what they hold is freed.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::StreamBody;
use tidegate::NewEvent;
use tidegate_server::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::scene::{PATIENCE, Scene};

async fn impatient() -> Scene {
    let mut options = Options::default();
    options.limits.head_time = Duration::from_millis(300);
    options.limits.body_time = Duration::from_millis(300);
    Scene::sqlite_with(options).await
}

/// What the server sends before it closes the connection.
async fn until_closed(stream: &mut TcpStream) -> String {
    let mut said = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await;
    read.expect("the server keeps the connection").ok();
    String::from_utf8_lossy(&said).into_owned()
}

/// Sends a start and then one piece after the other without end; returns what the server sends before it closes the
/// connection.
async fn trickle(scene: &Scene, start: &str, piece: &'static [u8]) -> String {
    let mut stream = TcpStream::connect(scene.address()).await.unwrap();
    stream.write_all(start.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let sending = tokio::spawn(async move {
        while writer.write_all(piece).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let mut said = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, reader.read_to_end(&mut said)).await;
    assert!(closed.is_ok(), "the server keeps the connection");
    sending.abort();
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_trickles_in_is_cut_off() {
    let scene = impatient().await;
    let started = Instant::now();
    trickle(&scene, "GET /livez HTTP/1.1\r\nhost: localhost\r\nx-slow: ", b"a").await;
    assert!(started.elapsed() >= Duration::from_millis(250));
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
    let head = "POST /events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let said = trickle(&scene, head, b"1\r\n \r\n").await;
    assert!(said.starts_with("HTTP/1.1 408"), "{said}");
    assert!(said.contains("request_timeout"), "{said}");
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stops_halfway_is_cut_off() {
    let scene = impatient().await;
    let mut stream = TcpStream::connect(scene.address()).await.unwrap();
    let head =
        "POST /events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let said = until_closed(&mut stream).await;
    assert!(said.starts_with("HTTP/1.1 408"), "{said}");
    scene.close().await;
}

/// The only connection that the server allows is held by a caller that sends requests and never reads an answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_does_not_read_is_cut_off() {
    let mut options = Options::default();
    options.limits.write_time = Duration::from_millis(300);
    options.limits.connections = 1;
    let scene = Scene::sqlite_with(options).await;
    let event = NewEvent::new("t", format!("\"{}\"", "x".repeat(900 << 10)));
    let id = scene.queue.publish(event).await.unwrap().id;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut stream = socket.connect(scene.address().parse().unwrap()).await.unwrap();
    let requests = format!("GET /events/{id} HTTP/1.1\r\nhost: localhost\r\n\r\n").repeat(30);
    stream.write_all(requests.as_bytes()).await.unwrap();
    let other = tokio::time::timeout(PATIENCE, scene.get("/livez")).await;
    other.expect("the slow reader keeps its connection").expect(200);
    drop(stream);
    scene.close().await;
}

/// A reader that is slow but keeps reading gets the whole answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_reads_in_pieces_gets_its_answer() {
    let mut options = Options::default();
    options.limits.write_time = Duration::from_secs(2);
    let scene = Scene::sqlite_with(options).await;
    let event = NewEvent::new("t", format!("\"{}\"", "x".repeat(900 << 10)));
    let id = scene.queue.publish(event).await.unwrap().id;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut stream = socket.connect(scene.address().parse().unwrap()).await.unwrap();
    let request = format!("GET /events/{id} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut read, mut piece) = (0, vec![0; 64 << 10]);
    loop {
        match tokio::time::timeout(PATIENCE, stream.read(&mut piece)).await.unwrap().unwrap() {
            0 => break,
            bytes => read += bytes,
        }
        tokio::task::yield_now().await;
    }
    assert!(read > 900 << 10, "{read}");
    scene.close().await;
}

/// Bodies that are almost complete use up the limit of all bodies: batches are refused, single events are not.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_all_requests_together_are_bounded() {
    let mut options = Options::default();
    options.limits.bodies_bytes = 1 << 20;
    let scene = Scene::sqlite_with(options).await;
    let payload = "x".repeat(600 << 10);
    let batch = format!(r#"{{"events":[{{"title":"t","tags":"a","payload":"{payload}"}}]}}"#);
    let head = format!(
        "POST /events/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        batch.len()
    );
    let hold = async || {
        let mut held = TcpStream::connect(scene.address()).await.unwrap();
        held.write_all(head.as_bytes()).await.unwrap();
        held.write_all(&batch.as_bytes()[..batch.len() - 1]).await.unwrap();
        // Gives the server time to read what was sent.
        for _ in 0..100 {
            scene.get("/livez").await.expect(200);
        }
        held
    };
    let mut held = hold().await;
    let started = Instant::now();
    // Either body may get the bytes. Once the incomplete one has them, every other batch is refused.
    let mut refused = 0;
    while refused < 3 {
        let answer = scene.post_text("/events/batch", batch.clone()).await;
        if answer.status.as_u16() == 503 {
            answer.refused(503, "busy");
            assert!(answer.headers.contains_key("retry-after"));
            refused += 1;
        }
        if held.try_read(&mut [0; 1]).is_ok() {
            (held, refused) = (hold().await, 0);
        }
        assert!(started.elapsed() < PATIENCE, "bodies are not bounded");
    }
    scene.publish("single").await;
    // With its last byte the request is answered, and its bytes are free again.
    held.write_all(&batch.as_bytes()[batch.len() - 1..]).await.unwrap();
    let mut status = [0; 12];
    tokio::time::timeout(PATIENCE, held.read_exact(&mut status)).await.unwrap().unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    scene.post_text("/events/batch", batch.clone()).await.expect(200);
    // A caller that hangs up frees them too.
    let gone = hold().await;
    drop(gone);
    let started = Instant::now();
    while scene.post_text("/events/batch", batch.clone()).await.status.as_u16() != 200 {
        assert!(started.elapsed() < PATIENCE, "the bytes of a caller that hung up stay taken");
    }
    scene.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_its_exact_limit_is_read_and_one_byte_more_is_not() {
    let mut options = Options::default();
    options.limits.payload_bytes = 1 << 10;
    options.limits.batch_bytes = 4 << 10;
    let scene = Scene::sqlite_with(options).await;
    let single = (1 << 10) + (128 << 10);
    let padded = |text: &str, length: usize| format!("{text}{}", " ".repeat(length - text.len()));
    let event = r#"{"title":"t","tags":"a"}"#;
    let batch = format!(r#"{{"events":[{event}]}}"#);
    for (path, text, limit, status) in [("/events", event, single, 201), ("/events/batch", &batch, 4 << 10, 200)] {
        scene.post_text(path, padded(text, limit)).await.expect(status);
        scene.post_text(path, padded(text, limit + 1)).await.refused(413, "payload_too_large");
        // The same without a content length.
        let pieces = |length: usize| {
            let text = padded(text, length).into_bytes();
            let (first, rest) = text.split_at(length / 2);
            let piece = |bytes: &[u8]| Ok::<_, std::io::Error>(Frame::data(Bytes::copy_from_slice(bytes)));
            reqwest::Body::wrap(StreamBody::new(futures_util::stream::iter([piece(first), piece(rest)])))
        };
        scene.post_text(path, pieces(limit)).await.expect(status);
        scene.post_text(path, pieces(limit + 1)).await.refused(413, "payload_too_large");
    }
    assert_eq!(scene.get("/events").await.expect(200)["total"], 4);
    scene.close().await;
}
