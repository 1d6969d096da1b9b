//! Reads facts back.

use bytes::Bytes;
use rusqlite::Row;
use tidegate_core::Tsid;

use super::tags;
use super::tx::moment;
use crate::error::Result;
use crate::store::Fact;

/// Reads the columns that `queries::fact!` names, from column `at` on.
pub(super) fn read(row: &Row<'_>, at: usize) -> Result<Fact> {
    Ok(Fact {
        client: row.get::<_, Option<i64>>(at)?.map(Tsid::from_i64),
        event_type: row.get(at + 1)?,
        payload: Bytes::copy_from_slice(row.get_ref(at + 2)?.as_blob().map_err(rusqlite::Error::from)?),
        content_type: row.get(at + 3)?,
        source: row.get(at + 4)?,
        subject: row.get(at + 5)?,
        time: row.get::<_, Option<i64>>(at + 6)?.map(moment).transpose()?,
        external_id: row.get(at + 7)?,
        correlation_id: row.get(at + 8)?,
        causation_id: row.get(at + 9)?,
        attributes: row.get(at + 10)?,
        created_at: moment(row.get(at + 11)?)?,
        title: row.get(at + 12)?,
        description: row.get(at + 13)?,
        tags: tags::read(row.get(at + 14)?),
        retry: tags::read_retry(row.get(at + 15)?)?,
    })
}
