//! Publishing with plain SQL, from any language: every option, the library's limits, and extreme stored values that
//! reads must not fail on.

use tidegate_core::{End, NewEvent, PayloadLimit, RetryPolicy, Status, Why};

use super::scene::*;
use crate::values::ListQuery;
use crate::values::*;

/// The statement that publishes these columns, in the SQL of this database.
fn publish_statement(scene: &Scene, columns: &[(&str, &str)]) -> String {
    let (names, values): (Vec<&str>, Vec<&str>) = columns.iter().copied().unzip();
    if scene.is_sqlite() {
        return format!("INSERT INTO tidegate_publish ({}) VALUES ({})", names.join(", "), values.join(", "));
    }
    let arguments: Vec<String> = columns.iter().map(|(name, value)| format!("{name} => {value}")).collect();
    format!("SELECT tidegate.publish({})", arguments.join(", "))
}

/// Publishes columns given as SQL expressions and commits. The error is the database's message.
async fn publish_columns(scene: &Scene, columns: &[(&str, &str)]) -> Result<(), String> {
    let mut caller = scene.begin().await;
    let answer = caller.run_sql(&publish_statement(scene, columns)).await;
    match &answer {
        Ok(()) => caller.commit().await,
        Err(_) => caller.rollback().await,
    }
    answer
}

async fn publish_sql(scene: &Scene, event: &NewEvent) -> Result<(), String> {
    let mut caller = scene.begin().await;
    let answer = caller.publish_sql(event).await;
    match &answer {
        Ok(()) => caller.commit().await,
        Err(_) => caller.rollback().await,
    }
    answer
}

async fn list(store: &AnyStore) -> Vec<crate::values::lists::EntrySummary> {
    let work = store.as_ref();
    work.list(ListQuery { limit: 100, ..ListQuery::default() }).await.expect("entries are listed").items
}

pub(super) async fn every_option_of_an_event(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let due = tidegate_core::Timestamp::from_second(4_000_000_000).unwrap();
    let mut full =
        event("full").tags(["mail", "größe"]).title("Title").description("").available_at(due).max_retries(3);
    full.time = Some("2026-01-02T03:04:05.678Z".parse().unwrap());
    full.external_id = Some("theirs".into());
    let policies = [
        RetryPolicy::Fixed { delay_ms: 1500 },
        RetryPolicy::Exponential { base_ms: 1, factor: 1.5, max_ms: 9, jitter: 0.5 },
        RetryPolicy::List { delays_ms: vec![1, 2, 3] },
    ];
    for policy in &policies {
        publish_sql(&scene, &full.clone().retry(policy.clone())).await.unwrap();
    }
    store.maintain().await.unwrap();
    let mut entries = list(&store).await;
    entries.sort_by_key(|entry| entry.id);
    assert_eq!(entries.len(), policies.len());
    for (entry, policy) in entries.iter().zip(policies) {
        let view = view(&store, entry.id).await;
        let fact = &view.fact;
        assert_eq!((fact.tags.as_slice(), fact.title.as_deref()), (&full.tags[..], Some("Title")));
        assert_eq!((fact.description.as_deref(), fact.time), (Some(""), full.time));
        assert_eq!((&fact.external_id, fact.retry.as_ref()), (&full.external_id, Some(&policy)));
        assert_eq!((view.max_attempts, view.phase), (4, EntryPhase::Waiting { due: Some(due) }));
    }
    assert_eq!(claim(&store, 9).await, []);
}

pub(super) async fn tags_lead_to_it(scene: Scene) {
    let store = scene.open_on_database_time().await;
    publish_columns(&scene, &[("event_type", "'t'"), ("payload", "'1'"), ("tags", "' mail, urgent,mail,, '")])
        .await
        .unwrap();
    publish_columns(&scene, &[("event_type", "'t'"), ("payload", "'2'"), ("tags", "''")]).await.unwrap();
    let came = claim_tagged(&store, "urgent", 1).await;
    assert_eq!(came[0].fact.tags, ["mail", "urgent"]);
    complete(&store, &came[0]).await;
    // The lane exists now, so the next event is written straight into it.
    let tagged = event("t").tags(["urgent"]);
    publish_sql(&scene, &tagged).await.unwrap();
    publish_sql(&scene, &tagged.group("g")).await.unwrap();
    claim_tagged(&store, "urgent", 2).await;
    assert_eq!(store.claim(by_tag("urgent")).await.unwrap(), []);
}

fn by_tag(tag: &str) -> Claim {
    Claim { tags: Some(vec![tag.into()]), audit: true, ..want(9) }
}

/// Claims by a tag, with upkeep before each claim, until `count` entries have come.
async fn claim_tagged(store: &AnyStore, tag: &str, count: usize) -> Vec<Claimed> {
    let taken = std::sync::Mutex::new(Vec::new());
    eventually("entries come by their tag", async || {
        store.maintain().await.unwrap();
        let came = store.claim(by_tag(tag)).await.unwrap();
        let mut taken = taken.lock().unwrap();
        taken.extend(came);
        taken.len() >= count
    })
    .await;
    let taken = taken.into_inner().unwrap();
    assert_eq!(taken.len(), count);
    taken
}

pub(super) async fn replace_changes_what_waits(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let contents = |text: &str| NewEvent::new("t", text.to_owned()).replace_waiting("k");
    publish_sql(&scene, &contents("1").tags(["old", "both"])).await.unwrap();
    let first = list(&store).await[0].id;
    publish_sql(&scene, &contents("2").tags(["both", "new"])).await.unwrap();
    store.maintain().await.unwrap();
    // The library replaces what plain SQL wrote, and the other way round.
    let replaced = try_publish(&store, contents("3").tags(["new"])).await.unwrap();
    assert_eq!((replaced.id, replaced.outcome), (first, PublishOutcome::Replaced));
    publish_sql(&scene, &contents("4").tags(["last"])).await.unwrap();
    for gone in ["old", "both", "new"] {
        assert_eq!(store.claim(by_tag(gone)).await.unwrap(), [], "{gone} was replaced");
    }
    let came = store.claim(by_tag("last")).await.unwrap();
    assert_eq!((came.len(), came[0].id, came[0].fact.payload.as_ref()), (1, first, b"4".as_slice()));
    assert_eq!(census(&store).await.events, 1, "replaced contents are gone");
    complete(&store, &came[0]).await;
    census(&store).await;
}

pub(super) async fn replace_of_a_taken_entry_is_a_new_one(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let contents = |text: &str| NewEvent::new("t", text.to_owned()).replace_waiting("k");
    publish_sql(&scene, &contents("1")).await.unwrap();
    let taken = claim_until(&store, 1).await.remove(0);
    publish_sql(&scene, &contents("2")).await.unwrap();
    publish_sql(&scene, &contents("3")).await.unwrap();
    let second = claim_until(&store, 1).await.remove(0);
    assert_ne!(second.id, taken.id);
    assert_eq!((taken.fact.payload.as_ref(), second.fact.payload.as_ref()), (b"1".as_slice(), b"3".as_slice()));
    for claimed in [&taken, &second] {
        complete(&store, claimed).await;
    }
    assert_eq!(census(&store).await.events, 2);
}

pub(super) async fn text_is_stored_as_sent(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let text = r#"{ "path": "C:\\dir\\new", "said": "\"é\" \u0000 \n",   "é": [1.50, 1e2] }"#;
    publish_columns(&scene, &[("event_type", "'t'"), ("payload", &format!("'{text}'"))]).await.unwrap();
    let prose = r"not JSON: C:\dir \x00 é";
    let columns = [("event_type", "'t'"), ("payload", &*format!("'{prose}'")), ("content_type", "'text/plain'")];
    publish_columns(&scene, &columns).await.unwrap();
    let came = claim_until(&store, 2).await;
    assert_eq!(came[0].fact.payload.as_ref(), text.as_bytes());
    assert_eq!(came[1].fact.payload.as_ref(), prose.as_bytes());
}

pub(super) async fn what_claims_to_be_json_must_be(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let blob = |hex: &str| if scene.is_sqlite() { format!("x'{hex}'") } else { format!(r"'\x{hex}'::bytea") };
    let (broken, binary) = (blob("7b"), blob("00ff"));
    let bad: [&[(&str, &str)]; 5] = [
        &[("payload", "'{'")],
        &[("payload", "''")],
        &[("payload", "'{'"), ("content_type", "'Application/JSON; charset=utf-8'")],
        &[("payload", "'{'"), ("content_type", "'application/cloudevents+json'")],
        &[("payload", &broken), ("content_type", "'application/json'")],
    ];
    for columns in bad {
        let columns: Vec<_> = [("event_type", "'t'")].iter().chain(columns).copied().collect();
        let said = publish_columns(&scene, &columns).await.expect_err("the payload is not JSON");
        assert!(said.contains("tidegate") && said.contains("not JSON"), "{said:?}");
    }
    let good: [&[(&str, &str)]; 3] =
        [&[("payload", &binary)], &[("payload", "'{'"), ("content_type", "'text/plain'")], &[("payload", "'null'")]];
    for columns in good {
        let columns: Vec<_> = [("event_type", "'t'")].iter().chain(columns).copied().collect();
        publish_columns(&scene, &columns).await.unwrap();
    }
    assert_eq!(census(&store).await.events, 3);
}

pub(super) async fn limits_are_those_of_the_library(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let quoted = |text: &str| format!("'{text}'");
    let (long, longer) = (quoted(&"x".repeat(256)), quoted(&"x".repeat(65_537)));
    let control = if scene.is_sqlite() { "'a' || char(133)" } else { "'a' || chr(133)" };
    let many_tags = quoted(&(0..33).map(|number| number.to_string()).collect::<Vec<_>>().join(","));
    let far = if scene.is_sqlite() { ("delay_ms", "3153600000001") } else { ("delay", "'200000 years'") };
    let past = if scene.is_sqlite() { ("delay_ms", "-1") } else { ("delay", "'-1 second'") };
    let bad = [
        (("source", "'a\nb'"), "source"),
        (("subject", control), "subject"),
        (("source", &*long), "source"),
        (("content_type", "''"), "content type"),
        (("correlation_id", &*long), "correlation id"),
        (("causation_id", "''"), "causation id"),
        (("external_id", &*long), "external id"),
        (("message_group", "'a\nb'"), "message group"),
        (("deduplication_id", "'a\nb'"), "deduplication id"),
        (("attributes", "'{'"), "attributes"),
        (("attributes", "'[]'"), "attributes"),
        (("attributes", &*longer), "attributes"),
        (("title", "''"), "title"),
        (("description", &*longer), "description"),
        (("tags", &*many_tags), "tags"),
        (("tags", &*long), "tags"),
        (("tags", "'a\nb'"), "tags"),
        (("retry", "'{}'"), "retry"),
        (("retry", r#"'{"kind":"fixed","delay_ms":-1}'"#), "retry"),
        (("retry", r#"'{"kind":"list","delays_ms":[1,"2"]}'"#), "retry"),
        (("retry", r#"'{"kind":"exponential","base_ms":1,"max_ms":2,"jitter":7}'"#), "retry"),
        (far, "delay"),
        (past, "delay"),
        (("available_at", "'9999-06-01T00:00:00Z'"), "available_at"),
        (("event_time", "'1969-06-01T00:00:00Z'"), "event_time"),
        (("max_retries", "-1"), "max_retries"),
    ];
    for (column, expected) in bad {
        let columns = [("event_type", "'t'"), ("payload", "'{}'"), column];
        let said = publish_columns(&scene, &columns).await.expect_err(expected);
        assert!(said.contains("tidegate") && said.contains(expected), "{said:?} does not name {expected:?}");
    }
    assert_eq!(census(&store).await.events, 0);
}

pub(super) async fn the_payload_limit_is_the_running_programs(scene: Scene) {
    let limited = |limit: usize| StoreOptions { payload_limit: PayloadLimit(limit), ..StoreOptions::default() };
    let large = NewEvent::new("t", "1".repeat(200));
    for (limit, fits) in [(100, false), (200, true), (199, false)] {
        let store = scene.open_with(limited(limit)).await;
        let answer = publish_sql(&scene, &large).await;
        assert_eq!(answer.is_ok(), fits, "{limit}: {answer:?}");
        store.close().await;
    }
}

pub(super) async fn moments_beyond_reach_are_shown(scene: Scene) {
    let store = scene.open_on_database_time().await;
    let delayed = event("t").delay(seconds(3600));
    let ids = publish(&store, vec![delayed.clone(), delayed.clone(), delayed]).await;
    let moments: &[&str] = if scene.is_sqlite() {
        &["-9000000000000000000", "9000000000000000000"]
    } else {
        &["'-infinity'", "'4000-01-01 BC'", "'infinity'", "'200000-01-01'"]
    };
    let table = |name: &str| if scene.is_sqlite() { format!("tidegate_{name}") } else { format!("tidegate.{name}") };
    for moment in moments {
        let (queue, events) = (table("event_queue"), table("events"));
        let mut caller = scene.begin().await;
        caller
            .run_sql(&format!("UPDATE {queue} SET due_at = {moment}; UPDATE {events} SET time = {moment}"))
            .await
            .unwrap();
        caller.commit().await;
        for id in &ids {
            assert!(view(&store, *id).await.fact.time.is_some());
            let why = store.why(*id).await.unwrap();
            assert!(matches!(why, Why::DueAt { .. } | Why::NoLiveConsumer { .. }), "{why:?}");
        }
        assert_eq!(list(&store).await.len(), 3);
        assert_eq!(depth(&store).await.total(), 3);
        store.maintain().await.unwrap();
    }
    cancel(&store, ids[2]).await.unwrap();
    assert_eq!(ended(&view(&store, ids[2]).await), Some(End::Cancelled));
    assert_eq!(list(&store).await.iter().filter(|entry| entry.status == Status::Cancelled).count(), 1);
}
