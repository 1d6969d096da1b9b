//! Checks a failover that lost commits: whatever was acknowledged since is stored and ends once, every entry ends, and
//! no holder of a lease from the old primary ends, extends or requeues an entry that the new one gave to another.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::{Invariant, Report, check_census, check_drained, check_refused};
use crate::history::{Answer, Claim, Intent, Op, OpOutcome};
use crate::state::State;

/// A claim: the process that got it, when it was answered, and the lease.
type Given<'a> = (&'a str, i64, &'a Claim);

/// How much was lost, and how much the history exercised.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    /// Events acknowledged before the failover that are missing, and those that are not.
    pub(crate) lost: usize,
    pub(crate) kept: usize,
    pub(crate) acknowledged_since: usize,
    /// Operations after the failover under leases from before, and those of them that were fenced.
    pub(crate) stale_actions: usize,
    pub(crate) fenced: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, kept, acknowledged_since, stale_actions, fenced } = self;
        write!(
            f,
            "{lost} of {} acknowledged before were lost, {acknowledged_since} acknowledged since, {stale_actions} \
             operations under leases from before ({fenced} fenced)",
            lost + kept
        )
    }
}

/// Checks a history with a failover at `over`, in microseconds of this machine's clock.
pub(crate) fn check(history: &[Op], state: &State, over: i64) -> (Report, Tally) {
    let mut report = Report::default();
    let mut tally = Tally::default();
    check_publishes(history, state, over, &mut report, &mut tally);
    check_leases(history, over, &mut report, &mut tally);
    check_ends(state, &mut report);
    check_census(history, &mut report);
    // The holder of an entry that was lost is answered with `NotFound`, which is right.
    let others: Vec<Op> = history.iter().filter(|op| !acts_on_nothing(op)).cloned().collect();
    check_refused(&others, &mut report);
    check_drained(state, &mut report);
    (report, tally)
}

fn acts_on_nothing(op: &Op) -> bool {
    let acts = matches!(op.intent, Intent::Finalize { .. } | Intent::Extend { .. } | Intent::Requeue { .. });
    acts && matches!(&op.outcome, Some(OpOutcome::Refused { error }) if error.starts_with("NotFound"))
}

fn check_publishes(history: &[Op], state: &State, over: i64, report: &mut Report, tally: &mut Tally) {
    let there: HashSet<(i64, &str)> = state.entries().collect();
    for op in history {
        let (Intent::Publish { offers, .. }, Some(OpOutcome::Published { answers })) = (&op.intent, &op.outcome) else {
            continue;
        };
        for (offer, answer) in offers.iter().zip(answers) {
            let (Answer::Created { id } | Answer::Duplicate { id }) = answer else { continue };
            let kept = there.contains(&(*id, offer.key.as_str()));
            if op.begun < over {
                tally.lost += usize::from(!kept);
                tally.kept += usize::from(kept);
                continue;
            }
            tally.acknowledged_since += 1;
            if !kept {
                let detail = format!("{} was acknowledged as entry {id} after the failover but is missing", offer.key);
                report.violate(Invariant::AcknowledgedIsThere, detail);
            }
        }
    }
}

/// If the new primary handed out a lease, only its holder acts under it, not one from before the failover.
fn check_leases(history: &[Op], over: i64, report: &mut Report, tally: &mut Tally) {
    let mut given: HashMap<(i64, i64), Vec<Given<'_>>> = HashMap::new();
    for op in history {
        if let Some(OpOutcome::Claimed { claims }) = &op.outcome {
            for claim in claims {
                given.entry((claim.id, claim.token)).or_default().push((&op.process, op.answered.unwrap_or(0), claim));
            }
        }
    }
    for op in history.iter().filter(|op| op.begun >= over) {
        let (Intent::Finalize { id, token, .. } | Intent::Extend { id, token, .. } | Intent::Requeue { id, token, .. }) =
            op.intent
        else {
            continue;
        };
        let holders = given.get(&(id, token)).map_or(&[][..], Vec::as_slice);
        let since: Vec<&str> =
            holders.iter().filter(|(_, _, claim)| claim.claimed_at >= over).map(|(process, ..)| *process).collect();
        let stale = holders.iter().any(|(process, answered, _)| *process == op.process && *answered < over);
        tally.stale_actions += usize::from(stale);
        let fenced = matches!(op.outcome, Some(OpOutcome::Fenced));
        tally.fenced += usize::from(stale && fenced);
        let done =
            matches!(op.outcome, Some(OpOutcome::Finalized { .. } | OpOutcome::Extended { .. } | OpOutcome::Requeued));
        if stale && done && !since.is_empty() && !since.contains(&op.process.as_str()) {
            let detail = format!(
                "{} acted on entry {id} under token {token} of the old primary ({:?}); the new one gave it to {since:?}",
                op.process, op.intent
            );
            report.violate(Invariant::FencingTrue, detail);
        }
    }
}

fn check_ends(state: &State, report: &mut Report) {
    let mut seen = HashSet::new();
    let standing: HashSet<i64> = state.log.iter().filter(|row| !row.superseded).map(|row| row.id).collect();
    for row in &state.log {
        if !seen.insert((row.id, row.generation)) {
            report.violate(Invariant::OneEnd, format!("entry {} is in the log twice: {row:?}", row.id));
        }
    }
    for row in state.live.iter().filter(|row| standing.contains(&row.id)) {
        report.violate(Invariant::OneEnd, format!("entry {} is live and ended", row.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Offer;
    use crate::state::LogRow;

    const OVER: i64 = 1_000;

    fn op(process: &str, at: i64, intent: Intent, outcome: OpOutcome) -> Op {
        Op { process: process.into(), begun: at, answered: Some(at + 1), intent, outcome: Some(outcome) }
    }

    fn claim(process: &str, at: i64, token: i64) -> Op {
        let claim = Claim {
            id: 7,
            generation: 1,
            token,
            attempts: 1,
            key: "a".into(),
            claimed_at: at,
            lease_until: at + 5_000,
        };
        let intent = Intent::Claim { worker: process.into(), lease: 5_000 };
        op(process, at, intent, OpOutcome::Claimed { claims: vec![claim] })
    }

    fn end(process: &str, at: i64, token: i64, outcome: OpOutcome) -> Op {
        op(process, at, Intent::Finalize { id: 7, generation: 1, token, end: 0 }, outcome)
    }

    fn done() -> OpOutcome {
        OpOutcome::Finalized { repeated: false, end: 0 }
    }

    fn publish(at: i64) -> Op {
        let offers = vec![Offer { key: "a".into(), group: None, once: false }];
        let outcome = OpOutcome::Published { answers: vec![Answer::Created { id: 7 }] };
        op("w0", at, Intent::Publish { offers, outbox: false }, outcome)
    }

    fn ended() -> State {
        let row = LogRow {
            id: 7,
            generation: 1,
            key: "a".into(),
            token: 1,
            attempts: 1,
            max_attempts: 20,
            status: 0,
            superseded: false,
            finished_at: 3_000,
        };
        State { facts: 1, live: Vec::new(), log: vec![row] }
    }

    fn wrong(history: &[Op], state: &State) -> Vec<Invariant> {
        check(history, state, OVER).0.violations.iter().map(|violation| violation.invariant).collect()
    }

    #[test]
    fn what_was_lost_before_is_counted_and_what_is_lost_since_is_wrong() {
        let (report, tally) = check(&[publish(10)], &State::default(), OVER);
        assert!(report.violations.is_empty());
        assert_eq!((tally.lost, tally.kept), (1, 0));
        assert_eq!(wrong(&[publish(2_000)], &State::default()), [Invariant::AcknowledgedIsThere]);
    }

    #[test]
    fn a_lease_of_the_old_primary_does_not_end_what_the_new_one_gave_away() {
        let history = [publish(10), claim("w0", 20, 1), claim("w1", 2_000, 1), end("w0", 2_100, 1, done())];
        assert_eq!(wrong(&history, &ended()), [Invariant::FencingTrue]);
        let fenced = [publish(10), claim("w0", 20, 1), claim("w1", 2_000, 1), end("w0", 2_100, 1, OpOutcome::Fenced)];
        assert!(wrong(&fenced, &ended()).is_empty());
        let alone = [publish(10), claim("w0", 20, 1), end("w0", 2_100, 1, done())];
        assert!(wrong(&alone, &ended()).is_empty(), "its claim was not lost");
    }

    #[test]
    fn two_ends_are_wrong() {
        let mut state = ended();
        state.log.push(state.log[0].clone());
        assert_eq!(wrong(&[publish(10)], &state), [Invariant::OneEnd]);
    }
}
