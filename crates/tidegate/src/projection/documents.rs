//! The form that folds events into documents by key, and the memory of their states.

use std::collections::{HashMap, HashSet};
use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_core::EntryId;
use tidegate_store::{Change, LogRow, Position, Reader, Step};

use super::core::Core;
use super::event::{BoxError, FoldAnswer, LoggedEvent, error_chain, guarded};
use super::kind::{Batch, Committed, Failure, Form, Prepared};
use crate::error::Result;

/// Most states in each of the two halves of the memory.
const REMEMBERED: usize = 50_000;
/// Most bytes of documents in each half.
const REMEMBERED_BYTES: usize = 32 << 20;

type Fold<S> = Box<dyn FnOnce(Option<S>) -> Result<Option<S>, String> + Send>;

/// An event with its decoded payload: the key of the document that it changes, and the fold.
struct Opened<S> {
    key: Option<String>,
    fold: Fold<S>,
}

/// An entry and its event, or why that cannot be read.
type Event<S> = (EntryId, Result<Opened<S>, String>);
/// Keys whose documents cannot be read, with the error.
type Unreadable = HashMap<String, String>;
type Handler<S> = Box<dyn Fn(LogRow) -> Result<Opened<S>, String> + Send + Sync>;

/// A projection that folds events into documents of type `S`.
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

    /// Adds a handler; false when there was one for the type already.
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
                Box::new(move |state| fold(state, event).into_state().map_err(|error: BoxError| error_chain(&*error)));
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

/// A state after the last batch.
struct Known<S> {
    state: Option<S>,
    /// Whether the database has a document once all batches are committed.
    stored: bool,
    bytes: usize,
}

/// Recently used states, in two halves: a state that is not used while the younger half fills up is evicted.
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
    /// Drops the older half when the younger one is full. Called once per batch, so that states of the batch before,
    /// which may not be committed yet, stay.
    fn evict(&mut self) {
        if self.young.len() > REMEMBERED || self.bytes > REMEMBERED_BYTES {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
    }

    /// Returns the keys whose states are not in memory, and moves all others to the younger half.
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

    /// Moves a state to the younger half; false when it is not in memory.
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

/// The changes of one batch.
struct Folding<'m, S> {
    memory: &'m mut Memory<S>,
    /// Changed keys, in the order of their first change.
    touched: Vec<String>,
    /// The entry that changed each key last.
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

    /// The changed documents, serialized.
    fn changes(self) -> Result<Vec<Change>, Failure> {
        let mut changes = Vec::with_capacity(self.touched.len());
        for key in self.touched {
            let Some(known) = self.memory.young.get_mut(&key) else { continue };
            let document = match &known.state {
                None if !known.stored => continue,
                None => None,
                Some(state) => Some(Bytes::from(serde_json::to_vec(state).map_err(|error| Failure {
                    entry: self.last.get(&key).copied(),
                    error: format!("the state of {key:?} cannot be serialized: {error}"),
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
    /// Loads the states of these keys into memory. Returns the keys that could not be read: their events fail.
    async fn load(&self, core: &Core, memory: &mut Memory<S>, mut missing: Vec<String>) -> Result<Unreadable> {
        let mut unreadable = Unreadable::new();
        // PostgreSQL cannot store a zero byte in text, so such keys are refused on both databases.
        for key in missing.extract_if(.., |key| key.contains('\0')) {
            unreadable.insert(key, "a key must not contain a zero byte".to_owned());
        }
        if missing.is_empty() {
            return Ok(unreadable);
        }
        let found = core.log().documents(&core.id, missing.clone()).await?;
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
        memory.evict();
        let opened: Vec<_> = batch.rows.into_iter().map(|row| (row.id, self.open(row))).collect();
        let missing = memory.missing(&opened);
        let unreadable = self.load(core, memory, missing).await?;
        Ok(Self::fold_all(memory, opened, &unreadable, batch.end))
    }

    async fn commit(&self, core: &Core, step: Step, work: Vec<Change>) -> Result<Committed> {
        let (to, events) = (step.to, step.events);
        core.log().apply(step, work).await?;
        Ok(Committed { to, events, failure: None })
    }

    async fn activate(&self, core: &Core, token: i64) -> Result<()> {
        core.log().activate(&core.id, token).await
    }
}
