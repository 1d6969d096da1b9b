//! Adding entries and jobs to facts that are stored, each under a key. Lock order as for ingest: depth limits, facts, keys,
//! groups. A fact that is locked here stays; retention locks a fact before it looks whether anything refers to it.

use std::collections::{HashMap, HashSet};

use futures_util::future::{join, join3};
use tidegate_core::{EntryId, Timestamp};

use crate::error::{Error, ErrorKind, Result};
use crate::failpoint::ingest_failpoint;
use crate::postgres::engine::connection::{Begin, Prelude, Tx};
use crate::postgres::engine::errors::{Fault, both};
use crate::postgres::engine::store::{Inner, MAX_CATALOG_READS, Opened, accept_catalog};
use crate::postgres::ingest_plan::{Home, Planned, Room, homes, no_answer, plan, reload, room, take_room};
use crate::postgres::ingest_rows::{Columns, Origin};
use crate::postgres::statements::deduplication::Drawn;
use crate::sql::Only;
use crate::values::{AddTarget, AddedTarget, Batch, Ingest};

/// The targets that are known, by their facts and keys.
type Known = HashMap<(i64, String), AddedTarget>;

/// A target to be made, under the number that was drawn for it.
struct Numbered<'a> {
    item: &'a AddTarget,
    plan: &'a Planned<'a>,
    hash: &'a str,
    drawn: &'a Drawn,
}

impl Inner {
    /// Adds targets in one transaction, planned again while the catalogue changes.
    pub(super) async fn add_targets(&self, opened: &Opened, items: &[AddTarget]) -> Result<Batch<AddedTarget>> {
        let planned: Vec<Ingest> = items.iter().map(AddTarget::as_ingest).collect();
        let planned: Vec<&Ingest> = planned.iter().collect();
        for _ in 0..MAX_CATALOG_READS {
            let homes = homes(opened, &planned).await?;
            match self.add_once(&homes, &planned, items).await {
                Ok(answers) => return Ok(answers),
                Err(Fault::StaleCatalog) => reload(&homes).await?,
                Err(fault) => return Err(fault.into_error()),
            }
        }
        Err(Fault::StaleCatalog.into_error())
    }

    async fn add_once(
        &self,
        homes: &[Home<'_>],
        planned: &[&Ingest],
        items: &[AddTarget],
    ) -> Result<Batch<AddedTarget>, Fault> {
        let plans = &plan(self, homes, planned).await?;
        let hashes: &Vec<String> = &items.iter().map(AddTarget::hash).collect();
        let answers = self
            .transact(
                Begin::Write,
                |prelude: Prelude| homes.iter().try_for_each(|home| accept_catalog(&home.catalog, prelude)),
                |tx| async move { self.write_added(&tx, homes, plans, (items, hashes)).await },
                // It took place if its first new target is known under its key.
                |tx, answers: &Batch<AddedTarget>| {
                    let is_new = |answer: &&Result<AddedTarget>| answer.as_ref().is_ok_and(|added| added.is_new);
                    let first = answers.iter().zip(items.iter().zip(hashes)).find(|(answer, _)| is_new(answer));
                    let first = first.and_then(|(answer, of)| Some((answer.as_ref().ok()?.id, of)));
                    async move {
                        let Some((id, (item, hash))) = first else { return Ok(true) };
                        let known = self.known_added(&tx, &[item.fact.to_i64()], &[hash]).await?;
                        Ok(known.values().any(|known| known.id == id))
                    }
                },
            )
            .await?;
        for home in homes {
            home.inner.announce(plans.iter().flat_map(|plan| plan.of(home)).map(|placed| placed.queue_id));
        }
        Ok(answers)
    }

    async fn write_added(
        &self,
        tx: &Tx,
        homes: &[Home<'_>],
        plans: &[Planned<'_>],
        (items, hashes): (&[AddTarget], &[String]),
    ) -> Result<Batch<AddedTarget>, Fault> {
        let mut room = room(tx, homes, plans).await?;
        let mut facts: Vec<i64> = items.iter().map(|item| item.fact.to_i64()).collect();
        let keys: Vec<&String> = hashes.iter().collect();
        let known = self.known_added(tx, &facts, &keys);
        let drawn = self.draw_ids(tx, items.len());
        let mut sorted = facts.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let params = [&sorted as _];
        let (known, drawn, kept) = join3(known, drawn, tx.rows(&self.sql.added.lock_facts, &params)).await;
        let (known, (drawn, kept)) = both(known, both(drawn, kept))?;
        let kept: HashSet<i64> = kept.into_iter().map(|Only(id)| id).collect();
        facts.clear();
        let (answers, numbered) = decide(homes, plans, (items, hashes), (known, &kept), &drawn, &mut room)?;
        ingest_failpoint("planned");
        if let Some(Drawn { now, .. }) = drawn.first().filter(|_| !numbered.is_empty()) {
            // Keys first: who waits for one has locked nothing but facts.
            let (taken, written) =
                join(self.note_added(tx, now, &numbered), write_rows(tx, homes, now, &numbered)).await;
            both(taken, written)?;
        }
        for home in homes {
            let placed = numbered.iter().flat_map(|one| one.plan.of(home));
            let groups = placed.filter_map(|placed| Some((placed.queue_id, placed.target.group.as_deref()?)));
            home.inner.promote(tx, groups).await?;
        }
        ingest_failpoint("promoted");
        Ok(answers)
    }

    /// What was added to facts under keys.
    async fn known_added(&self, tx: &Tx, facts: &[i64], keys: &[&String]) -> Result<Known, Fault> {
        let mut known = Known::new();
        for row in tx.rows(&self.sql.added.find, &[&facts, &keys]).await? {
            let at = (row.item - 1) as usize;
            let (Some(fact), Some(key)) = (facts.get(at), keys.get(at)) else { continue };
            let id = EntryId::new(row.entry_id).map_err(Error::from)?;
            known.insert((*fact, (*key).clone()), AddedTarget { id, made_at: row.made_at.into(), is_new: false });
        }
        Ok(known)
    }

    /// Takes the keys of new targets. The transaction has to run again if another one took a key meanwhile.
    async fn note_added(&self, tx: &Tx, now: &Timestamp, new: &[Numbered<'_>]) -> Result<(), Fault> {
        let mut rows: Vec<_> = new.iter().map(|one| (one.item.fact.to_i64(), one.hash, one.drawn.id)).collect();
        rows.sort_unstable();
        let facts: Vec<i64> = rows.iter().map(|row| row.0).collect();
        let keys: Vec<&str> = rows.iter().map(|row| row.1).collect();
        let numbers: Vec<i64> = rows.iter().map(|row| row.2).collect();
        if tx.execute(&self.sql.added.put, &[now, &facts, &keys, &numbers]).await? < rows.len() as u64 {
            let why = "another call added the same to an event; try again";
            return Err(Fault::Again(Error::new(ErrorKind::Busy, why)));
        }
        ingest_failpoint("keys");
        Ok(())
    }
}

/// Answers each item in order: one that is known, one that cannot be made with an error, and any other with its number, under
/// which it is to be written.
fn decide<'a>(
    homes: &[Home<'_>],
    plans: &'a [Planned<'a>],
    (items, hashes): (&'a [AddTarget], &'a [String]),
    (mut known, kept): (Known, &HashSet<i64>),
    drawn: &'a [Drawn],
    room: &mut Room,
) -> Result<(Batch<AddedTarget>, Vec<Numbered<'a>>), Fault> {
    let (mut answers, mut numbered) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
    for ((plan, drawn), (item, hash)) in plans.iter().zip(drawn).zip(items.iter().zip(hashes)) {
        let key = (item.fact.to_i64(), hash.clone());
        let refused = match &plan.targets {
            _ if !kept.contains(&key.0) => Some(item.no_fact()),
            Err(refused) => Some(refused.clone()),
            Ok(_) => None,
        };
        if let Some(refused) = refused {
            answers.push(Err(refused));
        } else if let Some(known) = known.get(&key) {
            answers.push(Ok(*known));
        } else if let Err(full) = take_room(homes, plan, room) {
            answers.push(Err(full));
        } else {
            let added =
                AddedTarget { id: EntryId::new(drawn.id).map_err(Error::from)?, made_at: drawn.now, is_new: true };
            known.insert(key, AddedTarget { is_new: false, ..added });
            answers.push(Ok(added));
            numbered.push(Numbered { item, plan, hash, drawn });
        }
    }
    match answers.len() < items.len() {
        true => Err(no_answer().into()),
        false => Ok((answers, numbered)),
    }
}

/// Writes targets, family by family.
async fn write_rows(tx: &Tx, homes: &[Home<'_>], now: &Timestamp, new: &[Numbered<'_>]) -> Result<(), Fault> {
    for home in homes {
        let mut columns = Columns::default();
        for one in new {
            let origin = Origin { event_id: Some(one.item.fact.to_i64()), fact: &one.plan.item.fact, is_added: true };
            one.plan.of(home).for_each(|placed| columns.add(placed, one.drawn.id, &origin));
        }
        columns.write(tx, home, now).await?;
    }
    ingest_failpoint("targets");
    Ok(())
}
