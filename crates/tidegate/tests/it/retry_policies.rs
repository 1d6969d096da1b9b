//! Which retry policy decides: the event's, else its queue's, else the manager's, else the one a handle was opened with.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::{
    Delivered, EntryId, EntryPhase, Event, EventManager, EventQueue, Failure, Handled, NewEvent, QueueSettings,
    RetryPolicy, Timestamp,
};
use tidegate_store::QueueChange;

use crate::databases::on_each_database;

const HOUR: Duration = Duration::from_secs(3600);

#[derive(Serialize, Deserialize)]
struct Job {}

impl Event for Job {
    const TYPE: &'static str = "job";
}

fn hours(count: u32) -> RetryPolicy {
    RetryPolicy::fixed(HOUR * count)
}

async fn set_retry(queue: &EventQueue, retry: Option<RetryPolicy>) {
    let settings = QueueSettings { retry, ..QueueSettings::default() };
    let change = QueueChange { settings: settings.into(), ..QueueChange::default() };
    queue.store().put_queue(queue.name(), change).await.unwrap();
}

/// In how many hours an entry is tried again.
async fn hours_left(queue: &EventQueue, id: EntryId) -> u64 {
    let EntryPhase::Waiting { due: Some(due) } = queue.entry(id).await.unwrap().unwrap().phase else {
        panic!("it does not wait")
    };
    let seconds = due.duration_since(Timestamp::now()).as_secs();
    (seconds as u64).div_ceil(3600)
}

async fn retried_in(queue: &EventQueue, event: NewEvent, option: Option<RetryPolicy>) -> u64 {
    let mut builder = EventManager::builder(queue).on("h", |_: Delivered<Job>| async { Handled::transient("not yet") });
    if let Some(policy) = option {
        builder = builder.retry(policy);
    }
    let id = queue.publish(event).await.unwrap().id;
    assert_eq!(builder.build().unwrap().drain().await.unwrap(), 1);
    hours_left(queue, id).await
}

on_each_database! {
    async fn a_manager_asks_the_event_then_the_queue_then_its_option_then_the_handle(place) {
        let queue = place.open_with(|builder| builder.retry(hours(4))).await;
        let event = || Job {}.to_new().unwrap();
        set_retry(&queue, Some(hours(2))).await;
        assert_eq!(retried_in(&queue, event().retry(hours(1)), Some(hours(3))).await, 1);
        assert_eq!(retried_in(&queue, event(), Some(hours(3))).await, 2);
        let other = queue.named("other").await.unwrap();
        assert_eq!(retried_in(&other, event(), Some(hours(3))).await, 3, "settings are a queue's own");
        set_retry(&queue, None).await;
        assert_eq!(retried_in(&queue, event(), Some(hours(3))).await, 3);
        assert_eq!(retried_in(&queue, event(), None).await, 4);
    }

    async fn a_failure_by_hand_asks_the_event_then_the_queue_then_the_handle(place) {
        let queue = place.open_with(|builder| builder.retry(hours(4))).await;
        let event = || NewEvent::new("t", "{}");
        set_retry(&queue, Some(hours(2))).await;
        for (event, policy, expected) in
            [(event().retry(hours(1)), Some(hours(2)), 1), (event(), Some(hours(2)), 2), (event(), None, 4)]
        {
            set_retry(&queue, policy).await;
            let id = queue.publish(event).await.unwrap().id;
            let failed = queue.poll().await.unwrap().unwrap().fail("no").await.unwrap();
            assert_eq!(failed, Failure::Retry { after: HOUR * expected });
            assert_eq!(hours_left(&queue, id).await, u64::from(expected));
        }
    }

    async fn a_policy_changed_by_another_process_counts_from_the_next_claim(place) {
        let (queue, other) = (place.open().await, place.open().await);
        queue.publish(NewEvent::new("t", "{}")).await.unwrap();
        queue.poll().await.unwrap().unwrap().release().await.unwrap();
        set_retry(&other, Some(hours(2))).await;
        let failed = queue.poll().await.unwrap().unwrap().fail("no").await.unwrap();
        assert_eq!(failed, Failure::Retry { after: 2 * HOUR });
    }
}
