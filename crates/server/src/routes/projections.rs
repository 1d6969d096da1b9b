//! `/projections`: the status of projections, and their documents.
//!
//! Projections read the events of all clients, so only unscoped callers may see them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, Uri, header};

use crate::access::Caller;
use crate::callers::{Manager, Reader};
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::extract::{PathText, PathTexts, Query};
use crate::service::Service;
use crate::wire::projections::{ProjectionPage, ProjectionsAnswer, ShowParams, json};

/// Lists projections.
///
/// Needs the scope `read`. Projections are made from the events of all clients, so credentials that belong to a client
/// get 403.
#[utoipa::path(
    get, path = "/projections", tag = "projections", operation_id = "list_projections",
    responses((status = 200, description = "All projections, by name.", body = ProjectionsAnswer)),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
) -> Result<Json<ProjectionsAnswer>> {
    caller.need_unscoped()?;
    let statuses = service.queue.projection_statuses().await?;
    Ok(Json(ProjectionsAnswer { projections: statuses.into_iter().map(Into::into).collect() }))
}

/// Shows a projection, and its documents in pages.
///
/// Needs the scope `read`. Projections are made from the events of all clients, so credentials that belong to a client
/// get 403.
#[utoipa::path(
    get, path = "/projections/{name}", tag = "projections", operation_id = "show_projection",
    params(("name" = String, Path, description = "Percent-encoded, including slashes."), ShowParams),
    responses(
        (status = 200, description = "The projection.", body = ProjectionPage),
        (status = 404, description = "There is no such projection.", body = ErrorBody),
    ),
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(name): PathText,
    uri: Uri,
    Query(params): Query<ShowParams>,
) -> Result<Json<ProjectionPage>> {
    caller.need_unscoped()?;
    let is_first = uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "after="));
    let page = service.queue.projection_page(&name, params.documents(is_first)?).await?;
    page.try_into().map(Json)
}

/// Removes a projection and its documents; it then no longer keeps log rows from retention.
///
/// A process that still reads for it is stopped; one that starts it again begins with the oldest row of the log. Needs
/// the scope `manage`, and credentials that belong to no client.
#[utoipa::path(
    delete, path = "/projections/{name}", tag = "projections", operation_id = "remove_projection",
    params(("name" = String, Path, description = "Percent-encoded, including slashes.")),
    responses(
        (status = 204, description = "The projection is removed."),
        (status = 404, description = "There is no such projection.", body = ErrorBody),
    ),
)]
pub(crate) async fn remove(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(name): PathText,
) -> Result<StatusCode> {
    caller.need_unscoped()?;
    if service.queue.remove_projection(&name).await? {
        tracing::info!(projection = name, caller = caller.name(), "projection removed");
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::new(Code::NotFound, format!("there is no projection {name:?}")))
}

/// Shows a document of a projection.
///
/// It is read from the active version, also while a later one is being built. Needs the scope `read`. Projections are
/// made from the events of all clients, so credentials that belong to a client get 403.
#[utoipa::path(
    get, path = "/projections/{name}/{key}", tag = "projections", operation_id = "projection_document",
    params(
        ("name" = String, Path, description = "Percent-encoded, including slashes."),
        ("key" = String, Path, description = "Percent-encoded, including slashes."),
    ),
    responses(
        (status = 200, description = "The document, as the projection wrote it.", body = serde_json::Value),
        (status = 404, description = "There is no such projection, or it has no such document.", body = ErrorBody),
    ),
)]
pub(crate) async fn document(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathTexts(name, key): PathTexts,
) -> Result<Response> {
    stored(&service, &caller, &name, &key).await
}

/// The document under the empty key, which cannot be a segment of a path.
pub(crate) async fn document_of_no_key(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(name): PathText,
) -> Result<Response> {
    stored(&service, &caller, &name, "").await
}

async fn stored(service: &Service, caller: &Caller, name: &str, key: &str) -> Result<Response> {
    caller.need_unscoped()?;
    let found = service.queue.projection_document(name, key).await?.ok_or_else(|| {
        let shown: String = key.chars().take(60).collect();
        ApiError::new(Code::NotFound, format!("projection {name:?} has no document {shown:?}"))
    })?;
    let document: Box<str> = json(key, found)?.into();
    Ok(([(header::CONTENT_TYPE, "application/json")], String::from(document)).into_response())
}
