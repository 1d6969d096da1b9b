//! The same cases on the second family.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::Tsid;

use super::{CallerTx, Fixture};
use crate::api::Store;
use crate::error::Result;
use crate::values::{Backend, Family, StoreOptions};

/// A fixture whose stores have the verbs of [`Family::Jobs`]; tables in a case's SQL are that family's.
#[derive(Debug)]
pub struct Jobs(pub Arc<dyn Fixture>);

/// The tables of entries, and those of jobs.
const TABLES: [(&str, &str); 5] = [
    ("tidegate.event_queue", "tidegate.dispatch_queue"),
    ("tidegate.event_log", "tidegate.dispatch_log"),
    ("tidegate.queues", "tidegate.dispatch_queues"),
    ("tidegate.lanes", "tidegate.dispatch_lanes"),
    ("tidegate.consumers", "tidegate.dispatch_consumers"),
];

fn of_jobs(statement: &str) -> String {
    TABLES.iter().fold(statement.to_owned(), |text, (entries, jobs)| text.replace(entries, jobs))
}

#[async_trait]
impl Fixture for Jobs {
    fn backend(&self) -> Backend {
        self.0.backend()
    }

    fn family(&self) -> Family {
        Family::Jobs
    }

    async fn open(&self, options: StoreOptions) -> Result<Arc<dyn Store>> {
        Ok(self.0.open(options).await?.family(Family::Jobs))
    }

    async fn begin(&self) -> Box<dyn CallerTx> {
        panic!("jobs are not published in callers' own transactions")
    }

    async fn own_rows(&self) -> u64 {
        self.0.own_rows().await
    }

    async fn set_schema(&self, version: i32, oldest_compatible: i32) {
        self.0.set_schema(version, oldest_compatible).await;
    }

    async fn age_heartbeat(&self, by: Duration) {
        self.0.age_heartbeat(by).await;
    }

    async fn sql(&self, statement: &str) {
        self.0.sql(&of_jobs(statement)).await;
    }

    async fn number(&self, query: &str) -> i64 {
        self.0.number(&of_jobs(query)).await
    }

    async fn lose_fact(&self, event: Tsid) {
        self.0.lose_fact(event).await;
    }

    async fn somebody_waits(&self) -> Option<bool> {
        self.0.somebody_waits().await
    }

    async fn forgotten_transactions(&self) -> u64 {
        self.0.forgotten_transactions().await
    }

    async fn drop_namespace(&self, namespace: &str) {
        self.0.drop_namespace(namespace).await;
    }

    async fn finish(&self) {
        self.0.finish().await;
    }
}
