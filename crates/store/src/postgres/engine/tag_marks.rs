//! Low-water marks of tags: where a claim's scan of a tag's ready entries starts, so that dead rows that vacuum cannot
//! remove yet are not read again and again. Like the marks of lanes, a mark is a hint and may be too high for a moment:
//! regularly, and when it found too little, a claim scans from the bottom. Pure bookkeeping, without IO.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a mark trails what was claimed: a transaction that commits within this time of drawing an id is never
/// passed.
const TRAIL: Duration = Duration::from_millis(100);
/// How often a claim scans from the bottom.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// After a scan from the bottom that took t, pause for 20t: such scans use at most 5 % of the time.
const DUTY: u32 = 20;
/// A scan from the bottom that takes less than this needs no pause.
const CHEAP: Duration = Duration::from_millis(5);
/// Most marks that are kept. Beyond that all are dropped, which costs one scan from the bottom each.
const MAX_MARKS: usize = 10_000;

/// Queue, tag and priority.
type Key = (i32, Box<str>, i16);

/// The marks of all tags that this process claimed by.
#[derive(Debug, Default)]
pub(in crate::postgres) struct TagMarks(Mutex<HashMap<Key, TagMark>>);

#[derive(Debug)]
struct TagMark {
    /// First number to read; 0 is the bottom.
    now: i64,
    /// The mark to come and when it was seen; replaces `now` once it is [`TRAIL`] old.
    next: Option<(Instant, i64)>,
    /// When a claim last scanned from the bottom.
    looked: Instant,
    /// How long that took.
    took: Duration,
}

impl TagMarks {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, TagMark>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the scan of a tag starts; 0 when it is time to scan from the bottom.
    pub(in crate::postgres) fn of(&self, queue: i32, tag: &str, priority: i16, at: Instant) -> i64 {
        let mut marks = self.lock();
        let Some(mark) = marks.get_mut(&(queue, tag.into(), priority)) else { return 0 };
        if let Some((since, next)) = mark.next
            && at.duration_since(since) >= TRAIL
        {
            (mark.now, mark.next) = (next, None);
        }
        if at.duration_since(mark.looked) >= LOOK_EVERY && mark.may_look(at) { 0 } else { mark.now }
    }

    /// Whether a claim that found too little may scan from the bottom.
    pub(in crate::postgres) fn may_look(&self, queue: i32, tag: &str, priority: i16, at: Instant) -> bool {
        self.lock().get(&(queue, tag.into(), priority)).is_none_or(|mark| mark.may_look(at))
    }

    /// Records that everything of a tag up to an entry was claimed, or is being claimed by others.
    pub(in crate::postgres) fn claimed(&self, queue: i32, tag: &str, priority: i16, upto: i64, at: Instant) {
        let mut marks = self.lock();
        if marks.len() >= MAX_MARKS {
            marks.clear();
        }
        let mark = marks.entry((queue, tag.into(), priority)).or_insert_with(|| TagMark {
            now: 0,
            next: None,
            looked: at,
            took: Duration::ZERO,
        });
        if mark.next.is_none() && upto >= mark.now {
            mark.next = Some((at, upto + 1));
        }
    }

    /// Records a scan from the bottom: how long it took, and the first entry it found. A mark above that entry was too
    /// high and is reset.
    pub(in crate::postgres) fn looked(
        &self,
        queue: i32,
        tag: &str,
        priority: i16,
        began: Instant,
        at: Instant,
        first: Option<i64>,
    ) {
        let mut marks = self.lock();
        if let Some(mark) = marks.get_mut(&(queue, tag.into(), priority)) {
            (mark.looked, mark.took) = (at, at.duration_since(began));
            if first.is_some_and(|first| first < mark.now) {
                (mark.now, mark.next) = (0, None);
            }
        }
    }

    /// Lowers all marks to this entry: it and later ones may be ready again.
    pub(in crate::postgres) fn lower(&self, id: i64) {
        for mark in self.lock().values_mut() {
            mark.now = mark.now.min(id);
            mark.next = None;
        }
    }
}

impl TagMark {
    fn may_look(&self, at: Instant) -> bool {
        self.took < CHEAP || at.duration_since(self.looked) >= self.took * DUTY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_trails_what_was_claimed() {
        let (marks, start) = (TagMarks::default(), Instant::now());
        assert_eq!(marks.of(1, "a", 0, start), 0);
        marks.claimed(1, "a", 0, 41, start);
        assert_eq!(marks.of(1, "a", 0, start + TRAIL / 2), 0);
        assert_eq!(marks.of(1, "a", 0, start + TRAIL), 42);
        assert_eq!(marks.of(1, "b", 0, start + TRAIL), 0, "another tag");
        assert_eq!(marks.of(1, "a", 1, start + TRAIL), 0, "another priority");
    }

    #[test]
    fn now_and_then_a_claim_looks_from_the_bottom() {
        let (marks, start) = (TagMarks::default(), Instant::now());
        marks.claimed(1, "a", 0, 41, start);
        assert_eq!(marks.of(1, "a", 0, start + TRAIL), 42);
        let later = start + LOOK_EVERY;
        assert_eq!(marks.of(1, "a", 0, later), 0);
        marks.looked(1, "a", 0, later, later + Duration::from_millis(100), None);
        assert_eq!(marks.of(1, "a", 0, later + LOOK_EVERY * 2), 42, "a slow scan is followed by a longer pause");
        assert_eq!(marks.of(1, "a", 0, later + Duration::from_millis(2_200)), 0);
    }

    #[test]
    fn what_is_ready_again_lowers_the_mark() {
        let (marks, start) = (TagMarks::default(), Instant::now());
        marks.claimed(1, "a", 0, 41, start);
        assert_eq!(marks.of(1, "a", 0, start + TRAIL), 42);
        marks.lower(7);
        assert_eq!(marks.of(1, "a", 0, start + TRAIL), 7);
        marks.looked(1, "a", 0, start, start + TRAIL, Some(3));
        assert_eq!(marks.of(1, "a", 0, start + TRAIL), 0, "a late commit was found below");
    }
}
