//! Rows that hold what this program does not write: another type, or bytes that are no UTF-8. SQLite stores what it is
//! given, so a program with the file open can write them. Whoever only shows a row shows what there is; a claim sets the
//! entry aside as a dead letter, so that it stops nobody else.

use rusqlite::Row;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use tidegate_core::End;

use super::settle::{Ending, end_live, live};
use super::tx::Tx;
use crate::error::{Error, ErrorKind, Result};

/// A value as text, whatever it is; bytes that are no UTF-8 become replacement characters.
pub(super) struct Shown(pub(super) String);

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

/// A column as text, whatever it holds.
pub(super) fn shown(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<String>> {
    Ok(row.get::<_, Option<Shown>>(column)?.map(|shown| shown.0))
}

/// A column that is only read by people: it must be text, and need not be UTF-8.
pub(super) fn prose(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<String>> {
    match row.get_ref(column)? {
        ValueRef::Text(bytes) => Ok(Some(String::from_utf8_lossy(bytes).into_owned())),
        _ => row.get(column),
    }
}

/// An entry that cannot be read, and why.
#[derive(Debug)]
pub(super) struct Unreadable {
    id: i64,
    reason: String,
}

impl Unreadable {
    /// Why an entry cannot be read; an error that is not about its contents is an error still.
    pub(super) fn new(id: i64, error: Error) -> Result<Self> {
        if error.kind() == ErrorKind::Corrupt { Ok(Self { id, reason: error.to_string() }) } else { Err(error) }
    }

    /// Ends it as a dead letter that names the reason.
    pub(super) fn set_aside(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(live) = live(tx, self.id)? else { return Ok(()) };
        tracing::error!(
            entry = self.id,
            reason = self.reason,
            "an entry cannot be read and is a dead letter now: publish its event again, then discard it"
        );
        let reason = format!("the stored entry cannot be read: {}", self.reason);
        let errors = serde_json::to_string(&[&reason]).unwrap_or(reason);
        let ending = Ending { end: End::Failed, worker: None, errors: Some(&errors), results: None, raise_token: true };
        end_live(tx, self.id, &live, &ending)
    }
}
