//! `/livez`, `/readyz`, `/metrics`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::Known;
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::service::Service;

/// Whether it works.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthAnswer {
    /// `ok`, `stopping` or `failing`.
    #[schema(example = "ok")]
    status: &'static str,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Whether the process is alive.
#[utoipa::path(
    get, path = "/livez", tag = "operations", security(()),
    responses((status = 200, description = "It is.", body = HealthAnswer)),
)]
pub(crate) async fn livez() -> Json<HealthAnswer> {
    Json(HealthAnswer { status: "ok", error: None })
}

/// Whether requests can be served: a write and a claim would succeed, as tried about once a second.
#[utoipa::path(
    get, path = "/readyz", tag = "operations", security(()),
    responses(
        (status = 200, description = "They can.", body = HealthAnswer),
        (status = 503, description = "Not now.", body = HealthAnswer),
    ),
)]
pub(crate) async fn readyz(State(service): State<Arc<Service>>) -> (StatusCode, Json<HealthAnswer>) {
    if service.is_stopping() {
        return (StatusCode::SERVICE_UNAVAILABLE, Json(HealthAnswer { status: "stopping", error: None }));
    }
    let health = service.queue.health().await;
    // Anybody may ask, so only the class is told.
    let (error, told) = match (health.store, health.writes) {
        (Err(error), _) => (error, "the database does not answer"),
        (Ok(()), Err(error)) => (error, "nothing can be written or claimed now; the server's log says why"),
        (Ok(()), Ok(())) => return (StatusCode::OK, Json(HealthAnswer { status: "ok", error: None })),
    };
    tracing::warn!(%error, "not ready");
    (StatusCode::SERVICE_UNAVAILABLE, Json(HealthAnswer { status: "failing", error: Some(told.into()) }))
}

/// Metrics for Prometheus.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "operations",
    responses(
        (status = 200, description = "In Prometheus' text format.", body = String, content_type = "text/plain"),
        (status = 404, description = "This server records none.", body = ErrorBody),
    ),
)]
pub(crate) async fn metrics(State(service): State<Arc<Service>>, Known(caller): Known) -> Result<Response> {
    caller.need_anchor()?;
    let recorded = service.options.metrics.as_ref();
    let recorded = recorded.ok_or_else(|| ApiError::new(Code::NotFound, "this server records no metrics"))?;
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, recorded.0.render()).into_response())
}
