//! The columns of a fact, which several subjects read: strictly for delivery, or as they are for display.

use tidegate_core::Tsid;

use crate::sql::Columns as _;
use crate::sqlite::engine::row::{Moment, Payload, Prose, Shown, ShownPayload, retry, row, tags};
use crate::sqlite::statements::added::made_at;
use crate::values::Fact;

row! {
    /// A fact for delivery, as `e` in a statement.
    pub(in crate::sqlite) struct FactRow {
        client_id: Option<i64> = "e.client_id",
        event_type: String = "e.event_type",
        payload: Payload = "e.payload",
        content_type: Option<String> = "e.content_type",
        source: Option<String> = "e.source",
        subject: Option<String> = "e.subject",
        time: Option<Moment> = "e.time",
        external_id: Option<String> = "e.external_id",
        correlation_id: Option<String> = "e.correlation_id",
        causation_id: Option<String> = "e.causation_id",
        attributes: Option<Prose> = "e.attributes",
        created_at: Moment = "e.created_at",
        title: Option<Prose> = "e.title",
        description: Option<Prose> = "e.description",
        tags: Option<String> = "e.tags",
        retry: Option<Shown> = "e.retry",
    }
}

row! {
    /// A fact for display, which may be missing or hold anything.
    pub(in crate::sqlite) struct ShownFactRow {
        client_id: Option<i64> = "e.client_id",
        event_type: Option<Shown> = "e.event_type",
        payload: ShownPayload = "e.payload",
        content_type: Option<Shown> = "e.content_type",
        source: Option<Shown> = "e.source",
        subject: Option<Shown> = "e.subject",
        time: Option<Moment> = "e.time",
        external_id: Option<Shown> = "e.external_id",
        correlation_id: Option<Shown> = "e.correlation_id",
        causation_id: Option<Shown> = "e.causation_id",
        attributes: Option<Shown> = "e.attributes",
        created_at: Moment = "e.created_at",
        title: Option<Shown> = "e.title",
        description: Option<Shown> = "e.description",
        tags: Option<Shown> = "e.tags",
        retry: Option<Shown> = "e.retry",
    }
}

/// The columns of a [`ShownFactRow`] of an entry, given its table's alias. If the fact is missing, its type is that of
/// the entry's lane `l`, and its moment the one in the event's id. The moment of an entry that was added to its fact is its own.
pub(in crate::sqlite) fn shown_fact(entry: &str) -> String {
    let made = format!("(({entry}.event_id >> 22) + 1577836800000) * 1000");
    ShownFactRow::list()
        .replace("e.event_type AS", "coalesce(e.event_type, l.event_type, '') AS")
        .replace("e.payload AS", "coalesce(e.payload, x'') AS")
        .replace("e.created_at AS", &format!("coalesce({}, e.created_at, {made}) AS", made_at(entry)))
}

impl From<FactRow> for Fact {
    fn from(row: FactRow) -> Self {
        Self {
            client: row.client_id.map(Tsid::from_i64),
            event_type: row.event_type,
            payload: row.payload.0,
            content_type: row.content_type,
            source: row.source,
            subject: row.subject,
            time: row.time.map(Into::into),
            external_id: row.external_id,
            correlation_id: row.correlation_id,
            causation_id: row.causation_id,
            attributes: row.attributes.map(|text| text.0),
            created_at: row.created_at.into(),
            title: row.title.map(|text| text.0),
            description: row.description.map(|text| text.0),
            tags: tags(row.tags),
            retry: retry(row.retry.map(|text| text.0)),
        }
    }
}

impl From<ShownFactRow> for Fact {
    fn from(row: ShownFactRow) -> Self {
        let text = |shown: Option<Shown>| shown.map(|shown| shown.0);
        Self {
            client: row.client_id.map(Tsid::from_i64),
            event_type: text(row.event_type).unwrap_or_default(),
            payload: row.payload.0,
            content_type: text(row.content_type),
            source: text(row.source),
            subject: text(row.subject),
            time: row.time.map(Into::into),
            external_id: text(row.external_id),
            correlation_id: text(row.correlation_id),
            causation_id: text(row.causation_id),
            attributes: text(row.attributes),
            created_at: row.created_at.into(),
            title: text(row.title),
            description: text(row.description),
            tags: tags(text(row.tags)),
            retry: retry(text(row.retry)),
        }
    }
}
