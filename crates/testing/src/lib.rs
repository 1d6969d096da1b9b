//! Throw-away PostgreSQL servers for tests, benchmarks and the crash harness.
//!
//! This crate owns how such a server is found, started, killed and cleaned up. It knows nothing of Tidegate's own tables.
//! It is never shipped.
//!
//! A server lives in a temporary folder with a port of its own. A watchdog process holds a pipe to us; when the pipe
//! closes, for whatever reason, it stops the server and removes the folder. So not even a `kill -9` of the test leaves
//! one behind.

mod binaries;
mod pooler;
mod process;
mod proxy;
mod server;
mod shared;
mod standby;

pub use pooler::{PoolMode, Pooler};
pub use proxy::Proxy;
pub use server::{PgServer, PgSettings};
pub use shared::{POSTGRES_VARIABLE, Shared, drop_database, fresh_database, shared};
