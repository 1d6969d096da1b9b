//! The walk itself: the same calls in two databases, and what their answers must have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tidegate::{ChangeResource, EventLogProjectionBuilder, PutResource, Timestamp, Tsid};
use tidegate_dispatch::{EventTypeBody, Gateway, GatewayOptions, Match, NewVersion, SchemaBody, SchemaType};
use tidegate_server::{Keyring, Scope};

use super::calls::{Call, Operation};
use super::dump::Dump;
use super::parties::{FIRST, Party, SECOND};
use crate::scene::{Answer, PATIENCE, Scene, send};

/// Operations that refuse every client.
const FOR_NO_CLIENT: [&str; 26] = [
    "list_schedules",
    "show_schedule",
    "put_schedule",
    "delete_schedule",
    "pause_schedule",
    "resume_schedule",
    "run_schedule",
    "create_client",
    "change_client",
    "delete_client",
    "metrics",
    "list_projections",
    "show_projection",
    "remove_projection",
    "projection_document",
    "create_event_type",
    "change_event_type",
    "archive_event_type",
    "add_version",
    "change_version",
    "delete_version",
    "finalise_version",
    "deprecate_version",
    "create_schema",
    "change_schema",
    "delete_schema",
];
/// Operations that succeed only on what a delivery has failed at, and these servers deliver nothing.
const FOR_FAILED_JOBS: [&str; 1] = ["ignore_dispatch_job"];
/// Operations whose ids are those of keys.
const OF_KEYS: [&str; 3] = ["list_keys", "create_key", "revoke_key"];
/// Fields that differ between two databases, or with the time that passes.
const NUMBERS: [&str; 18] = [
    "entryId",
    "eventId",
    "jobId",
    "poolId",
    "subscriptionId",
    "dispatchPoolId",
    "serviceAccountId",
    "key",
    "signingSecret",
    "id",
    "event_id",
    "event_tsid",
    "holds",
    "next_cursor",
    "logs_next_cursor",
    "schemaId",
    "eventTypeId",
    "nextCursor",
];
/// Headers that differ likewise.
const HEADERS: [&str; 4] = ["date", "content-length", "etag", "location"];
const TIMES: [&str; 3] = ["stale", "age_seconds", "lastUsedAt"];

/// Whether the other parties' data is written before or after the client's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    OthersFirst,
    OthersLast,
}

/// A database with a client, and perhaps other parties.
struct World {
    scene: Scene,
    own: Party,
    others: Vec<Party>,
    /// A key of the client with the scope `admin`.
    admin: String,
    /// Numbers of the others' entries and events.
    theirs: BTreeSet<i64>,
    /// Everything the client has sent so far.
    sent: BTreeSet<String>,
}

/// Sends all calls to both databases, with a key of each scope, and compares the answers and the others' rows.
pub(super) async fn walk(alone: Scene, beside: Scene, order: Order) {
    let (own, others) = (Party::new(Some(FIRST)), [Party::new(Some(SECOND)), Party::new(None)]);
    let mut beside = World::with_others(beside, own.clone(), others.to_vec(), order).await;
    let mut alone = World::without_others(alone, own, &beside.others).await;
    let before = quiescent_rows(&beside).await;
    let operations = Operation::all();
    let mut done: BTreeMap<&str, BTreeSet<u16>> = BTreeMap::new();
    let mut round = 0;
    for scope in Scope::ALL {
        round += 1;
        tokio::join!(alone.begin(scope, round), beside.begin(scope, round));
        for operation in &operations {
            if scope == Scope::Admin && operation.method != Method::GET {
                round += 1;
                tokio::join!(alone.fill(round), beside.fill(round));
            }
            let calls = operation.calls(&alone.own, &alone.others).into_iter();
            for (at, (first, second)) in calls.zip(operation.calls(&beside.own, &beside.others)).enumerate() {
                let (one, two) = tokio::join!(alone.call(&first), beside.call(&second));
                done.entry(&operation.id).or_default().insert(two.status);
                if second.cursor().is_some_and(|cursor| !beside.own.ids.contains(&cursor)) {
                    continue; // another party's number is a position among all entries, which differs between the two
                }
                assert_eq!(one, two, "{scope:?}: call {at} of {}: alone, and beside others: {second:?}", operation.id);
            }
        }
    }
    for (operation, statuses) in done {
        let succeeded = statuses.iter().any(|status| (200..300).contains(status));
        let is_for_clients = !FOR_NO_CLIENT.contains(&operation) && !FOR_FAILED_JOBS.contains(&operation);
        assert_eq!(succeeded, is_for_clients, "{operation} only answered {statuses:?}: the walk does not cover it");
    }
    let after = Dump::of(&beside.scene).await.of_parties(&beside.others);
    let changed: Vec<&String> = before.symmetric_difference(&after).collect();
    assert!(changed.is_empty(), "rows of others were changed: {changed:#?}");
    tokio::join!(alone.scene.close(), beside.scene.close());
}

/// The rows of the others, once upkeep has nothing left to write for them.
async fn quiescent_rows(world: &World) -> BTreeSet<String> {
    let started = Instant::now();
    let mut before = Dump::of(&world.scene).await.of_parties(&world.others);
    loop {
        // Upkeep announces, sorts in and counts. The round under way may have begun too early: wait for one more.
        for _ in 0..2 {
            wait_for_upkeep(world).await;
        }
        let now = Dump::of(&world.scene).await;
        let is_counted = now.is_counted();
        let now = now.of_parties(&world.others);
        if now == before && is_counted {
            assert!(now.len() > 100, "the others have hardly anything: {now:#?}");
            return now;
        }
        assert!(started.elapsed() < PATIENCE, "the others' rows keep changing");
        before = now;
    }
}

/// Waits until a round of upkeep has ended.
async fn wait_for_upkeep(world: &World) {
    let asked = Instant::now();
    while world.scene.queue.health().await.last_upkeep.is_none_or(|ago| ago >= asked.elapsed()) {
        assert!(asked.elapsed() < PATIENCE, "upkeep does not run");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl World {
    async fn with_others(scene: Scene, mut own: Party, mut others: Vec<Party>, order: Order) -> Self {
        let keys = Keyring::new(scene.queue.clone());
        let admin = keys.create("own", &[Scope::Admin], own.client).await.unwrap().secret;
        if order == Order::OthersLast {
            own.fill(&scene, &admin, 0).await;
        }
        for other in &mut others {
            let key = keys.create(&other.word("key"), &[Scope::Admin], other.client).await.unwrap().secret;
            other.fill(&scene, &key, 0).await;
            project(&scene, other).await;
        }
        if order == Order::OthersFirst {
            own.fill(&scene, &admin, 0).await;
        }
        describe(&scene, &mut own).await;
        let theirs = Dump::of(&scene).await.numbers_of(&others);
        assert!(others.iter().flat_map(|other| &other.ids).all(|id| theirs.contains(id)));
        Self { scene, own, others, admin, theirs, sent: BTreeSet::new() }
    }

    async fn without_others(scene: Scene, mut own: Party, others: &[Party]) -> Self {
        let keys = Keyring::new(scene.queue.clone());
        let admin = keys.create("own", &[Scope::Admin], own.client).await.unwrap().secret;
        own.fill(&scene, &admin, 0).await;
        describe(&scene, &mut own).await;
        let others = others.iter().map(Party::absent).collect();
        Self { scene, own, others, admin, theirs: BTreeSet::new(), sent: BTreeSet::new() }
    }

    async fn fill(&mut self, round: usize) {
        self.own.fill(&self.scene, &self.admin, round).await;
    }

    /// Uses a key of this scope from here on.
    async fn begin(&mut self, scope: Scope, round: usize) {
        self.fill(round).await;
        let key = Keyring::new(self.scene.queue.clone()).create("walk", &[scope], self.own.client).await.unwrap();
        self.scene.with_key(key.secret);
    }

    async fn call(&mut self, call: &Call<'_>) -> Seen {
        let sent = call.sent();
        self.sent.extend(sent.iter().cloned());
        let answer = send(call.request(&self.scene)).await;
        self.check(call, &sent, &answer);
        Seen::of(&answer)
    }

    /// An answer contains nothing of the others unless it was in a request.
    fn check(&self, call: &Call<'_>, sent: &[String], answer: &Answer) {
        let whole = format!("{:?} {}", answer.headers, answer.text);
        for other in &self.others {
            for (at, _) in whole.match_indices(&other.marker) {
                let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
                let word: String = whole[at..].chars().take_while(|c| is_word(*c)).collect();
                assert!(self.sent.contains(&word), "{word} of another in the answer to {call:?}: {whole}");
            }
        }
        let Ok(body) = serde_json::from_str::<Value>(&answer.text) else { return };
        if OF_KEYS.contains(&call.operation.id.as_str()) {
            return; // keys have numbers of their own; their names and clients were looked at above
        }
        let mut numbers = Vec::new();
        numbers_in(&body, false, &mut numbers);
        for number in numbers {
            let is_theirs = number.parse().is_ok_and(|number: i64| self.theirs.contains(&number));
            assert!(!is_theirs || sent.contains(&number), "{number} of another in the answer to {call:?}: {whole}");
        }
    }
}

/// Registers the client; makes an event type with a version, and a schema on its own, for all to read.
async fn describe(scene: &Scene, party: &mut Party) {
    let (kind, code, body) = ("client".into(), "own".into(), r#"{"name": "own"}"#.into());
    let client = PutResource::Create { id: party.client, kind, client: None, code, body };
    scene.queue.resources().change(vec![ChangeResource::Put(client)]).await.unwrap();
    let gateway = Gateway::new(scene.queue.clone(), GatewayOptions::default());
    let about = EventTypeBody { name: "a type".into(), description: None };
    let made = gateway.create_type(&"a:b:c:d".parse().unwrap(), &about).await.unwrap();
    let version = NewVersion {
        mime_type: "application/json".into(),
        schema_type: SchemaType::JsonSchema,
        schema: "{}".into(),
        message: None,
        strict: false,
        force: None,
        schema_name: None,
        schema_description: None,
    };
    let (number, now) = ("1.0".parse().unwrap(), Timestamp::now());
    gateway.add_version(made.id, Match::Any, number, &version, now).await.unwrap();
    gateway.finalise_version(made.id, Match::Any, number).await.unwrap();
    let schema = SchemaBody {
        name: "a schema".into(),
        description: None,
        mime_type: "application/json".into(),
        schema_type: SchemaType::JsonSchema,
        content: "{}".into(),
    };
    let schema = gateway.create_schema(&schema, None, now).await.unwrap();
    (party.event_type, party.schema) = (made.id.to_string(), schema.id.to_string());
}

/// Makes a projection with one document for a party.
pub(super) async fn project(scene: &Scene, party: &Party) {
    let key = party.word("key");
    let projection = EventLogProjectionBuilder::new(party.word("projection"))
        .documents::<Value>()
        .on::<Value, _, _>(
            "event",
            move |_| Some(key.clone()),
            |_, event| Ok::<_, std::convert::Infallible>(Some(json!({ "last": event.data }))),
        )
        .open(&scene.queue)
        .await
        .unwrap();
    projection.catch_up().await.unwrap();
}

/// Collects the values of fields that name entries and events.
fn numbers_in(value: &Value, is_number: bool, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| numbers_in(value, NUMBERS.contains(&name.as_str()), found));
        }
        Value::Array(items) => items.iter().for_each(|item| numbers_in(item, is_number, found)),
        Value::Number(number) if is_number => found.push(number.to_string()),
        Value::String(text) if is_number => found.push(text.clone()),
        _ => {}
    }
}

/// An answer without the values that may differ: numbers of entries, and times.
#[derive(Debug, PartialEq)]
struct Seen {
    status: u16,
    headers: Vec<(String, String)>,
    body: Value,
}

impl Seen {
    fn of(answer: &Answer) -> Self {
        let headers = answer.headers.iter().filter(|(name, _)| !HEADERS.contains(&name.as_str()));
        let headers = headers.map(|(name, value)| (name.to_string(), format!("{value:?}"))).collect();
        let body = serde_json::from_str(&answer.text).unwrap_or_else(|_| Value::from(answer.text.as_str()));
        Self { status: answer.status.as_u16(), headers, body: plain("", body) }
    }
}

fn plain(name: &str, value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(name, _)| !TIMES.contains(&name.as_str()));
            fields.map(|(name, value)| (name.clone(), plain(&name, value))).collect()
        }
        Value::Array(items) => items.into_iter().map(|item| plain(name, item)).collect(),
        // Two servers that are asked one after the other may be a second apart. That something waits is compared.
        Value::Number(_) if name == "oldestWaitingSeconds" => "an age".into(),
        Value::Number(_) if NUMBERS.contains(&name) => "a number".into(),
        Value::String(_) if NUMBERS.contains(&name) => "a number".into(),
        Value::String(text) if text.parse::<Timestamp>().is_ok() => "a moment".into(),
        // Error texts name entries and events, whose numbers and ids differ.
        Value::String(text) if name == "error" => {
            let words = text.split(' ').map(|word| if word.parse::<Tsid>().is_ok() { "an-id" } else { word });
            words.collect::<Vec<_>>().join(" ").replace(|c: char| c.is_ascii_digit(), "").into()
        }
        other => other,
    }
}
