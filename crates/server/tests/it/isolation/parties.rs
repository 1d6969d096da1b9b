//! Parties and their data: each uses names that all share and names of its own, and its own texts contain its marker.

use reqwest::Method;
use serde_json::{Value, json};
use tidegate::Tsid;

use crate::scene::{Scene, send};

/// A name that all parties use.
const SHARED: &str = "shared";
/// The first of the numbers that no entry has.
const NOWHERE: i64 = 9_007_199_254_000_000;
/// Clients, whose ids no key has.
pub(super) const FIRST: i64 = 1_000_001;
pub(super) const SECOND: i64 = 1_000_002;

/// A client, or the unscoped callers (`client` is `None`), with what they have in the database.
#[derive(Debug, Clone)]
pub(super) struct Party {
    pub(super) client: Option<Tsid>,
    pub(super) marker: String,
    pub(super) ids: Vec<i64>,
    pub(super) leases: Vec<i64>,
    /// An event type and a schema that the party knows: they are the same for all.
    pub(super) event_type: String,
    pub(super) schema: String,
    /// What the party has in the gateway: an event, a subscription, and a key that nobody uses.
    pub(super) fact: String,
    pub(super) subscription: String,
    pub(super) pool: String,
    pub(super) account: String,
    pub(super) job: String,
    pub(super) applied_set: String,
    pub(super) key: i64,
}

/// How a parameter is filled.
pub(super) enum Filler {
    /// With values that belong to no party.
    Neutral(Vec<Value>),
    /// With what belongs to a party.
    Of(fn(&Party) -> Vec<Value>),
}

/// How to fill a parameter of an operation; `None` for a parameter that is not listed here.
pub(super) fn filler(path: &str, name: &str) -> Option<Filler> {
    let neutral = |value: Value| Some(Filler::Neutral(value.as_array().cloned().unwrap_or_default()));
    match name {
        "id" if path.starts_with("/api/event-types") => Some(Filler::Of(|party| vec![json!(party.event_type)])),
        "id" if path.starts_with("/api/schemas") => Some(Filler::Of(|party| vec![json!(party.schema)])),
        "id" if path.starts_with("/api/events") => Some(Filler::Of(|party| vec![json!(party.fact)])),
        "id" if path.starts_with("/api/subscriptions") => Some(Filler::Of(|party| vec![json!(party.subscription)])),
        "id" if path.starts_with("/api/dispatch-jobs") => Some(Filler::Of(|party| vec![json!(party.job)])),
        "subscriptionId" => Some(Filler::Of(|party| vec![json!(party.subscription)])),
        "eventId" => Some(Filler::Of(|party| vec![json!(party.fact)])),
        "poolId" => Some(Filler::Of(|party| vec![json!(party.pool)])),
        "kind" => neutral(json!(["EVENT", "TASK"])),
        "action" => neutral(json!(["cancel"])),
        "blocked" => neutral(json!([true])),
        "perSecond" => neutral(json!([1000])),
        "status" if path.starts_with("/api/dispatch-jobs") => neutral(json!(["QUEUED", "CANCELLED"])),
        "id" if path.starts_with("/api/dispatch-pools") => Some(Filler::Of(|party| vec![json!(party.pool)])),
        "id" if path.starts_with("/api/service-accounts") => Some(Filler::Of(|party| vec![json!(party.account)])),
        "id" if path.starts_with("/api/applied-sets") => Some(Filler::Of(|party| vec![json!(party.applied_set)])),
        "id" if path.starts_with("/api/keys") => Some(Filler::Of(|party| vec![json!(party.key)])),
        "id" if path.starts_with("/api/clients") => Some(Filler::Of(Party::clients)),
        "clientId" => Some(Filler::Of(Party::clients)),
        "name" if path.starts_with("/schedules") => Some(Filler::Of(|party| vec![json!(party.word("schedule"))])),
        "cron" => neutral(json!(["@yearly"])),
        "timezone" => neutral(json!(["UTC"])),
        "missed" => neutral(json!(["once"])),
        "event" => neutral(json!([{ "type": "a-type" }])),
        "concurrency" | "rateLimitPerMinute" => neutral(json!([7])),
        "status" if path.starts_with("/api/dispatch-pools") => neutral(json!(["SUSPENDED"])),
        "items" => neutral(json!([[{ "kind": "Queue", "code": "a-queue" }]])),
        "authType" => neutral(json!(["NONE"])),
        "token" | "username" | "password" => neutral(json!(["a-secret"])),
        "overlapSeconds" => neutral(json!([0])),
        "scheme" => neutral(json!(["v1"])),
        "code"
            if ["/api/dispatch-pools", "/api/service-accounts", "/api/applied-sets"]
                .iter()
                .any(|of| path.starts_with(of)) =>
        {
            Some(Filler::Of(|party| vec![json!(party.word("code"))]))
        }
        "code" if path.starts_with("/api/subscriptions") => Some(Filler::Of(|party| vec![json!(party.word("code"))])),
        "code" if path.starts_with("/api/clients") => neutral(json!(["a-client"])),
        "source" => Some(Filler::Of(|party| vec![json!(party.word("source"))])),
        "subject" => Some(Filler::Of(|party| vec![json!(party.word("subject"))])),
        "externalId" => Some(Filler::Of(|party| vec![json!(party.word("external"))])),
        "correlationId" | "causationId" => Some(Filler::Of(|party| vec![json!(party.word("correlation"))])),
        "deduplicationId" => Some(Filler::Of(|party| vec![json!(party.word("deduplication"))])),
        "messageGroup" => Some(Filler::Of(|party| vec![json!(SHARED), json!(party.word("group"))])),
        "context.{key}" => Some(Filler::Of(|party| vec![json!(party.word("context"))])),
        "contextData" => Some(Filler::Of(|party| vec![json!([{ "key": "{key}", "value": party.word("context") }])])),
        "eventTypes" => Some(Filler::Of(|party| vec![json!([{ "eventTypeCode": party.word("bound") }])])),
        "target" => Some(Filler::Of(|party| {
            vec![json!(format!("queue:{SHARED}")), json!(format!("queue:{}", party.word("queue")))]
        })),
        // Nothing is delivered: the servers of these tests have no router.
        "targetUrl" => neutral(json!(["https://hooks.example/"])),
        "headers" | "metadata" => neutral(json!([{ "x-a": "b" }])),
        "payloadContentType" => neutral(json!(["application/json"])),
        "scheduledFor" => neutral(json!(["2100-01-01T00:00:00Z"])),
        "idempotencyKey" => Some(Filler::Of(|party| vec![json!(party.word("idempotency"))])),
        "data" => neutral(json!([{ "a": 1 }])),
        "time" => neutral(json!(["2020-01-01T00:00:00Z"])),
        "expiresAt" => neutral(json!(["2100-01-01T00:00:00Z"])),
        "specVersion" | "schemaVersion" => neutral(json!(["1.0"])),
        "mode" => neutral(json!(["NEXT_ON_ERROR"])),
        // Subscriptions of any client may name a pool of the anchor level.
        "dispatchPoolId" => Some(Filler::Of(|party| party.client.iter().map(|_| json!(party.pool)).collect())),
        "serviceAccountId" => Some(Filler::Of(|party| party.client.iter().map(|_| json!(party.account)).collect())),
        "timeoutSeconds" | "maxRetries" | "maxAgeSeconds" | "delaySeconds" | "sequence" => neutral(json!([7])),
        "retryStrategy" => neutral(json!([{ "type": "fixed", "delaySeconds": 7 }])),
        "dataOnly" => neutral(json!([true])),
        "ackInBody" | "missingOnly" => neutral(json!([false])),
        // How much came during a pause depends on the time that passes; a replay of a range is walked as well.
        "replay" => neutral(json!([false])),
        "replayId" => neutral(json!(["a replay"])),
        "cursor" if path.ends_with("/replay") => neutral(json!(["0000000000007"])),
        "customConfig" => neutral(json!([[{ "key": "k", "value": "v" }]])),
        "filter" => neutral(json!([[{ "exists": "subject" }]])),
        "scopes" => neutral(json!([["read"]])),
        "eventTypeId" => Some(Filler::Of(|party| vec![json!(party.event_type)])),
        "name" if path.starts_with("/api/") => neutral(json!(["a name"])),
        "code" => neutral(json!(["a:b:c:d"])),
        "version" => neutral(json!(["1.0"])),
        "mimeType" => neutral(json!(["application/json"])),
        "schemaType" => neutral(json!(["JSON_SCHEMA"])),
        "schema" | "content" => neutral(json!([{ "type": "object" }])),
        "message" => neutral(json!(["a.Message"])),
        "strict" => neutral(json!([true])),
        "force" => neutral(json!([{ "reason": "a reason" }])),
        "If-Match" => neutral(json!(["*"])),
        "id" => Some(Filler::Of(|party| party.ids.iter().map(|id| json!(id)).collect())),
        "cursor" | "logs_cursor" => {
            Some(Filler::Of(|party| party.ids.iter().map(|id| json!(id.to_string())).collect()))
        }
        "lease" => Some(Filler::Of(|party| party.leases.iter().map(|lease| json!(lease)).collect())),
        "name" if path.starts_with("/projections") => Some(Filler::Of(|party| vec![json!(party.word("projection"))])),
        "key" | "after" => Some(Filler::Of(|party| vec![json!(party.word("key"))])),
        "name" | "queue" => Some(Filler::Of(|party| vec![json!(SHARED), json!(party.word("queue")), json!("default")])),
        "client" => Some(Filler::Of(|party| party.client.iter().map(|client| json!(client.to_string())).collect())),
        "tags" => Some(Filler::Of(|party| vec![json!(SHARED), json!(party.word("tag"))])),
        "worker_id" => Some(Filler::Of(|party| vec![json!("shared:1"), json!(party.word("worker"))])),
        "type" => Some(Filler::Of(|party| vec![json!("event"), json!(party.word("type"))])),
        "deduplication_id" => Some(Filler::Of(|party| vec![json!(SHARED), json!(party.word("deduplication"))])),
        "message_group" => Some(Filler::Of(|party| vec![json!(SHARED), json!(party.word("group"))])),
        "Idempotency-Key" => Some(Filler::Of(|party| vec![json!(party.word("idempotency"))])),
        "error_contains" => Some(Filler::Of(|party| vec![json!(party.word("error"))])),
        "title" | "description" | "schemaName" | "schemaDescription" | "reason" | "error_message" => {
            neutral(json!(["a text"]))
        }
        "payload" => neutral(json!([{ "a": 1 }])),
        "traceparent" => neutral(json!(["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"])),
        "status" => neutral(json!(["PENDING", "PROCESSING", "COMPLETED", "FAILED", "CANCELLED"])),
        "from" => neutral(json!(["2020-01-01T00:00:00Z"])),
        "to" => neutral(json!(["2100-01-01T00:00:00Z"])),
        "include_logs" | "require_lease" => neutral(json!([true])),
        "limit" | "logs_limit" => neutral(json!([1, 100])),
        "offset" | "priority" | "delay_seconds" => neutral(json!([1])),
        "wait" => neutral(json!([0])),
        "lease_seconds" => neutral(json!([3600])),
        "max" | "max_retries" | "execution_time_ms" | "status_code" => neutral(json!([7])),
        "per_second" | "depth_limit" => neutral(json!([1000])),
        "retry" => neutral(json!([{ "kind": "fixed", "delay_ms": 86_400_000 }])),
        _ => None,
    }
}

impl Party {
    pub(super) fn new(client: Option<i64>) -> Self {
        let marker = format!("{:016x}", rand::random::<u64>());
        let nothing = Tsid::from_i64(1).to_string();
        let (event_type, schema, fact, subscription) =
            (nothing.clone(), nothing.clone(), nothing.clone(), nothing.clone());
        let (pool, account, job, applied_set) = (nothing.clone(), nothing.clone(), nothing.clone(), nothing);
        let (client, ids, leases, key) = (client.map(Tsid::from_i64), Vec::new(), Vec::new(), NOWHERE);
        Self {
            client,
            marker,
            ids,
            leases,
            event_type,
            schema,
            fact,
            subscription,
            pool,
            account,
            job,
            applied_set,
            key,
        }
    }

    /// Its client, if it has one, as requests name it.
    fn clients(&self) -> Vec<Value> {
        self.client.iter().map(|client| json!(client.to_string())).collect()
    }

    /// A text of this party that others cannot guess.
    pub(super) fn word(&self, what: &str) -> String {
        format!("{}-{what}", self.marker)
    }

    /// The same party in a database without its entries. It keeps its lease tokens, which count from 1 for each entry.
    pub(super) fn absent(&self) -> Self {
        let nothing = || Tsid::from_i64(1).to_string();
        let ids = (NOWHERE..).take(self.ids.len()).collect();
        let (fact, subscription, pool, account, applied_set) = (nothing(), nothing(), nothing(), nothing(), nothing());
        Self { ids, fact, subscription, pool, account, job: nothing(), applied_set, key: NOWHERE, ..self.clone() }
    }

    /// Publishes, claims and reports, so that there is an entry of every kind. `round` makes its names new.
    pub(super) async fn fill(&mut self, scene: &Scene, key: &str, round: usize) {
        let filling = Filling { scene, key, marker: &self.marker, round };
        let own_worker = self.word("worker");
        for name in [SHARED, &self.word("queue"), "default"] {
            // Undoes what earlier calls may have changed.
            let body = json!({ "max_retries": 5, "require_lease": false, "depth_limit": 9000, "retry": null });
            filling.call(Method::PUT, &format!("/queues/{name}"), body, 200).await;
            filling.call(Method::POST, &format!("/queues/{name}/resume"), Value::Null, 200).await;
        }
        let far = json!({ "kind": "fixed", "delay_ms": 86_400_000 });
        let leased = filling.taken("leased", json!({}), "shared:1").await;
        let kept = filling.taken("kept", json!({}), &own_worker).await;
        let failed = filling.taken("failed", json!({ "max_retries": 0 }), "shared:1").await;
        let retried = filling.taken("retried", json!({ "retry": far }), &own_worker).await;
        let done = filling.taken("done", json!({}), &own_worker).await;
        let reset = filling.taken("reset", json!({}), "shared:1").await;
        let cancelled = filling.published("cancelled", json!({})).await;
        let report = |worker: &str| json!({ "worker_id": worker, "error_message": self.word("error") });
        filling.call(Method::POST, &format!("/events/{}/fail", failed.0), report("shared:1"), 400).await;
        filling.call(Method::POST, &format!("/events/{}/fail", retried.0), report(&own_worker), 200).await;
        filling.call(Method::POST, &format!("/events/{}/complete", done.0), report(&own_worker), 200).await;
        let path = format!("/events/{}/reset?reason={}", reset.0, self.word("reason"));
        filling.call(Method::POST, &path, Value::Null, 200).await;
        filling.call(Method::POST, &format!("/events/{cancelled}/cancel"), Value::Null, 200).await;
        self.ids = vec![leased.0, kept.0, failed.0, retried.0, done.0, reset.0, cancelled];
        self.leases = vec![leased.1, kept.1];
        let type_and_queue = json!({ "type": self.word("type"), "queue": self.word("queue") });
        let more = [
            ("delayed", json!({ "delay_seconds": 86_400 })),
            ("typed", type_and_queue),
            ("default", json!({ "queue": "default" })),
            ("first", json!({ "message_group": SHARED })),
            ("second", json!({ "message_group": SHARED })),
            ("grouped", json!({ "message_group": self.word("group") })),
            ("once", json!({ "deduplication_id": format!("{SHARED}-{round}") })),
            ("deduplicated", json!({ "deduplication_id": self.word("deduplication") })),
        ];
        for (kind, body) in more {
            let id = filling.published(kind, body).await;
            self.ids.push(id);
        }
        self.subscription = filling.subscription().await;
        self.job = filling.job().await;
        filling.task().await;
        let pool = json!({ "code": format!("{}-pool", self.marker), "name": self.word("pool") });
        self.pool = filling.made("/api/dispatch-pools", pool).await;
        let account =
            json!({ "code": format!("{}-account", self.marker), "name": self.word("account"), "authType": "NONE" });
        self.account = filling.made("/api/service-accounts", account).await;
        let item = json!({ "kind": "Queue", "code": self.word("item") });
        let set = json!({ "code": format!("{}-set", self.marker), "items": [item] });
        self.applied_set = filling.made("/api/applied-sets", set).await;
        self.fact = filling.fact().await;
        let key = json!({ "name": self.word("spare"), "scopes": ["read"] });
        self.key = filling.call(Method::POST, "/api/keys", key, 201).await["id"].as_i64().unwrap();
    }
}

/// Fills a database on behalf of one party.
struct Filling<'a> {
    scene: &'a Scene,
    key: &'a str,
    marker: &'a str,
    round: usize,
}

impl Filling<'_> {
    async fn call(&self, method: Method, path: &str, body: Value, status: u16) -> Value {
        let request = self.scene.request_with(self.key, method, path);
        let request = if body.is_null() { request } else { request.json(&body) };
        send(request).await.expect(status)
    }

    async fn published(&self, kind: &str, extra: Value) -> i64 {
        let (marker, round) = (self.marker, self.round);
        let mut body = json!({
            "title": format!("{marker}-title {kind} {round}"), "description": format!("{marker}-description"),
            "tags": [SHARED, format!("{marker}-tag"), format!("{marker}-{kind}-{round}")],
            "payload": { "secret": format!("{marker}-payload") }, "queue": SHARED,
        });
        for (name, value) in extra.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        let request = self.scene.request_with(self.key, Method::POST, "/events").json(&body);
        let request = request.header("idempotency-key", format!("{marker}-idempotency-{kind}-{round}"));
        let request = request.header("traceparent", format!("00-{marker}{marker}-00f067aa0ba902b7-01"));
        let answer = send(request).await;
        assert!(answer.status.is_success(), "{}", answer.text);
        answer.json()["id"].as_i64().unwrap()
    }

    /// The subscription of the party, made if it was deleted, and as it was made. No type that a request names is bound to it. Those that
    /// earlier calls made are deleted: their queues may be draining.
    async fn subscription(&self) -> String {
        let marker = self.marker;
        let body = json!({
            "code": format!("{marker}-own"), "name": "a name", "description": format!("{marker}-description"),
            "eventTypes": [{ "eventTypeCode": format!("{marker}-bound") }], "target": format!("queue:{SHARED}"),
        });
        let made = send(self.scene.request_with(self.key, Method::POST, "/api/subscriptions").json(&body)).await;
        let page = self.call(Method::GET, "/api/subscriptions?limit=1000", Value::Null, 200).await;
        let (own, made_since): (Vec<&Value>, Vec<&Value>) =
            page["items"].as_array().unwrap().iter().partition(|one| one["code"] == body["code"]);
        for one in made_since {
            let path = format!("/api/subscriptions/{}", one["id"].as_str().unwrap());
            self.call(Method::DELETE, &path, Value::Null, 204).await;
        }
        let id = own.first().unwrap_or_else(|| panic!("{}", made.text))["id"].as_str().unwrap().to_owned();
        self.call(Method::PUT, &format!("/api/subscriptions/{id}"), body, 200).await;
        self.call(Method::POST, &format!("/api/subscriptions/{id}/resume"), Value::Null, 200).await;
        id
    }

    /// A task that waits.
    async fn task(&self) {
        let marker = self.marker;
        let task = json!({
            "code": format!("{marker}-task"), "targetUrl": format!("https://hooks.example/{marker}"),
            "payload": { "secret": format!("{marker}-payload") }, "headers": { "x-a": format!("{marker}-header") },
            "metadata": { "a": format!("{marker}-metadata") }, "messageGroup": format!("{marker}-group"),
            "scheduledFor": "2100-01-01T00:00:00Z",
        });
        self.call(Method::POST, "/api/dispatch-jobs", task, 201).await;
    }

    /// A job that was cancelled, so that it can be retried. Nothing is delivered: the servers of these tests have no router.
    async fn job(&self) -> String {
        let (marker, round) = (self.marker, self.round);
        let hook = json!({
            "code": format!("{marker}-hook"), "name": "a hook", "target": format!("https://hooks.example/{marker}"),
            "eventTypes": [{ "eventTypeCode": format!("{marker}-hooked") }], "delaySeconds": 3600,
        });
        self.call(Method::POST, "/api/subscriptions", hook, 201).await;
        let event = json!({
            "type": format!("{marker}-hooked"), "source": format!("{marker}-source"), "subject": format!("{marker}-subject"),
            "deduplicationId": format!("{marker}-hook-{round}"), "data": { "secret": format!("{marker}-payload") },
        });
        let stored = self.call(Method::POST, "/api/events", event, 201).await;
        let id = stored["dispatchJobs"][0]["id"].as_str().unwrap().to_owned();
        self.call(Method::POST, &format!("/api/dispatch-jobs/{id}/cancel"), json!({}), 200).await;
        id
    }

    /// An event in the gateway, with an entry.
    async fn fact(&self) -> String {
        let (marker, round) = (self.marker, self.round);
        let body = json!({
            "type": format!("{marker}-bound"), "source": format!("{marker}-source"), "subject": format!("{marker}-subject"),
            "correlationId": format!("{marker}-correlation"), "messageGroup": format!("{marker}-group"),
            "contextData": [{ "key": "{key}", "value": format!("{marker}-context") }],
            "deduplicationId": format!("{marker}-fact-{round}"), "data": { "secret": format!("{marker}-payload") },
        });
        let stored = send(self.scene.request_with(self.key, Method::POST, "/api/events").json(&body)).await;
        assert!(stored.status.is_success(), "{}", stored.text);
        stored.json()["id"].as_str().unwrap().to_owned()
    }

    /// What has this code, made if it was deleted.
    async fn made(&self, path: &str, body: Value) -> String {
        let made = send(self.scene.request_with(self.key, Method::POST, path).json(&body)).await;
        if made.status.as_u16() == 201 {
            return made.json()["id"].as_str().unwrap().to_owned();
        }
        let page = self.call(Method::GET, &format!("{path}?limit=1000"), Value::Null, 200).await;
        let own = page["items"].as_array().unwrap().iter().find(|one| one["code"] == body["code"]).cloned();
        own.unwrap_or_else(|| panic!("{}", made.text))["id"].as_str().unwrap().to_owned()
    }

    /// Publishes an event and claims it. Returns the entry and its lease token.
    async fn taken(&self, kind: &str, extra: Value, worker: &str) -> (i64, i64) {
        let id = self.published(kind, extra).await;
        let tag = format!("{}-{kind}-{}", self.marker, self.round);
        let path = format!("/events/subscribe?queue={SHARED}&tags={tag}&worker_id={worker}&lease_seconds=3600&wait=10");
        let taken = self.call(Method::GET, &path, Value::Null, 200).await;
        assert_eq!(taken["id"], id, "{taken}");
        (id, taken["lease"].as_i64().unwrap())
    }
}
