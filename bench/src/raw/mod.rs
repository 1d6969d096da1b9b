//! The baselines: bare loops of good plain SQL that write the same rows. Must not use any code of Tidegate.

pub(crate) mod postgres;
pub(crate) mod sqlite;
pub(crate) mod sqlite_work;
