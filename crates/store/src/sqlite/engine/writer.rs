//! The one thread that writes. It merges the jobs that wait into one transaction, with a savepoint each, lets waiting
//! claims take what became claimable, and answers after the commit. Knows nothing of what the jobs do.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::error::{Error, ErrorKind, Result};
use crate::failpoint;
use crate::sqlite::engine::checkpoint;
use crate::sqlite::engine::errors::{self, is_fatal, rolled_back};
use crate::sqlite::engine::families::PerFamily;
use crate::sqlite::engine::inbox::Inbox;
use crate::sqlite::engine::jobs::{Found, MERGED, Queued, Urgency};
use crate::sqlite::engine::own_calls;
use crate::sqlite::engine::shared::Shared;
use crate::sqlite::engine::tx::{FamilyState, Tx};
use crate::sqlite::engine::waiting_claims::{self, ToTry};
use crate::values::{Claim, Claimed, Family, Wake};
use crate::waiting_claim::Taken;

/// The most jobs of one class that one transaction merges.
const MERGE: usize = 256;
/// How long a transaction goes on merging. Each class gets at least one job in. Long in tests, which count commits on
/// machines that may be busy.
const MERGE_TIME: Duration = Duration::from_millis(if cfg!(test) { 10_000 } else { 10 });
/// How often to check for commits of other connections, while there are receivers of wake-ups.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The page cache of the writer, in KiB.
pub(in crate::sqlite) const CACHE_KIB: i32 = 16 << 10;

/// Claims within a transaction.
pub(in crate::sqlite) type ClaimVerb = fn(&mut Tx<'_>, &Claim) -> Result<Vec<Claimed>>;

/// The writer's own state.
pub(in crate::sqlite) struct Writer {
    conn: Connection,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    /// The verb that answers waiting claims.
    claim: ClaimVerb,
    /// What is known of each family, and where something became claimable.
    states: PerFamily<FamilyState>,
    /// SQLite's `data_version`, which changes with commits of other connections, as last seen.
    data_version: i64,
    /// Another connection may have committed since `states` were checked.
    stale: bool,
    wal_pages: Arc<AtomicI32>,
    /// The last transaction merged jobs, so a job that needs a transaction of its own is next.
    merged_last: bool,
    /// The transaction no longer holds exactly what its jobs wrote: it must not be committed.
    spoilt: bool,
    guard: Guard,
}

/// What SQLite's commit and rollback hooks share with the writer.
#[derive(Debug, Clone, Default)]
struct Guard {
    /// Only the writer's own COMMIT may commit. Otherwise a statement that runs outside a transaction, because SQLite
    /// rolled it back or the application ended it, would be committed by itself.
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
    pub(in crate::sqlite) fn new(
        mut conn: Connection,
        shared: Arc<Shared>,
        inbox: Arc<Inbox>,
        claim: ClaimVerb,
    ) -> Result<Self> {
        let wal_pages = Arc::new(AtomicI32::new(0));
        let seen = wal_pages.clone();
        conn.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
            seen.store(pages, Ordering::Relaxed);
            Ok(())
        }))?;
        // The writer waits for the lock in its own loop, so that jobs that arrive meanwhile keep their deadlines.
        conn.busy_timeout(Duration::ZERO)?;
        let guard = Guard::default();
        guard.watch(&mut conn)?;
        Ok(Self {
            conn,
            shared,
            inbox,
            claim,
            states: PerFamily::default(),
            data_version: 0,
            stale: true,
            wal_pages,
            merged_last: false,
            spoilt: false,
            guard,
        })
    }

    /// Lets a commit wait for other connections' readers, for databases where it has to (no write-ahead log).
    pub(in crate::sqlite) fn wait_at_commit(&self) -> Result<()> {
        Ok(self.conn.busy_timeout(self.shared.options.lock_timeout.max(Duration::from_millis(1)))?)
    }

    /// Works until the inbox is closed and empty.
    pub(in crate::sqlite) fn run(mut self) {
        own_calls::mark_thread(&self.inbox);
        loop {
            let listened = self.inbox.wake.all().iter().any(|wake| wake.receiver_count() > 0);
            let found = if self.inbox.waiting_claims.wants_look() {
                Found::Jobs
            } else {
                self.inbox.jobs.wait(listened.then_some(POLL_INTERVAL))
            };
            match found {
                Found::Closed => {
                    self.inbox.waiting_claims.close();
                    return;
                }
                Found::Nothing => self.poll_data_version(),
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

    /// Begins a transaction. Waits for another connection's lock, for each job at most `lock_timeout` since it was
    /// queued.
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
            if self.inbox.jobs.is_empty() && !self.inbox.waiting_claims.wants_look() {
                return false;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        }
    }

    /// Forgets what another connection may have changed.
    fn refresh(&mut self) -> Result<()> {
        self.check_data_version()?;
        if self.stale {
            for (state, family) in self.states.all_mut().into_iter().zip(Family::ALL) {
                state.known.catch_up(&self.conn, &self.shared, family)?;
                state.known.marks.clear();
                state.known.heartbeat = 0;
            }
            self.stale = false;
        }
        Ok(())
    }

    /// Checks whether another connection has committed: only that changes `data_version`.
    fn check_data_version(&mut self) -> Result<()> {
        let version = self.conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get("data_version"))?;
        if version != self.data_version {
            self.data_version = version;
            self.stale = true;
            self.inbox.wake_all();
        }
        Ok(())
    }

    /// The same while idle. An error is only logged: the next job will meet it.
    fn poll_data_version(&mut self) {
        if let Err(error) = self.check_data_version() {
            tracing::debug!(%error, "could not check for commits of other connections");
        }
    }

    /// Runs the jobs that wait, commits, and answers them.
    fn transaction(&mut self) {
        let alone = self.alone_is_next();
        let done = if alone { self.run_alone() } else { self.merge() };
        let Some(done) = done else {
            self.rollback();
            return;
        };
        let waiting = if alone { Vec::new() } else { self.claims_to_try() };
        if done.is_empty() && waiting.is_empty() {
            self.rollback();
            return;
        }
        let mut found = Vec::new();
        match self.try_waiting_claims(waiting, &mut found).and_then(|()| self.commit()) {
            Ok(()) => {
                // Answered first, so that no other consumer wakes up to look for the entries that these took.
                for (answer, taken) in found {
                    // If the receiver is gone, the leases expire.
                    let _ = answer.send(Ok(taken));
                }
                for job in done {
                    job.job.answer(Ok(()));
                }
                if alone {
                    // It is not known what the application wrote.
                    self.inbox.wake_all();
                }
                self.wake_woken();
            }
            Err(error) => {
                self.rollback();
                self.failed(&error);
                for (answer, _) in found {
                    // The caller may be gone.
                    let _ = answer.send(Err(error.clone()));
                }
                for job in done {
                    job.job.answer(Err(error.clone()));
                }
            }
        }
    }

    /// The waiting claims for which something may have become claimable.
    fn claims_to_try(&self) -> Vec<ToTry> {
        self.inbox.waiting_claims.to_try(|family, queue| self.states.of(family).woken.contains(queue))
    }

    /// Tells the receivers of each family in which of its queues something became claimable.
    fn wake_woken(&mut self) {
        for (state, wake) in self.states.all_mut().into_iter().zip(self.inbox.wake.all()) {
            if !state.woken.is_empty() {
                // There may be no receivers.
                let _ = wake.send(Wake::Queues(std::mem::take(&mut state.woken)));
            }
        }
    }

    /// The application's own transactions and merged ones alternate while both wait, so that neither waits for more
    /// than one transaction of the other.
    fn alone_is_next(&mut self) -> bool {
        let (merged, alone) = self.inbox.jobs.waiting();
        let merged = merged || self.inbox.waiting_claims.wants_look();
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

    /// Lets waiting claims take what is there for them. An error means that the whole transaction is lost.
    fn try_waiting_claims(
        &mut self,
        waiting: Vec<ToTry>,
        found: &mut Vec<(waiting_claims::Answer, Taken)>,
    ) -> Result<()> {
        let mut lost = Ok(());
        for ToTry { number, family, claim: wanted } in waiting {
            if lost.is_err() {
                self.inbox.waiting_claims.found_nothing(number);
                continue;
            }
            let at = Instant::now();
            let claim = self.claim;
            match self.work_in_savepoint(family, |tx| claim(tx, &wanted)) {
                Ok(claimed) if claimed.is_empty() => self.inbox.waiting_claims.found_nothing(number),
                Ok(claimed) => {
                    let taken = Taken { at, claimed };
                    found.extend(self.inbox.waiting_claims.take(number).map(|answer| (answer, taken)));
                }
                Err(error) => {
                    self.failed(&error);
                    if let Some(answer) = self.inbox.waiting_claims.take(number) {
                        // The caller may be gone.
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

    /// Runs waiting jobs, the most urgent first, and returns those that succeeded. `None`: all jobs have been answered,
    /// and the transaction is to be rolled back.
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
                // The first job needs no savepoint: rolling it back undoes no other job.
                let (family, run) = (job.family, |tx: &mut Tx<'_>| job.job.run(tx));
                let outcome =
                    if done.is_empty() { self.work(family, run) } else { self.work_in_savepoint(family, run) };
                match outcome {
                    Ok(()) => done.push(job),
                    Err(error) => {
                        self.failed(&error);
                        let lost = self.is_lost();
                        job.job.answer(Err(error.clone()));
                        // SQLite rolls back the whole transaction when the disk fails or is full.
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

    /// Runs a transaction of the application's own.
    fn run_alone(&mut self) -> Option<Vec<Queued>> {
        let mut job = self.inbox.jobs.pop(Urgency::Alone as usize)?;
        let outcome = self.work(job.family, |tx| job.job.run(tx));
        // Its statements may have changed anything.
        self.forget();
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

    /// Whether the transaction can no longer be committed.
    fn is_lost(&self) -> bool {
        self.spoilt || self.conn.is_autocommit()
    }

    /// Runs work in the transaction. A panic becomes its error and does not end the thread. Work that returned `Ok`
    /// although SQLite rolled the transaction back becomes an error too.
    fn work<T>(&mut self, family: Family, work: impl FnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        let mut tx = Tx::new(&self.conn, &self.shared, &mut self.states, family);
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

    /// The same in a savepoint: a failure undoes this work only.
    fn work_in_savepoint<T>(&mut self, family: Family, work: impl FnOnce(&mut Tx<'_>) -> Result<T>) -> Result<T> {
        execute(&self.conn, "SAVEPOINT job")?;
        let outcome = self.work(family, work);
        if self.is_lost() {
            return outcome;
        }
        let undone = if outcome.is_err() { execute(&self.conn, "ROLLBACK TO job") } else { Ok(()) };
        if let Err(error) = undone.and_then(|()| execute(&self.conn, "RELEASE job")) {
            // What this job wrote can no longer be separated from the work of the others.
            self.spoilt = true;
            return Err(error.into());
        }
        outcome
    }

    /// Forgets what was cached during a failed transaction, and stops the store after a failed fsync.
    fn failed(&mut self, error: &Error) {
        self.forget();
        self.stale = true;
        if is_fatal(error) {
            self.inbox.stop(error);
        }
    }

    /// Forgets the queues and lanes of both families.
    fn forget(&mut self) {
        self.states.all_mut().into_iter().for_each(|state| state.known.forget());
    }

    fn rollback(&mut self) {
        self.states.all_mut().into_iter().for_each(|state| state.woken.clear());
        if !self.conn.is_autocommit()
            && let Err(error) = execute(&self.conn, "ROLLBACK")
        {
            tracing::warn!(%error, "rollback failed");
        }
    }

    fn refuse_all(&mut self, error: &Error) {
        self.failed(error);
        let waiting = self.inbox.jobs.take_older_than(Duration::ZERO);
        for job in waiting {
            job.job.answer(Err(error.clone()));
        }
        // A caller that still waits claims again, and gets the error then.
        Family::ALL.into_iter().for_each(|family| self.inbox.waiting_claims.cancel_waiting_claims(family));
    }

    /// Asks for a checkpoint once the write-ahead log is long.
    fn want_checkpoint(&mut self) {
        let pages = self.wal_pages.swap(0, Ordering::Relaxed);
        if pages >= checkpoint::PAGES {
            self.inbox.checkpoints.want(pages);
        }
    }
}

/// Executes a statement without parameters and rows, compiled once.
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
