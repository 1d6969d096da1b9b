//! Claims of pull workers, by query or by body, and the value that both are checked into.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::PullClaim;
use utoipa::{IntoParams, ToSchema};

use super::leased::Leased;
use super::tags::{Tags, asked_tags};
use crate::error::{ApiError, Result};
use crate::parameters::number;

/// The longest wait of a claim, in seconds.
const MAX_WAIT: u64 = 60;
/// The longest lease, in seconds.
const MAX_LEASE: u64 = 86_400;
/// The most events in one claim.
const MAX_CLAIM: u64 = 1_000;
/// Events in one claim when the caller gives no number.
const DEFAULT_CLAIM: u64 = 10;

/// Which event to claim, and for whom.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SubscribeParams {
    /// Comma-separated tags: claims an event with any of them. May be left out when a queue is named.
    #[param(example = "email,notification")]
    tags: Option<String>,
    /// The name of the worker, usually `host:pid`.
    #[param(value_type = String, required = true, min_length = 1, max_length = 255, example = "worker-02:8742")]
    worker_id: Option<String>,
    /// The name of the queue; `default` if absent.
    #[param(min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$")]
    queue: Option<String>,
    /// The client that the queue belongs to, if any; for credentials that belong to no client.
    #[param(min_length = 13, max_length = 13)]
    client: Option<String>,
    /// How many seconds to wait for an event; 0 if absent.
    #[param(value_type = Option<u64>, minimum = 0, maximum = 60)]
    wait: Option<String>,
    /// How many seconds the lease lasts unless a heartbeat extends it. The queue or the server decides if absent.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 86400)]
    lease_seconds: Option<String>,
}

/// Which events to claim, and for whom.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "tags": "email,notification", "worker_id": "worker-02:8742", "max": 10 }))]
pub(crate) struct ClaimBody {
    /// Claims events with any of these tags. May be left out when a queue is named.
    tags: Option<Tags>,
    /// The name of the worker, usually `host:pid`.
    #[schema(value_type = String, required = true, min_length = 1, max_length = 255)]
    worker_id: Option<String>,
    /// The name of the queue; `default` if absent.
    #[schema(min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$")]
    queue: Option<String>,
    /// The client that the queue belongs to, if any; for credentials that belong to no client.
    #[schema(min_length = 13, max_length = 13)]
    client: Option<String>,
    /// How many events to claim at most; 10 if absent.
    #[schema(minimum = 1, maximum = 1000)]
    max: Option<u64>,
    /// How many seconds to wait for the first event; 0 if absent.
    #[schema(minimum = 0, maximum = 60)]
    wait: Option<u64>,
    /// How many seconds the leases last unless heartbeats extend them. The queue or the server decides if absent.
    #[schema(minimum = 1, maximum = 86400)]
    lease_seconds: Option<u64>,
}

/// The claimed events.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClaimAnswer {
    /// The events; empty when there was nothing to claim.
    pub(crate) events: Vec<Leased>,
}

/// A checked claim, from either route.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) client: Option<String>,
    pub(crate) queue: Option<String>,
    pub(crate) claim: PullClaim,
    pub(crate) wait: Duration,
    pub(crate) count: usize,
}

/// What both routes take, with the numbers checked.
struct Fields {
    tags: Option<Vec<String>>,
    worker: Option<String>,
    queue: Option<String>,
    client: Option<String>,
    wait: Option<u64>,
    lease: Option<u64>,
    count: usize,
}

impl TryFrom<SubscribeParams> for Wanted {
    type Error = ApiError;

    fn try_from(params: SubscribeParams) -> Result<Self> {
        Self::new(Fields {
            tags: asked_tags(params.tags.as_deref())?,
            worker: params.worker_id,
            queue: params.queue,
            client: params.client,
            wait: number("wait", params.wait.as_deref(), 0, MAX_WAIT)?,
            lease: number("lease_seconds", params.lease_seconds.as_deref(), 1, MAX_LEASE)?,
            count: 1,
        })
    }
}

impl TryFrom<ClaimBody> for Wanted {
    type Error = ApiError;

    fn try_from(body: ClaimBody) -> Result<Self> {
        let within = |name: &str, value: Option<u64>, least, most| {
            number(name, value.map(|value| value.to_string()).as_deref(), least, most)
        };
        Self::new(Fields {
            tags: body.tags.as_ref().map(Tags::read).transpose()?,
            worker: body.worker_id,
            queue: body.queue,
            client: body.client,
            wait: within("wait", body.wait, 0, MAX_WAIT)?,
            lease: within("lease_seconds", body.lease_seconds, 1, MAX_LEASE)?,
            count: within("max", body.max, 1, MAX_CLAIM)?.unwrap_or(DEFAULT_CLAIM) as usize,
        })
    }
}

impl Wanted {
    fn new(fields: Fields) -> Result<Self> {
        if fields.tags.is_none() && fields.queue.is_none() {
            return Err(ApiError::invalid("tags is required: name at least one, or name a queue"));
        }
        let worker = fields.worker.ok_or_else(|| ApiError::invalid("worker_id is required, for instance host:pid"))?;
        tidegate_core::name::check_text("worker_id", &worker).map_err(tidegate::Error::from)?;
        // Sorted, so that waiters that name the same tags share a wait list.
        let tags = fields.tags.map(|mut tags| {
            tags.sort_unstable();
            tags
        });
        let lease = fields.lease.map(Duration::from_secs);
        Ok(Self {
            client: fields.client,
            queue: fields.queue,
            claim: PullClaim { worker, tags, lease },
            wait: Duration::from_secs(fields.wait.unwrap_or(0)),
            count: fields.count,
        })
    }
}
