//! Hand-written histories with handlers: good ones pass, and each kind of violation is found.

use super::*;
use crate::history::{Answer, Offer};

const LEASE: i64 = 1_000;
const HANDLERS: Handlers<'_> = Handlers { plain: &["a", "b"], in_tx: "tx" };
const ALL_WELL: &str = r#"{"a":{"result":"SUCCESS"},"b":{"result":"SUCCESS"},"tx":{"result":"SUCCESS"}}"#;

/// Builds the history of one entry; times are microseconds.
struct Story {
    ops: Vec<Op>,
    state: State,
    evidence: Evidence,
}

impl Story {
    /// Entry 1 was published; it ends under `token` at `finished_at`.
    fn ending(token: i64, finished_at: i64) -> Self {
        let offers = vec![Offer { key: "k1".into(), group: None, once: false }];
        let published = OpOutcome::Published { answers: vec![Answer::Created { id: 1 }] };
        let publish = Op {
            process: "p".into(),
            begun: 0,
            answered: Some(1),
            intent: Intent::Publish { offers, outbox: false },
            outcome: Some(published),
        };
        let row = LogRow {
            id: 1,
            generation: 1,
            key: "k1".into(),
            token,
            attempts: 1,
            max_attempts: 20,
            status: End::Completed.code(),
            superseded: false,
            finished_at,
        };
        let mut evidence = Evidence::default();
        evidence.results.insert(1, ALL_WELL.into());
        evidence.effects.push((1, token));
        Self { ops: vec![publish], state: State { facts: 1, live: Vec::new(), log: vec![row] }, evidence }
    }

    fn ran(mut self, handler: &str, token: i64, claimed_at: i64, success: Option<bool>) -> Self {
        let (attempts, lease_until) = (1, claimed_at + LEASE);
        let claim = Claim { id: 1, generation: 1, token, attempts, key: "k1".into(), claimed_at, lease_until };
        self.ops.push(Op {
            process: format!("w{token}"),
            begun: claimed_at,
            answered: success.map(|_| claimed_at + 1),
            intent: Intent::Handle { handler: handler.into(), claim },
            outcome: success.map(|success| OpOutcome::Handled { success }),
        });
        self
    }

    /// All handlers succeed under one lease.
    fn plain() -> Self {
        Self::ending(1, 300).ran("a", 1, 100, Some(true)).ran("b", 1, 100, Some(true)).ran("tx", 1, 100, Some(true))
    }

    /// `b` fails under the first lease and succeeds under the second, which is claimed at `claimed_at`.
    fn retried(claimed_at: i64) -> Self {
        Self::ending(2, 5_000)
            .ran("a", 1, 100, Some(true))
            .ran("b", 1, 100, Some(false))
            .ran("b", 2, claimed_at, Some(true))
            .ran("tx", 2, claimed_at, Some(true))
    }

    fn durable(mut self, handler: &str, since: i64) -> Self {
        self.evidence.durable.insert((1, handler.into()), since);
        self
    }

    #[track_caller]
    fn holds(self) -> Tally {
        let (report, tally) = check(&self.ops, &self.state, &self.evidence, HANDLERS);
        assert!(report.violations.is_empty(), "{}", report.explain());
        tally
    }

    #[track_caller]
    fn breaks(self, invariant: Invariant) {
        let (report, _) = check(&self.ops, &self.state, &self.evidence, HANDLERS);
        let mut kinds: Vec<_> = report.violations.iter().map(|violation| violation.invariant).collect();
        kinds.dedup();
        assert_eq!(kinds, [invariant], "{}", report.explain());
    }
}

#[test]
fn good_histories_pass() {
    let tally = Story::plain().holds();
    assert_eq!((tally.published, tally.ended, tally.runs, tally.again, tally.effects), (1, 1, 3, 0, 1));
    let tally = Story::retried(200).durable("a", 150).holds();
    assert_eq!((tally.again, tally.repeated, tally.durable, tally.reclaimed), (1, 0, 1, 1));
}

#[test]
fn a_success_that_nobody_recorded_may_come_again_after_a_crash() {
    let tally = Story::ending(2, 5_000)
        .ran("a", 1, 100, Some(true))
        .ran("b", 1, 100, None)
        .ran("a", 2, 100 + LEASE, Some(true))
        .ran("b", 2, 100 + LEASE, Some(true))
        .ran("tx", 2, 100 + LEASE, Some(true))
        .durable("a", 200 + LEASE)
        .holds();
    assert_eq!((tally.again, tally.repeated, tally.cut, tally.reclaimed), (2, 1, 1, 0));
}

#[test]
fn a_durable_success_must_not_come_again() {
    let crashed = || Story::retried(100 + LEASE).ran("a", 2, 100 + LEASE, Some(true));
    crashed().holds();
    crashed().durable("a", 150).breaks(Invariant::SuccessStays);
    crashed().durable("b", 150).breaks(Invariant::SuccessStays);
}

#[test]
fn a_retry_runs_only_what_had_not_succeeded() {
    Story::retried(200).ran("a", 2, 200, None).breaks(Invariant::SuccessStays);
}

#[test]
fn a_handler_runs_once_under_a_lease() {
    Story::plain().ran("a", 1, 100, Some(true)).breaks(Invariant::SuccessStays);
}

#[test]
fn effects_are_there_once_and_of_the_lease_that_ended_it() {
    let with = |effects: &[(i64, i64)]| {
        let mut story = Story::retried(200);
        story.evidence.effects = effects.to_vec();
        story
    };
    with(&[(1, 2)]).holds();
    with(&[]).breaks(Invariant::EffectsOnce);
    with(&[(1, 1)]).breaks(Invariant::EffectsOnce);
    with(&[(1, 2), (1, 2)]).breaks(Invariant::EffectsOnce);
    with(&[(1, 2), (7, 1)]).breaks(Invariant::EffectsOnce);
}

#[test]
fn results_say_what_handlers_answered() {
    let with = |results: &str| {
        let mut story = Story::plain();
        story.evidence.results.insert(1, results.into());
        story
    };
    with(r#"{"a":{"result":"SUCCESS"},"b":{"result":"SUCCESS"}}"#).breaks(Invariant::ResultsTrue);
    with(&ALL_WELL.replacen("SUCCESS", "TRANSIENT_ERROR", 1)).breaks(Invariant::ResultsTrue);
    with("").breaks(Invariant::ResultsTrue);
    Story::ending(1, 300).ran("a", 1, 100, Some(true)).ran("tx", 1, 100, Some(true)).breaks(Invariant::ResultsTrue);
}

#[test]
fn an_event_ends_once_and_nobody_works_on_it_later() {
    Story::plain().ran("b", 2, 400, Some(true)).breaks(Invariant::EndsAreTrue);
    let mut twice = Story::plain();
    let again = LogRow { generation: 2, ..twice.state.log[0].clone() };
    twice.state.log.push(again);
    twice.breaks(Invariant::OneEnd);
    let mut failed = Story::plain();
    failed.state.log[0].status = End::CompletedWithErrors.code();
    failed.breaks(Invariant::EndsAreTrue);
}
