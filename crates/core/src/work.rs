//! What pull workers report about their attempts, and what follows from it. Decides; writes nothing and reads no clock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::entry::{End, LeaseToken};
use crate::name::{InvalidName, MAX_NAME, check_text};
use crate::retry::RetryPolicy;

/// Tags that one event has at most.
pub const MAX_TAGS: usize = 32;
/// The longest title, in characters.
pub const MAX_TITLE: usize = 1000;
/// The longest description, in bytes.
pub const MAX_DESCRIPTION: usize = 64 << 10;
/// Retries of an event that names none in a queue that names none.
pub const DEFAULT_MAX_RETRIES: u32 = 3;
/// How long a failed attempt waits when neither event nor queue says otherwise.
pub const DEFAULT_RETRY_DELAY: Duration = Duration::from_secs(300);

/// Where an entry is in its life, as shown to people and machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Waits: ready, delayed, or behind the head of its group.
    Pending,
    /// Held by a worker.
    Processing,
    /// Worked off.
    Completed,
    /// Ended with errors.
    CompletedWithErrors,
    /// Ended as failed.
    Failed,
    /// Taken out.
    Cancelled,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Processing, Self::Completed, Self::CompletedWithErrors, Self::Failed, Self::Cancelled];

    /// The name used on every wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self.end() {
            Some(end) => end.as_str(),
            None if matches!(self, Self::Pending) => "PENDING",
            None => "PROCESSING",
        }
    }

    /// The end it stands for, unless the entry is live.
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

/// What happened to an entry, as the audit keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Action {
    /// A worker took it.
    Picked,
    /// Its worker began.
    Started,
    /// Its worker finished it.
    Completed,
    /// Its worker failed.
    Failed,
    /// It was given back without a verdict.
    Released,
    /// Its worker's lease ran out and somebody else took it, or nobody may any more.
    Abandoned,
    /// It was put back by hand.
    Reset,
    /// It was ended by hand.
    Cancelled,
    /// It had ended as a dead letter and was started over by hand.
    Redriven,
}

impl Action {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 9] = [
        Self::Picked,
        Self::Started,
        Self::Completed,
        Self::Failed,
        Self::Released,
        Self::Abandoned,
        Self::Reset,
        Self::Cancelled,
        Self::Redriven,
    ];

    /// Whether somebody did it who is no worker.
    #[must_use]
    pub const fn is_by_hand(self) -> bool {
        matches!(self, Self::Reset | Self::Cancelled | Self::Redriven)
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
        }
    }

    /// Reads the number that databases store.
    #[must_use]
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.code() == code)
    }

    /// The name used on every wire.
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
pub enum Outcome {
    /// It is done.
    Completed,
    /// It failed.
    Failed,
}

impl Outcome {
    /// The action that records it.
    #[must_use]
    pub const fn action(self) -> Action {
        match self {
            Self::Completed => Action::Completed,
            Self::Failed => Action::Failed,
        }
    }
}

/// Retries used up: an attempt that is under way or was the last is not a retry yet to come.
#[must_use]
pub const fn retry_count(attempts: u32, waiting: bool) -> u32 {
    if waiting { attempts } else { attempts.saturating_sub(1) }
}

/// What decides about a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt<'a> {
    /// Who holds the entry, if anybody does, and under which token.
    pub holder: Option<(&'a str, LeaseToken)>,
    /// Attempts that were counted, this one among them.
    pub attempts: u32,
    /// Attempts it may have.
    pub max_attempts: u32,
}

/// A verdict that was recorded before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Which.
    pub action: Action,
    /// Under which token.
    pub token: LeaseToken,
}

/// What follows from a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The entry ends.
    End(End),
    /// It is tried again.
    Retry,
    /// It was recorded already: the record is the answer, and nothing is written.
    Replay,
    /// Whoever reports holds nothing.
    Fenced,
}

/// Decides about a report of `worker`, who may name its lease. `recorded` is the last verdict of this worker (under this
/// lease, where one is named) about this entry.
#[must_use]
pub fn decide(
    attempt: Option<Attempt<'_>>,
    recorded: Option<Recorded>,
    worker: &str,
    lease: Option<LeaseToken>,
    outcome: Outcome,
) -> Decision {
    if let Some(attempt) = attempt
        && let Some((holder, token)) = attempt.holder
        && holder == worker
        && lease.is_none_or(|lease| lease == token)
    {
        return match outcome {
            Outcome::Completed => Decision::End(End::Completed),
            Outcome::Failed if attempt.attempts < attempt.max_attempts => Decision::Retry,
            Outcome::Failed => Decision::End(End::Failed),
        };
    }
    match recorded {
        Some(recorded) if recorded.action == outcome.action() && lease.is_none_or(|lease| lease == recorded.token) => {
            Decision::Replay
        }
        _ => Decision::Fenced,
    }
}

/// How long a failed attempt waits: the event's policy, else the queue's, else five minutes.
#[must_use]
pub fn retry_delay(event: Option<&RetryPolicy>, queue: Option<&RetryPolicy>, attempt: u32, random: f64) -> Duration {
    event.or(queue).map_or(DEFAULT_RETRY_DELAY, |policy| policy.delay(attempt, random))
}

/// Checks one tag: a text of 1 to 255 bytes without commas and control characters.
///
/// # Errors
/// When it breaks the rule.
pub fn check_tag(tag: &str) -> Result<(), InvalidName> {
    check_text("tag", tag)?;
    if tag.contains(',') || tag.trim() != tag {
        return Err(InvalidName {
            what: "tag",
            rule: "1 to 255 bytes without commas, control characters and outer spaces",
            given: tag.chars().take(60).collect(),
        });
    }
    Ok(())
}

/// Reads tags from a comma-separated text: outer spaces and repeats are dropped.
///
/// ```
/// assert_eq!(tidegate_core::work::split_tags("email, urgent,email"), ["email", "urgent"]);
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

/// Checks a text that people read: bounded, and without NUL.
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
            (1, Decision::Retry),
            (3, Decision::Retry),
            (4, Decision::End(End::Failed)),
            (5, Decision::End(End::Failed)),
        ] {
            assert_eq!(decide(held(attempts), None, "w", None, Outcome::Failed), expected, "attempt {attempts}");
        }
        assert_eq!((retry_count(1, true), retry_count(4, false), retry_count(0, true)), (1, 3, 0));
    }

    #[test]
    fn who_holds_nothing_is_fenced_unless_it_was_recorded() {
        let cases = [
            ("x", None, None, Decision::Fenced),
            ("w", Some(LeaseToken(6)), None, Decision::Fenced),
            ("w", Some(LeaseToken(3)), recorded(Action::Failed), Decision::Replay),
            ("w", Some(LeaseToken(2)), recorded(Action::Failed), Decision::Fenced),
            ("w", None, recorded(Action::Failed), Decision::Retry),
            ("x", None, recorded(Action::Failed), Decision::Replay),
            ("x", None, recorded(Action::Completed), Decision::Fenced),
        ];
        for (worker, lease, recorded, expected) in cases {
            assert_eq!(
                decide(held(1), recorded, worker, lease, Outcome::Failed),
                expected,
                "{worker} {lease:?} {recorded:?}"
            );
        }
        assert_eq!(decide(None, recorded(Action::Completed), "w", None, Outcome::Completed), Decision::Replay);
        assert_eq!(decide(None, None, "w", None, Outcome::Completed), Decision::Fenced);
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
    fn people_reset_cancel_and_redrive() {
        let by_hand: Vec<Action> = Action::ALL.into_iter().filter(|action| action.is_by_hand()).collect();
        assert_eq!(by_hand, [Action::Reset, Action::Cancelled, Action::Redriven]);
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
