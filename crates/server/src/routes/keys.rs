//! `/api/keys`: creates, lists and revokes API keys. A caller of a client manages that client's keys only.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use crate::auth::KeyInfo;
use crate::callers::Admin;
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::extract::{JsonBody, PathText};
use crate::routes::clients::{named, still_there};
use crate::service::Service;
use crate::wire::keys::{KeyAnswer, KeyPath, KeysAnswer, NewKeyAnswer, NewKeyBody};

/// Creates a key. It is shown this once.
#[utoipa::path(
    post, path = "/api/keys", operation_id = "create_key", tag = "keys", request_body = NewKeyBody,
    responses(
        (status = 201, description = "The key.", body = NewKeyAnswer),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 415, description = "The body is not JSON.", body = ErrorBody),
    ),
)]
pub(crate) async fn create(
    State(service): State<Arc<Service>>,
    Admin(caller): Admin,
    JsonBody(body): JsonBody<NewKeyBody>,
) -> Result<(StatusCode, Json<NewKeyAnswer>)> {
    let client = named(&service, &caller, body.client()).await?;
    let made = service.auth.keys().create_until(&body.name, &body.scopes, client, body.expiry()?).await?;
    if let Err(error) = still_there(&service, &caller, client).await {
        service.auth.keys().revoke(made.info.id).await?;
        return Err(error);
    }
    Ok((StatusCode::CREATED, Json(NewKeyAnswer { key: made.secret, info: made.info.into() })))
}

/// Lists keys, without their secrets.
#[utoipa::path(
    get, path = "/api/keys", operation_id = "list_keys", tag = "keys",
    responses((status = 200, description = "The keys.", body = KeysAnswer)),
)]
pub(crate) async fn list(State(service): State<Arc<Service>>, Admin(caller): Admin) -> Result<Json<KeysAnswer>> {
    let visible = caller.visible(None)?;
    let all = service.auth.keys().list().await?;
    let own = all.into_iter().filter(|key| visible.client().is_none() || key.client == visible.client());
    Ok(Json(KeysAnswer { items: own.map(KeyAnswer::from).collect() }))
}

/// Revokes a key: the next request with it is refused, on every node.
#[utoipa::path(
    delete, path = "/api/keys/{id}", operation_id = "revoke_key", tag = "keys", params(KeyPath),
    responses(
        (status = 200, description = "The key, revoked.", body = KeyAnswer),
        (status = 404, description = "There is no such key.", body = ErrorBody),
    ),
)]
pub(crate) async fn revoke(
    State(service): State<Arc<Service>>,
    Admin(caller): Admin,
    PathText(text): PathText,
) -> Result<Json<KeyAnswer>> {
    let shown: String = text.chars().take(40).collect();
    let missing = || ApiError::new(Code::NotFound, format!("there is no key {shown}"));
    let id: i64 = text.parse().map_err(|_| missing())?;
    let visible = caller.visible(None)?;
    let is_seen = |key: &KeyInfo| key.id == id && (visible.client().is_none() || key.client == visible.client());
    if !service.auth.keys().list().await?.iter().any(is_seen) {
        return Err(missing());
    }
    Ok(Json(service.auth.keys().revoke(id).await?.into()))
}
