//! Which lanes this process claims from, so that lanes in use are not removed.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::Timestamp;

/// An empty lane is retired when it was not claimed from for this long.
pub(in crate::postgres) const IDLE: Duration = Duration::from_secs(600);
/// How often a lane's use is written: the stored moment may be this old while the lane is in use.
pub(in crate::postgres) const NOTE_EVERY: Duration = Duration::from_secs(120);

/// The lanes this process claimed from, and when their use was last written.
#[derive(Debug, Default)]
pub(in crate::postgres) struct LaneUse(Mutex<HashMap<i32, Use>>);

#[derive(Debug, Clone, Copy)]
struct Use {
    /// When the use was last written; `None` if not yet.
    noted: Option<Timestamp>,
    /// Claimed from since then.
    used: bool,
}

impl LaneUse {
    /// Records that something was claimed from these lanes.
    pub(in crate::postgres) fn claimed(&self, lanes: impl IntoIterator<Item = i32>) {
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for lane in lanes {
            uses.entry(lane).or_insert(Use { noted: None, used: true }).used = true;
        }
    }

    /// The lanes whose use has to be written now. Drops lanes that were not used for [`IDLE`].
    pub(in crate::postgres) fn to_note(&self, now: Timestamp) -> Vec<i32> {
        let long_ago =
            |at: Timestamp, by: Duration| Duration::try_from(now.duration_since(at)).is_ok_and(|age| age >= by);
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        uses.retain(|_, of| of.used || !of.noted.is_some_and(|noted| long_ago(noted, IDLE)));
        let due = uses.iter_mut().filter(|(_, of)| of.used && of.noted.is_none_or(|noted| long_ago(noted, NOTE_EVERY)));
        due.map(|(lane, of)| {
            *of = Use { noted: Some(now), used: false };
            *lane
        })
        .collect()
    }
}
