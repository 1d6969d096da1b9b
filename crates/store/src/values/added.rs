//! Targets that are added to a fact which is stored: a replay makes an entry or a job of it once more.

use tidegate_core::{EntryId, NewEvent, Timestamp, Tsid};

use crate::error::{Error, Result};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::values::fact_keys::{hash_of, hex};
use crate::values::{Fact, Ingest, StoredFact, Target};

/// The most targets that are added at once, in one transaction.
pub const MAX_ADDED: usize = 1_000;
/// The longest key of a target that is added, in bytes.
const MAX_KEY: usize = 1 << 10;

/// A target to be added to a fact that stands alone, unless that was done under the same key before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddTarget {
    /// The fact's id.
    pub fact: Tsid,
    /// The fact's client.
    pub client: Option<Tsid>,
    /// The fact's type.
    pub event_type: String,
    /// The tags of the fact, which an entry gets.
    pub tags: Vec<String>,
    /// The key: of each fact, one target is added under it. It is known as long as the fact is stored.
    pub key: String,
    /// What is to be made.
    pub target: Target,
}

/// A target that was added, now or under the same key before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddedTarget {
    /// Its number.
    pub id: EntryId,
    /// When it was made, in database time.
    pub made_at: Timestamp,
    /// Whether it was made now.
    pub is_new: bool,
}

impl AddTarget {
    /// A target for a fact as it was read: facts never change.
    #[must_use]
    pub fn new(fact: &StoredFact, key: impl Into<String>, target: Target) -> Self {
        let Fact { client, event_type, tags, .. } = &fact.fact;
        let (event_type, tags) = (event_type.clone(), tags.clone());
        Self { fact: fact.id, client: *client, event_type, tags, key: key.into(), target }
    }

    /// Checks what can be checked without a database.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn check_all(items: &[Self]) -> Result<()> {
        if items.len() > MAX_ADDED {
            let count = items.len();
            return Err(Error::invalid(format!("at most {MAX_ADDED} targets are added at once, not {count}")));
        }
        for item in items {
            if item.key.is_empty() || item.key.len() > MAX_KEY {
                let length = item.key.len();
                return Err(Error::invalid(format!(
                    "a key of a target has {length} bytes: 1 to {MAX_KEY} are allowed"
                )));
            }
        }
        Ok(())
    }

    /// The item as an ingest would plan it: where the target goes depends on the fact's type, client and tags alone.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn as_ingest(&self) -> Ingest {
        let mut fact = NewEvent::new(self.event_type.clone(), "");
        (fact.client, fact.tags) = (self.client, self.tags.clone());
        Ingest { stands_alone: true, ..Ingest::new(fact, vec![self.target.clone()]) }
    }

    /// The key as it is stored: half of a hash, in hexadecimal digits.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn hash(&self) -> String {
        hex(&hash_of(&[&self.key])[..16])
    }

    /// The error for a fact that is gone, or that goes with its only entry.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn no_fact(&self) -> Error {
        let text = format!("there is no event {} that is kept apart from its entries", self.fact);
        Error::new(crate::error::ErrorKind::NotFound, text)
    }
}
