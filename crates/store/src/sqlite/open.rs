//! Opening: options, connections, threads.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{broadcast, oneshot, watch};

use super::checkpoint::{self, Checkpoints};
use super::jobs::Jobs;
use super::place::Place;
use super::queries::Sql;
use super::tx::{Shared, Time};
use super::writer::{Inbox, Writer};
use super::{Inner, SqliteStore, migrate, reader, standing, writer};
use crate::error::{Error, ErrorKind, Result};
use crate::keys::KeyChanges;
use crate::store::{Exhausted, StoreOptions};
use crate::turns::Turns;

/// More than there are statements, so that none is compiled twice.
const STATEMENTS: usize = 256;
/// Wake-ups that a slow listener can fall behind before it is told that some were lost.
const WAKEUPS: usize = 1024;

/// Settings of a SQLite store.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// What both databases share. `lock_timeout` bounds the wait for another connection's write lock.
    pub store: StoreOptions,
    /// When written data counts as safe.
    pub synchronous: Synchronous,
}

impl SqliteOptions {
    /// These shared settings, everything else at its default.
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
    /// Nothing waits for the disk: a power failure may lose or damage everything. Only for the test that shows this.
    Off,
}

/// Where the database is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeping {
    /// In a file, with a write-ahead log.
    File,
    /// In this process's memory, under a name that other connections of the process can use. There a reader and the
    /// writer would lock each other out, so the writer's connection reads too.
    Memory,
}

pub(super) async fn open(path: PathBuf, options: SqliteOptions) -> Result<SqliteStore> {
    if path.as_os_str().is_empty() || path == Path::new(":memory:") {
        return Err(Error::invalid("a store needs a file: its writer and its readers have a connection each"));
    }
    open_kept(path, Keeping::File, options).await
}

pub(super) async fn open_in_memory(options: SqliteOptions) -> Result<SqliteStore> {
    let name = format!("file:/tidegate-{:032x}?vfs=memdb", rand::random::<u128>());
    open_kept(name.into(), Keeping::Memory, options).await
}

/// Everything that opening can wait for happens on a thread of its own.
async fn open_kept(path: PathBuf, keeping: Keeping, options: SqliteOptions) -> Result<SqliteStore> {
    options.store.check()?;
    let (sender, receiver) = oneshot::channel();
    spawn("tidegate-open", move || {
        // Nobody waits any more: the connections close again.
        let _ = sender.send(prepare(path, keeping, options));
    })?;
    let ready = receiver.await.map_err(|_| Error::new(ErrorKind::Unavailable, "opening the database failed"))??;
    ready.start()
}

/// Connections that are ready to work.
struct Ready {
    path: PathBuf,
    keeping: Keeping,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    writer: Writer,
    readers: Vec<Connection>,
    list_readers: Vec<Connection>,
    /// Copies the write-ahead log, where there is one.
    copier: Option<Connection>,
}

fn read_only(path: &Path) -> Error {
    let message = format!("the database {} is read-only: make the file and its folder writable", path.display());
    Error::new(ErrorKind::Unavailable, message)
}

fn prepare(path: PathBuf, keeping: Keeping, options: SqliteOptions) -> Result<Ready> {
    let time = Time::new(options.store.clock.clone());
    let sql = Sql::new(&options.store.namespace);
    let mut opened = Place::default();
    let conn = patiently(options.store.lock_timeout, || {
        let conn = connect(&path, keeping, &options, writer::CACHE_KIB)?;
        if keeping == Keeping::File {
            opened = Place::of(&path)?;
        }
        migrate::migrate(&conn, &options.store, time.now())?;
        if conn.is_readonly(rusqlite::MAIN_DB)? {
            return Err(read_only(&path));
        }
        // The wall clock may have been set back since somebody last wrote.
        time.at_least(conn.query_row(&sql.last_moment, [], |row| row.get(0))?);
        Ok(conn)
    })?;
    let connect_readers = |wanted: usize| -> Result<Vec<Connection>> {
        let mut readers = Vec::with_capacity(wanted);
        for _ in 0..if keeping == Keeping::File { wanted } else { 0 } {
            let reader =
                patiently(options.store.lock_timeout, || connect(&path, keeping, &options, reader::CACHE_KIB))?;
            reader.pragma_update(None, "query_only", true)?;
            readers.push(reader);
        }
        Ok(readers)
    };
    let (readers, mut list_readers) = (connect_readers(reader::READERS)?, connect_readers(reader::LIST_READERS)?);
    list_readers.iter_mut().try_for_each(reader::ask)?;
    let (place, copier) = match keeping {
        Keeping::File => {
            let copier =
                patiently(options.store.lock_timeout, || connect(&path, keeping, &options, reader::CACHE_KIB))?;
            let place = Place::of(&path)?;
            // All that is open must be of the file that the writer has.
            opened.check()?;
            (place, Some(copier))
        }
        Keeping::Memory => (Place::default(), None),
    };
    let shared = Arc::new(Shared { options: options.store, sql, time, exhausted: Exhausted::default() });
    let (wake, _) = broadcast::channel(WAKEUPS);
    let inbox = Arc::new(Inbox {
        jobs: Jobs::new(),
        standing: standing::List::default(),
        wake,
        stopped: OnceLock::new(),
        commits: AtomicU64::new(0),
        place,
        checkpoints: Checkpoints::default(),
    });
    let writer = Writer::new(conn, shared.clone(), inbox.clone())?;
    if keeping == Keeping::Memory {
        // Without a write-ahead log a commit waits for other connections' reads to end.
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
            list_turns: Turns::new(self.shared.options.max_lists.min(reader::LIST_READERS)),
            threads,
            key_changes: KeyChanges::default(),
        };
        // From here on an error drops `inner`, which ends the threads started before it.
        let store = SqliteStore { inner: Arc::new(inner) };
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

/// Processes that start at once meet each other where SQLite does not wait by itself, such as the change to a write-ahead
/// log.
fn patiently<T>(limit: Duration, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
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
    // Below a millisecond SQLite would not wait at all.
    conn.busy_timeout(options.store.lock_timeout.max(Duration::from_millis(1)))?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // Plans do not depend on values: otherwise SQLite compiles most statements again whenever another value is bound.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    let mode: String = conn.pragma_update_and_check(None, "journal_mode", wanted, |row| row.get(0))?;
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
    // Only the thread that is there for it copies the write-ahead log.
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    Ok(conn)
}
