//! A projection with a rebuild: totals per customer, then a second version that also keeps the largest order.
//!
//! Runs on SQLite in a temporary folder, or on the address given as argument: `cargo run --example projection --
//! postgres://user@host/database`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::projection::Documents;
use tidegate::{EventLogProjectionBuilder, EventQueue, NewEvent, Projection, Result};
use tokio::sync::oneshot;

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    customer: String,
    amount: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Total {
    pub(crate) orders: u64,
    pub(crate) amount: u64,
    /// Since version 2. Documents of version 1 lack it, and are read while version 2 is built.
    #[serde(default)]
    pub(crate) largest: u64,
}

async fn totals(queue: &EventQueue, version: i32) -> Result<Projection<Documents<Total>>> {
    EventLogProjectionBuilder::new("customer_totals")
        .version(version)
        .documents::<Total>()
        .on::<OrderPlaced, _, _>(
            "order.placed",
            |event| event.data.customer.clone(),
            move |total, event| {
                let mut total = total.unwrap_or_default();
                total.orders += 1;
                total.amount += event.data.amount;
                if version >= 2 {
                    total.largest = total.largest.max(event.data.amount);
                }
                Some(total)
            },
        )
        .on::<String, _, _>("customer.gone", |event| event.data.clone(), |_, _| None)
        .open(queue)
        .await
}

/// Completes all events, as handlers would: projections read ended entries.
async fn complete_all(queue: &EventQueue) -> Result<()> {
    loop {
        let events = queue.poll_many(100).await?;
        if events.is_empty() {
            return Ok(());
        }
        for answer in queue.finalize_many(events).await {
            answer?;
        }
    }
}

async fn publish(queue: &EventQueue, event_type: &str, payload: &impl Serialize) -> Result<tidegate::EntryId> {
    let payload = serde_json::to_vec(payload).map_err(|error| tidegate::Error::invalid(error.to_string()))?;
    Ok(queue.publish(NewEvent::new(event_type, payload)).await?.id)
}

async fn show(projection: &Projection<Documents<Total>>) -> Result<()> {
    for (customer, total) in projection.list("", None, 10).await? {
        println!("  {customer}: {} orders, {} in all, largest {}", total.orders, total.amount, total.largest);
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir().map_err(|error| tidegate::Error::invalid(error.to_string()))?;
    let own = format!("sqlite:{}", folder.path().join("projection.db").display());
    run(&std::env::args().nth(1).unwrap_or(own)).await.map(drop)
}

/// Builds both versions, and returns the second one's document of a customer.
pub(crate) async fn run(address: &str) -> Result<Option<Total>> {
    let queue = EventQueue::open(address).await?;

    // A projection follows the log in the background, in one of the processes that run it.
    let first = totals(&queue, 1).await?;
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn({
        let first = first.clone();
        async move {
            let stopped = async {
                let _ = stopped.await;
            };
            first.run(stopped).await
        }
    });

    let mut last = None;
    for n in 1..=1_000_u64 {
        let customer = ["ann", "bob", "carl"][(n % 3) as usize].to_owned();
        last = Some(publish(&queue, "order.placed", &OrderPlaced { customer, amount: n }).await?);
        if n % 250 == 0 {
            complete_all(&queue).await?;
        }
    }
    if let Some(last) = last {
        first.wait_for(last, Duration::from_secs(30)).await?; // read your own writes
    }
    println!("version 1, after 1,000 orders:");
    show(&first).await?;
    drop(stop);
    running.await.map_err(|error| tidegate::Error::invalid(error.to_string()))??;

    // The next release raises the version: it reads the log from its oldest row beside version 1, and then takes over.
    let second = totals(&queue, 2).await?;
    println!("version 2 is {:?}; reads are still answered by version 1:", second.status().await?.state);
    show(&second).await?;
    publish(&queue, "customer.gone", &"carl").await?;
    complete_all(&queue).await?;
    second.catch_up().await?;
    println!("version 2 is {:?}, with {} events:", second.status().await?.state, second.status().await?.events);
    show(&second).await?;
    let ann = second.get("ann").await?;
    queue.close().await;
    Ok(ann)
}
