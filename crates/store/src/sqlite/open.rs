//! Opening a store: options, connections, threads.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{broadcast, oneshot, watch};

use crate::error::{Error, ErrorKind, Result};
use crate::list_gate::ListGate;
use crate::outdated::Outdated;
use crate::sql::{FromRow as _, Only};
use crate::sqlite::claim;
use crate::sqlite::engine::checkpoint;
use crate::sqlite::engine::checkpoints::Checkpoints;
use crate::sqlite::engine::families::PerFamily;
use crate::sqlite::engine::file_identity::Place;
use crate::sqlite::engine::inbox::Inbox;
use crate::sqlite::engine::jobs::Jobs;
use crate::sqlite::engine::migrate;
use crate::sqlite::engine::reader;
use crate::sqlite::engine::shared::Shared;
use crate::sqlite::engine::store::{Inner, Keeping, SqliteStore};
use crate::sqlite::engine::time::Time;
use crate::sqlite::engine::waiting_claims;
use crate::sqlite::engine::writer;
use crate::sqlite::engine::writer::Writer;
use crate::sqlite::statements::Sql;
use crate::values::{Exhausted, Family, KeyChanges, StoreOptions};

/// More than there are statements, so that none is compiled twice.
const STATEMENTS: usize = 512;
/// How many wake-ups a slow receiver may fall behind before it is told that some were lost.
const WAKEUPS: usize = 1024;

/// Settings of a SQLite store.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// The settings shared by both databases. `lock_timeout` limits the wait for another connection's write lock.
    pub store: StoreOptions,
    /// When written data counts as safe.
    pub synchronous: Synchronous,
}

impl SqliteOptions {
    /// These shared settings, and the defaults for everything else.
    #[must_use]
    pub fn new(store: StoreOptions) -> Self {
        Self { store, ..Self::default() }
    }
}

/// When written data counts as safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Synchronous {
    /// Every commit is on the disk before it is answered.
    #[default]
    Full,
    /// Commits do not wait for the disk: a power failure may lose or damage everything. Only for the test of that.
    Off,
}

impl SqliteStore {
    /// Opens the file, creates it if it does not exist, and migrates its tables.
    ///
    /// # Errors
    /// `Unavailable` when the file cannot be opened or written, `Corrupt` when it is not a database, `Schema` when its
    /// tables do not fit this program, `Invalid` when the options are not valid, `Busy` when another connection holds
    /// its lock.
    pub async fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self> {
        open(path.as_ref().to_owned(), options).await
    }

    /// Opens a new, empty database in this process's memory, which disappears with its last connection. For tests: it
    /// behaves like a file, but nothing is durable. Other connections of this process can open it by
    /// [`path`](Self::path).
    ///
    /// # Errors
    /// `Invalid` when the options are not valid.
    pub async fn open_in_memory(options: SqliteOptions) -> Result<Self> {
        open_in_memory(options).await
    }
}

async fn open(path: PathBuf, options: SqliteOptions) -> Result<SqliteStore> {
    if path.as_os_str().is_empty() || path == Path::new(":memory:") {
        return Err(Error::invalid("a store needs a file: its writer and its readers have a connection each"));
    }
    open_kept(path, Keeping::File, options).await
}

async fn open_in_memory(options: SqliteOptions) -> Result<SqliteStore> {
    let name = format!("file:/tidegate-{:032x}?vfs=memdb", rand::random::<u128>());
    open_kept(name.into(), Keeping::Memory, options).await
}

/// Opens the store on a separate thread, as opening may block.
async fn open_kept(path: PathBuf, keeping: Keeping, options: SqliteOptions) -> Result<SqliteStore> {
    options.store.check()?;
    let (sender, receiver) = oneshot::channel();
    spawn("tidegate-open", move || {
        // If the caller is gone, the connections are closed again.
        let _ = sender.send(prepare(path, keeping, options));
    })?;
    let ready = receiver.await.map_err(|_| Error::new(ErrorKind::Unavailable, "opening the database failed"))??;
    ready.start()
}

/// Open connections, ready to start the threads.
struct Ready {
    path: PathBuf,
    keeping: Keeping,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    writer: Writer,
    readers: Vec<Connection>,
    list_readers: Vec<Connection>,
    /// The connection for checkpoints; `None` without a write-ahead log.
    copier: Option<Connection>,
}

fn read_only(path: &Path) -> Error {
    let message = format!("the database {} is read-only: make the file and its folder writable", path.display());
    Error::new(ErrorKind::Unavailable, message)
}

fn prepare(path: PathBuf, keeping: Keeping, options: SqliteOptions) -> Result<Ready> {
    let time = Time::new(options.store.clock.clone());
    let sql = PerFamily::new(|family| Sql::new(&options.store.namespace, family));
    let mut opened = Place::default();
    let conn = retry_while_busy(options.store.lock_timeout, || {
        let conn = connect(&path, keeping, &options, writer::CACHE_KIB)?;
        if keeping == Keeping::File {
            opened = Place::of(&path)?;
        }
        migrate::migrate(&conn, &options.store, time.now())?;
        if conn.is_readonly(rusqlite::MAIN_DB)? {
            return Err(read_only(&path));
        }
        // The wall clock may have been set back since the last write.
        let Only(last) = conn.query_row(&sql.entries.heartbeat.last_moment, [], |row| Ok(Only::read(row, 0)))??;
        time.at_least(last);
        Ok(conn)
    })?;
    let connect_readers = |wanted: usize| -> Result<Vec<Connection>> {
        let mut readers = Vec::with_capacity(wanted);
        for _ in 0..if keeping == Keeping::File { wanted } else { 0 } {
            let reader =
                retry_while_busy(options.store.lock_timeout, || connect(&path, keeping, &options, reader::CACHE_KIB))?;
            reader.pragma_update(None, "query_only", true)?;
            readers.push(reader);
        }
        Ok(readers)
    };
    let (readers, mut list_readers) = (connect_readers(reader::READERS)?, connect_readers(reader::LIST_READERS)?);
    list_readers.iter_mut().try_for_each(reader::check_progress)?;
    let (place, copier) = match keeping {
        Keeping::File => {
            let copier =
                retry_while_busy(options.store.lock_timeout, || connect(&path, keeping, &options, reader::CACHE_KIB))?;
            let place = Place::of(&path)?;
            // All connections must be to the file that the writer opened.
            opened.check()?;
            (place, Some(copier))
        }
        Keeping::Memory => (Place::default(), None),
    };
    let outdated = Outdated::new(options.store.namespace.clone());
    let exhausted = PerFamily::new(|_| Exhausted::default());
    let shared = Arc::new(Shared { options: options.store, sql, time, exhausted, outdated });
    let inbox = Arc::new(Inbox {
        jobs: Jobs::new(),
        waiting_claims: waiting_claims::List::default(),
        wake: PerFamily::new(|_| broadcast::Sender::new(WAKEUPS)),
        stopped: OnceLock::new(),
        commits: AtomicU64::new(0),
        place,
        checkpoints: Checkpoints::default(),
    });
    let writer = Writer::new(conn, shared.clone(), inbox.clone(), claim::claim)?;
    if keeping == Keeping::Memory {
        // Without a write-ahead log, a commit waits for other connections' reads to end.
        writer.wait_at_commit()?;
    }
    Ok(Ready { path, keeping, shared, inbox, writer, readers, list_readers, copier })
}

impl Ready {
    fn start(self) -> Result<SqliteStore> {
        let (alive, threads) = watch::channel(());
        let (reads, lists) = (Arc::new(Jobs::new()), Arc::new(Jobs::new()));
        let inner = Inner {
            path: self.path,
            name: format!("{:016x}", rand::random::<u64>()),
            keeping: self.keeping,
            shared: self.shared.clone(),
            inbox: self.inbox.clone(),
            reads: reads.clone(),
            lists: lists.clone(),
            list_gate: ListGate::new(self.shared.options.max_lists.min(reader::LIST_READERS)),
            threads,
            key_changes: KeyChanges::default(),
        };
        // From here on an error drops `inner`, which ends the threads started before it.
        let store = SqliteStore { inner: Arc::new(inner), family: Family::Entries };
        let readers = self.readers.into_iter().map(|conn| (conn, &reads));
        for (conn, jobs) in readers.chain(self.list_readers.into_iter().map(|conn| (conn, &lists))) {
            let (shared, reads, alive) = (self.shared.clone(), jobs.clone(), alive.clone());
            spawn("tidegate-read", move || {
                reader::run(&conn, &shared, &reads);
                drop(conn);
                drop(alive);
            })?;
        }
        if let Some(conn) = self.copier {
            let (inbox, alive) = (self.inbox, alive.clone());
            spawn("tidegate-copy", move || {
                checkpoint::run(&conn, &inbox);
                drop(conn);
                drop(alive);
            })?;
        }
        let writer = self.writer;
        spawn("tidegate-write", move || {
            writer.run();
            drop(alive);
        })?;
        Ok(store)
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map(drop)
        .map_err(|error| Error::new(ErrorKind::Unavailable, "a thread could not be started").with_source(error))
}

/// Tries again while the database is busy. Processes that start at the same time conflict where SQLite does not wait by
/// itself, such as when switching to a write-ahead log.
fn retry_while_busy<T>(limit: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let deadline = std::time::Instant::now() + limit;
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::Busy && std::time::Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            answer => return answer,
        }
    }
}

fn connect(path: &Path, keeping: Keeping, options: &SqliteOptions, cache_kib: i32) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let (flags, wanted) = match keeping {
        Keeping::File => (flags, "wal"),
        Keeping::Memory => (flags | OpenFlags::SQLITE_OPEN_URI, "memory"),
    };
    let conn = Connection::open_with_flags(path, flags)?;
    // With a timeout below a millisecond SQLite would not wait at all.
    conn.busy_timeout(options.store.lock_timeout.max(Duration::from_millis(1)))?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // Plans must not depend on bound values: otherwise SQLite compiles most statements again when a value changes.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    let mode: String = conn.pragma_update_and_check(None, "journal_mode", wanted, |row| row.get("journal_mode"))?;
    if mode != wanted {
        let message = format!("the database cannot use a write-ahead log here: its journal mode is {mode}");
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    let synchronous = match options.synchronous {
        Synchronous::Full => "FULL",
        Synchronous::Off => "OFF",
    };
    conn.pragma_update(None, "synchronous", synchronous)?;
    conn.pragma_update(None, "cache_size", -cache_kib)?;
    conn.pragma_update(None, "mmap_size", 0)?;
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    conn.pragma_update(None, "journal_size_limit", checkpoint::KEPT_BYTES as i64)?;
    // Only the checkpoint thread copies the write-ahead log.
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    Ok(conn)
}
