//! After a failover that lost commits: what was acknowledged since is there and ends once, everything is worked off, and
//! nobody who was given a lease by the old primary ends, keeps or gives back what the new one gave to somebody else.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::{Invariant, Report, check_census, check_drained, check_refused};
use crate::history::{Answer, Claim, Intent, Op, Outcome};
use crate::state::State;

/// Who was given an entry, when, and what the claim said.
type Given<'a> = (&'a str, i64, &'a Claim);

/// How much was lost, and how much was there to go wrong.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) lost: usize,
    pub(crate) kept: usize,
    pub(crate) acknowledged_since: usize,
    pub(crate) stale_actions: usize,
    pub(crate) fenced: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, kept, acknowledged_since, stale_actions, fenced } = self;
        write!(
            f,
            "{lost} of {} acknowledged before were lost, {acknowledged_since} since are all there, {stale_actions} acted \
             on leases of before ({fenced} fenced)",
            lost + kept
        )
    }
}

/// Checks a history against a failover at the moment `over`, in this machine's microseconds.
pub(crate) fn check(history: &[Op], state: &State, over: i64) -> (Report, Tally) {
    let mut report = Report::default();
    let mut tally = Tally::default();
    check_publishes(history, state, over, &mut report, &mut tally);
    check_leases(history, over, &mut report, &mut tally);
    check_ends(state, &mut report);
    check_census(history, &mut report);
    // Whoever held an entry that was lost is told that it is not there.
    let others: Vec<Op> = history.iter().filter(|op| !acts_on_nothing(op)).cloned().collect();
    check_refused(&others, &mut report);
    check_drained(state, &mut report);
    (report, tally)
}

fn acts_on_nothing(op: &Op) -> bool {
    let acts = matches!(op.intent, Intent::Finalize { .. } | Intent::Extend { .. } | Intent::Requeue { .. });
    acts && matches!(&op.outcome, Some(Outcome::Refused { error }) if error.starts_with("NotFound"))
}

fn check_publishes(history: &[Op], state: &State, over: i64, report: &mut Report, tally: &mut Tally) {
    let there: HashSet<(i64, &str)> = state.entries().collect();
    for op in history {
        let (Intent::Publish { offers, .. }, Some(Outcome::Published { answers })) = (&op.intent, &op.outcome) else {
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
                let detail = format!("{} was acknowledged as entry {id} after the failover and is gone", offer.key);
                report.violate(Invariant::AcknowledgedIsThere, detail);
            }
        }
    }
}

/// Whoever acts under a lease is the one whom the new primary gave it to, if it gave it to anybody.
fn check_leases(history: &[Op], over: i64, report: &mut Report, tally: &mut Tally) {
    let mut given: HashMap<(i64, i64), Vec<Given<'_>>> = HashMap::new();
    for op in history {
        if let Some(Outcome::Claimed { claims }) = &op.outcome {
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
        let fenced = matches!(op.outcome, Some(Outcome::Fenced));
        tally.fenced += usize::from(stale && fenced);
        let done = matches!(op.outcome, Some(Outcome::Finalized { .. } | Outcome::Extended { .. } | Outcome::Requeued));
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

    fn op(process: &str, at: i64, intent: Intent, outcome: Outcome) -> Op {
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
        op(process, at, intent, Outcome::Claimed { claims: vec![claim] })
    }

    fn end(process: &str, at: i64, token: i64, outcome: Outcome) -> Op {
        op(process, at, Intent::Finalize { id: 7, generation: 1, token, end: 0 }, outcome)
    }

    fn done() -> Outcome {
        Outcome::Finalized { repeated: false, end: 0 }
    }

    fn publish(at: i64) -> Op {
        let offers = vec![Offer { key: "a".into(), group: None, once: false }];
        let outcome = Outcome::Published { answers: vec![Answer::Created { id: 7 }] };
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
        let fenced = [publish(10), claim("w0", 20, 1), claim("w1", 2_000, 1), end("w0", 2_100, 1, Outcome::Fenced)];
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
