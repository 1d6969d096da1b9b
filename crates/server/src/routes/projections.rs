//! `/projections`: how readers of the log stand, and the documents they have made.
//!
//! Projections read the events of all clients, so they are shown to callers that belong to none.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{StatusCode, Uri, header};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate::projection::{
    Blocker, Document, Lag, ProjectionFailure, ProjectionState, ProjectionStatus, VersionStatus,
};
use tidegate::{EntryId, Timestamp};
use utoipa::{IntoParams, ToSchema};

use crate::auth::{Manager, Reader};
use crate::error::{ApiError, Code, ErrorBody, Result};
use crate::extract::{PathText, PathTexts, Query, number};
use crate::service::Service;

/// The page of whoever does not say.
const DEFAULT_LIMIT: u64 = 20;
/// The largest page of documents, which may be long.
const MAX_DOCUMENTS: u64 = 100;

/// All projections.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProjectionsAnswer {
    projections: Vec<ProjectionAnswer>,
}

/// How a projection stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProjectionAnswer {
    /// Its name.
    #[schema(example = "customer_totals")]
    name: String,
    /// The version that answers reads.
    #[serde(flatten)]
    active: VersionAnswer,
    /// Later versions that read the log beside it and take over once they have caught up.
    building: Vec<VersionAnswer>,
}

/// How one version of a projection stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VersionAnswer {
    /// Its number.
    version: i32,
    /// `active` (answers reads) or `building`.
    #[schema(example = "active")]
    state: &'static str,
    /// Up to where it has read the log, in the order of commits.
    position: String,
    /// How many events it has taken in.
    events: u64,
    /// How far it is behind the log.
    lag: LagAnswer,
    /// Whether it stands still because an event fails; `failure` says why.
    stopped: bool,
    /// The event that it stands still at; null when it does not.
    #[schema(required)]
    failure: Option<FailureAnswer>,
    /// Who reads for it; null when nobody does.
    #[schema(required)]
    reader: Option<ReaderAnswer>,
    /// When it last moved, failed or changed hands.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// How far a version is behind the log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LagAnswer {
    /// Rows of the log that were not read yet, of whatever type; counted up to 10,000.
    rows: u64,
    /// Whether there are more.
    more: bool,
    /// How long ago the oldest of them was written.
    age_seconds: f64,
    /// The open transaction that keeps them from being read: an earlier commit could still come from it.
    #[schema(required)]
    held_by: Option<BlockerAnswer>,
}

/// An open transaction of the database.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BlockerAnswer {
    /// The database's process; null when the transaction is a prepared one.
    #[schema(required)]
    pid: Option<i32>,
    /// The application, or the prepared transaction.
    name: String,
    /// What it does.
    #[schema(example = "idle in transaction")]
    state: String,
    /// Since when.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
}

/// Why a version stands still.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FailureAnswer {
    /// The entry of the event that fails; null when it is no single event, such as a hook.
    #[schema(required)]
    event_id: Option<i64>,
    /// How often it was tried in a row.
    failures: u32,
    /// What went wrong last.
    error: String,
    /// When it is tried again.
    #[schema(value_type = String, format = DateTime)]
    retry_at: Timestamp,
}

/// Who reads for a version.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReaderAnswer {
    /// Its name.
    name: String,
    /// Until when without a further sign of life. Once that is past, any other may take over.
    #[schema(value_type = String, format = DateTime)]
    until: Timestamp,
}

/// One projection, with some of its documents if they were asked for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProjectionPage {
    #[serde(flatten)]
    projection: ProjectionAnswer,
    /// Documents in the order of their keys' bytes; absent unless `limit` or `after` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    documents: Option<Vec<DocumentAnswer>>,
    /// What to give as `after` for the next page, unless this is the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_after: Option<String>,
}

/// A document under its key.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DocumentAnswer {
    /// Its key.
    key: String,
    /// Any JSON, as the projection keeps it.
    #[schema(value_type = Value)]
    document: Box<RawValue>,
}

/// Which documents to add.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ShowParams {
    /// How many documents at most; 20 if only `after` is given.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 100)]
    limit: Option<String>,
    /// Documents after this key: `next_after` of the page before.
    after: Option<String>,
}

impl From<ProjectionStatus> for ProjectionAnswer {
    fn from(status: ProjectionStatus) -> Self {
        Self {
            name: status.active.view.id.name.clone(),
            active: status.active.into(),
            building: status.building.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<VersionStatus> for VersionAnswer {
    fn from(VersionStatus { view, lag }: VersionStatus) -> Self {
        Self {
            version: view.id.version,
            state: match view.state {
                ProjectionState::Building => "building",
                ProjectionState::Active => "active",
                ProjectionState::Retired => "retired",
            },
            position: view.position.to_string(),
            events: view.events,
            lag: lag.into(),
            stopped: view.failure.is_some(),
            failure: view.failure.map(Into::into),
            reader: view.reader.map(|(name, until)| ReaderAnswer { name, until }),
            updated_at: view.updated_at,
        }
    }
}

impl From<Lag> for LagAnswer {
    fn from(lag: Lag) -> Self {
        Self {
            rows: lag.rows,
            more: lag.more,
            age_seconds: lag.age.as_secs_f64(),
            held_by: lag.held_by.map(|Blocker { pid, name, state, since }| BlockerAnswer { pid, name, state, since }),
        }
    }
}

impl From<ProjectionFailure> for FailureAnswer {
    fn from(failure: ProjectionFailure) -> Self {
        let ProjectionFailure { entry, failures, error, retry_at } = failure;
        Self { event_id: entry.map(EntryId::get), failures, error, retry_at }
    }
}

impl TryFrom<Document> for DocumentAnswer {
    type Error = ApiError;

    fn try_from(Document { key, document }: Document) -> Result<Self> {
        Ok(Self { document: json(&key, document)?, key })
    }
}

/// A stored document as it goes out: unchanged, once it is known to be JSON.
fn json(key: &str, document: Bytes) -> Result<Box<RawValue>> {
    let text = String::from_utf8(document.into()).ok();
    text.and_then(|text| RawValue::from_string(text).ok()).ok_or_else(|| {
        tracing::error!(key, "a stored document is not JSON");
        ApiError::new(Code::Internal, "the server failed; its log says why")
    })
}

/// Lists projections.
///
/// It needs the scope `read`. Projections are made from the events of all clients: credentials that belong to one get 403.
#[utoipa::path(
    get, path = "/projections", tag = "projections", operation_id = "list_projections",
    responses((status = 200, description = "All projections, by name.", body = ProjectionsAnswer)),
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
) -> Result<Json<ProjectionsAnswer>> {
    caller.need_anchor()?;
    let statuses = service.queue.projection_statuses().await?;
    Ok(Json(ProjectionsAnswer { projections: statuses.into_iter().map(Into::into).collect() }))
}

/// One projection, and its documents in pages.
///
/// It needs the scope `read`. Projections are made from the events of all clients: credentials that belong to one get 403.
#[utoipa::path(
    get, path = "/projections/{name}", tag = "projections", operation_id = "show_projection",
    params(("name" = String, Path, description = "Percent-encoded, slashes too."), ShowParams),
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
    caller.need_anchor()?;
    let limit = number("limit", params.limit.as_deref(), 1, MAX_DOCUMENTS)?;
    // Elsewhere an empty parameter is none; here it is the key "".
    let is_empty = || uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "after="));
    let after = params.after.or_else(|| is_empty().then(String::new));
    let projection = service.queue.projection_status(&name).await?.into();
    if limit.is_none() && after.is_none() {
        return Ok(Json(ProjectionPage { projection, documents: None, next_after: None }));
    }
    let limit = limit.unwrap_or(DEFAULT_LIMIT) as usize;
    let mut found = service.queue.projection_documents(&name, after.as_deref(), limit + 1).await?;
    let is_last = found.len() <= limit;
    found.truncate(limit);
    let next_after = found.last().filter(|_| !is_last).map(|last| last.key.clone());
    let documents = found.into_iter().map(TryInto::try_into).collect::<Result<_>>()?;
    Ok(Json(ProjectionPage { projection, documents: Some(documents), next_after }))
}

/// Removes a projection that is no longer wanted, with its documents; it then holds no row of the log back.
///
/// A process that still reads for it is stopped; one that starts it again starts anew, from the oldest row of the log. It
/// needs the scope `manage`, and credentials that belong to no client.
#[utoipa::path(
    delete, path = "/projections/{name}", tag = "projections", operation_id = "remove_projection",
    params(("name" = String, Path, description = "Percent-encoded, slashes too.")),
    responses(
        (status = 204, description = "It is gone."),
        (status = 404, description = "There is no such projection.", body = ErrorBody),
    ),
)]
pub(crate) async fn remove(
    State(service): State<Arc<Service>>,
    Manager(caller): Manager,
    PathText(name): PathText,
) -> Result<StatusCode> {
    caller.need_anchor()?;
    if service.queue.remove_projection(&name).await? {
        tracing::info!(projection = name, caller = caller.name, "removed a projection");
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::new(Code::NotFound, format!("there is no projection {name:?}")))
}

/// A document by its key.
///
/// Only the version that answers reads is asked, also while a later one is built. It needs the scope `read`. Projections are made
/// from the events of all clients: credentials that belong to one get 403.
#[utoipa::path(
    get, path = "/projections/{name}/{key}", tag = "projections", operation_id = "projection_document",
    params(
        ("name" = String, Path, description = "Percent-encoded, slashes too."),
        ("key" = String, Path, description = "Percent-encoded, slashes too."),
    ),
    responses(
        (status = 200, description = "The document, as the projection keeps it.", body = serde_json::Value),
        (status = 404, description = "There is no such projection, or it has no such document.", body = ErrorBody),
    ),
)]
pub(crate) async fn document(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathTexts(name, key): PathTexts,
) -> Result<Response> {
    caller.need_anchor()?;
    service.document(&name, &key).await
}

/// The document under the empty key, which no part of a path can name.
pub(crate) async fn document_of_no_key(
    State(service): State<Arc<Service>>,
    Reader(caller): Reader,
    PathText(name): PathText,
) -> Result<Response> {
    caller.need_anchor()?;
    service.document(&name, "").await
}

impl Service {
    async fn document(&self, name: &str, key: &str) -> Result<Response> {
        let found = self.queue.projection_document(name, key).await?.ok_or_else(|| {
            let shown: String = key.chars().take(60).collect();
            ApiError::new(Code::NotFound, format!("projection {name:?} has no document {shown:?}"))
        })?;
        let document: Box<str> = json(key, found)?.into();
        Ok(([(header::CONTENT_TYPE, "application/json")], String::from(document)).into_response())
    }
}
