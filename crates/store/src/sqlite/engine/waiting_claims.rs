//! The claims that wait for the writer to make something claimable. Knows nothing of transactions.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tidegate_core::QueueName;
use tokio::sync::oneshot;

use crate::error::Result;
use crate::values::Claim;
use crate::waiting_claim::Taken;

/// The most claims that may wait: each is tried by every transaction that makes something claimable in its queue.
const MOST: usize = 16;

pub(in crate::sqlite) type Answer = oneshot::Sender<Result<Taken>>;

/// All waiting claims, in the order they came.
#[derive(Debug, Default)]
pub(in crate::sqlite) struct List(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: u64,
    closed: bool,
    claims: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    claim: Arc<Claim>,
    /// The caller asked for another try.
    look: bool,
    /// A transaction is trying it.
    trying: bool,
    /// Withdrawn while a transaction was trying it.
    withdrawn: bool,
    answer: Answer,
}

impl List {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a claim; `None` when there are too many, or the store is closed.
    pub(in crate::sqlite) fn claim_when_available(
        &self,
        claim: Claim,
    ) -> Option<(u64, oneshot::Receiver<Result<Taken>>)> {
        let mut state = self.lock();
        if state.closed || state.claims.len() >= MOST {
            return None;
        }
        let (answer, receiver) = oneshot::channel();
        state.last += 1;
        let number = state.last;
        let claim = Arc::new(claim);
        state.claims.push(Waiting { number, claim, look: false, trying: false, withdrawn: false, answer });
        Some((number, receiver))
    }

    /// Has the next transaction try the claim. Returns whether there is such a claim.
    pub(in crate::sqlite) fn look(&self, number: u64) -> bool {
        match self.lock().claims.iter_mut().find(|waiting| waiting.number == number) {
            Some(waiting) => {
                waiting.look = true;
                true
            }
            None => false,
        }
    }

    pub(in crate::sqlite) fn withdraw(&self, number: u64) -> bool {
        let mut state = self.lock();
        let Some(at) = state.claims.iter().position(|waiting| waiting.number == number) else { return false };
        if state.claims[at].trying {
            state.claims[at].withdrawn = true;
            return false;
        }
        state.claims.remove(at);
        true
    }

    /// Whether a caller asked for a try.
    pub(in crate::sqlite) fn wants_look(&self) -> bool {
        self.lock().claims.iter().any(|waiting| waiting.look)
    }

    /// The claims to try: those asked for, and those for one of these queues.
    pub(in crate::sqlite) fn to_try(&self, woken: &BTreeSet<QueueName>) -> Vec<(u64, Arc<Claim>)> {
        let mut state = self.lock();
        let wanted = state.claims.iter_mut().filter(|waiting| waiting.look || woken.contains(&waiting.claim.queue));
        wanted
            .map(|waiting| {
                waiting.look = false;
                waiting.trying = true;
                (waiting.number, Arc::clone(&waiting.claim))
            })
            .collect()
    }

    /// Ends a try that took nothing: the claim goes on waiting.
    pub(in crate::sqlite) fn found_nothing(&self, number: u64) {
        let mut state = self.lock();
        let Some(at) = state.claims.iter().position(|waiting| waiting.number == number) else { return };
        state.claims[at].trying = false;
        if state.claims[at].withdrawn {
            // The caller that withdrew it waits for this answer, or is gone.
            let _ = state.claims.remove(at).answer.send(Ok(Taken { at: Instant::now(), claimed: Vec::new() }));
        }
    }

    /// Removes a claim that is answered, and returns where to send the answer.
    pub(in crate::sqlite) fn take(&self, number: u64) -> Option<Answer> {
        let mut state = self.lock();
        let at = state.claims.iter().position(|waiting| waiting.number == number)?;
        Some(state.claims.remove(at).answer)
    }

    /// Cancels all claims that are not being tried. Those that are end with their try.
    pub(in crate::sqlite) fn cancel_waiting_claims(&self) {
        self.lock().claims.retain_mut(|waiting| {
            waiting.withdrawn |= waiting.trying;
            waiting.trying
        });
    }

    /// Cancels all claims, and refuses new ones.
    pub(in crate::sqlite) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.claims.clear();
    }
}
