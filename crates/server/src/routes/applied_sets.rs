//! `/api/applied-sets`: what sets of documents have made. Written by those who apply documents; it changes nothing else. A
//! caller of a client sees those of its client.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::header::{ETAG, LOCATION};
use http::{HeaderName, StatusCode};
use tidegate::Tsid;

use crate::callers::{Manager, Reader};
use crate::error::{ErrorBody, Result};
use crate::extract::{BatchBody, IfMatch, PathText, Query, tsid};
use crate::routes::clients::named;
use crate::routes::event_types::{Tagged, tag};
use crate::service::Service;
use crate::wire::applied_sets::{
    AppliedSetAnswer, AppliedSetChange, AppliedSetPath, AppliedSetsAnswer, AppliedSetsParams, NewAppliedSet,
};
use crate::wire::event_types::IfMatchHeader;

/// Creates an applied set.
#[utoipa::path(
    post, path = "/api/applied-sets", operation_id = "create_applied_set", tag = "applied sets",
    request_body = NewAppliedSet,
    responses(
        (status = 201, description = "The set.", body = AppliedSetAnswer),
        (status = 409, description = "The code is taken.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn create(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    BatchBody(body): BatchBody<NewAppliedSet>,
) -> Result<(StatusCode, [(HeaderName, String); 2], Json<AppliedSetAnswer>)> {
    let client = named(&service, &caller, body.client_id.as_deref()).await?;
    let made = service.gateway.create_applied_set(client, &body.code.clone(), &body.read()).await?;
    let headers = [(ETAG, format!("\"{}\"", made.revision)), (LOCATION, format!("/api/applied-sets/{}", made.id))];
    Ok((StatusCode::CREATED, headers, Json(made.into())))
}

/// Lists applied sets by client and code.
#[utoipa::path(
    get, path = "/api/applied-sets", operation_id = "list_applied_sets", tag = "applied sets",
    params(AppliedSetsParams),
    responses((status = 200, description = "A page of sets.", body = AppliedSetsAnswer)),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    Query(params): Query<AppliedSetsParams>,
) -> Result<Json<AppliedSetsAnswer>> {
    let visible = caller.visible_as("clientId", params.client_id.as_deref())?;
    let (page, more) = service.gateway.list_applied_sets(&params.read(visible)?).await?;
    Ok(Json(AppliedSetsAnswer::of(page, more, visible)))
}

/// Shows an applied set.
#[utoipa::path(
    get, path = "/api/applied-sets/{id}", operation_id = "show_applied_set", tag = "applied sets",
    params(AppliedSetPath),
    responses(
        (status = 200, description = "The set.", body = AppliedSetAnswer),
        (status = 404, description = "There is no such set.", body = ErrorBody),
    ),
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(id): PathText,
) -> Result<Tagged<AppliedSetAnswer>> {
    let found = service.gateway.applied_set(set_id(&id)?, caller.visible(None)?.client()).await?;
    Ok((tag(found.revision), Json(found.into())))
}

/// Changes what an applied set has made.
#[utoipa::path(
    put, path = "/api/applied-sets/{id}", operation_id = "change_applied_set", tag = "applied sets",
    params(AppliedSetPath, IfMatchHeader), request_body = AppliedSetChange,
    responses(
        (status = 200, description = "The set.", body = AppliedSetAnswer),
        (status = 404, description = "There is no such set.", body = ErrorBody),
        (status = 409, description = "Others keep changing it at the same time.", body = ErrorBody),
        (status = 412, description = "It has changed since it was read.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn change(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    IfMatch(on): IfMatch,
    BatchBody(body): BatchBody<AppliedSetChange>,
) -> Result<Tagged<AppliedSetAnswer>> {
    let client = caller.visible(None)?.client();
    let changed = service.gateway.change_applied_set(set_id(&id)?, client, on, &body.read()).await?;
    Ok((tag(changed.revision), Json(changed.into())))
}

/// Deletes an applied set. What it has made stays.
#[utoipa::path(
    delete, path = "/api/applied-sets/{id}", operation_id = "delete_applied_set", tag = "applied sets",
    params(AppliedSetPath, IfMatchHeader),
    responses(
        (status = 204, description = "The set is gone."),
        (status = 404, description = "There is no such set.", body = ErrorBody),
        (status = 409, description = "Others keep changing it at the same time.", body = ErrorBody),
        (status = 412, description = "It has changed since it was read.", body = ErrorBody),
    ),
)]
pub(crate) async fn remove(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    IfMatch(on): IfMatch,
) -> Result<StatusCode> {
    let client = caller.visible(None)?.client();
    service.gateway.delete_applied_set(set_id(&id)?, client, on).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn set_id(text: &str) -> Result<Tsid> {
    tsid("applied set", text)
}
