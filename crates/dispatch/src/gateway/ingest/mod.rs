//! Ingest: an event is judged by its type, matched with the subscriptions that ask for it, and stored together with what is
//! made for them.
//!
//! An event is judged in its caller's own task, and matched in the flush that stores it, against types and subscriptions
//! that were read after the event came. A flush first goes by what this node has in memory, provided that the store
//! finds no newer catalogue version in the transaction that writes; only if it does, the version is read anew. So a change
//! that was answered on any node is seen by the next event on every node, and a flood of changes stops nothing.

mod answer;
mod flush;
mod judge;
mod keys;
mod meters;
mod plan;

use std::sync::Arc;

use tidegate::batcher::Batcher;
use tidegate::{EventQueue, MAX_TARGETS, Tsid};
use tidegate_core::cloud_event::CloudEvent;

use super::Gateway;
use super::error::{GatewayError, Result};

pub use answer::{EventEntry, EventJob, EventView};

pub(crate) use answer::event_of;
pub(super) use flush::Flusher;
pub(super) use meters::Meters;
pub(crate) use plan::{JOBS, job_id};
pub(super) use plan::{context_term, group_of, group_term, target_of};

use flush::{Call, Flushed, Stored};
use judge::Judgement;

/// How often an event is judged again because its type has changed meanwhile.
const JUDGEMENTS: usize = 8;

/// How many jobs and entries of each event an answer about several events shows.
pub(super) const SHOWN_OF_EACH: usize = 100;

/// An event to be stored.
#[derive(Debug, Clone)]
pub struct NewFact {
    /// The event.
    pub event: CloudEvent,
    /// The client that it belongs to.
    pub client: Option<Tsid>,
}

/// An event that is stored.
#[derive(Debug, Clone)]
pub struct Accepted {
    /// The event, with what was made for it.
    pub view: EventView,
    /// Whether it was stored before, under one of its keys; nothing was written then.
    pub deduplicated: bool,
    /// What its sender should know, such as that the version it names is deprecated.
    pub warnings: Vec<String>,
}

/// The batchers of ingest: events in message groups have one of their own, whose flushes run one after the other, so that
/// a group is ordered by them.
#[derive(Debug)]
pub(super) struct Batchers {
    plain: Batcher<Call, Flushed>,
    grouped: Batcher<Call, Flushed>,
}

impl Batchers {
    pub(super) fn new(queue: &EventQueue, flusher: &Arc<Flusher>) -> Self {
        let batcher = |name, on_postgres| {
            let flusher = Arc::clone(flusher);
            Batcher::new(name, queue.batcher_limits(on_postgres), Call::weight, move |calls| {
                let flusher = Arc::clone(&flusher);
                async move { flusher.flush(calls).await }
            })
        };
        // A key may wait for another flush that has taken it, so several run at once.
        Self { plain: batcher("ingest", 4), grouped: batcher("ingest_grouped", 1) }
    }

    fn of(&self, call: &Call) -> &Batcher<Call, Flushed> {
        if call.is_grouped() { &self.grouped } else { &self.plain }
    }
}

impl Gateway {
    /// Stores an event, and makes an entry or a job for every subscription that asks for it, in one transaction.
    ///
    /// # Errors
    /// `Unprocessable` when it is not valid by its type, or one of its keys stands for another event; `Conflict` when it
    /// cannot be judged because its type keeps changing; or the store's.
    pub async fn ingest(&self, fact: NewFact) -> Result<Accepted> {
        let answer = self.ingest_one(fact).await;
        self.meters.count(&answer);
        answer
    }

    async fn ingest_one(&self, mut fact: NewFact) -> Result<Accepted> {
        for _ in 0..JUDGEMENTS {
            let (call, warnings) = self.judged(fact, MAX_TARGETS).await?;
            let flushed = self.batchers.of(&call).call(call.clone()).await.map_err(GatewayError::from_ingest)?;
            if let Flushed::Stored(stored) = flushed {
                return self.accepted(call, stored, warnings).await;
            }
            fact = call.into_fact();
        }
        Err(keeps_changing(&fact))
    }

    /// Stores events in order, each with an answer of its own; see [`ingest`](Self::ingest). Several flushes may take
    /// them, one after the other. Of each event, the first 100 jobs and entries are shown.
    pub async fn ingest_many(&self, facts: Vec<NewFact>) -> Vec<Result<Accepted>> {
        let mut answers: Vec<Option<Result<Accepted>>> = facts.iter().map(|_| None).collect();
        for _ in 0..JUDGEMENTS {
            let mut calls = Vec::new();
            for (at, (fact, answer)) in facts.iter().zip(&mut answers).enumerate() {
                if answer.is_some() {
                    continue;
                }
                match self.judged(fact.clone(), SHOWN_OF_EACH).await {
                    Ok((call, warnings)) => calls.push((at, call, warnings)),
                    Err(error) => *answer = Some(Err(error)),
                }
            }
            if calls.is_empty() {
                break;
            }
            // Of one batcher, so that they are stored in order.
            let grouped = calls.iter().any(|(_, call, _)| call.is_grouped());
            let batcher = if grouped { &self.batchers.grouped } else { &self.batchers.plain };
            let flushed = batcher.call_many(calls.iter().map(|(_, call, _)| call.clone()).collect()).await;
            for ((at, call, warnings), flushed) in calls.into_iter().zip(flushed) {
                match flushed {
                    Ok(Flushed::Stored(stored)) => {
                        let accepted = self.accepted(call, stored, warnings).await;
                        set(&mut answers, at, accepted);
                    }
                    Ok(Flushed::Outdated) => {}
                    Err(error) => set(&mut answers, at, Err(GatewayError::from_ingest(error))),
                }
            }
        }
        let unanswered = facts.iter().map(keeps_changing);
        let answers = answers.into_iter().zip(unanswered).map(|(answer, error)| answer.unwrap_or(Err(error)));
        answers.inspect(|answer| self.meters.count(answer)).collect()
    }

    /// An event with the judgement on it, ready to be flushed. Its answer will show so many jobs and entries.
    async fn judged(&self, fact: NewFact, shown: usize) -> Result<(Call, Vec<String>)> {
        let Judgement { verdict, warnings } = self.judge(&fact.event).await?;
        Ok((Call::new(fact, verdict, shown), warnings))
    }

    async fn accepted(&self, call: Call, stored: Stored, warnings: Vec<String>) -> Result<Accepted> {
        let deduplicated = stored.is_repeat;
        let first = if deduplicated { self.stored_event(stored.id, call.shown()).await? } else { None };
        // A repeat outlives its first, which retention may have removed: all that is known of it is what was sent again.
        let view = first.unwrap_or_else(|| EventView::of_new(call, stored));
        Ok(Accepted { view, deduplicated, warnings })
    }
}

fn set<T>(answers: &mut [Option<T>], at: usize, answer: T) {
    if let Some(slot) = answers.get_mut(at) {
        *slot = Some(answer);
    }
}

fn keeps_changing(fact: &NewFact) -> GatewayError {
    GatewayError::Conflict(format!("the event type {} keeps changing; try again", fact.event.event_type))
}
