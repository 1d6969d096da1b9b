//! A tour of the embedded database: publish, claim, finalise, fail and redrive, with the rates it reaches.
//!
//! `cargo run --release --example demo` needs nothing installed; its data goes into `./tidegate-data`.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate::{Builder, EventQueue, Failure, NewEvent, RetryPolicy};

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

const FOLDER: &str = "tidegate-data";
const EVENTS: usize = 100_000;
const DELAYED: usize = 500;
const GROUPS: usize = 100;
const GROUPED: usize = 1_000;
const BATCH: usize = 1_000;
const CONSUMERS: usize = 2;
const SINGLES: usize = 20_000;
const CALLERS: usize = 64;

#[tokio::main]
async fn main() -> Fallible<()> {
    let queue = open_fresh().await?;
    println!("Tidegate on SQLite, every commit on disk before it is acknowledged.\n");

    let publish = publish_all(&queue).await?;
    row("published, 1,000 per call", EVENTS, publish);

    let started = Instant::now();
    let work = consume_all(&queue).await?;
    row(&format!("claimed and finalised by {CONSUMERS} consumers"), work.completed, started.elapsed());

    let singles = publish_singly(&queue).await?;
    row(&format!("single publishes by {CALLERS} tasks"), SINGLES, singles);
    let started = Instant::now();
    let again = consume_all(&queue).await?;
    row("claimed and finalised again", again.completed, started.elapsed());

    let (median, slow) = publish_to_claim(&queue).await?;
    println!("  {:<44} p50 {:.2} ms, p99 {:.2} ms", "publish to claim, a waiting consumer", ms(median), ms(slow));

    dead_letter(&queue, &work).await?;
    print_census(&queue).await?;
    queue.close().await;
    Ok(())
}

/// Every run starts from an empty queue.
async fn open_fresh() -> Fallible<EventQueue> {
    let folder = Path::new(FOLDER);
    std::fs::create_dir_all(folder)?;
    for file in ["demo.db", "demo.db-wal", "demo.db-shm"] {
        match std::fs::remove_file(folder.join(file)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    let builder: Builder = EventQueue::builder().retry(RetryPolicy::fixed(Duration::from_millis(50)));
    Ok(builder.open(format!("sqlite:{FOLDER}/demo.db")).await?)
}

/// Mostly plain events, some delayed by a second, some in FIFO groups, and one that always fails.
async fn publish_all(queue: &EventQueue) -> Fallible<Duration> {
    let started = Instant::now();
    let mut number = 0;
    while number < EVENTS {
        let batch = (number..(number + BATCH).min(EVENTS)).map(event).collect::<Vec<_>>();
        number += batch.len();
        for answer in queue.publish_many(batch).await {
            answer?;
        }
    }
    Ok(started.elapsed())
}

fn event(number: usize) -> NewEvent {
    let payload = format!(r#"{{"order": {number}, "amount": 99.99, "note": "{:-^120}"}}"#, "");
    match number {
        0 => NewEvent::new("order.broken", payload).max_attempts(3),
        _ if number <= DELAYED => NewEvent::new("order.created", payload).delay(Duration::from_secs(1)),
        _ if number <= DELAYED + GROUPED => {
            NewEvent::new("order.created", payload).group(format!("customer:{}", number % GROUPS))
        }
        _ => NewEvent::new("order.created", payload),
    }
}

#[derive(Default)]
struct Work {
    completed: usize,
    retried: usize,
    dead: usize,
}

/// Runs consumers that claim in batches until the queue is empty.
async fn consume_all(queue: &EventQueue) -> Fallible<Work> {
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0)]);
    let consumers =
        (0..CONSUMERS).map(|_| tokio::spawn(consume(queue.clone(), Arc::clone(&counts)))).collect::<Vec<_>>();
    for consumer in consumers {
        consumer.await??;
    }
    let [completed, retried, dead] = [0, 1, 2].map(|index| counts[index].load(Ordering::Relaxed));
    Ok(Work { completed, retried, dead })
}

async fn consume(queue: EventQueue, counts: Arc<[AtomicUsize; 3]>) -> Fallible<()> {
    loop {
        let events = queue.wait_many(BATCH, Duration::from_millis(100)).await?;
        if events.is_empty() && queue.depth().await?.total() == 0 {
            return Ok(());
        }
        let (broken, good): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|event| event.event_type() == "order.broken");
        for end in queue.finalize_many(good).await {
            end?;
            counts[0].fetch_add(1, Ordering::Relaxed);
        }
        for event in broken {
            let index = match event.fail("the order has no customer").await? {
                Failure::Retry { .. } => 1,
                Failure::Ended(_) => 2,
            };
            counts[index].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Many tasks that each publish one event at a time: their calls share transactions.
async fn publish_singly(queue: &EventQueue) -> Fallible<Duration> {
    let started = Instant::now();
    let callers = (0..CALLERS).map(|caller| {
        let queue = queue.clone();
        tokio::spawn(async move {
            for number in (caller..SINGLES).step_by(CALLERS) {
                queue.publish(event(EVENTS + number)).await?;
            }
            Ok::<(), tidegate::Error>(())
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await??;
    }
    Ok(started.elapsed())
}

/// Publishes one event at a time to a waiting consumer. Returns the median and the 99th percentile.
async fn publish_to_claim(queue: &EventQueue) -> Fallible<(Duration, Duration)> {
    let mut times = Vec::new();
    for number in 0..500 {
        let consumer = queue.clone();
        let waiting = tokio::spawn(async move { consumer.next(Duration::from_secs(10)).await });
        tokio::time::sleep(Duration::from_millis(1)).await;
        let started = Instant::now();
        queue.publish(event(EVENTS + number)).await?;
        let claimed = waiting.await??.ok_or("nothing was claimed")?;
        times.push(started.elapsed());
        claimed.complete().await?;
    }
    times.sort();
    Ok((times[times.len() / 2], times[times.len() * 99 / 100]))
}

/// The event that always failed is not lost: it can be inspected and redriven.
async fn dead_letter(queue: &EventQueue, work: &Work) -> Fallible<()> {
    println!();
    println!("One event was made to fail: {} retries, then {} dead letter:", work.retried, work.dead);
    for dead in queue.dead_letters(None, 10).await? {
        let errors = dead.error.unwrap_or_default();
        println!("  entry {} ({}) after {} attempts: {errors}", dead.id, dead.fact.event_type, dead.attempts);
        let generation = queue.redrive(dead.id).await?;
        let again = queue.next(Duration::from_secs(10)).await?.ok_or("the redriven entry was not claimed")?;
        println!("  redriven as generation {generation}, claimed again, and completed this time");
        again.complete().await?;
    }
    Ok(())
}

async fn print_census(queue: &EventQueue) -> Fallible<()> {
    let census = queue.store().census().await?;
    println!();
    println!("{} events, {} waiting, {} leased, {} ended.", census.events, census.waiting, census.leased, census.ended);
    println!("Everything is in ./{FOLDER}/demo.db (tables tidegate_events, tidegate_event_queue, tidegate_event_log).");
    Ok(())
}

fn row(what: &str, count: usize, took: Duration) {
    let rate = count as f64 / took.as_secs_f64();
    println!("  {what:<44} {count:>7} in {:>6.2} s  {rate:>9.0} /s", took.as_secs_f64());
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
