//! A store in memory over the domain's model, whose verbs a test can hold back, make fail and count.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tidegate::*;
use tidegate_core::model::{Model, PublishOutcome as Outcome};
use tidegate_core::{Input, Refusal, entry::later};
use tidegate_store::*;
use tokio::sync::{Semaphore, broadcast};

use crate::other_subjects::{other_subjects, refuse};

#[derive(Debug)]
pub(crate) struct MemoryStore {
    state: Mutex<State>,
    wakes: broadcast::Sender<Wake>,
    /// While set, each transaction that publishes takes one permit.
    pub(crate) publish_gate: Mutex<Option<Arc<Semaphore>>>,
    pub(crate) claim_gate: Mutex<Option<Arc<Semaphore>>>,
    pub(crate) publishes: AtomicUsize,
    pub(crate) claims: AtomicUsize,
    pub(crate) claims_waiting: AtomicUsize,
    pub(crate) maintain_gate: Mutex<Option<Arc<Semaphore>>>,
    pub(crate) requeues: AtomicUsize,
    pub(crate) maintained: AtomicUsize,
    mended: AtomicU64,
    pub(crate) beaten: AtomicUsize,
    pub(crate) seen: AtomicUsize,
    pub(crate) closed: AtomicUsize,
    pub(crate) broken: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    model: Model,
    events: HashMap<EntryId, (NewEvent, Timestamp)>,
    errors: HashMap<EntryId, String>,
}

impl MemoryStore {
    /// The next upkeep reports this many mended groups.
    pub(crate) fn mend_groups(&self, groups: u64) {
        self.mended.store(groups, Ordering::SeqCst);
    }

    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            wakes: broadcast::channel(64).0,
            publish_gate: Mutex::default(),
            claim_gate: Mutex::default(),
            publishes: AtomicUsize::new(0),
            claims: AtomicUsize::new(0),
            claims_waiting: AtomicUsize::new(0),
            maintain_gate: Mutex::default(),
            requeues: AtomicUsize::new(0),
            maintained: AtomicUsize::new(0),
            mended: AtomicU64::new(0),
            beaten: AtomicUsize::new(0),
            seen: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
            broken: AtomicUsize::new(0),
        })
    }

    pub(crate) fn shut(gate: &Mutex<Option<Arc<Semaphore>>>) -> Arc<Semaphore> {
        let semaphore = Arc::new(Semaphore::new(0));
        *gate.lock().unwrap() = Some(Arc::clone(&semaphore));
        semaphore
    }

    async fn pass(gate: &Mutex<Option<Arc<Semaphore>>>) {
        let held = gate.lock().unwrap().clone();
        if let Some(held) = held {
            held.acquire().await.unwrap().forget();
        }
    }

    /// Fails while `broken` is above zero, counting it down.
    fn fault(&self) -> Result<()> {
        let left = self.broken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match left {
            Ok(_) => Err(Error::new(ErrorKind::Unavailable, "broken by the test")),
            Err(_) => Ok(()),
        }
    }

    fn apply(&self, id: EntryId, input: &Input) -> Result<()> {
        let now = Timestamp::now();
        self.state.lock().unwrap().model.apply(id, input, now).map_err(|refusal| match refusal {
            Refusal::Fenced => Error::fenced(),
            Refusal::AlreadyEnded => Error::new(ErrorKind::AlreadyEnded, "ended"),
            other => Error::new(ErrorKind::Conflict, other.to_string()),
        })
    }

    pub(crate) fn attempts(&self, id: EntryId) -> u32 {
        self.state.lock().unwrap().model.entry(id).unwrap().attempts
    }
}

#[async_trait]
impl tidegate_store::Queue for MemoryStore {
    fn backend(&self) -> Backend {
        Backend::Sqlite
    }

    async fn publish(&self, events: Vec<NewEvent>) -> Result<Batch<Published>> {
        self.publishes.fetch_add(1, Ordering::SeqCst);
        Self::pass(&self.publish_gate).await;
        self.fault()?;
        if events.iter().any(|event| event.event_type == "poison") {
            return Err(Error::invalid("poison"));
        }
        let mut state = self.state.lock().unwrap();
        let now = Timestamp::now();
        let mut answers = Vec::new();
        for event in events {
            let answer = match state.model.publish(&event, now) {
                Outcome::Created(id) => {
                    let event_attempts = event.max_attempts;
                    state.events.insert(id, (event, now));
                    let event_id = Tsid::from_i64(id.get());
                    let (outcome, max_attempts) = (PublishOutcome::Created, event_attempts);
                    Ok(Published { id, event_id, outcome, created_at: now, max_attempts })
                }
                other => Err(Error::new(ErrorKind::Full, format!("{other:?}"))),
            };
            answers.push(answer);
        }
        let _ = self.wakes.send(Wake::Any);
        Ok(answers)
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Claimed>> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.claims_waiting.fetch_add(1, Ordering::SeqCst);
        Self::pass(&self.claim_gate).await;
        self.claims_waiting.fetch_sub(1, Ordering::SeqCst);
        self.fault()?;
        let mut state = self.state.lock().unwrap();
        let now = Timestamp::now();
        let ids = state.model.claim(claim.max, claim.types.as_deref(), &claim.worker, claim.lease, now);
        let claimed = |id: EntryId| {
            let entry = state.model.entry(id).unwrap().clone();
            let (event, created_at) = state.events[&id].clone();
            Claimed {
                id,
                event_id: Tsid::from_i64(id.get()),
                generation: entry.generation,
                attempts: entry.attempts,
                max_attempts: entry.max_attempts,
                exhausted_as: entry.exhausted_as,
                token: entry.token,
                claimed_at: now,
                lease_until: later(now, claim.lease),
                last_error: state.errors.get(&id).cloned(),
                group: event.group.clone(),
                lane_type: None,
                queue_retry: None,
                fact: fact(event, created_at),
            }
        };
        Ok(ids.into_iter().map(claimed).collect())
    }

    async fn finalize(&self, items: Vec<Finalize>) -> Result<Batch<Finalized>> {
        self.fault()?;
        let finalize = |item: Finalize| {
            let input = Input::Finalize { token: item.token, end: item.end };
            match self.apply(item.id, &input) {
                Err(error) if error.kind() == ErrorKind::AlreadyEnded => {
                    Ok(Finalized { repeated: true, end: item.end })
                }
                Err(error) => Err(error),
                Ok(()) => Ok(Finalized { repeated: false, end: item.end }),
            }
        };
        Ok(items.into_iter().map(finalize).collect())
    }

    async fn extend(&self, items: Vec<Extend>) -> Result<Batch<Timestamp>> {
        let extend = |item: Extend| {
            self.apply(item.id, &Input::Extend { token: item.token, lease: item.lease })?;
            Ok(later(Timestamp::now(), item.lease))
        };
        Ok(items.into_iter().map(extend).collect())
    }

    async fn requeue(&self, items: Vec<Requeue>) -> Result<Batch<()>> {
        self.requeues.fetch_add(1, Ordering::SeqCst);
        self.fault()?;
        let requeue = |item: Requeue| {
            let due = match item.when {
                RequeueAt::Now => None,
                RequeueAt::At(at) => Some(at),
                RequeueAt::After(delay) => Some(later(Timestamp::now(), delay)),
            };
            self.apply(item.id, &Input::Requeue { token: item.token, due, counts: item.counts, aside: item.aside })?;
            if let Some(error) = item.error {
                self.state.lock().unwrap().errors.insert(item.id, error);
            }
            Ok(())
        };
        Ok(items.into_iter().map(requeue).collect())
    }

    fn wakeups(&self) -> broadcast::Receiver<Wake> {
        self.wakes.subscribe()
    }

    fn wake(&self, queues: BTreeSet<QueueName>) {
        let _ = self.wakes.send(Wake::Queues(queues));
    }

    async fn close(&self) {
        self.closed.fetch_add(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl tidegate_store::Entries for MemoryStore {
    async fn queues_of(&self, ids: Vec<EntryId>) -> Result<Vec<Option<QueueName>>> {
        let state = self.state.lock().unwrap();
        Ok(ids.iter().map(|id| state.events.get(id).map(|(event, _)| event.queue.clone())).collect())
    }

    async fn event_of(&self, _: EntryId) -> Result<Option<Tsid>> {
        Err(Error::invalid("not for this test"))
    }

    async fn list(&self, _: ListQuery) -> Result<Page> {
        Err(Error::invalid("not for this test"))
    }

    async fn cancel_manually(&self, items: Vec<ManualAction>) -> Result<Batch<()>> {
        Ok(items.into_iter().map(|item| self.apply(item.id, &Input::Cancel)).collect())
    }

    async fn redrive_manually(&self, items: Vec<ManualAction>) -> Result<Batch<Generation>> {
        Ok(items.into_iter().map(|item| self.apply(item.id, &Input::Redrive).map(|()| 2)).collect())
    }

    async fn discard(&self, _ids: Vec<EntryId>) -> Result<Batch<()>> {
        Ok(Vec::new())
    }

    async fn entries(&self, ids: Vec<EntryId>) -> Result<Vec<Option<EntryView>>> {
        Ok(ids.into_iter().map(|_| None).collect())
    }

    async fn dead_letters(&self, _query: DeadLetters) -> Result<Vec<EntryView>> {
        Ok(Vec::new())
    }

    async fn why(&self, id: EntryId) -> Result<Why> {
        Err(Error::no_entry(id))
    }
}

#[async_trait]
impl tidegate_store::Queues for MemoryStore {
    async fn claimable(&self, _: &QueueName, _: Vec<String>) -> Result<Vec<String>> {
        Err(Error::invalid("not for this test"))
    }

    async fn workers_page(&self, _: WorkersQuery) -> Result<WorkersPage> {
        Err(Error::invalid("not for this test"))
    }

    async fn depth(&self, _queue: &QueueName) -> Result<Depth> {
        Ok(self.state.lock().unwrap().model.depth(Timestamp::now()))
    }

    async fn depths(&self) -> Result<Vec<(QueueName, Depth)>> {
        Ok(vec![(QueueName::default(), self.depth(&QueueName::default()).await?)])
    }

    async fn census(&self) -> Result<Census> {
        Ok(Census::default())
    }

    async fn queues(&self) -> Result<Vec<QueueConfig>> {
        self.fault()?;
        Ok(Vec::new())
    }

    async fn put_queue(&self, name: &QueueName, _change: QueueChange) -> Result<QueueConfig> {
        Ok(QueueConfig {
            name: name.clone(),
            state: QueueState::Active,
            depth_limit: None,
            settings: Default::default(),
        })
    }

    async fn consumers_seen(&self, consumers: Vec<LiveConsumer>) -> Result<Batch<()>> {
        self.seen.fetch_add(consumers.len(), Ordering::SeqCst);
        Ok(consumers.iter().map(|_| Ok(())).collect())
    }
}

#[async_trait]
impl tidegate_store::Maintenance for MemoryStore {
    async fn retain(&self, _: Retention) -> Result<Retained> {
        Err(Error::invalid("not for this test"))
    }

    async fn maintain(&self) -> Result<Upkeep> {
        self.maintained.fetch_add(1, Ordering::SeqCst);
        Self::pass(&self.maintain_gate).await;
        Ok(Upkeep { groups_mended: self.mended.swap(0, Ordering::SeqCst), ..Upkeep::default() })
    }

    async fn beat(&self) -> Result<Option<std::time::Duration>> {
        self.beaten.fetch_add(1, Ordering::SeqCst);
        Ok(None)
    }
}

/// Handler states are not stored: every handler runs again with each attempt.
#[async_trait]
impl HandlerStates for MemoryStore {
    async fn record_handled(&self, items: Vec<HandlerState>) -> Result<Batch<()>> {
        Ok(items.iter().map(|_| Ok(())).collect())
    }

    async fn handled(&self, ids: Vec<EntryId>) -> Result<Vec<HandlerHistory>> {
        Ok(ids.iter().map(|_| HandlerHistory::default()).collect())
    }

    async fn forget_handled(&self, _: usize) -> Result<u64> {
        Ok(0)
    }
}

other_subjects!(refuse, MemoryStore);

impl tidegate_store::Families for MemoryStore {
    fn family(&self, _: tidegate_store::Family) -> std::sync::Arc<dyn tidegate_store::Store> {
        panic!("there are no families in this test")
    }
}

fn fact(event: NewEvent, created_at: Timestamp) -> Fact {
    Fact {
        client: event.client,
        event_type: event.event_type,
        payload: event.payload,
        content_type: event.content_type,
        source: event.source,
        subject: event.subject,
        time: event.time,
        external_id: event.external_id,
        correlation_id: event.correlation_id,
        causation_id: event.causation_id,
        attributes: event.attributes,
        created_at,
        title: event.title,
        description: event.description,
        tags: event.tags,
        retry: event.retry,
    }
}
