use proptest::prelude::*;

use super::*;

const START_US: i64 = 1_700_000_000_000_000;

fn rate(limit: u32) -> Rate {
    Rate::per_minute(limit).unwrap()
}

fn at(us: i64) -> Timestamp {
    Timestamp::from_microsecond(START_US + us).unwrap()
}

fn offsets(reserved: &Reservation) -> Vec<i64> {
    reserved.starts().map(|start| start.as_microsecond() - START_US).collect()
}

/// A pool's row, and nodes that reserve from it. `time` is true time; the database's clock may differ.
struct Pool {
    limit: Rate,
    stored: Timestamp,
    time: i64,
    clock: i64,
    /// When deliveries started, by true time.
    starts: Vec<i64>,
    /// What each node has reserved last, and how much of it it will use.
    nodes: Vec<Option<(Reservation, u32, i64)>>,
}

impl Pool {
    fn new(limit: u32, nodes: usize) -> Self {
        let (limit, stored) = (rate(limit), Timestamp::MIN);
        Self { limit, stored, time: 0, clock: 0, starts: Vec::new(), nodes: vec![None; nodes] }
    }

    /// A node gives back what it did not use of its last reservation, reserves, and will use at most `used`.
    fn poll(&mut self, node: usize, wanted: u32, used: u32) {
        if let Some((last, used, clock)) = self.nodes[node].take() {
            let given_back = last.give_back(used, self.stored);
            let used = if given_back.is_some() { used } else { last.count() };
            self.starts.extend(offsets(&last).iter().take(used as usize).map(|start| start - clock));
            self.stored = given_back.unwrap_or(self.stored);
        }
        let reserved = self.limit.reserve(self.stored, at(self.time + self.clock), wanted);
        self.stored = reserved.stored();
        self.nodes[node] = Some((reserved, used.min(reserved.count()), self.clock));
    }

    fn finish(mut self) -> Vec<i64> {
        (0..self.nodes.len()).for_each(|node| self.poll(node, 0, 0));
        self.starts.sort_unstable();
        self.starts
    }
}

/// The most starts in any minute, its end not included.
fn most_in_a_minute(starts: &[i64]) -> usize {
    let mut first = 0;
    let count = |(last, start): (usize, &i64)| {
        while start - starts[first] >= MINUTE_US {
            first += 1;
        }
        last + 1 - first
    };
    starts.iter().enumerate().map(count).max().unwrap_or(0)
}

/// Whether any two starts are as far apart as the limit asks, less the microsecond by which moments are rounded: thus
/// whatever the limit, no minute has more than one above it.
fn are_spaced(starts: &[i64], limit: u32) -> bool {
    let mut latest = i128::MIN;
    starts.iter().zip(0_i128..).all(|(start, nth)| {
        let late_by = i128::from(*start) * i128::from(limit) - nth * i128::from(MINUTE_US);
        let is_spaced = latest == i128::MIN || late_by >= latest - i128::from(limit);
        latest = latest.max(late_by);
        is_spaced
    })
}

fn limits() -> impl Strategy<Value = u32> {
    prop_oneof![1..10_u32, 10..1_000_u32, 1_000..=1_000_000_u32, Just(MAX_PER_MINUTE)]
}

/// What nodes do: who, after how long (in parts of a thousand of 200 ms), how much it wants, and uses.
fn polls() -> impl Strategy<Value = Vec<(usize, i64, u32, u32)>> {
    prop::collection::vec((0..3_usize, 0..=1_000_i64, 0..50_u32, 0..50_u32), 1..200)
}

#[test]
fn limits_are_bounded() {
    assert_eq!(Rate::per_minute(0), None);
    assert_eq!(Rate::per_minute(MAX_PER_MINUTE + 1), None);
}

#[test]
fn moments_reach_as_far_ahead_as_they_may() {
    assert_eq!(offsets(&rate(240).reserve(Timestamp::MIN, at(0), 9)), [0, 250_000]);
    assert_eq!(offsets(&rate(239).reserve(Timestamp::MIN, at(0), 9)), [0]);
    assert_eq!(offsets(&rate(7).reserve(Timestamp::MIN, at(3), 9)), [3], "one at least when its time has come");
    assert_eq!(offsets(&rate(600).reserve(at(50_000), at(0), 2)), [50_000, 150_000]);
    assert_eq!(rate(1_000_000).reserve(Timestamp::MIN, at(0), u32::MAX).count(), 4_167);
}

#[test]
fn a_moment_that_has_not_come_is_waited_for() {
    let first = rate(1).reserve(Timestamp::MIN, at(0), 5);
    assert_eq!((offsets(&first), first.stored()), (vec![0], at(60_000_000)));
    let early = rate(1).reserve(first.stored(), at(59_749_999), 5);
    assert_eq!((early.count(), early.stored(), early.ask_again_at()), (0, first.stored(), at(59_750_000)));
    assert_eq!(offsets(&rate(1).reserve(first.stored(), at(59_750_000), 5)), [60_000_000]);
}

#[test]
fn idle_time_is_not_saved_up() {
    let first = rate(60).reserve(Timestamp::MIN, at(0), 1);
    let after_an_hour = rate(60).reserve(first.stored(), at(3_600_000_000), 9);
    assert_eq!(offsets(&after_an_hour), [3_600_000_000]);
}

#[test]
fn nothing_wanted_changes_nothing() {
    assert_eq!(rate(60).reserve(at(-5), at(0), 0).stored(), at(-5));
    assert_eq!(rate(60).reserve(Timestamp::MIN, at(0), 0).stored(), Timestamp::MIN);
}

#[test]
fn a_clock_that_is_set_back_holds_nothing_for_longer_than_a_reservation_would() {
    let first = rate(60).reserve(Timestamp::MIN, at(3_600_000_000), 9);
    let back = rate(60).reserve(first.stored(), at(0), 9);
    assert_eq!((back.count(), back.stored()), (0, at(1_250_000)));
    assert_eq!(offsets(&rate(60).reserve(back.stored(), at(1_000_000), 9)), [1_250_000]);
}

#[test]
fn a_higher_limit_acts_at_once_and_a_lower_one_without_a_burst() {
    let first = rate(1).reserve(Timestamp::MIN, at(0), 1);
    let raised = rate(6_000).reserve(first.stored(), at(1_000_000), 100);
    assert_eq!((raised.count(), raised.stored()), (0, at(1_260_000)));
    assert_eq!(rate(6_000).reserve(raised.stored(), at(1_010_000), 100).count(), 1);
    assert_eq!(rate(6_000).reserve(raised.stored(), at(1_200_000), 100).count(), 20);

    let fast = rate(6_000).reserve(Timestamp::MIN, at(0), 5);
    let lowered = rate(1).reserve(fast.stored(), at(10_000), 9);
    assert_eq!((offsets(&lowered), lowered.stored()), (vec![50_000], at(60_050_000)));
}

proptest! {
    /// Whatever several nodes reserve, use and give back, and though the database's clock is set back meanwhile.
    #[test]
    fn starts_are_spaced_by_the_limit(
        limit in limits(),
        polls in polls(),
        back in prop::collection::vec(any::<bool>(), 200),
    ) {
        let mut pool = Pool::new(limit, 3);
        for ((node, after, wanted, used), back) in polls.into_iter().zip(back) {
            pool.time += after * 200;
            pool.clock -= if back && after > 900 { after * 1_000_000 } else { 0 };
            pool.poll(node, wanted, used);
        }
        let starts = pool.finish();
        prop_assert!(are_spaced(&starts, limit), "{starts:?}");
    }

    /// Under a backlog the limit is reached, and exceeded in no minute by more than one.
    #[test]
    fn every_minute_has_its_share(
        limit in 1..2_000_u32,
        gaps in prop::collection::vec(1..200_000_i64, 50),
        nodes in 1..4_usize,
    ) {
        let mut pool = Pool::new(limit, nodes);
        for (turn, gap) in gaps.iter().cycle().enumerate() {
            pool.poll(turn % nodes, u32::MAX, u32::MAX);
            pool.time += gap;
            if pool.time > 3 * MINUTE_US {
                break;
            }
        }
        let starts = pool.finish();
        prop_assert!(most_in_a_minute(&starts) <= limit as usize + 1);
        prop_assert!(starts.len() >= 3 * limit as usize * 95 / 100);
        for minute in 0..5 {
            let from = minute * MINUTE_US / 2;
            let reached = starts.iter().filter(|start| (from..from + MINUTE_US).contains(start)).count();
            prop_assert!(reached + 1 >= limit as usize * 95 / 100, "{reached} of {limit}");
        }
    }

    /// Starts that are late, each by at most what is allowed, exceed the limit by at most 2 % or one.
    #[test]
    fn late_starts_stay_within_two_percent(limit in 1..2_000_u32, late in prop::collection::vec(0..=1_000_i64, 997)) {
        let mut pool = Pool::new(limit, 1);
        while pool.time < 2 * MINUTE_US {
            pool.poll(0, u32::MAX, u32::MAX);
            pool.time += 200_000;
        }
        let longest = LATEST.as_micros() as i64;
        // The worst case, too: all of the first minute are late, those after it not.
        let spread = late.iter().cycle().map(|part| part * longest / 1_000);
        let starts = pool.finish();
        let mut spread: Vec<i64> = starts.iter().zip(spread).map(|(start, late)| start + late).collect();
        spread.sort_unstable();
        let first = |start: &i64| if *start < MINUTE_US { start + longest } else { *start };
        let mut worst: Vec<i64> = starts.iter().map(first).collect();
        worst.sort_unstable();
        let most = (limit as usize + 1).max(limit as usize * 102 / 100);
        prop_assert!(most_in_a_minute(&spread) <= most);
        prop_assert!(most_in_a_minute(&worst) <= most, "{} of {limit}", most_in_a_minute(&worst));
    }

    /// Under any change of the limit, what is reserved after it is spaced by the new one.
    #[test]
    fn a_changed_limit_holds_from_its_change_on(
        before in limits(),
        after in limits(),
        first in polls(),
        then in polls(),
    ) {
        let mut pool = Pool::new(before, 3);
        for (node, after, wanted, used) in first {
            pool.time += after * 200;
            pool.poll(node, wanted, used);
        }
        let mut changed = Pool { limit: rate(after), starts: Vec::new(), nodes: vec![None; 3], ..pool };
        let time = changed.time;
        for (node, after, wanted, used) in then {
            changed.time += after * 200;
            changed.poll(node, wanted.max(1), used.max(1));
        }
        let held_for = 2 * AHEAD_US + rate(after).span(1);
        while changed.time <= time + held_for {
            changed.poll(0, 1, 1);
            changed.time += AHEAD_US;
        }
        let starts = changed.finish();
        prop_assert!(are_spaced(&starts, after));
        prop_assert!(starts.first().is_some_and(|start| *start <= time + held_for), "{starts:?}");
    }

    #[test]
    fn any_moments_and_limits_are_safe(
        limit in 1..=MAX_PER_MINUTE,
        stored in Timestamp::MIN.as_second()..=Timestamp::MAX.as_second(),
        now in Timestamp::MIN.as_second()..=Timestamp::MAX.as_second(),
        near_the_end: bool,
        wanted in 0..2_000_u32,
        used: u32,
    ) {
        let moment = |second| Timestamp::from_second(second).unwrap();
        let now = if near_the_end { Timestamp::MAX } else { moment(now) };
        let reserved = rate(limit).reserve(moment(stored), now, wanted);
        prop_assert!(reserved.count() <= wanted);
        let in_reach = |start: Timestamp| start.as_microsecond() >= now.as_microsecond()
            && start.as_microsecond() <= now.as_microsecond() + AHEAD_US;
        prop_assert!(reserved.starts().all(in_reach));
        let _ = (reserved.ask_again_at(), reserved.give_back(used, reserved.stored()));
    }
}
