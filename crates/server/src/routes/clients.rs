//! `/api/clients`: creates, lists, shows, changes and deletes clients. Unscoped callers write them; a caller of a client sees
//! its own.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::header::{ETAG, LOCATION};
use http::{HeaderName, StatusCode};
use tidegate::{CatalogueVersion, Tsid};
use tidegate_dispatch::GatewayError;

use crate::access::Caller;
use crate::callers::{Admin, Reader};
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::extract::{IfMatch, JsonBody, PathText, Query, tsid};
use crate::routes::event_types::{Tagged, tag};
use crate::service::Service;
use crate::wire::clients::{ClientAnswer, ClientChange, ClientPath, ClientsAnswer, ClientsParams, NewClient};
use crate::wire::event_types::IfMatchHeader;

/// Creates a client.
#[utoipa::path(
    post, path = "/api/clients", operation_id = "create_client", tag = "clients", request_body = NewClient,
    responses(
        (status = 201, description = "The client.", body = ClientAnswer),
        (status = 409, description = "The code is taken.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn create(
    State(service): State<Arc<Service>>,
    Admin(caller): Admin,
    JsonBody(body): JsonBody<NewClient>,
) -> Result<(StatusCode, [(HeaderName, String); 2], Json<ClientAnswer>)> {
    caller.need_unscoped()?;
    let made = service.gateway.create_client(&body.code, &body.name).await?;
    let headers = [(ETAG, format!("\"{}\"", made.revision)), (LOCATION, format!("/api/clients/{}", made.id))];
    Ok((StatusCode::CREATED, headers, Json(ClientAnswer::from(&made))))
}

/// Lists clients by their codes.
#[utoipa::path(
    get, path = "/api/clients", operation_id = "list_clients", tag = "clients", params(ClientsParams),
    responses((status = 200, description = "A page of clients.", body = ClientsAnswer)),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    Query(params): Query<ClientsParams>,
) -> Result<Json<ClientsAnswer>> {
    let visible = caller.visible(None)?;
    let (page, more) = service.gateway.list_clients(&params.read(visible)?, caller.version()).await?;
    Ok(Json(ClientsAnswer::of(&page, more, visible)))
}

/// Shows a client.
#[utoipa::path(
    get, path = "/api/clients/{id}", operation_id = "show_client", tag = "clients", params(ClientPath),
    responses(
        (status = 200, description = "The client.", body = ClientAnswer),
        (status = 404, description = "There is no such client.", body = ErrorBody),
    ),
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(id): PathText,
) -> Result<Tagged<ClientAnswer>> {
    let found = service.gateway.client(visible(&caller, &id)?, caller.version()).await?;
    Ok((tag(found.revision), Json(ClientAnswer::from(&*found))))
}

/// Changes the name of a client.
#[utoipa::path(
    put, path = "/api/clients/{id}", operation_id = "change_client", tag = "clients",
    params(ClientPath, IfMatchHeader), request_body = ClientChange,
    responses(
        (status = 200, description = "The client.", body = ClientAnswer),
        (status = 404, description = "There is no such client.", body = ErrorBody),
        (status = 409, description = "Others keep changing it at the same time.", body = ErrorBody),
        (status = 412, description = "It has changed since it was read.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn change(
    State(service): State<Arc<Service>>,
    Admin(caller): Admin,
    PathText(id): PathText,
    IfMatch(on): IfMatch,
    JsonBody(body): JsonBody<ClientChange>,
) -> Result<Tagged<ClientAnswer>> {
    caller.need_unscoped()?;
    let changed = service.gateway.change_client(tsid("client", &id)?, on, &body.name).await?;
    Ok((tag(changed.revision), Json(ClientAnswer::from(&changed))))
}

/// Deletes a client that has no subscriptions, no dispatch pools, no service accounts, no keys that are not revoked and no dispatch
/// jobs of the kind `TASK` that have not ended: cancel those with `POST /api/dispatch-jobs/bulk`. Its queues and events stay.
#[utoipa::path(
    delete, path = "/api/clients/{id}", operation_id = "delete_client", tag = "clients",
    params(ClientPath, IfMatchHeader),
    responses(
        (status = 204, description = "The client is gone."),
        (status = 404, description = "There is no such client.", body = ErrorBody),
        (status = 409, description = "It still has subscriptions, dispatch pools, service accounts, keys or dispatch jobs, or others keep changing it at the same time.", body = ErrorBody),
        (status = 412, description = "It has changed since it was read.", body = ErrorBody),
    ),
)]
pub(crate) async fn remove(
    State(service): State<Arc<Service>>,
    Admin(caller): Admin,
    PathText(id): PathText,
    IfMatch(on): IfMatch,
) -> Result<StatusCode> {
    caller.need_unscoped()?;
    service.gateway.delete_client(tsid("client", &id)?, on).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The id of a client that the caller may see.
fn visible(caller: &Caller, id: &str) -> Result<Tsid> {
    let id = tsid("client", id)?;
    match caller.visible(None)?.client() {
        Some(own) if own != id => Err(ApiError::new(Code::NotFound, format!("there is no client {id}"))),
        _ => Ok(id),
    }
}

/// The client that something new belongs to: the caller's or, of an unscoped caller, the one that its `clientId` names,
/// which must exist.
pub(crate) async fn named(service: &Service, caller: &Caller, id: Option<&str>) -> Result<Option<Tsid>> {
    let client = caller.visible_as("clientId", id)?.client();
    let Some(named) = client.filter(|_| caller.need_unscoped().is_ok()) else { return Ok(client) };
    existing(service, named, caller.version()).await.map(Some)
}

/// Looks again, after something was made for the client that `named` gave, whether that client is still there. If not, what
/// was made is to be undone: nobody else removes it.
pub(crate) async fn still_there(service: &Service, caller: &Caller, client: Option<Tsid>) -> Result<()> {
    match client.filter(|_| caller.need_unscoped().is_ok()) {
        Some(named) => existing(service, named, None).await.map(drop),
        None => Ok(()),
    }
}

async fn existing(service: &Service, id: Tsid, version: Option<CatalogueVersion>) -> Result<Tsid> {
    match service.gateway.client(id, version).await {
        Err(GatewayError::NotFound(text)) => Err(ApiError::invalid(format!("clientId: {text}"))),
        found => Ok(found?.id),
    }
}
