//! The store's wake-ups, for a server that lets many callers wait with one poll.

use tidegate_store::{Store, Wake};
use tokio::sync::broadcast::{self, error::RecvError};

use crate::queue::EventQueue;

/// Wake-ups of the store, of this and of other processes; see [`EventQueue::wake_hints`].
#[derive(Debug)]
pub struct WakeHints(broadcast::Receiver<Wake>);

impl EventQueue {
    /// The store's wake-ups from now on: hints that something may be claimable in some queue. Losing one costs time,
    /// never an entry.
    #[must_use]
    pub fn wake_hints(&self) -> WakeHints {
        WakeHints::of(&*self.shared().store)
    }
}

impl WakeHints {
    pub(super) fn of(store: &dyn Store) -> Self {
        Self(store.wakeups())
    }

    /// Waits for the next wake-up: where something may be claimable. `None` when the store is closed.
    pub async fn next_wake(&mut self) -> Option<Wake> {
        match self.0.recv().await {
            Ok(wake) => Some(wake),
            Err(RecvError::Lagged(_)) => Some(Wake::Any),
            Err(RecvError::Closed) => None,
        }
    }

    /// Waits for the next wake-up, or for the notice that some were missed. False when the store is closed.
    pub async fn next(&mut self) -> bool {
        !matches!(self.0.recv().await, Err(RecvError::Closed))
    }

    /// Drops the wake-ups that came so far.
    pub fn skip(&mut self) {
        self.0 = self.0.resubscribe();
    }
}
