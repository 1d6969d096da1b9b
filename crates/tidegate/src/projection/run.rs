//! The loop of a projection: takes the reader's lease, reads pages of the log, commits batches one after the other,
//! stops at a failure and retries. Knows nothing of what a form does with events.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_store::{ErrorKind, Failed, LogPage, LogRow, Position, ProjectionState, ReadLog, Reader, Step};
use tokio::task::{AbortHandle, JoinError, JoinHandle};

use super::core::Core;
use super::event::{error_chain, panicked};
use super::kind::{Batch, Committed, Failure, Form};
use crate::error::{Error, Result, lost};
use crate::queue::projections::LAG_BOUND;

/// Most rows of one page.
const PAGE_ROWS: usize = 1_000;
/// Target size of a page in bytes of payloads.
const PAGE_BYTES: usize = 4 << 20;
/// How often the lag gauges are refreshed.
const LAG_EVERY: Duration = Duration::from_secs(5);

/// The result of a pass over the log.
#[derive(Debug)]
pub(crate) enum Passed {
    /// There was nothing more to read.
    CaughtUp,
    /// An event failed, or a hook or a commit in a way that is not transient.
    Stopped(Failure),
}

/// A reader with its lease. Dropping it gives the lease back.
pub(crate) struct Session<F: Form> {
    core: Arc<Core>,
    form: Arc<F>,
    token: i64,
    position: Position,
    pub(crate) state: ProjectionState,
    memory: F::Memory,
    /// Failures since the last pass that caught up.
    failures: u32,
    page_rows: usize,
    /// Whether `Form::begin` has succeeded.
    begun: bool,
    kept: Arc<Kept>,
    heartbeat: AbortHandle,
    /// Whether the lease was given back.
    left: bool,
}

/// When the reader's lease was last extended.
struct Kept(Mutex<Instant>);

impl Kept {
    fn now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// How long until the lease has to be extended: when a third of it is over.
    fn due_in(&self, lease: Duration) -> Duration {
        let kept = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (lease / 3).saturating_sub(kept.elapsed())
    }
}

impl<F: Form> Session<F> {
    /// Becomes the reader; `None` when there is another one or a later version is active.
    pub(crate) async fn take(core: &Arc<Core>, form: &Arc<F>, reader: &str) -> Result<Option<Self>> {
        let taken = core.log().take_reader(&core.id, reader, core.settings.lease).await?;
        let Some(Reader { token, position, state }) = taken else { return Ok(None) };
        let kept = Arc::new(Kept(Mutex::new(Instant::now())));
        let session = Self {
            core: Arc::clone(core),
            form: Arc::clone(form),
            token,
            position,
            state,
            memory: F::Memory::default(),
            failures: 0,
            page_rows: core.settings.batch,
            begun: false,
            heartbeat: tokio::spawn(heartbeat(Arc::clone(core), token, Arc::clone(&kept))).abort_handle(),
            kept,
            left: false,
        };
        sweep(core);
        Ok(Some(session))
    }

    /// Reads and writes until there is nothing more for now; a new version then takes over. A failure is stored.
    pub(crate) async fn pass(&mut self) -> Result<Passed> {
        let outcome = match self.begin_and_read().await {
            Err(error) if is_failure(&error) => {
                Ok(Passed::Stopped(Failure { entry: None, error: error_chain(&error) }))
            }
            outcome => outcome,
        };
        if !matches!(outcome, Ok(Passed::CaughtUp)) {
            // The memory may differ from what is stored.
            self.memory = F::Memory::default();
        }
        match &outcome {
            Ok(Passed::CaughtUp) => self.failures = 0,
            Ok(Passed::Stopped(failure)) => {
                self.failures = self.failures.saturating_add(1);
                self.core.meters.failures.increment(1);
                match failure.entry {
                    Some(entry) => tracing::error!(projection = %self.core.id, %entry, error = failure.error,
                        "projection stopped: its handler fails at an event"),
                    None => tracing::error!(projection = %self.core.id, error = failure.error,
                        "projection stopped"),
                }
                self.note(failure).await?;
            }
            Err(_) => {}
        }
        outcome
    }

    async fn begin_and_read(&mut self) -> Result<Passed> {
        if !self.begun {
            let reader = Reader { token: self.token, position: self.position, state: self.state };
            self.form.begin(&self.core, &reader).await?;
            self.begun = true;
        }
        let passed = self.pages().await?;
        if let Passed::CaughtUp = passed {
            self.take_over().await?;
        }
        Ok(passed)
    }

    async fn pages(&mut self) -> Result<Passed> {
        let mut writing: Option<JoinHandle<Result<Committed>>> = None;
        let mut page = self.read(self.position).await?;
        loop {
            self.fit_pages(&page);
            // The next page is read while this one is applied.
            let next = (!page.exhausted).then(|| self.read_ahead(page.end));
            for batch in batches(page, self.core.settings.batch) {
                let prepared = self.form.prepare(&self.core, &mut self.memory, batch).await?;
                if let Some(failure) = self.await_write(writing.take()).await? {
                    return Ok(Passed::Stopped(failure));
                }
                if let Some(failure) = prepared.failure {
                    let earlier = self.apply_prefix(prepared.events).await?;
                    return Ok(Passed::Stopped(earlier.unwrap_or(failure)));
                }
                writing = self.write(prepared.work, prepared.to, prepared.events);
            }
            let Some(next) = next else { break };
            page = next.await.unwrap_or_else(|_| Err(lost()))?;
        }
        Ok(match self.await_write(writing.take()).await? {
            Some(failure) => Passed::Stopped(failure),
            None => Passed::CaughtUp,
        })
    }

    /// Applies the first `events` events after the position, which are known to be good. The fold that failed has
    /// consumed the state that they made, so they are read and folded again.
    async fn apply_prefix(&mut self, events: usize) -> Result<Option<Failure>> {
        self.memory = F::Memory::default();
        let mut rows = if events > 0 { self.read(self.position).await?.rows } else { Vec::new() };
        rows.truncate(events);
        let Some(end) = rows.last().map(|row| row.position) else { return Ok(None) };
        let prepared = self.form.prepare(&self.core, &mut self.memory, Batch { rows, end }).await?;
        if prepared.failure.is_some() {
            return Ok(prepared.failure);
        }
        let writing = self.write(prepared.work, prepared.to, prepared.events);
        self.await_write(writing).await
    }

    /// Commits a batch in a task of its own, so that dropping the session does not cancel it halfway. `None` when there
    /// is nothing to write.
    fn write(&self, work: F::Work, to: Position, events: usize) -> Option<JoinHandle<Result<Committed>>> {
        if to <= self.position {
            return None;
        }
        let step = Step {
            id: self.core.id.clone(),
            token: self.token,
            from: self.position,
            to,
            events: events as u64,
            lease: self.core.settings.lease,
        };
        let (core, form) = (Arc::clone(&self.core), Arc::clone(&self.form));
        Some(tokio::spawn(async move { form.commit(&core, step, work).await }))
    }

    /// Waits for the commit of a batch.
    async fn await_write(&mut self, writing: Option<JoinHandle<Result<Committed>>>) -> Result<Option<Failure>> {
        let Some(writing) = writing else { return Ok(None) };
        let Committed { to, events, failure } = writing.await.unwrap_or_else(|ended| Err(write_error(ended)))?;
        self.position = to;
        self.kept.now();
        self.core.meters.events.increment(events);
        self.core.progress.send_modify(|count| *count = count.wrapping_add(1));
        Ok(failure)
    }

    async fn read(&self, after: Position) -> Result<LogPage> {
        read(&self.core, after, self.page_rows).await
    }

    fn read_ahead(&self, after: Position) -> JoinHandle<Result<LogPage>> {
        let (core, rows) = (Arc::clone(&self.core), self.page_rows);
        tokio::spawn(async move { read(&core, after, rows).await })
    }

    /// Adapts the page size to the size of events: small events get larger pages, and memory stays bounded.
    fn fit_pages(&mut self, page: &LogPage) {
        let bytes: usize = page.rows.iter().map(|row| row.fact.payload.len() + 256).sum();
        let mean = bytes / page.rows.len().max(1);
        let fitting = PAGE_BYTES.checked_div(mean).unwrap_or(PAGE_ROWS).min(PAGE_ROWS);
        self.page_rows = fitting.min(self.page_rows * 4).max(self.core.settings.batch);
    }

    /// Makes this version the active one if it is not yet.
    async fn take_over(&mut self) -> Result<()> {
        if self.state == ProjectionState::Building {
            self.form.activate(&self.core, self.token).await?;
            self.state = ProjectionState::Active;
            tracing::info!(projection = %self.core.id, "new version of a projection is active");
            sweep(&self.core);
        }
        Ok(())
    }

    /// Extends the lease if that is due.
    pub(crate) async fn keep(&mut self) -> Result<()> {
        let lease = self.core.settings.lease;
        if self.kept.due_in(lease).is_zero() {
            self.core.log().keep_reader(&self.core.id, self.token, lease).await?;
            self.kept.now();
        }
        Ok(())
    }

    /// How long until a failure is retried.
    fn pause(&self) -> Duration {
        self.core.settings.retry.delay(self.failures, rand::random())
    }

    async fn note(&mut self, failure: &Failure) -> Result<()> {
        let failed = Failed {
            id: self.core.id.clone(),
            token: self.token,
            entry: failure.entry,
            error: failure.error.chars().take(4_000).collect(),
            retry_after: self.pause(),
            lease: self.core.settings.lease,
        };
        self.kept.now();
        self.core.log().fail(failed).await
    }

    pub(crate) async fn leave(mut self) -> Result<()> {
        self.left = true;
        self.core.log().leave_reader(&self.core.id, self.token).await
    }
}

impl<F: Form> Drop for Session<F> {
    fn drop(&mut self) {
        self.heartbeat.abort();
        if let (false, Ok(runtime)) = (self.left, tokio::runtime::Handle::try_current()) {
            let (core, token) = (Arc::clone(&self.core), self.token);
            // If this fails, the lease runs out.
            runtime.spawn(async move {
                let _ = core.log().leave_reader(&core.id, token).await;
            });
        }
    }
}

async fn read(core: &Core, after: Position, limit: usize) -> Result<LogPage> {
    let query = ReadLog { after, ends: core.settings.ends.clone(), types: Some(core.types.clone()), limit };
    core.log().read_log(query).await
}

/// Extends the reader's lease while a batch takes long, until it is lost or the session ends. On SQLite this waits for
/// the transaction of the batch, during which no other process can take the lease either.
async fn heartbeat(core: Arc<Core>, token: i64, kept: Arc<Kept>) {
    let lease = core.settings.lease;
    loop {
        let due_in = kept.due_in(lease);
        if !due_in.is_zero() {
            tokio::time::sleep(due_in).await;
            continue;
        }
        match core.log().keep_reader(&core.id, token, lease).await {
            Ok(()) => kept.now(),
            Err(error) if error.kind() == ErrorKind::Fenced => return,
            Err(error) => {
                tracing::debug!(%error, projection = %core.id, "extending the reader's lease failed, retrying");
                tokio::time::sleep(lease / 10).await;
            }
        }
    }
}

/// Whether an error stops the projection: it is neither transient nor a lost lease.
fn is_failure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Conflict | ErrorKind::Full | ErrorKind::AlreadyEnded)
}

/// The error of a commit whose task ended without an answer.
fn write_error(ended: JoinError) -> Error {
    match ended.try_into_panic() {
        Ok(panic) => Error::invalid(panicked(&*panic)),
        Err(_) => lost(),
    }
}

/// Splits a page into batches; the last one, empty or not, also covers unwanted rows at the end of the page.
fn batches(page: LogPage, size: usize) -> Vec<Batch> {
    let LogPage { rows, end, .. } = page;
    let mut batches: Vec<Batch> = Vec::with_capacity(rows.len() / size + 1);
    let mut rest = rows.into_iter().peekable();
    loop {
        let rows: Vec<LogRow> = rest.by_ref().take(size).collect();
        let is_last = rest.peek().is_none();
        let at = if is_last { end } else { rows.last().map_or(end, |row| row.position) };
        batches.push(Batch { rows, end: at });
        if is_last {
            return batches;
        }
    }
}

/// Removes the documents of retired versions in the background.
fn sweep(core: &Arc<Core>) {
    let core = Arc::clone(core);
    tokio::spawn(async move {
        loop {
            match core.log().sweep(&core.id.name).await {
                Ok(true) => tokio::task::yield_now().await,
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!(%error, projection = %core.id, "removing old documents failed, retrying later");
                    return;
                }
            }
        }
    });
}

/// Whether an error ends the loop, for only an operator can resolve it.
fn is_final(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Schema)
}

/// Runs a projection until its caller stops polling it, or an error that only an operator can resolve.
pub(crate) struct Loop<F: Form> {
    core: Arc<Core>,
    form: Arc<F>,
    reader: String,
    session: Option<Session<F>>,
    lag_shown: Option<Instant>,
}

impl<F: Form> Loop<F> {
    pub(crate) fn new(core: &Arc<Core>, form: &Arc<F>) -> Self {
        Self {
            core: Arc::clone(core),
            form: Arc::clone(form),
            reader: reader_name(core),
            session: None,
            lag_shown: None,
        }
    }

    pub(crate) async fn run(&mut self) -> Result<()> {
        let mut wakes = self.core.queue.shared().wake_ups.log();
        let mut errors_in_row = 0_u32;
        let mut idle = Duration::ZERO;
        while !self.core.queue.shared().is_closed() {
            wakes.mark_unchanged();
            match self.turn().await {
                Ok(Turn::Idle) => {
                    errors_in_row = 0;
                    // Rows that were just written may be held back for a moment by an open transaction: read again
                    // after 5 ms, doubling up to the poll interval.
                    idle = (idle * 2).max(Duration::from_millis(5)).min(self.core.settings.poll);
                    tokio::select! {
                        () = tokio::time::sleep(idle) => {}
                        woken = wakes.changed() => if woken.is_ok() { idle = Duration::ZERO },
                    }
                }
                Ok(Turn::Standby) => {
                    errors_in_row = 0;
                    let check = (self.core.settings.lease / 4).clamp(Duration::from_millis(20), Duration::from_secs(1));
                    tokio::time::sleep(check).await;
                }
                Ok(Turn::Stopped(pause)) => self.wait_out(pause).await,
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => {
                    self.session = None;
                    errors_in_row = errors_in_row.saturating_add(1);
                    let pause = error_pause(&error, errors_in_row);
                    tracing::warn!(%error, projection = %self.core.id, retry_in = ?pause, "projection failed");
                    tokio::time::sleep(pause).await;
                }
            }
        }
        Ok(())
    }

    async fn turn(&mut self) -> Result<Turn> {
        if self.session.is_none() {
            self.session = Session::take(&self.core, &self.form, &self.reader).await?;
        }
        let Some(session) = &mut self.session else { return Ok(Turn::Standby) };
        session.keep().await?;
        let passed = session.pass().await?;
        if let Passed::Stopped(_) = passed {
            return Ok(Turn::Stopped(session.pause()));
        }
        if self.lag_shown.is_none_or(|at| at.elapsed() >= LAG_EVERY) {
            self.lag_shown = Some(Instant::now());
            self.core.meters.show(&self.core.log().lag(&self.core.id, LAG_BOUND).await?);
        }
        Ok(Turn::Idle)
    }

    /// Waits until a failure is retried, and extends the lease meanwhile.
    async fn wait_out(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        while let Some(rest) = until.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
            tokio::time::sleep(rest.min(self.core.settings.lease / 4)).await;
            let Some(session) = &mut self.session else { return };
            if let Err(error) = session.keep().await {
                tracing::debug!(%error, projection = %self.core.id, "extending the reader's lease failed");
                self.session = None;
                return;
            }
        }
    }

    /// Gives the lease back.
    pub(crate) async fn leave(self) -> Result<()> {
        match self.session {
            Some(session) => session.leave().await,
            None => Ok(()),
        }
    }
}

enum Turn {
    /// Nothing more to read for now.
    Idle,
    /// Another process is the reader, or a later version is active.
    Standby,
    /// Stopped at a failure, which is retried after this time.
    Stopped(Duration),
}

/// The pause before the loop takes the lease again: short after a lost lease, doubling from 100 ms to 6.4 s otherwise.
fn error_pause(error: &Error, errors_in_row: u32) -> Duration {
    if error.kind() == ErrorKind::Fenced && errors_in_row < 3 {
        return Duration::from_millis(10);
    }
    Duration::from_millis(50 << errors_in_row.min(7))
}

/// A name that no other reader has: the worker's and a random number.
pub(crate) fn reader_name(core: &Core) -> String {
    format!("{}/{:08x}", core.queue.shared().options.worker, rand::random::<u32>())
}
