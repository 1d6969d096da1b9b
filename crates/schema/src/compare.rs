//! What a new version of a schema does to documents that the last one accepted.

/// How bad a change is, in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Everything that was accepted still is.
    Compatible,
    /// The list of known changes does not cover it.
    CannotTell,
    /// Something that was accepted no longer is, or is read differently.
    Breaking,
}

impl Verdict {
    /// The word that people see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compatible => "compatible",
            Self::CannotTell => "cannot tell",
            Self::Breaking => "breaking",
        }
    }
}

/// One difference between two versions of a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What it does to existing documents.
    pub verdict: Verdict,
    /// Where in the schema: a JSON pointer, the name of a message and field, or the name of an element or type.
    pub path: String,
    /// What changed, and why that breaks something if it does.
    pub message: String,
}

/// All differences between two versions of a schema.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    changes: Vec<Change>,
}

impl Comparison {
    /// The worst of all changes; compatible if there is none.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.changes.iter().map(|change| change.verdict).max().unwrap_or(Verdict::Compatible)
    }

    /// The changes, in the order of the schema.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The changes that are at least this bad.
    pub fn at_least(&self, verdict: Verdict) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(move |change| change.verdict >= verdict)
    }

    pub(crate) fn add(&mut self, verdict: Verdict, path: impl Into<String>, message: impl Into<String>) {
        self.changes.push(Change { verdict, path: path.into(), message: message.into() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_change_decides() {
        let mut comparison = Comparison::default();
        assert_eq!(comparison.verdict(), Verdict::Compatible);
        comparison.add(Verdict::Compatible, "/a", "added");
        comparison.add(Verdict::Breaking, "/b", "removed");
        comparison.add(Verdict::CannotTell, "/c", "changed");
        assert_eq!(comparison.verdict(), Verdict::Breaking);
        assert_eq!(comparison.at_least(Verdict::CannotTell).count(), 2);
    }
}
