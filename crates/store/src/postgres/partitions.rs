//! Partitions of facts and of the log, which are created ahead of the rows that belong to them.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use tidegate_core::Timestamp;
use tidegate_core::id::TSID_EPOCH_MS;

use crate::error::{Error, ErrorKind, Result};
use crate::postgres::engine::errors::is_in_use;
use crate::postgres::engine::store::Inner;
use crate::sql::Only;

/// Entry ids per partition of the log.
const LOG_PARTITION_IDS: i64 = 20_000_000;
/// How often partitions are created ahead of time.
const PARTITIONS_EVERY: Duration = Duration::from_secs(600);
/// How soon to try again after a partition could not be attached because of a lock or a timeout.
const PARTITIONS_AGAIN: Duration = Duration::from_secs(5);

impl Inner {
    /// Whether partitions are to be created now; records that they were.
    pub(super) fn partitions_due(&self) -> bool {
        let mut last = self.shared.partitions_at.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= PARTITIONS_EVERY);
        if due {
            *last = Some(Instant::now());
        }
        due
    }

    /// Has partitions tried again after [`PARTITIONS_AGAIN`], before rows of their range come.
    fn partitions_soon(&self) {
        let soon = Instant::now().checked_sub(PARTITIONS_EVERY.saturating_sub(PARTITIONS_AGAIN));
        *self.shared.partitions_at.lock().unwrap_or_else(PoisonError::into_inner) = soon;
    }

    /// Creates the partitions of this and the next two months (facts), and of this and the next range of ids (logs). A
    /// new partition is attached under short timeouts: while the database searches the default partition for rows that
    /// belong to the new one, it blocks readers and writers of the default partition. If attaching fails, rows go to
    /// the default partition, which is allowed; once that holds rows of a range, the range gets no partition of its own
    /// any more.
    pub(super) async fn add_partitions(&self) -> Result<()> {
        let last = self.read(|tx| async move { tx.row(&self.sql.heartbeat.last_number, &[]).await }).await?;
        let mut wanted = month_partitions(self.moment());
        let last = last.map_or(1, |Only(number)| number);
        wanted.extend(["event_log", "dispatch_log"].into_iter().flat_map(|log| log_partitions(log, last)));
        for partition in wanted {
            let sql = &partition.sql(&self.shared.options.schema());
            let made = self.write(|tx| async move { tx.run(sql).await }, |_, ()| async { Ok(true) }).await;
            if let Err(error) = made {
                self.note_failure(&partition.name, &error);
            }
        }
        Ok(())
    }

    /// Logs why a partition could not be created, and has it tried again soon if a lock or a timeout was the reason. One
    /// whose rows are in the default partition is tried again with the next regular round: retention may remove them.
    fn note_failure(&self, partition: &str, error: &Error) {
        if error.kind() != ErrorKind::Busy {
            tracing::warn!(
                %error,
                partition,
                "could not create a partition: until it exists, its rows go to the default partition"
            );
            return;
        }
        tracing::debug!(%error, partition, "could not create a partition yet, trying again later");
        if !is_in_use(error) {
            self.partitions_soon();
        }
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
    /// The statements that create it, unless it exists. Processes that do so at once take turns by the lock on the parent:
    /// each reads the default partition before it needs that alone, so two would wait for each other.
    fn sql(&self, ns: &str) -> String {
        let Self { parent, name, from, to } = self;
        format!(
            "SET LOCAL lock_timeout = '50ms';
             SET LOCAL statement_timeout = '250ms';
             DO $$ BEGIN
               IF to_regclass('{ns}.{name}') IS NULL THEN
                 LOCK TABLE {ns}.{parent} IN SHARE UPDATE EXCLUSIVE MODE;
               END IF;
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

fn log_partitions(log: &'static str, last_id: i64) -> Vec<Partition> {
    let current = last_id / LOG_PARTITION_IDS;
    (current..current + 2)
        .map(|number| Partition {
            parent: log,
            name: format!("{log}_{number}"),
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
        let partitions = log_partitions("event_log", LOG_PARTITION_IDS * 3 + 5);
        assert_eq!(partitions[0].name, "event_log_3");
        assert!(partitions[1].to > LOG_PARTITION_IDS * 4);
    }
}
