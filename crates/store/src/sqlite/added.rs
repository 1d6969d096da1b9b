//! Adding entries and jobs to facts that are stored, each under a key.

use rusqlite::params;

use crate::error::Result;
use crate::failpoint::ingest_failpoint;
use crate::sqlite::engine::tx::{Tx, entry_id, moment};
use crate::sqlite::groups::promote_by_rank;
use crate::sqlite::ingest::{Ingesting, Origin, write_entry};
use crate::values::{AddTarget, AddedTarget, Batch, Family};

/// Adds targets in one transaction.
pub(super) fn add_targets(tx: &mut Tx<'_>, items: &[AddTarget]) -> Result<Batch<AddedTarget>> {
    let first = tx.number(&tx.sql().publish.next_entry_id)?;
    let mut batch = Ingesting::new(tx, first);
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        answers.push(batch.add(item)?);
    }
    batch.save_next(first)?;
    Ok(answers)
}

impl Ingesting<'_, '_> {
    /// Answers a repeat, or makes the target. The outer error fails the batch.
    fn add(&mut self, item: &AddTarget) -> Result<Result<AddedTarget>> {
        let ingest = item.as_ingest();
        if let Err(error) = ingest.check(self.tx.shared.options.payload_limit) {
            return Ok(Err(error));
        }
        let (event, hash) = (item.fact.to_i64(), item.hash());
        if !self.tx.row(&self.tx.sql().added.takes_targets, [event])?.is_some_and(|takes| takes.0) {
            return Ok(Err(item.no_fact()));
        }
        if let Some(known) = self.tx.row(&self.tx.sql().added.find, (event, &hash))? {
            let (id, made_at) = (entry_id(known.entry_id)?, moment(known.made_at)?);
            return Ok(Ok(AddedTarget { id, made_at, is_new: false }));
        }
        let planned = match self.plan(&ingest)? {
            Ok(planned) => planned,
            Err(refused) => return Ok(Err(refused)),
        };
        let (number, now) = (self.next, self.tx.now);
        self.next += self.tx.shared.options.ids.step;
        self.tx.execute(&self.tx.sql().added.put, params![event, hash, number, now])?;
        ingest_failpoint("keys");
        for planned in planned {
            let (family, queue) = planned.queue;
            let tags = if family == Family::Entries { &item.tags[..] } else { &[] };
            let origin = Origin { event_id: item.fact, tags, is_added: true };
            self.tx.in_family(family, |tx| {
                write_entry(tx, number, &origin, (&item.target, queue, planned.lane))?;
                ingest_failpoint("targets");
                if let Some(group) = item.target.group.as_deref() {
                    let queue_id = tx.known.queues[queue].id;
                    promote_by_rank(tx, queue_id, group)?;
                }
                Ok(())
            })?;
        }
        ingest_failpoint("promoted");
        Ok(Ok(AddedTarget { id: entry_id(number)?, made_at: moment(now)?, is_new: true }))
    }
}
