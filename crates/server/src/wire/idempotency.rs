//! Idempotency keys, and fingerprints of the requests under them.

use http::HeaderMap;
use sha2::{Digest, Sha256};

use super::new_event::NewEventBody;
use super::tags::Tags;
use crate::error::{ApiError, Result};

const HEADER: &str = "idempotency-key";
/// Prefix of the stored keys of events in a batch.
const OF_BATCH: &str = "batch:";
/// Prefix of the stored key of a single event whose own key begins with one of these prefixes.
const OF_SINGLE: &str = "single:";

/// The idempotency key of a request.
#[derive(Debug)]
pub(crate) struct Key(String);

impl Key {
    /// The key that a request has, if any. 400 when it is not valid.
    pub(crate) fn read(headers: &HeaderMap) -> Result<Option<Self>> {
        let Some(value) = headers.get(HEADER) else { return Ok(None) };
        let is_visible = |text: &&str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let text = value.to_str().ok().filter(|text| !text.is_empty() && text.len() <= 200).filter(is_visible);
        let bad = || ApiError::invalid(format!("{HEADER} must be 1 to 200 visible ASCII characters"));
        text.map(|text| Some(Self(text.to_owned()))).ok_or_else(bad)
    }

    /// The stored key of a single event, which never equals the key of an event in a batch.
    pub(crate) fn of_single(self) -> String {
        single_key(self.0)
    }

    /// The stored key of the event at this index of a batch.
    pub(crate) fn of_batch(&self, index: usize) -> String {
        format!("{OF_BATCH}{index}:{}", self.0)
    }
}

fn single_key(key: String) -> String {
    if key.starts_with(OF_BATCH) || key.starts_with(OF_SINGLE) { format!("{OF_SINGLE}{key}") } else { key }
}

/// A hash of the request, by which another request under the same key is noticed. It covers the fields as they were
/// sent, without the queue's defaults, which may change between a request and its repeat.
pub(crate) fn fingerprint(body: &NewEventBody) -> i64 {
    let mut hash = Sha256::new();
    let mut add = |bytes: Option<&[u8]>| {
        // An absent field differs from an empty one.
        hash.update(bytes.map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
        hash.update(bytes.unwrap_or_default());
    };
    let NewEventBody { title, description, tags, payload, max_retries, queue, client, .. } = body;
    let NewEventBody { delay_seconds, priority, deduplication_id, message_group, event_type, retry, .. } = body;
    for text in [title, description, queue, client, deduplication_id, message_group, event_type] {
        add(text.as_ref().map(String::as_bytes));
    }
    add(payload.as_ref().map(|payload| payload.get().as_bytes()));
    let tags = tags.as_ref().map(|tags| match tags {
        Tags::Text(text) => text.clone(),
        Tags::List(list) => list.join(","),
    });
    add(tags.as_ref().map(String::as_bytes));
    add(max_retries.map(u32::to_le_bytes).as_ref().map(|bytes| &bytes[..]));
    add(delay_seconds.map(f64::to_le_bytes).as_ref().map(|bytes| &bytes[..]));
    add(priority.map(i16::to_le_bytes).as_ref().map(|bytes| &bytes[..]));
    add(retry.as_ref().map(|retry| format!("{retry:?}")).as_ref().map(String::as_bytes));
    let digest = hash.finalize();
    let mut first = [0_u8; 8];
    first.copy_from_slice(&digest[..8]);
    i64::from_le_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_single_events_and_of_batches_never_meet() {
        let singles =
            ["abc", "abc/0", "batch:0:abc", "single:batch:0:abc", "single:abc"].map(|key| single_key(key.into()));
        let mut stored: Vec<&String> = singles.iter().collect();
        stored.sort_unstable();
        stored.dedup();
        assert_eq!(stored.len(), singles.len());
        assert!(singles.iter().all(|key| !key.starts_with(OF_BATCH)));
    }

    #[test]
    fn the_fingerprint_sees_every_field() {
        let read = |text: &str| fingerprint(&serde_json::from_str::<NewEventBody>(text).unwrap());
        let base = r#"{"title":"a","tags":"x","payload":{"a": 1}}"#;
        assert_eq!(
            read(base),
            read(r#" { "tags":["x"], "title":"a", "payload":{"a": 1} } "#),
            "order and white space do not matter"
        );
        let fields = [
            r#""description":"d""#,
            r#""description":"""#,
            r#""max_retries":3"#,
            r#""queue":"default""#,
            r#""client":"default""#,
            r#""delay_seconds":0"#,
            r#""delay_seconds":1"#,
            r#""priority":0"#,
            r#""deduplication_id":"k""#,
            r#""message_group":"k""#,
            r#""type":"event""#,
            r#""retry":{"kind":"fixed","delay_ms":1}"#,
        ];
        let others = fields.map(|field| format!("{},{field}}}", &base[..base.len() - 1]));
        let changed = [base.replace("\"a\",", "\"b\","), base.replace('x', "y"), base.replace(": 1", ":1")];
        let mut seen: Vec<i64> = others.iter().chain(&changed).map(|text| read(text)).chain([read(base)]).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), fields.len() + changed.len() + 1);
    }
}
