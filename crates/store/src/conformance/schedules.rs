//! Schedules: each tick is published once, whichever process runs it and whatever the clock does.

use tidegate_core::template::every_field;
use tidegate_core::{MissedTicks, NewEvent, QueueState, Timestamp};

use super::Scene;
use super::scene::*;
use crate::api::*;
use crate::error::ErrorKind;
use crate::values::*;
use crate::values::{ScheduleSpec, ScheduleView, Tick};

/// Every ten seconds; the scene's clock starts at one of these moments.
const EVERY_TEN: &str = "*/10 * * * * *";

fn spec(name: &str, missed: MissedTicks) -> ScheduleSpec {
    ScheduleSpec {
        name: name.into(),
        cron: EVERY_TEN.into(),
        timezone: "UTC".into(),
        missed,
        event: NewEvent::new(format!("tick.{name}"), "{}"),
    }
}

fn schedules(store: &AnyStore) -> &dyn Store {
    store.as_ref()
}

async fn put(store: &AnyStore, spec: ScheduleSpec) -> ScheduleView {
    schedules(store).put_schedule(spec).await.expect("the schedule is put")
}

async fn find(store: &AnyStore, name: &str) -> ScheduleView {
    schedules(store).schedule(name).await.expect("the schedule is read").expect("the schedule exists")
}

/// Runs all due schedules once, as a scheduler would; returns the number of events published.
async fn run_due(store: &AnyStore) -> usize {
    let found = schedules(store).due_schedules(100).await.expect("due schedules are read");
    let mut published = 0;
    for schedule in &found.due {
        let tick = Tick::of(schedule, found.now).expect("the schedule is valid").expect("a tick is due");
        let ticked = schedules(store).tick(tick).await.expect("the tick is answered");
        published += ticked.map_or(0, |events| events.len());
    }
    published
}

/// Claims and completes the events of a schedule; returns their ticks, in order.
async fn moments(store: &AnyStore, name: &str) -> Vec<Timestamp> {
    let claimed = store.claim(want_types(1_000, &[&format!("tick.{name}")])).await.expect("ticks are claimed");
    for entry in &claimed {
        complete(store, entry).await;
    }
    claimed.iter().map(|entry| entry.fact.time.expect("a tick has its moment")).collect()
}

pub(super) async fn a_new_schedule_waits_for_its_next_tick(scene: Scene) {
    let store = scene.open().await;
    scene.advance(3);
    let view = put(&store, spec("a", MissedTicks::Once)).await;
    assert_eq!((view.next_at, view.created_at, view.updated_at), (scene.moment(7), scene.now(), scene.now()));
    assert_eq!((view.paused, view.last_at, view.last_entry, view.ticks), (false, None, None, 0));
    assert_eq!(find(&store, "a").await, view);
    let found = schedules(&store).due_schedules(100).await.unwrap();
    assert_eq!((found.now, found.due.len(), found.next_at), (scene.now(), 0, Some(scene.moment(7))));
    scene.advance(7);
    let found = schedules(&store).due_schedules(100).await.unwrap();
    assert_eq!((found.now, found.due, found.next_at), (scene.now(), vec![view], None));
}

pub(super) async fn an_unchanged_definition_keeps_its_next_tick(scene: Scene) {
    let store = scene.open().await;
    let first = put(&store, spec("a", MissedTicks::Once)).await;
    scene.advance(25);
    assert_eq!(put(&store, spec("a", MissedTicks::Once)).await, first, "an unchanged definition writes nothing");
    let mut other_event = spec("a", MissedTicks::All);
    other_event.event = NewEvent::new("tick.a", "other");
    let changed = put(&store, other_event.clone()).await;
    assert_eq!((changed.next_at, changed.updated_at, &changed.spec), (first.next_at, scene.now(), &other_event));
    assert_eq!(run_due(&store).await, 2, "both ticks under the new policy");
    let mut other_ticks = other_event;
    other_ticks.cron = "0 * * * * *".into();
    let changed = put(&store, other_ticks).await;
    assert_eq!((changed.next_at.as_second() % 60, changed.ticks), (0, 2));
    assert!(changed.next_at > scene.now());
}

pub(super) async fn bad_definitions_are_refused_and_nothing_is_written(scene: Scene) {
    let store = scene.open().await;
    let good = spec("a", MissedTicks::Once);
    let mut unknown_queue = good.clone();
    unknown_queue.event.queue = queue("nowhere");
    let cases = [
        (ScheduleSpec { cron: "* * *".into(), ..good.clone() }, ErrorKind::Invalid),
        (ScheduleSpec { cron: "0 0 31 4 *".into(), ..good.clone() }, ErrorKind::Invalid),
        (ScheduleSpec { timezone: "Europe/Atlantis".into(), ..good.clone() }, ErrorKind::Invalid),
        (ScheduleSpec { name: "a\0b".into(), ..good.clone() }, ErrorKind::Invalid),
        (ScheduleSpec { name: String::new(), ..good.clone() }, ErrorKind::Invalid),
        (ScheduleSpec { event: event(""), ..good.clone() }, ErrorKind::Invalid),
        (ScheduleSpec { event: event("t").priority(101), ..good.clone() }, ErrorKind::Invalid),
        (unknown_queue, ErrorKind::NotFound),
    ];
    for (bad, expected) in cases {
        assert_eq!(kind(schedules(&store).put_schedule(bad.clone()).await), expected, "{bad:?}");
    }
    assert_eq!(schedules(&store).list_schedules().await.unwrap(), []);
    let view = put(&store, good.clone()).await;
    let bad = ScheduleSpec { cron: "never".into(), ..good };
    assert_eq!(kind(schedules(&store).put_schedule(bad).await), ErrorKind::Invalid);
    assert_eq!(find(&store, "a").await, view, "the good one stays");
}

pub(super) async fn listed_found_and_deleted(scene: Scene) {
    let store = scene.open().await;
    for name in ["b", "a", "o'clock \u{1f552}"] {
        put(&store, spec(name, MissedTicks::Once)).await;
    }
    let other = scene.open().await;
    let names = |views: Vec<ScheduleView>| views.into_iter().map(|view| view.spec.name).collect::<Vec<_>>();
    assert_eq!(names(schedules(&other).list_schedules().await.unwrap()), ["a", "b", "o'clock \u{1f552}"]);
    assert_eq!(schedules(&other).schedule("c").await.unwrap(), None);
    assert!(schedules(&other).delete_schedule("b").await.unwrap());
    assert!(!schedules(&other).delete_schedule("b").await.unwrap());
    assert_eq!(names(schedules(&store).list_schedules().await.unwrap()), ["a", "o'clock \u{1f552}"]);
    assert_eq!(kind(schedules(&store).pause_schedule("b", true).await), ErrorKind::NotFound);
}

pub(super) async fn a_tick_publishes_once_and_tells_its_moment(scene: Scene) {
    let store = scene.open().await;
    let mut definition = spec("a", MissedTicks::Once);
    definition.event.attributes = Some(r#"{"tags": ["x"]}"#.into());
    put(&store, definition).await;
    assert_eq!(run_due(&store).await, 0);
    scene.advance(10);
    assert_eq!(run_due(&store).await, 1);
    assert_eq!(run_due(&store).await, 0);
    let claimed = claim_one(&store).await;
    assert_eq!(claimed.fact.time, Some(scene.now()));
    let attributes: serde_json::Value =
        serde_json::from_str(claimed.fact.attributes.as_deref().expect("attributes")).expect("JSON");
    assert_eq!(attributes["scheduled_for"], scene.now().to_string());
    assert_eq!((&attributes["schedule"], &attributes["tags"][0]), (&"a".into(), &"x".into()));
    let view = find(&store, "a").await;
    assert_eq!((view.last_at, view.last_entry, view.ticks), (Some(scene.now()), Some(claimed.id), 1));
    assert_eq!(view.next_at, scene.moment(10));
}

pub(super) async fn each_policy_after_a_jump_forward(scene: Scene) {
    let store = scene.open().await;
    let start = scene.now();
    for (name, missed) in [("skip", MissedTicks::Skip), ("once", MissedTicks::Once), ("all", MissedTicks::All)] {
        put(&store, spec(name, missed)).await;
        let mut rare = spec(&format!("rare.{name}"), missed);
        rare.cron = "0 * * * *".into();
        put(&store, rare).await;
    }
    // 12,000 ticks from 20:26:40 on, to 05:46:43; the last full hour is more than a minute ago.
    scene.advance(120_003);
    for _ in 0..20 {
        run_due(&store).await;
    }
    let second = |seconds: u64| tidegate_core::entry::later(start, std::time::Duration::from_secs(seconds));
    assert_eq!(moments(&store, "skip").await, [second(120_000)], "the last tick is only 3 s old");
    assert_eq!(moments(&store, "once").await, [second(120_000)]);
    let mut all = Vec::new();
    loop {
        let more = moments(&store, "all").await;
        if more.is_empty() {
            break;
        }
        all.extend(more);
    }
    assert_eq!(all, (1..=12_000).map(|tick| second(tick * 10)).collect::<Vec<_>>());
    assert_eq!(moments(&store, "rare.skip").await, []);
    assert_eq!(moments(&store, "rare.once").await.len(), 1);
    assert_eq!(moments(&store, "rare.all").await.len(), 33);
    for view in schedules(&store).list_schedules().await.unwrap() {
        assert!(view.next_at > scene.now(), "{view:?}");
    }
    assert_eq!(find(&store, "all").await.ticks, 12_000);
}

pub(super) async fn a_clock_that_goes_back_repeats_nothing(scene: Scene) {
    let store = scene.open().await;
    let start = scene.now();
    for (name, missed) in [("skip", MissedTicks::Skip), ("once", MissedTicks::Once), ("all", MissedTicks::All)] {
        put(&store, spec(name, missed)).await;
    }
    scene.advance(30);
    assert_eq!(run_due(&store).await, 1 + 1 + 3);
    // The database's clock is set back by 25 seconds, and goes on from there.
    let back = ManualClock::at(tidegate_core::entry::later(start, seconds(5)));
    let later = scene.open_with(StoreOptions { clock: Clock::Manual(back.clone()), ..scene.options() }).await;
    for _ in 0..34 {
        assert_eq!(run_due(&later).await, 0);
        back.advance(std::time::Duration::from_secs(1));
    }
    schedules(&later).pause_schedule("once", true).await.unwrap();
    schedules(&later).pause_schedule("once", false).await.unwrap();
    back.advance(std::time::Duration::from_secs(1));
    assert_eq!(back.now(), tidegate_core::entry::later(start, seconds(40)));
    assert_eq!(run_due(&later).await, 3, "the next tick, once for each");
    for (name, count) in [("skip", 2), ("once", 2), ("all", 4)] {
        let seen = moments(&later, name).await;
        assert_eq!(seen.len(), count, "{name}");
        assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{name}: {seen:?}");
    }
}

pub(super) async fn processes_race_for_ticks(scene: Scene) {
    let stores = [scene.open().await, scene.open().await, scene.open().await];
    for name in ["a", "b"] {
        put(&stores[0], spec(name, MissedTicks::All)).await;
    }
    for _ in 0..10 {
        scene.advance(10);
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..9 {
            let store = stores[number % 3].clone();
            tasks.spawn(async move { run_due(&store).await });
        }
        let mut made = 0;
        while let Some(done) = tasks.join_next().await {
            made += done.unwrap();
        }
        assert_eq!(made, 2, "one event per schedule and tick");
    }
    for name in ["a", "b"] {
        let seen = moments(&stores[1], name).await;
        assert_eq!(seen.len(), 10);
        assert!(seen.windows(2).all(|pair| pair[1].duration_since(pair[0]).as_secs() == 10), "{seen:?}");
        assert_eq!(find(&stores[2], name).await.ticks, 10);
    }
    assert_eq!(census(&stores[0]).await.events, 20);
}

pub(super) async fn a_paused_schedule_stands_still(scene: Scene) {
    let store = scene.open().await;
    put(&store, spec("a", MissedTicks::All)).await;
    scene.advance(10);
    let due = schedules(&store).due_schedules(100).await.unwrap();
    let paused = schedules(&store).pause_schedule("a", true).await.unwrap();
    assert!(paused.paused);
    assert_eq!(schedules(&store).pause_schedule("a", true).await.unwrap(), paused);
    let tick = Tick::of(&due.due[0], due.now).unwrap().unwrap();
    assert_eq!(schedules(&store).tick(tick).await.unwrap(), None, "paused meanwhile");
    scene.advance(100);
    assert_eq!(run_due(&store).await, 0);
    assert_eq!(put(&store, spec("a", MissedTicks::All)).await, paused, "a put does not resume it");
    let resumed = schedules(&store).pause_schedule("a", false).await.unwrap();
    assert_eq!((resumed.paused, resumed.next_at), (false, scene.moment(10)), "ticks of a pause are skipped");
    scene.advance(10);
    assert_eq!(run_due(&store).await, 1);
}

pub(super) async fn a_stale_tick_changes_nothing(scene: Scene) {
    let store = scene.open().await;
    put(&store, spec("a", MissedTicks::Once)).await;
    scene.advance(10);
    let due = schedules(&store).due_schedules(100).await.unwrap();
    let tick = Tick::of(&due.due[0], due.now).unwrap().unwrap();
    assert_eq!(schedules(&store).tick(tick.clone()).await.unwrap().map(|events| events.len()), Some(1));
    let after = find(&store, "a").await;
    assert_eq!(schedules(&store).tick(tick.clone()).await.unwrap(), None, "the same tick again");
    assert_eq!(find(&store, "a").await, after);
    scene.advance(10);
    let due = schedules(&store).due_schedules(100).await.unwrap();
    let tick = Tick::of(&due.due[0], due.now).unwrap().unwrap();
    schedules(&store).delete_schedule("a").await.unwrap();
    assert_eq!(schedules(&store).tick(tick).await.unwrap(), None, "the schedule was deleted");
    assert_eq!(census(&store).await.events, 1);
}

pub(super) async fn what_cannot_be_published_is_not_lost(scene: Scene) {
    let store = scene.open().await;
    put(&store, spec("a", MissedTicks::All)).await;
    let before = find(&store, "a").await;
    scene.advance(20);
    let due = schedules(&store).due_schedules(100).await.unwrap();
    let tick = Tick::of(&due.due[0], due.now).unwrap().unwrap();
    let state = |state| QueueChange { state: Some(state), depth_limit: None, ..QueueChange::default() };
    store.put_queue(&default_queue(), state(QueueState::Draining)).await.unwrap();
    assert_eq!(kind(schedules(&store).tick(tick.clone()).await), ErrorKind::Full);
    let limit = QueueChange { state: Some(QueueState::Active), depth_limit: Some(Some(1)), ..QueueChange::default() };
    store.put_queue(&default_queue(), limit).await.unwrap();
    assert_eq!(kind(schedules(&store).tick(tick.clone()).await), ErrorKind::Full, "only one of two would fit");
    let mut bad = tick.clone();
    bad.events[1].event_type.clear();
    assert_eq!(kind(schedules(&store).tick(bad).await), ErrorKind::Invalid);
    assert_eq!((find(&store, "a").await, census(&store).await.events), (before, 0), "nothing was written");
    store.put_queue(&default_queue(), QueueChange { depth_limit: Some(None), ..QueueChange::default() }).await.unwrap();
    assert_eq!(schedules(&store).tick(tick).await.unwrap().map(|events| events.len()), Some(2));
    assert_eq!(moments(&store, "a").await.len(), 2);
}

pub(super) async fn every_option_of_the_event_counts(scene: Scene) {
    let store = scene.open().await;
    store.put_queue(&queue("other"), QueueChange::default()).await.unwrap();
    let mut keyed = spec("keyed", MissedTicks::All);
    keyed.event = keyed.event.replace_waiting("k");
    put(&store, keyed).await;
    let mut full = spec("full", MissedTicks::All);
    full.event = NewEvent::new("tick.full", vec![0, 255]).group("g").priority(-7).max_attempts(3).delay(seconds(5));
    full.event.queue = queue("other");
    full.event.subject = Some("order:1".into());
    put(&store, full).await;
    scene.advance(30);
    assert_eq!(run_due(&store).await, 6);
    let third = scene.now();
    assert_eq!(moments(&store, "keyed").await, [third], "later ticks replaced what still waited");
    let from_other = Claim { queue: queue("other"), ..want(10) };
    assert_eq!(store.claim(from_other.clone()).await.unwrap(), [], "delayed");
    scene.advance(5);
    let claimed = store.claim(from_other.clone()).await.unwrap();
    assert_eq!(claimed.len(), 1, "one entry of a group at a time");
    assert_eq!((claimed[0].fact.payload.as_ref(), claimed[0].max_attempts), (&[0, 255][..], 3));
    assert_eq!((claimed[0].group.as_deref(), claimed[0].fact.subject.as_deref()), (Some("g"), Some("order:1")));
    complete(&store, &claimed[0]).await;
    assert_eq!(store.claim(from_other).await.unwrap().len(), 1);
}

/// A schedule whose event has every field set, in the queue `other`.
async fn full_spec(store: &AnyStore) -> ScheduleSpec {
    store.put_queue(&queue("other"), QueueChange::default()).await.unwrap();
    let mut full = spec("full", MissedTicks::Once);
    full.event = every_field("tick.full").delay(seconds(5)).queue(queue("other"));
    full
}

pub(super) async fn every_field_of_the_event_is_in_its_ticks(scene: Scene) {
    let store = scene.open().await;
    let full = full_spec(&store).await;
    let event = put(&store, full.clone()).await.spec.event;
    assert_eq!((&event, &find(&store, "full").await.spec), (&full.event, &full));
    scene.advance(10);
    assert_eq!(run_due(&store).await, 1);
    let tick = scene.now();
    scene.advance(5);
    let claimed = store.claim(Claim { queue: queue("other"), ..want(10) }).await.unwrap().remove(0);
    // No `..`: a new field of facts must be checked here too.
    let Fact {
        client,
        event_type,
        payload,
        content_type,
        source,
        subject,
        time,
        external_id,
        correlation_id,
        causation_id,
        attributes,
        created_at,
        title,
        description,
        tags,
        retry,
    } = claimed.fact;
    assert_eq!((client, event_type, payload), (event.client, event.event_type.clone(), event.payload.clone()));
    assert_eq!(
        (content_type, source, subject),
        (event.content_type.clone(), event.source.clone(), event.subject.clone())
    );
    assert_eq!((time, created_at), (Some(tick), tick));
    assert_eq!((external_id, correlation_id), (event.external_id.clone(), event.correlation_id.clone()));
    assert_eq!((causation_id, retry), (event.causation_id.clone(), event.retry.clone()));
    assert!(attributes.unwrap().contains("traceparent"));
    assert_eq!((title, description, tags), (event.title.clone(), event.description.clone(), event.tags.clone()));
    assert_eq!((claimed.group, claimed.max_attempts), (event.group.clone(), event.max_attempts));
    assert_eq!(claimed.exhausted_as, event.exhausted_as);
    assert_eq!(store.entries(vec![claimed.id]).await.unwrap()[0].as_ref().unwrap().priority, event.priority);
    // A request under the event's idempotency key is answered with the tick's entry.
    let mut again = NewEvent::new("tick.full", "{}").queue(queue("other"));
    (again.client, again.idempotency) = (event.client, event.idempotency.clone());
    let repeated = try_publish(&store, again).await.unwrap();
    assert_eq!((repeated.id, repeated.outcome), (claimed.id, PublishOutcome::Duplicate));
}

pub(super) async fn an_unchanged_definition_of_every_field_writes_nothing(scene: Scene) {
    let store = scene.open().await;
    let mut full = full_spec(&store).await;
    for delay in [seconds(5), seconds(0), std::time::Duration::from_nanos(1_500)] {
        full.event = full.event.delay(delay);
        let first = put(&store, full.clone()).await;
        scene.advance(1);
        assert_eq!(put(&store, full.clone()).await, first, "{delay:?}");
        assert_eq!(find(&store, "full").await, first, "a put returns what is stored");
    }
    full.event.tags.pop();
    scene.advance(1);
    assert_eq!(put(&store, full).await.updated_at, scene.now(), "a change is written");
}

pub(super) async fn database_time_decides(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let mut every_second = spec("a", MissedTicks::All);
    every_second.cron = "* * * * * *".into();
    let first = put(&store, every_second).await.next_at;
    let made = std::sync::atomic::AtomicUsize::new(0);
    eventually("two ticks pass", async || {
        let more = run_due(&store).await;
        made.fetch_add(more, std::sync::atomic::Ordering::SeqCst) + more >= 2
    })
    .await;
    let seen = moments(&store, "a").await;
    assert_eq!(seen[0], first);
    assert!(seen.windows(2).all(|pair| pair[1].duration_since(pair[0]).as_secs() == 1), "{seen:?}");
}
