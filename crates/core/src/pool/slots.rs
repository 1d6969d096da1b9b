//! How many slots of a pool each node may hold, where the limit holds across nodes.
//!
//! Every node has its even part: the highest level to which all that want so many can be served. What does not come
//! out even is given one by one, to those that wait for it the longest, and goes round: who has had it for [`TURN`]
//! gives it up to one that waits. So even with fewer slots than nodes everybody has a turn.
//!
//! All nodes decide by the same rows, each under the pool's lock and for itself alone: what others hold stays theirs
//! until they ask again, and what they may get is left for them meanwhile.

use std::time::Duration;

/// How long a node keeps a slot beyond its even part while others wait for one.
pub const TURN: Duration = Duration::from_secs(5);

/// A node, as its row has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The slots that it holds.
    pub slots: u32,
    /// The slots that it could use.
    pub wanted: u32,
    /// For how long it has held so many.
    pub unchanged_for: Duration,
}

/// What a node gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The slots that it holds from now on: those in use, at least.
    pub slots: u32,
    /// How many it is to use, at most `slots`: where that is less, it begins nothing until so few are in use, for others
    /// wait for the rest.
    pub usable: u32,
}

/// Decides what a node gets that has `in_use` slots in use. `nodes` are all nodes of the pool that hold or want some,
/// sorted by how long they have held as many as they hold, the longest first; the one at `me` is the node itself, with
/// what it wants now and what it has held until now.
///
/// What all nodes hold together is never more than `concurrency`, unless that was lowered, or a node uses slots that it
/// has lost; then nobody gets more until it fits.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::pool::slots::{Grant, Held, grant};
/// let node = |slots, wanted| Held { slots, wanted, unchanged_for: Duration::ZERO };
/// // A second node comes. The first gives back what it can, and the second takes what is free by then.
/// assert_eq!(grant(10, &[node(10, 10), node(0, 10)], 1, 0), Grant { slots: 0, usable: 0 });
/// assert_eq!(grant(10, &[node(10, 10), node(0, 10)], 0, 8), Grant { slots: 8, usable: 5 });
/// assert_eq!(grant(10, &[node(8, 10), node(0, 10)], 1, 0), Grant { slots: 2, usable: 2 });
/// // What one does not want, the other has.
/// assert_eq!(grant(10, &[node(3, 3), node(2, 20)], 1, 2), Grant { slots: 7, usable: 7 });
/// ```
///
/// # Panics
/// When `me` is not one of the nodes.
#[must_use]
pub fn grant(concurrency: u32, nodes: &[Held], me: usize, in_use: u32) -> Grant {
    let share = share(concurrency, nodes, me);
    let others = nodes.iter().enumerate().filter(|(at, _)| *at != me).map(|(_, node)| u64::from(node.slots)).sum();
    let free = u64::from(concurrency).saturating_sub(others);
    // At most the concurrency, which is a u32.
    let slots = in_use.max(share.min(free as u32));
    Grant { slots, usable: share.min(slots) }
}

/// The part of the pool that is a node's by what all of them want.
fn share(concurrency: u32, nodes: &[Held], me: usize) -> u32 {
    let (level, rest) = level(concurrency, nodes);
    let mine = nodes[me];
    if mine.wanted <= level {
        return mine.wanted;
    }
    let claims = |node: &Held| node.wanted > level;
    let has = |node: &Held| node.slots > level;
    let in_turn = |node: &Held| has(node) && node.unchanged_for < TURN;
    let before = |rank: &dyn Fn(&Held) -> bool| nodes[..me].iter().filter(|node| claims(node) && rank(node)).count();
    let after = |rank: &dyn Fn(&Held) -> bool| nodes[me + 1..].iter().filter(|node| claims(node) && rank(node)).count();
    let all = |rank: &dyn Fn(&Held) -> bool| before(rank) + after(rank);
    // First those that have it and whose turn goes on, then those that wait, the longest first, then those that have
    // had their turn, the longest last.
    let waits = |node: &Held| !has(node);
    let is_over = |node: &Held| has(node) && !in_turn(node);
    let ahead = if in_turn(&mine) {
        after(&in_turn)
    } else if waits(&mine) {
        all(&in_turn) + before(&waits)
    } else {
        all(&in_turn) + all(&waits) + after(&is_over)
    };
    level + u32::from(ahead < rest as usize)
}

/// The level to which every node that wants so many can be served, and how many slots are left over then, fewer than
/// there are nodes that want more.
fn level(concurrency: u32, nodes: &[Held]) -> (u32, u32) {
    let mut wanted: Vec<u32> = nodes.iter().map(|node| node.wanted).collect();
    wanted.sort_unstable();
    let mut left = concurrency;
    for (served, wanted) in wanted.iter().enumerate() {
        let nodes = u32::try_from(nodes.len() - served).unwrap_or(u32::MAX);
        let even = left / nodes;
        if *wanted > even {
            return (even, left % nodes);
        }
        left -= wanted;
    }
    (concurrency, 0)
}

#[cfg(test)]
mod tests;
