//! `/api/event-types`: creates, lists, shows, changes and archives event types, and validates data against them. Types are
//! the same for all clients: unscoped callers write them, everybody reads them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::header::{ETAG, LOCATION};
use http::{HeaderName, StatusCode};
use tidegate_dispatch::Written;

use crate::callers::{Manager, Reader};
use crate::error::{ErrorBody, Result};
use crate::extract::{AnyBody, IfMatch, JsonBody, PathText, Query, tsid};
use crate::service::Service;
use crate::wire::event_types::{
    EventTypeAnswer, EventTypeChange, EventTypesAnswer, IfMatchHeader, NewEventType, TypePath, TypesParams,
    ValidateParams, ValidationAnswer, version,
};

/// An answer with the entity tag of what it shows.
pub(crate) type Tagged<T> = ([(HeaderName, String); 1], Json<T>);

/// The entity tag of a revision.
pub(crate) fn tag(revision: i64) -> [(HeaderName, String); 1] {
    [(ETAG, format!("\"{revision}\""))]
}

/// Creates an event type.
#[utoipa::path(
    post, path = "/api/event-types", operation_id = "create_event_type", tag = "event types",
    request_body = NewEventType,
    responses(
        (status = 201, description = "The event type, CURRENT and without versions.", body = EventTypeAnswer),
        (status = 409, description = "The code is taken.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn create(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    JsonBody(body): JsonBody<NewEventType>,
) -> Result<(StatusCode, [(HeaderName, String); 2], Json<EventTypeAnswer>)> {
    caller.need_unscoped()?;
    let (code, body) = body.read()?;
    let made = service.gateway.create_type(&code, &body).await?;
    let headers = [(ETAG, format!("\"{}\"", made.revision)), (LOCATION, format!("/api/event-types/{}", made.id))];
    Ok((StatusCode::CREATED, headers, Json(EventTypeAnswer::whole(&made, Vec::new()))))
}

/// Lists event types by their codes.
#[utoipa::path(
    get, path = "/api/event-types", operation_id = "list_event_types", tag = "event types", params(TypesParams),
    responses((status = 200, description = "A page of event types, without schemas.", body = EventTypesAnswer)),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    Query(params): Query<TypesParams>,
) -> Result<Json<EventTypesAnswer>> {
    let (page, more) = service.gateway.list_types(&params.read()?, caller.version()).await?;
    Ok(Json(EventTypesAnswer::of(&page, more)))
}

/// Shows an event type with the schemas of its versions.
#[utoipa::path(
    get, path = "/api/event-types/{id}", operation_id = "show_event_type", tag = "event types", params(TypePath),
    responses(
        (status = 200, description = "The event type.", body = EventTypeAnswer),
        (status = 404, description = "There is no such event type.", body = ErrorBody),
    ),
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(id): PathText,
) -> Result<Tagged<EventTypeAnswer>> {
    let (found, schemas) = service.gateway.type_with_schemas(tsid("event type", &id)?, caller.version()).await?;
    Ok((tag(found.revision), Json(EventTypeAnswer::whole(&found, schemas))))
}

/// Changes the name and the description of an event type.
#[utoipa::path(
    put, path = "/api/event-types/{id}", operation_id = "change_event_type", tag = "event types",
    params(TypePath, IfMatchHeader), request_body = EventTypeChange,
    responses(
        (status = 200, description = "The event type.", body = EventTypeAnswer),
        (status = 404, description = "There is no such event type.", body = ErrorBody),
        (status = 409, description = "It is archived.", body = ErrorBody),
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
    JsonBody(body): JsonBody<EventTypeChange>,
) -> Result<Tagged<EventTypeAnswer>> {
    caller.need_unscoped()?;
    let changed = service.gateway.change_type(tsid("event type", &id)?, on, &body.into()).await?;
    Ok(whole(changed))
}

/// Archives an event type: its events are refused, and nothing of it changes any more.
#[utoipa::path(
    post, path = "/api/event-types/{id}/archive", operation_id = "archive_event_type", tag = "event types",
    params(TypePath, IfMatchHeader),
    responses(
        (status = 200, description = "The event type.", body = EventTypeAnswer),
        (status = 404, description = "There is no such event type.", body = ErrorBody),
        (status = 412, description = "It has changed since it was read.", body = ErrorBody),
    ),
)]
pub(crate) async fn archive(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    IfMatch(on): IfMatch,
) -> Result<Tagged<EventTypeAnswer>> {
    caller.need_unscoped()?;
    let archived = service.gateway.archive_type(tsid("event type", &id)?, on).await?;
    Ok(whole(archived))
}

/// Validates the body against a version of an event type; nothing is stored.
#[utoipa::path(
    post, path = "/api/event-types/{id}/validate", operation_id = "validate_data", tag = "event types",
    params(TypePath, ValidateParams),
    request_body(content_type = "application/octet-stream", description = "The data, of the version's media type.", content = Vec<u8>),
    responses(
        (status = 200, description = "What was found; data that does not parse is not valid.", body = ValidationAnswer),
        (status = 404, description = "There is no such event type or version.", body = ErrorBody),
        (status = 413, description = "The data is above 1 MiB.", body = ErrorBody),
        (status = 415, description = "The version's schema cannot judge this content type.", body = ErrorBody),
    ),
)]
pub(crate) async fn validate(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(id): PathText,
    Query(params): Query<ValidateParams>,
    AnyBody { content_type, bytes }: AnyBody,
) -> Result<Json<ValidationAnswer>> {
    let (id, number) = (tsid("event type", &id)?, params.version.as_deref().map(version).transpose()?);
    let found = service.gateway.validate(id, number, content_type.as_deref(), bytes.into(), caller.version()).await?;
    Ok(Json(found.into()))
}

/// A type as a change has left it.
fn whole(written: Written) -> Tagged<EventTypeAnswer> {
    let found = &written.event_type;
    (tag(found.revision), Json(EventTypeAnswer::whole(found, written.schemas)))
}
