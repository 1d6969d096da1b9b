//! How many bytes of request bodies are in memory at once, over all requests. Each request holds its share until it is
//! answered, since what was parsed from a body lives that long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// All bodies together.
#[derive(Debug)]
pub(crate) struct Bodies {
    most: usize,
    used: AtomicUsize,
}

impl Bodies {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, used: AtomicUsize::new(0) }
    }

    /// What single events may fill.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// What batches may fill: a few of them must not keep single events out.
    pub(crate) fn most_of_batches(&self) -> usize {
        self.most / 4 * 3
    }
}

/// What one request holds.
#[derive(Debug)]
pub(crate) struct Share {
    bodies: Arc<Bodies>,
    held: AtomicUsize,
}

impl Share {
    pub(crate) fn new(bodies: &Arc<Bodies>) -> Self {
        Self { bodies: Arc::clone(bodies), held: AtomicUsize::new(0) }
    }

    /// Takes room for so many bytes more; false when that would be more than `most` with everybody's.
    pub(crate) fn take(&self, bytes: usize, most: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|used| *used <= most);
        let taken = self.bodies.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok();
        if taken {
            self.held.fetch_add(bytes, Ordering::AcqRel);
        }
        taken
    }

    /// Gives everything back.
    pub(crate) fn release(&self) {
        let held = self.held.swap(0, Ordering::AcqRel);
        self.bodies.used.fetch_sub(held, Ordering::AcqRel);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_end_with_their_requests() {
        let bodies = Arc::new(Bodies::new(100));
        let (first, second) = (Share::new(&bodies), Share::new(&bodies));
        assert!(first.take(60, bodies.most_of_batches()));
        assert!(!second.take(16, bodies.most_of_batches()), "batches leave room");
        assert!(second.take(40, bodies.most()));
        assert!(!second.take(1, bodies.most()));
        assert!(!second.take(usize::MAX, bodies.most()));
        drop(first);
        assert!(second.take(60, bodies.most()));
        second.release();
        drop(second);
        assert_eq!(bodies.used.load(Ordering::SeqCst), 0);
    }
}
