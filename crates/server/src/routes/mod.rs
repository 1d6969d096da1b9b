//! One file per resource. Handlers extract, convert, call once, map; nothing is decided here.

pub(crate) mod docs;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod list;
pub(crate) mod projections;
pub(crate) mod publish;
pub(crate) mod queues;
pub(crate) mod reports;
pub(crate) mod subscribe;
pub(crate) mod workers;
