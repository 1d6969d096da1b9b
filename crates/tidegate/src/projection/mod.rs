//! Projections: views that are made from the event log and follow it. See [`EventLogProjectionBuilder`].
//!
//! Owns how events become documents or SQL writes, and the loop that applies them; must not know how a database stores
//! the log or a position. Position and effects commit together, so each event counts once, whatever crashes.

mod builder;
mod core;
mod documents;
mod event;
mod handle;
mod kind;
mod run;
mod sql;

pub use tidegate_store::{
    Blocker, Document, Lag, Position, ProjectionFailure, ProjectionId, ProjectionState, ProjectionView,
};

pub use self::builder::{EventLogProjectionBuilder, FormBuilder};
pub use self::documents::Documents;
pub use self::event::{BoxError, FoldAnswer, LoggedEvent};
pub use self::handle::{Projection, ProjectionForm};
pub use self::sql::Sql;
pub use crate::queue::projections::{ProjectionStatus, VersionStatus};
