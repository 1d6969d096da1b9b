//! What a schedule publishes when ticks are due or were missed. Pure: the store supplies the time and makes sure that
//! each decision is carried out once.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::cron::Cron;

/// [`MissedTicks::Skip`] drops ticks that are older than this.
pub const FRESH_FOR: Duration = Duration::from_secs(60);
/// The most ticks that one decision publishes; the rest follow with the next decisions.
pub const MAX_TICKS: usize = 1_000;
/// The next tick of a schedule that has none: the last second of 9998.
const NEVER: Timestamp = Timestamp::constant(253_370_764_799, 0);

/// What becomes of ticks that were due while no scheduler ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissedTicks {
    /// They are dropped; only a tick of the last [minute](FRESH_FOR) is still published.
    Skip,
    /// Only the latest is published.
    #[default]
    Once,
    /// All are published, late.
    All,
}

impl MissedTicks {
    /// The number that databases store.
    #[must_use]
    pub fn code(self) -> i16 {
        self as i16
    }

    /// The policy with this stored number; `None` when there is none.
    #[must_use]
    pub fn from_code(code: i16) -> Option<Self> {
        [Self::Skip, Self::Once, Self::All].into_iter().find(|policy| policy.code() == code)
    }
}

/// What a schedule does now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// The ticks to publish, oldest first.
    pub ticks: Vec<Timestamp>,
    /// The tick to wait for next. It is past already when more than [`MAX_TICKS`] were due.
    pub next_at: Timestamp,
}

/// The first tick after a moment.
#[must_use]
pub fn first_tick(cron: &Cron, now: Timestamp) -> Timestamp {
    cron.next(now).unwrap_or(NEVER)
}

/// Decides what a schedule that waits for the tick at `next_at` does at `now`. Before that moment it does nothing, so a
/// clock that goes back repeats no tick.
///
/// ```
/// use tidegate_core::{Cron, MissedTicks, schedule};
/// let cron = Cron::parse("0 * * * *", "UTC").unwrap();
/// let at = |text: &str| text.parse().unwrap();
/// let due = schedule::due(&cron, MissedTicks::Once, at("2026-01-01T03:00:00Z"), at("2026-01-01T05:30:00Z"));
/// assert_eq!(due.ticks, [at("2026-01-01T05:00:00Z")]);
/// assert_eq!(due.next_at, at("2026-01-01T06:00:00Z"));
/// ```
#[must_use]
pub fn due(cron: &Cron, missed: MissedTicks, next_at: Timestamp, now: Timestamp) -> Due {
    if next_at > now {
        return Due { ticks: Vec::new(), next_at };
    }
    match missed {
        MissedTicks::All => all(cron, next_at, now),
        MissedTicks::Once => Due { ticks: vec![latest(cron, next_at, now)], next_at: first_tick(cron, now) },
        MissedTicks::Skip => {
            let tick = latest(cron, next_at, now);
            let age = Duration::try_from(now.duration_since(tick)).unwrap_or_default();
            let ticks = if age <= FRESH_FOR { vec![tick] } else { Vec::new() };
            Due { ticks, next_at: first_tick(cron, now) }
        }
    }
}

fn all(cron: &Cron, next_at: Timestamp, now: Timestamp) -> Due {
    let mut ticks = Vec::new();
    let mut next = next_at;
    while next <= now && ticks.len() < MAX_TICKS {
        ticks.push(next);
        next = first_tick(cron, next);
    }
    Due { ticks, next_at: next }
}

/// The last tick from `next_at` to `now`, found by bisection because there may have been millions.
fn latest(cron: &Cron, next_at: Timestamp, now: Timestamp) -> Timestamp {
    let (mut tick, mut before, mut after) = (next_at, next_at.as_second(), now.as_second());
    // Invariant: `tick` is at second `before`, and the last tick is `tick` or a later one up to second `after`.
    while after - before > 1 {
        let middle = before + (after - before) / 2;
        match Timestamp::from_second(middle).ok().and_then(|middle| cron.next(middle)) {
            Some(next) if next <= now => (tick, before) = (next, next.as_second()),
            _ => after = middle,
        }
    }
    let last = Timestamp::from_second(before).ok().and_then(|before| cron.next(before));
    last.filter(|last| *last <= now).unwrap_or(tick)
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan;
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn naive(cron: &Cron, next_at: Timestamp, now: Timestamp) -> Vec<Timestamp> {
        let mut ticks = Vec::new();
        let mut next = next_at;
        while next <= now {
            ticks.push(next);
            next = cron.next(next).unwrap();
        }
        ticks
    }

    #[test]
    fn nothing_happens_before_its_time() {
        let cron = Cron::parse("* * * * *", "UTC").unwrap();
        let next_at = at("2026-01-01T00:10:00Z");
        for missed in [MissedTicks::Skip, MissedTicks::Once, MissedTicks::All] {
            let early = due(&cron, missed, next_at, at("2026-01-01T00:09:59.999999Z"));
            assert_eq!(early, Due { ticks: Vec::new(), next_at });
            let sharp = due(&cron, missed, next_at, next_at);
            assert_eq!(sharp, Due { ticks: vec![next_at], next_at: at("2026-01-01T00:11:00Z") });
        }
    }

    #[test]
    fn each_policy_after_an_outage() {
        let cron = Cron::parse("*/10 * * * *", "UTC").unwrap();
        let (next_at, now) = (at("2026-01-01T00:10:00Z"), at("2026-01-01T01:05:00Z"));
        let after = at("2026-01-01T01:10:00Z");
        let once = due(&cron, MissedTicks::Once, next_at, now);
        assert_eq!(once, Due { ticks: vec![at("2026-01-01T01:00:00Z")], next_at: after });
        assert_eq!(due(&cron, MissedTicks::Skip, next_at, now), Due { ticks: Vec::new(), next_at: after });
        let fresh = due(&cron, MissedTicks::Skip, next_at, at("2026-01-01T01:01:00Z"));
        assert_eq!(fresh.ticks, [at("2026-01-01T01:00:00Z")]);
        let all = due(&cron, MissedTicks::All, next_at, now);
        assert_eq!((all.ticks.len(), all.next_at), (6, after));
    }

    #[test]
    fn years_of_seconds_are_bounded() {
        let cron = Cron::parse("* * * * * *", "UTC").unwrap();
        let (next_at, now) = (at("2016-01-01T00:00:00Z"), at("2026-01-01T00:00:00.5Z"));
        let all = due(&cron, MissedTicks::All, next_at, now);
        assert_eq!((all.ticks.len(), all.next_at), (MAX_TICKS, at("2016-01-01T00:16:40Z")));
        let once = due(&cron, MissedTicks::Once, next_at, now);
        assert_eq!(once, Due { ticks: vec![at("2026-01-01T00:00:00Z")], next_at: at("2026-01-01T00:00:01Z") });
    }

    #[test]
    fn a_schedule_without_a_further_tick_waits_for_ever() {
        let cron = Cron::parse("0 0 1 1 *", "UTC").unwrap();
        assert_eq!(first_tick(&cron, at("2026-06-01T00:00:00Z")), at("2027-01-01T00:00:00Z"));
        assert_eq!(first_tick(&cron, at("9999-06-01T00:00:00Z")), at("9998-12-31T23:59:59Z"));
    }

    #[test]
    fn a_tick_is_fresh_for_a_minute() {
        let cron = Cron::parse("0 * * * *", "UTC").unwrap();
        let next_at = at("2026-01-01T00:00:00Z");
        for (now, ticks) in [("2026-01-01T00:01:00Z", 1), ("2026-01-01T00:01:00.000001Z", 0)] {
            assert_eq!(due(&cron, MissedTicks::Skip, next_at, at(now)).ticks.len(), ticks, "{now}");
        }
    }

    #[test]
    fn the_latest_of_neighbouring_seconds() {
        let cron = Cron::parse("* * * * * *", "UTC").unwrap();
        let next_at = at("2026-01-01T00:00:00Z");
        for gap in 0..10 {
            let now = next_at + gap.seconds();
            assert_eq!(due(&cron, MissedTicks::Once, next_at, now).ticks, [now]);
        }
    }

    #[test]
    fn codes_come_back() {
        for missed in [MissedTicks::Skip, MissedTicks::Once, MissedTicks::All] {
            assert_eq!(MissedTicks::from_code(missed.code()), Some(missed));
        }
        assert_eq!(MissedTicks::from_code(3), None);
    }

    fn expressions() -> impl Strategy<Value = (&'static str, &'static str)> {
        const CRONS: &[&str] =
            &["* * * * * *", "*/7 * * * *", "0 */5 * * *", "30 1,2 * * *", "15 2 * * SUN", "0 0 L * *", "5 4 * 2 *"];
        const ZONES: &[&str] = &["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"];
        (prop::sample::select(CRONS), prop::sample::select(ZONES))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn ticks_strictly_rise_and_none_is_skipped((expression, zone) in expressions(), start in 0_i64..4_000_000_000) {
            let cron = Cron::parse(expression, zone).unwrap();
            let mut tick = Timestamp::from_second(start).unwrap();
            for _ in 0..50 {
                let next = cron.next(tick).unwrap();
                prop_assert!(next > tick);
                // From any moment between the two, the next tick is the same.
                let middle = Timestamp::from_second((tick.as_second() + next.as_second()) / 2).unwrap();
                prop_assert_eq!(cron.next(middle.max(tick)).unwrap(), next);
                tick = next;
            }
        }

        #[test]
        fn a_clock_that_jumps_about_gives_each_tick_once(
            (expression, zone) in expressions(),
            start in 1_500_000_000_i64..2_000_000_000,
            steps in prop::collection::vec(-500_i64..3_000, 1..20),
        ) {
            let cron = Cron::parse(expression, zone).unwrap();
            let start = Timestamp::from_second(start).unwrap();
            let first = first_tick(&cron, start);
            for missed in [MissedTicks::Skip, MissedTicks::Once, MissedTicks::All] {
                let (mut next_at, mut now, mut latest_now, mut seen) = (first, start, start, Vec::new());
                for step in &steps {
                    now += step.seconds();
                    latest_now = latest_now.max(now);
                    loop {
                        let due = due(&cron, missed, next_at, now);
                        prop_assert!(due.next_at >= next_at);
                        prop_assert!(due.ticks.iter().all(|tick| *tick >= next_at && *tick < due.next_at && *tick <= now));
                        seen.extend(due.ticks);
                        let more = due.next_at <= now;
                        next_at = due.next_at;
                        if !more {
                            break;
                        }
                    }
                }
                prop_assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "no tick twice");
                let every = naive(&cron, first, latest_now);
                match missed {
                    MissedTicks::All => prop_assert_eq!(seen, every),
                    _ => prop_assert!(seen.iter().all(|tick| every.binary_search(tick).is_ok())),
                }
            }
        }

        #[test]
        fn once_is_the_latest((expression, zone) in expressions(), start in 1_500_000_000_i64..2_000_000_000, gap in 0_i64..20_000) {
            let cron = Cron::parse(expression, zone).unwrap();
            let next_at = first_tick(&cron, Timestamp::from_second(start).unwrap());
            let now = next_at + gap.seconds();
            let due = due(&cron, MissedTicks::Once, next_at, now);
            prop_assert_eq!(due.ticks, vec![*naive(&cron, next_at, now).last().unwrap()]);
            prop_assert_eq!(due.next_at, cron.next(now).unwrap());
        }
    }
}
