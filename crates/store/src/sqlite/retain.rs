//! Retention on SQLite: removes old audit rows, log rows and facts in small batches. A reader finds them; the writer checks again
//! only what is to be removed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tidegate_core::Tsid;

use crate::error::Result;
use crate::sql::Only;
use crate::sqlite::engine::jobs::Urgency;
use crate::sqlite::engine::row::end_of;
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::{Tx, entry_id};
use crate::sqlite::flags;
use crate::sqlite::found::live;
use crate::sqlite::log_counts;
use crate::sqlite::statements::retain::{LogRow, OldRow};
use crate::sqlite::tags;
use crate::values::{Family, Retained, Retention};

/// How long one batch searches for something that can be removed.
pub(super) const SEARCH_TIME: Duration = Duration::from_millis(100);

impl SqliteStore {
    /// Removes one batch.
    pub(super) async fn remove_old(&self, retention: Retention) -> Result<Retained> {
        let batch = i64::try_from(retention.batch.clamp(1, 10_000)).unwrap_or(1);
        let mut retained = Retained::default();
        if let Some(age) = retention.audit {
            let audit = move |tx: &mut Tx<'_>| tx.execute(&tx.sql().retain.forget_audit, (before(tx, age), batch));
            retained.audit = self.write(Urgency::Publish, audit).await? as u64;
        }
        if retention.log.is_some() || retention.dead_letters.is_some() {
            let found = self.read(move |tx| find_old(tx, &retention, batch)).await?;
            retained.next = found.next.map(entry_id).transpose()?;
            if !found.is_empty() {
                retained.entries = self.write(Urgency::Publish, move |tx| remove_all(tx, &retention, &found)).await?;
            }
        }
        if let Some(age) = retention.facts {
            self.remove_facts(age, retention.facts_from, batch, &mut retained).await?;
        }
        Ok(retained)
    }
}

pub(super) fn before(tx: &Tx<'_>, age: Duration) -> i64 {
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    tx.now.saturating_sub(age)
}

/// What a search of the logs found: what to remove of each family, and where the next batch begins.
#[derive(Debug, Default)]
struct Found {
    ids: [Vec<i64>; Family::ALL.len()],
    next: Option<i64>,
}

impl Found {
    fn is_empty(&self) -> bool {
        self.ids.iter().all(Vec::is_empty)
    }
}

/// Which entries may be removed. Moments in microseconds.
struct Limits {
    /// Rows up to this number have been counted, and read by every projection. Jobs are neither.
    upto: i64,
    plain: Option<i64>,
    dead: Option<i64>,
}

impl Limits {
    fn new(tx: &Tx<'_>, retention: &Retention) -> Result<Self> {
        // Rows that a projection has not read, and rows that are not counted yet, are kept.
        let upto = match tx.family {
            Family::Entries => {
                let read = tx.row(&tx.sql().retain.projections_at, [])?.and_then(|Only(read)| read);
                log_counts::counted_upto(tx)?.min(read.unwrap_or(i64::MAX))
            }
            Family::Jobs => i64::MAX,
        };
        Ok(Self {
            upto,
            plain: retention.log.map(|age| before(tx, age)),
            dead: retention.dead_letters.map(|age| before(tx, age)),
        })
    }

    /// Whether an entry was published too late to have ended long enough ago.
    fn is_young(&self, old: &OldRow) -> bool {
        let latest = self.plain.max(self.dead).unwrap_or(i64::MIN);
        Tsid::from_i64(old.event_id).unix_ms() >= latest / 1000
    }
}

/// Walks the logs by entry number until something can be removed, for at most `SEARCH_TIME`.
fn find_old(tx: &mut Tx<'_>, retention: &Retention, batch: i64) -> Result<Found> {
    let began = Instant::now();
    let mut from = retention.from.map_or(0, tidegate_core::EntryId::get);
    loop {
        let mut found = Found::default();
        for (family, ids) in Family::ALL.into_iter().zip(&mut found.ids) {
            let next = tx.in_family(family, |tx| find_in_family(tx, retention, (from, batch), ids))?;
            found.next = [found.next, next].into_iter().flatten().min();
        }
        // What one log has beyond the end of the other's batch belongs to the next one.
        let upto = found.next.unwrap_or(i64::MAX);
        found.ids.iter_mut().for_each(|ids| ids.retain(|id| *id <= upto));
        match found.next {
            Some(next) if found.is_empty() && began.elapsed() < SEARCH_TIME => from = next,
            _ => return Ok(found),
        }
    }
}

/// Finds what can be removed in one batch of a log. Returns where the next batch begins. A batch in which all entries were
/// published too late ends the round: entries end after they were published.
fn find_in_family(
    tx: &Tx<'_>,
    retention: &Retention,
    (from, batch): (i64, i64),
    ids: &mut Vec<i64>,
) -> Result<Option<i64>> {
    let limits = Limits::new(tx, retention)?;
    let entries = tx.rows(&tx.sql().retain.old_entries, (from, batch))?;
    for old in &entries {
        if removable_rows(tx, old, &limits)?.is_some() {
            ids.push(old.id);
        }
    }
    let full = entries.len() as i64 == batch && !entries.iter().all(|old| limits.is_young(old));
    Ok(entries.last().filter(|_| full).map(|old| old.id))
}

/// The log rows of an entry that may be removed, by generation; `None` when it has to stay.
fn removable_rows(tx: &Tx<'_>, old: &OldRow, limits: &Limits) -> Result<Option<Vec<LogRow>>> {
    if old.last_seq > limits.upto || live(tx, old.id)?.is_some() {
        return Ok(None);
    }
    let rows = tx.rows(&tx.sql().retain.log_rows, [old.id])?;
    let Some(last) = rows.last() else { return Ok(None) };
    let end = end_of(last.status)?;
    let redrivable = end.is_dead_letter() && last.superseded == 0;
    let limit = if redrivable { limits.dead } else { limits.plain };
    let old_enough = limit.is_some_and(|limit| old.finished_at < limit);
    Ok(old_enough.then_some(rows))
}

/// Removes what was found in both families, as far as it still may be removed, and returns how many.
fn remove_all(tx: &mut Tx<'_>, retention: &Retention, found: &Found) -> Result<u64> {
    let mut removed = 0;
    for (family, ids) in Family::ALL.into_iter().zip(&found.ids) {
        removed += tx.in_family(family, |tx| remove(tx, retention, ids))?;
    }
    Ok(removed)
}

/// Removes those of these entries that still may be removed, and returns how many.
fn remove(tx: &mut Tx<'_>, retention: &Retention, ids: &[i64]) -> Result<u64> {
    let limits = Limits::new(tx, retention)?;
    let mut gone = Gone::default();
    for id in ids {
        let Some(old) = tx.row(&tx.sql().retain.old_entry, [id])? else { continue };
        if let Some(rows) = removable_rows(tx, &old, &limits)? {
            remove_one(tx, &old, &rows, &mut gone)?;
        }
    }
    // The log of jobs is not counted.
    if tx.family == Family::Entries && !gone.ids.is_empty() {
        log_counts::forget_stretches(tx, &gone.ids)?;
        let removed: Vec<(i16, i64)> = gone.rows.into_iter().collect();
        log_counts::uncount(tx, &removed, &gone.tally)?;
    }
    Ok(gone.ids.len() as u64)
}

#[derive(Default)]
struct Gone {
    ids: Vec<i64>,
    rows: HashMap<i16, i64>,
    tally: log_counts::Tally,
}

fn remove_one(tx: &Tx<'_>, old: &OldRow, rows: &[LogRow], gone: &mut Gone) -> Result<()> {
    if flags::is_tagged(old.flags) {
        for (generation, row) in rows.iter().enumerate() {
            let tags = tags::of_fact(tx, row.event_id)?;
            if generation + 1 == rows.len() {
                tags::remove_ended(tx, old.id, &tags, row.status)?;
            }
            for tag in &tags {
                log_counts::tally(&mut gone.tally, old.client_id, tag, row.status, 1);
            }
        }
    }
    for row in rows {
        *gone.rows.entry(row.status).or_insert(0) += 1;
        if old.client_id.is_some() {
            *gone.tally.entry((old.client_id, String::new(), row.status)).or_insert(0) += 1;
        }
        tx.execute(&tx.sql().publish.remove_fact, [row.event_id])?;
    }
    tx.execute(&tx.sql().retain.forget_log, [old.id])?;
    if tx.family == Family::Jobs {
        tx.execute(&tx.sql().dispatch.forget_attempts, [old.id])?;
        tx.execute(&tx.sql().dispatch.forget_task, [old.id])?;
    }
    gone.ids.push(old.id);
    Ok(())
}
