//! Changes of queues, and consumers that are alive.

use tidegate_core::name::check_text;
use tidegate_core::{QueueConfig, QueueName, QueueSettings, QueueState, RetryPolicy};

use crate::error::{Error, Result};

/// A change of a queue; `None` leaves a field as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueChange {
    /// Whether the queue accepts publishes and delivers.
    pub state: Option<QueueState>,
    /// The most entries it may hold (`Some(None)` removes the limit).
    pub depth_limit: Option<Option<u64>>,
    /// The settings for pull workers.
    pub settings: SettingsChange,
}

/// A change of the settings for pull workers. `None` leaves a setting as it is, `Some(None)` resets it to its default.
///
/// Stores merge it into the present settings in the transaction that writes them, so concurrent changes are not lost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SettingsChange {
    /// How many seconds a lease lasts when the claim does not say.
    pub lease_seconds: Option<Option<u32>>,
    /// How often an event is retried that sets no limit of its own.
    pub max_retries: Option<Option<u32>>,
    /// The retry policy for events without their own.
    pub retry: Option<Option<RetryPolicy>>,
    /// Whether workers must name their lease when they report.
    pub require_lease: Option<bool>,
}

impl From<QueueSettings> for SettingsChange {
    fn from(all: QueueSettings) -> Self {
        Self {
            lease_seconds: Some(all.lease_seconds),
            max_retries: Some(all.max_retries),
            retry: Some(all.retry),
            require_lease: Some(all.require_lease),
        }
    }
}

impl QueueChange {
    /// Applies the change to a queue's configuration.
    pub(crate) fn apply(self, to: &mut QueueConfig) -> Result<()> {
        if self.depth_limit.flatten().is_some_and(|limit| i64::try_from(limit).is_err()) {
            return Err(Error::invalid("a depth limit must be below 2^63"));
        }
        to.state = self.state.unwrap_or(to.state);
        to.depth_limit = self.depth_limit.unwrap_or(to.depth_limit);
        let (settings, change) = (&mut to.settings, self.settings);
        settings.lease_seconds = change.lease_seconds.unwrap_or(settings.lease_seconds);
        settings.max_retries = change.max_retries.unwrap_or(settings.max_retries);
        settings.require_lease = change.require_lease.unwrap_or(settings.require_lease);
        if let Some(retry) = change.retry {
            settings.retry = retry;
        }
        Ok(())
    }
}

/// A consumer that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveConsumer {
    /// The name of the worker.
    pub worker: String,
    /// The queue it claims from.
    pub queue: QueueName,
    /// The types it takes, whatever their tags; all when `None`.
    pub types: Option<Vec<String>>,
    /// The tags it takes besides these types.
    pub tags: Vec<WantedTag>,
}

/// A tag that a consumer selects by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WantedTag {
    /// The tag.
    pub tag: String,
    /// Only with events of this type; with all when `None`.
    pub event_type: Option<String>,
}

/// Marks tags in the stored list of what a consumer takes. No type and no tag contains it.
const TAG_MARK: char = '\u{1}';

impl WantedTag {
    fn stored(tag: &str, event_type: Option<&str>) -> String {
        match event_type {
            None => format!("{TAG_MARK}{tag}"),
            Some(event_type) => format!("{TAG_MARK}{tag}{TAG_MARK}{event_type}"),
        }
    }
}

impl LiveConsumer {
    /// Checks what can be checked without a database.
    pub(crate) fn check(&self) -> Result<()> {
        check_text("worker", &self.worker)?;
        for event_type in self.types.iter().flatten() {
            check_text("event type", event_type)?;
        }
        for wanted in &self.tags {
            check_text("tag", &wanted.tag)?;
            wanted.event_type.as_ref().map_or(Ok(()), |event_type| check_text("event type", event_type))?;
        }
        Ok(())
    }

    /// What the consumer takes, as one list for storage: types, and marked tags. `None` when it takes everything.
    pub(crate) fn wants(&self) -> Option<Vec<String>> {
        let mut wants = self.types.clone()?;
        wants.extend(self.tags.iter().map(|tag| WantedTag::stored(&tag.tag, tag.event_type.as_deref())));
        Some(wants)
    }

    /// The items of such a list that match an event with this type and these tags.
    pub(crate) fn wants_for(event_type: &str, tags: &[String]) -> Vec<String> {
        let mut wants = vec![event_type.to_owned()];
        for tag in tags {
            wants.extend([WantedTag::stored(tag, None), WantedTag::stored(tag, Some(event_type))]);
        }
        wants
    }
}

/// The error for a queue that has as many lanes as it may.
pub(crate) fn too_many_lanes(queue: &QueueName, lanes: usize) -> Error {
    Error::new(
        crate::error::ErrorKind::Full,
        format!(
            "queue {queue} has {lanes} lanes (pairs of an event type and a priority), its limit (max_lanes): publish with \
             fewer types or priorities, wait until unused lanes are removed, or raise the limit"
        ),
    )
}

/// The error for a queue that accepts no new events.
pub(crate) fn draining(queue: &QueueName) -> Error {
    Error::new(crate::error::ErrorKind::Full, format!("queue {} is draining", queue.name()))
}

/// Settings as databases store them; `None` when all have their defaults.
pub(crate) fn settings_text(settings: &QueueSettings) -> Result<Option<String>> {
    if *settings == QueueSettings::default() {
        return Ok(None);
    }
    if settings.retry.as_ref().is_some_and(|policy| !policy.is_sane()) {
        return Err(Error::invalid(
            "the retry policy is out of range: delays must be at most 100 years, jitter 0 to 1",
        ));
    }
    if settings.lease_seconds.is_some_and(|lease| lease == 0 || lease > 24 * 3600) {
        return Err(Error::invalid("lease_seconds must be between 1 and 86400"));
    }
    serde_json::to_string(settings)
        .map(Some)
        .map_err(|error| Error::invalid("the queue settings cannot be encoded as JSON").with_source(error))
}
