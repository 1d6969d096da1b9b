//! Effects in the same database happen exactly once: a `handler_tx` writes in the transaction that ends its event.
//!
//! `cargo run --example exactly_once` runs on SQLite in a temporary folder; give it a `postgres://` address to run there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::{Delivered, Error, Event, EventManager, EventQueue, NewEvent, Result, RetryPolicy};

#[derive(Debug, Serialize, Deserialize)]
struct Paid {
    account: String,
    cents: i64,
}

impl Event for Paid {
    const TYPE: &'static str = "paid";
}

#[tokio::main]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir().map_err(|error| Error::invalid(error.to_string()))?;
    let default = format!("sqlite:{}", folder.path().join("bank.db").display());
    let cents = run(&std::env::args().nth(1).unwrap_or(default)).await?;
    println!("alice has {cents} cents");
    Ok(())
}

/// Pays 5 cents ten times, where the first attempt fails after its writes, and returns the balance.
pub(crate) async fn run(address: &str) -> Result<i64> {
    let queue = EventQueue::open(address).await?;
    queue
        .in_transaction(|tx| {
            Box::pin(async move {
                tx.execute("CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, cents BIGINT)", &[]).await?;
                tx.execute("INSERT INTO accounts VALUES ('alice', 0)", &[]).await
            })
        })
        .await?;

    let fails = Arc::new(AtomicBool::new(true));
    let manager = EventManager::builder(&queue)
        .handler_tx("ledger", move |paid: Delivered<Paid>, tx| {
            let fails = Arc::clone(&fails);
            Box::pin(async move {
                let sql = "UPDATE accounts SET cents = cents + $1 WHERE name = $2";
                tx.execute(sql, &[paid.cents.into(), paid.account.as_str().into()]).await?;
                tx.publish(NewEvent::new("balance.changed", format!(r#"{{"account":"{}"}}"#, paid.account))).await?;
                if fails.swap(false, Ordering::SeqCst) {
                    // Both writes above are rolled back, and the event is tried again.
                    return Err(Error::invalid("the power failed after the writes"));
                }
                Ok(())
            })
        })
        .retry(RetryPolicy::fixed(Duration::ZERO))
        .build()?;

    for _ in 0..10 {
        queue.publish(Paid { account: "alice".into(), cents: 5 }.to_new()?).await?;
    }
    manager.drain().await?;
    let rows = queue
        .in_transaction(|tx| {
            Box::pin(async move { tx.query("SELECT cents FROM accounts WHERE name = 'alice'", &[]).await })
        })
        .await?;
    queue.close().await;
    Ok(rows.first().and_then(|row| row.first()?.as_i64()).unwrap_or_default())
}
