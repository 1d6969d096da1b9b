//! A memory queue as simple as can be, to compare the fast one with.

use std::collections::BTreeMap;

use super::super::super::config::Config;
use super::super::super::pattern::Pattern;
use crate::queue::QueueState;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    pub(super) id: String,
    pub(super) pattern: String,
    pub(super) body: u8,
    pub(super) retries: u32,
    pub(super) at: At,
    /// Tokens given in this epoch.
    pub(super) claims: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum At {
    Ready,
    /// Its lease expired.
    Abandoned,
    Delayed(i64),
    Leased(i64),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Said {
    Added(u64),
    Repeated(u64),
    Conflict,
    Full,
    Draining,
}

#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) config: Config,
    pub(super) status: QueueState,
    pub(super) items: BTreeMap<u64, Item>,
    pub(super) dead: BTreeMap<u64, Item>,
    /// Every event that ever had a number.
    pub(super) all: BTreeMap<u64, String>,
    pub(super) next: u64,
    pub(super) stored_before: u64,
    pub(super) processed: u64,
    pub(super) errors: u64,
    pub(super) slow: bool,
}

impl Model {
    pub(super) fn new(config: Config, stored_before: u64) -> Self {
        Self {
            config,
            status: QueueState::Active,
            items: BTreeMap::new(),
            dead: BTreeMap::new(),
            all: BTreeMap::new(),
            next: 1,
            stored_before,
            processed: 0,
            errors: 0,
            slow: false,
        }
    }

    fn refusal(&self) -> Option<Said> {
        match self.status {
            QueueState::Draining => Some(Said::Draining),
            _ if self.items.len() >= self.config.max_queue_depth as usize => Some(Said::Full),
            _ => None,
        }
    }

    fn add(&mut self, item: Item) -> Said {
        let number = self.next;
        self.next += 1;
        self.all.insert(number, item.id.clone());
        self.items.insert(number, item);
        self.slow |= self.items.len() > self.config.high_watermark as usize;
        Said::Added(number)
    }

    pub(super) fn publish(&mut self, id: &str, pattern: &str, body: u8) -> Said {
        if let Some((number, item)) = self.items.iter().chain(&self.dead).find(|(_, item)| item.id == id) {
            let same = item.body == body && item.pattern == pattern;
            return if same { Said::Repeated(*number) } else { Said::Conflict };
        }
        if let Some(refusal) = self.refusal() {
            return refusal;
        }
        let (id, pattern) = (id.to_owned(), pattern.to_owned());
        self.add(Item { id, pattern, body, retries: 0, at: At::Ready, claims: 0 })
    }

    pub(super) fn wake(&mut self, now: i64) {
        for number in self.items.keys().copied().collect::<Vec<_>>() {
            match self.items[&number].at {
                At::Leased(until) if until <= now => self.fail(number, now, 0, At::Abandoned),
                At::Delayed(due) if due <= now => self.items.get_mut(&number).unwrap().at = At::Ready,
                _ => {}
            }
        }
    }

    pub(super) fn claim(&mut self, max: usize, patterns: &[Pattern], lease: i64, now: i64) -> Vec<u64> {
        self.wake(now);
        if self.status == QueueState::Paused {
            return Vec::new();
        }
        let mut taken = Vec::new();
        for (number, item) in &mut self.items {
            let chosen = patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(&item.pattern));
            let ready = matches!(item.at, At::Ready | At::Abandoned) && *number < self.stored_before;
            if chosen && ready && taken.len() < max {
                item.at = At::Leased(now + lease);
                item.claims += 1;
                taken.push(*number);
            }
        }
        taken
    }

    /// Whether a token of so many claims holds the event; an abandoned one counts for acks.
    pub(super) fn holds(&self, number: u64, claims: u32, ack: bool) -> bool {
        self.items.get(&number).is_some_and(|item| {
            item.claims == claims && (matches!(item.at, At::Leased(_)) || ack && item.at == At::Abandoned)
        })
    }

    fn after_removal(&mut self) {
        if self.items.len() <= self.config.low_watermark() as usize {
            self.slow = false;
        }
    }

    pub(super) fn ack(&mut self, number: u64) {
        self.items.remove(&number);
        self.processed += 1;
        self.after_removal();
    }

    pub(super) fn fail(&mut self, number: u64, now: i64, delay: i64, ready: At) {
        self.errors += 1;
        let item = self.items.get_mut(&number).unwrap();
        if item.retries >= self.config.max_retries {
            let item = self.items.remove(&number).unwrap();
            self.dead.insert(number, item);
            return self.after_removal();
        }
        item.retries += 1;
        item.at = if delay > 0 { At::Delayed(now + delay) } else { ready };
    }

    pub(super) fn release(&mut self, number: u64, now: i64, delay: i64) {
        self.items.get_mut(&number).unwrap().at = if delay > 0 { At::Delayed(now + delay) } else { At::Ready };
    }

    pub(super) fn redrive(&mut self, number: u64) -> Option<Said> {
        let item = self.dead.get(&number)?.clone();
        if let Some(refusal) = self.refusal() {
            return Some(refusal);
        }
        self.dead.remove(&number);
        Some(self.add(Item { retries: 0, at: At::Ready, claims: 0, ..item }))
    }

    /// What it is after a crash, if this is what was stored.
    pub(super) fn recover(&mut self, counts_claims: bool, now: i64) {
        self.slow = self.items.len() > self.config.high_watermark as usize;
        for number in self.items.keys().copied().collect::<Vec<_>>() {
            let item = self.items.get_mut(&number).unwrap();
            item.claims = 0;
            match item.at {
                At::Leased(_) if counts_claims => self.fail(number, now, 0, At::Ready),
                At::Leased(_) | At::Abandoned => item.at = At::Ready,
                _ => {}
            }
        }
        self.stored_before = if counts_claims { self.next } else { u64::MAX };
    }

    pub(super) fn checkpoint(&self) -> (u64, Option<&str>) {
        let through = self.items.keys().next().copied().unwrap_or(self.next) - 1;
        (through, self.all.get(&through).map(String::as_str))
    }
}
