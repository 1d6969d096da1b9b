//! Claims that wait inside the store. Knows nothing of how a store answers them.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use crate::error::Result;
use crate::store::Claimed;

/// What a store does with the claims that stand in it, each known by its number.
pub(crate) trait StandingClaims: Send + Sync {
    fn look(&self, number: u64);
    fn withdraw(&self, number: u64) -> bool;
}

/// A claim that stands in the store and is answered by the transaction that makes something claimable, so that one
/// commit pays for both.
pub struct Standing {
    number: u64,
    claims: Arc<dyn StandingClaims>,
    answer: oneshot::Receiver<Result<Taken>>,
    taken_at: Instant,
}

/// What a standing claim took, and a moment before it did.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) at: Instant,
    pub(crate) claimed: Vec<Claimed>,
}

impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Standing").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Standing {
    #[cfg(feature = "sqlite")]
    pub(crate) fn new(number: u64, claims: Arc<dyn StandingClaims>, answer: oneshot::Receiver<Result<Taken>>) -> Self {
        Self { number, claims, answer, taken_at: Instant::now() }
    }

    /// Has the store look now: something became due, or somebody else may have written.
    pub fn look(&self) {
        self.claims.look(self.number);
    }

    /// Waits for entries. `None`: the store gave the claim up. Dropping this future loses nothing.
    pub async fn answer(&mut self) -> Option<Result<Vec<Claimed>>> {
        let answer = (&mut self.answer).await.ok()?;
        Some(answer.map(|Taken { at, claimed }| {
            self.taken_at = at;
            claimed
        }))
    }

    /// A moment before its leases began, by this process's own clock; before the answer, when the claim began to stand.
    #[must_use]
    pub fn taken_at(&self) -> Instant {
        self.taken_at
    }

    /// Takes the claim back, so that it gets nothing any more. `false`: too late, and [`answer`](Self::answer) soon
    /// says with what.
    #[must_use = "what it got too late would wait for its lease to end"]
    pub fn withdraw(&self) -> bool {
        self.claims.withdraw(self.number)
    }
}
