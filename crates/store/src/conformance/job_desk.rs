//! Jobs as operators see them, and what they do with them.

use tidegate_core::{End, EntryId, Tsid};

use super::facts::{fact, ingest_one, to};
use super::scene::*;
use crate::ErrorKind;
use crate::values::*;

async fn desk(scene: &Scene) -> AnyStore {
    scene.open().await.family(Family::Jobs)
}

/// A job of a lane, in a group if one is named, that keeps its place when it is exhausted.
fn target(lane: &str, group: Option<&str>) -> Target {
    let (lane_type, keeps_place) = (Some(lane.to_owned()), group.is_some());
    Target { family: Family::Jobs, lane_type, group: group.map(str::to_owned), keeps_place, ..to(&default_queue()) }
}

async fn make(store: &AnyStore, lane: &str, group: Option<&str>) -> EntryId {
    ingest_one(store, fact("t", "{\"n\":1}", vec![target(lane, group)])).await.targets[0]
}

fn by_hand(id: EntryId) -> ManualAction {
    ManualAction { id, actor: Some("somebody".into()), reason: Some("a reason".into()) }
}

async fn listed(store: &AnyStore, query: JobsQuery) -> Vec<EntryId> {
    let limit = if query.limit == 0 { 100 } else { query.limit };
    let page = store.list_jobs(JobsQuery { limit, ..query }).await.unwrap();
    page.jobs.into_iter().map(|job| job.entry.id).collect()
}

fn in_state(state: JobState) -> JobsQuery {
    JobsQuery { states: vec![state], ..JobsQuery::default() }
}

pub(super) async fn jobs_are_found_by_their_ids(scene: Scene) {
    let store = desk(&scene).await;
    let (mut jobs, lanes) = (Vec::new(), ["a", "b", "c"]);
    for _ in 0..4 {
        let targets = lanes.iter().map(|lane| target(lane, None)).collect();
        jobs.extend(ingest_one(&store, fact("t", "{\"n\":1}", targets)).await.targets);
        scene.advance(1);
    }
    let held = claim(&store, 2).await;
    finalize(&store, end(&held[0], End::Completed)).await.unwrap();
    for (at, number) in jobs.iter().enumerate() {
        let listed = store.list_jobs(JobsQuery { limit: 50, ..JobsQuery::default() }).await.unwrap();
        let job = listed.jobs.into_iter().find(|job| job.entry.id == *number).unwrap();
        assert!(job.entry.fact.payload.is_empty(), "a list has no payloads");
        let found = store.job(job.id()).await.unwrap().unwrap();
        assert_eq!((found.entry.id, found.lane_type.as_deref()), (*number, Some(lanes[at % 3])));
        assert_eq!(found.entry.fact.payload, "{\"n\":1}");
        let neighbour = Tsid::from_i64(job.id().to_i64() + (1 << 22));
        assert_eq!(store.job(neighbour).await.unwrap(), None, "of another millisecond");
    }
    for nobody in [Tsid::from_i64(1), Tsid::from_i64(i64::MAX)] {
        assert_eq!(store.job(nobody).await.unwrap(), None);
    }
    let entry = publish_one(&scene.open().await, event("t")).await;
    let made = view(&scene.open().await, entry).await.fact.created_at;
    assert_eq!(store.job(Tsid::from_parts(made.as_millisecond(), entry.get())).await.unwrap(), None, "no job");
}

pub(super) async fn jobs_are_listed_by_state_and_lane(scene: Scene) {
    let store = desk(&scene).await;
    let failing = make(&store, "a", Some("g")).await;
    finalize(&store, end(&claim_one(&store).await, End::Failed)).await.unwrap();
    let parked = make(&store, "b", Some("g")).await;
    let completed = make(&store, "a", None).await;
    complete(&store, &claim_one(&store).await).await;
    let cancelled = make(&store, "a", None).await;
    cancel(&store, cancelled).await.unwrap();
    let leased = make(&store, "b", None).await;
    claim_one(&store).await;
    let fresh = make(&store, "a", None).await;
    for (state, expected) in [
        (JobState::Kept, failing),
        (JobState::Parked, parked),
        (JobState::Ended(End::Completed), completed),
        (JobState::Ended(End::Cancelled), cancelled),
        (JobState::Leased, leased),
        (JobState::Waiting, fresh),
    ] {
        assert_eq!(listed(&store, in_state(state)).await, [expected], "{state:?}");
    }
    let all = [fresh, leased, cancelled, completed, parked, failing];
    assert_eq!(listed(&store, JobsQuery::default()).await, all);
    let of = |lane: &str| JobsQuery { lane_types: Some(vec![lane.to_owned()]), ..JobsQuery::default() };
    assert_eq!(listed(&store, of("b")).await, [leased, parked]);
    assert_eq!(listed(&store, of("other")).await, []);
    let prefixed = JobsQuery { lane_prefix: Some("b".into()), lane_types: None, ..JobsQuery::default() };
    assert_eq!(listed(&store, prefixed).await, [leased, parked]);
    let client = JobsQuery { client: Some(Tsid::from_i64(7)), ..JobsQuery::default() };
    assert_eq!(listed(&store, client).await, []);
    let event = view(&store, parked).await.event_id;
    assert_eq!(listed(&store, JobsQuery { event: Some(event), ..JobsQuery::default() }).await, [parked]);
    let nothing = JobsQuery { event: Some(Tsid::from_i64(9)), ..JobsQuery::default() };
    assert_eq!(listed(&store, nothing).await, []);
    // Two at a time.
    let (mut before, mut found) = (None, Vec::new());
    loop {
        let page = store.list_jobs(JobsQuery { before, limit: 2, ..JobsQuery::default() }).await.unwrap();
        found.extend(page.jobs.iter().map(|job| job.entry.id));
        let Some(next) = page.next else { break };
        before = Some(next);
    }
    assert_eq!(found, all);
    let too_many = JobsQuery { limit: MAX_JOBS + 1, ..JobsQuery::default() };
    assert_eq!(kind(store.list_jobs(too_many).await), ErrorKind::Invalid);
}

/// What is searched for lies behind more than a page looks at: pages are short, and together they find it.
pub(super) async fn a_page_looks_at_a_bounded_number(scene: Scene) {
    let store = desk(&scene).await;
    let first = make(&store, "wanted", None).await;
    for _ in 0..3 {
        let many = vec![target("other", None); 4_000];
        ingest_one(&store, fact("t", "{}", many)).await;
    }
    let mut query = JobsQuery { lane_types: Some(vec!["wanted".into()]), limit: 5, ..JobsQuery::default() };
    let (mut found, mut pages) = (Vec::new(), 0);
    loop {
        let page = store.list_jobs(query.clone()).await.unwrap();
        found.extend(page.jobs.iter().map(|job| job.entry.id));
        pages += 1;
        let Some(next) = page.next else { break };
        query.before = Some(next);
    }
    assert_eq!(found, [first]);
    assert!((3..=4).contains(&pages), "{pages} pages for 12,001 jobs");
}

pub(super) async fn failed_and_cancelled_jobs_are_retried(scene: Scene) {
    let store = desk(&scene).await;
    let kept = make(&store, "a", Some("g")).await;
    let behind = make(&store, "a", Some("g")).await;
    finalize(&store, end(&claim_one(&store).await, End::Failed)).await.unwrap();
    let (failed, cancelled, completed) =
        (make(&store, "b", None).await, make(&store, "b", None).await, make(&store, "b", None).await);
    let plain = make(&store, "c", None).await;
    store.cancel_manually(vec![by_hand(cancelled)]).await.unwrap();
    for held in claim(&store, 9).await {
        let how = if held.id == completed { End::Completed } else { End::Failed };
        finalize(&store, end(&held, how)).await.unwrap();
    }
    assert_eq!(view(&store, cancelled).await.error.as_deref(), Some(r#"["cancelled by somebody: a reason"]"#));
    let nobody = EntryId::new(900_000).unwrap();
    let all = [kept, failed, cancelled, plain, completed, behind, nobody];
    let answers = store.retry_jobs(all.map(by_hand).into()).await.unwrap();
    let refused = [Some(ErrorKind::Conflict), Some(ErrorKind::Conflict), Some(ErrorKind::NotFound)];
    assert_eq!(kinds(&answers), [&[None; 4][..], &refused].concat());
    assert!(answers[..4].iter().all(|answer| answer.as_ref().is_ok_and(|generation| *generation == 2)), "{answers:?}");
    let again = store.retry_jobs(vec![by_hand(kept), by_hand(plain)]).await.unwrap();
    assert_eq!(kinds(&again), [Some(ErrorKind::Conflict); 2], "they are on their way");
    let mut due = claim_ids(&store, 9).await;
    due.sort_unstable();
    assert_eq!(due, [kept, failed, cancelled, plain], "the head before the others of its group");
}

pub(super) async fn a_failed_job_is_ignored_once(scene: Scene) {
    let store = desk(&scene).await;
    let failed = make(&store, "a", None).await;
    let waiting = make(&store, "b", None).await;
    finalize(&store, end(&claim_one(&store).await, End::Failed)).await.unwrap();
    let nobody = EntryId::new(900_000).unwrap();
    let answers = store.ignore_jobs([failed, waiting, nobody].map(by_hand).into()).await.unwrap();
    assert_eq!(kinds(&answers), [None, Some(ErrorKind::Conflict), Some(ErrorKind::NotFound)]);
    let noted = view(&store, failed).await;
    assert_eq!(ended(&noted), Some(End::Failed), "it stays what it is");
    assert!(noted.results.as_ref().is_some_and(|note| note.contains("ignoredAt")), "{noted:?}");
    scene.advance(5);
    assert_eq!(kinds(&store.ignore_jobs(vec![by_hand(failed)]).await.unwrap()), [None]);
    assert_eq!(view(&store, failed).await.results, noted.results, "again, it changes nothing");
    assert_eq!(listed(&store, in_state(JobState::Ended(End::Failed))).await, [failed]);
    assert_eq!(only(store.retry_jobs(vec![by_hand(failed)]).await).unwrap(), 2);
    assert_eq!(view(&store, failed).await.results, None);
}

pub(super) async fn an_ignored_head_frees_its_group(scene: Scene) {
    let store = desk(&scene).await;
    let head = make(&store, "a", Some("g")).await;
    let next = make(&store, "a", Some("g")).await;
    finalize(&store, Finalize { errors: Some("[\"why\"]".into()), ..end(&claim_one(&store).await, End::Failed) })
        .await
        .unwrap();
    assert!(claim(&store, 9).await.is_empty(), "it blocks its group");
    // Two at once: one of them ends it, and both are told so.
    let (one, two) = tokio::join!(store.ignore_jobs(vec![by_hand(head)]), store.ignore_jobs(vec![by_hand(head)]));
    assert_eq!((kinds(&one.unwrap()), kinds(&two.unwrap())), (vec![None], vec![None]));
    let shown = view(&store, head).await;
    assert_eq!((ended(&shown), shown.error.as_deref()), (Some(End::Failed), Some("[\"why\"]")));
    assert_eq!(claim_ids(&store, 9).await, [next]);
}

pub(super) async fn blocked_groups_are_listed_in_pages(scene: Scene) {
    let store = desk(&scene).await;
    let mut heads = Vec::new();
    for group in ["a", "b", "c", "d"] {
        heads.push(make(&store, "lane", Some(group)).await);
    }
    for held in claim(&store, 9).await {
        if held.group.as_deref() == Some("b") {
            requeue(&store, retry(&held, RequeueAt::After(seconds(60)))).await.unwrap();
        } else {
            finalize(&store, end(&held, End::Failed)).await.unwrap();
        }
    }
    for _ in 0..3 {
        make(&store, "lane", Some("c")).await;
    }
    let page = store.blocked_groups(BlockedQuery { limit: 2, ..BlockedQuery::default() }).await.unwrap();
    let told = |page: &BlockedPage| -> Vec<(EntryId, u64)> {
        page.groups.iter().map(|group| (group.head.entry.id, group.behind)).collect()
    };
    assert_eq!(told(&page), [(heads[0], 0), (heads[2], 3)]);
    let after = page.next;
    assert!(after.is_some());
    let rest = store.blocked_groups(BlockedQuery { limit: 2, after, ..BlockedQuery::default() }).await.unwrap();
    assert_eq!((told(&rest), rest.next), (vec![(heads[3], 0)], None));
    let of_queue = BlockedQuery { queue: Some(default_queue()), limit: 9, after: None };
    assert_eq!(told(&store.blocked_groups(of_queue).await.unwrap()).len(), 3);
    let unknown = BlockedQuery { queue: Some(queue("unknown")), limit: 9, after: None };
    assert_eq!(kind(store.blocked_groups(unknown).await), ErrorKind::NotFound);
}

/// However many other groups come before a blocked one: counts go on where the last one has stopped.
pub(super) async fn blocked_groups_are_counted_in_pieces(scene: Scene) {
    let store = desk(&scene).await;
    assert_eq!(store.count_blocked(None).await.unwrap(), BlockedCount::default());
    for group in ["y", "z"] {
        make(&store, "lane", Some(group)).await;
    }
    for held in claim(&store, 9).await {
        finalize(&store, end(&held, End::Failed)).await.unwrap();
    }
    assert_eq!(store.count_blocked(None).await.unwrap(), BlockedCount { groups: 2, next: None });
    for first in (0..10_000).step_by(2_500) {
        let others = (first..first + 2_500).map(|number| target("lane", Some(&format!("g{number:05}")))).collect();
        ingest_one(&store, fact("t", "{}", others)).await;
    }
    let piece = store.count_blocked(None).await.unwrap();
    assert_eq!((piece.groups, piece.next.as_ref().map(|next| &*next.1)), (0, Some("g09999")));
    assert_eq!(store.count_blocked(piece.next).await.unwrap(), BlockedCount { groups: 2, next: None });
}

pub(super) async fn lanes_say_what_waits(scene: Scene) {
    let store = desk(&scene).await;
    for group in ["code", "code", "code:x", "code:x", "code-y"] {
        make(&store, "lane", Some(group)).await;
    }
    make(&store, "other", None).await;
    scene.advance(30);
    let ask = |lane: &str, groups: Option<&str>| LaneAsk {
        queue: default_queue(),
        lane_type: lane.into(),
        groups: groups.map(str::to_owned),
    };
    let asks = vec![ask("lane", Some("code")), ask("other", None), ask("unknown", None)];
    let holds = store.lanes_hold(asks.clone()).await.unwrap();
    // Three heads and the two that wait behind them.
    assert_eq!((holds[0].waiting, holds[1].waiting, holds[2]), (5, 1, LaneHolds::default()));
    for held in &holds[..2] {
        let oldest = held.oldest.unwrap();
        assert!(oldest >= seconds(29) && oldest < seconds(32), "{held:?}");
    }
    claim(&store, 9).await;
    let held = store.lanes_hold(asks.clone()).await.unwrap()[0];
    assert_eq!((held.waiting, held.leased), (2, 3), "what is leased does not wait");
    let other = LaneAsk { queue: queue("unknown"), ..ask("lane", None) };
    assert_eq!(store.lanes_hold(vec![other]).await.unwrap(), [LaneHolds::default()]);
    let pool = PoolKey::of(Tsid::from_i64(5));
    let wants = LimitAsk { pool, concurrency: 10, in_use: 1, wanted: 4, rate: None };
    store.limits("node", vec![wants], seconds(5)).await.unwrap();
    let held = store.slots_held(vec![PoolKey::of(Tsid::from_i64(6)), pool]).await.unwrap();
    assert_eq!(held, [vec![], vec![HeldSlots { node: "node".into(), slots: 4, wanted: 4 }]]);
}

pub(super) async fn a_pool_says_who_holds_it_and_when_it_goes_on(scene: Scene) {
    let store = desk(&scene).await;
    let (limited, other) = (PoolKey::of(Tsid::from_i64(5)), PoolKey::default_of(Some(Tsid::from_i64(9))));
    assert_eq!(store.pool_view(limited).await.unwrap(), PoolView::default());
    let rate = tidegate_core::pool::rate::Rate::per_minute(1).map(|rate| (rate, 1));
    let ask = LimitAsk { pool: limited, concurrency: 3, in_use: 0, wanted: 2, rate };
    store.limits("node", vec![ask], seconds(20)).await.unwrap();
    let seen = store.pool_view(limited).await.unwrap();
    assert_eq!(seen.slots, [HeldSlots { node: "node".into(), slots: 2, wanted: 2 }]);
    assert!(seen.has_nodes && seen.moment.is_some(), "the next delivery may begin in a minute: {seen:?}");
    let seen = store.pool_view(other).await.unwrap();
    assert_eq!(seen, PoolView { has_nodes: true, ..PoolView::default() }, "of another pool");
    scene.advance(30);
    let seen = store.pool_view(limited).await.unwrap();
    assert!(seen.slots.is_empty() && !seen.has_nodes && seen.moment.is_some(), "the node is gone: {seen:?}");
    scene.advance(40);
    assert_eq!(store.pool_view(limited).await.unwrap(), PoolView::default());
}

pub(super) async fn jobs_of_a_lane_are_found_wherever_they_wait(scene: Scene) {
    let store = desk(&scene).await;
    let kept = make(&store, "gone", Some("kept")).await;
    finalize(&store, end(&claim_one(&store).await, End::Failed)).await.unwrap();
    let behind = make(&store, "gone", Some("kept")).await;
    let aside = make(&store, "gone", Some("aside")).await;
    let back = retry(&claim_one(&store).await, RequeueAt::After(seconds(900)));
    requeue(&store, Requeue { aside: true, ..back }).await.unwrap();
    let leased = make(&store, "gone", None).await;
    claim_one(&store).await;
    let late = Target { available: tidegate_core::Availability::After(seconds(900)), ..target("gone", None) };
    let late = ingest_one(&store, fact("t", "{}", vec![late])).await.targets[0];
    let other = make(&store, "other", Some("kept")).await;
    let lanes = store.job_lanes(0, 10).await.unwrap();
    let gone = lanes.iter().find(|lane| lane.lane_type == "gone").unwrap();
    assert_eq!((lanes.len(), &gone.queue), (2, &default_queue()));
    assert_eq!(store.job_lanes(lanes[1].id, 10).await.unwrap(), []);
    let mut found = Vec::new();
    loop {
        let some = store.jobs_of_lane(gone.id, 2).await.unwrap();
        if some.is_empty() {
            break;
        }
        assert!(some.len() <= 2);
        for id in &some {
            finalize(&store, end_by_id(*id, End::Cancelled)).await.unwrap();
        }
        found.extend(some);
    }
    found.sort_unstable();
    assert_eq!(found, [kept, behind, aside, late]);
    assert!(ended(&view(&store, leased).await).is_none(), "it is held");
    assert_eq!(claim_ids(&store, 9).await, [other], "the next of the group has its turn");
}

/// Of one group with jobs of two lanes, what waits behind the other lane's head, however much is before it.
pub(super) async fn jobs_behind_the_head_of_another_lane_are_found(scene: Scene) {
    let store = desk(&scene).await;
    let head = make(&store, "first", Some("g")).await;
    for _ in 0..3 {
        make(&store, "first", Some("g")).await;
    }
    let parked = make(&store, "second", Some("g")).await;
    let (other_head, other_parked) = (make(&store, "first", Some("h")).await, make(&store, "second", Some("h")).await);
    claim_one(&store).await;
    let lanes = store.job_lanes(0, 10).await.unwrap();
    let second = lanes.iter().find(|lane| lane.lane_type == "second").unwrap();
    let mut found = store.jobs_of_lane(second.id, 9).await.unwrap();
    found.sort_unstable();
    assert_eq!(found, [parked, other_parked]);
    assert_eq!(store.jobs_of_lane(second.id, 1).await.unwrap().len(), 1);
    let first = lanes.iter().find(|lane| lane.lane_type == "first").unwrap();
    let one = store.jobs_of_lane(first.id, 1).await.unwrap();
    assert!(one.len() == 1 && one[0] != head, "what is held hides nothing: {one:?}");
    // One that steps aside behind a head of the other lane.
    finalize(&store, end_by_id(other_head, End::Cancelled)).await.unwrap();
    let ours = store.claim(Claim { types: Some(vec!["second".into()]), ..want(1) }).await.unwrap().remove(0);
    assert_eq!(ours.id, other_parked);
    assert_eq!(store.jobs_of_lane(second.id, 9).await.unwrap(), [parked], "the other one is held");
    make(&store, "first", Some("h")).await;
    let back = retry(&ours, RequeueAt::After(seconds(900)));
    requeue(&store, Requeue { aside: true, ..back }).await.unwrap();
    let mut found = store.jobs_of_lane(second.id, 9).await.unwrap();
    found.sort_unstable();
    assert_eq!(found, [parked, other_parked]);
    for id in [parked, other_parked] {
        finalize(&store, end_by_id(id, End::Cancelled)).await.unwrap();
    }
    assert_eq!(store.jobs_of_lane(second.id, 9).await.unwrap(), []);
    assert!(ended(&view(&store, head).await).is_none());
}

/// Lanes go while nothing waits in them. A job that is retried then is found under what it was sorted by, however many lanes
/// there are.
pub(super) async fn a_retry_finds_its_lane_again(scene: Scene) {
    let options = StoreOptions { max_job_lanes: 2, ..scene.options() };
    let store = scene.open_with(options).await.family(Family::Jobs);
    let plain = make(&store, "a", None).await;
    let grouped = Target { keeps_place: false, ..target("b", Some("g")) };
    let grouped = ingest_one(&store, fact("t", "{}", vec![grouped])).await.targets[0];
    for held in claim(&store, 9).await {
        finalize(&store, end(&held, End::Failed)).await.unwrap();
    }
    scene.advance(700);
    eventually("idle lanes are removed", || async {
        store.maintain().await.unwrap();
        scene.advance(20);
        scene.fixture.number("SELECT count(*) FROM tidegate.dispatch_lanes WHERE state < 2").await == 0
    })
    .await;
    for lane in ["c", "d"] {
        make(&store, lane, None).await;
    }
    for id in [plain, grouped] {
        only(store.retry_jobs(vec![by_hand(id)]).await).unwrap();
    }
    let behind = make(&store, "c", Some("g")).await;
    for (lane, id) in [("a", plain), ("b", grouped)] {
        let found = std::sync::Mutex::new(Vec::new());
        eventually("it is found by what it was sorted by", || async {
            let quotas = [(lane.to_owned(), 1)].into();
            let some = store.claim(Claim { types: Some(vec![lane.to_owned()]), quotas, ..want(1) }).await.unwrap();
            let mut found = found.lock().unwrap();
            found.extend(some.into_iter().map(|one| (one.id, one.lane_type)));
            !found.is_empty()
        })
        .await;
        assert_eq!(found.into_inner().unwrap(), [(id, Some(lane.into()))]);
        let shown =
            store.list_jobs(JobsQuery { lane_types: Some(vec![lane.into()]), limit: 9, ..JobsQuery::default() });
        assert_eq!(shown.await.unwrap().jobs.iter().map(|job| job.entry.id).collect::<Vec<_>>(), [id]);
    }
    assert!(claim_ids(&store, 9).await.iter().all(|id| *id != behind), "it has its turn after the one that is retried");
}

/// Jobs that were added to an event later are found and listed like the others, and are as old as they are.
pub(super) async fn jobs_that_were_added_are_found_with_their_event(scene: Scene) {
    let store = desk(&scene).await;
    let alone = Ingest { stands_alone: true, ..fact("t", "{}", vec![target("a", None)]) };
    let stored = ingest_one(&store, alone).await;
    make(&store, "other", None).await;
    scene.advance(1_000_000);
    let add = |key: &str, lane: &str| AddTarget {
        fact: stored.event_id,
        client: None,
        event_type: "t".into(),
        tags: Vec::new(),
        key: key.into(),
        target: target(lane, None),
    };
    let added = store.add_targets(vec![add("one", "b"), add("two", "c"), add("three", "b")]).await.unwrap();
    let added: Vec<EntryId> = added.into_iter().map(|one| one.unwrap().id).collect();
    scene.advance(30);
    let ask = LaneAsk { queue: default_queue(), lane_type: "b".into(), groups: None };
    let oldest = store.lanes_hold(vec![ask]).await.unwrap()[0].oldest.unwrap();
    assert!(oldest >= seconds(29) && oldest < seconds(32), "{oldest:?}");
    let ended = store.claim(want_types(1, &["c"])).await.unwrap().remove(0);
    finalize(&store, end(&ended, End::Completed)).await.unwrap();

    let of_event = || JobsQuery { event: Some(stored.event_id), ..JobsQuery::default() };
    let all = [added[2], added[1], added[0], stored.targets[0]];
    assert_eq!(listed(&store, of_event()).await, all);
    let (mut before, mut found) = (None, Vec::new());
    loop {
        let page = store.list_jobs(JobsQuery { before, limit: 1, ..of_event() }).await.unwrap();
        found.extend(page.jobs);
        let Some(next) = page.next else { break };
        before = Some(next);
    }
    assert_eq!(found.iter().map(|job| job.entry.id).collect::<Vec<_>>(), all);
    for job in found {
        let shown = store.job(job.id()).await.unwrap().map(|shown| shown.entry.id);
        assert_eq!(shown, Some(job.entry.id), "by its id");
    }
    let in_b = JobsQuery { lane_types: Some(vec!["b".into()]), ..of_event() };
    assert_eq!(listed(&store, in_b).await, [added[2], added[0]]);
    assert_eq!(
        listed(&store, JobsQuery { event: Some(stored.event_id), ..in_state(JobState::Waiting) }).await,
        [added[2], added[0], stored.targets[0]]
    );
}
