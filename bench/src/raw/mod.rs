//! The baselines: bare loops of the best plain SQL that write the same rows. No line of Tidegate runs here.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod sqlite_work;
