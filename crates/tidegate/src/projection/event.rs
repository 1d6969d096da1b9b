//! What handlers of a projection get and return, and how their panics and errors become text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tidegate_core::{End, EntryId, Generation, Timestamp, Tsid};
use tidegate_store::{Fact, LogRow};

/// The error type of handlers.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An event of the log with its decoded payload.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoggedEvent<E> {
    /// The decoded payload.
    pub data: E,
    /// The number of the entry.
    pub id: EntryId,
    /// The generation of the entry: above 1 after a redrive.
    pub generation: Generation,
    /// The id of the event.
    pub event_id: Tsid,
    /// How the entry ended.
    pub end: End,
    /// When the entry ended, in database time.
    pub finished_at: Timestamp,
    /// The event as it was published.
    pub fact: Fact,
}

impl<E> LoggedEvent<E> {
    pub(super) fn new(row: LogRow, read: impl FnOnce(&Fact) -> Result<E, String>) -> Result<Self, String> {
        let LogRow { id, generation, event_id, end, finished_at, fact, .. } = row;
        Ok(Self { data: read(&fact)?, id, generation, event_id, end, finished_at, fact })
    }
}

/// Decodes a JSON payload.
pub(super) fn decode<E: serde::de::DeserializeOwned>(fact: &Fact) -> Result<E, String> {
    serde_json::from_slice(&fact.payload).map_err(|error| format!("the payload cannot be read: {error}"))
}

/// What a fold may return: the new state, `None` for no document, or an error.
pub trait FoldAnswer<S> {
    /// Converts to a result.
    ///
    /// # Errors
    /// The error of the fold.
    fn into_state(self) -> Result<Option<S>, BoxError>;
}

impl<S> FoldAnswer<S> for Option<S> {
    fn into_state(self) -> Result<Option<S>, BoxError> {
        Ok(self)
    }
}

impl<S, E: Into<BoxError>> FoldAnswer<S> for Result<Option<S>, E> {
    fn into_state(self) -> Result<Option<S>, BoxError> {
        self.map_err(Into::into)
    }
}

/// Runs code of a handler; a panic becomes an error.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

pub(super) fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the handler panicked: {}", text.unwrap_or("no message"))
}

/// An error with all its sources, in one line.
pub(super) fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = inner.source();
    }
    text
}
