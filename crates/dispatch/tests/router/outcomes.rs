//! What comes of attempts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Response;
use http_body_util::Full;
use tidegate::{ChangeResource, PutResource};
use tidegate_dispatch::webhook::connect::{Checked, Dial, Tcp};
use tidegate_dispatch::webhook::signature::{SignedHeaders, TOLERANCE, VerifyingSecret, verify};
use tidegate_dispatch::{DispatchMode, Match, RetryStrategy, SubscriptionStatus};
use tokio::net::TcpStream;

use crate::receiver::Receiver;
use crate::scene::{Scene, on_both, receiver, until};

on_both!(
    an_event_is_delivered_signed_and_recorded,
    a_failed_attempt_is_repeated_under_the_same_id,
    what_is_permanent_or_exhausted_fails,
    an_answer_of_control_characters_is_recorded,
    what_a_node_lacks_counts_for_nobody,
    a_receiver_that_is_gone_pauses_its_subscription,
    a_paused_subscription_holds_its_jobs_and_a_deleted_one_cancels_them,
    jobs_of_a_subscription_that_cannot_be_read_wait,
    what_was_made_before_a_router_started_is_delivered,
);

fn at_once() -> Option<RetryStrategy> {
    Some(RetryStrategy::Fixed { delay_seconds: 0 })
}

async fn an_event_is_delivered_signed_and_recorded(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 202).await;
    let node = scene.node().await;
    let (_, secret) = node.subscribe("data", &receiver, |_| {}).await;
    let event = node.publish(7, None).await;
    node.until_all_are(&[event.id], "COMPLETED").await;
    let taken = log.taken().remove(0);
    let header = |name: &str| taken.headers[name].to_str().unwrap().to_owned();
    assert_eq!((taken.head.as_str(), &taken.body[..]), ("POST /hook HTTP/1.1", &b"7"[..]));
    assert_eq!(header("content-type"), "application/json");
    assert_eq!(header("ce-id"), event.id.to_string());
    assert_eq!((header("ce-type"), header("ce-source")), ("t".to_owned(), "/s".to_owned()));
    assert_eq!(header("webhook-id"), event.jobs[0].id.to_string());
    let (id, timestamp, signature) = (header("webhook-id"), header("webhook-timestamp"), header("webhook-signature"));
    let signed = SignedHeaders { id: &id, timestamp: &timestamp, signature: &signature };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let secret: VerifyingSecret = secret.shown().parse().unwrap();
    verify(std::slice::from_ref(&secret), signed, &taken.body, now, TOLERANCE).unwrap();
    assert!(verify(&[secret], signed, b"8", now, TOLERANCE).is_err());
    let attempts = node.attempts(event.id).await;
    assert_eq!(attempts.len(), 1);
    let (number, record) = (attempts[0].0.attempt, &attempts[0].1);
    assert_eq!((number, &record["status"], &record["responseCode"]), (1, &"SUCCESS".into(), &202.into()));
    assert_eq!((&record["responseBody"], &record["targetUrl"]), (&"answered 202".into(), &receiver.url().into()));
    node.stop().await;
}

async fn a_failed_attempt_is_repeated_under_the_same_id(scene: Scene) {
    let (receiver, log) = receiver(|_, before| if before < 2 { 500 } else { 200 }).await;
    let node = scene.node().await;
    node.subscribe("s", &receiver, |body| (body.retry_strategy, body.data_only) = (at_once(), false)).await;
    let event = node.publish(7, None).await;
    node.until_all_are(&[event.id], "COMPLETED").await;
    let taken = log.taken();
    assert_eq!(taken.len(), 3);
    assert!(taken.iter().all(|one| one.headers["webhook-id"] == event.jobs[0].id.to_string().as_str()));
    assert!(taken.iter().all(|one| one.body == taken[0].body));
    let whole: serde_json::Value = serde_json::from_slice(&taken[0].body).unwrap();
    assert_eq!((&whole["type"], &whole["data"]), (&"t".into(), &7.into()));
    assert_eq!(taken[0].headers["content-type"], "application/cloudevents+json");
    let attempts = node.attempts(event.id).await;
    let told: Vec<_> = attempts.iter().map(|(one, record)| (one.attempt, record["status"].as_str().unwrap())).collect();
    assert_eq!(told, [(1, "SERVER_ERROR"), (2, "SERVER_ERROR"), (3, "SUCCESS")]);
    assert_eq!(attempts[0].1["errorType"], "TRANSIENT");
    node.stop().await;
}

async fn what_is_permanent_or_exhausted_fails(scene: Scene) {
    let (receiver, log) = receiver(|taken, _| if &taken.body[..] == b"1" { 404 } else { 503 }).await;
    let node = scene.node().await;
    node.subscribe("s", &receiver, |body| (body.retry_strategy, body.max_retries) = (at_once(), 2)).await;
    let permanent = node.publish(1, None).await;
    node.until_all_are(&[permanent.id], "ERROR").await;
    assert_eq!(log.taken().len(), 1);
    let exhausted = node.publish(2, None).await;
    node.until_all_are(&[exhausted.id], "ERROR").await;
    assert_eq!(log.taken().len(), 4, "maxRetries come after the first attempt");
    assert_eq!(node.attempts(permanent.id).await[0].1["errorType"], "PERMANENT");
    node.stop().await;
}

async fn a_receiver_that_is_gone_pauses_its_subscription(scene: Scene) {
    let (receiver, _) = receiver(|_, _| 410).await;
    let node = scene.node().await;
    let (subscription, _) = node.subscribe("s", &receiver, |_| {}).await;
    let event = node.publish(1, None).await;
    node.until_all_are(&[event.id], "ERROR").await;
    until(|| async {
        node.gateway.subscription(subscription.id, None).await.unwrap().status == SubscriptionStatus::Paused
    })
    .await;
    node.stop().await;
}

async fn a_paused_subscription_holds_its_jobs_and_a_deleted_one_cancels_them(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    // A second of delay: made before the pause, due after it.
    let (held, _) = node.subscribe("held", &receiver, |body| body.delay_seconds = 1).await;
    let first = node.publish(1, None).await;
    node.pause(&held).await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!((log.taken().len(), node.statuses(first.id).await), (0, vec!["QUEUED"]));
    node.gateway.resume_subscription(held.id, None, Match::Any).await.unwrap();
    node.until_all_are(&[first.id], "COMPLETED").await;
    let second = node.publish(2, None).await;
    node.gateway.delete_subscription(held.id, None, Match::Any).await.unwrap();
    node.until_all_are(&[second.id], "CANCELLED").await;
    assert_eq!(log.bodies(), ["1"]);
    node.stop().await;
}

/// As JSON they take six times their place, more than a record may have.
async fn an_answer_of_control_characters_is_recorded(scene: Scene) {
    let answer = || Response::builder().status(200).body(Full::new(Bytes::from(vec![1_u8; 4_096]))).unwrap();
    let receiver = Receiver::http(None, move |_| async move { answer() }).await;
    let node = scene.node().await;
    node.subscribe("data", &receiver, |_| {}).await;
    let event = node.publish(1, None).await;
    node.until_all_are(&[event.id], "COMPLETED").await;
    let (_, record) = node.attempts(event.id).await.remove(0);
    let body = record["responseBody"].as_str().unwrap();
    assert!(body.len() >= 1_024 && body.bytes().all(|byte| byte == 1), "{}", body.len());
    node.stop().await;
}

/// Has no socket left for the first connections.
struct Short {
    left: AtomicUsize,
    dial: Tcp,
}

impl Dial for Short {
    fn dial(&self, to: Checked) -> BoxFuture<'static, io::Result<TcpStream>> {
        let fails = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        match fails {
            true => Box::pin(async { Err(io::Error::from_raw_os_error(24)) }),
            false => self.dial.dial(to),
        }
    }
}

/// More of them than a breaker takes, and at jobs that have one attempt each. Those of a group keep their order.
async fn what_a_node_lacks_counts_for_nobody(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let short = Arc::new(Short { left: AtomicUsize::new(15), dial: Tcp });
    let node = scene.node_dialling(Arc::clone(&short) as Arc<dyn Dial>).await;
    node.subscribe("s", &receiver, |body| (body.max_retries, body.mode) = (0, DispatchMode::BlockOnError)).await;
    let mut events = Vec::new();
    for number in 0..12 {
        let group = if number < 3 { "g".to_owned() } else { number.to_string() };
        events.push(node.publish(number, Some(&group)).await.id);
    }
    node.until_all_are(&events, "COMPLETED").await;
    assert_eq!(short.left.load(Ordering::SeqCst), 0);
    for event in &events {
        let attempts = node.attempts(*event).await;
        assert_eq!(attempts.len(), 1);
        assert_eq!((attempts[0].0.attempt, &attempts[0].1["status"]), (1, &"SUCCESS".into()));
    }
    let bodies = log.bodies();
    let grouped: Vec<_> = bodies.iter().map(String::as_str).filter(|body| matches!(*body, "0" | "1" | "2")).collect();
    assert_eq!((bodies.len(), grouped), (12, vec!["0", "1", "2"]));
    node.stop().await;
}

/// A newer program may have written it: what was accepted is not cancelled for that.
async fn jobs_of_a_subscription_that_cannot_be_read_wait(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    let (held, _) = node.subscribe("held", &receiver, |body| body.delay_seconds = 1).await;
    node.subscribe("later", &receiver, |body| body.delay_seconds = 2).await;
    let event = node.publish(1, None).await;
    let stored = node.queue.resources().get("subscription", held.id).await.unwrap().unwrap();
    let write = async |body: String| {
        let put = PutResource::Change { id: held.id, kind: "subscription".into(), expected: None, body };
        node.queue.resources().change(vec![ChangeResource::Put(put)]).await.unwrap();
    };
    write(r#"{"said":"what this program does not know"}"#.into()).await;
    until(|| async { node.statuses(event.id).await == ["QUEUED", "COMPLETED"] }).await;
    assert_eq!(log.taken().len(), 1);
    write(stored.body).await;
    node.until_all_are(&[event.id], "COMPLETED").await;
    node.stop().await;
}

async fn what_was_made_before_a_router_started_is_delivered(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    node.subscribe("s", &receiver, |_| {}).await;
    node.stop().await;
    let maker = scene.gateway_alone().await;
    let later = maker.publish(1).await;
    maker.close().await;
    let node = scene.node().await;
    node.until_all_are(&[later], "COMPLETED").await;
    assert_eq!(log.bodies(), ["1"]);
    node.stop().await;
}
