//! Reads columns into values.

use bytes::Bytes;
use rusqlite::Row;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use tidegate_core::{End, QueueName, Timestamp, Tsid};

use crate::error::Result;
use crate::sql::{FromRow, Only};
use crate::sqlite::engine::errors::damaged;

/// Declares a row and how it is read: see [`crate::sql::row`].
macro_rules! row {
    ($($tokens:tt)*) => {
        $crate::sql::row! { (rusqlite::Row<'_>, $crate::sqlite::engine::row::column) $($tokens)* }
    };
}
pub(in crate::sqlite) use row;

/// Reads the column at a position, which only [`row!`] and [`Only`] know.
pub(in crate::sqlite) fn column<T: FromSql>(row: &Row<'_>, at: usize) -> Result<T> {
    Ok(row.get(at)?)
}

impl<T: FromSql> FromRow<Row<'_>> for Only<T> {
    fn read(row: &Row<'_>, at: usize) -> Result<Self> {
        column(row, at).map(Self)
    }
}

/// A stored moment. One out of range is read as the first or the last possible moment.
#[derive(Debug, Clone, Copy)]
pub(in crate::sqlite) struct Moment(pub(in crate::sqlite) Timestamp);

impl FromSql for Moment {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let (first, last) = (Timestamp::MIN.as_second() * 1_000_000, Timestamp::MAX.as_second() * 1_000_000);
        let micros = i64::column_result(value)?.clamp(first, last);
        Timestamp::from_microsecond(micros).map(Self).map_err(FromSqlError::other)
    }
}

impl From<Moment> for Timestamp {
    fn from(moment: Moment) -> Self {
        moment.0
    }
}

/// The end with a stored code.
pub(in crate::sqlite) fn end_of(code: i16) -> Result<End> {
    End::from_code(code).ok_or_else(|| damaged("an entry has an unknown end"))
}

/// A queue's name from the columns of its name and its client.
pub(in crate::sqlite) fn queue_name(name: String, client: Option<i64>) -> Result<QueueName> {
    Ok(QueueName::of(client.map(Tsid::from_i64), name)?)
}

/// A value of any type as text; bytes that are not UTF-8 become replacement characters.
#[derive(Debug)]
pub(in crate::sqlite) struct Shown(pub(in crate::sqlite) String);

impl FromSql for Shown {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value {
            ValueRef::Null => Err(FromSqlError::InvalidType),
            ValueRef::Integer(number) => Ok(Self(number.to_string())),
            ValueRef::Real(number) => Ok(Self(number.to_string())),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Ok(Self(String::from_utf8_lossy(bytes).into_owned())),
        }
    }
}

/// Text that only people read: it need not be UTF-8.
#[derive(Debug)]
pub(in crate::sqlite) struct Prose(pub(in crate::sqlite) String);

impl FromSql for Prose {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value {
            ValueRef::Text(bytes) => Ok(Self(String::from_utf8_lossy(bytes).into_owned())),
            _ => Err(FromSqlError::InvalidType),
        }
    }
}

/// A payload.
#[derive(Debug)]
pub(in crate::sqlite) struct Payload(pub(in crate::sqlite) Bytes);

impl FromSql for Payload {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Self(Bytes::copy_from_slice(value.as_blob()?)))
    }
}

/// A payload for display, whatever its type.
#[derive(Debug)]
pub(in crate::sqlite) struct ShownPayload(pub(in crate::sqlite) Bytes);

impl FromSql for ShownPayload {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value {
            ValueRef::Null => Ok(Self(Bytes::new())),
            ValueRef::Blob(bytes) | ValueRef::Text(bytes) => Ok(Self(Bytes::copy_from_slice(bytes))),
            other => Shown::column_result(other).map(|shown| Self(shown.0.into())),
        }
    }
}

/// Tags, which are stored separated by commas.
pub(in crate::sqlite) fn tags(text: Option<String>) -> Vec<String> {
    text.map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default()
}

/// Reads a stored retry policy. One that cannot be read counts as none: the queue's applies.
pub(in crate::sqlite) fn retry(text: Option<String>) -> Option<tidegate_core::RetryPolicy> {
    text.and_then(|text| serde_json::from_str(&text).ok())
}
