//! Reads facts back.

use bytes::Bytes;
use rusqlite::Row;
use rusqlite::types::ValueRef;
use tidegate_core::Tsid;

use super::tags;
use super::tx::moment;
use super::unreadable::{prose, shown};
use crate::error::Result;
use crate::store::Fact;

/// Reads the columns that `queries::fact!` names, from column `at` on, for somebody who works with them: an error of class
/// `Corrupt` where one does not hold what it should.
pub(super) fn read(row: &Row<'_>, at: usize) -> Result<Fact> {
    Ok(Fact {
        event_type: row.get(at + 1)?,
        payload: Bytes::copy_from_slice(row.get_ref(at + 2)?.as_blob().map_err(rusqlite::Error::from)?),
        content_type: row.get(at + 3)?,
        source: row.get(at + 4)?,
        subject: row.get(at + 5)?,
        external_id: row.get(at + 7)?,
        correlation_id: row.get(at + 8)?,
        causation_id: row.get(at + 9)?,
        attributes: prose(row, at + 10)?,
        title: prose(row, at + 12)?,
        description: prose(row, at + 13)?,
        tags: tags::read(row.get(at + 14)?),
        ..typed(row, at)?
    })
}

/// The same for somebody who only looks: every column is shown as it is.
pub(super) fn show(row: &Row<'_>, at: usize) -> Result<Fact> {
    let payload = match row.get_ref(at + 2)? {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => Bytes::copy_from_slice(bytes),
        _ => Bytes::from(shown(row, at + 2)?.unwrap_or_default()),
    };
    Ok(Fact {
        event_type: shown(row, at + 1)?.unwrap_or_default(),
        payload,
        content_type: shown(row, at + 3)?,
        source: shown(row, at + 4)?,
        subject: shown(row, at + 5)?,
        external_id: shown(row, at + 7)?,
        correlation_id: shown(row, at + 8)?,
        causation_id: shown(row, at + 9)?,
        attributes: shown(row, at + 10)?,
        title: shown(row, at + 12)?,
        description: shown(row, at + 13)?,
        tags: tags::read(shown(row, at + 14)?),
        ..typed(row, at)?
    })
}

/// What is neither text nor payload; the rest is empty.
fn typed(row: &Row<'_>, at: usize) -> Result<Fact> {
    Ok(Fact {
        client: row.get::<_, Option<i64>>(at)?.map(Tsid::from_i64),
        event_type: String::new(),
        payload: Bytes::new(),
        content_type: None,
        source: None,
        subject: None,
        time: row.get::<_, Option<i64>>(at + 6)?.map(moment).transpose()?,
        external_id: None,
        correlation_id: None,
        causation_id: None,
        attributes: None,
        created_at: moment(row.get(at + 11)?)?,
        title: None,
        description: None,
        tags: Vec::new(),
        retry: tags::read_retry(shown(row, at + 15)?),
    })
}
