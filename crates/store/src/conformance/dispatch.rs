//! Deliveries: which lanes wait, the limits of pools over several nodes, and attempts at jobs.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_core::pool::rate::Rate;
use tidegate_core::{End, EntryId, QueueState, Tsid};

use super::fact_retention::run_retention;
use super::facts::{fact, ingest_one, made, to};
use super::scene::*;
use crate::ErrorKind;
use crate::values::*;

const HOLD: Duration = Duration::from_secs(5);

async fn jobs_of(scene: &Scene) -> AnyStore {
    scene.open().await.family(Family::Jobs)
}

/// Job lanes of the default queue, and when the next job is due, in seconds.
fn waiting(lanes: &[&str], next_due_in: Option<u64>) -> WaitingLanes {
    let lanes = lanes.iter().map(|lane| (default_queue(), (*lane).to_owned())).collect();
    WaitingLanes { lanes, next_due_in: next_due_in.map(seconds) }
}

pub(super) async fn lanes_that_hold_something_wait(scene: Scene) {
    let store = scene.open().await;
    let jobs = store.family(Family::Jobs);
    assert_eq!(jobs.waiting_lanes(None).await.unwrap(), WaitingLanes::default());
    let (q, paused) = (made(&jobs, "q").await, made(&jobs, "paused").await);
    let both = || vec![event("b"), event("a"), event("a").priority(3), event("c").queue(q.clone())];
    publish(&jobs, both()).await;
    publish_one(&jobs, event("p").queue(paused.clone())).await;
    publish_one(&store, event("entry")).await;
    let pause = QueueChange { state: Some(QueueState::Paused), ..QueueChange::default() };
    jobs.put_queue(&paused, pause).await.unwrap();
    let mut all = waiting(&["a", "b"], None);
    assert_eq!(jobs.waiting_lanes(Some(default_queue())).await.unwrap(), all);
    all.lanes.push((q.clone(), "c".to_owned()));
    assert_eq!(jobs.waiting_lanes(None).await.unwrap(), all, "each once, and none that is paused");
    assert_eq!(store.waiting_lanes(None).await.unwrap(), all, "through either handle");
    let of_q = WaitingLanes { lanes: vec![(q.clone(), "c".to_owned())], next_due_in: None };
    assert_eq!(jobs.waiting_lanes(Some(q)).await.unwrap(), of_q);
    assert_eq!(jobs.waiting_lanes(Some(paused)).await.unwrap(), WaitingLanes::default());
    assert_eq!(kind(jobs.waiting_lanes(Some(queue("unknown"))).await), ErrorKind::NotFound);
    // Another process makes a lane.
    publish_one(&jobs_of(&scene).await, event("new")).await;
    assert_eq!(jobs.waiting_lanes(Some(default_queue())).await.unwrap(), waiting(&["a", "b", "new"], None));
    for claimed in claim(&jobs, 9).await {
        complete(&jobs, &claimed).await;
    }
    assert_eq!(jobs.waiting_lanes(Some(default_queue())).await.unwrap(), WaitingLanes::default());
}

pub(super) async fn timed_jobs_wait_once_they_are_due(scene: Scene) {
    let jobs = jobs_of(&scene).await;
    let after = |lane: &str, wait| event(lane).delay(seconds(wait));
    publish(&jobs, vec![after("a", 20), after("a", 10), after("b", 30), event("c")]).await;
    assert_eq!(jobs.waiting_lanes(None).await.unwrap(), waiting(&["c"], Some(10)));
    assert_eq!(jobs.waiting_lanes(Some(default_queue())).await.unwrap(), waiting(&["c"], Some(10)));
    scene.advance(12);
    assert_eq!(jobs.waiting_lanes(None).await.unwrap(), waiting(&["a", "c"], Some(8)), "behind one that is due");
    scene.advance(8);
    assert_eq!(jobs.waiting_lanes(None).await.unwrap(), waiting(&["a", "c"], Some(10)));
    for claimed in jobs.claim(want_types(9, &["a"])).await.unwrap() {
        requeue(&jobs, retry(&claimed, RequeueAt::After(seconds(4)))).await.unwrap();
    }
    assert_eq!(jobs.waiting_lanes(None).await.unwrap(), waiting(&["c"], Some(4)));
    scene.advance(10);
    assert_eq!(jobs.waiting_lanes(None).await.unwrap(), waiting(&["a", "b", "c"], None));
}

/// A job that keeps its place when it is exhausted.
async fn keeps_place(store: &AnyStore) -> EntryId {
    let (family, lane_type, group) = (Family::Jobs, Some("kept".to_owned()), Some("g".to_owned()));
    let target = Target { family, lane_type, group, keeps_place: true, ..to(&default_queue()) };
    ingest_one(store, fact("t", "{}", vec![target])).await.targets[0]
}

pub(super) async fn a_job_that_is_kept_for_ever_is_never_due(scene: Scene) {
    let jobs = jobs_of(&scene).await;
    keeps_place(&jobs).await;
    assert_eq!(jobs.waiting_lanes(None).await.unwrap(), waiting(&["kept"], None));
    let held = claim_one(&jobs).await;
    finalize(&jobs, end(&held, End::Failed)).await.unwrap();
    assert_eq!(jobs.waiting_lanes(None).await.unwrap(), WaitingLanes::default());
}

fn pool(number: i64) -> PoolKey {
    PoolKey::of(Tsid::from_i64(number))
}

fn ask(concurrency: u32, in_use: u32, wanted: u32) -> LimitAsk {
    LimitAsk { pool: pool(1), concurrency, in_use, wanted, rate: None }
}

/// Asks for a pool; returns its slots, and those to be used.
async fn slots(store: &AnyStore, node: &str, ask: LimitAsk) -> (u32, u32) {
    let granted = store.limits(node, vec![ask], HOLD).await.expect("the limits are answered").remove(0);
    (granted.slots, granted.usable)
}

pub(super) async fn slots_are_shared_by_nodes(scene: Scene) {
    let (here, there) = (scene.open().await, jobs_of(&scene).await);
    assert_eq!(slots(&here, "a", ask(10, 0, 4)).await, (4, 4));
    assert_eq!(slots(&here, "a", ask(10, 4, 20)).await, (10, 10));
    assert_eq!(slots(&there, "b", ask(10, 0, 20)).await, (0, 0));
    assert_eq!(slots(&here, "a", ask(10, 10, 20)).await, (10, 5), "it keeps what it uses, and uses no more");
    assert_eq!(slots(&here, "a", ask(10, 7, 20)).await, (7, 5));
    assert_eq!(slots(&there, "b", ask(10, 0, 20)).await, (3, 3));
    assert_eq!(slots(&here, "a", ask(10, 2, 20)).await, (5, 5));
    assert_eq!(slots(&there, "b", ask(10, 3, 20)).await, (5, 5));
    assert_eq!(slots(&there, "b", ask(4, 5, 20)).await, (5, 2), "a lowered limit");
    assert_eq!(slots(&here, "a", ask(4, 0, 20)).await, (0, 0), "what it gives back is given to nobody");
    assert_eq!(slots(&there, "b", ask(4, 1, 20)).await, (2, 2));
    assert_eq!(slots(&here, "a", ask(4, 0, 0)).await, (0, 0));
    assert_eq!(scene.fixture.number("SELECT count(*) FROM tidegate.dispatch_slots").await, 1, "a needs none");
    assert_eq!(slots(&there, "b", ask(4, 2, 20)).await, (4, 4));
}

pub(super) async fn slots_never_exceed_the_limit(scene: Scene) {
    let mut nodes = Vec::new();
    for number in 0..4_u32 {
        let store = scene.open().await;
        nodes.push(tokio::spawn(async move {
            let node = format!("node {number}");
            let mut in_use = 0;
            for round in 0..25 {
                let wanted = in_use + (round * 7 + number * 3) % 11;
                let granted = store.limits(&node, vec![ask(10, in_use, wanted)], HOLD).await.unwrap().remove(0);
                assert!(granted.slots >= in_use && granted.usable <= granted.slots, "{granted:?}");
                in_use = granted.usable.saturating_sub((round + number) % 3);
            }
        }));
    }
    let held = "SELECT coalesce(sum(slots), 0) FROM tidegate.dispatch_slots";
    while !nodes.iter().all(tokio::task::JoinHandle::is_finished) {
        let held = scene.fixture.number(held).await;
        assert!(held <= 10, "{held} are held");
        tokio::task::yield_now().await;
    }
    for node in nodes {
        node.await.unwrap();
    }
}

pub(super) async fn slots_of_a_dead_node_come_back(scene: Scene) {
    let (here, there) = (scene.open().await, scene.open().await);
    assert_eq!(slots(&here, "a", ask(10, 0, 10)).await, (10, 10));
    scene.advance(4);
    assert_eq!(slots(&there, "b", ask(10, 0, 10)).await, (0, 0));
    assert_eq!(slots(&here, "a", ask(10, 10, 10)).await.0, 10, "it asked again");
    scene.advance(4);
    assert_eq!(slots(&there, "b", ask(10, 0, 10)).await, (0, 0));
    scene.advance(1);
    assert_eq!(slots(&there, "b", ask(10, 0, 10)).await, (10, 10));
    assert_eq!(scene.fixture.number("SELECT count(*) FROM tidegate.dispatch_slots").await, 1);
    assert_eq!(slots(&here, "a", ask(10, 3, 10)).await, (3, 3), "it was not dead, and uses some");
    assert_eq!(slots(&there, "b", ask(10, 9, 10)).await, (9, 5));
}

pub(super) async fn slots_of_a_node_are_given_back_by_its_name(scene: Scene) {
    let (here, there) = (scene.open().await, jobs_of(&scene).await);
    assert_eq!(here.slot_holders().await.unwrap(), Vec::<String>::new());
    here.release_slots(vec!["a".to_owned()]).await.unwrap();
    let of = |number| LimitAsk { pool: pool(number), ..ask(10, 6, 6) };
    for (node, pools) in [("a", vec![of(1), of(2)]), ("ab", vec![of(2)]), ("A", vec![of(3)])] {
        here.limits(node, pools, HOLD).await.unwrap();
    }
    assert_eq!(there.slot_holders().await.unwrap(), ["A", "a", "ab"], "each once, in order");
    there.release_slots(Vec::new()).await.unwrap();
    assert_eq!(kind(there.release_slots(vec![String::new()]).await), ErrorKind::Invalid);
    assert_eq!(slots(&there, "b", ask(10, 0, 10)).await.0, 4);
    there.release_slots(vec!["a".to_owned(), "unknown".to_owned()]).await.unwrap();
    assert_eq!(here.slot_holders().await.unwrap(), ["A", "ab", "b"], "others keep theirs");
    assert_eq!(slots(&there, "b", ask(10, 4, 10)).await, (10, 10), "at once");
    scene.advance(6);
    assert_eq!(here.slot_holders().await.unwrap(), ["A", "ab", "b"], "as long as they are stored");
}

pub(super) async fn each_node_has_its_turn(scene: Scene) {
    let store = scene.open().await;
    assert_eq!(slots(&store, "a", ask(1, 0, 9)).await, (1, 1));
    assert_eq!(slots(&store, "b", ask(1, 0, 9)).await, (0, 0));
    scene.advance(4);
    assert_eq!(slots(&store, "a", ask(1, 1, 9)).await, (1, 1));
    assert_eq!(slots(&store, "b", ask(1, 0, 9)).await, (0, 0));
    scene.advance(1);
    assert_eq!(slots(&store, "a", ask(1, 1, 9)).await, (1, 0), "its turn is over");
    assert_eq!(slots(&store, "a", ask(1, 0, 9)).await, (0, 0));
    assert_eq!(slots(&store, "a", ask(1, 0, 9)).await, (0, 0), "the other one is next");
    assert_eq!(slots(&store, "b", ask(1, 0, 9)).await, (1, 1));
    assert_eq!(slots(&store, "a", ask(1, 0, 9)).await, (0, 0));
}

pub(super) async fn no_slot_expires_during_an_outage(scene: Scene) {
    let store = scene.open_on_database_time().await;
    store.maintain().await.unwrap();
    let short = Duration::from_millis(20);
    store.limits("a", vec![ask(10, 10, 10)], short).await.unwrap();
    store.close().await;
    scene.fixture.age_heartbeat(seconds(600)).await;
    let store = scene.open_on_database_time().await;
    assert_eq!(slots(&store, "b", ask(10, 0, 10)).await, (0, 0), "they were held when the store went down");
    store.maintain().await.unwrap();
    assert_eq!(slots(&store, "b", ask(10, 0, 10)).await, (0, 0));
}

pub(super) async fn a_rate_holds_across_nodes(scene: Scene) {
    let (here, there) = (scene.open().await, scene.open().await);
    let rate = Rate::per_minute(600).expect("a rate");
    let asks = |wanted| vec![LimitAsk { rate: Some((rate, wanted)), ..ask(10, 0, 1) }];
    let ms = |times: &[u64]| times.iter().map(|time| Duration::from_millis(*time)).collect::<Vec<_>>();
    let mut starts = BTreeSet::new();
    for second in 0..3 {
        let first = here.limits("a", asks(2), HOLD).await.unwrap().remove(0);
        assert_eq!((first.starts.clone(), first.ask_again_in), (ms(&[0, 100]), Some(Duration::ZERO)));
        let second_one = there.limits("b", asks(64), HOLD).await.unwrap().remove(0);
        assert_eq!((second_one.starts.clone(), second_one.ask_again_in), (ms(&[200]), Some(ms(&[50])[0])));
        let third = here.limits("a", asks(64), HOLD).await.unwrap().remove(0);
        assert_eq!((third.starts, third.ask_again_in), (Vec::new(), Some(ms(&[50])[0])));
        starts.extend(first.starts.into_iter().chain(second_one.starts).map(|start| start + seconds(second)));
        scene.advance(1);
    }
    assert_eq!(starts.len(), 9, "each moment once");
    let none = here.limits("a", asks(0), HOLD).await.unwrap().remove(0);
    assert_eq!((none.starts, none.ask_again_in), (Vec::new(), Some(Duration::ZERO)));
    let unlimited = here.limits("a", vec![ask(10, 0, 1)], HOLD).await.unwrap().remove(0);
    assert_eq!((unlimited.starts, unlimited.ask_again_in), (Vec::new(), None));
}

pub(super) async fn pools_are_apart(scene: Scene) {
    let store = scene.open().await;
    let client = |number| PoolKey::default_of(Some(Tsid::from_i64(number)));
    let keys = [pool(9), client(1), PoolKey::default_of(None), client(2), pool(1)];
    let of = |(number, pool): (u32, &PoolKey)| LimitAsk { pool: *pool, ..ask(number + 1, 0, 99) };
    let asks: Vec<LimitAsk> = (0..).zip(&keys).map(of).collect();
    let granted = store.limits("a", asks.clone(), HOLD).await.unwrap();
    assert_eq!(granted.iter().map(|granted| granted.slots).collect::<Vec<_>>(), [1, 2, 3, 4, 5], "in their order");
    let granted = store.limits("b", asks.clone(), HOLD).await.unwrap();
    assert!(granted.iter().all(|granted| granted.slots == 0), "{granted:?}");
    assert_eq!(store.limits("a", Vec::new(), HOLD).await.unwrap(), []);
    assert_eq!(kind(store.limits("a", vec![asks[0], asks[1], asks[0]], HOLD).await), ErrorKind::Invalid);
    assert_eq!(kind(store.limits("", asks, HOLD).await), ErrorKind::Invalid);
}

/// Attempts with a record.
fn with_record(mut item: Finalize, record: &str) -> Finalize {
    item.attempt = Some(record.to_owned());
    item
}

fn failed(claimed: &Claimed, record: &str) -> Requeue {
    Requeue { attempt: Some(record.to_owned()), ..retry(claimed, RequeueAt::Now) }
}

/// The recorded attempts as (generation, number, record).
async fn recorded(store: &AnyStore, id: EntryId) -> Vec<(u32, u32, String)> {
    let attempts = store.job_attempts(id).await.expect("attempts are read");
    attempts.into_iter().map(|attempt| (attempt.generation, attempt.attempt, attempt.record)).collect()
}

fn records(expected: &[(u32, u32, &str)]) -> Vec<(u32, u32, String)> {
    expected.iter().map(|(generation, attempt, record)| (*generation, *attempt, (*record).to_owned())).collect()
}

async fn rows(scene: &Scene) -> i64 {
    scene.fixture.number("SELECT count(*) FROM tidegate.dispatch_attempts").await
}

pub(super) async fn attempts_are_recorded_with_what_follows(scene: Scene) {
    let store = scene.open().await;
    let jobs = store.family(Family::Jobs);
    let ids = publish(&jobs, vec![event("a"), event("b"), event("c")]).await;
    assert_eq!(recorded(&jobs, ids[0]).await, []);
    let held = claim(&jobs, 3).await;
    finalize(&jobs, with_record(end(&held[0], End::Completed), "{\"n\":1}")).await.unwrap();
    assert_eq!((recorded(&jobs, ids[0]).await, rows(&scene).await), (records(&[(1, 1, "{\"n\":1}")]), 0));
    requeue(&jobs, failed(&held[1], "first")).await.unwrap();
    requeue(&jobs, Requeue { aside: true, when: RequeueAt::After(seconds(0)), ..failed(&held[2], "c") }).await.unwrap();
    for held in claim(&jobs, 2).await {
        if held.id == ids[1] {
            requeue(&jobs, failed(&held, "second")).await.unwrap();
        } else {
            requeue(&jobs, retry(&held, RequeueAt::Now)).await.unwrap();
        }
    }
    let held = jobs.claim(want_types(1, &["b"])).await.unwrap().remove(0);
    finalize(&jobs, with_record(end(&held, End::Failed), "third")).await.unwrap();
    let expected = records(&[(1, 1, "first"), (1, 2, "second"), (1, 3, "third")]);
    assert_eq!(recorded(&jobs, ids[1]).await, expected);
    assert_eq!(recorded(&store, ids[1]).await, expected, "through either handle");
    assert_eq!((recorded(&jobs, ids[2]).await, rows(&scene).await), (records(&[(1, 1, "c")]), 3));
}

pub(super) async fn only_the_holder_records_an_attempt(scene: Scene) {
    let jobs = jobs_of(&scene).await;
    let id = publish_one(&jobs, event("t")).await;
    let zombie = claim_one(&jobs).await;
    scene.advance(61);
    let held = claim_one(&jobs).await;
    assert_eq!(kind(requeue(&jobs, failed(&zombie, "zombie")).await), ErrorKind::Fenced);
    assert_eq!(kind(finalize(&jobs, with_record(end(&zombie, End::Failed), "zombie")).await), ErrorKind::Fenced);
    assert_eq!(recorded(&jobs, id).await, []);
    let twice = jobs.requeue(vec![failed(&held, "once"), failed(&held, "again"), failed(&zombie, "zombie")]).await;
    assert_eq!(kinds(&twice.unwrap()), [None, Some(ErrorKind::Fenced), Some(ErrorKind::Fenced)]);
    assert_eq!(recorded(&jobs, id).await, records(&[(1, 2, "once")]));
    let held = claim_one(&jobs).await;
    finalize(&jobs, with_record(end(&held, End::Completed), "end")).await.unwrap();
    assert!(finalize(&jobs, with_record(end(&held, End::Completed), "again")).await.unwrap().repeated);
    assert_eq!(recorded(&jobs, id).await, records(&[(1, 2, "once"), (1, 3, "end")]));
}

pub(super) async fn attempts_of_earlier_generations_stay(scene: Scene) {
    let jobs = jobs_of(&scene).await;
    let id = publish_one(&jobs, event("t")).await;
    let held = claim_one(&jobs).await;
    finalize(&jobs, with_record(end(&held, End::Failed), "one")).await.unwrap();
    redrive(&jobs, id).await.unwrap();
    let held = claim_one(&jobs).await;
    requeue(&jobs, failed(&held, "two")).await.unwrap();
    let held = claim_one(&jobs).await;
    finalize(&jobs, with_record(end(&held, End::Completed), "three")).await.unwrap();
    assert_eq!(recorded(&jobs, id).await, records(&[(1, 1, "one"), (2, 1, "two"), (2, 2, "three")]));
}

pub(super) async fn the_last_attempt_at_a_kept_job_is_recorded(scene: Scene) {
    let jobs = jobs_of(&scene).await;
    let id = keeps_place(&jobs).await;
    let held = claim_one(&jobs).await;
    let last = with_record(end(&held, End::Failed), "kept");
    finalize(&jobs, last.clone()).await.unwrap();
    assert!(matches!(view(&jobs, id).await.phase, EntryPhase::Kept { .. }));
    assert!(finalize(&jobs, with_record(last, "again")).await.unwrap().repeated);
    assert_eq!(recorded(&jobs, id).await, records(&[(1, 1, "kept")]));
    redrive(&jobs, id).await.unwrap();
    let held = claim_one(&jobs).await;
    finalize(&jobs, with_record(end(&held, End::Completed), "done")).await.unwrap();
    assert_eq!(recorded(&jobs, id).await, records(&[(1, 1, "kept"), (2, 1, "done")]));
}

/// Neighbours that end alike, with gaps, and others: each keeps its own record.
pub(super) async fn each_of_a_run_has_its_own_record(scene: Scene) {
    let jobs = jobs_of(&scene).await;
    publish(&jobs, events(40)).await;
    let held = claim(&jobs, 40).await;
    let record = |number: usize| format!("{{\"n\":{number}}}");
    let item = |(number, held): (usize, &Claimed)| match number {
        _ if number % 5 == 2 => end(held, End::Completed),
        _ => with_record(end(held, End::Completed), &record(number)),
    };
    let (first, second): (Vec<_>, Vec<_>) = held.iter().enumerate().partition(|(number, _)| *number < 20);
    let with_gaps = first.into_iter().filter(|(number, _)| number % 7 != 3).map(item).collect();
    let mixed = second.into_iter().map(item).map(|item| {
        let end = if item.id.get() % 2 == 0 { End::Completed } else { End::Cancelled };
        Finalize { end, ..item }
    });
    for batch in [with_gaps, mixed.collect::<Vec<_>>()] {
        assert!(jobs.finalize(batch).await.unwrap().iter().all(Result::is_ok));
    }
    for (number, held) in held.iter().enumerate() {
        let is_recorded = number % 5 != 2 && (number >= 20 || number % 7 != 3);
        let expected = if is_recorded { vec![(1, 1, record(number))] } else { Vec::new() };
        assert_eq!(recorded(&jobs, held.id).await, expected, "of job {number}");
    }
    assert_eq!(rows(&scene).await, 0);
}

pub(super) async fn bad_records_are_refused_alone(scene: Scene) {
    let store = scene.open().await;
    let jobs = store.family(Family::Jobs);
    publish(&jobs, events(4)).await;
    let held = claim(&jobs, 4).await;
    let longest = "x".repeat(MAX_ATTEMPT_BYTES);
    let too_long = "x".repeat(MAX_ATTEMPT_BYTES + 1);
    let ends = [(&held[0], &too_long), (&held[1], &longest)];
    let ends = ends.map(|(held, record)| with_record(end(held, End::Completed), record));
    assert_eq!(kinds(&jobs.finalize(ends.into()).await.unwrap()), [Some(ErrorKind::Invalid), None]);
    assert_eq!(recorded(&jobs, held[1].id).await, records(&[(1, 1, &longest)]));
    let uncounted = Requeue { counts: false, ..failed(&held[2], "r") };
    let back = vec![uncounted, failed(&held[0], &too_long), failed(&held[3], "r")];
    let refused = Some(ErrorKind::Invalid);
    assert_eq!(kinds(&jobs.requeue(back).await.unwrap()), [refused, refused, None]);
    assert_eq!(claim_ids(&jobs, 9).await, [held[3].id], "the others are still held");
    publish_one(&store, event("t")).await;
    let entry = claim_one(&store).await;
    assert_eq!(kind(finalize(&store, with_record(end(&entry, End::Completed), "r")).await), ErrorKind::Invalid);
    assert_eq!(kind(requeue(&store, failed(&entry, "r")).await), ErrorKind::Invalid);
    complete(&store, &entry).await;
}

pub(super) async fn attempts_go_with_their_job(scene: Scene) {
    let store = scene.open().await;
    let jobs = store.family(Family::Jobs);
    let (mut ended, mut live) = (Vec::new(), Vec::new());
    for lasts in [false, true] {
        publish_one(&jobs, event("t")).await;
        requeue(&jobs, failed(&claim_one(&jobs).await, "1")).await.unwrap();
        let held = claim_one(&jobs).await;
        if lasts {
            requeue(&jobs, failed(&held, "2")).await.unwrap();
            live.push(held.id);
        } else {
            finalize(&jobs, with_record(end(&held, End::Completed), "2")).await.unwrap();
            ended.push(held.id);
        }
    }
    scene.advance(100);
    let retention = Retention { log: Some(seconds(50)), batch: 10, ..Retention::default() };
    assert_eq!(run_retention(&store, retention).await.entries, 1);
    assert_eq!(recorded(&jobs, ended[0]).await, []);
    assert_eq!(recorded(&jobs, live[0]).await, records(&[(1, 1, "1"), (1, 2, "2")]));
    assert_eq!(rows(&scene).await, 2);
}
