//! The form that folds events into documents by key.

use std::collections::{HashMap, HashSet};
use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_core::EntryId;
use tidegate_store::{Change, LogRow, Position, Reader, Step};

use super::core::Core;
use super::event::{BoxError, FoldAnswer, LoggedEvent, guarded, told};
use super::kind::{Batch, Committed, Failure, Form, Prepared};
use crate::error::Result;

/// States remembered at most, twice over.
const REMEMBERED: usize = 50_000;
/// The same in bytes of their documents.
const REMEMBERED_BYTES: usize = 32 << 20;

type Fold<S> = Box<dyn FnOnce(Option<S>) -> Result<Option<S>, String> + Send>;

/// An event whose payload is read: which document it is about, and what it makes of it.
struct Opened<S> {
    key: Option<String>,
    fold: Fold<S>,
}

/// An event with its entry, or why it cannot be read.
type Event<S> = (EntryId, Result<Opened<S>, String>);
/// Keys whose documents cannot be read, and why.
type Unreadable = HashMap<String, String>;
type Handler<S> = Box<dyn Fn(LogRow) -> Result<Opened<S>, String> + Send + Sync>;

/// A fold into documents of one state.
pub struct Documents<S> {
    handlers: HashMap<String, Handler<S>>,
}

impl<S> fmt::Debug for Documents<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Documents").field("types", &self.handlers.keys()).finish()
    }
}

impl<S: Send + 'static> Documents<S> {
    pub(super) fn new() -> Self {
        Self { handlers: HashMap::new() }
    }

    /// Whether there was no handler for the type yet.
    pub(super) fn add<E, K, F, A>(
        &mut self,
        event_type: String,
        read: fn(&tidegate_store::Fact) -> Result<E, String>,
        key: impl Fn(&LoggedEvent<E>) -> K + Send + Sync + 'static,
        fold: F,
    ) -> bool
    where
        E: Send + 'static,
        K: Into<Option<String>>,
        F: Fn(Option<S>, LoggedEvent<E>) -> A + Send + Sync + 'static,
        A: FoldAnswer<S>,
    {
        let fold = std::sync::Arc::new(fold);
        let handler = move |row: LogRow| {
            let event = LoggedEvent::new(row, read)?;
            let (key, fold) = (key(&event).into(), std::sync::Arc::clone(&fold));
            let fold: Fold<S> =
                Box::new(move |state| fold(state, event).into_state().map_err(|error: BoxError| told(&*error)));
            Ok(Opened { key, fold })
        };
        self.handlers.insert(event_type, Box::new(handler)).is_none()
    }

    fn open(&self, row: LogRow) -> Result<Opened<S>, String> {
        match self.handlers.get(&row.fact.event_type) {
            Some(handler) => guarded(|| handler(row)),
            None => Ok(Opened { key: None, fold: Box::new(Ok) }),
        }
    }
}

/// A state as the last batch left it.
struct Known<S> {
    state: Option<S>,
    /// Whether the database has a document, once all batches are written.
    stored: bool,
    bytes: usize,
}

/// States of late. Two halves: one that is not asked for while the other fills up is forgotten.
pub(crate) struct Memory<S> {
    young: HashMap<String, Known<S>>,
    old: HashMap<String, Known<S>>,
    bytes: usize,
}

impl<S> Default for Memory<S> {
    fn default() -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), bytes: 0 }
    }
}

impl<S> Memory<S> {
    /// Forgets the older half when the younger is full. Called once per batch, so that what the batch before touched,
    /// which may not be written yet, stays.
    fn make_room(&mut self) {
        if self.young.len() > REMEMBERED || self.bytes > REMEMBERED_BYTES {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
    }

    /// Keys whose states are not known; all others are then among the young.
    fn missing(&mut self, opened: &[Event<S>]) -> Vec<String> {
        let mut seen = HashSet::new();
        let mut missing = Vec::new();
        for (_, event) in opened {
            if let Ok(Opened { key: Some(key), .. }) = event
                && seen.insert(key)
                && !self.refresh(key)
            {
                missing.push(key.clone());
            }
        }
        missing
    }

    /// Whether a state is known; it is then among the young.
    fn refresh(&mut self, key: &str) -> bool {
        if self.young.contains_key(key) {
            return true;
        }
        let Some((key, known)) = self.old.remove_entry(key) else { return false };
        self.put(key, known);
        true
    }

    fn put(&mut self, key: String, known: Known<S>) {
        self.bytes += known.bytes;
        if let Some(before) = self.young.insert(key, known) {
            self.bytes -= before.bytes.min(self.bytes);
        }
    }
}

/// What one batch has changed.
struct Folding<'m, S> {
    memory: &'m mut Memory<S>,
    /// Keys in the order of their first change, and the entry that changed each last.
    touched: Vec<String>,
    last: HashMap<String, EntryId>,
}

impl<S: Serialize> Folding<'_, S> {
    fn fold(&mut self, key: String, entry: EntryId, fold: Fold<S>) -> Result<(), String> {
        let known = self.memory.young.get_mut(&key);
        let known = known.ok_or_else(|| "the document was not loaded".to_owned())?;
        let state = known.state.take();
        known.state = guarded(|| fold(state))?;
        if self.last.insert(key.clone(), entry).is_none() {
            self.touched.push(key);
        }
        Ok(())
    }

    /// The documents as they are to be written.
    fn changes(self) -> Result<Vec<Change>, Failure> {
        let mut changes = Vec::with_capacity(self.touched.len());
        for key in self.touched {
            let Some(known) = self.memory.young.get_mut(&key) else { continue };
            let document = match &known.state {
                None if !known.stored => continue,
                None => None,
                Some(state) => Some(Bytes::from(serde_json::to_vec(state).map_err(|error| Failure {
                    entry: self.last.get(&key).copied(),
                    error: format!("the state of {key:?} cannot be written: {error}"),
                })?)),
            };
            let bytes = document.as_ref().map_or(0, Bytes::len) + key.len();
            self.memory.bytes = (self.memory.bytes + bytes).saturating_sub(known.bytes);
            known.bytes = bytes;
            let existed = std::mem::replace(&mut known.stored, document.is_some());
            changes.push(Change { key, document, existed });
        }
        Ok(changes)
    }
}

impl<S: Serialize + DeserializeOwned + Send + Sync + 'static> Documents<S> {
    /// Brings the states of these keys into memory. Answers those that could not be read, and why: their events fail.
    async fn load(&self, core: &Core, memory: &mut Memory<S>, mut missing: Vec<String>) -> Result<Unreadable> {
        let mut unreadable = Unreadable::new();
        // No database could hold them.
        for key in missing.extract_if(.., |key| key.contains('\0')) {
            unreadable.insert(key, "a key must not contain a zero byte".to_owned());
        }
        if missing.is_empty() {
            return Ok(unreadable);
        }
        let found = core.log()?.documents(&core.id, missing.clone()).await?;
        for (key, document) in missing.into_iter().zip(found) {
            let bytes = key.len() + document.as_ref().map_or(0, Bytes::len);
            match document.as_deref().map(serde_json::from_slice).transpose() {
                Ok(state) => memory.put(key, Known { state, stored: document.is_some(), bytes }),
                Err(error) => {
                    unreadable.insert(key, format!("the stored document cannot be read: {error}"));
                }
            }
        }
        Ok(unreadable)
    }

    /// Folds up to the first failure.
    fn fold_all(
        memory: &mut Memory<S>,
        opened: Vec<Event<S>>,
        unreadable: &Unreadable,
        end: Position,
    ) -> Prepared<Vec<Change>> {
        let mut folding = Folding { memory, touched: Vec::new(), last: HashMap::new() };
        let mut events = 0;
        let refused = |events, failure| Prepared { work: Vec::new(), events, to: end, failure: Some(failure) };
        for (entry, event) in opened {
            let folded = event.and_then(|Opened { key, fold }| match key {
                None => Ok(()),
                Some(key) => match unreadable.get(&key) {
                    Some(error) => Err(error.clone()),
                    None => folding.fold(key, entry, fold),
                },
            });
            if let Err(error) = folded {
                return refused(events, Failure::of(entry, error));
            }
            events += 1;
        }
        match folding.changes() {
            Ok(work) => Prepared { work, events, to: end, failure: None },
            Err(failure) => refused(0, failure),
        }
    }
}

impl<S: Serialize + DeserializeOwned + Send + Sync + 'static> Form for Documents<S> {
    type Memory = Memory<S>;
    type Work = Vec<Change>;

    fn types(&self) -> Vec<String> {
        self.handlers.keys().cloned().collect()
    }

    async fn begin(&self, _: &Core, _: &Reader) -> Result<()> {
        Ok(())
    }

    async fn prepare(&self, core: &Core, memory: &mut Memory<S>, batch: Batch) -> Result<Prepared<Vec<Change>>> {
        memory.make_room();
        let opened: Vec<_> = batch.rows.into_iter().map(|row| (row.id, self.open(row))).collect();
        let missing = memory.missing(&opened);
        let unreadable = self.load(core, memory, missing).await?;
        Ok(Self::fold_all(memory, opened, &unreadable, batch.end))
    }

    async fn commit(&self, core: &Core, step: Step, work: Vec<Change>) -> Result<Committed> {
        let (to, events) = (step.to, step.events);
        core.log()?.apply(step, work).await?;
        Ok(Committed { to, events, failure: None })
    }

    async fn activate(&self, core: &Core, token: i64) -> Result<()> {
        core.log()?.activate(&core.id, token).await
    }
}
