//! Publishers and workers that talk to a server over HTTP and repeat each request until it is answered.
//!
//! They must not know when the server is killed: they only learn its address, or that it has none.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::checker::http::{Accepted, Completed, Handed, Seen};
use crate::http::{Answer, Client, Lost};
use crate::workload::{BACK_OFF, Failure};

pub(super) const PUBLISHERS: u64 = 64;
pub(super) const WORKERS: u64 = 16;
/// Short, so that leases whose answers were lost with a killed server expire within the run.
const LEASE_SECONDS: u64 = 2;
/// More attempts than there can be kills, so that every event ends as completed.
const MAX_RETRIES: u32 = 10_000;
/// A client gives up after so many tries of one request.
const MAX_TRIES: u32 = 1_000;

/// Running clients.
pub(super) type Tasks = JoinSet<Result<(), Failure>>;

/// What all clients share, and the answers they got.
#[derive(Debug)]
pub(super) struct Load {
    /// The address of the server, `None` while it is down.
    server: watch::Receiver<Option<SocketAddr>>,
    seed: u64,
    /// By how many events publishers may be ahead of workers, and by how many they are.
    lead: i64,
    ahead: AtomicI64,
    /// The number of the next event.
    next: AtomicU64,
    answers: AtomicU64,
    publishing: AtomicBool,
    working: AtomicBool,
    seen: Mutex<Seen>,
}

impl Load {
    pub(super) fn new(server: watch::Receiver<Option<SocketAddr>>, seed: u64, lead: i64) -> Arc<Self> {
        Arc::new(Self {
            server,
            seed,
            lead,
            ahead: AtomicI64::new(0),
            next: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            publishing: AtomicBool::new(true),
            working: AtomicBool::new(true),
            seen: Mutex::default(),
        })
    }

    /// Starts all clients; returns publishers and workers.
    pub(super) fn start(self: &Arc<Self>) -> (Tasks, Tasks) {
        let (mut publishers, mut workers) = (JoinSet::new(), JoinSet::new());
        for number in 0..PUBLISHERS {
            publishers.spawn(Arc::clone(self).publish(number));
        }
        for number in 0..WORKERS {
            workers.spawn(Arc::clone(self).work(number));
        }
        (publishers, workers)
    }

    pub(super) fn end_publishing(&self) {
        self.publishing.store(false, Ordering::Relaxed);
    }

    pub(super) fn end_working(&self) {
        self.working.store(false, Ordering::Relaxed);
    }

    /// How many requests were answered so far.
    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Takes the answers that were recorded so far.
    pub(super) fn take(&self) -> Seen {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, write: impl FnOnce(&mut Seen)) {
        write(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn choices(&self, task: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed.wrapping_mul(1_000).wrapping_add(task))
    }

    /// Waits until there is a server and sends one request.
    async fn send(&self, client: &mut Client, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, Lost> {
        let mut server = self.server.clone();
        let address = *server.wait_for(Option::is_some).await.map_err(|_| Lost)?;
        let answer = client.send(address.ok_or(Lost)?, method, path, body).await?;
        self.answers.fetch_add(1, Ordering::Relaxed);
        Ok(answer)
    }

    /// Sends a request until it is answered with something else than 503. Returns also how many tries may have been
    /// executed without an answer.
    async fn send_until_answered(
        &self,
        client: &mut Client,
        path: &str,
        body: &Value,
    ) -> Result<(Answer, u32), Failure> {
        let mut lost = 0;
        for _ in 0..MAX_TRIES {
            match self.send(client, "POST", path, Some(body)).await {
                Ok(answer) if answer.status != 503 => return Ok((answer, lost)),
                Ok(answer) => lost += u32::from(answer.body["code"] == "indeterminate"),
                Err(Lost) => lost += 1,
            }
            tokio::time::sleep(BACK_OFF / 5).await;
        }
        Err(format!("POST {path} was not answered in {MAX_TRIES} tries: {body}").into())
    }

    async fn publish(self: Arc<Self>, number: u64) -> Result<(), Failure> {
        let (mut client, mut rng) = (Client::default(), self.choices(number));
        while self.publishing.load(Ordering::Relaxed) {
            if self.ahead.load(Ordering::Relaxed) >= self.lead {
                tokio::time::sleep(BACK_OFF / 10).await;
                continue;
            }
            let key = format!("e{}", self.next.fetch_add(1, Ordering::Relaxed));
            let body = json!({
                "title": "An event", "tags": format!("all,t{}", rng.random_range(0..8)), "payload": key,
                "deduplication_id": key, "max_retries": MAX_RETRIES,
            });
            self.ahead.fetch_add(1, Ordering::Relaxed);
            self.offer(&mut client, &key, &body).await?;
            // A second publish is answered with the first event, also by the next server.
            if rng.random_ratio(1, 20) {
                self.offer(&mut client, &key, &body).await?;
            }
        }
        Ok(())
    }

    async fn offer(&self, client: &mut Client, key: &str, body: &Value) -> Result<(), Failure> {
        let (answer, lost) = self.send_until_answered(client, "/events", body).await?;
        match (answer.status, answer.body["id"].as_i64()) {
            (status @ (200 | 201), Some(id)) => {
                let accepted = Accepted { key: key.to_owned(), id, created: status == 201, lost };
                self.note(|seen| seen.accepted.push(accepted));
            }
            _ => self.refused("POST /events", &answer),
        }
        Ok(())
    }

    fn refused(&self, what: &str, answer: &Answer) {
        self.note(|seen| seen.refused.push(format!("{what}: {} {}", answer.status, answer.body)));
    }

    async fn work(self: Arc<Self>, number: u64) -> Result<(), Failure> {
        let (mut client, mut rng) = (Client::default(), self.choices(PUBLISHERS + number));
        let worker = format!("w{number}");
        while self.working.load(Ordering::Relaxed) {
            let events = if rng.random_ratio(1, 2) {
                self.subscribe(&mut client, &worker).await
            } else {
                self.claim(&mut client, &worker, rng.random_range(1..=8)).await
            };
            if events.is_empty() {
                tokio::time::sleep(BACK_OFF / 5).await;
                continue;
            }
            // Some workers are too slow, so that another one claims their events.
            if rng.random_ratio(1, 200) {
                tokio::time::sleep(Duration::from_millis(LEASE_SECONDS * 1000 + 500)).await;
            }
            if rng.random_ratio(1, 2) {
                self.complete_many(&mut client, &worker, events).await?;
            } else {
                for handed in events {
                    self.complete(&mut client, handed).await?;
                }
            }
        }
        Ok(())
    }

    /// Claims one event. When the answer is lost, its lease expires.
    async fn subscribe(&self, client: &mut Client, worker: &str) -> Vec<Handed> {
        let path = format!("/events/subscribe?tags=all&worker_id={worker}&wait=1&lease_seconds={LEASE_SECONDS}");
        match self.send(client, "GET", &path, None).await {
            Ok(answer) if answer.status == 200 => self.handed(worker, std::slice::from_ref(&answer.body)),
            Ok(answer) => self.no_events("GET /events/subscribe", &answer),
            Err(Lost) => Vec::new(),
        }
    }

    async fn claim(&self, client: &mut Client, worker: &str, max: u64) -> Vec<Handed> {
        let body = json!({ "tags": "all", "worker_id": worker, "max": max, "lease_seconds": LEASE_SECONDS });
        match self.send(client, "POST", "/events/claim", Some(&body)).await {
            Ok(answer) if answer.status == 200 => match answer.body["events"].as_array() {
                Some(events) => self.handed(worker, events),
                None => self.no_events("POST /events/claim", &answer),
            },
            Ok(answer) => self.no_events("POST /events/claim", &answer),
            Err(Lost) => Vec::new(),
        }
    }

    fn no_events(&self, what: &str, answer: &Answer) -> Vec<Handed> {
        if !matches!(answer.status, 204 | 503) {
            self.refused(what, answer);
        }
        Vec::new()
    }

    fn handed(&self, worker: &str, events: &[Value]) -> Vec<Handed> {
        let handed = |event: &Value| {
            Some(Handed { id: event["id"].as_i64()?, lease: event["lease"].as_i64()?, worker: worker.to_owned() })
        };
        let all: Vec<Handed> = events.iter().filter_map(handed).collect();
        self.note(|seen| {
            if all.len() < events.len() {
                seen.refused.push(format!("events without an id or a lease: {events:?}"));
            }
            seen.handed.extend(all.iter().cloned());
        });
        all
    }

    async fn complete(&self, client: &mut Client, handed: Handed) -> Result<(), Failure> {
        let path = format!("/events/{}/complete", handed.id);
        let body = json!({ "worker_id": handed.worker, "lease": handed.lease, "execution_time_ms": 1 });
        let (answer, lost) = self.send_until_answered(client, &path, &body).await?;
        self.ended(handed, answer.status, lost, &answer.body);
        Ok(())
    }

    /// Completes several events in one request. Items that are answered 503 are repeated one by one.
    async fn complete_many(&self, client: &mut Client, worker: &str, events: Vec<Handed>) -> Result<(), Failure> {
        let items: Vec<Value> = events.iter().map(|one| json!({ "id": one.id, "lease": one.lease })).collect();
        let body = json!({ "worker_id": worker, "events": items });
        let (answer, lost) = self.send_until_answered(client, "/events/complete", &body).await?;
        let results = answer.body["results"].as_array().filter(|results| results.len() == events.len());
        let Some(results) = results.filter(|_| answer.status == 200) else {
            self.refused("POST /events/complete", &answer);
            return Ok(());
        };
        for (handed, result) in events.into_iter().zip(results) {
            match result["status"].as_u64().and_then(|status| u16::try_from(status).ok()) {
                None | Some(503) => self.complete(client, handed).await?,
                Some(status) => self.ended(handed, status, lost, result),
            }
        }
        Ok(())
    }

    fn ended(&self, handed: Handed, status: u16, lost: u32, answer: &Value) {
        if !matches!(status, 200 | 409) {
            self.note(|seen| seen.refused.push(format!("complete of {handed:?}: {status} {answer}")));
            return;
        }
        let done = status == 200;
        self.ahead.fetch_sub(i64::from(done), Ordering::Relaxed);
        self.note(|seen| seen.completed.push(Completed { handed, done, lost }));
    }
}
