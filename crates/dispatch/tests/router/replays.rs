//! Replays, test events, and what receivers ask for in their answers.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use tidegate::{Timestamp, Tsid};
use tidegate_dispatch::{DispatchMode, Gateway, Match, Replay, Replayed, RetryStrategy, TEST_EVENT};

use crate::receiver::Receiver;
use crate::scene::{Log, Node, Scene, on_both, receiver, until};

on_both!(
    a_replay_delivers_stored_events_in_order_under_new_ids,
    a_replay_that_is_repeated_makes_what_is_missing,
    two_nodes_replay_the_same_at_once,
    what_came_during_a_pause_is_replayed_once,
    a_large_replay_goes_on_where_it_stopped,
    a_test_event_goes_to_one_subscription,
    a_receiver_that_may_asks_for_another_attempt,
);

fn always() -> Replay {
    Replay::new(Timestamp::UNIX_EPOCH, Timestamp::now() + Duration::from_secs(60))
}

fn named(name: &str) -> Replay {
    // A fixed range, so that the name alone tells replays apart.
    let to = "2100-01-01T00:00:00Z".parse().unwrap();
    Replay { name: name.into(), ..Replay::new(Timestamp::UNIX_EPOCH, to) }
}

async fn replay(node: &Node, id: Tsid, replay: &Replay) -> Replayed {
    node.gateway.replay(id, None, replay).await.unwrap()
}

async fn until_taken(log: &Log, count: usize) {
    until(|| async { log.taken().len() >= count }).await;
}

fn webhook_ids(log: &Log) -> BTreeSet<String> {
    log.taken().iter().map(|taken| taken.headers["webhook-id"].to_str().unwrap().to_owned()).collect()
}

async fn a_replay_delivers_stored_events_in_order_under_new_ids(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    let mut events = Vec::new();
    for number in 1..=5 {
        events.push(node.publish(number, Some("g")).await.id);
    }
    let ordered = |body: &mut tidegate_dispatch::SubscriptionBody| body.mode = DispatchMode::BlockOnError;
    let (late, _) = node.subscribe("late", &receiver, ordered).await;
    let (other, _) = node
        .subscribe("other", &receiver, |body| {
            body.bindings[0].code = "another".parse().unwrap();
        })
        .await;
    let done = replay(&node, late.id, &always()).await;
    assert_eq!(done, Replayed { made: 5, repeated: 0, examined: 5, next: None });
    node.until_all_are(&events, "COMPLETED").await;
    assert_eq!(log.bodies(), ["1", "2", "3", "4", "5"], "in the order of their acceptance");
    assert_eq!(replay(&node, other.id, &always()).await.made, 0, "it does not ask for them");
    // The event shows its job, under the id that the webhook had.
    let shown = node.gateway.event(events[0], None).await.unwrap();
    assert_eq!(shown.jobs.len(), 1);
    assert_eq!(log.taken()[0].headers["webhook-id"], shown.jobs[0].id.to_string().as_str());
    assert_eq!(log.taken()[0].headers["ce-id"], events[0].to_string().as_str(), "the event is the same");
    // Another replay is another job.
    replay(&node, late.id, &named("again")).await;
    until_taken(&log, 10).await;
    assert_eq!(webhook_ids(&log).len(), 10);
    node.until_all_are(&events, "COMPLETED").await;
    assert_eq!(node.gateway.event(events[0], None).await.unwrap().jobs.len(), 2);
    // Nothing of a range without events.
    let before = Replay::new(Timestamp::UNIX_EPOCH, "2000-01-01T00:00:00Z".parse().unwrap());
    assert_eq!(replay(&node, late.id, &before).await, Replayed::default());
    node.stop().await;
}

async fn a_replay_that_is_repeated_makes_what_is_missing(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    for number in 0..3 {
        node.publish(number, None).await;
    }
    let (subscription, _) = node.subscribe("s", &receiver, |_| {}).await;
    assert_eq!(replay(&node, subscription.id, &named("r")).await.made, 3);
    until_taken(&log, 3).await;
    let again = replay(&node, subscription.id, &named("r")).await;
    assert_eq!((again.made, again.repeated), (0, 3));
    let later = node.publish(3, None).await;
    node.until_all_are(&[later.id], "COMPLETED").await;
    assert_eq!(replay(&node, subscription.id, &named("r")).await.made, 1, "what came since");
    let missing = Replay { missing_only: true, ..named("another") };
    assert_eq!(replay(&node, subscription.id, &missing).await.made, 0, "there is a job of each");
    until_taken(&log, 5).await;
    assert_eq!(webhook_ids(&log).len(), 5);
    node.stop().await;
}

/// Two nodes at once, one of which is stopped half-way: each event is delivered once.
async fn two_nodes_replay_the_same_at_once(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let (first, second) = (scene.node().await, scene.node().await);
    for number in 0..60 {
        first.publish(number, None).await;
    }
    let (subscription, _) = first.subscribe("s", &receiver, |_| {}).await;
    let hung_up = {
        let gateway = std::sync::Arc::clone(&second.gateway);
        tokio::spawn(async move { gateway.replay(subscription.id, None, &named("r")).await })
    };
    let one = async { replay(&first, subscription.id, &named("r")).await };
    let other = async { replay(&second, subscription.id, &named("r")).await };
    let ((), one, other) = tokio::join!(async { hung_up.abort() }, one, other);
    assert!(one.made + other.made <= 60, "{one:?} {other:?}");
    assert_eq!(one.made + one.repeated, 60);
    assert_eq!(other.made + other.repeated, 60);
    until_taken(&log, 60).await;
    let bodies: BTreeSet<String> = log.bodies().into_iter().collect();
    assert_eq!((bodies.len(), log.taken().len()), (60, 60));
    first.stop().await;
    second.stop().await;
}

async fn what_came_during_a_pause_is_replayed_once(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    let (subscription, _) = node.subscribe("s", &receiver, |_| {}).await;
    assert!(Gateway::missed(&subscription).is_none(), "it was never paused");
    let before = node.publish(1, None).await;
    node.until_all_are(&[before.id], "COMPLETED").await;
    node.pause(&subscription).await;
    node.publish(2, None).await;
    // A change while it is paused does not move the beginning of the pause.
    let mut body = subscription.body.clone();
    body.name = "another".into();
    node.gateway.change_subscription(subscription.id, None, Match::Any, &body).await.unwrap();
    node.publish(3, None).await;
    let (resumed, _) = node.gateway.resume_subscription(subscription.id, None, Match::Any).await.unwrap();
    let after = node.publish(4, None).await;
    node.until_all_are(&[after.id], "COMPLETED").await;
    let missed = Gateway::missed(&resumed).unwrap();
    assert_eq!(replay(&node, subscription.id, &missed).await.made, 2, "1 and 4 have their jobs");
    until_taken(&log, 4).await;
    // Asked for again, also once it was changed.
    let changed = node.gateway.change_subscription(subscription.id, None, Match::Any, &body).await.unwrap();
    let again = Gateway::missed(&changed).unwrap();
    assert_eq!((again.from, again.to), (missed.from, missed.to));
    assert_eq!(replay(&node, subscription.id, &again).await.made, 0);
    let mut bodies = log.bodies();
    bodies.sort();
    assert_eq!(bodies, ["1", "2", "3", "4"]);
    node.stop().await;
}

/// More events than one call looks at.
async fn a_large_replay_goes_on_where_it_stopped(scene: Scene) {
    const EVENTS: usize = 10_500;
    let (receiver, _) = receiver(|_, _| 200).await;
    let maker = scene.gateway_alone().await;
    maker.publish_many(EVENTS).await;
    let node = scene.node().await;
    let (subscription, _) = node.subscribe("s", &receiver, |_| {}).await;
    node.pause(&subscription).await;
    let (mut done, mut calls, mut this) = (Replayed::default(), 0, named("r"));
    loop {
        let call = replay(&node, subscription.id, &this).await;
        assert!(call.examined <= 11_000, "a call is bounded");
        (done.made, done.examined, calls) = (done.made + call.made, done.examined + call.examined, calls + 1);
        match call.next {
            Some(next) => this.after = Some(next),
            None => break,
        }
    }
    assert_eq!((done.made, done.examined), (EVENTS, EVENTS));
    assert!(calls > 1);
    maker.close().await;
    node.stop().await;
}

async fn a_test_event_goes_to_one_subscription(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 204).await;
    let node = scene.node().await;
    let (subscription, _) = node.subscribe("s", &receiver, |_| {}).await;
    node.subscribe("other", &receiver, |body| body.bindings[0].code = TEST_EVENT.parse().unwrap()).await;
    let sent = node.gateway.test_subscription(subscription.id, None, Duration::from_secs(60)).await.unwrap();
    let record = sent.attempt.unwrap().record.unwrap();
    assert_eq!((record.status.as_str(), record.response_code), ("SUCCESS", Some(204)));
    let taken = log.taken();
    assert_eq!(taken.len(), 1, "whatever others ask for");
    assert_eq!(taken[0].headers["ce-type"], TEST_EVENT);
    assert_eq!(taken[0].headers["webhook-id"], sent.job.unwrap().to_string().as_str());
    node.pause(&subscription).await;
    let held = node.gateway.test_subscription(subscription.id, None, Duration::ZERO).await.unwrap_err();
    assert!(held.to_string().contains("paused"), "{held}");
    node.stop().await;
}

/// Receivers that answer 2xx with a body.
async fn a_receiver_that_may_asks_for_another_attempt(scene: Scene) {
    let log = Log::default();
    let known = log.clone();
    let receiver = Receiver::http(None, move |taken| {
        let number: usize = String::from_utf8_lossy(&taken.body).parse().unwrap_or_default();
        let before = known.add(taken);
        let body = match (number, before) {
            (1, 0) => r#"{"ack": false, "delaySeconds": 0}"#.to_owned(),
            (2, _) => r#"{"ack": fal"#.to_owned(),
            (3, _) => format!(r#"{{"ack": false, "why": "{}"}}"#, "x".repeat(200_000)),
            _ => r#"{"ack": true}"#.to_owned(),
        };
        async move { Response::builder().status(200).body(Full::new(Bytes::from(body))).unwrap() }
    })
    .await;
    let node = scene.node().await;
    let soon = Some(RetryStrategy::Fixed { delay_seconds: 0 });
    let (asks, _) = node
        .subscribe("asks", &receiver, |body| {
            (body.ack_in_body, body.retry_strategy) = (true, soon);
        })
        .await;
    let first = node.publish(1, None).await;
    node.until_all_are(&[first.id], "COMPLETED").await;
    assert_eq!(log.taken().len(), 2, "it asked for another attempt");
    for number in [2, 3] {
        let event = node.publish(number, None).await;
        node.until_all_are(&[event.id], "COMPLETED").await;
    }
    assert_eq!(log.taken().len(), 4, "what is not such JSON, or too long, acknowledges");
    // One that did not opt in is not asked.
    let mut body = asks.body.clone();
    body.ack_in_body = false;
    node.gateway.change_subscription(asks.id, None, Match::Any, &body).await.unwrap();
    log.clear();
    let last = node.publish(1, None).await;
    node.until_all_are(&[last.id], "COMPLETED").await;
    assert_eq!(log.taken().len(), 1);
    node.stop().await;
}
