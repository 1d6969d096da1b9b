//! What the verbs stand on: the writer and the readers, transactions, errors, the schema, time.

pub(in crate::sqlite) mod catalogue;
pub(in crate::sqlite) mod checkpoint;
pub(in crate::sqlite) mod checkpoints;
pub(in crate::sqlite) mod errors;
pub(in crate::sqlite) mod families;
pub(in crate::sqlite) mod file_identity;
pub(in crate::sqlite) mod inbox;
pub(in crate::sqlite) mod jobs;
pub(in crate::sqlite) mod marks;
pub(in crate::sqlite) mod migrate;
pub(in crate::sqlite) mod own_calls;
pub(in crate::sqlite) mod plain_sql;
pub(in crate::sqlite) mod queues;
pub(in crate::sqlite) mod reader;
pub(in crate::sqlite) mod row;
pub(in crate::sqlite) mod shared;
pub(in crate::sqlite) mod store;
pub(in crate::sqlite) mod time;
pub(in crate::sqlite) mod tx;
pub(in crate::sqlite) mod waiting_claims;
pub(in crate::sqlite) mod writer;
