//! Low-water marks: where claims start to scan a lane. Pure bookkeeping, without IO.

use std::collections::HashMap;

/// The low-water mark of each lane: where a scan of fresh entries starts, so that leased ones are not read again and
/// again. A mark is valid until the first lease below it ends or is given back.
#[derive(Debug, Default)]
pub(in crate::sqlite) struct Marks(HashMap<i64, Mark>);

#[derive(Debug, Clone, Copy)]
pub(in crate::sqlite) struct Mark {
    /// Every fresh entry of the lane up to this number is leased or gone,
    pub(in crate::sqlite) below: i64,
    /// at least until this moment.
    pub(in crate::sqlite) until: i64,
}

impl Marks {
    pub(in crate::sqlite) fn get(&mut self, lane: i64, now: i64) -> Mark {
        let mark = self.0.entry(lane).or_insert(Mark { below: 0, until: i64::MAX });
        if mark.until <= now {
            *mark = Mark { below: 0, until: i64::MAX };
        }
        *mark
    }

    pub(in crate::sqlite) fn set(&mut self, lane: i64, mark: Mark) {
        self.0.insert(lane, mark);
    }

    /// A lease now ends at this moment, so no mark is valid for longer.
    pub(in crate::sqlite) fn lease_ends(&mut self, until: i64) {
        for mark in self.0.values_mut() {
            mark.until = mark.until.min(until);
        }
    }

    pub(in crate::sqlite) fn clear(&mut self) {
        self.0.clear();
    }
}
