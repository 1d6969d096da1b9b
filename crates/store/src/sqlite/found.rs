//! An entry as it is found: live, or its last log row.

use tidegate_core::{End, LeaseToken};

use crate::error::{Error, Result};
use crate::sqlite::engine::row::{Shown, end_of};
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::statements::end::{LiveRow, LogRow};

/// The columns of a live entry that decisions depend on.
pub(super) struct Live {
    pub(super) token: LeaseToken,
    pub(super) leased: bool,
    pub(super) queue_id: i64,
    pub(super) group: Option<String>,
    pub(super) worker: Option<String>,
    pub(super) flags: Option<i64>,
    pub(super) event_id: i64,
    pub(super) attempts: u32,
    pub(super) max_attempts: u32,
    pub(super) generation: u32,
    /// When the lease was taken.
    pub(super) since: Option<i64>,
    pub(super) expires_at: Option<i64>,
    exhausted_as: i16,
}

impl Live {
    /// How it ends when it is exhausted; of a kept one, how it was exhausted.
    pub(super) fn exhausted_as(&self) -> Result<End> {
        end_of(self.exhausted_as)
    }
}

pub(super) fn live(tx: &Tx<'_>, id: i64) -> Result<Option<Live>> {
    Ok(tx.row(&tx.sql().end.live, [id])?.map(Live::from))
}

impl From<LiveRow> for Live {
    fn from(row: LiveRow) -> Self {
        Self {
            token: LeaseToken(row.token),
            leased: row.lease_until.is_some(),
            queue_id: row.queue_id,
            group: row.group_key.map(|Shown(group)| group),
            worker: row.worker,
            flags: row.flags,
            event_id: row.event_id,
            attempts: row.attempts,
            max_attempts: row.max_attempts,
            generation: row.generation,
            since: row.processing_started_at,
            expires_at: row.expires_at,
            exhausted_as: row.exhausted_as,
        }
    }
}

/// The last log row of an entry.
pub(super) struct LastLog {
    pub(super) seq: i64,
    pub(super) generation: u32,
    pub(super) token: LeaseToken,
    pub(super) end: End,
    pub(super) superseded: bool,
    pub(super) queue_id: i64,
    pub(super) group: Option<String>,
    pub(super) has_readable_group: bool,
    pub(super) flags: Option<i64>,
    pub(super) event_id: i64,
    pub(super) attempts: u32,
}

pub(super) fn last_log(tx: &Tx<'_>, id: i64) -> Result<Option<LastLog>> {
    tx.row(&tx.sql().end.last_log, [id])?.map(LastLog::try_from).transpose()
}

impl TryFrom<LogRow> for LastLog {
    type Error = Error;

    fn try_from(row: LogRow) -> Result<Self> {
        Ok(Self {
            seq: row.seq,
            generation: row.generation,
            token: LeaseToken(row.token),
            end: end_of(row.status)?,
            superseded: row.superseded,
            queue_id: row.queue_id,
            has_readable_group: row.group_key.as_ref().is_none_or(|group| group.is_readable),
            group: row.group_key.map(|group| group.shown),
            flags: row.flags,
            event_id: row.event_id,
            attempts: row.attempts,
        })
    }
}
