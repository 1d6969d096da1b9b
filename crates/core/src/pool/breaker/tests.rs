use proptest::prelude::*;

use super::*;
use CallResult::{Answered, Failed, NotMade};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn permit(breaker: &mut Breaker, now: Instant) -> Permit {
    match breaker.may_start(now) {
        Admission::Permit(permit) => permit,
        Admission::NotBefore(_) => panic!("no permit: {breaker:?}"),
    }
}

/// One call. Whether it opened or closed the breaker.
fn call(breaker: &mut Breaker, result: CallResult, now: Instant) -> bool {
    let permit = permit(breaker, now);
    breaker.on(permit, result, now)
}

/// A breaker that opens at a moment, and permits of calls that are under way then.
fn opened(now: Instant) -> (Breaker, Vec<Permit>) {
    let mut breaker = Breaker::new(now);
    let permits = (0..5).map(|_| permit(&mut breaker, now)).collect();
    let changes = (0..10).filter(|_| call(&mut breaker, Failed, now)).count();
    assert_eq!((changes, breaker.state(now)), (1, State::Open(now + OPEN_FOR)));
    (breaker, permits)
}

#[test]
fn statuses_below_500_are_answers() {
    for (status, result) in [(200, Answered), (301, Answered), (404, Answered), (429, Answered), (499, Answered)] {
        assert_eq!(CallResult::of_status(status), result, "{status}");
    }
    assert!([500, 503, 599].into_iter().all(|status| CallResult::of_status(status) == Failed));
}

#[test]
fn it_opens_at_half_of_ten() {
    let now = Instant::now();
    let mut breaker = Breaker::new(now);
    let mut calls = [Answered; 10];
    calls[..5].fill(Failed);
    let opened: Vec<bool> = calls.iter().rev().map(|result| call(&mut breaker, *result, now)).collect();
    assert_eq!(opened.iter().position(|opened| *opened), Some(9), "not before the tenth");

    let mut breaker = Breaker::new(now);
    calls[4] = Answered;
    assert!(!calls.iter().any(|result| call(&mut breaker, *result, now)), "four of ten");
    assert!(!call(&mut breaker, Failed, now), "five of eleven");
    assert!(call(&mut breaker, Failed, now), "six of twelve");
}

#[test]
fn calls_of_the_last_minute_count() {
    let now = Instant::now();
    for (later, opens) in [(54, true), (60, false)] {
        let mut breaker = Breaker::new(now);
        (0..9).for_each(|_| assert!(!call(&mut breaker, Failed, now)));
        assert_eq!(call(&mut breaker, Failed, now + s(later)), opens, "{later} s later");
    }
}

#[test]
fn one_call_at_a_time_is_tried_and_three_successes_close_it() {
    let now = Instant::now();
    let (mut breaker, _) = opened(now);
    assert_eq!(breaker.may_start(now + s(5) - Duration::from_nanos(1)), Admission::NotBefore(now + s(5)));
    let later = now + s(5);
    for nth in 1..=3 {
        let start = later + s(2 * nth);
        assert_eq!(breaker.state(start), State::HalfOpen);
        let trial = permit(&mut breaker, start);
        assert_eq!(breaker.may_start(start + s(1)), Admission::NotBefore(start + TRIAL_FOR));
        assert_eq!(breaker.on(trial, Answered, start + s(1)), nth == 3);
    }
    assert_eq!(breaker.state(later), State::Closed);
    assert!(breaker.is_idle(later), "what failed before is forgotten");
    assert!(!(0..9).any(|_| call(&mut breaker, Failed, later)));
}

#[test]
fn a_failed_trial_opens_it_again() {
    let now = Instant::now();
    let (mut breaker, _) = opened(now);
    let later = now + s(7);
    assert!(!call(&mut breaker, Answered, later) && !call(&mut breaker, Answered, later));
    assert!(call(&mut breaker, Failed, later + s(1)));
    assert_eq!(breaker.may_start(later + s(2)), Admission::NotBefore(later + s(6)));
    let again = later + s(6);
    assert!(!call(&mut breaker, Answered, again), "successes start over");
    assert!(!call(&mut breaker, Answered, again) && call(&mut breaker, Answered, again));
}

#[test]
fn a_trial_that_was_not_made_makes_room_for_another() {
    let now = Instant::now();
    let (mut breaker, _) = opened(now);
    assert!(!call(&mut breaker, NotMade, now + s(5)));
    assert_eq!(breaker.state(now + s(5)), State::HalfOpen);
    let _ = permit(&mut breaker, now + s(5));
}

#[test]
fn a_trial_that_hangs_lets_another_pass_after_a_minute() {
    let now = Instant::now();
    let (mut breaker, _) = opened(now);
    let hangs = permit(&mut breaker, now + s(5));
    let second = permit(&mut breaker, now + s(65));
    assert!(!breaker.on(hangs, Answered, now + s(66)));
    let waits = breaker.may_start(now + s(66));
    assert_eq!(waits, Admission::NotBefore(now + s(125)), "the second is under way");
    assert!(breaker.on(second, Failed, now + s(67)));
}

#[test]
fn results_of_calls_from_before_it_opened_change_nothing() {
    let now = Instant::now();
    let (mut breaker, mut permits) = opened(now);
    assert!(!breaker.on(permits.pop().unwrap(), Failed, now + s(4)));
    assert_eq!(breaker.state(now + s(4)), State::Open(now + s(5)), "not open for longer");
    permits.drain(..3).for_each(|late| assert!(!breaker.on(late, Answered, now + s(6))));
    assert_eq!(breaker.state(now + s(6)), State::HalfOpen, "three late successes do not close it");
    assert!((0..3).any(|_| call(&mut breaker, Answered, now + s(6))));
    assert_eq!(breaker.state(now + s(6)), State::Closed);
    assert!(!breaker.on(permits.pop().unwrap(), Failed, now + s(7)));
    assert!(breaker.is_idle(now + s(7)), "nor do they count once it has closed");
}

#[test]
fn time_that_goes_back_stands_still() {
    let now = Instant::now() + s(1_000);
    let (mut breaker, _) = opened(now);
    assert_eq!(breaker.may_start(now - s(900)), Admission::NotBefore(now + s(5)));
    let trial = permit(&mut breaker, now + s(5));
    assert!(breaker.on(trial, Failed, now - s(900)));
    assert_eq!(breaker.state(now), State::Open(now + s(10)));
}

/// The same with everything remembered: each call with its time, each permit with the history when it was given.
struct Naive {
    began: Instant,
    calls: Vec<(Instant, bool)>,
    open_until: Option<Instant>,
    successes: u32,
    trial: Option<(usize, Instant)>,
    /// For each permit how often the breaker had changed.
    permits: Vec<usize>,
    changes: usize,
}

impl Naive {
    fn may_start(&mut self, now: Instant) -> Result<(), Instant> {
        if let Some(until) = self.open_until.filter(|until| now < *until) {
            return Err(until);
        }
        if self.open_until.is_some() {
            if let Some((_, until)) = self.trial.filter(|(_, until)| now < *until) {
                return Err(until);
            }
            self.trial = Some((self.permits.len(), now + s(60)));
        }
        self.permits.push(self.changes);
        Ok(())
    }

    fn on(&mut self, permit: usize, result: CallResult, now: Instant) -> bool {
        if self.permits[permit] != self.changes {
            return false;
        }
        self.trial = self.trial.filter(|(trial, _)| *trial != permit);
        if result == NotMade {
            return false;
        }
        let (opens, closes) = if self.open_until.is_some() {
            self.successes += 1;
            (result == Failed, result == Answered && self.successes == 3)
        } else {
            self.calls.push((now, result == Failed));
            let part = |at: Instant| (at - self.began).as_secs() / 5;
            let recent = || self.calls.iter().filter(|(at, _)| part(*at) + 12 > part(now));
            let failed = recent().filter(|(_, failed)| *failed).count();
            (recent().count() >= 10 && failed as f64 / recent().count() as f64 >= 0.5, false)
        };
        if opens {
            self.open_until = Some(now + s(5));
        }
        if closes {
            (self.open_until, self.began) = (None, now);
        }
        if opens || closes {
            self.calls.clear();
            (self.successes, self.trial) = (0, None);
            self.changes += 1;
        }
        opens || closes
    }
}

#[derive(Debug, Clone)]
enum Step {
    Wait(Duration),
    Start,
    /// Ends one of the calls under way.
    End(prop::sample::Index, CallResult),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![4 => 0..3_000_u64, 1 => 0..70_000_u64].prop_map(Duration::from_millis).prop_map(Step::Wait);
    let result = prop_oneof![5 => Just(Answered), 4 => Just(Failed), 1 => Just(NotMade)];
    let end = (any::<prop::sample::Index>(), result).prop_map(|(which, result)| Step::End(which, result));
    prop::collection::vec(prop_oneof![1 => wait, 4 => Just(Step::Start), 4 => end], 0..400)
}

proptest! {
    #[test]
    fn it_does_what_one_that_remembers_everything_does(steps in steps()) {
        let mut now = Instant::now();
        let mut breaker = Breaker::new(now);
        let mut naive = Naive {
            began: now, calls: vec![], open_until: None, successes: 0, trial: None, permits: vec![], changes: 0,
        };
        let mut under_way: Vec<(usize, Permit)> = Vec::new();
        for step in steps {
            match step {
                Step::Wait(time) => now += time,
                Step::Start => match (breaker.may_start(now), naive.may_start(now)) {
                    (Admission::Permit(permit), Ok(())) => under_way.push((naive.permits.len() - 1, permit)),
                    (Admission::NotBefore(until), Err(expected)) => prop_assert_eq!(until, expected),
                    (admission, expected) => prop_assert!(false, "{:?} instead of {:?}", admission, expected),
                },
                Step::End(which, result) if !under_way.is_empty() => {
                    let (number, permit) = under_way.swap_remove(which.index(under_way.len()));
                    prop_assert_eq!(breaker.on(permit, result, now), naive.on(number, result, now));
                }
                Step::End(..) => {}
            }
            let expected = match naive.open_until {
                None => State::Closed,
                Some(until) if now < until => State::Open(until),
                Some(_) => {
                    let trial = naive.trial.filter(|(_, until)| now < *until);
                    trial.map_or(State::HalfOpen, |(_, until)| State::Open(until))
                }
            };
            prop_assert_eq!(breaker.state(now), expected);
        }
    }

    /// Nothing starts while it is open, and never two at once on a half-open one unless the first hangs.
    #[test]
    fn at_most_one_call_is_tried_while_it_is_not_closed(steps in steps()) {
        let now = Instant::now();
        let (mut breaker, _) = opened(now);
        let (mut elapsed, mut open_until) = (Duration::ZERO, s(5));
        let mut trial: Option<(Permit, Duration)> = None;
        for step in steps {
            match step {
                Step::Wait(time) => elapsed += time / 100,
                Step::Start => {
                    if let Admission::Permit(permit) = breaker.may_start(now + elapsed) {
                        prop_assert!(elapsed >= open_until);
                        prop_assert!(trial.is_none_or(|(_, since)| elapsed >= since + TRIAL_FOR));
                        trial = Some((permit, elapsed));
                    }
                }
                Step::End(_, result) => {
                    let Some((permit, _)) = trial.take() else { continue };
                    let changed = breaker.on(permit, result, now + elapsed);
                    if result == Failed {
                        prop_assert!(changed);
                        open_until = elapsed + s(5);
                    }
                }
            }
            if breaker.state(now + elapsed) == State::Closed {
                break;
            }
        }
    }
}
