//! Storing many events at once: each is matched with the subscriptions that ask for it, and what is made for all of them
//! is written together.

use std::sync::Arc;

use tidegate::{
    CatalogueVersion, EntryId, Error, ErrorKind, EventQueue, FactKey, Ingest, IngestAnswer, IngestOutcome, Ingested,
    MAX_INGEST_ROWS, NewEvent,
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
    shown: usize,
    /// The version that the event names.
    named: Option<VersionNumber>,
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
    /// How many more were made than are shown.
    pub(super) left_out: usize,
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

/// What is to be written for an event, if it can be; `None` if its type has changed since it was judged.
type Plan = Option<Result<Planned, Error>>;

/// Whom the targets of an event that is written are for, as [`Plan`].
type Written = Option<Result<Vec<Arc<Subscription>>, Error>>;

/// Events that are written together, and what is written for them.
#[derive(Default)]
struct Piece {
    items: Vec<Ingest>,
    events: Vec<Written>,
    rows: usize,
}

impl Call {
    /// An event whose answer shows so many of the entries and jobs that are made for it.
    pub(super) fn new(fact: NewFact, verdict: Verdict, shown: usize) -> Self {
        let NewFact { mut event, client } = fact;
        let named = event.schema_version;
        // Shown as the version that the event was validated against.
        event.schema_version = verdict.version.or(named);
        event.is_unvalidated = verdict.version.is_none() && event.schema_version.is_some();
        let mut stored = event.to_fact();
        stored.client = client;
        let keys = keys_of(&event);
        Self(Arc::new(Inner { event, named, client, verdict, fact: stored, keys, shown }))
    }

    /// The event as it came.
    pub(super) fn into_fact(self) -> NewFact {
        let (named, client) = (self.0.named, self.0.client);
        let mut event = self.into_event();
        event.schema_version = named;
        NewFact { event, client }
    }

    /// The event, without a copy if nobody else has the call any more.
    pub(super) fn into_event(self) -> CloudEvent {
        Arc::try_unwrap(self.0).map_or_else(|shared| shared.event.clone(), |inner| inner.event)
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

    /// How many of the entries and jobs that are made for it its answer shows.
    pub(super) fn shown(&self) -> usize {
        self.0.shown
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

    /// Stores events, in pieces of bounded size. Each of them came before this began.
    pub(super) async fn flush(&self, calls: Vec<Call>) -> Result<Vec<Result<Flushed, Error>>, Error> {
        let mut known = Known { types: self.types.known(), subscriptions: self.subscriptions.known() };
        let mut under = known.version();
        if under.is_none() {
            known = self.present().await?;
        }
        let (mut answers, mut ahead) = (Vec::with_capacity(calls.len()), None);
        while answers.len() < calls.len() {
            let piece = known.piece(&calls[answers.len()..], &mut ahead);
            match self.write(&calls[answers.len()..], piece, under).await {
                Ok(Some(written)) => {
                    // What is known was the present state after the events came. The rest may be written by it, too.
                    under = None;
                    answers.extend(written);
                }
                Ok(None) => (known, under, ahead) = (self.present().await?, None, None),
                Err(error) if answers.is_empty() => return Err(error),
                Err(error) => answers.resize_with(calls.len(), || Err(error.clone())),
            }
        }
        Ok(answers)
    }

    /// Types and subscriptions as they are now.
    async fn present(&self) -> Result<Known, Error> {
        let version = self.queue.catalogue_version().await?;
        let types = self.types.at(&self.queue, version).await.map_err(GatewayError::into_store)?;
        let subscriptions = self.subscriptions.at(&self.queue, version).await.map_err(GatewayError::into_store)?;
        Ok(Known { types, subscriptions })
    }

    /// Writes a piece, whose events are the first of the calls, provided that the catalogue still has the version given;
    /// `None` if it has another one.
    async fn write(
        &self,
        calls: &[Call],
        piece: Piece,
        under: Option<CatalogueVersion>,
    ) -> Result<Option<Vec<Result<Flushed, Error>>>, Error> {
        let mut written = match self.queue.facts().ingest(piece.items, under).await? {
            IngestAnswer::Done(written) => written.into_iter(),
            IngestAnswer::Stale(_) if under.is_some() => return Ok(None),
            IngestAnswer::Stale(_) => {
                return Err(Error::new(ErrorKind::Corrupt, "the store found a version stale that none named"));
            }
        };
        let written_for = piece.events.iter().flatten().flatten().flatten();
        self.made.add(written_for.filter(|one| one.is_due_at_once()).map(|one| one.id));
        let answer = |(call, event): (&Call, Written)| match event {
            None => Ok(Flushed::Outdated),
            Some(Err(error)) => Err(error),
            Some(Ok(subscriptions)) => {
                let lost = || Error::new(ErrorKind::Indeterminate, "the store gave no answer for this event");
                let ingested = written.next().unwrap_or_else(|| Err(lost())).map_err(not_taken)?;
                Ok(Flushed::Stored(Stored::new(ingested, subscriptions, call.shown())))
            }
        };
        Ok(Some(calls.iter().zip(piece.events).map(answer).collect()))
    }
}

/// The error of an event of which the store says that a queue is full, draining or gone. It says no more to the event's
/// publisher: the queue may be another client's.
fn not_taken(error: Error) -> Error {
    if !matches!(error.kind(), ErrorKind::Full | ErrorKind::NotFound) {
        return error;
    }
    tracing::debug!(%error, "a queue does not take the entry of a subscription; its event is refused");
    let text = "the queue of a subscription takes nothing now, because it is full, draining or gone: try again later";
    Error::new(ErrorKind::Full, text)
}

impl Known {
    /// The one version that both are of.
    fn version(&self) -> Option<CatalogueVersion> {
        self.types.version().filter(|version| self.subscriptions.version() == Some(*version))
    }

    /// The next piece: as many of the events as one transaction writes, at least one. `ahead` is the plan of the first one, if
    /// that was made already; what is planned in vain is kept there.
    fn piece(&self, calls: &[Call], ahead: &mut Option<Plan>) -> Piece {
        let mut piece = Piece::default();
        for call in calls {
            let plan = ahead.take().unwrap_or_else(|| self.plan(call));
            let rows = plan.as_ref().and_then(|plan| plan.as_ref().ok()).map_or(0, |planned| planned.ingest.rows());
            if !piece.events.is_empty() && piece.rows + rows > MAX_INGEST_ROWS {
                *ahead = Some(plan);
                break;
            }
            piece.add(plan, rows);
        }
        piece
    }

    /// What to write for an event.
    fn plan(&self, call: &Call) -> Plan {
        let holds = call.0.verdict.holds(&call.event().event_type, &self.types);
        holds.then(|| plan(call, &self.subscriptions))
    }
}

impl Piece {
    fn add(&mut self, plan: Plan, rows: usize) {
        self.rows += rows;
        let write = |planned: Planned| {
            self.items.push(planned.ingest);
            planned.subscriptions
        };
        self.events.push(plan.map(|plan| plan.map(write)));
    }
}

impl Stored {
    /// An event that was written for these subscriptions, of which its answer shows so many.
    fn new(ingested: Ingested, subscriptions: Vec<Arc<Subscription>>, shown: usize) -> Self {
        Self {
            id: ingested.event_id,
            created_at: ingested.created_at,
            is_repeat: ingested.outcome == IngestOutcome::Duplicate,
            left_out: ingested.targets.len().saturating_sub(shown),
            made: ingested.targets.into_iter().zip(subscriptions).take(shown).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidegate::{Resource, ResourceChanges};

    use super::*;

    fn known(subscriptions: i64) -> Known {
        let body = json!({ "status": "ACTIVE", "said": {
            "name": "n", "bindings": [{ "code": "t" }], "target": "https://example.com/", "mode": "IMMEDIATE",
            "timeout_seconds": 30, "max_retries": 3, "max_age_seconds": 60, "delay_seconds": 0, "sequence": 99,
            "data_only": true,
        } });
        let row = |id: i64| Resource {
            id: Tsid::from_i64(id),
            kind: "subscription".into(),
            client: None,
            code: format!("s{id}"),
            version: id,
            deleted: false,
            body: body.to_string(),
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
        };
        let version = CatalogueVersion { number: 1, stamp: 1 };
        let changes = ResourceChanges { version, complete: true, items: (1..=subscriptions).map(row).collect() };
        Known { types: Snapshot::default(), subscriptions: Snapshot::<Subscriptions>::default().after(changes) }
    }

    fn calls(count: usize) -> Vec<Call> {
        let call = |at: usize| {
            let body = json!({ "specversion": "1.0", "id": at.to_string(), "source": "/s", "type": "t" });
            let event = CloudEvent::from_structured(&body.to_string().into()).unwrap();
            Call::new(NewFact { event, client: None }, Verdict { version: None, revision: None }, 100)
        };
        (0..count).map(call).collect()
    }

    /// However many subscriptions ask for how many events, no more is planned at once than one transaction writes.
    #[tokio::test]
    async fn pieces_are_bounded_and_have_every_event_once() {
        for (subscriptions, count, expected) in [
            (300, 100, &[33, 33, 33, 1][..]),
            (6_000, 3, &[1, 1, 1]),
            (10_000, 2, &[1, 1]),
            (0, 50, &[50]),
            (1, 0, &[]),
        ] {
            let (known, calls) = (known(subscriptions), calls(count));
            let (mut done, mut ahead, mut sizes) = (0, None, Vec::new());
            while done < calls.len() {
                let piece = known.piece(&calls[done..], &mut ahead);
                assert_eq!(piece.items.len(), piece.events.len());
                for (call, item) in calls[done..].iter().zip(&piece.items) {
                    assert_eq!((&item.fact.external_id, item.targets.len() as i64), (&call.event().id, subscriptions));
                }
                let rows: usize = piece.items.iter().map(Ingest::rows).sum();
                assert!(rows <= MAX_INGEST_ROWS || piece.items.len() == 1, "{rows}");
                done += piece.events.len();
                sizes.push(piece.events.len());
            }
            assert_eq!(sizes, expected, "{subscriptions} subscriptions");
        }
    }

    #[test]
    fn a_queue_that_takes_nothing_is_told_in_one_way() {
        let told = |kind, text: &'static str| {
            let error = not_taken(Error::new(kind, text));
            (error.kind(), error.to_string())
        };
        let full = told(ErrorKind::Full, "queue secret is full");
        assert_eq!(full, told(ErrorKind::NotFound, "there is no queue secret: create it first"));
        assert!(full.0 == ErrorKind::Full && !full.1.contains("secret"), "{full:?}");
        assert_eq!(told(ErrorKind::Conflict, "a key"), (ErrorKind::Conflict, "a key".into()));
    }
}
