//! The counts that totals and lists start from, on SQLite: log rows by end, tag and client, and the stretches in which
//! lanes and workers have ended entries. Upkeep adds what ended since; retention subtracts what it removes.

use std::collections::{HashMap, HashSet};

use rusqlite::Params;

use crate::error::Result;
use crate::listing::STRETCH;
use crate::sql::{Only, Statement};
use crate::sqlite::engine::errors::damaged;
use crate::sqlite::engine::jobs::Urgency;
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::statements::log_counts::StretchRow;

/// The most log rows that one transaction adds to the counts.
const COUNTED: i64 = 20_000;
/// How many such transactions one round of upkeep makes.
const ROUNDS: usize = 10;

/// The client under which the stretches of workers of all clients are stored.
pub(super) const ALL_CLIENTS: i64 = 0;

/// Log rows by client, tag and end. Client `None` stands for all clients, an empty tag for all tags.
pub(super) type Tally = HashMap<(Option<i64>, String, i16), i64>;

/// Adds rows with a tag, both for all clients and for their own.
pub(super) fn tally(tally: &mut Tally, client: Option<i64>, tag: &str, status: i16, rows: i64) {
    *tally.entry((None, tag.to_owned(), status)).or_insert(0) += rows;
    if client.is_some() {
        *tally.entry((client, tag.to_owned(), status)).or_insert(0) += rows;
    }
}

/// Up to which log row the log is counted, and how many rows have each end.
pub(super) fn counts(tx: &Tx<'_>) -> Result<(i64, [i64; 4])> {
    let row = tx.row(&tx.sql().log_counts.counts, [])?.ok_or_else(|| damaged("the log's counts are missing"))?;
    let counts = serde_json::from_str(&row.counts)
        .map_err(|error| damaged("the log's counts cannot be read").with_source(error))?;
    Ok((row.seq, counts))
}

/// Counted log rows of a client or a tag.
pub(super) fn counted_rows(tx: &Tx<'_>, client: Option<i64>, tag: &str, end: i16) -> Result<i64> {
    let sql = &tx.sql().log_counts;
    let rows = match client {
        Some(client) => tx.row(&sql.of_client, (client, tag, end))?,
        None => tx.row(&sql.of_tag, (tag, end))?,
    };
    Ok(rows.map_or(0, |Only(rows)| rows))
}

/// Log rows after the counted ones.
pub(super) struct Tail {
    pub(super) upto: i64,
    pub(super) counts: [i64; 4],
}

pub(super) fn tail(tx: &Tx<'_>, seq: i64, limit: i64) -> Result<Tail> {
    Ok(tx.row(&tx.sql().log_counts.tail, (seq, limit))?.map_or(Tail { upto: seq, counts: [0; 4] }, |row| Tail {
        upto: row.upto,
        counts: [row.completed, row.with_errors, row.failed, row.cancelled],
    }))
}

pub(super) fn tagged_tail(tx: &Tx<'_>, seq: i64, upto: i64) -> Result<Tally> {
    let mut counts = Tally::new();
    tx.each_row(&tx.sql().log_counts.tagged_tail, (seq, upto), |row| {
        for tag in crate::sqlite::engine::row::tags(row.tags.map(|text| text.0)) {
            tally(&mut counts, row.client_id, &tag, row.status, 1);
        }
        Ok(())
    })?;
    Ok(counts)
}

/// The same by client, for one client or all.
pub(super) fn client_tail(tx: &Tx<'_>, seq: i64, upto: i64, of: Option<i64>) -> Result<Tally> {
    let rows = tx.rows(&tx.sql().log_counts.client_tail, (seq, upto, of))?;
    Ok(rows.into_iter().map(|row| ((row.client_id, String::new(), row.status), row.rows)).collect())
}

/// The result of one step of counting.
struct Counted {
    seq: i64,
    tail: Tail,
    before: [i64; 4],
    tally: Tally,
    stretches: Stretches,
}

/// In which stretches lanes and workers have ended entries, by end.
#[derive(Default)]
struct Stretches {
    lanes: HashSet<(i64, i16, i64)>,
    workers: HashSet<(i64, String, i16, i64)>,
}

impl Stretches {
    /// The stretches of the log rows that a statement returns.
    fn read<'c>(tx: &Tx<'c>, statement: &'c Statement<StretchRow>, params: impl Params) -> Result<Self> {
        let mut found = Self::default();
        tx.each_row(statement, params, |StretchRow { stretch, status, lane, worker, client_id }| {
            found.lanes.insert((lane, status, stretch));
            if let Some(worker) = worker {
                for client in [Some(ALL_CLIENTS), client_id].into_iter().flatten() {
                    found.workers.insert((client, worker.clone(), status, stretch));
                }
            }
            Ok(())
        })?;
        Ok(found)
    }
}

impl SqliteStore {
    /// Adds log rows to the counts. A reader counts them, so that the writer only has to write.
    pub(super) async fn count_log(&self) -> Result<()> {
        for _ in 0..ROUNDS {
            let counted = self.entries_handle().read(|tx| count(tx)).await?;
            let more = counted.tail.counts.iter().sum::<i64>() == COUNTED;
            if counted.tail.upto == counted.seq {
                break;
            }
            self.entries_handle().write(Urgency::Publish, move |tx| save(tx, &counted)).await?;
            if !more {
                break;
            }
        }
        Ok(())
    }
}

fn count(tx: &Tx<'_>) -> Result<Counted> {
    let (seq, before) = counts(tx)?;
    let tail = tail(tx, seq, COUNTED)?;
    let mut tally = Tally::new();
    if tail.upto > seq {
        tally.extend(tagged_tail(tx, seq, tail.upto)?);
        tally.extend(client_tail(tx, seq, tail.upto, None)?);
    }
    let stretches = Stretches::read(tx, &tx.sql().log_counts.stretches_tail, (seq, tail.upto, STRETCH))?;
    Ok(Counted { seq, tail, before, tally, stretches })
}

/// Saves counts, unless another process has counted meanwhile.
fn save(tx: &Tx<'_>, counted: &Counted) -> Result<()> {
    let (seq, before) = counts(tx)?;
    if seq != counted.seq || before != counted.before {
        return Ok(());
    }
    let mut counts = before;
    counts.iter_mut().zip(counted.tail.counts).for_each(|(count, more)| *count += more);
    save_counts(tx, seq, counted.tail.upto, counts)?;
    save_stretches(tx, &counted.stretches)?;
    add_tally(tx, &counted.tally, 1)
}

fn save_stretches(tx: &Tx<'_>, stretches: &Stretches) -> Result<()> {
    let sql = &tx.sql().log_counts;
    let (mut of_lane, mut of_worker) = (tx.prepare(&sql.add_lane_stretch)?, tx.prepare(&sql.add_worker_stretch)?);
    for place in &stretches.lanes {
        of_lane.execute(*place)?;
    }
    for (client, worker, status, stretch) in &stretches.workers {
        of_worker.execute((client, worker, status, stretch))?;
    }
    Ok(())
}

fn save_counts(tx: &Tx<'_>, seq: i64, upto: i64, counts: [i64; 4]) -> Result<()> {
    let text = serde_json::Value::from(counts.to_vec()).to_string();
    tx.execute(&tx.sql().log_counts.save, (seq, upto, text))?;
    Ok(())
}

/// Removes from the stretches of removed entries what they no longer contain.
pub(super) fn forget_stretches(tx: &Tx<'_>, removed: &[i64]) -> Result<()> {
    let sql = &tx.sql().log_counts;
    let touched: HashSet<i64> = removed.iter().map(|id| id >> STRETCH).collect();
    for stretch in touched {
        let range = (stretch << STRETCH, (stretch + 1) << STRETCH, STRETCH);
        let left = Stretches::read(tx, &sql.left_in_stretch, range)?;
        let lanes = tx.rows(&sql.lanes_in_stretch, [stretch])?.into_iter();
        for gone in lanes.map(|row| (row.lane, row.status, stretch)).filter(|place| !left.lanes.contains(place)) {
            tx.execute(&sql.forget_lane_stretch, gone)?;
        }
        let workers = tx.rows(&sql.workers_in_stretch, [stretch])?.into_iter();
        let workers = workers.map(|row| (row.client_id, row.worker, row.status, stretch));
        for gone in workers.filter(|place| !left.workers.contains(place)) {
            tx.execute(&sql.forget_worker_stretch, gone)?;
        }
    }
    Ok(())
}

/// The number of the last log row that is counted.
pub(super) fn counted_upto(tx: &Tx<'_>) -> Result<i64> {
    Ok(counts(tx)?.0)
}

/// Subtracts removed log rows from the counts.
pub(super) fn uncount(tx: &Tx<'_>, removed: &[(i16, i64)], tally: &Tally) -> Result<()> {
    let (seq, mut counts) = counts(tx)?;
    for (status, rows) in removed {
        if let Some(count) = usize::try_from(*status).ok().and_then(|status| counts.get_mut(status)) {
            *count -= rows;
        }
    }
    save_counts(tx, seq, seq, counts)?;
    add_tally(tx, tally, -1)?;
    let sql = &tx.sql().log_counts;
    let (mut of_tag, mut of_client) = (tx.prepare(&sql.drop_empty_tag)?, tx.prepare(&sql.drop_empty_client)?);
    for (client, tag, status) in tally.keys() {
        match client {
            Some(client) => of_client.execute((client, tag, status))?,
            None => of_tag.execute((tag, status))?,
        };
    }
    Ok(())
}

fn add_tally(tx: &Tx<'_>, tally: &Tally, times: i64) -> Result<()> {
    let sql = &tx.sql().log_counts;
    let (mut of_tag, mut of_client) = (tx.prepare(&sql.add_tag)?, tx.prepare(&sql.add_client)?);
    for ((client, tag, status), rows) in tally {
        match client {
            Some(client) => of_client.execute((client, tag, status, rows * times))?,
            None => of_tag.execute((tag, status, rows * times))?,
        };
    }
    Ok(())
}
