//! A compiled schema and what it says of documents.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use jsonschema::ValidationError;

use super::bounds::Costs;
use super::messages::Finder;
use super::meter::{Meter, TO_JUDGE};
use super::node::Metered;
use super::tree::{Fault, Tree};
use crate::definition::{Document, Format};
use crate::error::Position;
use crate::language::Validator;
use crate::limits::{DOCUMENT_BYTES, MAX_VIOLATIONS};
use crate::report::{Report, Violation};

/// The most calls on the stack: levels of the document times levels of schemas for one value. Each takes up to 1.5 KiB.
const MAX_CALLS: usize = 800;

/// A compiled schema.
pub(super) struct Compiled {
    pub(super) validator: jsonschema::Validator<Metered>,
    pub(super) costs: Costs,
    pub(super) size: usize,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled").field("costs", &self.costs).field("size", &self.size).finish_non_exhaustive()
    }
}

/// Runs the validator of the `jsonschema` crate, which panics where one of its invariants does not hold. That must not
/// take a worker with it; the document is refused instead.
pub(super) fn guarded<T>(run: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(run)).ok()
}

impl Validator for Compiled {
    fn validate(&self, document: Document<'_>) -> Report {
        let whole = |message: String| Report::of(Violation::new("", message));
        if document.format != Format::Json {
            return whole("a JSON Schema judges JSON only: send the event as application/json".into());
        }
        if document.bytes.len() > DOCUMENT_BYTES {
            let length = document.bytes.len();
            return whole(format!("the document has {length} bytes, at most {DOCUMENT_BYTES} are validated"));
        }
        let text = match std::str::from_utf8(document.bytes) {
            Ok(text) => text,
            Err(error) => {
                let valid = String::from_utf8_lossy(&document.bytes[..error.valid_up_to()]);
                let position = Some(Position::of(&valid, valid.len()));
                return Report::of(Violation { position, ..Violation::new("", "the document is not UTF-8") });
            }
        };
        match Tree::read(text) {
            Ok(tree) => self.judge(tree),
            Err(Fault { message, at }) => {
                let message = format!("the document is not JSON that can be validated: {message}");
                Report::of(Violation { position: Some(Position::of(text, at)), ..Violation::new("", message) })
            }
        }
    }

    fn size(&self) -> usize {
        self.size
    }
}

impl Compiled {
    fn judge(&self, mut tree: Tree<'_>) -> Report {
        tree.meter = Meter::new(self.costs.prices);
        if tree.depth.saturating_mul(self.costs.depth) > MAX_CALLS {
            let most = MAX_CALLS / self.costs.depth.max(1);
            let message =
                format!("the document is {} deep, with this schema at most {most} can be validated", tree.depth);
            return Report::of(Violation::new("", message));
        }
        let valid = guarded(|| self.validator.is_valid(tree.root()));
        match valid {
            None => failed(),
            Some(_) if tree.meter.is_spent() => too_long(),
            Some(true) => Report::default(),
            Some(false) => {
                tree.meter.restart();
                guarded(|| self.explain(&tree)).unwrap_or_else(failed)
            }
        }
    }

    /// Reports all errors.
    fn explain<'t>(&self, tree: &'t Tree<'t>) -> Report {
        let errors: Vec<ValidationError<'_>> = self.validator.iter_errors(tree.root()).collect();
        // Errors made after the budget was spent are no errors; see `Node::to_value` of `Cursor`.
        let made = errors.partition_point(|error| error.instance().as_bool() != Some(false));
        let shown = &errors[..made.min(MAX_VIOLATIONS)];
        let mut report = Report::default();
        for violation in Finder::new(tree).violations(shown) {
            report.add(|| violation);
        }
        report.count((made - shown.len()) as u64);
        if made == 0 {
            report.add(|| Violation::new("", "the document is not valid; finding out why takes too long"));
        } else if tree.meter.is_spent() {
            report.add(|| Violation::new("", "there may be more violations: looking for them takes too long"));
        }
        report
    }
}

fn failed() -> Report {
    Report::of(Violation::new("", "the document cannot be validated: the validator failed"))
}

fn too_long() -> Report {
    let message =
        format!("validating the document with this schema takes more than {TO_JUDGE} steps: it cannot be judged");
    Report::of(Violation::new("", message))
}

#[cfg(test)]
#[path = "validator_tests.rs"]
mod tests;
