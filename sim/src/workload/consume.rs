//! Consumers: claim entries and complete, fail, release, snooze, extend or drop them, or end them too late.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tidegate::{Claimed, End, Finalize, QueuedEvent};
use tokio::task::JoinSet;

use super::job::Failure;
use super::life::{Life, outcome_of};
use super::{own_end, plan};
use crate::history::{Claim, Intent, OpOutcome};
use crate::state::key_of;

const WAIT: Duration = Duration::from_millis(200);

/// Claims and handles entries until the process is asked to stop.
pub(super) async fn run(life: Arc<Life>, number: u64) -> Result<(), Failure> {
    let mut rng = life.choices(2_000 + number);
    // Entries whose leases are held for long; the next claim does not wait for them.
    let mut slow: JoinSet<Result<(), Failure>> = JoinSet::new();
    while !life.stopped() {
        let events = claim(&life, &mut rng).await?;
        let mut work = JoinSet::new();
        for event in events {
            if event.event_type() == plan::POISON && life.job.poison {
                die();
            }
            let way = if life.job.mischief { rng.random_range(0..1000) } else { 0 };
            let target = if way >= 990 { &mut slow } else { &mut work };
            target.spawn(handle(Arc::clone(&life), event, way, rng.random_range(0..300)));
        }
        while let Some(done) = work.join_next().await {
            done??;
        }
        while let Some(done) = slow.try_join_next() {
            done??;
        }
    }
    while let Some(done) = slow.join_next().await {
        done??;
    }
    Ok(())
}

/// Kills the process, as the poison event does.
fn die() -> ! {
    // SAFETY: kill has no memory effects; the process ends here.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    loop {
        std::thread::park();
    }
}

async fn claim(life: &Life, rng: &mut StdRng) -> Result<Vec<QueuedEvent>, Failure> {
    let lease = i64::try_from(life.job.lease_ms * 1000)?;
    let op = life.recorder.intent(Intent::Claim { worker: life.job.process.clone(), lease })?;
    let consumer = life.queue.consumer();
    let hang_up = life.job.mischief && rng.random_ratio(1, 30);
    let timeout = if hang_up { Duration::from_micros(rng.random_range(0..4_000)) } else { Duration::from_secs(120) };
    let answer = tokio::time::timeout(timeout, consumer.wait_many(life.job.batch, WAIT)).await;
    let (events, outcome) = match answer {
        Ok(Ok(events)) => {
            let claims = events.iter().map(|event| record(event)).collect();
            (events, OpOutcome::Claimed { claims })
        }
        Ok(Err(error)) => (Vec::new(), outcome_of(&error)),
        Err(_) => (Vec::new(), OpOutcome::Unknown { error: "hung up".into() }),
    };
    life.recorder.result(op, outcome.clone())?;
    if !hang_up {
        life.back_off(&outcome).await;
    }
    Ok(events)
}

pub(super) fn record(claimed: &Claimed) -> Claim {
    Claim {
        id: claimed.id.get(),
        generation: claimed.generation,
        token: claimed.token.0,
        attempts: claimed.attempts,
        key: key_of(&claimed.fact.payload),
        claimed_at: claimed.claimed_at.as_microsecond(),
        lease_until: claimed.lease_until.as_microsecond(),
    }
}

/// Handles one entry; `way`, from 0 to 999, chooses what happens to it.
async fn handle(life: Arc<Life>, mut event: QueuedEvent, way: u32, pause_ms: u64) -> Result<(), Failure> {
    let pause = Duration::from_millis(pause_ms);
    match way {
        0..840 if life.job.grouped && pause_ms.is_multiple_of(2) => {
            let intent = finalize(&event, End::Completed);
            own_end::complete(&life, event, intent).await
        }
        0..840 => complete(&life, event, End::Completed).await,
        840..860 => complete(&life, event, End::CompletedWithErrors).await,
        860..910 => give_back(&life, event, false, Duration::ZERO).await,
        910..930 => give_back(&life, event, false, pause).await,
        930..960 => give_back(&life, event, true, pause).await,
        960..970 => {
            // Dropped without an outcome: the library releases it in the background at some time.
            let op = life.recorder.intent(requeue(&event, false))?;
            drop(event);
            Ok(life.recorder.result(op, OpOutcome::Unknown { error: "dropped".into() })?)
        }
        970..990 => {
            extend(&life, &mut event).await?;
            complete(&life, event, End::Completed).await
        }
        990..995 => {
            tokio::time::sleep(life.lease() / 2).await;
            extend(&life, &mut event).await?;
            tokio::time::sleep(life.lease() / 2 + pause).await;
            complete(&life, event, End::Completed).await
        }
        _ => come_too_late(&life, event, pause).await,
    }
}

async fn complete(life: &Life, event: QueuedEvent, end: End) -> Result<(), Failure> {
    let op = life.recorder.intent(finalize(&event, end))?;
    let errors = (end != End::Completed).then(|| r#"["on purpose"]"#.to_owned());
    let outcome = match event.end_as(end, errors, None).await {
        Ok(finalized) => OpOutcome::Finalized { repeated: finalized.repeated, end: finalized.end.code() },
        Err(error) => outcome_of(&error),
    };
    life.recorder.result(op, outcome.clone())?;
    life.back_off(&outcome).await;
    Ok(())
}

async fn give_back(life: &Life, event: QueuedEvent, counts: bool, delay: Duration) -> Result<(), Failure> {
    // A failed last attempt would end the entry, which the recorded intent does not say; release it instead.
    let counts = counts && !event.is_last_attempt();
    let op = life.recorder.intent(requeue(&event, counts))?;
    let answer = if counts {
        event.retry_after(delay, "on purpose").await
    } else if delay.is_zero() {
        event.release().await
    } else {
        event.snooze(delay).await
    };
    let outcome = answer.map_or_else(|error| outcome_of(&error), |()| OpOutcome::Requeued);
    life.recorder.result(op, outcome.clone())?;
    life.back_off(&outcome).await;
    Ok(())
}

async fn extend(life: &Life, event: &mut QueuedEvent) -> Result<(), Failure> {
    let lease = i64::try_from(life.job.lease_ms * 1000)?;
    let op = life.recorder.intent(Intent::Extend { id: event.id.get(), token: event.token.0, lease })?;
    let outcome = match event.extend(life.lease()).await {
        Ok(until) => OpOutcome::Extended { until: until.as_microsecond() },
        Err(error) => outcome_of(&error),
    };
    Ok(life.recorder.result(op, outcome)?)
}

/// Sleeps until the lease has expired and then ends the entry under it, twice.
async fn come_too_late(life: &Life, event: QueuedEvent, pause: Duration) -> Result<(), Failure> {
    let claimed = event.into_parts();
    tokio::time::sleep(life.lease() + pause).await;
    for _ in 0..2 {
        let op = life.recorder.intent(finalize(&claimed, End::Completed))?;
        let (id, token) = (claimed.id, Some(claimed.token));
        let item = Finalize { id, token, end: End::Completed, errors: None, results: None, attempt: None };
        let outcome = match life.queue.finish(item).await {
            Ok(finalized) => OpOutcome::Finalized { repeated: finalized.repeated, end: finalized.end.code() },
            Err(error) => outcome_of(&error),
        };
        life.recorder.result(op, outcome)?;
    }
    Ok(())
}

fn finalize(claimed: &Claimed, end: End) -> Intent {
    let (id, token) = (claimed.id.get(), claimed.token.0);
    Intent::Finalize { id, generation: claimed.generation, token, end: end.code() }
}

fn requeue(claimed: &Claimed, counts: bool) -> Intent {
    Intent::Requeue { id: claimed.id.get(), token: claimed.token.0, counts }
}
