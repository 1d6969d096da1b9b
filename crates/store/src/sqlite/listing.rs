//! Lists of entries and their totals, on SQLite.

use std::collections::HashMap;

use rusqlite::types::ToSql;
use rusqlite::{OptionalExtension, Row};
use tidegate_core::{End, EntryId, Status, Timestamp, Tsid};

use super::errors::damaged;
use super::jobs::Urgency;
use super::tx::{Tx, moment, read_queue_name};
use super::unreadable::shown;
use super::{SqliteStore, tags};
use crate::error::Result;
use crate::listing::{Dialect, Listing, candidates, check, is_counted};
use crate::work::{EntrySummary, ListQuery, Page, next_retry_at};

const DIALECT: Dialect = Dialect { parameter: '?', tables: '_' };
/// Log rows that are added to the counts by one transaction.
const COUNTED: i64 = 20_000;
/// How many such steps one round of upkeep takes.
const ROUNDS: usize = 10;

pub(super) fn list(tx: &Tx<'_>, query: &ListQuery) -> Result<Page> {
    check(query)?;
    let total = if is_counted(query) { Some(total(tx, query)?) } else { None };
    let mut listing = Listing::new(query);
    if total.is_some_and(|total| query.offset as u64 >= total) {
        return Ok(listing.finish(total));
    }
    let sql = candidates(query, DIALECT).replace("{ns}", &tx.shared.options.namespace);
    let mut statement = tx.conn.prepare_cached(&sql)?;
    while let Some(step) = listing.step() {
        let each = step.limit.saturating_add(step.skip);
        let mut params: Vec<&dyn ToSql> = vec![&step.before, &each, &step.limit, &step.skip];
        params.extend(query.tags.iter().map(|tag| tag as &dyn ToSql));
        let ids = statement.query_map(&*params, |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
        let mut found = HashMap::with_capacity(ids.len());
        for id in &ids {
            found.extend(summary(tx, *id)?.map(|entry| (*id, entry)));
        }
        listing.add(step, &ids, |id| found.remove(&id));
    }
    Ok(listing.finish(total))
}

fn summary(tx: &Tx<'_>, id: i64) -> Result<Option<EntrySummary>> {
    let sql = tx.sql();
    let live = tx.prepare(&sql.summary_live)?.query_row([id], |row| Ok(read(row, id, true))).optional()?;
    if let Some(live) = live {
        return live.map(Some);
    }
    let ended = tx.prepare(&sql.summary_ended)?.query_row([id], |row| Ok(read(row, id, false))).optional()?;
    ended.transpose()
}

fn read(row: &Row<'_>, id: i64, live: bool) -> Result<EntrySummary> {
    let updated_at: Timestamp = moment(row.get(7)?)?;
    let attempts: u32 = row.get(2)?;
    let status = match (live, row.get::<_, Option<i64>>(8)?) {
        (true, None) => Status::Pending,
        (true, Some(_)) => Status::Processing,
        (false, code) => code
            .and_then(|code| End::from_code(i16::try_from(code).ok()?))
            .ok_or_else(|| damaged("an entry has an unknown end"))?
            .into(),
    };
    let due = row.get::<_, Option<i64>>(9)?.map(moment).transpose()?;
    Ok(EntrySummary {
        id: EntryId::new(id)?,
        event_id: Tsid::from_i64(row.get(0)?),
        queue: read_queue_name(row, 1, 13)?,
        event_type: shown(row, 10)?.unwrap_or_default(),
        title: shown(row, 11)?,
        tags: tags::read(shown(row, 12)?),
        client: row.get::<_, Option<i64>>(13)?.map(Tsid::from_i64),
        status,
        attempts,
        max_attempts: row.get(3)?,
        next_retry_at: next_retry_at(due, attempts, updated_at).filter(|_| status == Status::Pending),
        worker: row.get::<_, Option<String>>(6)?,
        priority: row.get(4)?,
        group: shown(row, 5)?,
        created_at: moment(row.get(14)?)?,
        updated_at,
    })
}

/// How many entries there are, exactly: what was counted, and what came since.
fn total(tx: &Tx<'_>, query: &ListQuery) -> Result<u64> {
    let one = |sql: &str, params: &[&dyn ToSql]| -> Result<i64> {
        Ok(tx.conn.prepare_cached(sql)?.query_row(params, |row| row.get(0))?)
    };
    let sql = tx.sql();
    let tag = query.tags.first();
    let mut total = 0;
    let (live, held) = match tag {
        None => (&sql.count_live, &sql.count_held),
        Some(_) => (&sql.count_live_tag, &sql.count_held_tag),
    };
    let params: Vec<&dyn ToSql> = tag.iter().map(|tag| *tag as &dyn ToSql).collect();
    total += match query.status {
        None => one(live, &params)?,
        Some(Status::Pending) => one(live, &params)? - one(held, &params)?,
        Some(Status::Processing) => one(held, &params)?,
        Some(_) => 0,
    };
    let (seq, counts) = log_counts(tx)?;
    let ends: Vec<End> =
        End::ALL.into_iter().filter(|end| query.status.is_none_or(|status| status.end() == Some(*end))).collect();
    match tag {
        None => {
            let tail = tail(tx, seq, i64::MAX)?;
            for end in ends {
                let code = end.code();
                let superseded = one(&sql.count_superseded, &[&code])?;
                total += counts[code as usize] + tail.counts[code as usize] - superseded;
            }
        }
        Some(tag) => {
            let since = tagged_tail(tx, seq, i64::MAX)?;
            for end in ends {
                let code = end.code();
                let counted: Option<i64> =
                    tx.prepare(&sql.tag_count)?.query_row((tag, code), |row| row.get(0)).optional()?;
                let since = since.get(&(tag.clone(), code)).copied().unwrap_or(0);
                total += counted.unwrap_or(0) + since - one(&sql.count_superseded_tag, &[&code, tag])?;
            }
        }
    }
    Ok(u64::try_from(total).unwrap_or(0))
}

fn log_counts(tx: &Tx<'_>) -> Result<(i64, [i64; 4])> {
    let (seq, counts): (i64, String) =
        tx.prepare(&tx.sql().log_counts)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let counts =
        serde_json::from_str(&counts).map_err(|error| damaged("the log's counts cannot be read").with_source(error))?;
    Ok((seq, counts))
}

/// Log rows after the counted ones.
struct Tail {
    upto: i64,
    counts: [i64; 4],
}

fn tail(tx: &Tx<'_>, seq: i64, limit: i64) -> Result<Tail> {
    Ok(tx.prepare(&tx.sql().log_tail)?.query_row((seq, limit), |row| {
        Ok(Tail { upto: row.get(0)?, counts: [row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?] })
    })?)
}

fn tagged_tail(tx: &Tx<'_>, seq: i64, upto: i64) -> Result<HashMap<(String, i16), i64>> {
    let mut statement = tx.prepare(&tx.sql().tagged_tail)?;
    let mut rows = statement.query((seq, upto))?;
    let mut counts = HashMap::new();
    while let Some(row) = rows.next()? {
        let status: i16 = row.get(0)?;
        for tag in tags::read(shown(row, 1)?) {
            *counts.entry((tag, status)).or_insert(0) += 1;
        }
    }
    Ok(counts)
}

/// What a step of counting found.
struct Counted {
    seq: i64,
    tail: Tail,
    before: [i64; 4],
    tags: HashMap<(String, i16), i64>,
}

impl SqliteStore {
    /// Adds log rows to the counts: counted by a reader, so that the writer only writes.
    pub(super) async fn count_log(&self) -> Result<()> {
        for _ in 0..ROUNDS {
            let counted = self.read(|tx| count(tx)).await?;
            let more = counted.tail.counts.iter().sum::<i64>() == COUNTED;
            if counted.tail.upto == counted.seq {
                break;
            }
            self.write(Urgency::Publish, move |tx| save(tx, &counted)).await?;
            if !more {
                break;
            }
        }
        Ok(())
    }
}

fn count(tx: &Tx<'_>) -> Result<Counted> {
    let (seq, before) = log_counts(tx)?;
    let tail = tail(tx, seq, COUNTED)?;
    let tags = if tail.upto > seq { tagged_tail(tx, seq, tail.upto)? } else { HashMap::new() };
    Ok(Counted { seq, tail, before, tags })
}

/// Saves counts, unless somebody else counted meanwhile.
fn save(tx: &Tx<'_>, counted: &Counted) -> Result<()> {
    let (seq, before) = log_counts(tx)?;
    if seq != counted.seq || before != counted.before {
        return Ok(());
    }
    let mut counts = before;
    counts.iter_mut().zip(counted.tail.counts).for_each(|(count, more)| *count += more);
    save_counts(tx, seq, counted.tail.upto, counts)?;
    let mut statement = tx.prepare(&tx.sql().count_tag)?;
    for ((tag, status), rows) in &counted.tags {
        statement.execute((tag, status, rows))?;
    }
    Ok(())
}

fn save_counts(tx: &Tx<'_>, seq: i64, upto: i64, counts: [i64; 4]) -> Result<()> {
    let text = serde_json::Value::from(counts.to_vec()).to_string();
    tx.prepare(&tx.sql().save_log_counts)?.execute((seq, upto, text))?;
    Ok(())
}

/// Up to which log row the counts go.
pub(super) fn counted_upto(tx: &Tx<'_>) -> Result<i64> {
    Ok(log_counts(tx)?.0)
}

/// Takes removed log rows off the counts.
pub(super) fn uncount(tx: &Tx<'_>, removed: &[(i16, i64)], of_tags: &HashMap<(String, i16), i64>) -> Result<()> {
    let (seq, mut counts) = log_counts(tx)?;
    for (status, rows) in removed {
        if let Some(count) = usize::try_from(*status).ok().and_then(|status| counts.get_mut(status)) {
            *count -= rows;
        }
    }
    save_counts(tx, seq, seq, counts)?;
    let (mut count, mut drop_empty) = (tx.prepare(&tx.sql().count_tag)?, tx.prepare(&tx.sql().drop_empty_count)?);
    for ((tag, status), rows) in of_tags {
        count.execute((tag, status, -rows))?;
        drop_empty.execute((tag, status))?;
    }
    Ok(())
}
