//! Publishers: publish the process's share singly, in batches and in own transactions, some of which are rolled back.

use std::sync::{Arc, Mutex};

use rand::Rng;

use super::job::Failure;
use super::life::{Life, outcome_of};
use super::outbox;
use super::plan::{self, Plan, Planned, answer, split};
use crate::history::{Answer, Intent, Offer, OpOutcome};

/// Publishes with several tasks until nothing is left, and then notes `published`.
pub(super) async fn run(life: Arc<Life>, plan: Plan) -> Result<(), Failure> {
    let plan = Arc::new(Mutex::new(plan));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..life.job.publishers {
        tasks.spawn(publisher(Arc::clone(&life), Arc::clone(&plan), number as u64));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    if !life.stopped() {
        life.recorder.note("published")?;
    }
    Ok(())
}

async fn publisher(life: Arc<Life>, plan: Arc<Mutex<Plan>>, number: u64) -> Result<(), Failure> {
    let mut rng = life.choices(1_000 + number);
    let mut outbox = outbox::Outbox::new(&life.job.address);
    let plan = || plan.lock().map_err(|_| "another publisher panicked");
    for round in 0_u64.. {
        if life.stopped() {
            break;
        }
        let way = if life.job.grouped && rng.random() { 95 } else { rng.random_range(0..100) };
        let planned = plan()?.take(if way < 70 {
            1
        } else if way < 90 {
            rng.random_range(2..50)
        } else {
            2
        });
        if planned.is_empty() {
            break;
        }
        let offers: Vec<Offer> = planned.iter().map(|planned| planned.offer.clone()).collect();
        let outcome = match way {
            0..70 => one(&life, planned).await?,
            70..90 => many(&life, planned).await?,
            _ => outbox::publish(&life, &mut outbox, planned, rng.random(), true).await?,
        };
        life.back_off(&outcome).await;
        plan()?.put_back(&offers, &outcome);
        if way >= 97 {
            let key = format!("{}/rolled-back/{}/{number}/{round}", life.job.process, life.incarnation);
            let extra = vec![plan::extra(key, "sim.order", 20)];
            outbox::publish(&life, &mut outbox, extra, rng.random(), false).await?;
        }
    }
    Ok(())
}

/// Publishes the poison event, which kills its worker.
pub(super) async fn poison(life: &Life) -> Result<(), Failure> {
    let event = plan::extra(format!("{}/poison", life.job.process), plan::POISON, life.job.max_attempts);
    match one(life, vec![event]).await? {
        OpOutcome::Published { .. } => Ok(()),
        other => Err(format!("the poison event was not published: {other:?}").into()),
    }
}

async fn one(life: &Life, planned: Vec<Planned>) -> Result<OpOutcome, Failure> {
    let (offers, mut events) = split(planned);
    let Some(event) = events.pop() else { return Ok(OpOutcome::RolledBack) };
    let op = life.recorder.intent(Intent::Publish { offers, outbox: false })?;
    let outcome = match life.queue.publish(event).await {
        Ok(published) => OpOutcome::Published { answers: vec![answer(&published)] },
        Err(error) => outcome_of(&error),
    };
    life.recorder.result(op, outcome.clone())?;
    Ok(outcome)
}

async fn many(life: &Life, planned: Vec<Planned>) -> Result<OpOutcome, Failure> {
    let (offers, events) = split(planned);
    let op = life.recorder.intent(Intent::Publish { offers, outbox: false })?;
    let answers = life.queue.publish_many(events).await;
    let answers = answers.iter().map(|published| match published {
        Ok(published) => answer(published),
        Err(error) => match outcome_of(error) {
            OpOutcome::Unknown { error } => Answer::Unknown { error },
            OpOutcome::Denied { error } => Answer::Denied { error },
            _ => Answer::Refused { error: error.to_string() },
        },
    });
    let outcome = OpOutcome::Published { answers: answers.collect() };
    life.recorder.result(op, outcome.clone())?;
    Ok(outcome)
}
