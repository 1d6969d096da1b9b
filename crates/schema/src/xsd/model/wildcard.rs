//! Wildcards: which namespaces they let in, and what they check.

use crate::xsd::xml::{ABSENT, Ns};

/// A wildcard for elements or attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::xsd) struct Wildcard {
    pub(in crate::xsd) allowed: Allowed,
    pub(in crate::xsd) process: Process,
}

/// The namespaces that a wildcard lets in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::xsd) enum Allowed {
    Any,
    /// All but this one, and names without a namespace.
    Not(Ns),
    /// These, sorted.
    Only(Vec<Ns>),
}

/// How much is checked of what a wildcard lets in, in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::xsd) enum Process {
    Skip,
    Lax,
    Strict,
}

impl Allowed {
    /// Whether a namespace is let in.
    pub(in crate::xsd) fn lets_in(&self, ns: Ns) -> bool {
        match self {
            Self::Any => true,
            Self::Not(but) => ns != *but && ns != ABSENT,
            Self::Only(list) => list.binary_search(&ns).is_ok(),
        }
    }

    /// How many namespaces it lists.
    pub(in crate::xsd) fn names(&self) -> usize {
        match self {
            Self::Any | Self::Not(_) => 0,
            Self::Only(list) => list.len(),
        }
    }

    /// Whether everything that is let in is also let in by another one.
    pub(in crate::xsd) fn is_subset_of(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Any) => true,
            (Self::Only(list), other) => list.iter().all(|ns| other.lets_in(*ns)),
            (Self::Not(one), Self::Not(other)) => one == other,
            _ => false,
        }
    }

    /// What both let in.
    pub(in crate::xsd) fn intersect(&self, other: &Self) -> Option<Self> {
        Some(match (self, other) {
            (Self::Any, one) | (one, Self::Any) => one.clone(),
            (Self::Only(list), one) | (one, Self::Only(list)) => {
                Self::Only(list.iter().copied().filter(|ns| one.lets_in(*ns)).collect())
            }
            (Self::Not(one), Self::Not(other)) if one == other || *other == ABSENT => Self::Not(*one),
            (Self::Not(ABSENT), Self::Not(other)) => Self::Not(*other),
            _ => return None,
        })
    }

    /// What either lets in; `None` where no wildcard can say it.
    pub(in crate::xsd) fn union(&self, other: &Self) -> Option<Self> {
        Some(match (self, other) {
            (Self::Any, _) | (_, Self::Any) => Self::Any,
            (Self::Only(one), Self::Only(other)) => {
                let mut all = [one.as_slice(), other].concat();
                all.sort_unstable();
                all.dedup();
                Self::Only(all)
            }
            (Self::Not(one), Self::Not(other)) => Self::Not(if one == other { *one } else { ABSENT }),
            (Self::Not(but), Self::Only(list)) | (Self::Only(list), Self::Not(but)) => {
                match (list.contains(but), list.contains(&ABSENT)) {
                    (true, true) => Self::Any,
                    (true, false) if *but == ABSENT => Self::Any,
                    (true, false) => Self::Not(ABSENT),
                    (false, true) => return None,
                    (false, false) => Self::Not(*but),
                }
            }
        })
    }
}
