//! Reads an answer: its beginning is kept, a little more is read so that the connection can be used again, and the rest is
//! not waited for.

use std::time::{Duration, SystemTime};

use http::header::RETRY_AFTER;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::super::connect::Target;
use super::super::outcome::{
    Answer, BodyEnd, Failure, FailureClass, KEPT_BODY, read_not_acknowledged, read_retry_after,
};
use super::pool::Borrowed;

/// The most headers of an answer. HTTP/1.1 is bounded by its parser, HTTP/2 by their bytes alone.
const MAX_HEADERS: usize = 100;
/// How much more of a body is read than is kept.
const DRAINED: usize = 64 * 1_024;
/// For how long.
const DRAINED_FOR: Duration = Duration::from_millis(500);

/// Reads an answer before the deadline. Once its head is there it counts, however its body ends.
pub(super) async fn read(
    response: Response<Incoming>,
    borrowed: Borrowed,
    target: &Target,
    deadline: Instant,
    now: SystemTime,
) -> Result<Answer, Failure> {
    let (head, mut body) = response.into_parts();
    if head.headers.len() > MAX_HEADERS {
        let message = format!("{target} answered with more than {MAX_HEADERS} headers");
        return Err(Failure::new(FailureClass::InvalidAnswer, message));
    }
    let mut kept = Vec::new();
    let end = keep(&mut body, &mut kept, deadline).await;
    let retry_after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let answer = Answer {
        status: head.status.as_u16(),
        retry_after: retry_after.and_then(|value| read_retry_after(value, now)),
        refused: match end {
            BodyEnd::Whole if head.status.is_success() => read_not_acknowledged(&kept),
            _ => None,
        },
        body: String::from_utf8_lossy(&kept).into_owned(),
        body_end: end,
    };
    let is_drained = match end {
        BodyEnd::Whole => true,
        BodyEnd::Long => drain(&mut body, deadline.min(Instant::now() + DRAINED_FOR)).await,
        BodyEnd::Broken => false,
    };
    drop(body);
    match (is_drained, end) {
        _ if head.status == StatusCode::SWITCHING_PROTOCOLS => {}
        (true, _) => borrowed.give_back(),
        (false, BodyEnd::Long) => borrowed.give_up_stream(),
        (false, _) => {}
    }
    Ok(answer)
}

/// The beginning of a body.
async fn keep(body: &mut Incoming, kept: &mut Vec<u8>, deadline: Instant) -> BodyEnd {
    loop {
        match timeout_at(deadline, body.frame()).await {
            Ok(None) => return BodyEnd::Whole,
            Ok(Some(Ok(frame))) => {
                let Some(data) = frame.data_ref() else { continue };
                let room = KEPT_BODY - kept.len();
                kept.extend_from_slice(&data[..data.len().min(room)]);
                if data.len() > room {
                    return BodyEnd::Long;
                }
            }
            Ok(Some(Err(_))) | Err(_) => return BodyEnd::Broken,
        }
    }
}

/// Whether a body came to its end.
async fn drain(body: &mut Incoming, deadline: Instant) -> bool {
    let mut left = DRAINED;
    loop {
        match timeout_at(deadline, body.frame()).await {
            Ok(None) => return true,
            Ok(Some(Ok(frame))) => {
                let came = frame.data_ref().map_or(0, |data| data.len());
                match left.checked_sub(came) {
                    Some(rest) => left = rest,
                    None => return false,
                }
            }
            Ok(Some(Err(_))) | Err(_) => return false,
        }
    }
}
