//! Which waiting event is next: a lane per pattern of events, in order of numbers, and the order among lanes. Claims
//! always take the first of a lane, so that nothing is scanned: neither what others hold nor what a claim's patterns do
//! not choose. Knows nothing of leases and time.

use std::cmp::Reverse;
use std::collections::binary_heap::{BinaryHeap, PeekMut};
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::cells::{Cells, Phase};
use super::pattern::Pattern;

/// A claim's patterns are matched with lanes once; so many of the lists that claims named last are known.
const KNOWN_CHOICES: usize = 256;

#[derive(Debug)]
struct Lane {
    pattern: Box<str>,
    /// The first and the last of the fresh events, which are linked by number; 0 when there is none.
    first: u64,
    last: u64,
    /// Those that wait once more.
    back: BTreeSet<u64>,
    /// At most the lane's first number, as it stands in [`Lanes::order`]; 0 while it does not.
    queued: u64,
    /// Live events.
    events: u32,
}

impl Lane {
    fn head(&self) -> Option<u64> {
        let fresh = (self.first != 0).then_some(self.first);
        fresh.into_iter().chain(self.back.first().copied()).min()
    }
}

/// The lanes that the patterns of a claim choose.
#[derive(Debug, Default)]
struct Choice {
    lanes: Vec<u32>,
    /// How many of [`Lanes::made`] were looked at.
    seen: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: Vec<Option<Lane>>,
    free: Vec<u32>,
    by_pattern: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Lanes by their first number. An entry counts if its lane has it as `queued`; it may be lower than the lane's first
    /// number, and is put right when it comes to the top. So a lane is sorted in once, not with each event.
    order: BinaryHeap<Reverse<(u64, u32)>>,
    /// The lane of the last event.
    recent: u32,
    choices: HashMap<Box<[Pattern]>, Choice>,
    /// Lanes in the order in which they were made, since lanes were last removed.
    made: Vec<u32>,
    /// Lanes without events.
    idle: usize,
}

impl Lanes {
    fn get(&self, lane: u32) -> Option<&Lane> {
        self.lanes.get(lane as usize)?.as_ref()
    }

    fn get_mut(&mut self, lane: u32) -> Option<&mut Lane> {
        self.lanes.get_mut(lane as usize)?.as_mut()
    }

    /// The lane for a pattern, with one event more.
    pub(super) fn enter(&mut self, pattern: &[u8]) -> u32 {
        let recent = self.recent;
        let lane = match self.get(recent) {
            Some(lane) if lane.pattern.as_bytes() == pattern => recent,
            _ => self.find_or_make(pattern),
        };
        self.recent = lane;
        if let Some(entered) = self.get_mut(lane) {
            entered.events += 1;
            let was_idle = entered.events == 1;
            self.idle -= usize::from(was_idle);
        }
        lane
    }

    fn find_or_make(&mut self, pattern: &[u8]) -> u32 {
        let hash = self.hasher.hash_one(pattern);
        let is_it = |lane: &u32| self.get(*lane).is_some_and(|lane| lane.pattern.as_bytes() == pattern);
        if let Some(lane) = self.by_pattern.find(hash, is_it) {
            return *lane;
        }
        if self.idle > 64 + self.lanes.len() / 2 {
            self.remove_idle();
        }
        let text = String::from_utf8_lossy(pattern).into_owned().into_boxed_str();
        let made = Lane { pattern: text, first: 0, last: 0, back: BTreeSet::new(), queued: 0, events: 0 };
        let lane = self.free.pop().unwrap_or(self.lanes.len() as u32);
        match self.lanes.get_mut(lane as usize) {
            Some(place) => *place = Some(made),
            None => self.lanes.push(Some(made)),
        }
        let (lanes, hasher) = (&self.lanes, &self.hasher);
        let hash_of = |lane: &u32| {
            let pattern = lanes.get(*lane as usize).and_then(|lane| lane.as_ref()).map(|lane| lane.pattern.as_bytes());
            hasher.hash_one(pattern.unwrap_or_default())
        };
        self.by_pattern.insert_unique(hash, lane, hash_of);
        self.made.push(lane);
        self.idle += 1;
        lane
    }

    /// Removes lanes without events. It happens when they are the most, so that each is paid for by its making.
    fn remove_idle(&mut self) {
        for (at, place) in self.lanes.iter_mut().enumerate() {
            if place.as_ref().is_some_and(|lane| lane.events == 0) {
                *place = None;
                self.free.push(at as u32);
            }
        }
        let lanes = &self.lanes;
        self.by_pattern.retain(|lane| lanes.get(*lane as usize).is_some_and(Option::is_some));
        self.choices.clear();
        self.made = (0..).zip(lanes).filter(|(_, lane)| lane.is_some()).map(|(at, _)| at).collect();
        self.order.retain(|Reverse((number, lane))| {
            let lane = lanes.get(*lane as usize).and_then(Option::as_ref);
            lane.is_some_and(|lane| lane.queued == *number)
        });
        self.idle = 0;
    }

    /// An event of the lane has ended.
    pub(super) fn leave(&mut self, lane: u32) {
        if let Some(left) = self.get_mut(lane) {
            left.events = left.events.saturating_sub(1);
            let is_idle = left.events == 0;
            self.idle += usize::from(is_idle);
        }
    }

    /// Puts an event with the greatest number of all at the end of its lane.
    pub(super) fn append(&mut self, lane: u32, number: u64, cells: &mut Cells) {
        let Some(place) = self.lanes.get_mut(lane as usize).and_then(Option::as_mut) else { return };
        if place.first == 0 {
            place.first = number;
        } else if let Some(last) = cells.get_mut(place.last) {
            last.phase = Phase::Fresh { next: number };
        }
        place.last = number;
        self.sort_in(lane, number);
    }

    /// Puts an event back to where its number is.
    pub(super) fn put_back(&mut self, lane: u32, number: u64) {
        if let Some(place) = self.get_mut(lane) {
            place.back.insert(number);
            self.sort_in(lane, number);
        }
    }

    /// Takes out an event that was put back.
    pub(super) fn withdraw(&mut self, lane: u32, number: u64) {
        if let Some(place) = self.get_mut(lane) {
            place.back.remove(&number);
        }
    }

    fn sort_in(&mut self, lane: u32, number: u64) {
        let Some(place) = self.get_mut(lane) else { return };
        if place.queued == 0 || number < place.queued {
            place.queued = number;
            self.order.push(Reverse((number, lane)));
            if self.order.len() > 64 + 4 * self.lanes.len() {
                let lanes = &self.lanes;
                let counts = |Reverse((number, lane)): &Reverse<(u64, u32)>| {
                    lanes.get(*lane as usize).and_then(Option::as_ref).is_some_and(|lane| lane.queued == *number)
                };
                self.order.retain(counts);
            }
        }
    }

    /// The lowest number that waits in any lane, with its lane.
    pub(super) fn first(&mut self) -> Option<(u64, u32)> {
        while let Some(mut top) = self.order.peek_mut() {
            let Reverse((number, at)) = *top;
            let lane = self.lanes.get_mut(at as usize).and_then(Option::as_mut).filter(|lane| lane.queued == number);
            let Some(lane) = lane else {
                PeekMut::pop(top);
                continue;
            };
            match lane.head() {
                Some(head) if head == number => return Some((number, at)),
                Some(head) => {
                    lane.queued = head;
                    *top = Reverse((head, at));
                }
                None => {
                    lane.queued = 0;
                    PeekMut::pop(top);
                }
            }
        }
        None
    }

    /// Takes the first event of a lane.
    pub(super) fn take(&mut self, lane: u32, cells: &Cells) -> Option<u64> {
        let lane = self.get_mut(lane)?;
        let number = lane.head()?;
        if lane.first == number {
            lane.first = match cells.get(number).map(|cell| cell.phase) {
                Some(Phase::Fresh { next }) => next,
                _ => 0,
            };
        } else {
            lane.back.remove(&number);
        }
        Some(number)
    }

    /// The lanes that one of these patterns chooses and in which something waits, by their first numbers.
    pub(super) fn chosen(&mut self, patterns: &[Pattern]) -> BinaryHeap<Reverse<(u64, u32)>> {
        if !self.choices.contains_key(patterns) {
            if self.choices.len() >= KNOWN_CHOICES {
                self.choices.clear();
            }
            self.choices.insert(patterns.into(), Choice::default());
        }
        let Some(choice) = self.choices.get_mut(patterns) else { return BinaryHeap::new() };
        for lane in self.made.get(choice.seen..).unwrap_or_default() {
            let pattern = self.lanes.get(*lane as usize).and_then(Option::as_ref).map(|lane| &*lane.pattern);
            if pattern.is_some_and(|event| patterns.iter().any(|pattern| pattern.matches(event))) {
                choice.lanes.push(*lane);
            }
        }
        choice.seen = self.made.len();
        let lanes = &self.lanes;
        let head = |lane: &u32| lanes.get(*lane as usize).and_then(|place| place.as_ref()?.head());
        choice.lanes.iter().filter_map(|lane| Some(Reverse((head(lane)?, *lane)))).collect()
    }

    /// The first number of a lane.
    pub(super) fn head(&self, lane: u32) -> Option<u64> {
        self.get(lane).and_then(Lane::head)
    }

    /// How many lanes there are, with and without events.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.made.len()
    }
}
