//! The live events of a queue, as they are shown.

use jiff::Timestamp;

use super::super::cells::Phase;
use super::super::event::Event;
use super::{Queue, entry, moment};
use crate::id::EntryId;

/// A live event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed<'a> {
    /// Its number.
    pub number: EntryId,
    /// The event.
    pub event: &'a Event,
    /// Where it is.
    pub phase: ListedPhase<'a>,
    /// How often it was or is to be tried again.
    pub retry_count: u32,
    /// What failed last.
    pub last_error: Option<&'a str>,
    /// When that was.
    pub last_error_time: Option<Timestamp>,
}

/// Where a live event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedPhase<'a> {
    /// It can be claimed, if the queue delivers.
    Ready,
    /// It is tried again from this moment on.
    Delayed(Timestamp),
    /// A worker holds it.
    Leased {
        /// Who.
        worker: &'a str,
        /// Since when.
        since: Timestamp,
        /// Until when.
        until: Timestamp,
    },
}

impl Queue {
    /// Live events with a number above `after`, in order.
    pub fn list(&self, after: u64) -> impl Iterator<Item = Listed<'_>> {
        self.cells.iter_from(after.saturating_add(1)).map(|(number, cell)| {
            let phase = match cell.phase {
                Phase::Fresh { .. } | Phase::Back { .. } => ListedPhase::Ready,
                Phase::Delayed { due } => ListedPhase::Delayed(moment(due)),
                Phase::Leased { grant } => self.leases.get(grant).map_or(ListedPhase::Ready, |grant| {
                    let (since, until) = (moment(grant.since), moment(grant.until));
                    ListedPhase::Leased { worker: &grant.worker, since, until }
                }),
            };
            Listed {
                number: entry(number),
                event: &cell.event,
                phase,
                retry_count: cell.retries,
                last_error: cell.trouble.as_ref().map(|trouble| &*trouble.error),
                last_error_time: cell.trouble.as_ref().map(|trouble| moment(trouble.at)),
            }
        })
    }
}
