//! Schedules: a few rows that are read often and change with each tick. The table is small, so nothing but its key is
//! indexed.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Row, params};
use tidegate_core::{MissedTicks, Timestamp};

use super::SqliteStore;
use super::jobs::Urgency;
use super::publish::publish;
use super::tx::{Tx, entry_id, micros, moment};
use crate::error::{Error, Result};
use crate::schedules::{
    DueSchedules, ScheduleSpec, ScheduleView, Schedules, Tick, damaged, no_schedule, plan_pause, plan_put,
    read_template,
};
use crate::store::Published;

/// By the primary key.
const READ: &str = "SELECT name, cron, timezone, missed, paused, template, next_at, last_at, last_entry, ticks, \
    created_at, updated_at FROM {ns}_schedules";
/// By the primary key.
const WRITE: &str = "INSERT OR REPLACE INTO {ns}_schedules (name, cron, timezone, missed, paused, template, next_at, \
    last_at, last_entry, ticks, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
/// By the primary key.
const TICK: &str = "UPDATE {ns}_schedules SET next_at = ?3, last_at = coalesce(?4, last_at), \
    last_entry = coalesce(?5, last_entry), ticks = ticks + ?6 WHERE name = ?1 AND next_at = ?2 AND NOT paused";

#[async_trait]
impl Schedules for SqliteStore {
    async fn put_schedule(&self, spec: ScheduleSpec) -> Result<ScheduleView> {
        let cron = spec.check(self.inner.shared.options.payload_limit)?;
        self.write(Urgency::Publish, move |tx| {
            tx.queue(&spec.event.queue)?;
            let before = find(tx, &spec.name)?;
            match plan_put(before.as_ref(), &spec, &cron, moment(tx.now)?)? {
                Some(after) => save(tx, after),
                None => before.ok_or_else(|| no_schedule(&spec.name)),
            }
        })
        .await
    }

    async fn schedule(&self, name: &str) -> Result<Option<ScheduleView>> {
        let name = name.to_owned();
        self.read(move |tx| find(tx, &name)).await
    }

    async fn list_schedules(&self) -> Result<Vec<ScheduleView>> {
        self.read(|tx| read(tx, " ORDER BY name", &[])).await
    }

    async fn delete_schedule(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.write(Urgency::Publish, move |tx| {
            let sql = in_namespace(tx, "DELETE FROM {ns}_schedules WHERE name = ?1");
            Ok(tx.conn.prepare_cached(&sql)?.execute([name])? == 1)
        })
        .await
    }

    async fn pause_schedule(&self, name: &str, paused: bool) -> Result<ScheduleView> {
        let name = name.to_owned();
        self.write(Urgency::Publish, move |tx| {
            let before = find(tx, &name)?.ok_or_else(|| no_schedule(&name))?;
            match plan_pause(&before, paused, moment(tx.now)?)? {
                Some(after) => save(tx, after),
                None => Ok(before),
            }
        })
        .await
    }

    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules> {
        self.read(move |tx| {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let due =
                read(tx, " WHERE NOT paused AND next_at <= ?1 ORDER BY next_at, name LIMIT ?2", &[tx.now, limit])?;
            let sql = in_namespace(tx, "SELECT min(next_at) FROM {ns}_schedules WHERE NOT paused AND next_at > ?1");
            let next: Option<i64> = tx.conn.prepare_cached(&sql)?.query_row([tx.now], |row| row.get(0))?;
            Ok(DueSchedules { now: moment(tx.now)?, due, next_at: next.map(moment).transpose()? })
        })
        .await
    }

    async fn tick(&self, tick: Tick) -> Result<Option<Vec<Published>>> {
        self.write(Urgency::Publish, move |tx| {
            let waits =
                in_namespace(tx, "SELECT 1 FROM {ns}_schedules WHERE name = ?1 AND next_at = ?2 AND NOT paused");
            if !tx.conn.prepare_cached(&waits)?.exists((&tick.name, micros(tick.expected)))? {
                return Ok(None);
            }
            // All or nothing: an error here undoes the whole job.
            let published: Vec<Published> = publish(tx, &tick.events)?.into_iter().collect::<Result<_>>()?;
            let sql = in_namespace(tx, TICK);
            tx.conn.prepare_cached(&sql)?.execute(params![
                tick.name,
                micros(tick.expected),
                micros(tick.next_at),
                tick.last_at.map(micros),
                published.last().map(|last| last.id.get()),
                i64::try_from(tick.events.len()).unwrap_or(i64::MAX),
            ])?;
            Ok(Some(published))
        })
        .await
    }
}

fn in_namespace(tx: &Tx<'_>, sql: &str) -> String {
    sql.replace("{ns}", &tx.shared.options.namespace)
}

fn find(tx: &Tx<'_>, name: &str) -> Result<Option<ScheduleView>> {
    let sql = in_namespace(tx, READ) + " WHERE name = ?1";
    let raw = tx.conn.prepare_cached(&sql)?.query_row([name], |row| Ok(view(row))).optional()?;
    raw.transpose()
}

fn read(tx: &Tx<'_>, rest: &str, numbers: &[i64]) -> Result<Vec<ScheduleView>> {
    let sql = in_namespace(tx, READ) + rest;
    let mut statement = tx.conn.prepare_cached(&sql)?;
    let mut rows = statement.query(rusqlite::params_from_iter(numbers))?;
    let mut views = Vec::new();
    while let Some(row) = rows.next()? {
        views.push(view(row)?);
    }
    Ok(views)
}

fn save(tx: &Tx<'_>, after: ScheduleView) -> Result<ScheduleView> {
    let sql = in_namespace(tx, WRITE);
    let spec = &after.spec;
    tx.conn.prepare_cached(&sql)?.execute(params![
        spec.name,
        spec.cron,
        spec.timezone,
        spec.missed.code(),
        after.paused,
        spec.template()?,
        micros(after.next_at),
        after.last_at.map(micros),
        after.last_entry.map(|id| id.get()),
        i64::try_from(after.ticks).unwrap_or(i64::MAX),
        micros(after.created_at),
        micros(after.updated_at),
    ])?;
    Ok(after)
}

fn view(row: &Row<'_>) -> Result<ScheduleView> {
    let time = |index: usize| -> Result<Option<Timestamp>> {
        row.get::<_, Option<i64>>(index).map_err(Error::from)?.map(moment).transpose()
    };
    let must = |at: Option<Timestamp>| at.ok_or_else(|| damaged("a moment"));
    let template: String = row.get(5)?;
    let ticks: i64 = row.get(9)?;
    Ok(ScheduleView {
        spec: ScheduleSpec {
            name: row.get(0)?,
            cron: row.get(1)?,
            timezone: row.get(2)?,
            missed: MissedTicks::from_code(row.get(3)?).ok_or_else(|| damaged("a policy"))?,
            event: read_template(&template)?,
        },
        paused: row.get(4)?,
        next_at: must(time(6)?)?,
        last_at: time(7)?,
        last_entry: row.get::<_, Option<i64>>(8)?.map(entry_id).transpose()?,
        ticks: u64::try_from(ticks).unwrap_or(0),
        created_at: must(time(10)?)?,
        updated_at: must(time(11)?)?,
    })
}
