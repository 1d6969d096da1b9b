//! Event types and their versions: codes, patterns over codes, version numbers, and which moves of the life cycle are
//! allowed. Knows nothing of schemas' contents and of where types are kept.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest code, in bytes.
pub const MAX_CODE: usize = 255;
/// The parts of a code.
const PARTS: usize = 4;

/// The code of an event type: `application:subdomain:aggregate:event`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EventTypeCode(String);

/// A pattern over codes: as a code, with `*` for any part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodePattern(Vec<Option<String>>);

/// A text that is no code or pattern; the message says what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} must be application:subdomain:aggregate:event: four parts of letters, digits, '.', '_' and '-'{or}, {MAX_CODE} bytes at most"
)]
pub struct InvalidCode {
    what: &'static str,
    or: &'static str,
}

fn is_part(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

impl EventTypeCode {
    /// The code as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EventTypeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<EventTypeCode> for String {
    fn from(code: EventTypeCode) -> Self {
        code.0
    }
}

impl TryFrom<String> for EventTypeCode {
    type Error = InvalidCode;

    fn try_from(text: String) -> Result<Self, InvalidCode> {
        let parts = text.split(':');
        if text.len() <= MAX_CODE && parts.clone().count() == PARTS && parts.clone().all(is_part) {
            return Ok(Self(text));
        }
        Err(InvalidCode { what: "code", or: "" })
    }
}

impl FromStr for EventTypeCode {
    type Err = InvalidCode;

    fn from_str(text: &str) -> Result<Self, InvalidCode> {
        text.to_owned().try_into()
    }
}

impl CodePattern {
    /// Whether a code matches.
    #[must_use]
    pub fn matches(&self, code: &str) -> bool {
        let mut parts = code.split(':');
        let fit = |wanted: &Option<String>| {
            parts.next().is_some_and(|part| wanted.as_ref().is_none_or(|wanted| wanted == part))
        };
        self.0.iter().all(fit) && parts.next().is_none()
    }

    /// What every code that matches begins with: the parts before the first `*`.
    #[must_use]
    pub fn prefix(&self) -> String {
        let mut prefix = String::new();
        for (at, part) in self.0.iter().enumerate() {
            let Some(part) = part else { break };
            prefix.push_str(part);
            if at + 1 < self.0.len() {
                prefix.push(':');
            }
        }
        prefix
    }
}

impl FromStr for CodePattern {
    type Err = InvalidCode;

    fn from_str(text: &str) -> Result<Self, InvalidCode> {
        let invalid = InvalidCode { what: "a pattern", or: ", or * for any part" };
        if text.len() > MAX_CODE {
            return Err(invalid);
        }
        let parts = text.split(':').map(|part| match part {
            "*" => Ok(None),
            part if is_part(part) => Ok(Some(part.to_owned())),
            _ => Err(invalid.clone()),
        });
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        if parts.len() == PARTS { Ok(Self(parts)) } else { Err(invalid) }
    }
}

/// The number of a version: `MAJOR.MINOR`. Within a major, a higher minor accepts what a lower one accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VersionNumber {
    /// Rises with changes that break.
    pub major: u32,
    /// Rises with changes that break nothing.
    pub minor: u32,
}

/// A text that is no version number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("version must be MAJOR.MINOR, such as 1.0: two numbers up to 999999 without leading zeros")]
pub struct InvalidVersionNumber;

impl FromStr for VersionNumber {
    type Err = InvalidVersionNumber;

    fn from_str(text: &str) -> Result<Self, InvalidVersionNumber> {
        let number = |text: &str| {
            let plain = (1..=6).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_digit())
                && (text == "0" || !text.starts_with('0'));
            if plain { text.parse().map_err(|_| InvalidVersionNumber) } else { Err(InvalidVersionNumber) }
        };
        let (major, minor) = text.split_once('.').ok_or(InvalidVersionNumber)?;
        Ok(Self { major: number(major)?, minor: number(minor)? })
    }
}

impl TryFrom<String> for VersionNumber {
    type Error = InvalidVersionNumber;

    fn try_from(text: String) -> Result<Self, InvalidVersionNumber> {
        text.parse()
    }
}

impl From<VersionNumber> for String {
    fn from(number: VersionNumber) -> Self {
        number.to_string()
    }
}

impl fmt::Display for VersionNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Whether events of a type are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum TypeStatus {
    /// In use.
    Current,
    /// Its events are refused; nothing of it changes any more.
    Archive,
}

/// Where a version is in its life: FINALISING, then CURRENT, then DEPRECATED.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum VersionStatus {
    /// Being written: its schema may change, and no event may name it yet.
    Finalising,
    /// In use; its schema does not change any more. At most one per major.
    Current,
    /// Still accepted, with a warning.
    Deprecated,
}

impl VersionStatus {
    /// The word in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Finalising => "FINALISING",
            Self::Current => "CURRENT",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// A version and where it is in its life.
pub type Stage = (VersionNumber, VersionStatus);

/// A move that the life cycle does not allow; the message says why and what to do instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefusedMove {
    /// There is no such version.
    #[error("there is no version {0}")]
    NoSuchVersion(VersionNumber),
    /// The version exists.
    #[error("there is a version {0} already: change it while it is FINALISING, or add a higher one")]
    Exists(VersionNumber),
    /// A higher version of the same major exists.
    #[error("there is a version {1} already: a new version of its major must be higher than it, which {0} is not")]
    NotHigher(VersionNumber, VersionNumber),
    /// Only a FINALISING version may change or be deleted.
    #[error("version {0} is {status}: only a FINALISING version can be changed or deleted; add a new one", status = .1.as_str())]
    Fixed(VersionNumber, VersionStatus),
    /// A FINALISING version is not deprecated.
    #[error("version {0} is FINALISING: finalise it before it is deprecated, or delete it")]
    NotFinalised(VersionNumber),
    /// A DEPRECATED version stays so.
    #[error("version {0} is DEPRECATED and cannot become CURRENT again: add a new version")]
    Deprecated(VersionNumber),
    /// A higher version of the same major is in use.
    #[error("version {1} is in use already: {0} is lower and cannot become CURRENT")]
    Overtaken(VersionNumber, VersionNumber),
}

fn status_of(stages: &[Stage], number: VersionNumber) -> Result<VersionStatus, RefusedMove> {
    let found = stages.iter().find(|stage| stage.0 == number);
    found.map(|stage| stage.1).ok_or(RefusedMove::NoSuchVersion(number))
}

/// Whether a new version may be added.
///
/// # Errors
/// `Exists`, or `NotHigher` when its major has a higher minor.
pub fn add(stages: &[Stage], number: VersionNumber) -> Result<(), RefusedMove> {
    let highest = stages.iter().map(|stage| stage.0).filter(|other| other.major == number.major).max();
    match highest {
        _ if stages.iter().any(|stage| stage.0 == number) => Err(RefusedMove::Exists(number)),
        Some(highest) if highest > number => Err(RefusedMove::NotHigher(number, highest)),
        _ => Ok(()),
    }
}

/// Whether a version may change or be deleted.
///
/// # Errors
/// `NoSuchVersion`, or `Fixed` unless it is FINALISING.
pub fn change(stages: &[Stage], number: VersionNumber) -> Result<(), RefusedMove> {
    match status_of(stages, number)? {
        VersionStatus::Finalising => Ok(()),
        status => Err(RefusedMove::Fixed(number, status)),
    }
}

/// The versions' stages once one was finalised; the CURRENT one of its major becomes DEPRECATED. `None` if it is CURRENT
/// already.
///
/// # Errors
/// `NoSuchVersion`, `Deprecated`, or `Overtaken` when a higher one of its major is or was in use.
pub fn finalise(stages: &[Stage], number: VersionNumber) -> Result<Option<Vec<Stage>>, RefusedMove> {
    match status_of(stages, number)? {
        VersionStatus::Current => return Ok(None),
        VersionStatus::Deprecated => return Err(RefusedMove::Deprecated(number)),
        VersionStatus::Finalising => {}
    }
    let in_use = |stage: &&Stage| stage.0.major == number.major && stage.1 != VersionStatus::Finalising;
    if let Some(higher) = stages.iter().filter(in_use).map(|stage| stage.0).find(|other| *other > number) {
        return Err(RefusedMove::Overtaken(number, higher));
    }
    let moved = |(other, status): &Stage| match status {
        _ if *other == number => (*other, VersionStatus::Current),
        VersionStatus::Current if other.major == number.major => (*other, VersionStatus::Deprecated),
        _ => (*other, *status),
    };
    Ok(Some(stages.iter().map(moved).collect()))
}

/// Whether a version has to be marked as DEPRECATED; false if it is already.
///
/// # Errors
/// `NoSuchVersion`, or `NotFinalised`.
pub fn deprecate(stages: &[Stage], number: VersionNumber) -> Result<bool, RefusedMove> {
    match status_of(stages, number)? {
        VersionStatus::Current => Ok(true),
        VersionStatus::Deprecated => Ok(false),
        VersionStatus::Finalising => Err(RefusedMove::NotFinalised(number)),
    }
}

/// The version that a new one of the same major must be compatible with: the highest lower one that was finalised.
#[must_use]
pub fn predecessor(stages: &[Stage], number: VersionNumber) -> Option<VersionNumber> {
    let before =
        |stage: &&Stage| stage.0.major == number.major && stage.0 < number && stage.1 != VersionStatus::Finalising;
    stages.iter().filter(before).map(|stage| stage.0).max()
}

/// The version that an event which names none is validated against: the highest CURRENT one. Where none is CURRENT any
/// more, the highest DEPRECATED one: it is still accepted, and deprecating a version does not let everything pass.
#[must_use]
pub fn default_version(stages: &[Stage]) -> Option<VersionNumber> {
    let highest = |status| stages.iter().filter(|stage| stage.1 == status).map(|stage| stage.0).max();
    highest(VersionStatus::Current).or_else(|| highest(VersionStatus::Deprecated))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::VersionStatus::{Current, Deprecated, Finalising};
    use super::*;

    fn number(text: &str) -> VersionNumber {
        text.parse().unwrap()
    }

    fn stages(all: &[(&str, VersionStatus)]) -> Vec<Stage> {
        all.iter().map(|(text, status)| (number(text), *status)).collect()
    }

    #[test]
    fn codes_have_four_parts() {
        for good in ["shop:orders:order:created", "a:b:c:d", "A1:b-2:c_3:d.4"] {
            assert_eq!(good.parse::<EventTypeCode>().unwrap().as_str(), good);
        }
        let long = format!("a:b:c:{}", "d".repeat(MAX_CODE - 5));
        for bad in ["", "a", "a:b:c", "a:b:c:", "a:b:c:d:e", "a:b:c:d ", "a:*:c:d", "ä:b:c:d", "a:b::d", long.as_str()]
        {
            assert!(bad.parse::<EventTypeCode>().is_err(), "{bad}");
        }
        assert!(long[1..].parse::<EventTypeCode>().is_err(), "the first part is empty");
        assert!(format!("a:b:c:{}", "d".repeat(MAX_CODE - 6)).parse::<EventTypeCode>().is_ok());
    }

    #[test]
    fn patterns_match_part_by_part() {
        let cases = [
            ("shop:*:order:*", "shop:orders:order:created", true),
            ("shop:*:order:*", "shop:orders:line:created", false),
            ("*:*:*:*", "a:b:c:d", true),
            ("*:*:*:*", "a:b:c", false),
            ("*:*:*:*", "a:b:c:d:e", false),
            ("a:b:c:d", "a:b:c:d", true),
            ("a:b:c:d", "a:b:c:dd", false),
        ];
        for (pattern, code, matches) in cases {
            assert_eq!(pattern.parse::<CodePattern>().unwrap().matches(code), matches, "{pattern} {code}");
        }
        for bad in ["*", "a:b:c", "a:b*:c:d", "a:b:c:**", ""] {
            assert!(bad.parse::<CodePattern>().is_err(), "{bad}");
        }
        let prefix = |text: &str| text.parse::<CodePattern>().unwrap().prefix();
        assert_eq!(
            (prefix("a:b:*:d"), prefix("*:b:c:d"), prefix("a:b:c:d")),
            ("a:b:".into(), "".into(), "a:b:c:d".into())
        );
    }

    #[test]
    fn version_numbers() {
        assert_eq!(number("1.0"), VersionNumber { major: 1, minor: 0 });
        assert!(number("1.10") > number("1.9") && number("2.0") > number("1.999999"));
        assert_eq!(number("0.12").to_string(), "0.12");
        for bad in ["1", "1.", ".1", "1.0.0", "01.0", "1.00", "+1.0", "1.-1", "1.1000000", " 1.0", "a.b"] {
            assert!(bad.parse::<VersionNumber>().is_err(), "{bad}");
        }
    }

    #[test]
    fn new_versions_are_the_highest_of_their_major() {
        let all = stages(&[("1.0", Current), ("1.2", Finalising), ("3.0", Current)]);
        assert_eq!(add(&all, number("1.3")), Ok(()));
        assert_eq!(add(&all, number("2.0")), Ok(()), "another major is free");
        assert_eq!(add(&all, number("1.2")), Err(RefusedMove::Exists(number("1.2"))));
        assert_eq!(add(&all, number("1.1")), Err(RefusedMove::NotHigher(number("1.1"), number("1.2"))));
    }

    #[test]
    fn finalising_deprecates_the_current_one_of_the_major() {
        let all = stages(&[("1.0", Current), ("1.1", Finalising), ("2.0", Current)]);
        let after = finalise(&all, number("1.1")).unwrap();
        assert_eq!(after, Some(stages(&[("1.0", Deprecated), ("1.1", Current), ("2.0", Current)])));
        assert_eq!(finalise(&all, number("1.0")), Ok(None), "a repeat changes nothing");
        let overtaken = stages(&[("1.0", Finalising), ("1.1", Deprecated)]);
        assert_eq!(finalise(&overtaken, number("1.0")), Err(RefusedMove::Overtaken(number("1.0"), number("1.1"))));
        assert_eq!(finalise(&overtaken, number("1.1")), Err(RefusedMove::Deprecated(number("1.1"))));
        assert_eq!(finalise(&overtaken, number("9.9")), Err(RefusedMove::NoSuchVersion(number("9.9"))));
    }

    #[test]
    fn only_finalising_versions_change_and_only_finalised_ones_are_deprecated() {
        let all = stages(&[("1.0", Deprecated), ("1.1", Current), ("1.2", Finalising)]);
        assert_eq!(change(&all, number("1.2")), Ok(()));
        assert_eq!(change(&all, number("1.1")), Err(RefusedMove::Fixed(number("1.1"), Current)));
        assert_eq!((deprecate(&all, number("1.1")), deprecate(&all, number("1.0"))), (Ok(true), Ok(false)));
        assert_eq!(deprecate(&all, number("1.2")), Err(RefusedMove::NotFinalised(number("1.2"))));
    }

    #[test]
    fn the_predecessor_was_finalised() {
        let all = stages(&[("1.0", Deprecated), ("1.1", Current), ("1.2", Finalising), ("2.0", Finalising)]);
        assert_eq!(predecessor(&all, number("1.3")), Some(number("1.1")));
        assert_eq!(predecessor(&all, number("1.1")), Some(number("1.0")));
        assert_eq!(predecessor(&all, number("1.0")), None);
        assert_eq!(predecessor(&all, number("2.0")), None, "another major need not be compatible");
        assert_eq!(default_version(&all), Some(number("1.1")));
        assert_eq!(default_version(&all[2..]), None);
        let ended = stages(&[("1.0", Deprecated), ("1.1", Deprecated), ("1.2", Finalising)]);
        assert_eq!(default_version(&ended), Some(number("1.1")), "none is CURRENT any more");
    }

    proptest! {
        /// Whatever is tried in whatever order, each major has at most one CURRENT version, and it is the highest that was
        /// ever finalised or lower ones were deprecated before it.
        #[test]
        fn a_major_has_one_current_version(moves in proptest::collection::vec((0..4_u8, 1..3_u32, 0..4_u32), 1..40)) {
            let mut all: Vec<Stage> = Vec::new();
            for (kind, major, minor) in moves {
                let number = VersionNumber { major, minor };
                match kind {
                    0 if add(&all, number).is_ok() => all.push((number, Finalising)),
                    1 => if let Ok(Some(after)) = finalise(&all, number) { all = after },
                    2 if deprecate(&all, number) == Ok(true) => {
                        all.iter_mut().filter(|stage| stage.0 == number).for_each(|stage| stage.1 = Deprecated);
                    }
                    3 if change(&all, number).is_ok() => all.retain(|stage| stage.0 != number),
                    _ => {}
                }
                for major in 1..3 {
                    let current: Vec<_> =
                        all.iter().filter(|stage| stage.0.major == major && stage.1 == Current).collect();
                    prop_assert!(current.len() <= 1, "{all:?}");
                    let in_use = all.iter().filter(|stage| stage.0.major == major && stage.1 != Finalising);
                    if let (Some(current), Some(highest)) = (current.first(), in_use.map(|stage| stage.0).max()) {
                        prop_assert!(current.0 == highest, "{all:?}");
                    }
                }
            }
        }
    }
}
