//! Whose secrets sign webhooks and whose credentials go with them, also while either is replaced, and what waits without them.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, Response};
use http_body_util::Full;
use standardwebhooks::Webhook;
use tidegate::{ChangeResource, DeleteResource, PutResource, Resource, ResourcesQuery};
use tidegate_core::cloud_event::Sent;
use tidegate_dispatch::secrets::{SecretKey, SecretOptions};
use tidegate_dispatch::webhook::outcome::KEPT_BODY;
use tidegate_dispatch::webhook::signature::{SignedHeaders, TOLERANCE, VerifyingSecret, verify};
use tidegate_dispatch::{
    AccountAuth, AccountBody, GatewayError, JobWhy, Match, NewFact, RetryStrategy, SecretText, SigningScheme,
    SubscriptionBody, TypeBinding,
};

use crate::receiver::{Receiver, Taken};
use crate::scene::{Node, Scene, on_both, receiver, until};
use crate::tasks::task;

on_both!(
    the_credentials_of_an_account_go_with_webhooks,
    a_changed_token_is_sent_with_the_next_attempt_on_every_node,
    what_a_receiver_repeats_of_secrets_is_not_recorded,
    while_secrets_are_replaced_all_of_them_sign,
    jobs_wait_for_an_account_that_is_gone,
    what_names_an_account_of_the_anchor_level_is_not_sent_in_its_name,
    tasks_of_an_account_wait_while_it_cannot_be_used,
    an_account_is_not_deleted_before_its_tasks_have_ended,
    jobs_wait_for_a_key_that_their_node_does_not_have,
    what_an_older_program_stored_is_delivered_and_encrypted,
    all_secrets_change_their_key_while_others_are_written,
    what_a_lost_key_encrypted_can_be_replaced,
    without_a_key_nothing_is_stored_where_others_share_the_database,
);

fn text(text: &str) -> SecretText {
    SecretText::new(text.to_owned())
}

fn bearer(token: Option<&str>) -> AccountBody {
    AccountBody { name: "n".into(), auth: AccountAuth::Bearer { token: token.map(text) } }
}

fn authorization(taken: &Taken) -> Option<String> {
    taken.headers.get("authorization").map(|value| value.to_str().unwrap().to_owned())
}

/// Whether the official library accepts a webhook by this secret.
fn accepts(taken: &Taken, secret: &SecretText) -> bool {
    let mut headers = HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        headers.insert(name, taken.headers[name].to_str().unwrap().parse().unwrap());
    }
    Webhook::new(secret.shown()).unwrap().verify(&taken.body, &headers).is_ok()
}

async fn the_credentials_of_an_account_go_with_webhooks(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    let basic = AccountAuth::Basic { username: "tide".into(), password: Some(text("g\u{e4}te")) };
    let basic = AccountBody { name: "n".into(), auth: basic };
    for (code, body) in [("bearer", &bearer(Some("t0ken"))), ("basic", &basic)] {
        let (account, _) = node.gateway.create_account(None, code, body).await.unwrap();
        node.subscribe(code, &receiver, |body| body.service_account = Some(account.id)).await;
    }
    node.subscribe("none", &receiver, |_| {}).await;
    let event = node.publish(1, None).await;
    node.until_all_are(&[event.id], "COMPLETED").await;
    let mut sent: Vec<_> = log.taken().iter().map(authorization).collect();
    sent.sort();
    let encoded = format!("Basic {}", STANDARD.encode("tide:g\u{e4}te"));
    assert_eq!(sent, [None, Some(encoded), Some("Bearer t0ken".into())]);
    node.stop().await;
}

async fn a_changed_token_is_sent_with_the_next_attempt_on_every_node(scene: Scene) {
    let (receiver, log) =
        receiver(|taken, _| if authorization(taken).is_some_and(|a| a.ends_with("new")) { 200 } else { 503 }).await;
    let (one, other) = (scene.node().await, scene.node().await);
    let (account, _) = one.gateway.create_account(None, "a", &bearer(Some("old"))).await.unwrap();
    one.subscribe("s", &receiver, |body| {
        body.service_account = Some(account.id);
        (body.max_retries, body.retry_strategy) = (100, Some(RetryStrategy::Fixed { delay_seconds: 0 }));
    })
    .await;
    let event = other.publish(1, None).await;
    until(|| async { !log.taken().is_empty() }).await;
    let renamed = AccountBody { name: "another".into(), ..bearer(None) };
    one.gateway.change_account(account.id, None, Match::Any, &renamed).await.unwrap();
    one.gateway.change_account(account.id, None, Match::Any, &bearer(Some("new"))).await.unwrap();
    let changed_at = log.taken().len();
    one.until_all_are(&[event.id], "COMPLETED").await;
    // One attempt may be under way on each node.
    let late =
        log.taken().iter().skip(changed_at + 2).filter(|taken| authorization(taken).unwrap() != "Bearer new").count();
    assert_eq!(late, 0, "{} before the change, {} in all", changed_at, log.taken().len());
    one.stop().await;
    other.stop().await;
}

/// Whole, decoded, and cut where the kept part of an answer ends.
async fn what_a_receiver_repeats_of_secrets_is_not_recorded(scene: Scene) {
    let receiver = Receiver::http(None, |taken| async move {
        let header = |name: &str| taken.headers[name].to_str().unwrap();
        let encoded = header("authorization").strip_prefix("Basic ").unwrap();
        let decoded = String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap();
        let start = format!("{encoded} {decoded} {} {} ", header("x-api-key"), header("x-tenant"));
        let padding = ".".repeat(KEPT_BODY - 6 - start.len());
        Response::new(Full::new(format!("{start}{padding}{}", header("x-api-key")).into()))
    })
    .await;
    let node = scene.node().await;
    let auth = AccountAuth::Basic { username: "tide".into(), password: Some(text("g\u{e4}te")) };
    let body = AccountBody { name: "n".into(), auth };
    let (account, _) = node.gateway.create_account(None, "a", &body).await.unwrap();
    let made = task("1", &receiver.url(), |rules| {
        rules.service_account_id = Some(account.id);
        let header = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        rules.headers = [("x-api-key", "k3y-0f-somebody"), ("x-tenant", "tenant-7")].map(header).into();
    });
    let made = node.gateway.create_task(made).await.unwrap();
    until(|| async { node.gateway.task(made.id).await.unwrap().unwrap().status == Some("COMPLETED") }).await;
    let (_, record) = node.attempts(made.id).await.remove(0);
    let kept = record["responseBody"].as_str().unwrap();
    assert!(kept.starts_with("*** *** *** tenant-7 ...") && kept.ends_with("...***"), "{kept}");
    node.stop().await;
}

async fn while_secrets_are_replaced_all_of_them_sign(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    let (subscription, first) = node.subscribe("s", &receiver, |_| {}).await;
    let deliver = async || {
        let event = node.publish(1, None).await;
        node.until_all_are(&[event.id], "COMPLETED").await;
        log.taken().pop().unwrap()
    };
    let rotate = async |scheme, seconds| {
        let overlap = Some(Duration::from_secs(seconds));
        node.gateway.rotate_subscription_secret(subscription.id, None, scheme, overlap).await.unwrap()
    };
    let second = rotate(None, 3_600).await.secret.unwrap();
    let taken = deliver().await;
    assert!(accepts(&taken, &first) && accepts(&taken, &second));
    let third = rotate(Some(SigningScheme::V1a), 3_600).await;
    let public: VerifyingSecret = third.public_key.unwrap().parse().unwrap();
    let taken = deliver().await;
    assert!(accepts(&taken, &first) && accepts(&taken, &second));
    let header = |name: &str| taken.headers[name].to_str().unwrap().to_owned();
    let (id, timestamp, signature) = (header("webhook-id"), header("webhook-timestamp"), header("webhook-signature"));
    let signed = SignedHeaders { id: &id, timestamp: &timestamp, signature: &signature };
    verify(&[public], signed, &taken.body, timestamp.parse().unwrap(), TOLERANCE).unwrap();
    let fourth = rotate(Some(SigningScheme::V1), 0).await.secret.unwrap();
    let taken = deliver().await;
    assert!(accepts(&taken, &fourth));
    assert!(!accepts(&taken, &first) && !accepts(&taken, &second), "their time is over");
    assert_eq!(taken.headers["webhook-signature"].to_str().unwrap().split(' ').count(), 1);
    node.stop().await;
}

/// Nothing was sent for a while, and no attempt was counted.
async fn waits(node: &Node, event: tidegate::Tsid, sent: impl Fn() -> usize) {
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!((sent(), node.statuses(event).await), (0, vec!["QUEUED"]));
    assert!(node.attempts(event).await.is_empty());
}

async fn jobs_wait_for_an_account_that_is_gone(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    let (account, _) = node.gateway.create_account(None, "a", &bearer(Some("t0ken"))).await.unwrap();
    let (subscription, _) = node.subscribe("s", &receiver, |body| body.service_account = Some(account.id)).await;
    let refused = node.gateway.delete_account(account.id, None, Match::Any).await.unwrap_err().to_string();
    assert!(refused.contains("the subscription s"), "{refused}");
    // As only somebody who changes the database by hand can.
    let delete = DeleteResource { id: account.id, kind: "service_account".into(), expected: None };
    node.queue.resources().change(vec![ChangeResource::Delete(delete)]).await.unwrap();
    let event = node.publish(1, None).await;
    waits(&node, event.id, || log.taken().len()).await;
    let mut body = subscription.body;
    body.service_account = None;
    node.gateway.change_subscription(subscription.id, None, Match::Any, &body).await.unwrap();
    node.until_all_are(&[event.id], "COMPLETED").await;
    node.stop().await;
}

/// A subscription of a client that an older program let name an account of the anchor level.
async fn what_names_an_account_of_the_anchor_level_is_not_sent_in_its_name(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    let client = node.gateway.create_client("c", "c").await.unwrap().id;
    let (anchor, _) = node.gateway.create_account(None, "a", &bearer(Some("t0ken"))).await.unwrap();
    let (own, _) = node.gateway.create_account(Some(client), "a", &bearer(Some("own"))).await.unwrap();
    let binding = TypeBinding { event_type: None, code: "t".parse().unwrap(), version: None };
    let mut body = SubscriptionBody::new("n".into(), vec![binding], receiver.url().parse().unwrap());
    body.service_account = Some(own.id);
    let (made, _) = node.gateway.create_subscription(Some(client), "s", &body).await.unwrap();
    let row = node.queue.resources().get("subscription", made.id).await.unwrap().unwrap();
    let body = row.body.replace(&own.id.to_string(), &anchor.id.to_string());
    assert_ne!(body, row.body);
    let put = PutResource::Change { id: made.id, kind: "subscription".into(), expected: None, body };
    node.queue.resources().change(vec![ChangeResource::Put(put)]).await.unwrap();
    let event = Sent::from_json(&r#"{"specVersion":"1.0","type":"t","source":"/s","data":1}"#.into()).unwrap().event;
    let event = node.gateway.ingest(NewFact { event, client: Some(client) }).await.unwrap().view;
    waits(&node, event.id, || log.taken().len()).await;
    let why = node.gateway.why_not_delivered(event.jobs[0].id, None).await.unwrap();
    assert!(matches!(why, JobWhy::NoCredentials { account: Some(of) } if of == anchor.id), "{why:?}");
    let own = SubscriptionBody { service_account: Some(own.id), ..made.body };
    node.gateway.change_subscription(made.id, None, Match::Any, &own).await.unwrap();
    node.until_all_are(&[event.id], "COMPLETED").await;
    assert_eq!(authorization(&log.taken()[0]).as_deref(), Some("Bearer own"));
    node.stop().await;
}

async fn tasks_of_an_account_wait_while_it_cannot_be_used(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let (old, new) = (SecretKey::random(), SecretKey::random());
    let maker = scene.node_with(keys(&old, &[])).await;
    let (account, _) = maker.gateway.create_account(None, "a", &bearer(Some("t0ken"))).await.unwrap();
    maker.stop().await;
    let node = scene.node_with(keys(&new, &[])).await;
    let named = |payload: &str| task(payload, &receiver.url(), |rules| rules.service_account_id = Some(account.id));
    let waiting = node.gateway.create_task(named("1")).await.unwrap();
    let plain = node.gateway.create_task(task("2", &receiver.url(), |_| {})).await.unwrap();
    // Those of others go on, to the same receiver and in the same pool.
    until(|| async { node.gateway.task(plain.id).await.unwrap().unwrap().status == Some("COMPLETED") }).await;
    // Further ones in the lane that is held, and several looks at the database.
    for payload in ["3", "4", "5"] {
        node.gateway.create_task(named(payload)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(log.bodies(), ["2"]);
    assert_eq!(node.gateway.task(waiting.id).await.unwrap().unwrap().status, Some("QUEUED"));
    assert!(node.attempts(waiting.id).await.is_empty(), "no attempt is counted");
    let other = scene.node_with(keys(&new, &[&old])).await;
    until(|| async { log.taken().len() == 5 }).await;
    let carried = log.taken().iter().filter(|taken| authorization(taken).as_deref() == Some("Bearer t0ken")).count();
    assert_eq!(carried, 4);
    node.stop().await;
    other.stop().await;
}

async fn an_account_is_not_deleted_before_its_tasks_have_ended(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    let (account, _) = node.gateway.create_account(None, "a", &bearer(Some("t0ken"))).await.unwrap();
    let (other, _) = node.gateway.create_account(None, "b", &bearer(Some("t0ken"))).await.unwrap();
    let in_two_seconds = Some(tidegate::Timestamp::now() + Duration::from_secs(2));
    let made = task("1", &receiver.url(), |rules| {
        (rules.service_account_id, rules.scheduled_for) = (Some(account.id), in_two_seconds);
    });
    let made = node.gateway.create_task(made).await.unwrap();
    let refused = node.gateway.delete_account(account.id, None, Match::Any).await.unwrap_err();
    assert!(matches!(&refused, GatewayError::Conflict(text) if text.contains("dispatch jobs")), "{refused}");
    node.gateway.delete_account(other.id, None, Match::Any).await.unwrap();
    until(|| async { node.gateway.task(made.id).await.unwrap().unwrap().status == Some("COMPLETED") }).await;
    assert_eq!(authorization(&log.taken()[0]).as_deref(), Some("Bearer t0ken"));
    node.gateway.delete_account(account.id, None, Match::Any).await.unwrap();
    node.stop().await;
}

fn keys(key: &SecretKey, old: &[&SecretKey]) -> SecretOptions {
    let old_keys = old.iter().map(|key| (*key).clone()).collect();
    SecretOptions { key: Some(key.clone()), key_file: None, old_keys }
}

async fn jobs_wait_for_a_key_that_their_node_does_not_have(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let (old, new) = (SecretKey::random(), SecretKey::random());
    let maker = scene.node_with(keys(&old, &[])).await;
    let (_, secret) = maker.subscribe("s", &receiver, |_| {}).await;
    maker.stop().await;
    let node = scene.node_with(keys(&new, &[])).await;
    let event = node.publish(1, None).await;
    waits(&node, event.id, || log.taken().len()).await;
    assert_eq!(node.gateway.missing_keys(), [old.id().clone()]);
    let uses = node.gateway.key_uses().await.unwrap();
    assert_eq!(uses.iter().map(|one| (one.secrets, one.unreadable)).collect::<Vec<_>>(), [(1, 1)]);
    let other = scene.node_with(keys(&new, &[&old])).await;
    other.until_all_are(&[event.id], "COMPLETED").await;
    assert!(accepts(&log.taken()[0], &secret));
    node.stop().await;
    other.stop().await;
}

async fn what_a_lost_key_encrypted_can_be_replaced(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let maker = scene.node_with(keys(&SecretKey::random(), &[])).await;
    let (account, _) = maker.gateway.create_account(None, "a", &bearer(Some("old"))).await.unwrap();
    let (subscription, _) = maker.subscribe("s", &receiver, |body| body.service_account = Some(account.id)).await;
    maker.stop().await;
    let node = scene.node_with(keys(&SecretKey::random(), &[])).await;
    let event = node.publish(1, None).await;
    let rotate = |overlap| node.gateway.rotate_subscription_secret(subscription.id, None, None, overlap);
    assert!(rotate(None).await.unwrap_err().to_string().contains("secrets.old_keys"));
    let renamed = node.gateway.change_account(account.id, None, Match::Any, &bearer(None)).await;
    assert!(renamed.is_ok(), "what is not secret can be changed");
    let secret = rotate(Some(Duration::ZERO)).await.unwrap().secret.unwrap();
    node.gateway.change_account(account.id, None, Match::Any, &bearer(Some("new"))).await.unwrap();
    node.until_all_are(&[event.id], "COMPLETED").await;
    let taken = log.taken().remove(0);
    assert!(accepts(&taken, &secret) && authorization(&taken).unwrap() == "Bearer new");
    node.stop().await;
}

async fn secret_rows(node: &Node) -> Vec<Resource> {
    let mut rows = Vec::new();
    for kind in ["signing_secret", "account_secret"] {
        let query = ResourcesQuery { kind: kind.into(), client: None, after: None, limit: 1_000 };
        rows.extend(node.queue.resources().list(query).await.unwrap());
    }
    rows
}

async fn what_an_older_program_stored_is_delivered_and_encrypted(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    node.subscribe("s", &receiver, |_| {}).await;
    let old = text(&format!("whsec_{}", STANDARD.encode([7; 32])));
    let row = secret_rows(&node).await.remove(0);
    let body = format!(r#"{{"secrets":["{}"]}}"#, old.shown());
    let put = PutResource::Change { id: row.id, kind: row.kind, expected: None, body };
    node.queue.resources().change(vec![ChangeResource::Put(put)]).await.unwrap();
    let event = node.publish(1, None).await;
    node.until_all_are(&[event.id], "COMPLETED").await;
    assert!(accepts(&log.taken()[0], &old));
    let told = node.gateway.rotate_secrets(|_| {}).await.unwrap();
    assert_eq!((told.seen, told.changed, told.unreadable), (1, 1, 0));
    assert!(!secret_rows(&node).await[0].body.contains(old.shown()));
    let event = node.publish(2, None).await;
    node.until_all_are(&[event.id], "COMPLETED").await;
    assert!(accepts(&log.taken()[1], &old), "it is the same secret");
    node.stop().await;
}

async fn all_secrets_change_their_key_while_others_are_written(scene: Scene) {
    let (receiver, _) = receiver(|_, _| 200).await;
    let (old, new) = (SecretKey::random(), SecretKey::random());
    let before = scene.node_with(keys(&old, &[&new])).await;
    let after = scene.node_with(keys(&new, &[&old])).await;
    let mut made = Vec::new();
    for number in 0..60 {
        made.push(before.subscribe(&format!("s{number:02}"), &receiver, |_| {}).await.0.id);
        before.gateway.create_account(None, &format!("a{number:02}"), &bearer(Some("t"))).await.unwrap();
    }
    let writes = async {
        for id in &made {
            before.gateway.rotate_subscription_secret(*id, None, None, Some(Duration::ZERO)).await.unwrap();
        }
    };
    let mut told = Vec::new();
    let (rotated, ()) = tokio::join!(after.gateway.rotate_secrets(|progress| told.push(progress)), writes);
    assert_eq!(rotated.unwrap().unreadable, 0);
    assert!(told.len() >= 4, "it goes piece by piece: {told:?}");
    after.gateway.rotate_secrets(|_| {}).await.unwrap();
    let uses = after.gateway.key_uses().await.unwrap();
    let used: Vec<_> = uses.iter().map(|one| (one.key.clone(), one.secrets, one.unreadable)).collect();
    assert_eq!(used, [(Some(new.id().clone()), 120, 0)]);
    assert_eq!(after.gateway.rotate_secrets(|_| {}).await.unwrap().changed, 0, "there is nothing left to do");
    before.stop().await;
    after.stop().await;
}

async fn without_a_key_nothing_is_stored_where_others_share_the_database(scene: Scene) {
    let node = scene.node_with(SecretOptions::default()).await;
    let made = node.gateway.create_account(None, "a", &bearer(Some("t"))).await;
    match scene.key_file() {
        Some(file) => {
            made.unwrap();
            assert!(std::fs::read_to_string(file).unwrap().contains("tgkey_"));
        }
        None => {
            let said = made.unwrap_err().to_string();
            assert!(said.contains("secrets.key") && said.contains("tidegate secrets new-key"), "{said}");
            assert!(secret_rows(&node).await.is_empty());
        }
    }
    node.stop().await;
}
