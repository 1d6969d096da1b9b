//! Queues: their configuration, changes of it, and how many events they hold.

use serde::{Deserialize, Serialize};
use tidegate::{QueueChange, QueueConfig, QueueState, QueueStatus, RetryPolicy, SettingsChange};
use utoipa::{IntoParams, ToSchema};

use super::basics::client;
use super::retry::Retry;
use crate::error::{ApiError, Result};

/// The name of a queue in a path, as the document describes it.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub(crate) struct QueuePath {
    #[param(min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$", example = "default")]
    name: String,
}

/// The client of a queue whose path holds only its name.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ClientParam {
    /// The client that the queue belongs to, if any; for credentials that belong to no client.
    #[param(min_length = 13, max_length = 13)]
    pub(crate) client: Option<String>,
}

/// The configuration of a queue.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueAnswer {
    /// The name of the queue.
    #[schema(example = "default")]
    name: String,
    /// The client that the queue belongs to, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    /// `active`, `paused` (accepts, does not deliver) or `draining` (delivers, does not accept).
    #[schema(value_type = String, example = "active")]
    state: QueueState,
    /// How many events the queue may hold; unlimited when null.
    depth_limit: Option<u64>,
    /// How many seconds a lease lasts when the claim does not say; the server decides when null, by default 60.
    lease_seconds: Option<u32>,
    /// Retries of an event whose publisher does not say; 3 when null.
    max_retries: Option<u32>,
    /// The delay between a failed attempt and the next; 5 minutes when null.
    retry: Option<Retry>,
    /// Whether workers must pass `lease` when they report.
    require_lease: bool,
}

impl QueueAnswer {
    pub(crate) fn of(config: QueueConfig) -> Self {
        Self {
            client: client(&config.name),
            name: config.name.name().to_owned(),
            state: config.state,
            depth_limit: config.depth_limit,
            lease_seconds: config.settings.lease_seconds,
            max_retries: config.settings.max_retries,
            retry: config.settings.retry.map(Into::into),
            require_lease: config.settings.require_lease,
        }
    }
}

/// The queues.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueuesAnswer {
    pub(crate) queues: Vec<QueueAnswer>,
}

/// Settings to change. What is left out stays as it is; null restores the default.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(example = json!({ "max_retries": 3, "lease_seconds": 60 }))]
pub(crate) struct QueueBody {
    /// How many events the queue may hold; null for no limit.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    depth_limit: Option<Option<u64>>,
    /// How many seconds a lease lasts when the claim does not say.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 86400)]
    lease_seconds: Option<Option<u32>>,
    /// Retries of an event whose publisher does not say.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 1000000)]
    max_retries: Option<Option<u32>>,
    /// The delay between a failed attempt and the next.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<Retry>)]
    retry: Option<Option<Retry>>,
    /// Whether workers must pass `lease` when they report.
    require_lease: Option<bool>,
}

/// Deserializes a field that is present, so that null (`Some(None)`) differs from absence (`None`).
fn present<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(reader: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(reader).map(Some)
}

impl TryFrom<QueueBody> for QueueChange {
    type Error = ApiError;

    /// The change that the body asks for. 400 when a value is out of range.
    fn try_from(body: QueueBody) -> Result<Self> {
        if let Some(Some(seconds)) = body.lease_seconds
            && !(1..=86_400).contains(&seconds)
        {
            return Err(ApiError::invalid("lease_seconds must be between 1 and 86400"));
        }
        if let Some(Some(retries)) = body.max_retries
            && retries > 1_000_000
        {
            return Err(ApiError::invalid("max_retries must be between 0 and 1000000"));
        }
        if body.depth_limit.flatten().is_some_and(|limit| limit > i64::MAX as u64) {
            return Err(ApiError::invalid("depth_limit must be below 2^63"));
        }
        let retry = body.retry.map(|retry| retry.map(RetryPolicy::from));
        if retry.iter().flatten().any(|policy| !policy.is_sane()) {
            return Err(ApiError::invalid(
                "retry is invalid: delays must be at most 100 years, jitter from 0 to 1, and a list at most 1000 \
                 delays",
            ));
        }
        let settings = SettingsChange {
            lease_seconds: body.lease_seconds,
            max_retries: body.max_retries,
            retry,
            require_lease: body.require_lease,
        };
        Ok(Self { state: None, depth_limit: body.depth_limit, settings })
    }
}

/// How many events a queue holds, by state.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueMetrics {
    /// The name of the queue.
    name: String,
    /// The client that the queue belongs to, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    /// `active`, `paused` or `draining`.
    #[schema(value_type = String)]
    state: QueueState,
    /// Events that can be claimed now.
    ready: u64,
    /// Events that are delayed, wait for a retry, or are kept in their place.
    delayed: u64,
    /// Events behind the head of their message group.
    parked: u64,
    /// Events that workers hold.
    leased: u64,
    /// All events in the queue: the sum of the above.
    depth: u64,
    /// Whether the queue is draining and is empty.
    drained: bool,
}

impl QueueMetrics {
    pub(crate) fn of(status: &QueueStatus) -> Self {
        let QueueStatus { config, depth } = status;
        Self {
            client: client(&config.name),
            name: config.name.name().to_owned(),
            state: config.state,
            ready: depth.ready,
            delayed: depth.delayed,
            parked: depth.parked,
            leased: depth.leased,
            depth: depth.total(),
            drained: status.is_drained(),
        }
    }
}
