//! Notifications between processes: what is still to be sent, and what a received one says. Those about jobs begin with
//! [`OF_JOBS`].

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use crate::values::Family;

/// The payload for the commit of a caller's own transaction: sort in arrivals and probe below the marks.
const LATE: &str = "late";

/// How the payload of a notification about jobs begins.
const OF_JOBS: &str = "jobs:";

/// Notifications that are still to be sent.
#[derive(Debug, Default)]
pub(in crate::postgres) struct Outbox {
    /// By family.
    pending: Mutex<[Pending; 2]>,
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
    /// Adds queues of a family that have something to claim, and whether a caller's own transaction committed.
    pub(in crate::postgres) fn add(&self, family: Family, queues: &BTreeSet<i32>, late: bool) {
        let mut all = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = &mut all[family as usize];
        pending.queues.extend(queues);
        pending.late |= late;
        drop(all);
        self.ready.notify_one();
    }

    pub(in crate::postgres) fn take(&self) -> Vec<String> {
        let pending = std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner));
        let of = |(family, pending): (Family, Pending)| pending.payloads(family);
        Family::ALL.into_iter().zip(pending).flat_map(of).collect()
    }
}

impl Pending {
    fn payloads(self, family: Family) -> Vec<String> {
        let prefix = if family == Family::Jobs { OF_JOBS } else { "" };
        let numbers: Vec<String> = self.queues.iter().map(i32::to_string).collect();
        // A notification carries less than 8,000 bytes.
        let mut payloads: Vec<String> =
            numbers.chunks(500).map(|chunk| format!("{prefix}{}", chunk.join(","))).collect();
        payloads.extend(self.late.then(|| format!("{prefix}{LATE}")));
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

/// Reads a notification, and the family that it is about. What cannot be read counts as [`Heard::Late`], which makes no
/// assumption about queues.
pub(in crate::postgres) fn read(payload: &str) -> (Family, Heard) {
    let (family, payload) = match payload.strip_prefix(OF_JOBS) {
        Some(rest) => (Family::Jobs, rest),
        None => (Family::Entries, payload),
    };
    let numbers: Result<BTreeSet<i32>, _> = payload.split(',').map(str::parse).collect();
    (family, numbers.map_or(Heard::Late, Heard::Queues))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_round_trip() {
        let outbox = Outbox::default();
        outbox.add(Family::Entries, &BTreeSet::from([3, 1]), true);
        outbox.add(Family::Jobs, &BTreeSet::from([7]), true);
        outbox.add(Family::Entries, &BTreeSet::from([2]), false);
        let payloads = outbox.take();
        assert_eq!(payloads, ["1,2,3", "late", "jobs:7", "jobs:late"]);
        assert_eq!(read(&payloads[0]), (Family::Entries, Heard::Queues(BTreeSet::from([1, 2, 3]))));
        assert_eq!(read(&payloads[1]), (Family::Entries, Heard::Late));
        assert_eq!(read(&payloads[2]), (Family::Jobs, Heard::Queues(BTreeSet::from([7]))));
        assert_eq!(read(&payloads[3]), (Family::Jobs, Heard::Late));
        assert_eq!(read(""), (Family::Entries, Heard::Late));
        assert!(outbox.take().is_empty());
    }
}
