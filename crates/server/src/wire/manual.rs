//! What manual actions take: a reason, or which dead letters to redrive.

use serde::{Deserialize, Serialize};
use tidegate::DeadLetterFilter;
use utoipa::{IntoParams, ToSchema};

use crate::error::{ApiError, Result};

/// The most dead letters that one request redrives.
const MAX_REDRIVE: usize = 10_000;
/// The highest rate at which one request redrives, per second.
const MAX_RATE: u32 = 100_000;
/// The longest reason, in bytes.
const MAX_REASON: usize = 1_000;

/// The reason for a reset.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ResetParams {
    /// The reason, for the audit.
    #[param(max_length = 1000, example = "worker_timeout")]
    reason: Option<String>,
}

impl ResetParams {
    /// The reason. 400 when it cannot be stored.
    pub(crate) fn reason(self) -> Result<Option<String>> {
        if self.reason.as_ref().is_some_and(|reason| reason.len() > MAX_REASON || reason.contains('\0')) {
            return Err(ApiError::invalid("reason must be at most 1000 bytes without NUL characters"));
        }
        Ok(self.reason)
    }
}

/// Which dead letters to redrive.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(example = json!({ "queue": "default", "limit": 1000 }))]
pub(crate) struct RedriveBody {
    /// The name of the queue; `default` if absent.
    #[schema(min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$")]
    pub(crate) queue: Option<String>,
    /// The client that the queue belongs to, if any; for credentials that belong to no client.
    #[schema(min_length = 13, max_length = 13)]
    pub(crate) client: Option<String>,
    /// Only events of this type.
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// Only events whose errors contain this text.
    error_contains: Option<String>,
    /// How many to redrive at most; 1,000 if absent.
    #[schema(minimum = 1, maximum = 10000)]
    limit: Option<usize>,
    /// How many to redrive per second at most; 1,000 if absent.
    #[schema(minimum = 1, maximum = 100000)]
    per_second: Option<u32>,
}

/// How many dead letters were redriven.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RedriveAnswer {
    pub(crate) redriven: u64,
}

impl RedriveBody {
    /// Which dead letters, and how fast. 400 when a number is out of range.
    pub(crate) fn filter(&self) -> Result<DeadLetterFilter> {
        let limit = self.limit.unwrap_or(1_000);
        let per_second = self.per_second.unwrap_or(1_000);
        if !(1..=MAX_REDRIVE).contains(&limit) || !(1..=MAX_RATE).contains(&per_second) {
            return Err(ApiError::invalid("limit must be from 1 to 10000 and per_second from 1 to 100000"));
        }
        let mut filter = DeadLetterFilter::new().limit(limit).per_second(per_second);
        filter.event_type.clone_from(&self.event_type);
        filter.error_contains.clone_from(&self.error_contains);
        Ok(filter)
    }
}
