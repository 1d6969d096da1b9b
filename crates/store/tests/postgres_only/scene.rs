//! A database for one test, stores on it, and single-item calls.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::{End, EntryId, NewEvent, QueueName};
use tidegate_store::api::*;
use tidegate_store::postgres::{PostgresOptions, PostgresStore};
use tidegate_store::{Claim, Claimed, Finalize};
use tokio_postgres::{Client, NoTls};

/// Long enough for a slow machine; reached only when something is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The URL of a fresh database; dropping this value removes the database.
pub(crate) struct Database(pub(crate) String);

impl Database {
    pub(crate) async fn new() -> Self {
        Self(tokio::task::spawn_blocking(tidegate_testing::fresh_database).await.unwrap())
    }

    pub(crate) async fn connect(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.0, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.connect().await.batch_execute(sql).await.unwrap();
    }

    pub(crate) async fn open(&self) -> PostgresStore {
        open_at(&self.0).await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let url = self.0.clone();
        // Removing a database blocks, which is not allowed on a thread of the runtime.
        let dropped = std::thread::spawn(move || tidegate_testing::drop_database(&url)).join();
        if !std::thread::panicking() {
            dropped.unwrap().unwrap();
        }
    }
}

pub(crate) async fn open_at(url: &str) -> PostgresStore {
    PostgresStore::open(url, PostgresOptions::default()).await.unwrap()
}

pub(crate) fn event(event_type: &str) -> NewEvent {
    NewEvent::new(event_type, "{}")
}

pub(crate) fn want(max: usize) -> Claim {
    Claim {
        queue: QueueName::default(),
        types: None,
        max,
        lease: Duration::from_secs(60),
        worker: "w".into(),
        quotas: BTreeMap::new(),
        tags: None,
        audit: false,
    }
}

pub(crate) async fn publish(store: &PostgresStore, events: Vec<NewEvent>) -> Vec<EntryId> {
    store.publish(events).await.unwrap().into_iter().map(|answer| answer.unwrap().id).collect()
}

pub(crate) async fn claim(store: &PostgresStore, max: usize) -> Vec<Claimed> {
    store.claim(want(max)).await.unwrap()
}

pub(crate) fn end(claimed: &Claimed) -> Finalize {
    Finalize {
        id: claimed.id,
        token: Some(claimed.token),
        end: End::Completed,
        errors: None,
        results: None,
        attempt: None,
    }
}

/// Completes entries; each must be held.
pub(crate) async fn complete(store: &PostgresStore, claimed: &[Claimed]) {
    for answer in store.finalize(claimed.iter().map(end).collect()).await.unwrap() {
        answer.unwrap();
    }
}

pub(crate) fn ids(claimed: &[Claimed]) -> Vec<EntryId> {
    claimed.iter().map(|claimed| claimed.id).collect()
}

/// Waits until a condition holds.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
