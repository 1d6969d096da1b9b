//! Why an event is refused.

use std::borrow::Cow;

use super::text::clip;

/// An event that is no valid CloudEvent. The message begins with the field and says what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {reason}")]
pub struct InvalidCloudEvent {
    field: Cow<'static, str>,
    reason: Cow<'static, str>,
}

/// What stands for a field when the whole event is concerned.
pub(super) const EVENT: &str = "the event";
/// What stands for a field when all attributes together are concerned.
pub(super) const CONTEXT: &str = "the context attributes";

impl InvalidCloudEvent {
    /// An error for a field of ours.
    pub(super) fn new(field: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }

    /// An error for a field that the sender named: only the start of a long name is shown.
    pub(super) fn of(field: &str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { field: clip(field).into(), reason: reason.into() }
    }

    /// The same error, with a field's name as the sender knows it.
    pub(super) fn renamed(self, from: &str, to: &'static str) -> Self {
        if self.field == from { Self { field: to.into(), ..self } } else { self }
    }

    /// The attribute or member that is invalid, by the name under which it was sent; `the event`, `the batch` or
    /// `the context attributes` when it is no single one.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What is wrong with it.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}
