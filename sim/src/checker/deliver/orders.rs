//! Order within the groups of ordered subscriptions.

use std::collections::HashMap;

use super::{DEFAULT_SEQUENCE, Job, Mode, SUBSCRIPTIONS, Taken, Tally};
use crate::checker::{CLOCK_STEP, Invariant, Report};

/// A job is claimed at most this long before its request is read: it may wait for its moment under a rate.
const CLAIMED_BEFORE: i64 = 2_000_000;

/// The jobs of one group of one subscription.
struct Group<'a> {
    mode: Mode,
    name: String,
    jobs: Vec<&'a Job<'a>>,
}

impl Job<'_> {
    /// What sorts a group: the sequence, then the order in which its events were accepted, one after another.
    fn order(&self) -> (i32, i64) {
        (self.event.sequence.unwrap_or(DEFAULT_SEQUENCE), self.event.sent_at)
    }

    fn first_request(&self) -> Option<i64> {
        Some(self.requests.first()?.read_at)
    }

    /// When it had ended, in any case; never, if it has not.
    fn finished_at(&self) -> i64 {
        self.ended.map_or(i64::MAX, |ended| ended.finished_at)
    }

    /// Whether some claim of it came to no request: its node was killed in between, or gave it back. Whoever was claimed once
    /// is not overtaken any more, so nothing tells who had to come first when that was.
    fn was_claimed_in_vain(&self) -> bool {
        let requests = i64::try_from(self.requests.len()).unwrap_or(i64::MAX);
        self.ended.is_some_and(|ended| ended.token > requests)
    }

    fn told(&self) -> String {
        format!("event {} ({}, sequence {})", self.event.number, self.id, self.order().0)
    }
}

pub(super) fn check(jobs: &[Job<'_>], report: &mut Report, tally: &mut Tally) {
    let mut groups: HashMap<(usize, &str), Group<'_>> = HashMap::new();
    for job in jobs {
        let plan = &SUBSCRIPTIONS[job.subscription];
        if plan.mode == Mode::Immediate {
            continue;
        }
        let group = groups.entry((job.subscription, &job.event.group)).or_insert_with(|| Group {
            mode: plan.mode,
            name: format!("{}:{}", plan.code, job.event.group),
            jobs: Vec::new(),
        });
        group.jobs.push(job);
    }
    for group in groups.values() {
        group.check_alone(report);
        group.check_order(report, tally);
        match group.mode {
            Mode::BlockOnError => group.check_heads(report),
            _ => tally.stepped_aside += group.stepped_aside(),
        }
    }
}

impl Group<'_> {
    /// Never two requests in flight.
    fn check_alone(&self, report: &mut Report) {
        let mut requests: Vec<&Taken> = self.jobs.iter().flat_map(|job| job.requests.iter().copied()).collect();
        requests.sort_by_key(|request| request.read_at);
        let mut last: Option<&Taken> = None;
        for request in requests {
            if let Some(before) = last
                && request.read_at < before.end()
            {
                let text = format!(
                    "{}: {} was in flight until {:?} when {} was read at {}",
                    self.name, before.id, before.ended_at, request.id, request.read_at
                );
                report.violate(Invariant::GroupAlone, text);
            }
            last = if last.is_none_or(|before| before.end() < request.end()) { Some(request) } else { last };
        }
    }

    /// No job begins while one is there that comes before it and has not begun; where failed heads block, while one is there
    /// that has not ended.
    fn check_order(&self, report: &mut Report, tally: &mut Tally) {
        for job in &self.jobs {
            let Some(began) = job.first_request() else { continue };
            for other in &self.jobs {
                let is_first = other.order() < job.order();
                tally.overtakes += usize::from(!is_first && overtaken(job, other));
                // It was there when the job was claimed.
                let accepted_at = other.event.accepted_at;
                let was_there = accepted_at <= job.event.sent_at
                    || (accepted_at < began - CLAIMED_BEFORE && !job.was_claimed_in_vain());
                if !is_first || !was_there {
                    continue;
                }
                let over = match self.mode {
                    Mode::BlockOnError => other.finished_at(),
                    _ => other.first_request().unwrap_or(i64::MAX).min(other.finished_at()),
                };
                if over > began + CLOCK_STEP {
                    let text = format!("{}: {} began at {began} before {}", self.name, job.told(), other.told());
                    report.violate(Invariant::GroupOrder, text);
                }
            }
        }
    }

    /// Nothing begins while a job that began before has not ended, be it that it failed.
    fn check_heads(&self, report: &mut Report) {
        let mut begun: Vec<(i64, &Job<'_>)> =
            self.jobs.iter().filter_map(|job| Some((job.first_request()?, *job))).collect();
        begun.sort_by_key(|(began, _)| *began);
        let mut head: Option<&Job<'_>> = None;
        for (began, job) in begun {
            if let Some(head) = head
                && head.finished_at() > began + CLOCK_STEP
            {
                let text = format!("{}: {} began at {began}, past {}", self.name, job.told(), head.told());
                report.violate(Invariant::GroupOrder, text);
            }
            head = if head.is_none_or(|head| head.finished_at() < job.finished_at()) { Some(job) } else { head };
        }
    }

    /// How many jobs had others of their group begin between two of their own requests.
    fn stepped_aside(&self) -> usize {
        let begins: Vec<(i64, &str)> =
            self.jobs.iter().filter_map(|job| Some((job.first_request()?, job.id))).collect();
        let has = |job: &Job<'_>| {
            job.requests.windows(2).any(|pair| {
                let between = pair[0].read_at..pair[1].read_at;
                begins.iter().any(|(began, id)| *id != job.id && between.contains(began))
            })
        };
        self.jobs.iter().filter(|job| has(job)).count()
    }
}

/// Whether a job began before another although that was accepted before it was sent.
fn overtaken(job: &Job<'_>, other: &Job<'_>) -> bool {
    let by = |job: &Job<'_>| job.first_request();
    other.event.accepted_at < job.event.sent_at && by(job).zip(by(other)).is_some_and(|(began, other)| began < other)
}
