//! What a store is opened with.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tidegate_core::{IdSpace, PayloadLimit, Timestamp};

use crate::error::{Error, ErrorKind, Result};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::values::Family;

/// The version of the schema that this program writes.
pub const SCHEMA_VERSION: i32 = 20;

/// The error for a schema that this program is too old for; `None` if it can run on it.
pub(crate) fn too_old(schema: &str, version: i32, oldest_compatible: i32) -> Option<Error> {
    (oldest_compatible > SCHEMA_VERSION).then(|| {
        let text = format!(
            "the schema {schema} has version {version} and needs a program of version {oldest_compatible} or later; \
             this one is {SCHEMA_VERSION}: upgrade it"
        );
        Error::new(ErrorKind::Schema, text)
    })
}

/// The kinds of databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// SQLite, one file on one machine.
    Sqlite,
    /// PostgreSQL, many nodes.
    Postgres,
}

/// The clock that a store goes by.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The database's own clock.
    #[default]
    Database,
    /// A clock that tests set.
    Manual(ManualClock),
}

impl Clock {
    /// The moment of a manual clock; `None` when the database's clock is used.
    #[must_use]
    pub fn now(&self) -> Option<Timestamp> {
        match self {
            Self::Database => None,
            Self::Manual(clock) => Some(clock.now()),
        }
    }
}

/// A clock that only moves when a test moves it.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that shows this moment (whole microseconds).
    #[must_use]
    pub fn at(start: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(start.as_microsecond())))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        self.0.fetch_add(micros, Ordering::SeqCst);
    }

    /// The moment that the clock shows.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_microsecond(self.0.load(Ordering::SeqCst)).unwrap_or(Timestamp::MAX)
    }
}

/// Settings that both databases share.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The schema (Postgres), or the table prefix without its underscore (SQLite), of everything that the store keeps.
    pub namespace: String,
    /// The numbers that entry ids are drawn from; fixed at the first start.
    pub ids: IdSpace,
    /// The largest payload that may be published.
    pub payload_limit: PayloadLimit,
    /// Whether to migrate an older schema at start. If not, an older schema, or one that lacks indexes, is an error.
    pub migrate: bool,
    /// The clock to go by.
    pub clock: Clock,
    /// How long a write waits for a lock held by another connection before it fails with `Busy`.
    pub lock_timeout: Duration,
    /// From what length on a gap in the store's heartbeat counts as an outage, during which no lease expires.
    pub outage_after: Duration,
    /// The most lanes (pairs of an event type and a priority) of a queue. A publish that needs one more is refused.
    pub max_lanes: usize,
    /// The most lanes of a client's jobs: one for each subscription that jobs are made for.
    pub max_job_lanes: usize,
    /// How long a list may take before it is stopped.
    pub list_timeout: Duration,
    /// How many lists run at once. A few more wait; further ones are refused as `Busy`.
    pub max_lists: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            namespace: "tidegate".into(),
            ids: IdSpace::default(),
            payload_limit: PayloadLimit::default(),
            migrate: true,
            clock: Clock::Database,
            lock_timeout: Duration::from_secs(5),
            outage_after: Duration::from_secs(5),
            max_lanes: 4096,
            max_job_lanes: 65_536,
            list_timeout: Duration::from_secs(2),
            max_lists: 4,
        }
    }
}

impl StoreOptions {
    /// The most lanes of a queue of this family.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn lanes_of(&self, family: Family) -> usize {
        match family {
            Family::Entries => self.max_lanes,
            Family::Jobs => self.max_job_lanes,
        }
    }

    /// Checks what can be checked without a database.
    ///
    /// # Errors
    /// `Invalid` when the namespace is not a plain lower-case identifier or the id space is not valid.
    pub fn check(&self) -> Result<()> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let name = &self.namespace;
        if name.is_empty()
            || name.len() > 40
            || !name.chars().all(plain)
            || !name.starts_with(|c: char| c.is_alphabetic())
        {
            return Err(Error::invalid(format!(
                "{name:?} cannot be a namespace: use 1 to 40 of a-z, 0-9 and _, starting with a letter"
            )));
        }
        IdSpace::new(self.ids.offset, self.ids.step)?;
        Ok(())
    }
}
