//! Lists of entries and their totals on SQLite.

use std::collections::{HashMap, HashSet};

use rusqlite::types::ToSql;
use tidegate_core::{End, EntryId, QueueName, Status, Tsid};

use crate::error::Result;
use crate::listing::{
    COUNTED_ROWS, Found, Lanes, Listing, LivePart, MAX_LANES, Range, STRETCH, Searches, Source, Step, Total, ends_of,
    is_counted, needs_lanes, source,
};
use crate::sql::{FromRow, Only, Statement};
use crate::sqlite::engine::errors::damaged;
use crate::sqlite::engine::row::{Moment, Shown};
use crate::sqlite::engine::tx::Tx;
use crate::sqlite::log_counts::{
    ALL_CLIENTS, Tally, client_tail, counted_rows, counted_upto, counts, tagged_tail, tail,
};
use crate::sqlite::statements::lists::{EndedRow, SummaryRow};
use crate::values::lists::next_retry_at;
use crate::values::{EntrySummary, ListQuery, Page};

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

/// The entry numbers of a step, gathered from each index that has some of them.
struct Candidates<'a> {
    tx: &'a Tx<'a>,
    step: Step,
    found: Found,
    /// Stretches in which entries ended that may match.
    near: Vec<i64>,
}

impl<'a> Candidates<'a> {
    fn gather(&mut self, statement: &'a Statement<Only<i64>>, keys: &[&dyn ToSql]) -> Result<()> {
        let ids = self.numbers(statement, self.step.before, self.step.limit, keys)?;
        self.found.ids.extend(ids);
        Ok(())
    }

    fn gather_near(&mut self, statement: &'a Statement<Only<i64>>, keys: &[&dyn ToSql]) -> Result<()> {
        let stretches = self.numbers(statement, (self.step.before - 1) >> STRETCH, self.step.stretches, keys)?;
        self.near.extend(stretches);
        Ok(())
    }

    fn numbers(
        &self,
        statement: &'a Statement<Only<i64>>,
        from: i64,
        limit: i64,
        keys: &[&dyn ToSql],
    ) -> Result<Vec<i64>> {
        let mut params: Vec<&dyn ToSql> = vec![&from, &limit];
        params.extend(keys);
        let mut prepared = self.tx.prepare(statement)?;
        // Bound by position: a statement takes as many of the keys as it has parameters.
        params.truncate(prepared.parameter_count());
        let mut rows = prepared.query(&*params)?;
        let mut numbers = Vec::new();
        while let Some(row) = rows.next()? {
            numbers.push(Only::read(row, 0)?.0);
        }
        Ok(numbers)
    }

    /// Searches the youngest of the stretches, and the log rows that are not counted yet.
    fn gather_ended(&mut self, ends: &[i16], fits: impl Fn(&EndedRow) -> bool) -> Result<()> {
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
        let mut statement = self.tx.prepare(&sql.lists.in_stretch)?;
        let mut take = |rows: &mut rusqlite::Rows<'_>| -> Result<()> {
            while let Some(row) = rows.next()? {
                let ended = EndedRow::read(row, 0)?;
                if ended.id < self.step.before && ends.contains(&ended.status) && fits(&ended) {
                    self.found.ids.push(ended.id);
                }
            }
            Ok(())
        };
        for stretch in &self.near {
            take(&mut statement.query((stretch << STRETCH, (stretch + 1) << STRETCH))?)?;
        }
        take(&mut self.tx.prepare(&sql.lists.uncounted)?.query([counted_upto(self.tx)?])?)
    }

    /// Gathers from the lanes of the query's queue and type, and from what has arrived but has no lane yet.
    fn gather_lanes(
        &mut self,
        lanes: &[i64],
        query: &ListQuery,
        (part, is_live): (i64, bool),
        ends: &[i16],
    ) -> Result<()> {
        let sql = &self.tx.sql().lists;
        for lane in lanes {
            if is_live {
                self.gather(&sql.fresh, &[&part, lane])?;
                self.gather(&sql.waiting, &[&part, lane])?;
            }
            for end in ends {
                self.gather_near(&sql.lane_stretches, &[end, lane])?;
            }
        }
        let wanted: HashSet<i64> = lanes.iter().copied().collect();
        self.gather_ended(ends, |ended| wanted.contains(&ended.lane))?;
        if is_live {
            let ((name, of), client) = (queue_parts(query), query.client.map(Tsid::to_i64));
            self.gather(&sql.arrived, &[&part, &client, &name, &of, &query.event_type])?;
        }
        Ok(())
    }

    /// The youngest numbers of all, without repeats, down to where every source was searched.
    fn finish(mut self) -> Found {
        let (ids, down_to) = (&mut self.found.ids, self.found.down_to.unwrap_or(0));
        ids.retain(|id| *id >= down_to);
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.dedup();
        ids.truncate(usize::try_from(self.step.limit).unwrap_or(0));
        self.found
    }
}

fn candidates(tx: &Tx<'_>, query: &ListQuery, source: &Source, step: Step) -> Result<Found> {
    let sql = &tx.sql().lists;
    let (ends, live) = (ends_of(query.status), LivePart::of(query.status));
    let (part, client) = (live as i64, query.client.map(Tsid::to_i64));
    let mut found = Candidates { tx, step, found: Found::default(), near: Vec::new() };
    let is_live = live != LivePart::None;
    match source {
        Source::All => {
            if is_live {
                found.gather(&sql.live, &[&part])?;
            }
            if !ends.is_empty() {
                found.gather(&sql.log, &[])?;
            }
        }
        Source::Ended(end) => found.gather(&sql.ended, &[&end.code()])?,
        Source::Client => {
            if is_live {
                found.gather(&sql.live_of_client, &[&part, &client])?;
            }
            for end in &ends {
                found.gather(&sql.log_of_client, &[end, &client])?;
            }
        }
        Source::Lanes(lanes) => found.gather_lanes(&lanes.lanes, query, (part, is_live), &ends)?,
        Source::Tags => {
            let of_client = client.is_some();
            for tag in &query.tags {
                match live {
                    LivePart::None => {}
                    LivePart::Held => found.gather(&sql.held_tag, &[&part, tag, &client])?,
                    _ if of_client => found.gather(&sql.live_tag_of_client, &[&part, tag, &client])?,
                    _ => found.gather(&sql.live_tag, &[&part, tag])?,
                }
                for end in &ends {
                    let sql = if of_client { &sql.log_tag_of_client } else { &sql.log_tag };
                    found.gather(sql, &[end, tag, &client])?;
                }
            }
        }
        Source::Worker => {
            if is_live {
                let sql = if client.is_some() { &sql.held_by_worker_of_client } else { &sql.held_by_worker };
                found.gather(sql, &[&part, &query.worker, &client])?;
            }
            for end in &ends {
                found.gather_near(&sql.worker_stretches, &[end, &query.worker, &client.unwrap_or(ALL_CLIENTS)])?;
            }
            let worker = query.worker.as_deref();
            let matches =
                |ended: &EndedRow| ended.worker.as_deref() == worker && (client.is_none() || ended.client_id == client);
            found.gather_ended(&ends, matches)?;
        }
    }
    Ok(found.finish())
}

/// The name and the client of the query's queue.
fn queue_parts(query: &ListQuery) -> (Option<&str>, Option<i64>) {
    let queue = query.queue.as_ref();
    (queue.map(QueueName::name), queue.and_then(QueueName::client).map(Tsid::to_i64))
}

/// The lanes that match the query; `None` when there are too many to merge.
fn lanes_of(tx: &Tx<'_>, query: &ListQuery) -> Result<Option<Lanes>> {
    let sql = &tx.sql().lists;
    let ((name, of), client) = (queue_parts(query), query.client.map(Tsid::to_i64));
    let limit = MAX_LANES as i64 + 1;
    let mut found = Lanes::default();
    for row in tx.rows(&sql.lanes_of, (client, name, of, &query.event_type, limit))? {
        found.lanes.push(row.id);
        found.mixed |= row.mixed;
    }
    let mut below = tx.prepare(&sql.next_lane_below)?;
    let mut last = i64::MIN;
    while let Some(Only(Some(lane))) = below.query([last])?.next()?.map(|row| Only::read(row, 0)).transpose()? {
        found.lanes.push(lane);
        found.mixed |= query.queue.is_some() || query.event_type.is_some() || query.client.is_some();
        last = lane;
    }
    Ok((found.lanes.len() <= MAX_LANES).then_some(found))
}

/// The numbers that entries of the query's time range can have.
fn range(tx: &Tx<'_>, query: &ListQuery) -> Result<Range> {
    if query.from.is_none() && query.to.is_none() {
        return Ok(Range::EVERYTHING);
    }
    let sql = &tx.sql().lists;
    let last = tx.row(&sql.last_number, [])?.map_or(0, |Only(last)| last);
    let mut published = tx.prepare(&sql.published_from)?;
    let mut searches = Searches::new(query, last);
    loop {
        let pivots = searches.pivots();
        if pivots.is_empty() {
            return Ok(searches.range());
        }
        let mut found = Vec::with_capacity(pivots.len());
        for pivot in pivots {
            let at = published.query([pivot])?.next()?.map(|row| Only::<Moment>::read(row, 0)).transpose()?;
            found.push((pivot, at.map(|Only(at)| at.into())));
        }
        searches.learn(&found);
    }
}

fn summary(tx: &Tx<'_>, id: i64) -> Result<Option<EntrySummary>> {
    let sql = &tx.sql().lists;
    if let Some(row) = tx.row(&sql.summary_live, [id])? {
        let status = if row.state.is_some() { Status::Processing } else { Status::Pending };
        return show(id, status, row).map(Some);
    }
    let Some(row) = tx.row(&sql.summary_ended, [id])? else { return Ok(None) };
    let end = row.state.and_then(|code| End::from_code(i16::try_from(code).ok()?));
    show(id, end.ok_or_else(|| damaged("an entry has an unknown end"))?.into(), row).map(Some)
}

fn show(id: i64, status: Status, row: SummaryRow) -> Result<EntrySummary> {
    let text = |shown: Option<Shown>| shown.map(|shown| shown.0);
    let client = row.client_id.map(Tsid::from_i64);
    let (due, updated_at) = (row.due_at.map(Into::into), row.updated_at.into());
    Ok(EntrySummary {
        id: EntryId::new(id)?,
        event_id: Tsid::from_i64(row.event_id),
        queue: QueueName::of(client, row.name)?,
        event_type: text(row.event_type).unwrap_or_default(),
        title: text(row.title),
        tags: crate::sqlite::engine::row::tags(text(row.tags)),
        client,
        status,
        attempts: row.attempts,
        max_attempts: row.max_attempts,
        next_retry_at: next_retry_at(due, row.attempts, updated_at).filter(|_| status == Status::Pending),
        worker: row.worker,
        priority: row.priority,
        group: text(row.group_key),
        created_at: row.created_at.into(),
        updated_at,
    })
}

/// How many entries match: the counted ones, and those since.
fn total(tx: &Tx<'_>, query: &ListQuery) -> Result<Total> {
    let client = query.client.map(Tsid::to_i64);
    let (live, mut capped) = live_total(tx, query, client)?;
    let mut rows = live;
    let ends = ends_of(query.status);
    if !ends.is_empty() {
        let (seq, counts) = counts(tx)?;
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
            let again = redriven(tx, client, tag, end)?;
            capped |= again >= COUNTED_ROWS;
            rows += counted + came - again;
        }
    }
    Ok(Total { rows: u64::try_from(rows).unwrap_or(0), capped })
}

/// How many live entries match, and whether there may be more.
fn live_total(tx: &Tx<'_>, query: &ListQuery, client: Option<i64>) -> Result<(i64, bool)> {
    let (sql, part) = (&tx.sql().lists, LivePart::of(query.status));
    if part == LivePart::None {
        return Ok((0, false));
    }
    let (rows, held) = match query.tags.first() {
        None => {
            let look = part != LivePart::All;
            let counted = match client {
                Some(client) => tx.row(&sql.count_live_of_client, (COUNTED_ROWS, look, client))?,
                None => tx.row(&sql.count_live, (COUNTED_ROWS, look))?,
            };
            counted.map_or((0, 0), |row| (row.live, row.held))
        }
        Some(tag) => {
            let rows = match client {
                Some(client) => tx.row(&sql.count_live_tag_of_client, (COUNTED_ROWS, tag, client))?,
                None => tx.row(&sql.count_live_tag, (COUNTED_ROWS, tag))?,
            };
            let held = match part {
                LivePart::All => None,
                _ => tx.row(&sql.count_held_tag, (COUNTED_ROWS, tag, client))?,
            };
            (number(rows), number(held))
        }
    };
    let fitting = match part {
        LivePart::All | LivePart::None => rows,
        LivePart::Pending => rows - held,
        LivePart::Held => held,
    };
    Ok((fitting, rows >= COUNTED_ROWS))
}

/// Log rows of entries that were redriven.
fn redriven(tx: &Tx<'_>, client: Option<i64>, tag: Option<&String>, end: i16) -> Result<i64> {
    let sql = &tx.sql().lists;
    Ok(number(match (tag, client) {
        (None, None) => tx.row(&sql.count_redriven, (end, COUNTED_ROWS))?,
        (None, Some(client)) => tx.row(&sql.count_redriven_of_client, (end, COUNTED_ROWS, client))?,
        (Some(tag), None) => tx.row(&sql.count_redriven_tag, (end, COUNTED_ROWS, tag))?,
        (Some(tag), Some(client)) => tx.row(&sql.count_redriven_tag_of_client, (end, COUNTED_ROWS, tag, client))?,
    }))
}

/// The number that a statement with one row counted.
fn number(row: Option<Only<i64>>) -> i64 {
    row.map_or(0, |Only(number)| number)
}
