//! How many claims compete for the same lanes, estimated by what they find.

use std::sync::atomic::{AtomicUsize, Ordering};

/// An estimate of how many claims compete for the same lanes. A claim of many lanes offers that many times what it
/// wants, so that each finds enough rows that no other one is taking.
#[derive(Debug)]
pub(in crate::postgres) struct Contention(AtomicUsize);

impl Contention {
    /// The factor is counted in sixteenths, so that it falls slowly.
    const ONE: usize = 16;
    const MAX: usize = 32 * Self::ONE;

    pub(in crate::postgres) fn new() -> Self {
        Self(AtomicUsize::new(Self::ONE))
    }

    pub(in crate::postgres) fn factor(&self) -> usize {
        self.0.load(Ordering::Relaxed).div_ceil(Self::ONE)
    }

    /// Doubles the factor, since other claims took what it offered; false when it did not grow.
    pub(in crate::postgres) fn grew(&self, factor: usize) -> bool {
        let next = (factor * 2 * Self::ONE).min(Self::MAX);
        self.0.fetch_max(next, Ordering::Relaxed) < next
    }

    /// Lowers the factor a little: a claim got all it wanted.
    pub(in crate::postgres) fn fell(&self) {
        let now = self.0.load(Ordering::Relaxed);
        if now > Self::ONE {
            let _ = self.0.compare_exchange(now, now - 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
