//! Limits of pools, as the receiver saw them.

use super::{POOLS, Run, SUBSCRIPTIONS, Taken, Tally};
use crate::checker::{Invariant, Report};

const MINUTE: i64 = 60_000_000;

pub(super) fn check(run: &Run, report: &mut Report, tally: &mut Tally) {
    for (at, plan) in POOLS.iter().enumerate() {
        let of_pool = |taken: &&Taken| taken.subscription.is_some_and(|of| SUBSCRIPTIONS[of].pool == at);
        let taken: Vec<&Taken> = run.taken.iter().filter(of_pool).collect();
        let (most, when) = most_at_once(&taken);
        tally.most[at] = most;
        if most > plan.concurrency as usize {
            let text =
                format!("{most} requests of {} at once, at {when}, and the limit is {}", plan.code, plan.concurrency);
            report.violate(Invariant::PoolLimits, text);
        }
        let Some(limit) = plan.per_minute else { continue };
        let (most, from) = most_in_a_minute(&taken);
        tally.in_a_minute = most;
        // At most 2 % more, or one.
        if most > (limit + (limit / 50).max(1)) as usize {
            let text = format!("{most} requests of {} in the minute from {from}, and the limit is {limit}", plan.code);
            report.violate(Invariant::PoolLimits, text);
        }
    }
}

/// The most requests in flight at once, and when. One that ends at the moment at which another begins is over.
fn most_at_once(taken: &[&Taken]) -> (usize, i64) {
    let begins = taken.iter().map(|one| (one.read_at, 1_i64));
    let ends = taken.iter().filter_map(|one| Some((one.ended_at?, -1_i64)));
    let mut steps: Vec<(i64, i64)> = begins.chain(ends).collect();
    steps.sort_unstable();
    let (mut now, mut most) = (0, (0, 0));
    for (at, step) in steps {
        now += step;
        if now > most.0 {
            most = (now, at);
        }
    }
    (usize::try_from(most.0).unwrap_or(0), most.1)
}

/// The most requests that began within any minute, and when that minute begins.
fn most_in_a_minute(taken: &[&Taken]) -> (usize, i64) {
    let mut begins: Vec<i64> = taken.iter().map(|one| one.read_at).collect();
    begins.sort_unstable();
    let mut first = 0;
    let mut most = (0, 0);
    for (last, at) in begins.iter().enumerate() {
        while at - begins[first] >= MINUTE {
            first += 1;
        }
        if last + 1 - first > most.0 {
            most = (last + 1 - first, begins[first]);
        }
    }
    most
}
