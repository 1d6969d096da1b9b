//! Reads rows into values.

use std::error::Error;

use bytes::Bytes;
use tidegate_core::{InvalidName, QueueName, Timestamp, Tsid};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type, accepts};

use crate::store::Fact;

/// How many columns a fact has.
pub(super) const FACT_COLUMNS: usize = 16;
/// Which of them is the payload.
pub(super) const PAYLOAD: usize = 2;

/// A stored moment, whatever it is: the database's reach further than the library's, up to infinity, and reading one must
/// not fail. Such a moment is shown as the first or the last that there is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment(pub(super) Timestamp);

impl<'a> FromSql<'a> for Moment {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        /// Microseconds from 1970 to 2000, where the database's count begins.
        const EPOCH: i64 = 946_684_800_000_000;
        let micros = i64::from_be_bytes(raw.try_into()?).saturating_add(EPOCH);
        let (first, last) = (Timestamp::MIN.as_second() * 1_000_000, Timestamp::MAX.as_second() * 1_000_000);
        Ok(Self(Timestamp::from_microsecond(micros.clamp(first, last))?))
    }

    accepts!(TIMESTAMPTZ);
}

/// A moment in a column.
pub(super) fn moment(row: &Row, column: usize) -> Timestamp {
    row.get::<_, Moment>(column).0
}

/// A moment in a column that may be null.
pub(super) fn optional_moment(row: &Row, column: usize) -> Option<Timestamp> {
    row.get::<_, Option<Moment>>(column).map(|moment| moment.0)
}

/// A fact whose columns start at `first`.
pub(super) fn fact(row: &Row, first: usize) -> Fact {
    Fact {
        client: row.get::<_, Option<i64>>(first).map(Tsid::from_i64),
        event_type: row.get(first + 1),
        payload: Bytes::from(row.get::<_, Vec<u8>>(first + PAYLOAD)),
        content_type: row.get(first + 3),
        source: row.get(first + 4),
        subject: row.get(first + 5),
        time: optional_moment(row, first + 6),
        external_id: row.get(first + 7),
        correlation_id: row.get(first + 8),
        causation_id: row.get(first + 9),
        attributes: row.get(first + 10),
        created_at: moment(row, first + 11),
        title: row.get(first + 12),
        description: row.get(first + 13),
        tags: tags(row.get(first + 14)),
        // One that cannot be read is as good as none: the queue's applies.
        retry: row.get::<_, Option<&str>>(first + 15).and_then(|text| serde_json::from_str(text).ok()),
    }
}

/// Tags as they are stored, separated by commas.
/// A queue from the columns of its name and its client.
pub(super) fn queue(row: &Row, name: usize, client: usize) -> Result<QueueName, InvalidName> {
    QueueName::of(row.get::<_, Option<i64>>(client).map(Tsid::from_i64), row.get::<_, String>(name))
}

pub(super) fn tags(text: Option<&str>) -> Vec<String> {
    text.map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default()
}

/// A count that is never negative.
pub(super) fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}
