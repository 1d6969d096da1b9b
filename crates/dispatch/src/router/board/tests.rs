use serde_json::json;
use tidegate::{Resource, Timestamp};
use tidegate_core::pool::breaker::{CLOSING_SUCCESSES, MIN_CALLS, OPEN_FOR};

use super::*;

const POOL: i64 = 900;
/// For how long slots are granted here.
const GRANT: Duration = Duration::from_secs(60);
/// Of each job's payload.
const BYTES: u64 = 300 << 10;
/// How many attempts may be under way.
const MOST: u32 = 1_000;

fn resource(id: i64, kind: &str, body: serde_json::Value) -> Resource {
    Resource {
        id: Tsid::from_i64(id),
        kind: kind.into(),
        client: None,
        code: format!("c{id}"),
        version: id,
        deleted: false,
        body: body.to_string(),
        created_at: Timestamp::UNIX_EPOCH,
        updated_at: Timestamp::UNIX_EPOCH,
    }
}

fn subscription(id: i64, status: &str, pool: Option<i64>) -> Resource {
    let mut said = json!({
        "name": "n", "bindings": [{ "code": "t" }], "target": format!("https://host{id}.example.com/"),
        "mode": "IMMEDIATE", "timeout_seconds": 30, "max_retries": 3, "max_age_seconds": 60, "delay_seconds": 0,
        "sequence": 99, "data_only": true,
    });
    if let Some(pool) = pool {
        said["dispatch_pool"] = json!(Tsid::from_i64(pool));
    }
    resource(id, "subscription", json!({ "status": status, "said": said }))
}

fn pool(concurrency: u32, rate: Option<u32>, status: &str) -> Resource {
    let mut body = json!({ "name": "n", "concurrency": concurrency, "status": status });
    if let Some(rate) = rate {
        body["rateLimitPerMinute"] = json!(rate);
    }
    resource(POOL, "dispatch_pool", body)
}

/// A board and the database that it asks, which has jobs in lanes and grants everything.
struct Scene {
    board: Board,
    now: Instant,
    jobs: HashMap<Tsid, u32>,
}

impl Scene {
    fn new(routes: &Routes) -> Self {
        let (mut board, now) = (Board::new(GRANT, MOST), Instant::now());
        board.go_by(routes, now);
        Self { board, now, jobs: HashMap::new() }
    }

    fn make(&mut self, lane: i64, jobs: u32) {
        *self.jobs.entry(Tsid::from_i64(lane)).or_default() += jobs;
        self.board.hint(Tsid::from_i64(lane));
    }

    /// Answers what the board asks about pools; each gets what it wants, as the only node does.
    fn grant(&mut self) {
        for need in self.board.needs(self.now).0 {
            let slots = need.concurrency.min(need.wanted);
            let starts = match need.rate {
                None => Vec::new(),
                Some((_, wanted)) => (0..wanted.min(2)).map(|at| Duration::from_millis(100) * at).collect(),
            };
            let ask_again_in = need.rate.map(|_| Duration::from_millis(200));
            let grant = LimitGrant { slots, usable: slots, starts, ask_again_in };
            self.board.granted(need.pool, &grant, self.now, self.now);
        }
    }

    /// Makes one claim of everything that is asked for, and returns the jobs that are to be attempted.
    fn claim(&mut self) -> Vec<(Tsid, Permit)> {
        self.grant();
        let mut admitted = Vec::new();
        for ask in self.board.plan(self.now).0 {
            let mut got = HashMap::new();
            for (lane, quota) in &ask.quotas {
                let there = self.jobs.entry(*lane).or_default();
                let took = (*quota).min(*there);
                *there -= took;
                got.insert(*lane, took);
            }
            self.board.claimed(&ask, &got, false, self.now);
            for (lane, took) in got {
                for _ in 0..took {
                    match self.board.admit(lane, BYTES, self.now) {
                        Some((permit, _)) => admitted.push((lane, permit)),
                        None => *self.jobs.entry(lane).or_default() += 1,
                    }
                }
            }
        }
        admitted
    }

    fn end(&mut self, (lane, permit): (Tsid, Permit), result: CallResult) {
        let origin = self.board.lanes[&lane].route.origin.clone();
        self.end_at(&origin, (lane, permit), result);
    }

    fn end_at(&mut self, origin: &Origin, (lane, permit): (Tsid, Permit), result: CallResult) {
        self.board.ended(lane, origin, permit, result, BYTES, self.now);
        self.board.recorded(lane, None, false);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }
}

fn lanes(claimed: &[(Tsid, Permit)]) -> Vec<i64> {
    let mut lanes: Vec<i64> = claimed.iter().map(|(lane, _)| lane.to_i64()).collect();
    lanes.sort_unstable();
    lanes
}

#[test]
fn nothing_is_claimed_without_a_grant_and_no_more_than_granted() {
    let routes = Routes::of(vec![subscription(1, "ACTIVE", Some(POOL))], vec![pool(4, None, "ACTIVE")]);
    let mut scene = Scene::new(&routes);
    assert_eq!(scene.board.needs(scene.now).0, [], "a pool without jobs asks nothing");
    scene.make(1, 10);
    assert_eq!(scene.board.plan(scene.now).0, []);
    let mut claimed = scene.claim();
    assert_eq!(lanes(&claimed), [1; 4]);
    assert_eq!(scene.claim().len(), 0);
    scene.end(claimed.remove(0), CallResult::Answered);
    scene.end(claimed.remove(0), CallResult::Answered);
    assert_eq!(lanes(&scene.claim()), [1; 2]);
}

#[test]
fn a_claim_that_finds_nothing_is_not_repeated_before_a_hint() {
    let mut scene = Scene::new(&Routes::of(vec![subscription(1, "ACTIVE", None)], vec![]));
    scene.make(1, 1);
    let claimed = scene.claim();
    assert_eq!(claimed.len(), 1);
    assert_eq!(scene.claim().len(), 0, "there may have been more");
    assert_eq!(scene.board.plan(scene.now).0, []);
    // A hint while a claim is under way: it may not have seen what the hint is about.
    scene.board.hint(Tsid::from_i64(1));
    let asks = scene.board.plan(scene.now).0;
    scene.make(1, 1);
    assert_eq!(scene.board.plan(scene.now).0, [], "one claim of a queue at a time");
    scene.board.claimed(&asks[0], &HashMap::new(), false, scene.now);
    assert_eq!(scene.claim().len(), 1);
    // A retry is asked for when it is due.
    scene.claim();
    let due = scene.now + Duration::from_secs(3);
    scene.board.hint_at(Tsid::from_i64(1), due);
    assert_eq!(scene.board.plan(scene.now), (vec![], Some(due)));
    scene.pass(Duration::from_secs(3));
    scene.jobs.insert(Tsid::from_i64(1), 1);
    assert_eq!(scene.claim().len(), 1);
}

#[test]
fn suspended_pools_and_paused_subscriptions_wait() {
    let held = |subscription_status: &str, pool_status: &str| {
        let one = subscription(1, subscription_status, Some(POOL));
        Routes::of(vec![one], vec![pool(4, None, pool_status)])
    };
    let mut scene = Scene::new(&held("ACTIVE", "SUSPENDED"));
    scene.make(1, 2);
    assert_eq!(scene.claim().len(), 0);
    scene.board.go_by(&held("PAUSED", "ACTIVE"), scene.now);
    scene.make(1, 0);
    scene.grant();
    assert!(scene.board.plan(scene.now).0.is_empty(), "what is not delivered is not claimed either, again and again");
    scene.board.go_by(&held("ACTIVE", "ACTIVE"), scene.now);
    assert_eq!(scene.claim().len(), 2, "without another hint");
}

#[test]
fn a_claimed_job_is_not_attempted_once_its_subscription_is_paused_or_gone() {
    let routes = |status| Routes::of(vec![subscription(1, status, None)], vec![]);
    for next in [routes("PAUSED"), Routes::of(vec![], vec![])] {
        let mut scene = Scene::new(&routes("ACTIVE"));
        scene.make(1, 1);
        scene.grant();
        let ask = scene.board.plan(scene.now).0.remove(0);
        scene.board.go_by(&next, scene.now);
        let lane = Tsid::from_i64(1);
        scene.board.claimed(&ask, &HashMap::from([(lane, 1)]), false, scene.now);
        assert!(scene.board.admit(lane, BYTES, scene.now).is_none());
        assert!(scene.board.is_idle());
    }
}

#[test]
fn what_is_quiet_for_long_is_delivered_again_although_others_change() {
    let routes = |other| {
        let quiet = subscription(1, "ACTIVE", Some(POOL));
        Routes::of(vec![quiet, subscription(2, other, None)], vec![pool(4, None, "ACTIVE")])
    };
    let mut scene = Scene::new(&routes("ACTIVE"));
    scene.make(1, 1);
    scene.claim().into_iter().for_each(|one| scene.end(one, CallResult::Answered));
    assert!(scene.claim().is_empty());
    scene.pass(IDLE);
    for need in scene.board.needs(scene.now).0 {
        let nothing = LimitGrant { slots: 0, usable: 0, starts: Vec::new(), ask_again_in: None };
        scene.board.granted(need.pool, &nothing, scene.now, scene.now);
    }
    scene.pass(2 * GRANT);
    scene.board.go_by(&routes("PAUSED"), scene.now);
    scene.make(1, 1);
    assert_eq!(scene.claim().len(), 1);
}

#[test]
fn while_the_database_fails_it_is_not_asked_at_once_again() {
    for rate in [None, Some(60)] {
        let routes = Routes::of(vec![subscription(1, "ACTIVE", Some(POOL))], vec![pool(4, rate, "ACTIVE")]);
        let mut scene = Scene::new(&routes);
        scene.make(1, 1);
        for _ in 0..3 {
            let needs = scene.board.needs(scene.now).0;
            assert_eq!(needs.len(), 1);
            scene.board.not_granted(needs[0].pool, scene.now);
            let (needs, next) = scene.board.needs(scene.now);
            assert_eq!((needs.len(), next), (0, Some(scene.now + ASK_AGAIN)), "{rate:?}");
            scene.pass(ASK_AGAIN);
        }
    }
}

#[test]
fn during_a_trial_nothing_else_is_claimed_for_its_target() {
    let at_one_host = |id| {
        let mut resource = subscription(id, "ACTIVE", None);
        resource.body = resource.body.replace(&format!("host{id}"), "host");
        resource
    };
    let mut scene = Scene::new(&Routes::of(vec![at_one_host(1), at_one_host(2)], vec![]));
    scene.make(1, MIN_CALLS + 1);
    while scene.jobs[&Tsid::from_i64(1)] > 1 {
        scene.claim().into_iter().for_each(|one| scene.end(one, CallResult::Failed));
    }
    scene.make(2, 5);
    scene.pass(OPEN_FOR);
    let trial = scene.claim();
    assert_eq!(trial.len(), 1);
    assert!(scene.board.plan(scene.now).0.is_empty(), "claimed, it would only be given back, again and again");
    trial.into_iter().for_each(|one| scene.end(one, CallResult::Answered));
    assert_eq!(scene.claim().len(), 1);
}

#[test]
fn an_open_breaker_holds_its_target_and_no_other() {
    let both = vec![subscription(1, "ACTIVE", Some(POOL)), subscription(2, "ACTIVE", Some(POOL))];
    let mut scene = Scene::new(&Routes::of(both, vec![pool(100, None, "ACTIVE")]));
    scene.make(1, 100);
    let claimed = scene.claim();
    assert!(claimed.len() >= MIN_CALLS as usize);
    for one in claimed {
        scene.end(one, CallResult::Failed);
    }
    scene.make(2, 1);
    assert_eq!(lanes(&scene.claim()), [2]);
    assert_eq!(scene.claim().len(), 0);
    let (asks, wake_at) = scene.board.plan(scene.now);
    assert_eq!((asks.len(), wake_at), (0, Some(scene.now + OPEN_FOR)));
    scene.pass(OPEN_FOR);
    scene.make(1, 50);
    for _ in 0..CLOSING_SUCCESSES {
        let mut one = scene.claim();
        assert_eq!(lanes(&one), [1], "one at a time");
        assert_eq!(scene.claim().len(), 0);
        scene.end(one.remove(0), CallResult::Answered);
    }
    assert!(scene.claim().len() > 1);
}

#[test]
fn under_a_rate_each_attempt_has_a_moment() {
    let rated = Routes::of(vec![subscription(1, "ACTIVE", Some(POOL))], vec![pool(10, Some(600), "ACTIVE")]);
    let mut scene = Scene::new(&rated);
    scene.make(1, 10);
    scene.grant();
    let ask = scene.board.plan(scene.now).0.remove(0);
    scene.jobs.clear();
    let lane = Tsid::from_i64(1);
    scene.board.claimed(&ask, &ask.quotas.clone().into_iter().collect(), false, scene.now);
    let first = scene.board.admit(lane, BYTES, scene.now).unwrap();
    let second = scene.board.admit(lane, BYTES, scene.now).unwrap();
    assert_eq!([first.1, second.1], [Some(scene.now), Some(scene.now + Duration::from_millis(100))]);
    assert_eq!(scene.claim().len(), 0, "no moments");
    let (needs, wake_at) = scene.board.needs(scene.now);
    assert_eq!((needs.len(), wake_at), (0, Some(scene.now + Duration::from_millis(200))));
    scene.pass(Duration::from_millis(200));
    assert_eq!(scene.claim().len(), 0, "nothing is left in the lane");
    scene.make(1, 1);
    assert_eq!(scene.claim().len(), 1);
    // A moment that was not used in time is lost.
    scene.pass(LATEST + Duration::from_millis(200));
    scene.make(1, 1);
    assert_eq!(scene.board.plan(scene.now).0, []);
}

#[test]
fn while_the_database_is_asked_no_more_is_used_than_it_was_told() {
    let routes = Routes::of(vec![subscription(1, "ACTIVE", Some(POOL))], vec![pool(8, None, "ACTIVE")]);
    let mut scene = Scene::new(&routes);
    scene.make(1, 100);
    scene.grant();
    // Somebody else wants half of them.
    scene.pass(ASK_EVERY);
    let need = scene.board.needs(scene.now).0.remove(0);
    assert_eq!((need.in_use, need.wanted), (8, 8));
    let grant = LimitGrant { slots: 8, usable: 4, starts: vec![], ask_again_in: None };
    scene.board.granted(need.pool, &grant, scene.now, scene.now);
    assert_eq!(lanes(&scene.claim()), [1; 4]);
    scene.pass(ASK_AGAIN);
    let need = scene.board.needs(scene.now).0.remove(0);
    assert_eq!(need.in_use, 4, "the others may be given away");
    assert_eq!(scene.board.plan(scene.now).0, []);
    scene.board.not_granted(need.pool, scene.now);
    assert_eq!(scene.board.plan(scene.now).0, [], "they may have been");
    // A grant ends, and what it was for goes on.
    scene.pass(GRANT);
    assert_eq!(scene.board.plan(scene.now).0, []);
    assert_eq!(scene.claim().len(), 4, "the database was asked again");
}

#[test]
fn what_may_be_granted_while_the_router_stops_is_waited_for_and_given_back() {
    let routes = Routes::of(vec![subscription(1, "ACTIVE", Some(POOL))], vec![pool(4, None, "ACTIVE")]);
    let mut scene = Scene::new(&routes);
    scene.make(1, 1);
    assert!(!scene.board.is_asking());
    let (needs, _) = scene.board.needs(scene.now);
    assert!(scene.board.is_idle() && scene.board.is_asking());
    let given = scene.board.gives_back(scene.now);
    assert_eq!((given.len(), given[0].pool, given[0].in_use, given[0].wanted), (1, needs[0].pool, 0, 0));
    scene.board.not_granted(needs[0].pool, scene.now);
    assert!(!scene.board.is_asking() && scene.board.gives_back(scene.now).is_empty());
}

#[test]
fn a_subscription_that_changes_its_pool_takes_its_attempts_along() {
    let of = |pool_of| Routes::of(vec![subscription(1, "ACTIVE", pool_of)], vec![pool(4, None, "ACTIVE")]);
    let mut scene = Scene::new(&of(None));
    scene.make(1, 20);
    let claimed = scene.claim();
    assert_eq!(claimed.len(), 10, "the default pool's");
    scene.board.go_by(&of(Some(POOL)), scene.now);
    assert_eq!(scene.claim().len(), 0, "they count in the other pool");
    let count = claimed.len();
    for (at, one) in claimed.into_iter().enumerate() {
        scene.end(one, CallResult::Answered);
        if at + 1 == count - 3 {
            assert_eq!(scene.claim().len(), 1);
        }
    }
}

/// Whatever happens in whatever order: no pool uses more slots than it was granted, and in the end all of them are free.
#[test]
fn slots_are_never_exceeded_nor_lost() {
    use rand::{Rng as _, SeedableRng as _};
    for seed in 0..200 {
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let routes = |status: &str, pool_of: Option<i64>| {
            let all = (1..=5).map(|id| subscription(id, if id == 3 { status } else { "ACTIVE" }, pool_of));
            Routes::of(all.collect(), vec![pool(6, None, "ACTIVE")])
        };
        let mut scene = Scene::new(&routes("ACTIVE", Some(POOL)));
        let mut running = Vec::new();
        for _ in 0..300 {
            match random.random_range(0..8) {
                0 | 1 => scene.make(random.random_range(1..=5), random.random_range(0..4)),
                2 | 3 => running.extend(scene.claim()),
                4 | 5 if !running.is_empty() => {
                    let one = running.swap_remove(random.random_range(0..running.len()));
                    let results = [CallResult::Answered, CallResult::Failed, CallResult::NotMade];
                    scene.end(one, results[random.random_range(0..3)]);
                }
                6 => scene.pass(Duration::from_millis(random.random_range(0..3_000))),
                7 => {
                    let status = if random.random() { "ACTIVE" } else { "PAUSED" };
                    scene.board.go_by(&routes(status, Some(POOL)), scene.now);
                }
                _ => {}
            }
            assert!(running.len() <= 6, "seed {seed}: {} attempts", running.len());
        }
        scene.board.go_by(&routes("ACTIVE", Some(POOL)), scene.now);
        for _ in 0..1_000 {
            for one in std::mem::take(&mut running) {
                scene.end(one, CallResult::Answered);
            }
            scene.pass(Duration::from_secs(1));
            running = scene.claim();
        }
        assert_eq!(scene.jobs.values().sum::<u32>(), 0, "seed {seed}: jobs were forgotten");
        assert!(scene.board.is_idle(), "seed {seed}: slots were lost");
    }
}

#[test]
fn a_result_counts_for_the_target_that_was_tried() {
    let to = |version: i64, target: &str| {
        let mut one = subscription(1, "ACTIVE", None);
        one.body = one.body.replace("https://host1.example.com/", target);
        one.version = version;
        Routes::of(vec![one], vec![])
    };
    let mut scene = Scene::new(&to(1, "https://old.example.com/"));
    scene.make(1, 20);
    let tried = scene.claim();
    assert_eq!(tried.len(), 10);
    let old = (None, "https://old.example.com".to_owned());
    scene.board.go_by(&to(2, "https://new.example.com/"), scene.now);
    let new = scene.board.lanes[&Tsid::from_i64(1)].route.origin.clone();
    assert_eq!(new.1, "https://new.example.com");
    // One goes out to the new target before the others end.
    let mut tried = tried.into_iter();
    scene.end_at(&old, tried.next().unwrap(), CallResult::Failed);
    let first = scene.claim().remove(0);
    tried.for_each(|one| scene.end_at(&old, one, CallResult::Failed));
    assert_eq!(scene.board.breaker(&new, scene.now), State::Closed);
    scene.end_at(&new, first, CallResult::Answered);
}

#[test]
fn breakers_of_targets_that_nobody_goes_to_are_forgotten() {
    let mut scene = Scene::new(&Routes::of(vec![subscription(1, "ACTIVE", None)], vec![]));
    scene.make(1, 10);
    for one in scene.claim() {
        scene.end(one, CallResult::Failed);
    }
    assert_eq!(scene.board.open_breakers(scene.now), 1);
    scene.board.forget_breakers(scene.now);
    assert_eq!(scene.board.open_breakers(scene.now), 1, "its lane is there");
    scene.board.go_by(&Routes::of(vec![], vec![]), scene.now);
    assert_eq!(scene.board.open_breakers(scene.now), 0);
}

#[test]
fn moments_are_asked_for_only_where_slots_are_free() {
    let rated = Routes::of(vec![subscription(1, "ACTIVE", Some(POOL))], vec![pool(2, Some(600), "ACTIVE")]);
    let mut scene = Scene::new(&rated);
    scene.make(1, 10);
    let need = scene.board.needs(scene.now).0.remove(0);
    assert_eq!(need.rate.unwrap().1, 2, "nothing is known of slots yet");
    // Another node has them all.
    let none = LimitGrant { slots: 0, usable: 0, starts: vec![], ask_again_in: None };
    scene.board.granted(need.pool, &none, scene.now, scene.now);
    let (needs, wake_at) = scene.board.needs(scene.now);
    assert_eq!((needs.len(), wake_at), (0, Some(scene.now + ASK_AGAIN)));
    scene.pass(ASK_AGAIN);
    let need = scene.board.needs(scene.now).0.remove(0);
    assert_eq!((need.wanted, need.rate.unwrap().1), (2, 0));
    let one = LimitGrant { slots: 1, usable: 1, ..none };
    scene.board.granted(need.pool, &one, scene.now, scene.now);
    let need = scene.board.needs(scene.now).0.remove(0);
    assert_eq!(need.rate.unwrap().1, 1, "at once, for the one that is free");
}

#[test]
fn what_is_under_way_is_bounded_in_attempts_and_bytes_and_for_each_client() {
    let client = Some(Tsid::from_i64(7));
    let of_client = |id| Resource { client, ..subscription(id, "ACTIVE", None) };
    let routes =
        Routes::of(vec![subscription(1, "ACTIVE", Some(POOL)), of_client(2)], vec![pool(5_000, None, "ACTIVE")]);
    let mut scene = Scene::new(&routes);
    scene.make(1, 5_000);
    let greedy = scene.claim();
    let by_bytes = (MAX_BYTES / u64::from(CLIENT_PART) / BYTES) as usize;
    assert_eq!(greedy.len(), (MOST / CLIENT_PART) as usize, "as many as one client may have");
    assert!(greedy.len() > by_bytes);
    assert_eq!(scene.claim().len(), 0);
    // What is large is known once it was claimed: then nothing more is claimed for that client.
    let mut greedy = greedy.into_iter();
    scene.end(greedy.next().unwrap(), CallResult::Answered);
    assert_eq!(scene.claim().len(), 0, "its payloads are too many bytes");
    scene.make(2, 20);
    assert_eq!(lanes(&scene.claim()), [2; 10], "another client's pool goes on");
    greedy.by_ref().take(400).collect::<Vec<_>>().into_iter().for_each(|one| scene.end(one, CallResult::Answered));
    assert!(!scene.claim().is_empty());
}
