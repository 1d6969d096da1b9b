//! The one thread that writes. It merges the jobs that wait for it into one transaction, each undone alone when it
//! fails, lets standing claims take what became claimable, and answers after the commit. Knows nothing of what the jobs do.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tidegate_core::QueueName;
use tokio::sync::broadcast;

use super::checkpoint::{self, Checkpoints};
use super::errors::{self, is_fatal, rolled_back};
use super::jobs::{Found, Jobs, MERGED, Queued, Urgency};
use super::place::Place;
use super::tx::{Known, Shared, Tx};
use super::{claim, held, standing};
use crate::error::{Error, ErrorKind, Result};
use crate::failpoint;
use crate::standing::{StandingClaims, Taken};
use crate::store::{Claim, Wake};

/// Jobs of one class that one transaction merges at most.
const MERGE: usize = 256;
/// How long a transaction goes on merging. Each class gets at least one job in. Tests count commits, on machines that may be
/// busy.
const MERGE_TIME: Duration = Duration::from_millis(if cfg!(test) { 10_000 } else { 10 });
/// How often to look for what other connections wrote, while somebody wants to know.
const LOOK: Duration = Duration::from_millis(20);
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
    /// Whether the files are where they were.
    pub(super) place: Place,
    pub(super) checkpoints: Checkpoints,
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
    /// The last transaction merged jobs: one that wants a transaction of its own is next.
    merged_last: bool,
    /// What the transaction holds is no longer what its jobs were told: it must not be committed.
    spoilt: bool,
    guard: Guard,
}

/// What SQLite's hooks tell and ask about the writer's transaction.
#[derive(Debug, Clone, Default)]
struct Guard {
    /// Only the writer's own COMMIT may commit. A statement outside a transaction, because SQLite rolled it back by itself
    /// or the application ended it, would otherwise be committed alone.
    may_commit: Arc<AtomicBool>,
    /// A rollback happened since the transaction began.
    rolled_back: Arc<AtomicBool>,
}

impl Guard {
    fn watch(&self, conn: &mut Connection) -> rusqlite::Result<()> {
        let (may_commit, rolled_back) = (Arc::clone(&self.may_commit), Arc::clone(&self.rolled_back));
        conn.commit_hook(Some(move || !may_commit.load(Ordering::Relaxed)))?;
        conn.rollback_hook(Some(move || rolled_back.store(true, Ordering::Relaxed)))
    }
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
        let guard = Guard::default();
        guard.watch(&mut conn)?;
        Ok(Self {
            conn,
            shared,
            inbox,
            known: Known::default(),
            data_version: 0,
            stale: true,
            woken: BTreeSet::new(),
            wal_pages,
            merged_last: false,
            spoilt: false,
            guard,
        })
    }

    /// Has a commit wait for readers of other connections, where the database makes it.
    pub(super) fn wait_at_commit(&self) -> Result<()> {
        Ok(self.conn.busy_timeout(self.shared.options.lock_timeout.max(Duration::from_millis(1)))?)
    }

    /// Works until the inbox is closed and empty.
    pub(super) fn run(mut self) {
        held::mark_thread(&self.inbox);
        loop {
            let listened = self.inbox.wake.receiver_count() > 0;
            let found = if self.inbox.standing.wants_look() {
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
                    } else if let Err(error) = self.inbox.place.check() {
                        self.refuse_all(&error);
                    } else {
                        self.inbox.checkpoints.enter();
                        if self.begin() {
                            self.transaction();
                            self.want_checkpoint();
                        }
                        self.inbox.checkpoints.leave();
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
                    Ok(()) => {
                        self.spoilt = false;
                        self.guard.rolled_back.store(false, Ordering::Relaxed);
                        return true;
                    }
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
            for job in self.inbox.jobs.take_older_than(limit) {
                job.job.answer(Err(error.clone()));
            }
            if self.inbox.jobs.is_empty() && !self.inbox.standing.wants_look() {
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
            self.known.catch_up(&self.conn, &self.shared.sql)?;
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
        let alone = self.alone_is_next();
        let done = if alone { self.run_alone() } else { self.merge() };
        let Some(done) = done else {
            self.rollback();
            return;
        };
        let standing = if alone { Vec::new() } else { self.inbox.standing.to_try(&self.woken) };
        if done.is_empty() && standing.is_empty() {
            self.rollback();
            return;
        }
        let mut found = Vec::new();
        match self.try_standing(standing, &mut found).and_then(|()| self.commit()) {
            Ok(()) => {
                // Before the others, so that nobody is sent to look for what these have.
                for (answer, taken) in found {
                    // Gone without a word: the leases run out.
                    let _ = answer.send(Ok(taken));
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

    /// The application's own transactions and merged ones take turns while both wait, so that neither holds the other up
    /// for longer than one transaction.
    fn alone_is_next(&mut self) -> bool {
        let (merged, alone) = self.inbox.jobs.waiting();
        let merged = merged || self.inbox.standing.wants_look();
        let next = alone && (self.merged_last || !merged);
        self.merged_last = !next;
        next
    }

    fn commit(&mut self) -> Result<()> {
        failpoint("sqlite.before_commit");
        self.guard.may_commit.store(true, Ordering::Relaxed);
        let committed = execute(&self.conn, "COMMIT").map_err(errors::at_commit);
        self.guard.may_commit.store(false, Ordering::Relaxed);
        committed?;
        failpoint("sqlite.after_commit");
        self.inbox.commits.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Lets standing claims take what is there for them. An error means that the whole transaction is lost.
    fn try_standing(
        &mut self,
        standing: Vec<(u64, Arc<Claim>)>,
        found: &mut Vec<(standing::Answer, Taken)>,
    ) -> Result<()> {
        let mut lost = Ok(());
        for (number, wanted) in standing {
            if lost.is_err() {
                self.inbox.standing.found_nothing(number);
                continue;
            }
            let at = Instant::now();
            match self.work_apart(|tx| claim::claim(tx, &wanted)) {
                Ok(claimed) if claimed.is_empty() => self.inbox.standing.found_nothing(number),
                Ok(claimed) => {
                    let taken = Taken { at, claimed };
                    found.extend(self.inbox.standing.take(number).map(|answer| (answer, taken)));
                }
                Err(error) => {
                    self.failed(&error);
                    if let Some(answer) = self.inbox.standing.take(number) {
                        // Nobody there to hear it.
                        let _ = answer.send(Err(error.clone()));
                    }
                    if self.is_lost() {
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
        for class in 0..MERGED {
            for count in 0..MERGE {
                if count > 0 && started.elapsed() > MERGE_TIME {
                    break;
                }
                let Some(mut job) = self.inbox.jobs.pop(class) else { break };
                if job.skippable && job.job.abandoned() {
                    continue;
                }
                // The first needs no savepoint: undoing it undoes nobody else.
                let run = |tx: &mut Tx<'_>| job.job.run(tx);
                let outcome = if done.is_empty() { self.work(run) } else { self.work_apart(run) };
                match outcome {
                    Ok(()) => done.push(job),
                    Err(error) => {
                        self.failed(&error);
                        let lost = self.is_lost();
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
    fn run_alone(&mut self) -> Option<Vec<Queued>> {
        let mut job = self.inbox.jobs.pop(Urgency::Alone as usize)?;
        let outcome = self.work(|tx| job.job.run(tx));
        // Its statements may have changed anything.
        self.known.forget();
        self.stale = true;
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

    /// Whether nothing of the transaction can be committed any more.
    fn is_lost(&self) -> bool {
        self.spoilt || self.conn.is_autocommit()
    }

    /// Runs work in the transaction. A panic becomes its error; the thread lives on. Work that was content although SQLite
    /// has rolled the transaction back is told so.
    fn work<T>(&mut self, work: impl FnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut tx = Tx::new(&self.conn, &self.shared, &mut self.known, &mut self.woken);
        let work = AssertUnwindSafe(|| work(&mut tx).and_then(|answer| tx.finish().map(|()| answer)));
        let answer = catch_unwind(work).unwrap_or_else(|panic| {
            Err(Error::invalid(format!("the work inside the transaction panicked: {}", panic_text(&*panic))))
        });
        if answer.is_ok() && (self.conn.is_autocommit() || self.guard.rolled_back.load(Ordering::Relaxed)) {
            self.spoilt = true;
            return Err(rolled_back());
        }
        answer
    }

    /// The same, undone alone when it fails.
    fn work_apart<T>(&mut self, work: impl FnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        execute(&self.conn, "SAVEPOINT job")?;
        let outcome = self.work(work);
        if self.is_lost() {
            return outcome;
        }
        let undone = if outcome.is_err() { execute(&self.conn, "ROLLBACK TO job") } else { Ok(()) };
        if let Err(error) = undone.and_then(|()| execute(&self.conn, "RELEASE job")) {
            // What this job wrote cannot be told from the others' work any more.
            self.spoilt = true;
            return Err(error.into());
        }
        outcome
    }

    /// After a failure nothing that was learned on the way may be believed.
    fn failed(&mut self, error: &Error) {
        self.known.forget();
        self.stale = true;
        if is_fatal(error) {
            self.inbox.stop(error);
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
        for job in waiting {
            job.job.answer(Err(error.clone()));
        }
        // Whoever waits asks again, and hears of it then.
        self.inbox.standing.dismiss();
    }

    /// Has the write-ahead log copied into the database once it is long.
    fn want_checkpoint(&mut self) {
        let pages = self.wal_pages.swap(0, Ordering::Relaxed);
        if pages >= checkpoint::PAGES {
            self.inbox.checkpoints.want(pages);
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
