//! The routing table: which handler serves which path and method.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post, put};

use crate::docs;
use crate::error::{ApiError, Code};
use crate::middleware::{Around, around};
use crate::routes::workers;
use crate::routes::{
    accounts, applied_sets, clients, event_types, events, facts, health, jobs, keys, list, manual, pools, projections,
};
use crate::routes::{publish, queues, replays, report_batch, reports, schedules, schemas};
use crate::routes::{subscribe, subscriptions, tasks, versions};
use crate::service::Service;

/// All routes of the server, with the middleware around them.
pub(crate) fn router(service: &Arc<Service>) -> Router {
    let around_all = Arc::new(Around::new(service));
    Router::new()
        .merge(work())
        .merge(management())
        .merge(gateway())
        .merge(operations())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(around_all, around))
        .with_state(Arc::clone(service))
}

fn work() -> Router<Arc<Service>> {
    Router::new()
        .route("/events", get(list::list).post(publish::create))
        .route("/events/batch", post(publish::create_many))
        .route("/events/subscribe", get(subscribe::subscribe))
        .route("/events/claim", post(subscribe::claim))
        .route("/events/complete", post(report_batch::complete_many))
        .route("/events/fail", post(report_batch::fail_many))
        .route("/events/redrive", post(manual::redrive_many))
        .route("/events/{id}", get(events::show))
        .route("/events/{id}/start", post(reports::start))
        .route("/events/{id}/heartbeat", post(reports::heartbeat))
        .route("/events/{id}/complete", post(reports::complete))
        .route("/events/{id}/fail", post(reports::fail))
        .route("/events/{id}/release", post(reports::release))
        .route("/events/{id}/why", get(events::why))
        .route("/events/{id}/reset", post(manual::reset))
        .route("/events/{id}/cancel", post(manual::cancel))
        .route("/events/{id}/redrive", post(manual::redrive))
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
        .route("/schedules", get(schedules::list))
        .route("/schedules/{name}", get(schedules::show).put(schedules::put).delete(schedules::remove))
        .route("/schedules/{name}/pause", post(schedules::pause))
        .route("/schedules/{name}/resume", post(schedules::resume))
        .route("/schedules/{name}/run", post(schedules::run))
        .route("/projections", get(projections::list))
        .route("/projections/{name}", get(projections::show).delete(projections::remove))
        .route("/projections/{name}/", get(projections::document_of_no_key))
        .route("/projections/{name}/{key}", get(projections::document))
}

fn gateway() -> Router<Arc<Service>> {
    Router::new()
        .route("/api/event-types", get(event_types::list).post(event_types::create))
        .route("/api/event-types/{id}", get(event_types::show).put(event_types::change))
        .route("/api/event-types/{id}/archive", post(event_types::archive))
        .route("/api/event-types/{id}/validate", post(event_types::validate))
        .route("/api/event-types/{id}/versions", post(versions::add))
        .route("/api/event-types/{id}/versions/{version}", put(versions::change).delete(versions::remove))
        .route("/api/event-types/{id}/versions/{version}/finalise", post(versions::finalise))
        .route("/api/event-types/{id}/versions/{version}/deprecate", post(versions::deprecate))
        .route("/api/events", get(facts::list).post(facts::create))
        .route("/api/events/batch", post(facts::create_many))
        .route("/api/events/{id}", get(facts::show))
        .route("/api/subscriptions", get(subscriptions::list).post(subscriptions::create))
        .route(
            "/api/subscriptions/{id}",
            get(subscriptions::show).put(subscriptions::change).delete(subscriptions::remove),
        )
        .route("/api/subscriptions/{id}/pause", post(subscriptions::pause))
        .route("/api/subscriptions/{id}/resume", post(subscriptions::resume))
        .route("/api/subscriptions/{id}/rotate-secret", post(subscriptions::rotate_secret))
        .route("/api/subscriptions/{id}/preview", post(subscriptions::preview))
        .route("/api/subscriptions/{id}/replay", post(replays::replay))
        .route("/api/subscriptions/{id}/test", post(replays::test))
        .route("/api/dispatch-jobs/batch", post(tasks::create_many))
        .route("/api/clients", get(clients::list).post(clients::create))
        .route("/api/clients/{id}", get(clients::show).put(clients::change).delete(clients::remove))
        .route("/api/dispatch-jobs", get(jobs::list).post(tasks::create))
        .route("/api/dispatch-jobs/bulk", post(jobs::bulk))
        .route("/api/dispatch-jobs/{id}", get(jobs::show))
        .route("/api/dispatch-jobs/{id}/why", get(jobs::why))
        .route("/api/dispatch-jobs/{id}/retry", post(jobs::retry))
        .route("/api/dispatch-jobs/{id}/cancel", post(jobs::cancel))
        .route("/api/dispatch-jobs/{id}/ignore", post(jobs::ignore))
        .route("/api/dispatch-groups", get(jobs::groups))
        .route("/api/dispatch-pools", get(pools::list).post(pools::create))
        .route("/api/dispatch-pools/{id}", get(pools::show).put(pools::change).delete(pools::remove))
        .route("/api/service-accounts", get(accounts::list).post(accounts::create))
        .route("/api/service-accounts/{id}", get(accounts::show).put(accounts::change).delete(accounts::remove))
        .route("/api/service-accounts/{id}/rotate-secret", post(accounts::rotate_secret))
        .route("/api/applied-sets", get(applied_sets::list).post(applied_sets::create))
        .route("/api/applied-sets/{id}", get(applied_sets::show).put(applied_sets::change).delete(applied_sets::remove))
        .route("/api/keys", get(keys::list).post(keys::create))
        .route("/api/keys/{id}", delete(keys::revoke))
        .route("/api/schemas", get(schemas::list).post(schemas::create))
        .route("/api/schemas/{id}", get(schemas::show).put(schemas::change).delete(schemas::remove))
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
    ApiError::new(Code::NotFound, "there is nothing at this path; see /docs for all paths")
}

async fn method_not_allowed() -> ApiError {
    ApiError::new(Code::MethodNotAllowed, "this path does not support this method; see /docs for those it supports")
}
