//! What is wrong with a document, by where it was found. Paths are made at the end, by reading the document once more: a
//! document without findings pays nothing for them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;

use crate::error::Position;
use crate::limits::MAX_VIOLATIONS;
use crate::report::{Report, Violation};
use crate::xsd::model::Model;
use crate::xsd::xml::{Event, Reader};

/// The longest message, and the longest name in a path, in characters. A name may be as long as a document, and occurs in
/// the paths of all that is below it.
const MESSAGE: usize = 500;
const NAME: usize = 80;

/// All findings: some of them, and how many there are.
#[derive(Debug, Default)]
pub(super) struct Findings {
    kept: Vec<Finding>,
    total: u64,
}

#[derive(Debug)]
struct Finding {
    /// Where the element starts that it is about.
    element: usize,
    /// What follows the element in the path.
    suffix: String,
    offset: usize,
    message: String,
}

/// A step of a path: the name as it is written, which one of its siblings of that name, and where these are counted.
type PathStep<'d> = (&'d str, usize, usize);

impl Findings {
    /// Counts a finding, and keeps it if there is room: only then is its message made.
    pub(super) fn add(&mut self, element: usize, suffix: &str, offset: usize, message: impl FnOnce() -> String) {
        self.total += 1;
        if self.has_room() {
            let suffix = shorten(suffix, NAME).into_owned();
            self.kept.push(Finding { element, suffix, offset, message: shorten(&message(), MESSAGE).into_owned() });
        }
    }

    /// Whether more findings are kept.
    pub(super) fn has_room(&self) -> bool {
        self.kept.len() < MAX_VIOLATIONS
    }

    /// Makes the report, in the order of the document.
    pub(super) fn report(mut self, model: &Model, text: &str) -> Report {
        let mut report = Report::default();
        if self.total == 0 {
            return report;
        }
        self.kept.sort_by_key(|finding| finding.offset);
        let paths = paths(model, text, &self.kept);
        for finding in &self.kept {
            report.add(|| Violation {
                path: paths.get(&finding.element).map_or_else(String::new, |path| format!("{path}{}", finding.suffix)),
                message: finding.message.clone(),
                position: Some(Position::of(text, finding.offset)),
            });
        }
        report.count(self.total - self.kept.len() as u64);
        report
    }
}

/// The paths of the elements that findings are about.
fn paths(model: &Model, text: &str, findings: &[Finding]) -> HashMap<usize, String> {
    let mut wanted: Vec<usize> = findings.iter().map(|finding| finding.element).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut found: Vec<(usize, Vec<PathStep<'_>>)> = Vec::new();
    // How many siblings of one name there are, for each parent and name.
    let mut counts: Vec<usize> = Vec::new();
    let mut open: Vec<PathStep<'_>> = Vec::new();
    let mut children: Vec<HashMap<&str, usize>> = vec![HashMap::new()];
    // Once all are found: the steps that may still turn out to have siblings of their names, with their depths.
    let mut unsettled: Option<Vec<(usize, usize)>> = None;
    if let Ok(mut reader) = Reader::new(text, &model.names.spaces) {
        loop {
            match reader.next() {
                Ok(Event::Start(tag)) => {
                    let Some(siblings) = children.last_mut() else { break };
                    let slot = *siblings.entry(tag.raw).or_insert_with(|| {
                        counts.push(0);
                        counts.len() - 1
                    });
                    let index = counts.get(slot).map_or(1, |count| count + 1);
                    if let Some(count) = counts.get_mut(slot) {
                        *count = index;
                    }
                    open.push((tag.raw, index, slot));
                    children.push(HashMap::new());
                    if wanted.binary_search(&tag.offset).is_ok() {
                        found.push((tag.offset, open.clone()));
                        if found.len() == wanted.len() {
                            unsettled = Some(unsettled_steps(&found, &open, &counts));
                        }
                    }
                    if let Some(steps) = unsettled.as_mut().filter(|_| index == 2) {
                        steps.retain(|(_, other)| *other != slot);
                    }
                }
                Ok(Event::End) => {
                    open.pop();
                    children.pop();
                    if let Some(steps) = &mut unsettled {
                        steps.retain(|(depth, _)| open.len() >= *depth);
                    }
                }
                Ok(Event::Text(_)) => continue,
                Ok(Event::Done) | Err(_) => break,
            }
            if unsettled.as_ref().is_some_and(Vec::is_empty) {
                break;
            }
        }
    }
    let write = |steps: &[PathStep<'_>]| {
        let mut path = String::new();
        for (name, index, slot) in steps {
            let is_alone = counts.get(*slot).is_none_or(|count| *count < 2);
            let name = shorten(name, NAME);
            let _ = if is_alone { write!(path, "/{name}") } else { write!(path, "/{name}[{index}]") };
        }
        path
    };
    found.into_iter().map(|(offset, steps)| (offset, write(&steps))).collect()
}

/// The steps of paths that are the first of their name so far, and whose parents are open. The root has no siblings.
fn unsettled_steps(
    found: &[(usize, Vec<PathStep<'_>>)],
    open: &[PathStep<'_>],
    counts: &[usize],
) -> Vec<(usize, usize)> {
    let mut unsettled = Vec::new();
    for (_, steps) in found {
        let same = steps.iter().zip(open).take_while(|(one, other)| (one.1, one.2) == (other.1, other.2)).count();
        let within_open = steps.iter().enumerate().take(same + 1).skip(1);
        let alone = within_open.filter(|(_, (.., slot))| counts.get(*slot).is_none_or(|count| *count < 2));
        unsettled.extend(alone.map(|(depth, (.., slot))| (depth, *slot)));
    }
    unsettled.sort_unstable();
    unsettled.dedup();
    unsettled
}

/// A value in quotes, shortened.
pub(super) fn clip(value: &str) -> String {
    const LENGTH: usize = 60;
    match value.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{:?}…", &value[..end]),
        None => format!("{value:?}"),
    }
}

/// The first characters of a text.
fn shorten(text: &str, characters: usize) -> Cow<'_, str> {
    match text.char_indices().nth(characters) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}
