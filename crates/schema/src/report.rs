//! What a validation found.

use crate::error::Position;
use crate::limits::MAX_VIOLATIONS;

/// One thing that is wrong with a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Where: a JSON pointer, a path of fields (`order.lines[2].sku`), or an XPath. Empty for the document as a whole.
    pub path: String,
    /// What is wrong and what is expected.
    pub message: String,
    /// Where in the document, where it is text and the place is known.
    pub position: Option<Position>,
}

impl Violation {
    /// A violation without a position.
    #[must_use]
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into(), position: None }
    }
}

/// All that is wrong with a document: the first [`MAX_VIOLATIONS`] violations, and how many there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    violations: Vec<Violation>,
    total: u64,
}

impl Report {
    /// Whether the document is valid.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.total == 0
    }

    /// The violations that are shown.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// How many violations there are, also of those that are not shown.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The report of a single violation.
    #[must_use]
    pub fn of(violation: Violation) -> Self {
        let mut report = Self::default();
        report.add(|| violation);
        report
    }

    /// Counts a violation, and keeps it if there is room: only then is it made.
    pub(crate) fn add(&mut self, violation: impl FnOnce() -> Violation) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(violation());
        }
        self.total += 1;
    }

    /// Whether another violation would be kept.
    pub(crate) fn has_room(&self) -> bool {
        self.violations.len() < MAX_VIOLATIONS
    }

    /// Counts violations that are not kept.
    pub(crate) fn count(&mut self, more: u64) {
        self.total += more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_beyond_the_limit_are_counted_but_not_made() {
        let mut report = Report::default();
        assert!(report.is_valid());
        for number in 0..MAX_VIOLATIONS {
            report.add(|| Violation::new(format!("/{number}"), "no"));
        }
        report.add(|| unreachable!("there is no room"));
        assert_eq!((report.violations().len(), report.total()), (MAX_VIOLATIONS, MAX_VIOLATIONS as u64 + 1));
        assert!(!report.is_valid());
    }
}
