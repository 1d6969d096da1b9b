//! The values that cross the traits of [`api`](crate::api).

pub(crate) mod attempts;
pub(crate) mod dispatch;
pub(crate) mod entries;
pub(crate) mod fact_keys;
pub(crate) mod facts;
pub(crate) mod family;
pub(crate) mod handlers;
pub(crate) mod ingest;
pub(crate) mod keys;
pub(crate) mod lists;
pub(crate) mod options;
pub(crate) mod projections;
pub(crate) mod queues;
pub(crate) mod resources;
pub(crate) mod schedules;
pub(crate) mod upkeep;
pub(crate) mod workers;

pub use attempts::*;
pub use dispatch::*;
pub use entries::*;
pub use fact_keys::*;
pub use facts::*;
pub use family::*;
pub use handlers::*;
pub use ingest::*;
pub use keys::*;
pub use lists::*;
pub use options::*;
pub use projections::*;
pub use queues::*;
pub use resources::*;
pub use schedules::*;
pub use upkeep::*;
pub use workers::*;
