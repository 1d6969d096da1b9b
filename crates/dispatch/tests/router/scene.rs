//! A database with nodes on it, each with a gateway and a router, and a receiver.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use serde_json::json;
use tidegate::{EntryId, EventQueue, Family, JobAttempt, Tsid};
use tidegate_core::cloud_event::Sent;
use tidegate_dispatch::secrets::SecretOptions;
use tidegate_dispatch::webhook::address::Allowed;
use tidegate_dispatch::webhook::client::{Client, ClientOptions};
use tidegate_dispatch::webhook::connect::{Dial, Tcp};
use tidegate_dispatch::{
    EventView, Gateway, GatewayOptions, Match, NewFact, Router, SecretText, Subscription, SubscriptionBody, TypeBinding,
};

use crate::receiver::{Names, Receiver, Taken};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Scene {
    address: String,
    place: Place,
}

enum Place {
    Folder {
        _dir: tempfile::TempDir,
    },
    Postgres,
    /// Left as it is.
    OthersFolder,
    OthersPostgres,
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Place::Postgres = self.place {
            let url = self.address.clone();
            let _ = std::thread::spawn(move || tidegate_testing::drop_database(&url)).join();
        }
    }
}

/// A node: a queue, a gateway and a router on it.
pub(crate) struct Node {
    pub(crate) queue: EventQueue,
    pub(crate) gateway: Arc<Gateway>,
    router: Router,
}

/// What a receiver took, in its order, and what it answers.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Taken>>>);

impl Log {
    /// Adds what was taken, and returns how much there was before.
    pub(crate) fn add(&self, taken: Taken) -> usize {
        let mut all = self.0.lock().unwrap();
        all.push(taken);
        all.len() - 1
    }

    pub(crate) fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    pub(crate) fn taken(&self) -> Vec<Taken> {
        self.0.lock().unwrap().clone()
    }

    /// The data of what was taken, as text.
    pub(crate) fn bodies(&self) -> Vec<String> {
        self.taken().iter().map(|taken| String::from_utf8(taken.body.to_vec()).unwrap()).collect()
    }
}

pub(crate) fn status(code: u16) -> Response<Full<Bytes>> {
    Response::builder().status(code).body(Full::new(Bytes::from(format!("answered {code}")))).unwrap()
}

/// A receiver that answers by what it was sent, and how often it was asked before.
pub(crate) async fn receiver(answer: impl Fn(&Taken, usize) -> u16 + Clone + Send + Sync + 'static) -> (Receiver, Log) {
    let log = Log::default();
    let known = log.clone();
    let receiver = Receiver::http(None, move |taken| {
        let mut all = known.0.lock().unwrap();
        let code = answer(&taken, all.len());
        all.push(taken);
        async move { status(code) }
    })
    .await;
    (receiver, log)
}

impl Scene {
    pub(crate) fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = dir.path().join("tidegate.db").to_str().unwrap().to_owned();
        Self { address, place: Place::Folder { _dir: dir } }
    }

    pub(crate) fn postgres() -> Self {
        Self { address: tidegate_testing::fresh_database(), place: Place::Postgres }
    }

    /// What somebody else has made.
    pub(crate) fn at(address: String) -> Self {
        let is_postgres = address.starts_with("postgres");
        let place = if is_postgres { Place::OthersPostgres } else { Place::OthersFolder };
        Self { address, place }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) async fn node(&self) -> Node {
        self.node_with(self.secrets()).await
    }

    /// On PostgreSQL a key must be configured; with SQLite one is made beside the database.
    fn secrets(&self) -> SecretOptions {
        let key = || "tgkey_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".parse().unwrap();
        SecretOptions {
            key: matches!(self.place, Place::Postgres | Place::OthersPostgres).then(key),
            ..SecretOptions::default()
        }
    }

    /// Where a key is made, with SQLite.
    pub(crate) fn key_file(&self) -> Option<String> {
        matches!(self.place, Place::Folder { .. }).then(|| format!("{}.key", self.address))
    }

    /// A node with other keys.
    pub(crate) async fn node_with(&self, secrets: SecretOptions) -> Node {
        self.node_by(secrets, Arc::new(Tcp)).await
    }

    /// A node that connects in another way.
    pub(crate) async fn node_dialling(&self, dial: Arc<dyn Dial>) -> Node {
        self.node_by(self.secrets(), dial).await
    }

    async fn node_by(&self, secrets: SecretOptions, dial: Arc<dyn Dial>) -> Node {
        let queue = EventQueue::open(&self.address).await.unwrap();
        let allowed = vec!["127.0.0.1".parse().unwrap()];
        let options = GatewayOptions { allowed_targets: allowed.clone(), secrets, ..GatewayOptions::default() };
        let gateway = Arc::new(Gateway::new(queue.clone(), options));
        let none = rustls::RootCertStore::empty();
        let client = ClientOptions::new(Allowed::new(&allowed), Arc::new(Names::default()), none);
        let client = ClientOptions { dial, ..client };
        let router = Router::start(Arc::clone(&gateway), Client::new(client).unwrap());
        Node { queue, gateway, router }
    }
}

/// A gateway without a router.
pub(crate) struct Maker(EventQueue, Gateway);

impl Scene {
    pub(crate) async fn gateway_alone(&self) -> Maker {
        let queue = EventQueue::open(&self.address).await.unwrap();
        let allowed_targets = vec!["127.0.0.1".parse().unwrap()];
        let options = GatewayOptions { allowed_targets, secrets: self.secrets(), ..GatewayOptions::default() };
        Maker(queue.clone(), Gateway::new(queue, options))
    }
}

impl Maker {
    pub(crate) async fn publish(&self, number: usize) -> Tsid {
        publish(&self.1, number, None).await.id
    }

    /// Creates a subscription to events of the type `t`.
    pub(crate) async fn subscribe(&self, code: &str, to: &Receiver, change: impl FnOnce(&mut SubscriptionBody)) {
        subscribe(&self.1, code, to, change).await;
    }

    pub(crate) fn gateway(&self) -> &Gateway {
        &self.1
    }

    /// How many lanes of jobs hold something.
    pub(crate) async fn lanes(&self) -> usize {
        self.0.store().waiting_lanes(None).await.unwrap().lanes.len()
    }

    /// Publishes so many events, many at once.
    pub(crate) async fn publish_many(&self, count: usize) {
        let event = |number: usize| {
            let body = json!({ "specVersion": "1.0", "type": "t", "source": "/s", "data": number });
            NewFact { event: Sent::from_json(&body.to_string().into()).unwrap().event, client: None }
        };
        for first in (0..count).step_by(1_000) {
            let events = (first..count.min(first + 1_000)).map(event).collect();
            assert!(self.1.ingest_many(events).await.iter().all(Result::is_ok));
        }
    }

    pub(crate) async fn close(self) {
        self.0.close().await;
    }
}

/// Publishes an event with this number as its data.
async fn publish(gateway: &Gateway, number: usize, group: Option<&str>) -> EventView {
    let mut body = json!({ "specVersion": "1.0", "type": "t", "source": "/s", "data": number });
    if let Some(group) = group {
        body["messageGroup"] = json!(group);
    }
    let sent = Sent::from_json(&body.to_string().into()).unwrap();
    gateway.ingest(NewFact { event: sent.event, client: None }).await.unwrap().view
}

async fn subscribe(
    gateway: &Gateway,
    code: &str,
    to: &Receiver,
    change: impl FnOnce(&mut SubscriptionBody),
) -> (Subscription, SecretText) {
    let binding = TypeBinding { event_type: None, code: "t".parse().unwrap(), version: None };
    let mut body = SubscriptionBody::new("n".into(), vec![binding], to.url().parse().unwrap());
    change(&mut body);
    gateway.create_subscription(None, code, &body).await.unwrap()
}

impl Node {
    /// Creates a subscription to events of the type `t`, and returns it with its secret.
    pub(crate) async fn subscribe(
        &self,
        code: &str,
        to: &Receiver,
        change: impl FnOnce(&mut SubscriptionBody),
    ) -> (Subscription, SecretText) {
        subscribe(&self.gateway, code, to, change).await
    }

    /// Publishes an event with this number as its data.
    pub(crate) async fn publish(&self, number: usize, group: Option<&str>) -> EventView {
        publish(&self.gateway, number, group).await
    }

    /// The statuses of the jobs of an event.
    pub(crate) async fn statuses(&self, event: Tsid) -> Vec<&'static str> {
        self.gateway.event(event, None).await.unwrap().jobs.iter().map(|job| job.status).collect()
    }

    pub(crate) async fn until_all_are(&self, events: &[Tsid], status: &str) {
        let all = async {
            for event in events {
                until(|| async { self.statuses(*event).await.iter().all(|one| *one == status) }).await;
            }
        };
        if tokio::time::timeout(PATIENCE, all).await.is_err() {
            let mut found = Vec::new();
            for event in events {
                found.push(self.statuses(*event).await);
            }
            panic!("not all became {status}: {found:?}");
        }
    }

    /// The recorded attempts at the first job of an event.
    pub(crate) async fn attempts(&self, event: Tsid) -> Vec<(JobAttempt, serde_json::Value)> {
        let id = self.jobs_of(event).await[0];
        let attempts = self.queue.store().job_attempts(id).await.unwrap();
        attempts.into_iter().map(|one| (one.clone(), serde_json::from_str(&one.record).unwrap())).collect()
    }

    /// The numbers of an event's jobs.
    async fn jobs_of(&self, event: Tsid) -> Vec<EntryId> {
        let found = self.queue.facts().get(vec![event], 9).await.unwrap().pop().flatten().unwrap();
        found.targets.iter().filter(|target| target.family == Family::Jobs).map(|target| target.id).collect()
    }

    pub(crate) async fn pause(&self, subscription: &Subscription) {
        self.gateway.pause_subscription(subscription.id, None, Match::Any).await.unwrap();
    }

    pub(crate) async fn stop(self) {
        self.router.stop().await;
        self.queue.close().await;
    }
}

/// Asks again and again until it is so; the test's own time limit ends it.
pub(crate) async fn until<F: Future<Output = bool>>(mut is_so: impl FnMut() -> F) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("it never became so");
}

macro_rules! on_both {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(crate::scene::Scene::sqlite()).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(crate::scene::Scene::postgres()).await;
            })*
        }
    };
}
pub(crate) use on_both;
