//! The HTTP API of Tidegate: publishing, claiming and reporting by pull workers, and management of queues, workers,
//! dead letters and projections.
//!
//! Handlers are thin: they extract, convert, call the library once, and map its answer. Nothing here knows SQL or
//! decides what happens to an entry.
//!
//! [`Server`] is made from [`Options`] and an [`EventQueue`](tidegate::EventQueue), and serves on a listener that the
//! caller provides until it is told to stop. Two servers can live in one process.

mod access;
mod auth;
mod body;
mod body_budget;
mod callers;
mod claims;
mod cursor;
mod docs;
mod error;
mod extract;
mod handover;
mod known_queues;
mod middleware;
mod observe;
mod openapi;
mod options;
mod parameters;
mod peer;
mod percent;
mod router;
mod routes;
mod scope;
mod server;
mod service;
mod unknown_fields;
mod upkeep;
mod waiters;
mod wire;
mod wrong_type;

pub use auth::{KeyInfo, Keyring, NewKey};
pub use error::{Code, ErrorBody};
pub use openapi::document as openapi;
pub use options::{AuthOptions, Limits, Metrics, OidcOptions, Options, RetentionOptions};
pub use scope::{Scope, Scopes};
pub use server::{Handle, Hurry, Server, ServerError, listen};
pub use tidegate::SCHEMA_VERSION;
