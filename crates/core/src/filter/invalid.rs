//! Why a filter is refused.

use std::fmt;

/// A filter that cannot be used: every place that is wrong, with what to change there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InvalidFilter {
    problems: Vec<Problem>,
    more: usize,
}

/// One place of a filter that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it is: a JSON pointer from the filter on, such as `/2/any/0/exact/Type`.
    pub at: String,
    /// What to change.
    pub reason: String,
}

/// The most problems that are told; the others are counted.
const MAX_PROBLEMS: usize = 16;

impl InvalidFilter {
    /// Adds a problem of the place to which these tokens lead.
    pub(super) fn add(&mut self, place: &[String], reason: String) {
        if self.problems.len() == MAX_PROBLEMS {
            self.more += 1;
            return;
        }
        let escaped = place.iter().map(|token| token.replace('~', "~0").replace('/', "~1"));
        let at = escaped.fold(String::new(), |pointer, token| pointer + "/" + &token);
        self.problems.push(Problem { at, reason });
    }

    /// The same, with pointers from the whole that has the filter at this place: `/filter`.
    #[must_use]
    pub fn within(mut self, place: &str) -> Self {
        for problem in &mut self.problems {
            problem.at.insert_str(0, place);
        }
        self
    }

    /// What is wrong, in the order of the filter; the first 16.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at.is_empty() { f.write_str("the filter") } else { f.write_str(&self.at) }?;
        write!(f, ": {}", self.reason)
    }
}

impl fmt::Display for InvalidFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if at == 0 { "" } else { "; " })?;
        }
        if self.more > 0 { write!(f, "; and {} more", self.more) } else { Ok(()) }
    }
}

impl std::error::Error for InvalidFilter {}
