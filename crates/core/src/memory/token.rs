//! Lease tokens of memory queues: the epoch of the node that owns the queue, and the number of the claim of the event
//! within it. Tokens of an event rise with every claim, also from owner to owner, and fit into a JavaScript number.

use crate::entry::LeaseToken;

const CLAIM_BITS: u32 = 28;
const LAST_CLAIM: u32 = (1 << CLAIM_BITS) - 1;

/// Counts the owners of a queue, from 1: each takeover and each start raises it. What an earlier owner leased or tries to
/// write is fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u32);

impl Epoch {
    /// The first owner's.
    pub const FIRST: Self = Self(1);
    /// The last one that fits into a token: a queue that starts every second reaches it after a year.
    pub const LAST: Self = Self((1 << (53 - CLAIM_BITS)) - 1);

    /// The epoch with this number; `None` when there is none.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        u32::try_from(number).ok().map(Self).filter(|epoch| (Self::FIRST..=Self::LAST).contains(epoch))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0 as u64
    }

    /// The next owner's; `None` after the last.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        Self::new(self.get() + 1)
    }

    /// The token of a claim of an event in this epoch.
    pub(super) const fn token(self, claim: u32) -> LeaseToken {
        LeaseToken((self.0 as i64) << CLAIM_BITS | claim as i64)
    }

    /// The epoch in which a token was given; `None` when it was not given by a memory queue.
    #[must_use]
    pub fn of(token: LeaseToken) -> Option<Self> {
        u64::try_from(token.0).ok().and_then(|bits| Self::new(bits >> CLAIM_BITS))
    }
}

/// The number of the next claim of an event. It starts over after some hundred millions in one epoch; a holder that old
/// has long lost its lease.
pub(super) const fn next_claim(claim: u32) -> u32 {
    if claim >= LAST_CLAIM { 1 } else { claim + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_rise_with_claims_and_owners_and_fit() {
        let second = Epoch::FIRST.next().unwrap();
        assert!(Epoch::FIRST.token(1) < Epoch::FIRST.token(2));
        assert!(Epoch::FIRST.token(LAST_CLAIM) < second.token(1));
        assert!(Epoch::LAST.token(LAST_CLAIM).0 < 1 << 53);
        assert_eq!(Epoch::of(second.token(7)), Some(second));
        assert_eq!((Epoch::of(LeaseToken(-1)), Epoch::of(LeaseToken(3))), (None, None));
        assert_eq!((next_claim(1), next_claim(LAST_CLAIM)), (2, 1));
    }

    #[test]
    fn epochs_have_a_range() {
        assert_eq!((Epoch::new(0), Epoch::new(u64::MAX), Epoch::LAST.next()), (None, None, None));
        assert_eq!(Epoch::new(1), Some(Epoch::FIRST));
        assert_eq!(Epoch::LAST.get(), (1 << 25) - 1);
    }
}
