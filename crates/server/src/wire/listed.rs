//! Pages of events: which to list, and events as lists show them.

use serde::{Deserialize, Serialize};
use tidegate::{EntrySummary, ListQuery, Page, Status, Timestamp};
use utoipa::{IntoParams, ToSchema};

use super::basics::{EventBasics, client};
use super::tags::asked_tags;
use crate::access::Caller;
use crate::cursor;
use crate::error::{ApiError, Result};
use crate::parameters::{MAX_LIMIT, moment, number};

/// The page size when the caller gives none.
const DEFAULT_LIMIT: u64 = 20;
/// The largest offset; deeper pages need a cursor.
const MAX_OFFSET: u64 = 10_000;

/// Which events to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Only events with this status: PENDING, PROCESSING, COMPLETED, COMPLETED_WITH_ERRORS, FAILED or CANCELLED.
    #[param(example = "PENDING")]
    status: Option<String>,
    /// Only events with any of these comma-separated tags.
    tags: Option<String>,
    /// Only events in this queue.
    queue: Option<String>,
    /// Only events in queues of this client; for credentials that belong to no client.
    #[param(min_length = 13, max_length = 13)]
    client: Option<String>,
    /// Only events of this type.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    event_type: Option<String>,
    /// Only events that this worker holds or ended.
    worker_id: Option<String>,
    /// Only events published at this moment or later.
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<String>,
    /// Only events published before this moment.
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<String>,
    /// The size of the page; 20 if absent.
    #[param(value_type = Option<u64>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// How many events to skip, at most 10,000; deeper pages need a cursor.
    #[param(value_type = Option<u64>, minimum = 0, maximum = 10000)]
    offset: Option<String>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

impl ListParams {
    /// 400 when a filter is not valid, 403 when it names another client than the caller's.
    pub(crate) fn read(self, caller: &Caller) -> Result<ListQuery> {
        let limit = number("limit", self.limit.as_deref(), 1, MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
        let offset = offset(self.offset.as_deref())?;
        let status = self.status.as_deref().map(str::parse::<Status>).transpose().map_err(tidegate::Error::from)?;
        for (name, text) in [("type", &self.event_type), ("worker_id", &self.worker_id)] {
            if let Some(text) = text {
                tidegate_core::name::check_text(name, text).map_err(tidegate::Error::from)?;
            }
        }
        let visible = caller.visible(self.client.as_deref())?;
        let before = self.cursor.as_deref().map(|text| cursor::read_event(text, visible.client())).transpose()?;
        Ok(ListQuery {
            status,
            tags: asked_tags(self.tags.as_deref())?.unwrap_or_default(),
            queue: self.queue.as_deref().map(|name| visible.queue(name)).transpose()?,
            event_type: self.event_type,
            worker: self.worker_id,
            client: visible.client(),
            from: moment("from", self.from.as_deref())?,
            to: moment("to", self.to.as_deref())?,
            before,
            limit: limit as usize,
            offset: offset as usize,
        })
    }
}

/// Parses the offset.
fn offset(text: Option<&str>) -> Result<u64> {
    let offset = number("offset", text, 0, u64::MAX)?.unwrap_or(0);
    if offset > MAX_OFFSET {
        let text =
            format!("offset must be at most {MAX_OFFSET}: for deeper pages pass next_cursor of a page as cursor");
        return Err(ApiError::invalid(text));
    }
    Ok(offset)
}

/// A page of events, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ListAnswer {
    /// The events of this page.
    events: Vec<Listed>,
    /// How many events match on all pages together.
    total: u64,
    /// Whether counting stopped at `total` and there may be more.
    total_capped: bool,
    /// The `limit` that was applied.
    limit: u64,
    /// The `offset` that was applied.
    offset: u64,
    /// Pass it as `cursor` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl ListAnswer {
    pub(crate) fn of(page: Page, query: &ListQuery) -> Self {
        Self {
            events: page.items.into_iter().map(Listed::of).collect(),
            total: page.total,
            total_capped: page.total_capped,
            limit: query.limit as u64,
            offset: query.offset as u64,
            next_cursor: page.next.map(|id| cursor::of_event(query.client, id)),
        }
    }
}

/// An event in a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Listed {
    #[serde(flatten)]
    basics: EventBasics,
    /// Retries allowed after the first attempt.
    max_retries: u32,
    /// When the next attempt is due, while the event waits for a retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    next_retry_at: Option<Timestamp>,
    /// The worker that holds the event, or ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<String>,
    /// The message group: its events run one at a time, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_group: Option<String>,
    /// Lower numbers are claimed first.
    priority: i16,
    /// When the event's state last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

impl Listed {
    pub(crate) fn of(entry: EntrySummary) -> Self {
        let retry_count = entry.retry_count();
        Self {
            basics: EventBasics {
                id: entry.id.get(),
                event_id: entry.event_id.to_string(),
                title: entry.title.unwrap_or_else(|| entry.event_type.clone()),
                tags: entry.tags.join(","),
                status: entry.status,
                retry_count,
                client: client(&entry.queue),
                queue: entry.queue.name().to_owned(),
                event_type: entry.event_type,
                created_at: entry.created_at,
            },
            max_retries: entry.max_attempts.saturating_sub(1),
            next_retry_at: entry.next_retry_at,
            worker_id: entry.worker,
            message_group: entry.group,
            priority: entry.priority,
            updated_at: entry.updated_at,
        }
    }
}
