//! Traces by OTLP over HTTP, as JSON: the span of a request continues its caller's trace, the spans of an event that of
//! its publisher.
//!
//! A tracing layer hands spans to a task through a bounded channel as they close. When the collector is slow or
//! unreachable, spans are dropped and counted; requests never wait for it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::failure::Failure;

/// The most spans that wait for the collector.
const MAX_WAITING: usize = 8_192;
/// Spans per request to the collector.
const BATCH: usize = 512;
const EVERY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(5);
/// The span of a request, as the server names it.
const REQUEST: &str = "request";

/// Spans of events, as the library names them, with their kind in OTLP: 3 is a client, 4 a producer, 5 a consumer.
const OF_EVENTS: [(&str, u8); 5] = [("publish", 4), ("claim", 5), ("handler", 5), ("report", 5), ("webhook", 3)];

/// The tracing layer. It ignores spans that belong to neither a request nor an event.
#[derive(Debug)]
pub(crate) struct Traces {
    sender: mpsc::Sender<Value>,
    dropped: Arc<AtomicU64>,
}

/// The task that sends spans; [`end`](Self::end) has it send the rest.
#[derive(Debug)]
pub(crate) struct Sending {
    task: JoinHandle<()>,
    stop: mpsc::Sender<()>,
}

impl Sending {
    pub(crate) async fn end(self) {
        let _ = self.stop.send(()).await;
        let _ = tokio::time::timeout(PATIENCE * 2, self.task).await;
    }
}

/// A layer, and the task that sends its spans to `endpoint`.
pub(crate) fn start(endpoint: &str) -> Result<(Traces, Sending), Failure> {
    let http =
        reqwest::Client::builder().timeout(PATIENCE).redirect(reqwest::redirect::Policy::none()).no_proxy().build()?;
    let address = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
    let (sender, spans) = mpsc::channel(MAX_WAITING);
    let (stop, stopped) = mpsc::channel(1);
    let dropped = Arc::new(AtomicU64::new(0));
    let task = tokio::spawn(send_all(http, address, spans, stopped, Arc::clone(&dropped)));
    Ok((Traces { sender, dropped }, Sending { task, stop }))
}

async fn send_all(
    http: reqwest::Client,
    address: String,
    mut spans: mpsc::Receiver<Value>,
    mut stopped: mpsc::Receiver<()>,
    dropped: Arc<AtomicU64>,
) {
    let mut batch = Vec::new();
    let mut is_last = false;
    while !is_last {
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            _ = stopped.recv() => is_last = true,
        }
        while let Ok(span) = spans.try_recv() {
            batch.push(span);
            if batch.len() == BATCH {
                send(&http, &address, std::mem::take(&mut batch), &dropped).await;
            }
        }
        if !batch.is_empty() {
            send(&http, &address, std::mem::take(&mut batch), &dropped).await;
        }
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            tracing::warn!(lost, "spans were dropped: the collector refused them, was unreachable or too slow");
        }
    }
}

async fn send(http: &reqwest::Client, address: &str, spans: Vec<Value>, dropped: &AtomicU64) {
    let count = spans.len() as u64;
    let service = [text("service.name", "tidegate"), text("service.version", env!("CARGO_PKG_VERSION"))];
    let body = json!({ "resourceSpans": [{
        "resource": { "attributes": service },
        "scopeSpans": [{ "scope": { "name": "tidegate" }, "spans": spans }],
    }] });
    let sent = http.post(address).json(&body).send().await.and_then(reqwest::Response::error_for_status);
    if sent.is_err() {
        dropped.fetch_add(count, Ordering::Relaxed);
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// What is known of an open span.
#[derive(Clone, Debug, Default)]
struct OpenSpan {
    name: &'static str,
    started: u128,
    trace_id: String,
    parent_id: String,
    span_id: String,
    /// Further fields, which become attributes of an event's span.
    fields: Vec<(&'static str, String)>,
    method: String,
    route: String,
    traceparent: String,
    status: u64,
}

impl Visit for OpenSpan {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "method" => self.method = value.into(),
            "route" => self.route = value.into(),
            "traceparent" => self.traceparent = value.into(),
            "trace_id" => self.trace_id = value.into(),
            "parent_id" => self.parent_id = value.into(),
            "span_id" => self.span_id = value.into(),
            name => self.fields.push((name, value.into())),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "status" => self.status = value,
            name => self.fields.push((name, value.to_string())),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.push((field.name(), format!("{value:?}")));
    }
}

/// Whether this is a valid id of a trace or a span. For an invalid one the collector would refuse the whole batch.
fn is_id(text: &str, length: usize) -> bool {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == length && text.bytes().all(hex) && text.bytes().any(|byte| byte != b'0')
}

impl OpenSpan {
    /// The span in OTLP.
    fn to_otlp(&self, ended: u128, random: [u64; 3]) -> Value {
        match OF_EVENTS.iter().find(|(name, _)| *name == self.name) {
            Some((_, kind)) => self.event_to_otlp(ended, *kind),
            None => self.request_to_otlp(ended, random),
        }
    }

    /// The library has checked the ids already.
    fn event_to_otlp(&self, ended: u128, kind: u8) -> Value {
        let attributes: Vec<Value> =
            self.fields.iter().map(|(name, value)| text(&format!("tidegate.{name}"), value)).collect();
        json!({
            "traceId": self.trace_id,
            "spanId": self.span_id,
            "parentSpanId": self.parent_id,
            "name": self.name,
            "kind": kind,
            "startTimeUnixNano": self.started.to_string(),
            "endTimeUnixNano": ended.to_string(),
            "attributes": attributes,
            "status": { "code": 0 },
        })
    }

    fn request_to_otlp(&self, ended: u128, random: [u64; 3]) -> Value {
        let fresh = (format!("{:016x}{:016x}", random[0], random[1].max(1)), None);
        let mut parts = self.traceparent.split('-').skip(1);
        let (trace, parent) = match (parts.next(), parts.next()) {
            (Some(trace), Some(parent)) if is_id(trace, 32) && is_id(parent, 16) => {
                (trace.to_owned(), Some(parent.to_owned()))
            }
            _ => fresh,
        };
        let code = if self.status >= 500 { 2 } else { 0 };
        let mut span = json!({
            "traceId": trace,
            "spanId": format!("{:016x}", random[2].max(1)),
            "name": format!("{} {}", self.method, self.route),
            "kind": 2,
            "startTimeUnixNano": self.started.to_string(),
            "endTimeUnixNano": ended.to_string(),
            "attributes": [
                text("http.request.method", &self.method),
                text("http.route", &self.route),
                { "key": "http.response.status_code", "value": { "intValue": self.status.to_string() } },
            ],
            "status": { "code": code },
        });
        if let Some(parent) = parent {
            span["parentSpanId"] = parent.into();
        }
        span
    }
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Traces {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let name = attributes.metadata().name();
        let is_ours = attributes.metadata().target().starts_with("tidegate");
        if !is_ours || name != REQUEST && OF_EVENTS.iter().all(|(of_event, _)| *of_event != name) {
            return;
        }
        let mut open = OpenSpan { name, started: now(), ..OpenSpan::default() };
        attributes.record(&mut open);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(open);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(open) = span.extensions_mut().get_mut::<OpenSpan>()
        {
            values.record(open);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(open) = context.span(&id).and_then(|span| span.extensions_mut().remove::<OpenSpan>()) else { return };
        if self.sender.try_send(open.to_otlp(now(), rand::random())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_of_an_event_continues_its_publishers_trace() {
        let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let open = OpenSpan {
            name: "handler",
            started: 5,
            trace_id: trace.into(),
            parent_id: parent.into(),
            span_id: "00000000000000aa".into(),
            fields: vec![("entry", "7".into())],
            ..OpenSpan::default()
        };
        let span = open.to_otlp(9, [1, 2, 3]);
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&json!(trace), &json!(parent)));
        assert_eq!(
            (&span["spanId"], &span["name"], &span["kind"]),
            (&json!("00000000000000aa"), &json!("handler"), &json!(5))
        );
        assert_eq!(span["attributes"], json!([text("tidegate.entry", "7")]));
    }

    #[test]
    fn a_span_continues_its_callers_trace() {
        let open = OpenSpan {
            name: REQUEST,
            started: 5,
            method: "POST".into(),
            route: "/events".into(),
            traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into(),
            status: 503,
            ..OpenSpan::default()
        };
        let span = open.to_otlp(9, [1, 2, 3]);
        assert_eq!(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(span["parentSpanId"], "00f067aa0ba902b7");
        assert_eq!((&span["spanId"], &span["name"]), (&json!("0000000000000003"), &json!("POST /events")));
        assert_eq!((&span["endTimeUnixNano"], &span["status"]["code"]), (&json!("9"), &json!(2)));
        let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let (no_trace, no_parent) = ("0".repeat(32), "0".repeat(16));
        for bad in [
            "nonsense".to_owned(),
            format!("00-{}-{parent}-01", "g".repeat(32)),
            format!("00-{}-{parent}-01", trace.to_uppercase()),
            format!("00-{no_trace}-{parent}-01"),
            format!("00-{trace}-{no_parent}-01"),
        ] {
            let alone = OpenSpan { traceparent: bad.clone(), ..open.clone() }.to_otlp(9, [1, 2, 3]);
            assert_eq!(alone["traceId"], "00000000000000010000000000000002", "{bad}");
            assert!(alone.get("parentSpanId").is_none(), "{bad}");
        }
    }
}
