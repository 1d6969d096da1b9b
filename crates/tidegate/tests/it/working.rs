//! Pull workers through the library: claims by tag, reports in batches, lists, retention.

use std::time::Duration;

use tidegate::{
    Action, AttemptOutcome, EntryId, ErrorKind, EventQueue, Heartbeat, HeartbeatLease, Holder, ListQuery, NewEvent,
    Report, ReportResult, Retention, RetryPolicy, Status,
};

use crate::databases::on_each_database;
use crate::support::{eventually, soon};

fn job(tag: &str) -> NewEvent {
    NewEvent::new("job", "{}").title("A job").tags([tag]).max_retries(1).retry(RetryPolicy::fixed(Duration::ZERO))
}

fn holder(id: EntryId, worker: &str) -> Holder {
    Holder { id, worker: worker.into(), lease: None }
}

fn report(id: EntryId, worker: &str, outcome: AttemptOutcome) -> Report {
    Report {
        holder: holder(id, worker),
        outcome,
        status_code: None,
        execution_time_ms: Some(1),
        error_message: (outcome == AttemptOutcome::Failed).then(|| "no".to_owned()),
    }
}

async fn pick(queue: &EventQueue, tag: &str, worker: &str) -> EntryId {
    let consumer = queue.consumer().tags([tag]).unwrap().worker(worker).unwrap().audited();
    let held = soon("something to pick", consumer.next(Duration::from_secs(3600))).await.unwrap().unwrap();
    held.hand_over().id
}

on_each_database! {
    async fn a_waiting_worker_is_woken_for_its_tag(place) {
        let queue = place.open().await;
        let waiter = tokio::spawn({ let queue = queue.clone(); async move { pick(&queue, "mail", "w:1").await } });
        queue.publish(job("other")).await.unwrap();
        let id = queue.publish(job("mail")).await.unwrap().id;
        assert_eq!(soon("woken", waiter).await.unwrap(), id);
        assert_eq!(queue.entry(id).await.unwrap().unwrap().status(), Status::Processing, "handed over, not given back");
        let held = queue.heartbeat(Heartbeat { holder: holder(id, "w:1"), lease: HeartbeatLease::For(Duration::from_secs(90)) }).await.unwrap();
        assert_eq!(held.attempts, 1);
        queue.close().await;
    }

    async fn reports_end_retry_and_replay(place) {
        let queue = place.open().await;
        let id = queue.publish(job("mail")).await.unwrap().id;
        pick(&queue, "mail", "w:1").await;
        queue.started(holder(id, "w:1")).await.unwrap();
        let failed = queue.report(report(id, "w:1", AttemptOutcome::Failed)).await.unwrap();
        assert!(matches!(failed.result, ReportResult::RetryScheduled { .. }));
        pick(&queue, "mail", "w:2").await;
        assert_eq!(queue.report(report(id, "w:3", AttemptOutcome::Completed)).await.unwrap_err().kind(), ErrorKind::Fenced);
        let answers = queue.report_many(vec![report(id, "w:2", AttemptOutcome::Failed); 3]).await;
        let results: Vec<_> = answers.into_iter().map(|answer| answer.unwrap()).collect();
        assert!(results.iter().all(|reported| reported.result == ReportResult::Exhausted { retry_count: 1, max_retries: 1 }));
        assert_eq!(results.iter().filter(|reported| !reported.repeated).count(), 1);
        queue.reset(id, Some("again".into())).await.unwrap();
        let actions: Vec<Action> = queue.audit(id).await.unwrap().into_iter().map(|row| row.action).collect();
        let expected = [Action::Picked, Action::Started, Action::Failed, Action::Picked, Action::Failed, Action::Reset];
        assert_eq!(actions, expected);
        queue.close().await;
    }

    async fn a_worker_that_hangs_up_gives_its_entry_back(place) {
        let queue = place.open().await;
        let id = queue.publish(job("mail")).await.unwrap().id;
        let consumer = queue.consumer().tags(["mail"]).unwrap().worker("gone:1").unwrap().audited();
        drop(consumer.poll().await.unwrap().unwrap());
        assert_eq!(pick(&queue, "mail", "w:2").await, id);
        assert_eq!(queue.entry(id).await.unwrap().unwrap().retry_count(), 0, "a hang-up uses up no retry");
        queue.close().await;
    }

    async fn lists_workers_and_retention(place) {
        let queue = place.open().await;
        let mut ids = Vec::new();
        for _ in 0..5 {
            ids.push(queue.publish(job("mail")).await.unwrap().id);
            let id = pick(&queue, "mail", "w:1").await;
            if ids.len() < 5 {
                queue.report(report(id, "w:1", AttemptOutcome::Completed)).await.unwrap();
            }
        }
        let page = queue.list(ListQuery { tags: vec!["mail".into()], limit: 2, ..ListQuery::default() }).await.unwrap();
        assert_eq!((page.items.len(), page.total, page.next), (2, 5, Some(ids[3])));
        let workers = queue.workers(Duration::from_secs(30)).await.unwrap();
        assert!(workers.iter().any(|worker| worker.worker == "w:1" && worker.held == 1 && !worker.stale));
        let old = Retention { audit: Some(Duration::ZERO), log: Some(Duration::ZERO), batch: 2, ..Retention::default() };
        eventually("ended entries are removed", || async {
            queue.retain_all(old, Duration::ZERO).await.unwrap();
            queue.list(ListQuery { limit: 9, ..ListQuery::default() }).await.unwrap().total == 1
        }).await;
        assert!(queue.audit(ids[0]).await.unwrap().is_empty());
        assert!(queue.consumer().tags(Vec::<String>::new()).is_err());
        assert!(queue.api_keys().list().await.unwrap().is_empty());
        queue.close().await;
    }
}
