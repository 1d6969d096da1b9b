//! The limits of one batcher: how much it flushes at once, how much may wait, and which calls it admits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;

/// The limits of one batcher.
#[derive(Debug, Clone)]
pub struct BatcherLimits {
    /// Most items of one flush.
    pub batch_items: usize,
    /// Largest weight of one flush; a single call that is heavier is flushed alone.
    pub batch_weight: usize,
    /// Most flushes that run at once.
    pub in_flight: usize,
    /// Most items that are admitted at once: waiting or being flushed.
    pub room_items: usize,
    /// Largest weight of all admitted items.
    pub room_weight: usize,
    /// How long a call waits to be admitted before it fails with `Busy`.
    pub deadline: Duration,
    /// Whether a call is left out of its flush when its caller is gone by then.
    pub skip_gone: bool,
    /// A check of every call before it is admitted.
    pub admit: Admit,
}

/// A check that runs in the caller's own task before a call is admitted; its error becomes the call's. Admits every
/// call by default.
#[derive(Clone)]
pub struct Admit(Arc<dyn Fn() -> Result<()> + Send + Sync>);

impl Admit {
    /// A check by this closure.
    pub fn new(check: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(check))
    }

    pub(super) fn check(&self) -> Result<()> {
        (self.0)()
    }
}

impl Default for Admit {
    fn default() -> Self {
        Self::new(|| Ok(()))
    }
}

impl fmt::Debug for Admit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admit")
    }
}

impl Default for BatcherLimits {
    fn default() -> Self {
        Self {
            batch_items: 1_000,
            batch_weight: 8 << 20,
            in_flight: 1,
            room_items: 10_000,
            room_weight: 32 << 20,
            deadline: Duration::from_secs(30),
            skip_gone: false,
            admit: Admit::default(),
        }
    }
}
