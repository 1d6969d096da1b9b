//! `/queues`: lists, creates, configures, pauses, resumes and drains queues, and counts what they hold.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::callers::{Manager, Reader};
use crate::error::{ErrorBody, Result};
use crate::extract::{OptionalBody, PathText, Query};
use crate::service::Service;
use crate::wire::queues::{ClientParam, QueueAnswer, QueueBody, QueueMetrics, QueuePath, QueuesAnswer};

/// Lists queues.
#[utoipa::path(
    get, path = "/queues", operation_id = "list_queues", tag = "queues", params(ClientParam),
    responses((status = 200, description = "All queues that the caller may see.", body = QueuesAnswer)),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    Query(params): Query<ClientParam>,
) -> Result<Json<QueuesAnswer>> {
    let visible = caller.visible(params.client.as_deref())?;
    let queues = service.queue.queues().await?.into_iter().filter(|config| visible.has(&config.name));
    Ok(Json(QueuesAnswer { queues: queues.map(QueueAnswer::of).collect() }))
}

/// Shows a queue.
#[utoipa::path(
    get, path = "/queues/{name}", operation_id = "show_queue", tag = "queues",
    params(QueuePath, ClientParam),
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
    let queue = caller.queue(params.client.as_deref(), Some(&name))?;
    Ok(Json(QueueAnswer::of(service.queues.config(&queue).await?)))
}

/// Creates a queue, or changes the settings that the body names.
#[utoipa::path(
    put, path = "/queues/{name}", operation_id = "put_queue", tag = "queues",
    params(QueuePath, ClientParam),
    request_body = QueueBody,
    responses(
        (status = 200, description = "The queue.", body = QueueAnswer),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn put(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(name): PathText,
    Query(params): Query<ClientParam>,
    OptionalBody(body): OptionalBody<QueueBody>,
) -> Result<Json<QueueAnswer>> {
    let queue = caller.queue(params.client.as_deref(), Some(&name))?;
    Ok(Json(QueueAnswer::of(service.queues.change(&queue, body.try_into()?).await?)))
}

/// Pauses a queue: it accepts events but delivers none.
#[utoipa::path(
    post, path = "/queues/{name}/pause", operation_id = "pause_queue", tag = "queues",
    params(QueuePath, ClientParam),
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
    let queue = caller.queue(params.client.as_deref(), Some(&name))?;
    let queue = service.queues.handle(&queue).await?;
    Ok(Json(QueueAnswer::of(queue.pause().await?)))
}

/// Resumes a queue: it accepts and delivers events again.
#[utoipa::path(
    post, path = "/queues/{name}/resume", operation_id = "resume_queue", tag = "queues",
    params(QueuePath, ClientParam),
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
    let queue = caller.queue(params.client.as_deref(), Some(&name))?;
    let queue = service.queues.handle(&queue).await?;
    Ok(Json(QueueAnswer::of(queue.resume().await?)))
}

/// Drains a queue: it delivers the events it holds but accepts no new ones.
#[utoipa::path(
    post, path = "/queues/{name}/drain", operation_id = "drain_queue", tag = "queues",
    params(QueuePath, ClientParam),
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
    let queue = caller.queue(params.client.as_deref(), Some(&name))?;
    let queue = service.queues.handle(&queue).await?;
    Ok(Json(QueueAnswer::of(queue.drain().await?)))
}

/// Counts the events that a queue holds.
#[utoipa::path(
    get, path = "/queues/{name}/metrics", operation_id = "queue_metrics", tag = "queues",
    params(QueuePath, ClientParam),
    responses(
        (status = 200, description = "The counts, from one snapshot.", body = QueueMetrics),
        (status = 404, description = "There is no such queue.", body = ErrorBody),
    ),
)]
pub(crate) async fn metrics(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(name): PathText,
    Query(params): Query<ClientParam>,
) -> Result<Json<QueueMetrics>> {
    let queue = caller.queue(params.client.as_deref(), Some(&name))?;
    Ok(Json(QueueMetrics::of(&service.queues.status(&queue).await?)))
}
