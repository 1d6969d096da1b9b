//! The server over HTTP: real connections on loopback, on both databases where they could differ.

mod auth;
mod bad_input;
mod bodies;
mod clients;
mod database_down;
mod document;
mod examples;
mod hang_ups;
mod idempotency;
mod isolation;
mod lists;
mod long_poll;
mod looking_after;
mod metering;
mod oidc;
mod open_server;
mod other_nodes;
mod projections;
mod readiness;
mod reports;
mod scene;
mod slow;
mod telling;
mod two_nodes;
mod unknown_fields;
mod upgrade;
