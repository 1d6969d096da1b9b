//! Forgetting what is old, in small batches, on SQLite. A reader finds it; the writer looks again at what goes, and at nothing
//! else.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rusqlite::{OptionalExtension, Row};
use tidegate_core::{End, Tsid};

use super::errors::damaged;
use super::jobs::Urgency;
use super::settle::live;
use super::tags;
use super::tx::{Tx, entry_id};
use super::{SqliteStore, listing};
use crate::error::Result;
use crate::work::{Retained, Retention};

/// How long one batch looks for something that can go.
const LOOK_FOR: Duration = Duration::from_millis(100);

impl SqliteStore {
    /// Forgets one batch.
    pub(super) async fn forget_old(&self, retention: Retention) -> Result<Retained> {
        let batch = i64::try_from(retention.batch.clamp(1, 10_000)).unwrap_or(1);
        let mut retained = Retained::default();
        if let Some(age) = retention.audit {
            let audit = move |tx: &mut Tx<'_>| {
                Ok(tx.prepare(&tx.sql().forget_audit)?.execute((before(tx, age), batch))? as u64)
            };
            retained.audit = self.write(Urgency::Publish, audit).await?;
        }
        if retention.log.is_none() && retention.dead_letters.is_none() {
            return Ok(retained);
        }
        let found = self.read(move |tx| find_old(tx, &retention, batch)).await?;
        retained.next = found.next.map(entry_id).transpose()?;
        if !found.ids.is_empty() {
            retained.entries = self.write(Urgency::Publish, move |tx| forget(tx, &retention, &found.ids)).await?;
        }
        Ok(retained)
    }
}

fn before(tx: &Tx<'_>, age: Duration) -> i64 {
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    tx.now.saturating_sub(age)
}

/// What a look at the log found.
#[derive(Debug, Default)]
struct Found {
    ids: Vec<i64>,
    next: Option<i64>,
}

/// Which entries may go.
struct Limits {
    /// Rows up to here were counted, and read by every projection.
    upto: i64,
    plain: Option<i64>,
    dead: Option<i64>,
}

impl Limits {
    fn new(tx: &Tx<'_>, retention: &Retention) -> Result<Self> {
        // A reader of the log that has not come so far holds rows back; so do rows that were not counted yet.
        let read: Option<i64> = tx.prepare(&tx.sql().projections_at)?.query_row([], |row| row.get(0))?;
        Ok(Self {
            upto: listing::counted_upto(tx)?.min(read.unwrap_or(i64::MAX)),
            plain: retention.log.map(|age| before(tx, age)),
            dead: retention.dead_letters.map(|age| before(tx, age)),
        })
    }

    /// Whether an entry was published after everything that may go.
    fn is_young(&self, old: &Old) -> bool {
        let latest = self.plain.max(self.dead).unwrap_or(i64::MIN);
        Tsid::from_i64(old.event_id).unix_ms() >= latest / 1000
    }
}

/// An ended entry, with all its generations.
struct Old {
    id: i64,
    event_id: i64,
    last_seq: i64,
    finished_at: i64,
    flags: Option<i64>,
    client: Option<i64>,
}

impl Old {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            event_id: row.get(2)?,
            last_seq: row.get(4)?,
            finished_at: row.get(5)?,
            flags: row.get(6)?,
            client: row.get(7)?,
        })
    }
}

/// Walks the log by number, until something can go, for a while at most. It ends where everything is younger than what may
/// go: entries end after they were published.
fn find_old(tx: &Tx<'_>, retention: &Retention, batch: i64) -> Result<Found> {
    let began = Instant::now();
    let limits = Limits::new(tx, retention)?;
    let mut from = retention.from.map_or(0, tidegate_core::EntryId::get);
    loop {
        let entries = tx
            .prepare(&tx.sql().old_entries)?
            .query_map((from, batch), Old::read)?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        let mut found = Found::default();
        for old in &entries {
            if rows_to_forget(tx, old, &limits)?.is_some() {
                found.ids.push(old.id);
            }
        }
        let full = entries.len() as i64 == batch && !entries.iter().all(|old| limits.is_young(old));
        found.next = entries.last().filter(|_| full).map(|old| old.id);
        match found.next {
            Some(next) if found.ids.is_empty() && began.elapsed() < LOOK_FOR => from = next,
            _ => return Ok(found),
        }
    }
}

/// The ends of an entry that may go, by generation.
fn rows_to_forget(tx: &Tx<'_>, old: &Old, limits: &Limits) -> Result<Option<Vec<i16>>> {
    if old.last_seq > limits.upto || live(tx, old.id)?.is_some() {
        return Ok(None);
    }
    let rows = tx
        .prepare(&tx.sql().log_rows_of)?
        .query_map([old.id], |row| Ok((row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<Vec<(i16, i16)>>>()?;
    let Some((status, superseded)) = rows.last().copied() else { return Ok(None) };
    let end = End::from_code(status).ok_or_else(|| damaged("an entry has an unknown end"))?;
    let redrivable = end.is_dead_letter() && superseded == 0;
    let limit = if redrivable { limits.dead } else { limits.plain };
    let old_enough = limit.is_some_and(|limit| old.finished_at < limit);
    Ok(old_enough.then(|| rows.into_iter().map(|(status, _)| status).collect()))
}

/// Removes those of these entries that still may go; answers how many.
fn forget(tx: &mut Tx<'_>, retention: &Retention, ids: &[i64]) -> Result<u64> {
    let limits = Limits::new(tx, retention)?;
    let mut gone = Gone::default();
    for id in ids {
        let old = tx.prepare(&tx.sql().old_entry)?.query_row([id], Old::read).optional()?;
        let Some(old) = old else { continue };
        if let Some(statuses) = rows_to_forget(tx, &old, &limits)? {
            forget_one(tx, &old, &statuses, &mut gone)?;
        }
    }
    listing::forget_stretches(tx, &gone.ids)?;
    let removed: Vec<(i16, i64)> = gone.rows.into_iter().collect();
    listing::uncount(tx, &removed, &gone.tally)?;
    Ok(gone.ids.len() as u64)
}

#[derive(Default)]
struct Gone {
    ids: Vec<i64>,
    rows: HashMap<i16, i64>,
    tally: listing::Tally,
}

fn forget_one(tx: &Tx<'_>, old: &Old, statuses: &[i16], gone: &mut Gone) -> Result<()> {
    let sql = tx.sql();
    if tags::is_tagged(old.flags) {
        let tags = tags::of_fact(tx, old.event_id)?;
        if let Some(last) = statuses.last() {
            tags::remove_ended(tx, old.id, &tags, *last)?;
        }
        for status in statuses {
            for tag in &tags {
                listing::tally(&mut gone.tally, old.client, tag, *status, 1);
            }
        }
    }
    for status in statuses {
        *gone.rows.entry(*status).or_insert(0) += 1;
        if old.client.is_some() {
            *gone.tally.entry((old.client, String::new(), *status)).or_insert(0) += 1;
        }
    }
    tx.prepare(&sql.forget_log)?.execute([old.id])?;
    tx.prepare(&sql.delete_fact)?.execute([old.event_id])?;
    gone.ids.push(old.id);
    Ok(())
}
