//! `/queues`: list, create, configure, pause, resume, drain, metrics.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tidegate::{Depth, QueueName, QueueState};
use tidegate_core::{QueueConfig, RetryPolicy};
use tidegate_store::{QueueChange, SettingsChange};
use utoipa::ToSchema;

use crate::auth::{Manager, Reader};
use crate::error::{ApiError, ErrorBody, Result};
use crate::extract::{OptionalBody, PathText, Query};
use crate::service::Service;
use crate::tenant::{ClientParam, Tenant};
use crate::wire::{Retry, client};

/// A queue as it is set up.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueAnswer {
    /// Its name.
    #[schema(example = "default")]
    name: String,
    /// The client it belongs to, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    /// `active`, `paused` (accepts, does not deliver) or `draining` (delivers, does not accept).
    #[schema(value_type = String, example = "active")]
    state: QueueState,
    /// Events it holds at most; unlimited when null.
    depth_limit: Option<u64>,
    /// Seconds that a lease lasts when its worker does not say; 60 when null.
    lease_seconds: Option<u32>,
    /// Retries of an event that does not say; 3 when null.
    max_retries: Option<u32>,
    /// When a failed attempt is tried again; after 5 minutes when null.
    retry: Option<Retry>,
    /// Whether workers must name their lease when they report.
    require_lease: bool,
}

impl QueueAnswer {
    fn of(config: QueueConfig) -> Self {
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

/// All queues.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueuesAnswer {
    queues: Vec<QueueAnswer>,
}

/// What to set; what is left out stays as it is, null goes back to the default.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(example = json!({ "max_retries": 3, "lease_seconds": 60 }))]
pub(crate) struct QueueBody {
    /// Events it holds at most.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u64>)]
    depth_limit: Option<Option<u64>>,
    /// Seconds that a lease lasts when its worker does not say.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 86400)]
    lease_seconds: Option<Option<u32>>,
    /// Retries of an event that does not say.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 1000000)]
    max_retries: Option<Option<u32>>,
    /// When a failed attempt is tried again.
    #[serde(deserialize_with = "present")]
    #[schema(value_type = Option<Retry>)]
    retry: Option<Option<Retry>>,
    /// Whether workers must name their lease when they report.
    require_lease: Option<bool>,
}

/// Tells null from absence.
fn present<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(reader: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(reader).map(Some)
}

impl QueueBody {
    /// The change that this asks for. The store merges it into what stands.
    fn change(self) -> Result<QueueChange> {
        if let Some(Some(seconds)) = self.lease_seconds
            && !(1..=86_400).contains(&seconds)
        {
            return Err(ApiError::invalid("lease_seconds does not fit: it must be from 1 to 86400"));
        }
        if let Some(Some(retries)) = self.max_retries
            && retries > 1_000_000
        {
            return Err(ApiError::invalid("max_retries does not fit: it must be from 0 to 1000000"));
        }
        if self.depth_limit.flatten().is_some_and(|limit| limit > i64::MAX as u64) {
            return Err(ApiError::invalid("depth_limit does not fit: it must be below 2^63"));
        }
        let retry = self.retry.map(|retry| retry.map(RetryPolicy::from));
        if retry.iter().flatten().any(|policy| !policy.is_sane()) {
            return Err(ApiError::invalid(
                "retry does not fit: delays at most 100 years, jitter 0 to 1, at most 1000 delays",
            ));
        }
        let settings = SettingsChange {
            lease_seconds: self.lease_seconds,
            max_retries: self.max_retries,
            retry,
            require_lease: self.require_lease,
        };
        Ok(QueueChange { state: None, depth_limit: self.depth_limit, settings })
    }
}

/// What a queue holds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueMetrics {
    /// Its name.
    name: String,
    /// The client it belongs to, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    /// `active`, `paused` or `draining`.
    #[schema(value_type = String)]
    state: QueueState,
    /// Can be claimed now.
    ready: u64,
    /// Can be claimed later: delayed or waiting for a retry.
    delayed: u64,
    /// Behind the head of their group.
    parked: u64,
    /// Held by workers.
    leased: u64,
    /// All of them.
    depth: u64,
    /// Whether it is draining and holds nothing any more.
    drained: bool,
}

/// Lists queues.
#[utoipa::path(
    get, path = "/queues", operation_id = "list_queues", tag = "queues", params(ClientParam),
    responses((status = 200, description = "All queues.", body = QueuesAnswer)),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    Query(params): Query<ClientParam>,
) -> Result<Json<QueuesAnswer>> {
    let tenant = Tenant(Tenant::from(&caller).client(params.client.as_deref())?);
    let queues = service.queue.queues().await?.into_iter().filter(|config| tenant.owns_queue(&config.name));
    Ok(Json(QueuesAnswer { queues: queues.map(QueueAnswer::of).collect() }))
}

/// One queue.
#[utoipa::path(
    get, path = "/queues/{name}", operation_id = "show_queue", tag = "queues",
    params(("name" = String, Path, min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$", example = "default"), ClientParam),
    responses(
        (status = 200, description = "The queue.", body = QueueAnswer),
        (status = 404, description = "There is no such queue.", body = ErrorBody),
    ),
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(name): PathText,
    Query(params): Query<ClientParam>,
) -> Result<Json<QueueAnswer>> {
    let queue = Tenant::from(&caller).queue(params.client.as_deref(), Some(&name))?;
    Ok(Json(QueueAnswer::of(service.config(&queue).await?)))
}

/// Creates a queue, or changes what the body names.
#[utoipa::path(
    put, path = "/queues/{name}", operation_id = "put_queue", tag = "queues",
    params(("name" = String, Path, min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$", example = "default"), ClientParam),
    request_body = QueueBody,
    responses(
        (status = 200, description = "The queue.", body = QueueAnswer),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "Not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn put(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(name): PathText,
    Query(params): Query<ClientParam>,
    OptionalBody(body): OptionalBody<QueueBody>,
) -> Result<Json<QueueAnswer>> {
    let queue = Tenant::from(&caller).queue(params.client.as_deref(), Some(&name))?;
    service.change(&queue, body.change()?).await
}

impl Service {
    async fn change(&self, queue: &QueueName, change: QueueChange) -> Result<Json<QueueAnswer>> {
        let config = self.queue.store().put_queue(queue, change).await?;
        self.remember(&config);
        Ok(Json(QueueAnswer::of(config)))
    }

    async fn set_state(&self, queue: &QueueName, state: QueueState) -> Result<Json<QueueAnswer>> {
        self.config(queue).await?;
        let change = QueueChange { state: Some(state), ..QueueChange::default() };
        let answer = self.change(queue, change).await?;
        self.wake(queue);
        Ok(answer)
    }

    /// Has waiting consumers of a queue look again.
    pub(crate) fn wake(&self, queue: &QueueName) {
        self.queue.store().wake([queue.clone()].into());
        self.rooms.ring(queue);
    }
}

/// Stops delivery; publishes are still accepted.
#[utoipa::path(
    post, path = "/queues/{name}/pause", operation_id = "pause_queue", tag = "queues",
    params(("name" = String, Path, min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$", example = "default"), ClientParam),
    responses(
        (status = 200, description = "The queue.", body = QueueAnswer),
        (status = 404, description = "There is no such queue.", body = ErrorBody),
    ),
)]
pub(crate) async fn pause(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(name): PathText,
    Query(params): Query<ClientParam>,
) -> Result<Json<QueueAnswer>> {
    let queue = Tenant::from(&caller).queue(params.client.as_deref(), Some(&name))?;
    service.set_state(&queue, QueueState::Paused).await
}

/// Accepts and delivers again.
#[utoipa::path(
    post, path = "/queues/{name}/resume", operation_id = "resume_queue", tag = "queues",
    params(("name" = String, Path, min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$", example = "default"), ClientParam),
    responses(
        (status = 200, description = "The queue.", body = QueueAnswer),
        (status = 404, description = "There is no such queue.", body = ErrorBody),
    ),
)]
pub(crate) async fn resume(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(name): PathText,
    Query(params): Query<ClientParam>,
) -> Result<Json<QueueAnswer>> {
    let queue = Tenant::from(&caller).queue(params.client.as_deref(), Some(&name))?;
    service.set_state(&queue, QueueState::Active).await
}

/// Refuses new events and delivers the rest.
#[utoipa::path(
    post, path = "/queues/{name}/drain", operation_id = "drain_queue", tag = "queues",
    params(("name" = String, Path, min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$", example = "default"), ClientParam),
    responses(
        (status = 200, description = "The queue.", body = QueueAnswer),
        (status = 404, description = "There is no such queue.", body = ErrorBody),
    ),
)]
pub(crate) async fn drain(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(name): PathText,
    Query(params): Query<ClientParam>,
) -> Result<Json<QueueAnswer>> {
    let queue = Tenant::from(&caller).queue(params.client.as_deref(), Some(&name))?;
    service.set_state(&queue, QueueState::Draining).await
}

/// What a queue holds.
#[utoipa::path(
    get, path = "/queues/{name}/metrics", operation_id = "queue_metrics", tag = "queues",
    params(("name" = String, Path, min_length = 1, max_length = 255, pattern = "^[A-Za-z0-9._:/-]+$", example = "default"), ClientParam),
    responses(
        (status = 200, description = "Counted in one snapshot.", body = QueueMetrics),
        (status = 404, description = "There is no such queue.", body = ErrorBody),
    ),
)]
pub(crate) async fn metrics(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(name): PathText,
    Query(params): Query<ClientParam>,
) -> Result<Json<QueueMetrics>> {
    let queue = Tenant::from(&caller).queue(params.client.as_deref(), Some(&name))?;
    let config = service.config(&queue).await?;
    let depth: Depth = service.queue.store().depth(&config.name).await?;
    Ok(Json(QueueMetrics {
        client: client(&config.name),
        name: config.name.name().to_owned(),
        state: config.state,
        ready: depth.ready,
        delayed: depth.delayed,
        parked: depth.parked,
        leased: depth.leased,
        depth: depth.total(),
        drained: config.state == QueueState::Draining && depth.total() == 0,
    }))
}
