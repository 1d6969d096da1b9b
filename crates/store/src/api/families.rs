//! The families of a store.

use std::sync::Arc;

use crate::api::Store;
use crate::values::Family;

/// A database that keeps several families of entries.
pub trait Families {
    /// The store's verbs over the tables of one family. What is not a family's own (the heartbeat, upkeep, keys,
    /// schedules, projections) is the same through every handle.
    fn family(&self, family: Family) -> Arc<dyn Store>;
}
