//! Tasks as callers see them, their defaults and limits, and the form in which they are stored beside their jobs.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate::{Timestamp, Tsid};
use tidegate_core::cloud_event::CloudEvent;

use super::headers;
use crate::gateway::error::{GatewayError, Result};
use crate::gateway::subscriptions::{MAX_RETRIES, MAX_TIMEOUT, within};
use crate::gateway::values::check_text;
use crate::{DispatchMode, RetryStrategy, Target};

/// The most bytes of metadata, as JSON.
const MAX_METADATA: usize = 16 << 10;

/// What is said about a task beyond what is delivered. It is stored as it is here.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskRules {
    /// Where it goes: a webhook.
    pub target_url: Target,
    /// Headers that its webhook has besides.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Whether the payload alone is sent, or the whole event.
    pub data_only: bool,
    /// What a failure means for the rest of its group.
    pub mode: DispatchMode,
    /// Order within its group: lower goes first.
    pub sequence: i32,
    /// The pool that limits its delivery; the client's default pool, also once it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_pool_id: Option<Tsid>,
    /// The account whose secret signs it and whose credentials it carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_id: Option<Tsid>,
    /// How long a delivery may take.
    pub timeout_seconds: u32,
    /// Attempts after the first one.
    pub max_retries: u32,
    /// The delays between attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_strategy: Option<RetryStrategy>,
    /// Not to be delivered before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<Timestamp>,
    /// From when on it is cancelled instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Under what it was created once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// What it carries for its sender: a JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Box<RawValue>>,
}

/// A task.
#[derive(Debug, Clone)]
pub struct Task {
    /// The client that it belongs to.
    pub client: Option<Tsid>,
    /// What is delivered: its type is the task's code.
    pub event: CloudEvent,
    /// What is said about it beyond that.
    pub rules: TaskRules,
}

/// A task to be created.
pub type NewTask = Task;

/// A task that was created.
#[derive(Debug, Clone)]
pub struct CreatedTask {
    /// The id of its job.
    pub id: Tsid,
    /// When it was created, in database time.
    pub created_at: Timestamp,
    /// Where its job is in its life, in the source's words; `None` for a repeat whose first is gone.
    pub status: Option<&'static str>,
    /// Whether it was created before, under its key; nothing was written then.
    pub is_repeat: bool,
    /// What was said about it.
    pub task: Task,
}

impl TaskRules {
    /// What holds for a task that says no more than where it goes.
    #[must_use]
    pub fn new(target_url: Target) -> Self {
        Self {
            target_url,
            headers: BTreeMap::new(),
            data_only: true,
            mode: DispatchMode::default(),
            sequence: 99,
            dispatch_pool_id: None,
            service_account_id: None,
            timeout_seconds: 30,
            max_retries: 3,
            retry_strategy: None,
            scheduled_for: None,
            expires_at: None,
            idempotency_key: None,
            metadata: None,
        }
    }

    /// Reads where a task goes.
    ///
    /// # Errors
    /// `Invalid` when it is no webhook's URL; the message says what to change.
    pub fn target(text: &str) -> Result<Target> {
        text.parse().map_err(of_target)
    }

    /// Its headers as they are shown: without values that look like credentials.
    #[must_use]
    pub fn shown_headers(&self) -> BTreeMap<String, String> {
        headers::shown(&self.headers)
    }

    /// Checks what can be checked without a database.
    pub(super) fn check(&mut self) -> Result<()> {
        if !matches!(self.target_url, Target::Webhook(_)) {
            return Err(invalid("targetUrl must be an https:// URL, not a queue"));
        }
        self.headers = headers::checked(&self.headers)?;
        within("timeoutSeconds", self.timeout_seconds, 1, MAX_TIMEOUT)?;
        within("maxRetries", self.max_retries, 0, MAX_RETRIES)?;
        self.retry_strategy.as_ref().map_or(Ok(()), RetryStrategy::check)?;
        if let Some(key) = &self.idempotency_key {
            check_text("idempotencyKey", key, 1, 255)?;
        }
        let Some(metadata) = &self.metadata else { return Ok(()) };
        if !metadata.get().starts_with('{') || metadata.get().len() > MAX_METADATA {
            return Err(invalid(&format!("metadata must be a JSON object of at most {MAX_METADATA} bytes")));
        }
        Ok(())
    }
}

impl Task {
    /// Checks what can be checked without a database.
    pub(super) fn check(&mut self) -> Result<()> {
        self.rules.check()?;
        if self.rules.mode != DispatchMode::Immediate && self.event.message_group.is_none() {
            return Err(invalid("messageGroup is required where mode is not IMMEDIATE: jobs of one group are ordered"));
        }
        Ok(())
    }
}

impl fmt::Debug for TaskRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No headers, no metadata: they may hold what is secret.
        f.debug_struct("TaskRules")
            .field("mode", &self.mode)
            .field("pool", &self.dispatch_pool_id)
            .finish_non_exhaustive()
    }
}

/// The error of a target by the name that it has in a task.
pub(super) fn of_target(error: GatewayError) -> GatewayError {
    match error {
        GatewayError::Invalid(text) => match text.strip_prefix("target ") {
            Some(rest) => GatewayError::Invalid(format!("targetUrl {}", rest.replace(" or queue:NAME", ""))),
            None => GatewayError::Invalid(text),
        },
        other => other,
    }
}

fn invalid(text: &str) -> GatewayError {
    GatewayError::Invalid(text.to_owned())
}
