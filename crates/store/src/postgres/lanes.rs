//! The life of lanes: making them up to a queue's limit, noting which are used, and removing those that are empty and
//! that nobody claims from.
//!
//! A transaction that was planned under an older catalogue may still put an entry into a lane. So a lane is *retired*
//! first: nobody plans to put entries there any more, and it is still claimed from. Once every transaction that may have
//! been planned before is over, and it is empty, it is *gone*: no claim looks there. Its row stays for the entries in the
//! log that were in it. Should an entry turn up in a lane that is gone (a caller's transaction with an old snapshot, an
//! older program), it is made an arrival and sorted in again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tidegate_core::Timestamp;

use super::Inner;
use super::catalog::MissingLane;
use super::connection::{Begin, Tx};
use super::errors::Fault;
use super::items::micros;
use crate::error::Result;

/// A lane that is empty and was not claimed from for this long is removed.
pub(super) const IDLE: Duration = Duration::from_secs(600);
/// How often a use is written down: it may be this much later than the database knows.
const NOTE_EVERY: Duration = Duration::from_secs(120);
/// Lanes that one round retires or removes at most.
const AT_ONCE: i64 = 1000;
/// With more parked entries than this, a queue's lanes are left as they are: looking for their lanes would cost too much.
const MAX_PARKED: i64 = 10_000;

/// The lanes this process claimed from, and when their use was last written down.
#[derive(Debug, Default)]
pub(super) struct LaneUse(Mutex<HashMap<i32, Use>>);

#[derive(Debug, Clone, Copy)]
struct Use {
    noted: Option<Timestamp>,
    used: bool,
}

impl LaneUse {
    /// Notes that something was claimed from these lanes.
    pub(super) fn claimed(&self, lanes: impl IntoIterator<Item = i32>) {
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for lane in lanes {
            uses.entry(lane).or_insert(Use { noted: None, used: true }).used = true;
        }
    }

    /// The lanes whose use is to be written down now. Those that were not used for long are forgotten.
    fn to_note(&self, now: Timestamp) -> Vec<i32> {
        let long_ago =
            |at: Timestamp, by: Duration| Duration::try_from(now.duration_since(at)).is_ok_and(|age| age >= by);
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        uses.retain(|_, of| of.used || !of.noted.is_some_and(|noted| long_ago(noted, IDLE)));
        let due = uses.iter_mut().filter(|(_, of)| of.used && of.noted.is_none_or(|noted| long_ago(noted, NOTE_EVERY)));
        due.map(|(lane, of)| {
            *of = Use { noted: Some(now), used: false };
            *lane
        })
        .collect()
    }
}

impl Inner {
    /// Makes lanes, each queue's up to its limit; every process gets to know by the catalogue's version.
    pub(super) async fn add_lanes(&self, mut lanes: Vec<MissingLane>) -> Result<(), Fault> {
        // Many new types at once could pass the limit together; what is over it goes to the shared lane next time.
        lanes.sort_by(|a, b| (a.queue_id, a.priority, &a.event_type).cmp(&(b.queue_id, b.priority, &b.event_type)));
        lanes.dedup();
        lanes.truncate(super::catalog::MAX_OWN_TYPES / 4);
        let queue_ids: Vec<i32> = lanes.iter().map(|lane| lane.queue_id).collect();
        let priorities: Vec<i16> = lanes.iter().map(|lane| lane.priority).collect();
        let types: Vec<Option<&str>> = lanes.iter().map(|lane| lane.event_type.as_deref()).collect();
        let forced: Vec<bool> = lanes.iter().map(|lane| lane.forced).collect();
        let limit = i64::try_from(self.options.store.max_lanes).unwrap_or(i64::MAX);
        let (queue_ids, priorities, types, forced) = (&queue_ids, &priorities, &types, &forced);
        self.database
            .transact(
                Begin::Write,
                &|_| Ok(()),
                &|tx| {
                    async move {
                        // One at a time, so that two that count together do not pass the limit together.
                        tx.query(&self.sql.lanes.lock_catalogue, &[]).await?;
                        tx.query(&self.sql.lanes.add, &[&self.now(), queue_ids, priorities, types, forced, &limit])
                            .await?;
                        Ok(())
                    }
                    .boxed()
                },
                &|_, ()| async { Ok(false) }.boxed(),
            )
            .await
    }

    /// Writes down which lanes are used here.
    pub(super) async fn note_lanes(&self) -> Result<(), Fault> {
        let lanes = self.lane_use.to_note(self.moment());
        if !lanes.is_empty() {
            let reader = self.database.reader().await?;
            reader.execute(&self.sql.lanes.note_used, &[&self.now(), &lanes]).await?;
        }
        Ok(())
    }

    /// One round of removing lanes that nobody uses; one process does it for all.
    pub(super) async fn tend_lanes(&self) -> Result<(), Fault> {
        self.rescue_strays().await?;
        self.database
            .transact(
                Begin::Write,
                &|_| Ok(()),
                &|tx| async move { self.tend_lanes_in(&tx).await }.boxed(),
                // What was done is found done.
                &|_, ()| async { Ok(true) }.boxed(),
            )
            .await?;
        Ok(())
    }

    async fn tend_lanes_in(&self, tx: &Tx) -> Result<(), Fault> {
        let sql = &self.sql.lanes;
        let left = tx.query(&sql.left, &[&AT_ONCE]).await?;
        let left = left.iter().map(|row| (row.get(0), row.get(1)));
        let left = self.without_parked(tx, left).await?;
        if !left.is_empty() {
            tx.execute(&sql.remove, &[&left]).await?;
        }
        // Retired in an earlier round: whoever planned before that has a transaction id by now.
        tx.execute(&sql.close, &[]).await?;
        let idle = tx.query(&sql.idle, &[&self.now(), &micros(IDLE), &AT_ONCE]).await?;
        let idle = idle.iter().map(|row| (row.get(0), row.get(1)));
        let idle = self.without_parked(tx, idle).await?;
        if !idle.is_empty() {
            tx.execute(&sql.retire, &[&idle]).await?;
        }
        tx.execute(&sql.forget, &[&AT_ONCE]).await?;
        Ok(())
    }

    /// Of lanes with nothing to claim, by queue, those that hold no parked or arrived entry either.
    async fn without_parked(&self, tx: &Tx, lanes: impl Iterator<Item = (i32, i32)>) -> Result<Vec<i32>, Fault> {
        let mut by_queue: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for (lane, queue) in lanes {
            by_queue.entry(queue).or_default().push(lane);
        }
        let mut free = Vec::new();
        for (queue, lanes) in by_queue {
            let rows = tx.query(&self.sql.lanes.parked, &[&queue, &(MAX_PARKED + 1)]).await?;
            let Some(row) = rows.first() else { continue };
            if row.get::<_, i64>(0) <= MAX_PARKED {
                let held: Option<Vec<i32>> = row.get(1);
                let held: HashSet<i32> = held.into_iter().flatten().collect();
                free.extend(lanes.into_iter().filter(|lane| !held.contains(lane)));
            }
        }
        free.sort_unstable();
        Ok(free)
    }

    /// Makes arrivals of entries in lanes that are gone, and sorts them in.
    async fn rescue_strays(&self) -> Result<(), Fault> {
        let rows = self.database.reader().await?.query(&self.sql.lanes.strays, &[]).await?;
        let lanes: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
        if lanes.is_empty() {
            return Ok(());
        }
        let reader = self.database.reader().await?;
        let rescued = reader.execute(&self.sql.lanes.rescue, &[&lanes]).await?;
        drop(reader);
        if rescued > 0 {
            tracing::info!(rescued, "entries in lanes that were removed are sorted in again");
            self.sort_arrivals().await?;
        }
        Ok(())
    }
}

/// The statements about lanes.
#[derive(Debug)]
pub(super) struct LaneSql {
    lock_catalogue: String,
    add: String,
    note_used: String,
    idle: String,
    retire: String,
    close: String,
    left: String,
    remove: String,
    forget: String,
    parked: String,
    strays: String,
    rescue: String,
}

impl LaneSql {
    pub(super) fn new(namespace: &str) -> Self {
        let fill = |text: &str| {
            text.replace("{ns}", namespace).replace("{now}", "coalesce($1::timestamptz, statement_timestamp())")
        };
        Self {
            lock_catalogue: fill("SELECT FROM {ns}.meta FOR UPDATE"),
            add: fill(ADD),
            note_used: fill(NOTE_USED),
            idle: fill(IDLE_LANES),
            retire: fill(RETIRE),
            close: fill(CLOSE),
            left: fill(LEFT),
            remove: fill(REMOVE),
            forget: fill(FORGET),
            parked: fill(PARKED),
            strays: fill(STRAYS),
            rescue: fill(RESCUE),
        }
    }
}

/// New lanes, each queue's up to the limit ($6) but for those that arrivals need; one that another process added meanwhile is
/// kept (lanes_key).
const ADD: &str = "
INSERT INTO {ns}.lanes (queue_id, priority, event_type, used_at)
SELECT i.queue_id, i.priority, i.event_type, {now}
FROM (
    SELECT i.*, row_number() OVER (PARTITION BY i.queue_id ORDER BY i.priority, i.event_type) AS number
    FROM unnest($2::integer[], $3::smallint[], $4::text[], $5::boolean[]) AS i(queue_id, priority, event_type, forced)
) AS i
WHERE i.forced
   OR i.number + (SELECT count(*) FROM {ns}.lanes l WHERE l.queue_id = i.queue_id AND l.state < 2) <= $6::bigint
ON CONFLICT (queue_id, coalesce(event_type, ''), priority) DO NOTHING";

/// Writes down a use (lanes' primary key).
const NOTE_USED: &str = "
UPDATE {ns}.lanes SET used_at = greatest(used_at, {now}) WHERE id = ANY ($2::integer[])";

/// Lanes that were not used for long and have nothing to claim (lanes_idle, event_queue_fresh, event_queue_timed).
const IDLE_LANES: &str = "
SELECT l.id, l.queue_id FROM {ns}.lanes l
WHERE l.state = 0 AND l.used_at < {now} - $2::bigint * interval '1 microsecond'
  AND NOT EXISTS (SELECT FROM {ns}.event_queue q WHERE q.lane = l.id AND q.place = 0 OFFSET 0)
  AND NOT EXISTS (SELECT FROM {ns}.event_queue q WHERE q.lane = l.id AND q.place = 1 OFFSET 0)
ORDER BY l.used_at LIMIT $3::bigint";

/// Retires lanes (primary key; `+ 0` keeps the index of all lanes by use out). No event type begins with that character, so the key is free for another lane.
const RETIRE: &str = "
UPDATE {ns}.lanes SET state = 1, was_type = event_type, event_type = chr(1) || id, retired_xid = NULL
WHERE id = ANY ($1::integer[]) AND state + 0 = 0";

/// Says which transactions must be over before a retired lane can go (lanes_retired). Its retirement has committed: whoever
/// was planned before it has drawn a lower transaction id. (A snapshot's upper end is no bound: some that run are above.)
const CLOSE: &str = "
UPDATE {ns}.lanes SET retired_xid = pg_current_xact_id() WHERE state = 1 AND retired_xid IS NULL";

/// Retired lanes to which nobody can add any more, with nothing to claim (lanes_retired, event_queue_fresh,
/// event_queue_timed).
const LEFT: &str = "
SELECT l.id, l.queue_id FROM {ns}.lanes l
WHERE l.state = 1 AND l.retired_xid <= pg_snapshot_xmin(pg_current_snapshot())
  AND NOT EXISTS (SELECT FROM {ns}.event_queue q WHERE q.lane = l.id AND q.place = 0 OFFSET 0)
  AND NOT EXISTS (SELECT FROM {ns}.event_queue q WHERE q.lane = l.id AND q.place = 1 OFFSET 0)
ORDER BY l.id LIMIT $1::bigint";

/// Lets retired lanes go (primary key). Entries that were in them have numbers up to the last one drawn.
const REMOVE: &str = "
UPDATE {ns}.lanes SET state = 2, last_entry = (SELECT last_value FROM {ns}.entry_id)
WHERE id = ANY ($1::integer[]) AND state + 0 = 1";

/// Deletes lanes that are gone, once no entry that was in them is left and no process can know them any more (lanes_gone,
/// event_log's and event_queue's primary keys).
const FORGET: &str = "
DELETE FROM {ns}.lanes WHERE id = ANY (ARRAY(
    SELECT l.id FROM {ns}.lanes l
    WHERE l.state = 2
      AND l.version < (SELECT min(h.version) FROM {ns}.catalogue_history h)
      AND l.last_entry < coalesce((SELECT min(g.id) FROM {ns}.event_log g), 9223372036854775807)
      AND l.last_entry < coalesce((SELECT min(q.id) FROM {ns}.event_queue q), 9223372036854775807)
    ORDER BY l.id LIMIT $1::bigint
))";

/// The lanes of parked and arrived entries of a queue, up to a bound (event_queue_parked).
const PARKED: &str = "
SELECT count(*), array_agg(DISTINCT p.lane)
FROM (SELECT q.lane FROM {ns}.event_queue q WHERE q.queue_id = $1::integer AND q.place >= 2 LIMIT $2::bigint) AS p";

/// Lanes that are gone and yet hold something to claim, found by stepping from one lane that holds something to the next
/// (event_queue_fresh, event_queue_timed, lanes' primary key).
const STRAYS: &str = "
WITH RECURSIVE fresh AS (
    (SELECT q.lane FROM {ns}.event_queue q WHERE q.place = 0 AND q.lane > 0 ORDER BY q.lane LIMIT 1)
    UNION ALL
    SELECT n.lane FROM fresh f CROSS JOIN LATERAL (
        SELECT q.lane FROM {ns}.event_queue q WHERE q.place = 0 AND q.lane > f.lane ORDER BY q.lane LIMIT 1
    ) AS n
), timed AS (
    (SELECT q.lane FROM {ns}.event_queue q WHERE q.place = 1 AND q.lane > 0 ORDER BY q.lane LIMIT 1)
    UNION ALL
    SELECT n.lane FROM timed t CROSS JOIN LATERAL (
        SELECT q.lane FROM {ns}.event_queue q WHERE q.place = 1 AND q.lane > t.lane ORDER BY q.lane LIMIT 1
    ) AS n
)
SELECT DISTINCT h.lane FROM (SELECT lane FROM fresh UNION ALL SELECT lane FROM timed) AS h
CROSS JOIN LATERAL (SELECT FROM {ns}.lanes l WHERE l.id = h.lane AND l.state = 2 OFFSET 0) AS g";

/// Makes arrivals of entries that nobody holds (lanes' primary key, event_queue_fresh, event_queue_timed). One that somebody
/// changes meanwhile is left for the next round: it is elsewhere in the table then.
const RESCUE: &str = "
UPDATE {ns}.event_queue q
SET place = 3, lane = -(SELECT l.priority FROM {ns}.lanes l WHERE l.id = q.lane) - 1000
WHERE q.ctid = ANY (ARRAY(
    SELECT s.ctid FROM unnest($1::integer[]) AS i(lane)
    CROSS JOIN LATERAL (SELECT l.id FROM {ns}.lanes l WHERE l.id = i.lane AND l.state + 0 = 2 OFFSET 0) AS l
    CROSS JOIN LATERAL (
        SELECT f.ctid FROM {ns}.event_queue f WHERE f.lane = l.id AND f.place = 0 AND f.lease_until IS NULL
        UNION ALL
        SELECT t.ctid FROM {ns}.event_queue t WHERE t.lane = l.id AND t.place = 1 AND t.lease_until IS NULL
        OFFSET 0
    ) AS s
)) AND q.lease_until IS NULL";
