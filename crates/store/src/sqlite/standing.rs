//! The claims that wait for the writer to make something claimable. Knows nothing of transactions.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tidegate_core::QueueName;
use tokio::sync::oneshot;

use crate::error::Result;
use crate::standing::Taken;
use crate::store::Claim;

/// Claims that may stand at once: each costs every transaction that makes something claimable in its queue a look.
const MOST: usize = 16;

pub(super) type Answer = oneshot::Sender<Result<Taken>>;

/// All claims that stand, the first come first.
#[derive(Debug, Default)]
pub(super) struct List(Mutex<State>);

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
    /// Somebody asked for a look.
    look: bool,
    /// A transaction is trying it.
    trying: bool,
    /// Taken back while it was tried.
    withdrawn: bool,
    answer: Answer,
}

impl List {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a claim stand; `None` when too many do.
    pub(super) fn stand(&self, claim: Claim) -> Option<(u64, oneshot::Receiver<Result<Taken>>)> {
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

    /// Answers whether there is such a claim.
    pub(super) fn look(&self, number: u64) -> bool {
        match self.lock().claims.iter_mut().find(|waiting| waiting.number == number) {
            Some(waiting) => {
                waiting.look = true;
                true
            }
            None => false,
        }
    }

    pub(super) fn withdraw(&self, number: u64) -> bool {
        let mut state = self.lock();
        let Some(at) = state.claims.iter().position(|waiting| waiting.number == number) else { return false };
        if state.claims[at].trying {
            state.claims[at].withdrawn = true;
            return false;
        }
        state.claims.remove(at);
        true
    }

    /// Whether anybody asked for a look.
    pub(super) fn wants_look(&self) -> bool {
        self.lock().claims.iter().any(|waiting| waiting.look)
    }

    /// Those to try: whoever asked, and whoever waits for one of these queues.
    pub(super) fn to_try(&self, woken: &BTreeSet<QueueName>) -> Vec<(u64, Arc<Claim>)> {
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

    /// It found nothing and stands on.
    pub(super) fn found_nothing(&self, number: u64) {
        let mut state = self.lock();
        let Some(at) = state.claims.iter().position(|waiting| waiting.number == number) else { return };
        state.claims[at].trying = false;
        if state.claims[at].withdrawn {
            // Whoever took it back waits for this answer, or is gone.
            let _ = state.claims.remove(at).answer.send(Ok(Taken { at: Instant::now(), claimed: Vec::new() }));
        }
    }

    /// It stands no more; answers whom to tell.
    pub(super) fn take(&self, number: u64) -> Option<Answer> {
        let mut state = self.lock();
        let at = state.claims.iter().position(|waiting| waiting.number == number)?;
        Some(state.claims.remove(at).answer)
    }

    /// Gives up all that are not being tried.
    pub(super) fn dismiss(&self) {
        self.lock().claims.retain_mut(|waiting| {
            waiting.withdrawn |= waiting.trying;
            waiting.trying
        });
    }

    /// Gives all up for good.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.claims.clear();
    }
}
