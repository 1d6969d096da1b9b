//! The claims that wait for the writer to make something claimable. Knows nothing of transactions.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tidegate_core::QueueName;
use tokio::sync::oneshot;

use crate::error::Result;
use crate::values::{Claim, Family};
use crate::waiting_claim::Taken;

/// The most claims of a family that may wait: each is tried by every transaction that makes something claimable in its queue.
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
    family: Family,
    claim: Arc<Claim>,
    /// The caller asked that the next transaction try it, whether or not that one makes something claimable.
    look: bool,
    /// A transaction is trying it.
    trying: bool,
    /// Withdrawn while a transaction was trying it.
    withdrawn: bool,
    answer: Answer,
}

/// A claim that a transaction tries.
#[derive(Debug)]
pub(in crate::sqlite) struct ToTry {
    pub(in crate::sqlite) number: u64,
    pub(in crate::sqlite) family: Family,
    pub(in crate::sqlite) claim: Arc<Claim>,
}

impl List {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a claim; `None` when there are too many, or the store is closed.
    pub(in crate::sqlite) fn claim_when_available(
        &self,
        family: Family,
        claim: Claim,
    ) -> Option<(u64, oneshot::Receiver<Result<Taken>>)> {
        let mut state = self.lock();
        let waiting = state.claims.iter().filter(|waiting| waiting.family == family).count();
        if state.closed || waiting >= MOST {
            return None;
        }
        let (answer, receiver) = oneshot::channel();
        state.last += 1;
        let number = state.last;
        let claim = Arc::new(claim);
        state.claims.push(Waiting { number, family, claim, look: false, trying: false, withdrawn: false, answer });
        Some((number, receiver))
    }

    /// Has the next transaction try the claim, whether or not that one makes something claimable. Returns whether there
    /// is such a claim.
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

    /// Whether a caller asked that the next transaction try its waiting claim.
    pub(in crate::sqlite) fn wants_look(&self) -> bool {
        self.lock().claims.iter().any(|waiting| waiting.look)
    }

    /// The claims to try: those asked for, and those for a queue in which something became claimable.
    pub(in crate::sqlite) fn to_try(&self, is_woken: impl Fn(Family, &QueueName) -> bool) -> Vec<ToTry> {
        let mut state = self.lock();
        let is_wanted = |waiting: &&mut Waiting| waiting.look || is_woken(waiting.family, &waiting.claim.queue);
        let wanted = state.claims.iter_mut().filter(is_wanted);
        wanted
            .map(|waiting| {
                waiting.look = false;
                waiting.trying = true;
                ToTry { number: waiting.number, family: waiting.family, claim: Arc::clone(&waiting.claim) }
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

    /// Cancels all claims of a family that are not being tried. Those that are end with their try.
    pub(in crate::sqlite) fn cancel_waiting_claims(&self, family: Family) {
        self.lock().claims.retain_mut(|waiting| {
            if waiting.family != family {
                return true;
            }
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
