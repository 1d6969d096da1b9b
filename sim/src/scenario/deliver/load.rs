//! Publishers, each of which publishes the events of its groups one after another, at whichever node, and repeats each until
//! it is answered: so the events of a group are accepted in the order in which they are sent.
//!
//! They must not know when a node is killed: they only learn its address, or that it has none.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::checker::deliver::{ALL, Published, SOME, is_for_all};
use crate::history::now;
use crate::http::Client;
use crate::workload::{BACK_OFF, Failure};

pub(super) const PUBLISHERS: u64 = 8;
/// A publisher gives up after so many tries of one event.
const MAX_TRIES: u32 = 2_000;

/// What all publishers share, and the answers they got.
#[derive(Debug)]
pub(super) struct Load {
    /// The address of each node, `None` while it is down.
    nodes: Vec<watch::Receiver<Option<SocketAddr>>>,
    groups: u64,
    seed: u64,
    /// The number of the next event, and up to which number there may be new ones.
    next: AtomicU64,
    allowed: AtomicU64,
    running: AtomicBool,
    published: Mutex<Vec<Published>>,
    refused: Mutex<Vec<String>>,
}

impl Load {
    pub(super) fn new(nodes: Vec<watch::Receiver<Option<SocketAddr>>>, groups: u64, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            nodes,
            groups,
            seed,
            next: AtomicU64::new(0),
            allowed: AtomicU64::new(0),
            running: AtomicBool::new(true),
            published: Mutex::default(),
            refused: Mutex::default(),
        })
    }

    pub(super) fn start(self: &Arc<Self>) -> JoinSet<Result<(), Failure>> {
        let mut tasks = JoinSet::new();
        for number in 0..PUBLISHERS {
            tasks.spawn(Arc::clone(self).publish(number));
        }
        tasks
    }

    /// Lets so many more events be published.
    pub(super) fn allow(&self, events: u64) {
        self.allowed.fetch_add(events, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.running.store(false, Ordering::Relaxed);
    }

    /// What was accepted so far, and answers that should not be: all requests of this load are valid.
    pub(super) fn answers(&self) -> (Vec<Published>, Vec<String>) {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (self.published.lock().unwrap_or_else(PoisonError::into_inner).clone(), refused)
    }

    /// How many jobs were made so far.
    pub(super) fn jobs(&self) -> u64 {
        let published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        published.iter().map(|one| one.jobs.len() as u64).sum()
    }

    async fn publish(self: Arc<Self>, task: u64) -> Result<(), Failure> {
        let mut rng = StdRng::seed_from_u64(self.seed.wrapping_mul(1_000).wrapping_add(task));
        let mut clients: Vec<Client> = self.nodes.iter().map(|_| Client::default()).collect();
        loop {
            let allowed = self.allowed.load(Ordering::Relaxed);
            let take = |next: u64| (next < allowed).then_some(next + 1);
            let Ok(number) = self.next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) else {
                if !self.running.load(Ordering::Relaxed) {
                    return Ok(());
                }
                tokio::time::sleep(BACK_OFF / 10).await;
                continue;
            };
            let group = task + PUBLISHERS * rng.random_range(0..self.groups.div_ceil(PUBLISHERS));
            // Some are to overtake what waits.
            let sequence = rng.random_ratio(1, 6).then(|| rng.random_range(1..50));
            self.offer(number, group, sequence, &mut clients, &mut rng).await?;
        }
    }

    async fn offer(
        &self,
        number: u64,
        group: u64,
        sequence: Option<i32>,
        clients: &mut [Client],
        rng: &mut StdRng,
    ) -> Result<(), Failure> {
        let event_type = if is_for_all(number) { ALL } else { SOME };
        let group = format!("g{group}");
        let mut event = json!({
            "type": event_type, "source": "/sim", "deduplicationId": format!("e{number}"), "messageGroup": group,
            "data": { "number": number },
        });
        if let Some(sequence) = sequence {
            event["sequence"] = sequence.into();
        }
        let sent_at = now();
        for _ in 0..MAX_TRIES {
            let node = rng.random_range(0..clients.len());
            let address = *self.nodes[node].borrow();
            if let Some(address) = address
                && let Ok(answer) = clients[node].send(address, "POST", "/api/events", Some(&event)).await
                && answer.status != 503
            {
                self.accept(
                    answer.status,
                    &answer.body,
                    Published { number, group, sequence, sent_at, accepted_at: now(), jobs: Vec::new() },
                );
                return Ok(());
            }
            tokio::time::sleep(BACK_OFF / 5).await;
        }
        Err(format!("event {number} was not answered in {MAX_TRIES} tries").into())
    }

    fn accept(&self, status: u16, answer: &Value, published: Published) {
        let text = |one: &Value, field: &str| one[field].as_str().map(str::to_owned);
        let jobs = answer["dispatchJobs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let jobs = jobs.iter().filter_map(|one| Some((text(one, "id")?, text(one, "subscriptionId")?))).collect();
        match status {
            200 | 201 => {
                let mut all = self.published.lock().unwrap_or_else(PoisonError::into_inner);
                all.push(Published { jobs, ..published });
            }
            _ => {
                let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                refused.push(format!("event {}: {status} {answer}", published.number));
            }
        }
    }
}
