//! When deliveries may start under a limit per minute that holds across nodes.
//!
//! All nodes share one stored moment per pool: the one at which the next delivery may start. A node reserves moments by
//! moving it on, in a transaction that has its row locked, and starts one delivery at each. Moments lie a minute
//! divided by the limit apart, on whichever node. What is not used is lost, never saved up: there are no bursts, so
//! over any minute the moments exceed the limit by at most one. A start may be late by up to [`LATEST`]; so many late
//! ones may meet that the limit is exceeded by at most 2 %, or by one.

use std::time::Duration;

use jiff::Timestamp;

/// How far ahead moments are reserved.
pub const AHEAD: Duration = Duration::from_millis(250);
/// The longest time after its moment at which a delivery may still start. Later, it needs another moment.
pub const LATEST: Duration = Duration::from_millis(500);
/// The highest limit per minute: moments are whole microseconds.
pub const MAX_PER_MINUTE: u32 = 60_000_000;

const MINUTE_US: i64 = 60_000_000;
const AHEAD_US: i64 = AHEAD.as_micros() as i64;

/// A limit per minute, from 1 to [`MAX_PER_MINUTE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate {
    per_minute: u32,
}

/// Moments that were reserved, perhaps none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    rate: Rate,
    first_us: i64,
    count: u32,
    stored: Timestamp,
}

impl Rate {
    /// A limit; `None` when it is out of range.
    #[must_use]
    pub fn per_minute(limit: u32) -> Option<Self> {
        (1..=MAX_PER_MINUTE).contains(&limit).then_some(Self { per_minute: limit })
    }

    /// Reserves as many moments as are wanted and lie at most [`AHEAD`]. `stored` is the pool's moment as the row has
    /// it ([`Timestamp::MIN`] for a new pool), `now` the database's time.
    ///
    /// A stored moment that is further ahead than any reservation leaves it was written before the clock was set back,
    /// or under a lower limit; what this limit would have left at most takes its place.
    ///
    /// ```
    /// use tidegate_core::Timestamp;
    /// use tidegate_core::pool::rate::Rate;
    /// let rate = Rate::per_minute(600).unwrap();
    /// let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    /// let reserved = rate.reserve(Timestamp::MIN, now, 64);
    /// let waits: Vec<_> = reserved.starts().map(|start| start.duration_since(now).as_millis()).collect();
    /// assert_eq!(waits, [0, 100, 200]);
    /// // The next node continues where this one ends.
    /// let next = rate.reserve(reserved.stored(), now, 64);
    /// assert_eq!(next.count(), 0);
    /// assert_eq!(next.ask_again_at(), "2026-01-01T00:00:00.05Z".parse().unwrap());
    /// ```
    #[must_use]
    pub fn reserve(self, stored: Timestamp, now: Timestamp, wanted: u32) -> Reservation {
        let now_us = now.as_microsecond();
        let first_us = stored.as_microsecond().min(now_us + AHEAD_US + self.span(1)).max(now_us);
        // Of the moments from the first on, those at most `AHEAD` from now.
        let fit = match now_us + AHEAD_US - first_us {
            room @ 0.. => room * i64::from(self.per_minute) / MINUTE_US + 1,
            _ => 0,
        };
        let count = wanted.min(u32::try_from(fit).unwrap_or(u32::MAX));
        let stored = if count == 0 { moment(first_us).min(stored) } else { moment(first_us + self.span(count)) };
        Reservation { rate: self, first_us, count, stored }
    }

    /// The time between a moment and the `count`-th after it, in microseconds, rounded up.
    fn span(self, count: u32) -> i64 {
        let limit = i64::from(self.per_minute);
        (i64::from(count) * MINUTE_US + limit - 1) / limit
    }
}

impl Reservation {
    /// How many moments were reserved.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The moments, by the database's time: at each, one delivery may start.
    pub fn starts(&self) -> impl Iterator<Item = Timestamp> + use<> {
        let (rate, first_us) = (self.rate, self.first_us);
        (0..self.count).map(move |at| moment(first_us + rate.span(at)))
    }

    /// What has to be stored as the pool's moment whenever it differs from what was, even when nothing was reserved:
    /// else a clock that was set back holds the pool until it is where it was.
    #[must_use]
    pub fn stored(&self) -> Timestamp {
        self.stored
    }

    /// When more can be reserved.
    #[must_use]
    pub fn ask_again_at(&self) -> Timestamp {
        moment(self.stored.as_microsecond().saturating_sub(AHEAD_US))
    }

    /// Gives back all but the first `used` moments: what has to be stored for that, if anything. `stored` is what the
    /// row has now. Once others have reserved after it, nothing can be given back: their moments stay where they are.
    ///
    /// ```
    /// use tidegate_core::Timestamp;
    /// use tidegate_core::pool::rate::Rate;
    /// let rate = Rate::per_minute(600).unwrap();
    /// let reserved = rate.reserve(Timestamp::MIN, Timestamp::UNIX_EPOCH, 3);
    /// let stored = reserved.give_back(1, reserved.stored()).unwrap();
    /// let again = rate.reserve(stored, Timestamp::UNIX_EPOCH, 3);
    /// assert!(again.starts().eq(reserved.starts().skip(1)));
    /// let others = rate.reserve(reserved.stored(), Timestamp::from_second(1).unwrap(), 1);
    /// assert_eq!(reserved.give_back(1, others.stored()), None);
    /// ```
    #[must_use]
    pub fn give_back(&self, used: u32, stored: Timestamp) -> Option<Timestamp> {
        (used < self.count && stored == self.stored).then(|| moment(self.first_us + self.rate.span(used)))
    }
}

/// A moment in microseconds, within what timestamps can be.
fn moment(us: i64) -> Timestamp {
    let bound = if us < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_microsecond(us).unwrap_or(bound)
}

#[cfg(test)]
mod tests;
