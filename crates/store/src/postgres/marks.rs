//! Tends the low-water marks: raises those of lanes that are claimed from, and looks for claimable rows below them. What
//! a mark is, and when to look, is decided by `engine::marks`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tidegate_core::Timestamp;
use tokio_postgres::types::ToSql;

use crate::postgres::engine::errors::Fault;
use crate::postgres::engine::marks::{Advance, First, Mark, Marks};
use crate::postgres::engine::store::Inner;
use crate::sql::Only;

impl Inner {
    /// Advances the marks and probes below them when that is due, in a task that the caller does not wait for.
    pub(super) fn tend_marks(&self) {
        let at = Instant::now();
        let advance = self.marks.should_advance(at);
        let probe = self.marks.should_probe(at);
        if advance.is_none() && !probe {
            return;
        }
        let Some(inner) = self.me.upgrade() else { return };
        let mut looks = Looks { inner, advance, probe };
        tokio::spawn(async move {
            if let Some(advance) = looks.advance
                && let Err(error) = looks.inner.advance_marks(advance).await
            {
                tracing::debug!(error = %error.into_error(), "could not advance the low-water marks");
            }
            looks.end_advance();
            if looks.probe
                && let Err(error) = looks.inner.probe_below().await
            {
                tracing::debug!(error = %error.into_error(), "could not probe below the low-water marks");
            }
        });
    }

    /// Advances the marks of lanes that were claimed from lately; those of other lanes would not move.
    async fn advance_marks(&self, advance: Advance) -> Result<(), Fault> {
        let began = Instant::now();
        let lanes = self.marks.lately_claimed(began);
        if lanes.is_empty() {
            return Ok(());
        }
        let marks = self.marks.of(lanes.iter().copied(), began, self.now());
        let now = self.database_time().await?;
        let look = match advance {
            Advance::ToFirst => FirstRow::Any,
            Advance::PastLeases => FirstRow::Unleased { now, passing: Some(Marks::lasting(now)) },
        };
        let seen = Instant::now();
        let first = self.first_rows(&lanes, (&marks, &vec![Mark::TOP; lanes.len()]), look).await?;
        if advance == Advance::PastLeases {
            self.marks.passed(seen, Instant::now());
        }
        let from: HashMap<i32, Mark> = lanes.iter().copied().zip(marks.iter().copied()).collect();
        for (lane, first) in first {
            let from = from.get(&lane).copied().unwrap_or(Mark::BOTTOM);
            self.marks.seen(lane, from, first, advance, (now, seen));
        }
        Ok(())
    }

    /// Looks for claimable rows below the marks, and lowers the marks to those it finds.
    pub(super) async fn probe_below(&self) -> Result<(), Fault> {
        let began = Instant::now();
        let (lanes, marks): (Vec<i32>, Vec<Mark>) = self.marks.raised(began).into_iter().unzip();
        if lanes.is_empty() {
            return Ok(());
        }
        let now = self.database_time().await?;
        let look = FirstRow::Unleased { now, passing: None };
        let rows = self.first_rows(&lanes, (&vec![Mark::BOTTOM; lanes.len()], &marks), look).await?;
        for (lane, first) in rows {
            self.marks.found_below(lane, first.id, first.due);
        }
        self.marks.probed(&lanes, began, Instant::now());
        Ok(())
    }

    /// The first row of each lane at or above one mark and below another.
    async fn first_rows(
        &self,
        lanes: &[i32],
        (from, below): (&[Mark], &[Mark]),
        look: FirstRow,
    ) -> Result<Vec<(i32, First)>, Fault> {
        let split =
            |marks: &[Mark]| -> (Vec<i64>, Vec<Timestamp>) { marks.iter().map(|mark| (mark.id, mark.due)).unzip() };
        let ((ids, dues), (ids_below, dues_below)) = (split(from), split(below));
        let (now, passing) = match look {
            FirstRow::Any => (None, None),
            FirstRow::Unleased { now, passing } => (Some(now), passing),
        };
        let params: [&(dyn ToSql + Sync); 7] = [&lanes, &ids, &dues, &now, &passing, &ids_below, &dues_below];
        let rows = self.shared.database.reader().await?.rows(&self.sql.claim.first_rows, &params).await?;
        Ok(rows.into_iter().map(Into::into).collect())
    }

    /// The database's clock, or the moment that tests set.
    pub(super) async fn database_time(&self) -> Result<Timestamp, Fault> {
        let clock = self.shared.database.reader().await?.row(&self.sql.claim.clock, &[&self.now()]).await?;
        Ok(clock.map_or(Timestamp::UNIX_EPOCH, |Only(now)| now))
    }
}

/// The scans for the low-water marks that this task has under way. Dropping it ends them, also when the runtime shuts down
/// in the middle of one.
struct Looks {
    inner: Arc<Inner>,
    advance: Option<Advance>,
    probe: bool,
}

impl Looks {
    fn end_advance(&mut self) {
        if self.advance.take().is_some() {
            self.inner.marks.advanced(Instant::now());
        }
    }
}

impl Drop for Looks {
    fn drop(&mut self) {
        self.end_advance();
        if self.probe {
            self.inner.marks.probe_ended();
        }
    }
}

/// Which row counts as the first of a lane.
#[derive(Debug, Clone, Copy)]
enum FirstRow {
    /// The first one, under a lease or not.
    Any,
    /// The first that is under no lease at `now`. With `passing`, leases that began after that moment are not passed, and
    /// the first and last entries and the first end of the passed ones are answered too.
    Unleased { now: Timestamp, passing: Option<Timestamp> },
}
