//! Opening a queue: the builder, and the parsing of a database address.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{IdSpace, PayloadLimit, QueueName, RetryPolicy};
use tidegate_store::{Clock, Store};

use super::EventQueue;
use super::native::Native;
use crate::error::{Error, Result};
use crate::options::{Limits, Options};

impl EventQueue {
    /// Opens the database at `address` with default settings: `sqlite:PATH`, a plain path, or `postgres://…`.
    ///
    /// # Errors
    /// `Invalid` for an address that is not valid, `Unavailable` when the database cannot be reached, `Schema` when its
    /// schema is not one that this version can use.
    pub async fn open(address: impl AsRef<str>) -> Result<Self> {
        Self::builder().open(address).await
    }

    /// A builder with default settings.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Opens a queue on any store, with default settings.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn from_store(store: Arc<dyn Store>) -> Result<Self> {
        Self::builder().with_store(store).await
    }
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
    /// Sets the queue to publish into and claim from.
    ///
    /// # Errors
    /// `Invalid` when the name is not valid.
    pub fn queue(mut self, name: impl Into<String>) -> Result<Self> {
        self.options.queue = QueueName::new(name)?;
        Ok(self)
    }

    /// Sets the schema (PostgreSQL) or table prefix (SQLite) of all tables; `tidegate` by default.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.options.store.namespace = namespace.into();
        self
    }

    /// Sets the worker name that this process claims under; `host:pid` by default.
    #[must_use]
    pub fn worker(mut self, worker: impl Into<String>) -> Self {
        self.options.worker = worker.into();
        self
    }

    /// Sets the length of a lease; 60 s by default.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// Sets the delays between attempts, for events and queues without a retry policy of their own.
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.options.retry = retry;
        self
    }

    /// Sets how often a waiting consumer polls without a wake-up; 500 ms by default.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.options.poll_interval = interval;
        self
    }

    /// Sets the limits of batches and of waiting calls.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.options.limits = limits;
        self
    }

    /// Sets the largest payload in bytes; 1 MiB by default.
    #[must_use]
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.options.store.payload_limit = PayloadLimit(bytes);
        self
    }

    /// Sets the numbers that entry ids are drawn from, so that ids of several databases do not overlap.
    #[must_use]
    pub fn ids(mut self, ids: IdSpace) -> Self {
        self.options.store.ids = ids;
        self
    }

    /// Sets whether an older schema is migrated when the queue is opened; true by default.
    #[must_use]
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.options.store.migrate = migrate;
        self
    }

    /// Sets the source of time; the database's clock by default, a [`ManualClock`](crate::ManualClock) in tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.options.store.clock = clock;
        self
    }

    /// Changes any other setting.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// Opens the database at `address`: `sqlite:PATH`, a plain path, or `postgres://…`.
    ///
    /// # Errors
    /// `Invalid` for an address or a setting that is not valid, `Unavailable` when the database cannot be reached,
    /// `Schema` when its schema is not one that this version can use.
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

    /// A new database in this process's memory, for [`testing`](crate::testing).
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

    /// Opens the queue on a SQLite store that is open already.
    ///
    /// # Errors
    /// `Invalid` when a setting is not valid, or any error of the store.
    #[cfg(feature = "sqlite")]
    pub async fn with_sqlite(self, store: Arc<tidegate_store::sqlite::SqliteStore>) -> Result<EventQueue> {
        self.options.check()?;
        EventQueue::start(self.options, Arc::clone(&store) as Arc<dyn Store>, Native::Sqlite(store)).await
    }

    /// Opens the queue on a PostgreSQL store that is open already.
    ///
    /// # Errors
    /// `Invalid` when a setting is not valid, or any error of the store.
    #[cfg(feature = "postgres")]
    pub async fn with_postgres(self, store: Arc<tidegate_store::postgres::PostgresStore>) -> Result<EventQueue> {
        self.options.check()?;
        EventQueue::start(self.options, Arc::clone(&store) as Arc<dyn Store>, Native::Postgres(store)).await
    }

    /// Opens the queue on any store. Publishing in the caller's own transaction needs one of the two stores that come
    /// with Tidegate.
    ///
    /// # Errors
    /// `Invalid` when a setting is not valid, or any error of the store.
    pub async fn with_store(self, store: Arc<dyn Store>) -> Result<EventQueue> {
        self.options.check()?;
        EventQueue::start(self.options, store, Native::Other).await
    }
}

/// A parsed database address.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

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
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad:?}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
