//! Forgetting what is old, in small batches, on SQLite.

use std::collections::HashMap;
use std::time::Duration;

use tidegate_core::End;

use super::errors::damaged;
use super::settle::live;
use super::tags;
use super::tx::{Tx, entry_id};
use super::{listing, tx};
use crate::error::Result;
use crate::work::{Retained, Retention};

/// Forgets one batch.
pub(super) fn retain(tx: &mut Tx<'_>, retention: &Retention) -> Result<Retained> {
    let batch = i64::try_from(retention.batch.clamp(1, 10_000)).unwrap_or(1);
    let mut retained = Retained::default();
    if let Some(age) = retention.audit {
        let removed = tx.prepare(&tx.sql().forget_audit)?.execute((before(tx, age)?, batch))?;
        retained.audit = removed as u64;
    }
    if retention.log.is_some() || retention.dead_letters.is_some() {
        forget_entries(tx, retention, batch, &mut retained)?;
    }
    Ok(retained)
}

fn before(tx: &Tx<'_>, age: Duration) -> Result<i64> {
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    Ok(tx.now.saturating_sub(age))
}

/// An ended entry, with all its generations.
struct Old {
    id: i64,
    event_id: i64,
    last_seq: i64,
    finished_at: i64,
    flags: Option<i64>,
}

fn forget_entries(tx: &mut Tx<'_>, retention: &Retention, batch: i64, retained: &mut Retained) -> Result<()> {
    let from = retention.from.map_or(0, tidegate_core::EntryId::get);
    let entries = tx
        .prepare(&tx.sql().old_entries)?
        .query_map((from, batch), |row| {
            Ok(Old {
                id: row.get(0)?,
                event_id: row.get(2)?,
                last_seq: row.get(4)?,
                finished_at: row.get(5)?,
                flags: row.get(6)?,
            })
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    // A reader of the log that has not come so far holds rows back; so do rows that were not counted yet.
    let read: Option<i64> = tx.prepare(&tx.sql().projections_at)?.query_row([], |row| row.get(0))?;
    let upto = listing::counted_upto(tx)?.min(read.unwrap_or(i64::MAX));
    let plain = retention.log.map(|age| before(tx, age)).transpose()?;
    let dead = retention.dead_letters.map(|age| before(tx, age)).transpose()?;
    let mut gone = Gone::default();
    for old in &entries {
        if old.last_seq <= upto && live(tx, old.id)?.is_none() {
            forget_one(tx, old, plain, dead, &mut gone)?;
        }
    }
    let removed: Vec<(i16, i64)> = gone.rows.into_iter().collect();
    listing::uncount(tx, &removed, &gone.tags)?;
    retained.entries = gone.entries;
    let full = entries.len() as i64 == batch;
    retained.next = entries.last().filter(|_| full).map(|old| entry_id(old.id)).transpose()?;
    Ok(())
}

#[derive(Default)]
struct Gone {
    entries: u64,
    rows: HashMap<i16, i64>,
    tags: HashMap<(String, i16), i64>,
}

fn forget_one(tx: &tx::Tx<'_>, old: &Old, plain: Option<i64>, dead: Option<i64>, gone: &mut Gone) -> Result<()> {
    let sql = tx.sql();
    let rows = tx
        .prepare(&sql.log_rows_of)?
        .query_map([old.id], |row| Ok((row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<Vec<(i16, i16)>>>()?;
    let Some((status, superseded)) = rows.last().copied() else { return Ok(()) };
    let end = End::from_code(status).ok_or_else(|| damaged("an entry has an unknown end"))?;
    let redrivable = end.is_dead_letter() && superseded == 0;
    let limit = if redrivable { dead } else { plain };
    if limit.is_none_or(|limit| old.finished_at >= limit) {
        return Ok(());
    }
    if tags::is_tagged(old.flags) {
        let tags = tags::of_fact(tx, old.event_id)?;
        tags::remove_ended(tx, old.id, &tags, status)?;
        for (status, _) in &rows {
            for tag in &tags {
                *gone.tags.entry((tag.clone(), *status)).or_insert(0) += 1;
            }
        }
    }
    for (status, _) in &rows {
        *gone.rows.entry(*status).or_insert(0) += 1;
    }
    tx.prepare(&sql.forget_log)?.execute([old.id])?;
    tx.prepare(&sql.delete_fact)?.execute([old.event_id])?;
    gone.entries += 1;
    Ok(())
}
