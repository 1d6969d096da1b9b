//! What is sent, what is read of the answer, and which connections are used for it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::Full;
use tidegate_dispatch::webhook::client::{ClientOptions, Request, Timeouts};
use tidegate_dispatch::webhook::connect::{Checked, Dial, Resolve, ResolveError, SystemResolver};
use tidegate_dispatch::webhook::credentials::Credentials;
use tidegate_dispatch::webhook::outcome::{BodyEnd, FailureClass, KEPT_BODY, NotAcknowledged};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::receiver::{
    Authority, BODY, LONG, NAME, Names, PUBLIC, Receiver, Recorder, Taken, answer, client, failure, hasty, local,
    public, read_request, request, until_empty,
};

const HTTP2: &[&[u8]] = &[b"h2", b"http/1.1"];

fn with_body(body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::new(Full::new(body.into()))
}

fn recorded(recorder: &Arc<Recorder>) -> ClientOptions {
    ClientOptions { dial: Arc::clone(recorder) as Arc<dyn Dial>, ..local() }
}

type Seen = Arc<Mutex<Vec<Taken>>>;

/// What was taken is kept, and answered with 200.
async fn keeping(tls: Option<tokio_rustls::TlsAcceptor>) -> (Receiver, Seen) {
    let seen = Seen::default();
    let own = Arc::clone(&seen);
    let receiver = Receiver::http(tls, move |taken| {
        own.lock().unwrap().push(taken);
        async { with_body("taken") }
    });
    (receiver.await, seen)
}

#[tokio::test]
async fn kept_alive() {
    let (receiver, seen) = keeping(None).await;
    let recorder = Arc::new(Recorder::to(receiver.address));
    let client = client(recorded(&recorder));
    for _ in 0..20 {
        let answer = answer(&client, &request(&receiver.url())).await;
        assert_eq!((answer.status, &*answer.body, answer.body_end), (200, "taken", BodyEnd::Whole));
    }
    assert_eq!((recorder.dialled().len(), seen.lock().unwrap().len()), (1, 20));
    let holds = client.holds();
    assert_eq!((holds.targets, holds.connections, holds.idle), (1, 1, 1));
}

/// The same in a process whose environment names a proxy.
#[test]
fn proxies_of_the_environment_are_not_used() {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "exchange::kept_alive", "exchange::http2_is_shared"]);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        program.env(name, "http://127.0.0.1:1");
    }
    let output = program.env_remove("NO_PROXY").env_remove("no_proxy").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("2 passed"), "{said}");
}

#[tokio::test]
async fn what_is_sent_is_what_was_asked_for() {
    for is_http2 in [false, true] {
        let authority = Authority::new();
        let protocols = if is_http2 { HTTP2 } else { &[] };
        let (receiver, seen) = keeping(Some(authority.tls(NAME, protocols, |_| {}))).await;
        let recorder = Arc::new(Recorder::to(receiver.address));
        let client = client(public(&recorder, Names::public(), authority.roots.clone()));
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("webhook-id", "job_1"),
            ("content-type", "application/json"),
            ("host", "other.example"),
            ("connection", "close, webhook-id"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("keep-alive", "timeout=1"),
            ("proxy-connection", "close"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers.extend([Credentials::basic("Aladdin", "open sesame").unwrap().header()]);
        let url = format!("https://{NAME}/a%20b/../c;d?e=f&g");
        answer(&client, &Request { headers, ..request(&url) }).await;
        let seen = seen.lock().unwrap();
        let [taken] = &seen[..] else { panic!("{seen:?}") };
        let mut names: Vec<_> = taken.headers.keys().map(|name| name.as_str().to_owned()).collect();
        names.sort();
        let mut expected = vec!["authorization", "content-length", "content-type", "user-agent", "webhook-id"];
        if is_http2 {
            assert_eq!(taken.head, format!("POST https://{NAME}/c;d?e=f&g HTTP/2.0"));
        } else {
            expected.insert(3, "host");
            assert_eq!(taken.head, "POST /c;d?e=f&g HTTP/1.1");
            assert_eq!(taken.headers["host"], NAME);
        }
        assert_eq!(names, expected);
        assert_eq!(taken.headers["authorization"], "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(taken.headers["content-length"], BODY.len().to_string());
        assert_eq!(taken.body, BODY);
        assert_eq!(recorder.dialled(), [SocketAddr::from((PUBLIC, 443))]);
    }
}

#[tokio::test]
async fn http2_is_shared() {
    let authority = Authority::new();
    let (receiver, seen) = keeping(Some(authority.tls(NAME, HTTP2, |_| {}))).await;
    let recorder = Arc::new(Recorder::to(receiver.address));
    let client = client(public(&recorder, Names::public(), authority.roots.clone()));
    let request = request(&format!("https://{NAME}:8443/"));
    answer(&client, &request).await;
    let answers = join_all((0..60).map(|_| answer(&client, &request))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_eq!((recorder.dialled().len(), seen.lock().unwrap().len()), (1, 61));
    let holds = client.holds();
    assert_eq!((holds.connections, holds.idle), (1, 1));
}

#[tokio::test]
async fn requests_to_a_target_are_bounded_and_so_are_its_connections() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let gate = Arc::new(Semaphore::new(0));
    let (counted, peak, opened) = (Arc::clone(&now), Arc::clone(&most), Arc::clone(&gate));
    let receiver = Receiver::http(None, move |_| {
        let (now, most, gate) = (Arc::clone(&counted), Arc::clone(&peak), Arc::clone(&opened));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            gate.acquire().await.unwrap().forget();
            now.fetch_sub(1, Ordering::SeqCst);
            with_body("")
        }
    })
    .await;
    let recorder = Arc::new(Recorder::to(receiver.address));
    let client = client(ClientOptions { at_once: 4, idle: 2, ..recorded(&recorder) });
    let wanted = request(&receiver.url());
    let all = join_all((0..40).map(|_| answer(&client, &wanted)));
    let rest = async {
        while now.load(Ordering::SeqCst) < 4 {
            tokio::task::yield_now().await;
        }
        // No place becomes free for one that is in a hurry.
        let late = failure(&client, &hasty(&receiver.url())).await;
        gate.add_permits(40);
        late
    };
    let (answers, late) = timeout(LONG, async { tokio::join!(all, rest) }).await.unwrap();
    assert_eq!((answers.len(), most.load(Ordering::SeqCst)), (40, 4));
    assert_eq!(late.class, FailureClass::Local, "its target did nothing wrong: {late}");
    assert!(late.message.contains("deliver from more nodes"), "{late}");
    assert!(client.holds().idle <= 2, "{:?}", client.holds());
}

/// What one sender has under way holds up no other one at the same target: pools alone limit it.
#[tokio::test]
async fn many_slow_webhooks_hold_up_no_others() {
    let gate = Arc::new(Semaphore::new(0));
    let (opened, arrived) = (Arc::clone(&gate), Arc::new(AtomicUsize::new(0)));
    let came = Arc::clone(&arrived);
    let receiver = Receiver::http(None, move |taken| {
        let gate = Arc::clone(&opened);
        came.fetch_add(1, Ordering::SeqCst);
        async move {
            if taken.headers.contains_key("slow") {
                gate.acquire().await.unwrap().forget();
            }
            with_body("")
        }
    })
    .await;
    let client = client(local());
    let mut slow = request(&receiver.url());
    slow.headers.insert("slow", HeaderValue::from_static("1"));
    let many = join_all((0..300).map(|_| answer(&client, &slow)));
    let other = async {
        while arrived.load(Ordering::SeqCst) < 300 {
            tokio::task::yield_now().await;
        }
        answer(&client, &request(&receiver.url())).await;
        gate.add_permits(300);
    };
    timeout(LONG, async { tokio::join!(many, other) }).await.unwrap();
}

/// Fails in one way.
struct Failing(i32);

impl Dial for Failing {
    fn dial(&self, _: Checked) -> BoxFuture<'static, io::Result<TcpStream>> {
        let error = io::Error::from_raw_os_error(self.0);
        Box::pin(async move { Err(error) })
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn what_this_node_lacks_is_not_the_targets_fault() {
    const EADDRNOTAVAIL: i32 = 99;
    for (code, url, class, says) in [
        (24, "http://127.0.0.1:1/", FailureClass::Local, "LimitNOFILE"),
        (23, "http://127.0.0.1:1/", FailureClass::Local, "fs.file-max"),
        (105, "http://127.0.0.1:1/", FailureClass::Local, "tcp_mem"),
        (12, "http://[::1]:1/", FailureClass::Local, "tcp_mem"),
        (EADDRNOTAVAIL, "http://127.0.0.1:1/", FailureClass::Local, "ip_local_port_range"),
        // A machine without IPv6 says so: it would wait forever.
        (EADDRNOTAVAIL, "http://[::1]:1/", FailureClass::Connection, "no connection to"),
        (111, "http://127.0.0.1:1/", FailureClass::Connection, "no connection to"),
        (101, "http://127.0.0.1:1/", FailureClass::Connection, "no connection to"),
    ] {
        let client = client(ClientOptions { dial: Arc::new(Failing(code)), ..local() });
        let failure = failure(&client, &request(url)).await;
        assert_eq!(failure.class, class, "{code}: {failure}");
        assert!(failure.message.contains(says), "{code}: {failure}");
        until_empty(&client).await;
    }
}

/// One address refuses; the other one may have answered, had there been a socket.
#[tokio::test]
async fn what_this_node_lacked_for_one_address_counts() {
    struct Half;
    impl Dial for Half {
        fn dial(&self, to: Checked) -> BoxFuture<'static, io::Result<TcpStream>> {
            let code = if to.address().ip().to_string() == "8.8.8.8" { 24 } else { 111 };
            Box::pin(async move { Err(io::Error::from_raw_os_error(code)) })
        }
    }
    let names = Names::default().with(NAME, &[&["8.8.8.8", "9.9.9.9"]]);
    let options = public(&Arc::default(), names, Authority::new().roots);
    let client = client(ClientOptions { dial: Arc::new(Half), ..options });
    let failure = failure(&client, &request(&format!("https://{NAME}/"))).await;
    assert_eq!(failure.class, FailureClass::Local, "{failure}");
}

/// Names that begin with `hangs` are never answered, those that begin with `late` after a second.
struct Partly;
impl Resolve for Partly {
    fn resolve(&self, name: String) -> BoxFuture<'static, Result<Vec<IpAddr>, ResolveError>> {
        Box::pin(async move {
            if name.starts_with("hangs") {
                std::future::pending::<()>().await;
            }
            if name.starts_with("late") {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Ok(vec![PUBLIC.into()])
        })
    }
}

/// Names under a name server that says nothing: their look-ups have few places, and whoever waits for one is not to blame.
#[tokio::test(start_paused = true)]
async fn names_that_hang_wait_for_each_other_only() {
    let recorder = Arc::new(Recorder::default());
    let options =
        ClientOptions { resolver: Arc::new(Partly), ..public(&recorder, Names::default(), Authority::new().roots) };
    let client = client(options);
    let known = request("https://known.example/");
    assert_eq!(failure(&client, &known).await.class, FailureClass::Connection);
    let hanging = |number: usize, wait: u64| {
        let client = &client;
        async move {
            tokio::time::sleep(Duration::from_secs(wait)).await;
            let timeouts = Timeouts { connect: Duration::from_secs(10), ..request("https://a.example/").timeouts };
            failure(client, &Request { timeouts, ..request(&format!("https://hangs{number}.example/")) }).await.class
        }
    };
    let hanging = join_all((0..192).map(|number| hanging(number, u64::from(number >= 64))));
    let other = async {
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let asked = tokio::time::Instant::now();
            assert_eq!(failure(&client, &known).await.class, FailureClass::Connection);
            assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        }
    };
    let (classes, ()) = tokio::join!(hanging, other);
    let count = |class| classes.iter().filter(|one| **one == class).count();
    // Of two times 64 nobody answered; to the rest nobody listened.
    assert_eq!((count(FailureClass::Timeout), count(FailureClass::Local)), (128, 64));
    assert_eq!(recorder.dialled().len(), 9);
}

/// A look-up that waits for others takes more than its webhook may, and the webhook is sent.
#[tokio::test(start_paused = true)]
async fn what_a_look_up_waits_for_is_not_the_targets_time() {
    let recorder = Arc::new(Recorder::default());
    let options = public(&recorder, Names::default(), Authority::new().roots);
    let client = client(ClientOptions { resolver: Arc::new(Partly), ..options });
    let hanging = join_all((0..64).map(|number| {
        let client = &client;
        async move { failure(client, &request(&format!("https://hangs{number}.example/"))).await.class }
    }));
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let short = Duration::from_secs(2);
        let timeouts = Timeouts { connect: short, first_byte: short, total: short };
        let failure = failure(&client, &Request { timeouts, ..request("https://late.example/") }).await;
        assert_eq!(failure.class, FailureClass::Connection, "{failure}");
    };
    tokio::join!(hanging, late);
    assert_eq!(recorder.dialled().len(), 1);
}

#[tokio::test]
async fn idle_connections_are_closed_and_bounded_in_all() {
    let mut receivers = Vec::new();
    for _ in 0..6 {
        receivers.push(keeping(None).await.0);
    }
    let short = client(ClientOptions { idle_for: Duration::from_millis(50), ..local() });
    answer(&short, &request(&receivers[0].url())).await;
    until_empty(&short).await;
    let few = client(ClientOptions { idle_in_all: 3, ..local() });
    for receiver in &receivers {
        answer(&few, &request(&receiver.url())).await;
    }
    assert_eq!(few.holds().idle, 3);
}

/// A receiver closes a connection between two webhooks.
#[tokio::test]
async fn a_connection_that_was_closed_is_not_used_again() {
    let receiver = Receiver::new(|mut stream| async move {
        read_request(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    })
    .await;
    let recorder = Arc::new(Recorder::to(receiver.address));
    let client = client(recorded(&recorder));
    for _ in 0..5 {
        assert_eq!(answer(&client, &request(&receiver.url())).await.body, "ok");
        until_empty(&client).await;
    }
    assert_eq!(recorder.dialled().len(), 5);
}

/// Whether a receiver took a webhook that broke off is not known: the client does not send it again.
#[tokio::test]
async fn what_may_have_arrived_is_not_sent_again() {
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    let receiver = Receiver::new(move |mut stream| {
        let count = Arc::clone(&count);
        async move {
            read_request(&mut stream).await;
            count.fetch_add(1, Ordering::SeqCst);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            read_request(&mut stream).await;
            count.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    let recorder = Arc::new(Recorder::to(receiver.address));
    let client = client(recorded(&recorder));
    assert_eq!(answer(&client, &request(&receiver.url())).await.body, "ok");
    let failure = failure(&client, &request(&receiver.url())).await;
    assert_eq!(failure.class, FailureClass::Connection, "{failure}");
    assert_eq!((taken.load(Ordering::SeqCst), recorder.dialled().len()), (2, 1));
}

#[tokio::test]
async fn what_an_answer_asks_for() {
    let receiver = Receiver::http(None, |taken| async move {
        let (status, after) = match taken.head.contains("busy") {
            true => (429, "17"),
            false => (200, "Fri, 31 Dec 1999 23:59:59 GMT"),
        };
        let response = Response::builder().status(status).header("retry-after", after);
        response.body(Full::new("{\"ack\": false, \"delaySeconds\": 5}".into())).unwrap()
    })
    .await;
    let client = client(local());
    let busy = answer(&client, &request(&format!("{}?busy", receiver.url()))).await;
    assert_eq!((busy.status, busy.retry_after, busy.refused), (429, Some(Duration::from_secs(17)), None));
    let refused = answer(&client, &request(&receiver.url())).await;
    let expected = Some(NotAcknowledged { delay: Some(Duration::from_secs(5)) });
    assert_eq!((refused.status, refused.retry_after, refused.refused), (200, Some(Duration::ZERO), expected));
}

#[tokio::test]
async fn the_beginning_of_a_body_is_kept() {
    let receiver = Receiver::http(None, |taken| async move {
        let length = taken.head.split(['?', ' ']).nth(2).unwrap().parse().unwrap();
        with_body(vec![b'x'; length])
    })
    .await;
    let recorder = Arc::new(Recorder::to(receiver.address));
    let client = client(recorded(&recorder));
    // The connection is used again unless far more comes than is kept.
    for (length, kept, end, dialled) in [
        (0, 0, BodyEnd::Whole, 1),
        (KEPT_BODY, KEPT_BODY, BodyEnd::Whole, 1),
        (KEPT_BODY + 1, KEPT_BODY, BodyEnd::Long, 1),
        (50_000, KEPT_BODY, BodyEnd::Long, 1),
        (1_000_000, KEPT_BODY, BodyEnd::Long, 1),
        (1, 1, BodyEnd::Whole, 2),
    ] {
        let answer = answer(&client, &request(&format!("{}?{length}", receiver.url()))).await;
        assert_eq!((answer.body.len(), answer.body_end), (kept, end), "{length}");
        assert_eq!(recorder.dialled().len(), dialled, "{length}");
    }
}

/// It is neither asked for nor undone: what is kept is what came.
#[tokio::test]
async fn compressed_bodies_stay_compressed() {
    // 100 zeros.
    const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x0330\xa0=\x00\x00w`\xa4Sd\x00\x00\x00";
    let receiver = Receiver::http(None, |taken| async move {
        assert!(!taken.headers.contains_key("accept-encoding"));
        Response::builder().header("content-encoding", "gzip").body(Full::new(Bytes::from_static(GZIP))).unwrap()
    })
    .await;
    let answer = answer(&client(local()), &request(&receiver.url())).await;
    assert_eq!(answer.body, String::from_utf8_lossy(GZIP));
}

#[tokio::test]
async fn the_next_address_is_tried() {
    let authority = Authority::new();
    let (receiver, _) = keeping(Some(authority.tls(NAME, HTTP2, |_| {}))).await;
    let names = || Names::default().with(NAME, &[&["2606:4700::1", "8.8.8.8", "1.1.1.1", "9.9.9.9"]]);
    let recorder = Arc::new(Recorder {
        refusing: vec!["2606:4700::1".parse().unwrap()],
        silent: vec!["8.8.8.8".parse().unwrap()],
        ..Recorder::to(receiver.address)
    });
    let client = client(public(&recorder, names(), authority.roots.clone()));
    let timeouts = Timeouts { connect: Duration::from_millis(900), first_byte: LONG, total: LONG };
    let request = Request { timeouts, ..request(&format!("https://{NAME}/")) };
    assert_eq!(answer(&client, &request).await.status, 200);
    let dialled: Vec<String> = recorder.dialled().iter().map(|one| one.ip().to_string()).collect();
    assert_eq!(dialled, ["2606:4700::1", "8.8.8.8", "1.1.1.1"]);
}

#[tokio::test]
async fn many_addresses_are_not_all_tried() {
    let all: Vec<String> = (0..100).map(|last| format!("8.8.8.{last}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let recorder = Arc::new(Recorder::default());
    let client = client(public(&recorder, Names::default().with(NAME, &[&all]), Authority::new().roots));
    failure(&client, &request(&format!("https://{NAME}/"))).await;
    assert_eq!(recorder.dialled().len(), 8);
}

/// What is secret in a request is in no message and in no `Debug`.
#[tokio::test]
async fn messages_tell_no_secrets() {
    let receiver = Receiver::new(|mut stream| async move {
        read_request(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 no\r\n\r\n").await;
    })
    .await;
    let silent = Receiver::new(|stream| async move {
        let _stream = stream;
        std::future::pending::<()>().await;
    })
    .await;
    let client = client(local());
    let port = silent.address.port();
    for (url, class) in [
        (format!("{}/s3cret?token=s3cret", receiver.url()), FailureClass::InvalidAnswer),
        (format!("{}/s3cret?token=s3cret", silent.url()), FailureClass::Timeout),
        (format!("https://127.0.0.1:{port}/s3cret?s3cret"), FailureClass::Timeout),
        ("http://127.0.0.1:1/s3cret?token=s3cret".to_owned(), FailureClass::Connection),
        ("https://10.0.0.1/s3cret?token=s3cret".to_owned(), FailureClass::Refused),
        ("https://s3cret:s3cret@127.0.0.1/".to_owned(), FailureClass::Refused),
        ("http://8.8.8.8/s3cret".to_owned(), FailureClass::Refused),
        ("https://nowhere.example/s3cret".to_owned(), FailureClass::Connection),
    ] {
        let mut request = hasty(&url);
        request.headers.extend([Credentials::bearer("s3cret").unwrap().header()]);
        request.body = Bytes::from_static(b"s3cret{\"hello\": \"world\"}");
        let failure = failure(&client, &request).await;
        assert_eq!(failure.class, class, "{url}: {failure}");
        assert!(!failure.message.is_empty());
        assert!(!format!("{failure} {failure:?} {request:?} {client:?}").contains("s3cret"), "{url}: {failure}");
    }
}

/// A caller that does not wait any longer leaves nothing behind.
#[tokio::test]
async fn a_delivery_that_is_dropped_ends() {
    let arrived = Arc::new(Semaphore::new(0));
    let own = Arc::clone(&arrived);
    let receiver = Receiver::http(None, move |_| {
        own.add_permits(1);
        async {
            std::future::pending::<()>().await;
            with_body("")
        }
    })
    .await;
    let client = client(local());
    let wanted = request(&receiver.url());
    tokio::select! {
        outcome = client.deliver(&wanted) => panic!("{outcome:?}"),
        _ = arrived.acquire() => {}
    }
    until_empty(&client).await;
}

/// The system's resolver knows the hosts file. No other name is asked for here.
#[tokio::test]
async fn the_system_resolves_names() {
    let resolver = match SystemResolver::new() {
        Ok(resolver) => resolver,
        // A machine without a configuration.
        Err(error) => return assert!(matches!(error, ResolveError::Failed(_))),
    };
    let found = timeout(LONG, resolver.resolve("localhost".into())).await.unwrap().unwrap();
    assert!(!found.is_empty() && found.iter().all(std::net::IpAddr::is_loopback), "{found:?}");
}
