//! Receivers that mean harm, or are broken, over HTTP/1.1: what they cost is bounded, and the next webhook is delivered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};
use tidegate_dispatch::webhook::client::{ClientOptions, Request, Timeouts};
use tidegate_dispatch::webhook::connect::Dial;
use tidegate_dispatch::webhook::outcome::{BodyEnd, FailureClass, KEPT_BODY, Outcome};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::interval;

use crate::receiver::{
    Authority, LONG, NAME, Names, Receiver, Recorder, client, failure, hasty, local, public, read_request, request,
    until_empty,
};

/// More than the client and the buffers of two sockets take.
const MUCH: usize = 32 << 20;
/// The longest that a hasty request takes, on a slow machine too.
const SOON: Duration = Duration::from_secs(5);

/// Writes a beginning and then the same again and again, until the connection ends; says how much.
async fn endless(mut stream: TcpStream, first: &[u8], again: &[u8], written: &AtomicUsize) {
    read_request(&mut stream).await;
    let again = again.repeat(1 + 8_192 / again.len());
    let mut next = first;
    while stream.write_all(next).await.is_ok() {
        written.fetch_add(next.len(), Ordering::SeqCst);
        next = &again;
    }
}

#[tokio::test]
async fn endless_answers() {
    const OK: &str = "HTTP/1.1 200 OK\r\n";
    for (what, first, again, expected) in [
        ("headers", OK, "x-header: value\r\n", Err(FailureClass::InvalidAnswer)),
        ("a header", "HTTP/1.1 200 OK\r\nx-header: ", "x", Err(FailureClass::InvalidAnswer)),
        ("a name of a header", OK, "x", Err(FailureClass::InvalidAnswer)),
        ("a status line", "HTTP/1.1 200 ", "x", Err(FailureClass::InvalidAnswer)),
        ("empty lines", "\r\n", "\r\n", Err(FailureClass::InvalidAnswer)),
        (
            "informational answers",
            "",
            "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n",
            Err(FailureClass::InvalidAnswer),
        ),
        ("a body until the end", "HTTP/1.1 200 OK\r\n\r\n", "x", Ok(BodyEnd::Long)),
        ("a long body", "HTTP/1.1 200 OK\r\ncontent-length: 9999999999999\r\n\r\n", "x", Ok(BodyEnd::Long)),
        ("chunks", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "1\r\nx\r\n", Ok(BodyEnd::Long)),
        ("a chunk", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffff\r\n", "x", Ok(BodyEnd::Long)),
        ("an extension", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;", "x", Ok(BodyEnd::Broken)),
        ("trailers", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", "x: y\r\n", Ok(BodyEnd::Broken)),
    ] {
        let written = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&written);
        let receiver = Receiver::new(move |stream| {
            let count = Arc::clone(&count);
            async move { endless(stream, first.as_bytes(), again.as_bytes(), &count).await }
        })
        .await;
        let client = client(local());
        // With time enough, even on a slow machine: bytes are what bounds it.
        match (client.deliver(&request(&receiver.url())).await, expected) {
            (Outcome::Failed(failure), Err(class)) => assert_eq!(failure.class, class, "{what}: {failure}"),
            (Outcome::Answered(answer), Ok(end)) => {
                assert_eq!((answer.status, answer.body_end), (200, end), "{what}");
                assert!(answer.body.len() <= KEPT_BODY, "{what}");
            }
            (outcome, _) => panic!("{what}: {outcome:?}"),
        }
        until_empty(&client).await;
        assert!(written.load(Ordering::SeqCst) < MUCH, "{what}: {written:?}");
    }
}

#[tokio::test]
async fn what_is_not_http() {
    let mut answers: Vec<Vec<u8>> = [
        "",
        "\r\n\r\n",
        "hello",
        "hello\r\n\r\n",
        "SSH-2.0-OpenSSH_9.6\r\n",
        "<html></html>",
        "HTTP/0.9 200 OK\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/9.9 200 OK\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "http/1.1 200 OK\r\n\r\n",
        "HTTP/1.1\r\n\r\n",
        "HTTP/1.1 \r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        "HTTP/1.1 20\r\n\r\n",
        "HTTP/1.1 -200 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 200 O\0K\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx\r\n\r\n",
        "HTTP/1.1 200 OK\r\n: y\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx : y\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nx: a\r\n folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\u{e9}: y\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1, 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        "\x15\x03\x01\x00\x02\x02\x28",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into();
    let mut random = StdRng::seed_from_u64(7);
    for length in 1..60 {
        let mut bytes = vec![0; length];
        random.fill_bytes(&mut bytes);
        answers.push(bytes);
    }
    let client = client(local());
    for answer in &answers {
        let own = answer.clone();
        let receiver = Receiver::new(move |mut stream| {
            let own = own.clone();
            async move {
                read_request(&mut stream).await;
                let _ = stream.write_all(&own).await;
            }
        })
        .await;
        let shown = String::from_utf8_lossy(answer);
        let failure = failure(&client, &request(&receiver.url())).await;
        assert!(
            matches!(failure.class, FailureClass::InvalidAnswer | FailureClass::Connection),
            "{shown:?}: {failure}"
        );
        until_empty(&client).await;
    }
}

/// What is wrong only behind the head: the status counts, and the connection is not used again.
#[tokio::test]
async fn bodies_that_are_wrong() {
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for body in ["", "x", "x\r\n", "-1\r\nx", "ffffffffffffffffff\r\nx", "1\r\nxy\r\n0\r\n\r\n", "1\r\nx", "0\r\n"] {
        let receiver = Receiver::new(move |mut stream| async move {
            read_request(&mut stream).await;
            let _ = stream.write_all(format!("{CHUNKED}{body}").as_bytes()).await;
        })
        .await;
        let client = client(local());
        let answer = crate::receiver::answer(&client, &request(&receiver.url())).await;
        assert_eq!((answer.status, answer.body_end), (200, BodyEnd::Broken), "{body:?}");
        until_empty(&client).await;
    }
    // What follows an answer is the answer to nothing.
    let receiver = Receiver::new(move |mut stream| async move {
        read_request(&mut stream).await;
        let two = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\naHTTP/1.1 500 No\r\ncontent-length: 1\r\n\r\nb";
        let _ = stream.write_all(two.as_bytes()).await;
        read_request(&mut stream).await;
    })
    .await;
    let client = client(local());
    for _ in 0..3 {
        match client.deliver(&request(&receiver.url())).await {
            Outcome::Answered(answer) => assert_eq!((answer.status, &*answer.body), (200, "a")),
            Outcome::Failed(failure) => assert_eq!(failure.class, FailureClass::Connection, "{failure}"),
        }
    }
}

/// A receiver that ends the connection, or resets it, after each number of bytes of its answer.
#[tokio::test]
async fn an_end_after_each_byte() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 12\r\n\r\n";
    const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 12\r\n\r\nit was taken";
    let client = client(local());
    for is_reset in [false, true] {
        for length in 0..=ANSWER.len() {
            let receiver = Receiver::new(move |mut stream| async move {
                read_request(&mut stream).await;
                let _ = stream.write_all(&ANSWER.as_bytes()[..length]).await;
                if is_reset {
                    stream.set_zero_linger().unwrap();
                }
            })
            .await;
            let what = format!("{length} bytes, reset {is_reset}");
            let started = Instant::now();
            match client.deliver(&request(&receiver.url())).await {
                Outcome::Answered(answer) => {
                    assert!(length >= HEAD.len(), "{what}: {answer:?}");
                    let is_whole = length == ANSWER.len();
                    assert_eq!(answer.status, 200);
                    match answer.body_end {
                        BodyEnd::Whole => assert!(is_whole, "{what}"),
                        BodyEnd::Broken => assert!(!is_whole || is_reset, "{what}"),
                        BodyEnd::Long => panic!("{what}"),
                    }
                    assert!(ANSWER.ends_with(&answer.body) || !is_whole, "{what}: {answer:?}");
                }
                // A reset takes with it what was not read yet.
                Outcome::Failed(failure) => {
                    assert!(length < HEAD.len() || is_reset, "{what}: {failure}");
                    let classes = [FailureClass::Connection, FailureClass::InvalidAnswer];
                    assert!(classes.contains(&failure.class), "{what}: {failure}");
                }
            }
            assert!(started.elapsed() < SOON, "{what}");
            until_empty(&client).await;
        }
    }
}

/// A receiver that says what it says a byte at a time, and would take minutes.
#[tokio::test]
async fn slow_answers_are_not_waited_for() {
    for (first, is_answer) in [("", false), ("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n", true)] {
        let receiver = Receiver::new(move |mut stream| async move {
            read_request(&mut stream).await;
            let _ = stream.write_all(first.as_bytes()).await;
            let mut ticks = interval(Duration::from_millis(100));
            for byte in "HTTP/1.1 200 OK\r\n".bytes().chain(std::iter::repeat(b'x')) {
                ticks.tick().await;
                if stream.write_all(&[byte]).await.is_err() {
                    return;
                }
            }
        })
        .await;
        let client = client(local());
        let started = Instant::now();
        match client.deliver(&hasty(&receiver.url())).await {
            Outcome::Answered(answer) => {
                assert!(is_answer);
                assert_eq!((answer.status, answer.body_end), (200, BodyEnd::Broken));
                assert!(answer.body.starts_with("HTTP"), "{answer:?}");
            }
            Outcome::Failed(failure) => {
                assert!(!is_answer);
                assert_eq!(failure.class, FailureClass::Timeout);
                assert!(failure.message.contains("did not answer within"), "{failure}");
            }
        }
        assert!(started.elapsed() < SOON);
        until_empty(&client).await;
    }
}

#[tokio::test]
async fn silence_is_not_waited_for() {
    let silent = Receiver::new(|stream| async move {
        let _stream = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let recorder = Arc::new(Recorder { silent: vec!["127.0.0.2".parse().unwrap()], ..Recorder::to(silent.address) });
    let client = client(ClientOptions { dial: Arc::clone(&recorder) as Arc<dyn Dial>, ..local() });
    let port = silent.address.port();
    for (url, message) in [
        (silent.url(), "did not answer within"),
        (format!("https://127.0.0.1:{port}/"), "TLS handshake"),
        (format!("http://127.0.0.2:{port}/"), "took too long"),
    ] {
        let started = Instant::now();
        let failure = failure(&client, &hasty(&url)).await;
        assert_eq!(failure.class, FailureClass::Timeout, "{url}: {failure}");
        assert!(failure.message.contains(message), "{url}: {failure}");
        assert!(started.elapsed() < SOON);
        until_empty(&client).await;
    }
}

/// A receiver that never reads: the body does not fit into the buffers.
#[tokio::test]
async fn a_receiver_that_does_not_read() {
    let deaf = Receiver::new(|stream| async move {
        let _stream = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let client = client(local());
    let request = Request { body: vec![b'x'; MUCH].into(), ..hasty(&deaf.url()) };
    assert_eq!(failure(&client, &request).await.class, FailureClass::Timeout);
    until_empty(&client).await;
}

/// What hangs in the look-up is not waited for either.
#[tokio::test]
async fn a_name_that_hangs() {
    struct Hanging;
    impl tidegate_dispatch::webhook::connect::Resolve for Hanging {
        fn resolve(
            &self,
            _: String,
        ) -> futures_util::future::BoxFuture<
            'static,
            Result<Vec<std::net::IpAddr>, tidegate_dispatch::webhook::connect::ResolveError>,
        > {
            Box::pin(std::future::pending())
        }
    }
    let client = client(ClientOptions { resolver: Arc::new(Hanging), ..local() });
    let failure = failure(&client, &hasty("https://hangs.example/")).await;
    assert_eq!(failure.class, FailureClass::Timeout);
    assert!(failure.message.contains("looking up hangs.example"), "{failure}");
}

#[tokio::test]
async fn certificates_that_are_not_right() {
    let (authority, other) = (Authority::new(), Authority::new());
    let past = rcgen::date_time_ymd(2001, 1, 1)..rcgen::date_time_ymd(2002, 1, 1);
    let future = rcgen::date_time_ymd(2998, 1, 1)..rcgen::date_time_ymd(2999, 1, 1);
    for (what, tls, roots) in [
        ("for another name", authority.tls("other.example", &[], |_| {}), &authority.roots),
        ("for a name below", authority.tls(&format!("x.{NAME}"), &[], |_| {}), &authority.roots),
        ("of an unknown authority", authority.tls(NAME, &[], |_| {}), &other.roots),
        (
            "expired",
            authority.tls(NAME, &[], |params| (params.not_before, params.not_after) = (past.start, past.end)),
            &authority.roots,
        ),
        (
            "not valid yet",
            authority.tls(NAME, &[], |params| (params.not_before, params.not_after) = (future.start, future.end)),
            &authority.roots,
        ),
    ] {
        let receiver = Receiver::http(Some(tls), |_| async { panic!("nothing is sent") }).await;
        let recorder = Arc::new(Recorder::to(receiver.address));
        let client = client(public(&recorder, Names::public(), roots.clone()));
        let failure = failure(&client, &request(&format!("https://{NAME}/"))).await;
        assert_eq!(failure.class, FailureClass::Connection, "{what}: {failure}");
        assert!(failure.message.contains("certificate"), "{what}: {failure}");
        until_empty(&client).await;
    }
}

/// One bad target does not hold up another.
#[tokio::test]
async fn others_are_delivered_meanwhile() {
    let silent = Receiver::new(|stream| async move {
        let _stream = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let good = Receiver::http(None, |_| async { http::Response::new(Default::default()) }).await;
    let client = client(ClientOptions { at_once: 8, ..local() });
    let timeouts = Timeouts { connect: LONG, first_byte: LONG, total: LONG };
    let stuck = Request { timeouts, ..request(&silent.url()) };
    let stuck = futures_util::future::join_all((0..100).map(|_| client.deliver(&stuck)));
    let healthy = async {
        for _ in 0..200 {
            crate::receiver::answer(&client, &request(&good.url())).await;
        }
    };
    tokio::select! {
        _ = stuck => panic!("the silent receiver answered"),
        () = healthy => {}
    }
}
