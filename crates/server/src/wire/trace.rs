//! The W3C trace context of a publisher, which the worker continues.

use http::HeaderMap;
use serde::Serialize;

/// A publisher's trace context.
#[derive(Debug, Serialize)]
pub(crate) struct Trace<'a> {
    pub(crate) traceparent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tracestate: Option<&'a str>,
}

/// The trace context of a request; `None` without a valid one.
pub(crate) fn of(headers: &HeaderMap) -> Option<Trace<'_>> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).filter(|text| text.len() <= 512);
    let traceparent = text("traceparent").filter(|text| is_traceparent(text))?;
    Some(Trace { traceparent, tracestate: text("tracestate") })
}

/// The event's attributes: the publisher's trace context, which the worker continues. `None` without a valid one.
pub(crate) fn attributes(headers: &HeaderMap) -> Option<String> {
    serde_json::to_string(&of(headers)?).ok()
}

/// Whether the text is a W3C `traceparent`: version, trace id, parent id, flags.
fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
    };
    parts.len() >= 4
        && hex(parts[0], 2)
        && parts[0] != "ff"
        && hex(parts[1], 32)
        && parts[1].bytes().any(|c| c != b'0')
        && hex(parts[2], 16)
        && parts[2].bytes().any(|c| c != b'0')
        && hex(parts[3], 2)
        && (parts.len() == 4 || parts[0] != "00")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_traceparents_are_kept() {
        assert!(is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert!(!is_traceparent(bad), "{bad}");
        }
    }
}
