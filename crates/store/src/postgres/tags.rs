//! Tags: keeps where tagged entries wait in step with the entries themselves, and claims by tag. Entries without tags are
//! never looked at here.

use std::collections::BTreeSet;
use std::time::Instant;

use tidegate_core::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Inner;
use super::catalog::Queue;
use super::connection::Tx;
use super::errors::Fault;
use super::items::micros;
use super::tag_marks::TagMarks;
use crate::store::{Claim, Claimed};

/// The bits of `flags`.
const TAGGED: i16 = 1;
const AUDITED: i16 = 2;

/// Whether an entry has tags.
pub(super) fn is_tagged(flags: Option<i16>) -> bool {
    flags.is_some_and(|flags| flags & TAGGED != 0)
}

/// Whether the audit knows of a claim of an entry.
pub(super) fn is_audited(flags: Option<i16>) -> bool {
    flags.is_some_and(|flags| flags & AUDITED != 0)
}

/// The entries among rows that have tags: `id` and `flags` are columns.
pub(super) fn tagged(rows: &[Row], id: usize, flags: usize) -> Vec<i64> {
    rows.iter().filter(|row| is_tagged(row.get(flags))).map(|row| row.get(id)).collect()
}

impl Inner {
    /// The tags of live entries follow them to where they wait now.
    pub(super) async fn follow_tags(&self, tx: &Tx, ids: &[i64]) -> Result<(), Fault> {
        if !ids.is_empty() {
            tx.execute(&self.sql.work.follow, &[&ids]).await?;
        }
        Ok(())
    }

    /// Entries that are live again, or have another fact, get their tags.
    pub(super) async fn put_tags(&self, tx: &Tx, ids: &[i64]) -> Result<(), Fault> {
        if !ids.is_empty() {
            tx.execute(&self.sql.work.put_tags, &[&ids]).await?;
        }
        Ok(())
    }

    /// The tags of entries that ended go to the log. Rows are what the finalise statements answer.
    pub(super) async fn end_tags(&self, tx: &Tx, rows: &[Row]) -> Result<(), Fault> {
        let Some(ended) = Ended::new(rows) else { return Ok(()) };
        tx.execute(&self.sql.work.end_tags, &ended.params()).await?;
        Ok(())
    }

    /// Claimed entries stand among those of their tags by the end of their lease.
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
            tx.execute(&self.sql.work.lease_tags, &[&tags, &ids, &ranks]).await?;
        }
        Ok(())
    }

    /// Runs the claim statement for tags.
    pub(super) async fn lease_tagged(
        &self,
        tx: &Tx,
        queue: &Queue,
        claim: &Claim,
        paths: &TagPaths<'_>,
        max: i64,
        widen: i64,
    ) -> Result<Vec<Row>, Fault> {
        let (now, lease, offers): (Option<Timestamp>, i64, i64) = (self.now(), micros(claim.lease), max * widen);
        let sql = &self.sql.work;
        let statement = if claim.audit { &sql.claim_tagged_audited } else { &sql.claim_tagged };
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
        tx.query(statement, &params).await
    }
}

/// Where a claim by tag looks: each tag in each priority, from its mark on.
#[derive(Debug)]
pub(super) struct TagPaths<'a> {
    queue: i32,
    began: Instant,
    tags: Vec<&'a str>,
    priorities: Vec<i16>,
    marks: Vec<i64>,
    /// Only with all types is everything taken that comes first, which is what moves a mark.
    marked: bool,
}

impl<'a> TagPaths<'a> {
    /// The paths of a claim, if it is one by tag.
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

    /// Whether a path started above the bottom that may be looked at from there now.
    pub(super) fn may_look(&self, marks: &TagMarks) -> bool {
        let paths = self.tags.iter().zip(&self.priorities).zip(&self.marks);
        paths
            .filter(|(_, mark)| **mark > 0)
            .any(|((tag, priority), _)| marks.may_look(self.queue, tag, *priority, self.began))
    }

    /// Takes in what a claim got: entries come first by priority, then by number, so all before them were taken too.
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

/// The arrays of the statement that moves tags to the log.
pub(super) struct Ended {
    ids: Vec<i64>,
    events: Vec<i64>,
    ends: Vec<i16>,
    queues: Vec<i32>,
}

impl Ended {
    /// The tagged entries of what a finalise statement answered, if there are any.
    pub(super) fn new(rows: &[Row]) -> Option<Self> {
        let tagged: Vec<&Row> = rows.iter().filter(|row| is_tagged(row.get(3))).collect();
        (!tagged.is_empty()).then(|| Self {
            ids: tagged.iter().map(|row| row.get(0)).collect(),
            events: tagged.iter().map(|row| row.get(4)).collect(),
            ends: tagged.iter().map(|row| row.get(5)).collect(),
            queues: tagged.iter().map(|row| row.get(1)).collect(),
        })
    }

    pub(super) fn params(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.ids, &self.events, &self.ends, &self.queues]
    }
}
