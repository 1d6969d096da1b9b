//! Ending entries, one by one or in batches.

use std::time::Instant;

use tidegate_core::{End, EntryId};
use tidegate_store::{Finalize, Finalized};

use super::EventQueue;
use super::delivery::{QueuedEvent, end_for, may_end_later};
use super::retry_window::RetryWindow;
use crate::batch::verbs::Ending;
use crate::error::Result;

impl EventQueue {
    /// Ends an entry by its id alone, no matter which worker holds it: COMPLETED, or COMPLETED_WITH_ERRORS when errors
    /// are given. An entry that has ended already stays as it is.
    ///
    /// # Errors
    /// `NotFound` when there is no such entry.
    pub async fn finalize<E: Into<String>>(
        &self,
        id: EntryId,
        errors: impl IntoIterator<Item = E>,
    ) -> Result<Finalized> {
        let (end, errors) = end_for(errors);
        self.finish(Finalize { id, token: None, end, errors, results: None, attempt: None }).await
    }

    /// Ends an entry in any way, under a lease token or by its id alone.
    ///
    /// # Errors
    /// `Fenced` when a token is given whose lease is not held, `NotFound` when there is no such entry.
    pub async fn finish(&self, item: Finalize) -> Result<Finalized> {
        self.shared().batchers.finish.call(Ending { item, queue: self.name().clone() }).await
    }

    /// Ends a batch as COMPLETED, at the least cost per entry, with one result per event in order. Like
    /// [`QueuedEvent::complete`], it retries through a short outage. If the caller drops the future, entries that were
    /// already handed to the batcher are still ended, and the rest is released.
    pub async fn finalize_many(&self, events: Vec<QueuedEvent>) -> Vec<Result<Finalized>> {
        self.end_many(events.into_iter().map(|event| (completed(&event), event)).collect()).await
    }

    /// Ends a batch, each entry in its own way, with one result per event in order.
    pub(crate) async fn end_many(&self, ends: Vec<(Finalize, QueuedEvent)>) -> Vec<Result<Finalized>> {
        let most = self.shared().options.limits.batch_items.max(1);
        let mut answers = Vec::with_capacity(ends.len());
        let mut rest = ends;
        while !rest.is_empty() {
            let tail = if rest.len() > most { rest.split_off(most) } else { Vec::new() };
            let mut batch = std::mem::replace(&mut rest, tail);
            let ended = self.end_batch(&mut batch).await;
            self.count_ended(&batch, &ended);
            answers.extend(ended);
        }
        answers
    }

    /// Ends a batch with one flush, and again for those that failed, each while its own lease lasts.
    async fn end_batch(&self, batch: &mut [(Finalize, QueuedEvent)]) -> Vec<Result<Finalized>> {
        let mut window = RetryWindow::new(Instant::now(), self.shared().options.limits.deadline);
        let mut answers = self.try_end(batch.iter_mut().collect()).await;
        loop {
            let now = Instant::now();
            let may_retry = |(answer, (_, event)): (&Result<Finalized>, &(Finalize, QueuedEvent))| {
                answer.as_ref().is_err_and(may_end_later) && window.is_open(now, event.lease().until())
            };
            let retried: Vec<bool> = answers.iter().zip(batch.iter()).map(may_retry).collect();
            if !retried.contains(&true) || self.shared().is_closed() {
                return answers;
            }
            tokio::time::sleep(window.next_pause()).await;
            let again = answers.iter_mut().zip(batch.iter_mut()).zip(retried).filter(|(_, again)| *again);
            let (open, ends): (Vec<_>, Vec<_>) = again.map(|(item, _)| item).unzip();
            for (answer, again) in open.into_iter().zip(self.try_end(ends).await) {
                *answer = again;
            }
        }
    }

    /// One flush. Entries whose end may be retried get back their origin, so that dropping them releases them.
    async fn try_end(&self, mut ends: Vec<&mut (Finalize, QueuedEvent)>) -> Vec<Result<Finalized>> {
        let queue = |event: &QueuedEvent| event.queue().unwrap_or_else(|| self.name()).clone();
        let items = ends.iter().map(|(item, event)| Ending { item: item.clone(), queue: queue(event) }).collect();
        let ticket = match self.shared().batchers.finish.submit_many(items).await {
            Ok(ticket) => ticket,
            Err(error) => return ends.iter().map(|_| Err(error.clone())).collect(),
        };
        let origins: Vec<_> = ends.iter_mut().map(|(_, event)| event.disarm()).collect();
        let answered = ticket.answers().await;
        let answers = answered.unwrap_or_else(|error| ends.iter().map(|_| Err(error.clone())).collect());
        for ((end, origin), answer) in ends.into_iter().zip(origins).zip(&answers) {
            if answer.as_ref().is_err_and(may_end_later) {
                end.1.arm(origin);
            }
        }
        answers
    }

    fn count_ended(&self, batch: &[(Finalize, QueuedEvent)], answers: &[Result<Finalized>]) {
        let shared = self.shared();
        let now = Instant::now();
        let ended = batch.iter().zip(answers).filter(|(_, answer)| answer.is_ok());
        for ((_, event), _) in ended {
            shared.meters.claim_to_finish.record(now.duration_since(event.claimed_since()).as_secs_f64());
        }
        if batch.iter().any(|(_, event)| event.group.is_some()) {
            shared.wake_ups.wake(self.name()); // for the next entry of each group
        }
    }
}

fn completed(event: &QueuedEvent) -> Finalize {
    Finalize { id: event.id, token: Some(event.token), end: End::Completed, errors: None, results: None, attempt: None }
}
