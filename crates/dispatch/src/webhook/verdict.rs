//! What an outcome means for a job, and for the breaker of its target. Pure.

use std::time::Duration;

use tidegate_core::pool::breaker::CallResult;

use super::outcome::{Answer, BodyEnd, FailureClass, Outcome};

/// What an outcome means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// How the attempt is recorded.
    pub status: AttemptStatus,
    /// The kind of error, if it is one.
    pub error: Option<ErrorType>,
    /// What went wrong, for people.
    pub message: Option<String>,
    /// What becomes of the job.
    pub next: Next,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptStatus {
    /// 2xx.
    Success,
    /// The receiver says that the request is wrong, or redirects.
    ClientError,
    /// The receiver says that it failed.
    ServerError,
    /// Something took too long.
    Timeout,
    /// There was no answer.
    ConnectionError,
}

/// Whether the same request can succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorType {
    /// It can.
    Transient,
    /// It cannot before somebody changes something.
    Permanent,
    /// It is not known; treated as transient.
    Unknown,
}

/// What becomes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It is done.
    Complete,
    /// It is tried again if its attempts are not exhausted.
    Retry {
        /// Not before this, if the receiver said so; else by the retry strategy.
        after: Option<Duration>,
    },
    /// It fails, whatever attempts are left.
    Fail,
    /// It fails, and the subscription pauses: the receiver says that it is gone for good.
    Gone,
    /// It is due again soon, and no attempt is counted or recorded: nothing was sent, for a reason on this node.
    Snooze,
}

impl AttemptStatus {
    /// All of them.
    pub(crate) const ALL: [Self; 5] =
        [Self::Success, Self::ClientError, Self::ServerError, Self::Timeout, Self::ConnectionError];

    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::ClientError => "CLIENT_ERROR",
            Self::ServerError => "SERVER_ERROR",
            Self::Timeout => "TIMEOUT",
            Self::ConnectionError => "CONNECTION_ERROR",
        }
    }
}

impl ErrorType {
    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "TRANSIENT",
            Self::Permanent => "PERMANENT",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// What an outcome means. `takes_ack` is whether the subscription opted in to `{"ack": false}`.
#[must_use]
pub fn verdict(outcome: &Outcome, takes_ack: bool) -> Verdict {
    let failure = match outcome {
        Outcome::Answered(answer) => return answered(answer, takes_ack),
        Outcome::Failed(failure) => failure,
    };
    let retry = Next::Retry { after: None };
    let (status, error, next) = match failure.class {
        FailureClass::Timeout => (AttemptStatus::Timeout, ErrorType::Transient, retry),
        FailureClass::Connection => (AttemptStatus::ConnectionError, ErrorType::Transient, retry),
        FailureClass::Refused => (AttemptStatus::ConnectionError, ErrorType::Permanent, Next::Fail),
        FailureClass::InvalidAnswer => (AttemptStatus::ConnectionError, ErrorType::Unknown, retry),
        FailureClass::Local => (AttemptStatus::ConnectionError, ErrorType::Transient, Next::Snooze),
    };
    Verdict { status, error: Some(error), message: Some(failure.message.clone()), next }
}

/// What an outcome tells the breaker of its origin: it counts 5xx, time-outs and connections that failed.
#[must_use]
pub fn call_result(outcome: &Outcome) -> CallResult {
    match outcome {
        Outcome::Answered(answer) => CallResult::of_status(answer.status),
        Outcome::Failed(failure) => match failure.class {
            FailureClass::Timeout | FailureClass::Connection | FailureClass::InvalidAnswer => CallResult::Failed,
            // It ended here, before anybody was asked.
            FailureClass::Refused | FailureClass::Local => CallResult::NotMade,
        },
    }
}

fn answered(answer: &Answer, takes_ack: bool) -> Verdict {
    let code = answer.status;
    let wrong = |status, error, next, why: &str| Verdict {
        status,
        error: Some(error),
        message: Some(format!("the receiver answered {code}{why}")),
        next,
    };
    let client = |error, next, why| wrong(AttemptStatus::ClientError, error, next, why);
    let server = |error, next, why| wrong(AttemptStatus::ServerError, error, next, why);
    let retry = Next::Retry { after: None };
    let as_asked = Next::Retry { after: answer.retry_after };
    match code {
        // It may have said that it does not acknowledge.
        200..=299 if takes_ack && answer.body_end == BodyEnd::Broken => Verdict {
            status: AttemptStatus::ConnectionError,
            error: Some(ErrorType::Transient),
            message: Some(format!(
                "the receiver answered {code}, and its body, which may have \"ack\": false, broke off"
            )),
            next: retry,
        },
        200..=299 => match answer.refused.filter(|_| takes_ack) {
            None => Verdict { status: AttemptStatus::Success, error: None, message: None, next: Next::Complete },
            Some(refused) => Verdict {
                status: AttemptStatus::Success,
                error: Some(ErrorType::Transient),
                message: Some(format!("the receiver answered {code} and asked for the webhook again (\"ack\": false)")),
                next: Next::Retry { after: refused.delay },
            },
        },
        300..=399 => client(ErrorType::Permanent, Next::Fail, ": redirects are not followed; change the target"),
        410 => client(ErrorType::Permanent, Next::Gone, ": it wants no more webhooks"),
        429 => client(ErrorType::Transient, as_asked, ": too many requests"),
        400..=499 => client(ErrorType::Permanent, Next::Fail, ""),
        503 => server(ErrorType::Transient, as_asked, ""),
        500..=599 => server(ErrorType::Transient, retry, ""),
        // 101 answers what was never asked, and 600 to 999 mean nothing.
        _ => server(ErrorType::Unknown, retry, ", which is no final status of HTTP"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::{Failure, NotAcknowledged};
    use super::*;

    const WAIT: Duration = Duration::from_secs(90);

    fn answer(status: u16) -> Answer {
        Answer { status, retry_after: Some(WAIT), ..Answer::default() }
    }

    fn judge(answer: Answer, takes_ack: bool) -> (&'static str, &'static str, Next) {
        let verdict = verdict(&Outcome::Answered(answer), takes_ack);
        assert_eq!(verdict.error.is_some(), verdict.message.is_some());
        (verdict.status.as_str(), verdict.error.map_or("", ErrorType::as_str), verdict.next)
    }

    /// Every status that can come.
    #[test]
    fn statuses() {
        let (retry, asked) = (Next::Retry { after: None }, Next::Retry { after: Some(WAIT) });
        for status in 100..=999 {
            let expected = match status {
                200..=299 => ("SUCCESS", "", Next::Complete),
                410 => ("CLIENT_ERROR", "PERMANENT", Next::Gone),
                429 => ("CLIENT_ERROR", "TRANSIENT", asked),
                503 => ("SERVER_ERROR", "TRANSIENT", asked),
                500..=599 => ("SERVER_ERROR", "TRANSIENT", retry),
                300..=499 => ("CLIENT_ERROR", "PERMANENT", Next::Fail),
                _ => ("SERVER_ERROR", "UNKNOWN", retry),
            };
            assert_eq!(judge(answer(status), false), expected, "{status}");
            let is_failed = call_result(&Outcome::Answered(answer(status))) == CallResult::Failed;
            assert_eq!(is_failed, status >= 500, "{status}");
        }
        let plain = Answer { retry_after: None, ..answer(429) };
        assert_eq!(judge(plain, false).2, retry);
    }

    #[test]
    fn ack_false_counts_for_those_who_opted_in() {
        let asks = |status, delay| Answer { refused: Some(NotAcknowledged { delay }), ..answer(status) };
        for delay in [None, Some(Duration::from_secs(5))] {
            assert_eq!(judge(asks(202, delay), false), ("SUCCESS", "", Next::Complete));
            assert_eq!(judge(asks(202, delay), true), ("SUCCESS", "TRANSIENT", Next::Retry { after: delay }));
            assert_eq!(judge(asks(404, delay), true), ("CLIENT_ERROR", "PERMANENT", Next::Fail));
        }
        assert_eq!(judge(answer(200), true).2, Next::Complete);
        let broken = || Answer { body_end: BodyEnd::Broken, ..answer(200) };
        assert_eq!(judge(broken(), true), ("CONNECTION_ERROR", "TRANSIENT", Next::Retry { after: None }));
        assert_eq!(judge(broken(), false).2, Next::Complete);
        assert_eq!(judge(Answer { body_end: BodyEnd::Long, ..answer(200) }, true).2, Next::Complete);
    }

    #[test]
    fn failures() {
        let retry = Next::Retry { after: None };
        for (class, expected) in [
            (FailureClass::Timeout, (AttemptStatus::Timeout, ErrorType::Transient, retry)),
            (FailureClass::Connection, (AttemptStatus::ConnectionError, ErrorType::Transient, retry)),
            (FailureClass::Refused, (AttemptStatus::ConnectionError, ErrorType::Permanent, Next::Fail)),
            (FailureClass::InvalidAnswer, (AttemptStatus::ConnectionError, ErrorType::Unknown, retry)),
            (FailureClass::Local, (AttemptStatus::ConnectionError, ErrorType::Transient, Next::Snooze)),
        ] {
            let outcome = Outcome::Failed(Failure::new(class, "why"));
            let verdict = verdict(&outcome, true);
            assert_eq!((verdict.status, verdict.error.unwrap(), verdict.next), expected);
            assert_eq!(verdict.message.unwrap(), "why");
            let is_made = !matches!(class, FailureClass::Refused | FailureClass::Local);
            let expected = if is_made { CallResult::Failed } else { CallResult::NotMade };
            assert_eq!(call_result(&outcome), expected, "{class:?}");
        }
    }
}
