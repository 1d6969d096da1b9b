//! Publishers that send each event to one node or to both at once, alone or in batches, and repeat it until it is answered.
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

use crate::checker::ingest::{Accepted, Seen, Shape};
use crate::http::{Answer, Client, Lost};
use crate::workload::{BACK_OFF, Failure};

pub(super) const PUBLISHERS: u64 = 16;
/// The type that everything is made for, the one that a job is made for, and the one that nobody asks for.
pub(super) const ALL: &str = "sim.all";
pub(super) const JOB: &str = "sim.job";
const NONE: &str = "sim.none";
/// A client gives up after so many tries of one request.
const MAX_TRIES: u32 = 2_000;

/// Running clients.
pub(super) type Tasks = JoinSet<Result<(), Failure>>;

/// What all publishers share, and the answers they got.
#[derive(Debug)]
pub(super) struct Load {
    /// The address of each node, `None` while it is down.
    nodes: [watch::Receiver<Option<SocketAddr>>; 2],
    seed: u64,
    /// The number of the next event, and up to which number there may be new ones.
    next: AtomicU64,
    allowed: AtomicU64,
    answers: AtomicU64,
    running: AtomicBool,
    seen: Mutex<Seen>,
}

/// Who sends: a connection to each node, and choices.
struct Sender<'a> {
    load: &'a Load,
    clients: [Client; 2],
    rng: StdRng,
}

impl Load {
    pub(super) fn new(nodes: [watch::Receiver<Option<SocketAddr>>; 2], seed: u64) -> Arc<Self> {
        Arc::new(Self {
            nodes,
            seed,
            next: AtomicU64::new(0),
            allowed: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            running: AtomicBool::new(true),
            seen: Mutex::default(),
        })
    }

    pub(super) fn start(self: &Arc<Self>) -> Tasks {
        let mut tasks = JoinSet::new();
        for number in 0..PUBLISHERS {
            tasks.spawn(Arc::clone(self).publish(number));
        }
        tasks
    }

    /// Lets so many more events be made. Without any, publishers send earlier ones again.
    pub(super) fn allow(&self, events: u64) {
        self.allowed.fetch_add(events, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.running.store(false, Ordering::Relaxed);
    }

    /// How many requests were answered so far.
    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// How many events were made so far.
    pub(super) fn sent(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    /// Takes the answers that were recorded so far.
    pub(super) fn take(&self) -> Seen {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, write: impl FnOnce(&mut Seen)) {
        write(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }

    async fn publish(self: Arc<Self>, task: u64) -> Result<(), Failure> {
        let rng = StdRng::seed_from_u64(self.seed.wrapping_mul(1_000).wrapping_add(task));
        let mut sender = Sender { load: &self, clients: Default::default(), rng };
        while self.running.load(Ordering::Relaxed) {
            let count = if sender.rng.random_ratio(1, 4) { sender.rng.random_range(2..8) } else { 1 };
            let numbers = self.take_numbers(count, &mut sender.rng);
            if numbers.is_empty() {
                tokio::time::sleep(BACK_OFF / 10).await;
                continue;
            }
            sender.offer(&numbers).await?;
        }
        Ok(())
    }

    /// Numbers of new events, or one of an earlier event where no new one is allowed.
    fn take_numbers(&self, count: u64, rng: &mut StdRng) -> Vec<u64> {
        let allowed = self.allowed.load(Ordering::Relaxed);
        let take = |next: u64| (next < allowed).then(|| allowed.min(next + count));
        match self.next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
            Ok(first) => (first..allowed.min(first + count)).collect(),
            Err(0) => Vec::new(),
            Err(next) => vec![rng.random_range(0..next)],
        }
    }
}

impl Sender<'_> {
    /// Sends events to one node, or to both at once.
    async fn offer(&mut self, numbers: &[u64]) -> Result<(), Failure> {
        let Self { load, clients, rng } = self;
        let at_once = rng.random_ratio(1, 2);
        let first = rng.random_range(0..2);
        let [one, two] = clients;
        if at_once {
            let (one, two) =
                tokio::join!(load.send_all([one], 0, numbers, true), load.send_all([two], 1, numbers, true));
            return one.and(two);
        }
        load.send_all([one, two], first, numbers, false).await
    }
}

impl Load {
    /// Sends events until they are answered: to the node `first`, and where there are connections to both, to the other one
    /// after each answer that is lost.
    async fn send_all<const N: usize>(
        &self,
        mut clients: [&mut Client; N],
        first: usize,
        numbers: &[u64],
        at_once: bool,
    ) -> Result<(), Failure> {
        let is_cloud_event = |number: &u64| Shape::of(*number).keys.1;
        let (cloud_events, own): (Vec<u64>, Vec<u64>) = numbers.iter().partition(|number| is_cloud_event(number));
        for (numbers, media_type) in [(own, "application/json"), (cloud_events, "application/cloudevents+json")] {
            let mut left = numbers.clone();
            if left.len() > 1 {
                left = self.send_batch(&mut clients, first, &numbers, media_type, at_once).await?;
            }
            for number in left {
                let (answer, lost) =
                    self.until_answered(&mut clients, first, "/api/events", media_type, &event(number)).await?;
                self.accept(number, answer.status, &answer.body, lost, at_once);
            }
        }
        Ok(())
    }

    /// Sends events in a batch; returns those that were answered 503, which may do better alone.
    async fn send_batch<const N: usize>(
        &self,
        clients: &mut [&mut Client; N],
        first: usize,
        numbers: &[u64],
        media_type: &str,
        at_once: bool,
    ) -> Result<Vec<u64>, Failure> {
        let events: Vec<Value> = numbers.iter().map(|number| event(*number)).collect();
        let (media_type, body) = match media_type {
            "application/json" => ("application/json", json!({ "events": events })),
            _ => ("application/cloudevents-batch+json", json!(events)),
        };
        let (answer, lost) = self.until_answered(clients, first, "/api/events/batch", media_type, &body).await?;
        let results = answer.body["results"].as_array().filter(|results| results.len() == numbers.len());
        let Some(results) = results.filter(|_| answer.status == 200) else {
            self.note(|seen| seen.refused.push(format!("a batch: {} {}", answer.status, answer.body)));
            return Ok(Vec::new());
        };
        let mut left = Vec::new();
        for (number, result) in numbers.iter().zip(results) {
            match result["status"].as_u64().and_then(|status| u16::try_from(status).ok()) {
                Some(503) => left.push(*number),
                status => self.accept(*number, status.unwrap_or(0), result, lost, at_once),
            }
        }
        Ok(left)
    }

    /// Sends a request until it is answered with something else than 503. Returns also how many tries may have been
    /// executed without an answer.
    async fn until_answered<const N: usize>(
        &self,
        clients: &mut [&mut Client; N],
        first: usize,
        path: &str,
        media_type: &str,
        body: &Value,
    ) -> Result<(Answer, u32), Failure> {
        let (mut node, mut lost) = (first, 0);
        for _ in 0..MAX_TRIES {
            let client = if N > 1 { &mut clients[node] } else { &mut clients[0] };
            let mut address = self.nodes[node].clone();
            let address = *address.wait_for(Option::is_some).await?;
            let Some(address) = address else { continue };
            match client.send_as(media_type, address, "POST", path, Some(body)).await {
                Ok(answer) if answer.status != 503 => {
                    self.answers.fetch_add(1, Ordering::Relaxed);
                    return Ok((answer, lost));
                }
                Ok(answer) => lost += u32::from(answer.body["code"] == "indeterminate"),
                Err(Lost) => {
                    lost += 1;
                    node = if N > 1 { 1 - node } else { node };
                }
            }
            tokio::time::sleep(BACK_OFF / 5).await;
        }
        Err(format!("POST {path} was not answered in {MAX_TRIES} tries: {body}").into())
    }

    fn accept(&self, number: u64, status: u16, answer: &Value, lost: u32, at_once: bool) {
        let list = |field: &str| answer[field].as_array().map(Vec::as_slice).unwrap_or_default();
        let entries: Vec<i64> = list("entries").iter().filter_map(|one| one["id"].as_i64()).collect();
        let jobs: Vec<String> =
            list("dispatchJobs").iter().filter_map(|one| Some(one["id"].as_str()?.to_owned())).collect();
        match (status, answer["id"].as_str()) {
            (200 | 201, Some(id)) => {
                let (id, created) = (id.to_owned(), status == 201);
                let accepted = Accepted { number, id, created, entries, jobs, lost, at_once };
                self.note(|seen| seen.accepted.push(accepted));
            }
            _ => self.note(|seen| seen.refused.push(format!("event {number}: {status} {answer}"))),
        }
    }
}

/// The event of a number, with what its shape says.
fn event(number: u64) -> Value {
    let shape = Shape::of(number);
    let event_type = match (shape.entries, shape.jobs) {
        (0, 0) => NONE,
        (0, _) => JOB,
        _ => ALL,
    };
    let (named, identity) = shape.keys;
    let key = format!("e{number}");
    let group = shape.group.then(|| format!("g{}", number % 7));
    let pairs: Vec<Value> =
        (0..shape.pairs).map(|at| json!({ "key": format!("k{at}"), "value": format!("v{}", number % 11) })).collect();
    if !identity {
        return json!({
            "type": event_type, "source": "/sim", "deduplicationId": key, "data": key, "messageGroup": group,
            "contextData": pairs,
        });
    }
    let mut event = json!({
        "specversion": "1.0", "type": event_type, "source": "/sim", "id": key, "data": key,
        "contextdata": Value::from(pairs).to_string(),
    });
    if named {
        event["deduplicationid"] = key.into();
    }
    if let Some(group) = group {
        event["messagegroup"] = group.into();
    }
    event
}
