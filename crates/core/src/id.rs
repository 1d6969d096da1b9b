//! Identifiers: entry ids, TSIDs, and the id space that entry ids are drawn from.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Entry ids stay below this, so that a JavaScript client can hold them exactly.
pub const ENTRY_ID_LIMIT: i64 = 1 << 53;

/// 2020-01-01T00:00:00Z in Unix milliseconds: the zero of a TSID's time part.
pub const TSID_EPOCH_MS: i64 = 1_577_836_800_000;

const TSID_SEQUENCE_BITS: u32 = 22;
const TSID_SEQUENCE_MASK: u64 = (1 << TSID_SEQUENCE_BITS) - 1;
const CROCKFORD: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// The number of an entry, drawn at insert: it rises in the order of publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EntryId(i64);

impl EntryId {
    /// Wraps a raw number.
    ///
    /// # Errors
    /// When it is not in `1..2^53`.
    pub fn new(raw: i64) -> Result<Self, InvalidId> {
        if (1..ENTRY_ID_LIMIT).contains(&raw) { Ok(Self(raw)) } else { Err(InvalidId::EntryOutOfRange(raw)) }
    }

    /// The raw number.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A time-sorted id: 42 bits of milliseconds since 2020 and 22 bits of a database sequence, written as 13 Crockford
/// base32 characters. Two ids collide only if one database draws four million numbers in one millisecond.
///
/// ```
/// use tidegate_core::Tsid;
/// let id: Tsid = "0HZXEQ5Y8JY5Z".parse().unwrap();
/// assert_eq!(id.to_string(), "0HZXEQ5Y8JY5Z");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tsid(u64);

impl Tsid {
    /// Composes an id from Unix milliseconds and a sequence number (its low 22 bits are used).
    #[must_use]
    pub fn from_parts(unix_ms: i64, sequence: i64) -> Self {
        let ms = unix_ms.saturating_sub(TSID_EPOCH_MS).clamp(0, (1 << 41) - 1) as u64;
        Self((ms << TSID_SEQUENCE_BITS) | (sequence as u64 & TSID_SEQUENCE_MASK))
    }

    /// The id as a database stores it.
    #[must_use]
    pub const fn to_i64(self) -> i64 {
        self.0 as i64
    }

    /// The id for a number that a database stores.
    #[must_use]
    pub const fn from_i64(raw: i64) -> Self {
        Self(raw as u64)
    }

    /// The millisecond part, as Unix milliseconds.
    #[must_use]
    pub const fn unix_ms(self) -> i64 {
        (self.0 >> TSID_SEQUENCE_BITS) as i64 + TSID_EPOCH_MS
    }
}

impl fmt::Display for Tsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0_u8; 13];
        for (position, slot) in text.iter_mut().enumerate() {
            let shift = 60 - 5 * position as u32;
            *slot = CROCKFORD[((self.0 >> shift) & 31) as usize];
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for Tsid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tsid({self})")
    }
}

impl FromStr for Tsid {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let bytes = text.as_bytes();
        if bytes.len() != 13 {
            return Err(InvalidId::NotATsid(text.into()));
        }
        let mut value: u64 = 0;
        for (position, byte) in bytes.iter().enumerate() {
            let digit = crockford_digit(*byte).ok_or_else(|| InvalidId::NotATsid(text.into()))?;
            if position == 0 && digit > 15 {
                return Err(InvalidId::NotATsid(text.into())); // 13 characters hold 65 bits
            }
            value = (value << 5) | u64::from(digit);
        }
        Ok(Self(value))
    }
}

impl Serialize for Tsid {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Tsid {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Crockford's rules for decoding: case does not matter, I and L are 1, O is 0.
fn crockford_digit(byte: u8) -> Option<u8> {
    let digit = match byte.to_ascii_uppercase() {
        b'O' => 0,
        b'I' | b'L' => 1,
        upper => CROCKFORD.iter().position(|c| *c == upper)? as u8,
    };
    Some(digit)
}

/// The numbers that a database draws entry ids from: `offset`, `offset + step`, … With several databases, `id mod step`
/// identifies the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdSpace {
    /// The first id drawn; at least 1 and at most `step` when `step` is above 1.
    pub offset: i64,
    /// The distance between two ids.
    pub step: i64,
}

impl IdSpace {
    /// A checked id space.
    ///
    /// # Errors
    /// When the step is not in `1..=1024` or the offset not in `1..=step`.
    pub fn new(offset: i64, step: i64) -> Result<Self, InvalidId> {
        if (1..=1024).contains(&step) && (1..=step).contains(&offset) {
            Ok(Self { offset, step })
        } else {
            Err(InvalidId::BadIdSpace { offset, step })
        }
    }
}

impl Default for IdSpace {
    fn default() -> Self {
        Self { offset: 1, step: 1 }
    }
}

/// Why a value is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// An entry id outside its range.
    #[error("{0} is not an entry id: it must be between 1 and 2^53 - 1")]
    EntryOutOfRange(i64),
    /// Text that is not a TSID.
    #[error("{0:?} is not an id: it must be 13 Crockford base32 characters")]
    NotATsid(String),
    /// An offset and step that cannot be used.
    #[error("id offset {offset} and step {step} do not fit: step must be 1 to 1024, offset 1 to step")]
    BadIdSpace {
        /// The refused offset.
        offset: i64,
        /// The refused step.
        step: i64,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tsid_text_round_trips_and_sorts_like_the_number(a in 0_i64..i64::MAX, b in 0_i64..i64::MAX) {
            let (a, b) = (Tsid::from_i64(a), Tsid::from_i64(b));
            prop_assert_eq!(a.to_string().parse::<Tsid>().unwrap(), a);
            prop_assert_eq!(a.to_string().cmp(&b.to_string()), a.cmp(&b));
        }

        #[test]
        fn tsid_keeps_its_time(ms in TSID_EPOCH_MS..TSID_EPOCH_MS + (1 << 41), sequence in 0_i64..i64::MAX) {
            let id = Tsid::from_parts(ms, sequence);
            prop_assert_eq!(id.unix_ms(), ms);
            prop_assert!(id.to_i64() >= 0);
        }

        #[test]
        fn any_text_is_read_or_refused_without_panic(text in ".{0,20}") {
            let _ = text.parse::<Tsid>();
        }
    }

    #[test]
    fn neighbours_in_one_millisecond_differ() {
        assert_ne!(Tsid::from_parts(TSID_EPOCH_MS, 1), Tsid::from_parts(TSID_EPOCH_MS, 2));
    }

    #[test]
    fn crockford_reads_lower_case_and_look_alikes() {
        assert_eq!("0hzxeq5y8jy5z".parse::<Tsid>(), "0HZXEQ5Y8JY5Z".parse::<Tsid>());
        assert_eq!("OHZXEQ5Y8JY5Z".parse::<Tsid>(), "0HZXEQ5Y8JY5Z".parse::<Tsid>());
        assert!("ZZZZZZZZZZZZZ".parse::<Tsid>().is_err(), "more than 64 bits");
    }

    #[test]
    fn entry_ids_fit_a_double() {
        assert!(EntryId::new(ENTRY_ID_LIMIT - 1).is_ok());
        for bad in [0, -1, ENTRY_ID_LIMIT, i64::MAX] {
            assert!(EntryId::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn id_space_is_checked() {
        assert!(IdSpace::new(3, 3).is_ok() && IdSpace::new(1, 1024).is_ok());
        for (offset, step) in [(0, 1), (4, 3), (1, 0), (1, 1025)] {
            assert!(IdSpace::new(offset, step).is_err(), "{offset} {step}");
        }
    }

    #[test]
    fn ids_are_shown_as_they_are_written() {
        assert_eq!(EntryId::new(1234).unwrap().to_string(), "1234");
        assert_eq!(format!("{:?}", Tsid::from_i64(7)), "Tsid(0000000000007)");
    }

    #[test]
    fn all_64_bits_have_a_text() {
        let last = Tsid::from_i64(-1);
        assert_eq!(last.to_string(), "FZZZZZZZZZZZZ");
        assert_eq!("FZZZZZZZZZZZZ".parse(), Ok(last));
        assert!("G000000000000".parse::<Tsid>().is_err());
        for text in ["1000000000000", "I000000000000", "l000000000000"] {
            assert_eq!(text.parse(), Ok(Tsid::from_i64(1 << 60)), "{text}");
        }
    }

    #[test]
    fn times_out_of_range_are_held_at_its_ends() {
        let last = Tsid::from_parts(i64::MAX, -1);
        assert_eq!((last.unix_ms(), last.to_i64()), (TSID_EPOCH_MS + (1 << 41) - 1, i64::MAX));
        assert_eq!(Tsid::from_parts(TSID_EPOCH_MS - 1, 5), Tsid::from_i64(5));
        assert_eq!(Tsid::from_parts(TSID_EPOCH_MS + 1, 1 << 22), Tsid::from_i64(1 << 22), "the low 22 bits are used");
    }
}
