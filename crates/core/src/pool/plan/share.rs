//! Max-min sharing: who holds fewest gets next, until all have what they have room for or nothing is left.

/// Somebody who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sharer {
    /// What it holds already.
    pub(super) holds: u64,
    /// How much more it can use.
    pub(super) room: u64,
    /// Among equals the smaller one comes first.
    pub(super) turn: u64,
}

/// Who gets how much.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// What each gets, in the order of the sharers.
    pub(super) each: Vec<u64>,
    /// Who got one of the last ones, of which there were not enough for all equals: indices, by turn.
    pub(super) winners: Vec<usize>,
}

/// Shares a budget. As if each unit went to whoever holds fewest at that moment, by turn among equals; found by
/// bisecting for the level up to which all can be filled.
pub(super) fn share(sharers: &[Sharer], budget: u64) -> Shares {
    let wanted: u64 = sharers.iter().map(|sharer| sharer.room).sum();
    if wanted <= budget {
        return Shares { each: sharers.iter().map(|sharer| sharer.room).collect(), winners: Vec::new() };
    }
    // Invariant: filling all up to `level` is within the budget, up to `beyond` it is not.
    let mut level = sharers.iter().map(|sharer| sharer.holds).min().unwrap_or(0);
    let mut beyond = sharers.iter().map(|sharer| sharer.holds + sharer.room).max().unwrap_or(0);
    while beyond - level > 1 {
        let middle = level + (beyond - level) / 2;
        let needed: u64 = sharers.iter().map(|sharer| sharer.up_to(middle)).sum();
        if needed <= budget {
            level = middle;
        } else {
            beyond = middle;
        }
    }
    let mut each: Vec<u64> = sharers.iter().map(|sharer| sharer.up_to(level)).collect();
    let left = budget - each.iter().sum::<u64>();
    let mut winners: Vec<usize> = (0..sharers.len()).filter(|at| sharers[*at].up_to(beyond) > each[*at]).collect();
    winners.sort_unstable_by_key(|at| sharers[*at].turn);
    winners.truncate(usize::try_from(left).unwrap_or(usize::MAX));
    for at in &winners {
        each[*at] += 1;
    }
    Shares { each, winners }
}

impl Sharer {
    /// What it gets when all are filled up to a level.
    fn up_to(&self, level: u64) -> u64 {
        level.saturating_sub(self.holds).min(self.room)
    }
}
