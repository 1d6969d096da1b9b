//! Retention: removing old audit rows, log rows and facts.

use std::time::{Duration, Instant};

use tidegate_store::{Retained, Retention};

use super::EventQueue;
use crate::error::Result;

/// The maintenance task that one process is elected for, and how long the election holds unless it is renewed.
const RETENTION: &str = "retention";
const RETENTION_LEASE: Duration = Duration::from_secs(60);

impl EventQueue {
    /// Removes one small batch of old audit rows, log rows and facts; see [`retain_all`](Self::retain_all).
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn retain(&self, retention: Retention) -> Result<Retained> {
        self.store().retain(retention).await
    }

    /// Removes old audit rows, log rows and facts in batches, with `pause` between them for other transactions.
    ///
    /// # Errors
    /// Any error of the store; rows removed before it stay removed.
    pub async fn retain_all(&self, retention: Retention, pause: Duration) -> Result<Retained> {
        let mut all = Retained::default();
        let mut step = retention;
        while self.retain_step(&mut step, &mut all).await? && !self.shared().is_closed() {
            tokio::time::sleep(pause).await;
        }
        Ok(all)
    }

    /// As [`retain_all`](Self::retain_all) where several processes share a database: one of them is elected, the others
    /// do nothing and get `None`. It stops after `budget`; the next call starts from the beginning.
    ///
    /// # Errors
    /// Any error of the store; rows removed before it stay removed.
    pub async fn retain_for_all(
        &self,
        retention: Retention,
        pause: Duration,
        budget: Duration,
    ) -> Result<Option<Retained>> {
        let began = Instant::now();
        let mut all = Retained::default();
        let mut step = retention;
        loop {
            if !self.store().elect(RETENTION, RETENTION_LEASE).await? {
                return Ok(None);
            }
            let more = self.retain_step(&mut step, &mut all).await?;
            if !more || self.shared().is_closed() || began.elapsed() >= budget {
                return Ok(Some(all));
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Removes one batch; returns whether there may be more.
    async fn retain_step(&self, step: &mut Retention, all: &mut Retained) -> Result<bool> {
        let done = self.retain(*step).await?;
        all.audit += done.audit;
        all.entries += done.entries;
        all.facts += done.facts;
        let more_audit = step.audit.is_some() && done.audit >= step.batch.max(1) as u64;
        if done.next.is_none() {
            (step.log, step.dead_letters) = (None, None);
        }
        if done.next_facts.is_none() {
            step.facts = None;
        }
        (step.from, step.facts_from) = (done.next, done.next_facts);
        Ok(done.next.is_some() || done.next_facts.is_some() || more_audit)
    }
}
