//! Tags: keeps the rows of `event_tags` in step with their entries, and claims by tag. Never touches entries without
//! tags.

use std::collections::BTreeSet;
use std::time::Instant;

use tidegate_core::{QueueName, QueueState, Timestamp};
use tokio_postgres::types::ToSql;

use crate::error::Result;
use crate::postgres::engine::catalogue::Queue;
use crate::postgres::engine::connection::Tx;
use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::store::Inner;
use crate::postgres::engine::tag_marks::TagMarks;
use crate::postgres::flags::is_tagged;
use crate::postgres::items::micros;
use crate::postgres::statements::claim::ClaimRow;
use crate::postgres::statements::end::EndedRow;
use crate::sql::FromRow;
use crate::values::{Claim, Claimed, Family};

impl Inner {
    /// Updates the tag rows of live entries to where the entries wait now.
    pub(super) async fn follow_tags(&self, tx: &Tx, ids: &[i64]) -> Result<(), Fault> {
        if !ids.is_empty() {
            tx.execute(&self.sql.tags.follow, &[&ids]).await?;
        }
        Ok(())
    }

    /// Adds the tag rows of entries that are live again or have another fact.
    pub(super) async fn put_tags(&self, tx: &Tx, ids: &[i64]) -> Result<(), Fault> {
        if !ids.is_empty() {
            tx.execute(&self.sql.tags.put, &[&ids]).await?;
        }
        Ok(())
    }

    /// Moves the tags of ended entries to the log. `rows` is what the finalize statements return.
    pub(super) async fn end_tags(&self, tx: &Tx, rows: &[EndedRow]) -> Result<(), Fault> {
        let Some(ended) = Ended::new(rows) else { return Ok(()) };
        tx.execute(&self.sql.tags.end, &ended.params()).await?;
        Ok(())
    }

    /// Marks the tag rows of claimed entries as leased, ranked by the end of the lease.
    pub(super) async fn lease_tags(&self, tx: &Tx, claimed: &[(i16, Claimed)]) -> Result<(), Fault> {
        let (mut tags, mut ids, mut ranks): (Vec<&str>, Vec<i64>, Vec<i64>) = Default::default();
        for (_, entry) in claimed {
            for tag in &entry.fact.tags {
                tags.push(tag);
                ids.push(entry.id.get());
                ranks.push(entry.lease_until.as_microsecond());
            }
        }
        if !ids.is_empty() {
            tx.execute(&self.sql.tags.lease, &[&tags, &ids, &ranks]).await?;
        }
        Ok(())
    }

    /// Of these tags, those under which something can be claimed now. Jobs have no tags.
    pub(super) async fn claimable(&self, queue: &QueueName, tags: &[String]) -> Result<Vec<String>> {
        let queue_id = self.queue(queue).await?.id;
        if self.family == Family::Jobs {
            return Ok(Vec::new());
        }
        let (now, paused) = (self.now(), QueueState::Paused.code());
        let sql = &self.sql.tags.claimable;
        let found = self.read(|tx| async move { tx.rows(sql, &[&now, &queue_id, &tags, &paused]).await }).await?;
        Ok(found.into_iter().map(|tag| tag.0).collect())
    }

    /// Runs the claim statement for tags. Offers `widen` times `max` entries, of which `max` are taken.
    pub(super) async fn lease_tagged(
        &self,
        tx: &Tx,
        queue: &Queue,
        claim: &Claim,
        paths: &TagPaths<'_>,
        max: i64,
        widen: i64,
    ) -> Result<Vec<ClaimRow>, Fault> {
        let (now, lease, offers): (Option<Timestamp>, i64, i64) = (self.now(), micros(claim.lease), max * widen);
        let sql = &self.sql.tags;
        let statement = if claim.audit { &sql.claim_audited } else { &sql.claim };
        let params: [&(dyn ToSql + Sync); 10] = [
            &now,
            &paths.tags,
            &paths.priorities,
            &queue.id,
            &claim.types,
            &offers,
            &max,
            &lease,
            &claim.worker,
            &paths.marks,
        ];
        let rows = tx.query(statement, &params).await?;
        Ok(rows.iter().map(|row| ClaimRow::read(row, 0)).collect::<crate::Result<_>>()?)
    }
}

/// What a claim by tag scans: each tag in each priority, from its mark on.
#[derive(Debug)]
pub(super) struct TagPaths<'a> {
    queue: i32,
    began: Instant,
    tags: Vec<&'a str>,
    priorities: Vec<i16>,
    marks: Vec<i64>,
    /// Whether marks are used: only a claim of all types takes everything that comes first, so only it may move a mark.
    marked: bool,
}

impl<'a> TagPaths<'a> {
    /// The paths of a claim; `None` if it does not claim by tag.
    pub(super) fn new(marks: &TagMarks, queue: &Queue, claim: &'a Claim, from_bottom: bool) -> Option<Self> {
        let wanted: BTreeSet<&str> = claim.tags.as_ref()?.iter().map(String::as_str).collect();
        let priorities: BTreeSet<i16> = queue.lanes.iter().map(|lane| lane.priority).collect();
        let (began, marked) = (Instant::now(), claim.types.is_none());
        let mut paths =
            Self { queue: queue.id, began, tags: Vec::new(), priorities: Vec::new(), marks: Vec::new(), marked };
        for tag in wanted {
            for priority in &priorities {
                let mark = if from_bottom || !marked { 0 } else { marks.of(queue.id, tag, *priority, began) };
                paths.tags.push(tag);
                paths.priorities.push(*priority);
                paths.marks.push(mark);
            }
        }
        Some(paths)
    }

    /// Whether a path started above the bottom and may be scanned from the bottom now.
    pub(super) fn may_look(&self, marks: &TagMarks) -> bool {
        let paths = self.tags.iter().zip(&self.priorities).zip(&self.marks);
        paths
            .filter(|(_, mark)| **mark > 0)
            .any(|((tag, priority), _)| marks.may_look(self.queue, tag, *priority, self.began))
    }

    /// Updates the marks by what a claim got. Entries come by priority and number, so everything before them was taken
    /// too.
    pub(super) fn learn(&self, marks: &TagMarks, claimed: &[(i16, Claimed)]) {
        if !self.marked {
            return;
        }
        let at = Instant::now();
        for ((tag, priority), mark) in self.tags.iter().zip(&self.priorities).zip(&self.marks) {
            let of = claimed.iter().filter(|(of, _)| of == priority).map(|(_, entry)| entry.id.get());
            if *mark == 0 {
                marks.looked(self.queue, tag, *priority, self.began, at, of.clone().min());
            }
            if let Some(last) = of.max() {
                marks.claimed(self.queue, tag, *priority, last, at);
            }
        }
    }
}

/// The parameters of the statement that moves tags to the log, as arrays.
pub(super) struct Ended {
    ids: Vec<i64>,
    events: Vec<i64>,
    ends: Vec<i16>,
    queues: Vec<i32>,
}

impl Ended {
    /// The tagged entries among the rows of a finalize statement; `None` if there are none.
    pub(super) fn new(rows: &[EndedRow]) -> Option<Self> {
        let tagged: Vec<&EndedRow> = rows.iter().filter(|row| is_tagged(row.flags)).collect();
        (!tagged.is_empty()).then(|| Self {
            ids: tagged.iter().map(|row| row.id).collect(),
            events: tagged.iter().map(|row| row.event_id).collect(),
            ends: tagged.iter().map(|row| row.status).collect(),
            queues: tagged.iter().map(|row| row.queue_id).collect(),
        })
    }

    pub(super) fn params(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.ids, &self.events, &self.ends, &self.queues]
    }
}
