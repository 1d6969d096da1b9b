//! Works events off with an `EventManager`: two plain handlers, and one that writes in the transaction that ends them.
//!
//! Each run of a handler is written down with the lease it runs under, before it does anything and before it answers.
//! How a run goes comes from the seed, the event and the lease's token.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use tidegate::{Delivered, Event, EventManager, Handled, RetryPolicy};

use super::{Failure, Life, consume, plan};
use crate::history::{Intent, Outcome};

/// The plain handlers.
pub(crate) const PLAIN: [&str; 2] = [MAIL, BILL];
/// The handler that writes in the transaction that ends the event.
pub(crate) const IN_TX: &str = "ledger";
/// Where it writes: a row per run, and no constraint that would hide a second one.
pub(crate) const EFFECTS: &str = "CREATE TABLE sim_effects (entry_id bigint NOT NULL, token bigint NOT NULL)";

const MAIL: &str = "mail";
const BILL: &str = "bill";
const LOOK: Duration = Duration::from_millis(20);
/// Later attempts always succeed, so that all events end well.
const SHAKY_ATTEMPTS: u32 = 3;

/// An event that carries nothing but its key.
#[derive(Debug, Deserialize)]
struct Task(String);

impl Event for Task {
    const TYPE: &'static str = plan::TASK;
}

/// Handles until the parent wants no more.
pub(super) async fn run(life: Arc<Life>, concurrency: usize) -> Result<(), Failure> {
    let (mail, bill, ledger) = (Arc::clone(&life), Arc::clone(&life), Arc::clone(&life));
    let manager = EventManager::builder(&life.queue)
        .on(MAIL, move |task: Delivered<Task>| {
            // It answers before there is anything to wait for.
            let run = Run::begin(&mail, MAIL, &task);
            std::future::ready(run.answer(Handled::Success))
        })
        .on(BILL, move |task: Delivered<Task>| send_bill(Arc::clone(&bill), task))
        .handler_tx(IN_TX, move |task: Delivered<Task>, tx| {
            let life = Arc::clone(&ledger);
            Box::pin(async move {
                let mut run = Run::begin(&life, IN_TX, &task);
                let row = [task.id().into(), task.entry().token.0.into()];
                if let Err(error) = tx.execute("INSERT INTO sim_effects VALUES ($1, $2)", &row).await {
                    return run.answer(Handled::transient(error.to_string()));
                }
                // What was written above must be gone after both of these.
                if run.shaky(1, 25) {
                    return run.answer(Handled::transient("the books are closed"));
                }
                assert!(!run.shaky(1, 50), "the ledger panics now and then");
                run.answer(Handled::Success)
            })
        })
        .concurrency(concurrency)
        .retry(RetryPolicy::fixed(Duration::from_millis(50)))
        .build()?;
    let stopped = async {
        while !life.stopped() {
            tokio::time::sleep(LOOK).await;
        }
    };
    Ok(manager.run_until(stopped).await?)
}

/// Takes its time, now and then longer than the lease, and fails now and then.
async fn send_bill(life: Arc<Life>, task: Delivered<Task>) -> Handled {
    let mut run = Run::begin(&life, BILL, &task);
    let lease = life.job.lease_ms;
    let millis = match run.rng.random_range(0..1000) {
        0 if run.early => lease + lease / 2,
        0..250 => 0,
        250..980 => run.rng.random_range(1..20),
        _ => run.rng.random_range(50..300),
    };
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
    let answer = if run.shaky(1, 4) { Handled::transient("the bank is closed") } else { Handled::Success };
    run.answer(answer)
}

/// One run of a handler.
struct Run<'a> {
    life: &'a Life,
    op: u64,
    early: bool,
    rng: StdRng,
}

impl<'a> Run<'a> {
    fn begin(life: &'a Life, handler: &str, task: &Delivered<Task>) -> Self {
        let claim = consume::record(task.entry());
        let choice = [life.job.seed, plan::hash(&task.0), plan::hash(handler), claim.token.unsigned_abs()];
        let op = kept(life.recorder.intent(Intent::Handle { handler: handler.to_owned(), claim }));
        let early = task.attempts() <= SHAKY_ATTEMPTS;
        Self { life, op, early, rng: StdRng::seed_from_u64(plan::mix(&choice)) }
    }

    fn shaky(&mut self, some: u32, of: u32) -> bool {
        self.early && self.rng.random_ratio(some, of)
    }

    /// Written before the manager hears it: what it makes of an answer is always in the history.
    fn answer(self, answer: Handled) -> Handled {
        kept(self.life.recorder.result(self.op, Outcome::Handled { success: answer == Handled::Success }));
        answer
    }
}

/// A manager would survive a handler that fails; a history with holes is worth nothing.
fn kept<T>(written: std::io::Result<T>) -> T {
    written.unwrap_or_else(|error| {
        eprintln!("the history cannot be written: {error}");
        std::process::exit(1)
    })
}
