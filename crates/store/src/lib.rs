//! Where Tidegate keeps events.
//!
//! [`Store`] is the only door to a database: some twenty verbs, each a batch, each one transaction, each answering per
//! item. Two implementations stand behind it, [`sqlite::SqliteStore`] and [`postgres::PostgresStore`], and the cases in
//! [`conformance`] hold both to the same behaviour. Nothing here knows about handlers, HTTP or coalescing.

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod error;
mod failpoint;
pub mod handlers;
pub mod keys;
mod listing;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod projections;
pub mod schedules;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod standing;
pub mod store;
mod turns;
pub mod work;

pub use error::{Error, ErrorKind, Result};
pub use failpoint::failpoint;
pub use handlers::{HandlerHistory, HandlerState, HandlerStates};
pub use keys::{KeyStore, KeyView, NewKey};
pub use projections::*;
pub use schedules::{DueSchedules, ScheduleSpec, ScheduleView, Schedules, Tick};
pub use standing::Standing;
pub use store::*;
pub use work::*;
