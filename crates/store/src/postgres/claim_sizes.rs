//! How many entries of a queue fit into one claim, where their payloads are large. A claim that leases more than it may hand
//! out is rolled back; so the number that fitted is remembered, and grows again once claims fit.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Numbers of entries by queue; queues whose claims fit are not in it.
#[derive(Debug, Default)]
pub(super) struct ClaimSizes(Mutex<HashMap<i32, usize>>);

impl ClaimSizes {
    fn all(&self) -> MutexGuard<'_, HashMap<i32, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many to lease, of those wanted.
    pub(super) fn of(&self, queue: i32, wanted: usize) -> usize {
        self.all().get(&queue).map_or(wanted, |fits| wanted.min(*fits))
    }

    /// Only so many fitted.
    pub(super) fn fitted(&self, queue: i32, count: usize) {
        self.all().insert(queue, count.max(1));
    }

    /// So many were leased and fitted: more may.
    pub(super) fn took(&self, queue: i32, count: usize) {
        let mut all = self.all();
        if let Some(fits) = all.get_mut(&queue).filter(|fits| count >= **fits) {
            *fits *= 2;
            if *fits >= super::claim::MAX_CLAIM {
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
