//! The W3C trace context in an event's attributes, by which a trace goes on from the publisher to the worker.

use serde::Deserialize;

/// A trace context: ids and flags are lower-case hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace's id, 32 digits.
    pub trace_id: String,
    /// The id of the parent span, 16 digits.
    pub parent_id: String,
    /// The trace flags, two digits.
    pub flags: String,
    /// The `tracestate`, passed on unchanged.
    pub tracestate: Option<String>,
}

impl TraceContext {
    /// Parses a `traceparent` of version 00; `None` when it is malformed or of another version.
    ///
    /// ```
    /// use tidegate_core::TraceContext;
    /// let context = TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
    /// assert_eq!(context.parent_id, "00f067aa0ba902b7");
    /// ```
    #[must_use]
    pub fn parse(traceparent: &str) -> Option<Self> {
        let mut parts = traceparent.split('-');
        let (version, trace_id, parent_id, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let fits = version == "00" && is_id(trace_id, 32) && is_id(parent_id, 16) && is_hex(flags, 2);
        let (trace_id, parent_id, flags) = (trace_id.into(), parent_id.into(), flags.into());
        (fits && parts.next().is_none()).then_some(Self { trace_id, parent_id, flags, tracestate: None })
    }

    /// The trace context in an event's attributes, a JSON object as text; `None` without a valid `traceparent`.
    #[must_use]
    pub fn of_attributes(attributes: Option<&str>) -> Option<Self> {
        #[derive(Deserialize)]
        struct Attributes {
            traceparent: Option<String>,
            tracestate: Option<String>,
        }
        // Most attributes have no trace context: do not parse those.
        let text = attributes.filter(|text| text.contains("traceparent"))?;
        let Attributes { traceparent, tracestate } = serde_json::from_str(text).ok()?;
        Some(Self { tracestate, ..Self::parse(&traceparent?)? })
    }

    /// The value of the `traceparent` header.
    #[must_use]
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-{}", self.trace_id, self.parent_id, self.flags)
    }

    /// The same trace with one of our spans as the parent.
    #[must_use]
    pub fn below(&self, span_id: u64) -> Self {
        Self { parent_id: format!("{:016x}", span_id.max(1)), ..self.clone() }
    }
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn is_id(text: &str, length: usize) -> bool {
    is_hex(text, length) && text.bytes().any(|byte| byte != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn traces_come_from_attributes_with_their_state() {
        let text = format!(r#"{{"traceparent": "{PARENT}", "tracestate": "a=1,b=2", "other": [1]}}"#);
        let context = TraceContext::of_attributes(Some(&text)).unwrap();
        assert_eq!((context.traceparent().as_str(), context.tracestate.as_deref()), (PARENT, Some("a=1,b=2")));
        let below = context.below(7);
        assert_eq!(below.traceparent(), "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-01");
        assert_eq!((below.tracestate, context.below(0).parent_id.as_str()), (context.tracestate, "0000000000000001"));
    }

    #[test]
    fn what_is_no_trace_is_none() {
        for bad in [
            "",
            "nonsense",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b70-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
        for attributes in [None, Some("{}"), Some("traceparent"), Some(r#"{"traceparent": 7}"#)] {
            assert_eq!(TraceContext::of_attributes(attributes), None);
        }
    }
}
