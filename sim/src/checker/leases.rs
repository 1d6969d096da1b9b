//! Checks leases: those of one entry do not overlap, tokens rise, and attempts are counted correctly.

use std::collections::HashMap;

use super::{CLOCK_STEP, Entries, Happened, Invariant, Report, Tenure};
use crate::state::State;

pub(super) fn check(entries: &Entries<'_>, state: &State, report: &mut Report) {
    let mut last_token: HashMap<i64, i64> = HashMap::new();
    for (id, token) in state.tokens() {
        let token = token.max(last_token.get(&id).copied().unwrap_or(0));
        last_token.insert(id, token);
    }
    for (id, tenures) in &entries.by_id {
        let mut before: Option<&Tenure<'_>> = None;
        let mut seen = Seen::default();
        for tenure in tenures.values() {
            if let Some(before) = before {
                report.counts.retaken += 1;
                check_apart(before, tenure, report);
            }
            seen.check_claim(tenure, report);
            before = Some(tenure);
        }
        if let Some(last) = before
            && let Some(token) = last_token.get(id)
            && *token < last.claim.token
        {
            let detail = format!("entry {id} has token {token}, but a claim returned token {}", last.claim.token);
            report.violate(Invariant::TokensRise, detail);
        }
    }
    for row in &state.log {
        if let Some(tenures) = entries.by_id.get(&row.id) {
            check_logged_attempts(row, tenures.values(), report);
        }
    }
}

/// Compares two consecutive leases of one entry, by token.
fn check_apart(before: &Tenure<'_>, after: &Tenure<'_>, report: &mut Report) {
    let id = before.claim.id;
    if after.answered < before.asked || after.claim.claimed_at + CLOCK_STEP < before.claim.claimed_at {
        let detail = format!(
            "entry {id}: {} took token {} before {} took token {}",
            after.process, after.claim.token, before.process, before.claim.token
        );
        report.violate(Invariant::TokensInTime, detail);
    }
    let end = before.earliest_end();
    // A claim's moment is that at which its transaction began, which may take what is given back after that.
    let taken = if end < before.runs_out() { after.answered } else { after.claim.claimed_at };
    if taken + CLOCK_STEP < end {
        let detail = format!(
            "entry {id}: token {} of {} runs until {end}, but {} took token {} at {} ({} us earlier)",
            before.claim.token,
            before.process,
            after.process,
            after.claim.token,
            taken,
            end - taken
        );
        report.violate(Invariant::LeasesApart, detail);
    }
}

/// What is known of an entry's attempts so far. A token whose claim is not in the history may or may not have counted.
#[derive(Debug, Default)]
struct Seen {
    generation: u32,
    /// Claims of this generation that certainly counted.
    counted: u32,
    /// Claims of all generations that certainly did not count.
    released: i64,
}

impl Seen {
    fn check_claim(&mut self, tenure: &Tenure<'_>, report: &mut Report) {
        let claim = tenure.claim;
        if claim.generation != self.generation {
            *self = Self { generation: claim.generation, counted: 0, released: self.released };
        }
        let least = self.counted + 1;
        let most = claim.token - self.released;
        if claim.attempts < least || i64::from(claim.attempts) > most {
            let detail = format!(
                "entry {}, token {}: attempt {}, expected {least} to {most}",
                claim.id, claim.token, claim.attempts
            );
            report.violate(Invariant::AttemptsFair, detail);
        }
        match tenure.released() {
            Happened::Yes => self.released += 1,
            Happened::Maybe => {}
            Happened::No => self.counted += 1,
        }
    }
}

fn check_logged_attempts<'a>(
    row: &crate::state::LogRow,
    tenures: impl Iterator<Item = &'a Tenure<'a>>,
    report: &mut Report,
) {
    let released = tenures.filter(|tenure| tenure.released() == Happened::Yes).count() as i64;
    if i64::from(row.attempts) > row.token - released {
        let detail = format!(
            "entry {} ended with {} attempts at token {}, though {released} claims were released",
            row.id, row.attempts, row.token
        );
        report.violate(Invariant::AttemptsFair, detail);
    }
}
