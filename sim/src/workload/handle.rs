//! Handles events with an `EventManager`: two plain handlers, and one that writes in the transaction that ends them.
//!
//! Each run of a handler is recorded with its lease, before it does anything and before it answers. How a run goes
//! depends on the seed, the event, the handler and the lease token.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use tidegate::{Delivered, Event, EventManager, Handled, RetryPolicy};

use super::job::Failure;
use super::life::Life;
use super::{consume, plan};
use crate::history::{Intent, OpOutcome};

/// The plain handlers.
pub(crate) const PLAIN: [&str; 2] = [MAIL, BILL];
/// The handler that writes in the transaction that ends the event.
pub(crate) const IN_TX: &str = "ledger";
/// The table it writes to: one row per run, without a constraint that would hide a second one.
pub(crate) const EFFECTS: &str = "CREATE TABLE sim_effects (entry_id bigint NOT NULL, token bigint NOT NULL)";

const MAIL: &str = "mail";
const BILL: &str = "bill";
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Handlers fail only in the first attempts, so that every event completes.
const SHAKY_ATTEMPTS: u32 = 3;

/// An event whose payload is only its key.
#[derive(Debug, Deserialize)]
struct Task(String);

impl Event for Task {
    const TYPE: &'static str = plan::TASK;
}

/// Runs a manager until the process is asked to stop.
pub(super) async fn run(life: Arc<Life>, concurrency: usize) -> Result<(), Failure> {
    let (mail, bill, ledger) = (Arc::clone(&life), Arc::clone(&life), Arc::clone(&life));
    let manager = EventManager::builder(&life.queue)
        .on(MAIL, move |task: Delivered<Task>| {
            // A handler that answers on its first poll.
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
                // An error and a panic must both roll back the insert above.
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
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    Ok(manager.run_until(stopped).await?)
}

/// Takes up to 300 ms, in rare cases longer than the lease, and fails every fourth time in early attempts.
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
    /// Whether this attempt may fail.
    early: bool,
    rng: StdRng,
}

impl<'a> Run<'a> {
    fn begin(life: &'a Life, handler: &str, task: &Delivered<Task>) -> Self {
        let claim = consume::record(task.entry());
        let choice = [life.job.seed, plan::hash(&task.0), plan::hash(handler), claim.token.unsigned_abs()];
        let op = or_exit(life.recorder.intent(Intent::Handle { handler: handler.to_owned(), claim }));
        let early = task.attempts() <= SHAKY_ATTEMPTS;
        Self { life, op, early, rng: StdRng::seed_from_u64(plan::mix(&choice)) }
    }

    /// Whether to fail: `some` times out of `of` in early attempts, never later.
    fn shaky(&mut self, some: u32, of: u32) -> bool {
        self.early && self.rng.random_ratio(some, of)
    }

    /// Records the answer before the manager gets it, so that no effect of an answer precedes its record.
    fn answer(self, answer: Handled) -> Handled {
        or_exit(self.life.recorder.result(self.op, OpOutcome::Handled { success: answer == Handled::Success }));
        answer
    }
}

/// Exits when the history cannot be written: a gap would make it useless, and a manager survives a handler that panics.
fn or_exit<T>(written: std::io::Result<T>) -> T {
    written.unwrap_or_else(|error| {
        eprintln!("cannot write the history: {error}");
        std::process::exit(1)
    })
}
