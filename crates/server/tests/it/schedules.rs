//! Schedules over HTTP: put, list, show, pause, resume, run, delete; and that the server publishes what is due.

use std::time::Instant;

use reqwest::Method;
use serde_json::{Value, json};
use tidegate::{NewEvent, Schedule};
use tidegate_server::{Keyring, Options, Scope};

use crate::scene::{PATIENCE, Scene, on_both, send};

on_both!(
    a_schedule_goes_through_its_life,
    every_option_of_the_event_comes_back,
    what_is_wrong_with_a_schedule_is_named,
    the_server_publishes_what_is_due,
    a_schedule_of_the_library_is_shown_and_put_back,
);

fn nightly() -> Value {
    json!({
        "cron": "30 2 * * MON-FRI", "timezone": "Europe/Berlin", "missed": "all",
        "event": { "type": "report.wanted", "tags": "reports", "title": "Nightly report", "payload": { "kind": "nightly" } },
    })
}

async fn a_schedule_goes_through_its_life(scene: Scene) {
    let path = "/schedules/nightly%20report";
    scene.get(path).await.refused(404, "not_found");
    let made = scene.put(path, nightly()).await.expect(200);
    assert_eq!((&made["name"], &made["paused"], &made["ticks"]), (&json!("nightly report"), &json!(false), &json!(0)));
    assert_eq!(made["event"]["tags"], json!(["reports"]), "{made}");
    assert_eq!(scene.put(path, nightly()).await.expect(200), made, "again, it changes nothing");
    assert_eq!(scene.get("/schedules").await.expect(200)["schedules"], json!([made]));
    let paused = scene.post(&format!("{path}/pause"), json!({})).await.expect(200);
    assert_eq!(paused["paused"], true);
    let run = scene.post(&format!("{path}/run"), json!({})).await.expect(200);
    let taken = scene.get("/events/subscribe?tags=reports&worker_id=w").await.expect(200);
    assert_eq!(
        (&taken["id"], &taken["payload"]),
        (&run["id"], &json!({ "kind": "nightly" })),
        "run now, though paused"
    );
    let after = scene.get(path).await.expect(200);
    assert_eq!((&after["next_at"], &after["ticks"]), (&paused["next_at"], &json!(0)), "its ticks go on as before");
    assert_eq!(scene.post(&format!("{path}/resume"), json!({})).await.expect(200)["paused"], false);
    send(scene.request(Method::DELETE, path)).await.expect(204);
    for verb in ["pause", "resume", "run"] {
        scene.post(&format!("{path}/{verb}"), json!({})).await.refused(404, "not_found");
    }
    send(scene.request(Method::DELETE, path)).await.refused(404, "not_found");
    scene.close().await;
}

async fn every_option_of_the_event_comes_back(scene: Scene) {
    scene.put("/queues/mail", json!({})).await.expect(200);
    let event = json!({
        "type": "t", "payload": [1, 2.50, "x"], "content_type": "application/json", "title": "a", "description": "b",
        "tags": ["x", "y"], "queue": "mail", "source": "s", "subject": "o:1", "external_id": "e", "correlation_id": "c",
        "causation_id": "d", "attributes": { "region": "eu" }, "priority": -5, "delay_seconds": 60.0,
        "message_group": "g", "rank": 3, "keep_place": true, "deduplication_id": "k",
        "deduplication_mode": "replace_waiting", "deduplication_seconds": 3600.0, "expires_after_seconds": 7200.0,
        "max_retries": 7, "retries_of_queue": false, "exhausted_as": "COMPLETED_WITH_ERRORS",
        "retry": { "kind": "fixed", "delay_ms": 1000 },
    });
    let made = scene.put("/schedules/a", json!({ "cron": "@daily", "event": event })).await.expect(200);
    assert_eq!(made["event"], event);
    assert_eq!((&made["timezone"], &made["missed"]), (&json!("UTC"), &json!("once")), "{made}");
    let again = scene.put("/schedules/a", json!({ "cron": "@daily", "event": made["event"] })).await.expect(200);
    assert_eq!(again, made, "what is shown can be put");
    let bytes = json!({ "type": "t", "payload_base64": "/wA=", "expires_at": "2090-01-01T00:00:00Z" });
    let made = scene.put("/schedules/b", json!({ "cron": "@daily", "event": bytes })).await.expect(200);
    assert_eq!((&made["event"]["payload_base64"], &made["event"]["payload"]), (&json!("/wA="), &Value::Null));
    assert_eq!(made["event"]["expires_at"], "2090-01-01T00:00:00Z");
    scene.close().await;
}

async fn what_is_wrong_with_a_schedule_is_named(scene: Scene) {
    let event = json!({ "type": "t" });
    let cases = [
        (json!({ "cron": "61 * * * *", "event": event }), "cron expression"),
        (json!({ "cron": "@daily", "timezone": "Nowhere", "event": event }), "time zone"),
        (json!({ "cron": "@daily", "missed": "never", "event": event }), "once"),
        (json!({ "event": event }), "cron"),
        (json!({ "cron": "@daily" }), "event"),
        (json!({ "cron": "@daily", "event": { "type": "" } }), "event type"),
        (json!({ "cron": "@daily", "event": { "type": "t", "delay": 3 } }), "delay_seconds"),
        (json!({ "cron": "@daily", "event": { "type": "t", "delay_seconds": -1 } }), "event.delay_seconds"),
        (json!({ "cron": "@daily", "event": { "type": "t", "payload_base64": "%" } }), "event.payload_base64"),
        (json!({ "cron": "@daily", "event": { "type": "t", "client": "x" } }), "event.client"),
        (json!({ "cron": "@daily", "event": { "type": "t", "queue": "a b" } }), "event.queue"),
        (json!({ "cron": "@daily", "event": { "type": "t", "tags": "" } }), "event.tags"),
    ];
    for (body, why) in cases {
        let said = scene.put("/schedules/a", body.clone()).await.refused(400, "invalid_request");
        assert!(said.contains(why), "{body}: {said}");
    }
    let elsewhere = json!({ "cron": "@daily", "event": { "type": "t", "queue": "nowhere" } });
    let said = scene.put("/schedules/a", elsewhere).await.refused(404, "not_found");
    assert!(said.contains("nowhere"), "{said}");
    assert_eq!(scene.get("/schedules").await.expect(200)["schedules"], json!([]), "nothing was written");
    scene.close().await;
}

async fn the_server_publishes_what_is_due(scene: Scene) {
    let every_second = json!({ "cron": "* * * * * *", "event": { "type": "t", "title": "tick", "tags": "ticks" } });
    scene.put("/schedules/seconds", every_second).await.expect(200);
    let taken = scene.take("ticks", "w:1").await;
    assert_eq!(taken["title"], "tick");
    let started = Instant::now();
    while scene.get("/schedules/seconds").await.expect(200)["last_event_id"].is_null() {
        assert!(started.elapsed() < PATIENCE);
    }
    scene.close().await;
}

async fn a_schedule_of_the_library_is_shown_and_put_back(scene: Scene) {
    let made = Schedule::new("own", "@daily", NewEvent::new("t", "{}").max_attempts(20));
    scene.queue.schedules().put(made).await.unwrap();
    let before = scene.queue.schedules().get("own").await.unwrap().unwrap();
    let shown = scene.get("/schedules/own").await.expect(200);
    assert_eq!(
        (&shown["event"]["max_retries"], &shown["event"]["exhausted_as"]),
        (&json!(19), &json!("COMPLETED_WITH_ERRORS"))
    );
    let said = ["cron", "timezone", "missed", "event"].map(|name| (name.to_owned(), shown[name].clone()));
    scene.put("/schedules/own", Value::Object(said.into_iter().collect())).await.expect(200);
    assert_eq!(scene.queue.schedules().get("own").await.unwrap().unwrap(), before);
    scene.close().await;
}

/// With schedules switched off, nothing is published: a later run of everything that is due finds it all.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_need_not_run_schedules() {
    let mut options = Options::default();
    options.run_schedules = false;
    let scene = Scene::sqlite_with(options).await;
    let every_second = json!({ "cron": "* * * * * *", "missed": "once", "event": { "type": "t", "tags": "ticks" } });
    let first = scene.put("/schedules/seconds", every_second).await.expect(200);
    let due: tidegate::Timestamp = first["next_at"].as_str().unwrap().parse().unwrap();
    let started = Instant::now();
    while tidegate::Timestamp::now() <= due {
        assert!(started.elapsed() < PATIENCE);
        tokio::task::yield_now().await;
    }
    let published = tidegate::Scheduler::new(scene.queue.clone()).run_due().await.unwrap();
    assert_eq!(published, 1, "nobody was faster");
    scene.close().await;
}

mod with_keys {
    use super::*;

    on_both! {
        with keys:
        schedules_are_for_unscoped_callers,
    }

    async fn schedules_are_for_unscoped_callers(mut scene: Scene) {
        let keys = Keyring::new(scene.queue.clone());
        let client = tidegate::Tsid::from_i64(1);
        scene.with_key(keys.create("one", &[Scope::Admin], Some(client)).await.unwrap().secret);
        scene.get("/schedules").await.refused(403, "forbidden");
        scene.put("/schedules/a", nightly()).await.refused(403, "forbidden");
        scene.post("/schedules/a/run", json!({})).await.refused(403, "forbidden");
        scene.with_key(keys.create("reader", &[Scope::Read], None).await.unwrap().secret);
        scene.get("/schedules").await.expect(200);
        scene.put("/schedules/a", nightly()).await.refused(403, "forbidden");
        scene.with_key(keys.create("manager", &[Scope::Manage], None).await.unwrap().secret);
        let body = json!({ "cron": "@daily", "event": { "type": "t", "client": client.to_string(), "queue": "mail" } });
        scene.put("/schedules/a", body.clone()).await.refused(404, "not_found");
        scene.put(&format!("/queues/mail?client={client}"), json!({})).await.expect(200);
        let made = scene.put("/schedules/a", body).await.expect(200);
        assert_eq!((&made["event"]["client"], &made["event"]["queue"]), (&json!(client.to_string()), &json!("mail")));
        scene.close().await;
    }
}
