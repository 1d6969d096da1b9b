//! What stays the same while the store is open.

use crate::outdated::Outdated;
use crate::sqlite::engine::families::PerFamily;
use crate::sqlite::engine::time::Time;
use crate::sqlite::statements::Sql;
use crate::values::{Exhausted, StoreOptions};

/// What stays the same while the store is open.
#[derive(Debug)]
pub(in crate::sqlite) struct Shared {
    pub(in crate::sqlite) options: StoreOptions,
    pub(in crate::sqlite) sql: PerFamily<Sql>,
    pub(in crate::sqlite) time: Time,
    pub(in crate::sqlite) exhausted: PerFamily<Exhausted>,
    pub(in crate::sqlite) outdated: Outdated,
}
