//! The rows that ingest writes: facts, terms and targets, each by one statement with an array for each column.

use futures_util::future::join;
use tidegate_core::{Availability, Expiry, NewEvent, Timestamp, Tsid};
use tokio_postgres::types::ToSql;

use crate::failpoint::ingest_failpoint;
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::{Fault, both};
use crate::postgres::engine::store::Inner;
use crate::postgres::flags;
use crate::postgres::ingest::Numbered;
use crate::postgres::ingest_plan::{Home, Placed};
use crate::postgres::items::{micros, place_of, retry, tags};
use crate::values::Family;
use crate::values::fact_keys::TERM;

/// Writes facts.
pub(super) async fn write_facts(inner: &Inner, tx: &Tx, now: &Timestamp, items: &[Numbered<'_>]) -> Result<(), Fault> {
    let facts = || items.iter().map(|one| &one.item.fact);
    let text = |read: fn(&NewEvent) -> &Option<String>| -> Vec<Option<&str>> {
        facts().map(|fact| read(fact).as_deref()).collect()
    };
    let ids: Vec<i64> = items.iter().filter_map(|one| Some(one.fact()?.event_id)).collect();
    let clients: Vec<Option<i64>> = facts().map(|fact| fact.client.map(Tsid::to_i64)).collect();
    let types: Vec<&str> = facts().map(|fact| fact.event_type.as_str()).collect();
    let payloads: Vec<&[u8]> = facts().map(|fact| fact.payload.as_ref()).collect();
    let times: Vec<Option<Timestamp>> = facts().map(|fact| fact.time).collect();
    let tags: Vec<Option<String>> = facts().map(tags).collect();
    let retries: Vec<Option<String>> = facts().map(retry).collect();
    let (firsts, lasts): (Vec<Option<i64>>, Vec<Option<i64>>) = items.iter().map(|one| one.range().unzip()).unzip();
    let targets: Vec<Option<i32>> =
        items.iter().map(|one| one.range().map(|_| one.item.targets.len() as i32)).collect();
    let terms: Vec<Option<Vec<u8>>> =
        items.iter().map(|one| Some(one.item.term_hashes().concat()).filter(|terms| !terms.is_empty())).collect();
    let params: [&(dyn ToSql + Sync); 21] = [
        now,
        &ids,
        &clients,
        &types,
        &payloads,
        &text(|fact| &fact.content_type),
        &text(|fact| &fact.source),
        &text(|fact| &fact.subject),
        &times,
        &text(|fact| &fact.external_id),
        &text(|fact| &fact.correlation_id),
        &text(|fact| &fact.causation_id),
        &text(|fact| &fact.attributes),
        &text(|fact| &fact.title),
        &text(|fact| &fact.description),
        &tags,
        &retries,
        &firsts,
        &lasts,
        &targets,
        &terms,
    ];
    tx.execute(&inner.sql.ingest.write_facts, &params).await?;
    ingest_failpoint("facts");
    Ok(())
}

/// Writes the terms of facts.
pub(super) async fn write_terms(inner: &Inner, tx: &Tx, items: &[Numbered<'_>]) -> Result<(), Fault> {
    let mut rows: Vec<([u8; TERM], i64, i64)> = Vec::new();
    for one in items {
        let Some(fact) = one.fact() else { continue };
        let client = one.item.client();
        rows.extend(one.item.term_hashes().into_iter().map(|term| (term, client, fact.event_id)));
    }
    if rows.is_empty() {
        return Ok(());
    }
    // In the order of the key, so that neighbours go to the same place.
    rows.sort_unstable();
    let terms: Vec<&[u8]> = rows.iter().map(|(term, ..)| term.as_slice()).collect();
    let clients: Vec<i64> = rows.iter().map(|(_, client, _)| *client).collect();
    let events: Vec<i64> = rows.iter().map(|(.., event)| *event).collect();
    tx.execute(&inner.sql.ingest.write_terms, &[&terms, &clients, &events]).await?;
    ingest_failpoint("terms");
    Ok(())
}

/// Writes the targets, family by family.
pub(super) async fn write_targets(
    tx: &Tx,
    homes: &[Home<'_>],
    now: &Timestamp,
    items: &[Numbered<'_>],
) -> Result<(), Fault> {
    for home in homes {
        let mut columns = Columns::default();
        for one in items {
            let event_id = one.fact().map(|fact| fact.event_id);
            let origin = Origin { event_id, fact: &one.item.fact, is_added: false };
            one.of(home).for_each(|(placed, drawn)| columns.add(placed, drawn.id, &origin));
        }
        columns.write(tx, home, now).await?;
    }
    ingest_failpoint("targets");
    Ok(())
}

/// The fact that targets are made for.
pub(super) struct Origin<'a> {
    pub(super) event_id: Option<i64>,
    pub(super) fact: &'a NewEvent,
    /// Whether it had been stored before.
    pub(super) is_added: bool,
}

/// The arrays of the statement that writes targets.
#[derive(Default)]
pub(super) struct Columns<'a> {
    ids: Vec<i64>,
    events: Vec<Option<i64>>,
    dues: Vec<Option<Timestamp>>,
    delays: Vec<Option<i64>>,
    clients: Vec<Option<i64>>,
    lanes: Vec<i32>,
    queues: Vec<i32>,
    max_attempts: Vec<i32>,
    places: Vec<i16>,
    exhausted: Vec<i16>,
    groups: Vec<Option<&'a str>>,
    priorities: Vec<i16>,
    tags: Vec<Option<String>>,
    ranks: Vec<i32>,
    expiries: Vec<Option<Timestamp>>,
    ages: Vec<Option<i64>>,
    flags: Vec<Option<i16>>,
    /// What is said about those that are tasks, with their numbers.
    tasks: Vec<(i64, &'a str)>,
}

impl<'a> Columns<'a> {
    pub(super) fn add(&mut self, placed: &Placed<'a>, id: i64, origin: &Origin<'_>) {
        let target = placed.target;
        let (due, delay) = match target.available {
            Availability::Now => (None, None),
            Availability::At(at) => (Some(at), None),
            Availability::After(delay) => (None, Some(micros(delay))),
        };
        self.ids.push(id);
        self.events.push(origin.event_id);
        self.dues.push(due);
        self.delays.push(delay);
        self.clients.push(target.queue.client().map(Tsid::to_i64));
        self.lanes.push(placed.lane);
        self.queues.push(placed.queue_id);
        self.max_attempts.push(placed.max_attempts as i32);
        self.places.push(place_of(target.group.as_deref(), target.available, false));
        self.exhausted.push(target.exhausted_as.code());
        self.groups.push(target.group.as_deref());
        self.priorities.push(target.priority);
        // Jobs have no tags.
        self.tags.push(tags(origin.fact).filter(|_| target.family == Family::Entries));
        let (expiry, age) = match target.expires {
            None => (None, None),
            Some(Expiry::At(at)) => (Some(at), None),
            Some(Expiry::After(age)) => (None, Some(micros(age))),
        };
        self.ranks.push(target.rank);
        self.expiries.push(expiry);
        self.ages.push(age);
        let added = if origin.is_added { flags::ADDED } else { 0 };
        let set = flags::of_target(target, origin.fact).unwrap_or(0) | added;
        self.flags.push(Some(set).filter(|set| *set != 0));
        self.tasks.extend(target.task.as_deref().map(|task| (id, task)));
    }

    /// Writes the rows, if there are any.
    pub(super) async fn write(&self, tx: &Tx, home: &Home<'_>, now: &Timestamp) -> Result<(), Fault> {
        if self.ids.is_empty() {
            return Ok(());
        }
        let sql = &home.inner.sql;
        let (jobs, texts): (Vec<i64>, Vec<&str>) = self.tasks.iter().copied().unzip();
        let tasks = async {
            if jobs.is_empty() { Ok(0) } else { tx.execute(&sql.dispatch.write_tasks, &[&jobs, &texts]).await }
        };
        let (targets, tasks) = join(tx.execute(&sql.ingest.write_targets, &self.params(now)), tasks).await;
        both(targets, tasks)?;
        Ok(())
    }

    fn params<'b>(&'b self, now: &'b Timestamp) -> [&'b (dyn ToSql + Sync); 18] {
        [
            now,
            &self.ids,
            &self.events,
            &self.dues,
            &self.delays,
            &self.clients,
            &self.lanes,
            &self.queues,
            &self.max_attempts,
            &self.places,
            &self.exhausted,
            &self.groups,
            &self.priorities,
            &self.tags,
            &self.ranks,
            &self.expiries,
            &self.ages,
            &self.flags,
        ]
    }
}
