use super::*;
use crate::state::deliver::LiveJob;

const MS: i64 = 1_000;
const S: i64 = 1_000_000;
/// Subscriptions by their places.
const ONCE: usize = 1;
const NEXT: usize = 2;
const RATED: usize = 3;
const BLOCK: usize = 4;

fn id(event: u64, of: usize) -> String {
    format!("job{event}.{of}")
}

fn taken(event: u64, of: usize, read_at: i64, answer: Answered) -> Taken {
    Taken {
        id: id(event, of),
        event: Some(event),
        subscription: Some(of),
        connection: 0,
        read_at,
        ended_at: Some(read_at + 10 * MS),
        closed_at: None,
        answer,
        unsigned: None,
    }
}

fn record(of: &Taken, status: &str, code: Option<u16>) -> String {
    let at = tidegate::Timestamp::from_microsecond(of.read_at - MS).unwrap();
    let code = code.map_or_else(String::new, |code| format!(r#","responseCode":{code}"#));
    format!(r#"{{"attemptedAt":"{at}","durationMillis":12,"status":"{status}"{code}}}"#)
}

fn ended(event: u64, of: usize, status: i64, finished_at: i64, records: Vec<(i64, String)>) -> EndedJob {
    EndedJob {
        id: id(event, of),
        status,
        attempts: records.len() as i64,
        max_attempts: i64::from(SUBSCRIPTIONS[of].max_retries) + 1,
        finished_at,
        expires_at: Some(1_000 * S),
        token: records.len() as i64,
        records,
    }
}

/// Events 0 and 3 of one group, which `next` and `block` take. At `next`, the first one fails and lets the second one go; at
/// `block`, it fails and holds it.
fn good() -> (Run, Jobs) {
    let event = |number, sent_at, sequence| Published {
        number,
        group: "g".into(),
        sequence,
        sent_at,
        accepted_at: sent_at + MS,
        jobs: [NEXT, BLOCK].map(|of| (id(number, of), SUBSCRIPTIONS[of].code.to_owned())).to_vec(),
    };
    let (failed, ok) = (Answered::Status(500), Answered::Status(200));
    let mut run = Run {
        pools: POOLS.map(|pool| pool.code.to_owned()).to_vec(),
        subscriptions: SUBSCRIPTIONS.map(|one| one.code.to_owned()).to_vec(),
        lease: 2 * S,
        published: vec![event(0, S, None), event(3, S + 50 * MS, None)],
        taken: vec![
            taken(0, NEXT, 2 * S, failed),
            taken(3, NEXT, 2 * S + 20 * MS, ok),
            taken(0, NEXT, 3 * S + 100 * MS, ok),
            taken(0, BLOCK, 2 * S, failed),
            taken(0, BLOCK, 3 * S, ok),
            taken(3, BLOCK, 3 * S + 100 * MS, ok),
        ],
        ..Run::default()
    };
    run.kills.push(Kill { from: 100 * S, until: 101 * S, is_of_database: false });
    let told = |at: usize| match run.taken[at].answer {
        Answered::Status(500) => record(&run.taken[at], "SERVER_ERROR", Some(500)),
        _ => record(&run.taken[at], "SUCCESS", Some(200)),
    };
    let stored = Jobs {
        ended: vec![
            ended(0, NEXT, 0, 3 * S + 120 * MS, vec![(1, told(0)), (2, told(2))]),
            ended(3, NEXT, 0, 2 * S + 40 * MS, vec![(1, told(1))]),
            ended(0, BLOCK, 0, 3 * S + 20 * MS, vec![(1, told(3)), (2, told(4))]),
            ended(3, BLOCK, 0, 3 * S + 120 * MS, vec![(1, told(5))]),
        ],
        ..Jobs::default()
    };
    (run, stored)
}

#[track_caller]
fn finds(invariant: Invariant, spoil: impl FnOnce(&mut Run, &mut Jobs)) {
    let (mut run, mut stored) = good();
    spoil(&mut run, &mut stored);
    let (report, _) = check(&run, &stored);
    assert!(report.violations.iter().any(|one| one.invariant == invariant), "{invariant:?}: {}", report.explain());
}

#[track_caller]
fn passes(change: impl FnOnce(&mut Run, &mut Jobs)) -> Tally {
    let (mut run, mut stored) = good();
    change(&mut run, &mut stored);
    let (report, tally) = check(&run, &stored);
    assert!(report.violations.is_empty(), "{}", report.explain());
    tally
}

#[test]
fn a_good_run_passes() {
    let tally = passes(|_, _| {});
    assert_eq!((tally.jobs, tally.requests, tally.stepped_aside, tally.most), (4, 6, 1, [1, 1, 0]));
}

#[test]
fn two_in_flight_in_a_group_are_found() {
    // The first answer of `next` takes until after the second request.
    finds(Invariant::GroupAlone, |run, _| run.taken[0].ended_at = Some(2 * S + 21 * MS));
    finds(Invariant::GroupAlone, |run, _| run.taken[0].ended_at = None);
    let leased = |id: &str| LiveJob { id: id.into(), group: Some("block:g".into()), is_leased: true };
    finds(Invariant::GroupAlone, |_, stored| stored.live = vec![leased("a"), leased("b")]);
}

#[test]
fn inversions_are_found() {
    // The second event comes first.
    let late = |run: &mut Run, sent_at| {
        run.published[1].sequence = Some(1);
        (run.published[1].sent_at, run.published[1].accepted_at) = (sent_at, sent_at);
    };
    // It was accepted before the first was sent, or long before that began.
    finds(Invariant::GroupOrder, |run, _| late(run, S / 2));
    finds(Invariant::GroupOrder, |run, _| {
        run.published[0].sent_at = -3 * S;
        late(run, -S);
    });
    // It is sent so shortly before that the first may have been claimed.
    passes(|run, _| late(run, S + 990 * MS));
    // The first was claimed before by a node that was killed, and is not overtaken any more; but only what came late had to
    // wait for it.
    let claimed_in_vain = |run: &mut Run, stored: &mut Jobs, sent_at| {
        run.published[0].sent_at = -3 * S;
        late(run, sent_at);
        stored.ended[0].token += 1;
        stored.ended[2].token += 1;
    };
    passes(|run, stored| claimed_in_vain(run, stored, -S));
    finds(Invariant::GroupOrder, |run, stored| claimed_in_vain(run, stored, -4 * S));
    // Nothing passes a failed head.
    finds(Invariant::GroupOrder, |run, stored| {
        run.taken[5].read_at = 2 * S + 500 * MS;
        run.taken[5].ended_at = Some(2 * S + 510 * MS);
        stored.ended[3].records[0].1 = record(&run.taken[5], "SUCCESS", Some(200));
        stored.ended[3].finished_at = 2 * S + 520 * MS;
        // Whatever the order was.
        run.published[1].sequence = Some(1);
        late(run, 2 * S);
    });
}

#[test]
fn limits_that_are_exceeded_are_found() {
    let many = |run: &mut Run, of: usize, count: u64, apart: i64| {
        for number in 0..count {
            run.taken.push(taken(100 + number, of, 10 * S + number as i64 * apart, Answered::Status(200)));
        }
    };
    finds(Invariant::PoolLimits, |run, _| many(run, ONCE, 4, MS));
    // 1,200 a minute are one every 50 ms.
    finds(Invariant::PoolLimits, |run, _| many(run, RATED, 1_225, 48 * MS));
    let (mut run, stored) = good();
    many(&mut run, ONCE, 3, MS);
    many(&mut run, RATED, 1_224, 49 * MS);
    let (report, tally) = check(&run, &stored);
    assert!(!report.violations.iter().any(|one| one.invariant == Invariant::PoolLimits), "{}", report.explain());
    assert_eq!((tally.most[1], tally.in_a_minute), (3, 1_224));
    finds(Invariant::PoolLimits, |_, stored| stored.slots = vec![("narrow".into(), 4)]);
    passes(|_, stored| stored.slots = vec![("narrow".into(), 3)]);
}

#[test]
fn lost_jobs_are_found() {
    finds(Invariant::Drained, |_, stored| drop(stored.ended.pop()));
    finds(Invariant::AllOrNone, |run, _| drop(run.published[0].jobs.pop()));
    finds(Invariant::NothingTwice, |_, stored| stored.ended[0].id = "other".into());
    finds(Invariant::OneEnd, |_, stored| stored.ended.push(stored.ended[0].clone()));
    finds(Invariant::NothingRefused, |run, _| run.refused.push("400".into()));
}

#[test]
fn ends_that_are_not_true_are_found() {
    // Completed without a delivery.
    finds(Invariant::EndsAreTrue, |run, _| run.taken[1].answer = Answered::Status(500));
    // Delivered, but failed.
    finds(Invariant::EndsAreTrue, |_, stored| stored.ended[1].status = 2);
    // Failed too early.
    finds(Invariant::EndsAreTrue, |run, stored| {
        run.taken[1].answer = Answered::Status(500);
        stored.ended[1].status = 2;
        stored.ended[1].records[0].1 = record(&run.taken[1], "SERVER_ERROR", Some(500));
    });
    // Cancelled before it expired.
    finds(Invariant::EndsAreTrue, |run, stored| {
        run.taken[1].answer = Answered::Status(500);
        stored.ended[1].status = 3;
    });
    finds(Invariant::ExpiredStays, |run, stored| {
        run.taken[2].answer = Answered::Status(500);
        (stored.ended[0].status, stored.ended[0].expires_at) = (3, Some(S));
    });
}

#[test]
fn a_delivery_that_is_repeated_is_found_unless_a_kill_fell_between() {
    let again = |run: &mut Run, stored: &mut Jobs, closed_at| {
        run.taken[0].answer = Answered::Status(200);
        run.taken[0].closed_at = closed_at;
        stored.ended[0].attempts = 2;
        stored.ended[0].records.remove(0);
        run.kills.push(Kill { from: 2 * S + 100 * MS, until: 2 * S + 110 * MS, is_of_database: false });
    };
    let tally = passes(|run, stored| again(run, stored, Some(2 * S + 105 * MS)));
    assert_eq!((tally.delivered_again, tally.unrecorded), (1, 1));
    finds(Invariant::DeliveredOnce, |run, stored| again(run, stored, None));
    finds(Invariant::DeliveredOnce, |run, stored| again(run, stored, Some(3 * S)));
}

#[test]
fn records_that_are_not_true_are_found() {
    finds(Invariant::AttemptsTrue, |_, stored| drop(stored.ended[0].records.remove(0)));
    finds(Invariant::AttemptsTrue, |_, stored| {
        let made_up = stored.ended[0].records[0].clone();
        stored.ended[0].records.push((3, made_up.1));
    });
    finds(Invariant::AttemptsTrue, |run, stored| {
        stored.ended[0].records[0].1 = record(&run.taken[0], "TIMEOUT", None);
    });
    finds(Invariant::AttemptsFair, |_, stored| stored.ended[0].attempts = 9);
    // A failure that a kill kept from being recorded.
    passes(|run, stored| {
        stored.ended[0].records.remove(0);
        run.kills.push(Kill { from: 2 * S + 12 * MS, until: 2 * S + 15 * MS, is_of_database: false });
    });
}

#[test]
fn what_is_not_signed_or_carries_another_id_is_found() {
    finds(Invariant::Signed, |run, _| run.taken[0].unsigned = Some("no".into()));
    finds(Invariant::Signed, |run, _| run.taken[0].event = Some(3));
    finds(Invariant::Signed, |run, _| run.taken[0].subscription = None);
}
