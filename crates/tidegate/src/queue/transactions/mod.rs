//! Publish and finalize in a transaction of the application, in three ways: [`caller`] joins a transaction that the
//! caller has begun, `writer` runs a closure on SQLite's writer, [`db_tx`] runs async work on either database.

pub(crate) mod caller;
pub(crate) mod db_tx;
pub(crate) mod receipt;
pub(crate) mod sql_value;
#[cfg(feature = "sqlite")]
pub(crate) mod writer;
