//! The memory budget for request bodies, shared by all requests of a server. Each request holds its share until it is
//! answered, since the values parsed from its body live that long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The budget of a server and how much of it is in use, in bytes.
#[derive(Debug)]
pub(crate) struct Bodies {
    most: usize,
    used: AtomicUsize,
}

impl Bodies {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, used: AtomicUsize::new(0) }
    }

    /// Bytes in use up to which bodies of single events are accepted.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Bytes in use up to which batches are accepted. It is less, so that a few batches do not keep single events out.
    pub(crate) fn most_of_batches(&self) -> usize {
        self.most / 4 * 3
    }
}

/// The bytes that one request holds. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Share {
    bodies: Arc<Bodies>,
    held: AtomicUsize,
}

impl Share {
    pub(crate) fn new(bodies: &Arc<Bodies>) -> Self {
        Self { bodies: Arc::clone(bodies), held: AtomicUsize::new(0) }
    }

    /// Takes `bytes` more. False, and nothing is taken, when all requests together would then hold more than `most`.
    pub(crate) fn take(&self, bytes: usize, most: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|used| *used <= most);
        let taken = self.bodies.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok();
        if taken {
            self.held.fetch_add(bytes, Ordering::AcqRel);
        }
        taken
    }

    /// Gives back all that this request holds.
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
        assert!(!second.take(16, bodies.most_of_batches()), "batches leave a quarter to single events");
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
