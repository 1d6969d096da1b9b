//! `/api/dispatch-pools`: creates, lists, shows, changes and deletes dispatch pools. A caller of a client sees those of its
//! client.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::header::{ETAG, LOCATION};
use http::{HeaderName, StatusCode};
use tidegate::Tsid;
use tidegate_dispatch::{GatewayError, Match};

use crate::callers::{Manager, Reader};
use crate::error::{ErrorBody, Result};
use crate::extract::{IfMatch, JsonBody, PathText, Query, tsid};
use crate::routes::clients::{named, still_there};
use crate::routes::event_types::{Tagged, tag};
use crate::service::Service;
use crate::wire::event_types::IfMatchHeader;
use crate::wire::pools::{PoolAnswer, PoolPath, PoolText, PoolsAnswer, PoolsParams};

/// Creates a dispatch pool.
#[utoipa::path(
    post, path = "/api/dispatch-pools", operation_id = "create_dispatch_pool", tag = "dispatch pools",
    request_body = PoolText,
    responses(
        (status = 201, description = "The dispatch pool.", body = PoolAnswer),
        (status = 409, description = "The code is taken.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn create(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    JsonBody(body): JsonBody<PoolText>,
) -> Result<(StatusCode, [(HeaderName, String); 2], Json<PoolAnswer>)> {
    let client = named(&service, &caller, body.client_id.as_deref()).await?;
    let made = service.gateway.create_pool(client, &body.code()?, &body.read()).await?;
    if let Err(error) = still_there(&service, &caller, client).await {
        return match service.gateway.delete_pool(made.id, client, Match::Any).await {
            Ok(()) | Err(GatewayError::NotFound(_)) => Err(error),
            Err(failed) => Err(failed.into()),
        };
    }
    let headers = [(ETAG, format!("\"{}\"", made.revision)), (LOCATION, format!("/api/dispatch-pools/{}", made.id))];
    Ok((StatusCode::CREATED, headers, Json(made.into())))
}

/// Lists dispatch pools by client and code, with what each holds and what waits for it. One that this server cannot read, because a newer one has written it, is left out.
#[utoipa::path(
    get, path = "/api/dispatch-pools", operation_id = "list_dispatch_pools", tag = "dispatch pools",
    params(PoolsParams),
    responses((status = 200, description = "A page of dispatch pools.", body = PoolsAnswer)),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    Query(params): Query<PoolsParams>,
) -> Result<Json<PoolsAnswer>> {
    let visible = caller.visible_as("clientId", params.client_id.as_deref())?;
    let page = service.gateway.list_pools(&params.read(visible)?).await?;
    let pools: Vec<Option<Tsid>> = page.items.iter().map(|pool| Some(pool.id)).collect();
    let holds = service.gateway.pools_hold(&pools).await?;
    Ok(Json(PoolsAnswer::of(page, holds, visible)))
}

/// Shows a dispatch pool with what it holds and what waits for it.
#[utoipa::path(
    get, path = "/api/dispatch-pools/{id}", operation_id = "show_dispatch_pool", tag = "dispatch pools",
    params(PoolPath),
    responses(
        (status = 200, description = "The dispatch pool.", body = PoolAnswer),
        (status = 404, description = "There is no such dispatch pool.", body = ErrorBody),
    ),
)]
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(id): PathText,
) -> Result<Tagged<PoolAnswer>> {
    let found = service.gateway.pool(pool_id(&id)?, caller.visible(None)?.client()).await?;
    let holds = service.gateway.pools_hold(&[Some(found.id)]).await?.pop().unwrap_or_default();
    Ok((tag(found.revision), Json(PoolAnswer::holding(found, holds))))
}

/// Changes a dispatch pool: what is absent gets its default.
#[utoipa::path(
    put, path = "/api/dispatch-pools/{id}", operation_id = "change_dispatch_pool", tag = "dispatch pools",
    params(PoolPath, IfMatchHeader), request_body = PoolText,
    responses(
        (status = 200, description = "The dispatch pool.", body = PoolAnswer),
        (status = 404, description = "There is no such dispatch pool.", body = ErrorBody),
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
    JsonBody(body): JsonBody<PoolText>,
) -> Result<Tagged<PoolAnswer>> {
    let (id, client) = (pool_id(&id)?, caller.visible(None)?.client());
    body.check_unchanged(&service.gateway.pool(id, client).await?)?;
    let changed = service.gateway.change_pool(id, client, on, &body.read()).await?;
    Ok((tag(changed.revision), Json(changed.into())))
}

/// Deletes a dispatch pool that no subscription names.
#[utoipa::path(
    delete, path = "/api/dispatch-pools/{id}", operation_id = "delete_dispatch_pool", tag = "dispatch pools",
    params(PoolPath, IfMatchHeader),
    responses(
        (status = 204, description = "The dispatch pool is gone."),
        (status = 404, description = "There is no such dispatch pool.", body = ErrorBody),
        (status = 409, description = "A subscription names it, or others keep changing it at the same time.", body = ErrorBody),
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
    service.gateway.delete_pool(pool_id(&id)?, client, on).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn pool_id(text: &str) -> Result<Tsid> {
    tsid("dispatch pool", text)
}
