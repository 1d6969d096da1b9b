//! The handle of a claim that waits inside the store. Knows nothing of how a store answers such claims.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use crate::error::Result;
use crate::values::Claimed;

/// What a store does for the claims that wait in it, each identified by its number.
pub(crate) trait WaitingClaims: Send + Sync {
    fn look(&self, number: u64);
    fn withdraw(&self, number: u64) -> bool;
}

/// A claim that waits in the store and is answered by the transaction that makes something claimable, so that a single
/// commit covers both.
pub struct WaitingClaim {
    number: u64,
    claims: Arc<dyn WaitingClaims>,
    answer: oneshot::Receiver<Result<Taken>>,
    taken_at: Instant,
}

/// What a waiting claim took, and a moment shortly before it did.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) at: Instant,
    pub(crate) claimed: Vec<Claimed>,
}

impl fmt::Debug for WaitingClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingClaim").field("number", &self.number).finish_non_exhaustive()
    }
}

impl WaitingClaim {
    #[cfg(feature = "sqlite")]
    pub(crate) fn new(number: u64, claims: Arc<dyn WaitingClaims>, answer: oneshot::Receiver<Result<Taken>>) -> Self {
        Self { number, claims, answer, taken_at: Instant::now() }
    }

    /// Asks the store to try the claim now: something became due, or another process may have written.
    pub fn look(&self) {
        self.claims.look(self.number);
    }

    /// Waits for entries. `None`: the store cancelled the claim. Dropping this future loses nothing; call it again.
    pub async fn answer(&mut self) -> Option<Result<Vec<Claimed>>> {
        let answer = (&mut self.answer).await.ok()?;
        Some(answer.map(|Taken { at, claimed }| {
            self.taken_at = at;
            claimed
        }))
    }

    /// A moment before the claim's leases began, by this process's clock; before the answer, when the claim was made.
    #[must_use]
    pub fn taken_at(&self) -> Instant {
        self.taken_at
    }

    /// Withdraws the claim, so that it takes nothing any more. `false`: too late, a transaction is trying it or has
    /// answered it; [`answer`](Self::answer) returns what it took.
    #[must_use = "what it got too late would wait for its lease to end"]
    pub fn withdraw(&self) -> bool {
        self.claims.withdraw(self.number)
    }
}
