//! Tasks: jobs that are posted themselves.

use std::time::Duration;

use serde_json::value::RawValue;
use tidegate::Timestamp;
use tidegate_core::cloud_event::{CloudEvent, SentTask};
use tidegate_dispatch::{
    CreatedTask, DispatchMode, EventsQuery, Gateway, GatewayError, Match, NewTask, PoolBody, PoolStatus, RetryStrategy,
    Target, TaskRules,
};

use crate::scene::{Node, Scene, on_both, receiver, until};

on_both!(
    a_task_is_delivered_as_it_was_said,
    a_task_is_retried_or_fails_like_a_job_of_a_subscription,
    tasks_of_a_group_run_in_the_order_of_their_sequence,
    a_failed_task_steps_aside_or_blocks_its_group,
    tasks_wait_for_their_time_and_expire,
    tasks_of_a_deleted_pool_go_on_in_the_default_pool,
    a_key_creates_one_task,
    tasks_to_many_origins_share_lanes_from_some_number_on,
    two_nodes_deliver_each_task_once,
);

pub(crate) fn task(payload: &str, to: &str, change: impl FnOnce(&mut TaskRules)) -> NewTask {
    let payload = RawValue::from_string(payload.to_owned()).unwrap();
    let event = CloudEvent::of_task(&SentTask {
        code: "invoice",
        subject: Some("invoice:7"),
        source: None,
        external_id: None,
        correlation_id: None,
        message_group: Some("g"),
        content_type: None,
        payload: &payload,
    });
    let mut rules = TaskRules::new(to.parse::<Target>().unwrap());
    rules.retry_strategy = Some(RetryStrategy::Fixed { delay_seconds: 0 });
    change(&mut rules);
    NewTask { client: None, event: event.unwrap(), rules }
}

async fn create(gateway: &Gateway, task: NewTask) -> CreatedTask {
    gateway.create_task(task).await.unwrap()
}

async fn status(node: &Node, task: &CreatedTask) -> &'static str {
    node.gateway.task(task.id).await.unwrap().unwrap().status.unwrap()
}

async fn until_it_is(node: &Node, task: &CreatedTask, wanted: &str) {
    until(|| async { status(node, task).await == wanted }).await;
}

async fn a_task_is_delivered_as_it_was_said(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    let said = task(r#"{"a":  1.50}"#, &receiver.url(), |rules| {
        rules.headers = [("X-Tenant".to_owned(), "7".to_owned())].into();
    });
    let made = create(&node.gateway, said.clone()).await;
    assert_eq!((made.status, made.is_repeat), (Some("QUEUED"), false));
    until_it_is(&node, &made, "COMPLETED").await;
    let taken = log.taken().remove(0);
    let header = |name: &str| taken.headers[name].to_str().unwrap();
    assert_eq!((taken.head.as_str(), &taken.body[..]), ("POST /hook HTTP/1.1", &br#"{"a":  1.50}"#[..]));
    assert_eq!((header("x-tenant"), header("content-type")), ("7", "application/json"));
    assert_eq!((header("ce-type"), header("ce-subject")), ("invoice", "invoice:7"));
    assert_eq!((header("webhook-id"), header("ce-id")), (&*made.id.to_string(), &*made.id.to_string()));
    assert!(taken.headers.contains_key("webhook-timestamp") && !taken.headers.contains_key("webhook-signature"));
    let attempts = node.attempts(made.id).await;
    assert_eq!((attempts.len(), &attempts[0].1["status"]), (1, &"SUCCESS".into()));
    assert_eq!(attempts[0].1["targetUrl"], receiver.url());

    let whole = create(&node.gateway, NewTask { rules: TaskRules { data_only: false, ..said.rules }, ..said }).await;
    until_it_is(&node, &whole, "COMPLETED").await;
    let sent: serde_json::Value = serde_json::from_slice(&log.taken()[1].body).unwrap();
    assert_eq!((&sent["type"], &sent["data"]["a"]), (&"invoice".into(), &1.5.into()));

    assert!(matches!(node.gateway.event(made.id, None).await, Err(GatewayError::NotFound(_))), "it is no event");
    let all = EventsQuery { limit: 9, ..EventsQuery::default() };
    assert!(node.gateway.events(&all).await.unwrap().events.is_empty());
    node.stop().await;
}

async fn a_task_is_retried_or_fails_like_a_job_of_a_subscription(scene: Scene) {
    let (receiver, log) = receiver(|taken, before| match &taken.body[..] {
        b"1" if before < 2 => 500,
        b"2" => 404,
        b"3" => 500,
        b"4" => 410,
        _ => 200,
    })
    .await;
    let node = scene.node().await;
    let one = create(&node.gateway, task("1", &receiver.url(), |_| {})).await;
    until_it_is(&node, &one, "COMPLETED").await;
    assert_eq!(log.bodies(), ["1", "1", "1"]);
    for (payload, attempts) in [("2", 1), ("3", 2), ("4", 1)] {
        let made = create(&node.gateway, task(payload, &receiver.url(), |rules| rules.max_retries = 1)).await;
        until_it_is(&node, &made, "ERROR").await;
        assert_eq!(node.attempts(made.id).await.len(), attempts, "task {payload}");
    }
    // What may not be reached is found out when the connection is made.
    let private = create(&node.gateway, task("5", "https://10.1.2.3/", |_| {})).await;
    until_it_is(&node, &private, "ERROR").await;
    let attempts = node.attempts(private.id).await;
    assert_eq!((attempts.len(), &attempts[0].1["errorType"]), (1, &"PERMANENT".into()), "{attempts:?}");
    node.stop().await;
}

fn ordered(rules: &mut TaskRules, mode: DispatchMode, sequence: i32) {
    (rules.mode, rules.sequence) = (mode, sequence);
}

async fn tasks_of_a_group_run_in_the_order_of_their_sequence(scene: Scene) {
    let (receiver, log) = receiver(|_, before| if before == 1 { 503 } else { 200 }).await;
    let maker = scene.gateway_alone().await;
    let mut tasks = Vec::new();
    for (payload, sequence) in [("4", 9), ("2", 2), ("1", 1), ("3", 2), ("5", 9)] {
        let said = task(payload, &receiver.url(), |rules| ordered(rules, DispatchMode::BlockOnError, sequence));
        tasks.push(create(maker.gateway(), said).await);
    }
    maker.close().await;
    let node = scene.node().await;
    for task in &tasks {
        until_it_is(&node, task, "COMPLETED").await;
    }
    assert_eq!(log.bodies(), ["1", "2", "2", "3", "4", "5"]);
    node.stop().await;
}

async fn a_failed_task_steps_aside_or_blocks_its_group(scene: Scene) {
    let (receiver, log) =
        receiver(|taken, before| if &taken.body[..] == b"1" && before == 0 { 500 } else { 200 }).await;
    let maker = scene.gateway_alone().await;
    let mut tasks = Vec::new();
    for payload in ["1", "2", "3"] {
        let said = task(payload, &receiver.url(), |rules| {
            ordered(rules, DispatchMode::NextOnError, 1);
            rules.retry_strategy = Some(RetryStrategy::Fixed { delay_seconds: 2 });
        });
        tasks.push(create(maker.gateway(), said).await);
    }
    maker.close().await;
    let node = scene.node().await;
    for task in &tasks {
        until_it_is(&node, task, "COMPLETED").await;
    }
    assert_eq!(log.bodies(), ["1", "2", "3", "1"]);
    let blocking = |payload: &str, to: &str| {
        task(payload, to, |rules| {
            ordered(rules, DispatchMode::BlockOnError, 1);
            rules.max_retries = 0;
        })
    };
    let head = create(&node.gateway, blocking("0", "https://10.1.2.3/")).await;
    until_it_is(&node, &head, "ERROR").await;
    let behind = create(&node.gateway, blocking("4", &receiver.url())).await;
    let free = create(&node.gateway, task("5", &receiver.url(), |_| {})).await;
    until_it_is(&node, &free, "COMPLETED").await;
    assert_eq!((status(&node, &behind).await, log.bodies().len()), ("PENDING", 5));
    node.stop().await;
}

async fn tasks_wait_for_their_time_and_expire(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    let from_now = |seconds| Some(Timestamp::now() + Duration::from_secs(seconds));
    let later = create(&node.gateway, task("1", &receiver.url(), |rules| rules.scheduled_for = from_now(2))).await;
    let never = create(
        &node.gateway,
        task("2", &receiver.url(), |rules| (rules.scheduled_for, rules.expires_at) = (from_now(600), from_now(1))),
    )
    .await;
    assert_eq!(status(&node, &later).await, "QUEUED");
    until_it_is(&node, &never, "CANCELLED").await;
    until_it_is(&node, &later, "COMPLETED").await;
    assert_eq!(log.bodies(), ["1"]);
    let attempt: Timestamp = node.attempts(later.id).await[0].1["attemptedAt"].as_str().unwrap().parse().unwrap();
    assert!(attempt >= later.task.rules.scheduled_for.unwrap() - Duration::from_millis(100), "{attempt}");
    node.stop().await;
}

async fn tasks_of_a_deleted_pool_go_on_in_the_default_pool(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    let body =
        PoolBody { name: "n".into(), concurrency: 1, rate_limit_per_minute: None, status: PoolStatus::Suspended };
    let pool = node.gateway.create_pool(None, "p", &body).await.unwrap();
    let held = create(&node.gateway, task("1", &receiver.url(), |rules| rules.dispatch_pool_id = Some(pool.id))).await;
    let free = create(&node.gateway, task("2", &receiver.url(), |_| {})).await;
    until_it_is(&node, &free, "COMPLETED").await;
    assert_eq!((status(&node, &held).await, log.bodies()), ("QUEUED", vec!["2".to_owned()]));
    node.gateway.delete_pool(pool.id, None, Match::Any).await.unwrap();
    until_it_is(&node, &held, "COMPLETED").await;
    let named = node.gateway.create_task(task("3", &receiver.url(), |rules| rules.dispatch_pool_id = Some(pool.id)));
    let refused = named.await.unwrap_err().to_string();
    assert!(refused.starts_with("dispatchPoolId"), "{refused}");
    node.stop().await;
}

async fn a_key_creates_one_task(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    let keyed = |payload: &str| task(payload, &receiver.url(), |rules| rules.idempotency_key = Some("k".into()));
    let calls = futures_util::future::join_all((0..20).map(|_| node.gateway.create_task(keyed("1")))).await;
    let made: Vec<CreatedTask> = calls.into_iter().map(Result::unwrap).collect();
    assert!(made.iter().all(|one| one.id == made[0].id));
    assert_eq!(made.iter().filter(|one| !one.is_repeat).count(), 1);
    until_it_is(&node, &made[0], "COMPLETED").await;
    let again = create(&node.gateway, keyed("1")).await;
    assert_eq!((again.id, again.status, again.is_repeat), (made[0].id, Some("COMPLETED"), true));
    assert_eq!(again.task.rules.idempotency_key.as_deref(), Some("k"));
    let other = node.gateway.create_task(keyed("2")).await;
    assert!(matches!(other, Err(GatewayError::KeyReused(_))), "{other:?}");
    assert_eq!(log.bodies(), ["1"]);
    node.stop().await;
}

/// However many origins somebody makes up, a client's tasks have a bounded number of lanes, and all of them are tried.
async fn tasks_to_many_origins_share_lanes_from_some_number_on(scene: Scene) {
    let maker = scene.gateway_alone().await;
    let tasks =
        (0..1_500).map(|at| task(&at.to_string(), &format!("https://h{at}.example/"), |rules| rules.max_retries = 0));
    let made = maker.gateway().create_tasks(tasks.collect()).await;
    assert!(made.iter().all(Result::is_ok));
    assert!(maker.lanes().await <= 1_024 + 16, "{}", maker.lanes().await);
    let again = maker.gateway().create_tasks(vec![task("1", "https://h1.example/", |_| {})]).await;
    assert!(again[0].is_ok());
    maker.close().await;
}

async fn two_nodes_deliver_each_task_once(scene: Scene) {
    let (receiver, log) = receiver(|_, _| 200).await;
    let (one, other, maker) = (scene.node().await, scene.node().await, scene.gateway_alone().await);
    let tasks = (0..60).map(|at| task(&at.to_string(), &receiver.url(), |_| {})).collect();
    let made: Vec<_> = maker.gateway().create_tasks(tasks).await.into_iter().map(Result::unwrap).collect();
    for task in &made {
        until_it_is(&one, task, "COMPLETED").await;
    }
    let mut bodies: Vec<usize> = log.bodies().iter().map(|body| body.parse().unwrap()).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, (0..60).collect::<Vec<_>>());
    maker.close().await;
    one.stop().await;
    other.stop().await;
}
