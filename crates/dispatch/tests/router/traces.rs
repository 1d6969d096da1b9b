//! Attempts are part of the publisher's trace, and webhooks carry it on.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tidegate_core::cloud_event::CloudEvent;
use tidegate_dispatch::NewFact;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::scene::{Scene, receiver};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

#[derive(Debug, Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

/// The spans of attempts.
#[derive(Debug, Default, Clone)]
struct Spans(Arc<Mutex<Vec<Fields>>>);

impl<S: tracing::Subscriber> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        if attributes.metadata().name() == "webhook" {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            self.0.lock().unwrap().push(fields);
        }
    }
}

/// Publishes an event with a trace, and returns the `traceparent` of each of its webhooks, the first of which fails.
async fn traceparents(scene: &Scene) -> Vec<String> {
    let (receiver, log) = receiver(|_, before| if before == 0 { 500 } else { 200 }).await;
    let node = scene.node().await;
    let soon = Some(tidegate_dispatch::RetryStrategy::Fixed { delay_seconds: 0 });
    node.subscribe("s", &receiver, |body| body.retry_strategy = soon).await;
    let body = json!({
        "specversion": "1.0", "id": "1", "type": "t", "source": "/s", "traceparent": format!("00-{TRACE}-{PARENT}-01"),
        "tracestate": "vendor=1",
    });
    let event = CloudEvent::from_structured(&body.to_string().into()).unwrap();
    let event = node.gateway.ingest(NewFact { event, client: None }).await.unwrap().view;
    node.until_all_are(&[event.id], "COMPLETED").await;
    let taken = log.taken();
    assert!(taken.iter().all(|one| one.headers["tracestate"] == "vendor=1"));
    assert!(taken.iter().all(|one| one.headers.get_all("traceparent").iter().count() == 1));
    node.stop().await;
    taken.iter().map(|one| one.headers["traceparent"].to_str().unwrap().to_owned()).collect()
}

// One thread, so that all tasks see the subscriber of this thread.
#[tokio::test(flavor = "current_thread")]
async fn each_attempt_is_a_span_that_its_webhook_carries_on() {
    let scene = Scene::sqlite();
    let spans = Spans::default();
    let seen = {
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
        traceparents(&scene).await
    };
    let spans = spans.0.lock().unwrap();
    let of = |name: &str| spans.iter().map(|fields| fields.0[name].clone()).collect::<Vec<_>>();
    assert_eq!((of("trace_id"), of("parent_id")), (vec![TRACE.to_owned(); 2], vec![PARENT.to_owned(); 2]));
    assert_eq!(of("attempt"), ["1", "2"]);
    let below: Vec<String> = of("span_id").iter().map(|span| format!("00-{TRACE}-{span}-01")).collect();
    assert_eq!(seen, below);
    assert_ne!(below[0], below[1], "each attempt has a span of its own");
}

#[tokio::test(flavor = "current_thread")]
async fn a_webhook_carries_the_publishers_context_where_nobody_listens() {
    let scene = Scene::sqlite();
    assert_eq!(traceparents(&scene).await, vec![format!("00-{TRACE}-{PARENT}-01"); 2]);
}
