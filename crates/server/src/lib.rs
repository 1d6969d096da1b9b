//! The HTTP faces of Tidegate.
//!
//! Publishers post events, pull workers take them and report; queues, workers and dead letters are looked after. Handlers
//! are thin: they extract, convert, call the library once, and map its answer. Nothing here knows SQL, and nothing here
//! decides what a queue does.
//!
//! [`Server`] is made from [`Options`] and an [`EventQueue`](tidegate::EventQueue), and runs on a listener of the caller
//! until it is told to stop. Two servers can live in one process.

mod around;
mod auth;
mod bodies;
mod body;
mod cursor;
mod error;
mod extract;
mod handover;
mod misfit;
mod observe;
mod openapi;
mod options;
mod peer;
mod router;
mod routes;
mod server;
mod service;
mod tenant;
mod unknown;
mod waiting;
mod wire;

pub use auth::{KeyInfo, Keyring, NewKey, Scope, Scopes};
pub use error::{Code, ErrorBody};
pub use openapi::document as openapi;
pub use options::{AuthOptions, Limits, Metrics, OidcOptions, Options, RetentionOptions};
pub use server::{Handle, Hurry, Server, ServerError, listen};
pub use tidegate_store::SCHEMA_VERSION;
