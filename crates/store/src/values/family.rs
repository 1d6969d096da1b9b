//! The families of entries: the same verbs over tables of their own.

/// Which tables a store's verbs work on. Both families have queues, lanes, live entries and a log of their own, and share
/// facts, entry ids and the heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Family {
    /// Entries of queues, which handlers and workers consume.
    #[default]
    Entries,
    /// Jobs of dispatch, which are delivered to webhooks. They have no tags and no audit, and plain SQL publishes none.
    Jobs,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 2] = [Self::Entries, Self::Jobs];

    /// How many types of a queue get lanes of their own; further types share one lane per priority. Jobs are sorted by their
    /// subscriptions, which a shared lane cannot tell apart, so each has a lane of its own.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn own_types(self) -> usize {
        match self {
            Self::Entries => 256,
            Self::Jobs => usize::MAX,
        }
    }

    /// Fills in the names of the family's tables in a statement: `{live}`, `{log}`, `{queues}`, `{lanes}`, `{notes}` and
    /// `{consumers}` become `{ns}`, `separator` and the table's name; `{key_kind}` and
    /// `{request_kind}` are the kinds of its deduplication and idempotency keys.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn fill(self, text: &str, separator: &str) -> String {
        let (tables, key_kind, request_kind) = match self {
            Self::Entries => (["event_queue", "event_log", "queues", "lanes", "group_notes", "consumers"], "0", "1"),
            Self::Jobs => (
                [
                    "dispatch_queue",
                    "dispatch_log",
                    "dispatch_queues",
                    "dispatch_lanes",
                    "dispatch_notes",
                    "dispatch_consumers",
                ],
                "2",
                "3",
            ),
        };
        let places = ["{live}", "{log}", "{queues}", "{lanes}", "{notes}", "{consumers}"];
        let filled = places
            .iter()
            .zip(tables)
            .fold(text.to_owned(), |text, (place, table)| text.replace(place, &format!("{{ns}}{separator}{table}")));
        filled.replace("{key_kind}", key_kind).replace("{request_kind}", request_kind)
    }
}
