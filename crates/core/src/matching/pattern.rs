//! Patterns over the types of events, and a type as a look-up sees it: split into parts and hashed once.

use std::fmt;
use std::hash::BuildHasher;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::name::MAX_NAME;

/// The most parts of a pattern with wildcards: those of a code (`application:subdomain:aggregate:event`).
pub(super) const MAX_WILD_PARTS: usize = 4;
/// How many sets of wildcards that many parts allow, the empty one included.
pub(super) const SETS: usize = 1 << MAX_WILD_PARTS;

/// An odd number with no regularity, by which hashes are multiplied.
pub(super) const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Which parts of a pattern are `*`: bit 0 is the first part.
pub(super) type Wild = u8;

/// Types of events that a subscription asks for: a type, or one to four parts between colons of which any may be `*`.
///
/// A `*` stands for exactly one part, whatever is in it. Without `*` any type can be named, also one that is not
/// registered and is no code of four parts.
///
/// ```
/// use tidegate_core::matching::TypePattern;
/// let pattern: TypePattern = "shop:*:order:*".parse().unwrap();
/// assert!(pattern.matches("shop:orders:order:created"));
/// assert!(!pattern.matches("shop:orders:line:created"));
/// assert!(!pattern.matches("shop:orders:order:created:twice"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TypePattern {
    text: Arc<str>,
    wild: Wild,
}

/// A text that is no pattern; the message says what to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// Empty, too long, or with control characters.
    #[error("a type or a pattern must have 1 to {MAX_NAME} bytes and no control characters")]
    NotAType,
    /// Nothing before, between or after colons.
    #[error("a type or a pattern must have something on both sides of each ':', such as shop:orders:order:created")]
    EmptyPart,
    /// A `*` beside other characters.
    #[error("a * must be a whole part, as in shop:*:order:*: it cannot stand for a piece of one")]
    PartialWildcard,
    /// A `*` among more than four parts.
    #[error("a pattern with * must have at most {MAX_WILD_PARTS} parts")]
    TooManyParts,
}

impl TypePattern {
    /// The pattern as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether an event of this type is asked for.
    #[must_use]
    pub fn matches(&self, event_type: &str) -> bool {
        if self.wild == 0 {
            return *self.text == *event_type;
        }
        let mut parts = event_type.split(':');
        let fits = |wanted: &str| parts.next().is_some_and(|part| wanted == "*" || wanted == part);
        self.text.split(':').all(fits) && parts.next().is_none()
    }

    pub(super) fn wild(&self) -> Wild {
        self.wild
    }
}

impl fmt::Display for TypePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for TypePattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        if text.is_empty() || text.len() > MAX_NAME || text.chars().any(char::is_control) {
            return Err(InvalidPattern::NotAType);
        }
        let mut wild = 0;
        for (at, part) in text.split(':').enumerate() {
            match part {
                "" => return Err(InvalidPattern::EmptyPart),
                "*" if at < MAX_WILD_PARTS => wild |= 1 << at,
                "*" => return Err(InvalidPattern::TooManyParts),
                part if part.contains('*') => return Err(InvalidPattern::PartialWildcard),
                _ => {}
            }
        }
        if wild != 0 && text.split(':').count() > MAX_WILD_PARTS {
            return Err(InvalidPattern::TooManyParts);
        }
        Ok(Self { text: text.into(), wild })
    }
}

impl TryFrom<String> for TypePattern {
    type Error = InvalidPattern;

    fn try_from(text: String) -> Result<Self, InvalidPattern> {
        text.parse()
    }
}

impl From<TypePattern> for String {
    fn from(pattern: TypePattern) -> Self {
        pattern.text.as_ref().into()
    }
}

/// A type split into its parts, each hashed once. The patterns that match it have one of its [`Parts::hash`]es, each for
/// one set of wildcards, so that a look-up knows where every such pattern must be and asks for nothing else.
pub(super) struct Parts<'e> {
    parts: [&'e str; MAX_WILD_PARTS],
    hashes: [u64; MAX_WILD_PARTS],
    /// How many there are; 0 when there are too many for wildcards, and the first one is the whole type.
    count: usize,
}

impl<'e> Parts<'e> {
    /// Splits a type or a pattern.
    pub(super) fn of(text: &'e str, hasher: &impl BuildHasher) -> Self {
        let mut parts = [""; MAX_WILD_PARTS];
        let mut rest = Some(text);
        let mut count = 0;
        for part in &mut parts {
            let Some(left) = rest else { break };
            let end = left.bytes().position(|byte| byte == b':').and_then(|colon| left.split_at_checked(colon));
            (*part, rest) = end.map_or((left, None), |(part, after)| (part, after.strip_prefix(':')));
            count += 1;
        }
        if rest.is_some() {
            (parts, count) = ([text, "", "", ""], 0);
        }
        let mut hashes = [0; MAX_WILD_PARTS];
        for (hash, part) in hashes.iter_mut().zip(parts).take(count.max(1)) {
            *hash = hasher.hash_one(part);
        }
        Self { parts, hashes, count }
    }

    /// The sets of wildcards that patterns with so many parts can have, as bits.
    #[inline]
    pub(super) fn sets(&self) -> u32 {
        (1 << (1 << self.count)) - 1
    }

    /// The hash of the pattern that has `*` for the parts in `wild` and is equal to this text otherwise: a sum, since it
    /// is asked for up to 16 times.
    #[inline]
    pub(super) fn hash(&self, wild: Wild) -> u64 {
        let parts = self.hashes.iter().take(self.count.max(1)).enumerate();
        parts.fold(self.count as u64, |sum, (at, hash)| {
            let part = if wild >> at & 1 == 1 { SPREAD } else { *hash };
            sum.wrapping_add(part.rotate_left(11 * at as u32))
        })
    }

    /// Whether a pattern is the one that [`Parts::hash`] is the hash of.
    #[inline]
    pub(super) fn make(&self, wild: Wild, pattern: &TypePattern) -> bool {
        let mut rest = Some(&*pattern.text);
        for (at, part) in self.parts.iter().take(self.count.max(1)).enumerate() {
            let wanted = if wild >> at & 1 == 1 { "*" } else { part };
            let after = if at == 0 { rest } else { rest.and_then(|rest| rest.strip_prefix(':')) };
            rest = after.and_then(|rest| rest.strip_prefix(wanted));
        }
        pattern.wild == wild && rest == Some("")
    }
}
