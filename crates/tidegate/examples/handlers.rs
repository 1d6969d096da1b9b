//! Several handlers for one event, one of which fails at first: only that one runs again.
//!
//! `cargo run --example handlers` runs on SQLite in a temporary folder; give it a `postgres://` address to run there.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::{Delivered, Error, Event, EventHandler, EventManager, EventQueue, Handled, Result, RetryPolicy};

#[derive(Debug, Serialize, Deserialize)]
struct OrderCreated {
    id: u64,
}

impl Event for OrderCreated {
    const TYPE: &'static str = "order.created";
}

/// What happened, in order.
type Diary = Arc<Mutex<Vec<String>>>;

fn note(diary: &Diary, line: String) {
    println!("{line}");
    if let Ok(mut lines) = diary.lock() {
        lines.push(line);
    }
}

/// A handler as a type of its own, which is the recommended way.
struct SendMail(Diary);

impl EventHandler for SendMail {
    type Event = OrderCreated;

    fn id(&self) -> &str {
        "send-mail"
    }

    async fn handle(&self, order: Delivered<OrderCreated>) -> Handled {
        note(&self.0, format!("mail about order {}", order.id));
        Handled::Success
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir().map_err(|error| Error::invalid(error.to_string()))?;
    let default = format!("sqlite:{}", folder.path().join("shop.db").display());
    run(&std::env::args().nth(1).unwrap_or(default)).await.map(drop)
}

/// Publishes one order, runs the manager until it is billed, and returns what happened.
pub(crate) async fn run(address: &str) -> Result<Vec<String>> {
    let queue = EventQueue::open(address).await?;
    let diary = Diary::default();
    let billed = Arc::clone(&diary);
    let (done, mut finished) = tokio::sync::mpsc::channel(1);
    let manager = EventManager::builder(&queue)
        .register(SendMail(Arc::clone(&diary)))
        // A closure is enough for a small handler; its id must be unique.
        .on("bill", move |order: Delivered<OrderCreated>| {
            let (diary, done) = (Arc::clone(&billed), done.clone());
            async move {
                if order.attempts() < 3 {
                    note(&diary, format!("the bank is closed on attempt {}", order.attempts()));
                    return Handled::transient("the bank is closed");
                }
                note(&diary, format!("order {} is billed on attempt {}", order.id, order.attempts()));
                let _ = done.send(()).await; // it is fine if nothing waits any more
                Handled::Success
            }
        })
        .retry(RetryPolicy::fixed(Duration::from_millis(100)))
        .build()?;

    queue.publish(OrderCreated { id: 7 }.to_new()?).await?;
    manager
        .run_until(async {
            let _ = finished.recv().await;
        })
        .await?;
    queue.close().await;
    let lines = diary.lock().map(|lines| lines.clone()).unwrap_or_default();
    Ok(lines)
}
