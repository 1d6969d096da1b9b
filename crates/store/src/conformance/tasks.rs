//! Tasks: jobs of which something is said that no subscription tells, each with a fact of its own.

use std::sync::Arc;

use tidegate_core::{End, EntryId, Tsid};

use super::fact_retention::run_retention;
use super::facts::{fact, ingest, ingest_one, made, to, try_ingest};
use super::scene::*;
use crate::ErrorKind;
use crate::values::*;

fn task(lane: &str, text: &str) -> Target {
    let family = Family::Jobs;
    Target { family, lane_type: Some(lane.to_owned()), task: Some(text.into()), ..to(&default_queue()) }
}

fn one(text: &str) -> Ingest {
    fact("t", "{}", vec![task("task:a", text)])
}

async fn count(scene: &Scene, table: &str) -> i64 {
    scene.fixture.number(&format!("SELECT count(*) FROM tidegate.{table}")).await
}

fn texts(texts: &[Option<&str>]) -> Vec<Option<String>> {
    texts.iter().map(|text| text.map(str::to_owned)).collect()
}

/// What is said about a task is read by its number, in every state; its fact has the same id, and no search finds it.
pub(super) async fn what_is_said_about_a_task_is_read_with_it(scene: Scene) {
    let store = scene.open().await;
    let jobs = store.family(Family::Jobs);
    let plain = fact("t", "{}", vec![Target { task: None, ..task("s", "") }]);
    let stored = ingest(&store, vec![one("{\"n\":1}"), plain, one("")]).await;
    let ids: Vec<_> = stored.iter().map(|one| one.targets[0]).collect();
    let asked = vec![ids[2], ids[1], ids[0], ids[2], EntryId::new(900).unwrap()];
    let expected = texts(&[Some(""), None, Some("{\"n\":1}"), Some(""), None]);
    assert_eq!(jobs.tasks(asked.clone()).await.unwrap(), expected);
    assert_eq!(store.tasks(asked.clone()).await.unwrap(), expected, "through either handle");
    assert_eq!(jobs.tasks(Vec::new()).await.unwrap(), []);
    assert_eq!(kind(jobs.tasks(vec![ids[0]; MAX_TASKS + 1]).await), ErrorKind::Invalid);

    let first = &stored[0];
    assert_eq!(first.event_id, Tsid::from_parts(first.created_at.as_millisecond(), ids[0].get()));
    let shown = store.facts(vec![first.event_id], 9).await.unwrap().remove(0).unwrap();
    let targets: Vec<_> = shown.targets.iter().map(|target| (target.family, target.id)).collect();
    assert_eq!((targets, shown.made), (vec![(Family::Jobs, ids[0])], 1));
    let query = FactsQuery { limit: 9, ..FactsQuery::default() };
    let found = store.find_facts(query).await.unwrap().facts;
    assert_eq!(found.iter().map(|found| found.id).collect::<Vec<_>>(), [stored[1].event_id]);

    for held in claim(&jobs, 9).await {
        finalize(&jobs, end(&held, End::Failed)).await.unwrap();
    }
    redrive(&jobs, ids[0]).await.unwrap();
    assert_eq!(jobs.tasks(asked).await.unwrap(), expected);
}

pub(super) async fn a_task_is_stored_once_under_its_key(scene: Scene) {
    let store = scene.open().await;
    let keyed = |client: Option<i64>, fingerprint: i64| {
        let mut item = one("{}");
        item.fact.client = client.map(Tsid::from_i64);
        item.keys = vec![FactKey::task("k", fingerprint, seconds(100))];
        item
    };
    let first = ingest_one(&store, keyed(None, 1)).await;
    let again = ingest_one(&store, keyed(None, 1)).await;
    assert_eq!((again.event_id, again.outcome, again.targets.len()), (first.event_id, IngestOutcome::Duplicate, 0));
    let refused = try_ingest(&store, vec![keyed(None, 2)]).await.remove(0).unwrap_err();
    assert!(refused.kind() == ErrorKind::Conflict && refused.to_string().contains("another job"), "{refused}");
    assert_eq!(ingest_one(&store, keyed(Some(7), 2)).await.outcome, IngestOutcome::New, "of another client");
    let mut named = keyed(None, 3);
    named.keys = vec![FactKey::deduplication("k", 3, seconds(100))];
    assert_eq!(ingest_one(&store, named).await.outcome, IngestOutcome::New, "a key of another kind");
    assert_eq!(count(&scene, "dispatch_tasks").await, 3);
    scene.advance(101);
    assert_eq!(ingest_one(&store, keyed(None, 2)).await.outcome, IngestOutcome::New, "it is forgotten");
}

pub(super) async fn a_task_goes_with_its_job(scene: Scene) {
    let store = scene.open().await;
    let jobs = store.family(Family::Jobs);
    let stored = ingest(&store, vec![one("gone"), one("live")]).await;
    let held = claim_one(&jobs).await;
    finalize(&jobs, end(&held, End::Completed)).await.unwrap();
    scene.advance(100);
    let retention = Retention { log: Some(seconds(50)), facts: Some(seconds(50)), batch: 10, ..Retention::default() };
    assert_eq!(run_retention(&store, retention).await.entries, 1);
    let ids = stored.iter().map(|one| one.targets[0]).collect();
    assert_eq!(jobs.tasks(ids).await.unwrap(), texts(&[None, Some("live")]));
    assert_eq!((count(&scene, "dispatch_tasks").await, count(&scene, "events").await), (1, 1));
}

pub(super) async fn bad_tasks_are_refused_alone(scene: Scene) {
    let store = scene.open().await;
    let entry = fact("t", "{}", vec![Target { family: Family::Entries, lane_type: None, ..task("", "x") }]);
    let (longest, too_long) = ("x".repeat(MAX_TASK_BYTES), "x".repeat(MAX_TASK_BYTES + 1));
    let items = vec![one(&too_long), entry, one("a\0b"), one(&longest)];
    let refused = Some(ErrorKind::Invalid);
    assert_eq!(kinds(&try_ingest(&store, items).await), [refused, refused, refused, None]);
    assert_eq!(count(&scene, "dispatch_tasks").await, 1);
}

/// Whoever makes up ever new lanes shares a few from some number on; lanes that are there already, and those of another
/// kind, are not touched by that.
pub(super) async fn lanes_of_a_kind_are_bounded(scene: Scene) {
    let store = scene.open().await;
    let jobs = store.family(Family::Jobs);
    let of = |lane: &str| {
        let spare = SpareLane { kind: "task:", most: 2, lane_type: "task:*".into() };
        fact("t", "{}", vec![Target { spare_lane: Some(spare), ..task(lane, "{}") }])
    };
    let plain = |lane: &str| fact("t", "{}", vec![task(lane, "{}")]);
    ingest(&store, vec![plain("s1"), plain("s2"), plain("s3")]).await;
    ingest(&store, ["task:a", "task:b", "task:c", "task:a"].map(of).into()).await;
    ingest(&store, ["task:b", "task:d"].map(of).into()).await;
    ingest_one(&store, plain("s4")).await;
    let q = made(&jobs, "other").await;
    let mut elsewhere = of("task:e");
    elsewhere.targets[0].queue = q.clone();
    ingest_one(&store, elsewhere).await;
    let mut lanes: Vec<Arc<str>> = claim(&jobs, 20).await.into_iter().filter_map(|held| held.lane_type).collect();
    lanes.sort_unstable();
    let expected = ["s1", "s2", "s3", "s4", "task:*", "task:*", "task:a", "task:a", "task:b", "task:b"];
    assert_eq!(lanes, expected.map(Arc::from));
    let there = jobs.claim(Claim { queue: q, ..want(9) }).await.unwrap();
    assert_eq!(there[0].lane_type.as_deref(), Some("task:e"), "each queue has lanes of its own");
}
