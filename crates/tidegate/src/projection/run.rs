//! The loop of a projection: takes the reader's lease, reads pages, has batches written one after the other, stops at what
//! fails and tries it again. Knows nothing of what is made of events.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_store::{ErrorKind, Failed, LogPage, LogRow, Position, ProjectionState, ReadLog, Reader, Step};
use tokio::task::{AbortHandle, JoinError, JoinHandle};

use super::core::Core;
use super::event::{panicked, told};
use super::kind::{Batch, Committed, Failure, Form};
use crate::error::{Error, Result, lost};

/// Rows of one page at most.
const PAGE_ROWS: usize = 1_000;
/// Bytes of payloads that a page aims at.
const PAGE_BYTES: usize = 4 << 20;
/// How often the lag is shown.
const LAG_EVERY: Duration = Duration::from_secs(5);
/// How far the lag is counted for that.
pub(crate) const LAG_BOUND: u32 = 10_000;

/// How a look at the log ended.
#[derive(Debug)]
pub(crate) enum Passed {
    /// There was nothing more to read.
    CaughtUp,
    /// An event failed, or something else that does not pass by itself.
    Stopped(Failure),
}

/// The right to read, as long as it lasts. Whoever drops it gives it back.
pub(crate) struct Session<F: Form> {
    core: Arc<Core>,
    form: Arc<F>,
    token: i64,
    position: Position,
    pub(crate) state: ProjectionState,
    memory: F::Memory,
    failures: u32,
    page_rows: usize,
    /// Whether the form has begun.
    begun: bool,
    kept: Arc<Kept>,
    heartbeat: AbortHandle,
    left: bool,
}

/// When the reader's lease was last known to be kept.
struct Kept(Mutex<Instant>);

impl Kept {
    fn now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// How long until it is time to keep it again: the lease is kept when a third of it is over.
    fn due_in(&self, lease: Duration) -> Duration {
        let kept = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (lease / 3).saturating_sub(kept.elapsed())
    }
}

impl<F: Form> Session<F> {
    /// Becomes the reader, if nobody else is.
    pub(crate) async fn take(core: &Arc<Core>, form: &Arc<F>, reader: &str) -> Result<Option<Self>> {
        let taken = core.log()?.take_reader(&core.id, reader, core.settings.lease).await?;
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

    /// Reads and writes until there is nothing more for now. A new version then takes over. What fails is noted.
    pub(crate) async fn pass(&mut self) -> Result<Passed> {
        let outcome = match self.begin_and_read().await {
            Err(error) if is_failure(&error) => Ok(Passed::Stopped(Failure { entry: None, error: told(&error) })),
            outcome => outcome,
        };
        if !matches!(outcome, Ok(Passed::CaughtUp)) {
            // What is remembered may not be what is stored.
            self.memory = F::Memory::default();
        }
        match &outcome {
            Ok(Passed::CaughtUp) => self.failures = 0,
            Ok(Passed::Stopped(failure)) => {
                self.failures = self.failures.saturating_add(1);
                self.core.meters.failures.increment(1);
                match failure.entry {
                    Some(entry) => tracing::error!(projection = %self.core.id, %entry, error = failure.error,
                        "a projection stands still at an event that fails"),
                    None => tracing::error!(projection = %self.core.id, error = failure.error,
                        "a projection stands still"),
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
            // The next page comes while this one is worked on.
            let next = (!page.exhausted).then(|| self.read_ahead(page.end));
            for batch in batches(page, self.core.settings.batch) {
                let prepared = self.form.prepare(&self.core, &mut self.memory, batch).await?;
                if let Some(failure) = self.settle(writing.take()).await? {
                    return Ok(Passed::Stopped(failure));
                }
                if let Some(failure) = prepared.failure {
                    let earlier = self.take_in(prepared.events).await?;
                    return Ok(Passed::Stopped(earlier.unwrap_or(failure)));
                }
                writing = self.write(prepared.work, prepared.to, prepared.events);
            }
            let Some(next) = next else { break };
            page = next.await.unwrap_or_else(|_| Err(lost()))?;
        }
        Ok(match self.settle(writing.take()).await? {
            Some(failure) => Passed::Stopped(failure),
            None => Passed::CaughtUp,
        })
    }

    /// Takes in the first events from where the position stands, which are known to be good. A fold consumes its state, so
    /// the one that failed took that of those before it along: they are read and folded again.
    async fn take_in(&mut self, events: usize) -> Result<Option<Failure>> {
        self.memory = F::Memory::default();
        let mut rows = if events > 0 { self.read(self.position).await?.rows } else { Vec::new() };
        rows.truncate(events);
        let Some(end) = rows.last().map(|row| row.position) else { return Ok(None) };
        let prepared = self.form.prepare(&self.core, &mut self.memory, Batch { rows, end }).await?;
        if prepared.failure.is_some() {
            return Ok(prepared.failure);
        }
        let writing = self.write(prepared.work, prepared.to, prepared.events);
        self.settle(writing).await
    }

    /// Starts to write a batch, in a task of its own: whoever goes away meanwhile leaves nothing half done.
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

    /// Waits for a write.
    async fn settle(&mut self, writing: Option<JoinHandle<Result<Committed>>>) -> Result<Option<Failure>> {
        let Some(writing) = writing else { return Ok(None) };
        let Committed { to, events, failure } = writing.await.unwrap_or_else(|ended| Err(unfinished(ended)))?;
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

    /// Larger pages for smaller events: memory is bounded, and reading ahead pays.
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
            tracing::info!(projection = %self.core.id, "a new version of a projection took over");
            sweep(&self.core);
        }
        Ok(())
    }

    /// Keeps the lease if it is time to.
    pub(crate) async fn keep(&mut self) -> Result<()> {
        let lease = self.core.settings.lease;
        if self.kept.due_in(lease).is_zero() {
            self.core.log()?.keep_reader(&self.core.id, self.token, lease).await?;
            self.kept.now();
        }
        Ok(())
    }

    /// How long until an event that failed is tried again.
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
        self.core.log()?.fail(failed).await
    }

    pub(crate) async fn leave(mut self) -> Result<()> {
        self.left = true;
        self.core.log()?.leave_reader(&self.core.id, self.token).await
    }
}

impl<F: Form> Drop for Session<F> {
    fn drop(&mut self) {
        self.heartbeat.abort();
        if let (false, Ok(runtime)) = (self.left, tokio::runtime::Handle::try_current()) {
            let (core, token) = (Arc::clone(&self.core), self.token);
            // Failing that, the lease runs out.
            runtime.spawn(async move {
                if let Ok(log) = core.log() {
                    let _ = log.leave_reader(&core.id, token).await;
                }
            });
        }
    }
}

async fn read(core: &Core, after: Position, limit: usize) -> Result<LogPage> {
    let query = ReadLog { after, ends: core.settings.ends.clone(), types: Some(core.types.clone()), limit };
    core.log()?.read_log(query).await
}

/// Keeps the reader's lease while its batches take long, until it is lost or the session ends. On SQLite it waits for a
/// batch's transaction, during which nobody else can take the lease either.
async fn heartbeat(core: Arc<Core>, token: i64, kept: Arc<Kept>) {
    let lease = core.settings.lease;
    loop {
        let due_in = kept.due_in(lease);
        if !due_in.is_zero() {
            tokio::time::sleep(due_in).await;
            continue;
        }
        let Ok(log) = core.log() else { return };
        match log.keep_reader(&core.id, token, lease).await {
            Ok(()) => kept.now(),
            Err(error) if error.kind() == ErrorKind::Fenced => return,
            Err(error) => {
                tracing::debug!(%error, projection = %core.id, "the reader's lease was not kept, trying again");
                tokio::time::sleep(lease / 10).await;
            }
        }
    }
}

/// What is not the database's trouble of the moment nor a lost lease, so that people shall see it.
fn is_failure(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Conflict | ErrorKind::Full | ErrorKind::AlreadyEnded)
}

/// A write whose task ended without an answer.
fn unfinished(ended: JoinError) -> Error {
    match ended.try_into_panic() {
        Ok(panic) => Error::invalid(panicked(&*panic)),
        Err(_) => lost(),
    }
}

/// Splits a page; the last batch, empty or not, also covers unwanted rows behind it.
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

/// Removes what retired versions left, in the background.
fn sweep(core: &Arc<Core>) {
    let core = Arc::clone(core);
    tokio::spawn(async move {
        let Ok(log) = core.log() else { return };
        loop {
            match log.sweep(&core.id.name).await {
                Ok(true) => tokio::task::yield_now().await,
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!(%error, projection = %core.id, "old documents are removed later");
                    return;
                }
            }
        }
    });
}

/// What can only be mended by people.
fn is_final(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Schema)
}

/// Reads for a projection until its caller stops polling, or what only people can mend.
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
        let mut rung = self.core.queue.shared().bells.log();
        let mut troubles = 0_u32;
        let mut idle = Duration::ZERO;
        while !self.core.queue.shared().is_closed() {
            rung.mark_unchanged();
            match self.turn().await {
                Ok(Turn::Idle) => {
                    troubles = 0;
                    // What just ended may be held back for a moment, so it looks again soon and then ever less often.
                    idle = (idle * 2).max(Duration::from_millis(5)).min(self.core.settings.poll);
                    tokio::select! {
                        () = tokio::time::sleep(idle) => {}
                        heard = rung.changed() => if heard.is_ok() { idle = Duration::ZERO },
                    }
                }
                Ok(Turn::Standby) => {
                    troubles = 0;
                    let check = (self.core.settings.lease / 4).clamp(Duration::from_millis(20), Duration::from_secs(1));
                    tokio::time::sleep(check).await;
                }
                Ok(Turn::Stopped(pause)) => self.wait_out(pause).await,
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => {
                    self.session = None;
                    troubles = troubles.saturating_add(1);
                    let pause = trouble_pause(&error, troubles);
                    tracing::warn!(%error, projection = %self.core.id, retry_in = ?pause, "a projection's reader starts anew");
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
            self.core.meters.show(&self.core.log()?.lag(&self.core.id, LAG_BOUND).await?);
        }
        Ok(Turn::Idle)
    }

    /// Keeps the lease until what failed is tried again.
    async fn wait_out(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        while let Some(rest) = until.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
            tokio::time::sleep(rest.min(self.core.settings.lease / 4)).await;
            let Some(session) = &mut self.session else { return };
            if let Err(error) = session.keep().await {
                tracing::debug!(%error, projection = %self.core.id, "the reader's lease was lost");
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
    /// Somebody else reads, or a later version is active.
    Standby,
    /// Something failed; it is tried again after this.
    Stopped(Duration),
}

/// A lease that was lost is asked for again soon; trouble with the database is given time.
fn trouble_pause(error: &Error, troubles: u32) -> Duration {
    if error.kind() == ErrorKind::Fenced && troubles < 3 {
        return Duration::from_millis(10);
    }
    Duration::from_millis(50 << troubles.min(7))
}

/// A name that no other reader has.
pub(crate) fn reader_name(core: &Core) -> String {
    format!("{}/{:08x}", core.queue.shared().options.worker, rand::random::<u32>())
}
