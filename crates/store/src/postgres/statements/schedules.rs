//! Schedules: the table `schedules`, which is small and has no index but its primary key.

use tidegate_core::{EntryId, MissedTicks};

use crate::error::{Error, Result};
use crate::postgres::engine::row::{Moment, row};
use crate::sql::{Only, statements};
use crate::values::schedules::{damaged, read_template};
use crate::values::{ScheduleSpec, ScheduleView};

row! {
    /// A schedule.
    pub(in crate::postgres) struct ScheduleRow {
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
        let last_entry = row.last_entry.map(EntryId::new).transpose();
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
            last_entry: last_entry.map_err(|error| damaged("an entry's number").with_source(error))?,
            ticks: u64::try_from(row.ticks).unwrap_or(0),
            created_at: row.created_at.into(),
            updated_at: row.updated_at.into(),
        })
    }
}

statements! {
    /// Statements about schedules.
    pub(in crate::postgres) struct Schedules {
        /// The present moment: the one that tests set, else the clock's.
        now: Only<Moment> = "SELECT coalesce($1::timestamptz, clock_timestamp())";
        /// A schedule by name (primary key).
        by_name: ScheduleRow = "SELECT {columns} FROM {ns}.schedules WHERE name = $1";
        /// The same, locked until the transaction ends.
        lock: ScheduleRow = "SELECT {columns} FROM {ns}.schedules WHERE name = $1 FOR UPDATE";
        /// All schedules (the table, whole).
        all_schedules: ScheduleRow = "SELECT {columns} FROM {ns}.schedules ORDER BY name";
        /// Schedules that are due (the table, whole).
        due: ScheduleRow = "
            SELECT {columns} FROM {ns}.schedules WHERE NOT paused AND next_at <= $1 ORDER BY next_at, name LIMIT $2";
        /// When the next schedule is due that is not due yet (the table, whole).
        next_due: Only<Option<Moment>> = "
            SELECT min(next_at) FROM {ns}.schedules WHERE NOT paused AND next_at > $1";
        /// Adds a schedule, unless there is one of that name (primary key).
        insert = "
            INSERT INTO {ns}.schedules
                (name, cron, timezone, missed, paused, template, next_at, created_at, updated_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8) ON CONFLICT DO NOTHING";
        /// Changes a schedule (primary key).
        update = "
            UPDATE {ns}.schedules
            SET cron = $2, timezone = $3, missed = $4, paused = $5, template = $6, next_at = $7, updated_at = $8
            WHERE name = $1";
        /// Deletes a schedule (primary key).
        delete = "DELETE FROM {ns}.schedules WHERE name = $1";
        /// Moves a schedule to its next tick, if it still waits for the expected one (primary key).
        tick = "
            UPDATE {ns}.schedules SET next_at = $3, last_at = coalesce($4, last_at), ticks = ticks + $5
            WHERE name = $1 AND next_at = $2 AND NOT paused";
        /// Records the entry that a schedule published last (primary key).
        published = "UPDATE {ns}.schedules SET last_entry = $2 WHERE name = $1";
    }
}
