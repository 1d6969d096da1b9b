//! Lists of entries and their totals, on SQLite.

use std::collections::{HashMap, HashSet};

use rusqlite::types::ToSql;
use rusqlite::{OptionalExtension, Row};
use tidegate_core::{End, EntryId, Status, Timestamp, Tsid};

use super::errors::damaged;
use super::jobs::Urgency;
use super::tx::{Tx, moment, read_queue_name};
use super::unreadable::shown;
use super::{SqliteStore, tags};
use crate::error::Result;
use crate::listing::{
    COUNTED_ROWS, Found, Lanes, Listing, LivePart, MAX_LANES, Range, STRETCH, Searches, Source, Step, Total, ends_of,
    is_counted, needs_lanes, source,
};
use crate::work::{EntrySummary, ListQuery, Page, next_retry_at};

/// Log rows that are added to the counts by one transaction.
const COUNTED: i64 = 20_000;
/// How many such steps one round of upkeep takes.
const ROUNDS: usize = 10;

/// Under whom the stretches of all clients' workers stand.
const EVERYBODY: i64 = 0;

/// Log rows by client, tag and how they ended. No client stands for all, and no tag for any.
pub(super) type Tally = HashMap<(Option<i64>, String, i16), i64>;

/// Adds rows with a tag, for all and for their client.
pub(super) fn tally(tally: &mut Tally, client: Option<i64>, tag: &str, status: i16, rows: i64) {
    *tally.entry((None, tag.to_owned(), status)).or_insert(0) += rows;
    if client.is_some() {
        *tally.entry((client, tag.to_owned(), status)).or_insert(0) += rows;
    }
}

pub(super) fn list(tx: &Tx<'_>, query: &ListQuery) -> Result<Page> {
    let total = if is_counted(query) { Some(total(tx, query)?) } else { None };
    let lanes = if needs_lanes(query) { lanes_of(tx, query)? } else { None };
    let source = source(query, lanes);
    let mut listing = Listing::new(query, &source, range(tx, query)?);
    let beyond = |total: Total| !total.capped && query.offset as u64 >= total.rows;
    if total.is_some_and(beyond) {
        return Ok(listing.finish(total));
    }
    while let Some(step) = listing.step() {
        let found = candidates(tx, query, &source, step)?;
        let mut entries = HashMap::new();
        for id in found.ids.iter().filter(|_| step.read) {
            entries.extend(summary(tx, *id)?.map(|entry| (*id, entry)));
        }
        listing.add(step, &found, |id| entries.remove(&id));
    }
    Ok(listing.finish(total))
}

/// Numbers of a step, gathered from each index that has some of them.
struct Candidates<'a> {
    tx: &'a Tx<'a>,
    step: Step,
    found: Found,
    /// Stretches in which something ended that may fit.
    near: Vec<i64>,
}

impl Candidates<'_> {
    fn gather(&mut self, sql: &str, keys: &[&dyn ToSql]) -> Result<()> {
        let ids = self.numbers(sql, self.step.before, self.step.limit, keys)?;
        self.found.ids.extend(ids);
        Ok(())
    }

    fn gather_near(&mut self, sql: &str, keys: &[&dyn ToSql]) -> Result<()> {
        let stretches = self.numbers(sql, (self.step.before - 1) >> STRETCH, self.step.stretches, keys)?;
        self.near.extend(stretches);
        Ok(())
    }

    fn numbers(&self, sql: &str, from: i64, limit: i64, keys: &[&dyn ToSql]) -> Result<Vec<i64>> {
        let mut params: Vec<&dyn ToSql> = vec![&from, &limit];
        params.extend(keys);
        let mut statement = self.tx.prepare(sql)?;
        // Bound by position: a statement takes as many of the keys as it names.
        params.truncate(statement.parameter_count());
        Ok(statement.query_map(&*params, |row| row.get(0))?.collect::<rusqlite::Result<_>>()?)
    }

    /// Looks through the youngest of the near stretches, and through what was not counted yet.
    fn gather_ended(&mut self, ends: &[i16], fits: impl Fn(&Ended<'_>) -> bool) -> Result<()> {
        if ends.is_empty() {
            return Ok(());
        }
        let sql = self.tx.sql();
        let most = usize::try_from(self.step.stretches).unwrap_or(0);
        self.near.sort_unstable_by(|a, b| b.cmp(a));
        self.near.dedup();
        self.near.truncate(most);
        if self.near.len() == most {
            self.found.down_to = self.near.last().map(|stretch| stretch << STRETCH);
        }
        let mut statement = self.tx.prepare(&sql.list_stretch)?;
        let mut take = |rows: &mut rusqlite::Rows<'_>| -> Result<()> {
            while let Some(row) = rows.next()? {
                let ended = Ended::read(row)?;
                if ended.number < self.step.before && ends.contains(&ended.status) && fits(&ended) {
                    self.found.ids.push(ended.number);
                }
            }
            Ok(())
        };
        for stretch in &self.near {
            take(&mut statement.query((stretch << STRETCH, (stretch + 1) << STRETCH))?)?;
        }
        take(&mut self.tx.prepare(&sql.list_since)?.query([counted_upto(self.tx)?])?)
    }

    /// The youngest of all, each once, as far down as everybody looked.
    fn finish(mut self) -> Found {
        let (ids, down_to) = (&mut self.found.ids, self.found.down_to.unwrap_or(0));
        ids.retain(|id| *id >= down_to);
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.dedup();
        ids.truncate(usize::try_from(self.step.limit).unwrap_or(0));
        self.found
    }
}

/// What lists by stretches look at of an ended entry: its number, or that of its stretch, and what may be asked for.
struct Ended<'a> {
    number: i64,
    status: i16,
    lane: i64,
    worker: Option<&'a str>,
    client: Option<i64>,
}

impl<'a> Ended<'a> {
    fn read(row: &'a Row<'_>) -> Result<Self> {
        let worker = row.get_ref(3)?.as_str_or_null().map_err(rusqlite::Error::from)?;
        Ok(Self { number: row.get(0)?, status: row.get(1)?, lane: row.get(2)?, worker, client: row.get(4)? })
    }
}

fn candidates(tx: &Tx<'_>, query: &ListQuery, source: &Source, step: Step) -> Result<Found> {
    let sql = tx.sql();
    let (ends, live) = (ends_of(query.status), LivePart::of(query.status));
    let (part, client) = (live as i64, query.client.map(Tsid::to_i64));
    let mut found = Candidates { tx, step, found: Found::default(), near: Vec::new() };
    let is_live = live != LivePart::None;
    match source {
        Source::All => {
            if is_live {
                found.gather(&sql.list_live, &[&part])?;
            }
            if !ends.is_empty() {
                found.gather(&sql.list_log, &[])?;
            }
        }
        Source::Ended(end) => found.gather(&sql.list_ended, &[&end.code()])?,
        Source::Client => {
            if is_live {
                found.gather(&sql.list_live_client, &[&part, &client])?;
            }
            for end in &ends {
                found.gather(&sql.list_log_client, &[end, &client])?;
            }
        }
        Source::Lanes(lanes) => {
            for lane in &lanes.lanes {
                if is_live {
                    found.gather(&sql.list_fresh, &[&part, lane])?;
                    found.gather(&sql.list_waiting, &[&part, lane])?;
                }
                for end in &ends {
                    found.gather_near(&sql.lane_stretches, &[end, lane])?;
                }
            }
            let wanted: HashSet<i64> = lanes.lanes.iter().copied().collect();
            found.gather_ended(&ends, |ended| wanted.contains(&ended.lane))?;
            if is_live {
                let (name, of) = queue_parts(query);
                found.gather(&sql.list_arrived, &[&part, &client, &name, &of, &query.event_type])?;
            }
        }
        Source::Tags => {
            let of_client = client.is_some();
            for tag in &query.tags {
                match live {
                    LivePart::None => {}
                    LivePart::Held => found.gather(&sql.list_tag_held, &[&part, tag, &client])?,
                    _ if of_client => found.gather(&sql.list_tag_client, &[&part, tag, &client])?,
                    _ => found.gather(&sql.list_tag, &[&part, tag])?,
                }
                for end in &ends {
                    let sql = if of_client { &sql.list_log_tag_client } else { &sql.list_log_tag };
                    found.gather(sql, &[end, tag, &client])?;
                }
            }
        }
        Source::Worker => {
            if is_live {
                let sql = if client.is_some() { &sql.list_worker_live_client } else { &sql.list_worker_live };
                found.gather(sql, &[&part, &query.worker, &client])?;
            }
            for end in &ends {
                found.gather_near(&sql.worker_stretches, &[end, &query.worker, &client.unwrap_or(EVERYBODY)])?;
            }
            let worker = query.worker.as_deref();
            let is_his = |ended: &Ended<'_>| ended.worker == worker && (client.is_none() || ended.client == client);
            found.gather_ended(&ends, is_his)?;
        }
    }
    Ok(found.finish())
}

/// The name and the client of the queue that is asked for.
fn queue_parts(query: &ListQuery) -> (Option<&str>, Option<i64>) {
    let queue = query.queue.as_ref();
    (queue.map(tidegate_core::QueueName::name), queue.and_then(tidegate_core::QueueName::client).map(Tsid::to_i64))
}

/// The lanes of what is wanted; none where there are too many to merge.
fn lanes_of(tx: &Tx<'_>, query: &ListQuery) -> Result<Option<Lanes>> {
    let sql = tx.sql();
    let ((name, of), client) = (queue_parts(query), query.client.map(Tsid::to_i64));
    let limit = MAX_LANES as i64 + 1;
    let mut found = Lanes::default();
    let mut statement = tx.prepare(&sql.lanes_of)?;
    let mut rows = statement.query((client, name, of, &query.event_type, limit))?;
    while let Some(row) = rows.next()? {
        found.lanes.push(row.get(0)?);
        found.mixed |= row.get::<_, bool>(1)?;
    }
    let mut below = tx.prepare(&sql.next_lane_below)?;
    let mut last = i64::MIN;
    while let Some(lane) = below.query_row([last], |row| row.get::<_, Option<i64>>(0))? {
        found.lanes.push(lane);
        found.mixed |= query.queue.is_some() || query.event_type.is_some() || query.client.is_some();
        last = lane;
    }
    Ok((found.lanes.len() <= MAX_LANES).then_some(found))
}

/// The numbers that a time range can have.
fn range(tx: &Tx<'_>, query: &ListQuery) -> Result<Range> {
    if query.from.is_none() && query.to.is_none() {
        return Ok(Range::EVERYTHING);
    }
    let sql = tx.sql();
    let last: i64 = tx.prepare(&sql.last_number)?.query_row([], |row| row.get(0))?;
    let mut published = tx.prepare(&sql.moment_from)?;
    let mut searches = Searches::new(query, last);
    loop {
        let pivots = searches.pivots();
        if pivots.is_empty() {
            return Ok(searches.range());
        }
        let mut found = Vec::with_capacity(pivots.len());
        for pivot in pivots {
            let at: Option<i64> = published.query_row([pivot], |row| row.get(0)).optional()?;
            found.push((pivot, at.map(moment).transpose()?));
        }
        searches.learn(&found);
    }
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

/// How many entries there are: what was counted, and what came since.
fn total(tx: &Tx<'_>, query: &ListQuery) -> Result<Total> {
    let client = query.client.map(Tsid::to_i64);
    let (live, mut capped) = live_total(tx, query, client)?;
    let mut rows = live;
    let ends = ends_of(query.status);
    if !ends.is_empty() {
        let (seq, counts) = log_counts(tx)?;
        let tail = tail(tx, seq, COUNTED_ROWS)?;
        capped |= tail.counts.iter().sum::<i64>() >= COUNTED_ROWS;
        let tag = query.tags.first();
        let since = match (tag, client) {
            (None, None) => Tally::new(),
            (None, Some(_)) => client_tail(tx, seq, tail.upto, client)?,
            (Some(_), _) => tagged_tail(tx, seq, tail.upto)?,
        };
        for end in ends {
            let (counted, came) = match (tag, client) {
                (None, None) => (counts[end as usize], tail.counts[end as usize]),
                (tag, client) => {
                    let tag = tag.map_or("", String::as_str);
                    let came = since.get(&(client, tag.to_owned(), end)).copied().unwrap_or(0);
                    (counted_rows(tx, client, tag, end)?, came)
                }
            };
            let again = superseded(tx, client, tag, end)?;
            capped |= again >= COUNTED_ROWS;
            rows += counted + came - again;
        }
    }
    Ok(Total { rows: u64::try_from(rows).unwrap_or(0), capped })
}

/// How many live entries fit, and whether there may be more.
fn live_total(tx: &Tx<'_>, query: &ListQuery, client: Option<i64>) -> Result<(i64, bool)> {
    let (sql, part) = (tx.sql(), LivePart::of(query.status));
    if part == LivePart::None {
        return Ok((0, false));
    }
    let (rows, held): (i64, i64) = match query.tags.first() {
        None => {
            let count = if client.is_some() { &sql.count_live_client } else { &sql.count_live };
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let look = part != LivePart::All;
            let mut statement = tx.prepare(count)?;
            match client {
                Some(client) => statement.query_row((COUNTED_ROWS, look, client), read)?,
                None => statement.query_row((COUNTED_ROWS, look), read)?,
            }
        }
        Some(tag) => {
            let one = |row: &Row<'_>| row.get(0);
            let rows = match client {
                Some(client) => tx.prepare(&sql.count_live_tag_client)?.query_row((COUNTED_ROWS, tag, client), one)?,
                None => tx.prepare(&sql.count_live_tag)?.query_row((COUNTED_ROWS, tag), one)?,
            };
            let held = match part {
                LivePart::All => 0,
                _ => tx.prepare(&sql.count_held_tag)?.query_row((COUNTED_ROWS, tag, client), one)?,
            };
            (rows, held)
        }
    };
    let fitting = match part {
        LivePart::All | LivePart::None => rows,
        LivePart::Pending => rows - held,
        LivePart::Held => held,
    };
    Ok((fitting, rows >= COUNTED_ROWS))
}

/// Counted log rows of a client or a tag.
fn counted_rows(tx: &Tx<'_>, client: Option<i64>, tag: &str, end: i16) -> Result<i64> {
    let sql = tx.sql();
    let rows: Option<i64> = match client {
        Some(client) => tx.prepare(&sql.client_count)?.query_row((client, tag, end), |row| row.get(0)).optional()?,
        None => tx.prepare(&sql.tag_count)?.query_row((tag, end), |row| row.get(0)).optional()?,
    };
    Ok(rows.unwrap_or(0))
}

/// Log rows of entries that live again.
fn superseded(tx: &Tx<'_>, client: Option<i64>, tag: Option<&String>, end: i16) -> Result<i64> {
    let sql = tx.sql();
    let one = |row: &Row<'_>| row.get(0);
    Ok(match (tag, client) {
        (None, None) => tx.prepare(&sql.count_superseded)?.query_row((end, COUNTED_ROWS), one)?,
        (None, Some(client)) => tx.prepare(&sql.count_redriven)?.query_row((end, COUNTED_ROWS, client), one)?,
        (Some(tag), None) => tx.prepare(&sql.count_superseded_tag)?.query_row((end, COUNTED_ROWS, tag), one)?,
        (Some(tag), Some(client)) => {
            tx.prepare(&sql.count_redriven_tag)?.query_row((end, COUNTED_ROWS, tag, client), one)?
        }
    })
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

fn tagged_tail(tx: &Tx<'_>, seq: i64, upto: i64) -> Result<Tally> {
    let mut statement = tx.prepare(&tx.sql().tagged_tail)?;
    let mut rows = statement.query((seq, upto))?;
    let mut counts = Tally::new();
    while let Some(row) = rows.next()? {
        let (status, client) = (row.get(0)?, row.get(2)?);
        for tag in tags::read(shown(row, 1)?) {
            tally(&mut counts, client, &tag, status, 1);
        }
    }
    Ok(counts)
}

/// The same by client, of one or of all.
fn client_tail(tx: &Tx<'_>, seq: i64, upto: i64, of: Option<i64>) -> Result<Tally> {
    let mut statement = tx.prepare(&tx.sql().client_tail)?;
    let mut rows = statement.query((seq, upto, of))?;
    let mut counts = Tally::new();
    while let Some(row) = rows.next()? {
        counts.insert((row.get(0)?, String::new(), row.get(1)?), row.get(2)?);
    }
    Ok(counts)
}

/// What a step of counting found.
struct Counted {
    seq: i64,
    tail: Tail,
    before: [i64; 4],
    tally: Tally,
    stretches: Stretches,
}

/// In which stretches lanes and workers have entries, by how they ended.
#[derive(Default)]
struct Stretches {
    lanes: HashSet<(i64, i16, i64)>,
    workers: HashSet<(i64, String, i16, i64)>,
}

impl Stretches {
    /// Of these log rows.
    fn read(rows: &mut rusqlite::Rows<'_>) -> Result<Self> {
        let mut found = Self::default();
        while let Some(row) = rows.next()? {
            let Ended { number: stretch, status, lane, worker, client } = Ended::read(row)?;
            found.lanes.insert((lane, status, stretch));
            if let Some(worker) = worker {
                for client in [Some(EVERYBODY), client].into_iter().flatten() {
                    found.workers.insert((client, worker.to_owned(), status, stretch));
                }
            }
        }
        Ok(found)
    }
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
    let mut tally = Tally::new();
    if tail.upto > seq {
        tally.extend(tagged_tail(tx, seq, tail.upto)?);
        tally.extend(client_tail(tx, seq, tail.upto, None)?);
    }
    let stretches = Stretches::read(&mut tx.prepare(&tx.sql().stretches_tail)?.query((seq, tail.upto, STRETCH))?)?;
    Ok(Counted { seq, tail, before, tally, stretches })
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
    save_stretches(tx, &counted.stretches)?;
    add_tally(tx, &counted.tally, 1)
}

fn save_stretches(tx: &Tx<'_>, stretches: &Stretches) -> Result<()> {
    let sql = tx.sql();
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
    tx.prepare(&tx.sql().save_log_counts)?.execute((seq, upto, text))?;
    Ok(())
}

/// Takes off the stretches of removed entries what is no longer in them.
pub(super) fn forget_stretches(tx: &Tx<'_>, removed: &[i64]) -> Result<()> {
    let sql = tx.sql();
    let touched: HashSet<i64> = removed.iter().map(|id| id >> STRETCH).collect();
    for stretch in touched {
        let range = (stretch << STRETCH, (stretch + 1) << STRETCH, STRETCH);
        let left = Stretches::read(&mut tx.prepare(&sql.left_in_stretch)?.query(range)?)?;
        let lanes = tx
            .prepare(&sql.lanes_in_stretch)?
            .query_map([stretch], |row| Ok((row.get(0)?, row.get(1)?, stretch)))?
            .collect::<rusqlite::Result<Vec<(i64, i16, i64)>>>()?;
        for gone in lanes.into_iter().filter(|place| !left.lanes.contains(place)) {
            tx.prepare(&sql.forget_lane_stretch)?.execute(gone)?;
        }
        let workers = tx
            .prepare(&sql.workers_in_stretch)?
            .query_map([stretch], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, stretch)))?
            .collect::<rusqlite::Result<Vec<(i64, String, i16, i64)>>>()?;
        for gone in workers.into_iter().filter(|place| !left.workers.contains(place)) {
            tx.prepare(&sql.forget_worker_stretch)?.execute(gone)?;
        }
    }
    Ok(())
}

/// Up to which log row the counts go.
pub(super) fn counted_upto(tx: &Tx<'_>) -> Result<i64> {
    Ok(log_counts(tx)?.0)
}

/// Takes removed log rows off the counts.
pub(super) fn uncount(tx: &Tx<'_>, removed: &[(i16, i64)], tally: &Tally) -> Result<()> {
    let (seq, mut counts) = log_counts(tx)?;
    for (status, rows) in removed {
        if let Some(count) = usize::try_from(*status).ok().and_then(|status| counts.get_mut(status)) {
            *count -= rows;
        }
    }
    save_counts(tx, seq, seq, counts)?;
    add_tally(tx, tally, -1)?;
    let sql = tx.sql();
    let (mut of_tag, mut of_client) = (tx.prepare(&sql.drop_empty_count)?, tx.prepare(&sql.drop_empty_client_count)?);
    for (client, tag, status) in tally.keys() {
        match client {
            Some(client) => of_client.execute((client, tag, status))?,
            None => of_tag.execute((tag, status))?,
        };
    }
    Ok(())
}

fn add_tally(tx: &Tx<'_>, tally: &Tally, times: i64) -> Result<()> {
    let sql = tx.sql();
    let (mut of_tag, mut of_client) = (tx.prepare(&sql.count_tag)?, tx.prepare(&sql.count_client)?);
    for ((client, tag, status), rows) in tally {
        match client {
            Some(client) => of_client.execute((client, tag, status, rows * times))?,
            None => of_tag.execute((tag, status, rows * times))?,
        };
    }
    Ok(())
}
