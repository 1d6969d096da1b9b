//! Tests of [`grant`] on its own, and of pools whose nodes ask in any order.

use proptest::prelude::*;

use super::*;

/// How often nodes ask, in milliseconds.
const ASKS_EVERY: u64 = 250;

fn node(slots: u32, wanted: u32) -> Held {
    node_since(slots, wanted, 0)
}

fn node_since(slots: u32, wanted: u32, seconds: u64) -> Held {
    Held { slots, wanted, unchanged_for: Duration::from_secs(seconds) }
}

#[derive(Debug, Clone, Copy, Default)]
struct Row {
    slots: u32,
    wanted: u32,
    since: u64,
}

/// The rows of a pool and what is in flight on each node.
#[derive(Debug)]
struct Pool {
    concurrency: u32,
    now: u64,
    rows: Vec<Option<Row>>,
    in_flight: Vec<u32>,
    usable: Vec<u32>,
}

impl Pool {
    fn new(concurrency: u32, nodes: usize) -> Self {
        Self { concurrency, now: 0, rows: vec![None; nodes], in_flight: vec![0; nodes], usable: vec![0; nodes] }
    }

    fn held(&self) -> u32 {
        self.rows.iter().flatten().map(|row| row.slots).sum()
    }

    /// A node asks while so many of its deliveries are in flight and it has so many more jobs.
    fn ask(&mut self, asking: usize, more: u32) -> Grant {
        let before = self.rows[asking].unwrap_or(Row { since: self.now, ..Row::default() });
        let in_use = self.in_flight[asking];
        let asks = Row { wanted: in_use + more, ..before };
        let mut rows: Vec<(usize, Row)> = (0..self.rows.len())
            .filter_map(|at| if at == asking { Some((at, asks)) } else { self.rows[at].map(|row| (at, row)) })
            .collect();
        rows.sort_by_key(|(at, row)| (row.since, *at));
        let me = rows.iter().position(|(at, _)| *at == asking).unwrap();
        let held = |row: &Row| Held {
            slots: row.slots,
            wanted: row.wanted,
            unchanged_for: Duration::from_millis(self.now - row.since),
        };
        let nodes: Vec<Held> = rows.iter().map(|(_, row)| held(row)).collect();
        let granted = grant(self.concurrency, &nodes, me, in_use);
        let since = if granted.slots == before.slots { before.since } else { self.now };
        let after = Row { slots: granted.slots, wanted: asks.wanted, since };
        self.rows[asking] = (after.slots > 0 || after.wanted > 0).then_some(after);
        self.usable[asking] = granted.usable;
        granted
    }

    /// A node under a backlog begins as many deliveries as it may.
    fn begin(&mut self, node: usize) {
        self.in_flight[node] = self.in_flight[node].max(self.usable[node]);
    }

    /// Ends deliveries; what it may still use is begun anew.
    fn end(&mut self, node: usize, count: u32) {
        self.in_flight[node] -= count.min(self.in_flight[node]);
        self.begin(node);
    }
}

#[test]
fn a_node_alone_has_all() {
    assert_eq!(grant(10, &[node(0, 4)], 0, 0), Grant { slots: 4, usable: 4 });
    assert_eq!(grant(10, &[node(4, 40)], 0, 4), Grant { slots: 10, usable: 10 });
    assert_eq!(grant(10, &[node(10, 0)], 0, 0), Grant { slots: 0, usable: 0 });
}

#[test]
fn what_is_in_use_stays_and_is_used_no_longer_than_it_is_its_share() {
    assert_eq!(grant(10, &[node(10, 30), node(0, 30)], 0, 10), Grant { slots: 10, usable: 5 });
    assert_eq!(grant(10, &[node(10, 30), node(0, 30)], 0, 7), Grant { slots: 7, usable: 5 });
    assert_eq!(grant(10, &[node(10, 30), node(0, 30)], 0, 3), Grant { slots: 5, usable: 5 });
    assert_eq!(grant(10, &[node(10, 30), node(0, 2)], 0, 10), Grant { slots: 10, usable: 8 });
}

#[test]
fn a_lowered_limit_grants_nothing_until_it_fits() {
    assert_eq!(grant(4, &[node(6, 9), node(0, 9)], 1, 0), Grant { slots: 0, usable: 0 });
    assert_eq!(grant(4, &[node(6, 9), node(4, 9)], 1, 4), Grant { slots: 4, usable: 2 });
    assert_eq!(grant(0, &[node(6, 9)], 0, 6), Grant { slots: 6, usable: 0 });
}

#[test]
fn a_node_whose_slots_were_given_away_keeps_what_it_uses() {
    assert_eq!(grant(4, &[node(4, 4), node(0, 3)], 1, 3), Grant { slots: 3, usable: 2 });
}

#[test]
fn what_does_not_come_out_even_goes_to_who_waits_longest() {
    let nodes = [node(0, 1), node(0, 1), node(0, 1)];
    let granted = |me| grant(2, &nodes, me, 0).slots;
    assert_eq!([granted(0), granted(1), granted(2)], [1, 1, 0]);
    // One that has it keeps it for its turn, and then gives it up.
    assert_eq!(grant(1, &[node_since(0, 1, 9), node_since(1, 1, 4)], 1, 1), Grant { slots: 1, usable: 1 });
    assert_eq!(grant(1, &[node_since(0, 1, 9), node_since(1, 1, 5)], 1, 1), Grant { slots: 1, usable: 0 });
    assert_eq!(grant(1, &[node_since(0, 1, 9), node_since(1, 1, 5)], 1, 0), Grant { slots: 0, usable: 0 });
    assert_eq!(grant(1, &[node_since(1, 1, 9)], 0, 1), Grant { slots: 1, usable: 1 }, "nobody waits");
    // For one that waits, one gives up: that which has had it for the longest.
    let nodes = [node_since(1, 1, 8), node_since(0, 1, 7), node_since(1, 1, 6)];
    assert_eq!([grant(2, &nodes, 0, 1).usable, grant(2, &nodes, 2, 1).usable], [0, 1]);
}

proptest! {
    /// Whatever they ask for, in whatever order: no node loses what it uses, and no more is held than there is.
    #[test]
    fn never_more_than_there_is(
        concurrency in 0..20_u32,
        asks in prop::collection::vec((0..5_usize, 0..20_u32, 0..8_u32, 0..2_000_u64), 1..80),
        lowered in 0..20_u32,
    ) {
        let mut pool = Pool::new(concurrency, 5);
        let half = asks.len() / 2;
        for (number, (asking, more, ended, passes)) in asks.into_iter().enumerate() {
            if number == half {
                pool.concurrency = lowered;
            }
            let before = pool.held();
            pool.in_flight[asking] -= ended.min(pool.in_flight[asking]);
            let in_use = pool.in_flight[asking];
            let granted = pool.ask(asking, more);
            prop_assert!(granted.slots >= in_use && granted.usable <= granted.slots);
            prop_assert!(granted.slots <= in_use + more);
            prop_assert!(pool.held() <= before.max(pool.concurrency));
            pool.begin(asking);
            prop_assert!(pool.in_flight.iter().sum::<u32>() <= pool.held());
            pool.now += passes;
        }
    }

    /// Under lasting backlogs all slots are soon used, and evenly, as far as the backlogs go.
    #[test]
    fn soon_even(
        concurrency in 0..30_u32,
        backlogs in prop::collection::vec(0..20_u32, 1..7),
        order in prop::collection::vec(0..7_usize, 0..10),
    ) {
        let mut pool = Pool::new(concurrency, backlogs.len());
        for round in 0..8 {
            let nodes = order.iter().copied().filter(|node| *node < backlogs.len()).chain(0..backlogs.len());
            for node in nodes.collect::<Vec<_>>() {
                // Every delivery ends between two asks; before the last rounds nodes are far from even.
                let more = if round < 2 { 30 } else { backlogs[node] };
                pool.end(node, 30);
                if round >= 2 {
                    pool.in_flight[node] = pool.in_flight[node].min(backlogs[node]);
                }
                let in_use = pool.in_flight[node];
                pool.ask(node, more - in_use.min(more));
                pool.begin(node);
            }
            pool.now += 1;
        }
        let wanted: u32 = backlogs.iter().sum();
        prop_assert_eq!(pool.held(), wanted.min(concurrency));
        let (level, _) = level(concurrency, &backlogs.iter().map(|wanted| node(0, *wanted)).collect::<Vec<_>>());
        for (at, wanted) in backlogs.iter().enumerate() {
            let slots = pool.rows[at].map_or(0, |row| row.slots);
            prop_assert!((level.min(*wanted)..=(level + 1).min(*wanted)).contains(&slots), "{slots} of {level}");
        }
    }

    /// With fewer slots than nodes, each has its turn, though all have endless backlogs and ask at their own pace.
    #[test]
    fn nobody_starves(concurrency in 1..4_u32, nodes in 2..7_usize, paces in prop::collection::vec(1..9_u64, 7)) {
        let mut pool = Pool::new(concurrency, nodes);
        let mut last_turn = vec![0; nodes];
        // Each gives up after its turn, at its next ask, and the next one takes it at its own.
        let longest = nodes as u64 * (TURN.as_millis() as u64 + 4 * ASKS_EVERY);
        while pool.now < 4 * longest {
            for node in 0..nodes {
                if (pool.now / (ASKS_EVERY / 10)).is_multiple_of(paces[node] + 1) {
                    pool.end(node, 30);
                    pool.ask(node, 30);
                    pool.begin(node);
                }
                if pool.in_flight[node] > 0 {
                    last_turn[node] = pool.now;
                }
                prop_assert!(pool.now - last_turn[node] <= longest, "node {node} starves: {pool:?}");
            }
            pool.now += ASKS_EVERY / 10;
        }
    }
}
