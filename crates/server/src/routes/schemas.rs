//! `/api/schemas`: registers, lists, shows, changes and deletes schemas. Like event types they are the same for all clients.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::header::{ETAG, LOCATION};
use http::{HeaderName, StatusCode};
use tidegate::Timestamp;

use crate::callers::{Manager, Reader};
use crate::error::{ApiError, ErrorBody, Result};
use crate::extract::{IfMatch, JsonBody, PathText, Query, tsid};
use crate::routes::event_types::{Tagged, tag};
use crate::service::Service;
use crate::wire::event_types::IfMatchHeader;
use crate::wire::schemas::{SchemaAnswer, SchemaPath, SchemaText, SchemasAnswer, SchemasParams};

/// Registers a schema, on its own or as a new version of an event type.
#[utoipa::path(
    post, path = "/api/schemas", operation_id = "create_schema", tag = "schemas", request_body = SchemaText,
    responses(
        (status = 201, description = "The schema.", body = SchemaAnswer),
        (status = 404, description = "There is no such event type.", body = ErrorBody),
        (status = 409, description = "The version exists, is too low, or the type is archived or has no room for its schema.",
            body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
        (status = 422, description = "The schema cannot be used, or breaks what the last version accepts.",
            body = ErrorBody),
    ),
)]
pub(crate) async fn create(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    JsonBody(body): JsonBody<SchemaText>,
) -> Result<(StatusCode, [(HeaderName, String); 2], Json<SchemaAnswer>)> {
    caller.need_unscoped()?;
    let link = body.link()?;
    let made = service.gateway.create_schema(&body.read()?, link, Timestamp::now()).await?;
    let headers = [(ETAG, format!("\"{}\"", made.revision)), (LOCATION, format!("/api/schemas/{}", made.id))];
    Ok((StatusCode::CREATED, headers, Json(SchemaAnswer::whole(made))))
}

/// Lists schemas by the names that they were created under.
#[utoipa::path(
    get, path = "/api/schemas", operation_id = "list_schemas", tag = "schemas", params(SchemasParams),
    responses((status = 200, description = "A page of schemas, without their texts. A schema that was renamed keeps its \
        place. A page may hold fewer schemas than `limit`: only the absence of `nextCursor` means the end.",
        body = SchemasAnswer)),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(_): Reader,
    Query(params): Query<SchemasParams>,
) -> Result<Json<SchemasAnswer>> {
    let (page, more) = service.gateway.list_schemas(&params.read()?).await?;
    Ok(Json(SchemasAnswer::of(page, more)))
}

/// Shows a schema.
#[utoipa::path(
    get, path = "/api/schemas/{id}", operation_id = "show_schema", tag = "schemas", params(SchemaPath),
    responses(
        (status = 200, description = "The schema.", body = SchemaAnswer),
        (status = 404, description = "There is no such schema.", body = ErrorBody),
    ),
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Reader(_): Reader,
    PathText(id): PathText,
) -> Result<Tagged<SchemaAnswer>> {
    let found = service.gateway.schema(tsid("schema", &id)?).await?;
    Ok((tag(found.revision), Json(SchemaAnswer::whole(found))))
}

/// Changes a schema. That of a version can be changed while the version is FINALISING.
#[utoipa::path(
    put, path = "/api/schemas/{id}", operation_id = "change_schema", tag = "schemas",
    params(SchemaPath, IfMatchHeader), request_body = SchemaText,
    responses(
        (status = 200, description = "The schema.", body = SchemaAnswer),
        (status = 404, description = "There is no such schema.", body = ErrorBody),
        (status = 409, description = "Its version was finalised, or its event type is archived or has no room for it.",
            body = ErrorBody),
        (status = 412, description = "It has changed since it was read.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
        (status = 422, description = "The schema cannot be used, or breaks what the last version accepts.",
            body = ErrorBody),
    ),
)]
pub(crate) async fn change(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    IfMatch(on): IfMatch,
    JsonBody(body): JsonBody<SchemaText>,
) -> Result<Tagged<SchemaAnswer>> {
    caller.need_unscoped()?;
    let id = tsid("schema", &id)?;
    if let Some(link) = body.link()?
        && service.gateway.schema(id).await?.linked != Some(link)
    {
        return Err(ApiError::invalid("eventTypeId and version of a schema cannot be changed: leave them out"));
    }
    let changed = service.gateway.change_schema(id, on, &body.read()?, Timestamp::now()).await?;
    Ok((tag(changed.revision), Json(SchemaAnswer::whole(changed))))
}

/// Deletes a schema that belongs to no version.
#[utoipa::path(
    delete, path = "/api/schemas/{id}", operation_id = "delete_schema", tag = "schemas",
    params(SchemaPath, IfMatchHeader),
    responses(
        (status = 204, description = "The schema is gone."),
        (status = 404, description = "There is no such schema.", body = ErrorBody),
        (status = 409, description = "It belongs to a version: delete that.", body = ErrorBody),
        (status = 412, description = "It has changed since it was read.", body = ErrorBody),
    ),
)]
pub(crate) async fn remove(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    IfMatch(on): IfMatch,
) -> Result<StatusCode> {
    caller.need_unscoped()?;
    service.gateway.delete_schema(tsid("schema", &id)?, on).await?;
    Ok(StatusCode::NO_CONTENT)
}
