//! Events of the gateway: facts, with the jobs and entries that were made for them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate::{EntryId, Status, Timestamp, Tsid};
use tidegate_core::cloud_event::{AttributeValue, ContextData, SPEC_VERSION};
use tidegate_dispatch::{
    Accepted, EventEntry, EventJob, EventView, EventsPage, EventsQuery, VersionNumber, type_filter,
};
use utoipa::{IntoParams, ToSchema};

use super::cloud_event::AttributeSchema;
use super::event_types::limit;
use super::payload::base64;
use crate::access::Visible;
use crate::cursor;
use crate::error::{ApiError, ErrorBody, Result};

/// Items of a preview when the request does not say, and the most.
const PREVIEW: (u64, u64) = (20, 100);
/// The most items on a page: each comes with its data.
const MOST: usize = 100;
/// What the names of parameters begin with that ask for a pair of context data.
const CONTEXT: &str = "context.";

/// The id of an event in a path, as the document describes it.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "it only describes a parameter")]
pub(crate) struct FactPath {
    /// The id of the event.
    #[param(min_length = 13, max_length = 13, example = "0HZXEQ5Y8JY5Z")]
    id: String,
}

/// An event in the source's own JSON. Events in the modes of CloudEvents are described by its specification.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "camelCase", example = json!({
    "type": "shop:orders:order:created", "source": "/shop", "subject": "order:12345", "data": { "amount": 99.99 }
}))]
#[expect(dead_code, reason = "it only describes a body, which is read by its parts")]
pub(crate) struct NewFactBody {
    /// `1.0`.
    spec_version: Option<String>,
    /// The type.
    #[schema(min_length = 1, max_length = 255)]
    r#type: String,
    /// Where it happened: a URI-reference.
    source: String,
    /// What it is about, such as `order:12345`.
    subject: Option<String>,
    /// When it happened.
    #[schema(value_type = Option<String>, format = DateTime)]
    time: Option<String>,
    /// What happened: any JSON. A string that holds a JSON object or array is that object or array.
    #[schema(value_type = Value, required = false)]
    data: Option<String>,
    /// Shared by the events of one request.
    correlation_id: Option<String>,
    /// The id of the event that caused this one.
    causation_id: Option<String>,
    /// A repeat under the same id within 24 hours is answered with the first event.
    deduplication_id: Option<String>,
    /// Events of one group are delivered in order.
    message_group: Option<String>,
    /// Searchable pairs.
    #[schema(value_type = Option<Vec<Object>>, example = json!([{ "key": "region", "value": "us-west" }]))]
    context_data: Option<String>,
    /// The version of its type that it is validated against; if absent the highest CURRENT one or, if there is none, the
    /// highest DEPRECATED one.
    #[schema(example = "1.0")]
    schema_version: Option<String>,
    /// Order within the group: lower goes first.
    sequence: Option<i32>,
    /// The client that it belongs to; that of the caller if absent.
    client_id: Option<String>,
}

/// Many events in the source's own JSON.
#[derive(Debug, ToSchema)]
#[schema(example = json!({ "events": [{ "type": "shop:orders:order:created", "source": "/shop", "data": { "amount": 5 } }] }))]
#[expect(dead_code, reason = "it only describes a body, which is read by its parts")]
pub(crate) struct NewFactsBody {
    /// The events.
    events: Vec<NewFactBody>,
}

/// A stored event.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FactAnswer {
    /// Its id.
    #[schema(value_type = String, example = "0HZXEQ5Y8JY5Z")]
    pub(crate) id: Tsid,
    /// `1.0`.
    spec_version: &'static str,
    /// The type.
    r#type: String,
    /// Where it happened.
    source: String,
    /// What it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// When it happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    time: Option<String>,
    /// The media type of the data; JSON if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_content_type: Option<String>,
    /// The schema that the producer says the data adheres to.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_schema: Option<String>,
    /// What happened: any JSON as it was sent, or text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Value, required = false)]
    data: Option<Box<RawValue>>,
    /// What happened, if it is neither JSON nor text.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<String>,
    /// Shared by the events of one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    /// The id of the event that caused this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    causation_id: Option<String>,
    /// The key that suppresses repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    deduplication_id: Option<String>,
    /// Its message group.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_group: Option<String>,
    /// Its searchable pairs.
    #[schema(value_type = Vec<Object>)]
    context_data: Vec<ContextData>,
    /// The version of its type that it was validated against, or that it names.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    schema_version: Option<VersionNumber>,
    /// Order within the group, as it was sent: in binary mode all attributes are texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AttributeSchema>)]
    sequence: Option<AttributeValue>,
    /// The producer's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    external_id: Option<String>,
    /// Further attributes of CloudEvents, the W3C trace among them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, AttributeSchema>, required = false)]
    extensions: BTreeMap<String, AttributeValue>,
    /// The client that it belongs to.
    #[schema(value_type = Option<String>)]
    client_id: Option<Tsid>,
    /// When it was stored.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// The jobs that were made for it.
    dispatch_jobs: Vec<JobAnswer>,
    /// The entries that were made for it.
    entries: Vec<EntryAnswer>,
    /// Whether more jobs and entries were made than are shown: lists, previews and batches show the first 100 of each event,
    /// of which a caller of a client sees that client's. `GET /api/events/{id}` shows all. Absent if all are shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    truncated: bool,
    /// How many more there are at most; only for an unscoped caller, and only if `truncated`.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_shown: Option<usize>,
    /// Whether it was stored before, under one of its keys. Only in the answer to a publish.
    #[serde(skip_serializing_if = "Option::is_none")]
    deduplicated: Option<bool>,
    /// What its sender should know. Only in the answer to a publish.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// A job of an event.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobAnswer {
    /// Its id.
    #[schema(value_type = String)]
    id: Tsid,
    /// The subscription that it was made for.
    #[schema(value_type = Option<String>)]
    subscription_id: Option<Tsid>,
    /// `QUEUED`, `IN_PROGRESS`, `COMPLETED`, `ERROR` or `CANCELLED`.
    #[schema(value_type = String, example = "QUEUED")]
    status: &'static str,
}

/// An entry of an event.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EntryAnswer {
    /// Its number, as in `/events/{id}`.
    #[schema(value_type = u64, example = 4711)]
    id: EntryId,
    /// Its queue.
    #[schema(example = "default")]
    queue: String,
    /// Its status.
    #[schema(value_type = String, example = "PENDING")]
    status: Status,
}

/// A page of events.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FactsAnswer {
    /// The events, youngest first.
    items: Vec<FactAnswer>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// The results of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FactResults {
    /// A result for each event, in order.
    pub(crate) results: Vec<FactResult>,
}

/// The result of one event of a batch.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum FactResult {
    /// It is stored.
    Stored {
        /// 201, or 200 when it was stored before.
        status: u16,
        /// The event.
        #[serde(flatten)]
        event: Box<FactAnswer>,
    },
    /// It was refused.
    Refused {
        /// The status that it would have had alone.
        status: u16,
        /// Why.
        #[serde(flatten)]
        error: Box<ErrorBody>,
    },
}

/// Which events to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FactsParams {
    /// The type; of a code of four parts, any may be `*`.
    #[param(example = "shop:*:order:*")]
    r#type: Option<String>,
    /// Where it happened.
    source: Option<String>,
    /// What it is about.
    subject: Option<String>,
    /// The producer's id.
    external_id: Option<String>,
    /// The correlation id.
    correlation_id: Option<String>,
    /// The message group.
    message_group: Option<String>,
    /// Only events stored at this moment or later.
    #[param(format = DateTime)]
    from: Option<String>,
    /// Only events stored before this moment.
    #[param(format = DateTime)]
    to: Option<String>,
    /// Only those of this client; an unscoped caller sees those of all by default.
    pub(crate) client_id: Option<String>,
    /// How many at most; 50 by default.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 100)]
    limit: Option<String>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
    /// Only events with this pair of context data: the key is part of the parameter's name, as in `context.region=eu`. Several
    /// must all be there.
    #[serde(flatten)]
    #[param(rename = "context.{key}", value_type = Option<String>)]
    context: BTreeMap<String, String>,
}

/// How much of a preview is shown.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PreviewParams {
    /// How many events at most; 20 by default.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 100)]
    limit: Option<String>,
}

impl PreviewParams {
    pub(crate) fn limit(&self) -> Result<usize> {
        let (usual, most) = PREVIEW;
        let limit = crate::parameters::number("limit", self.limit.as_deref(), 1, most)?.unwrap_or(usual);
        Ok(usize::try_from(limit).unwrap_or(usize::MAX))
    }
}

impl FactsParams {
    /// The list that the parameters ask for, of what the caller may see.
    pub(crate) fn read(self, visible: Visible) -> Result<EventsQuery> {
        let client = visible.client();
        let moment = |name: &str, text: Option<String>| {
            let bad = |_| ApiError::invalid(format!("{name} must be a moment such as 2030-01-01T00:00:00Z"));
            text.map(|text| text.parse::<Timestamp>().map_err(bad)).transpose()
        };
        let event_type = self.r#type.as_deref().map(type_filter).transpose();
        let context = self.context.into_iter().map(|(name, value)| match name.strip_prefix(CONTEXT) {
            Some(key) if !key.is_empty() => Ok((key.to_owned(), value)),
            _ => Err(ApiError::invalid(format!("{name} is not a parameter of this list"))),
        });
        Ok(EventsQuery {
            client: client.map(Some),
            event_type: event_type.map_err(|error| ApiError::invalid(format!("type: {error}")))?,
            source: self.source,
            subject: self.subject,
            external_id: self.external_id,
            correlation_id: self.correlation_id,
            message_group: self.message_group,
            context: context.collect::<Result<_>>()?,
            from: moment("from", self.from)?,
            to: moment("to", self.to)?,
            before: self.cursor.as_deref().map(|text| cursor::read_fact(text, client)).transpose()?,
            limit: limit(self.limit.as_deref())?.min(MOST),
        })
    }
}

impl FactAnswer {
    /// An event that a publish stored, or had stored before.
    pub(crate) fn accepted(accepted: Accepted, visible: Visible) -> Result<Self> {
        let (deduplicated, warnings) = (Some(accepted.deduplicated), accepted.warnings);
        Ok(Self { deduplicated, warnings, ..Self::of(accepted.view.seen_by(visible.client()))? })
    }

    pub(crate) fn of(view: EventView) -> Result<Self> {
        let event = view.event;
        let (data, data_base64) = match (event.json(), event.text(), &event.data) {
            (Some(json), ..) => (Some(json.to_owned()), None),
            (None, Some(text), _) => (Some(quoted(text)?), None),
            (None, None, Some(data)) => (None, Some(base64(&data.bytes))),
            (None, None, None) => (None, None),
        };
        let trace = [("traceparent", event.traceparent), ("tracestate", event.tracestate)];
        let mut extensions = event.extensions;
        extensions.extend(
            trace.into_iter().filter_map(|(name, value)| Some((name.to_owned(), AttributeValue::Text(value?)))),
        );
        Ok(Self {
            id: view.id,
            spec_version: SPEC_VERSION,
            r#type: event.event_type,
            source: event.source,
            subject: event.subject,
            time: event.time.map(|time| time.as_str().to_owned()),
            data_content_type: event.datacontenttype,
            data_schema: event.dataschema,
            data,
            data_base64,
            correlation_id: event.correlation_id,
            causation_id: event.causation_id,
            deduplication_id: event.deduplication_id,
            message_group: event.message_group,
            context_data: event.context_data,
            schema_version: event.schema_version,
            sequence: event.sequence,
            external_id: event.id,
            extensions,
            client_id: view.client,
            created_at: view.created_at,
            dispatch_jobs: view.jobs.into_iter().map(JobAnswer::from).collect(),
            entries: view.entries.into_iter().map(EntryAnswer::from).collect(),
            truncated: view.is_cut,
            not_shown: view.left_out,
            deduplicated: None,
            warnings: Vec::new(),
        })
    }
}

/// A text as JSON.
pub(super) fn quoted(text: &str) -> Result<Box<RawValue>> {
    serde_json::value::to_raw_value(text).map_err(|error| ApiError::invalid(format!("data cannot be shown: {error}")))
}

impl From<EventJob> for JobAnswer {
    fn from(job: EventJob) -> Self {
        Self { id: job.id, subscription_id: job.subscription, status: job.status }
    }
}

impl From<EventEntry> for EntryAnswer {
    fn from(entry: EventEntry) -> Self {
        Self { id: entry.id, queue: entry.queue.name().to_owned(), status: entry.status }
    }
}

impl FactsAnswer {
    /// A page of a list.
    pub(crate) fn of(page: EventsPage, visible: Visible) -> Result<Self> {
        let next_cursor = page.next.map(|last| cursor::of_fact(visible.client(), last));
        Ok(Self { next_cursor, ..Self::complete(page.events)? })
    }

    /// All there is.
    pub(crate) fn complete(events: Vec<EventView>) -> Result<Self> {
        Ok(Self { items: events.into_iter().map(FactAnswer::of).collect::<Result<_>>()?, next_cursor: None })
    }
}

impl FactResult {
    pub(crate) fn of(result: Result<Accepted>, visible: Visible) -> Self {
        let shown = result.and_then(|accepted| {
            let status = if accepted.deduplicated { 200 } else { 201 };
            Ok((status, Box::new(FactAnswer::accepted(accepted, visible)?)))
        });
        match shown {
            Ok((status, event)) => Self::Stored { status, event },
            Err(error) => Self::Refused { status: error.status().as_u16(), error: error.body },
        }
    }
}
