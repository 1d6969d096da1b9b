//! Dispatch jobs over HTTP, with receivers that fail as they are told: shown with their attempts, retried, cancelled and
//! ignored, one or many at once; groups that are blocked; pools and what they hold; and what becomes of the jobs of deleted
//! subscriptions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use reqwest::Method;
use serde_json::{Value, json};
use tidegate::{ChangeResource, Family, JobClaim, LimitAsk, PoolKey, PutResource, QueueName, Tsid};
use tidegate_core::pool::rate::Rate;
use tidegate_server::{Keyring, Scope};

use crate::scene::{PATIENCE, Scene, on_both, send};

/// What was delivered: the `webhook-id` and the body.
type Taken = Arc<Mutex<Vec<(String, String)>>>;

/// A receiver that answers by the body that it gets; 200 unless said otherwise.
#[derive(Clone, Default)]
struct Receiver {
    taken: Taken,
    answers: Arc<Mutex<BTreeMap<String, u16>>>,
}

impl Receiver {
    /// Starts it, and returns its URL.
    async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let own = self.clone();
        let take = move |headers: HeaderMap, body: Bytes| {
            let own = own.clone();
            async move {
                let body = String::from_utf8(body.to_vec()).unwrap();
                let status = own.answers.lock().unwrap().get(&body).copied().unwrap_or(200);
                own.taken.lock().unwrap().push((headers["webhook-id"].to_str().unwrap().to_owned(), body));
                StatusCode::from_u16(status).unwrap()
            }
        };
        let app = Router::new().route("/hook", post(take));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        url
    }

    fn answer(&self, body: &str, status: u16) {
        self.answers.lock().unwrap().insert(body.to_owned(), status);
    }

    fn bodies(&self) -> Vec<String> {
        self.taken.lock().unwrap().iter().map(|(_, body)| body.clone()).collect()
    }
}

async fn subscribe(scene: &Scene, code: &str, target: &str, more: Value) -> Value {
    let mut body = json!({ "code": code, "name": code, "eventTypes": [{ "eventTypeCode": "t" }], "target": target });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    scene.post("/api/subscriptions", body).await.expect(201)
}

/// Publishes an event with this number as its data, and returns the id of its first job.
async fn publish(scene: &Scene, number: usize, group: Option<&str>) -> String {
    let body = json!({ "type": "t", "source": "/s", "data": number, "messageGroup": group });
    let stored = scene.post("/api/events", body).await.expect(201);
    stored["dispatchJobs"][0]["id"].as_str().unwrap().to_owned()
}

async fn show(scene: &Scene, id: &str) -> Value {
    scene.get(&format!("/api/dispatch-jobs/{id}")).await.expect(200)
}

async fn act(scene: &Scene, id: &str, verb: &str) -> crate::scene::Answer {
    scene.post(&format!("/api/dispatch-jobs/{id}/{verb}"), json!({ "reason": "a test" })).await
}

/// Waits until a job has this status, and returns it.
async fn until(scene: &Scene, id: &str, status: &str) -> Value {
    let began = Instant::now();
    loop {
        let job = show(scene, id).await;
        if job["status"] == status {
            return job;
        }
        assert!(began.elapsed() < PATIENCE, "it never became {status}: {job}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

fn ids(page: &Value) -> Vec<String> {
    page["items"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

on_both! {
    delivering:
    a_failed_job_is_retried_under_its_id,
    of_two_retries_at_once_one_is_made,
    ignoring_a_failed_head_lets_its_group_go_on,
    a_failed_head_is_retried_before_the_others_of_its_group,
    a_cancelled_job_says_why_and_can_be_retried,
    what_waits_for_a_deleted_subscription_is_cancelled,
    jobs_of_a_paused_subscription_expire,
    the_attempt_at_a_test_event_is_shown_as_that_of_its_job,
}

async fn the_attempt_at_a_test_event_is_shown_as_that_of_its_job(scene: Scene) {
    let url = Receiver::default().start().await;
    let made = subscribe(&scene, "hook", &url, json!({})).await;
    let path = format!("/api/subscriptions/{}/test?wait=60", made["id"].as_str().unwrap());
    let sent = scene.post(&path, json!({})).await.expect(201);
    let job = show(&scene, sent["id"].as_str().unwrap()).await;
    assert_eq!((&sent["attempt"], &sent["attempt"]["attemptNumber"]), (&job["attempts"][0], &json!(1)), "{sent}");
    scene.close().await;
}

async fn a_failed_job_is_retried_under_its_id(scene: Scene) {
    let receiver = Receiver::default();
    receiver.answer("1", 404);
    let url = receiver.start().await;
    let made = subscribe(&scene, "hook", &url, json!({})).await;
    let id = publish(&scene, 1, Some("g")).await;
    let failed = until(&scene, &id, "ERROR").await;
    for (field, value) in [
        ("kind", json!("EVENT")),
        ("code", json!("t")),
        ("source", json!("/s")),
        ("subscriptionId", made["id"].clone()),
        ("targetUrl", json!(url)),
        ("mode", json!("IMMEDIATE")),
        ("messageGroup", json!("hook:g")),
        ("sequence", json!(99)),
        ("attemptCount", json!(1)),
        ("payload", json!(1)),
    ] {
        assert_eq!(failed[field], value, "{field}: {failed}");
    }
    let attempt = &failed["attempts"][0];
    assert_eq!((&attempt["attemptNumber"], &attempt["status"]), (&json!(1), &json!("CLIENT_ERROR")), "{failed}");
    assert_eq!((&attempt["responseCode"], &attempt["targetUrl"]), (&json!(404), &json!(url)));
    assert_eq!(attempt["errorType"], "PERMANENT");
    assert!(attempt["attemptedAt"].is_string() && attempt["completedAt"].is_string(), "{attempt}");
    let listed = scene.get("/api/dispatch-jobs?status=ERROR&messageGroup=hook:g").await.expect(200);
    assert_eq!(ids(&listed), std::slice::from_ref(&id));
    assert!(listed["items"][0]["payload"].is_null() && listed["items"][0]["attempts"].is_null());
    receiver.answer("1", 200);
    act(&scene, &id, "retry").await.expect(200);
    let done = until(&scene, &id, "COMPLETED").await;
    let told: Vec<_> =
        done["attempts"].as_array().unwrap().iter().map(|one| (&one["generation"], &one["status"])).collect();
    assert_eq!(told, [(&json!(1), &json!("CLIENT_ERROR")), (&json!(2), &json!("SUCCESS"))], "{done}");
    assert_eq!(*receiver.taken.lock().unwrap(), [(id.clone(), "1".to_owned()), (id.clone(), "1".to_owned())]);
    for verb in ["retry", "cancel", "ignore"] {
        let said = act(&scene, &id, verb).await.refused(409, "conflict");
        assert!(said.contains("COMPLETED"), "{said}");
    }
    assert_eq!(scene.get(&format!("/api/dispatch-jobs/{id}/why")).await.expect(200)["reason"], "ended");
    scene.close().await;
}

async fn of_two_retries_at_once_one_is_made(scene: Scene) {
    let receiver = Receiver::default();
    let url = receiver.start().await;
    subscribe(&scene, "hook", &url, json!({})).await;
    for round in 1..=5 {
        receiver.answer(&round.to_string(), 404);
        let id = publish(&scene, round, None).await;
        until(&scene, &id, "ERROR").await;
        receiver.answer(&round.to_string(), 200);
        let calls = (0..4).map(|_| act(&scene, &id, "retry"));
        let answers = futures_util::future::join_all(calls).await;
        let made = answers.iter().filter(|answer| answer.status.as_u16() == 200).count();
        assert!(made == 1 && answers.iter().all(|answer| matches!(answer.status.as_u16(), 200 | 409)), "{answers:?}");
        let done = until(&scene, &id, "COMPLETED").await;
        assert_eq!(done["attempts"].as_array().unwrap().len(), 2, "{done}");
    }
    scene.close().await;
}

/// Three jobs of one group, the first of which fails for good.
async fn blocked(scene: &Scene, receiver: &Receiver) -> [String; 3] {
    receiver.answer("1", 404);
    let url = receiver.start().await;
    subscribe(scene, "hook", &url, json!({ "mode": "BLOCK_ON_ERROR" })).await;
    let mut jobs = Vec::new();
    for number in 1..=3 {
        jobs.push(publish(scene, number, Some("g")).await);
    }
    until(scene, &jobs[0], "ERROR").await;
    jobs.try_into().unwrap()
}

async fn groups(scene: &Scene) -> Vec<Value> {
    scene.get("/api/dispatch-groups?blocked=true").await.expect(200)["items"].as_array().unwrap().clone()
}

async fn ignoring_a_failed_head_lets_its_group_go_on(scene: Scene) {
    let receiver = Receiver::default();
    let [first, second, third] = blocked(&scene, &receiver).await;
    assert_eq!(show(&scene, &first).await["blocksGroup"], true);
    assert_eq!(show(&scene, &second).await["status"], "PENDING");
    let found = groups(&scene).await;
    assert_eq!(found.len(), 1, "{found:?}");
    let group = &found[0];
    assert_eq!((&group["messageGroup"], &group["waiting"]), (&json!("hook:g"), &json!("2")), "{group}");
    assert_eq!((&group["blockedBy"]["id"], &group["blocked"]), (&json!(first), &json!(true)));
    assert!(group["reason"].as_str().unwrap().contains("404") && group["blockedSince"].is_string(), "{group}");
    let why = async |id: &str| scene.get(&format!("/api/dispatch-jobs/{id}/why")).await.expect(200);
    assert_eq!(why(&first).await["reason"], "blocks_group");
    let behind = why(&third).await;
    assert_eq!((&behind["reason"], &behind["ahead"]), (&json!("behind_in_group"), &json!(2)), "{behind}");
    let pending = scene.get("/api/dispatch-jobs?status=PENDING").await.expect(200);
    assert_eq!(ids(&pending), [third.clone(), second.clone()], "youngest first");
    let ignored = act(&scene, &first, "ignore").await.expect(200);
    assert_eq!(ignored["status"], "ERROR");
    assert!(ignored["ignoredAt"].is_string() && ignored["blocksGroup"].is_null(), "{ignored}");
    until(&scene, &third, "COMPLETED").await;
    until(&scene, &second, "COMPLETED").await;
    assert_eq!(receiver.bodies(), ["1", "2", "3"]);
    assert!(groups(&scene).await.is_empty());
    assert_eq!(act(&scene, &first, "ignore").await.expect(200)["ignoredAt"], ignored["ignoredAt"], "again");
    let shown = show(&scene, &first).await;
    assert_eq!(shown["attempts"].as_array().unwrap().len(), 1, "{shown}");
    act(&scene, &first, "cancel").await.refused(409, "conflict");
    // It is only a note: the job can still be retried.
    receiver.answer("1", 200);
    act(&scene, &first, "retry").await.expect(200);
    assert!(until(&scene, &first, "COMPLETED").await["ignoredAt"].is_null());
    scene.close().await;
}

async fn a_failed_head_is_retried_before_the_others_of_its_group(scene: Scene) {
    let receiver = Receiver::default();
    let [first, _, third] = blocked(&scene, &receiver).await;
    receiver.answer("1", 200);
    act(&scene, &first, "retry").await.expect(200);
    until(&scene, &third, "COMPLETED").await;
    assert_eq!(receiver.bodies(), ["1", "1", "2", "3"]);
    let shown = show(&scene, &first).await;
    let told: Vec<_> = shown["attempts"].as_array().unwrap().iter().map(|one| &one["status"]).collect();
    assert_eq!(told, ["CLIENT_ERROR", "SUCCESS"], "{shown}");
    scene.close().await;
}

async fn a_cancelled_job_says_why_and_can_be_retried(scene: Scene) {
    let receiver = Receiver::default();
    let url = receiver.start().await;
    subscribe(&scene, "hook", &url, json!({ "delaySeconds": 3600 })).await;
    let id = publish(&scene, 1, None).await;
    let waits = show(&scene, &id).await;
    assert_eq!((&waits["status"], waits["scheduledFor"].is_string()), (&json!("QUEUED"), true), "{waits}");
    assert_eq!(scene.get(&format!("/api/dispatch-jobs/{id}/why")).await.expect(200)["reason"], "due_at");
    let said = act(&scene, &id, "retry").await.refused(409, "conflict");
    assert!(said.contains("QUEUED"), "{said}");
    let cancelled = act(&scene, &id, "cancel").await.expect(200);
    assert_eq!((&cancelled["status"], &cancelled["cancelReason"]), (&json!("CANCELLED"), &json!("MANUAL")));
    assert_eq!(cancelled["lastError"], "cancelled by anybody: a test");
    assert_eq!(act(&scene, &id, "cancel").await.expect(200)["updatedAt"], cancelled["updatedAt"], "again");
    act(&scene, &id, "ignore").await.refused(409, "conflict");
    act(&scene, &id, "retry").await.expect(200);
    until(&scene, &id, "COMPLETED").await;
    assert_eq!(receiver.bodies(), ["1"]);
    scene.close().await;
}

async fn what_waits_for_a_deleted_subscription_is_cancelled(scene: Scene) {
    let receiver = Receiver::default();
    let [first, second, third] = blocked(&scene, &receiver).await;
    let other = Receiver::default();
    let kept = subscribe(&scene, "kept", &other.start().await, json!({ "delaySeconds": 3600 })).await;
    let delayed = publish(&scene, 4, None).await;
    let found = scene.get("/api/subscriptions").await.expect(200);
    let hook = found["items"].as_array().unwrap().iter().find(|one| one["code"] == "hook").unwrap();
    send(scene.request(Method::DELETE, &format!("/api/subscriptions/{}", hook["id"].as_str().unwrap())))
        .await
        .expect(204);
    for id in [&first, &second, &third] {
        let job = until(&scene, id, "CANCELLED").await;
        assert_eq!((&job["cancelReason"], &job["targetUrl"]), (&json!("SUBSCRIPTION_DELETED"), &Value::Null), "{job}");
    }
    let said = act(&scene, &first, "retry").await.refused(409, "conflict");
    assert!(said.contains("its subscription was deleted"), "{said}");
    let of_kept = scene.get(&format!("/api/dispatch-jobs?subscriptionId={}", kept["id"].as_str().unwrap())).await;
    let of_kept = of_kept.expect(200);
    assert_eq!((of_kept["items"].as_array().unwrap().len(), &of_kept["items"][0]["status"]), (1, &json!("QUEUED")));
    assert!(show(&scene, &delayed).await["id"].is_string());
    scene.close().await;
}

async fn jobs_of_a_paused_subscription_expire(scene: Scene) {
    let receiver = Receiver::default();
    let made =
        subscribe(&scene, "hook", &receiver.start().await, json!({ "delaySeconds": 2, "maxAgeSeconds": 3 })).await;
    let id = publish(&scene, 1, None).await;
    let pause = format!("/api/subscriptions/{}/pause", made["id"].as_str().unwrap());
    scene.post(&pause, json!({})).await.expect(200);
    assert_eq!(scene.get(&format!("/api/dispatch-jobs/{id}/why")).await.expect(200)["reason"], "subscription_paused");
    let expired = until(&scene, &id, "CANCELLED").await;
    assert_eq!(expired["cancelReason"], "EXPIRED", "{expired}");
    assert!(receiver.bodies().is_empty());
    scene.close().await;
}

mod without_router {
    use super::*;

    on_both! {
        many_are_changed_in_pieces,
        lists_are_filtered_and_paged,
        a_pool_says_what_waits_for_it,
        why_a_job_that_is_ready_waits_is_told_by_its_pool,
        what_becomes_of_a_subscription_is_told_of_its_jobs,
        hostile_ids_and_cursors_are_refused,
    }

    const NOWHERE: &str = "https://hooks.example/";

    async fn many_are_changed_in_pieces(scene: Scene) {
        subscribe(&scene, "hook", NOWHERE, json!({ "delaySeconds": 3600 })).await;
        for number in 0..25 {
            publish(&scene, number, None).await;
        }
        let bulk = async |body: Value| scene.post("/api/dispatch-jobs/bulk", body).await;
        let mut body = json!({ "action": "cancel", "limit": 10, "reason": "too many" });
        let mut done = Vec::new();
        loop {
            let answer = bulk(body.clone()).await.expect(200);
            done.push(answer["done"].as_u64().unwrap());
            assert_eq!(answer["refused"], 0, "{answer}");
            assert_eq!(answer["more"], answer["nextCursor"].is_string(), "{answer}");
            let Some(next) = answer["nextCursor"].as_str() else { break };
            body["cursor"] = next.into();
        }
        assert_eq!(done.iter().sum::<u64>(), 25, "{done:?}");
        assert!(done.len() >= 3 && done.iter().all(|piece| *piece <= 10), "{done:?}");
        let all = scene.get("/api/dispatch-jobs?status=CANCELLED&limit=100").await.expect(200);
        assert_eq!(ids(&all).len(), 25);
        assert_eq!(all["items"][0]["lastError"], "cancelled by anybody: too many");
        let again = bulk(json!({ "action": "cancel" })).await.expect(200);
        assert_eq!((&again["done"], &again["more"]), (&json!(0), &json!(false)), "nothing is left");
        let refused = bulk(json!({ "action": "ignore", "status": "CANCELLED" })).await.expect(200);
        assert_eq!((&refused["done"], &refused["refused"]), (&json!(0), &json!(25)));
        let retried = bulk(json!({ "action": "retry" })).await.expect(200);
        assert_eq!((&retried["done"], &retried["refused"]), (&json!(0), &json!(0)), "what was cancelled stays so");
        let retried = bulk(json!({ "action": "retry", "status": "CANCELLED", "perSecond": 100_000 })).await.expect(200);
        assert_eq!(retried["done"], 25);
        for (wrong, why) in [
            (json!({ "action": "delete" }), "action must be"),
            (json!({ "action": "retry", "limit": 0 }), "limit must be"),
            (json!({ "action": "retry", "perSecond": 0 }), "perSecond"),
            (json!({ "action": "retry", "status": "DONE" }), "status must be one of"),
            (json!({ "action": "retry", "subscription": "x" }), "subscriptionId"),
            (json!({ "action": "retry", "reason": "x".repeat(1_001) }), "reason must"),
            (json!({ "status": "ERROR" }), "action"),
        ] {
            let said = bulk(wrong.clone()).await.refused(400, "invalid_request");
            assert!(said.contains(why), "{wrong}: {said}");
        }
        scene.close().await;
    }

    async fn lists_are_filtered_and_paged(scene: Scene) {
        let one = subscribe(&scene, "one", NOWHERE, json!({})).await;
        let mut jobs = Vec::new();
        for number in 0..7 {
            jobs.push(publish(&scene, number, Some(if number % 2 == 0 { "even" } else { "odd" })).await);
        }
        jobs.reverse();
        let list = async |query: &str| scene.get(&format!("/api/dispatch-jobs{query}")).await.expect(200);
        let mut found = Vec::new();
        let mut page = list("?limit=3").await;
        loop {
            found.extend(ids(&page));
            let Some(next) = page["nextCursor"].as_str() else { break };
            page = list(&format!("?limit=3&cursor={next}")).await;
        }
        assert_eq!(found, jobs, "youngest first, each once");
        let subscription = one["id"].as_str().unwrap();
        assert_eq!(ids(&list(&format!("?subscriptionId={subscription}")).await), jobs);
        assert!(ids(&list("?subscriptionId=0000000000007").await).is_empty());
        assert_eq!(ids(&list("?messageGroup=one:odd&limit=2").await).len(), 2);
        assert_eq!(ids(&list("?messageGroup=one:odd").await).len(), 3);
        assert_eq!(ids(&list("?code=t&status=QUEUED&kind=EVENT").await).len(), 7);
        assert!(ids(&list("?kind=TASK").await).is_empty() && ids(&list("?code=u").await).is_empty());
        let shown = show(&scene, &jobs[2]).await;
        let (event, made) = (shown["eventId"].as_str().unwrap(), shown["createdAt"].as_str().unwrap());
        assert_eq!(ids(&list(&format!("?eventId={event}")).await), [jobs[2].clone()]);
        assert!(ids(&list("?eventId=0000000000007").await).is_empty());
        let (from, to) = (list(&format!("?from={made}")).await, list(&format!("?to={made}")).await);
        assert!(ids(&from).contains(&jobs[2]) && !ids(&to).contains(&jobs[2]));
        assert_eq!(ids(&from).len() + ids(&to).len(), 7);
        assert!(ids(&list("?from=2100-01-01T00:00:00Z").await).is_empty());
        for (query, why) in [
            ("?status=queued", "status must be one of PENDING"),
            ("?kind=event", "kind must be"),
            ("?subscriptionId=x", "subscriptionId must be"),
            ("?eventId=x", "eventId must be"),
            ("?poolId=x", "poolId must be"),
            ("?from=yesterday", "from must be"),
            ("?limit=0", "limit must be"),
            ("?stauts=ERROR", "status"),
        ] {
            let said = scene.get(&format!("/api/dispatch-jobs{query}")).await.refused(400, "invalid_request");
            assert!(said.contains(why), "{query}: {said}");
        }
        let said = scene.get("/api/dispatch-groups?blocked=false").await.refused(400, "invalid_request");
        assert!(said.contains("blocked must be true"), "{said}");
        scene.close().await;
    }

    async fn a_pool_says_what_waits_for_it(scene: Scene) {
        let pool = json!({ "code": "slow", "name": "slow", "status": "SUSPENDED" });
        let pool = scene.post("/api/dispatch-pools", pool).await.expect(201)["id"].as_str().unwrap().to_owned();
        let of = |mode: &str| json!({ "dispatchPoolId": pool, "mode": mode });
        subscribe(&scene, "ordered", NOWHERE, of("NEXT_ON_ERROR")).await;
        subscribe(&scene, "plain", NOWHERE, of("IMMEDIATE")).await;
        subscribe(&scene, "other", NOWHERE, json!({})).await;
        for number in 0..3 {
            publish(&scene, number, Some("g")).await;
        }
        let shown = scene.get(&format!("/api/dispatch-pools/{pool}")).await.expect(200);
        let holds = &shown["holds"];
        assert_eq!((&holds["waiting"], &holds["waitingSubscriptions"]), (&json!("6"), &json!(2)), "{shown}");
        assert_eq!((&holds["inUse"], &holds["suspended"], &holds["slots"]), (&json!(0), &json!(true), &json!([])));
        assert!(holds["oldestWaitingSeconds"].as_u64().is_some_and(|seconds| seconds < 60), "{shown}");
        let listed = scene.get("/api/dispatch-pools").await.expect(200);
        assert_eq!(listed["items"][0]["holds"]["waiting"], "6", "{listed}");
        let of_pool = scene.get(&format!("/api/dispatch-jobs?poolId={pool}")).await.expect(200);
        assert_eq!(ids(&of_pool).len(), 6);
        let plain = of_pool["items"].as_array().unwrap().iter().find(|job| job["mode"] == "IMMEDIATE").unwrap();
        let why = format!("/api/dispatch-jobs/{}/why", plain["id"].as_str().unwrap());
        let why = scene.get(&why).await.expect(200);
        assert_eq!((&why["reason"], &why["poolId"]), (&json!("pool_suspended"), &json!(pool)), "{why}");
        scene.close().await;
    }

    async fn why_a_job_that_is_ready_waits_is_told_by_its_pool(scene: Scene) {
        let text = |code: &str, more: Value| {
            let mut body = json!({ "code": code, "name": code });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let made = scene.post("/api/dispatch-pools", text("own", json!({ "concurrency": 2 }))).await.expect(201);
        let id = made["id"].as_str().unwrap().to_owned();
        let in_pool = subscribe(&scene, "in-pool", NOWHERE, json!({ "dispatchPoolId": id })).await;
        let claims = scene.queue.jobs();
        let job = publish(&scene, 1, None).await;
        let why = async |job: &str| scene.get(&format!("/api/dispatch-jobs/{job}/why")).await.expect(200);
        assert_eq!(why(&job).await["reason"], "no_router", "this server does not deliver, nor does another one");
        // As a node says it.
        let jobs = scene.queue.store().family(Family::Jobs);
        let pool = PoolKey::of(id.parse().unwrap());
        let node = "boot/1/2/3/4/0123456789abcdef";
        let hold = async |pool: PoolKey, concurrency: u32, wanted: u32, rate: Option<(Rate, u32)>| {
            let ask = LimitAsk { pool, concurrency, in_use: wanted.min(1), wanted, rate };
            jobs.limits(node, vec![ask], std::time::Duration::from_secs(600)).await.unwrap();
        };
        hold(pool, 2, 1, None).await;
        assert_eq!(why(&job).await["reason"], "ready");
        hold(pool, 2, 9, None).await;
        assert_eq!(why(&job).await["reason"], "ready", "they may be held and not in use");
        let claim = async |subscription: &Value, count: usize| {
            let quotas = [(subscription["id"].as_str().unwrap().to_owned(), count)].into();
            let queue = QueueName::of(None, "dispatch").unwrap();
            claims.claim(JobClaim { queue, quotas, max: count }).await.unwrap()
        };
        for number in 2..=3 {
            publish(&scene, number, None).await;
        }
        let attempts = claim(&in_pool, 2).await;
        let queued = ids(&scene.get("/api/dispatch-jobs?status=QUEUED").await.expect(200));
        let [waits] = &queued[..] else { panic!("two of three are under way: {queued:?}") };
        let full = why(waits).await;
        assert_eq!((&full["reason"], &full["poolId"]), (&json!("pool_full"), &json!(id)), "{full}");
        let held = json!([{ "node": "0123456789abcdef", "slots": 2, "wanted": 9 }]);
        assert_eq!(full["slots"], held, "nothing of the machine: {full}");
        let shown = scene.get(&format!("/api/dispatch-pools/{id}")).await.expect(200);
        assert_eq!(shown["holds"]["inUse"], 2, "{shown}");
        for attempt in attempts {
            attempt.release().await.unwrap();
        }
        let limited = text("own", json!({ "concurrency": 50, "rateLimitPerMinute": 1 }));
        scene.put(&format!("/api/dispatch-pools/{id}"), limited).await.expect(200);
        hold(pool, 50, 1, Rate::per_minute(1).map(|rate| (rate, 1))).await;
        let limited = why(&job).await;
        assert_eq!((&limited["reason"], &limited["poolId"]), (&json!("pool_rate_limited"), &json!(id)), "{limited}");
        let at: tidegate::Timestamp = limited["at"].as_str().unwrap().parse().unwrap();
        let left = at.duration_since(tidegate::Timestamp::now()).as_secs();
        assert!((30..=61).contains(&left), "a minute after the delivery that was reserved: {left}");

        let body = json!({ "code": "c", "targetUrl": NOWHERE, "payload": 1 });
        for _ in 0..10 {
            scene.post("/api/dispatch-jobs", body.clone()).await.expect(201);
        }
        hold(PoolKey::default_of(None), 10, 99, None).await;
        let task = scene.post("/api/dispatch-jobs", body.clone()).await.expect(201)["id"].clone();
        let lane = json!({ "id": "task:-:https://hooks.example" });
        let attempts = claim(&lane, 10).await;
        assert_eq!(attempts.len(), 10);
        let full = why(task.as_str().unwrap()).await;
        assert_eq!((&full["reason"], &full["poolId"]), (&json!("pool_full"), &Value::Null), "the default pool: {full}");
        drop(attempts);
        let suspended = text("own", json!({ "status": "SUSPENDED" }));
        scene.put(&format!("/api/dispatch-pools/{id}"), suspended).await.expect(200);
        assert_eq!(why(&job).await["reason"], "pool_suspended");
        claims.close().await;
        scene.close().await;
    }

    async fn what_becomes_of_a_subscription_is_told_of_its_jobs(scene: Scene) {
        let made = subscribe(&scene, "hook", NOWHERE, json!({ "delaySeconds": 3600 })).await;
        let id = made["id"].as_str().unwrap();
        let (waiting, cancelled) = (publish(&scene, 1, None).await, publish(&scene, 2, None).await);
        act(&scene, &cancelled, "cancel").await.expect(200);
        let why = async || {
            let found = scene.get(&format!("/api/dispatch-jobs/{waiting}/why")).await.expect(200);
            found["reason"].as_str().unwrap().to_owned()
        };
        scene.put("/queues/mail", json!({})).await;
        let to_queue = json!({ "name": "n", "eventTypes": [{ "eventTypeCode": "t" }], "target": "queue:mail" });
        scene.put(&format!("/api/subscriptions/{id}"), to_queue).await.expect(200);
        assert_eq!(why().await, "subscription_without_webhook");
        let said = act(&scene, &cancelled, "retry").await.refused(409, "conflict");
        assert!(said.contains("sends to a queue now"), "{said}");
        let retry = json!({ "action": "retry", "status": "CANCELLED" });
        assert_eq!(scene.post("/api/dispatch-jobs/bulk", retry).await.expect(200)["refused"], 1);
        // As a newer program may write it.
        let resources = scene.queue.resources();
        let row = resources.get("subscription", id.parse().unwrap()).await.unwrap().unwrap();
        let body = json!({ "of": "a newer program" }).to_string();
        let put = PutResource::Change { id: row.id, kind: row.kind, expected: None, body };
        resources.change(vec![ChangeResource::Put(put)]).await.unwrap();
        assert_eq!(why().await, "subscription_unreadable");
        let said = act(&scene, &cancelled, "retry").await.refused(409, "conflict");
        assert!(said.contains("newer program"), "{said}");
        send(scene.request(Method::DELETE, &format!("/api/subscriptions/{id}"))).await.expect(204);
        assert_eq!(why().await, "subscription_deleted");
        let said = act(&scene, &cancelled, "retry").await.refused(409, "conflict");
        assert!(said.contains("was deleted"), "{said}");
        scene.close().await;
    }

    async fn hostile_ids_and_cursors_are_refused(scene: Scene) {
        subscribe(&scene, "hook", NOWHERE, json!({})).await;
        let id = publish(&scene, 1, None).await;
        let neighbour = Tsid::from_i64(id.parse::<Tsid>().unwrap().to_i64() + 1).to_string();
        let same_number = Tsid::from_i64(id.parse::<Tsid>().unwrap().to_i64() + (1 << 22)).to_string();
        let long = "0".repeat(10_000);
        for bad in ["x", "0", "0000000000000", "ZZZZZZZZZZZZZ", "%00", "..%2f", &neighbour, &same_number, &long] {
            let answer = scene.get(&format!("/api/dispatch-jobs/{bad}")).await;
            assert!(matches!(answer.status.as_u16(), 400 | 404 | 414), "{bad:.40}: {} {}", answer.status, answer.text);
            for verb in ["retry", "cancel", "ignore"] {
                let answer = scene.post(&format!("/api/dispatch-jobs/{bad}/{verb}"), json!({})).await;
                assert!(
                    matches!(answer.status.as_u16(), 400 | 404 | 414),
                    "{bad:.40}: {} {}",
                    answer.status,
                    answer.text
                );
            }
        }
        assert_eq!(show(&scene, &id).await["status"], "QUEUED");
        for list in ["/api/dispatch-jobs", "/api/dispatch-groups"] {
            for bad in ["x", "0", "zzzzzzzzzzzzzzzzzzzzzzzzzzzz", "-1", &long] {
                let said = scene.get(&format!("{list}?cursor={bad}")).await.refused(400, "invalid_request");
                assert!(said.contains("cursor is invalid"), "{said}");
            }
        }
        scene.close().await;
    }
}

mod with_keys {
    use super::*;

    on_both! {
        with keys:
        a_client_sees_and_changes_its_own_jobs,
    }

    async fn a_client_sees_and_changes_its_own_jobs(mut scene: Scene) {
        let keys = Keyring::new(scene.queue.clone());
        let unscoped = keys.create("all", &[Scope::Admin], None).await.unwrap().secret;
        let mut of = Vec::new();
        for code in ["one", "two"] {
            scene.with_key(&unscoped);
            let client = scene.post("/api/clients", json!({ "code": code, "name": code })).await.expect(201);
            let id = client["id"].as_str().unwrap().to_owned();
            let key = keys.create(code, &[Scope::Admin], Some(id.parse().unwrap())).await.unwrap().secret;
            scene.with_key(&key);
            subscribe(&scene, "hook", "https://hooks.example/", json!({ "mode": "BLOCK_ON_ERROR" })).await;
            let job = publish(&scene, 1, Some("g")).await;
            of.push((id, key, job));
        }
        for (own, other) in [(0, 1), (1, 0)] {
            scene.with_key(&of[own].1);
            let listed = scene.get("/api/dispatch-jobs").await.expect(200);
            assert_eq!(ids(&listed), [of[own].2.clone()], "only its own");
            assert_eq!(listed["items"][0]["clientId"], json!(of[own].0));
            for path in ["", "/why"] {
                scene.get(&format!("/api/dispatch-jobs/{}{path}", of[other].2)).await.refused(404, "not_found");
            }
            for verb in ["retry", "cancel", "ignore"] {
                act(&scene, &of[other].2, verb).await.refused(404, "not_found");
            }
            let theirs = format!("?clientId={}", of[other].0);
            scene.get(&format!("/api/dispatch-jobs{theirs}")).await.refused(403, "forbidden");
            scene.get(&format!("/api/dispatch-groups{theirs}")).await.refused(403, "forbidden");
            let bulk = json!({ "action": "cancel", "clientId": of[other].0 });
            scene.post("/api/dispatch-jobs/bulk", bulk).await.refused(403, "forbidden");
            scene.get("/api/dispatch-groups").await.expect(200);
        }
        scene.with_key(&of[0].1);
        assert_eq!(scene.post("/api/dispatch-jobs/bulk", json!({ "action": "cancel" })).await.expect(200)["done"], 1);
        scene.with_key(&of[1].1);
        assert_eq!(show(&scene, &of[1].2).await["status"], "QUEUED", "another client's is left alone");
        scene.with_key(&unscoped);
        assert_eq!(ids(&scene.get("/api/dispatch-jobs").await.expect(200)).len(), 2);
        let reader = keys.create("reader", &[Scope::Read], None).await.unwrap().secret;
        scene.with_key(reader);
        assert_eq!(show(&scene, &of[0].2).await["status"], "CANCELLED");
        act(&scene, &of[0].2, "retry").await.refused(403, "forbidden");
        scene.close().await;
    }
}
