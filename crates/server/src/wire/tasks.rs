//! Tasks: jobs that are posted themselves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate::{Timestamp, Tsid};
use tidegate_core::cloud_event::{CloudEvent, SentTask};
use tidegate_dispatch::{CreatedTask, DispatchMode, NewTask, RetryStrategy, Target, TaskRules};
use utoipa::ToSchema;

use crate::error::{ApiError, ErrorBody, Result};

/// A job to be created and delivered.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(example = json!({
    "code": "invoice-mail", "targetUrl": "https://example.com/tasks", "payload": { "invoice": 7 },
    "idempotencyKey": "invoice-7"
}))]
pub(crate) struct NewJobBody {
    /// What it is; webhooks have it as `ce-type`.
    #[schema(min_length = 1, max_length = 255)]
    code: String,
    /// Where it goes: `https://…`, or `http://…` to an allowed address.
    #[schema(max_length = 2048)]
    target_url: String,
    /// What is sent: any JSON, as it stands, or a string with what is something else. A string that holds a JSON object or array
    /// is that object or array.
    #[schema(value_type = Value, required = true)]
    payload: Option<Box<RawValue>>,
    /// The media type of the payload; `application/json` if absent.
    #[schema(max_length = 255)]
    payload_content_type: Option<String>,
    /// What it is about.
    #[schema(max_length = 255)]
    subject: Option<String>,
    /// Where it comes from, a URI-reference; `/tidegate` if absent.
    #[schema(max_length = 255)]
    source: Option<String>,
    /// The id that it has there; webhooks have it as `ce-id` instead of their own.
    #[schema(max_length = 255)]
    external_id: Option<String>,
    /// Shared by what belongs to one request.
    #[schema(max_length = 255)]
    correlation_id: Option<String>,
    /// Headers that its webhook has besides: at most 64, of 16 KiB together. Those that the server writes itself are refused,
    /// and so is `authorization`: name a service account.
    headers: Option<BTreeMap<String, String>>,
    /// Whether the payload alone is sent (the default), or the whole as a CloudEvent.
    data_only: Option<bool>,
    /// What a failed delivery means for the rest of its group: `IMMEDIATE` (nothing is ordered), `NEXT_ON_ERROR` or
    /// `BLOCK_ON_ERROR`.
    #[schema(value_type = Option<String>, example = "IMMEDIATE")]
    mode: Option<DispatchMode>,
    /// The group in which it is ordered, among all jobs of its client. Required where `mode` is not `IMMEDIATE`.
    #[schema(max_length = 255)]
    message_group: Option<String>,
    /// Order within the group: lower goes first; 99 by default.
    sequence: Option<i32>,
    /// The pool that limits its delivery; the client's default pool if absent, or once the pool is deleted.
    dispatch_pool_id: Option<String>,
    /// The account whose secret signs it and whose credentials it carries: one of the job's own client. Without one it is not
    /// signed.
    service_account_id: Option<String>,
    /// How long a delivery may take; 30 by default.
    #[schema(minimum = 1, maximum = 3600)]
    timeout_seconds: Option<u32>,
    /// Attempts after the first one; 3 by default.
    #[schema(maximum = 1000)]
    max_retries: Option<u32>,
    /// The delays between attempts.
    #[schema(value_type = Option<Object>, example = json!({ "type": "fixed", "delaySeconds": 30 }))]
    retry_strategy: Option<RetryStrategy>,
    /// Not to be delivered before.
    #[schema(value_type = Option<String>, format = DateTime)]
    scheduled_for: Option<String>,
    /// From when on it is cancelled instead; never if absent.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<String>,
    /// A repeat under the same key within 24 hours is answered with the first job.
    #[schema(max_length = 255)]
    idempotency_key: Option<String>,
    /// What it carries for its sender: an object of at most 16 KiB.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    /// The client that it belongs to; that of the caller if absent.
    #[schema(min_length = 13, max_length = 13)]
    client_id: Option<String>,
}

/// Many jobs to be created.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "jobs": [{ "code": "invoice-mail", "targetUrl": "https://example.com/tasks", "payload": { "invoice": 7 } }]
}))]
pub(crate) struct NewJobsBody {
    /// The jobs.
    #[schema(value_type = Vec<NewJobBody>)]
    pub(crate) jobs: Vec<Box<RawValue>>,
}

/// A job that was created.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CreatedJobAnswer {
    /// The id, which its webhooks have as `webhook-id`.
    #[schema(value_type = String, example = "0HZXEQ5Y8JY5Z")]
    pub(crate) id: Tsid,
    /// `TASK`.
    #[schema(example = "TASK")]
    kind: &'static str,
    /// `QUEUED`; of a repeat, where the job that was created first is by now, and absent if that is gone since.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "QUEUED")]
    status: Option<&'static str>,
    /// What it is.
    code: String,
    /// The client that it belongs to.
    #[schema(value_type = Option<String>)]
    client_id: Option<Tsid>,
    /// What it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// Where it comes from.
    source: String,
    /// The id that it has there.
    #[serde(skip_serializing_if = "Option::is_none")]
    external_id: Option<String>,
    /// Shared by what belongs to one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    /// Where its webhook goes.
    #[schema(value_type = String)]
    target_url: Target,
    /// Headers that its webhook has besides. Values that look like credentials are shown as `***`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    /// The media type of the payload; JSON if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_content_type: Option<String>,
    /// Whether the payload alone is sent.
    data_only: bool,
    /// `IMMEDIATE`, `NEXT_ON_ERROR` or `BLOCK_ON_ERROR`.
    #[schema(value_type = String, example = "IMMEDIATE")]
    mode: DispatchMode,
    /// Its message group.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_group: Option<String>,
    /// Order within the group: lower goes first.
    sequence: i32,
    /// The pool that limits it; the client's default pool if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    dispatch_pool_id: Option<Tsid>,
    /// The account whose credentials it carries, and whose secret signs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    service_account_id: Option<Tsid>,
    /// How long an attempt may take.
    timeout_seconds: u32,
    /// Attempts after the first one.
    max_retries: u32,
    /// The delays between attempts; exponential from 3 s to 10 min if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    retry_strategy: Option<RetryStrategy>,
    /// Not to be delivered before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    scheduled_for: Option<Timestamp>,
    /// From when on it is cancelled instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// Under what it was created once.
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    /// What it carries for its sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

/// The results of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CreatedJobs {
    /// A result for each job, in order.
    pub(crate) results: Vec<CreatedJobResult>,
}

/// The result of one job of a batch.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum CreatedJobResult {
    /// It is stored.
    Stored {
        /// 201, or 200 when it was created before.
        status: u16,
        /// The job.
        job: Box<CreatedJobAnswer>,
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

impl NewJobBody {
    /// The client that it names.
    pub(crate) fn client(&self) -> Option<&str> {
        self.client_id.as_deref()
    }

    /// The task of this client.
    pub(crate) fn read(self, client: Option<Tsid>) -> Result<NewTask> {
        let payload = self.payload.ok_or_else(|| ApiError::invalid("payload is required: any JSON, or a string"))?;
        let event = CloudEvent::of_task(&SentTask {
            code: &self.code,
            subject: self.subject.as_deref(),
            source: self.source.as_deref(),
            external_id: self.external_id.as_deref(),
            correlation_id: self.correlation_id.as_deref(),
            message_group: self.message_group.as_deref(),
            content_type: self.payload_content_type.as_deref(),
            payload: &payload,
        });
        let event = event.map_err(|error| ApiError::invalid(error.to_string()))?;
        let default = TaskRules::new(TaskRules::target(&self.target_url)?);
        let rules = TaskRules {
            headers: self.headers.unwrap_or_default(),
            data_only: self.data_only.unwrap_or(default.data_only),
            mode: self.mode.unwrap_or(default.mode),
            sequence: self.sequence.unwrap_or(default.sequence),
            dispatch_pool_id: id("dispatchPoolId", self.dispatch_pool_id)?,
            service_account_id: id("serviceAccountId", self.service_account_id)?,
            timeout_seconds: self.timeout_seconds.unwrap_or(default.timeout_seconds),
            max_retries: self.max_retries.unwrap_or(default.max_retries),
            retry_strategy: self.retry_strategy,
            scheduled_for: moment("scheduledFor", self.scheduled_for)?,
            expires_at: moment("expiresAt", self.expires_at)?,
            idempotency_key: self.idempotency_key,
            metadata: self.metadata,
            ..default
        };
        Ok(NewTask { client, event, rules })
    }
}

fn id(field: &str, text: Option<String>) -> Result<Option<Tsid>> {
    let bad = |_| ApiError::invalid(format!("{field} must be an id: 13 characters"));
    text.map(|text| text.parse().map_err(bad)).transpose()
}

fn moment(field: &str, text: Option<String>) -> Result<Option<Timestamp>> {
    let bad = |_| ApiError::invalid(format!("{field} must be a moment such as 2030-01-01T00:00:00Z"));
    text.map(|text| text.parse().map_err(bad)).transpose()
}

impl From<CreatedTask> for CreatedJobAnswer {
    fn from(created: CreatedTask) -> Self {
        let (event, rules) = (created.task.event, created.task.rules);
        Self {
            id: created.id,
            kind: "TASK",
            status: created.status,
            code: event.event_type,
            client_id: created.task.client,
            subject: event.subject,
            source: event.source,
            external_id: event.id,
            correlation_id: event.correlation_id,
            headers: rules.shown_headers(),
            target_url: rules.target_url,
            payload_content_type: event.datacontenttype,
            data_only: rules.data_only,
            mode: rules.mode,
            message_group: event.message_group,
            sequence: rules.sequence,
            dispatch_pool_id: rules.dispatch_pool_id,
            service_account_id: rules.service_account_id,
            timeout_seconds: rules.timeout_seconds,
            max_retries: rules.max_retries,
            retry_strategy: rules.retry_strategy,
            scheduled_for: rules.scheduled_for,
            expires_at: rules.expires_at,
            idempotency_key: rules.idempotency_key,
            metadata: rules.metadata,
            created_at: created.created_at,
        }
    }
}

impl CreatedJobResult {
    pub(crate) fn of(result: Result<CreatedTask>) -> Self {
        match result {
            Ok(created) => {
                let status = if created.is_repeat { 200 } else { 201 };
                Self::Stored { status, job: Box::new(created.into()) }
            }
            Err(error) => Self::Refused { status: error.status().as_u16(), error: error.body },
        }
    }
}
