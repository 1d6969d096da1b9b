//! Notifications between processes: what is still to be sent, and what a received one says.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// The payload for the commit of a caller's own transaction: sort in arrivals and probe below the marks.
const LATE: &str = "late";

/// Notifications that are still to be sent.
#[derive(Debug, Default)]
pub(in crate::postgres) struct Outbox {
    pending: Mutex<Pending>,
    pub(in crate::postgres) ready: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    /// Queues that have something to claim.
    queues: BTreeSet<i32>,
    /// A caller's own transaction committed.
    late: bool,
}

impl Outbox {
    /// Adds queues that have something to claim, and whether a caller's own transaction committed.
    pub(in crate::postgres) fn add(&self, queues: &BTreeSet<i32>, late: bool) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.queues.extend(queues);
        pending.late |= late;
        drop(pending);
        self.ready.notify_one();
    }

    pub(in crate::postgres) fn take(&self) -> Vec<String> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = std::mem::take(&mut *pending);
        let mut payloads = Vec::new();
        if !pending.queues.is_empty() {
            let numbers: Vec<String> = pending.queues.iter().map(i32::to_string).collect();
            // A notification carries less than 8,000 bytes.
            payloads.extend(numbers.chunks(500).map(|chunk| chunk.join(",")));
        }
        payloads.extend(pending.late.then(|| LATE.to_owned()));
        payloads
    }
}

/// What a notification says.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::postgres) enum Heard {
    /// These queues have something to claim.
    Queues(BTreeSet<i32>),
    /// A caller's own transaction committed.
    Late,
}

/// Reads a notification. What cannot be read counts as [`Heard::Late`], which makes no assumption about queues.
pub(in crate::postgres) fn read(payload: &str) -> Heard {
    let numbers: Result<BTreeSet<i32>, _> = payload.split(',').map(str::parse).collect();
    numbers.map_or(Heard::Late, Heard::Queues)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_round_trip() {
        let outbox = Outbox::default();
        outbox.add(&BTreeSet::from([3, 1]), true);
        outbox.add(&BTreeSet::from([2]), false);
        let payloads = outbox.take();
        assert_eq!(payloads, ["1,2,3", "late"]);
        assert_eq!(read(&payloads[0]), Heard::Queues(BTreeSet::from([1, 2, 3])));
        assert_eq!(read(&payloads[1]), Heard::Late);
        assert_eq!(read(""), Heard::Late);
        assert!(outbox.take().is_empty());
    }
}
