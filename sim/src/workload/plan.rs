//! The events a process publishes: which are left after a restart, and which are published again. Pure.

use std::collections::HashSet;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidegate::{NewEvent, PublishOutcome, Published};

use super::job::Job;
use crate::history::{Answer, Intent, Offer, Op, OpOutcome};

/// The type of the poison event, which kills its worker.
pub(super) const POISON: &str = "sim.poison";
const TYPES: [&str; 3] = ["sim.order", "sim.mail", "sim.invoice"];

/// The type of events for handlers. The first line of the payload is the key, as in all others, but as a JSON string.
pub(super) const TASK: &str = "sim.task";

/// Hashes several numbers into one.
pub(super) fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |sum, part| {
        let mixed = (sum ^ part).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 29)
    })
}

/// A hash of a name (FNV-1a), the same in every process.
pub(super) fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// One event to be published.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub(super) offer: Offer,
    pub(super) event: NewEvent,
}

/// What is left to publish.
#[derive(Debug)]
pub(super) struct Plan {
    job: Job,
    next: u64,
    /// Numbers of deduplicated events that may not be stored. Publishing them again must not duplicate them.
    again: Vec<u64>,
}

impl Plan {
    /// Continues where earlier incarnations of the process stopped.
    pub(super) fn resume(job: &Job, past: &[Op]) -> Self {
        let mut next = 0;
        let mut unknown = HashSet::new();
        for op in past {
            let Intent::Publish { offers, .. } = &op.intent else { continue };
            for (index, offer) in offers.iter().enumerate() {
                let Some(number) = number(offer) else { continue };
                next = next.max(number + 1);
                let there = matches!(&op.outcome, Some(OpOutcome::Published { answers })
                    if matches!(answers.get(index), Some(Answer::Created { .. } | Answer::Duplicate { .. })));
                if there {
                    unknown.remove(&number);
                } else if offer.once {
                    unknown.insert(number);
                }
            }
        }
        let mut again: Vec<u64> = unknown.into_iter().collect();
        again.sort_unstable();
        Self { job: job.clone(), next, again }
    }

    /// Takes the next events, at most `most`.
    pub(super) fn take(&mut self, most: usize) -> Vec<Planned> {
        if let Some(number) = self.again.pop() {
            return vec![event(&self.job, number)];
        }
        let end = self.job.events.min(self.next + most as u64);
        let taken = (self.next..end).map(|number| event(&self.job, number)).collect();
        self.next = self.next.max(end);
        taken
    }

    /// Plans to publish again what was denied or has an unknown result. Only deduplicated events: of others, a second
    /// publish would be a second event.
    pub(super) fn put_back(&mut self, offers: &[Offer], outcome: &OpOutcome) {
        let open = offers.iter().enumerate().filter(|(index, offer)| offer.once && is_open(outcome, *index));
        self.again.extend(open.filter_map(|(_, offer)| number(offer)));
    }
}

/// The number of a planned event; `None` for extra events.
fn number(offer: &Offer) -> Option<u64> {
    offer.key.rsplit_once('#').and_then(|(_, number)| number.parse().ok())
}

/// Whether an event of a publish may be missing although another try could succeed.
fn is_open(outcome: &OpOutcome, index: usize) -> bool {
    match outcome {
        OpOutcome::Denied { .. } | OpOutcome::Unknown { .. } => true,
        OpOutcome::Published { answers } => {
            matches!(answers.get(index), None | Some(Answer::Denied { .. } | Answer::Unknown { .. }))
        }
        _ => false,
    }
}

/// The event of a process with this number; the same at every call.
fn event(job: &Job, number: u64) -> Planned {
    let mut rng = StdRng::seed_from_u64(mix(&[job.seed, hash(&job.process), number]));
    let key = format!("{}#{number}", job.process);
    // Scenarios that must publish all events deduplicate all, so that each can be repeated after a kill or a denial.
    let once = rng.random_ratio(1, 8) || job.handlers.is_some() || job.grouped;
    let group = (job.groups > 0 && (job.grouped || rng.random_ratio(1, 5)))
        .then(|| format!("g{}", rng.random_range(0..job.groups)));
    let padding = rng.random_range(0..200);
    let mut event = match job.handlers {
        Some(_) => NewEvent::new(TASK, format!("\"{key}\"\n{}", " ".repeat(padding))),
        None => NewEvent::new(TYPES[rng.random_range(0..TYPES.len())], format!("{key}\n{}", "x".repeat(padding))),
    };
    event.max_attempts = job.max_attempts;
    if rng.random_ratio(1, 10) {
        event = event.priority(rng.random_range(-3..=3));
    }
    if rng.random_ratio(1, 10) {
        event = event.delay(Duration::from_millis(rng.random_range(1..500)));
    }
    if let Some(group) = &group {
        event = event.group(group);
    }
    if once {
        event = event.deduplicate(&key);
    }
    Planned { offer: Offer { key, group, once }, event }
}

/// An event outside the plan, which is never published again.
pub(super) fn extra(key: String, event_type: &str, max_attempts: u32) -> Planned {
    let mut event = NewEvent::new(event_type, format!("{key}\n"));
    event.max_attempts = max_attempts;
    Planned { offer: Offer { key, group: None, once: false }, event }
}

/// The offers and the events of what is planned.
pub(super) fn split(planned: Vec<Planned>) -> (Vec<Offer>, Vec<tidegate::NewEvent>) {
    planned.into_iter().map(|planned| (planned.offer, planned.event)).unzip()
}

/// What a publish answered, for the history.
pub(super) fn answer(published: &Published) -> Answer {
    let id = published.id.get();
    match published.outcome {
        PublishOutcome::Duplicate => Answer::Duplicate { id },
        PublishOutcome::Created | PublishOutcome::Replaced => Answer::Created { id },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            process: "w1".into(),
            folder: "/".into(),
            address: "sqlite:x".into(),
            seed: 7,
            events: 100,
            publishers: 1,
            consumers: 1,
            batch: 10,
            lease_ms: 1000,
            groups: 4,
            census_ms: None,
            mischief: true,
            poison: false,
            max_attempts: 20,
            handlers: None,
            grouped: false,
            environment: Vec::new(),
        }
    }

    fn publish(offers: Vec<Offer>, outcome: Option<OpOutcome>) -> Op {
        let intent = Intent::Publish { offers, outbox: false };
        Op { process: "w1.0000".into(), begun: 0, answered: None, intent, outcome }
    }

    #[test]
    fn a_life_goes_on_where_the_last_one_stopped() {
        let all = Plan::resume(&job(), &[]).take(1000);
        assert_eq!(all.len(), 100);
        let once: Vec<&Planned> = all.iter().filter(|planned| planned.offer.once).collect();
        assert!(once.len() > 2, "some are deduplicated");
        let known = OpOutcome::Published { answers: vec![Answer::Created { id: 1 }] };
        let past = [
            publish(vec![once[0].offer.clone()], Some(known)),
            publish(vec![once[1].offer.clone()], None),
            publish(vec![all[40].offer.clone()], None),
        ];
        let mut plan = Plan::resume(&job(), &past);
        assert_eq!(plan.take(5)[0].offer, once[1].offer, "an unknown deduplicated event comes again");
        let next = plan.take(1000);
        assert_eq!(next.last().map(|planned| planned.offer.key.as_str()), Some("w1#99"));
        assert!(plan.take(1).is_empty());
    }

    #[test]
    fn what_was_denied_or_is_unknown_is_offered_again_where_that_doubles_nothing() {
        let mut plan = Plan::resume(&job(), &[]);
        let all: Vec<Offer> = plan.take(1000).into_iter().map(|planned| planned.offer).collect();
        let (once, plain): (Vec<Offer>, Vec<Offer>) = all.into_iter().partition(|offer| offer.once);
        let denied = || OpOutcome::Denied { error: "busy".into() };
        let refused = OpOutcome::Refused { error: "invalid".into() };
        for outcome in [refused, OpOutcome::RolledBack] {
            plan.put_back(&once, &outcome);
        }
        plan.put_back(&plain, &denied());
        assert!(plan.take(1).is_empty());

        plan.put_back(&once[..1], &denied());
        assert_eq!(plan.take(5)[0].offer, once[0]);
        plan.put_back(&once[..1], &OpOutcome::Unknown { error: "lost".into() });
        assert_eq!(plan.take(5)[0].offer, once[0]);
        let answers = vec![
            Answer::Created { id: 1 },
            Answer::Denied { error: "busy".into() },
            Answer::Unknown { error: "lost".into() },
        ];
        plan.put_back(&once[..3], &OpOutcome::Published { answers });
        let mut again: Vec<Offer> = (0..2).flat_map(|_| plan.take(5)).map(|planned| planned.offer).collect();
        again.sort_by_key(number);
        assert_eq!(again, once[1..3]);
        assert!(plan.take(1).is_empty(), "nothing is left");
    }

    #[test]
    fn events_are_the_same_each_time() {
        for number in 0..50 {
            assert_eq!(event(&job(), number).event, event(&job(), number).event);
        }
    }
}
