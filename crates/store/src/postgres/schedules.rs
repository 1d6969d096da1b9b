//! Schedules: a few rows that are read often and change with each tick. The table is small, so only its key is indexed.
//! A tick locks its schedule's row from the comparison to the commit: of two processes one waits, compares again, and
//! finds that the tick has taken place.

use async_trait::async_trait;
use tidegate_core::{Cron, NewEvent, Timestamp};
use tokio_postgres::types::ToSql;

use crate::api::Schedules;
use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::catalogue::Catalog;
use crate::postgres::engine::connection::{Begin, Tx};
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::{Inner, MAX_CATALOG_READS, PostgresStore, accept_catalog};
use crate::postgres::items::Item;
use crate::values::schedules::{damaged, no_schedule, plan_pause, plan_put};
use crate::values::{DueSchedules, Family, PublishOutcome, Published, ScheduleSpec, ScheduleView, Tick};

#[async_trait]
impl Schedules for PostgresStore {
    async fn put_schedule(&self, spec: ScheduleSpec) -> Result<ScheduleView> {
        let cron = spec.check(self.inner.shared.options.store.payload_limit)?;
        self.of(Family::Entries).detached(|inner| async move { inner.put_schedule(&spec, &cron).await }).await
    }

    async fn schedule(&self, name: &str) -> Result<Option<ScheduleView>> {
        let name = name.to_owned();
        self.of(Family::Entries).detached(|inner| async move { inner.schedule(&name).await }).await
    }

    async fn list_schedules(&self) -> Result<Vec<ScheduleView>> {
        self.of(Family::Entries).detached(|inner| async move { inner.list_schedules().await }).await
    }

    async fn delete_schedule(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.of(Family::Entries).detached(|inner| async move { inner.delete_schedule(&name).await }).await
    }

    async fn pause_schedule(&self, name: &str, paused: bool) -> Result<ScheduleView> {
        let name = name.to_owned();
        self.of(Family::Entries).detached(|inner| async move { inner.pause_schedule(&name, paused).await }).await
    }

    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules> {
        self.of(Family::Entries).detached(|inner| async move { inner.due_schedules(limit).await }).await
    }

    async fn tick(&self, tick: Tick) -> Result<Option<Vec<Published>>> {
        self.of(Family::Entries).detached(|inner| async move { inner.tick(&tick).await }).await
    }
}

impl Inner {
    async fn database_now(&self, tx: &Tx) -> Result<Timestamp, Fault> {
        let now = tx.row(&self.sql.schedules.now, &[&self.now()]).await?;
        now.map(|now| now.0.into()).ok_or_else(|| Fault::Final(damaged("a moment")))
    }

    async fn find_schedule(&self, tx: &Tx, name: &str) -> Result<Option<ScheduleView>, Fault> {
        let found = tx.row(&self.sql.schedules.by_name, &[&name]).await?;
        Ok(found.map(ScheduleView::try_from).transpose()?)
    }

    async fn lock_schedule(&self, tx: &Tx, name: &str) -> Result<Option<ScheduleView>, Fault> {
        let found = tx.row(&self.sql.schedules.lock, &[&name]).await?;
        Ok(found.map(ScheduleView::try_from).transpose()?)
    }

    async fn schedule(&self, name: &str) -> Result<Option<ScheduleView>> {
        self.read(|tx| async move { self.find_schedule(&tx, name).await }).await
    }

    async fn list_schedules(&self) -> Result<Vec<ScheduleView>> {
        let rows = self.read(|tx| async move { tx.rows(&self.sql.schedules.all_schedules, &[]).await }).await?;
        rows.into_iter().map(ScheduleView::try_from).collect()
    }

    async fn put_schedule(&self, spec: &ScheduleSpec, cron: &Cron) -> Result<ScheduleView> {
        self.queue(&spec.event.queue).await?;
        // The same definition changes nothing the second time.
        self.write_again(|tx| async move {
            let now = self.database_now(&tx).await?;
            let before = self.lock_schedule(&tx, &spec.name).await?;
            match plan_put(before.as_ref(), spec, cron, now)? {
                Some(after) => self.save_schedule(&tx, after, before.is_none()).await,
                None => before.ok_or_else(|| no_schedule(&spec.name).into()),
            }
        })
        .await
    }

    async fn pause_schedule(&self, name: &str, paused: bool) -> Result<ScheduleView> {
        self.write_again(|tx| async move {
            let now = self.database_now(&tx).await?;
            let before = self.lock_schedule(&tx, name).await?.ok_or_else(|| no_schedule(name))?;
            match plan_pause(&before, paused, now)? {
                Some(after) => self.save_schedule(&tx, after, false).await,
                None => Ok(before),
            }
        })
        .await
    }

    async fn save_schedule(&self, tx: &Tx, after: ScheduleView, is_new: bool) -> Result<ScheduleView, Fault> {
        let spec = &after.spec;
        let (missed, template) = (spec.missed.code(), spec.template()?);
        let params: [&(dyn ToSql + Sync); 8] = [
            &spec.name,
            &spec.cron,
            &spec.timezone,
            &missed,
            &after.paused,
            &template,
            &after.next_at,
            &after.updated_at,
        ];
        let sql = &self.sql.schedules;
        if tx.execute(if is_new { &sql.insert } else { &sql.update }, &params).await? == 0 {
            let why = "another caller created the schedule at the same time; try again";
            return Err(Fault::Again(Error::new(ErrorKind::Busy, why)));
        }
        Ok(after)
    }

    async fn delete_schedule(&self, name: &str) -> Result<bool> {
        self.write(
            |tx| async move { Ok(tx.execute(&self.sql.schedules.delete, &[&name]).await? == 1) },
            |tx, _| async move { Ok(self.find_schedule(&tx, name).await?.is_none()) },
        )
        .await
    }

    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let sql = &self.sql.schedules;
        self.read(|tx| async move {
            let now = self.database_now(&tx).await?;
            let due = tx.rows(&sql.due, &[&now, &limit]).await?;
            let due = due.into_iter().map(ScheduleView::try_from).collect::<Result<_>>()?;
            let next = tx.row(&sql.next_due, &[&now]).await?;
            Ok(DueSchedules { now, due, next_at: next.and_then(|next| next.0).map(Into::into) })
        })
        .await
    }

    async fn tick(&self, tick: &Tick) -> Result<Option<Vec<Published>>> {
        for event in &tick.events {
            event.check(self.shared.options.store.payload_limit)?;
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
            .transact(
                Begin::Write,
                |prelude| accept_catalog(catalog, prelude),
                |tx| async move { self.tick_in(&tx, catalog, tick, items).await },
                |tx, ticked: &Option<Vec<Published>>| {
                    let made = ticked.iter().flatten().find(|made| made.outcome == PublishOutcome::Created);
                    let made = made.map(|made| made.event_id.to_i64());
                    let written = ticked.is_some();
                    async move { self.has_ticked(&tx, tick, written, made).await }
                },
            )
            .await?;
        if ticked.is_some() {
            self.announce(items.iter().map(|item| item.queue_id));
        }
        Ok(ticked)
    }

    /// Whether a tick took place, after the answer to its commit was lost. `made` is an event that it published.
    async fn has_ticked(&self, tx: &Tx, tick: &Tick, written: bool, made: Option<i64>) -> Result<bool, Fault> {
        match made {
            Some(event_id) => {
                Ok(tx.row(&self.sql.publish.fact_exists, &[&event_id]).await?.is_some_and(|exists| exists.0))
            }
            // Nothing new was published, so it does not matter which process moved the schedule.
            None if written => {
                let now = self.find_schedule(tx, &tick.name).await?;
                Ok(now.is_none_or(|now| now.next_at != tick.expected))
            }
            None => Ok(true),
        }
    }

    async fn tick_in(
        &self,
        tx: &Tx,
        catalog: &Catalog,
        tick: &Tick,
        items: &[Item],
    ) -> Result<Option<Vec<Published>>, Fault> {
        let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
        let sql = &self.sql.schedules;
        let moved = tx.execute(&sql.tick, &[&tick.name, &tick.expected, &tick.next_at, &tick.last_at, &count]).await?;
        if moved == 0 {
            return Ok(None);
        }
        let keyed = items.iter().any(|item| item.event.deduplication.is_some());
        // Events of one tick may repeat a key, and see each other only when written one after the other.
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
            tx.execute(&sql.published, &[&tick.name, &last.id.get()]).await?;
        }
        Ok(Some(published))
    }
}
