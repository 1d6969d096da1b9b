//! Low-water marks: where a claim's scan of a lane starts, so that rows which are gone but which vacuum cannot remove yet,
//! and rows under a lease, are not read again and again. Pure bookkeeping; a mark is a hint that is allowed to be too high
//! for a moment, because every claim that finds too little, and a regular probe, look from the bottom again. A mark passes
//! leases that have lasted for a while, and falls back to the first of them when one of them ends.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::Timestamp;

/// How long a mark trails what was seen: transactions that drew an id and commit within it are never passed.
const TRAIL: Duration = Duration::from_millis(100);
/// How often the marks are moved up.
const ADVANCE_EVERY: Duration = Duration::from_millis(50);
/// How often they are moved up past rows under a lease, which have to be read for it.
const PASS_EVERY: Duration = Duration::from_millis(250);
/// A lease that is younger than this is not passed: most end soon, and for each that was passed the mark falls in the end.
const LASTING: Duration = Duration::from_secs(1);
/// Looking past leases takes one part in this many of the time, as long as a look takes less than 50 ms: where leases end soon
/// it is in vain.
const PASS_DUTY: u32 = 100;
/// After this long it is tried again, whatever it took: it may have waited for something else. So looks that are really slow take
/// more than their part.
const PASS_AGAIN: Duration = Duration::from_secs(5);
/// How often a probe looks from the bottom.
const PROBE_EVERY: Duration = Duration::from_millis(250);
/// Looking from the bottom takes at most one part in this many of the time.
const DUTY: u32 = 20;
/// A look from the bottom that takes less than this is always allowed.
const CHEAP: Duration = Duration::from_millis(5);
/// What a look at a lane with little in it may take.
const CHEAP_LANE: Duration = Duration::from_micros(50);

/// Marks are moved up for this long after the last claim from a lane.
const LATELY: Duration = Duration::from_secs(10);
/// Lanes whose marks are moved up at once: those that most was claimed from.
const ADVANCE_AT_ONCE: usize = 64;
/// Where there are more, a lane that less was claimed from needs no mark: it is as cheap to read what is gone.
const WORTH_A_MARK: u64 = 64;
/// Lanes that one probe looks at.
const PROBE_AT_ONCE: usize = 256;
/// Marks of lanes that nobody claimed from for this long are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
/// A claim that steps from lane to lane may take this long, and this much more for each lane.
const STEPPED: Duration = Duration::from_millis(50);

/// Where a lane's two paths start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) id: i64,
    pub(super) due: Timestamp,
    /// What it passed that is under a lease.
    passed: Passed,
}

/// The leases that a mark passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Passed {
    /// The first entry of each path.
    id: i64,
    due: Timestamp,
    /// When the first of the leases ends, by the database's clock.
    until: Timestamp,
}

impl Passed {
    const NOTHING: Self = Self { id: i64::MAX, due: Timestamp::MAX, until: Timestamp::MAX };

    fn and(self, other: Self) -> Self {
        Self { id: self.id.min(other.id), due: self.due.min(other.due), until: self.until.min(other.until) }
    }
}

impl Mark {
    /// Behind everything.
    pub(super) const TOP: Self = Self { id: i64::MAX, due: Timestamp::MAX, passed: Passed::NOTHING };
    /// Before everything.
    pub(super) const BOTTOM: Self = Self { id: 0, due: Timestamp::UNIX_EPOCH, passed: Passed::NOTHING };
}

/// What a look at a lane from its mark on found.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct First {
    /// The first row of each path; none where it is empty.
    pub(super) id: Option<i64>,
    pub(super) due: Option<Timestamp>,
    /// Of the rows under a lease that were passed the last one, the first of each path, and when the first lease ends.
    pub(super) last_held: Option<i64>,
    pub(super) held: Option<i64>,
    pub(super) held_due: Option<Timestamp>,
    pub(super) until: Option<Timestamp>,
}

impl First {
    fn passed(&self) -> Passed {
        let (due, until) = (self.held_due.unwrap_or(Timestamp::MAX), self.until.unwrap_or(Timestamp::MAX));
        Passed { id: self.held.unwrap_or(i64::MAX), due, until }
    }
}

/// How to move marks up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advance {
    /// To the first row, leased or not.
    ToFirst,
    /// To the first that is under no lease, or only just.
    PastLeases,
}

/// The marks of all lanes.
#[derive(Debug, Default)]
pub(super) struct Marks(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lanes: HashMap<i32, LaneMarks>,
    /// Looks that are under way: one of each kind at a time, however long it takes.
    advancing: bool,
    probing: bool,
    advanced: Option<Instant>,
    passed: Option<Look>,
    looked: Option<Look>,
    /// A claim that stepped from lane to lane and took too long.
    stepped: Option<Look>,
    /// The database's clock as last read.
    clock: Option<(Instant, Timestamp)>,
}

#[derive(Debug)]
struct LaneMarks {
    now: Mark,
    /// Seen at that moment; taken over once it is old enough.
    next: Option<(Instant, Mark)>,
    /// The highest id claimed here, where the path starts once it is empty.
    claimed: i64,
    /// When something was last claimed here, and how much in all.
    claimed_at: Instant,
    count: u64,
    /// When a probe last looked here.
    probed: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    ended: Instant,
    took: Duration,
}

impl Look {
    /// Whether it is long enough ago for another one.
    fn is_over(self, at: Instant) -> bool {
        at.saturating_duration_since(self.ended) >= self.took * DUTY
    }
}

impl Marks {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the scans of lanes start. `now` is the moment that tests set; else it is told by the database's clock.
    pub(super) fn of<L: IntoIterator<Item = i32>>(&self, lanes: L, at: Instant, now: Option<Timestamp>) -> Vec<Mark> {
        let mut state = self.lock();
        let now = now.or_else(|| state.moment(at)).unwrap_or(Timestamp::MIN);
        let mark = |lane| state.lanes.get_mut(&lane).map_or(Mark::BOTTOM, |marks| marks.at(at, now));
        lanes.into_iter().map(mark).collect()
    }

    /// Notes what was claimed.
    pub(super) fn claimed(&self, ids: impl IntoIterator<Item = (i32, i64)>) {
        let mut state = self.lock();
        let now = Instant::now();
        for (lane, id) in ids {
            let marks = state.lanes.entry(lane).or_insert_with(LaneMarks::new);
            marks.claimed = marks.claimed.max(id);
            marks.claimed_at = now;
            marks.count += 1;
        }
    }

    /// The lanes that something was claimed from lately, the busiest ones if there are many. Those of long ago are
    /// forgotten: their scans start at the bottom again, where vacuum has been meanwhile.
    pub(super) fn lately_claimed(&self, at: Instant) -> Vec<i32> {
        let mut state = self.lock();
        let age = |marks: &LaneMarks| at.saturating_duration_since(marks.claimed_at);
        state.lanes.retain(|_, marks| age(marks) < if marks.is_raised() { FORGOTTEN_AFTER } else { LATELY });
        let lately = state.lanes.iter().filter(|(_, marks)| age(marks) < LATELY);
        let mut lately: Vec<(u64, i32)> = lately.map(|(lane, marks)| (marks.count, *lane)).collect();
        if lately.len() > ADVANCE_AT_ONCE {
            lately.retain(|(count, _)| *count >= WORTH_A_MARK);
        }
        if lately.len() > ADVANCE_AT_ONCE {
            lately.select_nth_unstable_by(ADVANCE_AT_ONCE, |a, b| b.cmp(a));
            lately.truncate(ADVANCE_AT_ONCE);
        }
        lately.into_iter().map(|(_, lane)| lane).collect()
    }

    /// Whether it is time to look where the first rows are, and which ones count. [`Self::advanced`] ends the look.
    pub(super) fn should_advance(&self, at: Instant) -> Option<Advance> {
        let mut state = self.lock();
        let since = |last: Instant| at.saturating_duration_since(last);
        if state.advancing || state.advanced.is_some_and(|advanced| since(advanced) < ADVANCE_EVERY) {
            return None;
        }
        state.advancing = true;
        state.advanced = Some(at);
        let pause = |look: Look| (look.took * PASS_DUTY).clamp(PASS_EVERY, PASS_AGAIN);
        if state.passed.is_some_and(|look| since(look.ended) < pause(look)) {
            return Some(Advance::ToFirst);
        }
        state.passed = Some(Look { ended: at, took: Duration::ZERO });
        Some(Advance::PastLeases)
    }

    /// Notes that a look has ended, whatever it came to.
    pub(super) fn advanced(&self, at: Instant) {
        let mut state = self.lock();
        (state.advancing, state.advanced) = (false, Some(at));
    }

    /// The leases that a look passes at a moment of the database are those that began before this one.
    pub(super) fn lasting(now: Timestamp) -> Timestamp {
        now.checked_sub(LASTING).unwrap_or(now)
    }

    /// Notes what a look past leases cost.
    pub(super) fn passed(&self, began: Instant, ended: Instant) {
        self.lock().passed = Some(Look { ended, took: ended.duration_since(began) });
    }

    /// Takes in where a lane's first rows were seen, scanning from a mark, at a moment of the database and of ours. If the
    /// mark has fallen meanwhile there is more below than the scan saw.
    pub(super) fn seen(&self, lane: i32, from: Mark, first: First, advance: Advance, (now, at): (Timestamp, Instant)) {
        let mut state = self.lock();
        state.clock = Some((at, now));
        let marks = state.lanes.entry(lane).or_insert_with(LaneMarks::new);
        if marks.now != from {
            return;
        }
        // A look past the leases sees further than one that is still ripening.
        if marks.next.is_none() || advance == Advance::PastLeases {
            let id = first.id.unwrap_or((marks.claimed.max(first.last_held.unwrap_or(0)) + 1).max(from.id));
            // A row due later than now may still be overtaken by one that becomes due earlier.
            let due = first.due.map_or(now, |due| due.min(now));
            marks.next = Some((at, Mark { id, due, passed: from.passed.and(first.passed()) }));
        }
    }

    /// Whether a probe from the bottom is due, by time and by what it costs. [`Self::probe_ended`] ends it.
    pub(super) fn should_probe(&self, at: Instant) -> bool {
        let mut state = self.lock();
        let waited = |look: Look| at.saturating_duration_since(look.ended) >= PROBE_EVERY;
        let due = !state.probing && state.is_raised() && state.looked.is_none_or(waited) && state.may_look(at);
        state.probing |= due;
        due
    }

    /// Notes that a probe has ended, whatever it came to.
    pub(super) fn probe_ended(&self) {
        self.lock().probing = false;
    }

    /// Whether a claim that found too little may look from the bottom.
    pub(super) fn may_look(&self, at: Instant) -> bool {
        let state = self.lock();
        state.is_raised() && state.may_look(at)
    }

    /// Notes what a look from the bottom cost.
    pub(super) fn looked(&self, began: Instant, ended: Instant) {
        self.lock().looked = Some(Look { ended, took: ended.duration_since(began) });
    }

    /// Notes what a look from the bottom of these lanes cost. Where it cost little, lanes that nothing was claimed from
    /// lately need no mark.
    pub(super) fn probed(&self, lanes: &[i32], began: Instant, ended: Instant) {
        self.looked(began, ended);
        let count = u32::try_from(lanes.len()).unwrap_or(u32::MAX);
        if ended.duration_since(began) > CHEAP + CHEAP_LANE * count {
            return;
        }
        let mut state = self.lock();
        for lane in lanes {
            if state.lanes.get(lane).is_some_and(|marks| ended.saturating_duration_since(marks.claimed_at) >= LATELY) {
                state.lanes.remove(lane);
            }
        }
    }

    /// Lowers a lane's mark to rows that were found below it, or that were given back.
    pub(super) fn found_below(&self, lane: i32, first_id: Option<i64>, first_due: Option<Timestamp>) {
        let mut state = self.lock();
        let Some(marks) = state.lanes.get_mut(&lane) else { return };
        for mark in std::iter::once(&mut marks.now).chain(marks.next.as_mut().map(|(_, mark)| mark)) {
            mark.id = mark.id.min(first_id.unwrap_or(i64::MAX));
            mark.due = mark.due.min(first_due.unwrap_or(Timestamp::MAX));
        }
    }

    /// The lanes that have a raised mark, with it, as many as one probe looks at: those first that were not probed for longest.
    pub(super) fn raised(&self, at: Instant) -> Vec<(i32, Mark)> {
        let mut state = self.lock();
        let raised = state.lanes.iter().filter(|(_, marks)| marks.is_raised());
        let mut lanes: Vec<(Option<Instant>, i32)> = raised.map(|(lane, marks)| (marks.probed, *lane)).collect();
        if lanes.len() > PROBE_AT_ONCE {
            lanes.select_nth_unstable(PROBE_AT_ONCE);
            lanes.truncate(PROBE_AT_ONCE);
        }
        let mark = |(_, lane)| {
            let marks = state.lanes.get_mut(&lane)?;
            marks.probed = Some(at);
            Some((lane, marks.now))
        };
        lanes.into_iter().filter_map(mark).collect()
    }

    /// Whether a claim may step from one lane that holds something to the next, or has to look at each: between two lanes
    /// there may be very many rows that are gone and cannot be removed yet.
    pub(super) fn may_step(&self, at: Instant) -> bool {
        self.lock().stepped.is_none_or(|look| look.is_over(at))
    }

    /// Notes how long a claim took that stepped over so many lanes.
    pub(super) fn stepped(&self, lanes: usize, began: Instant, ended: Instant) {
        let (took, count) = (ended.duration_since(began), u32::try_from(lanes).unwrap_or(u32::MAX));
        self.lock().stepped = (took > STEPPED + CHEAP_LANE * count).then_some(Look { ended, took });
    }
}

impl State {
    /// What the database's clock shows about now.
    fn moment(&self, at: Instant) -> Option<Timestamp> {
        let (read, moment) = self.clock?;
        moment.checked_add(at.saturating_duration_since(read)).ok()
    }

    fn is_raised(&self) -> bool {
        self.lanes.values().any(LaneMarks::is_raised)
    }

    fn may_look(&self, at: Instant) -> bool {
        self.looked.is_none_or(|look| look.took < CHEAP || look.is_over(at))
    }
}

impl LaneMarks {
    fn new() -> Self {
        Self { now: Mark::BOTTOM, next: None, claimed: 0, claimed_at: Instant::now(), count: 0, probed: None }
    }

    fn is_raised(&self) -> bool {
        self.now != Mark::BOTTOM
    }

    /// The mark, taken over once it is ripe, and fallen to the leases that it passed once one of them has ended.
    fn at(&mut self, at: Instant, now: Timestamp) -> Mark {
        if let Some((seen, mark)) = self.next
            && at.saturating_duration_since(seen) >= TRAIL
        {
            self.now = mark;
            self.next = None;
        }
        let Mark { id, due, passed } = self.now;
        if now >= passed.until {
            self.now = Mark { id: id.min(passed.id), due: due.min(passed.due), passed: Passed::NOTHING };
            self.next = None;
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn first(id: Option<i64>, due: Option<Timestamp>) -> First {
        First { id, due, ..First::default() }
    }

    fn of(marks: &Marks, at: Instant) -> Mark {
        marks.of([1], at, None)[0]
    }

    #[test]
    fn a_mark_trails_what_was_seen() {
        let marks = Marks::default();
        let start = Instant::now();
        marks.seen(1, of(&marks, start), first(Some(500), None), Advance::ToFirst, (due(10), start));
        assert_eq!(of(&marks, start + TRAIL / 2), Mark::BOTTOM);
        assert_eq!(of(&marks, start + TRAIL), Mark { id: 500, due: due(10), passed: Passed::NOTHING });
    }

    #[test]
    fn an_empty_path_starts_after_the_last_claim() {
        let marks = Marks::default();
        let start = Instant::now();
        marks.claimed([(1, 41), (1, 40)]);
        marks.seen(1, of(&marks, start), first(None, Some(due(99))), Advance::ToFirst, (due(10), start));
        assert_eq!(of(&marks, start + TRAIL), Mark { id: 42, due: due(10), passed: Passed::NOTHING });
    }

    #[test]
    fn rows_below_pull_the_mark_down_also_one_that_is_still_ripening() {
        let marks = Marks::default();
        let start = Instant::now();
        marks.seen(1, of(&marks, start), first(Some(500), None), Advance::ToFirst, (due(10), start));
        marks.found_below(1, Some(7), None);
        assert_eq!(of(&marks, start + TRAIL).id, 7);
    }

    #[test]
    fn a_mark_that_passed_leases_falls_when_the_first_of_them_ends() {
        let marks = Marks::default();
        let start = Instant::now();
        let held = First {
            held: Some(700),
            last_held: Some(900),
            held_due: Some(due(3)),
            until: Some(due(15)),
            ..First::default()
        };
        let fallen = Mark { id: 700, due: due(3), passed: Passed::NOTHING };
        marks.seen(1, of(&marks, start), first(Some(500), None), Advance::ToFirst, (due(10), start));
        marks.seen(1, of(&marks, start), held, Advance::PastLeases, (due(10), start));
        assert_eq!(of(&marks, start + TRAIL).id, 901);
        // A later look that passes no lease does not forget the ones below.
        marks.seen(1, of(&marks, start), first(Some(950), None), Advance::ToFirst, (due(11), start + TRAIL * 10));
        assert_eq!(of(&marks, start + TRAIL * 11).id, 950);
        assert_eq!(of(&marks, start + TRAIL * 49).id, 950);
        let passed = of(&marks, start + TRAIL * 49);
        assert_eq!(of(&marks, start + TRAIL * 50), fallen, "by the database's clock it is 15 now");
        marks.seen(1, passed, first(Some(960), None), Advance::ToFirst, (due(15), start));
        assert_eq!(of(&marks, start + TRAIL * 60), fallen, "the scan began before the mark fell");
        marks.seen(1, of(&marks, start), held, Advance::PastLeases, (due(10), start));
        assert_eq!(marks.of([1], start + TRAIL, Some(due(15)))[0], fallen, "a clock that tests move");
    }

    #[test]
    fn looks_from_the_bottom_keep_to_their_share_of_time() {
        let marks = Marks::default();
        let start = Instant::now();
        marks.seen(1, of(&marks, start), first(Some(500), None), Advance::ToFirst, (due(10), start));
        let later = start + TRAIL;
        of(&marks, later);
        assert!(marks.may_look(later));
        marks.looked(later, later + Duration::from_secs(1));
        assert!(!marks.may_look(later + Duration::from_secs(11)));
        assert!(marks.may_look(later + Duration::from_secs(21)));
        marks.looked(later, later + CHEAP / 2);
        assert!(marks.may_look(later + CHEAP), "a cheap look is always allowed");
        assert!(!marks.should_probe(later + CHEAP));
        assert!(marks.should_probe(later + PROBE_EVERY * 2));
    }

    /// A look that takes no time.
    fn look(marks: &Marks, at: Instant) -> Option<Advance> {
        let advance = marks.should_advance(at);
        if advance.is_some() {
            marks.advanced(at);
        }
        advance
    }

    #[test]
    fn looks_past_leases_keep_to_their_share_of_time() {
        let marks = Marks::default();
        let start = Instant::now();
        assert_eq!(look(&marks, start), Some(Advance::PastLeases));
        assert_eq!(look(&marks, start + ADVANCE_EVERY / 2), None);
        assert_eq!(look(&marks, start + PASS_EVERY / 2), Some(Advance::ToFirst));
        assert_eq!(look(&marks, start + PASS_EVERY), Some(Advance::PastLeases), "a cheap one, soon again");
        let (began, took) = (start + PASS_EVERY, PASS_EVERY / 25);
        marks.passed(began, began + took);
        assert_eq!(look(&marks, began + PASS_EVERY * 2), Some(Advance::ToFirst), "a dear one, later");
        let later = began + took * (PASS_DUTY + 1);
        assert_eq!(look(&marks, later), Some(Advance::PastLeases));
        marks.passed(later, later + PASS_AGAIN);
        assert_eq!(look(&marks, later + PASS_AGAIN * 2), Some(Advance::PastLeases), "it waited for something");
    }

    #[test]
    fn a_look_that_takes_long_is_the_only_one_of_its_kind() {
        let marks = Marks::default();
        let start = Instant::now();
        marks.seen(1, of(&marks, start), first(Some(500), None), Advance::ToFirst, (due(10), start));
        of(&marks, start + TRAIL);
        let long = start + TRAIL * 100;
        assert!(marks.should_advance(start).is_some() && marks.should_probe(start));
        assert!(marks.should_advance(long).is_none() && !marks.should_probe(long));
        marks.advanced(long);
        marks.probe_ended();
        assert!(
            marks.should_advance(long + ADVANCE_EVERY / 2).is_none(),
            "a pause counts from the end of the last look"
        );
        assert!(marks.should_advance(long + ADVANCE_EVERY).is_some() && marks.should_probe(long));
    }

    #[test]
    fn however_many_lanes_are_in_use_a_round_looks_at_few_and_the_busiest() {
        let marks = Marks::default();
        let start = Instant::now();
        marks.claimed((0..5_000).map(|lane| (lane, 1)));
        marks.claimed((0..10_000).map(|number| (number % 10, 2)));
        let mut lately = marks.lately_claimed(start);
        lately.sort_unstable();
        assert_eq!(lately, (0..10).collect::<Vec<i32>>());
        marks.claimed((0..200_000).map(|number| (number % 1_000, 3)));
        assert_eq!(marks.lately_claimed(start).len(), ADVANCE_AT_ONCE);
        for lane in 0..5_000 {
            marks.seen(lane, Mark::BOTTOM, first(Some(3), None), Advance::ToFirst, (due(10), start));
        }
        marks.of(0..5_000, start + TRAIL, None);
        let mut probed: Vec<i32> = Vec::new();
        while probed.len() < 5_000 {
            let lanes = marks.raised(start);
            assert!(lanes.len() <= PROBE_AT_ONCE);
            probed.extend(lanes.into_iter().map(|(lane, _)| lane));
        }
        probed.sort_unstable();
        probed.dedup();
        assert!(probed.len() > 4_500, "probes go round: {}", probed.len());
        // Once nothing was claimed there for a while, a cheap probe lets marks go.
        let later = start + LATELY * 2;
        marks.probed(&(0..5_000).collect::<Vec<_>>(), later, later + CHEAP);
        assert!(!marks.may_look(later));
    }

    #[test]
    fn a_claim_that_stepped_slowly_is_followed_by_others_that_do_not() {
        let marks = Marks::default();
        let start = Instant::now();
        assert!(marks.may_step(start));
        marks.stepped(1_000, start, start + STEPPED * 4);
        assert!(!marks.may_step(start + STEPPED * 5));
        assert!(marks.may_step(start + STEPPED * 4 * (DUTY + 1)));
        marks.stepped(1_000, start, start + STEPPED);
        assert!(marks.may_step(start + STEPPED));
    }
}
