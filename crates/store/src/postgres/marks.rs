//! Low-water marks: where a claim's scan of a lane starts, so that rows which are gone but which vacuum cannot remove yet
//! are not read again and again. Pure bookkeeping; a mark is a hint that is allowed to be too high for a moment, because
//! every claim that finds too little, and a regular probe, look from the bottom again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::Timestamp;

/// How long a mark trails what was seen: transactions that drew an id and commit within it are never passed.
const TRAIL: Duration = Duration::from_millis(100);
/// How often the marks are moved up.
const ADVANCE_EVERY: Duration = Duration::from_millis(50);
/// How often a probe looks from the bottom.
const PROBE_EVERY: Duration = Duration::from_millis(250);
/// Looking from the bottom takes at most one part in this many of the time.
const DUTY: u32 = 20;
/// A look from the bottom that takes less than this is always allowed.
const CHEAP: Duration = Duration::from_millis(5);

/// Marks are moved up for this long after the last claim from a lane.
const LATELY: Duration = Duration::from_secs(10);
/// Marks of lanes that nobody claimed from for this long are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// Where a lane's two paths start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) id: i64,
    pub(super) due: Timestamp,
}

impl Mark {
    /// Before everything.
    pub(super) const BOTTOM: Self = Self { id: 0, due: Timestamp::UNIX_EPOCH };
}

/// The marks of all lanes.
#[derive(Debug, Default)]
pub(super) struct Marks(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lanes: HashMap<i32, LaneMarks>,
    advanced: Option<Instant>,
    looked: Option<Look>,
}

#[derive(Debug)]
struct LaneMarks {
    now: Mark,
    /// Seen at that moment; taken over once it is old enough.
    next: Option<(Instant, Mark)>,
    /// The highest id claimed here, where the path starts once it is empty.
    claimed: i64,
    /// When something was last claimed here.
    claimed_at: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    ended: Instant,
    took: Duration,
}

impl Marks {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the scan of a lane starts.
    pub(super) fn of(&self, lane: i32, at: Instant) -> Mark {
        let mut state = self.lock();
        let Some(marks) = state.lanes.get_mut(&lane) else { return Mark::BOTTOM };
        marks.ripen(at);
        marks.now
    }

    /// Notes what was claimed.
    pub(super) fn claimed(&self, ids: impl IntoIterator<Item = (i32, i64)>) {
        let mut state = self.lock();
        let now = Instant::now();
        for (lane, id) in ids {
            let marks = state.lanes.entry(lane).or_insert_with(LaneMarks::new);
            marks.claimed = marks.claimed.max(id);
            marks.claimed_at = now;
        }
    }

    /// The lanes that something was claimed from lately. Those of long ago are forgotten: their scans start at the bottom
    /// again, where vacuum has been meanwhile.
    pub(super) fn lately_claimed(&self, at: Instant) -> Vec<i32> {
        let mut state = self.lock();
        state.lanes.retain(|_, marks| at.duration_since(marks.claimed_at) < FORGOTTEN_AFTER);
        let lately = state.lanes.iter().filter(|(_, marks)| at.duration_since(marks.claimed_at) < LATELY);
        lately.map(|(lane, _)| *lane).collect()
    }

    /// Whether it is time to look where the first rows are.
    pub(super) fn should_advance(&self, at: Instant) -> bool {
        let mut state = self.lock();
        let due = state.advanced.is_none_or(|advanced| at.duration_since(advanced) >= ADVANCE_EVERY);
        if due {
            state.advanced = Some(at);
        }
        due
    }

    /// Takes in where a lane's first rows were seen, scanning from its mark. `None` means an empty path.
    pub(super) fn seen(
        &self,
        lane: i32,
        first_id: Option<i64>,
        first_due: Option<Timestamp>,
        now: Timestamp,
        at: Instant,
    ) {
        let mut state = self.lock();
        let marks = state.lanes.entry(lane).or_insert_with(LaneMarks::new);
        if marks.next.is_none() {
            let id = first_id.unwrap_or(marks.claimed + 1);
            // A row due later than now may still be overtaken by one that becomes due earlier.
            let due = first_due.map_or(now, |due| due.min(now));
            marks.next = Some((at, Mark { id, due }));
        }
    }

    /// Whether a probe from the bottom is due, by time and by what it costs.
    pub(super) fn should_probe(&self, at: Instant) -> bool {
        let state = self.lock();
        let raised = state.lanes.values().any(|marks| marks.now != Mark::BOTTOM);
        raised && state.looked.is_none_or(|look| at.duration_since(look.ended) >= PROBE_EVERY) && may_look(&state, at)
    }

    /// Whether a claim that found too little may look from the bottom.
    pub(super) fn may_look(&self, at: Instant) -> bool {
        let state = self.lock();
        state.lanes.values().any(|marks| marks.now != Mark::BOTTOM) && may_look(&state, at)
    }

    /// Notes what a look from the bottom cost.
    pub(super) fn looked(&self, began: Instant, ended: Instant) {
        self.lock().looked = Some(Look { ended, took: ended.duration_since(began) });
    }

    /// Lowers a lane's mark to rows that were found below it.
    pub(super) fn found_below(&self, lane: i32, first_id: Option<i64>, first_due: Option<Timestamp>) {
        let mut state = self.lock();
        let Some(marks) = state.lanes.get_mut(&lane) else { return };
        let lowest = Mark { id: first_id.unwrap_or(i64::MAX), due: first_due.unwrap_or(Timestamp::MAX) };
        for mark in std::iter::once(&mut marks.now).chain(marks.next.as_mut().map(|(_, mark)| mark)) {
            mark.id = mark.id.min(lowest.id);
            mark.due = mark.due.min(lowest.due);
        }
    }

    /// The lanes that have a raised mark.
    pub(super) fn raised(&self) -> Vec<i32> {
        let state = self.lock();
        state.lanes.iter().filter(|(_, marks)| marks.now != Mark::BOTTOM).map(|(lane, _)| *lane).collect()
    }
}

fn may_look(state: &State, at: Instant) -> bool {
    state.looked.is_none_or(|look| look.took < CHEAP || at.duration_since(look.ended) >= look.took * DUTY)
}

impl LaneMarks {
    fn new() -> Self {
        Self { now: Mark::BOTTOM, next: None, claimed: 0, claimed_at: Instant::now() }
    }

    fn ripen(&mut self, at: Instant) {
        if let Some((seen, mark)) = self.next
            && at.duration_since(seen) >= TRAIL
        {
            self.now = mark;
            self.next = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_mark_trails_what_was_seen() {
        let marks = Marks::default();
        let start = Instant::now();
        marks.seen(1, Some(500), None, due(10), start);
        assert_eq!(marks.of(1, start + TRAIL / 2), Mark::BOTTOM);
        assert_eq!(marks.of(1, start + TRAIL), Mark { id: 500, due: due(10) });
    }

    #[test]
    fn an_empty_path_starts_after_the_last_claim() {
        let marks = Marks::default();
        let start = Instant::now();
        marks.claimed([(1, 41), (1, 40)]);
        marks.seen(1, None, Some(due(99)), due(10), start);
        assert_eq!(marks.of(1, start + TRAIL), Mark { id: 42, due: due(10) });
    }

    #[test]
    fn rows_below_pull_the_mark_down_also_one_that_is_still_ripening() {
        let marks = Marks::default();
        let start = Instant::now();
        marks.seen(1, Some(500), None, due(10), start);
        marks.found_below(1, Some(7), None);
        assert_eq!(marks.of(1, start + TRAIL).id, 7);
    }

    #[test]
    fn looks_from_the_bottom_keep_to_their_share_of_time() {
        let marks = Marks::default();
        let start = Instant::now();
        marks.seen(1, Some(500), None, due(10), start);
        let later = start + TRAIL;
        marks.of(1, later);
        assert!(marks.may_look(later));
        marks.looked(later, later + Duration::from_secs(1));
        assert!(!marks.may_look(later + Duration::from_secs(11)));
        assert!(marks.may_look(later + Duration::from_secs(21)));
        marks.looked(later, later + CHEAP / 2);
        assert!(marks.may_look(later + CHEAP), "a cheap look is always allowed");
        assert!(!marks.should_probe(later + CHEAP));
        assert!(marks.should_probe(later + PROBE_EVERY * 2));
    }
}
