//! Batchers: [`batcher`] is the mechanism, [`verbs`] has one batcher per verb of the store, [`claims`] one per set of
//! claim parameters. [`shared_read`] is one read for many callers. Must not know handlers or projections.

pub(crate) mod activity;
pub mod batcher;
pub(crate) mod claim_key;
pub(crate) mod claims;
mod flush;
pub(crate) mod limits;
pub(crate) mod shared_read;
pub(crate) mod verbs;
pub(crate) mod waiting;
