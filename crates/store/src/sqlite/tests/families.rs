//! Two families in one file: what the writer, its waiting claims and plain SQL do for each.

use super::*;
use crate::values::{Family, Holder, Report, ReportResult, RequeueAt};
use tidegate_core::AttemptOutcome;

fn requeue_aside(claimed: &Claimed, wait: Duration) -> Requeue {
    let when = RequeueAt::After(wait);
    Requeue { id: claimed.id, token: claimed.token, when, counts: true, aside: true, error: None, attempt: None }
}

async fn publish_one(store: &SqliteStore, event: NewEvent) -> EntryId {
    store.publish(vec![event]).await.unwrap().remove(0).unwrap().id
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_moves_the_leases_of_both_families() {
    let scene = Scene::new();
    let store = scene.open().await;
    let jobs = store.of_family(Family::Jobs);
    let hour = 3_600_000_000_i64;
    for (family, table) in [(&store, "event_queue"), (&jobs, "dispatch_queue")] {
        publish_one(family, event()).await;
        assert_eq!(family.claim(Claim { lease: Duration::from_millis(1), ..want(1) }).await.unwrap().len(), 1);
        let back = format!("UPDATE tidegate_{table} SET lease_until = lease_until - ?1");
        assert_eq!(scene.connect().execute(&back, [hour]).unwrap(), 1);
    }
    scene.connect().execute("UPDATE tidegate_heartbeat SET at = at - ?1", [hour]).unwrap();
    assert_eq!(jobs.claim(want(1)).await.unwrap(), [], "its lease was held when the store went down");
    let moved = "SELECT min(lease_until) FROM (SELECT lease_until FROM tidegate_event_queue
                 UNION ALL SELECT lease_until FROM tidegate_dispatch_queue)";
    assert!(scene.count(moved) >= scene.count("SELECT at FROM tidegate_heartbeat") - 60_000_000, "moved by the gap");
    assert!(store.maintain().await.unwrap().outage.is_none(), "the claim detected it already");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_claim_and_a_receiver_hear_of_their_own_family() {
    let scene = Scene::new();
    let store = scene.open().await;
    let jobs = store.of_family(Family::Jobs);
    // The first transaction wakes everybody.
    store.maintain().await.unwrap();
    let mut woken = jobs.wakeups();
    let mut waiting = jobs.claim_when_available(want(1)).unwrap();
    let entry = publish_one(&store, event()).await;
    assert!(woken.try_recv().is_err(), "entries wake no receiver of jobs");
    let job = publish_one(&jobs, event()).await;
    let taken = waiting.answer().await.unwrap().unwrap();
    assert_eq!(taken.iter().map(|claimed| claimed.id).collect::<Vec<_>>(), [job]);
    assert!(matches!(woken.recv().await.unwrap(), Wake::Queues(queues) if queues.contains(&QueueName::default())));
    assert_eq!(store.claim(want(9)).await.unwrap()[0].id, entry);
    // Cancelling the claims of one family leaves those of the other.
    let mut waiting = jobs.claim_when_available(want(1)).unwrap();
    store.cancel_waiting_claims();
    let job = publish_one(&jobs, event()).await;
    assert_eq!(waiting.answer().await.unwrap().unwrap()[0].id, job);
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_sweeps_both_logs() {
    let scene = Scene::new();
    let store = scene.open().await;
    let jobs = store.of_family(Family::Jobs);
    for family in [&jobs, &store, &jobs, &store, &jobs] {
        publish_one(family, event()).await;
        let claimed = family.claim(want(1)).await.unwrap();
        family.finalize(claimed.iter().map(done).collect()).await.unwrap().remove(0).unwrap();
    }
    let live = publish_one(&jobs, event()).await;
    store.maintain().await.unwrap();
    let mut old = crate::Retention {
        audit: None,
        log: Some(Duration::ZERO),
        dead_letters: None,
        batch: 2,
        ..crate::Retention::default()
    };
    let mut removed = 0;
    loop {
        let retained = jobs.retain(old).await.unwrap();
        removed += retained.entries;
        old.from = retained.next;
        if old.from.is_none() {
            break;
        }
    }
    assert_eq!(removed, 5);
    let census = store.census().await.unwrap();
    assert_eq!((census.events, census.waiting, census.ended), (1, 1, 0), "the fact of a live job stays");
    assert!(jobs.entries(vec![live]).await.unwrap()[0].is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_keeps_an_exhausted_entry_and_a_reset_starts_it_over() {
    let scene = Scene::new();
    let store = scene.open().await;
    let id = publish_one(&store, event().group("g").max_retries(0).keep_place().tags(["a"])).await;
    publish_one(&store, event().group("g")).await;
    let claim = Claim { audit: true, ..want(9) };
    let head = store.claim(claim.clone()).await.unwrap().remove(0);
    let report = Report {
        holder: Holder { id, worker: "w".into(), lease: Some(head.token) },
        outcome: AttemptOutcome::Failed,
        status_code: Some(500),
        execution_time_ms: None,
        error_message: Some("no".into()),
    };
    for repeated in [false, true] {
        let reported = store.report(vec![report.clone()]).await.unwrap().remove(0).unwrap();
        assert!(matches!(reported.result, ReportResult::Exhausted { .. }), "{reported:?}");
        assert_eq!(reported.repeated, repeated);
    }
    let view = store.entries(vec![id]).await.unwrap().remove(0).unwrap();
    assert_eq!(view.phase, crate::EntryPhase::Kept { end: End::Failed });
    let by_tag = Claim { tags: Some(vec!["a".into()]), ..claim.clone() };
    assert_eq!(store.claim(by_tag.clone()).await.unwrap(), []);
    assert_eq!(store.claim(claim).await.unwrap(), [], "nothing of its group runs");
    Attempts::reset(&store, vec![id.into()]).await.unwrap().remove(0).unwrap();
    let again = store.claim(by_tag).await.unwrap().remove(0);
    assert_eq!((again.id, again.generation, again.attempts, again.last_error), (id, 2, 1, None));
    assert!(again.token > head.token);
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_sql_spares_kept_entries_and_counts_those_aside() {
    let scene = Scene::new();
    let store = scene.open().await;
    let kept = publish_one(&store, event().group("g").keep_place().replace_waiting("k")).await;
    let head = store.claim(want(1)).await.unwrap().remove(0);
    store.finalize(vec![Finalize { end: End::Failed, ..done(&head) }]).await.unwrap().remove(0).unwrap();
    let insert = "INSERT INTO tidegate_publish (event_type, payload, deduplication_id, replace_waiting)
                  VALUES ('t', '[2]', ?1, 1)";
    scene.connect().execute(insert, ["k"]).unwrap();
    assert_eq!(store.census().await.unwrap().waiting, 2, "a new one beside it");
    let kept = store.entries(vec![kept]).await.unwrap().remove(0).unwrap();
    assert_eq!(&kept.fact.payload[..], b"{}");

    let waits = publish_one(&store, event().group("h").keep_place().replace_waiting("h")).await;
    let claimed = store.claim(want(9)).await.unwrap();
    let aside = claimed.iter().find(|claimed| claimed.id == waits).unwrap();
    store.requeue(vec![requeue_aside(aside, Duration::from_secs(60))]).await.unwrap().remove(0).unwrap();
    scene.connect().execute(insert, ["h"]).unwrap();
    let replaced = store.entries(vec![waits]).await.unwrap().remove(0).unwrap();
    assert_eq!(&replaced.fact.payload[..], b"[2]");
    assert_eq!(
        scene.count(&format!("SELECT flags FROM tidegate_event_queue WHERE id = {waits}")),
        4,
        "it keeps its place"
    );
    let limit = crate::QueueChange { depth_limit: Some(Some(3)), ..crate::QueueChange::default() };
    store.put_queue(&QueueName::default(), limit).await.unwrap();
    let error = scene.connect().execute(insert, ["new"]).unwrap_err().to_string();
    assert!(error.contains("full"), "kept, aside and leased: {error}");
    assert_eq!(store.publish(vec![event()]).await.unwrap().remove(0).unwrap_err().kind(), ErrorKind::Full);
}
