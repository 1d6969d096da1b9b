//! What the verbs stand on: connections and transactions, errors, the schema, and what a process remembers about queues.

pub(in crate::postgres) mod bisect;
pub(in crate::postgres) mod catalogue;
pub(in crate::postgres) mod claim_sizes;
pub(in crate::postgres) mod connection;
pub(in crate::postgres) mod contention;
pub(in crate::postgres) mod errors;
pub(in crate::postgres) mod frames;
pub(in crate::postgres) mod headroom;
pub(in crate::postgres) mod health;
pub(in crate::postgres) mod indexes;
pub(in crate::postgres) mod lane_use;
pub(in crate::postgres) mod log_order;
pub(in crate::postgres) mod marks;
pub(in crate::postgres) mod migrate;
pub(in crate::postgres) mod notify;
pub(in crate::postgres) mod options;
pub(in crate::postgres) mod patience;
pub(in crate::postgres) mod row;
pub(in crate::postgres) mod store;
pub(in crate::postgres) mod sweep;
pub(in crate::postgres) mod tag_marks;
pub(in crate::postgres) mod tls;
pub(in crate::postgres) mod turns;
pub(in crate::postgres) mod url;
