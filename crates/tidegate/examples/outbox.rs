//! Outbox: an event is published in the same transaction as the application's own row, so both are there or neither.
//!
//! `cargo run --example outbox` runs on SQLite in a temporary folder; give it a `postgres://` address to run there.

use tidegate::{Error, EventQueue, NewEvent, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir().map_err(|error| Error::invalid(error.to_string()))?;
    let default = format!("sqlite:{}", folder.path().join("shop.db").display());
    let delivered = run(&std::env::args().nth(1).unwrap_or(default)).await?;
    println!("delivered: {delivered:?}");
    Ok(())
}

/// Places four orders, one of which is rolled back, and returns the payloads that were delivered.
pub(crate) async fn run(address: &str) -> Result<Vec<String>> {
    let queue = EventQueue::open(address).await?;
    if address.starts_with("postgres") {
        place_orders_on_postgres(&queue, address).await?;
    } else {
        place_orders_on_sqlite(&queue, address.trim_start_matches("sqlite:")).await?;
    }
    let mut delivered = Vec::new();
    while let Some(event) = queue.poll().await? {
        delivered.push(String::from_utf8_lossy(event.payload()).into_owned());
        event.complete().await?;
    }
    queue.close().await;
    Ok(delivered)
}

/// The application's own connection to the same file.
async fn place_orders_on_sqlite(queue: &EventQueue, file: &str) -> Result<()> {
    let mut own = rusqlite::Connection::open(file)?;
    own.busy_timeout(std::time::Duration::from_secs(5))?;
    own.execute_batch("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")?;
    for id in 1..=3 {
        let mut tx = own.transaction()?;
        tx.execute("INSERT INTO orders (id) VALUES (?1)", [id])?;
        let receipt = queue.publish_in(&mut tx, NewEvent::new("order.created", format!("order {id}"))).await?;
        if id == 2 {
            tx.rollback()?; // neither the row nor the event was ever there
        } else {
            tx.commit()?;
            receipt.wake(); // waiting consumers claim at once
        }
    }
    // Other languages do the same with plain SQL.
    own.execute("INSERT INTO tidegate_publish (event_type, payload, content_type) VALUES ('order.created', 'order 4', 'text/plain')", [])?;
    Ok(())
}

/// The application's own connection to the same database.
async fn place_orders_on_postgres(queue: &EventQueue, address: &str) -> Result<()> {
    let (mut own, connection) = tokio_postgres::connect(address, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    own.batch_execute("CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY)").await?;
    for id in 1..=3_i64 {
        let mut tx = own.transaction().await?;
        tx.execute("INSERT INTO orders (id) VALUES ($1)", &[&id]).await?;
        let receipt = queue.publish_in(&mut tx, NewEvent::new("order.created", format!("order {id}"))).await?;
        if id == 2 {
            tx.rollback().await?;
        } else {
            tx.commit().await?;
            receipt.wake();
        }
    }
    own.execute("SELECT tidegate.publish('order.created', 'order 4', content_type => 'text/plain', wake => true)", &[])
        .await?;
    Ok(())
}
