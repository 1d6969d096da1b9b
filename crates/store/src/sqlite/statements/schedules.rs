//! Schedules: the table `schedules`, which is small and has no index but its primary key.

use tidegate_core::MissedTicks;

use crate::error::{Error, Result};
use crate::sql::{Only, statements};
use crate::sqlite::engine::row::{Moment, row};
use crate::sqlite::engine::tx::entry_id;
use crate::values::schedules::{damaged, read_template};
use crate::values::{ScheduleSpec, ScheduleView};

row! {
    /// A schedule.
    pub(in crate::sqlite) struct ScheduleRow {
        name: String,
        cron: String,
        timezone: String,
        missed: i16,
        paused: bool,
        template: String,
        next_at: Moment,
        last_at: Option<Moment>,
        last_entry: Option<i64>,
        ticks: i64,
        created_at: Moment,
        updated_at: Moment,
    }
}

impl TryFrom<ScheduleRow> for ScheduleView {
    type Error = Error;

    fn try_from(row: ScheduleRow) -> Result<Self> {
        Ok(Self {
            spec: ScheduleSpec {
                name: row.name,
                cron: row.cron,
                timezone: row.timezone,
                missed: MissedTicks::from_code(row.missed).ok_or_else(|| damaged("a policy"))?,
                event: read_template(&row.template)?,
            },
            paused: row.paused,
            next_at: row.next_at.into(),
            last_at: row.last_at.map(Into::into),
            last_entry: row.last_entry.map(entry_id).transpose()?,
            ticks: u64::try_from(row.ticks).unwrap_or(0),
            created_at: row.created_at.into(),
            updated_at: row.updated_at.into(),
        })
    }
}

statements! {
    /// Statements about schedules.
    pub(in crate::sqlite) struct Schedules {
        /// A schedule by name. Primary key.
        by_name: ScheduleRow = "SELECT {columns} FROM {ns}_schedules WHERE name = ?1";
        /// All schedules. Primary key, whole.
        all_schedules: ScheduleRow = "SELECT {columns} FROM {ns}_schedules ORDER BY name";
        /// Schedules that are due. The table, whole.
        due: ScheduleRow = "
            SELECT {columns} FROM {ns}_schedules WHERE NOT paused AND next_at <= ?1 ORDER BY next_at, name LIMIT ?2";
        /// When the next schedule is due that is not due yet. The table, whole.
        next_due: Only<Option<Moment>> = "
            SELECT min(next_at) FROM {ns}_schedules WHERE NOT paused AND next_at > ?1";
        /// Creates or replaces a schedule. Primary key.
        put = "
            INSERT OR REPLACE INTO {ns}_schedules (name, cron, timezone, missed, paused, template, next_at, last_at,
                last_entry, ticks, created_at, updated_at)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
        /// Deletes a schedule. Primary key.
        delete = "DELETE FROM {ns}_schedules WHERE name = ?1";
        /// Whether a schedule still waits for the expected tick. Primary key.
        waits: Only<i64> = "SELECT 1 FROM {ns}_schedules WHERE name = ?1 AND next_at = ?2 AND NOT paused";
        /// Moves a schedule to its next tick, if it still waits for the expected one. Primary key.
        tick = "
            UPDATE {ns}_schedules SET next_at = ?3, last_at = coalesce(?4, last_at),
                last_entry = coalesce(?5, last_entry), ticks = ticks + ?6
            WHERE name = ?1 AND next_at = ?2 AND NOT paused";
    }
}
