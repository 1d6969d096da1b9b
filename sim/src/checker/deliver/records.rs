//! How jobs ended, and what is recorded of attempts, against what the receiver saw.

use serde::Deserialize;
use tidegate::{End, Timestamp};

use super::{Answered, Job, Run, SUBSCRIPTIONS, Taken, Tally};
use crate::checker::{CLOCK_STEP, Invariant, Report};

/// Records are in whole milliseconds.
const ROUNDED: i64 = 2_000;
/// How long after its expiry a job that was claimed before may be delivered.
const CLAIMED_BEFORE: i64 = 2_000_000;
/// How long a receiver's answer may be under way when the time of an attempt is over.
const CROSSED: i64 = 100_000;

/// A record, as it is stored.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    attempted_at: Timestamp,
    duration_millis: i64,
    status: String,
    response_code: Option<u16>,
}

impl Record {
    /// Whether a request was made by the attempt, as its time tells.
    fn is_of(&self, request: &Taken) -> bool {
        let began = self.attempted_at.as_microsecond();
        (began - ROUNDED..=began + self.duration_millis * 1_000 + ROUNDED).contains(&request.read_at)
    }

    /// Whether it tells what the receiver did.
    fn tells(&self, request: &Taken) -> bool {
        let is_late = request.end() >= request.read_at + 1_000_000 - CROSSED;
        match (request.answer, self.status.as_str()) {
            (Answered::Status(_), "TIMEOUT") => is_late,
            (Answered::Status(status), told) => {
                let class = match status {
                    200..=299 => "SUCCESS",
                    400..=499 => "CLIENT_ERROR",
                    _ => "SERVER_ERROR",
                };
                self.response_code == Some(status) && told == class
            }
            (Answered::Reset, told) => told == "CONNECTION_ERROR",
            (Answered::Nothing, told) => told == "TIMEOUT",
        }
    }
}

pub(super) fn check(run: &Run, jobs: &[Job<'_>], report: &mut Report, tally: &mut Tally) {
    tally.cut = run.taken.iter().filter(|one| one.answer == Answered::Nothing && run.is_hit(one)).count();
    for job in jobs {
        check_successes(run, job, report, tally);
        check_records(run, job, report, tally);
        check_end(run, job, report, tally);
    }
}

/// Each success but the last is one that a kill kept from being recorded.
fn check_successes(run: &Run, job: &Job<'_>, report: &mut Report, tally: &mut Tally) {
    let Some((last, before)) = job.requests.split_last() else { return };
    for success in before.iter().filter(|one| one.is_success()) {
        tally.delivered_again += 1;
        if !run.is_hit(success) {
            let text = format!(
                "{} was delivered at {:?}, and again at {}, and no kill fell between that and its record",
                job.id, success.ended_at, last.read_at
            );
            report.violate(Invariant::DeliveredOnce, text);
        }
    }
}

/// Each record is of one request, and tells what the receiver did; requests without a record are in doubt.
fn check_records(run: &Run, job: &Job<'_>, report: &mut Report, tally: &mut Tally) {
    let Some(ended) = job.ended else { return };
    let mut requests: Vec<&Taken> = job.requests.clone();
    for (number, text) in &ended.records {
        let Ok(record) = serde_json::from_str::<Record>(text) else {
            report.violate(Invariant::AttemptsTrue, format!("{}: attempt {number} cannot be read: {text}", job.id));
            continue;
        };
        match requests.iter().position(|request| record.is_of(request)) {
            Some(at) => {
                let request = requests.remove(at);
                if !record.tells(request) {
                    let text = format!("{}: attempt {number} is {text}, and the receiver saw {request:?}", job.id);
                    report.violate(Invariant::AttemptsTrue, text);
                }
            }
            None => {
                let text = format!("{}: attempt {number}, {text}, never reached the receiver", job.id);
                report.violate(Invariant::AttemptsTrue, text);
            }
        }
    }
    for request in requests {
        tally.unrecorded += 1;
        if !run.is_in_doubt(request) {
            report.violate(Invariant::AttemptsTrue, format!("{}: {request:?} is not recorded", job.id));
        }
    }
    let most = i64::from(SUBSCRIPTIONS[job.subscription].max_retries) + 1;
    let counted = ended.records.len() as i64;
    if ended.max_attempts != most || ended.attempts > most || ended.attempts < counted {
        let text = format!("{}: {} attempts of {}, {counted} recorded", job.id, ended.attempts, ended.max_attempts);
        report.violate(Invariant::AttemptsFair, text);
    }
}

/// It is COMPLETED if and only if the receiver said so, but for what is in doubt; it failed only when it was refused or all
/// attempts were used; it is CANCELLED only because it expired, and was not delivered since.
fn check_end(run: &Run, job: &Job<'_>, report: &mut Report, tally: &mut Tally) {
    let Some(ended) = job.ended else { return };
    let mut violate = |text: &str| {
        let (requests, event) = (&job.requests, job.event.number);
        report.violate(Invariant::EndsAreTrue, format!("{} of event {event} {text}: {ended:?}, {requests:?}", job.id));
    };
    let successes: Vec<&&Taken> = job.requests.iter().filter(|one| one.is_success()).collect();
    let is_refused = job.requests.iter().any(|one| one.answer == Answered::Status(400));
    if ended.status == i64::from(End::Completed.code()) {
        if successes.is_empty() {
            violate("is COMPLETED, but was never delivered");
        }
        return;
    }
    if successes.iter().any(|one| !run.is_hit(one)) {
        violate("was delivered, but is not COMPLETED");
    }
    let expiry = ended.expires_at.unwrap_or(i64::MAX);
    let has_expired = ended.finished_at + CLOCK_STEP >= expiry;
    match End::ALL.into_iter().find(|end| i64::from(end.code()) == ended.status) {
        Some(End::Failed) => {
            tally.failed += 1;
            if !is_refused && ended.attempts < ended.max_attempts {
                violate("failed before all attempts were used");
            }
        }
        Some(End::Cancelled) => {
            tally.expired += 1;
            if !has_expired {
                violate("was cancelled before it expired");
            }
        }
        _ => violate("ended in a way that jobs do not"),
    }
    if let Some(late) = job.requests.iter().find(|one| one.read_at > expiry.saturating_add(CLAIMED_BEFORE)) {
        report.violate(Invariant::ExpiredStays, format!("{} expired at {expiry}: {late:?}", job.id));
    }
}
