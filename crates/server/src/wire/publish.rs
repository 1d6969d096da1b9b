//! Batches of events to publish, and the results of publishing.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tidegate::{EntryView, NewEvent, PublishOutcome, Published};
use utoipa::ToSchema;

use super::event::Event;
use super::new_event::NewEventBody;
use crate::body;
use crate::error::{ErrorBody, Result};
use crate::parameters::check_count;

/// A batch of events to publish.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "events": [{ "title": "Send Email Notification", "tags": "email", "payload": { "user_id": 12345 } }]
}))]
pub(crate) struct NewEvents {
    /// The events, up to 1,000.
    #[schema(value_type = Vec<NewEventBody>, min_items = 1, max_items = 1000)]
    events: Vec<Box<RawValue>>,
}

impl NewEvents {
    /// The events, or what is wrong with each, in order. 400 when there are none or more than `most`.
    pub(crate) fn read(self, most: usize) -> Result<Vec<Result<NewEventBody>>> {
        check_count(self.events.len(), most)?;
        Ok(self.events.iter().map(|raw| body::parse(raw.get().as_bytes())).collect())
    }
}

/// The result of each event, in order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PublishAnswers {
    pub(crate) results: Vec<PublishAnswer>,
}

/// The result of one event.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PublishAnswer {
    /// The HTTP status that the event would have had alone.
    #[schema(example = 201)]
    status: u16,
    /// The event, if it was published.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<Event>,
    /// The error, if it was not published.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    error: Option<ErrorBody>,
}

/// The answer to the publishing of an event: 201 with the new event, or 200 with the one that is `stored`.
pub(crate) fn answer(event: NewEvent, published: &Published, stored: Option<EntryView>) -> (StatusCode, Event) {
    let status = match published.outcome {
        PublishOutcome::Created => StatusCode::CREATED,
        PublishOutcome::Duplicate | PublishOutcome::Replaced => StatusCode::OK,
    };
    (status, stored.map_or_else(|| Event::published(published, event), Event::of))
}

impl From<Result<(StatusCode, Event)>> for PublishAnswer {
    fn from(answer: Result<(StatusCode, Event)>) -> Self {
        match answer {
            Ok((status, event)) => Self { status: status.as_u16(), event: Some(event), error: None },
            Err(error) => Self { status: error.status().as_u16(), event: None, error: Some(*error.body) },
        }
    }
}
