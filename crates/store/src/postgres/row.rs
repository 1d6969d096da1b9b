//! Reads rows into values.

use bytes::Bytes;
use tidegate_core::Tsid;
use tokio_postgres::Row;

use crate::store::Fact;

/// How many columns a fact has.
pub(super) const FACT_COLUMNS: usize = 16;

/// A fact whose columns start at `first`.
pub(super) fn fact(row: &Row, first: usize) -> Fact {
    Fact {
        client: row.get::<_, Option<i64>>(first).map(Tsid::from_i64),
        event_type: row.get(first + 1),
        payload: Bytes::from(row.get::<_, Vec<u8>>(first + 2)),
        content_type: row.get(first + 3),
        source: row.get(first + 4),
        subject: row.get(first + 5),
        time: row.get(first + 6),
        external_id: row.get(first + 7),
        correlation_id: row.get(first + 8),
        causation_id: row.get(first + 9),
        attributes: row.get(first + 10),
        created_at: row.get(first + 11),
        title: row.get(first + 12),
        description: row.get(first + 13),
        tags: tags(row.get(first + 14)),
        // One that cannot be read is as good as none: the queue's applies.
        retry: row.get::<_, Option<&str>>(first + 15).and_then(|text| serde_json::from_str(text).ok()),
    }
}

/// Tags as they are stored, separated by commas.
pub(super) fn tags(text: Option<&str>) -> Vec<String> {
    text.map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default()
}

/// A count that is never negative.
pub(super) fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}
