//! What identifies a fact beside its id: keys, under which it is stored once, and terms, by which it is found.

use std::time::Duration;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use sha2::{Digest as _, Sha256};

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::error::ErrorKind;
use crate::error::{Error, Result};

/// What a key of a fact is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FactKeyKind {
    /// The publisher's deduplication id.
    Deduplication,
    /// The fact's source together with the id that it has there.
    Identity,
    /// What a caller who creates a task has it created once by.
    Task,
}

/// A key under which a client's fact is stored once, for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactKey {
    /// What it is made of; keys of different kinds are apart.
    pub kind: FactKeyKind,
    /// The key itself, as errors show it.
    pub text: String,
    /// Of what is stored under it. The same key with another fingerprint is a `Conflict`.
    pub fingerprint: i64,
    /// How long it is known.
    pub window: Duration,
}

/// A name and a value by which a fact is found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FactTerm {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

impl FactKey {
    /// A deduplication id.
    #[must_use]
    pub fn deduplication(id: impl Into<String>, fingerprint: i64, window: Duration) -> Self {
        Self { kind: FactKeyKind::Deduplication, text: id.into(), fingerprint, window }
    }

    /// A source, and the id that the fact has there.
    #[must_use]
    pub fn identity(source: &str, id: &str, fingerprint: i64, window: Duration) -> Self {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        // Quoted, so that no two pairs make the same text.
        let text = format!("{} of source {}", quoted(id), quoted(source));
        Self { kind: FactKeyKind::Identity, text, fingerprint, window }
    }

    /// What a caller has a task created once by.
    #[must_use]
    pub fn task(key: impl Into<String>, fingerprint: i64, window: Duration) -> Self {
        Self { kind: FactKeyKind::Task, text: key.into(), fingerprint, window }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.text.is_empty() || self.text.len() > MAX_KEY {
            let length = self.text.len();
            return Err(Error::invalid(format!("a key of a fact has {length} bytes: 1 to {MAX_KEY} are allowed")));
        }
        Ok(())
    }

    /// The key as it is stored: half of a hash, in hexadecimal digits.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn hash(&self) -> String {
        let mut half = [0; KEY];
        half.copy_from_slice(&hash_of(&[&self.text])[..KEY]);
        hex(&half)
    }

    /// What an error calls it.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    fn shown(&self) -> String {
        match self.kind {
            FactKeyKind::Deduplication => format!("deduplicationId {:?}", self.text),
            FactKeyKind::Identity => format!("id {}", self.text),
            FactKeyKind::Task => format!("idempotencyKey {:?}", self.text),
        }
    }

    /// The error for a key that was used for something else.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    fn other_fact(&self) -> Error {
        let (shown, what) = (self.shown(), if self.kind == FactKeyKind::Task { "job" } else { "event" });
        Error::new(
            ErrorKind::Conflict,
            format!("{shown} was used for another {what}: use another one, or send the same {what}"),
        )
    }
}

/// What is stored under a key that is known.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownKey {
    /// The first fact.
    pub(crate) event_id: i64,
    pub(crate) fingerprint: Option<i64>,
}

/// The fact that an item repeats, given what is known of its keys; `None` for a new one.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn repeated(keys: &[FactKey], known: impl Fn(&FactKey) -> Option<KnownKey>) -> Result<Option<i64>> {
    let mut first = None;
    for key in keys {
        let Some(known) = known(key) else { continue };
        if known.fingerprint != Some(key.fingerprint) {
            return Err(key.other_fact());
        }
        if first.is_some_and(|first| first != known.event_id) {
            return Err(different_facts(keys));
        }
        first = Some(known.event_id);
    }
    Ok(first)
}

/// The error for keys of one item that were used for different facts.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn different_facts(keys: &[FactKey]) -> Error {
    let shown: Vec<String> = keys.iter().map(FactKey::shown).collect();
    Error::new(
        ErrorKind::Conflict,
        format!("{} were used for two different events: use the ones of the same event", shown.join(" and ")),
    )
}

/// The length of a stored term, in bytes.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) const TERM: usize = 24;
/// How many of them are of the name, and of the beginning of the value. The others are a hash of both.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const TERM_PARTS: (usize, usize) = (4, 12);
/// The length of a stored key, in bytes.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const KEY: usize = 16;
/// The longest text of a key, in bytes.
const MAX_KEY: usize = 4 << 10;

impl FactKeyKind {
    /// The kind as it is stored beside those of other keys.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) const fn code(self) -> i16 {
        match self {
            Self::Deduplication => 4,
            Self::Identity => 5,
            Self::Task => 6,
        }
    }
}

impl FactTerm {
    /// A name and a value.
    #[must_use]
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }

    /// The term as it is stored: a hash of its name, the beginning of its value, and a hash of both. Values that follow each
    /// other, as ids and times mostly do, are next to each other in the index, whose pages are then written for many of them
    /// at once; hashes alone would write a page for each.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn hash(&self) -> [u8; TERM] {
        let (name, value) = TERM_PARTS;
        let mut term = [0; TERM];
        term[..name].copy_from_slice(&short_hash(&self.name));
        let beginning = &self.value.as_bytes()[..self.value.len().min(value)];
        term[name..name + beginning.len()].copy_from_slice(beginning);
        term[name + value..].copy_from_slice(&hash_of(&[&self.name, &self.value])[..TERM - name - value]);
        term
    }
}

/// A short hash (FNV-1a) that only keeps names apart in an index; what is found is told apart by the other parts.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn short_hash(text: &str) -> [u8; 4] {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, step).to_be_bytes()
}

/// The SHA-256 of texts with NUL between them: what does not fit an index otherwise.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn hash_of(texts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for (at, text) in texts.iter().enumerate() {
        if at > 0 {
            hash.update([0]);
        }
        hash.update(text.as_bytes());
    }
    hash.finalize().into()
}

/// A hash as text.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn hex(hash: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or_default();
    hash.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_identities_make_the_same_key() {
        let key = |source: &str, id: &str| FactKey::identity(source, id, 0, Duration::ZERO);
        assert_eq!(key("/orders", "7").text, "\"7\" of source \"/orders\"");
        let crafted = key("x", "7\" of source \"/orders");
        assert_ne!(crafted.hash(), key("x\" of source \"7", "/orders").hash());
        assert_ne!(key("a", "b").hash(), key("b", "a").hash());
        assert_eq!(key("a", "b").hash().len(), 32);
        assert_eq!(
            hex(&[0x0f, 0xa0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 255]),
            "0fa00102030405060708090a0b0c0dff"
        );
        let plain = FactKey::deduplication("k", 0, Duration::ZERO);
        assert!(plain.other_fact().to_string().starts_with("deduplicationId \"k\" was used"), "{}", plain.other_fact());
        assert!(key("s", "i").other_fact().to_string().starts_with("id \"i\" of source \"s\" was used"));
        assert!(plain.check().is_ok());
        assert_eq!(FactKey::deduplication("", 0, Duration::ZERO).check().unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn an_item_repeats_the_fact_of_its_keys() {
        let keys = [FactKey::deduplication("k", 7, Duration::ZERO), FactKey::identity("s", "i", 8, Duration::ZERO)];
        let repeats = |of_first: Option<(i64, i64)>, of_second: Option<(i64, i64)>| {
            let known = |key: &FactKey| {
                let known = if key.kind == FactKeyKind::Identity { of_second } else { of_first };
                known.map(|(event_id, fingerprint)| KnownKey { event_id, fingerprint: Some(fingerprint) })
            };
            repeated(&keys, known).map_err(|error| (error.kind(), error.to_string()))
        };
        assert_eq!(repeats(None, None), Ok(None));
        assert_eq!(repeats(Some((1, 7)), None), Ok(Some(1)));
        assert_eq!(repeats(None, Some((2, 8))), Ok(Some(2)));
        assert_eq!(repeats(Some((1, 7)), Some((1, 8))), Ok(Some(1)));
        let (kind, text) = repeats(Some((1, 7)), Some((2, 8))).unwrap_err();
        assert!(kind == ErrorKind::Conflict && text.contains("two different events"), "{text}");
        let (kind, text) = repeats(Some((1, 7)), Some((1, 7))).unwrap_err();
        assert!(kind == ErrorKind::Conflict && text.starts_with("id \"i\" of source"), "{text}");
    }

    #[test]
    fn a_term_is_a_name_with_a_value() {
        let hash = |name: &str, value: &str| FactTerm::new(name, value).hash();
        assert_ne!(hash("ab", "c"), hash("a", "bc"));
        assert_eq!(hash("a", "b"), hash("a", "b"));
        // What is stored must be found by later programs.
        let stored = hash("tenant", "x");
        assert_eq!(stored[4..16], *b"x\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(stored[16..20], [0xf4, 0x9e, 0x1d, 0x1e]);
        let long = |last: &str| hash("tenant", &format!("customer:0123456789{last}"));
        assert_eq!(long("a")[..16], long("b")[..16]);
        assert_ne!(long("a"), long("b"));
        assert!(hash("order", "order:1002") > hash("order", "order:1001"), "they are in the order of their values");
        assert_ne!(hash("a", "x")[..4], hash("b", "x")[..4]);
        assert_eq!(hash("a", "é".repeat(9).as_str()).len(), TERM, "a character may be cut");
    }
}
