//! Counts and durations of a full and of a quick run, and the payload of all events.

use std::time::Duration;

/// Entries per batch, on both sides of every discipline that works in batches.
pub(crate) const BATCH: usize = 1_000;
/// Concurrent callers of the batched PostgreSQL disciplines, on both sides.
pub(crate) const CALLERS: usize = 2;
/// Concurrent tasks that publish single events through Tidegate.
pub(crate) const PUBLISHERS: usize = 64;
/// Connections on which the baseline inserts single rows.
pub(crate) const RAW_CONNECTIONS: usize = 32;
/// Connections on which the baseline of ingest writes batches: as many as Tidegate writes at once.
pub(crate) const INGEST_CONNECTIONS: usize = 4;
/// Entries per claim where the cost of a claim is measured.
pub(crate) const CLAIM: usize = 100;
/// Bytes per payload, except where memory is measured.
pub(crate) const PAYLOAD: usize = 200;

/// Connections to a server under load.
pub(crate) const CONNECTIONS: usize = 64;
/// Events per request, where a request carries several.
pub(crate) const REQUEST: usize = 100;
/// Subscribers that wait at once.
pub(crate) const LONG_POLLS: usize = 2_000;

/// The counts and durations of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Runs of each side.
    pub(crate) runs: usize,
    /// Events that are drained.
    pub(crate) drain: usize,
    /// Events that are published in batches.
    pub(crate) publish_many: usize,
    /// How long events are published one by one. A fixed count would take too long where an fsync is slow.
    pub(crate) publish_single: Duration,
    /// Events of the whole cycle on SQLite.
    pub(crate) cycle: usize,
    /// Entries of the small backlog.
    pub(crate) backlog_small: usize,
    /// Entries of the large backlog.
    pub(crate) backlog_large: usize,
    /// Delayed entries, or entries of foreign types, that were published before those that are claimed.
    pub(crate) in_front: usize,
    /// Queues with 1,000 lanes each.
    pub(crate) lane_queues: usize,
    /// Leased entries that were published before those that are claimed.
    pub(crate) leased: usize,
    /// Claims per run.
    pub(crate) claims: usize,
    /// How long the snapshot is held open; the run without it takes as long.
    pub(crate) held: Duration,
    /// Events whose write-ahead log is measured.
    pub(crate) wal: usize,
    /// Events of 1 KiB that are published and ended while memory is measured.
    pub(crate) memory: usize,
    /// Events per run whose latency from publish to handler or subscriber is measured.
    pub(crate) latency: usize,
    /// Log rows that a projection reads.
    pub(crate) projection: usize,
    /// Runs of the wake-up and idle disciplines, which mostly wait.
    pub(crate) wakes: usize,
    /// How long the CPU use of an idle manager or server is measured.
    pub(crate) idle: Duration,
    /// How long a server is under load, per run.
    pub(crate) serve: Duration,
    /// Waiting events among which ten have the rare tag.
    pub(crate) rare: usize,
    /// Waiting events that share the hot tag.
    pub(crate) hot: usize,
    /// Ended events that are listed.
    pub(crate) listed: usize,
    /// Requests for each kind of list.
    pub(crate) lists: usize,
    /// Events in the database where some clients list while others publish.
    pub(crate) list_load: usize,
    /// Validations per run.
    pub(crate) validations: usize,
    /// Event types, of which one is used or all are listed.
    pub(crate) types: usize,
    /// Subscriptions among which three match.
    pub(crate) subscriptions: usize,
    /// Events that are matched per run.
    pub(crate) matches: usize,
    /// Subscriptions that all match one event.
    pub(crate) fan_out: usize,
    /// Such events per run.
    pub(crate) wide: usize,
    /// Events that are searched.
    pub(crate) searched: usize,
    /// Jobs that wait for their delivery.
    pub(crate) jobs: usize,
    /// For how long a bad target is among healthy ones.
    pub(crate) beside: Duration,
    /// Jobs that wait while nothing is delivered.
    pub(crate) waiting: usize,
    /// The limit of a pool per minute, and for how long it is watched.
    pub(crate) per_minute: (u32, Duration),
}

impl Scale {
    /// For results that are kept.
    pub(crate) const FULL: Self = Self {
        runs: 5,
        drain: 200_000,
        publish_many: 200_000,
        publish_single: Duration::from_secs(5),
        cycle: 200_000,
        backlog_small: 10_000,
        backlog_large: 1_000_000,
        in_front: 500_000,
        lane_queues: 50,
        leased: 50_000,
        claims: 40,
        held: Duration::from_secs(300),
        wal: 100_000,
        memory: 1_000_000,
        latency: 200,
        wakes: 3,
        projection: 1_000_000,
        idle: Duration::from_secs(20),
        serve: Duration::from_secs(5),
        rare: 1_000_000,
        hot: 100_000,
        listed: 1_000_000,
        lists: 500,
        list_load: 300_000,
        validations: 50_000,
        types: 10_000,
        subscriptions: 10_000,
        matches: 500_000,
        fan_out: 5_000,
        wide: 20,
        searched: 1_000_000,
        jobs: 100_000,
        beside: Duration::from_secs(10),
        waiting: 1_000_000,
        per_minute: (600, Duration::from_secs(150)),
    };

    /// For an impression within a few minutes.
    pub(crate) const QUICK: Self = Self {
        runs: 3,
        drain: 40_000,
        publish_many: 10_000,
        publish_single: Duration::from_millis(500),
        cycle: 10_000,
        backlog_small: 10_000,
        backlog_large: 60_000,
        in_front: 30_000,
        lane_queues: 2,
        leased: 5_000,
        claims: 20,
        held: Duration::from_secs(3),
        wal: 5_000,
        memory: 50_000,
        latency: 12,
        wakes: 1,
        projection: 10_000,
        idle: Duration::from_secs(2),
        serve: Duration::from_millis(500),
        rare: 20_000,
        hot: 20_000,
        listed: 20_000,
        lists: 100,
        list_load: 20_000,
        validations: 5_000,
        types: 300,
        subscriptions: 1_000,
        matches: 50_000,
        fan_out: 500,
        wide: 5,
        searched: 20_000,
        jobs: 20_000,
        beside: Duration::from_secs(4),
        waiting: 100_000,
        per_minute: (1_200, Duration::from_secs(75)),
    };
}

/// A JSON payload of exactly this many bytes.
pub(crate) fn payload(bytes: usize) -> String {
    let (head, tail) = (r#"{"order":12345,"amount":99.99,"text":""#, r#""}"#);
    let filler = "the tide comes in and the tide goes out and ".chars().cycle();
    let text: String = filler.take(bytes.saturating_sub(head.len() + tail.len())).collect();
    format!("{head}{text}{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_json_of_the_size_asked_for() {
        for bytes in [PAYLOAD, 1024] {
            let payload = payload(bytes);
            assert_eq!(payload.len(), bytes);
            assert!(serde_json::from_str::<serde_json::Value>(&payload).is_ok());
        }
    }
}
