//! The form whose handlers write with SQL, in the transaction that moves the position.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidegate_store::{ErrorKind, LogRow, Position, Reader, Step};

use super::core::Core;
use super::event::{BoxError, LoggedEvent, error_chain, panicked};
use super::kind::{Batch, Committed, Failure, Form, Prepared};
use crate::error::{Error, Result, is_transient};
use crate::queue::transactions::db_tx::DbTx;

type Answer<'a> = BoxFuture<'a, Result<(), BoxError>>;
type Handler = Arc<dyn for<'a> Fn(&'a DbTx<'a>, LogRow) -> Answer<'a> + Send + Sync>;
type Hook = Arc<dyn for<'a> Fn(&'a DbTx<'a>, i32) -> Answer<'a> + Send + Sync>;

/// A projection whose handlers write with SQL.
#[derive(Default)]
pub struct Sql {
    handlers: HashMap<String, Handler>,
    setup: Option<Hook>,
    switch: Option<Hook>,
}

impl fmt::Debug for Sql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sql").field("types", &self.handlers.keys()).finish_non_exhaustive()
    }
}

impl Sql {
    /// Adds a handler; false when there was one for the type already.
    pub(super) fn add<E, F>(
        &mut self,
        event_type: String,
        read: fn(&tidegate_store::Fact) -> Result<E, String>,
        handler: F,
    ) -> bool
    where
        E: Send + 'static,
        F: for<'a> Fn(&'a DbTx<'a>, LoggedEvent<E>) -> Answer<'a> + Send + Sync + 'static,
    {
        let handler = Arc::new(handler);
        let erased: Handler = Arc::new(move |tx, row| match LoggedEvent::new(row, read) {
            Ok(event) => handler(tx, event),
            Err(error) => std::future::ready(Err(error.into())).boxed(),
        });
        self.handlers.insert(event_type, erased).is_none()
    }

    pub(super) fn set_setup(&mut self, hook: Hook) {
        self.setup = Some(hook);
    }

    pub(super) fn set_switch(&mut self, hook: Hook) {
        self.switch = Some(hook);
    }

    /// Handles all rows in one transaction. `Ok(Err)` is the index and the error of the first row whose handler failed:
    /// then nothing was written.
    async fn write(&self, core: &Core, step: Step, rows: &[LogRow]) -> Result<Result<(), (usize, String)>> {
        let failed: Arc<Mutex<Option<(usize, String)>>> = Arc::default();
        let note = Arc::clone(&failed);
        let handled = |(index, row): (usize, &LogRow)| {
            Some((index, Arc::clone(self.handlers.get(&row.fact.event_type)?), row.clone()))
        };
        let work: Vec<(usize, Handler, LogRow)> = rows.iter().enumerate().filter_map(handled).collect();
        let written = core
            .queue
            .in_transaction(move |tx| {
                async move {
                    for (index, handler, row) in work {
                        // When the database has rolled the transaction back meanwhile, the handler's writes are gone.
                        let answer = run(|| handler(tx, row))
                            .await?
                            .and_then(|()| tx.check().map_err(|error| error_chain(&error)));
                        if let Err(error) = answer {
                            *note.lock().unwrap_or_else(PoisonError::into_inner) = Some((index, error));
                            return Err(Error::invalid("a handler failed"));
                        }
                    }
                    tx.advance_projection(step).await
                }
                .boxed()
            })
            .await;
        let failed = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (written, failed) {
            (_, Some(failed)) => Ok(Err(failed)),
            (Err(error), None) => Err(error),
            (Ok(()), None) => Ok(Ok(())),
        }
    }

    /// Runs a hook and `then` in one transaction.
    async fn hook(&self, core: &Core, (name, hook): (&'static str, Option<&Hook>), then: Then) -> Result<()> {
        let (hook, id) = (hook.cloned(), core.id.clone());
        core.queue
            .in_transaction(move |tx| {
                async move {
                    if let Some(hook) = hook
                        && let Err(error) = run(|| hook(tx, id.version)).await?
                    {
                        return Err(Error::invalid(format!("the hook `{name}` of projection {id} failed: {error}")));
                    }
                    match then {
                        Then::Activate(token) => tx.activate_projection(id, token).await,
                        Then::Advance(step) => tx.advance_projection(step).await,
                    }
                }
                .boxed()
            })
            .await
    }
}

/// What commits with a hook.
enum Then {
    /// The version becomes the active one.
    Activate(i64),
    /// A step that does not move the position: it compares the reader's token and clears the stored failure.
    Advance(Step),
}

/// Separates a failure of the handler (inner result) from a transient error of the database, which is retried (outer
/// result). A panic may come from the handler's future or from the call that creates it.
async fn run<'a>(call: impl FnOnce() -> Answer<'a>) -> Result<Result<(), String>> {
    let answer = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(answer) => answer,
        Err(panic) => return Ok(Err(panicked(&*panic))),
    };
    match AssertUnwindSafe(answer).catch_unwind().await {
        Err(panic) => Ok(Err(panicked(&*panic))),
        Ok(Ok(())) => Ok(Ok(())),
        Ok(Err(error)) => match error.downcast::<Error>() {
            Ok(error) if is_transient(&error) || error.kind() == ErrorKind::Indeterminate => Err(*error),
            Ok(error) => Ok(Err(error_chain(&*error))),
            Err(error) => Ok(Err(error_chain(&*error))),
        },
    }
}

impl Form for Sql {
    type Memory = ();
    type Work = Vec<LogRow>;

    fn types(&self) -> Vec<String> {
        self.handlers.keys().cloned().collect()
    }

    async fn begin(&self, core: &Core, reader: &Reader) -> Result<()> {
        let Reader { token, position, .. } = *reader;
        if position > Position::START || self.setup.is_none() {
            return Ok(());
        }
        let (id, lease) = (core.id.clone(), core.settings.lease);
        let step = Step { id, token, from: position, to: position, events: 0, lease };
        self.hook(core, ("setup", self.setup.as_ref()), Then::Advance(step)).await
    }

    async fn prepare(&self, _: &Core, (): &mut (), batch: Batch) -> Result<Prepared<Vec<LogRow>>> {
        Ok(Prepared { events: batch.rows.len(), work: batch.rows, to: batch.end, failure: None })
    }

    async fn commit(&self, core: &Core, step: Step, rows: Vec<LogRow>) -> Result<Committed> {
        let mut done = Committed { to: step.to, events: step.events, failure: None };
        let Err((index, error)) = self.write(core, step.clone(), &rows).await? else { return Ok(done) };
        let Some(entry) = rows.get(index).map(|row| row.id) else { return Err(Error::invalid(error)) };
        done.failure = Some(Failure::of(entry, error));
        // Commit the events before it.
        let before = &rows[..index];
        done.events = before.len() as u64;
        done.to = before.last().map_or(step.from, |row| row.position);
        if !before.is_empty() {
            let (from, step) = (step.from, core.shortened(&step, done.to, done.events));
            if let Err((index, error)) = self.write(core, step, before).await? {
                let error = format!("it failed on the second run, without the event that failed after it: {error}");
                let failure = Some(Failure { entry: before.get(index).map(|row| row.id), error });
                return Ok(Committed { to: from, events: 0, failure });
            }
        }
        Ok(done)
    }

    async fn activate(&self, core: &Core, token: i64) -> Result<()> {
        self.hook(core, ("switch", self.switch.as_ref()), Then::Activate(token)).await
    }
}
