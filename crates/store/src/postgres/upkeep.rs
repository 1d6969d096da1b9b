//! Regular upkeep: the heartbeat, arrivals, expired keys, partitions to come; and changes of queues.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tidegate_core::{QueueConfig, QueueName, QueueState, Timestamp, Tsid, id::TSID_EPOCH_MS};

use super::Inner;
use super::connection::{Begin, Prelude, Tx};
use super::errors::Fault;
use super::tags::tagged;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Batch, Consumer, QueueChange, Upkeep};

/// Entry ids per partition of the log.
const LOG_PARTITION_IDS: i64 = 20_000_000;
/// How often partitions to come are looked after.
const PARTITIONS_EVERY: Duration = Duration::from_secs(600);
/// A session that does nothing within a transaction for this long is ended by the server.
const LONGEST_TRANSACTION: Duration = Duration::from_secs(60);
/// How soon again, where somebody was in the way.
const PARTITIONS_AGAIN: Duration = Duration::from_secs(5);

/// How a heartbeat found the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beat {
    InTime,
    AfterOutage(Duration),
    ClockWentBack(Duration),
}

impl Inner {
    pub(super) async fn maintain(&self) -> Result<Upkeep> {
        let outage = self.beat().await?;
        let promoted = self.sort_arrivals().await?;
        let groups_mended = self.mend_groups().await?;
        let keys_expired = self.expire_keys().await?;
        if self.partitions_due() {
            self.add_partitions().await?;
        }
        self.maintain_for_all().await?;
        self.count_log().await?;
        Ok(Upkeep { promoted: promoted + groups_mended, keys_expired, outage, groups_mended })
    }

    /// Refuses to write or to take over a lease while the heartbeat does not fit the clock. On a clock that tests move nothing
    /// was ever down.
    pub(super) fn accept_clock(&self, prelude: Prelude) -> Result<(), Fault> {
        if self.now().is_none() && !prelude.heartbeat_near { Err(Fault::StaleHeartbeat) } else { Ok(()) }
    }

    /// Writes the heartbeat. Where it does not fit the clock, leases are moved first: by the gap, if they were held at the
    /// last beat and that is long ago; from now on, if they were written while it was ahead.
    pub(super) async fn beat(&self) -> Result<Option<Duration>> {
        if self.now().is_some() {
            return Ok(None);
        }
        let beaten = self
            .heart
            .transact(Begin::Lazy, &|_| Ok(()), &|tx| async move { self.beat_in(&tx).await }.boxed(), &|_, _| {
                async { Ok(true) }.boxed()
            })
            .await;
        match beaten.map_err(Fault::into_error)? {
            Beat::InTime => Ok(None),
            Beat::AfterOutage(outage) => {
                tracing::warn!(?outage, "the store had been down or blocked: leases were moved by that time");
                Ok(Some(outage))
            }
            Beat::ClockWentBack(by) => {
                tracing::warn!(
                    ?by,
                    "the database's clock went back: leases that were written while it was ahead begin anew"
                );
                Ok(None)
            }
        }
    }

    async fn beat_in(&self, tx: &Tx) -> Result<Beat, Fault> {
        let often = Duration::from_millis(800).min(self.options.store.outage_after / 4);
        let mut found = None;
        // Locked only once it is clear that it is to be written: many nodes look, one writes.
        for look in [&self.sql.heartbeat, &self.sql.lock_heartbeat] {
            let rows = tx.query(look, &[]).await?;
            let Some(row) = rows.first() else { return Ok(Beat::InTime) };
            let (last, now): (Timestamp, Timestamp) = (row.get(0), row.get(1));
            let gap = now.duration_since(last).unsigned_abs();
            if gap < often && now >= last {
                return Ok(Beat::InTime);
            }
            found = Some((last, now, gap));
        }
        let Some((last, now, gap)) = found else { return Ok(Beat::InTime) };
        let judged = Instant::now();
        tx.draw_xid().await?;
        let beat = match gap > self.options.store.outage_after {
            false => {
                if self.clock_went_back_lately() {
                    self.shift_back(tx, now).await?;
                }
                Beat::InTime
            }
            true if now >= last => {
                tx.query(&self.sql.shift_leases, &[&now, &last]).await?;
                tx.query(&self.sql.work.shift_tag_leases, &[&now, &last]).await?;
                Beat::AfterOutage(gap)
            }
            true => {
                *self.went_back.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                self.shift_back(tx, now).await?;
                Beat::ClockWentBack(gap)
            }
        };
        // The moment that was judged, and the time since by our own clock, for moving many leases may take long: a clock that
        // is set meanwhile is seen by the next beat.
        let at = now.checked_add(judged.elapsed()).unwrap_or(now);
        tx.query(&self.sql.beat, &[&at]).await?;
        Ok(beat)
    }

    /// Leases that were written while the clock was ahead begin anew.
    async fn shift_back(&self, tx: &Tx, now: Timestamp) -> Result<(), Fault> {
        let moved = tx.query(&self.sql.shift_leases_back, &[&now]).await?;
        self.follow_tags(tx, &tagged(&moved, 0, 1)).await
    }

    /// Whether a transaction that began before the clock went back may just have committed its leases.
    fn clock_went_back_lately(&self) -> bool {
        let went_back = self.went_back.lock().unwrap_or_else(PoisonError::into_inner);
        went_back.is_some_and(|at| at.elapsed() < LONGEST_TRANSACTION)
    }

    /// Merges the change into what stands, under the queue's row lock: two changes at once both count. A change that
    /// changes nothing writes nothing.
    pub(super) async fn put_queue(&self, name: &QueueName, change: QueueChange) -> Result<QueueConfig> {
        let (change, resumes) = (&change, change.state == Some(QueueState::Active));
        let (config, written) = self
            .database
            .transact(
                Begin::Write,
                &|_| Ok(()),
                &|tx| async move { self.write_queue(&tx, name, change.clone()).await }.boxed(),
                // What was written may stand: merging it again changes nothing.
                &|_, _| async { Ok(false) }.boxed(),
            )
            .await
            .map_err(Fault::into_error)?;
        if written || self.catalog().await?.queue(name).is_err() {
            self.reload_catalog().await?;
        }
        if resumes {
            self.announce(self.catalog().await?.queue(name).ok().map(|queue| queue.id));
        }
        Ok(config)
    }

    async fn write_queue(&self, tx: &Tx, name: &QueueName, change: QueueChange) -> Result<(QueueConfig, bool), Fault> {
        let client = name.client().map(Tsid::to_i64);
        let made = tx.execute(&self.sql.make_queue, &[&name.name(), &client]).await? > 0;
        let rows = tx.query(&self.sql.lock_queue, &[&name.name(), &client]).await?;
        let row = rows.first().ok_or_else(|| Error::new(ErrorKind::Corrupt, "the queue was not written"))?;
        let settings: Option<String> = row.get(3);
        let damaged = |_| Error::new(ErrorKind::Corrupt, format!("queue {name} has a bad setting"));
        let mut config = QueueConfig {
            name: name.clone(),
            state: QueueState::from_code(row.get(1)).unwrap_or_default(),
            depth_limit: row.get::<_, Option<i64>>(2).map(|limit| u64::try_from(limit).unwrap_or(0)),
            settings: super::catalog::read_settings(settings.as_deref()).map_err(damaged)?,
        };
        let before = config.clone();
        change.apply(&mut config)?;
        let changed = config != before;
        if changed {
            let limit = config.depth_limit.and_then(|limit| i64::try_from(limit).ok());
            let text = crate::work::settings_text(&config.settings)?;
            let id: i32 = row.get(0);
            tx.execute(&self.sql.put_queue, &[&id, &config.state.code(), &limit, &text]).await?;
        }
        Ok((config, made || changed))
    }

    pub(super) async fn consumers_seen(&self, consumers: Vec<Consumer>) -> Result<Batch<()>> {
        let mut answers = Vec::with_capacity(consumers.len());
        let (mut workers, mut queues, mut types): (Vec<&str>, Vec<i32>, Vec<Option<String>>) = Default::default();
        for consumer in &consumers {
            let answer = self.check_consumer(consumer).await;
            if let Ok(queue_id) = &answer {
                workers.push(&consumer.worker);
                queues.push(*queue_id);
                types.push(consumer.wants().map(|wants| serde_json::Value::from(wants).to_string()));
            }
            answers.push(answer.map(drop));
        }
        let reader = self.database.reader().await.map_err(Fault::into_error)?;
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [&self.now(), &workers, &queues, &types];
        reader.execute(&self.sql.consumers_seen, &params).await.map_err(Fault::into_error)?;
        Ok(answers)
    }

    async fn check_consumer(&self, consumer: &Consumer) -> Result<i32> {
        consumer.check()?;
        Ok(self.queue(&consumer.queue).await?.id)
    }

    fn partitions_due(&self) -> bool {
        let mut last = self.partitions_at.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= PARTITIONS_EVERY);
        if due {
            *last = Some(std::time::Instant::now());
        }
        due
    }

    /// Has partitions looked after again before rows of their range come.
    fn partitions_soon(&self) {
        let soon = std::time::Instant::now().checked_sub(PARTITIONS_EVERY.saturating_sub(PARTITIONS_AGAIN));
        *self.partitions_at.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = soon;
    }

    /// Makes the partitions of this and the next two months (facts), and of the id ranges to come (log). A new table is
    /// attached under short limits, for while the database looks through the default partition for rows that belong to it,
    /// nobody reads or writes that one; failing that, rows go to the default partition, which is allowed. Once that has
    /// rows of a range, there is no partition for the range any more.
    pub(super) async fn add_partitions(&self) -> Result<()> {
        let reader = self.database.reader().await.map_err(Fault::into_error)?;
        let next = format!("SELECT last_value FROM {}.entry_id", self.options.schema());
        let rows = reader.query(&next, &[]).await.map_err(Fault::into_error)?;
        let last_id: i64 = rows.first().map_or(1, |row| row.get(0));
        drop(reader);
        let now = self.now().unwrap_or_else(Timestamp::now);
        let mut wanted = month_partitions(now);
        wanted.extend(log_partitions(last_id));
        for partition in wanted {
            let made = self
                .database
                .transact(
                    Begin::Write,
                    &|_| Ok(()),
                    &|tx| {
                        let sql = partition.sql(&self.options.schema());
                        async move { tx.run(&sql).await }.boxed()
                    },
                    &|_, ()| async { Ok(true) }.boxed(),
                )
                .await;
            if let Err(fault) = made {
                let error = fault.into_error();
                tracing::warn!(%error, partition = partition.name, "a partition could not be made now");
                if error.kind() == ErrorKind::Busy {
                    self.partitions_soon();
                }
            }
        }
        Ok(())
    }
}

/// One partition: its parent, its name, and its range of ids.
#[derive(Debug, PartialEq, Eq)]
struct Partition {
    parent: &'static str,
    name: String,
    from: i64,
    to: i64,
}

impl Partition {
    fn sql(&self, ns: &str) -> String {
        let Self { parent, name, from, to } = self;
        format!(
            "SET LOCAL lock_timeout = '50ms';
             SET LOCAL statement_timeout = '250ms';
             DO $$ BEGIN
               IF to_regclass('{ns}.{name}') IS NULL THEN
                 IF EXISTS (SELECT FROM {ns}.{parent}_default WHERE id >= {from} AND id < {to}) THEN
                   RAISE EXCEPTION 'the default partition holds rows of its range' USING ERRCODE = 'object_in_use';
                 END IF;
                 CREATE TABLE {ns}.{name} (LIKE {ns}.{parent} INCLUDING ALL);
                 ALTER TABLE {ns}.{parent} ATTACH PARTITION {ns}.{name} FOR VALUES FROM ({from}) TO ({to});
               END IF;
             EXCEPTION WHEN duplicate_table OR unique_violation THEN NULL;
             END $$"
        )
    }
}

fn month_partitions(now: Timestamp) -> Vec<Partition> {
    let today = now.to_zoned(jiff::tz::TimeZone::UTC).date().first_of_month();
    let month = |ahead: i32| {
        let span = jiff::Span::new().months(ahead);
        today.checked_add(span).unwrap_or(today)
    };
    let tsid = |date: jiff::civil::Date| {
        let ms = date.to_zoned(jiff::tz::TimeZone::UTC).map_or(0, |start| start.timestamp().as_millisecond());
        (ms - TSID_EPOCH_MS).max(0) << 22
    };
    (0..3)
        .map(|ahead| {
            let (start, end) = (month(ahead), month(ahead + 1));
            let name = format!("events_{:04}{:02}", start.year(), start.month());
            Partition { parent: "events", name, from: tsid(start), to: tsid(end) }
        })
        .collect()
}

fn log_partitions(last_id: i64) -> Vec<Partition> {
    let current = last_id / LOG_PARTITION_IDS;
    (current..current + 2)
        .map(|number| Partition {
            parent: "event_log",
            name: format!("event_log_{number}"),
            from: number * LOG_PARTITION_IDS,
            to: (number + 1) * LOG_PARTITION_IDS,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_follow_each_other_without_a_gap() {
        let partitions = month_partitions("2026-11-30T23:59:59Z".parse().unwrap());
        let names: Vec<&str> = partitions.iter().map(|partition| partition.name.as_str()).collect();
        assert_eq!(names, ["events_202611", "events_202612", "events_202701"]);
        assert!(partitions.windows(2).all(|pair| pair[0].to == pair[1].from && pair[0].from < pair[0].to));
    }

    #[test]
    fn the_log_has_a_range_ahead() {
        let partitions = log_partitions(LOG_PARTITION_IDS * 3 + 5);
        assert_eq!(partitions[0].name, "event_log_3");
        assert!(partitions[1].to > LOG_PARTITION_IDS * 4);
    }
}
