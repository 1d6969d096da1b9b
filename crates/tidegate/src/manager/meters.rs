//! Metrics of handlers.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};
use tidegate_core::Handled;

/// Metric handles of one handler.
pub(crate) struct HandlerMeters {
    success: Counter,
    transient: Counter,
    unrecoverable: Counter,
    snooze: Counter,
    discard: Counter,
    seconds: Histogram,
}

impl std::fmt::Debug for HandlerMeters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandlerMeters").finish_non_exhaustive()
    }
}

impl HandlerMeters {
    pub(crate) fn new(handler: &str) -> Self {
        let count = |result: &'static str| counter!("tidegate_handled_total", "handler" => handler.to_owned(), "result" => result);
        Self {
            success: count("SUCCESS"),
            transient: count("TRANSIENT_ERROR"),
            unrecoverable: count("UNRECOVERABLE_ERROR"),
            snooze: count("SNOOZE"),
            discard: count("DISCARD"),
            seconds: histogram!("tidegate_handler_seconds", "handler" => handler.to_owned()),
        }
    }

    pub(crate) fn count(&self, answer: &Handled, took: Duration) {
        let counter = match answer {
            Handled::Success => &self.success,
            Handled::TransientError { .. } => &self.transient,
            Handled::UnrecoverableError { .. } => &self.unrecoverable,
            Handled::Snooze(_) => &self.snooze,
            Handled::Discard { .. } => &self.discard,
        };
        counter.increment(1);
        self.seconds.record(took.as_secs_f64());
    }
}
