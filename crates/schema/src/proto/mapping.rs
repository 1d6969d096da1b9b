//! Validates the JSON mapping of a message: fields by their names, well-known types in their own forms. No message is
//! built, and everything that is wrong is found, with its path and place.
//!
//! Beyond the mapping, required fields of proto2 have to be there, and no name may occur twice in an object: readers do
//! not agree on which of them counts.

use std::borrow::Cow;

use super::path::{Step, clip, render};
use super::scalars;
use super::table::{Field, Kind, NONE, Special, Table};
use super::tape::{Problem, Tape, Token};
use crate::error::Position;
use crate::limits::MAX_VIOLATIONS;
use crate::report::{Report, Violation};

/// The longest piece of a document that is shown, in characters.
const SHOWN: usize = 40;

/// Validates a document.
pub(super) fn validate(table: &Table, bytes: &[u8], report: &mut Report) {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = error.valid_up_to();
            let position = Position::of(&String::from_utf8_lossy(&bytes[..at]), at);
            let violation = Violation::new("", "the document is not UTF-8");
            return report.add(|| Violation { position: Some(position), ..violation });
        }
    };
    let tape = match Tape::parse(text) {
        Ok(tape) => tape,
        Err(Problem { message, at }) => {
            let position = Some(Position::of(text, at));
            return report.add(|| Violation { position, ..Violation::new("", message) });
        }
    };
    let mut mapping = Mapping { table, tape: &tape, steps: Vec::new(), found: Vec::new(), total: 0 };
    mapping.message(table.root, 0);
    mapping.finish(text, report);
}

struct Mapping<'m> {
    table: &'m Table,
    tape: &'m Tape<'m>,
    steps: Vec<Step<'m>>,
    /// The violations that are shown, with their offsets.
    found: Vec<(u32, Violation)>,
    total: u64,
}

/// A member of an object, and the field that it sets.
struct Member<'m> {
    key: u32,
    value: u32,
    name: Cow<'m, str>,
    /// The index of the field, or none.
    field: u32,
    /// Whether it sets the field: null does not.
    sets: bool,
}

impl<'m> Mapping<'m> {
    /// Hands over what was found, in the order of the document. Lines are counted in one go.
    fn finish(mut self, text: &str, report: &mut Report) {
        self.found.sort_by_key(|(at, _)| *at);
        let (mut position, mut counted) = (Position { line: 1, column: 1 }, 0);
        let shown = self.found.len() as u64;
        for (at, violation) in self.found {
            let more = Position::of(&text[counted..], at as usize - counted);
            let column = if more.line == 1 { position.column - 1 + more.column } else { more.column };
            position = Position { line: position.line - 1 + more.line, column };
            counted = at as usize;
            report.add(|| Violation { position: Some(position), ..violation });
        }
        report.count(self.total - shown);
    }

    /// Reports what is wrong with the node; the path leads to it.
    fn violation(&mut self, node: u32, message: impl FnOnce() -> String) {
        self.total += 1;
        if self.found.len() < MAX_VIOLATIONS {
            let at = self.tape.node(node).start;
            self.found.push((at, Violation::new(render(&self.steps), message())));
        }
    }

    fn unexpected(&mut self, node: u32, expected: &str) {
        let tape = self.tape;
        let found = match tape.node(node).token {
            Token::Array => "an array".into(),
            Token::Object => "an object".into(),
            _ => clip(tape.raw(node), SHOWN),
        };
        self.violation(node, || format!("expected {expected}, found {found}"));
    }

    fn within(&mut self, step: Step<'m>, check: impl FnOnce(&mut Self)) {
        self.steps.push(step);
        check(self);
        self.steps.pop();
    }

    fn message(&mut self, index: u32, node: u32) {
        let message = self.table.message(index);
        let Some(special) = message.special else {
            if self.tape.node(node).token != Token::Object {
                return self.unexpected(node, &format!("an object ({})", message.name));
            }
            return self.members(index, node, None);
        };
        let token = self.tape.node(node).token;
        match special {
            Special::Wrapper(kind) => self.scalar(kind, node),
            Special::Timestamp | Special::Duration | Special::FieldMask => {
                let tape = self.tape;
                let is_string = matches!(token, Token::Plain | Token::Escaped);
                let text = if is_string { tape.string(node) } else { Cow::Borrowed("?") };
                match scalars::check_special(special, &text) {
                    Err(expected) => self.unexpected(node, expected),
                    Ok(()) if !is_string => self.unexpected(node, "a string"),
                    Ok(()) => {}
                }
            }
            Special::Any if token == Token::Object => self.any(node),
            Special::Empty if token == Token::Object => self.members(index, node, None),
            Special::Struct if token == Token::Object => self.free(node),
            Special::ListValue if token == Token::Array => self.free(node),
            Special::Value => self.free(node),
            Special::ListValue => self.unexpected(node, "an array"),
            Special::Any | Special::Empty | Special::Struct => self.unexpected(node, "an object"),
        }
    }

    /// Checks the members of an object as fields of a message, but for one key that has another meaning.
    fn members(&mut self, index: u32, node: u32, except: Option<u32>) {
        let (tape, table) = (self.tape, self.table);
        let message = table.message(index);
        let mut members = Vec::new();
        for (key, value) in tape.members(node).filter(|(key, _)| Some(*key) != except) {
            let name = tape.string(key);
            let field = message.by_name(&name).unwrap_or(NONE);
            let is_null = tape.node(value).token == Token::Null;
            let sets = field != NONE && (!is_null || self.means_null(&message.fields[field as usize]));
            members.push(Member { key, value, name, field, sets });
        }
        self.twice(index, &members);
        self.missing(index, node, &members);
        for Member { key, value, name, field, sets } in members {
            let step = Step::Field(name);
            if field == NONE && table.strict {
                self.within(step, |this| this.violation(key, || format!("{} has no such field", message.name)));
            } else if sets {
                self.within(step, |this| this.field(&message.fields[field as usize], value));
            }
        }
    }

    /// Reports fields and oneofs that more than one member sets.
    fn twice(&mut self, index: u32, members: &[Member<'m>]) {
        if members.len() < 2 {
            return;
        }
        let message = self.table.message(index);
        let mut order = (0..members.len()).collect::<Vec<_>>();
        // Fields have several names; what is unknown has one.
        let name = |member: &'_ Member<'m>| if member.field == NONE { member.name.clone() } else { Cow::Borrowed("") };
        order.sort_by_cached_key(|&at| (members[at].field, name(&members[at]), at));
        for pair in order.windows(2) {
            let (one, other) = (&members[pair[0]], &members[pair[1]]);
            if one.field == other.field && (one.field != NONE || one.name == other.name) {
                let step = Step::Field(other.name.clone());
                self.within(step, |this| this.violation(other.key, || "the field occurs twice".into()));
            }
        }
        let oneof = |at: usize| message.fields[members[at].field as usize].oneof;
        order.retain(|&at| members[at].sets && oneof(at) != NONE);
        order.sort_by_key(|&at| (oneof(at), at));
        for pair in order.windows(2) {
            let (one, other) = (&members[pair[0]], &members[pair[1]]);
            if oneof(pair[0]) == oneof(pair[1]) && one.field != other.field {
                let name = &message.oneofs[oneof(pair[0]) as usize];
                let step = Step::Field(other.name.clone());
                let text = || format!("{:?} is set already, and both are members of the oneof {name}", one.name);
                self.within(step, |this| this.violation(other.key, text));
            }
        }
    }

    fn missing(&mut self, index: u32, node: u32, members: &[Member<'m>]) {
        let message = self.table.message(index);
        if message.required.is_empty() {
            return;
        }
        let set = members.iter().filter(|member| member.sets).map(|member| member.field);
        let mut set = set.filter(|&field| message.fields[field as usize].required != NONE).collect::<Vec<_>>();
        set.sort_unstable();
        set.dedup();
        let mut missing = (message.required.len() - set.len()) as u64;
        if missing == 0 {
            return;
        }
        for &field in message.required.iter().filter(|field| set.binary_search(field).is_err()) {
            if self.found.len() >= MAX_VIOLATIONS {
                break;
            }
            missing -= 1;
            let text = || format!("the required field is missing from {}", message.name);
            let step = Step::Field((&*message.names[field as usize]).into());
            self.within(step, |this| this.violation(node, text));
        }
        self.total += missing;
    }

    /// Whether null is a value of the field's type, and not the absence of one.
    fn means_null(&self, field: &Field) -> bool {
        if field.repeated {
            return false;
        }
        match field.kind {
            Kind::Message => self.table.message(field.target).special == Some(Special::Value),
            Kind::Enum => self.table.enumeration(field.target).is_null,
            _ => false,
        }
    }

    fn field(&mut self, field: &Field, node: u32) {
        let tape = self.tape;
        let token = tape.node(node).token;
        if field.map {
            if token != Token::Object {
                return self.unexpected(node, "an object (a map)");
            }
            self.repeated_keys(node);
            let [key_field, value_field, ..] = &*self.table.message(field.target).fields else { return };
            for (key, value) in tape.members(node) {
                let name = tape.string(key);
                let fits = scalars::check_key(key_field.kind, &name);
                self.within(Step::Key(name), |this| {
                    if let Err(expected) = fits {
                        this.unexpected(key, &format!("{expected} as the key of a map"));
                    }
                    this.value(value_field, value);
                });
            }
        } else if field.repeated {
            if token != Token::Array {
                return self.unexpected(node, "an array");
            }
            for (index, element) in (0..).zip(tape.inner(node)) {
                self.within(Step::Element(index), |this| this.value(field, element));
            }
        } else {
            self.value(field, node);
        }
    }

    fn value(&mut self, field: &Field, node: u32) {
        match field.kind {
            Kind::Message | Kind::Group => self.message(field.target, node),
            Kind::Enum => self.enum_value(field.target, node),
            kind => self.scalar(kind, node),
        }
    }

    fn scalar(&mut self, kind: Kind, node: u32) {
        let tape = self.tape;
        let token = tape.node(node).token;
        // Most strings hold a text: any does.
        if kind == Kind::String && matches!(token, Token::Plain | Token::Escaped) {
            return;
        }
        if let Err(expected) = scalars::check(kind, token, &tape.string(node)) {
            self.unexpected(node, expected);
        }
    }

    fn enum_value(&mut self, index: u32, node: u32) {
        let (tape, kind) = (self.tape, self.table.enumeration(index));
        match tape.node(node).token {
            Token::Null if kind.is_null => {}
            Token::Plain | Token::Escaped => {
                let name = tape.string(node);
                // An unknown name is an unknown field.
                if self.table.strict && !kind.by_name.contains_key(&*name) {
                    self.unexpected(node, &format!("a value of the enum {}", kind.name));
                }
            }
            Token::Number if scalars::check(Kind::Int32, Token::Number, tape.raw(node)).is_ok() => {
                let number = tape.raw(node).parse::<f64>().map_or(0, |number| number as i32);
                if kind.closed && kind.numbers.binary_search(&number).is_err() {
                    self.unexpected(node, &format!("a value of the closed enum {}", kind.name));
                }
            }
            _ => self.unexpected(node, &format!("a value of the enum {}, by its name or number", kind.name)),
        }
    }

    /// Any message, with its type in `@type`.
    fn any(&mut self, node: u32) {
        let (tape, table) = (self.tape, self.table);
        if tape.members(node).next().is_none() {
            return;
        }
        let Some((key, value)) = tape.members(node).find(|(key, _)| tape.string(*key) == "@type") else {
            return self.violation(node, || "an Any needs the member \"@type\"".into());
        };
        let url = tape.string(value);
        let name = url.rsplit_once('/').map(|(_, name)| name);
        let Some(&index) = name.and_then(|name| table.by_name.get(name)) else {
            let step = Step::Field("@type".into());
            let expected = "the URL of a type of this schema, like \"type.googleapis.com/shop.Order\"";
            return self.within(step, |this| this.unexpected(value, expected));
        };
        if table.message(index).special.is_none() {
            return self.members(index, node, Some(key));
        }
        self.repeated_keys(node);
        match tape.members(node).find(|(key, _)| tape.string(*key) == "value") {
            None => self.violation(node, || "an Any of a well-known type needs the member \"value\"".into()),
            Some((_, value)) => self.within(Step::Field("value".into()), |this| this.message(index, value)),
        }
        for (key, _) in tape.members(node).filter(|_| table.strict) {
            let name = tape.string(key);
            if name != "@type" && name != "value" {
                self.within(Step::Field(name), |this| this.violation(key, || "there is no such member here".into()));
            }
        }
    }

    /// JSON of any shape, all of whose numbers fit a double.
    fn free(&mut self, node: u32) {
        let tape = self.tape;
        for inner in node..tape.node(node).next {
            match tape.node(inner).token {
                Token::Object => self.repeated_keys(inner),
                Token::Number if scalars::check(Kind::Double, Token::Number, tape.raw(inner)).is_err() => {
                    self.unexpected(inner, "a number in the range of double");
                }
                _ => {}
            }
        }
    }

    fn repeated_keys(&mut self, node: u32) {
        let tape = self.tape;
        let mut keys = tape.members(node).map(|(key, _)| (tape.string(key), key)).collect::<Vec<_>>();
        if keys.len() < 2 {
            return;
        }
        keys.sort();
        for pair in keys.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            let (name, key) = &pair[1];
            self.within(Step::Key(name.clone()), |this| this.violation(*key, || "the key occurs twice".into()));
        }
    }
}
