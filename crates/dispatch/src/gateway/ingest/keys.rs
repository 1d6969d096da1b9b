//! The keys by which a repeat of an event is told from a new one.

use std::time::Duration;

use sha2::{Digest, Sha256};
use tidegate::FactKey;
use tidegate_core::cloud_event::CloudEvent;

/// How long keys are remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 3_600);

/// The keys of an event: its deduplicationId, and its source with its id.
pub(super) fn keys_of(event: &CloudEvent) -> Vec<FactKey> {
    if event.deduplication_id.is_none() && event.id.is_none() {
        return Vec::new();
    }
    let fingerprint = fingerprint(event);
    let named = event.deduplication_id.iter().map(|id| FactKey::deduplication(id, fingerprint, REMEMBERED));
    let identity = event.id.iter().map(|id| FactKey::identity(&event.source, id, fingerprint, REMEMBERED));
    named.chain(identity).collect()
}

/// A hash of what a repeat has in common with the first event. A producer that sends an event again may well have given it
/// another moment or another trace.
fn fingerprint(event: &CloudEvent) -> i64 {
    let mut hash = Sha256::new();
    let mut add = |text: Option<&[u8]>| match text {
        Some(text) => {
            hash.update((text.len() as u64 + 1).to_le_bytes());
            hash.update(text);
        }
        None => hash.update(0_u64.to_le_bytes()),
    };
    add(Some(event.event_type.as_bytes()));
    add(Some(event.source.as_bytes()));
    add(event.subject.as_deref().map(str::as_bytes));
    add(event.datacontenttype.as_deref().map(str::as_bytes));
    add(event.message_group.as_deref().map(str::as_bytes));
    add(event.data.as_ref().map(|data| &data.bytes[..]));
    let mut first = [0; 8];
    first.copy_from_slice(&hash.finalize()[..8]);
    i64::from_le_bytes(first)
}
