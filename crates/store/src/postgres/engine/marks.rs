//! Low-water marks: where a claim's scan of a lane starts, so that dead rows that vacuum cannot remove yet, and leased
//! rows, are not read again and again. Pure bookkeeping, without IO. A mark is a hint and may be too high for a moment:
//! claims that find too little, and a regular probe, scan from the bottom. A mark passes leases that have lasted for a
//! while, and falls back to the first of them when one of them ends.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::Timestamp;

/// How long a mark trails what was seen: a transaction that commits within this time of drawing an id is never passed.
const TRAIL: Duration = Duration::from_millis(100);
/// How often marks are raised.
const ADVANCE_EVERY: Duration = Duration::from_millis(50);
/// How often marks are raised past leased rows, which have to be read for that.
const PASS_EVERY: Duration = Duration::from_millis(250);
/// Leases younger than this are not passed: most end soon, and each passed lease makes the mark fall when it would end.
const LASTING: Duration = Duration::from_secs(1);
/// After a scan past leases that took t, pause for 100t: such scans use at most 1 % of the time. Where leases end soon,
/// they gain nothing.
const PASS_DUTY: u32 = 100;
/// The longest such pause: a slow scan may only have waited for something else. So scans slower than 50 ms use more.
const PASS_AGAIN: Duration = Duration::from_secs(5);
/// How often a probe scans from the bottom.
const PROBE_EVERY: Duration = Duration::from_millis(250);
/// After a scan from the bottom, or a claim that stepped too slowly, that took t, pause for 20t: these use at most 5 %
/// of the time.
const DUTY: u32 = 20;
/// A scan from the bottom that takes less than this needs no pause.
const CHEAP: Duration = Duration::from_millis(5);
/// What scanning a lane with few rows may take.
const CHEAP_LANE: Duration = Duration::from_micros(50);

/// A lane's mark is raised for this long after the last claim from it.
const LATELY: Duration = Duration::from_secs(10);
/// Most lanes whose marks are raised at once: those with the most claimed entries.
const ADVANCE_AT_ONCE: usize = 64;
/// If there are more lanes than that, one with fewer claimed entries than this needs no mark: reading its dead rows is
/// as cheap.
const WORTH_A_MARK: u64 = 64;
/// Most lanes that one probe scans.
const PROBE_AT_ONCE: usize = 256;
/// Marks of lanes that were not claimed from for this long are dropped.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);
/// What a claim that steps from lane to lane may take, besides [`CHEAP_LANE`] for each lane.
const STEPPED: Duration = Duration::from_millis(50);

/// Where the scans of a lane's two paths start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::postgres) struct Mark {
    /// First number to read of the fresh entries.
    pub(in crate::postgres) id: i64,
    /// First due moment to read of the timed entries.
    pub(in crate::postgres) due: Timestamp,
    /// The leases below it.
    passed: Passed,
}

/// The leases that a mark passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Passed {
    /// Number of the first leased fresh row.
    id: i64,
    /// Due moment of the first leased timed row.
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
    pub(in crate::postgres) const TOP: Self = Self { id: i64::MAX, due: Timestamp::MAX, passed: Passed::NOTHING };
    /// Before everything.
    pub(in crate::postgres) const BOTTOM: Self = Self { id: 0, due: Timestamp::UNIX_EPOCH, passed: Passed::NOTHING };
}

/// What a scan of a lane from its mark on found.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::postgres) struct First {
    /// Number of the first fresh row; `None` if there is none.
    pub(in crate::postgres) id: Option<i64>,
    /// Due moment of the first timed row; `None` if there is none.
    pub(in crate::postgres) due: Option<Timestamp>,
    /// Number of the last leased fresh row that was passed; matters where no other fresh row is left.
    pub(in crate::postgres) last_held: Option<i64>,
    /// Number of the first leased fresh row that was passed.
    pub(in crate::postgres) held: Option<i64>,
    /// Due moment of the first leased timed row that was passed.
    pub(in crate::postgres) held_due: Option<Timestamp>,
    /// When the first of the passed leases ends.
    pub(in crate::postgres) until: Option<Timestamp>,
}

impl First {
    fn passed(&self) -> Passed {
        let (due, until) = (self.held_due.unwrap_or(Timestamp::MAX), self.until.unwrap_or(Timestamp::MAX));
        Passed { id: self.held.unwrap_or(i64::MAX), due, until }
    }
}

/// How far to raise marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::postgres) enum Advance {
    /// To the first row, leased or not.
    ToFirst,
    /// To the first row that is not leased, or leased only for a moment.
    PastLeases,
}

/// The marks of all lanes.
#[derive(Debug, Default)]
pub(in crate::postgres) struct Marks(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lanes: HashMap<i32, LaneMarks>,
    /// A scan that raises marks is running; there is never a second one.
    advancing: bool,
    /// A probe is running; there is never a second one.
    probing: bool,
    /// When marks were last raised.
    advanced: Option<Instant>,
    /// The last scan past leases.
    past_leases: Option<Scan>,
    /// The last scan from the bottom.
    from_bottom: Option<Scan>,
    /// The last claim that stepped from lane to lane, if it took too long.
    slow_step: Option<Scan>,
    /// The database's clock as last read, and when that was.
    clock: Option<(Instant, Timestamp)>,
}

#[derive(Debug)]
struct LaneMarks {
    now: Mark,
    /// The mark to come and when it was seen; replaces `now` once it is [`TRAIL`] old.
    next: Option<(Instant, Mark)>,
    /// The highest number claimed here; once the path is empty, scans start after it.
    claimed: i64,
    /// When something was last claimed here.
    claimed_at: Instant,
    /// How many entries were claimed here.
    count: u64,
    /// When a probe last scanned this lane.
    probed: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Scan {
    ended: Instant,
    took: Duration,
}

impl Scan {
    /// Whether the pause after it is over.
    fn has_paused(self, at: Instant) -> bool {
        at.saturating_duration_since(self.ended) >= self.took * DUTY
    }
}

impl Marks {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the scans of these lanes start. `now` is a moment that tests set, else it follows from the database's
    /// clock.
    pub(in crate::postgres) fn of<L: IntoIterator<Item = i32>>(
        &self,
        lanes: L,
        at: Instant,
        now: Option<Timestamp>,
    ) -> Vec<Mark> {
        let mut state = self.lock();
        let now = now.or_else(|| state.moment(at)).unwrap_or(Timestamp::MIN);
        let mark = |lane| state.lanes.get_mut(&lane).map_or(Mark::BOTTOM, |marks| marks.at(at, now));
        lanes.into_iter().map(mark).collect()
    }

    /// Records claimed entries, as (lane, number).
    pub(in crate::postgres) fn claimed(&self, ids: impl IntoIterator<Item = (i32, i64)>) {
        let mut state = self.lock();
        let now = Instant::now();
        for (lane, id) in ids {
            let marks = state.lanes.entry(lane).or_insert_with(LaneMarks::new);
            marks.claimed = marks.claimed.max(id);
            marks.claimed_at = now;
            marks.count += 1;
        }
    }

    /// The lanes that were claimed from lately, the busiest ones if there are many. Drops lanes that were not claimed
    /// from for long: their scans start at the bottom again, where vacuum has removed the dead rows meanwhile.
    pub(in crate::postgres) fn lately_claimed(&self, at: Instant) -> Vec<i32> {
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

    /// Whether it is time to raise marks, and how far. [`Self::advanced`] must be called when that is done.
    pub(in crate::postgres) fn should_advance(&self, at: Instant) -> Option<Advance> {
        let mut state = self.lock();
        let since = |last: Instant| at.saturating_duration_since(last);
        if state.advancing || state.advanced.is_some_and(|advanced| since(advanced) < ADVANCE_EVERY) {
            return None;
        }
        state.advancing = true;
        state.advanced = Some(at);
        let pause = |scan: Scan| (scan.took * PASS_DUTY).clamp(PASS_EVERY, PASS_AGAIN);
        if state.past_leases.is_some_and(|scan| since(scan.ended) < pause(scan)) {
            return Some(Advance::ToFirst);
        }
        state.past_leases = Some(Scan { ended: at, took: Duration::ZERO });
        Some(Advance::PastLeases)
    }

    /// Records that a scan that raises marks has ended, with whatever result.
    pub(in crate::postgres) fn advanced(&self, at: Instant) {
        let mut state = self.lock();
        (state.advancing, state.advanced) = (false, Some(at));
    }

    /// A scan at the moment `now` passes the leases that began before this moment.
    pub(in crate::postgres) fn lasting(now: Timestamp) -> Timestamp {
        now.checked_sub(LASTING).unwrap_or(now)
    }

    /// Records how long a scan past leases took.
    pub(in crate::postgres) fn passed(&self, began: Instant, ended: Instant) {
        self.lock().past_leases = Some(Scan { ended, took: ended.duration_since(began) });
    }

    /// Records where a scan from the mark `from` saw a lane's first rows, with the moment of the scan by the database's
    /// and by the local clock. Ignored if the mark has changed meanwhile: if it fell, there is more below than the scan
    /// saw.
    pub(in crate::postgres) fn seen(
        &self,
        lane: i32,
        from: Mark,
        first: First,
        advance: Advance,
        (now, at): (Timestamp, Instant),
    ) {
        let mut state = self.lock();
        state.clock = Some((at, now));
        let marks = state.lanes.entry(lane).or_insert_with(LaneMarks::new);
        if marks.now != from {
            return;
        }
        // A scan past the leases sees further than the mark that is still to come.
        if marks.next.is_none() || advance == Advance::PastLeases {
            let id = first.id.unwrap_or((marks.claimed.max(first.last_held.unwrap_or(0)) + 1).max(from.id));
            // A row that is due later than now may still be overtaken by a new one that is due earlier.
            let due = first.due.map_or(now, |due| due.min(now));
            marks.next = Some((at, Mark { id, due, passed: from.passed.and(first.passed()) }));
        }
    }

    /// Whether a probe from the bottom is due: [`PROBE_EVERY`] has passed, and the pause after the last scan.
    /// [`Self::probe_ended`] must be called when it is done.
    pub(in crate::postgres) fn should_probe(&self, at: Instant) -> bool {
        let mut state = self.lock();
        let waited = |scan: Scan| at.saturating_duration_since(scan.ended) >= PROBE_EVERY;
        let due = !state.probing && state.is_raised() && state.from_bottom.is_none_or(waited) && state.may_look(at);
        state.probing |= due;
        due
    }

    /// Records that a probe has ended, with whatever result.
    pub(in crate::postgres) fn probe_ended(&self) {
        self.lock().probing = false;
    }

    /// Whether a claim that found too little may scan from the bottom.
    pub(in crate::postgres) fn may_look(&self, at: Instant) -> bool {
        let state = self.lock();
        state.is_raised() && state.may_look(at)
    }

    /// Records how long a scan from the bottom took.
    pub(in crate::postgres) fn looked(&self, began: Instant, ended: Instant) {
        self.lock().from_bottom = Some(Scan { ended, took: ended.duration_since(began) });
    }

    /// Records how long a probe of these lanes took. If it was cheap, drops the marks of lanes that were not claimed
    /// from lately.
    pub(in crate::postgres) fn probed(&self, lanes: &[i32], began: Instant, ended: Instant) {
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

    /// Lowers a lane's mark to rows that were found below it, or whose lease was given back.
    pub(in crate::postgres) fn found_below(&self, lane: i32, first_id: Option<i64>, first_due: Option<Timestamp>) {
        let mut state = self.lock();
        let Some(marks) = state.lanes.get_mut(&lane) else { return };
        for mark in std::iter::once(&mut marks.now).chain(marks.next.as_mut().map(|(_, mark)| mark)) {
            mark.id = mark.id.min(first_id.unwrap_or(i64::MAX));
            mark.due = mark.due.min(first_due.unwrap_or(Timestamp::MAX));
        }
    }

    /// Lanes with a raised mark, and the mark; at most as many as one probe scans, those whose last probe is oldest.
    pub(in crate::postgres) fn raised(&self, at: Instant) -> Vec<(i32, Mark)> {
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

    /// Whether a claim may step from one lane that holds something to the next, instead of scanning each lane: between
    /// two lanes there may be very many dead rows that cannot be removed yet.
    pub(in crate::postgres) fn may_step(&self, at: Instant) -> bool {
        self.lock().slow_step.is_none_or(|scan| scan.has_paused(at))
    }

    /// Records how long a claim took that stepped over this many lanes.
    pub(in crate::postgres) fn stepped(&self, lanes: usize, began: Instant, ended: Instant) {
        let (took, count) = (ended.duration_since(began), u32::try_from(lanes).unwrap_or(u32::MAX));
        self.lock().slow_step = (took > STEPPED + CHEAP_LANE * count).then_some(Scan { ended, took });
    }
}

impl State {
    /// An estimate of the database's clock; `None` before it was first read.
    fn moment(&self, at: Instant) -> Option<Timestamp> {
        let (read, moment) = self.clock?;
        moment.checked_add(at.saturating_duration_since(read)).ok()
    }

    fn is_raised(&self) -> bool {
        self.lanes.values().any(LaneMarks::is_raised)
    }

    fn may_look(&self, at: Instant) -> bool {
        self.from_bottom.is_none_or(|scan| scan.took < CHEAP || scan.has_paused(at))
    }
}

impl LaneMarks {
    fn new() -> Self {
        Self { now: Mark::BOTTOM, next: None, claimed: 0, claimed_at: Instant::now(), count: 0, probed: None }
    }

    fn is_raised(&self) -> bool {
        self.now != Mark::BOTTOM
    }

    /// The mark at this moment: replaced by the next one once that is old enough, lowered to the leases that it passed
    /// once one of them has ended.
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
        // A later scan that passes no lease keeps the end of those below.
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
        assert!(marks.may_look(later + CHEAP), "a cheap scan needs no pause");
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
        // Once nothing was claimed there for a while, a cheap probe drops the marks.
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
