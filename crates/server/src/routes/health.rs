//! `/livez`, `/readyz` and `/metrics`, for orchestrators and Prometheus.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde::Serialize;
use tidegate::ErrorKind;
use tidegate_dispatch::secrets::KeyId;
use utoipa::ToSchema;

use crate::callers::Known;
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::service::Service;

/// The health of the server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthAnswer {
    /// `ok`, `stopping` or `failing`.
    #[schema(example = "ok")]
    status: &'static str,
    /// What is wrong, with `failing`.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// What somebody should look at, although requests can be served.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

impl HealthAnswer {
    fn of(status: &'static str, error: Option<String>) -> Json<Self> {
        Json(Self { status, error, warnings: Vec::new() })
    }
}

/// Tells whether the process is alive.
#[utoipa::path(
    get, path = "/livez", tag = "operations", security(()),
    responses((status = 200, description = "The process is alive.", body = HealthAnswer)),
)]
pub(crate) async fn livez() -> Json<HealthAnswer> {
    HealthAnswer::of("ok", None)
}

/// Tells whether requests can be served: a write and a claim, tried about once a second, succeed.
#[utoipa::path(
    get, path = "/readyz", tag = "operations", security(()),
    responses(
        (status = 200, description = "Requests can be served.", body = HealthAnswer),
        (status = 503, body = HealthAnswer, description = "Requests cannot be served now: the server is stopping, or the \
            database fails."),
    ),
)]
pub(crate) async fn readyz(State(service): State<Arc<Service>>) -> (StatusCode, Json<HealthAnswer>) {
    if service.is_stopping() {
        return (StatusCode::SERVICE_UNAVAILABLE, HealthAnswer::of("stopping", None));
    }
    let health = service.queue.health().await;
    // The path needs no credentials, so details go to the log only.
    let (error, text) = match (health.store, health.writes) {
        (Err(error), _) | (Ok(()), Err(error)) if error.kind() == ErrorKind::Schema => {
            (error, "the database needs a newer program: upgrade this one")
        }
        (Err(error), _) => (error, "the database does not answer"),
        (Ok(()), Err(error)) => (error, "nothing can be written or claimed now; the server's log says why"),
        (Ok(()), Ok(())) => {
            let warnings = service.gateway.missing_keys().iter().map(missing_key).collect();
            return (StatusCode::OK, Json(HealthAnswer { status: "ok", error: None, warnings }));
        }
    };
    tracing::warn!(%error, "readiness check failed");
    (StatusCode::SERVICE_UNAVAILABLE, HealthAnswer::of("failing", Some(text.into())))
}

fn missing_key(key: &KeyId) -> String {
    format!(
        "secrets are encrypted with the key {key}, which this server does not have: webhooks that need them wait until it is in \
         secrets.old_keys or secrets.key_file"
    )
}

/// Shows metrics for Prometheus.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "operations",
    responses(
        (status = 200, description = "Metrics in Prometheus' text format.", body = String, content_type = "text/plain"),
        (status = 404, description = "This server records no metrics.", body = ErrorBody),
    ),
)]
pub(crate) async fn metrics(State(service): State<Arc<Service>>, Known(caller): Known) -> Result<Response> {
    caller.need_unscoped()?;
    let recorded = service.options.metrics.as_ref();
    let recorded = recorded.ok_or_else(|| ApiError::new(Code::NotFound, "this server records no metrics"))?;
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, recorded.0.render()).into_response())
}
