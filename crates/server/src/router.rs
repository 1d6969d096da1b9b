//! Which path leads where.

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{HeaderValue, header};
use tower_http::catch_panic::CatchPanicLayer;

use crate::bodies::hold;
use crate::error::{ApiError, Code};
use crate::observe::observe;
use crate::routes::{docs, events, health, list, projections, publish, queues, reports, subscribe, workers};
use crate::service::Service;
use crate::unknown::refuse_parameters;

/// Everything the server answers.
pub(crate) fn router(service: &Arc<Service>) -> Router {
    let parameters = Arc::new(crate::openapi::parameters());
    let known_only = from_fn_with_state(parameters, refuse_parameters);
    Router::new()
        .merge(work().merge(management()).route_layer(known_only))
        .merge(operations())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::clone(service), hold))
        .layer(from_fn(observe))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(axum::middleware::map_response(nosniff))
        .with_state(Arc::clone(service))
}

fn work() -> Router<Arc<Service>> {
    Router::new()
        .route("/events", get(list::list).post(publish::create))
        .route("/events/batch", post(publish::create_many))
        .route("/events/subscribe", get(subscribe::subscribe))
        .route("/events/claim", post(subscribe::claim))
        .route("/events/complete", post(reports::complete_many))
        .route("/events/fail", post(reports::fail_many))
        .route("/events/redrive", post(events::redrive_many))
        .route("/events/{id}", get(events::show))
        .route("/events/{id}/start", post(reports::start))
        .route("/events/{id}/heartbeat", post(reports::heartbeat))
        .route("/events/{id}/complete", post(reports::complete))
        .route("/events/{id}/fail", post(reports::fail))
        .route("/events/{id}/release", post(reports::release))
        .route("/events/{id}/why", get(events::why))
        .route("/events/{id}/reset", post(events::reset))
        .route("/events/{id}/cancel", post(events::cancel))
        .route("/events/{id}/redrive", post(events::redrive))
}

fn management() -> Router<Arc<Service>> {
    Router::new()
        .route("/queues", get(queues::list))
        .route("/queues/{name}", get(queues::show).put(queues::put))
        .route("/queues/{name}/pause", post(queues::pause))
        .route("/queues/{name}/resume", post(queues::resume))
        .route("/queues/{name}/drain", post(queues::drain))
        .route("/queues/{name}/metrics", get(queues::metrics))
        .route("/workers", get(workers::list))
        .route("/projections", get(projections::list))
        .route("/projections/{name}", get(projections::show).delete(projections::remove))
        .route("/projections/{name}/", get(projections::document_of_no_key))
        .route("/projections/{name}/{key}", get(projections::document))
}

fn operations() -> Router<Arc<Service>> {
    Router::new()
        .route("/", get(docs::first_page))
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(docs::document))
        .route("/docs", get(docs::redirect))
        .route("/docs/", get(docs::index))
        .route("/docs/{*path}", get(docs::asset))
}

async fn not_found() -> ApiError {
    ApiError::new(Code::NotFound, "there is nothing at this path; /docs shows what there is")
}

async fn method_not_allowed() -> ApiError {
    ApiError::new(Code::MethodNotAllowed, "this path does not know this method; /docs shows which it knows")
}

fn panicked(reason: Box<dyn std::any::Any + Send>) -> Response {
    let text = reason.downcast_ref::<&str>().copied().or_else(|| reason.downcast_ref::<String>().map(String::as_str));
    tracing::error!(reason = text.unwrap_or("unknown"), "a handler panicked");
    ApiError::new(Code::Internal, "the server failed; its log says why").into_response()
}

async fn nosniff(mut response: Response) -> Response {
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
