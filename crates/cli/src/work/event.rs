//! A claimed event.

use serde::Deserialize;
use serde_json::value::RawValue;

/// The fields of a claimed event that a worker needs.
#[derive(Debug, Deserialize)]
pub(super) struct Event {
    pub(super) id: u64,
    pub(super) title: String,
    pub(super) tags: String,
    pub(super) attempts: u32,
    pub(super) lease: i64,
    pub(super) payload: Option<Box<RawValue>>,
    pub(super) traceparent: Option<String>,
}
