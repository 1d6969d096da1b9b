//! Receivers that mean harm, or are broken, over HTTP/2.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate_dispatch::webhook::client::Client;
use tidegate_dispatch::webhook::outcome::{BodyEnd, FailureClass, Outcome};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::server::TlsStream;

use crate::receiver::{Authority, NAME, Names, Receiver, Recorder, client, hasty, public, until_empty};

const MUCH: usize = 32 << 20;
const SOON: Duration = Duration::from_secs(5);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// `:status: 200`, by the static table.
const STATUS_200: &[u8] = &[0x88];
const END_HEADERS: u8 = 4;

/// A receiver of HTTP/2 that writes a beginning once it got a request, and then the same again and again.
async fn receiver(authority: &Authority, first: Vec<u8>, again: Vec<u8>, written: Arc<AtomicUsize>) -> Receiver {
    let tls = authority.tls(NAME, &[b"h2"], |_| {});
    Receiver::new(move |stream| {
        let (tls, first, again, written) = (tls.clone(), first.clone(), again.clone(), Arc::clone(&written));
        async move {
            let Ok(mut stream) = tls.accept(stream).await else { return };
            until_request(&mut stream).await;
            let again = if again.is_empty() { again } else { again.repeat(1 + 8_192 / again.len()) };
            let mut next = &first;
            while stream.write_all(next).await.is_ok() && stream.flush().await.is_ok() {
                written.fetch_add(next.len(), Ordering::SeqCst);
                if again.is_empty() {
                    break;
                }
                next = &again;
            }
            // Until the client ends it.
            while stream.read(&mut [0; 4_096]).await.is_ok_and(|read| read > 0) {}
        }
    })
    .await
}

/// Reads until there was a frame of headers.
async fn until_request(stream: &mut TlsStream<tokio::net::TcpStream>) {
    let mut preface = [0; 24];
    let _ = stream.read_exact(&mut preface).await;
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return;
        }
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        if stream.read_exact(&mut payload).await.is_err() || head[3] == HEADERS {
            return;
        }
    }
}

fn to(receiver: &Receiver, authority: &Authority) -> (Client, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::to(receiver.address));
    (client(public(&recorder, Names::public(), authority.roots.clone())), recorder)
}

#[tokio::test]
async fn floods() {
    let settings = frame(SETTINGS, 0, 0, &[]);
    let with = |more: Vec<u8>| [settings.clone(), more].concat();
    let headers = || frame(HEADERS, END_HEADERS, 1, STATUS_200);
    // A header that is written out, without a place in the table.
    let header = [&[0, 1, b'x', 100][..], &[b'y'; 100]].concat();
    let authority = Authority::new();
    for (what, first, again, may_answer) in [
        ("settings", with(vec![]), settings.clone(), false),
        ("pings", with(vec![]), frame(PING, 0, 0, &[7; 8]), false),
        ("answers to no ping", with(vec![]), frame(PING, 1, 0, &[7; 8]), false),
        ("window updates", with(vec![]), frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), false),
        ("resets of streams", with(vec![]), frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]), false),
        ("empty data", with(headers()), frame(DATA, 0, 1, &[]), true),
        ("data", with(headers()), frame(DATA, 0, 1, &[b'x'; 10_000]), true),
        ("padded data", with(headers()), frame(DATA, 8, 1, &[&[200][..], &[0; 200]].concat()), true),
        ("continuations", with(frame(HEADERS, 0, 1, STATUS_200)), frame(CONTINUATION, 0, 1, &header), false),
        ("empty continuations", with(frame(HEADERS, 0, 1, STATUS_200)), frame(CONTINUATION, 0, 1, &[]), false),
        (
            "informational answers",
            with(vec![]),
            frame(HEADERS, END_HEADERS, 1, &[&[0x08, 3][..], b"103"].concat()),
            false,
        ),
        ("promises", with(vec![]), frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2, 0x82]), false),
        ("unknown frames", with(vec![]), frame(0x7f, 0, 0, &[0; 1_000]), false),
        ("priorities", with(vec![]), frame(2, 0, 1, &[0, 0, 0, 0, 1]), false),
    ] {
        let written = Arc::new(AtomicUsize::new(0));
        let receiver = receiver(&authority, first, again, Arc::clone(&written)).await;
        let (client, _) = to(&receiver, &authority);
        let started = Instant::now();
        match client.deliver(&hasty(&format!("https://{NAME}/"))).await {
            Outcome::Answered(answer) => {
                assert!(may_answer, "{what}: {answer:?}");
                assert!(matches!(answer.body_end, BodyEnd::Long | BodyEnd::Broken), "{what}: {answer:?}");
            }
            Outcome::Failed(failure) => {
                assert!(!may_answer, "{what}: {failure}");
                assert_ne!(failure.class, FailureClass::Refused, "{what}: {failure}");
            }
        }
        assert!(started.elapsed() < SOON, "{what}: {:?}", started.elapsed());
        until_empty(&client).await;
        assert!(written.load(Ordering::SeqCst) < MUCH, "{what}: {written:?}");
    }
}

#[tokio::test]
async fn answers_that_are_wrong() {
    let settings = frame(SETTINGS, 0, 0, &[]);
    let with = |more: &[u8]| [&settings[..], more].concat();
    let authority = Authority::new();
    let many: Vec<u8> =
        (0..200).flat_map(|number: u8| [0, 2, b'a' + number / 26, b'a' + number % 26, 1, b'y']).collect();
    for (what, answer) in [
        ("nothing", vec![]),
        ("HTTP/1.1", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec()),
        ("a frame that is too long", with(&[0xff, 0xff, 0xff, HEADERS, 4, 0, 0, 0, 1])),
        ("headers that are none", with(&frame(HEADERS, END_HEADERS, 1, &[0xff; 20]))),
        ("no status", with(&frame(HEADERS, 5, 1, &[]))),
        ("a status that is none", with(&frame(HEADERS, 5, 1, &[&[0x08, 3][..], b"abc"].concat()))),
        ("too many headers", with(&frame(HEADERS, 5, 1, &[STATUS_200, &many].concat()))),
        ("a stream that is not open", with(&frame(HEADERS, 5, 9, STATUS_200))),
        ("data before headers", with(&frame(DATA, 1, 1, b"x"))),
        ("a reset", with(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 2]))),
        ("a refused stream", with(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 7]))),
        ("the end", with(&frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 0]))),
        ("the end after the first", with(&frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 11]))),
        ("a window that overflows", with(&frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]))),
        ("settings that are wrong", frame(SETTINGS, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff])),
        ("no streams at all", frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 0])),
    ] {
        let receiver = receiver(&authority, answer, vec![], Arc::default()).await;
        let (client, recorder) = to(&receiver, &authority);
        let started = Instant::now();
        let failure = crate::receiver::failure(&client, &hasty(&format!("https://{NAME}/"))).await;
        assert_ne!(failure.class, FailureClass::Refused, "{what}: {failure}");
        assert!(started.elapsed() < SOON, "{what}: {:?}", started.elapsed());
        assert!(recorder.dialled().len() <= 3, "{what}: {:?}", recorder.dialled());
        until_empty(&client).await;
    }
}

/// What a receiver says as it ends a connection is not repeated at any length: nothing could be recorded.
#[tokio::test]
async fn a_long_farewell() {
    let authority = Authority::new();
    for byte in [b'x', b'"', 0, 0xff] {
        // The longest frame that is taken.
        let farewell = [&[0, 0, 0, 0, 0, 0, 0, 11][..], &[byte; 16_376]].concat();
        let answer = [frame(SETTINGS, 0, 0, &[]), frame(GOAWAY, 0, 0, &farewell)].concat();
        let receiver = receiver(&authority, answer, vec![], Arc::default()).await;
        let (client, _) = to(&receiver, &authority);
        let failure = crate::receiver::failure(&client, &hasty(&format!("https://{NAME}/"))).await;
        assert!(failure.message.contains("before an answer came"), "{failure}");
        assert!(failure.message.len() <= 1_000, "{} bytes", failure.message.len());
        assert!(!failure.message.contains(char::is_control), "{failure}");
        until_empty(&client).await;
    }
}

/// After the announcement of its end a connection is not used for the next webhook.
#[tokio::test]
async fn a_connection_that_says_that_it_ends() {
    let authority = Authority::new();
    let answer =
        [frame(SETTINGS, 0, 0, &[]), frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]), frame(HEADERS, 5, 1, STATUS_200)]
            .concat();
    let receiver = receiver(&authority, answer, vec![], Arc::default()).await;
    let (client, recorder) = to(&receiver, &authority);
    for number in 1..=4 {
        let answer = crate::receiver::answer(&client, &hasty(&format!("https://{NAME}/"))).await;
        assert_eq!((answer.status, answer.body_end), (200, BodyEnd::Whole));
        until_empty(&client).await;
        assert_eq!(recorder.dialled().len(), number);
    }
}
