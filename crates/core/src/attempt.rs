//! Reports of pull workers: what follows for the entry from an attempt outcome. Pure: no IO, no clock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::entry::{End, LeaseToken};
use crate::name::{InvalidName, MAX_NAME, check_text};
use crate::retry::RetryPolicy;

/// The most tags that an event can have.
pub const MAX_TAGS: usize = 32;
/// The longest title, in characters.
pub const MAX_TITLE: usize = 1000;
/// The longest description, in bytes.
pub const MAX_DESCRIPTION: usize = 64 << 10;
/// Retries when neither the event nor its queue sets a number.
pub const DEFAULT_MAX_RETRIES: u32 = 3;
/// Delay before a retry when neither the event nor its queue has a retry policy.
pub const DEFAULT_RETRY_DELAY: Duration = Duration::from_secs(300);

/// Where an entry is in its life, as lists and the API show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Live without a lease: ready, delayed, or parked behind the head of its group.
    Pending,
    /// Live with a lease, even one that has expired and that no other worker has taken over.
    Processing,
    /// Ended successfully.
    Completed,
    /// Ended with errors.
    CompletedWithErrors,
    /// Ended as failed.
    Failed,
    /// Ended by a cancel or a discard.
    Cancelled,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Processing, Self::Completed, Self::CompletedWithErrors, Self::Failed, Self::Cancelled];

    /// The name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self.end() {
            Some(end) => end.as_str(),
            None if matches!(self, Self::Pending) => "PENDING",
            None => "PROCESSING",
        }
    }

    /// The end that this status stands for; `None` while the entry is live.
    #[must_use]
    pub const fn end(self) -> Option<End> {
        match self {
            Self::Pending | Self::Processing => None,
            Self::Completed => Some(End::Completed),
            Self::CompletedWithErrors => Some(End::CompletedWithErrors),
            Self::Failed => Some(End::Failed),
            Self::Cancelled => Some(End::Cancelled),
        }
    }
}

impl From<End> for Status {
    fn from(end: End) -> Self {
        match end {
            End::Completed => Self::Completed,
            End::CompletedWithErrors => Self::CompletedWithErrors,
            End::Failed => Self::Failed,
            End::Cancelled => Self::Cancelled,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Status {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        Self::ALL.into_iter().find(|status| status.as_str() == text).ok_or_else(|| InvalidName {
            what: "status",
            rule: "PENDING, PROCESSING, COMPLETED, COMPLETED_WITH_ERRORS, FAILED or CANCELLED",
            given: text.chars().take(60).collect(),
        })
    }
}

/// What was done to an entry, as the audit records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Action {
    /// A worker claimed it.
    Picked,
    /// Its holder began to work.
    Started,
    /// Its holder reported the attempt as completed.
    Completed,
    /// Its holder reported the attempt as failed.
    Failed,
    /// Its lease was given back without a report of an outcome.
    Released,
    /// Its lease expired, and a later claim took it over or, when exhausted, ended it.
    Abandoned,
    /// An operator took it from its holder, or started it over after it had failed.
    Reset,
    /// An operator cancelled it.
    Cancelled,
    /// An operator started it over as a new generation; it was a dead letter.
    Redriven,
    /// An operator decided that a failed job needs nothing more.
    Ignored,
}

impl Action {
    /// Every action, in the order of the codes.
    pub const ALL: [Self; 10] = [
        Self::Picked,
        Self::Started,
        Self::Completed,
        Self::Failed,
        Self::Released,
        Self::Abandoned,
        Self::Reset,
        Self::Cancelled,
        Self::Redriven,
        Self::Ignored,
    ];

    /// Whether it is a manual action, done by an operator and not by a worker.
    #[must_use]
    pub const fn is_manual(self) -> bool {
        matches!(self, Self::Reset | Self::Cancelled | Self::Redriven | Self::Ignored)
    }

    /// The number that databases store.
    #[must_use]
    pub const fn code(self) -> i16 {
        match self {
            Self::Picked => 0,
            Self::Started => 1,
            Self::Completed => 2,
            Self::Failed => 3,
            Self::Released => 4,
            Self::Abandoned => 5,
            Self::Reset => 6,
            Self::Cancelled => 7,
            Self::Redriven => 8,
            Self::Ignored => 9,
        }
    }

    /// The action with this stored number; `None` when there is none.
    #[must_use]
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.code() == code)
    }

    /// The name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Picked => "PICKED",
            Self::Started => "STARTED",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Released => "RELEASED",
            Self::Abandoned => "ABANDONED",
            Self::Reset => "RESET",
            Self::Cancelled => "CANCELLED",
            Self::Redriven => "REDRIVEN",
            Self::Ignored => "IGNORED",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a worker says of its attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AttemptOutcome {
    /// The attempt succeeded.
    Completed,
    /// The attempt failed.
    Failed,
}

impl AttemptOutcome {
    /// The action that records it in the audit.
    #[must_use]
    pub const fn action(self) -> Action {
        match self {
            Self::Completed => Action::Completed,
            Self::Failed => Action::Failed,
        }
    }
}

/// How many retries an entry has had: its attempts after the first. While it waits, the attempt to come is included, so
/// that an entry that failed once shows 1.
#[must_use]
pub const fn retry_count(attempts: u32, waiting: bool) -> u32 {
    if waiting { attempts } else { attempts.saturating_sub(1) }
}

/// What a report is decided by: the live entry it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt<'a> {
    /// The worker that holds the entry, and its token; `None` when there is no lease.
    pub holder: Option<(&'a str, LeaseToken)>,
    /// Attempts counted so far, the reported one included.
    pub attempts: u32,
    /// Attempts after which the entry is exhausted.
    pub max_attempts: u32,
}

/// An attempt outcome that the audit holds already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The action that recorded it.
    pub action: Action,
    /// The token of the attempt.
    pub token: LeaseToken,
}

/// What follows from a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportDecision {
    /// The entry ends.
    End(End),
    /// The entry is tried again.
    Retry,
    /// The outcome was recorded already: answer from the record and write nothing.
    Replay,
    /// The worker does not hold the entry.
    Fenced,
}

/// Decides about a report of `worker`, which may name its lease. `attempt` is `None` when the entry is not live;
/// `recorded` is the last outcome of this worker (under this lease, where one is named) for this entry.
#[must_use]
pub fn decide(
    attempt: Option<Attempt<'_>>,
    recorded: Option<Recorded>,
    worker: &str,
    lease: Option<LeaseToken>,
    outcome: AttemptOutcome,
) -> ReportDecision {
    if let Some(attempt) = attempt
        && let Some((holder, token)) = attempt.holder
        && holder == worker
        && lease.is_none_or(|lease| lease == token)
    {
        return match outcome {
            AttemptOutcome::Completed => ReportDecision::End(End::Completed),
            AttemptOutcome::Failed if attempt.attempts < attempt.max_attempts => ReportDecision::Retry,
            AttemptOutcome::Failed => ReportDecision::End(End::Failed),
        };
    }
    match recorded {
        Some(recorded) if recorded.action == outcome.action() && lease.is_none_or(|lease| lease == recorded.token) => {
            ReportDecision::Replay
        }
        _ => ReportDecision::Fenced,
    }
}

/// The delay before the next attempt, by the event's policy, else the queue's, else [`DEFAULT_RETRY_DELAY`]. `random`
/// is in `0.0..1.0`.
#[must_use]
pub fn retry_delay(event: Option<&RetryPolicy>, queue: Option<&RetryPolicy>, attempt: u32, random: f64) -> Duration {
    event.or(queue).map_or(DEFAULT_RETRY_DELAY, |policy| policy.delay(attempt, random))
}

/// Checks one tag: 1 to 255 bytes without commas, control characters, leading or trailing spaces.
///
/// # Errors
/// When the tag breaks one of these rules.
pub fn check_tag(tag: &str) -> Result<(), InvalidName> {
    check_text("tag", tag)?;
    if tag.contains(',') || tag.trim() != tag {
        return Err(InvalidName {
            what: "tag",
            rule: "1 to 255 bytes without commas, control characters, leading or trailing spaces",
            given: tag.chars().take(60).collect(),
        });
    }
    Ok(())
}

/// Splits a comma-separated list of tags. Spaces around tags, empty tags and repeats are dropped.
///
/// ```
/// assert_eq!(tidegate_core::attempt::split_tags("email, urgent,email"), ["email", "urgent"]);
/// ```
#[must_use]
pub fn split_tags(text: &str) -> Vec<String> {
    let mut tags: Vec<String> = Vec::new();
    for tag in text.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
        if !tags.iter().any(|known| known == tag) {
            tags.push(tag.to_owned());
        }
    }
    tags
}

/// Whether a text for people has at most `limit` bytes and no NUL.
pub(crate) fn is_readable(text: &str, limit: usize) -> bool {
    debug_assert!(limit >= MAX_NAME);
    text.len() <= limit && !text.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(attempts: u32) -> Option<Attempt<'static>> {
        Some(Attempt { holder: Some(("w", LeaseToken(7))), attempts, max_attempts: 4 })
    }

    fn recorded(action: Action) -> Option<Recorded> {
        Some(Recorded { action, token: LeaseToken(3) })
    }

    #[test]
    fn three_retries_are_four_attempts() {
        for (attempts, expected) in [
            (1, ReportDecision::Retry),
            (3, ReportDecision::Retry),
            (4, ReportDecision::End(End::Failed)),
            (5, ReportDecision::End(End::Failed)),
        ] {
            assert_eq!(decide(held(attempts), None, "w", None, AttemptOutcome::Failed), expected, "attempt {attempts}");
        }
        assert_eq!((retry_count(1, true), retry_count(4, false), retry_count(0, true)), (1, 3, 0));
    }

    #[test]
    fn who_holds_nothing_is_fenced_unless_it_was_recorded() {
        let cases = [
            ("x", None, None, ReportDecision::Fenced),
            ("w", Some(LeaseToken(6)), None, ReportDecision::Fenced),
            ("w", Some(LeaseToken(3)), recorded(Action::Failed), ReportDecision::Replay),
            ("w", Some(LeaseToken(2)), recorded(Action::Failed), ReportDecision::Fenced),
            ("w", None, recorded(Action::Failed), ReportDecision::Retry),
            ("x", None, recorded(Action::Failed), ReportDecision::Replay),
            ("x", None, recorded(Action::Completed), ReportDecision::Fenced),
        ];
        for (worker, lease, recorded, expected) in cases {
            assert_eq!(
                decide(held(1), recorded, worker, lease, AttemptOutcome::Failed),
                expected,
                "{worker} {lease:?} {recorded:?}"
            );
        }
        assert_eq!(
            decide(None, recorded(Action::Completed), "w", None, AttemptOutcome::Completed),
            ReportDecision::Replay
        );
        assert_eq!(decide(None, None, "w", None, AttemptOutcome::Completed), ReportDecision::Fenced);
    }

    #[test]
    fn the_events_policy_goes_before_the_queues() {
        let (event, queue) = (RetryPolicy::fixed(Duration::from_secs(1)), RetryPolicy::fixed(Duration::from_secs(2)));
        assert_eq!(retry_delay(Some(&event), Some(&queue), 1, 0.0).as_secs(), 1);
        assert_eq!(retry_delay(None, Some(&queue), 1, 0.0).as_secs(), 2);
        assert_eq!(retry_delay(None, None, 9, 0.5), DEFAULT_RETRY_DELAY);
    }

    #[test]
    fn tags() {
        assert_eq!(split_tags(" a,b ,,a, b c"), ["a", "b", "b c"]);
        for good in ["a", "priority-high", "é", "a b"] {
            assert!(check_tag(good).is_ok(), "{good}");
        }
        for bad in ["", "a,b", " a", "a\n", &"x".repeat(256)] {
            assert!(check_tag(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_are_read_back() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse(), Ok(status));
            assert_eq!(serde_json::to_string(&status).unwrap(), format!("\"{status}\""));
        }
        assert!("DONE".parse::<Status>().is_err());
        for action in Action::ALL {
            assert_eq!(Action::from_code(action.code()), Some(action));
            assert_eq!(serde_json::to_string(&action).unwrap(), format!("\"{action}\""));
        }
    }

    #[test]
    fn people_reset_cancel_redrive_and_ignore() {
        let manual: Vec<Action> = Action::ALL.into_iter().filter(|action| action.is_manual()).collect();
        assert_eq!(manual, [Action::Reset, Action::Cancelled, Action::Redriven, Action::Ignored]);
    }

    #[test]
    fn statuses_and_ends_agree() {
        for end in End::ALL {
            assert_eq!((Status::from(end).end(), Status::from(end).as_str()), (Some(end), end.as_str()));
        }
        assert_eq!((Status::Pending.end(), Status::Processing.end()), (None, None));
    }

    #[test]
    fn readable_texts_are_bounded_and_without_nul() {
        assert!(is_readable("", 300) && is_readable(&"x".repeat(300), 300) && is_readable("a\nb", 300));
        assert!(!is_readable(&"x".repeat(301), 300) && !is_readable("a\0b", 300));
    }
}
