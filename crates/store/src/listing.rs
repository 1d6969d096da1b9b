//! Lists of entries: where candidates come from, which of them fit, and where a page ends. Knows which indexes there are
//! but not how a database is asked.

use std::time::Duration;

use tidegate_core::{End, EntryId, Status, Timestamp};

use crate::error::{Error, ErrorKind, Result};
use crate::work::{EntrySummary, ListQuery, Page};

/// Entries that one page looks at, at most, where no index finds what is wanted.
const EXAMINED: usize = 10_000;
/// Entries looked at in one step.
const STEP: usize = 1_000;
/// So many numbers of entries, as a power of two, are a stretch. Of ended entries, only the stretches in which a lane or a
/// worker has some are written down, by upkeep: an index would be written with every end.
pub(crate) const STRETCH: u32 = 5;
/// Stretches that the first step of a page looks through, at least and at most: as many as it wants entries, so that one step
/// is enough where each has but one. And how many any step looks through.
const FIRST_STRETCHES: std::ops::RangeInclusive<i64> = 16..=64;
const MOST_STRETCHES: i64 = 1_024;
/// Entries of one page.
const MAX_LIMIT: usize = 1_000;
/// Entries that a page may pass over.
const MAX_OFFSET: usize = 10_000;
/// Lanes whose entries are merged into one list, at most.
pub(crate) const MAX_LANES: usize = 512;
/// Rows that a total counts one by one, at most.
pub(crate) const COUNTED_ROWS: i64 = 1_000_000;
/// Numbers follow the moments of publication up to this much.
const DISORDER: jiff::SignedDuration = jiff::SignedDuration::from_secs(1);
/// Places at which one step of a search looks.
const PIVOTS: i64 = 16;
/// A search ends once so few numbers are left.
const CLOSE: i64 = 32;

/// Checks what nobody can answer.
pub(crate) fn check(query: &ListQuery) -> Result<()> {
    if query.limit > MAX_LIMIT {
        return Err(Error::invalid(format!("a page has at most {MAX_LIMIT} entries")));
    }
    if query.offset > MAX_OFFSET {
        return Err(Error::invalid(format!("offset must be at most {MAX_OFFSET}: use cursor for deeper pages")));
    }
    if query.tags.len() > tidegate_core::work::MAX_TAGS {
        return Err(Error::invalid("too many tags"));
    }
    for tag in &query.tags {
        tidegate_core::work::check_tag(tag)?;
    }
    Ok(())
}

/// What a list that was stopped answers.
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

/// The ends that a list shows, as they are stored.
pub(crate) fn ends_of(status: Option<Status>) -> Vec<i16> {
    let fits = |end: &End| status.is_none_or(|status| status.end() == Some(*end));
    End::ALL.into_iter().filter(fits).map(End::code).collect()
}

/// The lanes that hold what a list shows.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    pub(crate) lanes: Vec<i64>,
    /// They hold other entries too.
    pub(crate) mixed: bool,
}

/// Where candidates come from. Each finds entries by number, youngest first.
#[derive(Debug)]
pub(crate) enum Source {
    /// All entries, by number.
    All,
    /// All that ended one way other than COMPLETED.
    Ended(End),
    /// Those of the query's client.
    Client,
    /// Those of some lanes; ended ones by their stretches.
    Lanes(Lanes),
    /// Those with any of the query's tags.
    Tags,
    /// Those of the query's worker; ended ones by their stretches.
    Worker,
}

/// Whether the lanes must be looked up to find the source.
pub(crate) fn needs_lanes(query: &ListQuery) -> bool {
    if !query.tags.is_empty() || query.worker.is_some() {
        return false;
    }
    // Among all ended entries only those that are not COMPLETED have an index of their own.
    let completed = query.client.is_none() && query.status == Some(Status::Completed);
    query.queue.is_some() || query.event_type.is_some() || completed
}

/// Where the candidates of a query come from; `lanes` where they were looked up and are not too many.
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

/// Whether candidates have to be looked at one by one.
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

/// Whether the total is kept, so that it need not be counted.
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

/// The numbers that a time range can have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// Entries below this one.
    pub(crate) before: i64,
    /// Entries above this one.
    pub(crate) after: i64,
}

impl Range {
    /// Any.
    pub(crate) const EVERYTHING: Self = Self { before: i64::MAX, after: 0 };
}

/// How many entries there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Total {
    pub(crate) rows: u64,
    /// There may be more.
    pub(crate) capped: bool,
}

/// A step of a list: which candidates to fetch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Entries before this one.
    pub(crate) before: i64,
    /// How many at most.
    pub(crate) limit: i64,
    /// Whether they are looked at, or only passed over.
    pub(crate) read: bool,
    /// Stretches to look through at most, where there are any.
    pub(crate) stretches: i64,
}

/// What a step found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Numbers, youngest first.
    pub(crate) ids: Vec<i64>,
    /// Nobody looked below this number. None where nothing is left.
    pub(crate) down_to: Option<i64>,
}

/// A page in the making.
#[derive(Debug)]
pub(crate) struct Listing<'a> {
    query: &'a ListQuery,
    filtered: bool,
    page: Page,
    before: i64,
    after: i64,
    /// Entries that fit and were passed over.
    passed: usize,
    looked_at: usize,
    /// Entries that were looked at though no index says that they fit. Those at the rim of a time range do not count: they
    /// are as many as were published within the disorder.
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

    /// The next step, unless the page is complete.
    pub(crate) fn step(&self) -> Option<Step> {
        if self.done {
            return None;
        }
        let to_pass = self.query.offset - self.passed;
        let wanted = self.query.limit - self.page.items.len() + 1;
        let (limit, read) = match self.filtered {
            false if to_pass > 0 => (to_pass.min(STEP), false),
            false => (wanted, true),
            // Most fit where an index led to them; else ever more are looked at.
            true => ((wanted + to_pass).max(self.looked_at).min(STEP).min(EXAMINED - self.examined), true),
        };
        Some(Step { before: self.before, limit: limit as i64, read, stretches: self.stretches })
    }

    /// Takes in what a step found, and what stands behind those numbers that are to be read.
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
            // Whether anything is left, even after a full page, the next step says.
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

    /// The page ends here, the list does not.
    fn stop_here(&mut self) {
        self.done = true;
        self.page.next = EntryId::new(self.before).ok();
    }

    /// The page, with its total where that is kept, else with what was seen of it.
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

/// Looks for the number from which on entries were published at a moment or later. Numbers follow moments, so a few looks
/// at entries between the first and the last find it.
#[derive(Debug)]
pub(crate) struct Search {
    moment: Timestamp,
    /// Everything below was published before.
    low: i64,
    /// Nothing from here on was published before.
    high: i64,
    /// Nobody looked yet.
    fresh: bool,
}

impl Search {
    /// A search among the entries up to `last`.
    fn new(moment: Timestamp, last: i64) -> Self {
        Self { moment, low: 0, high: last.saturating_add(1), fresh: true }
    }

    /// Where to look next, in order; nowhere once it is found. At first at both ends too: many a moment lies beyond them.
    fn pivots(&self) -> impl Iterator<Item = i64> {
        let (low, span) = (self.low, self.high - self.low);
        let inner = (1..=PIVOTS)
            .map(move |part| low + (i128::from(span) * i128::from(part) / i128::from(PIVOTS + 1)) as i64)
            .filter(move |_| span > CLOSE);
        let ends = [low + 1, self.high - 1].into_iter().filter(move |_| span > CLOSE && self.fresh);
        inner.chain(ends)
    }

    /// Takes in when the first entry at or above each pivot was published, if there is one. Pivots come in order, and may be
    /// those of another search.
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

/// The searches that a query needs, as far as it names a time range.
#[derive(Debug)]
pub(crate) struct Searches {
    from: Option<Search>,
    to: Option<Search>,
}

impl Searches {
    /// The searches of a query, among the entries up to `last`.
    pub(crate) fn new(query: &ListQuery, last: i64) -> Self {
        let from = query.from.map(|from| from.saturating_sub(DISORDER).unwrap_or(from));
        let to = query.to.map(|to| to.saturating_add(DISORDER).unwrap_or(to));
        Self { from: from.map(|moment| Search::new(moment, last)), to: to.map(|moment| Search::new(moment, last)) }
    }

    /// Where to look next, in order, for both ends of the range at once; nowhere once they are found.
    pub(crate) fn pivots(&self) -> Vec<i64> {
        let mut pivots: Vec<i64> = [&self.from, &self.to].into_iter().flatten().flat_map(Search::pivots).collect();
        pivots.sort_unstable();
        pivots.dedup();
        pivots
    }

    /// Takes in when the first entry at or above each pivot was published, if there is one.
    pub(crate) fn learn(&mut self, found: &[(i64, Option<Timestamp>)]) {
        for search in [&mut self.from, &mut self.to].into_iter().flatten() {
            search.learn(found);
        }
    }

    /// The numbers that entries of the range can have, once they are found.
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
        assert!(is_filtered(&typed, &Source::All), "too many lanes: looked at one by one");
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
