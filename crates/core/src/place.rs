//! Where a live entry waits. Each place has an index of its own, so that a claim never reads what it cannot take.

/// Where a live entry waits; a claim and a lease change it not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Claimable at once, by number.
    Fresh,
    /// Claimable from its moment on, by that moment.
    Timed,
    /// Behind the head of its group.
    Parked,
    /// Written by a caller's own transaction and not sorted in yet.
    Arrived,
    /// Stepped aside after a failure, until its moment: others of its group run.
    Aside,
}

impl Place {
    /// All places, in the order of their codes.
    pub const ALL: [Self; 5] = [Self::Fresh, Self::Timed, Self::Parked, Self::Arrived, Self::Aside];

    /// The number that databases store.
    #[must_use]
    pub const fn code(self) -> i16 {
        match self {
            Self::Fresh => 0,
            Self::Timed => 1,
            Self::Parked => 2,
            Self::Arrived => 3,
            Self::Aside => 4,
        }
    }

    /// The place with this stored number; `None` when there is none.
    #[must_use]
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|place| place.code() == code)
    }

    /// Whether an entry in this place is its group's head: at most one entry of a group is.
    #[must_use]
    pub const fn is_head(self) -> bool {
        matches!(self, Self::Fresh | Self::Timed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_stable_codes_and_two_are_heads() {
        for (code, place) in Place::ALL.into_iter().enumerate() {
            assert_eq!((place.code() as usize, Place::from_code(place.code())), (code, Some(place)));
            assert_eq!(place.is_head(), code < 2);
        }
        assert_eq!(Place::from_code(5), None);
    }
}
