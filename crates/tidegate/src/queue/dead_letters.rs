//! Dead letters: listing, redriving and discarding them.

use std::time::Duration;

use tidegate_core::{EntryId, Generation};
use tidegate_store::{DeadLetters, EntryView};

use super::EventQueue;
use super::entries::one;
use crate::error::{Error, Result};

/// Most dead letters read in one step.
const PAGE: usize = 100;

/// Which dead letters to redrive or discard, and how fast.
///
/// ```
/// # async fn example(queue: tidegate::EventQueue) -> tidegate::Result<()> {
/// use tidegate::DeadLetterFilter;
/// let redriven = queue.redrive_all(DeadLetterFilter::new().event_type("mail.wanted").per_second(50)).await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetterFilter {
    /// Only dead letters of this event type; `None`: of every type.
    pub event_type: Option<String>,
    /// Only dead letters whose errors contain this text.
    pub error_contains: Option<String>,
    /// Only dead letters with higher entry numbers than this one.
    pub after: Option<EntryId>,
    /// Most dead letters to act on.
    pub limit: usize,
    /// Most dead letters to act on per second.
    pub per_second: u32,
}

impl Default for DeadLetterFilter {
    fn default() -> Self {
        Self { event_type: None, error_contains: None, after: None, limit: usize::MAX, per_second: 1_000 }
    }
}

impl DeadLetterFilter {
    /// A filter for all dead letters, at 1,000 per second.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects dead letters of this event type.
    #[must_use]
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// Selects dead letters whose errors contain this text.
    #[must_use]
    pub fn error_contains(mut self, text: impl Into<String>) -> Self {
        self.error_contains = Some(text.into());
        self
    }

    /// Selects dead letters with higher entry numbers than this one.
    #[must_use]
    pub fn after(mut self, id: EntryId) -> Self {
        self.after = Some(id);
        self
    }

    /// Limits how many dead letters to act on.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Limits how many dead letters to act on per second.
    #[must_use]
    pub fn per_second(mut self, rate: u32) -> Self {
        self.per_second = rate;
        self
    }

    fn matches(&self, entry: &EntryView) -> bool {
        let Some(text) = &self.error_contains else { return true };
        entry.error.as_ref().is_some_and(|error| error.contains(text.as_str()))
    }
}

impl EventQueue {
    /// Dead letters of this queue by entry number: up to `limit` above `after`.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn dead_letters(&self, after: Option<EntryId>, limit: usize) -> Result<Vec<EntryView>> {
        let query = DeadLetters { queue: self.name().clone(), event_type: None, after, limit };
        self.shared().store.dead_letters(query).await
    }

    /// Redrives a dead letter, or an entry that is kept in its place: starts it over as a new generation.
    ///
    /// # Errors
    /// `Conflict` when it is neither, `NotFound` when there is no such entry.
    pub async fn redrive(&self, id: EntryId) -> Result<Generation> {
        let answer = one(self.shared().store.redrive_manually(vec![self.manual(id, None)]).await?, id)?;
        let queue = self.queue_of(id).await;
        self.shared().wake_ups.wake(&queue);
        Ok(answer)
    }

    /// Discards a dead letter: takes it off the list without redriving it.
    ///
    /// # Errors
    /// `Conflict` when it is not a dead letter, `NotFound` when there is no such entry.
    pub async fn discard(&self, id: EntryId) -> Result<()> {
        one(self.shared().store.discard(vec![id]).await?, id)
    }

    /// Redrives all dead letters that match the filter, at its rate, and returns how many. Each is redriven at most
    /// once per call, even if it becomes a dead letter again meanwhile.
    ///
    /// # Errors
    /// `Invalid` when the rate is zero, or any error of the store; what was redriven before it stays redriven.
    pub async fn redrive_all(&self, filter: DeadLetterFilter) -> Result<u64> {
        self.sweep(filter, Sweep::Redrive).await
    }

    /// Discards all dead letters that match the filter, at its rate, and returns how many.
    ///
    /// # Errors
    /// `Invalid` when the rate is zero, or any error of the store; what was discarded before it stays discarded.
    pub async fn discard_all(&self, filter: DeadLetterFilter) -> Result<u64> {
        self.sweep(filter, Sweep::Discard).await
    }

    async fn sweep(&self, filter: DeadLetterFilter, what: Sweep) -> Result<u64> {
        if filter.per_second == 0 {
            return Err(Error::invalid("per_second must be at least 1"));
        }
        let step = PAGE.min(filter.per_second as usize);
        let mut next_at = tokio::time::Instant::now();
        let mut after = filter.after;
        let mut done = 0;
        while (done as usize) < filter.limit {
            let query =
                DeadLetters { queue: self.name().clone(), event_type: filter.event_type.clone(), after, limit: step };
            let page = self.shared().store.dead_letters(query).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            let left = filter.limit - done as usize;
            let ids: Vec<EntryId> =
                page.iter().filter(|entry| filter.matches(entry)).map(|entry| entry.id).take(left).collect();
            if ids.is_empty() {
                continue;
            }
            tokio::time::sleep_until(next_at).await;
            next_at = tokio::time::Instant::now() + Duration::from_secs(1) * ids.len() as u32 / filter.per_second;
            // Entries that another caller has redriven or discarded meanwhile are refused, and not counted.
            done += match what {
                Sweep::Redrive => {
                    let items = ids.into_iter().map(|id| self.manual(id, None)).collect();
                    count_ok(&self.shared().store.redrive_manually(items).await?)
                }
                Sweep::Discard => count_ok(&self.shared().store.discard(ids).await?),
            };
            self.shared().wake_ups.wake(self.name());
        }
        Ok(done)
    }
}

#[derive(Debug, Clone, Copy)]
enum Sweep {
    Redrive,
    Discard,
}

fn count_ok<T>(answers: &[Result<T>]) -> u64 {
    answers.iter().filter(|answer| answer.is_ok()).count() as u64
}
