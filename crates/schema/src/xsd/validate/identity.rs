//! Identity constraints: follows selectors and fields while the document is read, and keeps the keys in hash tables.

use std::collections::{HashMap, HashSet};

use super::findings::{Findings, clip};
use crate::xsd::bounds::KEY_BYTES;
use crate::xsd::model::{Constraint, ConstraintId, Model, NameId, Path, Role, Test};
use crate::xsd::xml::Ns;

/// Separates the fields of a key. No text of XML contains it.
const FIELD: char = '\u{2}';

type Names<'p> = &'p [(Option<NameId>, Ns)];

/// A field of a selected element: the number of the row, and which field it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    row: usize,
    field: usize,
}

/// A field that is an attribute of the present element.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttributeField {
    pub(super) test: Test,
    field: Field,
}

/// The constraints of an open element.
#[derive(Debug)]
struct Scope<'m> {
    id: ConstraintId,
    constraint: &'m Constraint,
    /// How many elements are open around the element.
    depth: usize,
    keys: HashSet<Box<str>>,
    /// The references of a `keyref`, and the elements that they were found at.
    references: Vec<(Box<str>, usize)>,
}

/// An open element that was selected.
#[derive(Debug)]
struct Row {
    scope: usize,
    depth: usize,
    offset: usize,
    fields: Vec<Option<Box<str>>>,
    /// Whether something about it was wrong already, so that its key is not looked at.
    is_wrong: bool,
}

/// The keys of an element and all below it, for references from further out.
#[derive(Debug, Default)]
struct Table {
    keys: HashSet<Box<str>>,
    /// Those that come from two elements, which are therefore none.
    twice: HashSet<Box<str>>,
}

/// All that is open.
#[derive(Debug, Default)]
pub(super) struct Identity<'m> {
    scopes: Vec<Scope<'m>>,
    rows: Vec<Row>,
    tables: HashMap<(usize, ConstraintId), Table>,
    fields: Vec<Field>,
    attributes: Vec<AttributeField>,
    bytes: usize,
}

impl Path {
    /// Whether the elements below a context lead to the present element.
    fn matches(&self, below: Names<'_>) -> bool {
        let length_fits = if self.is_deep { below.len() >= self.steps.len() } else { below.len() == self.steps.len() };
        length_fits
            && self.steps.iter().rev().zip(below.iter().rev()).all(|(test, (name, ns))| test.matches(*name, *ns))
    }
}

impl<'m> Identity<'m> {
    /// Whether any constraint is open.
    pub(super) fn is_active(&self) -> bool {
        !self.scopes.is_empty()
    }

    /// Opens an element: its constraints, the rows that it is selected for, and the fields that it is. `false` when there
    /// are no steps left.
    pub(super) fn open(
        &mut self,
        model: &'m Model,
        constraints: &'m [ConstraintId],
        path: Names<'_>,
        offset: usize,
        work: &mut u64,
    ) -> bool {
        let depth = path.len().saturating_sub(1);
        for id in constraints {
            let Some(constraint) = model.constraints.get(*id) else { continue };
            let (keys, references) = (HashSet::new(), Vec::new());
            self.scopes.push(Scope { id: *id, constraint, depth, keys, references });
        }
        let below = |context: usize| path.get(context + 1..).unwrap_or_default();
        let mut steps = 0;
        for (number, scope) in self.scopes.iter().enumerate() {
            let selector = &scope.constraint.selector;
            steps += selector.iter().map(|path| path.steps.len() as u64 + 1).sum::<u64>();
            if selector.iter().any(|one| one.matches(below(scope.depth))) {
                // A row is allocated, and so is its key.
                steps += 20;
                let fields = vec![None; scope.constraint.fields.len()];
                self.rows.push(Row { scope: number, depth, offset, fields, is_wrong: false });
            }
        }
        self.fields.clear();
        self.attributes.clear();
        for (number, row) in self.rows.iter().enumerate() {
            let Some(scope) = self.scopes.get(row.scope) else { continue };
            for (at, paths) in scope.constraint.fields.iter().enumerate() {
                steps += paths.iter().map(|path| path.steps.len() as u64 + 1).sum::<u64>();
                let field = Field { row: number, field: at };
                let mut is_field = false;
                for path in paths.iter().filter(|path| path.matches(below(row.depth))) {
                    match path.attribute {
                        Some(test) => self.attributes.push(AttributeField { test, field }),
                        None => is_field = true,
                    }
                }
                if is_field {
                    self.fields.push(field);
                }
            }
        }
        match work.checked_sub(4 * steps) {
            Some(left) => *work = left,
            None => return false,
        }
        true
    }

    /// The fields that the element that was just opened is, and those that its attributes are.
    pub(super) fn take_fields(&mut self) -> (Vec<Field>, Vec<AttributeField>) {
        (std::mem::take(&mut self.fields), std::mem::take(&mut self.attributes))
    }

    /// Sets a field to the value of an attribute, or notes that the value is wrong.
    pub(super) fn set_attribute(&mut self, field: &AttributeField, key: Option<&str>, findings: &mut Findings) {
        self.set(field.field, key, findings);
    }

    /// Sets a field to the value of an element, or notes that the value is wrong.
    pub(super) fn set_element(
        &mut self,
        field: Field,
        key: Option<&str>,
        (is_simple, is_nillable): (bool, bool),
        findings: &mut Findings,
    ) {
        let Some(row) = self.rows.get_mut(field.row) else { return };
        let Some(scope) = self.scopes.get(row.scope) else { return };
        if !is_simple {
            row.is_wrong = true;
            let offset = row.offset;
            let why = || "a field of an identity constraint is an element that has not only text".into();
            findings.add(offset, "", offset, why);
            return;
        }
        if is_nillable && scope.constraint.role == Role::Key {
            row.is_wrong = true;
            let offset = row.offset;
            findings.add(offset, "", offset, || "a field of a key is an element that is nillable".into());
            return;
        }
        self.set(field, key, findings);
    }

    fn set(&mut self, field: Field, key: Option<&str>, findings: &mut Findings) {
        let Some(row) = self.rows.get_mut(field.row) else { return };
        let Some(slot) = row.fields.get_mut(field.field) else { return };
        match key {
            None => row.is_wrong = true,
            // The document is given up when the element ends.
            Some(key) if self.bytes.saturating_add(key.len()) > KEY_BYTES => {
                self.bytes = KEY_BYTES + 1;
                row.is_wrong = true;
            }
            Some(_) if slot.is_some() => {
                row.is_wrong = true;
                let offset = row.offset;
                findings.add(offset, "", offset, || {
                    "a field of an identity constraint occurs more than once in here".into()
                });
            }
            Some(key) => {
                self.bytes += key.len();
                *slot = Some(key.into());
            }
        }
    }

    /// Closes the element at a depth. `false` when the keys take too much memory.
    pub(super) fn close(&mut self, depth: usize, model: &Model, findings: &mut Findings) -> bool {
        while let Some(row) = self.rows.pop_if(|row| row.depth == depth) {
            self.close_row(row, model, findings);
        }
        let first = self.scopes.partition_point(|scope| scope.depth < depth);
        let mut closing = self.scopes.split_off(first);
        for scope in &mut closing {
            if !matches!(scope.constraint.role, Role::Keyref(_)) && scope.constraint.is_referred {
                let table = self.tables.entry((depth, scope.id)).or_default();
                table.settle();
                let keys = std::mem::take(&mut scope.keys);
                table.keys.extend(keys);
            }
        }
        for scope in &closing {
            let Role::Keyref(target) = scope.constraint.role else { continue };
            let table = self.tables.get_mut(&(depth, target));
            let table = table.map(|table| {
                table.settle();
                &*table
            });
            for (key, offset) in &scope.references {
                if !table.is_some_and(|table| table.keys.contains(key)) {
                    findings.add(*offset, "", *offset, || {
                        let (name, of) = (model.names.show(scope.constraint.name), show_constraint(model, target));
                        format!("{} is not among the keys of {of}, to which the keyref {name} refers", show_key(key))
                    });
                }
            }
        }
        self.hand_out(depth);
        self.bytes <= KEY_BYTES
    }

    fn close_row(&mut self, row: Row, model: &Model, findings: &mut Findings) {
        let Some(scope) = self.scopes.get_mut(row.scope) else { return };
        if self.bytes <= KEY_BYTES {
            self.bytes -= row.fields.iter().flatten().map(|field| field.len()).sum::<usize>();
        }
        if row.is_wrong {
            return;
        }
        let constraint = scope.constraint;
        let name = || model.names.show(constraint.name);
        if row.fields.iter().any(Option::is_none) {
            if constraint.role == Role::Key {
                findings
                    .add(row.offset, "", row.offset, || format!("a field of the key {} is missing in here", name()));
            }
            return;
        }
        let mut key = String::new();
        for field in row.fields.iter().flatten() {
            key.push_str(field);
            key.push(FIELD);
        }
        self.bytes += key.len();
        match constraint.role {
            Role::Keyref(_) => scope.references.push((key.into(), row.offset)),
            _ if scope.keys.contains(key.as_str()) => {
                findings.add(row.offset, "", row.offset, || {
                    let shown = show_key(&key);
                    format!("{shown} occurs twice, and {} says that it must be unique", name())
                });
            }
            _ => {
                scope.keys.insert(key.into());
            }
        }
    }

    /// Hands the keys of a closed element to its parent, where a reference from further out may need them.
    fn hand_out(&mut self, depth: usize) {
        if self.tables.is_empty() {
            return;
        }
        let ids: Vec<ConstraintId> = self.tables.keys().filter(|(at, _)| *at == depth).map(|(_, id)| *id).collect();
        for id in ids {
            let Some(mut table) = self.tables.remove(&(depth, id)) else { continue };
            let is_needed = self.scopes.iter().any(|scope| scope.constraint.role == Role::Keyref(id));
            if !is_needed || depth == 0 {
                continue;
            }
            table.settle();
            self.tables.entry((depth - 1, id)).or_default().merge(table);
        }
    }
}

impl Table {
    /// Adds the keys of another element; those that both have are none of either.
    fn merge(&mut self, mut other: Self) {
        if self.keys.len() < other.keys.len() {
            std::mem::swap(&mut self.keys, &mut other.keys);
        }
        for key in other.keys {
            if let Some(key) = self.keys.replace(key) {
                self.twice.insert(key);
            }
        }
    }

    fn settle(&mut self) {
        for key in self.twice.drain() {
            self.keys.remove(&key);
        }
    }
}

fn show_constraint(model: &Model, id: ConstraintId) -> String {
    model.constraints.get(id).map_or_else(String::new, |constraint| model.names.show(constraint.name))
}

/// A key for people: the fields without their types.
fn show_key(key: &str) -> String {
    let fields: Vec<String> = key
        .split_terminator(FIELD)
        .map(|field| clip(field.split_once(':').map_or(field, |(_, value)| value).trim_end_matches('.')))
        .collect();
    fields.join(", ")
}
