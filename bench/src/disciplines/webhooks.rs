//! What the disciplines of waiting jobs share: pools, subscriptions and events made beside the server, and the times of lists.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use serde_json::value::RawValue;
use tidegate::{EventQueue, Tsid};
use tidegate_core::cloud_event::Sent;
use tidegate_dispatch::{Gateway, GatewayOptions, Match, NewFact, PoolBody, SubscriptionBody, TypeBinding};

use crate::Result;
use crate::http::Connection;
use crate::runner::{at_once, median, p99, short};
use crate::scale::{BATCH, CALLERS, PAYLOAD, payload};
use crate::served::secrets;
use crate::sink::Sink;

/// What makes jobs. It delivers none.
pub(super) struct Maker {
    pub(super) queue: EventQueue,
    pub(super) gateway: Arc<Gateway>,
}

impl Maker {
    /// Opens a database.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) async fn open(address: &str) -> Result<Self> {
        let queue = EventQueue::open(address).await?;
        let allowed_targets = vec!["127.0.0.1".parse()?];
        let options = GatewayOptions { allowed_targets, secrets: secrets(), ..GatewayOptions::default() };
        let gateway = Arc::new(Gateway::new(queue.clone(), options));
        Ok(Self { queue, gateway })
    }

    /// Creates the pool that all subscriptions share.
    ///
    /// # Errors
    /// When it is refused.
    pub(super) async fn pool(&self, body: &PoolBody) -> Result<Tsid> {
        Ok(self.gateway.create_pool(None, "bench", body).await?.id)
    }

    /// Changes the pool in a database that a server delivers from.
    ///
    /// # Errors
    /// When the database fails.
    pub(super) async fn change_pool(address: &str, pool: Tsid, body: &PoolBody) -> Result<()> {
        let maker = Self::open(address).await?;
        maker.gateway.change_pool(pool, None, Match::Any, body).await?;
        maker.close().await;
        Ok(())
    }

    /// Creates a subscription to the events of its own type.
    ///
    /// # Errors
    /// When it is refused.
    pub(super) async fn subscribe(
        &self,
        code: &str,
        client: Option<Tsid>,
        to: &Sink,
        change: impl FnOnce(&mut SubscriptionBody),
    ) -> Result<Tsid> {
        let binding = TypeBinding { event_type: None, code: type_of(code).parse()?, version: None };
        let target = format!("http://{}/hook", to.address());
        let mut body = SubscriptionBody::new(format!("Subscription {code}"), vec![binding], target.parse()?);
        change(&mut body);
        let (subscription, _) = self.gateway.create_subscription(client, code, &body).await?;
        Ok(subscription.id)
    }

    /// Ingests events for a subscription; with `groups`, in so many groups in turn.
    ///
    /// # Errors
    /// When one is refused.
    pub(super) async fn ingest(
        &self,
        code: &str,
        client: Option<Tsid>,
        numbers: Range<usize>,
        groups: usize,
    ) -> Result<()> {
        let batches: Vec<Range<usize>> =
            numbers.clone().step_by(BATCH).map(|first| first..numbers.end.min(first + BATCH)).collect();
        let batches = Arc::new(std::sync::Mutex::new(batches.into_iter()));
        at_once((0..CALLERS).map(|_| {
            let (gateway, batches, code) = (Arc::clone(&self.gateway), Arc::clone(&batches), code.to_owned());
            async move {
                let next = || batches.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
                while let Some(batch) = next() {
                    let facts = batch.map(|number| fact(&code, client, number, groups)).collect::<Result<_>>()?;
                    for accepted in gateway.ingest_many(facts).await {
                        accepted?;
                    }
                }
                Ok(())
            }
        }))
        .await
    }

    /// Closes the database.
    pub(super) async fn close(self) {
        self.queue.close().await;
    }
}

/// The type of a subscription's events.
pub(super) fn type_of(code: &str) -> String {
    format!("shop:orders:order:{code}")
}

fn fact(code: &str, client: Option<Tsid>, number: usize, groups: usize) -> Result<NewFact> {
    let data = RawValue::from_string(payload(PAYLOAD))?;
    let mut body = json!({ "type": type_of(code), "source": "/shop", "subject": "order:12345", "data": data });
    if groups > 0 {
        body["messageGroup"] = json!(format!("group-{}", number % groups));
    }
    Ok(NewFact { event: Sent::from_json(&serde_json::to_vec(&body)?.into())?.event, client })
}

/// The times of lists in milliseconds, by their paths.
#[derive(Debug, Default)]
pub(super) struct Lists {
    times: Vec<(String, Vec<f64>)>,
}

impl Lists {
    /// Lists of these paths.
    pub(super) fn of(paths: impl IntoIterator<Item = String>) -> Self {
        Self { times: paths.into_iter().map(|path| (path, Vec::new())).collect() }
    }

    /// Sends each list once.
    ///
    /// # Errors
    /// When one is not answered with a page.
    pub(super) async fn send(&mut self, connection: &mut Connection) -> Result<()> {
        for (path, times) in &mut self.times {
            let start = Instant::now();
            connection.expect(200, "GET", path, b"").await?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok(())
    }

    /// The 99th percentile of the list that takes longest.
    pub(super) fn worst(&self) -> Option<f64> {
        self.times.iter().filter_map(|(_, times)| p99(times.iter().copied())).max_by(f64::total_cmp)
    }

    /// The 99th percentile of all lists together, where there are too few of each.
    pub(super) fn together(&self) -> Option<f64> {
        p99(self.times.iter().flat_map(|(_, times)| times.iter().copied()))
    }

    /// A line for each.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        self.times.iter().map(|(path, times)| {
            let worst = short(p99(times.iter().copied()).unwrap_or(f64::NAN));
            format!("{path}: p99 {worst} ms, median {} ms of {}", short(median(times)), times.len())
        })
    }
}
