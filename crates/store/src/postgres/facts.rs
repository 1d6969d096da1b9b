//! Facts by id with what was made for them, and searches for facts. Reads only.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tidegate_core::event_type::CodePattern;
use tidegate_core::{Timestamp, Tsid};
use tokio_postgres::types::ToSql;

use crate::api;
use crate::error::Result;
use crate::finding::{Candidate, Finding, Key, MAX_STREAMS, Source, Step, given_clients, range, sources, streams_of};
use crate::list_gate::Kind;
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::{Opened, PostgresStore};
use crate::postgres::statements::facts::FactRow;
use crate::postgres::statements::finding::{CandidateRow, RangeRow};
use crate::sql::{Only, Statement};
use crate::values::facts::{check_facts, numbers_of};
use crate::values::{
    Fact, FactTarget, FactTerm, FactsPage, FactsQuery, FactsWalk, Family, MAX_TARGETS, StoredFact, TypeFilter,
    WalkedFacts,
};

#[async_trait::async_trait]
impl api::Facts for PostgresStore {
    async fn facts(&self, ids: Vec<Tsid>, targets: usize) -> Result<Vec<Option<StoredFact>>> {
        check_facts(&ids, targets)?;
        let opened = Arc::clone(&self.opened);
        self.attended(|inner| async move {
            let (opened, ids) = (&opened, &ids);
            let found = inner.read(|tx| async move { opened.facts(&tx, ids, targets).await }).await?;
            Ok(ids.iter().map(|id| found.get(&id.to_i64()).cloned()).collect())
        })
        .await
    }

    async fn find_facts(&self, query: FactsQuery) -> Result<FactsPage> {
        query.check()?;
        let opened = Arc::clone(&self.opened);
        self.attended(|inner| async move {
            inner.in_turn(Kind::of_facts(&query), |tx| async move { opened.find_facts(&tx, &query).await }).await
        })
        .await
    }

    async fn walk_facts(&self, walk: FactsWalk) -> Result<WalkedFacts> {
        walk.check()?;
        let opened = Arc::clone(&self.opened);
        self.attended(|inner| async move {
            let (opened, walk) = (&opened, &walk);
            inner.read(|tx| async move { opened.walk_facts(&tx, walk).await }).await
        })
        .await
    }
}

/// A fact whose entries may have numbers in a range: itself, and the first and the last number.
type Searched = (i64, i64, i64);

/// What was added to facts: the numbers, and when.
type Added = HashMap<i64, BTreeMap<i64, Timestamp>>;

impl Opened {
    /// Facts by id, each with the first of its targets.
    async fn facts(&self, tx: &Tx, ids: &[Tsid], limit: usize) -> Result<HashMap<i64, StoredFact>, Fault> {
        let numbers: BTreeSet<i64> = ids.iter().map(|id| id.to_i64()).collect();
        let numbers: Vec<i64> = numbers.into_iter().collect();
        let sql = &self.family(Family::Entries).sql;
        let rows = tx.rows(&sql.finding.facts, &[&numbers]).await?;
        let mut searched: Vec<Searched> = Vec::with_capacity(rows.len());
        let mut last = None;
        for (range, _) in &rows {
            match (range.first_number, range.last_number) {
                (Some(first), Some(last)) if first <= last => searched.push((range.fact_id, first, last)),
                (Some(_), _) => {}
                (None, _) => {
                    if last.is_none() {
                        last = tx.row(&sql.heartbeat.last_number, &[]).await?.map(|Only(last)| last);
                    }
                    let numbers = numbers_of(Tsid::from_i64(range.fact_id), last.unwrap_or(0));
                    searched.extend(numbers.map(|number| (range.fact_id, number, number)));
                }
            }
        }
        let added = self.added(tx, &rows, limit).await?;
        for (fact, numbers) in &added {
            searched.extend(numbers.keys().take(limit).map(|number| (*fact, *number, *number)));
        }
        let mut targets = self.targets(tx, &searched, limit).await?;
        let stored = |(range, fact): (RangeRow, _)| {
            let mut targets = targets.remove(&range.fact_id).unwrap_or_default();
            let added = added.get(&range.fact_id);
            for target in &mut targets {
                target.made_at = added.and_then(|added| added.get(&target.id.get()).copied());
            }
            targets.truncate(limit);
            let added = added.map_or(0, BTreeMap::len);
            (range.fact_id, stored(&range, Fact::from(fact), targets, added))
        };
        Ok(rows.into_iter().map(stored).collect())
    }

    /// The numbers of the targets that were added to facts later, with the moments at which they were made.
    async fn added(&self, tx: &Tx, rows: &[(RangeRow, FactRow)], limit: usize) -> Result<Added, Fault> {
        let facts: Vec<i64> = rows.iter().filter_map(|(of, _)| of.first_number.map(|_| of.fact_id)).collect();
        let mut added = Added::new();
        if facts.is_empty() || limit == 0 {
            return Ok(added);
        }
        let sql = &self.family(Family::Entries).sql.added;
        for row in tx.rows(&sql.of_facts, &[&facts, &(MAX_TARGETS as i64)]).await? {
            let Some(fact) = facts.get((row.item - 1) as usize) else { continue };
            added.entry(*fact).or_default().insert(row.entry_id, row.made_at.into());
        }
        Ok(added)
    }

    /// The targets of facts by their numbers, somewhat more than `limit` of each.
    async fn targets(
        &self,
        tx: &Tx,
        searched: &[Searched],
        limit: usize,
    ) -> Result<HashMap<i64, Vec<FactTarget>>, Fault> {
        let mut targets: HashMap<i64, Vec<FactTarget>> = HashMap::new();
        if searched.is_empty() || limit == 0 {
            return Ok(targets);
        }
        let ids: Vec<i64> = searched.iter().map(|one| one.0).collect();
        let firsts: Vec<i64> = searched.iter().map(|one| one.1).collect();
        let lasts: Vec<i64> = searched.iter().map(|one| one.2).collect();
        let limit = limit as i64;
        for family in Family::ALL {
            let sql = &self.family(family).sql;
            for row in tx.rows(&sql.finding.targets, &[&ids, &firsts, &lasts, &limit]).await? {
                let Some(fact) = ids.get((row.item - 1) as usize) else { continue };
                let found = targets.entry(*fact).or_default();
                let target = row.target(family)?;
                // Rows of one entry come by generation: the last one counts.
                match found.last_mut().filter(|before| before.id == target.id) {
                    Some(before) => *before = target,
                    None => found.push(target),
                }
            }
        }
        targets.values_mut().for_each(|of| of.sort_by_key(|target| target.id));
        Ok(targets)
    }

    /// The next facts of a walk.
    async fn walk_facts(&self, tx: &Tx, walk: &FactsWalk) -> Result<WalkedFacts, Fault> {
        let (after, before, limit) = (walk.after.to_i64(), walk.before.to_i64(), walk.limit as i64);
        let sql = &self.family(Family::Entries).sql.finding;
        let rows = match walk.client {
            Some(client) => {
                let client = client.map_or(0, Tsid::to_i64);
                tx.rows(&sql.walk_client, &[&after, &before, &limit, &client]).await?
            }
            None => tx.rows(&sql.walk, &[&after, &before, &limit]).await?,
        };
        let looked_at: Vec<_> =
            rows.into_iter().map(|row| (row.id, usize::try_from(row.size).unwrap_or(0), row.is_found)).collect();
        let (ids, next) = walk.cut(&looked_at);
        let mut facts = if ids.is_empty() { HashMap::new() } else { self.facts(tx, &ids, 0).await? };
        Ok(WalkedFacts { facts: ids.iter().filter_map(|id| facts.remove(&id.to_i64())).collect(), next })
    }

    /// A page of a search.
    async fn find_facts(&self, tx: &Tx, query: &FactsQuery) -> Result<FactsPage, Fault> {
        let (found, next) = self.search(tx, query).await?;
        let mut facts = if found.is_empty() { HashMap::new() } else { self.facts(tx, &found, query.targets).await? };
        tx.end_reading().await?;
        Ok(FactsPage { facts: found.iter().filter_map(|id| facts.remove(&id.to_i64())).collect(), next })
    }

    async fn search(&self, tx: &Tx, query: &FactsQuery) -> Result<(Vec<Tsid>, Option<Tsid>), Fault> {
        for source in sources(query) {
            let Some(streams) = self.streams(tx, query, source).await? else { continue };
            let mut finding = Finding::new(query, streams);
            let asked = Asked::new(query);
            while let Some(step) = finding.step() {
                let mut found = self.candidates(tx, &asked, source, &finding, &step).await?;
                for at in &step.streams {
                    finding.add(*at, step.limit, found.remove(at).unwrap_or_default());
                }
            }
            return Ok(finding.finish());
        }
        Ok((Vec::new(), None))
    }

    /// The streams of a source; `None` if there are too many.
    async fn streams(&self, tx: &Tx, query: &FactsQuery, source: Source<'_>) -> Result<Option<Vec<Key>>, Fault> {
        let clients = match given_clients(query, source) {
            Some(clients) => clients,
            None => self.clients(tx, source).await?,
        };
        if clients.len() > MAX_STREAMS {
            return Ok(None);
        }
        match source {
            Source::Types(pattern) => self.types(tx, &clients, pattern).await,
            source => Ok(Some(streams_of(source, clients))),
        }
    }

    /// The clients, 0 for none, that a source has facts of, and one more than may be.
    async fn clients(&self, tx: &Tx, source: Source<'_>) -> Result<Vec<i64>, Fault> {
        let sql = &self.family(Family::Entries).sql.finding;
        let most = MAX_STREAMS as i64 + 1;
        let rows = match source {
            Source::External(text) => tx.rows(&sql.clients_of_external, &[&text, &most]).await?,
            Source::Correlation(text) => tx.rows(&sql.clients_of_correlation, &[&text, &most]).await?,
            Source::Subject(text) => tx.rows(&sql.clients_of_subject, &[&text, &most]).await?,
            Source::System(text) => tx.rows(&sql.clients_of_system, &[&text, &most]).await?,
            Source::Term(term) => tx.rows(&sql.clients_of_term, &[&term.as_slice(), &most]).await?,
            Source::Type(_) | Source::Types(_) | Source::Clients | Source::All => {
                tx.rows(&sql.clients, &[&most]).await?
            }
        };
        Ok(rows.into_iter().map(|row| row.client_id).collect())
    }

    /// The types of these clients that match; `None` if there are too many, or too many have to be looked at.
    async fn types(&self, tx: &Tx, clients: &[i64], pattern: &CodePattern) -> Result<Option<Vec<Key>>, Fault> {
        let sql = &self.family(Family::Entries).sql.finding;
        let most = MAX_STREAMS as i64 + 1;
        let rows = tx.rows(&sql.types, &[&clients, &pattern.prefix(), &most]).await?;
        if rows.len() > MAX_STREAMS {
            return Ok(None);
        }
        let matching = rows.into_iter().filter(|row| pattern.matches(&row.event_type));
        Ok(Some(matching.map(|row| Key { client: row.client_id, event_type: Some(row.event_type) }).collect()))
    }

    /// The candidates of a step, by the positions of their streams.
    async fn candidates(
        &self,
        tx: &Tx,
        asked: &Asked<'_>,
        source: Source<'_>,
        finding: &Finding<'_>,
        step: &Step,
    ) -> Result<HashMap<usize, Vec<Candidate>>, Fault> {
        let (mut clients, mut befores, mut types) = (Vec::new(), Vec::new(), Vec::new());
        for (key, before) in step.streams.iter().filter_map(|at| finding.stream(*at)) {
            clients.push(key.client);
            befores.push(before);
            types.push(key.event_type.as_deref());
        }
        let limit = step.limit as i64;
        let query = asked.query;
        let params: [&(dyn ToSql + Sync); 13] = [
            &clients,
            &befores,
            &limit,
            &asked.first,
            &asked.from,
            &asked.to,
            &query.source,
            &query.subject,
            &query.external_id,
            &query.correlation_id,
            &asked.event_type,
            &asked.terms,
            &types,
        ];
        let mut found: HashMap<usize, Vec<Candidate>> = HashMap::new();
        for row in tx.rows(self.statement(source), &params).await? {
            let Some(at) = step.streams.get((row.stream - 1) as usize) else { continue };
            let (event_type, size) = (row.event_type, usize::try_from(row.size).unwrap_or(0));
            found.entry(*at).or_default().push(Candidate { id: row.id, event_type, size, fits: row.fits });
        }
        Ok(found)
    }

    /// The statement that finds the candidates of a source.
    fn statement(&self, source: Source<'_>) -> &Statement<CandidateRow> {
        let sql = &self.family(Family::Entries).sql.finding;
        match source {
            Source::External(_) => &sql.of_external,
            Source::Correlation(_) => &sql.of_correlation,
            Source::Term(_) => &sql.of_term,
            Source::Subject(_) => &sql.of_subject,
            Source::Type(_) | Source::Types(_) => &sql.of_type,
            Source::System(_) => &sql.of_system,
            Source::Clients => &sql.of_client,
            Source::All => &sql.everything,
        }
    }
}

fn stored(range: &RangeRow, fact: Fact, targets: Vec<FactTarget>, added: usize) -> StoredFact {
    let made = match (range.targets, range.first_number) {
        (Some(made), _) => usize::try_from(made).unwrap_or(0) + added,
        (None, None) => 1,
        // Stored by an older program.
        (None, Some(_)) => targets.len(),
    };
    StoredFact { id: Tsid::from_i64(range.fact_id), fact, targets, made }
}

/// What a search asks of every stream.
struct Asked<'a> {
    query: &'a FactsQuery,
    first: i64,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    event_type: Option<&'a str>,
    terms: Vec<Vec<u8>>,
}

impl<'a> Asked<'a> {
    fn new(query: &'a FactsQuery) -> Self {
        let event_type = match &query.event_type {
            Some(TypeFilter::Exact(exact)) => Some(exact.as_str()),
            _ => None,
        };
        let terms = query.terms.iter().map(|term| FactTerm::hash(term).to_vec()).collect();
        Self { query, first: range(query).0, from: query.from, to: query.to, event_type, terms }
    }
}
