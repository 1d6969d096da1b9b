//! Which lanes of a pool may claim how many jobs now.
//!
//! Slots go to who holds fewest: among the clients first, then among the lanes of a client, so that neither many lanes
//! nor a large backlog give a client more than another. What does not come out even goes round by turns.
//!
//! A lane may hold an eighth of the pool while others are active, so that one whose target hangs leaves seven eighths
//! to them. With fewer than eight active lanes an eighth each would leave slots that nobody may use: then a lane may
//! hold an equal part, and a lane alone the whole pool. A lane is active when jobs of it wait or are in flight: lanes
//! whose jobs are quick rarely wait, and would else be of no account at the moment at which a hanging one asks for
//! more.

use std::collections::HashMap;
use std::hash::Hash;

use crate::Tsid;

mod share;
mod turns;

use share::{Sharer, share};
use turns::Turns;

/// A lane may hold one in so many slots of a pool while so many lanes are active.
const PARTS: usize = 8;

/// What a pool has to give on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// The slots that [`Lane::in_flight`] is measured by: this node's, used or not, when it counts this node's jobs,
    /// and the pool's when it counts those of all nodes.
    pub concurrency: u32,
    /// The slots that this node has and does not use.
    pub free: u32,
    /// How many deliveries the pool's rate lets start; `None` without a limit.
    pub allowance: Option<u32>,
}

/// What is known about the jobs of a lane that could be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// So many wait, perhaps more. 0: the last look found none, and nothing came since.
    AtLeast(u32),
    /// There may be none or many: the lane counts as though it had many until a claim finds out.
    Unknown,
}

/// Why a lane does not claim as it likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hold {
    /// Its subscription is paused.
    Paused,
    /// The breaker of its origin is open.
    BreakerOpen,
    /// The breaker of its origin is half-open: one job at a time.
    BreakerHalfOpen,
}

/// A lane of jobs, as the planner sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane<L> {
    /// What tells it from others.
    pub id: L,
    /// Whose jobs these are; `None` for the anchor level.
    pub client: Option<Tsid>,
    /// What waits.
    pub waiting: Waiting,
    /// How many slots its jobs use. A held lane may still use some.
    pub in_flight: u32,
    /// What holds it, if anything.
    pub held_by: Option<Hold>,
}

/// Plans round after round, and remembers between them only whose turn it is.
///
/// Who wins a slot that does not come out even goes to the back; who is new joins at the back. So everybody who keeps
/// waiting has a turn, however many others come and go. Lanes and clients that a round does not name are forgotten.
///
/// ```
/// use tidegate_core::pool::plan::{Capacity, Lane, Planner, Waiting};
/// use tidegate_core::Tsid;
/// let lane = |id, client, waiting| {
///     Lane { id, client: Some(Tsid::from_i64(client)), waiting, in_flight: 0, held_by: None }
/// };
/// let lanes = [
///     lane("large", 1, Waiting::AtLeast(1_000)),
///     lane("small", 2, Waiting::AtLeast(3)),
///     lane("other", 2, Waiting::Unknown),
/// ];
/// let mut planner = Planner::default();
/// let capacity = Capacity { concurrency: 30, free: 18, allowance: None };
/// assert_eq!(planner.plan(capacity, &lanes), [9, 3, 6]);
/// ```
#[derive(Debug)]
pub struct Planner<L> {
    lanes: Turns<L>,
    clients: Turns<Option<Tsid>>,
}

impl<L> Default for Planner<L> {
    fn default() -> Self {
        Self { lanes: Turns::default(), clients: Turns::default() }
    }
}

impl<L: Copy + Eq + Hash> Planner<L> {
    /// The quota of each lane, in the order of `lanes`: the most that it may claim now. All quotas together are at most
    /// what the pool has to give, and no slot is left while a lane that may hold more waits. Jobs known to wait come
    /// first; only what they leave goes to lanes that may have more than is known.
    ///
    /// Takes O(n log n) for n lanes.
    #[must_use]
    pub fn plan(&mut self, capacity: Capacity, lanes: &[Lane<L>]) -> Vec<u32> {
        let mut clients = self.by_client(lanes);
        let most = most_per_lane(capacity.concurrency, lanes);
        let mut quotas = vec![0; lanes.len()];
        let mut budget = u64::from(capacity.free.min(capacity.allowance.unwrap_or(u32::MAX)));
        for known in [true, false] {
            for client in &mut clients {
                client.measure(lanes, &quotas, |lane, quota| room(lane, quota, most, known));
            }
            let sharers: Vec<Sharer> = clients.iter().map(|client| client.all).collect();
            let of_clients = share(&sharers, budget);
            for (client, given) in clients.iter().zip(&of_clients.each).filter(|(_, given)| **given > 0) {
                budget -= given;
                let of_lanes = share(&client.each, *given);
                for (at, given) in client.lanes.iter().zip(&of_lanes.each) {
                    // At most the lane's room, which is a u32.
                    quotas[*at] += *given as u32;
                }
                of_lanes.winners.iter().for_each(|at| self.lanes.served(lanes[client.lanes[*at]].id));
            }
            of_clients.winners.iter().for_each(|at| self.clients.served(clients[*at].id));
        }
        quotas
    }

    /// The clients with their lanes, each at its turn.
    fn by_client(&mut self, lanes: &[Lane<L>]) -> Vec<Client> {
        self.lanes.begin();
        self.clients.begin();
        let (mut found, mut clients) = (HashMap::new(), Vec::new());
        for (at, lane) in lanes.iter().enumerate() {
            let client = *found.entry(lane.client).or_insert_with(|| {
                clients.push(Client::new(lane.client, self.clients.place(lane.client)));
                clients.len() - 1
            });
            clients[client].lanes.push(at);
            clients[client].each.push(Sharer { holds: 0, room: 0, turn: self.lanes.place(lane.id) });
        }
        self.lanes.end(lanes.len());
        self.clients.end(clients.len());
        clients
    }
}

/// A client in one round.
struct Client {
    id: Option<Tsid>,
    /// Its lanes, as indices.
    lanes: Vec<usize>,
    /// Each of its lanes.
    each: Vec<Sharer>,
    /// All of its lanes together.
    all: Sharer,
}

impl Client {
    fn new(id: Option<Tsid>, turn: u64) -> Self {
        Self { id, lanes: Vec::new(), each: Vec::new(), all: Sharer { holds: 0, room: 0, turn } }
    }

    /// Finds out what its lanes hold with their quotas, and what they have room for.
    fn measure<L>(&mut self, lanes: &[Lane<L>], quotas: &[u32], room: impl Fn(&Lane<L>, u32) -> u32) {
        (self.all.holds, self.all.room) = (0, 0);
        for (lane, at) in self.each.iter_mut().zip(&self.lanes) {
            lane.holds = u64::from(lanes[*at].in_flight) + u64::from(quotas[*at]);
            lane.room = u64::from(room(&lanes[*at], quotas[*at]));
            self.all.holds += lane.holds;
            self.all.room += lane.room;
        }
    }
}

/// The most slots that one lane may hold: an equal part of the pool, but no less than an eighth, rounded up.
fn most_per_lane<L>(concurrency: u32, lanes: &[Lane<L>]) -> u32 {
    let is_active = |lane: &&Lane<L>| {
        let has_jobs = lane.in_flight > 0 || matches!(lane.waiting, Waiting::AtLeast(1..));
        has_jobs && !matches!(lane.held_by, Some(Hold::Paused | Hold::BreakerOpen))
    };
    let parts = lanes.iter().filter(is_active).take(PARTS).count();
    concurrency.div_ceil((parts as u32).max(1))
}

/// How many more slots a lane may get: for jobs `known` to wait, or for any that it may have.
fn room<L>(lane: &Lane<L>, quota: u32, most: u32, known: bool) -> u32 {
    let most = match lane.held_by {
        Some(Hold::Paused | Hold::BreakerOpen) => 0,
        Some(Hold::BreakerHalfOpen) => most.min(1),
        None => most,
    };
    let room = most.saturating_sub(lane.in_flight.saturating_add(quota));
    match lane.waiting {
        Waiting::AtLeast(0) => 0,
        Waiting::AtLeast(waiting) if known => room.min(waiting),
        Waiting::AtLeast(_) | Waiting::Unknown => room,
    }
}

#[cfg(test)]
mod tests;
