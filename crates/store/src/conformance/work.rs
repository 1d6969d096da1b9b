//! What pull workers report and what follows from it; resets, idempotency keys, workers and API keys.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{
    Action, AttemptOutcome, End, EntryId, Idempotency, LeaseToken, NewEvent, QueueSettings, RetryPolicy, Status,
};

use super::scene::*;
use crate::ErrorKind::{AlreadyEnded, Conflict, Fenced, Invalid, NotFound};
use crate::api::*;
use crate::error::Result;
use crate::values::NewKey;
use crate::values::*;

pub(super) fn work(store: &AnyStore) -> &dyn Store {
    store.as_ref()
}

/// A job as the worker API publishes it.
pub(super) fn job() -> NewEvent {
    event("job").title("Send mail").tags(["email", "urgent"]).max_retries(3)
}

/// The claim of a pull worker: by tag, and audited.
pub(super) fn pick(worker: &str, max: usize) -> Claim {
    Claim { worker: worker.into(), audit: true, tags: Some(vec!["email".into()]), ..want(max) }
}

pub(super) async fn pick_one(store: &AnyStore, worker: &str) -> Claimed {
    let mut claimed = store.claim(pick(worker, 1)).await.expect("the claim is answered");
    assert_eq!(claimed.len(), 1, "an entry is claimable");
    claimed.remove(0)
}

pub(super) fn by(id: EntryId, worker: &str) -> Holder {
    Holder { id, worker: worker.into(), lease: None }
}

pub(super) fn report_of(holder: Holder, outcome: AttemptOutcome) -> Report {
    let error_message = (outcome == AttemptOutcome::Failed).then(|| "it broke".to_owned());
    Report { holder, outcome, status_code: Some(200), execution_time_ms: Some(12), error_message }
}

pub(super) async fn report(store: &AnyStore, holder: Holder, outcome: AttemptOutcome) -> Result<Reported> {
    only(work(store).report(vec![report_of(holder, outcome)]).await)
}

pub(super) async fn complete_by(store: &AnyStore, id: EntryId, worker: &str) -> Result<Reported> {
    report(store, by(id, worker), AttemptOutcome::Completed).await
}

pub(super) async fn fail_by(store: &AnyStore, id: EntryId, worker: &str) -> Result<Reported> {
    report(store, by(id, worker), AttemptOutcome::Failed).await
}

pub(super) async fn complete_ends_and_records(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job()).await;
    let claimed = pick_one(&store, "w:1").await;
    assert_eq!((claimed.fact.title.as_deref(), claimed.max_attempts), (Some("Send mail"), 4));
    scene.advance(5);
    let done = complete_by(&store, id, "w:1").await.unwrap();
    assert_eq!((done.result, done.repeated), (ReportResult::Completed, false));
    let row = &done.row;
    assert_eq!((row.entry, row.action, row.worker.as_deref()), (id, Action::Completed, Some("w:1")));
    assert_eq!((row.status_code, row.execution_time_ms, row.created_at), (Some(200), Some(12), scene.now()));
    let shown = view(&store, id).await;
    assert_eq!((shown.status(), shown.retry_count(), shown.max_retries()), (Status::Completed, 0, 3));
    assert_eq!((shown.updated_at, shown.next_retry_at()), (scene.now(), None));
}

pub(super) async fn three_retries_are_four_attempts(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job()).await;
    for attempt in 1..=3 {
        pick_one(&store, "w:1").await;
        assert_eq!(view(&store, id).await.retry_count(), attempt - 1, "during the attempt");
        let failed = fail_by(&store, id, "w:1").await.unwrap();
        assert_eq!(failed.result, ReportResult::RetryScheduled { next_retry_at: scene.moment(300) });
        let shown = view(&store, id).await;
        assert_eq!((shown.status(), shown.retry_count()), (Status::Pending, attempt));
        assert_eq!(shown.next_retry_at(), Some(scene.moment(300)));
        assert_eq!(shown.error.as_deref(), Some("it broke"));
        scene.advance(299);
        assert!(store.claim(pick("w:1", 1)).await.unwrap().is_empty(), "not before five minutes have passed");
        scene.advance(1);
    }
    pick_one(&store, "w:1").await;
    let last = fail_by(&store, id, "w:1").await.unwrap();
    assert_eq!(last.result, ReportResult::Exhausted { retry_count: 3, max_retries: 3 });
    let shown = view(&store, id).await;
    assert_eq!((shown.status(), shown.retry_count()), (Status::Failed, 3));
    assert_eq!(shown.error.as_deref(), Some("[\"it broke\"]"));
    assert_eq!(dead_letters(&store).await, [id]);
}

pub(super) async fn repeats_answer_the_record(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![job(), job().max_retries(0)]).await;
    let first = pick_one(&store, "w:1").await;
    let failed = fail_by(&store, ids[0], "w:1").await.unwrap();
    let last = pick_one(&store, "w:1").await;
    let exhausted = fail_by(&store, ids[1], "w:1").await.unwrap();
    assert_eq!(exhausted.result, ReportResult::Exhausted { retry_count: 0, max_retries: 0 });
    scene.advance(7);
    for (first, token) in [(failed, first.token), (exhausted, last.token)] {
        let id = first.row.entry;
        for lease in [None, Some(token)] {
            let again = report(&store, Holder { lease, ..by(id, "w:1") }, AttemptOutcome::Failed).await.unwrap();
            assert!(again.repeated);
            assert_eq!((&again.row, again.result), (&first.row, first.result), "the recorded row and result");
        }
        assert_eq!(kind(complete_by(&store, id, "w:1").await), Fenced, "another outcome is not a repeat");
        let trail = work(&store).audit(id).await.unwrap();
        assert_eq!(trail.iter().filter(|row| row.action == Action::Failed).count(), 1);
    }
}

pub(super) async fn a_later_attempt_of_the_same_worker_is_a_new_record(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job()).await;
    let first = pick_one(&store, "w:1").await;
    let one = fail_by(&store, id, "w:1").await.unwrap();
    scene.advance(300);
    pick_one(&store, "w:1").await;
    let two = fail_by(&store, id, "w:1").await.unwrap();
    assert!(!two.repeated && two.row.id != one.row.id);
    assert_eq!((one.row.retry_count, two.row.retry_count), (Some(1), Some(2)));
    let of_first = Holder { lease: Some(first.token), ..by(id, "w:1") };
    assert_eq!(report(&store, of_first, AttemptOutcome::Failed).await.unwrap().row, one.row, "the record of its lease");
    assert_eq!(fail_by(&store, id, "w:1").await.unwrap().row, two.row, "without a lease, the last");
}

pub(super) async fn who_holds_nothing_changes_nothing(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job()).await;
    assert_eq!(kind(complete_by(&store, id, "w:1").await), Fenced, "it is not held");
    let stale = pick_one(&store, "w:1").await;
    assert_eq!(kind(complete_by(&store, id, "w:2").await), Fenced, "another worker holds it");
    let guess = Holder { lease: Some(LeaseToken(stale.token.0 + 1)), ..by(id, "w:1") };
    assert_eq!(kind(report(&store, guess, AttemptOutcome::Completed).await), Fenced, "a lease that was never given");
    let borrowed = Holder { lease: Some(stale.token), ..by(id, "w:2") };
    assert_eq!(kind(report(&store, borrowed, AttemptOutcome::Completed).await), Fenced, "another worker's lease");
    scene.advance(60);
    let before = pick_one(&store, "w:2").await;
    assert_eq!(kind(fail_by(&store, id, "w:1").await), Fenced, "it was taken over");
    assert_eq!(view(&store, id).await.token, before.token);
    let unknown = EntryId::new(999_999).unwrap();
    assert_eq!(kind(complete_by(&store, unknown, "w:1").await), NotFound);
    assert_eq!(kind(only(work(&store).started(vec![by(unknown, "w:1")]).await)), NotFound);
    assert_eq!(kind(complete_by(&store, id, "").await), Invalid);
    complete_by(&store, id, "w:2").await.unwrap();
    assert_eq!(kind(complete_by(&store, id, "w:1").await), Fenced, "also after the end");
}

pub(super) async fn an_expired_lease_that_nobody_took_still_reports(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job()).await;
    pick_one(&store, "w:1").await;
    scene.advance(3600);
    assert_eq!(complete_by(&store, id, "w:1").await.unwrap().result, ReportResult::Completed);
}

pub(super) async fn an_abandonment_uses_up_a_retry(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job().max_retries(1)).await;
    pick_one(&store, "w:1").await;
    scene.advance(60);
    pick_one(&store, "w:2").await;
    assert_eq!(view(&store, id).await.retry_count(), 1);
    let failed = fail_by(&store, id, "w:2").await.unwrap();
    assert_eq!(failed.result, ReportResult::Exhausted { retry_count: 1, max_retries: 1 });
    let id = publish_one(&store, job().max_retries(0)).await;
    pick_one(&store, "w:1").await;
    scene.advance(60);
    assert!(store.claim(pick("w:2", 1)).await.unwrap().is_empty());
    assert_eq!(view(&store, id).await.status(), Status::Failed);
}

pub(super) async fn retries_wait_as_event_or_queue_say(scene: Scene) {
    let store = scene.open().await;
    let settings = QueueSettings { retry: Some(RetryPolicy::fixed(seconds(7))), ..QueueSettings::default() };
    let change = QueueChange { settings: settings.clone().into(), ..QueueChange::default() };
    let config = store.put_queue(&default_queue(), change).await.unwrap();
    assert_eq!(config.settings, settings);
    let own = RetryPolicy::list([seconds(1), seconds(2)]);
    let ids = publish(&store, vec![job(), job().retry(own)]).await;
    let delay = |reported: Reported| match reported.result {
        ReportResult::RetryScheduled { next_retry_at } => next_retry_at.as_second() - scene.now().as_second(),
        other => panic!("{other:?}"),
    };
    store.claim(pick("w:1", 2)).await.unwrap();
    assert_eq!(delay(fail_by(&store, ids[0], "w:1").await.unwrap()), 7);
    assert_eq!(delay(fail_by(&store, ids[1], "w:1").await.unwrap()), 1);
    scene.advance(1);
    pick_one(&store, "w:1").await;
    assert_eq!(delay(fail_by(&store, ids[1], "w:1").await.unwrap()), 2);
}

pub(super) async fn a_queue_can_require_leases(scene: Scene) {
    let store = scene.open().await;
    let settings =
        QueueSettings { lease_seconds: Some(5), max_retries: Some(9), require_lease: true, ..QueueSettings::default() };
    let change = QueueChange { settings: settings.clone().into(), ..QueueChange::default() };
    store.put_queue(&default_queue(), change).await.unwrap();
    let kept = store.put_queue(&default_queue(), QueueChange::default()).await.unwrap();
    assert_eq!(kept.settings, settings, "a change without settings keeps them");
    assert_eq!(store.queues().await.unwrap()[0].settings, settings);
    let id = publish_one(&store, job()).await;
    let claimed = pick_one(&store, "w:1").await;
    assert_eq!(kind(complete_by(&store, id, "w:1").await), Invalid);
    let holder = Holder { lease: Some(claimed.token), ..by(id, "w:1") };
    assert_eq!(report(&store, holder, AttemptOutcome::Completed).await.unwrap().result, ReportResult::Completed);
    let bad = QueueSettings { lease_seconds: Some(0), ..QueueSettings::default() };
    let change = QueueChange { settings: bad.into(), ..QueueChange::default() };
    assert_eq!(kind(store.put_queue(&default_queue(), change).await), Invalid);
}

pub(super) async fn concurrent_repeats_record_once(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let ids = publish(&store, vec![job(), job(), job().max_retries(0)]).await;
    store.claim(pick("w:1", 3)).await.unwrap();
    let store = Arc::new(store);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        for (id, outcome) in
            [(ids[0], AttemptOutcome::Completed), (ids[1], AttemptOutcome::Failed), (ids[2], AttemptOutcome::Failed)]
        {
            let store = Arc::clone(&store);
            calls.spawn(async move { (id, report(&store, by(id, "w:1"), outcome).await.unwrap()) });
        }
    }
    let answers = calls.join_all().await;
    for id in ids {
        let of: Vec<&Reported> = answers.iter().filter(|(of, _)| *of == id).map(|(_, reported)| reported).collect();
        assert_eq!(of.iter().filter(|reported| !reported.repeated).count(), 1, "written once");
        assert!(of.iter().all(|reported| reported.row == of[0].row && reported.result == of[0].result));
        let trail = work(&store).audit(id).await.unwrap();
        assert_eq!(trail.len(), 2, "picked, and one outcome: {trail:?}");
    }
}

pub(super) async fn each_of_a_batch_is_answered(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![job(), job(), job()]).await;
    store.claim(pick("w:1", 2)).await.unwrap();
    let unknown = EntryId::new(999_999).unwrap();
    let items = vec![
        report_of(by(ids[0], "w:1"), AttemptOutcome::Completed),
        report_of(by(unknown, "w:1"), AttemptOutcome::Completed),
        report_of(by(ids[0], "w:1"), AttemptOutcome::Completed),
        report_of(by(ids[2], "w:1"), AttemptOutcome::Completed),
        report_of(by(ids[1], "w:1"), AttemptOutcome::Failed),
        report_of(by(ids[1], "w:2"), AttemptOutcome::Failed),
    ];
    let answers = work(&store).report(items).await.unwrap();
    assert_eq!(kinds(&answers), [None, Some(NotFound), None, Some(Fenced), None, Some(Fenced)]);
    let repeated: Vec<bool> = answers.iter().flatten().map(|reported| reported.repeated).collect();
    assert_eq!(repeated, [false, true, false]);
    assert_eq!(work(&store).report(Vec::new()).await.unwrap().len(), 0);
}

pub(super) async fn a_heartbeat_extends_the_lease(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job()).await;
    let claimed = pick_one(&store, "w:1").await;
    scene.advance(50);
    let beat = |holder| Heartbeat { holder, lease: HeartbeatLease::For(seconds(60)) };
    let held = only(work(&store).heartbeat(vec![beat(by(id, "w:1"))]).await).unwrap();
    assert_eq!(
        held,
        Held { event_id: claimed.event_id, token: claimed.token, lease_until: scene.moment(60), attempts: 1 }
    );
    scene.advance(59);
    assert!(store.claim(pick("w:2", 1)).await.unwrap().is_empty());
    let wrong = Holder { lease: Some(LeaseToken(9)), ..by(id, "w:1") };
    assert_eq!(kind(only(work(&store).heartbeat(vec![beat(wrong)]).await)), Fenced);
    assert_eq!(kind(only(work(&store).heartbeat(vec![beat(by(id, "w:2"))]).await)), Fenced);
    scene.advance(1);
    pick_one(&store, "w:2").await;
    assert_eq!(kind(only(work(&store).heartbeat(vec![beat(by(id, "w:1"))]).await)), Fenced);
    // A worker that reported is told that the entry ended, not that it lost its lease.
    complete_by(&store, id, "w:2").await.unwrap();
    let late = work(&store).heartbeat(vec![beat(by(id, "w:1")), beat(by(id, "w:2"))]).await.unwrap();
    assert_eq!(kinds(&late), [Some(Fenced), Some(AlreadyEnded)]);
    assert_eq!(kind(only(work(&store).started(vec![by(id, "w:2")]).await)), AlreadyEnded);
}

pub(super) async fn a_heartbeat_that_names_no_lease_keeps_that_of_the_claim(scene: Scene) {
    let store = scene.open().await;
    let beat = |id| Heartbeat { holder: by(id, "w:1"), lease: HeartbeatLease::AsClaimed { otherwise: seconds(60) } };
    let until = async |id| only(work(&store).heartbeat(vec![beat(id)]).await).unwrap().lease_until;
    let long = publish_one(&store, job()).await;
    store.claim(Claim { lease: seconds(3600), ..pick("w:1", 1) }).await.unwrap();
    for _ in 0..3 {
        scene.advance(1000);
        assert_eq!(until(long).await, scene.moment(3600));
    }
    // A heartbeat that names a length does not change the length of the claim.
    let once = Heartbeat { holder: by(long, "w:1"), lease: HeartbeatLease::For(seconds(5)) };
    only(work(&store).heartbeat(vec![once]).await).unwrap();
    assert_eq!(until(long).await, scene.moment(3600));
    // The next claim has a length of its own.
    scene.advance(3601);
    store.claim(Claim { lease: seconds(30), ..pick("w:1", 1) }).await.unwrap();
    assert_eq!(until(long).await, scene.moment(30));
    assert!(work(&store).audit(long).await.unwrap().iter().all(|row| row.execution_time_ms.is_none()));

    // For a claim that is not audited: the queue's setting, else what the caller names.
    let plain = publish_one(&store, job()).await;
    store.claim(Claim { worker: "w:1".into(), lease: seconds(7), ..want(1) }).await.unwrap();
    assert_eq!(until(plain).await, scene.moment(60));
    let settings = SettingsChange { lease_seconds: Some(Some(90)), ..SettingsChange::default() };
    store.put_queue(&default_queue(), QueueChange { settings, ..QueueChange::default() }).await.unwrap();
    assert_eq!(until(plain).await, scene.moment(90));
    assert_eq!(until(long).await, scene.moment(30));
}

pub(super) async fn the_queue_of_an_entry_is_known_live_and_ended(scene: Scene) {
    let store = scene.open().await;
    store.put_queue(&queue("mail"), QueueChange::default()).await.unwrap();
    let here = publish_one(&store, job()).await;
    let there = publish_one(&store, job().queue(queue("mail"))).await;
    let unknown = EntryId::new(999).unwrap();
    let of = async || work(&store).queues_of(vec![there, unknown, here, there]).await.unwrap();
    let expected = [Some(queue("mail")), None, Some(default_queue()), Some(queue("mail"))];
    assert_eq!(of().await, expected);
    pick_one(&store, "w:1").await;
    complete_by(&store, here, "w:1").await.unwrap();
    assert_eq!(of().await, expected);
    let other = scene.open().await;
    assert_eq!(work(&other).queues_of(vec![here]).await.unwrap(), [Some(default_queue())]);
}

async fn reset_one(store: &AnyStore, id: EntryId) -> Result<()> {
    only(work(store).reset(vec![ManualAction { id, actor: None, reason: Some("worker_timeout".into()) }]).await)
}

pub(super) async fn a_reset_of_a_held_entry_fences_its_holder(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job()).await;
    pick_one(&store, "w:1").await;
    fail_by(&store, id, "w:1").await.unwrap();
    scene.advance(300);
    let held = pick_one(&store, "w:1").await;
    reset_one(&store, id).await.unwrap();
    let shown = view(&store, id).await;
    assert_eq!((shown.status(), shown.retry_count(), shown.next_retry_at()), (Status::Pending, 1, None));
    assert!(shown.token > held.token);
    assert_eq!(
        kind(only(
            work(&store).heartbeat(vec![Heartbeat { holder: by(id, "w:1"), lease: HeartbeatLease::For(LEASE) }]).await
        )),
        Fenced
    );
    assert_eq!(kind(complete_by(&store, id, "w:1").await), Fenced);
    let again = pick_one(&store, "w:2").await;
    assert_eq!((again.attempts, again.id), (2, id), "claimable at once, by its tag");
    complete_by(&store, id, "w:2").await.unwrap();
}

pub(super) async fn a_reset_of_a_failed_entry_starts_over(scene: Scene) {
    let store = scene.open().await;
    let id = publish_one(&store, job().max_retries(0)).await;
    let held = pick_one(&store, "w:1").await;
    fail_by(&store, id, "w:1").await.unwrap();
    reset_one(&store, id).await.unwrap();
    let shown = view(&store, id).await;
    assert_eq!((shown.status(), shown.retry_count(), shown.next_retry_at()), (Status::Pending, 0, None));
    assert!(shown.token > held.token && shown.generation == 2);
    let again = pick_one(&store, "w:1").await;
    assert_eq!((again.attempts, again.generation), (1, 2));
    let failed = fail_by(&store, id, "w:1").await.unwrap();
    assert!(!failed.repeated, "a later attempt is a new record");
}

pub(super) async fn only_held_and_failed_entries_are_reset(scene: Scene) {
    let store = scene.open().await;
    let ids = publish(&store, vec![job(), job(), job()]).await;
    store.claim(pick("w:1", 2)).await.unwrap();
    complete_by(&store, ids[0], "w:1").await.unwrap();
    let errors = Finalize { token: None, ..end_by_id(ids[1], End::CompletedWithErrors) };
    finalize(&store, errors).await.unwrap();
    for id in ids {
        assert_eq!(kind(reset_one(&store, id).await), Conflict);
    }
    assert_eq!(kind(reset_one(&store, EntryId::new(999_999).unwrap()).await), NotFound);
}

pub(super) async fn a_repeated_request_answers_its_first_result(scene: Scene) {
    let store = scene.open().await;
    let request = |fingerprint: i64| {
        let mut event = job();
        event.idempotency = Some(Idempotency::new("key-1", fingerprint));
        event
    };
    let first = try_publish(&store, request(1)).await.unwrap();
    assert_eq!(first.outcome, PublishOutcome::Created);
    let again = try_publish(&store, request(1)).await.unwrap();
    assert_eq!((again.id, again.outcome), (first.id, PublishOutcome::Duplicate));
    assert_eq!((again.event_id, again.created_at), (first.event_id, first.created_at));
    assert_eq!(kind(try_publish(&store, request(2)).await), Conflict);
    let mut other = request(2);
    other.client = Some(tidegate_core::Tsid::from_parts(1_700_000_000_000, 1));
    assert_eq!(try_publish(&store, other).await.unwrap().outcome, PublishOutcome::Created, "keys are scoped by client");
    let both = store.publish(vec![request(1), request(3), job()]).await.unwrap();
    assert_eq!(kinds(&both), [None, Some(Conflict), None]);
    scene.advance(24 * 3600 + 1);
    assert_eq!(try_publish(&store, request(2)).await.unwrap().outcome, PublishOutcome::Created, "the key has expired");
    let mut keyed = request(7).deduplicate("d");
    keyed.idempotency = Some(Idempotency::new("key-2", 7));
    let kept = try_publish(&store, keyed.clone()).await.unwrap();
    assert_eq!(try_publish(&store, keyed).await.unwrap().id, kept.id);
}

pub(super) async fn workers_are_seen_and_go_stale(scene: Scene) {
    let store = scene.open().await;
    publish(&store, vec![job(), job()]).await;
    let consumer = |worker: &str, queue| LiveConsumer { worker: worker.into(), queue, types: None, tags: vec![] };
    let all = vec![consumer("lost:1", queue("nowhere")), consumer("idle:1", default_queue())];
    let seen = store.consumers_seen(all).await.unwrap();
    assert_eq!(seen[0].as_ref().unwrap_err().kind(), NotFound);
    assert!(seen[1].is_ok());
    let claimed = pick_one(&store, "w:1").await;
    let workers = work(&store).workers(Duration::from_secs(30)).await.unwrap();
    let names: Vec<(&str, u64, bool)> =
        workers.iter().map(|view| (view.worker.as_str(), view.held, view.stale)).collect();
    assert_eq!(names, [("idle:1", 0, false), ("w:1", 1, false)]);
    assert_eq!((&workers[1].holds, workers[1].seen_at), (&vec![claimed.id], scene.now()));
    scene.advance(31);
    let workers = work(&store).workers(Duration::from_secs(30)).await.unwrap();
    assert_eq!(workers.iter().map(|view| view.stale).collect::<Vec<_>>(), [false, true], "an idle one is not stale");
    let beat = Heartbeat { holder: by(claimed.id, "w:1"), lease: HeartbeatLease::For(LEASE) };
    only(work(&store).heartbeat(vec![beat]).await).unwrap();
    assert!(!work(&store).workers(Duration::from_secs(30)).await.unwrap()[1].stale);
}

pub(super) async fn a_start_is_a_sign_of_life(scene: Scene) {
    let store = scene.open().await;
    publish(&store, vec![job(), job()]).await;
    let claimed = pick_one(&store, "w:1").await;
    let other = pick_one(&store, "w:2").await;
    let stale = async || {
        let workers = work(&store).workers(Duration::from_secs(30)).await.unwrap();
        workers.iter().map(|view| (view.seen_at, view.stale)).collect::<Vec<_>>()
    };
    let begun = scene.now();
    for _ in 0..2 {
        scene.advance(20);
        let started = work(&store).started(vec![by(claimed.id, "w:1"), by(other.id, "w:1")]).await.unwrap();
        assert_eq!(
            started.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [true, false],
            "a repeat is a sign of life too"
        );
    }
    assert_eq!(stale().await, [(scene.now(), false), (begun, true)], "the silent worker is stale");
    scene.advance(31);
    assert_eq!(stale().await.iter().map(|(_, stale)| *stale).collect::<Vec<_>>(), [true, true]);
    assert_eq!(view(&store, claimed.id).await.phase, view_phase(&claimed, "w:1"), "the lease is unchanged");
}

fn view_phase(claimed: &Claimed, worker: &str) -> EntryPhase {
    EntryPhase::Leased { worker: worker.into(), since: claimed.claimed_at, until: claimed.lease_until }
}

pub(super) async fn ids_of_both_kinds_are_told(scene: Scene) {
    let store = scene.open().await;
    let published = try_publish(&store, job()).await.unwrap();
    let (id, event_id) = (published.id, Some(published.event_id));
    pick_one(&store, "w:1").await;
    for _ in 0..2 {
        let begun = only(work(&store).started(vec![by(id, "w:1")]).await).unwrap();
        assert_eq!(begun.event_id, event_id);
    }
    let beat = Heartbeat { holder: by(id, "w:1"), lease: HeartbeatLease::For(LEASE) };
    assert_eq!(only(work(&store).heartbeat(vec![beat]).await).unwrap().event_id, published.event_id);
    assert_eq!(work(&store).event_of(id).await.unwrap(), event_id, "live");
    fail_by(&store, id, "w:1").await.unwrap();
    scene.advance(300);
    pick_one(&store, "w:1").await;
    for repeated in [false, true] {
        let done = complete_by(&store, id, "w:1").await.unwrap();
        assert_eq!((done.repeated, done.row.event_id), (repeated, event_id));
    }
    assert_eq!(work(&store).event_of(id).await.unwrap(), event_id, "ended");
    let trail = work(&store).audit(id).await.unwrap();
    assert!(trail.len() == 5 && trail.iter().all(|row| row.event_id == event_id), "{trail:?}");
    assert_eq!(work(&store).event_of(EntryId::new(999_999).unwrap()).await.unwrap(), None);
}

pub(super) async fn keys_are_kept_and_revoked(scene: Scene) {
    let store = scene.open().await;
    let keys = store.as_ref();
    let client = tidegate_core::Tsid::from_parts(1_700_000_000_000, 1);
    let new = |hash: u8, client| NewKey {
        hash: vec![hash; 32],
        name: "ci".into(),
        scopes: vec!["publish".into()],
        client,
        expires_at: None,
    };
    let made = keys.put_key(new(1, Some(client))).await.unwrap();
    assert_eq!((made.name.as_str(), made.client, made.revoked_at), ("ci", Some(client), None));
    assert_eq!(kind(keys.put_key(new(1, None)).await), Conflict);
    let other = keys.put_key(new(2, None)).await.unwrap();
    let find =
        async |hashes: &[u8]| keys.keys_by_hash(hashes.iter().map(|hash| vec![*hash; 32]).collect()).await.unwrap();
    assert_eq!(find(&[9, 2, 1, 2]).await, [None, Some(other.clone()), Some(made.clone()), Some(other.clone())]);
    assert_eq!(find(&[]).await, []);
    keys.keys_used(vec![made.id], Duration::from_secs(7)).await.unwrap();
    let used_at = scene.now() - Duration::from_secs(7);
    assert_eq!(find(&[1]).await[0].as_ref().unwrap().last_used_at, Some(used_at));
    let changes = keys.key_changes();
    let revoked = keys.revoke_key(made.id).await.unwrap();
    assert_ne!(keys.key_changes(), changes, "cached keys must be read again");
    assert_eq!(revoked.revoked_at, Some(scene.now()));
    scene.advance(5);
    assert_eq!(keys.revoke_key(made.id).await.unwrap().revoked_at, revoked.revoked_at, "the first revocation counts");
    assert_eq!(kind(keys.revoke_key(999).await), NotFound);
    let all: Vec<i64> = keys.keys().await.unwrap().iter().map(|key| key.id).collect();
    assert_eq!(all, [made.id, other.id]);
    let nameless = NewKey { name: String::new(), ..new(3, None) };
    assert_eq!(kind(keys.put_key(nameless).await), Invalid);
}
