//! The one thread that writes. It merges the jobs that wait for it into one transaction, each undone alone when it
//! fails, lets standing claims take what became claimable, and answers after the commit. Knows nothing of what the jobs do.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::wal::CheckpointMode;
use tidegate_core::QueueName;
use tokio::sync::broadcast;

use super::errors::is_fatal;
use super::jobs::{CLASSES, Found, Jobs, Queued};
use super::tx::{Known, Shared, Tx};
use super::{claim, standing};
use crate::error::{Error, ErrorKind, Result};
use crate::failpoint;
use crate::standing::StandingClaims;
use crate::store::{Claim, Claimed, Wake};

/// Jobs of one class that one transaction merges at most.
const MERGE: usize = 256;
/// How long a transaction goes on merging. Each class gets at least one job in.
const MERGE_TIME: Duration = Duration::from_millis(10);
/// How often to look for what other connections wrote, while somebody wants to know.
const LOOK: Duration = Duration::from_millis(20);
/// Pages in the write-ahead log from which on it is copied into the database, after the answers.
const CHECKPOINT_PAGES: i32 = 4000;
/// The page cache of the writer, in KiB.
pub(super) const CACHE_KIB: i32 = 16 << 10;

/// What the writer shares with the store's face.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) jobs: Jobs,
    pub(super) standing: standing::List,
    pub(super) wake: broadcast::Sender<Wake>,
    /// Why the store has stopped for good.
    pub(super) stopped: OnceLock<Error>,
    /// Commits so far.
    pub(super) commits: AtomicU64,
}

impl StandingClaims for Inbox {
    fn look(&self, number: u64) {
        if self.standing.look(number) {
            self.jobs.nudge();
        }
    }

    fn withdraw(&self, number: u64) -> bool {
        self.standing.withdraw(number)
    }
}

/// The writer's own state.
pub(super) struct Writer {
    conn: Connection,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    known: Known,
    /// SQLite's count of other connections' commits, as last seen.
    data_version: i64,
    /// Another connection has committed since `known` was checked.
    stale: bool,
    woken: BTreeSet<QueueName>,
    wal_pages: Arc<AtomicI32>,
    /// Wants a transaction of its own, and met one under way.
    alone: Option<Queued>,
}

impl Writer {
    pub(super) fn new(mut conn: Connection, shared: Arc<Shared>, inbox: Arc<Inbox>) -> Result<Self> {
        let wal_pages = Arc::new(AtomicI32::new(0));
        let seen = wal_pages.clone();
        conn.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
            seen.store(pages, Ordering::Relaxed);
            Ok(())
        }))?;
        // Waiting for the lock is this thread's own loop, so that jobs that arrive meanwhile keep their own deadline.
        conn.busy_timeout(Duration::ZERO)?;
        Ok(Self {
            conn,
            shared,
            inbox,
            known: Known::default(),
            data_version: 0,
            stale: true,
            woken: BTreeSet::new(),
            wal_pages,
            alone: None,
        })
    }

    /// Has a commit wait for readers of other connections, where the database makes it.
    pub(super) fn wait_at_commit(&self) -> Result<()> {
        Ok(self.conn.busy_timeout(self.shared.options.lock_timeout.max(Duration::from_millis(1)))?)
    }

    /// Works until the inbox is closed and empty.
    pub(super) fn run(mut self) {
        loop {
            let listened = self.inbox.wake.receiver_count() > 0;
            let found = if self.alone.is_some() || self.inbox.standing.wants_look() {
                Found::Jobs
            } else {
                self.inbox.jobs.wait(listened.then_some(LOOK))
            };
            match found {
                Found::Closed => {
                    self.inbox.standing.close();
                    return;
                }
                Found::Nothing => self.look(),
                Found::Jobs => {
                    if let Some(error) = self.inbox.stopped.get() {
                        let error = error.clone();
                        self.refuse_all(&error);
                    } else if self.begin() {
                        self.transaction();
                        self.checkpoint();
                    }
                }
            }
        }
    }

    /// Starts a transaction. A foreign lock is waited for, each job for its own time.
    fn begin(&mut self) -> bool {
        let mut pause = Duration::from_millis(1);
        loop {
            let error: Error = match execute(&self.conn, "BEGIN IMMEDIATE") {
                Ok(()) => match self.refresh() {
                    Ok(()) => return true,
                    Err(error) => {
                        self.rollback();
                        error
                    }
                },
                Err(error) => error.into(),
            };
            if error.kind() != ErrorKind::Busy {
                self.refuse_all(&error);
                return false;
            }
            let limit = self.shared.options.lock_timeout;
            if let Some(job) = self.alone.take_if(|job| job.since.elapsed() >= limit) {
                job.job.answer(Err(error.clone()));
            }
            for job in self.inbox.jobs.take_older_than(limit) {
                job.job.answer(Err(error.clone()));
            }
            if self.alone.is_none() && self.inbox.jobs.is_empty() && !self.inbox.standing.wants_look() {
                return false;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        }
    }

    /// Forgets what another connection may have changed.
    fn refresh(&mut self) -> Result<()> {
        self.look_at_version()?;
        if self.stale {
            let generation = self.conn.prepare_cached(&self.shared.sql.generation)?.query_row([], |row| row.get(0))?;
            if generation != self.known.generation {
                self.known.forget();
                self.known.generation = generation;
            }
            self.known.marks.clear();
            self.known.heartbeat = 0;
            self.stale = false;
        }
        Ok(())
    }

    /// Whether another connection has committed: only those change this count.
    fn look_at_version(&mut self) -> Result<()> {
        let version = self.conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if version != self.data_version {
            self.data_version = version;
            self.stale = true;
            // Nobody listening is fine.
            let _ = self.inbox.wake.send(Wake::Any);
        }
        Ok(())
    }

    /// The same while idle. A failure shows with the next job.
    fn look(&mut self) {
        if let Err(error) = self.look_at_version() {
            tracing::debug!(%error, "could not look for other connections' commits");
        }
    }

    /// Runs what waits, commits, answers.
    fn transaction(&mut self) {
        let done = match self.alone.take() {
            Some(job) => self.run_alone(job),
            None => self.merge(),
        };
        let Some(done) = done else {
            self.rollback();
            return;
        };
        let alone = done.iter().any(|job| job.alone);
        let standing = if alone { Vec::new() } else { self.inbox.standing.to_try(&self.woken) };
        if done.is_empty() && standing.is_empty() {
            self.rollback();
            return;
        }
        let mut found = Vec::new();
        match self.try_standing(standing, &mut found).and_then(|()| self.commit()) {
            Ok(()) => {
                // Before the others, so that nobody is sent to look for what these have.
                for (answer, claimed) in found {
                    // Gone without a word: the leases run out.
                    let _ = answer.send(Ok(claimed));
                }
                for job in done {
                    job.job.answer(Ok(()));
                }
                if alone {
                    // What the application wrote is not known here.
                    let _ = self.inbox.wake.send(Wake::Any);
                }
                if !self.woken.is_empty() {
                    // Nobody listening is fine.
                    let _ = self.inbox.wake.send(Wake::Queues(std::mem::take(&mut self.woken)));
                }
            }
            Err(error) => {
                self.rollback();
                self.failed(&error);
                for (answer, _) in found {
                    // Nobody there to hear it.
                    let _ = answer.send(Err(error.clone()));
                }
                for job in done {
                    job.job.answer(Err(error.clone()));
                }
            }
        }
    }

    fn commit(&mut self) -> Result<()> {
        failpoint("sqlite.before_commit");
        execute(&self.conn, "COMMIT")?;
        failpoint("sqlite.after_commit");
        self.inbox.commits.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Lets standing claims take what is there for them. An error means that the whole transaction is lost.
    fn try_standing(
        &mut self,
        standing: Vec<(u64, Arc<Claim>)>,
        found: &mut Vec<(standing::Answer, Vec<Claimed>)>,
    ) -> Result<()> {
        let mut lost = Ok(());
        for (number, wanted) in standing {
            if lost.is_err() {
                self.inbox.standing.found_nothing(number);
                continue;
            }
            match self.work_apart(|tx| claim::claim(tx, &wanted)) {
                Ok(claimed) if claimed.is_empty() => self.inbox.standing.found_nothing(number),
                Ok(claimed) => found.extend(self.inbox.standing.take(number).map(|answer| (answer, claimed))),
                Err(error) => {
                    self.failed(&error);
                    if let Some(answer) = self.inbox.standing.take(number) {
                        // Nobody there to hear it.
                        let _ = answer.send(Err(error.clone()));
                    }
                    if self.conn.is_autocommit() {
                        lost = Err(error);
                    }
                }
            }
        }
        lost
    }

    /// Runs waiting jobs, the urgent first, and answers those that did their work. `None`: everybody has an answer, and
    /// the transaction is of no use.
    fn merge(&mut self) -> Option<Vec<Queued>> {
        let started = Instant::now();
        let mut done: Vec<Queued> = Vec::new();
        for class in 0..CLASSES {
            for count in 0..MERGE {
                if count > 0 && started.elapsed() > MERGE_TIME {
                    break;
                }
                let Some(mut job) = self.inbox.jobs.pop(class) else { break };
                if job.skippable && job.job.abandoned() {
                    continue;
                }
                if job.alone {
                    if !done.is_empty() {
                        self.alone = Some(job);
                        return Some(done);
                    }
                    return self.run_alone(job);
                }
                // The first needs no savepoint: undoing it undoes nobody else.
                let run = |tx: &mut Tx<'_>| job.job.run(tx);
                let outcome = if done.is_empty() { self.work(run) } else { self.work_apart(run) };
                match outcome {
                    Ok(()) => done.push(job),
                    Err(error) => {
                        self.failed(&error);
                        let lost = self.conn.is_autocommit();
                        job.job.answer(Err(error.clone()));
                        // SQLite gives a whole transaction up when the disk fails or is full.
                        if lost {
                            done.drain(..).for_each(|job| job.job.answer(Err(error.clone())));
                        }
                        if lost || done.is_empty() {
                            return None;
                        }
                    }
                }
            }
        }
        Some(done)
    }

    /// A transaction of the application's own.
    fn run_alone(&mut self, mut job: Queued) -> Option<Vec<Queued>> {
        let outcome = self.work(|tx| job.job.run(tx));
        // Its statements may have changed anything.
        self.known.forget();
        self.stale = true;
        let outcome = outcome.and_then(|()| {
            if self.conn.is_autocommit() {
                return Err(Error::new(ErrorKind::Conflict, "the transaction was ended inside: nothing was committed"));
            }
            Ok(())
        });
        match outcome {
            Ok(()) => Some(vec![job]),
            Err(error) => {
                self.rollback();
                self.failed(&error);
                job.job.answer(Err(error));
                None
            }
        }
    }

    /// Runs work in the transaction. A panic becomes its error; the thread lives on.
    fn work<T>(&mut self, work: impl FnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut tx = Tx::new(&self.conn, &self.shared, &mut self.known, &mut self.woken);
        let work = AssertUnwindSafe(|| work(&mut tx).and_then(|answer| tx.finish().map(|()| answer)));
        catch_unwind(work).unwrap_or_else(|panic| {
            Err(Error::invalid(format!("the work inside the transaction panicked: {}", panic_text(&*panic))))
        })
    }

    /// The same, undone alone when it fails.
    fn work_apart<T>(&mut self, work: impl FnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        execute(&self.conn, "SAVEPOINT job")?;
        let outcome = self.work(work);
        if outcome.is_err() && !self.conn.is_autocommit() {
            execute(&self.conn, "ROLLBACK TO job")?;
        }
        if !self.conn.is_autocommit() {
            execute(&self.conn, "RELEASE job")?;
        }
        outcome
    }

    /// After a failure nothing that was learned on the way may be believed.
    fn failed(&mut self, error: &Error) {
        self.known.forget();
        self.stale = true;
        if is_fatal(error) {
            tracing::error!(%error, "data could not be made durable: the store stops for good");
            let _ = self.inbox.stopped.set(error.clone());
        }
    }

    fn rollback(&mut self) {
        self.woken.clear();
        if !self.conn.is_autocommit()
            && let Err(error) = execute(&self.conn, "ROLLBACK")
        {
            tracing::warn!(%error, "could not roll back");
        }
    }

    fn refuse_all(&mut self, error: &Error) {
        self.failed(error);
        let waiting = self.inbox.jobs.take_older_than(Duration::ZERO);
        for job in self.alone.take().into_iter().chain(waiting) {
            job.job.answer(Err(error.clone()));
        }
        // Whoever waits asks again, and hears of it then.
        self.inbox.standing.dismiss();
    }

    /// Copies the write-ahead log into the database once it is long. Readers may hold a part of it back.
    fn checkpoint(&mut self) {
        if self.wal_pages.load(Ordering::Relaxed) < CHECKPOINT_PAGES {
            return;
        }
        match self.conn.wal_checkpoint_v2(None::<&str>, CheckpointMode::PASSIVE) {
            Ok(_) => self.wal_pages.store(0, Ordering::Relaxed),
            Err(error) => {
                let error = Error::from(error);
                tracing::warn!(%error, "could not copy the write-ahead log into the database");
                self.failed(&error);
            }
        }
    }
}

/// A statement without parameters and rows, compiled once.
fn execute(conn: &Connection, sql: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(sql)?.execute([]).map(drop)
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
