//! How far the searches for groups without a head have come.

use std::time::Instant;

/// How far the search for groups without a head has come: when it last ran, and the last group it covered.
#[derive(Debug, Default)]
pub(in crate::postgres) struct Sweep {
    pub(in crate::postgres) last: Option<Instant>,
    pub(in crate::postgres) after: Option<(i32, String)>,
    /// The last group in which upkeep has looked for something that is aside and due.
    pub(in crate::postgres) aside_after: Option<(i32, String)>,
}
