//! A projection of a full log into documents by key, compared with a plain loop of SELECT and upsert in batches of the
//! same size.

use std::collections::HashMap;
use std::time::Instant;

use tidegate::{EventLogProjectionBuilder, EventQueue, NewEvent};

use super::{Bench, known};
use crate::pg::Database;
use crate::report::Measured;
use crate::runner::{Pair, progress, rate, short};
use crate::scale::BATCH;
use crate::{Result, tide};

const NAME: &str = "postgres_projection";
/// Log rows per transaction on both sides: the default of projections.
const STEP: usize = 100;
/// The number of documents.
const KEYS: usize = 1_000;

#[derive(Debug, serde::Deserialize)]
struct Order {
    key: String,
    amount: u64,
}

#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
struct Total {
    orders: u64,
    amount: u64,
}

/// Fills one log and reads it with both sides in turns.
///
/// # Errors
/// When a database call fails.
pub(super) async fn run(bench: &Bench) -> Result<Vec<Measured>> {
    if !bench.wanted.has(NAME) {
        return Ok(Vec::new());
    }
    let events = bench.scale.projection;
    let database = bench.server()?.database().await?;
    let queue = EventQueue::open(&database.url).await?;
    fill(&queue, events).await?;
    database.vacuum().await?;
    let mut pair = Pair::default();
    for run in 1..=bench.scale.runs.min(3) {
        bench.server()?.checkpoint().await?;
        let ours = project(&queue, run, events).await?;
        bench.server()?.checkpoint().await?;
        let plain = plain_loop(&database, run, events).await?;
        progress(&format!("{NAME} {run}/{}: {} vs {}", bench.scale.runs.min(3), short(ours), short(plain)));
        pair.ours.push(ours);
        pair.baseline.push(plain);
    }
    queue.close().await;
    Ok(vec![Measured::beside(known(NAME)?, pair)])
}

async fn fill(queue: &EventQueue, events: usize) -> Result<()> {
    let mut number = 0;
    while number < events {
        let batch = (number..events.min(number + BATCH)).map(|number| {
            let payload = format!(r#"{{"key":"customer-{}","amount":{}}}"#, number * 7919 % KEYS, number % 100);
            NewEvent::new(tide::TYPE, payload)
        });
        for answer in queue.publish_many(batch.collect()).await {
            answer?;
        }
        number += BATCH;
    }
    tide::work_off(queue, events).await
}

/// Runs a new projection from the first row of the log to the last; returns events per second.
async fn project(queue: &EventQueue, run: usize, events: usize) -> Result<f64> {
    let projection = EventLogProjectionBuilder::new(format!("totals-{run}"))
        .batch_size(STEP)
        .documents::<Total>()
        .on::<Order, _, _>(
            tide::TYPE,
            |event| event.data.key.clone(),
            |total, event| {
                let mut total = total.unwrap_or_default();
                total.orders += 1;
                total.amount += event.data.amount;
                Some(total)
            },
        )
        .open(queue)
        .await?;
    let start = Instant::now();
    projection.catch_up().await?;
    let took = start.elapsed();
    let mut counted = 0;
    for (_, total) in projection.list("", None, KEYS + 1).await? {
        counted += total.orders;
    }
    if counted != events as u64 {
        return Err(format!("the projection counted {counted} events of {events}").into());
    }
    Ok(rate(events, took))
}

/// The same in plain SQL: in one transaction read a page of the log by id and the documents it touches, upsert them,
/// and write the position. Returns events per second.
async fn plain_loop(database: &Database, run: usize, events: usize) -> Result<f64> {
    let mut client = database.connect().await?;
    client
        .batch_execute(&format!(
            "CREATE TABLE plain_{run} (key text PRIMARY KEY, document bytea NOT NULL);
             CREATE TABLE plain_position_{run} (id bigint NOT NULL); INSERT INTO plain_position_{run} VALUES (0)"
        ))
        .await?;
    let page = client
        .prepare(
            "SELECT g.id, e.payload FROM tidegate.event_log g JOIN tidegate.events e ON e.id = g.event_id
             WHERE g.id > $1 AND g.status = 0 ORDER BY g.id LIMIT $2",
        )
        .await?;
    let read = client.prepare(&format!("SELECT key, document FROM plain_{run} WHERE key = ANY($1)")).await?;
    let write = client
        .prepare(&format!(
            "INSERT INTO plain_{run} SELECT * FROM unnest($1::text[], $2::bytea[])
             ON CONFLICT (key) DO UPDATE SET document = excluded.document"
        ))
        .await?;
    let advance = client.prepare(&format!("UPDATE plain_position_{run} SET id = $1")).await?;
    let (mut position, mut counted) = (0_i64, 0);
    let start = Instant::now();
    loop {
        let tx = client.transaction().await?;
        let rows = tx.query(&page, &[&position, &i64::try_from(STEP)?]).await?;
        let Some(last) = rows.last() else { break };
        position = last.get(0);
        let orders: Vec<Order> =
            rows.iter().map(|row| serde_json::from_slice(row.get(1))).collect::<std::result::Result<_, _>>()?;
        let keys: Vec<&str> = orders.iter().map(|order| order.key.as_str()).collect();
        let mut totals: HashMap<String, Total> = HashMap::new();
        for row in tx.query(&read, &[&keys]).await? {
            totals.insert(row.get(0), serde_json::from_slice(row.get(1))?);
        }
        for order in &orders {
            let total = totals.entry(order.key.clone()).or_default();
            total.orders += 1;
            total.amount += order.amount;
        }
        let (mut names, mut documents) = (Vec::new(), Vec::new());
        for (key, total) in totals {
            names.push(key);
            documents.push(serde_json::to_vec(&total)?);
        }
        tx.execute(&write, &[&names, &documents]).await?;
        tx.execute(&advance, &[&position]).await?;
        tx.commit().await?;
        counted += rows.len();
    }
    let took = start.elapsed();
    if counted != events {
        return Err(format!("the plain loop counted {counted} events of {events}").into());
    }
    Ok(rate(events, took))
}
