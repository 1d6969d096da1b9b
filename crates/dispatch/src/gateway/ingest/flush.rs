//! Storing many events at once: each is matched with the subscriptions that ask for it, and what is made for all of them
//! is written together.

use std::sync::Arc;

use tidegate::{
    CatalogueVersion, EntryId, Error, EventQueue, FactKey, IngestAnswer, IngestOutcome, Ingested, NewEvent,
};
use tidegate::{Timestamp, Tsid};
use tidegate_core::cloud_event::CloudEvent;
use tidegate_core::event_type::VersionNumber;

use super::NewFact;
use super::judge::Verdict;
use super::keys::keys_of;
use super::plan::{Planned, plan};
use crate::gateway::error::GatewayError;
use crate::gateway::kept::{Kept, Snapshot};
use crate::gateway::made::MadeJobs;
use crate::gateway::subscriptions::{Subscription, Subscriptions};
use crate::gateway::types::Types;

/// What a fact weighs beyond its data, in bytes.
const OVERHEAD: usize = 512;

/// An event that was judged, on its way into the store. A clone costs little.
#[derive(Debug, Clone)]
pub(super) struct Call(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    event: CloudEvent,
    client: Option<Tsid>,
    verdict: Verdict,
    fact: NewEvent,
    keys: Vec<FactKey>,
}

/// What became of an event in a flush.
#[derive(Debug)]
pub(super) enum Flushed {
    /// It is stored.
    Stored(Stored),
    /// Its type has changed since it was judged.
    Outdated,
}

/// An event that is stored, and what was made for it.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) id: Tsid,
    pub(super) created_at: Timestamp,
    /// Stored before; what was made for it then is not known here.
    pub(super) is_repeat: bool,
    pub(super) made: Vec<(EntryId, Arc<Subscription>)>,
}

/// What flushes work with.
#[derive(Debug)]
pub(in crate::gateway) struct Flusher {
    queue: EventQueue,
    types: Arc<Kept<Types>>,
    subscriptions: Kept<Subscriptions>,
    made: Arc<MadeJobs>,
}

/// Types and subscriptions that were read after the events of a flush came.
struct Known {
    types: Snapshot<Types>,
    subscriptions: Snapshot<Subscriptions>,
}

impl Call {
    pub(super) fn new(fact: &NewFact, verdict: Verdict) -> Self {
        let mut event = fact.event.clone();
        // Shown as the version that the event was validated against.
        event.schema_version = verdict.version.or(event.schema_version);
        let mut stored = event.clone().into_fact();
        stored.client = fact.client;
        let keys = keys_of(&event);
        Self(Arc::new(Inner { event, client: fact.client, verdict, fact: stored, keys }))
    }

    pub(super) fn event(&self) -> &CloudEvent {
        &self.0.event
    }

    pub(super) fn client(&self) -> Option<Tsid> {
        self.0.client
    }

    /// The version that it was validated against.
    pub(super) fn version(&self) -> Option<VersionNumber> {
        self.0.verdict.version
    }

    pub(super) fn fact(&self) -> NewEvent {
        self.0.fact.clone()
    }

    pub(super) fn keys(&self) -> Vec<FactKey> {
        self.0.keys.clone()
    }

    pub(super) fn is_grouped(&self) -> bool {
        self.0.event.message_group.is_some()
    }

    pub(super) fn weight(&self) -> usize {
        let attributes = self.0.fact.attributes.as_ref().map_or(0, String::len);
        self.0.fact.payload.len() + attributes + OVERHEAD
    }
}

impl Flusher {
    pub(in crate::gateway) fn new(queue: EventQueue, types: Arc<Kept<Types>>, made: Arc<MadeJobs>) -> Self {
        Self { queue, types, subscriptions: Kept::default(), made }
    }

    /// Stores events. Each of them came before this began.
    pub(super) async fn flush(&self, calls: Vec<Call>) -> Result<Vec<Result<Flushed, Error>>, Error> {
        let known = Known { types: self.types.known(), subscriptions: self.subscriptions.known() };
        if let Some(version) = known.version()
            && let Some(answers) = self.write(&calls, &known, Some(version)).await?
        {
            return Ok(answers);
        }
        let version = self.queue.catalogue_version().await?;
        let types = self.types.at(&self.queue, version).await.map_err(GatewayError::into_store)?;
        let subscriptions = self.subscriptions.at(&self.queue, version).await.map_err(GatewayError::into_store)?;
        let answers = self.write(&calls, &Known { types, subscriptions }, None).await?;
        answers
            .ok_or_else(|| Error::new(tidegate::ErrorKind::Corrupt, "the store found a version stale that none named"))
    }

    /// Writes events, provided that the catalogue still has the version given; `None` if it has another one.
    async fn write(
        &self,
        calls: &[Call],
        known: &Known,
        under: Option<CatalogueVersion>,
    ) -> Result<Option<Vec<Result<Flushed, Error>>>, Error> {
        let plans: Vec<Option<Result<Planned, Error>>> = calls.iter().map(|call| known.plan(call)).collect();
        let items: Vec<_> = plans.iter().flatten().flatten().map(|planned| planned.ingest.clone()).collect();
        let mut written = match self.queue.facts().ingest(items, under).await? {
            IngestAnswer::Done(written) => written.into_iter(),
            IngestAnswer::Stale(_) => return Ok(None),
        };
        let planned = plans.iter().flatten().flatten().flat_map(|planned| &planned.subscriptions);
        self.made.add(planned.filter(|one| one.is_due_at_once()).map(|one| one.id));
        let answer = |plan: Option<Result<Planned, Error>>| match plan {
            None => Ok(Flushed::Outdated),
            Some(Err(error)) => Err(error),
            Some(Ok(planned)) => {
                let lost = || Error::new(tidegate::ErrorKind::Indeterminate, "the store gave no answer for this event");
                Ok(Flushed::Stored(planned.stored(written.next().unwrap_or_else(|| Err(lost()))?)))
            }
        };
        Ok(Some(plans.into_iter().map(answer).collect()))
    }
}

impl Known {
    /// The one version that both are of.
    fn version(&self) -> Option<CatalogueVersion> {
        self.types.version().filter(|version| self.subscriptions.version() == Some(*version))
    }

    /// What to write for an event; `None` if its type has changed since it was judged.
    fn plan(&self, call: &Call) -> Option<Result<Planned, Error>> {
        let holds = call.0.verdict.holds(&call.event().event_type, &self.types);
        holds.then(|| plan(call, &self.subscriptions))
    }
}

impl Planned {
    fn stored(self, ingested: Ingested) -> Stored {
        Stored {
            id: ingested.event_id,
            created_at: ingested.created_at,
            is_repeat: ingested.outcome == IngestOutcome::Duplicate,
            made: ingested.targets.into_iter().zip(self.subscriptions).collect(),
        }
    }
}
