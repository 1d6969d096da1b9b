//! Searches for facts: which index they are found by, how the parts of an index are merged, and where a page ends. Knows
//! which indexes there are, but not how a database is queried.

use std::collections::VecDeque;

use tidegate_core::Tsid;
use tidegate_core::event_type::CodePattern;

use crate::values::fact_keys::TERM;
use crate::values::{FactsQuery, MAX_FACTS_BYTES, TypeFilter};

/// The most facts that one page examines.
const EXAMINED: usize = 10_000;
/// The most streams that are merged, and the most clients and types that are looked at to find them.
pub(crate) const MAX_STREAMS: usize = 512;
/// How many candidates the first step of a stream reads at least, and how many a later one at most.
const FIRST_STEP: usize = 4;
const LAST_STEP: usize = 1_000;

/// Where candidates come from: an index, and what they are found by. Each stream is of one client, and of one type where
/// the index is by types; it has ids, youngest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    /// Facts with this id of the publisher's.
    External(&'a str),
    /// Facts with this correlation id.
    Correlation(&'a str),
    /// Facts with this term.
    Term([u8; TERM]),
    /// Facts with this subject.
    Subject(&'a str),
    /// Facts of this type.
    Type(&'a str),
    /// Facts from this system.
    System(&'a str),
    /// Facts of types that match.
    Types(&'a CodePattern),
    /// All facts of each client.
    Clients,
    /// All facts, of any client, in a single stream.
    All,
}

/// What a stream is of: a client, 0 for none, and for a source by types, a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) client: i64,
    pub(crate) event_type: Option<String>,
}

/// The sources that a query can be answered from, the best first. The last one is always good.
pub(crate) fn sources(query: &FactsQuery) -> Vec<Source<'_>> {
    let (exact, pattern) = match &query.event_type {
        Some(TypeFilter::Exact(exact)) => (Some(Source::Type(exact)), None),
        Some(TypeFilter::Pattern(pattern)) => (None, Some(Source::Types(pattern))),
        None => (None, None),
    };
    let found = [
        query.external_id.as_deref().map(Source::External),
        query.correlation_id.as_deref().map(Source::Correlation),
        query.terms.first().map(|term| Source::Term(term.hash())),
        query.subject.as_deref().map(Source::Subject),
        exact,
        query.source.as_deref().map(Source::System),
        pattern,
        Some(Source::Clients),
        query.client.is_none().then_some(Source::All),
    ];
    found.into_iter().flatten().collect()
}

/// The clients whose streams a source has; `None` if the database has to tell which there are.
pub(crate) fn given_clients(query: &FactsQuery, source: Source<'_>) -> Option<Vec<i64>> {
    match (source, query.client) {
        (Source::All, _) => Some(vec![0]),
        (_, Some(client)) => Some(vec![client.map_or(0, Tsid::to_i64)]),
        (_, None) => None,
    }
}

/// The streams of clients for a source that is not by pattern.
pub(crate) fn streams_of(source: Source<'_>, clients: Vec<i64>) -> Vec<Key> {
    let event_type = match source {
        Source::Type(event_type) => Some(event_type),
        _ => None,
    };
    let key = |client| Key { client, event_type: event_type.map(str::to_owned) };
    clients.into_iter().map(key).collect()
}

/// The ids between which a query's facts are: the first one, and the one after the last. An id contains the millisecond of
/// its fact, rounded either way.
pub(crate) fn range(query: &FactsQuery) -> (i64, i64) {
    let at = |unix_ms: i64| Tsid::from_parts(unix_ms, 0).to_i64();
    let first = query.from.map_or(0, |from| at(from.as_millisecond().saturating_sub(1)));
    let end = query.to.map_or(i64::MAX, |to| at(to.as_millisecond().saturating_add(2)));
    (first, query.before.map_or(end, |before| end.min(before.to_i64())))
}

/// A fact that may be one of those that are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) id: i64,
    pub(crate) event_type: String,
    /// The length of its payload.
    pub(crate) size: usize,
    /// Whether it matches, but for a pattern of types.
    pub(crate) fits: bool,
}

/// A step of a search: streams of which more candidates are wanted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The streams, by their positions.
    pub(crate) streams: Vec<usize>,
    /// The most candidates to read of each.
    pub(crate) limit: usize,
}

/// A search under way.
#[derive(Debug)]
pub(crate) struct Finding<'a> {
    query: &'a FactsQuery,
    streams: Vec<Stream>,
    found: Vec<i64>,
    bytes: usize,
    examined: usize,
    /// From where the next page goes on, once it is known that there is one.
    next: Option<i64>,
}

#[derive(Debug)]
struct Stream {
    key: Key,
    /// Candidates that were read and not looked at yet.
    waiting: VecDeque<Candidate>,
    /// The next step reads ids below this one.
    before: i64,
    /// How many candidates the next step reads.
    step: usize,
    is_at_end: bool,
}

impl<'a> Finding<'a> {
    pub(crate) fn new(query: &'a FactsQuery, streams: Vec<Key>) -> Self {
        let (first, end) = range(query);
        // One more than wanted tells whether there are more.
        let step = ((query.limit + 1) / streams.len().max(1)).clamp(FIRST_STEP, LAST_STEP);
        let is_at_end = first >= end || query.limit == 0;
        let stream = |key| Stream { key, waiting: VecDeque::new(), before: end, step, is_at_end };
        let streams = streams.into_iter().map(stream).collect();
        Self { query, streams, found: Vec::new(), bytes: 0, examined: 0, next: None }
    }

    /// What a stream is of, and below which id it goes on.
    pub(crate) fn stream(&self, at: usize) -> Option<(&Key, i64)> {
        self.streams.get(at).map(|stream| (&stream.key, stream.before))
    }

    /// Looks at the candidates that were read, and says which are wanted next; `None` once the page is complete.
    pub(crate) fn step(&mut self) -> Option<Step> {
        loop {
            if self.next.is_some() {
                return None;
            }
            if let Some(step) = self.wanted() {
                return Some(step);
            }
            let id = |stream: &Stream| stream.waiting.front().map(|candidate| candidate.id);
            let youngest = self.streams.iter_mut().max_by_key(|stream| id(stream))?;
            let candidate = youngest.waiting.pop_front()?;
            self.examine(&candidate);
        }
    }

    /// The streams that were read to their last candidate, as far as they read as many at once.
    fn wanted(&self) -> Option<Step> {
        let is_wanted = |stream: &Stream| stream.waiting.is_empty() && !stream.is_at_end;
        let limit = self.streams.iter().filter(|stream| is_wanted(stream)).map(|stream| stream.step).min()?;
        let streams = self.streams.iter().enumerate().filter(|(_, stream)| is_wanted(stream) && stream.step == limit);
        Some(Step { streams: streams.map(|(at, _)| at).collect(), limit })
    }

    /// Takes the candidates of one stream of a step, youngest first.
    pub(crate) fn add(&mut self, at: usize, limit: usize, candidates: Vec<Candidate>) {
        let Some(stream) = self.streams.get_mut(at) else { return };
        stream.is_at_end = candidates.len() < limit;
        stream.before = candidates.last().map_or(stream.before, |last| last.id);
        stream.step = (stream.step * 2).min(LAST_STEP);
        stream.waiting = candidates.into();
    }

    fn examine(&mut self, candidate: &Candidate) {
        let is_of_type = match &self.query.event_type {
            Some(TypeFilter::Pattern(pattern)) => pattern.matches(&candidate.event_type),
            _ => true,
        };
        if candidate.fits && is_of_type {
            let bytes = self.bytes.saturating_add(candidate.size);
            let is_full = self.found.len() == self.query.limit || bytes > MAX_FACTS_BYTES;
            if is_full && let Some(last) = self.found.last() {
                self.next = Some(*last);
                return;
            }
            self.bytes = bytes;
            self.found.push(candidate.id);
        }
        self.examined += 1;
        if self.examined == EXAMINED {
            self.next = Some(candidate.id);
        }
    }

    /// The ids that were found, and from where the next page goes on.
    pub(crate) fn finish(self) -> (Vec<Tsid>, Option<Tsid>) {
        (self.found.into_iter().map(Tsid::from_i64).collect(), self.next.map(Tsid::from_i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::FactTerm;

    fn query(limit: usize) -> FactsQuery {
        FactsQuery { limit, ..FactsQuery::default() }
    }

    fn candidate(id: i64) -> Candidate {
        Candidate { id, event_type: "a:b:c:d".into(), size: 10, fits: true }
    }

    /// Runs a search over streams that have these candidates. Also returns how many were read, and in how many steps.
    fn run(query: &FactsQuery, streams: &[Vec<Candidate>]) -> (Vec<i64>, Option<i64>, usize, usize) {
        let key = Key { client: 0, event_type: None };
        let mut finding = Finding::new(query, vec![key; streams.len()]);
        let (mut read, mut steps) = (0, 0);
        while let Some(step) = finding.step() {
            steps += 1;
            for at in step.streams {
                let (_, before) = finding.stream(at).unwrap();
                let part = streams[at].iter().filter(|candidate| candidate.id < before).take(step.limit);
                let part: Vec<Candidate> = part.cloned().collect();
                read += part.len();
                finding.add(at, step.limit, part);
            }
        }
        let (found, next) = finding.finish();
        (found.into_iter().map(Tsid::to_i64).collect(), next.map(Tsid::to_i64), read, steps)
    }

    fn falling(ids: impl DoubleEndedIterator<Item = i64>) -> Vec<Candidate> {
        ids.rev().map(candidate).collect()
    }

    #[test]
    fn streams_are_merged_by_id() {
        let streams = [falling((0..100).map(|n| 3 * n)), falling((0..100).map(|n| 3 * n + 1)), Vec::new()];
        let (found, next, ..) = run(&query(5), &streams);
        assert_eq!((found, next), (vec![298, 297, 295, 294, 292], Some(292)));
        let (found, next, ..) = run(&FactsQuery { before: Some(Tsid::from_i64(4)), ..query(5) }, &streams);
        assert_eq!((found, next), (vec![3, 1, 0], None));
        assert_eq!(run(&query(200), &streams).1, None, "exactly as many as there are");
        assert_eq!(run(&query(199), &streams).1, Some(1));
        assert_eq!(run(&query(0), &streams), (vec![], None, 0, 0));
        assert_eq!(run(&query(9), &[]), (vec![], None, 0, 0));
    }

    #[test]
    fn a_page_of_one_stream_takes_one_step() {
        let (found, next, read, steps) = run(&query(100), &[falling(0..5_000)]);
        assert_eq!((found.len(), next, read, steps), (100, Some(4_900), 101, 1));
    }

    #[test]
    fn a_page_examines_no_more_than_it_may() {
        let mut stream = falling(0..30_000);
        stream.iter_mut().filter(|candidate| candidate.id % 4_000 != 0).for_each(|candidate| candidate.fits = false);
        let (found, next, read, _) = run(&query(100), &[stream.clone()]);
        assert_eq!((found, next), (vec![28_000, 24_000, 20_000], Some(20_000)));
        assert!(read <= EXAMINED + LAST_STEP, "{read}");
        let mut all = found_of(&stream, &query(2));
        all.sort_unstable();
        assert_eq!(all, (0..8).map(|n| n * 4_000).collect::<Vec<_>>(), "page by page nothing is lost");
    }

    /// What all pages together have.
    fn found_of(stream: &[Candidate], query: &FactsQuery) -> Vec<i64> {
        let (mut all, mut query) = (Vec::new(), query.clone());
        loop {
            let (found, next, ..) = run(&query, &[stream.to_vec()]);
            all.extend(found);
            match next {
                Some(next) => query.before = Some(Tsid::from_i64(next)),
                None => return all,
            }
        }
    }

    #[test]
    fn a_page_is_bounded_in_bytes() {
        let mut stream = falling(0..10);
        stream[3].size = MAX_FACTS_BYTES + 1;
        assert_eq!(run(&query(9), &[stream.clone()]).0, [9, 8, 7]);
        let pages = found_of(&stream, &query(9));
        assert_eq!(pages, [9, 8, 7, 6, 5, 4, 3, 2, 1, 0], "the large one goes alone");
    }

    #[test]
    fn many_streams_read_little_of_each() {
        let streams: Vec<Vec<Candidate>> = (0..512).map(|of| falling((0..1_000).map(move |n| n * 512 + of))).collect();
        let (found, next, read, _) = run(&query(100), &streams);
        assert_eq!((found.len(), next.is_some()), (100, true));
        assert!(read <= 512 * FIRST_STEP, "{read}");
        let mut none = streams;
        none.iter_mut().flatten().for_each(|candidate| candidate.fits = false);
        let (found, next, read, _) = run(&query(100), &none);
        assert!(found.is_empty() && next.is_some());
        assert!(read <= 3 * EXAMINED + 512 * FIRST_STEP, "{read}");
    }

    #[test]
    fn the_rarest_source_comes_first() {
        let all = FactsQuery {
            event_type: Some(TypeFilter::Pattern("a:*:*:*".parse().unwrap())),
            source: Some("source".into()),
            subject: Some("subject".into()),
            external_id: Some("external".into()),
            correlation_id: Some("correlation".into()),
            terms: vec![FactTerm::new("a", "b")],
            ..query(9)
        };
        let sources = sources(&all);
        assert!(matches!(
            sources[..],
            [
                Source::External("external"),
                Source::Correlation("correlation"),
                Source::Term(_),
                Source::Subject("subject"),
                Source::System("source"),
                Source::Types(_),
                Source::Clients,
                Source::All
            ]
        ));
        let of_client = FactsQuery { client: Some(None), event_type: Some(TypeFilter::Exact("t".into())), ..query(9) };
        assert_eq!(super::sources(&of_client), [Source::Type("t"), Source::Clients]);
        assert_eq!(given_clients(&of_client, Source::Clients), Some(vec![0]));
        assert_eq!(streams_of(Source::Type("t"), vec![7]), [Key { client: 7, event_type: Some("t".into()) }]);
    }
}
