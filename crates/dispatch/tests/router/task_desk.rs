//! Tasks as people see them: listed, shown, retried and cancelled, and their groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::value::RawValue;
use tidegate::Tsid;
use tidegate_core::cloud_event::{CloudEvent, SentTask};
use tidegate_dispatch::secrets::{SecretKey, SecretOptions};
use tidegate_dispatch::{
    AccountAuth, AccountBody, DispatchMode, Gateway, GatewayError, Job, JobAct, JobKind, JobStatus, JobWhy, JobsFilter,
    Match, NewTask, PoolBody, PoolStatus, RetryStrategy, Target, TaskRules,
};

use crate::scene::{Scene, on_both, receiver, until};

on_both!(
    tasks_are_listed_beside_jobs_of_events,
    a_task_is_shown_with_what_was_said_about_it,
    a_failed_task_is_retried_and_a_waiting_one_cancelled,
    a_task_blocks_its_group_and_is_shown_with_it,
    a_page_ends_where_the_store_has_looked_at_enough,
    what_waits_for_a_pool_counts_tasks,
    a_client_with_tasks_that_have_not_ended_stays,
    why_a_job_waits_names_credentials_that_cannot_be_used,
);

fn task(code: &str, to: &str, change: impl FnOnce(&mut TaskRules)) -> NewTask {
    let payload = RawValue::from_string(format!("\"{code}\"")).unwrap();
    let event = CloudEvent::of_task(&SentTask {
        code,
        subject: None,
        source: None,
        external_id: None,
        correlation_id: None,
        message_group: Some("g"),
        content_type: None,
        payload: &payload,
    });
    let mut rules = TaskRules::new(to.parse::<Target>().unwrap());
    rules.retry_strategy = Some(RetryStrategy::Fixed { delay_seconds: 0 });
    change(&mut rules);
    NewTask { client: None, event: event.unwrap(), rules }
}

async fn listed(gateway: &Gateway, filter: JobsFilter) -> Vec<Job> {
    let page = gateway.jobs(&filter, None, 100).await.unwrap();
    assert!(page.next.is_none(), "they are few");
    page.jobs
}

fn codes(jobs: &[Job]) -> Vec<&str> {
    let mut codes: Vec<&str> = jobs.iter().map(|job| job.event.event_type.as_str()).collect();
    codes.sort_unstable();
    codes
}

/// The only job with this code.
async fn job_of(gateway: &Gateway, code: &str) -> Job {
    let found = listed(gateway, JobsFilter { code: Some(code.to_owned()), ..JobsFilter::default() }).await;
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().unwrap()
}

async fn until_it_is(gateway: &Gateway, code: &str, status: JobStatus) -> Job {
    until(|| async { job_of(gateway, code).await.status == status }).await;
    job_of(gateway, code).await
}

fn suspended() -> PoolBody {
    PoolBody { name: "n".into(), concurrency: 1, rate_limit_per_minute: None, status: PoolStatus::Suspended }
}

async fn tasks_are_listed_beside_jobs_of_events(scene: Scene) {
    let (receiver, _) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    let pool = node.gateway.create_pool(None, "p", &suspended()).await.unwrap().id;
    let (hook, _) = node.subscribe("hook", &receiver, |body| body.dispatch_pool = Some(pool)).await;
    let event = node.publish(1, None).await;
    let named = |code| task(code, &receiver.url(), |rules| rules.dispatch_pool_id = Some(pool));
    // In the order of a group, and later, so that it is there for all of this test.
    let free = |code| {
        task(code, "https://example.com/", |rules| {
            rules.mode = DispatchMode::NextOnError;
            rules.scheduled_for = Some("2100-01-01T00:00:00Z".parse().unwrap());
        })
    };
    for task in [named("a"), named("b"), free("c")] {
        node.gateway.create_task(task).await.unwrap();
    }
    let all = JobsFilter::default;
    let (task, event_kind) = (Some(JobKind::Task), Some(JobKind::Event));
    let (in_pool, of_event) =
        (|| JobsFilter { pool: Some(pool), ..all() }, || JobsFilter { event: Some(event.id), ..all() });
    for (filter, expected) in [
        (all(), &["a", "b", "c", "t"][..]),
        (JobsFilter { kind: task, ..all() }, &["a", "b", "c"]),
        (JobsFilter { kind: event_kind, ..all() }, &["t"]),
        (in_pool(), &["a", "b", "t"]),
        (JobsFilter { kind: task, ..in_pool() }, &["a", "b"]),
        (JobsFilter { kind: event_kind, ..in_pool() }, &["t"]),
        (JobsFilter { subscription: Some(hook.id), ..all() }, &["t"]),
        (JobsFilter { subscription: Some(hook.id), kind: task, ..all() }, &[]),
        (of_event(), &["t"]),
        (JobsFilter { kind: task, ..of_event() }, &[]),
        // Also those that are not ordered in it.
        (JobsFilter { message_group: Some("g".into()), ..all() }, &["a", "b", "c"]),
    ] {
        let found = listed(&node.gateway, filter.clone()).await;
        assert_eq!(codes(&found), expected, "{filter:?}");
        for job in found.iter().filter(|job| job.kind == JobKind::Task) {
            assert_eq!((job.event_id, job.subscription, job.sequence), (None, None, Some(99)));
        }
    }
    // The fact of a task is no event, also for whoever guesses its id.
    let fact = node.gateway.create_task(free("d")).await.unwrap().id;
    assert!(listed(&node.gateway, JobsFilter { event: Some(fact), ..JobsFilter::default() }).await.is_empty());
    node.stop().await;
}

async fn a_task_is_shown_with_what_was_said_about_it(scene: Scene) {
    let node = scene.node().await;
    let pool = node.gateway.create_pool(None, "p", &suspended()).await.unwrap().id;
    let said = task("a", "https://example.com/x", |rules| {
        rules.headers = [("x-tenant", "7"), ("x-api-key", "k")].map(|(n, v)| (n.to_owned(), v.to_owned())).into();
        rules.metadata = Some(RawValue::from_string(r#"{"team":"a"}"#.to_owned()).unwrap());
        (rules.idempotency_key, rules.dispatch_pool_id) = (Some("i".into()), Some(pool));
        (rules.sequence, rules.max_retries, rules.timeout_seconds, rules.data_only) = (5, 2, 7, false);
    });
    node.gateway.create_task(said).await.unwrap();
    let shown = node.gateway.job(job_of(&node.gateway, "a").await.id, None).await.unwrap();
    let job = shown.job;
    assert_eq!((job.kind, job.status, job.sequence), (JobKind::Task, JobStatus::Queued, Some(5)));
    assert_eq!((job.message_group.as_deref(), job.event.text()), (Some("g"), None));
    assert_eq!(job.event.json().unwrap().get(), "\"a\"");
    assert!(shown.attempts.is_empty());
    assert!(!format!("{job:?}").contains("team"), "metadata may hold what is secret");
    let terms = job.terms.unwrap();
    assert_eq!((terms.target_url.as_str(), terms.data_only, terms.pool), ("https://example.com/x", false, Some(pool)));
    assert_eq!((terms.max_retries, terms.timeout_seconds, terms.mode), (2, 7, DispatchMode::Immediate));
    assert_eq!((&*terms.headers["x-tenant"], &*terms.headers["x-api-key"]), ("7", "***"));
    assert_eq!(terms.metadata.unwrap().get(), r#"{"team":"a"}"#);
    assert_eq!(terms.idempotency_key.as_deref(), Some("i"));
    let why = node.gateway.why_not_delivered(job.id, None).await.unwrap();
    assert!(matches!(why, JobWhy::PoolSuspended { pool: of } if of == pool), "{why:?}");
    node.gateway.delete_pool(pool, None, Match::Any).await.unwrap();
    let why = node.gateway.why_not_delivered(job.id, None).await.unwrap();
    assert!(matches!(why, JobWhy::Store(_)), "the default pool limits it now: {why:?}");
    node.stop().await;
}

async fn a_failed_task_is_retried_and_a_waiting_one_cancelled(scene: Scene) {
    let answer = Arc::new(AtomicU16::new(404));
    let now = Arc::clone(&answer);
    let (receiver, log) = receiver(move |_, _| now.load(Ordering::SeqCst)).await;
    let node = scene.node().await;
    let gateway = &node.gateway;
    gateway.create_task(task("a", &receiver.url(), |_| {})).await.unwrap();
    let failed = until_it_is(gateway, "a", JobStatus::Error).await;
    assert!(failed.last_error.unwrap().contains("404"));
    answer.store(200, Ordering::SeqCst);
    let again = gateway.act_on_job(failed.id, None, JobAct::Retry, "me", None).await.unwrap();
    assert_eq!((again.id, again.kind), (failed.id, JobKind::Task));
    until_it_is(gateway, "a", JobStatus::Completed).await;
    let attempts = gateway.job(failed.id, None).await.unwrap().attempts;
    assert_eq!(attempts.iter().map(|one| one.generation).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(log.bodies(), ["\"a\"", "\"a\""]);
    let refused = gateway.act_on_job(failed.id, None, JobAct::Retry, "me", None).await;
    assert!(matches!(refused, Err(GatewayError::Conflict(_))), "{refused:?}");

    let pool = gateway.create_pool(None, "p", &suspended()).await.unwrap().id;
    gateway.create_task(task("b", &receiver.url(), |rules| rules.dispatch_pool_id = Some(pool))).await.unwrap();
    let waits = job_of(gateway, "b").await;
    let cancelled = gateway.act_on_job(waits.id, None, JobAct::Cancel, "me", None).await.unwrap();
    assert_eq!((cancelled.id, cancelled.status), (waits.id, JobStatus::Cancelled));
    assert!(cancelled.terms.is_some(), "what was said about it is kept as long as it is");
    node.stop().await;
}

async fn a_task_blocks_its_group_and_is_shown_with_it(scene: Scene) {
    let (receiver, log) = receiver(|_, before| if before == 0 { 404 } else { 200 }).await;
    let node = scene.node().await;
    let gateway = &node.gateway;
    for code in ["a", "b"] {
        let said = task(code, &receiver.url(), |rules| rules.mode = DispatchMode::BlockOnError);
        gateway.create_task(said).await.unwrap();
        if code == "a" {
            until_it_is(gateway, "a", JobStatus::Error).await;
        }
    }
    let page = gateway.blocked_groups(None, None, 10).await.unwrap();
    let [blocked] = &page.groups[..] else { panic!("{page:?}") };
    assert_eq!((&*blocked.group, blocked.behind), ("g", 1));
    assert_eq!((blocked.job.kind, blocked.job.is_kept, blocked.since), (JobKind::Task, true, blocked.job.updated_at));
    assert_eq!(blocked.job.terms.as_ref().unwrap().target_url, receiver.url());
    gateway.act_on_job(blocked.job.id, None, JobAct::Retry, "me", None).await.unwrap();
    until_it_is(gateway, "b", JobStatus::Completed).await;
    assert_eq!(log.bodies(), ["\"a\"", "\"a\"", "\"b\""]);
    node.stop().await;
}

/// However many jobs there are, one request looks at a bounded number of them.
async fn a_page_ends_where_the_store_has_looked_at_enough(scene: Scene) {
    let maker = scene.gateway_alone().await;
    let tasks = (0..5_100).map(|_| task("a", "https://example.com/", |_| {})).collect();
    assert!(maker.gateway().create_tasks(tasks).await.iter().all(Result::is_ok));
    let filter = JobsFilter {
        pool: Some(Tsid::from_i64(7)),
        kind: Some(JobKind::Task),
        status: Some(JobStatus::Queued),
        ..JobsFilter::default()
    };
    let page = maker.gateway().jobs(&filter, None, 10).await.unwrap();
    assert!(page.jobs.is_empty());
    let next = page.next.expect("there may be more");
    let rest = maker.gateway().jobs(&filter, Some(next), 10).await.unwrap();
    assert!(rest.jobs.is_empty() && rest.next.is_none());
    maker.close().await;
}

async fn what_waits_for_a_pool_counts_tasks(scene: Scene) {
    let (receiver, _) = receiver(|_, _| 200).await;
    let node = scene.node().await;
    let gateway = &node.gateway;
    let one = gateway.create_pool(None, "one", &suspended()).await.unwrap().id;
    let other = gateway.create_pool(None, "other", &suspended()).await.unwrap().id;
    node.subscribe("hook", &receiver, |body| body.dispatch_pool = Some(one)).await;
    node.publish(1, None).await;
    let later = |rules: &mut TaskRules| rules.scheduled_for = Some("2100-01-01T00:00:00Z".parse().unwrap());
    for (code, to) in [("a", "https://a.example/"), ("b", "https://b.example/")] {
        gateway.create_task(task(code, to, |rules| rules.dispatch_pool_id = Some(one))).await.unwrap();
    }
    for (code, pool) in [("c", Some(other)), ("d", None)] {
        let said = task(code, "https://a.example/", |rules| {
            later(rules);
            rules.dispatch_pool_id = pool;
        });
        gateway.create_task(said).await.unwrap();
    }
    let numbers = async |pools: &[Option<Tsid>]| {
        let holds = gateway.pools_hold(pools).await.unwrap();
        assert!(holds.iter().all(|pool| !pool.is_capped));
        holds.iter().map(|pool| (pool.waiting, pool.waiting_subscriptions)).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&[Some(other), Some(one), None]).await, [(1, 0), (3, 1), (1, 0)]);
    gateway.delete_pool(other, None, Match::Any).await.unwrap();
    assert_eq!(
        numbers(&[Some(one), None]).await,
        [(3, 1), (2, 0)],
        "of a pool that is gone they wait for the default pool"
    );
    node.stop().await;
}

async fn a_client_with_tasks_that_have_not_ended_stays(scene: Scene) {
    let node = scene.node().await;
    let gateway = &node.gateway;
    let client = gateway.create_client("c", "n").await.unwrap().id;
    let later = task("a", "https://example.com/", |rules| {
        rules.scheduled_for = Some("2100-01-01T00:00:00Z".parse().unwrap());
    });
    gateway.create_task(NewTask { client: Some(client), ..later }).await.unwrap();
    let refused = gateway.delete_client(client, Match::Any).await.unwrap_err();
    assert!(matches!(&refused, GatewayError::Conflict(text) if text.contains("TASK")), "{refused}");
    let job = job_of(gateway, "a").await;
    gateway.act_on_job(job.id, Some(client), JobAct::Cancel, "me", None).await.unwrap();
    gateway.delete_client(client, Match::Any).await.unwrap();
    node.stop().await;
}

async fn why_a_job_waits_names_credentials_that_cannot_be_used(scene: Scene) {
    let (receiver, _) = receiver(|_, _| 200).await;
    let key = SecretKey::random();
    let own = SecretOptions { key: Some(key.clone()), ..SecretOptions::default() };
    let maker = scene.node_with(own).await;
    let body = AccountBody { name: "n".into(), auth: AccountAuth::None };
    let (account, _) = maker.gateway.create_account(None, "a", &body).await.unwrap();
    maker.subscribe("s", &receiver, |body| body.delay_seconds = 3_600).await;
    maker.publish(1, None).await;
    let said = task("a", "https://example.com/", |rules| {
        rules.scheduled_for = Some("2100-01-01T00:00:00Z".parse().unwrap());
        rules.service_account_id = Some(account.id);
    });
    maker.gateway.create_task(said).await.unwrap();
    let (task, event) = (job_of(&maker.gateway, "a").await.id, job_of(&maker.gateway, "t").await.id);
    for id in [task, event] {
        let why = maker.gateway.why_not_delivered(id, None).await.unwrap();
        assert!(matches!(why, JobWhy::Store(_)), "{why:?}");
    }
    maker.stop().await;
    let node = scene.node_with(SecretOptions { key: Some(SecretKey::random()), ..SecretOptions::default() }).await;
    let why = node.gateway.why_not_delivered(task, None).await.unwrap();
    assert!(matches!(why, JobWhy::NoCredentials { account: Some(of) } if of == account.id), "{why:?}");
    let why = node.gateway.why_not_delivered(event, None).await.unwrap();
    assert!(matches!(why, JobWhy::NoCredentials { account: None }), "{why:?}");
    node.stop().await;
}
