//! Errors over HTTP: one error type, one list of codes, always a JSON body.
//!
//! Owns the mapping from the library's error classes to statuses. Bad input is never a 5xx. Texts of the database go to
//! the log, not to callers.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use tidegate::ErrorKind;
use tidegate_core::event::InvalidEvent;
use tidegate_core::{InvalidCron, InvalidId, InvalidName};
use tidegate_dispatch::GatewayError;
use utoipa::ToSchema;

use crate::wire::violations::ViolationBody;

/// The result of handlers and of what they call.
pub(crate) type Result<T, E = ApiError> = std::result::Result<T, E>;

/// Every code that an error body can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Code {
    /// The request is invalid; the text says what to change.
    InvalidRequest,
    /// The body is not JSON, not UTF-8, or nested too deeply.
    InvalidJson,
    /// The id in the path is not a number between 1 and 2^53 - 1.
    InvalidId,
    /// The attempt failed and no retry is left: the event has ended as FAILED.
    MaxRetriesExceeded,
    /// The credentials are missing or not valid.
    Unauthorized,
    /// The credentials do not allow this.
    Forbidden,
    /// What the request names does not exist.
    NotFound,
    /// The path exists but does not support the method.
    MethodNotAllowed,
    /// The body did not arrive in time.
    RequestTimeout,
    /// The state of the event or queue does not allow the request.
    Conflict,
    /// The caller does not hold the lease: another worker has it, or it expired or was released.
    LeaseLost,
    /// The event has ended already.
    AlreadyEnded,
    /// The payload, or the whole body, is larger than allowed.
    PayloadTooLarge,
    /// The body is of another type or encoding than JSON.
    UnsupportedMediaType,
    /// The idempotency or deduplication key was used for another request.
    KeyReused,
    /// The resource has another entity tag than `If-Match` names.
    PreconditionFailed,
    /// The data is wrong; `violations` say what and where.
    Unprocessable,
    /// The queue has reached its depth limit, or is draining.
    QueueFull,
    /// The server or the database is overloaded; try again.
    Busy,
    /// The database cannot be reached; try again.
    Unavailable,
    /// The answer of the database was lost: the request may or may not have taken effect.
    Indeterminate,
    /// An internal error; the log says what.
    Internal,
}

impl Code {
    /// The HTTP status of the code.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidRequest | Self::InvalidJson | Self::InvalidId | Self::MaxRetriesExceeded => {
                StatusCode::BAD_REQUEST
            }
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::Conflict | Self::LeaseLost | Self::AlreadyEnded => StatusCode::CONFLICT,
            Self::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::KeyReused | Self::Unprocessable => StatusCode::UNPROCESSABLE_ENTITY,
            Self::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Self::QueueFull => StatusCode::TOO_MANY_REQUESTS,
            Self::Busy | Self::Unavailable | Self::Indeterminate => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Whether the same request may succeed if it is sent again a little later.
    fn is_transient(self) -> bool {
        matches!(self, Self::QueueFull | Self::Busy | Self::Unavailable)
    }
}

/// The body of every error.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong and what to change, as text for people.
    pub error: String,
    /// What is wrong, as a code for programs.
    pub code: Code,
    /// Retries used up; only with the code `max_retries_exceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<u32>,
    /// Retries allowed; only with the code `max_retries_exceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// What is wrong, piece by piece; only with the code `unprocessable`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub violations: Vec<ViolationBody>,
}

/// An error that is answered to the caller.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) body: Box<ErrorBody>,
}

impl ApiError {
    pub(crate) fn new(code: Code, error: impl Into<String>) -> Self {
        let (retry_count, max_retries, violations) = (None, None, Vec::new());
        let body = ErrorBody { error: error.into(), code, retry_count, max_retries, violations };
        Self { body: Box::new(body) }
    }

    pub(crate) fn invalid(error: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, error)
    }

    pub(crate) fn no_event(id: impl std::fmt::Display) -> Self {
        Self::new(Code::NotFound, format!("there is no event {id}"))
    }

    pub(crate) fn max_retries(retry_count: u32, max_retries: u32) -> Self {
        let body = ErrorBody {
            error: "Max retries exceeded".into(),
            code: Code::MaxRetriesExceeded,
            retry_count: Some(retry_count),
            max_retries: Some(max_retries),
            violations: Vec::new(),
        };
        Self { body: Box::new(body) }
    }

    /// The error of a publish, where `Conflict` means that the key was used for another event.
    pub(crate) fn of_publish(error: tidegate::Error) -> Self {
        match error.kind() {
            ErrorKind::Conflict => {
                let mut error = Self::from(error);
                error.body.code = Code::KeyReused;
                error
            }
            _ => error.into(),
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.body.code.status()
    }
}

impl From<GatewayError> for ApiError {
    fn from(error: GatewayError) -> Self {
        match error {
            GatewayError::NotFound(text) => Self::new(Code::NotFound, text),
            GatewayError::Invalid(text) => Self::invalid(text),
            GatewayError::Conflict(text) => Self::new(Code::Conflict, text),
            GatewayError::KeyReused(text) => Self::new(Code::KeyReused, text),
            GatewayError::Changed(text) => Self::new(Code::PreconditionFailed, text),
            GatewayError::Unsupported(text) => Self::new(Code::UnsupportedMediaType, text),
            GatewayError::Unprocessable { message, violations } => {
                let mut error = Self::new(Code::Unprocessable, message);
                error.body.violations = violations.iter().map(ViolationBody::of).collect();
                error
            }
            GatewayError::Store(error) => error.into(),
        }
    }
}

impl From<tidegate::Error> for ApiError {
    fn from(error: tidegate::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::Conflict => Code::Conflict,
            ErrorKind::Fenced => Code::LeaseLost,
            ErrorKind::AlreadyEnded => Code::AlreadyEnded,
            ErrorKind::Full => Code::QueueFull,
            ErrorKind::Busy => Code::Busy,
            ErrorKind::Unavailable | ErrorKind::Schema => Code::Unavailable,
            ErrorKind::Invalid => Code::InvalidRequest,
            ErrorKind::Indeterminate => Code::Indeterminate,
            _ => Code::Internal,
        };
        if error.kind() == ErrorKind::Schema {
            // The store has logged it; now every request meets it.
            tracing::debug!(%error, "the schema does not fit; the request was answered with 503");
            return Self::new(code, "the database's schema does not fit this server: upgrade the server");
        }
        let source = std::error::Error::source(&error);
        if code == Code::Internal {
            tracing::error!(%error, ?source, "store error; the request was answered with 500");
            return Self::new(code, "the server failed; its log says why");
        }
        if code.status().is_server_error() {
            tracing::warn!(%error, ?source, "store busy or unavailable; the request was answered with 503");
        }
        if source.is_none_or(is_about_the_request) {
            return Self::new(code, error.to_string());
        }
        if !code.status().is_server_error() {
            tracing::warn!(%error, ?source, "the database rejected a request");
        }
        Self::new(code, public_text(code))
    }
}

/// Whether the source is a validation error of the request. Any other source came from the database, whose texts name
/// users, hosts and tables.
fn is_about_the_request(source: &(dyn std::error::Error + 'static)) -> bool {
    // The library wraps its sources in an `Arc`.
    let shared = source.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>();
    let source = shared.map_or(source, |inner| &**inner);
    let is_name = source.is::<InvalidName>() || source.is::<InvalidId>();
    is_name || source.is::<InvalidEvent>() || source.is::<InvalidCron>()
}

/// The text for callers in place of the text of a database error.
fn public_text(code: Code) -> &'static str {
    match code {
        Code::Busy => "the database is busy; try again",
        Code::Indeterminate => "the database's answer was lost: the request may or may not have taken effect",
        Code::InvalidRequest => "the database cannot store a value of this request; the server's log says why",
        Code::Conflict => "this conflicts with what is stored; the server's log says why",
        Code::QueueFull => "the database is full; the server's log says why",
        Code::NotFound => "not found",
        _ => "the database does not answer; try again",
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = self.body.code;
        let mut response = (code.status(), Json(self.body)).into_response();
        let headers = response.headers_mut();
        if code.is_transient() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tidegate\""));
        }
        if code == Code::RequestTimeout {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_become_statuses() {
        let cases = [
            (ErrorKind::NotFound, 404),
            (ErrorKind::Conflict, 409),
            (ErrorKind::Fenced, 409),
            (ErrorKind::AlreadyEnded, 409),
            (ErrorKind::Full, 429),
            (ErrorKind::Busy, 503),
            (ErrorKind::Unavailable, 503),
            (ErrorKind::Invalid, 400),
            (ErrorKind::Corrupt, 500),
            (ErrorKind::Indeterminate, 503),
            (ErrorKind::Schema, 503),
        ];
        for (kind, status) in cases {
            let error = ApiError::from(tidegate::Error::new(kind, "x"));
            assert_eq!(error.status().as_u16(), status, "{kind:?}");
        }
        let reused = ApiError::of_publish(tidegate::Error::new(ErrorKind::Conflict, "x"));
        assert_eq!(reused.status().as_u16(), 422);
    }

    #[test]
    fn what_is_inside_stays_inside() {
        let error = ApiError::from(tidegate::Error::new(ErrorKind::Corrupt, "page 7 of secret.db"));
        assert!(!error.body.error.contains("secret"));
        for kind in [ErrorKind::Unavailable, ErrorKind::Busy, ErrorKind::Invalid, ErrorKind::Conflict, ErrorKind::Full]
        {
            let error = tidegate::Error::new(kind, "refused (user app)").with_source(std::io::Error::other("user app"));
            let error = ApiError::from(error);
            assert!(!error.body.error.contains("app"), "{kind:?}: {}", error.body.error);
        }
        let name = tidegate::QueueName::new("a b").map_err(tidegate::Error::from).unwrap_err();
        assert!(ApiError::from(name).body.error.contains("a b"), "a validation error is passed on to the caller");
    }
}
