//! Ingest: facts, and any number of entries that refer to each. Numbers are drawn and known keys looked up first, then keys,
//! facts, terms and entries are written, promotions come last. Lock order as for publishing: depth limits, keys, groups.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt as _;
use futures_util::future::{join, join4};
use tidegate_core::{EntryId, Tsid};

use crate::api;
use crate::error::{Error, ErrorKind, Result};
use crate::failpoint::ingest_failpoint;
use crate::postgres::engine::bisect::halves;
use crate::postgres::engine::connection::{Begin, Prelude, Tx};
use crate::postgres::engine::errors::{Fault, all, both};
use crate::postgres::engine::store::{Inner, MAX_CATALOG_READS, Opened, PostgresStore, accept_catalog};
use crate::postgres::fact_keys::{Known, StoredKey};
use crate::postgres::ingest_plan::{Home, Placed, Planned, Room, homes, no_answer, plan, reload, room, take_room};
use crate::postgres::ingest_rows::{write_facts, write_targets, write_terms};
use crate::postgres::statements::deduplication::Drawn;
use crate::values::ingest::{Part, in_parts};
use crate::values::{AddTarget, AddedTarget, Batch, CatalogueVersion, Ingest, IngestAnswer, IngestOutcome, Ingested};

#[async_trait::async_trait]
impl api::Ingestion for PostgresStore {
    async fn ingest(&self, items: Vec<Ingest>, under: Option<CatalogueVersion>) -> Result<IngestAnswer> {
        let opened = Arc::clone(&self.opened);
        self.detached(|inner| async move { inner.ingest(&opened, items, under).await }).await
    }

    async fn add_targets(&self, items: Vec<AddTarget>) -> Result<Batch<AddedTarget>> {
        AddTarget::check_all(&items)?;
        let opened = Arc::clone(&self.opened);
        self.detached(|inner| async move { inner.add_targets(&opened, &items).await }).await
    }
}

/// An item to be written, under numbers that were drawn for it.
pub(super) struct Numbered<'a> {
    pub(super) item: &'a Ingest,
    pub(super) keys: &'a [StoredKey],
    targets: &'a [Placed<'a>],
    /// One for each target; a single one, which makes the fact's id, where there is none.
    drawn: &'a [Drawn],
}

/// The version that the transactions of one part are written under: the first that takes place has found it, and the others
/// need not.
struct Asked {
    under: Option<CatalogueVersion>,
    is_found: AtomicBool,
    /// Nobody knows whether one of them took place.
    is_unsure: AtomicBool,
    stale: OnceLock<CatalogueVersion>,
}

impl Asked {
    fn new(under: Option<CatalogueVersion>) -> Self {
        Self { under, is_found: AtomicBool::new(false), is_unsure: AtomicBool::new(false), stale: OnceLock::new() }
    }

    /// The version to ask for.
    fn under(&self) -> Option<CatalogueVersion> {
        self.under.filter(|_| !self.is_found.load(Ordering::Acquire))
    }

    /// Notes what a transaction has found.
    fn note(&self, part: Result<Part>) -> Result<Batch<Ingested>> {
        if part.as_ref().is_err_and(|error| error.kind() == ErrorKind::Indeterminate) {
            self.is_unsure.store(true, Ordering::Release);
        }
        match part? {
            Part::Done(answers) => {
                self.is_found.store(true, Ordering::Release);
                Ok(answers)
            }
            Part::Stale(version) => {
                let version = self.stale.get_or_init(|| version);
                Err(Error::new(ErrorKind::Busy, format!("the catalogue has version {}", version.number)))
            }
        }
    }

    /// The version that was found instead, if nothing was written: after a transaction took place no other asks. Where one
    /// may have taken place, each answers for itself: written again, what has no key would be there twice.
    fn stale(&self) -> Option<CatalogueVersion> {
        self.stale.get().copied().filter(|_| !self.is_unsure.load(Ordering::Acquire))
    }
}

impl Inner {
    async fn ingest(
        &self,
        opened: &Opened,
        items: Vec<Ingest>,
        under: Option<CatalogueVersion>,
    ) -> Result<IngestAnswer> {
        in_parts(items, under, |part, under| async move { self.ingest_part(opened, &part, under).await }).await
    }

    /// Writes items in one transaction; in several, where that fails because of some of them.
    async fn ingest_part<'a>(
        &'a self,
        opened: &'a Opened,
        items: &'a [Ingest],
        under: Option<CatalogueVersion>,
    ) -> Result<Part> {
        let all: Vec<&Ingest> = items.iter().collect();
        let done = self.ingest_together(opened, &all, under).await;
        let Err(error) = &done else { return done };
        let is_keyed = |item: &Ingest| !item.keys.is_empty();
        let version = Arc::new(Asked::new(under));
        let apart = |items: Vec<&'a Ingest>| {
            let version = Arc::clone(&version);
            async move { version.note(self.ingest_together(opened, &items, version.under()).await) }.boxed()
        };
        let answers = match error.kind() {
            // A value that the database cannot store must not fail the other items.
            ErrorKind::Invalid if items.len() > 1 => halves(all, &apart).await,
            // A key that another transaction holds must not block the other items: first those without keys, then each of
            // the others alone.
            ErrorKind::Busy if items.len() > 1 && items.iter().any(is_keyed) => {
                let (keyed, free): (Vec<usize>, Vec<usize>) = (0..items.len()).partition(|at| is_keyed(&items[*at]));
                let alone = keyed.into_iter().map(|at| vec![at]);
                let mut answers: Vec<Option<Result<Ingested>>> = items.iter().map(|_| None).collect();
                for part in std::iter::once(free).filter(|free| !free.is_empty()).chain(alone) {
                    let written = apart(part.iter().map(|at| &items[*at]).collect()).await;
                    let written = written.unwrap_or_else(|error| part.iter().map(|_| Err(error.clone())).collect());
                    part.into_iter().zip(written).for_each(|(at, answer)| answers[at] = Some(answer));
                }
                answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(no_answer()))).collect()
            }
            _ => return done,
        };
        Ok(version.stale().map_or(Part::Done(answers), Part::Stale))
    }

    /// Writes items in one transaction, planned again while the catalogue changes; under a version of it, only while it
    /// has that one.
    async fn ingest_together(
        &self,
        opened: &Opened,
        items: &[&Ingest],
        under: Option<CatalogueVersion>,
    ) -> Result<Part> {
        for _ in 0..MAX_CATALOG_READS {
            let homes = homes(opened, items).await?;
            match ingest_once(self, &homes, items, under).await {
                Ok(answers) => return Ok(Part::Done(answers)),
                Err(Fault::StaleCatalog) => {}
                Err(fault) => return Err(fault.into_error()),
            }
            if let Some(under) = under {
                let present = self.catalogue_version().await?;
                if present != under {
                    return Ok(Part::Stale(present));
                }
            }
            reload(&homes).await?;
        }
        Err(Fault::StaleCatalog.into_error())
    }
}

/// Plans and writes items under the catalogues that were read.
async fn ingest_once(
    inner: &Inner,
    homes: &[Home<'_>],
    items: &[&Ingest],
    under: Option<CatalogueVersion>,
) -> Result<Batch<Ingested>, Fault> {
    let accept =
        |stamp: i64| if under.is_none_or(|under| under.stamp == stamp) { Ok(()) } else { Err(Fault::StaleCatalog) };
    homes.iter().try_for_each(|home| accept(home.catalog.stamp))?;
    let plans = &plan(inner, homes, items).await?;
    if plans.iter().any(|plan| plan.targets.is_err()) {
        for home in homes {
            if !home.inner.catalog_stands(&home.catalog).await? {
                return Err(Fault::StaleCatalog);
            }
        }
    }
    if under.is_none() && plans.iter().all(|plan| plan.targets.is_err() && plan.keys.is_empty()) {
        return Ok(plans
            .iter()
            .map(|plan| Err(plan.targets.as_ref().err().map_or_else(no_answer, Error::clone)))
            .collect());
    }
    let answers = inner
        .transact(
            Begin::Write,
            |prelude: Prelude| {
                accept(prelude.stamp)?;
                homes.iter().try_for_each(|home| accept_catalog(&home.catalog, prelude))
            },
            |tx| async move { write(inner, &tx, homes, plans).await },
            // It took place if its first new fact is there.
            |tx, answers| {
                let is_new = |ingested: &&Ingested| ingested.outcome == IngestOutcome::New;
                let first = answers.iter().flatten().find(is_new).map(|ingested| ingested.event_id.to_i64());
                async move {
                    match first {
                        Some(event_id) => inner.fact_exists(&tx, event_id).await,
                        None => Ok(true),
                    }
                }
            },
        )
        .await?;
    for home in homes {
        home.inner.announce(plans.iter().flat_map(|plan| plan.of(home)).map(|placed| placed.queue_id));
    }
    Ok(answers)
}

/// Writes planned items in a transaction.
async fn write(inner: &Inner, tx: &Tx, homes: &[Home<'_>], plans: &[Planned<'_>]) -> Result<Batch<Ingested>, Fault> {
    let mut room = room(tx, homes, plans).await?;
    let numbers = plans.iter().filter_map(|plan| plan.targets.as_ref().ok()).map(|targets| targets.len().max(1)).sum();
    let (known, drawn) = join(inner.known_facts(tx, plans), inner.draw_ids(tx, numbers)).await;
    let (known, drawn) = both(known, drawn)?;
    let (answers, numbered) = decide(homes, plans, known, &drawn, &mut room)?;
    ingest_failpoint("planned");
    if let Some(Drawn { now, .. }) = drawn.first().filter(|_| !numbered.is_empty()) {
        // Keys first: who waits for one has locked nothing else.
        let (keys, facts, terms, targets) = join4(
            inner.take_facts(tx, &numbered),
            write_facts(inner, tx, now, &numbered),
            write_terms(inner, tx, &numbered),
            write_targets(tx, homes, now, &numbered),
        )
        .await;
        all([keys, facts, terms, targets])?;
    }
    for home in homes {
        let placed = numbered.iter().flat_map(|one| one.of(home));
        let groups = placed.filter_map(|(placed, _)| Some((placed.queue_id, placed.target.group.as_deref()?)));
        home.inner.promote(tx, groups).await?;
    }
    ingest_failpoint("promoted");
    Ok(answers)
}

/// Answers each item in order: a repeat with the first fact, one without room with an error, and any other with its
/// numbers, under which it is to be written.
fn decide<'a>(
    homes: &[Home<'_>],
    plans: &'a [Planned<'a>],
    mut known: Known,
    mut drawn: &'a [Drawn],
    room: &mut Room,
) -> Result<(Batch<Ingested>, Vec<Numbered<'a>>), Fault> {
    let (mut answers, mut numbered) = (Vec::with_capacity(plans.len()), Vec::with_capacity(plans.len()));
    for plan in plans {
        if let Some(answer) = known.repeated(plan).transpose() {
            answers.push(answer);
            continue;
        }
        let targets = match &plan.targets {
            Ok(targets) => take_room(homes, plan, room).map(|()| targets),
            Err(refused) => Err(refused.clone()),
        };
        match targets {
            Err(refused) => answers.push(Err(refused)),
            Ok(targets) => {
                let (own, rest) = drawn.split_at(targets.len().max(1).min(drawn.len()));
                let one = Numbered { item: plan.item, keys: &plan.keys, targets, drawn: own };
                drawn = rest;
                if let Some(fact) = one.fact() {
                    known.add(plan, fact);
                }
                answers.push(one.answer());
                numbered.push(one);
            }
        }
    }
    Ok((answers, numbered))
}

impl<'a> Numbered<'a> {
    /// The fact's id and moment.
    pub(super) fn fact(&self) -> Option<&'a Drawn> {
        self.drawn.first()
    }

    /// The range of numbers that the fact remembers; empty for a fact without targets.
    pub(super) fn range(&self) -> Option<(i64, i64)> {
        let (first, last) = (self.drawn.first()?.id, self.drawn.last()?.id);
        let is_empty = self.targets.is_empty();
        (!self.item.is_single()).then_some((first, if is_empty { first - 1 } else { last }))
    }

    /// Its targets of one family, with their numbers.
    pub(super) fn of(&self, home: &Home<'_>) -> impl Iterator<Item = (&'a Placed<'a>, &'a Drawn)> {
        let family = home.family;
        self.targets.iter().zip(self.drawn).filter(move |(placed, _)| placed.target.family == family)
    }

    fn answer(&self) -> Result<Ingested> {
        let Some(fact) = self.fact() else { return Err(no_answer()) };
        let numbers = self.targets.iter().zip(self.drawn).map(|(_, drawn)| EntryId::new(drawn.id));
        let (targets, outcome) = (numbers.collect::<Result<_, _>>()?, IngestOutcome::New);
        Ok(Ingested { event_id: Tsid::from_i64(fact.event_id), created_at: fact.now, targets, outcome })
    }
}
