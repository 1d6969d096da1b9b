//! `/api/event-types/{id}/versions`: adds, changes, deletes, finalises and deprecates versions of event types.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use tidegate::Timestamp;
use tidegate_dispatch::{VersionNumber, Written};

use crate::callers::Manager;
use crate::error::{ErrorBody, Result};
use crate::extract::{IfMatch, JsonBody, PathText, PathTexts, tsid};
use crate::routes::event_types::{Tagged, tag};
use crate::service::Service;
use crate::wire::event_types::{IfMatchHeader, SpecVersionAnswer, SpecVersionBody, TypePath, VersionPath, version};

/// Adds a version, FINALISING: its schema may still change, and no event may name it yet.
#[utoipa::path(
    post, path = "/api/event-types/{id}/versions", operation_id = "add_version", tag = "event types",
    params(TypePath, IfMatchHeader), request_body = SpecVersionBody,
    responses(
        (status = 201, description = "The version.", body = SpecVersionAnswer),
        (status = 404, description = "There is no such event type.", body = ErrorBody),
        (status = 409, description = "The version exists, is too low, or the type is archived or has no room for its schema.",
            body = ErrorBody),
        (status = 412, description = "The type has changed since it was read.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
        (status = 422, description = "The schema cannot be used, or breaks what the last version accepts.",
            body = ErrorBody),
    ),
)]
pub(crate) async fn add(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(id): PathText,
    IfMatch(on): IfMatch,
    JsonBody(body): JsonBody<SpecVersionBody>,
) -> Result<(StatusCode, Tagged<SpecVersionAnswer>)> {
    caller.need_unscoped()?;
    let (id, number) = (tsid("event type", &id)?, body.number()?);
    let written = service.gateway.add_version(id, on, number, &body.read(&caller)?, Timestamp::now()).await?;
    Ok((StatusCode::CREATED, answer(written, number)?))
}

/// Changes a version while it is FINALISING.
#[utoipa::path(
    put, path = "/api/event-types/{id}/versions/{version}", operation_id = "change_version", tag = "event types",
    params(VersionPath, IfMatchHeader), request_body = SpecVersionBody,
    responses(
        (status = 200, description = "The version.", body = SpecVersionAnswer),
        (status = 404, description = "There is no such event type or version.", body = ErrorBody),
        (status = 409, description = "The version was finalised, or the type is archived or has no room for its schema.",
            body = ErrorBody),
        (status = 412, description = "The type has changed since it was read.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
        (status = 422, description = "The schema cannot be used, or breaks what the last version accepts.",
            body = ErrorBody),
    ),
)]
pub(crate) async fn change(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathTexts(id, number): PathTexts,
    IfMatch(on): IfMatch,
    JsonBody(body): JsonBody<SpecVersionBody>,
) -> Result<Tagged<SpecVersionAnswer>> {
    caller.need_unscoped()?;
    let (id, number) = (tsid("event type", &id)?, version(&number)?);
    body.check_number(number)?;
    let written = service.gateway.change_version(id, on, number, &body.read(&caller)?, Timestamp::now()).await?;
    answer(written, number)
}

/// Deletes a version while it is FINALISING, and its schema.
#[utoipa::path(
    delete, path = "/api/event-types/{id}/versions/{version}", operation_id = "delete_version", tag = "event types",
    params(VersionPath, IfMatchHeader),
    responses(
        (status = 204, description = "The version is gone."),
        (status = 404, description = "There is no such event type or version.", body = ErrorBody),
        (status = 409, description = "The version was finalised, or the type is archived.", body = ErrorBody),
        (status = 412, description = "The type has changed since it was read.", body = ErrorBody),
    ),
)]
pub(crate) async fn remove(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathTexts(id, number): PathTexts,
    IfMatch(on): IfMatch,
) -> Result<StatusCode> {
    caller.need_unscoped()?;
    service.gateway.delete_version(tsid("event type", &id)?, on, version(&number)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes a FINALISING version CURRENT; the CURRENT one of its major becomes DEPRECATED.
#[utoipa::path(
    post, path = "/api/event-types/{id}/versions/{version}/finalise", operation_id = "finalise_version",
    tag = "event types", params(VersionPath, IfMatchHeader),
    responses(
        (status = 200, description = "The version.", body = SpecVersionAnswer),
        (status = 404, description = "There is no such event type or version.", body = ErrorBody),
        (status = 409, description = "The version cannot become CURRENT.", body = ErrorBody),
        (status = 412, description = "The type has changed since it was read.", body = ErrorBody),
        (status = 422, description = "It breaks what a version accepts that was finalised since.", body = ErrorBody),
    ),
)]
pub(crate) async fn finalise(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathTexts(id, number): PathTexts,
    IfMatch(on): IfMatch,
) -> Result<Tagged<SpecVersionAnswer>> {
    caller.need_unscoped()?;
    let number = version(&number)?;
    let written = service.gateway.finalise_version(tsid("event type", &id)?, on, number).await?;
    answer(written, number)
}

/// Marks a CURRENT version as DEPRECATED: it is still accepted, with a warning.
#[utoipa::path(
    post, path = "/api/event-types/{id}/versions/{version}/deprecate", operation_id = "deprecate_version",
    tag = "event types", params(VersionPath, IfMatchHeader),
    responses(
        (status = 200, description = "The version.", body = SpecVersionAnswer),
        (status = 404, description = "There is no such event type or version.", body = ErrorBody),
        (status = 409, description = "The version is FINALISING, or the type is archived.", body = ErrorBody),
        (status = 412, description = "The type has changed since it was read.", body = ErrorBody),
    ),
)]
pub(crate) async fn deprecate(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathTexts(id, number): PathTexts,
    IfMatch(on): IfMatch,
) -> Result<Tagged<SpecVersionAnswer>> {
    caller.need_unscoped()?;
    let number = version(&number)?;
    let written = service.gateway.deprecate_version(tsid("event type", &id)?, on, number).await?;
    answer(written, number)
}

/// A version as a change has left it, under the entity tag of its type.
fn answer(written: Written, number: VersionNumber) -> Result<Tagged<SpecVersionAnswer>> {
    let (found, schema) = (written.event_type, written.schemas.into_iter().next());
    let shown = SpecVersionAnswer::of(found.version(number)?, schema, &written.warnings);
    Ok((tag(found.revision), Json(shown)))
}
