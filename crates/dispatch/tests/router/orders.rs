//! Groups: one job at a time, in order, and what a failure means for the rest.

use std::collections::HashMap;

use tidegate_dispatch::{DispatchMode, RetryStrategy};

use crate::scene::{Scene, on_both, receiver};

on_both!(
    a_failed_job_blocks_its_group_until_it_succeeds,
    a_failed_job_steps_aside_where_the_next_may_go_on,
    groups_run_beside_each_other_and_each_in_order,
);

async fn a_failed_job_blocks_its_group_until_it_succeeds(scene: Scene) {
    let (receiver, log) = receiver(|_, before| if before < 2 { 500 } else { 200 }).await;
    let node = scene.node().await;
    node.subscribe("s", &receiver, |body| {
        body.mode = DispatchMode::BlockOnError;
        body.retry_strategy = Some(RetryStrategy::Fixed { delay_seconds: 0 });
    })
    .await;
    let mut events = Vec::new();
    for number in 1..=4 {
        events.push(node.publish(number, Some("g")).await.id);
    }
    node.until_all_are(&events, "COMPLETED").await;
    assert_eq!(log.bodies(), ["1", "1", "1", "2", "3", "4"]);
    node.stop().await;
}

async fn a_failed_job_steps_aside_where_the_next_may_go_on(scene: Scene) {
    let (receiver, log) = receiver(|taken, before| if &taken.body[..] == b"1" && before < 2 { 500 } else { 200 }).await;
    let node = scene.node().await;
    node.subscribe("s", &receiver, |body| {
        body.mode = DispatchMode::NextOnError;
        body.retry_strategy = Some(RetryStrategy::Fixed { delay_seconds: 2 });
    })
    .await;
    let mut events = Vec::new();
    for number in 1..=4 {
        events.push(node.publish(number, Some("g")).await.id);
    }
    node.until_all_are(&events, "COMPLETED").await;
    assert_eq!(log.bodies(), ["1", "2", "3", "4", "1"]);
    node.stop().await;
}

/// Two nodes, ten groups, failures at random: never two at once in a group, and no inversion.
async fn groups_run_beside_each_other_and_each_in_order(scene: Scene) {
    let (receiver, log) = receiver(|_, before| if before % 7 == 3 { 503 } else { 200 }).await;
    let (one, other) = (scene.node().await, scene.node().await);
    one.subscribe("s", &receiver, |body| {
        body.mode = DispatchMode::BlockOnError;
        body.max_retries = 100;
        body.retry_strategy = Some(RetryStrategy::Fixed { delay_seconds: 0 });
    })
    .await;
    let mut events = Vec::new();
    for number in 0..100 {
        let node = if number % 2 == 0 { &one } else { &other };
        events.push(node.publish(number, Some(&format!("g{}", number % 10))).await.id);
    }
    one.until_all_are(&events, "COMPLETED").await;
    let mut last: HashMap<usize, usize> = HashMap::new();
    for body in log.bodies() {
        let number: usize = body.parse().unwrap();
        let before = last.insert(number % 10, number);
        assert!(before.is_none_or(|before| before == number || before + 10 == number), "{before:?} before {number}");
    }
    one.stop().await;
    other.stop().await;
}
