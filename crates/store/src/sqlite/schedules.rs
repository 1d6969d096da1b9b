//! Schedules on SQLite: a few rows that are read often and change with each tick. The table is small, so it has no
//! index but its primary key.

use async_trait::async_trait;
use rusqlite::params;

use crate::api::Schedules;
use crate::error::Result;
use crate::sqlite::engine::jobs::Urgency;
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::{Tx, micros, moment};
use crate::sqlite::publish::publish;
use crate::values::schedules::{no_schedule, plan_pause, plan_put};
use crate::values::{DueSchedules, Published, ScheduleSpec, ScheduleView, Tick};

#[async_trait]
impl Schedules for SqliteStore {
    async fn put_schedule(&self, spec: ScheduleSpec) -> Result<ScheduleView> {
        let cron = spec.check(self.inner.shared.options.payload_limit)?;
        self.entries_handle()
            .write(Urgency::Publish, move |tx| {
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
        self.entries_handle().read(move |tx| find(tx, &name)).await
    }

    async fn list_schedules(&self) -> Result<Vec<ScheduleView>> {
        self.entries_handle()
            .read(|tx| {
                let rows = tx.rows(&tx.sql().schedules.all_schedules, [])?;
                rows.into_iter().map(ScheduleView::try_from).collect()
            })
            .await
    }

    async fn delete_schedule(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.entries_handle()
            .write(Urgency::Publish, move |tx| Ok(tx.execute(&tx.sql().schedules.delete, [name])? == 1))
            .await
    }

    async fn pause_schedule(&self, name: &str, paused: bool) -> Result<ScheduleView> {
        let name = name.to_owned();
        self.entries_handle()
            .write(Urgency::Publish, move |tx| {
                let before = find(tx, &name)?.ok_or_else(|| no_schedule(&name))?;
                match plan_pause(&before, paused, moment(tx.now)?)? {
                    Some(after) => save(tx, after),
                    None => Ok(before),
                }
            })
            .await
    }

    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules> {
        self.entries_handle().read(move |tx| due(tx, limit)).await
    }

    async fn tick(&self, tick: Tick) -> Result<Option<Vec<Published>>> {
        self.entries_handle().write(Urgency::Publish, move |tx| make_tick(tx, &tick)).await
    }
}

fn find(tx: &Tx<'_>, name: &str) -> Result<Option<ScheduleView>> {
    tx.row(&tx.sql().schedules.by_name, [name])?.map(ScheduleView::try_from).transpose()
}

fn due(tx: &Tx<'_>, limit: usize) -> Result<DueSchedules> {
    let sql = &tx.sql().schedules;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let due = tx.rows(&sql.due, (tx.now, limit))?.into_iter().map(ScheduleView::try_from).collect::<Result<_>>()?;
    let next = tx.row(&sql.next_due, [tx.now])?.and_then(|next| next.0);
    Ok(DueSchedules { now: moment(tx.now)?, due, next_at: next.map(Into::into) })
}

fn make_tick(tx: &mut Tx<'_>, tick: &Tick) -> Result<Option<Vec<Published>>> {
    let sql = &tx.sql().schedules;
    if tx.row(&sql.waits, (&tick.name, micros(tick.expected)))?.is_none() {
        return Ok(None);
    }
    // All or nothing: an error here undoes the whole job.
    let published: Vec<Published> = publish(tx, &tick.events)?.into_iter().collect::<Result<_>>()?;
    let moved = params![
        tick.name,
        micros(tick.expected),
        micros(tick.next_at),
        tick.last_at.map(micros),
        published.last().map(|last| last.id.get()),
        i64::try_from(tick.events.len()).unwrap_or(i64::MAX),
    ];
    tx.execute(&sql.tick, moved)?;
    Ok(Some(published))
}

fn save(tx: &Tx<'_>, after: ScheduleView) -> Result<ScheduleView> {
    let spec = &after.spec;
    let row = params![
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
    ];
    tx.execute(&tx.sql().schedules.put, row)?;
    Ok(after)
}
