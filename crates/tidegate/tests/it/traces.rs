//! What happens to an event is part of its publisher's trace.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tidegate::{AttemptOutcome, Delivered, Event, EventManager, Holder, NewEvent, Report};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::databases::Place;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// The fields of a span, as text.
#[derive(Debug, Default, Clone)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

/// Spans in the order in which they began.
#[derive(Debug, Default, Clone)]
struct Spans(Arc<Mutex<Vec<(&'static str, Fields)>>>);

impl Spans {
    fn take(&self) -> Vec<(&'static str, Fields)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl<S: tracing::Subscriber> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        self.0.lock().unwrap().push((attributes.metadata().name(), fields));
    }
}

#[derive(Debug, serde::Deserialize)]
struct Traced;

impl Event for Traced {
    const TYPE: &'static str = "traced";
}

fn traced() -> NewEvent {
    let mut event = NewEvent::new("traced", "null");
    event.attributes = Some(format!(r#"{{"traceparent": "00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}}"#));
    event
}

// One thread, so that all tasks see the subscriber of this thread.
#[tokio::test(flavor = "current_thread")]
async fn publish_claim_handler_and_report_continue_the_publishers_trace() {
    let spans = Spans::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
    let place = Place::sqlite();
    let queue = place.open().await;
    let heard = Arc::new(Mutex::new(None));
    let told = Arc::clone(&heard);
    let manager = EventManager::builder(&queue)
        .on("hears", move |event: Delivered<Traced>| {
            *told.lock().unwrap() = event.trace();
            async { Ok::<_, String>(()) }
        })
        .build()
        .unwrap();
    queue.publish(NewEvent::new("traced", "null")).await.unwrap();
    manager.drain().await.unwrap();
    assert!(spans.take().iter().all(|(_, fields)| !fields.0.contains_key("trace_id")), "no trace, no spans");

    let id = queue.publish(traced()).await.unwrap().id;
    manager.drain().await.unwrap();
    let many = queue.publish_many(vec![traced(), traced()]).await;
    assert!(many.iter().all(Result::is_ok));
    let worker = queue.consumer().worker("w").unwrap();
    let held = worker.poll().await.unwrap().unwrap().hand_over();
    let holder = Holder { id: held.id, worker: "w".into(), lease: Some(held.token) };
    let report = Report {
        holder,
        outcome: AttemptOutcome::Completed,
        status_code: None,
        execution_time_ms: None,
        error_message: None,
    };
    queue.report(report.clone()).await.unwrap();
    queue.report(report).await.unwrap();

    let seen = spans.take();
    let ours: Vec<_> = seen.iter().filter(|(_, fields)| fields.0.contains_key("trace_id")).collect();
    let names: Vec<&str> = ours.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["publish", "claim", "handler", "publish", "publish", "claim", "report"], "a repeat has no span");
    let mut ids = Vec::new();
    for (name, fields) in &ours {
        assert_eq!((fields.0["trace_id"].as_str(), fields.0["parent_id"].as_str()), (TRACE, PARENT), "{name}");
        ids.push(fields.0["span_id"].clone());
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), ours.len(), "each has an id of its own");
    assert_eq!(ours[2].1.0["entry"], id.to_string());
    assert_eq!(ours[2].1.0["handler"], "hears");
    let trace = heard.lock().unwrap().clone().expect("the handler can hand the trace on");
    assert_eq!(trace.traceparent(), format!("00-{TRACE}-{PARENT}-01"));
    assert_eq!(trace.tracestate.as_deref(), Some("vendor=1"));
    queue.close().await;
}
