//! The batchers of a queue: one per verb, so that no verb waits behind another. Each flush is one call of the store; it
//! also counts what was done and wakes waiters.

use std::sync::Arc;

use tidegate_core::{End, NewEvent, QueueName, Timestamp};
use tidegate_store::{
    Backend, Batch, Extend, Finalize, Finalized, Heartbeat, Held, ManualAction, PublishOutcome, Published, Report,
    ReportResult, Reported, Requeue, Store,
};

use super::batcher::Batcher;
use super::limits::{Admit, BatcherLimits};
use crate::background::wake::{WakeUps, hints_of};
use crate::error::Result;
use crate::metrics::Meters;
use crate::options::Options;

/// One batcher per verb.
#[derive(Debug, Clone)]
pub(crate) struct Batchers {
    publish: Batcher<NewEvent, Published>,
    publish_grouped: Batcher<NewEvent, Published>,
    publish_keyed: Batcher<NewEvent, Published>,
    publish_keyed_grouped: Batcher<NewEvent, Published>,
    pub(crate) finish: Batcher<Ending, Finalized>,
    pub(crate) extend: Batcher<Extend, Timestamp>,
    pub(crate) requeue: Batcher<Requeue, ()>,
    pub(crate) release: Batcher<Requeue, ()>,
    pub(crate) cancel: Batcher<ManualAction, ()>,
    pub(crate) report: Batcher<Report, Reported>,
    pub(crate) heartbeat: Batcher<Heartbeat, Held>,
}

/// The limits of a batcher that by default runs one flush at a time on SQLite and `on_postgres` of them on PostgreSQL.
pub(crate) fn batcher_limits(options: &Options, store: &Arc<dyn Store>, on_postgres: usize) -> BatcherLimits {
    let limits = &options.limits;
    let weak_store = Arc::downgrade(store);
    let in_flight = match store.backend() {
        Backend::Sqlite => 1,
        Backend::Postgres => on_postgres,
    };
    BatcherLimits {
        batch_items: limits.batch_items,
        batch_weight: limits.batch_bytes,
        // Batchers that must keep an order run one flush at a time, whatever the setting.
        in_flight: if on_postgres == 1 { 1 } else { limits.in_flight.unwrap_or(in_flight) },
        room_items: limits.waiting_items,
        room_weight: limits.waiting_bytes,
        deadline: limits.deadline,
        skip_gone: false,
        admit: Admit::new(move || weak_store.upgrade().map_or(Ok(()), |store| store.check_caller())),
    }
}

impl Batchers {
    pub(crate) fn new(
        options: &Options,
        store: &Arc<dyn Store>,
        meters: &Arc<Meters>,
        wake_ups: &Arc<WakeUps>,
    ) -> Self {
        let limits = |on_postgres| batcher_limits(options, store, on_postgres);
        let publish = |name, on_postgres| {
            let (store, meters, wake_ups) = (Arc::clone(store), Arc::clone(meters), Arc::clone(wake_ups));
            Batcher::new(name, limits(on_postgres), NewEvent::weight, move |events| {
                publish(Arc::clone(&store), Arc::clone(&meters), Arc::clone(&wake_ups), events)
            })
        };
        Self {
            publish: publish("publish", 2),
            // One flush at a time: a group is ordered by its flushes.
            publish_grouped: publish("publish_grouped", 1),
            // A key may wait for another caller's open transaction; events without keys should not wait with it.
            publish_keyed: publish("publish_keyed", 4),
            publish_keyed_grouped: publish("publish_keyed_grouped", 1),
            finish: finish_batcher(limits(2), store, meters, wake_ups),
            extend: extend_batcher(limits(2), store, meters),
            requeue: requeue_batcher("requeue", limits(2), store, Some(meters)),
            release: requeue_batcher("release", limits(2), store, None),
            cancel: cancel_batcher(limits(2), store),
            report: report_batcher(limits(2), store, meters),
            heartbeat: heartbeat_batcher(limits(2), store, meters),
        }
    }

    /// The batcher for events that are published together.
    pub(crate) fn for_publish(&self, events: &[NewEvent]) -> &Batcher<NewEvent, Published> {
        let keyed = events.iter().any(|event| event.deduplication.is_some() || event.idempotency.is_some());
        let grouped = events.iter().any(|event| event.group.is_some());
        match (keyed, grouped) {
            (false, false) => &self.publish,
            (false, true) => &self.publish_grouped,
            (true, false) => &self.publish_keyed,
            (true, true) => &self.publish_keyed_grouped,
        }
    }

    /// Refuses further calls of every verb but releases, and waits until admitted ones are flushed.
    pub(crate) async fn close_and_flush(&self) {
        for batcher in self.publish_batchers() {
            batcher.close();
        }
        self.finish.close();
        self.extend.close();
        self.requeue.close();
        self.cancel.close();
        self.report.close();
        self.heartbeat.close();
        self.idle().await;
    }

    /// Waits until all admitted calls but releases are flushed.
    pub(crate) async fn idle(&self) {
        for batcher in self.publish_batchers() {
            batcher.idle().await;
        }
        self.finish.idle().await;
        self.extend.idle().await;
        self.requeue.idle().await;
        self.cancel.idle().await;
        self.report.idle().await;
        self.heartbeat.idle().await;
    }

    fn publish_batchers(&self) -> [&Batcher<NewEvent, Published>; 4] {
        [&self.publish, &self.publish_grouped, &self.publish_keyed, &self.publish_keyed_grouped]
    }
}

async fn publish(
    store: Arc<dyn Store>,
    meters: Arc<Meters>,
    wake_ups: Arc<WakeUps>,
    events: Vec<NewEvent>,
) -> Result<Batch<Published>> {
    let hints = hints_of(&events);
    let answers = store.publish(events).await?;
    let created = |answer: &&Result<Published>| {
        answer.as_ref().is_ok_and(|published| published.outcome == PublishOutcome::Created)
    };
    meters.published.increment(answers.iter().filter(created).count() as u64);
    wake_ups.published(hints.iter());
    Ok(answers)
}

fn finish_batcher(
    limits: BatcherLimits,
    store: &Arc<dyn Store>,
    meters: &Arc<Meters>,
    wake_ups: &Arc<WakeUps>,
) -> Batcher<Ending, Finalized> {
    let (store, meters, wake_ups) = (Arc::clone(store), Arc::clone(meters), Arc::clone(wake_ups));
    let weigh = |Ending { item, .. }: &Ending| {
        64 + [&item.errors, &item.results, &item.attempt].into_iter().flatten().map(String::len).sum::<usize>()
    };
    Batcher::new("finish", limits, weigh, move |items| {
        let (store, meters, wake_ups) = (Arc::clone(&store), Arc::clone(&meters), Arc::clone(&wake_ups));
        async move {
            let (items, queues): (Vec<Finalize>, Vec<QueueName>) =
                items.into_iter().map(|Ending { item, queue }| (item, queue)).unzip();
            let answers = store.finalize(items).await?;
            wake_ups.logged();
            count_ends(&meters, &queues, &answers);
            meters.lost_leases(&answers);
            Ok(answers)
        }
    })
}

/// Counts ended entries; neighbours of the same queue that ended alike are counted together.
fn count_ends(meters: &Meters, queues: &[QueueName], answers: &[Result<Finalized>]) {
    let ended = queues.iter().zip(answers).filter_map(|(queue, answer)| {
        answer.as_ref().ok().filter(|finalized| !finalized.repeated).map(|finalized| (queue, finalized.end))
    });
    let mut run: Option<(&QueueName, End, u64)> = None;
    for (queue, end) in ended {
        match &mut run {
            Some((of, like, count)) if *of == queue && *like == end => *count += 1,
            _ => {
                if let Some((queue, end, count)) = run.replace((queue, end, 1)) {
                    meters.ended(queue, end, count);
                }
            }
        }
    }
    if let Some((queue, end, count)) = run {
        meters.ended(queue, end, count);
    }
}

/// An entry to be ended, and the queue under which its end is counted.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    pub(crate) item: Finalize,
    pub(crate) queue: QueueName,
}

fn extend_batcher(limits: BatcherLimits, store: &Arc<dyn Store>, meters: &Arc<Meters>) -> Batcher<Extend, Timestamp> {
    let (store, meters) = (Arc::clone(store), Arc::clone(meters));
    Batcher::new(
        "extend",
        limits,
        |_| 64,
        move |items| {
            let (store, meters) = (Arc::clone(&store), Arc::clone(&meters));
            async move {
                let answers = store.extend(items).await?;
                meters.lost_leases(&answers);
                Ok(answers)
            }
        },
    )
}

/// `meters` is `None` for releases in the background, where a lease that is no longer held is expected.
fn requeue_batcher(
    name: &'static str,
    limits: BatcherLimits,
    store: &Arc<dyn Store>,
    meters: Option<&Arc<Meters>>,
) -> Batcher<Requeue, ()> {
    let (store, meters) = (Arc::clone(store), meters.cloned());
    let weigh =
        |item: &Requeue| 64 + [&item.error, &item.attempt].into_iter().flatten().map(String::len).sum::<usize>();
    Batcher::new(name, limits, weigh, move |items| {
        let (store, meters) = (Arc::clone(&store), meters.clone());
        async move {
            let answers = store.requeue(items).await?;
            if let Some(meters) = meters {
                meters.lost_leases(&answers);
            }
            Ok(answers)
        }
    })
}

fn cancel_batcher(limits: BatcherLimits, store: &Arc<dyn Store>) -> Batcher<ManualAction, ()> {
    let store = Arc::clone(store);
    Batcher::new(
        "cancel",
        limits,
        |item| 64 + item.actor.as_ref().map_or(0, String::len),
        move |items| {
            let store = Arc::clone(&store);
            async move { store.cancel_manually(items).await }
        },
    )
}

/// The batcher of reports.
fn report_batcher(limits: BatcherLimits, store: &Arc<dyn Store>, meters: &Arc<Meters>) -> Batcher<Report, Reported> {
    let (store, meters) = (Arc::clone(store), Arc::clone(meters));
    let weigh = |item: &Report| 256 + item.error_message.as_ref().map_or(0, String::len);
    Batcher::new("report", limits, weigh, move |items| {
        let (store, meters) = (Arc::clone(&store), Arc::clone(&meters));
        async move {
            let answers = store.report(items).await?;
            for reported in answers.iter().flatten().filter(|reported| !reported.repeated) {
                let end = match reported.result {
                    ReportResult::Completed => End::Completed,
                    ReportResult::Exhausted { .. } => End::Failed,
                    ReportResult::RetryScheduled { .. } => {
                        meters.retried.increment(1);
                        continue;
                    }
                };
                meters.ended(reported.queue.as_ref().unwrap_or(&QueueName::default()), end, 1);
                if let Some(held) = reported.held_for {
                    meters.claim_to_finish.record(held.as_secs_f64());
                }
            }
            meters.lost_leases(&answers);
            Ok(answers)
        }
    })
}

/// The batcher of heartbeats.
fn heartbeat_batcher(limits: BatcherLimits, store: &Arc<dyn Store>, meters: &Arc<Meters>) -> Batcher<Heartbeat, Held> {
    let (store, meters) = (Arc::clone(store), Arc::clone(meters));
    Batcher::new(
        "heartbeat",
        limits,
        |_| 128,
        move |items| {
            let (store, meters) = (Arc::clone(&store), Arc::clone(&meters));
            async move {
                let answers = store.heartbeat(items).await?;
                meters.lost_leases(&answers);
                Ok(answers)
            }
        },
    )
}
