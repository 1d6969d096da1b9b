//! How a queue is opened: options, the builder, and reading a database's address.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::name::check_text;
use tidegate_core::{IdSpace, PayloadLimit, QueueName, RetryPolicy};
use tidegate_store::{Clock, Store, StoreOptions};

use crate::coalescer::LaneLimits;
use crate::error::{Error, Result};
use crate::queue::EventQueue;
use crate::shared::Native;

/// Settings of an [`EventQueue`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// The queue that is published into and polled; `default` by default.
    pub queue: QueueName,
    /// The name this process claims under; `host:pid` by default.
    pub worker: String,
    /// How long a claim holds; 60 s by default.
    pub lease: Duration,
    /// When a failed attempt is tried again; 3 s doubling to 10 min with jitter by default.
    pub retry: RetryPolicy,
    /// How often a waiting consumer looks by itself, should a wake-up be lost; 500 ms by default.
    pub poll_interval: Duration,
    /// How often upkeep runs; 1 s by default, at most half of the store's `outage_after`.
    pub upkeep_interval: Duration,
    /// How long a transaction on SQLite may stand still before it is rolled back, for all other writers wait for it; 10 s
    /// by default.
    pub transaction_patience: Duration,
    /// Queues that metrics show under their own name, the first that are met; all others are summed as `_other`. 1,000 by
    /// default.
    pub queue_labels: usize,
    /// Bounds of batches and of waiting calls.
    pub limits: Limits,
    /// Settings of the store.
    pub store: StoreOptions,
}

/// Bounds of batches and of waiting calls, per lane.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Limits {
    /// Items of one transaction at most; 1,000 by default.
    pub batch_items: usize,
    /// Bytes of one transaction at most; 8 MiB by default.
    pub batch_bytes: usize,
    /// Items that wait for their transaction at most; 10,000 by default.
    pub waiting_items: usize,
    /// Bytes that wait for their transaction at most; 32 MiB by default.
    pub waiting_bytes: usize,
    /// How long a call waits for room before it is told `Busy`; 30 s by default.
    pub deadline: Duration,
    /// Transactions of one lane at once; by default 1 on SQLite and 2 on Postgres.
    pub in_flight: Option<usize>,
}

impl Default for Limits {
    fn default() -> Self {
        let lane = LaneLimits::default();
        Self {
            batch_items: lane.batch_items,
            batch_bytes: lane.batch_weight,
            waiting_items: lane.room_items,
            waiting_bytes: lane.room_weight,
            deadline: lane.deadline,
            in_flight: None,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue: QueueName::default(),
            worker: default_worker(),
            lease: Duration::from_secs(60),
            retry: RetryPolicy::default(),
            poll_interval: Duration::from_millis(500),
            upkeep_interval: Duration::from_secs(1),
            transaction_patience: Duration::from_secs(10),
            queue_labels: 1_000,
            limits: Limits::default(),
            store: StoreOptions::default(),
        }
    }
}

impl Options {
    fn check(&self) -> Result<()> {
        check_text("worker", &self.worker)?;
        check_lease(self.lease)?;
        if self.poll_interval.is_zero() || self.upkeep_interval.is_zero() {
            return Err(Error::invalid("the poll interval and the upkeep interval must be above zero"));
        }
        if self.upkeep_interval > self.store.outage_after / 2 {
            return Err(Error::invalid(format!(
                "upkeep_interval ({:?}) must be at most half of store.outage_after ({:?}): a longer gap between \
                 heartbeats counts as an outage, in which no lease expires",
                self.upkeep_interval, self.store.outage_after
            )));
        }
        if self.transaction_patience.is_zero() {
            return Err(Error::invalid("the patience with a transaction that stands still must be above zero"));
        }
        self.store.check()
    }
}

/// Leases run from a millisecond to a year.
pub(crate) fn check_lease(lease: Duration) -> Result<()> {
    if lease < Duration::from_millis(1) || lease > Duration::from_secs(366 * 24 * 3600) {
        return Err(Error::invalid(format!("a lease of {lease:?} does not fit: it must be 1 ms to a year")));
    }
    Ok(())
}

/// Builds an [`EventQueue`].
///
/// ```
/// # async fn example() -> tidegate::Result<()> {
/// use std::time::Duration;
/// use tidegate::EventQueue;
/// let queue = EventQueue::builder().queue("billing")?.lease(Duration::from_secs(30)).open("sqlite:billing.db").await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Builder {
    options: Options,
}

impl From<Options> for Builder {
    fn from(options: Options) -> Self {
        Self { options }
    }
}

impl Builder {
    /// The queue that is published into and polled.
    ///
    /// # Errors
    /// When the name is not one.
    pub fn queue(mut self, name: impl Into<String>) -> Result<Self> {
        self.options.queue = QueueName::new(name)?;
        Ok(self)
    }

    /// The schema (Postgres) or prefix (SQLite) that everything lives under; `tidegate` by default.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.options.store.namespace = namespace.into();
        self
    }

    /// The name this process claims under; `host:pid` by default.
    #[must_use]
    pub fn worker(mut self, worker: impl Into<String>) -> Self {
        self.options.worker = worker.into();
        self
    }

    /// How long a claim holds; 60 s by default.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// When a failed attempt is tried again.
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.options.retry = retry;
        self
    }

    /// How often a waiting consumer looks by itself.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.options.poll_interval = interval;
        self
    }

    /// Bounds of batches and of waiting calls.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.options.limits = limits;
        self
    }

    /// The largest payload; 1 MiB by default.
    #[must_use]
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.options.store.payload_limit = PayloadLimit(bytes);
        self
    }

    /// Which numbers entry ids are drawn from, for several databases side by side.
    #[must_use]
    pub fn ids(mut self, ids: IdSpace) -> Self {
        self.options.store.ids = ids;
        self
    }

    /// Whether an older schema is migrated at start; it is by default.
    #[must_use]
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.options.store.migrate = migrate;
        self
    }

    /// What decides time; the database's clock by default, a [`ManualClock`](crate::ManualClock) in tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.options.store.clock = clock;
        self
    }

    /// Any further setting.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// Opens the database at `address`: `sqlite:PATH`, a plain path, or `postgres://…`.
    ///
    /// # Errors
    /// `Invalid` for an address or a setting that can never work, `Unavailable` when the database cannot be reached,
    /// `Schema` when its schema does not fit.
    pub async fn open(self, address: impl AsRef<str>) -> Result<EventQueue> {
        self.options.check()?;
        match Address::parse(address.as_ref())? {
            Address::Sqlite(path) => self.open_sqlite(path).await,
            Address::Postgres(url) => self.open_postgres(url).await,
        }
    }

    #[cfg(feature = "sqlite")]
    async fn open_sqlite(self, path: PathBuf) -> Result<EventQueue> {
        let mut settings = tidegate_store::sqlite::SqliteOptions::default();
        settings.store = self.options.store.clone();
        let store = tidegate_store::sqlite::SqliteStore::open(path, settings).await?;
        self.with_sqlite(Arc::new(store)).await
    }

    /// A new database in this process's memory, for the test kit.
    #[cfg(feature = "sqlite")]
    pub(crate) async fn open_in_memory(self) -> Result<(EventQueue, PathBuf)> {
        let settings = tidegate_store::sqlite::SqliteOptions::new(self.options.store.clone());
        let store = tidegate_store::sqlite::SqliteStore::open_in_memory(settings).await?;
        let path = store.path().to_owned();
        Ok((self.with_sqlite(Arc::new(store)).await?, path))
    }

    #[cfg(not(feature = "sqlite"))]
    async fn open_sqlite(self, _path: PathBuf) -> Result<EventQueue> {
        Err(Error::invalid("this program was built without SQLite: switch the feature `sqlite` on"))
    }

    #[cfg(feature = "postgres")]
    async fn open_postgres(self, url: String) -> Result<EventQueue> {
        let mut settings = tidegate_store::postgres::PostgresOptions::default();
        settings.store = self.options.store.clone();
        let store = tidegate_store::postgres::PostgresStore::open(&url, settings).await?;
        self.with_postgres(Arc::new(store)).await
    }

    #[cfg(not(feature = "postgres"))]
    async fn open_postgres(self, _url: String) -> Result<EventQueue> {
        Err(Error::invalid("this program was built without PostgreSQL: switch the feature `postgres` on"))
    }

    /// Uses a SQLite store that is open already.
    ///
    /// # Errors
    /// When a setting does not fit, or the queue cannot be set up in the store.
    #[cfg(feature = "sqlite")]
    pub async fn with_sqlite(self, store: Arc<tidegate_store::sqlite::SqliteStore>) -> Result<EventQueue> {
        self.options.check()?;
        EventQueue::start(self.options, Arc::clone(&store) as Arc<dyn Store>, Native::Sqlite(store)).await
    }

    /// Uses a Postgres store that is open already.
    ///
    /// # Errors
    /// When a setting does not fit, or the queue cannot be set up in the store.
    #[cfg(feature = "postgres")]
    pub async fn with_postgres(self, store: Arc<tidegate_store::postgres::PostgresStore>) -> Result<EventQueue> {
        self.options.check()?;
        EventQueue::start(self.options, Arc::clone(&store) as Arc<dyn Store>, Native::Postgres(store)).await
    }

    /// Uses any store. Publishing in the caller's own transaction needs one of the two that come with Tidegate.
    ///
    /// # Errors
    /// When a setting does not fit, or the queue cannot be set up in the store.
    pub async fn with_store(self, store: Arc<dyn Store>) -> Result<EventQueue> {
        self.options.check()?;
        EventQueue::start(self.options, store, Native::Other).await
    }
}

/// Where a database is.
#[derive(Debug, PartialEq, Eq)]
enum Address {
    Sqlite(PathBuf),
    Postgres(String),
}

impl Address {
    fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(Self::Postgres(text.into()));
        }
        let path = match text.strip_prefix("sqlite:") {
            Some(path) => path.strip_prefix("//").unwrap_or(path),
            None => {
                if let Some((scheme, _)) = text.split_once("://") {
                    return Err(Error::invalid(format!(
                        "{scheme:?} is not a database Tidegate knows: use sqlite:PATH, a path, or postgres://…"
                    )));
                }
                text
            }
        };
        if path.is_empty() || path.contains('\0') {
            return Err(Error::invalid("the database's address has no path: use sqlite:PATH, a path, or postgres://…"));
        }
        if path == ":memory:" {
            return Err(Error::invalid("an in-memory database is not durable: give a path"));
        }
        Ok(Self::Sqlite(path.into()))
    }
}

fn default_worker() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .or_else(|| std::env::var("COMPUTERNAME").ok())
        .map(|name| name.trim().chars().filter(|c| !c.is_control()).take(100).collect::<String>())
        .filter(|name| !name.is_empty() && name.len() <= 200)
        .unwrap_or_else(|| "localhost".into());
    format!("{host}:{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let sqlite = |path: &str| Address::Sqlite(path.into());
        assert_eq!(Address::parse("sqlite:a/b.db").unwrap(), sqlite("a/b.db"));
        assert_eq!(Address::parse("sqlite:///tmp/x").unwrap(), sqlite("/tmp/x"));
        assert_eq!(Address::parse("./queue.db").unwrap(), sqlite("./queue.db"));
        for url in ["postgres://u@h/d", "postgresql://h/d"] {
            assert_eq!(Address::parse(url).unwrap(), Address::Postgres(url.into()));
        }
        for bad in ["", "  ", "sqlite:", "sqlite://", "mysql://user:secret@h/d", "http://x", "sqlite::memory:", "a\0b"]
        {
            let error = Address::parse(bad).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid, "{bad:?}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn the_default_worker_can_be_stored() {
        Options::default().check().unwrap();
    }

    #[test]
    fn bad_settings_are_named() {
        let zero = Options { lease: Duration::ZERO, ..Options::default() };
        assert!(zero.check().unwrap_err().to_string().contains("lease"));
        let nobody = Options { worker: String::new(), ..Options::default() };
        assert!(nobody.check().unwrap_err().to_string().contains("worker"));
        let mut slow = Options { upkeep_interval: Duration::from_secs(6), ..Options::default() };
        assert!(slow.check().unwrap_err().to_string().contains("outage_after"));
        slow.store.outage_after = Duration::from_secs(12);
        slow.check().unwrap();
    }
}
