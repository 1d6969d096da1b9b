//! Events as they are shown, each with what was made for it.

use tidegate::{EntryId, Fact, FactTarget, Family, QueueName, Status, StoredFact, Timestamp, Tsid};
use tidegate_core::cloud_event::{CloudEvent, StoredEvent};

use super::flush::{Call, Stored};
use super::plan::job_id;
use crate::gateway::jobs::JobStatus;
use crate::gateway::subscriptions::Target;

/// A stored event.
#[derive(Debug, Clone)]
pub struct EventView {
    /// Its id.
    pub id: Tsid,
    /// When it was stored, in database time.
    pub created_at: Timestamp,
    /// The client that it belongs to.
    pub client: Option<Tsid>,
    /// The event.
    pub event: CloudEvent,
    /// The jobs that were made for it.
    pub jobs: Vec<EventJob>,
    /// The entries that were made for it.
    pub entries: Vec<EventEntry>,
    /// Whether more were made than are shown.
    pub is_cut: bool,
    /// How many more, at most: some may be gone. `None` where that would tell of what belongs to others.
    pub left_out: Option<usize>,
}

/// A job of an event.
#[derive(Debug, Clone)]
pub struct EventJob {
    /// Its id.
    pub id: Tsid,
    /// The subscription that it was made for.
    pub subscription: Option<Tsid>,
    /// The client whose job it is; `None` for one of the anchor level.
    pub client: Option<Tsid>,
    /// Where it is in its life, in the source's words.
    pub status: &'static str,
}

/// An entry of an event.
#[derive(Debug, Clone)]
pub struct EventEntry {
    /// Its number.
    pub id: EntryId,
    /// Its queue.
    pub queue: QueueName,
    /// Where it is in its life.
    pub status: Status,
}

impl EventView {
    /// An event that was just stored.
    pub(super) fn of_new(call: Call, stored: Stored) -> Self {
        let (mut jobs, mut entries) = (Vec::new(), Vec::new());
        for (number, subscription) in stored.made {
            match &subscription.body.target {
                Target::Webhook(_) => jobs.push(EventJob {
                    id: job_id(stored.created_at, number.get()),
                    subscription: Some(subscription.id),
                    client: subscription.client,
                    status: JobStatus::Queued.as_str(),
                }),
                Target::Queue(name) => {
                    // The queue took the entry, so its name is valid.
                    let Ok(queue) = QueueName::of(subscription.client, name) else { continue };
                    entries.push(EventEntry { id: number, queue, status: Status::Pending });
                }
            }
        }
        let client = call.client();
        let event = call.into_event();
        let (is_cut, left_out) = cut(stored.left_out);
        Self { id: stored.id, created_at: stored.created_at, client, event, jobs, entries, is_cut, left_out }
    }

    /// An event as the store has it, with so many of its targets as were asked for.
    pub(in crate::gateway) fn of_stored(stored: StoredFact, asked: usize) -> Self {
        let fact = &stored.fact;
        let event = event_of(fact);
        let (created_at, client) = (fact.created_at, fact.client);
        // Where there are fewer than were asked for, the others are gone.
        let (is_cut, left_out) = cut(if stored.targets.len() < asked { 0 } else { stored.made.saturating_sub(asked) });
        let (jobs, entries): (Vec<_>, Vec<_>) =
            stored.targets.into_iter().partition(|target| target.family == Family::Jobs);
        Self {
            id: stored.id,
            created_at,
            client,
            event,
            jobs: jobs.into_iter().map(|job| EventJob::of(job, created_at)).collect(),
            entries: entries.into_iter().map(EventEntry::of).collect(),
            is_cut,
            left_out,
        }
    }
}

impl EventView {
    /// The event with those jobs and entries alone that belong to this client (`None`: with all).
    #[must_use]
    pub fn seen_by(mut self, client: Option<Tsid>) -> Self {
        if client.is_some() {
            self.jobs.retain(|job| job.client == client);
            self.entries.retain(|entry| entry.queue.client() == client);
            self.left_out = None;
        }
        self
    }
}

/// The event that a fact keeps.
pub(crate) fn event_of(fact: &Fact) -> CloudEvent {
    CloudEvent::from_stored(&StoredEvent {
        event_type: &fact.event_type,
        payload: &fact.payload,
        content_type: fact.content_type.as_deref(),
        source: fact.source.as_deref(),
        subject: fact.subject.as_deref(),
        time: fact.time,
        external_id: fact.external_id.as_deref(),
        correlation_id: fact.correlation_id.as_deref(),
        causation_id: fact.causation_id.as_deref(),
        attributes: fact.attributes.as_deref(),
    })
}

/// Whether anything is left out, and how much.
fn cut(left_out: usize) -> (bool, Option<usize>) {
    (left_out > 0, Some(left_out).filter(|left_out| *left_out > 0))
}

impl EventJob {
    pub(in crate::gateway) fn of(target: FactTarget, created_at: Timestamp) -> Self {
        let status = JobStatus::from(&target.phase).as_str();
        let subscription = target.lane_type.as_deref().and_then(|lane| lane.parse().ok());
        let client = target.queue.client();
        // Of a job that was made later, its own moment counts.
        let made_at = target.made_at.unwrap_or(created_at);
        Self { id: job_id(made_at, target.id.get()), subscription, client, status }
    }
}

impl EventEntry {
    fn of(target: FactTarget) -> Self {
        Self { id: target.id, queue: target.queue, status: target.phase.status() }
    }
}
