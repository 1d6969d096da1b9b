//! Whose turn it is among equals, from one round to the next.

use std::collections::HashMap;
use std::hash::Hash;

/// A queue of everybody who took part in the last round.
#[derive(Debug)]
pub(super) struct Turns<K> {
    of: HashMap<K, Turn>,
    back: u64,
    round: u64,
}

#[derive(Debug)]
struct Turn {
    place: u64,
    /// The last round that it took part in.
    round: u64,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { of: HashMap::new(), back: 0, round: 0 }
    }
}

impl<K: Copy + Eq + Hash> Turns<K> {
    /// Begins a round.
    pub(super) fn begin(&mut self) {
        self.round += 1;
    }

    /// The place of one who takes part in this round; the smallest is first. Who did not take part in the last one
    /// joins at the back.
    pub(super) fn place(&mut self, key: K) -> u64 {
        let turn = self.of.entry(key).or_insert_with(|| {
            self.back += 1;
            Turn { place: self.back, round: 0 }
        });
        turn.round = self.round;
        turn.place
    }

    /// Puts one who had its turn at the back.
    pub(super) fn served(&mut self, key: K) {
        self.back += 1;
        if let Some(turn) = self.of.get_mut(&key) {
            turn.place = self.back;
        }
    }

    /// Ends a round, in which `count` took part. All others are forgotten: if they come back they wait like anybody
    /// new.
    pub(super) fn end(&mut self, count: usize) {
        if self.of.len() > count {
            self.of.retain(|_, turn| turn.round == self.round);
        }
    }
}
