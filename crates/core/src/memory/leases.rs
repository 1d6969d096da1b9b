//! Who holds events until when: what one claim takes is one grant, so that leases cost hardly anything per event. Knows
//! nothing of lanes and of what follows when a lease expires.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// The events that a worker claimed or extended at once. Moments are in microseconds.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) worker: Arc<str>,
    pub(super) since: i64,
    pub(super) until: i64,
    /// Some may have been given back, ended or moved to another grant.
    pub(super) numbers: Vec<u64>,
    held: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Leases {
    grants: Vec<Option<Grant>>,
    free: Vec<u32>,
    /// Grants by when they end; those that are over or were moved are skipped, and removed when they are the most.
    ends: BinaryHeap<Reverse<(i64, u32)>>,
    held: usize,
}

impl Leases {
    /// How many events are held, under leases that may have expired.
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    pub(super) fn get(&self, grant: u32) -> Option<&Grant> {
        self.grants.get(grant as usize)?.as_ref()
    }

    /// A grant for what a worker is about to take.
    pub(super) fn open(&mut self, worker: Arc<str>, since: i64, until: i64) -> u32 {
        let id = self.free.pop().unwrap_or(self.grants.len() as u32);
        let grant = Grant { worker, since, until, numbers: Vec::new(), held: 0 };
        match self.grants.get_mut(id as usize) {
            Some(place) => *place = Some(grant),
            None => self.grants.push(Some(grant)),
        }
        self.ends.push(Reverse((until, id)));
        if self.ends.len() > 64 + 2 * (self.grants.len() - self.free.len()) {
            let grants = &self.grants;
            self.ends.retain(|Reverse((until, id))| {
                grants.get(*id as usize).and_then(Option::as_ref).is_some_and(|grant| grant.until == *until)
            });
        }
        id
    }

    pub(super) fn add(&mut self, grant: u32, number: u64) {
        if let Some(grant) = self.grants.get_mut(grant as usize).and_then(Option::as_mut) {
            grant.numbers.push(number);
            grant.held += 1;
            self.held += 1;
        }
    }

    /// One event of the grant is not held any more. A grant without events is over.
    pub(super) fn give_up(&mut self, grant: u32) {
        let Some(place) = self.grants.get_mut(grant as usize) else { return };
        let Some(held) = place.as_mut() else { return };
        held.held = held.held.saturating_sub(1);
        self.held = self.held.saturating_sub(1);
        if held.held == 0 {
            *place = None;
            self.free.push(grant);
        }
    }

    /// Closes a grant under which nothing was taken.
    pub(super) fn close_if_empty(&mut self, grant: u32) {
        if self.get(grant).is_some_and(|grant| grant.held == 0) {
            self.grants[grant as usize] = None;
            self.free.push(grant);
        }
    }

    /// When the next grant ends.
    pub(super) fn next_end(&mut self) -> Option<i64> {
        while let Some(Reverse((until, id))) = self.ends.peek() {
            if self.get(*id).is_some_and(|grant| grant.until == *until) {
                return Some(*until);
            }
            self.ends.pop();
        }
        None
    }

    /// A grant that has ended by `now`, with the numbers that it was for. Whoever asks gives up all of them.
    pub(super) fn pop_expired(&mut self, now: i64) -> Option<(u32, Grant)> {
        self.next_end().filter(|until| *until <= now)?;
        let Reverse((_, id)) = self.ends.pop()?;
        let grant = self.grants.get_mut(id as usize)?.take()?;
        self.free.push(id);
        self.held = self.held.saturating_sub(grant.held as usize);
        Some((id, grant))
    }

    /// Moves all ends.
    pub(super) fn shift(&mut self, by: i64) {
        self.ends.clear();
        for (id, grant) in (0..).zip(&mut self.grants) {
            if let Some(grant) = grant {
                grant.until = grant.until.saturating_add(by);
                self.ends.push(Reverse((grant.until, id)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_end_in_order_and_what_is_over_is_skipped() {
        let mut leases = Leases::default();
        let grants: Vec<u32> = [30, 10, 20].into_iter().map(|until| leases.open("w".into(), 0, until)).collect();
        for (number, grant) in (1..).zip(&grants) {
            leases.add(*grant, number);
        }
        leases.give_up(grants[1]);
        assert_eq!((leases.held(), leases.next_end()), (2, Some(20)));
        assert!(leases.pop_expired(19).is_none());
        assert_eq!(leases.pop_expired(20).unwrap().1.numbers, [3]);
        leases.shift(5);
        assert_eq!((leases.next_end(), leases.held()), (Some(35), 1));
        leases.give_up(grants[0]);
        assert_eq!((leases.next_end(), leases.held()), (None, 0));
    }

    #[test]
    fn grants_that_are_over_take_no_room() {
        let mut leases = Leases::default();
        for until in 0..10_000 {
            let grant = leases.open("w".into(), 0, until);
            leases.add(grant, 1);
            leases.give_up(grant);
            let empty = leases.open("w".into(), 0, until);
            leases.close_if_empty(empty);
        }
        assert!(leases.ends.len() < 100 && leases.grants.len() == 1, "{} {}", leases.ends.len(), leases.grants.len());
    }
}
