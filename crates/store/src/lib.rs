//! Storage for Tidegate: facts, entries, the log, and what belongs to them.
//!
//! [`Store`] is the only interface to a database: some twenty verbs, each a batch in one transaction with one answer
//! per item. [`sqlite::SqliteStore`] and [`postgres::PostgresStore`] implement it, and the cases in [`conformance`]
//! hold both to the same behaviour. Nothing here knows about handlers, HTTP or batching of single calls.

pub mod api;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod error;
mod failpoint;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod finding;
mod list_gate;
mod listing;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod outdated;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod resources;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod values;
mod waiting_claim;

pub use api::*;
pub use error::{Error, ErrorKind, Result};
pub use failpoint::failpoint;
pub use values::*;
pub use waiting_claim::WaitingClaim;
