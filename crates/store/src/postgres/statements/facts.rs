//! The columns of a fact, which several subjects read.

use bytes::Bytes;
use tidegate_core::Tsid;

use crate::postgres::engine::row::{Moment, OwnRetry, Tags, row};
use crate::sql::Columns;
use crate::values::Fact;

row! {
    /// A fact, as `e` in a statement. A statement may leave out payloads that are too large.
    pub(in crate::postgres) struct FactRow {
        client_id: Option<i64> = "e.client_id",
        event_type: String = "e.event_type",
        payload: Option<Vec<u8>> = "e.payload",
        content_type: Option<String> = "e.content_type",
        source: Option<String> = "e.source",
        subject: Option<String> = "e.subject",
        time: Option<Moment> = "e.time",
        external_id: Option<String> = "e.external_id",
        correlation_id: Option<String> = "e.correlation_id",
        causation_id: Option<String> = "e.causation_id",
        attributes: Option<String> = "e.attributes",
        created_at: Moment = "e.created_at",
        title: Option<String> = "e.title",
        description: Option<String> = "e.description",
        tags: Tags = "e.tags",
        retry: OwnRetry = "e.retry",
    }
}

impl From<FactRow> for Fact {
    fn from(row: FactRow) -> Self {
        Self {
            client: row.client_id.map(Tsid::from_i64),
            event_type: row.event_type,
            payload: Bytes::from(row.payload.unwrap_or_default()),
            content_type: row.content_type,
            source: row.source,
            subject: row.subject,
            time: row.time.map(Into::into),
            external_id: row.external_id,
            correlation_id: row.correlation_id,
            causation_id: row.causation_id,
            attributes: row.attributes,
            created_at: row.created_at.into(),
            title: row.title,
            description: row.description,
            tags: row.tags.0,
            retry: row.retry.0,
        }
    }
}

/// The columns of a fact with another expression for one of them.
pub(in crate::postgres) fn fact_with(column: &str, expression: &str) -> String {
    FactRow::list().replace(&format!("e.{column} AS"), &format!("{expression} AS"))
}
