//! Queues: their configuration, their depths, and the consumers that are alive.

use std::collections::HashMap;
use std::time::Duration;

use tidegate_core::{Depth, QueueConfig, QueueName, QueueState, Tsid};

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::catalogue::{Queue, read_settings};
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::sql::Only;
use crate::values::queues::settings_text;
use crate::values::{Batch, LiveConsumer, QueueChange};

impl Inner {
    pub(super) async fn queues(&self) -> Result<Vec<QueueConfig>> {
        self.reload_catalog().await?;
        let catalog = self.catalog().await?;
        let mut queues: Vec<QueueConfig> = catalog.queues().map(|queue| queue.config()).collect();
        queues.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(queues)
    }

    /// The present configuration of a queue; `None` if it does not exist.
    pub(super) async fn queue_config(&self, name: &QueueName) -> Result<Option<QueueConfig>> {
        self.reload_catalog().await?;
        Ok(self.catalog().await?.queue(name).ok().map(|queue| queue.config()))
    }

    /// Merges the change into the stored configuration, under the queue's row lock, so that of two changes at once none
    /// is lost. A change that changes nothing writes nothing. It runs again if the answer to the commit is lost: merging
    /// the same change twice changes nothing.
    pub(super) async fn put_queue(&self, name: &QueueName, change: QueueChange) -> Result<QueueConfig> {
        let (change, resumes) = (&change, change.state == Some(QueueState::Active));
        let config = self.configure(|tx| async move { self.write_queue(&tx, name, change.clone()).await }).await?;
        if resumes {
            self.announce(self.catalog().await?.queue(name).ok().map(|queue| queue.id));
        }
        Ok(config)
    }

    async fn write_queue(&self, tx: &Tx, name: &QueueName, change: QueueChange) -> Result<QueueConfig, Fault> {
        let sql = &self.sql.queues;
        let client = name.client().map(Tsid::to_i64);
        tx.execute(&sql.make, &[&name.name(), &client]).await?;
        let row = tx.row(&sql.lock, &[&name.name(), &client]).await?;
        let row = row.ok_or_else(|| Error::new(ErrorKind::Corrupt, "the queue was not written"))?;
        let damaged = |_| Error::new(ErrorKind::Corrupt, format!("queue {name} has a bad setting"));
        let mut config = QueueConfig {
            name: name.clone(),
            state: QueueState::from_code(row.state).unwrap_or_default(),
            depth_limit: row.depth_limit.map(|limit| u64::try_from(limit).unwrap_or(0)),
            settings: read_settings(row.settings.as_deref()).map_err(damaged)?,
        };
        let before = config.clone();
        change.apply(&mut config)?;
        if config != before {
            let limit = config.depth_limit.and_then(|limit| i64::try_from(limit).ok());
            let text = settings_text(&config.settings)?;
            tx.execute(&sql.put, &[&row.id, &config.state.code(), &limit, &text]).await?;
        }
        Ok(config)
    }

    pub(super) async fn depth(&self, queue: &QueueName) -> Result<Depth> {
        let (now, queue_id) = (self.now(), self.queue(queue).await?.id);
        let depth = self.read(|tx| async move { tx.row(&self.sql.queues.depth, &[&now, &queue_id]).await }).await?;
        Ok(depth.map(Depth::from).unwrap_or_default())
    }

    pub(super) async fn depths(&self) -> Result<Vec<(QueueName, Depth)>> {
        let now = self.now();
        let rows = self.read(|tx| async move { tx.rows(&self.sql.queues.depths, &[&now]).await }).await?;
        let mut found: HashMap<i32, Depth> =
            rows.into_iter().map(|(depth, Only(queue))| (queue, depth.into())).collect();
        let catalog = self.catalog().await?;
        Ok(catalog.queues().map(|queue| (queue.name.clone(), found.remove(&queue.id).unwrap_or_default())).collect())
    }

    /// For how long the oldest claimable entry of each queue has been claimable; `None` where nothing is.
    pub(super) async fn oldest(&self) -> Result<Vec<(QueueName, Option<Duration>)>> {
        let now = self.now();
        let rows = self.read(|tx| async move { tx.rows(&self.sql.queues.oldest, &[&now]).await }).await?;
        let mut ages: HashMap<i32, f64> = HashMap::new();
        for row in rows {
            let oldest = ages.entry(row.queue_id).or_insert(0.0);
            *oldest = oldest.max(row.seconds);
        }
        let age = |queue: &Queue| ages.get(&queue.id).and_then(|age| Duration::try_from_secs_f64(*age).ok());
        Ok(self.catalog().await?.queues().map(|queue| (queue.name.clone(), age(queue))).collect())
    }

    pub(super) async fn consumers_seen(&self, consumers: Vec<LiveConsumer>) -> Result<Batch<()>> {
        let mut answers = Vec::with_capacity(consumers.len());
        let (mut workers, mut queues, mut types): (Vec<&str>, Vec<i32>, Vec<Option<String>>) = Default::default();
        for consumer in &consumers {
            let answer = self.check_consumer(consumer).await;
            if let Ok(queue_id) = &answer {
                workers.push(&consumer.worker);
                queues.push(*queue_id);
                types.push(consumer.wants().map(|wants| serde_json::Value::from(wants).to_string()));
            }
            answers.push(answer.map(drop));
        }
        self.execute(&self.sql.queues.consumers_seen, &[&self.now(), &workers, &queues, &types]).await?;
        Ok(answers)
    }

    async fn check_consumer(&self, consumer: &LiveConsumer) -> Result<i32> {
        consumer.check()?;
        Ok(self.queue(&consumer.queue).await?.id)
    }
}
