//! Arithmetic on instants that cannot overflow.

use std::time::{Duration, Instant};

/// Ten years: longer than any process waits.
const FAR: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// `moment + by`, with `by` capped at [`FAR`]; `moment` itself should even that overflow the clock.
pub(crate) fn after(moment: Instant, by: Duration) -> Instant {
    moment.checked_add(by.min(FAR)).unwrap_or(moment)
}

/// The moment `by` from now on the runtime's clock.
pub(crate) fn distant(by: Duration) -> tokio::time::Instant {
    after(tokio::time::Instant::now().into_std(), by).into()
}
