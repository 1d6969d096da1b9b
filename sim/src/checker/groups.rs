//! Checks groups: one entry is leased at a time, and entries run in the order in which they were published.

use std::collections::HashMap;

use super::{CLOCK_STEP, Entries, Invariant, Report, Tenure};
use crate::history::{Answer, Intent, Op, OpOutcome};
use crate::state::State;

/// A grouped entry. `offered` and `acknowledged` are this machine's time, `first_claim` and `finished` database time;
/// `None` when that did not happen.
#[derive(Debug)]
struct Member {
    id: i64,
    offered: i64,
    acknowledged: Option<i64>,
    first_claim: Option<i64>,
    finished: Option<i64>,
}

pub(super) fn check(history: &[Op], entries: &Entries<'_>, state: &State, report: &mut Report) {
    for (group, members) in gather(history, entries, state) {
        check_alone(group, &members, entries, report);
        check_order(group, &members, report);
    }
}

fn gather<'a>(history: &'a [Op], entries: &Entries<'_>, state: &State) -> HashMap<&'a str, Vec<Member>> {
    let ids: HashMap<&str, i64> = state.entries().map(|(id, key)| (key, id)).collect();
    let mut finished: HashMap<i64, i64> = HashMap::new();
    for row in &state.log {
        let first = finished.entry(row.id).or_insert(row.finished_at);
        *first = row.finished_at.min(*first);
    }
    let mut groups: HashMap<&str, HashMap<i64, Member>> = HashMap::new();
    for op in history {
        let Intent::Publish { offers, .. } = &op.intent else { continue };
        for (index, offer) in offers.iter().enumerate() {
            let (Some(group), Some(id)) = (&offer.group, ids.get(offer.key.as_str())) else { continue };
            let created = matches!(&op.outcome, Some(OpOutcome::Published { answers })
                if matches!(answers.get(index), Some(Answer::Created { .. } | Answer::Duplicate { .. })));
            let acknowledged = op.answered.filter(|_| created);
            let first_claim =
                entries.by_id.get(id).and_then(|tenures| tenures.values().map(|t| t.claim.claimed_at).min());
            let member = groups.entry(group).or_default().entry(*id).or_insert(Member {
                id: *id,
                offered: op.begun,
                acknowledged,
                first_claim,
                finished: finished.get(id).copied(),
            });
            member.offered = member.offered.min(op.begun);
            member.acknowledged = [member.acknowledged, acknowledged].into_iter().flatten().min();
        }
    }
    groups.into_iter().map(|(group, members)| (group, members.into_values().collect())).collect()
}

/// No two entries of a group are held at the same moment of database time.
fn check_alone(group: &str, members: &[Member], entries: &Entries<'_>, report: &mut Report) {
    let mut tenures: Vec<&Tenure<'_>> =
        members.iter().filter_map(|member| entries.by_id.get(&member.id)).flat_map(|held| held.values()).collect();
    tenures.sort_by_key(|tenure| tenure.claim.claimed_at);
    let mut holder: Option<(i64, &Tenure<'_>)> = None;
    for tenure in tenures {
        if let Some((end, other)) = holder
            && other.claim.id != tenure.claim.id
            && tenure.claim.claimed_at + CLOCK_STEP < end
        {
            let detail = format!(
                "group {group}: entry {} was claimed by {} at {}, while {} held entry {} until {end}",
                tenure.claim.id, tenure.process, tenure.claim.claimed_at, other.process, other.claim.id
            );
            report.violate(Invariant::GroupAlone, detail);
        }
        let end = tenure.earliest_end();
        if holder.is_none_or(|(latest, _)| latest <= end) {
            holder = Some((end, tenure));
        }
    }
}

/// An entry that was acknowledged before another of its group was offered ends before that one is first claimed.
fn check_order(group: &str, members: &[Member], report: &mut Report) {
    let mut earlier: Vec<&Member> = members.iter().filter(|member| member.acknowledged.is_some()).collect();
    earlier.sort_by_key(|member| member.acknowledged);
    let mut later: Vec<&Member> = members.iter().collect();
    later.sort_by_key(|member| member.offered);
    let mut earlier = earlier.into_iter().peekable();
    let mut latest: Option<&Member> = None;
    for member in later {
        while let Some(before) = earlier.next_if(|before| before.acknowledged < Some(member.offered)) {
            let end = |of: &Member| of.finished.unwrap_or(i64::MAX);
            if latest.is_none_or(|latest| end(latest) < end(before)) {
                latest = Some(before);
            }
        }
        if let (Some(before), Some(taken)) = (latest, member.first_claim)
            && before.finished.is_none_or(|finished| taken + CLOCK_STEP < finished)
        {
            let detail = format!(
                "group {group}: entry {} was claimed at {taken}, before entry {} ended ({:?})",
                member.id, before.id, before.finished
            );
            report.violate(Invariant::GroupOrder, detail);
        }
    }
}
