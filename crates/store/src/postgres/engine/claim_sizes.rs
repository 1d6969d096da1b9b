//! How many entries of a queue fit into one claim, where their payloads are large. A claim that leases more bytes than
//! it may hand out is rolled back, so the number that fitted is remembered, and doubled once a claim of that size fits.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Entries that one claim takes at most.
pub(in crate::postgres) const MAX_CLAIM: usize = 10_000;

/// The most entries to claim at once, by queue id; queues whose claims all fit are not in it.
#[derive(Debug, Default)]
pub(in crate::postgres) struct ClaimSizes(Mutex<HashMap<i32, usize>>);

impl ClaimSizes {
    fn all(&self) -> MutexGuard<'_, HashMap<i32, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of the wanted entries to lease.
    pub(in crate::postgres) fn of(&self, queue: i32, wanted: usize) -> usize {
        self.all().get(&queue).map_or(wanted, |fits| wanted.min(*fits))
    }

    /// Records that only `count` entries fitted.
    pub(in crate::postgres) fn fitted(&self, queue: i32, count: usize) {
        self.all().insert(queue, count.max(1));
    }

    /// Records that `count` entries were leased and fitted; a full claim raises the limit.
    pub(in crate::postgres) fn took(&self, queue: i32, count: usize) {
        let mut all = self.all();
        if let Some(fits) = all.get_mut(&queue).filter(|fits| count >= **fits) {
            *fits *= 2;
            if *fits >= MAX_CLAIM {
                all.remove(&queue);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_falls_at_once_and_grows_by_what_fits() {
        let sizes = ClaimSizes::default();
        assert_eq!(sizes.of(1, 1000), 1000);
        sizes.fitted(1, 8);
        assert_eq!((sizes.of(1, 1000), sizes.of(1, 3), sizes.of(2, 1000)), (8, 3, 1000));
        sizes.took(1, 7);
        assert_eq!(sizes.of(1, 1000), 8);
        sizes.took(1, 8);
        assert_eq!(sizes.of(1, 1000), 16);
        sizes.fitted(1, 0);
        assert_eq!(sizes.of(1, 1000), 1);
        for _ in 0..20 {
            sizes.took(1, usize::MAX);
        }
        assert_eq!(sizes.of(1, usize::MAX), usize::MAX);
    }
}
