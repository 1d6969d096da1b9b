//! Reads columns that several statements have in common into values.

use std::error::Error;

use tidegate_core::{QueueName, RetryPolicy, Timestamp, Tsid};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type, accepts};

use crate::error::ErrorKind;
use crate::sql::{FromRow, Only};

/// Declares a row and how it is read: see [`crate::sql::row`].
macro_rules! row {
    ($($tokens:tt)*) => {
        $crate::sql::row! { (tokio_postgres::Row, $crate::postgres::engine::row::column) $($tokens)* }
    };
}
pub(in crate::postgres) use row;

/// Reads the column at a position, which only [`row!`] and [`Only`] know.
pub(in crate::postgres) fn column<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> crate::Result<T> {
    row.try_get(at).map_err(|error| {
        crate::Error::new(ErrorKind::Corrupt, "a stored value has another type than it should").with_source(error)
    })
}

impl<T: for<'a> FromSql<'a>> FromRow<Row> for Only<T> {
    fn read(row: &Row, at: usize) -> crate::Result<Self> {
        column(row, at).map(Self)
    }
}

/// A stored moment. The database's range is larger than the library's and includes infinity; reading must not fail, so
/// a moment outside of the library's range becomes its first or last one.
#[derive(Debug, Clone, Copy)]
pub(in crate::postgres) struct Moment(pub(in crate::postgres) Timestamp);

impl<'a> FromSql<'a> for Moment {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        /// Microseconds from 1970 to 2000, where the database starts counting.
        const EPOCH: i64 = 946_684_800_000_000;
        let micros = i64::from_be_bytes(raw.try_into()?).saturating_add(EPOCH);
        let (first, last) = (Timestamp::MIN.as_second() * 1_000_000, Timestamp::MAX.as_second() * 1_000_000);
        Ok(Self(Timestamp::from_microsecond(micros.clamp(first, last))?))
    }

    accepts!(TIMESTAMPTZ);
}

impl From<Moment> for Timestamp {
    fn from(moment: Moment) -> Self {
        moment.0
    }
}

/// Tags, which are stored separated by commas.
#[derive(Debug)]
pub(in crate::postgres) struct Tags(pub(in crate::postgres) Vec<String>);

impl<'a> FromSql<'a> for Tags {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(tags(Some(<&str>::from_sql(kind, raw)?))))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(Vec::new()))
    }

    fn accepts(kind: &Type) -> bool {
        <&str as FromSql<'_>>::accepts(kind)
    }
}

/// An event's own retry policy. One that cannot be read counts as none: the queue's applies.
#[derive(Debug)]
pub(in crate::postgres) struct OwnRetry(pub(in crate::postgres) Option<RetryPolicy>);

impl<'a> FromSql<'a> for OwnRetry {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(serde_json::from_str(<&str>::from_sql(kind, raw)?).ok()))
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(None))
    }

    fn accepts(kind: &Type) -> bool {
        <&str as FromSql<'_>>::accepts(kind)
    }
}

/// A queue's name from the columns of its name and its client.
pub(in crate::postgres) fn queue_name(name: String, client: Option<i64>) -> crate::Result<QueueName> {
    Ok(QueueName::of(client.map(Tsid::from_i64), name)?)
}

/// Tags, which are stored separated by commas.
pub(in crate::postgres) fn tags(text: Option<&str>) -> Vec<String> {
    text.map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default()
}

/// A stored count; a negative one, which is damage, reads as 0.
pub(in crate::postgres) fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}
