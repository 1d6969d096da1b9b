//! Stored events: shown, listed, and tried on a subscription.

use tidegate::{FactsQuery, MAX_TARGETS, Timestamp, Tsid, TypeFilter};
use tidegate_core::cloud_event::CloudEvent;
use tidegate_core::event_type::InvalidCode;
use tidegate_core::filter::Candidate;

use super::Gateway;
use super::error::{GatewayError, Result};
use super::ingest::{EventView, SHOWN_OF_EACH, context_term, group_term};
use super::subscriptions::Subscription;
use super::tasks::task_of;

/// How many of the last events a preview looks at.
const LOOKED_AT: usize = 1_000;
/// How many it reads at once.
const STEP: usize = 100;

/// Which events to list, youngest first.
#[derive(Debug, Clone, Default)]
pub struct EventsQuery {
    /// Only those of this client (`Some(None)`: of none); of all if `None`.
    pub client: Option<Option<Tsid>>,
    /// Only those of these types.
    pub event_type: Option<TypeFilter>,
    /// Only those from there.
    pub source: Option<String>,
    /// Only those about this.
    pub subject: Option<String>,
    /// Only those with this id of their producer.
    pub external_id: Option<String>,
    /// Only those of this request.
    pub correlation_id: Option<String>,
    /// Only those in this message group.
    pub message_group: Option<String>,
    /// Only those with all these pairs of context data.
    pub context: Vec<(String, String)>,
    /// Only those stored at this moment or later.
    pub from: Option<Timestamp>,
    /// Only those stored before this moment.
    pub to: Option<Timestamp>,
    /// Only those older than this one.
    pub before: Option<Tsid>,
    /// At most so many.
    pub limit: usize,
}

/// A page of events. It may hold fewer than were asked for although there are more.
#[derive(Debug)]
pub struct EventsPage {
    /// The events.
    pub events: Vec<EventView>,
    /// Where the next page begins, if there may be one.
    pub next: Option<Tsid>,
}

/// Reads a type, or a code of four parts of which any may be `*`.
///
/// # Errors
/// When a text with `*` is no such code; the message says what to change.
pub fn type_filter(text: &str) -> Result<TypeFilter, InvalidCode> {
    match text.contains('*') {
        true => text.parse().map(TypeFilter::Pattern),
        false => Ok(TypeFilter::Exact(text.to_owned())),
    }
}

impl EventsQuery {
    fn facts(&self) -> FactsQuery {
        let pairs = self.context.iter().map(|(key, value)| context_term(key, value));
        let group = self.message_group.iter().map(|group| group_term(group));
        FactsQuery {
            client: self.client,
            event_type: self.event_type.clone(),
            source: self.source.clone(),
            subject: self.subject.clone(),
            external_id: self.external_id.clone(),
            correlation_id: self.correlation_id.clone(),
            terms: pairs.chain(group).collect(),
            from: self.from,
            to: self.to,
            before: self.before,
            limit: self.limit,
            targets: SHOWN_OF_EACH,
        }
    }
}

impl Gateway {
    /// An event by its id, if it belongs to this client (`None`: whoever it belongs to), with what belongs to the client.
    ///
    /// # Errors
    /// `NotFound`, or the store's.
    pub async fn event(&self, id: Tsid, client: Option<Tsid>) -> Result<EventView> {
        let missing = || GatewayError::NotFound(format!("there is no event {id}"));
        let found = self.stored_event(id, MAX_TARGETS).await?.ok_or_else(missing)?;
        if client.is_some() && found.client != client {
            return Err(missing());
        }
        Ok(found.seen_by(client))
    }

    /// An event by its id with so many of its jobs and entries; `None` if there is none.
    pub(super) async fn stored_event(&self, id: Tsid, shown: usize) -> Result<Option<EventView>> {
        let found = self.queue.facts().get(vec![id], shown).await?.pop().flatten();
        // What is delivered by a task is no event.
        let found = found.filter(|found| task_of(&found.targets).is_none());
        Ok(found.map(|found| EventView::of_stored(found, shown)))
    }

    /// Lists events, each with its first 100 jobs and entries.
    ///
    /// # Errors
    /// `Invalid` when a filter is out of range, or the store's.
    pub async fn events(&self, query: &EventsQuery) -> Result<EventsPage> {
        let page = self.queue.facts().find(query.facts()).await?;
        let seen = |fact| EventView::of_stored(fact, SHOWN_OF_EACH).seen_by(query.client.flatten());
        let events = page.facts.into_iter().map(seen).collect();
        Ok(EventsPage { events, next: page.next })
    }

    /// Which of the last events a subscription would have taken, as it is now, paused or not: at most `limit`, youngest
    /// first.
    ///
    /// # Errors
    /// `NotFound`, or the store's.
    pub async fn preview(&self, id: Tsid, client: Option<Tsid>, limit: usize) -> Result<Vec<EventView>> {
        let subscription = self.subscription(id, client).await?;
        let mut query = EventsQuery { client: subscription.client.map(Some), limit: STEP, ..EventsQuery::default() };
        let mut taken = Vec::new();
        for _ in 0..LOOKED_AT / STEP {
            let page = self.events(&query).await?;
            taken.extend(page.events.into_iter().filter(|view| subscription.takes(&view.event)));
            query.before = page.next;
            if taken.len() >= limit || page.next.is_none() {
                break;
            }
        }
        taken.truncate(limit);
        Ok(taken)
    }
}

impl Subscription {
    /// Whether it asks for an event, and its filter takes it.
    pub(super) fn takes(&self, event: &CloudEvent) -> bool {
        let version = event.validated_version();
        self.asked().iter().any(|binding| binding.matches(&event.event_type, version))
            && self.accepts(&Candidate::new(event))
    }
}
