//! Observability of requests: a span that continues the caller's trace, a counter and a histogram.

use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::response::Response;
use http::Method;
use metrics::{counter, histogram};
use tracing::Span;

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Seen {
    started: Instant,
    /// The route's pattern, not the path: otherwise every id would be a time series of its own.
    pub(crate) route: String,
    method: &'static str,
    pub(crate) span: Span,
}

impl Seen {
    pub(crate) fn new(request: &Request) -> Self {
        let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
        let method = method_label(request.method());
        let traceparent = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
        let traceparent = traceparent.unwrap_or_default();
        let span = tracing::info_span!("request", method, route, traceparent, status = tracing::field::Empty);
        Self { started: Instant::now(), route, method, span }
    }

    /// Records the answer in the span and the metrics.
    pub(crate) fn answered(self, response: &Response) {
        let (Self { route, method, span, .. }, took) = (&self, self.started.elapsed());
        let status = response.status().as_u16();
        span.record("status", status);
        span.in_scope(|| tracing::debug!(status, ?took, "answered"));
        let status = status.to_string();
        counter!("tidegate_http_requests_total", "method" => *method, "route" => route.clone(), "status" => status)
            .increment(1);
        histogram!("tidegate_http_seconds", "route" => self.route).record(took.as_secs_f64());
    }
}

/// Callers can invent any number of methods, so all but the standard ones share one label.
fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        "TRACE" => "TRACE",
        "CONNECT" => "CONNECT",
        _ => "OTHER",
    }
}
