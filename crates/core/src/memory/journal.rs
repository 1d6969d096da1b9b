//! What a queue has to write: the records since the last blob, and the blobs that are stored with what they are still
//! needed for. Knows nothing of lanes and leases, and does not write.

use std::collections::VecDeque;

use super::blob::{self, Blob, BlobKey};
use super::event::Event;
use super::record::{Standing, State, Writer};
use super::token::Epoch;
use crate::name::QueueName;

/// A stored blob, or the one that is being filled.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stored {
    pub(super) seq: u64,
    /// The lowest and the highest number of an event in it; 0 when there is none.
    pub(super) first: u64,
    pub(super) last: u64,
    bytes: u64,
    /// How many events, dead letters and ids are rebuilt from it.
    live: u64,
    /// The blob after which nothing was rebuilt from it any more.
    emptied_by: u64,
}

impl Stored {
    /// Nothing is rebuilt from it, what says so is stored, and so is a later blob, which has the queue's state.
    const fn is_unneeded(&self, saved: u64) -> bool {
        self.live == 0 && self.emptied_by <= saved && self.seq < saved
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Journal {
    queue: Box<str>,
    epoch: Epoch,
    body: Vec<u8>,
    writer: Writer,
    /// The blob that is being filled.
    open: Stored,
    blobs: VecDeque<Stored>,
    /// All blobs up to this one are stored.
    saved: u64,
    /// What is stored, and what of it is still needed, in bytes.
    stored_bytes: u64,
    live_bytes: u64,
    /// The state has changed and no record says so.
    state_changed: bool,
    /// Blobs that are being stored, each with the number of the next event when it was cut.
    in_flight: VecDeque<(u64, u64)>,
}

/// Beyond so many bytes that are not cut no event is accepted: the store is far behind.
pub(super) const MOST_UNCUT: usize = 1 << 30;
/// Compaction does not begin before so many bytes are stored beyond twice what is needed.
const WORTH_COMPACTING: u64 = 1 << 20;

impl Journal {
    /// A journal whose next blob has this sequence number.
    pub(super) fn new(queue: &QueueName, epoch: Epoch, seq: u64) -> Self {
        let queue = queue.to_string().into_boxed_str();
        let body = blob::begin(&queue);
        let open = Stored { seq, ..Stored::default() };
        Self {
            queue,
            epoch,
            body,
            writer: Writer::default(),
            open,
            blobs: VecDeque::new(),
            saved: seq.saturating_sub(1),
            stored_bytes: 0,
            live_bytes: 0,
            state_changed: false,
            in_flight: VecDeque::new(),
        }
    }

    pub(super) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The sequence number that the next blob will have.
    pub(super) const fn open_seq(&self) -> u64 {
        self.open.seq
    }

    pub(super) const fn saved(&self) -> u64 {
        self.saved
    }

    /// How many records there are that are not cut.
    pub(super) const fn uncut_records(&self) -> u32 {
        self.writer.count
    }

    pub(super) const fn uncut_bytes(&self) -> usize {
        self.body.len()
    }

    pub(super) const fn has_changes(&self) -> bool {
        self.writer.count > 0 || self.state_changed
    }

    /// Whatever is written next, the state must be.
    pub(super) const fn change_state(&mut self) {
        self.state_changed = true;
    }

    /// Takes a blob over that was read.
    pub(super) fn adopt(&mut self, key: &BlobKey, bytes: u64) {
        self.blobs.push_back(Stored { seq: key.seq, first: key.first, last: key.last, bytes, ..Stored::default() });
        self.stored_bytes += bytes;
        self.saved = key.seq;
        self.open.seq = key.seq + 1;
    }

    fn stored(&mut self, seq: u64) -> Option<&mut Stored> {
        if seq == self.open.seq {
            return Some(&mut self.open);
        }
        let first = self.blobs.front()?.seq;
        self.blobs.get_mut(usize::try_from(seq.checked_sub(first)?).ok()?)
    }

    /// Something is rebuilt from this blob.
    pub(super) fn enter(&mut self, home: u64, bytes: usize) {
        if let Some(stored) = self.stored(home) {
            stored.live += 1;
            self.live_bytes += bytes as u64;
        }
    }

    /// Something is not rebuilt from this blob any more.
    pub(super) fn leave(&mut self, home: u64, bytes: usize) {
        let open = self.open.seq;
        if let Some(stored) = self.stored(home) {
            stored.live = stored.live.saturating_sub(1);
            if stored.live == 0 {
                stored.emptied_by = open;
            }
            self.live_bytes = self.live_bytes.saturating_sub(bytes as u64);
        }
    }

    fn holds(&mut self, number: u64, bytes: usize) -> u64 {
        let open = &mut self.open;
        open.first = if open.first == 0 { number } else { open.first.min(number) };
        open.last = open.last.max(number);
        open.live += 1;
        self.live_bytes += bytes as u64;
        open.seq
    }

    /// Records an event; answers its home.
    pub(super) fn published(&mut self, number: u64, event: &Event) -> u64 {
        self.writer.published(&mut self.body, number, event);
        self.holds(number, event.packed().len())
    }

    /// Records an event as it stands; answers its home.
    pub(super) fn rewritten(&mut self, number: u64, standing: &Standing, event: &Event) -> u64 {
        self.writer.rewritten(&mut self.body, number, standing, event);
        self.holds(number, event.packed().len())
    }

    /// Records the id of a ended event; answers its home.
    pub(super) fn ended(&mut self, number: u64, event_id: &str) -> u64 {
        self.writer.ended(&mut self.body, number, event_id);
        self.holds(number, 0)
    }

    pub(super) fn claimed(&mut self, number: u64, count: u64) {
        self.writer.claimed(&mut self.body, number, count);
    }

    pub(super) fn acked(&mut self, number: u64) {
        self.writer.acked(&mut self.body, number);
    }

    pub(super) fn discarded(&mut self, number: u64) {
        self.writer.discarded(&mut self.body, number);
    }

    pub(super) fn returned(&mut self, number: u64, standing: &Standing) {
        self.writer.returned(&mut self.body, number, standing);
    }

    pub(super) fn dead_lettered(&mut self, number: u64, standing: &Standing) {
        self.writer.dead_lettered(&mut self.body, number, standing);
    }

    /// Makes a blob of what is recorded, and begins the next.
    pub(super) fn cut(&mut self, state: &State, more_follows: bool) -> Blob {
        self.writer.state(&mut self.body, state);
        let mut next = blob::begin(&self.queue);
        // Bodies are mostly alike.
        next.reserve(self.body.len().min(256 << 10));
        let body = std::mem::replace(&mut self.body, next);
        let Stored { seq, first, last, .. } = self.open;
        let key = BlobKey { seq, epoch: self.epoch.get(), first, last, crc: 0 };
        let blob = blob::complete(body, &self.queue, key, self.writer.count, more_follows);
        self.open.bytes = blob.bytes.len() as u64;
        self.stored_bytes += self.open.bytes;
        self.blobs.push_back(self.open);
        self.open = Stored { seq: seq + 1, ..Stored::default() };
        self.writer = Writer::default();
        self.state_changed = false;
        self.in_flight.push_back((seq, state.next_number));
        blob
    }

    /// All blobs up to this one are stored; answers the first number that none of them may hold.
    pub(super) fn save(&mut self, seq: u64) -> Option<u64> {
        let mut next_number = None;
        while let Some((cut, next)) = self.in_flight.front().copied().filter(|(cut, _)| *cut <= seq) {
            self.in_flight.pop_front();
            next_number = Some(next);
            self.saved = self.saved.max(cut);
        }
        next_number
    }

    /// Forgets blobs in front from which nothing is rebuilt, and answers the sequence number of the first that is needed.
    /// The last one is always needed: it has the queue's state.
    pub(super) fn drop_unneeded(&mut self) -> u64 {
        while let Some(blob) = self.blobs.front().copied().filter(|blob| blob.is_unneeded(self.saved)) {
            self.blobs.pop_front();
            self.stored_bytes = self.stored_bytes.saturating_sub(blob.bytes);
        }
        self.blobs.front().map_or(self.open.seq, |blob| blob.seq)
    }

    /// The first blob that something is rebuilt from, when most of what is stored is not needed and cannot be dropped.
    pub(super) fn to_compact(&self) -> Option<Stored> {
        let mut kept = self.stored_bytes;
        for blob in &self.blobs {
            if blob.live > 0 {
                let is_worth_it = kept >= self.live_bytes * 2 + WORTH_COMPACTING;
                return Some(*blob).filter(|blob| is_worth_it && blob.seq <= self.saved);
            }
            kept = kept.saturating_sub(blob.bytes);
        }
        None
    }

    #[cfg(test)]
    pub(super) fn first_live(&self) -> Option<Stored> {
        self.blobs.iter().find(|blob| blob.live > 0).copied()
    }

    /// What is stored and what of it is needed, in bytes.
    pub(super) const fn sizes(&self) -> (u64, u64) {
        (self.stored_bytes, self.live_bytes)
    }
}
