//! What handlers answer about an event, and the decision that follows from all answers. Pure: no IO, no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::entry::End;

/// What a handler answers about an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handled {
    /// It succeeded, and does not run again for this event.
    Success,
    /// It failed and may succeed later: the event is tried again, and the attempt counts.
    TransientError {
        /// What went wrong.
        error: String,
        /// How long to wait before the next attempt; the retry policy decides when `None`.
        retry_after: Option<Duration>,
    },
    /// It will never succeed: the event ends with errors.
    UnrecoverableError {
        /// What went wrong.
        error: String,
    },
    /// It cannot run now: the event comes back after this long, and the attempt does not count.
    Snooze(Duration),
    /// The event is no longer needed: it ends as cancelled.
    Discard {
        /// Why it is not needed.
        reason: String,
    },
}

impl Handled {
    /// A transient error, tried again by the retry policy.
    pub fn transient(error: impl Into<String>) -> Self {
        Self::TransientError { error: error.into(), retry_after: None }
    }

    /// A transient error, tried again after this long.
    pub fn retry_after(delay: Duration, error: impl Into<String>) -> Self {
        Self::TransientError { error: error.into(), retry_after: Some(delay) }
    }

    /// An unrecoverable error.
    pub fn unrecoverable(error: impl Into<String>) -> Self {
        Self::UnrecoverableError { error: error.into() }
    }

    /// The event is no longer needed.
    pub fn discard(reason: impl Into<String>) -> Self {
        Self::Discard { reason: reason.into() }
    }

    /// The name in records and metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::TransientError { .. } => "TRANSIENT_ERROR",
            Self::UnrecoverableError { .. } => "UNRECOVERABLE_ERROR",
            Self::Snooze(_) => "SNOOZE",
            Self::Discard { .. } => "DISCARD",
        }
    }

    fn message(&self) -> Option<&str> {
        match self {
            Self::TransientError { error, .. } | Self::UnrecoverableError { error } => Some(error),
            Self::Discard { reason } => Some(reason),
            Self::Success | Self::Snooze(_) => None,
        }
    }
}

impl From<()> for Handled {
    fn from((): ()) -> Self {
        Self::Success
    }
}

/// An error is transient unless the handler says otherwise.
impl<E: std::fmt::Display> From<Result<(), E>> for Handled {
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Success,
            Err(error) => Self::transient(error.to_string()),
        }
    }
}

/// A handler's answer as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerRecord {
    /// The [`Handled::name`] of the answer.
    pub result: String,
    /// The error, or the reason of a discard; `None` for the other answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl HandlerRecord {
    /// Whether the handler succeeded and need not run again.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.result == Handled::Success.name()
    }
}

impl From<&Handled> for HandlerRecord {
    fn from(handled: &Handled) -> Self {
        Self { result: handled.name().to_owned(), error: handled.message().map(str::to_owned) }
    }
}

/// What follows for the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerDecision {
    /// The entry ends.
    End {
        /// How it ends.
        end: End,
        /// The errors, or the reason of a discard, each after the name of its handler.
        errors: Vec<String>,
    },
    /// The entry is tried again, and the attempt counts.
    Retry {
        /// The longest delay that a handler asked for; the retry policy decides when `None`.
        after: Option<Duration>,
        /// The errors, each after the name of its handler.
        error: String,
    },
    /// The entry comes back after this long, and the attempt does not count.
    Snooze(Duration),
}

/// Decides by the answers of all handlers. The most severe wins: an unrecoverable error ends the event with errors,
/// else a discard cancels it, else a transient error has it tried again (on the last attempt, ends it as
/// `exhausted_as`), else a snooze delays it. Without any of these it is completed.
#[must_use]
pub fn decide<'a>(
    answers: impl IntoIterator<Item = (&'a str, &'a Handled)>,
    last_attempt: bool,
    exhausted_as: End,
) -> HandlerDecision {
    let mut errors = Vec::new();
    let (mut unrecoverable, mut discarded, mut transient) = (false, None, false);
    let (mut after, mut snooze): (Option<Duration>, Option<Duration>) = (None, None);
    for (handler, answer) in answers {
        match answer {
            Handled::Success => {}
            Handled::Snooze(delay) => snooze = snooze.max(Some(*delay)),
            Handled::Discard { reason } => discarded = Some(format!("{handler}: {reason}")),
            Handled::UnrecoverableError { error } => {
                unrecoverable = true;
                errors.push(format!("{handler}: {error}"));
            }
            Handled::TransientError { error, retry_after } => {
                transient = true;
                after = after.max(*retry_after);
                errors.push(format!("{handler}: {error}"));
            }
        }
    }
    if unrecoverable {
        return HandlerDecision::End { end: End::CompletedWithErrors, errors };
    }
    if let Some(reason) = discarded {
        return HandlerDecision::End { end: End::Cancelled, errors: vec![reason] };
    }
    match (transient, snooze) {
        (true, _) if last_attempt => HandlerDecision::End { end: exhausted_as, errors },
        (true, _) => HandlerDecision::Retry { after, error: errors.join("; ") },
        (false, Some(delay)) => HandlerDecision::Snooze(delay),
        (false, None) => HandlerDecision::End { end: End::Completed, errors },
    }
}

/// The answers as a JSON object, keyed by handler.
#[must_use]
pub fn results_json<'a>(answers: impl IntoIterator<Item = (&'a str, HandlerRecord)>) -> String {
    let records: BTreeMap<&str, HandlerRecord> = answers.into_iter().collect();
    serde_json::to_string(&records).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_answer() -> impl Strategy<Value = Handled> {
        let delay = (0_u64..100).prop_map(Duration::from_secs);
        prop_oneof![
            Just(Handled::Success),
            proptest::option::of(delay.clone())
                .prop_map(|retry_after| Handled::TransientError { error: "t".into(), retry_after }),
            Just(Handled::unrecoverable("u")),
            delay.prop_map(Handled::Snooze),
            Just(Handled::discard("d")),
        ]
    }

    fn decided(answers: &[Handled], last: bool) -> HandlerDecision {
        decide(answers.iter().map(|answer| ("h", answer)), last, End::CompletedWithErrors)
    }

    proptest! {
        #[test]
        fn order_does_not_matter(mut answers in proptest::collection::vec(any_answer(), 0..6), last: bool) {
            let before = std::mem::discriminant(&decided(&answers, last));
            answers.reverse();
            prop_assert_eq!(before, std::mem::discriminant(&decided(&answers, last)));
        }

        #[test]
        fn it_completes_only_if_all_succeeded(answers in proptest::collection::vec(any_answer(), 0..6), last: bool) {
            let all = answers.iter().all(|answer| *answer == Handled::Success);
            let completed = matches!(decided(&answers, last), HandlerDecision::End { end: End::Completed, .. });
            prop_assert_eq!(all, completed);
        }

        #[test]
        fn the_last_attempt_is_never_tried_again(answers in proptest::collection::vec(any_answer(), 0..6)) {
            let is_retry = matches!(decided(&answers, true), HandlerDecision::Retry { .. });
            prop_assert!(!is_retry);
        }
    }

    #[test]
    fn the_gravest_answer_wins() {
        let (success, transient) = (Handled::Success, Handled::retry_after(Duration::from_secs(7), "later"));
        let answers = [success.clone(), transient.clone(), Handled::Snooze(Duration::from_secs(99))];
        let retry = HandlerDecision::Retry { after: Some(Duration::from_secs(7)), error: "h: later".into() };
        assert_eq!(decided(&answers, false), retry);
        let answers = [success, transient, Handled::discard("stale"), Handled::unrecoverable("broken")];
        let errors = vec!["h: later".to_owned(), "h: broken".to_owned()];
        assert_eq!(decided(&answers, false), HandlerDecision::End { end: End::CompletedWithErrors, errors });
        assert_eq!(
            decided(&answers[..3], false),
            HandlerDecision::End { end: End::Cancelled, errors: vec!["h: stale".to_owned()] }
        );
    }

    #[test]
    fn records_keep_what_happened() {
        let json = results_json([
            ("a", HandlerRecord::from(&Handled::Success)),
            ("b", HandlerRecord::from(&Handled::transient("down"))),
        ]);
        assert_eq!(json, r#"{"a":{"result":"SUCCESS"},"b":{"result":"TRANSIENT_ERROR","error":"down"}}"#);
        let read: BTreeMap<String, HandlerRecord> = serde_json::from_str(&json).unwrap();
        assert!(read["a"].is_success() && !read["b"].is_success());
    }
}
