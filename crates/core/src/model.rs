//! A whole queue in memory, small enough to be obviously correct.
//!
//! The stores are compared with it step by step over random histories, so it specifies what they must do: which entries
//! a claim takes and in which order, which entry of a group is next, how a publish under a repeated key is answered.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use jiff::Timestamp;

use crate::entry::{End, Entry, Input, LeaseToken, Phase, Refusal, has_expired, is_eligible, later, transition};
use crate::event::{Availability, DedupMode, NewEvent};
use crate::id::EntryId;
use crate::queue::{Depth, QueueState};

/// One queue with its live and its ended entries.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// Whether it accepts and delivers events.
    pub state: QueueState,
    /// The most live entries that it accepts; unlimited when `None`.
    pub depth_limit: Option<u64>,
    items: BTreeMap<EntryId, Item>,
    keys: HashMap<String, Key>,
    next: i64,
}

#[derive(Debug, Clone)]
struct Item {
    event: NewEvent,
    entry: Entry,
    /// The moment that sorts it among the timed entries of its lane; `None` for a fresh one.
    due: Option<Timestamp>,
}

#[derive(Debug, Clone)]
struct Key {
    id: EntryId,
    event: NewEvent,
    expires: Timestamp,
}

/// A lane (priority and type), and which of its entries: the timed or the fresh ones.
type Path<'a> = (i16, &'a str, bool);

/// What a publish did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishOutcome {
    /// A new entry.
    Created(EntryId),
    /// The first entry under the same key.
    Duplicate(EntryId),
    /// The waiting entry under the same key has new contents.
    Replaced(EntryId),
    /// The key stands for other contents.
    KeyConflict,
    /// The queue is full.
    Full,
    /// The queue is draining.
    Draining,
}

impl Model {
    /// An empty, active queue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Publishes one event.
    pub fn publish(&mut self, event: &NewEvent, now: Timestamp) -> PublishOutcome {
        // A repeat is answered even when the queue is full or draining. New contents are not a repeat: a draining queue
        // refuses them.
        let draining = self.state == QueueState::Draining;
        let replaces = event.deduplication.as_ref().is_some_and(|dedup| dedup.mode == DedupMode::ReplaceWaiting);
        if !(draining && replaces)
            && let Some(outcome) = self.repeat(event, now)
        {
            return outcome;
        }
        if draining {
            return PublishOutcome::Draining;
        }
        if self.depth_limit.is_some_and(|limit| self.depth(now).total() >= limit) {
            return PublishOutcome::Full;
        }
        self.next += 1;
        let id = EntryId::new(self.next).expect("a model stays small");
        let due = due_moment(event, now);
        let phase = if event.group.is_some() { Phase::Parked } else { Phase::Waiting { due } };
        let entry = Entry {
            id,
            generation: 1,
            attempts: 0,
            max_attempts: event.max_attempts,
            exhausted_as: event.exhausted_as,
            keeps_place: event.keeps_place,
            expires: event.expires.map(|expiry| expiry.moment(now)),
            token: LeaseToken(0),
            phase,
        };
        self.items.insert(id, Item { event: event.clone(), entry, due });
        if let Some(dedup) = &event.deduplication {
            let expires = later(now, dedup.window);
            self.keys.insert(dedup.key.clone(), Key { id, event: event.clone(), expires });
        }
        self.promote(event.group.as_deref(), now);
        PublishOutcome::Created(id)
    }

    /// The answer to a publish under a repeated key; `None` when it becomes a new entry.
    fn repeat(&mut self, event: &NewEvent, now: Timestamp) -> Option<PublishOutcome> {
        let dedup = event.deduplication.as_ref()?;
        let key = self.keys.get_mut(&dedup.key).filter(|key| key.expires > now)?;
        let same = key.event.event_type == event.event_type && key.event.payload == event.payload;
        match dedup.mode {
            DedupMode::KeepFirst if same => Some(PublishOutcome::Duplicate(key.id)),
            DedupMode::KeepFirst => Some(PublishOutcome::KeyConflict),
            DedupMode::ReplaceWaiting => {
                let item = self.items.get_mut(&key.id)?;
                let waits = matches!(item.entry.phase, Phase::Waiting { .. } | Phase::Parked | Phase::Aside { .. });
                if !waits || has_expired(&item.entry, now) {
                    return None;
                }
                item.entry.expires = event.expires.map(|expiry| expiry.moment(now));
                item.event.payload = event.payload.clone();
                key.event.payload = event.payload.clone();
                Some(PublishOutcome::Replaced(key.id))
            }
        }
    }

    /// Claims up to `max` eligible entries of these types (all when `None`) and returns them in order. Exhausted and
    /// expired entries end here and are not returned.
    pub fn claim(
        &mut self,
        max: usize,
        types: Option<&[String]>,
        worker: &str,
        lease: Duration,
        now: Timestamp,
    ) -> Vec<EntryId> {
        self.claim_within(max, types, &BTreeMap::new(), worker, lease, now)
    }

    /// The same with quotas: of each lane whose type has one, at most so many are taken.
    pub fn claim_within(
        &mut self,
        max: usize,
        types: Option<&[String]>,
        quotas: &BTreeMap<String, usize>,
        worker: &str,
        lease: Duration,
        now: Timestamp,
    ) -> Vec<EntryId> {
        if self.state == QueueState::Paused {
            return Vec::new();
        }
        let input = Input::Claim { worker: worker.into(), lease };
        let mut taken: Vec<(i16, EntryId)> = Vec::new();
        // Other entries may be claimed instead of those that end here, so repeat until none ends. What stepped aside is
        // looked for once the rest does not suffice.
        loop {
            let mut ended = false;
            let left = |lane: &(i16, &str)| {
                let of_lane = |id: &EntryId| self.lane_of(*id) == Some(*lane);
                let quota = quotas.get(lane.1).copied().unwrap_or(usize::MAX);
                quota.saturating_sub(taken.iter().filter(|(_, id)| of_lane(id)).count())
            };
            for id in self.candidates(max - taken.len(), types, left, now) {
                let item = self.items.get_mut(&id).expect("a candidate exists");
                // A kept entry is only found once it has expired.
                let kept = matches!(item.entry.phase, Phase::Kept(_));
                let input = if kept { &Input::Expire } else { &input };
                item.entry = transition(&item.entry, input, now).expect("a candidate is eligible");
                if matches!(item.entry.phase, Phase::Leased(_)) {
                    taken.push((item.event.priority, id));
                } else {
                    ended = true;
                    let group = item.event.group.clone();
                    self.promote(group.as_deref(), now);
                }
            }
            if !ended && (taken.len() >= max || !self.promote_due_asides(now)) {
                break;
            }
        }
        taken.sort();
        taken.into_iter().map(|(_, id)| id).collect()
    }

    /// Each lane (type and priority) offers its first `max` fresh entries by id and its first `max` timed ones by due
    /// moment; of all that are offered, the first `max` by priority and id are taken.
    fn candidates(
        &self,
        max: usize,
        types: Option<&[String]>,
        left: impl Fn(&(i16, &str)) -> usize,
        now: Timestamp,
    ) -> Vec<EntryId> {
        let mut offers: BTreeMap<Path<'_>, Vec<(Option<Timestamp>, EntryId)>> = BTreeMap::new();
        for (id, item) in &self.items {
            let wanted = types.is_none_or(|types| types.contains(&item.event.event_type));
            // A kept entry is due when it expires.
            let (due, eligible) = match item.entry.phase {
                Phase::Kept(_) => (item.entry.expires, has_expired(&item.entry, now)),
                ref phase => (item.due, is_eligible(phase, now)),
            };
            if wanted && eligible {
                let lane = (item.event.priority, item.event.event_type.as_str(), due.is_some());
                offers.entry(lane).or_default().push((due, *id));
            }
        }
        let mut lanes: BTreeMap<(i16, &str), Vec<EntryId>> = BTreeMap::new();
        for ((priority, event_type, _), mut path) in offers {
            path.sort();
            let offered = path.into_iter().take(max).map(|(_, id)| id);
            lanes.entry((priority, event_type)).or_default().extend(offered);
        }
        let mut merged: Vec<(i16, EntryId)> = Vec::new();
        for (lane, mut ids) in lanes {
            ids.sort();
            merged.extend(ids.into_iter().take(left(&lane)).map(|id| (lane.0, id)));
        }
        merged.sort();
        merged.into_iter().take(max).map(|(_, id)| id).collect()
    }

    fn lane_of(&self, id: EntryId) -> Option<(i16, &str)> {
        self.items.get(&id).map(|item| (item.event.priority, item.event.event_type.as_str()))
    }

    /// Applies any other input to one entry.
    ///
    /// # Errors
    /// The refusal of [`transition`]; [`Refusal::AlreadyEnded`] also for an unknown id.
    pub fn apply(&mut self, id: EntryId, input: &Input, now: Timestamp) -> Result<(), Refusal> {
        let item = self.items.get_mut(&id).ok_or(Refusal::AlreadyEnded)?;
        let kept = matches!(item.entry.phase, Phase::Kept(_));
        item.entry = transition(&item.entry, input, now)?;
        match input {
            Input::Requeue { due: Some(due), .. } => {
                item.due = Some((*due).max(now));
                // Without a group there is nobody to make way for.
                if item.event.group.is_none() {
                    item.entry.phase = Phase::Waiting { due: item.due };
                }
            }
            // A released entry goes back to where it waited before.
            Input::Requeue { due: None, .. } => item.entry.phase = Phase::Waiting { due: item.due },
            Input::Redrive => {
                item.due = Some(now);
                item.entry.phase = match item.event.group {
                    Some(_) if !kept => Phase::Parked,
                    _ => Phase::Waiting { due: Some(now) },
                };
            }
            _ => {}
        }
        let group = item.event.group.clone();
        self.promote(group.as_deref(), now);
        Ok(())
    }

    /// What upkeep does: ends what has expired, and promotes what stepped aside and is due.
    pub fn maintain(&mut self, now: Timestamp) {
        for id in self.items.keys().copied().collect::<Vec<_>>() {
            let _ = self.apply(id, &Input::Expire, now);
        }
        self.promote_due_asides(now);
    }

    /// Promotes in the groups in which something stepped aside and is due; `false` when nothing could be promoted.
    fn promote_due_asides(&mut self, now: Timestamp) -> bool {
        let is_due = |item: &&Item| matches!(item.entry.phase, Phase::Aside { due } if due <= now);
        let groups: BTreeSet<_> =
            self.items.values().filter(is_due).filter_map(|item| item.event.group.clone()).collect();
        let mut promoted = false;
        for group in groups {
            promoted |= self.promote(Some(&group), now);
        }
        promoted
    }

    /// Gives the group a head if it has none: the first that stepped aside and is due, else the first parked entry by
    /// rank and id. A head that was never claimed gives way to a parked entry of a smaller rank.
    fn promote(&mut self, group: Option<&str>, now: Timestamp) -> bool {
        let Some(group) = group else { return false };
        let mut head = None;
        let mut next: Option<(bool, Option<Timestamp>, i32, EntryId)> = None;
        for (id, item) in self.items.iter().filter(|(_, item)| item.event.group.as_deref() == Some(group)) {
            let turn = match item.entry.phase {
                Phase::Waiting { .. } | Phase::Leased(_) | Phase::Kept(_) => {
                    head = Some(*id);
                    continue;
                }
                Phase::Aside { due } if due <= now => (false, Some(due), 0, *id),
                Phase::Parked => (true, None, item.event.rank, *id),
                Phase::Aside { .. } | Phase::Ended(_) => continue,
            };
            next = Some(next.map_or(turn, |next| next.min(turn)));
        }
        let Some((parked, _, rank, next)) = next else { return false };
        if let Some(head) = head {
            let head = self.items.get_mut(&head).expect("it was just found");
            if !parked || rank >= head.event.rank {
                return false;
            }
            let Ok(overtaken) = transition(&head.entry, &Input::Overtake, now) else { return false };
            head.entry = overtaken;
        }
        let item = self.items.get_mut(&next).expect("it was just found");
        let due = Some(item.due.map_or(now, |due| due.max(now)));
        item.due = due;
        item.entry = transition(&item.entry, &Input::Promote { due }, now).expect("it is parked, or aside and due");
        true
    }

    /// The entry, live or ended.
    #[must_use]
    pub fn entry(&self, id: EntryId) -> Option<&Entry> {
        self.items.get(&id).map(|item| &item.entry)
    }

    /// The current payload of an entry.
    #[must_use]
    pub fn payload(&self, id: EntryId) -> Option<&[u8]> {
        self.items.get(&id).map(|item| item.event.payload.as_ref())
    }

    /// The ids of all entries, live and ended.
    pub fn ids(&self) -> impl Iterator<Item = EntryId> + '_ {
        self.items.keys().copied()
    }

    /// What the queue holds, by state.
    #[must_use]
    pub fn depth(&self, now: Timestamp) -> Depth {
        let mut depth = Depth::default();
        for item in self.items.values() {
            match &item.entry.phase {
                Phase::Parked => depth.parked += 1,
                Phase::Waiting { due } if due.is_some_and(|due| due > now) => depth.delayed += 1,
                Phase::Waiting { .. } => depth.ready += 1,
                // What stepped aside or kept its place waits for a moment or a person.
                Phase::Aside { .. } | Phase::Kept(_) => depth.delayed += 1,
                Phase::Leased(_) => depth.leased += 1,
                Phase::Ended(_) => {}
            }
        }
        depth
    }

    /// How many entries have this end.
    #[must_use]
    pub fn ended(&self, end: End) -> usize {
        self.items.values().filter(|item| item.entry.phase == Phase::Ended(end)).count()
    }
}

fn due_moment(event: &NewEvent, now: Timestamp) -> Option<Timestamp> {
    match event.available {
        Availability::Now => None,
        Availability::At(at) => Some(at.max(now)),
        Availability::After(delay) => Some(later(now, delay)),
    }
}

#[cfg(test)]
mod tests;
