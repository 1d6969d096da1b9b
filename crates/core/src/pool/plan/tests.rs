use proptest::prelude::*;

use super::*;

fn client(number: u8) -> Option<Tsid> {
    (number > 0).then(|| Tsid::from_i64(i64::from(number)))
}

fn lane(id: usize, of: u8, waiting: Waiting) -> Lane<usize> {
    Lane { id, client: client(of), waiting, in_flight: 0, held_by: None }
}

fn many(lanes: usize, of: u8) -> Vec<Lane<usize>> {
    (0..lanes).map(|id| lane(id, of, Waiting::AtLeast(1_000))).collect()
}

fn capacity(concurrency: u32, free: u32) -> Capacity {
    Capacity { concurrency, free, allowance: None }
}

/// A plan without history.
fn plan(capacity: Capacity, lanes: &[Lane<usize>]) -> Vec<u32> {
    Planner::default().plan(capacity, lanes)
}

/// The planner, one slot at a time. Queues of clients and lanes: who is first has its turn.
#[derive(Default)]
struct Naive {
    clients: Vec<Option<Tsid>>,
    lanes: Vec<usize>,
}

fn join<K: Copy + PartialEq>(queue: &mut Vec<K>, present: impl Iterator<Item = K> + Clone) {
    queue.retain(|one| present.clone().any(|other| other == *one));
    for one in present {
        if !queue.contains(&one) {
            queue.push(one);
        }
    }
}

fn to_the_back<K: PartialEq>(queue: &mut Vec<K>, one: K) {
    queue.retain(|other| *other != one);
    queue.push(one);
}

impl Naive {
    fn plan(&mut self, capacity: Capacity, lanes: &[Lane<usize>]) -> Vec<u32> {
        join(&mut self.clients, lanes.iter().map(|lane| lane.client));
        join(&mut self.lanes, lanes.iter().map(|lane| lane.id));
        let most = naive_most(capacity.concurrency, lanes);
        let mut quotas = vec![0; lanes.len()];
        let mut budget = capacity.free.min(capacity.allowance.unwrap_or(u32::MAX));
        for known in [true, false] {
            // What was given one by one: the lane, and what it and its client held before.
            let mut given: Vec<(usize, u32, u32)> = Vec::new();
            while budget > 0 {
                let Some(at) = self.next(lanes, &quotas, most, known) else { break };
                given.push((at, lanes[at].in_flight + quotas[at], held_by_client(lanes, &quotas, lanes[at].client)));
                quotas[at] += 1;
                budget -= 1;
            }
            self.move_winners(lanes, &quotas, &given, |at, quotas: &[u32]| may_get(lanes, quotas, at, most, known));
        }
        quotas
    }

    /// Who gets the next slot: of the client that holds fewest the lane that holds fewest.
    fn next(&self, lanes: &[Lane<usize>], quotas: &[u32], most: u32, known: bool) -> Option<usize> {
        let may = (0..lanes.len()).filter(|at| may_get(lanes, quotas, *at, most, known));
        let turn_of_client = |at: usize| self.clients.iter().position(|one| *one == lanes[at].client);
        let turn = |at: usize| self.lanes.iter().position(|one| *one == lanes[at].id);
        may.min_by_key(|at| {
            let of_client = held_by_client(lanes, quotas, lanes[*at].client);
            (of_client, turn_of_client(*at), lanes[*at].in_flight + quotas[*at], turn(*at))
        })
    }

    /// Those that got the last slots, while equals that had room got none, go to the back, in the order of their turns.
    fn move_winners(
        &mut self,
        lanes: &[Lane<usize>],
        quotas: &[u32],
        given: &[(usize, u32, u32)],
        may: impl Fn(usize, &[u32]) -> bool,
    ) {
        let left = || (0..lanes.len()).filter(|at| may(*at, quotas));
        let least = left().map(|at| held_by_client(lanes, quotas, lanes[at].client)).min();
        let last = |client| given.iter().rev().find(|(at, ..)| lanes[*at].client == client);
        for client in self.clients.clone() {
            if last(client).is_some_and(|(_, _, before)| Some(*before) == least) {
                to_the_back(&mut self.clients, client);
            }
        }
        for id in self.lanes.clone() {
            let Some(at) = lanes.iter().position(|lane| lane.id == id) else { continue };
            let of_client = left().filter(|other| lanes[*other].client == lanes[at].client);
            let least = of_client.map(|at| lanes[at].in_flight + quotas[at]).min();
            let last = given.iter().rev().find(|(one, ..)| *one == at);
            if last.is_some_and(|(_, before, _)| Some(*before) == least) {
                to_the_back(&mut self.lanes, id);
            }
        }
    }
}

fn held_by_client(lanes: &[Lane<usize>], quotas: &[u32], client: Option<Tsid>) -> u32 {
    lanes.iter().zip(quotas).filter(|(lane, _)| lane.client == client).map(|(lane, quota)| lane.in_flight + quota).sum()
}

fn is_held(lane: &Lane<usize>) -> bool {
    [Some(Hold::Paused), Some(Hold::BreakerOpen)].contains(&lane.held_by)
}

fn naive_most(concurrency: u32, lanes: &[Lane<usize>]) -> u32 {
    let none = Waiting::AtLeast(0);
    let counts = |lane: &&Lane<usize>| {
        !is_held(lane) && (lane.in_flight > 0 || (lane.waiting != none && lane.waiting != Waiting::Unknown))
    };
    let active = lanes.iter().filter(counts).count().clamp(1, 8) as f64;
    (f64::from(concurrency) / active).ceil() as u32
}

fn may_get(lanes: &[Lane<usize>], quotas: &[u32], at: usize, most: u32, known: bool) -> bool {
    let (lane, quota) = (&lanes[at], quotas[at]);
    let holds = lane.in_flight + quota;
    let waits = match lane.waiting {
        Waiting::AtLeast(waiting) => waiting > 0 && (!known || quota < waiting),
        Waiting::Unknown => true,
    };
    let is_full = lane.held_by == Some(Hold::BreakerHalfOpen) && holds >= 1;
    waits && !is_held(lane) && !is_full && holds < most
}

#[test]
fn a_lane_alone_uses_the_whole_pool() {
    assert_eq!(plan(capacity(64, 64), &many(1, 1)), [64]);
    let mut lanes = many(3, 1);
    lanes[1].held_by = Some(Hold::Paused);
    lanes[1].in_flight = 4;
    lanes[2].waiting = Waiting::AtLeast(0);
    assert_eq!(plan(capacity(64, 60), &lanes), [60, 0, 0], "nobody else is active");
}

#[test]
fn few_lanes_share_the_whole_pool() {
    assert_eq!(plan(capacity(64, 64), &many(2, 1)), [32, 32]);
    assert_eq!(plan(capacity(10, 10), &many(3, 1)), [4, 3, 3]);
    assert_eq!(plan(capacity(64, 64), &many(8, 1)), [8; 8]);
}

#[test]
fn a_lane_that_hangs_leaves_seven_eighths_to_others() {
    // The others are quick: at this moment none of them waits.
    let mut lanes = many(30, 1);
    for other in &mut lanes[1..] {
        (other.waiting, other.in_flight) = (Waiting::AtLeast(0), 1);
    }
    let mut expected = vec![0; 30];
    expected[0] = 8;
    assert_eq!(plan(capacity(64, 35), &lanes), expected);
    lanes[0].in_flight = 8;
    assert_eq!(plan(capacity(64, 27), &lanes), [0; 30]);
    lanes[7].waiting = Waiting::Unknown;
    assert_eq!(plan(capacity(64, 27), &lanes)[7], 7);
}

#[test]
fn a_client_gets_no_more_by_many_lanes() {
    let mut lanes = many(30, 1);
    lanes.push(lane(30, 2, Waiting::AtLeast(1_000)));
    lanes.push(lane(31, 2, Waiting::AtLeast(1_000)));
    let quotas = plan(capacity(64, 20), &lanes);
    assert_eq!((quotas[..30].iter().sum::<u32>(), &quotas[30..]), (10, [5, 5].as_slice()));
}

#[test]
fn what_a_client_holds_counts_also_in_lanes_that_are_held() {
    let mut lanes = vec![lane(0, 1, Waiting::Unknown), lane(1, 1, Waiting::Unknown), lane(2, 2, Waiting::Unknown)];
    (lanes[0].in_flight, lanes[0].held_by) = (6, Some(Hold::BreakerOpen));
    assert_eq!(plan(capacity(20, 10), &lanes), [0, 2, 8]);
}

#[test]
fn a_rate_bounds_all_quotas_together() {
    let capacity = Capacity { concurrency: 64, free: 64, allowance: Some(5) };
    assert_eq!(plan(capacity, &many(2, 1)), [3, 2]);
    assert_eq!(plan(Capacity { allowance: Some(0), ..capacity }, &many(2, 1)), [0, 0]);
}

#[test]
fn a_half_open_breaker_lets_one_through() {
    let mut lanes = many(2, 1);
    lanes[0].held_by = Some(Hold::BreakerHalfOpen);
    assert_eq!(plan(capacity(8, 8), &lanes), [1, 4]);
    lanes[0].in_flight = 1;
    assert_eq!(plan(capacity(8, 7), &lanes), [0, 4]);
}

#[test]
fn known_jobs_go_before_those_that_perhaps_wait() {
    let lanes = [lane(0, 1, Waiting::AtLeast(2)), lane(1, 1, Waiting::AtLeast(90))];
    assert_eq!(plan(capacity(40, 12), &lanes), [2, 10]);
    assert_eq!(plan(capacity(40, 40), &lanes), [20, 20], "more than two may wait");
}

#[test]
fn extremes_do_not_overflow() {
    let mut lanes = many(3, 1);
    lanes[0].in_flight = u32::MAX;
    lanes[1].waiting = Waiting::AtLeast(u32::MAX);
    let all = Capacity { concurrency: u32::MAX, free: u32::MAX, allowance: Some(u32::MAX) };
    assert_eq!(plan(all, &lanes)[0], 0);
    assert_eq!(plan(Capacity { concurrency: 0, ..all }, &lanes), [0, 0, 0]);
    assert!(plan(all, &[]).is_empty());
}

#[test]
fn ten_thousand_lanes_have_their_turn_in_as_many_slots() {
    let lanes: Vec<_> = (0..10_000).map(|id| lane(id, (id % 7) as u8, Waiting::Unknown)).collect();
    let (mut planner, mut served) = (Planner::default(), vec![0; lanes.len()]);
    for _ in 0..10 {
        for (total, quota) in served.iter_mut().zip(planner.plan(capacity(8_000, 1_001), &lanes)) {
            *total += quota;
        }
    }
    assert!(served.iter().all(|total| (1..=2).contains(total)));
}

#[test]
fn who_comes_and_goes_has_no_advantage() {
    let mut planner = Planner::default();
    let mut served = 0;
    for round in 0..10 {
        let lanes = [lane(1_000 + round, 1, Waiting::AtLeast(1)), lane(0, 1, Waiting::AtLeast(1))];
        served += planner.plan(capacity(1, 1), &lanes)[1];
    }
    assert_eq!(served, 9, "all but the first, before which nobody waited");
    let mut served = 0;
    for round in 0..10 {
        // The first client names a new lane each time: its client's turn is what counts.
        let lanes = [lane(2_000 + round, 2, Waiting::AtLeast(1)), lane(0, 1, Waiting::AtLeast(1))];
        served += planner.plan(capacity(1, 1), &lanes)[1];
    }
    assert_eq!(served, 5);
}

fn lanes(most: usize) -> impl Strategy<Value = Vec<Lane<usize>>> {
    let waiting = prop_oneof![(0..12_u32).prop_map(Waiting::AtLeast), Just(Waiting::Unknown)];
    let held = prop_oneof![
        6 => Just(None),
        1 => Just(Some(Hold::Paused)),
        1 => Just(Some(Hold::BreakerOpen)),
        1 => Just(Some(Hold::BreakerHalfOpen)),
    ];
    let one = (0..4_u8, waiting, 0..6_u32, held);
    prop::collection::vec(one, 0..most).prop_map(|all| {
        let lane = |(id, (of, waiting, in_flight, held_by)): (usize, (u8, Waiting, u32, Option<Hold>))| Lane {
            in_flight,
            held_by,
            ..lane(id, of, waiting)
        };
        all.into_iter().enumerate().map(lane).collect()
    })
}

fn capacities() -> impl Strategy<Value = Capacity> {
    (0..80_u32, 0..60_u32, prop::option::of(0..40_u32)).prop_map(|(concurrency, free, allowance)| Capacity {
        concurrency,
        free,
        allowance,
    })
}

proptest! {
    #[test]
    fn plans_are_those_of_one_slot_at_a_time(rounds in prop::collection::vec((capacities(), lanes(16)), 1..6)) {
        let (mut planner, mut naive) = (Planner::default(), Naive::default());
        for (capacity, lanes) in rounds {
            prop_assert_eq!(planner.plan(capacity, &lanes), naive.plan(capacity, &lanes));
        }
    }

    #[test]
    fn quotas_keep_to_every_limit_and_leave_nothing_that_can_be_used(capacity in capacities(), lanes in lanes(40)) {
        let quotas = plan(capacity, &lanes);
        let budget = capacity.free.min(capacity.allowance.unwrap_or(u32::MAX));
        let most = naive_most(capacity.concurrency, &lanes);
        for (lane, quota) in lanes.iter().zip(&quotas).filter(|(_, quota)| **quota > 0) {
            prop_assert!(!is_held(lane), "a held lane has a quota");
            prop_assert!(lane.in_flight + quota <= most);
            prop_assert!(lane.waiting != Waiting::AtLeast(0));
        }
        let total: u32 = quotas.iter().sum();
        prop_assert!(total <= budget);
        let left = (0..lanes.len()).any(|at| may_get(&lanes, &quotas, at, most, false));
        prop_assert!(total == budget || !left, "a slot stays free while a lane waits");
    }

    /// Jobs end between rounds, so that nothing but turns decides: over any number of rounds equals get the same.
    #[test]
    fn equals_get_the_same_over_rounds(
        clients in 1..5_u8,
        each in 1..6_usize,
        free in prop::collection::vec(0..30_u32, 1..30),
    ) {
        let lanes: Vec<_> =
            (0..each * usize::from(clients)).map(|id| lane(id, id as u8 % clients, Waiting::Unknown)).collect();
        let (mut planner, mut totals) = (Planner::default(), vec![0; lanes.len()]);
        for free in free {
            for (total, quota) in totals.iter_mut().zip(planner.plan(capacity(800, free), &lanes)) {
                *total += quota;
            }
            let of_client = |of| held_by_client(&lanes, &totals, client(of));
            let of_clients: Vec<u32> = (0..clients).map(of_client).collect();
            prop_assert!(of_clients.iter().max().unwrap() - of_clients.iter().min().unwrap() <= 1);
            for of in 0..clients {
                let own = || lanes.iter().zip(&totals).filter(|(lane, _)| lane.client == client(of)).map(|(_, n)| *n);
                prop_assert!(own().max().unwrap() - own().min().unwrap() <= 1);
            }
        }
    }

    /// Jobs run for a while, and lanes come and go: a lane that waits gets a slot in the end.
    #[test]
    fn whoever_keeps_waiting_is_served(
        lanes in 2..10_usize,
        slots in 1..6_u32,
        runs in prop::collection::vec(1..5_usize, 1..20),
    ) {
        let mut planner = Planner::default();
        let mut running: Vec<(usize, usize)> = Vec::new();
        let mut waited = vec![0; lanes];
        for round in 0..400 {
            running.retain(|(_, until)| *until > round);
            let in_flight = |id| running.iter().filter(|(of, _)| *of == id).count() as u32;
            let mut all: Vec<_> = (0..lanes)
                .map(|id| Lane { in_flight: in_flight(id), ..lane(id, id as u8 % 3, Waiting::AtLeast(9)) })
                .collect();
            all.push(lane(1_000 + round, 3, Waiting::AtLeast(1)));
            let quotas = planner.plan(capacity(slots, slots - running.len() as u32), &all);
            for (id, waited) in waited.iter_mut().enumerate() {
                *waited = if quotas[id] > 0 || in_flight(id) > 0 { 0 } else { *waited + 1 };
            }
            for (id, quota) in quotas.iter().enumerate().take(lanes) {
                let run = runs[(round + id) % runs.len()];
                running.extend((0..*quota).map(|_| (id, round + run)));
            }
            // At worst each of four clients' turns and each lane's before it takes the longest run.
            prop_assert!(waited.iter().all(|waited| *waited <= 5 * 4 * lanes), "{waited:?}");
        }
    }
}
