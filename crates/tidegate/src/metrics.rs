//! The library's own metrics, through the `metrics` facade. The names are listed in the crate's documentation.
//!
//! Handles are created once, when a queue is opened, so that the hot path pays one branch when no recorder is
//! installed. A recorder must therefore be installed before the queue is opened.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use tidegate_core::{Depth, End, QueueName};
use tidegate_store::{ErrorKind, Result};

/// Handles of every metric that the hot paths touch.
pub(crate) struct Meters {
    pub(crate) published: Counter,
    pub(crate) claimed: Counter,
    /// Counters of ends by queue.
    queues: Mutex<QueueLabels>,
    pub(crate) retried: Counter,
    pub(crate) released: Counter,
    leases_lost: Counter,
    pub(crate) publish_to_claim: Histogram,
    pub(crate) claim_to_finish: Histogram,
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}

impl Meters {
    /// At most `labels` queues get a label of their own.
    pub(crate) fn new(labels: usize) -> Self {
        Self {
            published: counter!("tidegate_published_total"),
            claimed: counter!("tidegate_claimed_total"),
            queues: Mutex::new(QueueLabels { most: labels, ends: HashMap::new(), others: ends_of(OTHER) }),
            retried: counter!("tidegate_retried_total"),
            released: counter!("tidegate_released_total"),
            leases_lost: counter!("tidegate_leases_lost_total"),
            publish_to_claim: histogram!("tidegate_publish_to_claim_seconds"),
            claim_to_finish: histogram!("tidegate_claim_to_finish_seconds"),
        }
    }

    pub(crate) fn ended(&self, queue: &QueueName, end: End, count: u64) {
        if count > 0 {
            let mut labels = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            labels.ends(queue)[end.code() as usize].increment(count);
        }
    }

    /// Sets the depth gauges. Queues without a label of their own are summed.
    pub(crate) fn show_depths(&self, depths: &[(QueueName, Depth)]) {
        let mut others = None;
        for (queue, depth) in depths {
            if self.has_label(queue) {
                show_depth(&queue.to_string(), depth);
            } else {
                let sum: &mut Depth = others.get_or_insert_default();
                sum.ready += depth.ready;
                sum.delayed += depth.delayed;
                sum.parked += depth.parked;
                sum.leased += depth.leased;
            }
        }
        if let Some(others) = others {
            show_depth(OTHER, &others);
        }
    }

    /// Sets the gauges of how long the first claimable entry of each queue has been waiting. Queues without a label of
    /// their own show the longest of theirs.
    pub(crate) fn show_oldest(&self, ages: &[(QueueName, f64)]) {
        let mut others: Option<f64> = None;
        for (queue, seconds) in ages {
            if self.has_label(queue) {
                show_oldest_age(queue.to_string(), *seconds);
            } else {
                others = Some(others.map_or(*seconds, |longest| longest.max(*seconds)));
            }
        }
        if let Some(seconds) = others {
            show_oldest_age(OTHER.to_owned(), seconds);
        }
    }

    fn has_label(&self, queue: &QueueName) -> bool {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).has_label(queue)
    }

    /// Counts the answers that were fenced.
    pub(crate) fn lost_leases<T>(&self, answers: &[Result<T>]) {
        let fenced = |answer: &&Result<T>| answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Fenced);
        let lost = answers.iter().filter(fenced).count();
        if lost > 0 {
            self.leases_lost.increment(lost as u64);
        }
    }
}

/// The label shared by all queues that have none of their own.
const OTHER: &str = "_other";

type Ends = [Counter; End::ALL.len()];

fn ends_of(queue: &str) -> Ends {
    End::ALL.map(|end| counter!("tidegate_finalized_total", "queue" => queue.to_owned(), "end" => end.as_str()))
}

/// Labels are given to queues in the order in which they are first seen, up to `most`; the rest use `others`.
struct QueueLabels {
    most: usize,
    ends: HashMap<QueueName, Ends>,
    others: Ends,
}

impl QueueLabels {
    fn has_label(&mut self, queue: &QueueName) -> bool {
        if self.ends.contains_key(queue) {
            return true;
        }
        let below_limit = self.ends.len() < self.most;
        if below_limit {
            self.ends.insert(queue.clone(), ends_of(&queue.to_string()));
        }
        below_limit
    }

    fn ends(&mut self, queue: &QueueName) -> &Ends {
        self.has_label(queue);
        self.ends.get(queue).unwrap_or(&self.others)
    }
}

fn show_depth(queue: &str, depth: &Depth) {
    let states =
        [("ready", depth.ready), ("delayed", depth.delayed), ("parked", depth.parked), ("leased", depth.leased)];
    for (state, count) in states {
        depth_gauge(queue, state).set(count as f64);
    }
}

fn depth_gauge(queue: &str, state: &'static str) -> Gauge {
    gauge!("tidegate_depth", "queue" => queue.to_owned(), "state" => state)
}

fn show_oldest_age(queue: String, seconds: f64) {
    gauge!("tidegate_oldest_age_seconds", "queue" => queue).set(seconds);
}
