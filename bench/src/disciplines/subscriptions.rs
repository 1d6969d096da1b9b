//! What the disciplines of ingest share: subscriptions to an event, and a check of what is stored at the end.

use tidegate::{EventQueue, Family, QueueName};
use tidegate_dispatch::{Gateway, GatewayOptions, SubscriptionBody, TypeBinding};

use crate::Result;
use crate::served::secrets;

/// The type of all events that are ingested.
pub(super) const TYPE: &str = "shop:orders:order:created";

/// The queues of entries. Several, as subscribers rarely share one.
const QUEUES: usize = 10;

/// Where the events of all subscriptions go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Made {
    /// Entries, in queues.
    Entries,
    /// Jobs, for webhooks.
    Jobs,
}

/// Creates subscriptions to all events of [`TYPE`].
///
/// # Errors
/// When one is refused, or the database fails.
pub(super) async fn subscribe(address: &str, count: usize, made: Made) -> Result<()> {
    let queue = EventQueue::open(address).await?;
    let gateway = Gateway::new(queue.clone(), GatewayOptions { secrets: secrets(), ..GatewayOptions::default() });
    for number in 0..count {
        let target = match made {
            Made::Entries => {
                let name = format!("work-{}", number % QUEUES);
                if number < QUEUES {
                    queue.of(QueueName::of(None, &name)?).await?;
                }
                format!("queue:{name}")
            }
            Made::Jobs => format!("https://example.com/hooks/{number}"),
        };
        let binding = TypeBinding { event_type: None, code: TYPE.parse()?, version: None };
        let body = SubscriptionBody::new(format!("Subscription {number}"), vec![binding], target.parse()?);
        gateway.create_subscription(None, &format!("bench-{number}"), &body).await?;
    }
    queue.close().await;
    Ok(())
}

/// Checks that these events are stored and that so many entries or jobs were made for them.
///
/// # Errors
/// When there are not.
pub(super) async fn expect_stored(address: &str, events: usize, made: Made, targets: usize) -> Result<()> {
    let queue = EventQueue::open(address).await?;
    let family = if made == Made::Entries { Family::Entries } else { Family::Jobs };
    let stored = queue.store().census().await?.events;
    let live = queue.store().family(family).census().await?.entries();
    queue.close().await;
    if (stored, live) == (events as u64, targets as u64) {
        return Ok(());
    }
    Err(format!("expected {events} events with {targets} {made:?}; found {stored} with {live}").into())
}
