//! The waiting claim of a claim batcher: the store answers it when something becomes claimable.

use std::sync::atomic::Ordering;
use std::time::Instant;

use tidegate_store::{Claimed, WaitingClaim};
use tokio::sync::watch;

use super::claims::{ClaimBatcher, delivered};
use crate::background::release::LateClaim;
use crate::error::Result;
use crate::queue::delivery::{Origin, QueuedEvent};

/// The waiting claim of a batcher. Dropping it withdraws the claim; entries that it gets too late are released.
pub(crate) struct WaitingClaimGuard<'a> {
    batcher: &'a ClaimBatcher,
    claim: Option<WaitingClaim>,
}

impl<'a> WaitingClaimGuard<'a> {
    /// `None` when the store does not take it, or when another waiter of the batcher has a waiting claim already.
    pub(crate) fn begin(batcher: &'a ClaimBatcher, count: usize) -> Option<Self> {
        let Origin { shared, key, .. } = &*batcher.origin;
        // Claims by tag are many and each gets few entries, so they poll when they are woken.
        if key.tags.is_some() || shared.is_closed() || batcher.has_waiting_claim.swap(true, Ordering::AcqRel) {
            return None;
        }
        let claim = key.claim(count.min(shared.options.limits.batch_items.max(1)));
        // Built before the claim, so that dropping it resets `has_waiting_claim` whatever the store answers.
        let mut waiting = Self { batcher, claim: None };
        waiting.claim = Some(shared.store.claim_when_available(claim)?);
        Some(waiting)
    }

    /// Waits for the claim's answer, until `alarm` or a wake-up. `None`: no answer yet, or the store cancelled the
    /// claim.
    pub(crate) async fn wait(
        &mut self,
        alarm: tokio::time::Instant,
        wakes: &mut watch::Receiver<u64>,
    ) -> Option<Result<Vec<QueuedEvent>>> {
        let claim = self.claim.as_mut()?;
        tokio::select! {
            // The answer first: a publish that it claimed from also causes a wake-up.
            biased;
            answer = claim.answer() => {
                let from = claim.taken_at();
                self.answered(answer, from)
            }
            _ = tokio::time::timeout_at(alarm, wakes.changed()) => None,
        }
    }

    /// Has the store try the claim now.
    pub(crate) fn poll(&self) {
        self.batcher.activity.poll();
        if let Some(claim) = &self.claim {
            claim.look();
        }
    }

    /// Withdraws the claim; returns what it got if it was answered before.
    pub(crate) async fn withdraw(mut self) -> Option<Result<Vec<QueuedEvent>>> {
        let claim = self.claim.as_mut()?;
        if claim.withdraw() {
            self.claim = None;
            return None;
        }
        let answer = claim.answer().await;
        let from = claim.taken_at();
        self.answered(answer, from)
    }

    fn answered(&mut self, answer: Option<Result<Vec<Claimed>>>, from: Instant) -> Option<Result<Vec<QueuedEvent>>> {
        self.claim = None;
        Some(answer?.map(|claimed| delivered(&self.batcher.origin, claimed, from).collect()))
    }

    /// Whether the store cancelled the claim.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.claim.is_none()
    }
}

impl Drop for WaitingClaimGuard<'_> {
    fn drop(&mut self) {
        self.batcher.has_waiting_claim.store(false, Ordering::Release);
        if let Some(claim) = self.claim.take()
            && !claim.withdraw()
        {
            let Origin { shared, key } = &*self.batcher.origin;
            shared.release_late(LateClaim { claim, queue: key.queue.clone(), lease: key.lease });
        }
    }
}
