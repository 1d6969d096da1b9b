//! Hand-written histories: good ones pass, and each kind of violation is found.

use super::*;
use crate::history::{Answer, Offer};
use crate::state::{LiveRow, LogRow};

const LEASE: i64 = 2_000_000;
const COMPLETED: i16 = 0;

/// Builds a history; times are given in milliseconds.
#[derive(Default)]
struct Story {
    ops: Vec<Op>,
    state: State,
}

impl Story {
    fn op(&mut self, process: &str, begun: i64, intent: Intent, outcome: Option<OpOutcome>) -> &mut Self {
        let answered = outcome.as_ref().map(|_| begun * 1000 + 500);
        self.ops.push(Op { process: process.into(), begun: begun * 1000, answered, intent, outcome });
        self
    }

    fn offer(&mut self, at: i64, key: &str, group: Option<&str>, once: bool, outcome: Option<OpOutcome>) -> &mut Self {
        let offers = vec![Offer { key: key.into(), group: group.map(Into::into), once }];
        self.op("p", at, Intent::Publish { offers, outbox: false }, outcome)
    }

    fn published(&mut self, at: i64, key: &str, id: i64) -> &mut Self {
        self.offer(at, key, None, false, Some(OpOutcome::Published { answers: vec![Answer::Created { id }] }))
    }

    fn grouped(&mut self, at: i64, key: &str, id: i64) -> &mut Self {
        self.offer(at, key, Some("g"), false, Some(OpOutcome::Published { answers: vec![Answer::Created { id }] }))
    }

    fn claim(&mut self, process: &str, at: i64, id: i64, token: i64, attempts: u32) -> &mut Self {
        let claim = Claim {
            id,
            generation: 1,
            token,
            attempts,
            key: format!("k{id}"),
            claimed_at: at * 1000 + 100,
            lease_until: at * 1000 + 100 + LEASE,
        };
        let intent = Intent::Claim { worker: process.into(), lease: LEASE };
        self.op(process, at, intent, Some(OpOutcome::Claimed { claims: vec![claim] }))
    }

    fn finalize(&mut self, process: &str, at: i64, id: i64, token: i64, outcome: Option<OpOutcome>) -> &mut Self {
        self.op(process, at, Intent::Finalize { id, generation: 1, token, end: COMPLETED }, outcome)
    }

    fn done(&mut self, process: &str, at: i64, id: i64, token: i64) -> &mut Self {
        self.finalize(process, at, id, token, Some(OpOutcome::Finalized { repeated: false, end: COMPLETED }))
    }

    fn requeue(&mut self, at: i64, id: i64, token: i64, counts: bool, outcome: Option<OpOutcome>) -> &mut Self {
        self.op("w", at, Intent::Requeue { id, token, counts }, outcome)
    }

    fn live(&mut self, id: i64, token: i64, attempts: u32) -> &mut Self {
        self.state.facts += 1;
        let key = format!("k{id}");
        self.state.live.push(LiveRow { id, key, token, attempts, leased: false });
        self
    }

    fn logged(&mut self, at: i64, id: i64, token: i64, attempts: u32, status: i16) -> &mut Self {
        self.state.facts += 1;
        self.state.log.push(LogRow {
            id,
            generation: 1,
            key: format!("k{id}"),
            token,
            attempts,
            max_attempts: 3,
            status,
            superseded: false,
            finished_at: at * 1000,
        });
        self
    }

    fn kinds(&self) -> Vec<Invariant> {
        let report = check(&self.ops, &self.state, Rules { drained: false, ..Rules::default() });
        let mut kinds: Vec<Invariant> = report.violations.iter().map(|violation| violation.invariant).collect();
        kinds.dedup();
        kinds
    }

    #[track_caller]
    fn holds(&self) {
        let report = check(&self.ops, &self.state, Rules { drained: false, ..Rules::default() });
        assert!(report.violations.is_empty(), "{}", report.explain());
    }

    #[track_caller]
    fn breaks(&self, invariant: Invariant) {
        assert_eq!(self.kinds(), [invariant]);
    }
}

fn unknown() -> Option<OpOutcome> {
    Some(OpOutcome::Unknown { error: "connection lost".into() })
}

#[test]
fn a_good_history_passes() {
    let mut story = Story::default();
    story.published(1, "k1", 1).claim("a", 2, 1, 1, 1).claim("b", 2003, 1, 2, 2).done("b", 2004, 1, 2);
    story.finalize("a", 2005, 1, 1, Some(OpOutcome::Fenced)).logged(2004, 1, 2, 2, COMPLETED);
    story.offer(5, "k2", None, false, None).offer(6, "k3", None, false, unknown()).live(3, 0, 0);
    story.op("s", 3000, Intent::Census, Some(OpOutcome::Counted { events: 5, waiting: 2, leased: 1, ended: 2 }));
    story.holds();
    let report = check(&story.ops, &story.state, Rules { drained: true, ..Rules::default() });
    assert_eq!(report.violations.len(), 1);
    assert_eq!(report.violations[0].invariant, Invariant::Drained);
    assert!(report.explain().contains("entry 3"), "{}", report.explain());
}

#[test]
fn a_lost_event_is_seen() {
    Story::default().published(1, "k1", 1).breaks(Invariant::AcknowledgedIsThere);
}

#[test]
fn an_event_twice_is_seen() {
    let mut story = Story::default();
    story.offer(1, "k1", None, false, unknown()).live(1, 0, 0);
    story.holds();
    story.live(2, 0, 0).state.live[1].key = "k1".into();
    story.breaks(Invariant::NothingTwice);
    story.offer(2, "k1", None, false, None).holds();
}

#[test]
fn a_deduplicated_event_twice_is_seen() {
    let mut story = Story::default();
    story.offer(1, "k1", None, true, None).offer(2, "k1", None, true, None).live(1, 0, 0);
    story.holds();
    story.live(2, 0, 0).state.live[1].key = "k1".into();
    story.breaks(Invariant::NothingTwice);
}

#[test]
fn a_rolled_back_or_refused_event_is_seen() {
    let refused = OpOutcome::Published { answers: vec![Answer::Refused { error: "full".into() }] };
    for outcome in [OpOutcome::RolledBack, refused, OpOutcome::Refused { error: "invalid".into() }] {
        let mut story = Story::default();
        let refused = outcome != OpOutcome::RolledBack;
        story.offer(1, "k1", None, false, Some(outcome)).live(1, 0, 0);
        assert!(story.kinds().contains(&Invariant::NothingTwice));
        assert_eq!(story.kinds().contains(&Invariant::NothingRefused), refused);
    }
}

#[test]
fn a_denied_event_that_is_there_is_seen() {
    let denied = || Some(OpOutcome::Denied { error: "unavailable".into() });
    let mut story = Story::default();
    story.offer(1, "k1", None, false, denied()).holds();
    story.live(1, 0, 0).breaks(Invariant::DeniedIsNotThere);
    story.published(2, "k1", 1).holds();
}

#[test]
fn a_denied_event_that_another_try_finds_there_is_seen() {
    let denied = || Some(OpOutcome::Denied { error: "busy".into() });
    let answered = |answer| Some(OpOutcome::Published { answers: vec![answer] });
    let mut found = Story::default();
    found.offer(1, "k1", None, true, denied()).live(1, 0, 0);
    found.offer(2, "k1", None, true, answered(Answer::Duplicate { id: 1 })).breaks(Invariant::DeniedIsNotThere);
    found.offer(3, "k1", None, true, unknown()).holds();

    let mut new = Story::default();
    new.offer(1, "k1", None, true, denied()).offer(2, "k1", None, true, answered(Answer::Created { id: 1 }));
    new.live(1, 0, 0).holds();
    new.live(2, 0, 0).state.live[1].key = "k1".into();
    new.breaks(Invariant::NothingTwice);
}

#[test]
fn an_event_of_nobody_is_seen() {
    Story::default().live(1, 0, 0).breaks(Invariant::NothingTwice);
}

#[test]
fn a_fact_without_an_entry_is_seen() {
    let mut story = Story::default();
    story.published(1, "k1", 1).live(1, 0, 0).state.facts = 2;
    story.breaks(Invariant::OneEntryPerFact);
}

#[test]
fn overlapping_leases_are_seen() {
    let mut story = Story::default();
    story.published(1, "k1", 1).live(1, 2, 2).claim("a", 2, 1, 1, 1).claim("b", 1000, 1, 2, 2);
    story.breaks(Invariant::LeasesApart);
    story.requeue(900, 1, 1, true, None).holds();
}

/// A claim that was answered before the lease was given back cannot have waited for that.
#[test]
fn a_lease_that_is_given_back_after_the_next_claim_is_seen() {
    let mut story = Story::default();
    story.published(1, "k1", 1).live(1, 2, 2).claim("a", 2, 1, 1, 1).claim("b", 1000, 1, 2, 2);
    story.requeue(1100, 1, 1, true, None).breaks(Invariant::LeasesApart);
}

#[test]
fn an_extended_lease_is_longer() {
    let mut story = Story::default();
    story.published(1, "k1", 1).live(1, 2, 2).claim("a", 2, 1, 1, 1).claim("b", 2500, 1, 2, 2).holds();
    let extend = Intent::Extend { id: 1, token: 1, lease: LEASE };
    story.op("a", 1000, extend.clone(), unknown()).holds();
    story.op("a", 1001, extend, Some(OpOutcome::Extended { until: 3_001_000 })).breaks(Invariant::LeasesApart);
}

#[test]
fn a_token_given_twice_or_falling_is_seen() {
    let mut story = Story::default();
    story.published(1, "k1", 1).live(1, 1, 1).claim("a", 2, 1, 1, 1).claim("b", 3000, 1, 1, 1);
    story.breaks(Invariant::TokensRise);
    let mut story = Story::default();
    story.published(1, "k1", 1).live(1, 2, 2).claim("a", 2, 1, 2, 2).claim("b", 3000, 1, 1, 1);
    assert!(story.kinds().contains(&Invariant::TokensInTime));
    let mut story = Story::default();
    story.published(1, "k1", 1).live(1, 1, 1).claim("a", 2, 1, 2, 1).breaks(Invariant::TokensRise);
}

#[test]
fn an_attempt_that_a_release_used_up_is_seen() {
    for (outcome, attempts, fair) in
        [(Some(OpOutcome::Requeued), 1, true), (Some(OpOutcome::Requeued), 2, false), (None, 2, true), (None, 1, true)]
    {
        let mut story = Story::default();
        story.published(1, "k1", 1).live(1, 2, attempts).claim("a", 2, 1, 1, 1);
        story.requeue(3, 1, 1, false, outcome).claim("b", 4, 1, 2, attempts);
        assert_eq!(story.kinds(), if fair { vec![] } else { vec![Invariant::AttemptsFair] });
    }
}

#[test]
fn an_attempt_that_was_not_counted_is_seen() {
    let mut story = Story::default();
    story.published(1, "k1", 1).live(1, 2, 1).claim("a", 2, 1, 1, 1).claim("b", 3000, 1, 2, 1);
    story.breaks(Invariant::AttemptsFair);
}

#[test]
fn too_many_attempts_in_the_log_are_seen() {
    let mut story = Story::default();
    story.published(1, "k1", 1).claim("a", 2, 1, 1, 1).requeue(3, 1, 1, false, Some(OpOutcome::Requeued));
    story.claim("a", 4, 1, 2, 1).done("a", 5, 1, 2).logged(5, 1, 2, 2, COMPLETED).breaks(Invariant::AttemptsFair);
}

#[test]
fn two_ends_are_seen() {
    let mut story = Story::default();
    story.published(1, "k1", 1).claim("a", 2, 1, 1, 1).done("a", 3, 1, 1).done("a", 4, 1, 1);
    story.logged(3, 1, 1, 1, COMPLETED).breaks(Invariant::OneEnd);
    let mut story = Story::default();
    story.published(1, "k1", 1).claim("a", 2, 1, 1, 1).done("a", 3, 1, 1).logged(3, 1, 1, 1, COMPLETED);
    story.finalize("a", 4, 1, 1, Some(OpOutcome::Finalized { repeated: true, end: COMPLETED })).holds();
    story.live(1, 1, 1).state.facts = 1;
    story.breaks(Invariant::OneEnd);
    story.state.live.clear();
    story.logged(3, 1, 1, 1, COMPLETED).state.facts = 1;
    story.breaks(Invariant::OneEnd);
}

#[test]
fn a_lost_end_is_seen() {
    let mut story = Story::default();
    story.published(1, "k1", 1).live(1, 1, 1).claim("a", 2, 1, 1, 1).done("a", 3, 1, 1);
    story.breaks(Invariant::EndsAreTrue);
}

#[test]
fn an_end_that_stands_otherwise_in_the_log_is_seen() {
    let mut story = Story::default();
    story.published(1, "k1", 1).claim("a", 2, 1, 1, 1).done("a", 3, 1, 1).logged(3, 1, 1, 1, 2);
    story.breaks(Invariant::EndsAreTrue);
}

#[test]
fn an_end_by_nobody_is_seen() {
    let mut story = Story::default();
    story.published(1, "k1", 1).logged(3, 1, 1, 1, COMPLETED).breaks(Invariant::EndsAreTrue);
    let mut story = Story::default();
    story.published(1, "k1", 1).logged(3, 1, 4, 3, 1).holds();
    story.state.log[0].attempts = 2;
    story.breaks(Invariant::EndsAreTrue);
}

#[test]
fn a_wrong_fence_is_seen() {
    let mut story = Story::default();
    story.published(1, "k1", 1).live(1, 1, 1).claim("a", 2, 1, 1, 1).finalize("a", 3, 1, 1, Some(OpOutcome::Fenced));
    story.breaks(Invariant::FencingTrue);
    let mut story = Story::default();
    story.published(1, "k1", 1).claim("a", 2, 1, 1, 1).finalize("a", 3, 1, 1, None).logged(3, 1, 1, 1, COMPLETED);
    story.holds();
    story.finalize("a", 4, 1, 1, Some(OpOutcome::Fenced)).breaks(Invariant::FencingTrue);
}

#[test]
fn a_false_census_is_seen() {
    let mut story = Story::default();
    story.op("s", 1, Intent::Census, Some(OpOutcome::Counted { events: 3, waiting: 1, leased: 1, ended: 0 }));
    story.breaks(Invariant::Census);
}

#[test]
fn two_of_a_group_in_flight_are_seen() {
    let mut story = Story::default();
    // Published at the same time, so that only the overlap is a violation.
    story.grouped(1, "k1", 1).grouped(1, "k2", 2).live(1, 1, 1).live(2, 1, 1);
    story.claim("a", 2, 1, 1, 1).claim("b", 100, 2, 1, 1).breaks(Invariant::GroupAlone);
    story.requeue(50, 1, 1, true, None).holds();
}

#[test]
fn a_group_out_of_order_is_seen() {
    let mut story = Story::default();
    story.grouped(1, "k1", 1).grouped(2, "k2", 2);
    story.claim("a", 10, 2, 1, 1).done("a", 11, 2, 1).logged(11, 2, 1, 1, COMPLETED);
    story.claim("a", 20, 1, 1, 1).done("a", 21, 1, 1).logged(21, 1, 1, 1, COMPLETED);
    story.breaks(Invariant::GroupOrder);
    // Of two entries offered at the same time, either may run first.
    story.ops[1].begun = 1_000;
    story.holds();
}
