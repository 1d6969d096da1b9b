//! Lists of entries: which index candidates come from, which of them match, and where a page ends. Knows which indexes
//! there are, but not how a database is queried.

use std::time::Duration;

use tidegate_core::{End, EntryId, Status, Timestamp};

use crate::error::{Error, ErrorKind, Result};
use crate::values::{EntrySummary, ListQuery, Page};

/// The most entries that one page examines where no index finds the matching ones.
const EXAMINED: usize = 10_000;
/// The most entries examined in one step.
const STEP: usize = 1_000;
/// The length of a stretch of entry numbers, as a power of two. Upkeep records in which stretches a lane or a worker
/// has ended entries; an index of the log would have to be written with every end.
pub(crate) const STRETCH: u32 = 5;
/// The fewest and the most stretches that the first step of a page searches. It searches as many as it wants entries, so
/// that one step is enough where each stretch has only one.
const FIRST_STRETCHES: std::ops::RangeInclusive<i64> = 16..=64;
/// The most stretches that a later step searches.
const MOST_STRETCHES: i64 = 1_024;
/// The most entries of one page.
const MAX_LIMIT: usize = 1_000;
/// The most entries that a page may skip.
const MAX_OFFSET: usize = 10_000;
/// The most lanes whose entries are merged into one list.
pub(crate) const MAX_LANES: usize = 512;
/// The most rows that are counted for a total.
pub(crate) const COUNTED_ROWS: i64 = 1_000_000;
/// Entry numbers follow the moments of publication, but for entries published within this time of each other.
const DISORDER: jiff::SignedDuration = jiff::SignedDuration::from_secs(1);
/// How many positions one step of a search probes.
const PIVOTS: i64 = 16;
/// A search ends once this few numbers are left.
const CLOSE: i64 = 32;

/// Refuses a query that is out of bounds.
pub(crate) fn check(query: &ListQuery) -> Result<()> {
    if query.limit > MAX_LIMIT {
        return Err(Error::invalid(format!("limit must be at most {MAX_LIMIT}")));
    }
    if query.offset > MAX_OFFSET {
        return Err(Error::invalid(format!("offset must be at most {MAX_OFFSET}: use cursor for deeper pages")));
    }
    if query.tags.len() > tidegate_core::attempt::MAX_TAGS {
        return Err(Error::invalid(format!("a list takes at most {} tags", tidegate_core::attempt::MAX_TAGS)));
    }
    for tag in &query.tags {
        tidegate_core::attempt::check_tag(tag)?;
    }
    Ok(())
}

/// The error for a list that was stopped.
pub(crate) fn too_slow(limit: Duration) -> Error {
    let text =
        format!("the list was stopped after {limit:?}: narrow the filter, by a client, queue, tag or time range");
    Error::new(ErrorKind::Busy, text)
}

/// Which live entries a list shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LivePart {
    None = 0,
    All = 1,
    Pending = 2,
    Held = 3,
}

impl LivePart {
    pub(crate) fn of(status: Option<Status>) -> Self {
        match status {
            None => Self::All,
            Some(Status::Pending) => Self::Pending,
            Some(Status::Processing) => Self::Held,
            Some(_) => Self::None,
        }
    }
}

/// The codes of the ends that a list shows.
pub(crate) fn ends_of(status: Option<Status>) -> Vec<i16> {
    let fits = |end: &End| status.is_none_or(|status| status.end() == Some(*end));
    End::ALL.into_iter().filter(fits).map(End::code).collect()
}

/// The lanes that hold the entries of a list.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    pub(crate) lanes: Vec<i64>,
    /// Whether they hold other entries too.
    pub(crate) mixed: bool,
}

/// Where candidates come from. Each source finds entries by number, youngest first.
#[derive(Debug)]
pub(crate) enum Source {
    /// All entries, by number.
    All,
    /// All entries that ended in one way other than COMPLETED.
    Ended(End),
    /// The entries of the query's client.
    Client,
    /// The entries of some lanes; ended ones by their stretches.
    Lanes(Lanes),
    /// The entries with any of the query's tags.
    Tags,
    /// The entries of the query's worker; ended ones by their stretches.
    Worker,
}

/// Whether the lanes must be loaded to choose the source.
pub(crate) fn needs_lanes(query: &ListQuery) -> bool {
    if !query.tags.is_empty() || query.worker.is_some() {
        return false;
    }
    // Among all ended entries, only those that are not COMPLETED have an index of their own.
    let completed = query.client.is_none() && query.status == Some(Status::Completed);
    query.queue.is_some() || query.event_type.is_some() || completed
}

/// The source for a query. `lanes` are given if they were loaded and are not too many.
pub(crate) fn source(query: &ListQuery, lanes: Option<Lanes>) -> Source {
    if !query.tags.is_empty() {
        return Source::Tags;
    }
    if query.worker.is_some() {
        return Source::Worker;
    }
    match (lanes, query.client, query.status.and_then(Status::end)) {
        (Some(lanes), ..) => Source::Lanes(lanes),
        (None, Some(_), _) => Source::Client,
        (None, None, Some(end)) if end != End::Completed => Source::Ended(end),
        (None, None, _) => Source::All,
    }
}

/// Whether candidates have to be examined one by one.
fn is_filtered(query: &ListQuery, source: &Source) -> bool {
    let (queue, kind) = (query.queue.is_some(), query.event_type.is_some());
    let timed = query.from.is_some() || query.to.is_some();
    timed
        || match source {
            Source::Lanes(lanes) => lanes.mixed,
            Source::Tags => queue || kind || query.worker.is_some(),
            Source::Worker => queue || kind,
            Source::All => queue || kind || query.status.is_some_and(|status| status == Status::Completed),
            Source::Ended(_) | Source::Client => queue || kind,
        }
}

/// Whether the total is maintained, so that it need not be counted.
pub(crate) fn is_counted(query: &ListQuery) -> bool {
    let unfiltered = query.queue.is_none() && query.event_type.is_none() && query.worker.is_none();
    unfiltered && query.from.is_none() && query.to.is_none() && query.tags.len() <= 1
}

fn fits(query: &ListQuery, entry: &EntrySummary) -> bool {
    let is =
        |wanted: &Option<String>, given: Option<&str>| wanted.as_deref().is_none_or(|wanted| Some(wanted) == given);
    query.status.is_none_or(|status| status == entry.status)
        && (query.tags.is_empty() || query.tags.iter().any(|tag| entry.tags.contains(tag)))
        && query.queue.as_ref().is_none_or(|queue| *queue == entry.queue)
        && is(&query.event_type, Some(&entry.event_type))
        && is(&query.worker, entry.worker.as_deref())
        && query.client.is_none_or(|client| Some(client) == entry.client)
        && is_in_range(query, entry)
}

fn is_in_range(query: &ListQuery, entry: &EntrySummary) -> bool {
    query.from.is_none_or(|from| entry.created_at >= from) && query.to.is_none_or(|to| entry.created_at < to)
}

/// The range of numbers that a time range corresponds to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// Only entries below this number.
    pub(crate) before: i64,
    /// Only entries above this number.
    pub(crate) after: i64,
}

impl Range {
    /// All numbers.
    pub(crate) const EVERYTHING: Self = Self { before: i64::MAX, after: 0 };
    /// None.
    pub(crate) const NOTHING: Self = Self { before: 0, after: 0 };

    /// The numbers from one to another, both included.
    pub(crate) fn between(first: i64, last: i64) -> Self {
        Self { before: last.saturating_add(1), after: first.saturating_sub(1) }
    }
}

/// How many entries match.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Total {
    pub(crate) rows: u64,
    /// Whether there may be more.
    pub(crate) capped: bool,
}

/// One step of a list: which candidates to fetch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Only entries below this number.
    pub(crate) before: i64,
    /// The most candidates to fetch.
    pub(crate) limit: i64,
    /// Whether to read the entries, or only to skip them.
    pub(crate) read: bool,
    /// The most stretches to search, where the source uses them.
    pub(crate) stretches: i64,
}

/// What a step found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Entry numbers, youngest first.
    pub(crate) ids: Vec<i64>,
    /// Numbers below this one were not searched; `None` when nothing is left to search.
    pub(crate) down_to: Option<i64>,
}

/// A page that is being built.
#[derive(Debug)]
pub(crate) struct Listing<'a> {
    query: &'a ListQuery,
    filtered: bool,
    page: Page,
    before: i64,
    after: i64,
    /// Entries that match and were skipped.
    passed: usize,
    looked_at: usize,
    /// Entries that were read and did not match. Those at the edges of a time range do not count: there are only as
    /// many as were published within `DISORDER`.
    examined: usize,
    stretches: i64,
    done: bool,
}

impl<'a> Listing<'a> {
    pub(crate) fn new(query: &'a ListQuery, source: &Source, range: Range) -> Self {
        let before = query.before.map_or(i64::MAX, EntryId::get).min(range.before);
        let filtered = is_filtered(query, source);
        let done = query.limit == 0 || before <= range.after;
        let wanted = query.limit + query.offset + 1;
        Self {
            query,
            filtered,
            page: Page::default(),
            before,
            after: range.after,
            passed: 0,
            looked_at: 0,
            examined: 0,
            stretches: (wanted as i64).clamp(*FIRST_STRETCHES.start(), *FIRST_STRETCHES.end()),
            done,
        }
    }

    /// The next step; `None` once the page is complete.
    pub(crate) fn step(&self) -> Option<Step> {
        if self.done {
            return None;
        }
        let to_pass = self.query.offset - self.passed;
        let wanted = self.query.limit - self.page.items.len() + 1;
        let (limit, read) = match self.filtered {
            false if to_pass > 0 => (to_pass.min(STEP), false),
            false => (wanted, true),
            // After an index most candidates match; otherwise each step examines more than the last.
            true => ((wanted + to_pass).max(self.looked_at).min(STEP).min(EXAMINED - self.examined), true),
        };
        Some(Step { before: self.before, limit: limit as i64, read, stretches: self.stretches })
    }

    /// Adds what a step found; `entries` returns the entry behind a number that was to be read.
    pub(crate) fn add(&mut self, step: Step, found: &Found, mut entries: impl FnMut(i64) -> Option<EntrySummary>) {
        self.stretches = (step.stretches * 4).min(MOST_STRETCHES);
        for id in &found.ids {
            if self.page.items.len() == self.query.limit {
                self.stop_here();
                return;
            }
            if *id <= self.after {
                self.done = true;
                return;
            }
            self.before = *id;
            if !step.read {
                self.passed += 1;
                continue;
            }
            self.looked_at += 1;
            let Some(entry) = entries(*id) else { continue };
            if self.filtered && !fits(self.query, &entry) {
                self.examined += usize::from(is_in_range(self.query, &entry));
                continue;
            }
            if self.passed < self.query.offset {
                self.passed += 1;
                continue;
            }
            self.page.items.push(entry);
        }
        let looked_enough = self.examined >= EXAMINED && self.filtered;
        let exhausted = (found.ids.len() as i64) < step.limit;
        match found.down_to.filter(|down_to| exhausted && *down_to > self.after) {
            // The next step finds out whether anything is left, even after a full page.
            Some(down_to) => {
                self.before = down_to;
                if looked_enough {
                    self.stop_here();
                }
            }
            None if exhausted => self.done = true,
            None if looked_enough || self.page.items.len() == self.query.limit => self.stop_here(),
            None => {}
        }
    }

    /// Ends the page, but not the list.
    fn stop_here(&mut self) {
        self.done = true;
        self.page.next = EntryId::new(self.before).ok();
    }

    /// The page, with the total where that is maintained, else with as much of it as was seen.
    pub(crate) fn finish(mut self, total: Option<Total>) -> Page {
        match total {
            Some(total) => (self.page.total, self.page.total_capped) = (total.rows, total.capped),
            None => {
                let more = u64::from(self.page.next.is_some());
                self.page.total = (self.passed + self.page.items.len()) as u64 + more;
                self.page.total_capped = self.page.next.is_some() || self.query.before.is_some();
            }
        }
        self.page
    }
}

/// Searches for the number from which on entries were published at a moment or later. As numbers follow moments, a few
/// probes between the first and the last entry find it.
#[derive(Debug)]
pub(crate) struct Search {
    moment: Timestamp,
    /// Everything below was published before the moment.
    low: i64,
    /// Nothing from here on was published before the moment.
    high: i64,
    /// Whether nothing was probed yet.
    fresh: bool,
}

impl Search {
    /// A search among the entries up to `last`.
    fn new(moment: Timestamp, last: i64) -> Self {
        Self { moment, low: 0, high: last.saturating_add(1), fresh: true }
    }

    /// The numbers to probe next; empty once the search is done. The first probes include both ends, because many moments
    /// lie beyond them.
    fn pivots(&self) -> impl Iterator<Item = i64> {
        let (low, span) = (self.low, self.high - self.low);
        let inner = (1..=PIVOTS)
            .map(move |part| low + (i128::from(span) * i128::from(part) / i128::from(PIVOTS + 1)) as i64)
            .filter(move |_| span > CLOSE);
        let ends = [low + 1, self.high - 1].into_iter().filter(move |_| span > CLOSE && self.fresh);
        inner.chain(ends)
    }

    /// Takes the result of the probes: when the first entry at or above each pivot was published, if there is one. Pivots
    /// are in order and may belong to another search.
    fn learn(&mut self, found: &[(i64, Option<Timestamp>)]) {
        self.fresh = false;
        let (low, high) = (self.low, self.high);
        for (pivot, published) in found.iter().filter(|(pivot, _)| *pivot > low && *pivot < high) {
            if published.is_none_or(|published| published >= self.moment) {
                self.high = *pivot;
                return;
            }
            self.low = *pivot;
        }
    }
}

/// The searches for the limits of a query's time range; `None` for a limit that is not set.
#[derive(Debug)]
pub(crate) struct Searches {
    from: Option<Search>,
    to: Option<Search>,
}

impl Searches {
    /// The searches for a query, among the entries up to `last`.
    pub(crate) fn new(query: &ListQuery, last: i64) -> Self {
        Self::between(query.from, query.to, last)
    }

    /// The searches for a time range, among the entries up to `last`.
    pub(crate) fn between(from: Option<Timestamp>, to: Option<Timestamp>, last: i64) -> Self {
        let from = from.map(|from| from.saturating_sub(DISORDER).unwrap_or(from));
        let to = to.map(|to| to.saturating_add(DISORDER).unwrap_or(to));
        Self { from: from.map(|moment| Search::new(moment, last)), to: to.map(|moment| Search::new(moment, last)) }
    }

    /// The numbers to probe next, in order, for both ends of the range; empty once the searches are done.
    pub(crate) fn pivots(&self) -> Vec<i64> {
        let mut pivots: Vec<i64> = [&self.from, &self.to].into_iter().flatten().flat_map(Search::pivots).collect();
        pivots.sort_unstable();
        pivots.dedup();
        pivots
    }

    /// Takes the result of the probes: when the first entry at or above each pivot was published, if there is one.
    pub(crate) fn learn(&mut self, found: &[(i64, Option<Timestamp>)]) {
        for search in [&mut self.from, &mut self.to].into_iter().flatten() {
            search.learn(found);
        }
    }

    /// The numbers that entries of the time range can have, once the searches are done.
    pub(crate) fn range(&self) -> Range {
        Range {
            before: self.to.as_ref().map_or(i64::MAX, |search| search.high),
            after: self.from.as_ref().map_or(0, |search| search.low.saturating_sub(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_filter_has_its_source() {
        let client = Some(tidegate_core::Tsid::from_i64(7));
        let query = ListQuery::default();
        let of = |query: ListQuery, lanes: Option<Lanes>| format!("{:?}", source(&query, lanes));
        assert_eq!(of(query.clone(), None), "All");
        assert_eq!(of(ListQuery { client, ..query.clone() }, None), "Client");
        let failed = ListQuery { status: Some(Status::Failed), ..query.clone() };
        assert_eq!(of(failed.clone(), None), "Ended(Failed)");
        assert_eq!(of(ListQuery { client, ..failed }, None), "Client");
        let tagged = ListQuery { tags: vec!["a".into()], worker: Some("w".into()), ..query.clone() };
        assert!(!needs_lanes(&tagged) && is_filtered(&tagged, &Source::Tags));
        let completed = ListQuery { status: Some(Status::Completed), ..query.clone() };
        assert!(needs_lanes(&completed) && !needs_lanes(&ListQuery { client, ..completed }));
        let typed = ListQuery { event_type: Some("t".into()), ..query };
        assert!(is_filtered(&typed, &Source::All), "too many lanes: examined one by one");
        assert!(!is_filtered(&typed, &Source::Lanes(Lanes::default())));
    }

    #[test]
    fn a_search_finds_where_a_moment_begins() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        // Every third number is an entry, one a second.
        let published = |number: i64| (number <= 300_000).then(|| at((number + 2) / 3));
        // How many rounds of looks it takes.
        let search = |searches: &mut Searches| {
            let mut rounds = 0;
            loop {
                let pivots = searches.pivots();
                if pivots.is_empty() {
                    return rounds;
                }
                rounds += 1;
                searches.learn(&pivots.into_iter().map(|pivot| (pivot, published(pivot))).collect::<Vec<_>>());
            }
        };
        let moments = [0, 1, 2, 50_000, 99_999, 100_000, 100_001, 200_000];
        for (from, to) in moments.into_iter().flat_map(|from| moments.map(|to| (from, to))) {
            let new = |wanted: i64| Some(Search::new(at(wanted), 300_000));
            let mut searches = Searches { from: new(from), to: new(to) };
            let rounds = search(&mut searches);
            assert!(rounds <= 5, "{rounds} rounds");
            for (found, wanted) in [(searches.from.unwrap(), from), (searches.to.unwrap(), to)] {
                assert!(found.low == 0 || published(found.low).unwrap() < at(wanted), "{found:?}");
                assert!(published(found.high).is_none_or(|moment| moment >= at(wanted)), "{found:?}");
                assert!(found.high - found.low <= CLOSE);
            }
        }
        let beyond = Searches { from: Some(Search::new(at(0), 300_000)), to: Some(Search::new(at(200_000), 300_000)) };
        assert_eq!(search(&mut { beyond }), 1, "both ends are looked at first");
    }
}
