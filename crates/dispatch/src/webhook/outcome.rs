//! What came of sending a webhook, and how an answer's asks are read. Pure: the time is passed in.

use std::time::{Duration, SystemTime};

use serde_json::Value;
use tidegate_core::pool::backoff::LONGEST_RETRY_AFTER;

/// The most of an answer's body that is kept, in bytes.
pub const KEPT_BODY: usize = 4 * 1_024;

/// The longest message of a failure, in bytes. Some repeat what the receiver said.
const LONGEST_MESSAGE: usize = 1_000;
/// Stands for the rest of a message that is longer.
pub(crate) const CUT: char = '\u{2026}';

/// What came of sending a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver answered.
    Answered(Answer),
    /// It did not, or was not asked.
    Failed(Failure),
}

/// A receiver's answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The beginning of the body, at most [`KEPT_BODY`] bytes of it; what is not UTF-8 is replaced.
    pub body: String,
    /// How the body ended.
    pub body_end: BodyEnd,
    /// What `Retry-After` asks for.
    pub retry_after: Option<Duration>,
    /// Whether the body says `"ack": false`.
    pub refused: Option<NotAcknowledged>,
}

/// How the body of an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BodyEnd {
    /// All of it is kept.
    #[default]
    Whole,
    /// It is longer than what is kept.
    Long,
    /// It broke off, or took too long: what came until then is kept.
    Broken,
}

/// An answer that says `{"ack": false}`: the receiver wants the webhook again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAcknowledged {
    /// Not before this, by `delaySeconds`.
    pub delay: Option<Duration>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind of failure it is.
    pub class: FailureClass,
    /// For the person who looks into it. It names the host, and never the path, the query, headers or bodies.
    pub message: String,
}

/// Kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// Something took too long.
    Timeout,
    /// No connection came about, or it broke.
    Connection,
    /// The target must not be reached.
    Refused,
    /// What came is not HTTP, or more than is taken.
    InvalidAnswer,
    /// Nothing was sent, for a reason on this node: it has no socket, no port or no place left. Not the target's fault.
    Local,
}

impl Failure {
    /// The message is bounded, and has no control characters in it.
    pub(crate) fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self { class, message: bounded(message.into()) }
    }

    pub(super) fn timeout(message: impl Into<String>) -> Self {
        Self::new(FailureClass::Timeout, message)
    }

    pub(super) fn connection(message: impl Into<String>) -> Self {
        Self::new(FailureClass::Connection, message)
    }

    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self::new(FailureClass::Refused, message)
    }

    pub(crate) fn local(message: impl Into<String>) -> Self {
        Self::new(FailureClass::Local, message)
    }
}

fn bounded(message: String) -> String {
    if message.len() <= LONGEST_MESSAGE && !message.contains(char::is_control) {
        return message;
    }
    let mut bounded = String::with_capacity(LONGEST_MESSAGE);
    for one in message.chars() {
        let one = if one.is_control() { char::REPLACEMENT_CHARACTER } else { one };
        if bounded.len() + one.len_utf8() + CUT.len_utf8() > LONGEST_MESSAGE {
            bounded.push(CUT);
            break;
        }
        bounded.push(one);
    }
    bounded
}

/// What a `Retry-After` asks for: seconds or a date. Nothing if it is neither.
#[must_use]
pub fn read_retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that does not fit is longer than the longest delay.
        return Some(value.parse().map_or(LONGEST_RETRY_AFTER, Duration::from_secs).min(LONGEST_RETRY_AFTER));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    Some(at.duration_since(now).unwrap_or_default().min(LONGEST_RETRY_AFTER))
}

/// Whether a body is `{"ack": false}`, with `delaySeconds` or without.
#[must_use]
pub fn read_not_acknowledged(body: &[u8]) -> Option<NotAcknowledged> {
    let value: Value = serde_json::from_slice(body).ok()?;
    if value.get("ack") != Some(&Value::Bool(false)) {
        return None;
    }
    let seconds = value.get("delaySeconds").and_then(Value::as_f64).filter(|seconds| *seconds >= 0.0);
    let delay = seconds.map(|seconds| Duration::from_secs_f64(seconds.min(LONGEST_RETRY_AFTER.as_secs_f64())));
    Some(NotAcknowledged { delay })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_bounded_and_readable() {
        let message = |text: &str| Failure::new(FailureClass::Connection, text).message;
        let longest = "x".repeat(LONGEST_MESSAGE);
        assert_eq!(
            (message("it broke: caf\u{e9}"), message(&longest)),
            ("it broke: caf\u{e9}".into(), longest.clone())
        );
        assert_eq!(message("a\r\nb\0\u{1b}[31m"), "a\u{fffd}\u{fffd}b\u{fffd}\u{fffd}[31m");
        for text in [longest + "x", "\u{e9}".repeat(50_000), "\0".repeat(50_000), "x\u{1f980}".repeat(50_000)] {
            let message = message(&text);
            assert!((990..=LONGEST_MESSAGE).contains(&message.len()) && message.ends_with(CUT), "{}", message.len());
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (value, seconds) in [
            ("0", Some(0)),
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("86401", Some(86_400)),
            ("99999999999999999999999", Some(86_400)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sunday, 06-Nov-94 08:50:37 GMT", Some(60)),
            ("Sun Nov  6 08:50:37 1994", Some(60)),
            ("Sun, 06 Nov 1994 08:48:37 GMT", Some(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(86_400)),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("1994-11-06T08:50:37Z", None),
        ] {
            assert_eq!(read_retry_after(value, now), seconds.map(Duration::from_secs), "{value:?}");
        }
    }

    #[test]
    fn only_ack_false_is_none() {
        for (body, expected) in [
            (r#"{"ack": false}"#, Some(None)),
            (r#"{"ack": false, "delaySeconds": 30, "more": []}"#, Some(Some(30_000))),
            (r#"{"ack": false, "delaySeconds": 0}"#, Some(Some(0))),
            (r#"{"ack": false, "delaySeconds": 1.5}"#, Some(Some(1_500))),
            (r#"{"ack": false, "delaySeconds": 1e300}"#, Some(Some(86_400_000))),
            (r#"{"ack": false, "delaySeconds": -1}"#, Some(None)),
            (r#"{"ack": false, "delaySeconds": "30"}"#, Some(None)),
            (r#"{"ack": true}"#, None),
            (r#"{"ack": "false"}"#, None),
            (r#"{"ack": null}"#, None),
            (r#"{"ack": 0}"#, None),
            (r#"[{"ack": false}]"#, None),
            (r#"{"ack": false"#, None),
            ("", None),
            ("ok", None),
        ] {
            let expected = expected.map(|delay| NotAcknowledged { delay: delay.map(Duration::from_millis) });
            assert_eq!(read_not_acknowledged(body.as_bytes()), expected, "{body}");
        }
    }
}
