//! Facts as they are read: by id, and by what they are found by.

use tidegate_core::event_type::CodePattern;
use tidegate_core::{EntryId, QueueName, Timestamp, Tsid};

use crate::error::{Error, Result};
use crate::values::{EntryPhase, Fact, FactTerm, Family, MAX_TARGETS, MAX_TERMS};

/// The most facts that are read at once.
pub const MAX_FACTS: usize = 1_000;
/// The most targets that a search shows of each fact.
pub const MAX_TARGETS_FOUND: usize = 100;
/// The most payload bytes on one page of a search; a larger fact is alone on its page.
pub const MAX_FACTS_BYTES: usize = 8 << 20;

/// A fact with what was made for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFact {
    /// Its id.
    pub id: Tsid,
    /// The fact itself.
    pub fact: Fact,
    /// Its entries and jobs, live and ended, by their numbers, as many as were asked for. Those that retention has
    /// removed are missing.
    pub targets: Vec<FactTarget>,
    /// How many were made for it.
    pub made: usize,
}

/// An entry or a job of a fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactTarget {
    /// Whether it is an entry or a job.
    pub family: Family,
    /// Its number.
    pub id: EntryId,
    /// Its queue.
    pub queue: QueueName,
    /// Where it is in its life.
    pub phase: EntryPhase,
    /// When it was made, if that was after its fact was stored.
    pub made_at: Option<Timestamp>,
    /// The type by which it was sorted into a lane; `None` where many types share the lane, or while it has none yet.
    pub lane_type: Option<String>,
}

/// Which types of facts to find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypeFilter {
    /// This one.
    Exact(String),
    /// Those whose codes match.
    Pattern(CodePattern),
}

/// Which facts to find: those that were ingested for no, several or jobs' targets, or to stand alone. A fact must match
/// every field that is set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FactsQuery {
    /// Of this client (`Some(None)`: of no client); `None` for those of all clients.
    pub client: Option<Option<Tsid>>,
    /// Of these types.
    pub event_type: Option<TypeFilter>,
    /// From this system.
    pub source: Option<String>,
    /// About this.
    pub subject: Option<String>,
    /// With this id of the publisher's.
    pub external_id: Option<String>,
    /// With this correlation id.
    pub correlation_id: Option<String>,
    /// With all of these terms.
    pub terms: Vec<FactTerm>,
    /// Stored at this moment or later.
    pub from: Option<Timestamp>,
    /// Stored before this moment.
    pub to: Option<Timestamp>,
    /// Only facts with a smaller id (a cursor).
    pub before: Option<Tsid>,
    /// The most facts to return, at most [`MAX_FACTS`].
    pub limit: usize,
    /// The most targets to show of each, at most [`MAX_TARGETS_FOUND`].
    pub targets: usize,
}

/// Which facts to read in the order in which they were stored: of those that a search finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FactsWalk {
    /// Of this client (`Some(None)`: of no client); `None` for those of all clients.
    pub client: Option<Option<Tsid>>,
    /// Only facts with a greater id (a cursor).
    pub after: Tsid,
    /// Only facts with a smaller id.
    pub before: Tsid,
    /// The most facts to look at, at most [`MAX_FACTS`].
    pub limit: usize,
}

/// A stretch of a walk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WalkedFacts {
    /// The facts, oldest first, without their targets; not more bytes of payload than on a page of a search.
    pub facts: Vec<StoredFact>,
    /// Where the walk goes on; `None` at its end.
    pub next: Option<Tsid>,
}

/// One page of a search.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FactsPage {
    /// The facts, youngest first.
    pub facts: Vec<StoredFact>,
    /// The cursor of the next page; `None` on the last page. A page may be short, even empty, although there is a next
    /// one: no more than 10,000 facts are examined for one.
    pub next: Option<Tsid>,
}

impl FactsQuery {
    /// Checks what can be checked without a database.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn check(&self) -> Result<()> {
        if self.limit > MAX_FACTS {
            return Err(Error::invalid(format!("a page has at most {MAX_FACTS} facts, not {}", self.limit)));
        }
        if self.targets > MAX_TARGETS_FOUND {
            let targets = self.targets;
            return Err(Error::invalid(format!(
                "a search shows at most {MAX_TARGETS_FOUND} targets of a fact, not {targets}"
            )));
        }
        if self.terms.len() > MAX_TERMS {
            return Err(Error::invalid(format!("a search takes at most {MAX_TERMS} terms, not {}", self.terms.len())));
        }
        Ok(())
    }
}

impl FactsWalk {
    /// Checks what can be checked without a database.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn check(&self) -> Result<()> {
        match self.limit {
            1..=MAX_FACTS => Ok(()),
            limit => Err(Error::invalid(format!("a walk looks at 1 to {MAX_FACTS} facts at once, not {limit}"))),
        }
    }

    /// Of the facts that were looked at (each with its size, and whether a search finds it), those to read, and where the
    /// walk goes on.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn cut(&self, looked_at: &[(i64, usize, bool)]) -> (Vec<Tsid>, Option<Tsid>) {
        let (mut ids, mut bytes, mut last) = (Vec::new(), 0, None);
        for (id, size, is_found) in looked_at {
            if *is_found {
                bytes += size;
                if bytes > MAX_FACTS_BYTES && !ids.is_empty() {
                    return (ids, last);
                }
                ids.push(Tsid::from_i64(*id));
            }
            last = Some(Tsid::from_i64(*id));
        }
        (ids, last.filter(|_| looked_at.len() == self.limit))
    }
}

/// The numbers, up to the last one, that the entry of a published fact can have: the fact's id ends with the low bits of it.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn numbers_of(id: Tsid, last: i64) -> impl Iterator<Item = i64> {
    const LOW_BITS: i64 = (1 << 22) - 1;
    let first = id.to_i64() & LOW_BITS;
    (first..=last).step_by(LOW_BITS as usize + 1).take(MAX_NUMBERS).filter(|number| *number > 0)
}

/// The most numbers among which the entry of a published fact is looked for: enough for 17 billion entries.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const MAX_NUMBERS: usize = 4_096;

/// Checks how many facts are asked for, and how many targets of each.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn check_facts(ids: &[Tsid], targets: usize) -> Result<()> {
    if ids.len() > MAX_FACTS {
        return Err(Error::invalid(format!("at most {MAX_FACTS} facts are read at once, not {}", ids.len())));
    }
    if targets > MAX_TARGETS {
        return Err(Error::invalid(format!("a fact has at most {MAX_TARGETS} targets, not {targets}")));
    }
    Ok(())
}
