//! Jobs on both databases: claimed lane by lane under quotas, kept while they are worked on, ended and retried apart from
//! entries.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::{
    Attempt, End, EntryId, EntryPhase, EventQueue, Family, Ingest, IngestAnswer, JobClaim, Jobs, NewEvent, QueueName,
    QueuedEvent, Target,
};

use crate::databases::on_each_database;
use crate::support::{eventually, soon};

/// Short enough that a test sees several ends of it, long enough that a busy machine keeps it.
const LEASE: Duration = Duration::from_secs(3);

fn queue_of_jobs() -> QueueName {
    QueueName::new("dispatch").unwrap()
}

/// Makes a job in each of these lanes, of one event.
async fn make(queue: &EventQueue, lanes: &[&str], change: impl Fn(&mut Target)) -> Vec<EntryId> {
    let job = |lane: &&str| {
        let mut target = Target::new(queue_of_jobs());
        (target.family, target.lane_type) = (Family::Jobs, Some((*lane).into()));
        change(&mut target);
        target
    };
    queue.make_job_queue(&queue_of_jobs()).await.unwrap();
    let item = Ingest::new(NewEvent::new("t", "{}"), lanes.iter().map(job).collect());
    let IngestAnswer::Done(mut answers) = queue.facts().ingest(vec![item], None).await.unwrap() else {
        panic!("no version was given");
    };
    answers.remove(0).unwrap().targets
}

async fn claim(jobs: &Jobs, quotas: &[(&str, usize)], max: usize) -> Vec<QueuedEvent> {
    let quotas: BTreeMap<String, usize> = quotas.iter().map(|(lane, quota)| ((*lane).into(), *quota)).collect();
    jobs.claim(JobClaim { queue: queue_of_jobs(), quotas, max }).await.unwrap()
}

async fn end_of(queue: &EventQueue, id: EntryId) -> Option<End> {
    let store = queue.store().family(Family::Jobs);
    match store.entries(vec![id]).await.unwrap().remove(0).unwrap().phase {
        EntryPhase::Ended { end, .. } => Some(end),
        _ => None,
    }
}

on_each_database! {
    async fn jobs_are_claimed_by_lane_within_quotas(place) {
        let queue = place.open().await;
        let jobs = queue.jobs();
        let ids = make(&queue, &["a", "a", "a", "b", "c"], |_| {}).await;
        let claimed = claim(&jobs, &[("a", 2), ("b", 5)], 9).await;
        let got: Vec<_> = claimed.iter().map(|job| (job.id, job.lane_type.as_deref())).collect();
        assert_eq!(got, [(ids[0], Some("a")), (ids[1], Some("a")), (ids[3], Some("b"))]);
        assert!(queue.poll().await.unwrap().is_none(), "they are no entries");
        for job in claimed {
            job.complete().await.unwrap();
        }
        assert_eq!(end_of(&queue, ids[0]).await, Some(End::Completed));
        assert_eq!(claim(&jobs, &[("a", 2), ("c", 0)], 9).await.len(), 1, "a quota of nothing takes nothing");
        jobs.close().await;
        queue.close().await;
    }

    async fn a_dropped_job_is_claimed_again_and_an_attempt_outlasts_its_lease(place) {
        let queue = place.open_with(|builder| builder.lease(LEASE)).await;
        let jobs = queue.jobs();
        let ids = make(&queue, &["a"], |_| {}).await;
        let mut hints = jobs.wake_hints();
        drop(claim(&jobs, &[("a", 1)], 1).await);
        let mut claimed = Vec::new();
        while claimed.is_empty() {
            claimed = claim(&jobs, &[("a", 1)], 1).await;
        }
        let job = claimed.remove(0);
        assert_eq!((job.id, job.attempts), (ids[0], 1), "the attempt did not count");
        hints.skip();
        let other = queue.jobs();
        let attempt = job.attempt(async move {
            let started = std::time::Instant::now();
            let ended = || async { started.elapsed() > LEASE * 2 };
            eventually("its first lease is over", || async {
                assert!(claim(&other, &[("a", 1)], 1).await.is_empty(), "it is kept");
                ended().await
            })
            .await;
            other.close().await;
            7
        });
        assert_eq!(attempt.await, Attempt::Done(7));
        job.complete().await.unwrap();
        assert_eq!(end_of(&queue, ids[0]).await, Some(End::Completed));
        make(&queue, &["a"], |_| {}).await;
        assert!(soon("a hint of the new one", hints.next()).await);
        jobs.close().await;
        queue.close().await;
    }

    async fn an_attempt_ends_with_its_lease_or_panics_alone(place) {
        let queue = place.open().await;
        let jobs = queue.jobs();
        let ids = make(&queue, &["a", "a"], |_| {}).await;
        let mut claimed = claim(&jobs, &[("a", 2)], 2).await;
        let (second, first) = (claimed.pop().unwrap(), claimed.pop().unwrap());
        assert_eq!(second.attempt(async { panic!("on purpose") }).await, Attempt::<()>::Panicked);
        second.retry_after(Duration::ZERO, "it panicked").await.unwrap();
        // Ended by hand meanwhile: that stays.
        let store = queue.store().family(Family::Jobs);
        let cancelled = tidegate_store::ManualAction { id: ids[0], actor: None, reason: None };
        store.cancel_manually(vec![cancelled]).await.unwrap().remove(0).unwrap();
        let ended = first.complete().await.unwrap();
        assert_eq!((ended.repeated, ended.end), (true, End::Cancelled));
        let again = claim(&jobs, &[("a", 2)], 2).await.remove(0);
        assert_eq!((again.id, again.attempts, again.last_error.as_deref()), (ids[1], 2, Some("it panicked")));
        drop(again);
        jobs.close().await;
        let refused = jobs.claim(JobClaim { queue: queue_of_jobs(), quotas: BTreeMap::new(), max: 1 }).await;
        assert!(refused.is_err(), "closed");
        queue.close().await;
    }

    async fn a_failed_job_of_a_group_steps_aside(place) {
        let queue = place.open().await;
        let jobs = queue.jobs();
        let ids = make(&queue, &["a", "a"], |target| target.group = Some("g".into())).await;
        let first = claim(&jobs, &[("a", 5)], 5).await.remove(0);
        assert_eq!(first.id, ids[0]);
        first.step_aside(Duration::from_secs(3600), "no").await.unwrap();
        let second = claim(&jobs, &[("a", 5)], 5).await.remove(0);
        assert_eq!(second.id, ids[1], "the next of the group goes on");
        second.complete().await.unwrap();
        jobs.close().await;
        queue.close().await;
    }

    async fn attempts_are_recorded_with_what_follows(place) {
        let queue = place.open().await;
        let jobs = queue.jobs();
        let ids = make(&queue, &["a"], |target| target.max_attempts = 3).await;
        let next = async || claim(&jobs, &[("a", 1)], 1).await.remove(0);
        next().await.with_attempt("released").release().await.unwrap();
        next().await.with_attempt("1").retry_after(Duration::ZERO, "no").await.unwrap();
        next().await.with_attempt("2").step_aside(Duration::ZERO, "no").await.unwrap();
        next().await.with_attempt("3").fail("no").await.unwrap();
        let store = queue.store().family(Family::Jobs);
        store.redrive(vec![ids[0]]).await.unwrap().remove(0).unwrap();
        next().await.with_attempt("4").complete().await.unwrap();
        let recorded = store.job_attempts(ids[0]).await.unwrap();
        let recorded: Vec<_> = recorded.iter().map(|one| (one.generation, one.attempt, one.record.as_str())).collect();
        assert_eq!(recorded, [(1, 1, "1"), (1, 2, "2"), (1, 3, "3"), (2, 1, "4")]);
        jobs.close().await;
        queue.close().await;
    }
}
