//! Validates documents: reads them once from start to end, with one frame per open element.

mod attributes;
mod elements;
mod findings;
mod identity;
mod text;

use std::collections::{HashMap, HashSet};

use self::findings::Findings;
use self::identity::Identity;
use self::text::TextBuffer;
use super::bounds::WORK;
use super::content::{ContentModel, Cursor};
use super::model::{Content, Element, Model, NameId, Type, TypeId, Wrong};
use super::value::{Kind, Prefixes};
use super::xml::{Event, Ns, Reader, Scope};
use crate::definition::{Document, Format};
use crate::language::Validator;
use crate::limits::DOCUMENT_BYTES;
use crate::report::{Report, Violation};

/// A compiled schema.
#[derive(Debug)]
pub(super) struct XsdValidator {
    model: Model,
    size: usize,
}

impl XsdValidator {
    pub(super) fn new(model: Model) -> Self {
        let size = size_of_model(&model);
        Self { model, size }
    }
}

impl Validator for XsdValidator {
    fn validate(&self, document: Document<'_>) -> Report {
        let refused = |why: String| Report::of(Violation::new("", why));
        if document.format != Format::Xml {
            return refused("the schema is an XML Schema, so the document must be XML".into());
        }
        if document.bytes.is_empty() {
            return refused("the document is empty".into());
        }
        if document.bytes.len() > DOCUMENT_BYTES {
            return refused(format!("the document is longer than {DOCUMENT_BYTES} bytes"));
        }
        match std::str::from_utf8(document.bytes) {
            Ok(text) => validate(&self.model, text),
            Err(error) => refused(format!(
                "the document is not in UTF-8, the only encoding that is supported: byte {} is wrong",
                error.valid_up_to() + 1
            )),
        }
    }

    fn size(&self) -> usize {
        self.size
    }
}

fn validate(model: &Model, text: &str) -> Report {
    let mut run = Run {
        model,
        frames: Vec::with_capacity(16),
        path: Vec::with_capacity(16),
        buffer: TextBuffer::default(),
        findings: Findings::default(),
        identity: Identity::default(),
        identifiers: Vec::new(),
        ids: HashSet::new(),
        references: Vec::new(),
        replaceable: HashMap::new(),
        work: WORK,
        is_exhausted: false,
    };
    match Reader::new(text, &model.names.spaces) {
        Ok(mut reader) => run.document(&mut reader),
        Err(malformed) => run.findings.add(0, "", malformed.offset, || malformed.message),
    }
    run.findings.report(model, text)
}

/// A document that is being validated.
struct Run<'m, 'd> {
    model: &'m Model,
    frames: Vec<Frame<'m>>,
    /// The names of the open elements.
    path: Vec<(Option<NameId>, Ns)>,
    /// The text of the innermost element, if it is looked at.
    buffer: TextBuffer<'d>,
    findings: Findings,
    identity: Identity<'m>,
    /// What the last value was made of.
    identifiers: Vec<(Kind, Box<str>)>,
    ids: HashSet<Box<str>>,
    references: Vec<Reference>,
    /// Whether a type may stand for another one, with what the element blocks.
    replaceable: HashMap<(TypeId, TypeId, u8), bool>,
    work: u64,
    is_exhausted: bool,
}

/// A value that must be an identifier of the document.
struct Reference {
    id: Box<str>,
    element: usize,
    offset: usize,
}

/// An open element.
struct Frame<'m> {
    /// Where it starts.
    offset: usize,
    state: State<'m>,
    element: Option<&'m Element>,
    type_id: TypeId,
    is_nil: bool,
    has_children: bool,
    has_text: bool,
    /// The fields of identity constraints that its value is.
    fields: Vec<identity::Field>,
}

/// What the content of an open element is compared with.
enum State<'m> {
    /// Nothing.
    Skipped,
    Empty,
    Simple(TypeId),
    Elements {
        content: &'m ContentModel,
        is_mixed: bool,
        cursor: Cursor,
    },
}

impl<'m> State<'m> {
    fn of(model: &'m Model, type_id: TypeId) -> Self {
        match model.types.get(type_id) {
            Some(Type::Simple(_)) => Self::Simple(type_id),
            Some(Type::Complex(complex)) => match &complex.content {
                Content::Empty => Self::Empty,
                Content::Simple(text) => Self::Simple(*text),
                Content::Elements { is_mixed, model, .. } => {
                    Self::Elements { content: model, is_mixed: *is_mixed, cursor: Cursor::default() }
                }
            },
            None => Self::Skipped,
        }
    }
}

impl Prefixes for Scope<'_> {
    fn uri(&self, prefix: &str) -> Option<&str> {
        self.resolve(prefix).map(|(_, uri)| uri)
    }
}

impl<'m, 'd> Run<'m, 'd> {
    fn document(&mut self, reader: &mut Reader<'d, 'm>) {
        loop {
            let offset = reader.offset();
            let event = match reader.next() {
                Ok(event) => event,
                Err(malformed) => {
                    let element = self.frames.last().map_or(0, |frame| frame.offset);
                    self.findings.add(element, "", malformed.offset, || {
                        format!("the document is not well-formed, or not accepted: {}", malformed.message)
                    });
                    return;
                }
            };
            match event {
                Event::Start(tag) => self.start(reader, tag),
                Event::Text(text) => self.text(text, offset),
                Event::End => self.end(reader, offset),
                Event::Done => break,
            }
            if self.is_exhausted {
                let element = self.frames.last().map_or(0, |frame| frame.offset);
                self.findings.add(element, "", offset, || {
                    "validating this document takes more steps than are allowed: what comes after this was not looked at"
                        .into()
                });
                return;
            }
        }
        for reference in std::mem::take(&mut self.references) {
            if !self.ids.contains(&reference.id) {
                self.findings.add(reference.element, "", reference.offset, || {
                    format!("no identifier (ID) of the document is {:?}, which this refers to (IDREF)", reference.id)
                });
            }
        }
    }

    /// Takes over the identifiers of a value that was just found valid.
    fn take_identifiers(&mut self, element: usize, suffix: &str, offset: usize) {
        for (kind, text) in self.identifiers.drain(..) {
            match kind {
                Kind::Id if self.ids.contains(&text) => {
                    self.findings.add(element, suffix, offset, || format!("the identifier (ID) {text:?} occurs twice"));
                }
                Kind::Id => {
                    self.ids.insert(text);
                }
                Kind::Idref => self.references.push(Reference { id: text, element, offset }),
                _ => self.findings.add(element, suffix, offset, || {
                    format!("{text:?} is the name of no entity: entities (ENTITY) cannot be declared without a document type")
                }),
            }
        }
    }

    /// Takes steps off what is left; `false` when there are not so many.
    fn spend(&mut self, steps: usize) -> bool {
        let left = self.work.checked_sub(steps as u64);
        self.is_exhausted |= left.is_none();
        self.work = left.unwrap_or(0);
        left.is_some()
    }

    /// Takes over the identifiers of a default, which stands for what is not written.
    fn default_identifiers(&mut self, element: usize, suffix: &str, identifiers: &[(Kind, Box<str>)]) {
        // An empty element of four bytes may stand for a long list. Each of its identifiers is kept until the end.
        let steps = identifiers.iter().map(|(_, text)| 64 + text.len()).sum();
        if !identifiers.is_empty() && self.spend(steps) {
            self.identifiers.extend_from_slice(identifiers);
            self.take_identifiers(element, suffix, element);
        }
    }

    /// Adds that a value is wrong, or notes that there are no steps left.
    fn wrong_value(&mut self, place: (usize, &str, usize), value: &str, wrong: &Wrong<'_>) {
        self.identifiers.clear();
        if matches!(wrong, Wrong::Work) {
            self.is_exhausted = true;
            return;
        }
        let (element, suffix, offset) = place;
        self.findings.add(element, suffix, offset, || format!("{} is wrong: {wrong}", findings::clip(value)));
    }
}

/// About how many bytes of memory a schema occupies.
fn size_of_model(model: &Model) -> usize {
    let types = model.types.iter().map(|one| match one {
        Type::Simple(simple) => size_of::<Type>() + simple.facets.size(),
        Type::Complex(complex) => {
            let content = match &complex.content {
                Content::Elements { model, .. } => 2 * model.size(),
                _ => 0,
            };
            size_of::<Type>() + complex.uses.len() * 96 + content
        }
    });
    let elements = model.elements.len() * (size_of::<Element>() + 48);
    let constraints: usize =
        model.constraints.iter().map(|one| 200 + 100 * (one.selector.len() + one.fields.len())).sum();
    model.names.size() + types.sum::<usize>() + elements + constraints + 4_096
}
