//! Projections: their status, and their documents.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate::projection::{
    Blocker, Document, Lag, ProjectionFailure, ProjectionState, ProjectionStatus, VersionStatus,
};
use tidegate::{DocumentsPage, EntryId, Timestamp};
use utoipa::{IntoParams, ToSchema};

use crate::error::{ApiError, Code, Result};
use crate::parameters::number;

/// The page size when the caller gives none.
const DEFAULT_LIMIT: u64 = 20;
/// The largest page of documents, which can be large.
const MAX_DOCUMENTS: u64 = 100;

/// All projections.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProjectionsAnswer {
    pub(crate) projections: Vec<ProjectionAnswer>,
}

/// The status of a projection.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProjectionAnswer {
    /// The name of the projection.
    #[schema(example = "customer_totals")]
    name: String,
    /// The version that answers reads.
    #[serde(flatten)]
    active: VersionAnswer,
    /// Later versions that are still being built. Each becomes the active one once it has caught up with the log.
    building: Vec<VersionAnswer>,
}

/// The status of one version of a projection.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VersionAnswer {
    /// The number of the version.
    version: i32,
    /// `active` (answers reads) or `building`.
    #[schema(example = "active")]
    state: &'static str,
    /// How far it has read the log, in the order of commits.
    position: String,
    /// How many events it has applied.
    events: u64,
    /// How far it is behind the log.
    lag: LagAnswer,
    /// Whether it is stopped because an event fails; `failure` says why.
    stopped: bool,
    /// The event that it is stopped at; null when it is not stopped.
    #[schema(required)]
    failure: Option<FailureAnswer>,
    /// The process that reads the log for it; null when there is none.
    #[schema(required)]
    reader: Option<ReaderAnswer>,
    /// When it last advanced, failed or changed its reader.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// How far a version is behind the log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LagAnswer {
    /// Rows of the log that it has not read yet, of any type; counted up to 10,000.
    rows: u64,
    /// Whether there are more rows than were counted.
    more: bool,
    /// How long ago the oldest of them was written.
    age_seconds: f64,
    /// The open transaction that keeps them from being read, as it could still commit an earlier row; null if there is
    /// none.
    #[schema(required)]
    held_by: Option<BlockerAnswer>,
}

/// An open transaction of the database.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BlockerAnswer {
    /// The process of the database server; null for a prepared transaction.
    #[schema(required)]
    pid: Option<i32>,
    /// The name of the application, or of the prepared transaction.
    name: String,
    /// The state of the transaction.
    #[schema(example = "idle in transaction")]
    state: String,
    /// When the transaction began.
    #[schema(required, value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
}

/// Why a version is stopped.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FailureAnswer {
    /// The number of the event that fails, called `id` elsewhere; null when it is not a single event, such as a hook.
    #[schema(required)]
    event_id: Option<i64>,
    /// How often in a row it has failed.
    failures: u32,
    /// The last error.
    error: String,
    /// When it is tried again.
    #[schema(value_type = String, format = DateTime)]
    retry_at: Timestamp,
}

/// The process that reads the log for a version.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReaderAnswer {
    /// The name of the reader.
    name: String,
    /// When its lease ends unless it is extended; then another process may take over.
    #[schema(value_type = String, format = DateTime)]
    until: Timestamp,
}

/// A projection, with a page of its documents if `limit` or `after` was given.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProjectionPage {
    #[serde(flatten)]
    projection: ProjectionAnswer,
    /// Documents in the order of their keys' bytes; absent unless `limit` or `after` was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    documents: Option<Vec<DocumentAnswer>>,
    /// Pass it as `after` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_after: Option<String>,
}

/// A document of a projection.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DocumentAnswer {
    /// The key of the document.
    key: String,
    /// Any JSON, as the projection wrote it.
    #[schema(value_type = Value)]
    document: Box<RawValue>,
}

/// Which documents to include.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ShowParams {
    /// How many documents to include at most; 20 if only `after` is given.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 100)]
    limit: Option<String>,
    /// Only documents after this key: `next_after` of the previous page.
    after: Option<String>,
}

impl ShowParams {
    /// Which documents to include; `None`: none. `is_first` tells that `after` was given and is empty: elsewhere an
    /// empty parameter counts as absent, here it is the key "".
    pub(crate) fn documents(self, is_first: bool) -> Result<Option<DocumentsPage>> {
        let limit = number("limit", self.limit.as_deref(), 1, MAX_DOCUMENTS)?;
        let after = self.after.or_else(|| is_first.then(String::new));
        let is_asked = limit.is_some() || after.is_some();
        let limit = limit.unwrap_or(DEFAULT_LIMIT) as usize;
        Ok(is_asked.then_some(DocumentsPage { after, limit }))
    }
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

impl TryFrom<tidegate::ProjectionPage> for ProjectionPage {
    type Error = ApiError;

    fn try_from(page: tidegate::ProjectionPage) -> Result<Self> {
        let read = |documents: Vec<Document>| documents.into_iter().map(TryInto::try_into).collect::<Result<_>>();
        let documents = page.documents.map(read).transpose()?;
        Ok(Self { projection: page.status.into(), documents, next_after: page.next_after })
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

/// A stored document, unchanged; an error when it is not JSON.
pub(crate) fn json(key: &str, document: Bytes) -> Result<Box<RawValue>> {
    let text = String::from_utf8(document.into()).ok();
    text.and_then(|text| RawValue::from_string(text).ok()).ok_or_else(|| {
        tracing::error!(key, "a stored document of a projection is not JSON; the request was answered with 500");
        ApiError::new(Code::Internal, "the server failed; its log says why")
    })
}
