//! Moments that may lie further away than a clock can tell.

use std::time::{Duration, Instant};

/// Longer than any process waits.
const FAR: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// The moment so long after another; a distant one where the clock has none.
pub(crate) fn after(moment: Instant, by: Duration) -> Instant {
    moment.checked_add(by.min(FAR)).unwrap_or(moment)
}
