//! Throw-away PostgreSQL servers for tests, benchmarks and the crash harness.
//!
//! This crate owns how such a server is found, started, killed and cleaned up. It must not know Tidegate's tables, and
//! is never shipped. A server has its own temporary folder and port. A watchdog process reads from a pipe to us; when
//! the pipe closes for any reason, it stops the server and removes the folder, so that even a `kill -9` of the test
//! leaves nothing behind.

mod binaries;
mod execute;
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
