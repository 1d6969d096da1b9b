//! What is measured of deliveries, by pool: looked up once for each pool, not for each delivery.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};
use tidegate::PoolKey;

use crate::webhook::verdict::AttemptStatus;

/// The most pools that have figures of their own. Those that come later share one.
const MAX_POOLS: usize = 100;
/// The pool of subscriptions that name none, whoever's it is, and those beyond the most.
const DEFAULT: &str = "default";
const OTHER: &str = "_other";

/// The figures of all pools.
#[derive(Default)]
pub(super) struct Meters {
    of: HashMap<PoolKey, Arc<PoolMeters>>,
    default: Option<Arc<PoolMeters>>,
    other: Option<Arc<PoolMeters>>,
}

/// Those of one pool.
pub(super) struct PoolMeters {
    took: Histogram,
    ended: [Counter; AttemptStatus::ALL.len()],
}

impl Meters {
    /// The figures of a pool.
    pub(super) fn of(&mut self, key: PoolKey) -> Arc<PoolMeters> {
        let new = |label: String| Arc::new(PoolMeters::new(&label));
        if let Some(known) = self.of.get(&key) {
            return Arc::clone(known);
        }
        let Some(pool) = key.pool else {
            return Arc::clone(self.default.get_or_insert_with(|| new(DEFAULT.to_owned())));
        };
        if self.of.len() >= MAX_POOLS {
            return Arc::clone(self.other.get_or_insert_with(|| new(OTHER.to_owned())));
        }
        Arc::clone(self.of.entry(key).or_insert_with(|| new(pool.to_string())))
    }
}

impl PoolMeters {
    fn new(pool: &str) -> Self {
        let ended = AttemptStatus::ALL.map(|status| {
            let result = status.as_str().to_ascii_lowercase();
            counter!("tidegate_deliveries_total", "pool" => pool.to_owned(), "result" => result)
        });
        Self { took: histogram!("tidegate_delivery_seconds", "pool" => pool.to_owned()), ended }
    }

    /// An attempt took so long.
    pub(super) fn took(&self, time: Duration) {
        self.took.record(time);
    }

    /// An attempt ended and is recorded.
    pub(super) fn ended(&self, status: AttemptStatus) {
        let counters = AttemptStatus::ALL.iter().zip(&self.ended);
        counters.filter(|(of, _)| **of == status).for_each(|(_, counter)| counter.increment(1));
    }
}
