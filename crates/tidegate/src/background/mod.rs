//! What runs in the background of an opened queue: wake-ups, releases of dropped leases, the heartbeat, upkeep, the
//! probe and the gauges. Tasks hold only the parts they need or a weak reference, so that they end with the last
//! handle.

pub(crate) mod announce;
pub(crate) mod notes;
mod probe;
pub(crate) mod release;
mod upkeep;
pub(crate) mod wake;

use std::sync::Arc;

use crate::queue::shared::{Shared, Signals};

/// Starts what the jobs of a database need in the background: wake-ups, and releases of dropped leases. All else is done by
/// the tasks of the queue whose database it is, which also closes the store.
pub(crate) fn start_for_jobs(shared: &Shared, Signals { tasks, stopped }: Signals) {
    let Shared { store, batchers, meters, wake_ups, .. } = shared;
    tokio::spawn(wake::forward(Arc::clone(wake_ups), store.wakeups(), stopped));
    tokio::spawn(release::run(None, batchers.clone(), Arc::clone(meters), Arc::clone(wake_ups), tasks));
}

/// Starts the background tasks of a queue on the current runtime.
pub(crate) fn start(shared: &Arc<Shared>, Signals { tasks, stopped }: Signals) {
    let Shared { store, batchers, meters, wake_ups, notes, options, .. } = &**shared;
    let weak = || Arc::downgrade(shared);
    let every = options.upkeep_interval;
    tokio::spawn(wake::forward(Arc::clone(wake_ups), store.wakeups(), stopped.clone()));
    let beat_every = upkeep::heartbeat_interval(options);
    tokio::spawn(upkeep::keep_beating(Arc::clone(store), Arc::clone(notes), beat_every, stopped.clone()));
    let (meters, wake_ups) = (Arc::clone(meters), Arc::clone(wake_ups));
    tokio::spawn(release::run(Some(Arc::clone(store)), batchers.clone(), meters, wake_ups, tasks));
    tokio::spawn(probe::run(weak(), every, stopped.clone()));
    tokio::spawn(upkeep::run(weak(), every, stopped.clone()));
    tokio::spawn(upkeep::show_gauges(weak(), stopped));
}
