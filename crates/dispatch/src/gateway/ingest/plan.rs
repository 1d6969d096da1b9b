//! What is made for an event: an entry or a job for every subscription that asks for it and whose filter takes it.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Availability, Error, FactTerm, Family, Ingest, MAX_TERMS, QueueName, Target as Made, Tsid};
use tidegate_core::attempt::{MAX_TAGS, check_tag};
use tidegate_core::cloud_event::{CloudEvent, MAX_CONTEXT_DATA};
use tidegate_core::filter::Candidate;
use tidegate_core::{End, Expiry, NewEvent};

use super::flush::Call;
use crate::gateway::subscriptions::{DispatchMode, Subscription, Subscriptions, Target};

/// The queue of a client's jobs.
pub(crate) const JOBS: &str = "dispatch";
/// The name under which message groups are searched.
pub(super) const MESSAGE_GROUP: &str = "messagegroup";
/// What the names begin with under which context data are searched.
pub(super) const CONTEXT: &str = "context.";

// An event is found by each of its pairs and by its message group.
const _: () = assert!(MAX_CONTEXT_DATA < MAX_TERMS);

/// An event to be written, and whom its targets are for, in their order.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) ingest: Ingest,
    pub(super) subscriptions: Vec<Arc<Subscription>>,
}

/// Plans what is made for an event under these subscriptions.
pub(super) fn plan(call: &Call, subscriptions: &Subscriptions) -> Result<Planned, Error> {
    let event = call.event();
    let asking = subscriptions.asking(call.client(), &event.event_type, call.version());
    let candidate = Candidate::new(event);
    let wanting: Vec<Arc<Subscription>> = asking.into_iter().filter(|one| one.accepts(&candidate)).cloned().collect();
    let targets = wanting.iter().map(|one| target_of(one, event)).collect::<Result<Vec<_>, _>>()?;
    let mut fact = call.fact();
    if targets.iter().any(|target| target.family == Family::Entries) {
        label(&mut fact, event);
    }
    let mut ingest = Ingest::new(fact, targets);
    (ingest.keys, ingest.terms, ingest.stands_alone) = (call.keys(), terms(event), true);
    Ok(Planned { ingest, subscriptions: wanting })
}

/// What is made for one subscription.
pub(in crate::gateway) fn target_of(subscription: &Subscription, event: &CloudEvent) -> Result<Made, Error> {
    let body = &subscription.body;
    let mut target = match &body.target {
        Target::Queue(name) => {
            let mut target = Made::new(QueueName::of(subscription.client, name)?);
            target.group = event.message_group.as_deref().map(|group| group_of(subscription, Some(group)));
            target.in_envelope = !body.data_only;
            target.retries_of_queue = true;
            target
        }
        Target::Webhook(_) => {
            let mut target = Made::new(QueueName::of(subscription.client, JOBS)?);
            target.family = Family::Jobs;
            target.lane_type = Some(subscription.id.to_string());
            if body.mode != DispatchMode::Immediate {
                target.group = Some(group_of(subscription, event.message_group.as_deref()));
                target.rank = event.order().unwrap_or(body.sequence);
            }
            target.keeps_place = body.mode == DispatchMode::BlockOnError;
            target.max_attempts = body.max_retries.saturating_add(1);
            target.exhausted_as = End::Failed;
            target
        }
    };
    if body.delay_seconds > 0 {
        target.available = Availability::After(seconds(body.delay_seconds));
    }
    target.expires = Some(Expiry::After(seconds(body.max_age_seconds)));
    Ok(target)
}

fn seconds(count: u32) -> Duration {
    Duration::from_secs(count.into())
}

/// The group of what is made for a subscription.
pub(in crate::gateway) fn group_of(subscription: &Subscription, group: Option<&str>) -> String {
    match group {
        Some(group) => format!("{}:{group}", subscription.code),
        None => subscription.code.clone(),
    }
}

/// Gives a fact the title and the tags by which workers find its entries.
fn label(fact: &mut NewEvent, event: &CloudEvent) {
    let title = event.subject.as_ref().unwrap_or(&event.event_type);
    fact.title = Some(title.clone());
    let pairs = event.context_data.iter().map(|pair| format!("{}:{}", pair.key, pair.value));
    for tag in std::iter::once(event.event_type.clone()).chain(pairs) {
        if fact.tags.len() < MAX_TAGS && check_tag(&tag).is_ok() && !fact.tags.contains(&tag) {
            fact.tags.push(tag);
        }
    }
}

/// The terms by which an event is found.
fn terms(event: &CloudEvent) -> Vec<FactTerm> {
    let pairs = event.context_data.iter().map(|pair| context_term(&pair.key, &pair.value));
    let group = event.message_group.iter().map(|group| group_term(group));
    pairs.chain(group).collect()
}

/// The term of a pair of context data.
pub(in crate::gateway) fn context_term(key: &str, value: &str) -> FactTerm {
    FactTerm::new(format!("{CONTEXT}{key}"), value)
}

/// The term of a message group.
pub(in crate::gateway) fn group_term(group: &str) -> FactTerm {
    FactTerm::new(MESSAGE_GROUP, group)
}

/// The id of a job or an entry that was made at a moment.
pub(crate) fn job_id(created_at: tidegate::Timestamp, number: i64) -> Tsid {
    Tsid::from_parts(created_at.as_millisecond(), number)
}
