//! Schedules: a few rows that are read often and change with each tick. The table is small, so nothing but its key is
//! indexed. A tick holds its schedule's row from the comparison to the commit, so that of two processes one waits, looks
//! again, and finds that the tick is gone.

use async_trait::async_trait;
use futures_util::FutureExt;
use tidegate_core::{Cron, EntryId, MissedTicks, NewEvent, Timestamp};
use tokio_postgres::Row;

use super::catalog::Catalog;
use super::connection::{Begin, Tx};
use super::errors::Fault;
use super::items::Item;
use super::{Inner, MAX_CATALOG_READS, PostgresStore, accept_catalog};
use crate::error::{Error, ErrorKind, Result};
use crate::schedules::{
    DueSchedules, ScheduleSpec, ScheduleView, Schedules, Tick, damaged, no_schedule, plan_pause, plan_put,
    read_template,
};
use crate::store::{PublishOutcome, Published};

/// By the primary key.
const READ: &str = "SELECT name, cron, timezone, missed, paused, template, next_at, last_at, last_entry, ticks, \
    created_at, updated_at FROM {ns}.schedules";
/// Into the primary key.
const INSERT: &str = "INSERT INTO {ns}.schedules (name, cron, timezone, missed, paused, template, next_at, created_at, \
    updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8) ON CONFLICT DO NOTHING";
/// By the primary key.
const UPDATE: &str = "UPDATE {ns}.schedules SET cron = $2, timezone = $3, missed = $4, paused = $5, template = $6, \
    next_at = $7, updated_at = $8 WHERE name = $1";
/// By the primary key.
const TICK: &str = "UPDATE {ns}.schedules SET next_at = $3, last_at = coalesce($4, last_at), ticks = ticks + $5 \
    WHERE name = $1 AND next_at = $2 AND NOT paused";
const NOW: &str = "SELECT coalesce($1::timestamptz, clock_timestamp())";

#[async_trait]
impl Schedules for PostgresStore {
    async fn put_schedule(&self, spec: ScheduleSpec) -> Result<ScheduleView> {
        let cron = spec.check(self.inner.options.store.payload_limit)?;
        self.detached(|inner| async move { inner.put_schedule(&spec, &cron).await }).await
    }

    async fn schedule(&self, name: &str) -> Result<Option<ScheduleView>> {
        let name = name.to_owned();
        self.detached(|inner| async move {
            let reader = inner.database.reader_patiently().await?;
            inner.find_schedule(&reader, &name, "").await.map_err(Fault::into_error)
        })
        .await
    }

    async fn list_schedules(&self) -> Result<Vec<ScheduleView>> {
        self.detached(|inner| async move {
            let reader = inner.database.reader_patiently().await?;
            let rows = reader.query(&inner.in_namespace(READ, " ORDER BY name"), &[]).await;
            rows.map_err(Fault::into_error)?.iter().map(view).collect()
        })
        .await
    }

    async fn delete_schedule(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.detached(|inner| async move { inner.delete_schedule(&name).await }).await
    }

    async fn pause_schedule(&self, name: &str, paused: bool) -> Result<ScheduleView> {
        let name = name.to_owned();
        self.detached(|inner| async move { inner.pause_schedule(&name, paused).await }).await
    }

    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules> {
        self.detached(|inner| async move { inner.due_schedules(limit).await }).await
    }

    async fn tick(&self, tick: Tick) -> Result<Option<Vec<Published>>> {
        self.detached(|inner| async move { inner.tick(&tick).await }).await
    }
}

impl Inner {
    fn in_namespace(&self, sql: &str, rest: &str) -> String {
        sql.replace("{ns}", &self.options.schema()) + rest
    }

    async fn find_schedule(&self, tx: &Tx, name: &str, lock: &str) -> Result<Option<ScheduleView>, Fault> {
        let rows = tx.query(&self.in_namespace(READ, &format!(" WHERE name = $1{lock}")), &[&name]).await?;
        Ok(rows.first().map(view).transpose()?)
    }

    async fn database_now(&self, tx: &Tx) -> Result<Timestamp, Fault> {
        let rows = tx.query(NOW, &[&self.now()]).await?;
        rows.first().map(|row| row.get(0)).ok_or_else(|| Fault::Final(damaged("a moment")))
    }

    async fn put_schedule(&self, spec: &ScheduleSpec, cron: &Cron) -> Result<ScheduleView> {
        self.queue(&spec.event.queue).await?;
        let put = self
            .database
            .transact(
                Begin::Write,
                &|_| Ok(()),
                &|tx| {
                    async move {
                        let now = self.database_now(&tx).await?;
                        let before = self.find_schedule(&tx, &spec.name, " FOR UPDATE").await?;
                        match plan_put(before.as_ref(), spec, cron, now)? {
                            Some(after) => self.save_schedule(&tx, after, before.is_none()).await,
                            None => before.ok_or_else(|| no_schedule(&spec.name).into()),
                        }
                    }
                    .boxed()
                },
                // Put again, the same definition changes nothing.
                &|_, _| async { Ok(false) }.boxed(),
            )
            .await;
        put.map_err(Fault::into_error)
    }

    async fn pause_schedule(&self, name: &str, paused: bool) -> Result<ScheduleView> {
        let changed = self
            .database
            .transact(
                Begin::Write,
                &|_| Ok(()),
                &|tx| {
                    async move {
                        let now = self.database_now(&tx).await?;
                        let before = self.find_schedule(&tx, name, " FOR UPDATE").await?;
                        let before = before.ok_or_else(|| no_schedule(name))?;
                        match plan_pause(&before, paused, now)? {
                            Some(after) => self.save_schedule(&tx, after, false).await,
                            None => Ok(before),
                        }
                    }
                    .boxed()
                },
                &|_, _| async { Ok(false) }.boxed(),
            )
            .await;
        changed.map_err(Fault::into_error)
    }

    async fn save_schedule(&self, tx: &Tx, after: ScheduleView, is_new: bool) -> Result<ScheduleView, Fault> {
        let spec = &after.spec;
        let sql = self.in_namespace(if is_new { INSERT } else { UPDATE }, "");
        let (missed, template) = (spec.missed.code(), spec.template()?);
        let written = tx
            .execute(
                &sql,
                &[
                    &spec.name,
                    &spec.cron,
                    &spec.timezone,
                    &missed,
                    &after.paused,
                    &template,
                    &after.next_at,
                    &after.updated_at,
                ],
            )
            .await?;
        if written == 0 {
            return Err(Fault::Again(Error::new(ErrorKind::Busy, "somebody else made the schedule meanwhile")));
        }
        Ok(after)
    }

    async fn delete_schedule(&self, name: &str) -> Result<bool> {
        let sql = &self.in_namespace("DELETE FROM {ns}.schedules WHERE name = $1", "");
        let gone = self
            .database
            .transact(
                Begin::Write,
                &|_| Ok(()),
                &|tx| async move { Ok(tx.execute(sql, &[&name]).await? == 1) }.boxed(),
                &|tx, _| async move { Ok(self.find_schedule(&tx, name, "").await?.is_none()) }.boxed(),
            )
            .await;
        gone.map_err(Fault::into_error)
    }

    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules> {
        let reader = self.database.reader_patiently().await?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let due = async {
            let now = self.database_now(&reader).await?;
            let rest = " WHERE NOT paused AND next_at <= $1 ORDER BY next_at, name LIMIT $2";
            let due = reader.query(&self.in_namespace(READ, rest), &[&now, &limit]).await?;
            let next = "SELECT min(next_at) FROM {ns}.schedules WHERE NOT paused AND next_at > $1";
            let next = reader.query(&self.in_namespace(next, ""), &[&now]).await?;
            let due = due.iter().map(view).collect::<Result<_>>()?;
            Ok(DueSchedules { now, due, next_at: next.first().and_then(|row| row.get(0)) })
        };
        due.await.map_err(Fault::into_error)
    }

    async fn tick(&self, tick: &Tick) -> Result<Option<Vec<Published>>> {
        for event in &tick.events {
            event.check(self.options.store.payload_limit)?;
        }
        let events: Vec<(usize, NewEvent)> = tick.events.iter().cloned().enumerate().collect();
        for _ in 0..MAX_CATALOG_READS {
            let catalog = self.catalog().await?;
            match self.tick_once(&catalog, tick, &events).await {
                Err(Fault::StaleCatalog) => self.reload_catalog().await?,
                ticked => return ticked.map_err(Fault::into_error),
            }
        }
        Err(Fault::StaleCatalog.into_error())
    }

    async fn tick_once(
        &self,
        catalog: &Catalog,
        tick: &Tick,
        events: &[(usize, NewEvent)],
    ) -> Result<Option<Vec<Published>>, Fault> {
        let (items, refused) = self.place(catalog, events).await?;
        if let Some((_, refusal)) = refused.into_iter().next() {
            if !self.catalog_stands(catalog).await? {
                return Err(Fault::StaleCatalog);
            }
            refusal?;
        }
        let items = &items;
        let ticked = self
            .database
            .transact(
                Begin::Write,
                &|prelude| accept_catalog(catalog, prelude),
                &|tx| async move { self.tick_in(&tx, catalog, tick, items).await }.boxed(),
                &|tx, ticked| {
                    let made = ticked.iter().flatten().find(|made| made.outcome == PublishOutcome::Created);
                    let made = made.map(|made| made.event_id.to_i64());
                    let written = ticked.is_some();
                    async move {
                        match made {
                            Some(event_id) => {
                                let rows = tx.query(&self.sql.fact_exists, &[&event_id]).await?;
                                Ok(rows.first().is_some_and(|row| row.get(0)))
                            }
                            // Nothing new was published: whoever moved the schedule on, it comes to the same.
                            None if written => {
                                let now = self.find_schedule(&tx, &tick.name, "").await?;
                                Ok(now.is_none_or(|now| now.next_at != tick.expected))
                            }
                            None => Ok(true),
                        }
                    }
                    .boxed()
                },
            )
            .await?;
        if ticked.is_some() {
            self.announce(items.iter().map(|item| item.queue_id));
        }
        Ok(ticked)
    }

    async fn tick_in(
        &self,
        tx: &Tx,
        catalog: &Catalog,
        tick: &Tick,
        items: &[Item],
    ) -> Result<Option<Vec<Published>>, Fault> {
        let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
        let sql = self.in_namespace(TICK, "");
        let moved = tx.execute(&sql, &[&tick.name, &tick.expected, &tick.next_at, &tick.last_at, &count]).await?;
        if moved == 0 {
            return Ok(None);
        }
        let keyed = items.iter().any(|item| item.event.deduplication.is_some());
        // Repeats of a key see each other only one after the other.
        let step = if keyed { 1 } else { items.len().max(1) };
        let mut published = Vec::with_capacity(items.len());
        for part in items.chunks(step) {
            let mut answers = self.write_items(tx, catalog, part, keyed).await?;
            answers.sort_by_key(|(index, _)| *index);
            for (_, answer) in answers {
                published.push(answer?);
            }
        }
        if let Some(last) = published.last() {
            let sql = self.in_namespace("UPDATE {ns}.schedules SET last_entry = $2 WHERE name = $1", "");
            tx.execute(&sql, &[&tick.name, &last.id.get()]).await?;
        }
        Ok(Some(published))
    }
}

fn view(row: &Row) -> Result<ScheduleView> {
    let last_entry = row.get::<_, Option<i64>>(8).map(EntryId::new).transpose();
    Ok(ScheduleView {
        spec: ScheduleSpec {
            name: row.get(0),
            cron: row.get(1),
            timezone: row.get(2),
            missed: MissedTicks::from_code(row.get(3)).ok_or_else(|| damaged("a policy"))?,
            event: read_template(row.get(5))?,
        },
        paused: row.get(4),
        next_at: row.get(6),
        last_at: row.get(7),
        last_entry: last_entry.map_err(|error| damaged("an entry's number").with_source(error))?,
        ticks: u64::try_from(row.get::<_, i64>(9)).unwrap_or(0),
        created_at: row.get(10),
        updated_at: row.get(11),
    })
}

/// The statements, for those who look at their plans.
#[cfg(test)]
pub(super) fn statements(namespace: &str) -> Vec<(String, String)> {
    [("insert", INSERT), ("update", UPDATE), ("tick", TICK), ("read", READ)]
        .into_iter()
        .map(|(name, sql)| (format!("schedule {name}"), sql.replace("{ns}", namespace)))
        .collect()
}
