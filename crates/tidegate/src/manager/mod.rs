//! The manager: claims events, runs every handler of their type, records the results, and ends, retries, snoozes or
//! releases the entry. Knows no SQL.
//!
//! [`run`] is its loop, which only does what others decide: [`plan`] what to claim and when, [`keeper`] which leases to
//! extend or give up, [`attempt`] what follows from the answers of handlers. [`chunk`] has attempts that are started
//! together, [`apply`] writes decisions, [`handler`] is what applications implement.

mod apply;
mod attempt;
mod builder;
mod chunk;
mod handle;
mod handler;
mod inner;
pub(crate) mod keeper;
mod meters;
mod options;
mod plan;
mod run;

pub use self::builder::ManagerBuilder;
pub use self::handle::{EventManager, ManagerHealth};
pub use self::handler::{Delivered, Event, EventHandler, Invocation, Middleware};
pub use self::options::ManagerOptions;
