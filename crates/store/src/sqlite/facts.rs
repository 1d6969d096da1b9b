//! Facts by id with what was made for them, and searches for facts. Reads only.

use std::collections::BTreeMap;

use rusqlite::types::ToSql;
use tidegate_core::Tsid;
use tidegate_core::event_type::CodePattern;

use crate::api;
use crate::error::Result;
use crate::finding::{Candidate, Finding, Key, MAX_STREAMS, Source, given_clients, range, sources, streams_of};
use crate::list_gate::Kind;
use crate::sql::{Only, Statement};
use crate::sqlite::engine::row::{Shown, queue_name};
use crate::sqlite::engine::store::SqliteStore;
use crate::sqlite::engine::tx::{Tx, entry_id, micros, moment};
use crate::sqlite::statements::finding::{CandidateRow, RangeRow, TargetRow};
use crate::values::facts::{check_facts, numbers_of};
use crate::values::{
    EntryPhase, FactTarget, FactsPage, FactsQuery, FactsWalk, Family, MAX_TARGETS, StoredFact, TypeFilter, WalkedFacts,
};

#[async_trait::async_trait]
impl api::Facts for SqliteStore {
    async fn facts(&self, ids: Vec<Tsid>, targets: usize) -> Result<Vec<Option<StoredFact>>> {
        check_facts(&ids, targets)?;
        self.read(move |tx| ids.iter().map(|id| fact(tx, *id, targets)).collect()).await
    }

    async fn find_facts(&self, query: FactsQuery) -> Result<FactsPage> {
        query.check()?;
        self.read_list(Kind::of_facts(&query), move |tx| find(tx, &query)).await
    }

    async fn walk_facts(&self, walk: FactsWalk) -> Result<WalkedFacts> {
        walk.check()?;
        self.read(move |tx| walk_facts(tx, &walk)).await
    }
}

/// A fact with the first of its targets.
fn fact(tx: &mut Tx<'_>, id: Tsid, limit: usize) -> Result<Option<StoredFact>> {
    let Some((range, fact)) = tx.row(&tx.sql().finding.fact, [id.to_i64()])? else { return Ok(None) };
    let mut targets = Vec::new();
    let added = match range.first_number {
        Some(_) if limit > 0 => tx.rows(&tx.sql().added.of_fact, (id.to_i64(), MAX_TARGETS as i64))?,
        _ => Vec::new(),
    };
    let added: BTreeMap<i64, i64> = added.into_iter().map(|one| (one.entry_id, one.made_at)).collect();
    let ranges = ranges(tx, id, &range)?.into_iter().map(|range| (range, limit));
    let of_added = added.keys().take(limit).map(|number| ((*number, *number), 2));
    for ((first, last), limit) in ranges.chain(of_added) {
        for family in Family::ALL {
            tx.in_family(family, |tx| add_targets(tx, (first, last, id.to_i64(), limit as i64), &mut targets))?;
        }
    }
    for target in &mut targets {
        target.made_at = added.get(&target.id.get()).map(|at| moment(*at)).transpose()?;
    }
    targets.sort_by_key(|target| target.id);
    targets.truncate(limit);
    let made = added.len()
        + match (range.targets, range.first_number) {
            (Some(made), _) => usize::try_from(made).unwrap_or(0),
            (None, None) => 1,
            // Stored by an older program.
            (None, Some(_)) => targets.len(),
        };
    Ok(Some(StoredFact { id, fact: fact.into(), targets, made }))
}

/// The numbers that entries of a fact can have.
fn ranges(tx: &Tx<'_>, id: Tsid, range: &RangeRow) -> Result<Vec<(i64, i64)>> {
    match (range.first_number, range.last_number) {
        (Some(first), Some(last)) => Ok(vec![(first, last)]),
        _ => Ok(numbers_of(id, tx.number(&tx.sql().publish.next_entry_id)?).map(|number| (number, number)).collect()),
    }
}

/// Adds the entries of a fact that are in the transaction's family. One that is live again is in the log too.
fn add_targets(tx: &Tx<'_>, of: (i64, i64, i64, i64), targets: &mut Vec<FactTarget>) -> Result<()> {
    let (family, first) = (tx.family, targets.len());
    for (row, phase) in tx.rows(&tx.sql().finding.live_targets, of)? {
        targets.push(target(family, row, |worker| phase.phase(worker))?);
    }
    let live = targets.len();
    for (row, phase) in tx.rows(&tx.sql().finding.ended_targets, of)? {
        let ended = target(family, row, |worker| phase.phase(worker))?;
        if targets[live..].last().is_some_and(|before| before.id == ended.id) {
            targets.pop();
        }
        if !targets[first..live].iter().any(|other| other.id == ended.id) {
            targets.push(ended);
        }
    }
    Ok(())
}

fn target(
    family: Family,
    mut row: TargetRow,
    phase: impl FnOnce(Option<Shown>) -> Result<EntryPhase>,
) -> Result<FactTarget> {
    let phase = phase(row.worker.take())?;
    let lane_type = row.lane_type.map(|shown| shown.0);
    let queue = queue_name(row.queue, row.queue_client)?;
    Ok(FactTarget { family, id: entry_id(row.id)?, queue, phase, made_at: None, lane_type })
}

/// The next facts of a walk.
fn walk_facts(tx: &mut Tx<'_>, walk: &FactsWalk) -> Result<WalkedFacts> {
    let (after, before, limit) = (walk.after.to_i64(), walk.before.to_i64(), walk.limit as i64);
    let sql = &tx.sql().finding;
    let rows = match walk.client {
        Some(client) => tx.rows(&sql.walk_client, (after, before, limit, client.map(Tsid::to_i64)))?,
        None => tx.rows(&sql.walk, (after, before, limit))?,
    };
    let looked_at: Vec<_> =
        rows.into_iter().map(|row| (row.id, usize::try_from(row.size).unwrap_or(0), row.is_found)).collect();
    let (ids, next) = walk.cut(&looked_at);
    let mut facts = Vec::with_capacity(ids.len());
    for id in ids {
        facts.extend(fact(tx, id, 0)?);
    }
    Ok(WalkedFacts { facts, next })
}

/// A page of a search.
fn find(tx: &mut Tx<'_>, query: &FactsQuery) -> Result<FactsPage> {
    let mut facts = Vec::new();
    let (found, next) = search(tx, query)?;
    for id in found {
        facts.extend(fact(tx, id, query.targets)?);
    }
    Ok(FactsPage { facts, next })
}

fn search(tx: &Tx<'_>, query: &FactsQuery) -> Result<(Vec<Tsid>, Option<Tsid>)> {
    for source in sources(query) {
        let Some(streams) = streams(tx, query, source)? else { continue };
        let mut finding = Finding::new(query, streams);
        let asked = Asked::new(tx, query, source);
        while let Some(step) = finding.step() {
            for at in step.streams {
                let Some((key, before)) = finding.stream(at) else { continue };
                let candidates = asked.candidates(key, before, step.limit)?;
                finding.add(at, step.limit, candidates);
            }
        }
        return Ok(finding.finish());
    }
    Ok((Vec::new(), None))
}

/// The streams of a source; `None` if there are too many.
fn streams(tx: &Tx<'_>, query: &FactsQuery, source: Source<'_>) -> Result<Option<Vec<Key>>> {
    let clients = match given_clients(query, source) {
        Some(clients) => clients,
        None => match clients(tx, source)? {
            Some(clients) => clients,
            None => return Ok(None),
        },
    };
    match source {
        Source::Types(pattern) => types(tx, &clients, pattern),
        source => Ok(Some(streams_of(source, clients))),
    }
}

/// The clients, 0 for none, that a source has facts of.
fn clients(tx: &Tx<'_>, source: Source<'_>) -> Result<Option<Vec<i64>>> {
    let sql = &tx.sql().finding;
    let (next, of_none, text) = match source {
        Source::External(text) => (&sql.client_of_external, &sql.no_client_of_external, text),
        Source::Correlation(text) => (&sql.client_of_correlation, &sql.no_client_of_correlation, text),
        Source::Subject(text) => (&sql.client_of_subject, &sql.no_client_of_subject, text),
        Source::System(text) => (&sql.client_of_system, &sql.no_client_of_system, text),
        Source::Term(term) => return steps(-1, |last| tx.row(&sql.client_of_term, (term, last))),
        Source::Type(_) | Source::Types(_) | Source::Clients | Source::All => {
            let clients = steps(0, |last| tx.row(&sql.client, [last]))?;
            return Ok(with_none(clients, tx.row(&sql.no_client, [])?));
        }
    };
    let clients = steps(0, |last| tx.row(next, (text, last)))?;
    Ok(with_none(clients, tx.row(of_none, [text])?))
}

/// Follows an index from one client to the next; `None` if there are too many.
fn steps(mut last: i64, next: impl Fn(i64) -> Result<Option<Only<i64>>>) -> Result<Option<Vec<i64>>> {
    let mut clients = Vec::new();
    while let Some(Only(client)) = next(last)? {
        if clients.len() == MAX_STREAMS {
            return Ok(None);
        }
        clients.push(client);
        last = client;
    }
    Ok(Some(clients))
}

fn with_none(clients: Option<Vec<i64>>, none: Option<Only<bool>>) -> Option<Vec<i64>> {
    let has_none = none.is_some_and(|Only(has)| has);
    clients.map(|clients| if has_none { [vec![0], clients].concat() } else { clients })
}

/// The types of these clients that match; `None` if there are too many, or too many have to be looked at.
fn types(tx: &Tx<'_>, clients: &[i64], pattern: &CodePattern) -> Result<Option<Vec<Key>>> {
    let (sql, prefix) = (&tx.sql().finding, pattern.prefix());
    let (mut keys, mut looked_at) = (Vec::new(), 0);
    for client in clients {
        let of = Some(*client).filter(|client| *client != 0);
        let mut next = tx.row(&sql.type_from, (of, &prefix))?;
        while let Some(Only(Shown(event_type))) = next.filter(|Only(Shown(text))| text.starts_with(&prefix)) {
            looked_at += 1;
            if looked_at > MAX_STREAMS {
                return Ok(None);
            }
            next = tx.row(&sql.type_after, (of, &event_type))?;
            if pattern.matches(&event_type) {
                keys.push(Key { client: *client, event_type: Some(event_type) });
            }
        }
    }
    Ok(Some(keys))
}

/// What a search asks of each stream of its source.
struct Asked<'a> {
    tx: &'a Tx<'a>,
    statement: &'a Statement<CandidateRow>,
    query: &'a FactsQuery,
    first: i64,
    from: Option<i64>,
    to: Option<i64>,
    event_type: Option<&'a str>,
    /// All terms, as the statement takes them, and the one that its source is of.
    terms: String,
    term: Vec<u8>,
}

impl<'a> Asked<'a> {
    fn new(tx: &'a Tx<'a>, query: &'a FactsQuery, source: Source<'_>) -> Self {
        let sql = &tx.sql().finding;
        let statement = match source {
            Source::External(_) => &sql.of_external,
            Source::Correlation(_) => &sql.of_correlation,
            Source::Term(_) => &sql.of_term,
            Source::Subject(_) => &sql.of_subject,
            Source::Type(_) | Source::Types(_) => &sql.of_type,
            Source::System(_) => &sql.of_system,
            Source::Clients => &sql.of_client,
            Source::All => &sql.everything,
        };
        let event_type = match &query.event_type {
            Some(TypeFilter::Exact(exact)) => Some(exact.as_str()),
            _ => None,
        };
        let hashes: Vec<_> = query.terms.iter().map(crate::values::FactTerm::hash).collect();
        let terms: Vec<String> =
            hashes.iter().map(|hash| format!("\"{}\"", crate::values::fact_keys::hex(hash))).collect();
        Self {
            tx,
            statement,
            query,
            first: range(query).0,
            from: query.from.map(micros),
            to: query.to.map(micros),
            event_type,
            terms: format!("[{}]", terms.join(",")),
            term: hashes.first().map(|hash| hash.to_vec()).unwrap_or_default(),
        }
    }

    /// The next candidates of a stream.
    fn candidates(&self, key: &Key, before: i64, limit: usize) -> Result<Vec<Candidate>> {
        let (limit, client) = (limit as i64, Some(key.client).filter(|client| *client != 0));
        let FactsQuery { source, subject, external_id, correlation_id, .. } = self.query;
        let params: [&dyn ToSql; 14] = [
            &before,
            &limit,
            &self.first,
            &client,
            &key.event_type,
            &self.from,
            &self.to,
            source,
            subject,
            external_id,
            correlation_id,
            &self.event_type,
            &self.terms,
            &self.term,
        ];
        let count = self.tx.prepare(self.statement)?.parameter_count();
        let rows = self.tx.rows(self.statement, params.get(..count).unwrap_or(&params))?;
        let candidate = |row: CandidateRow| Candidate {
            id: row.id,
            event_type: row.event_type.map(|shown| shown.0).unwrap_or_default(),
            size: usize::try_from(row.size).unwrap_or(0),
            fits: row.fits,
        };
        Ok(rows.into_iter().map(candidate).collect())
    }
}
