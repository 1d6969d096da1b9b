//! Protocol Buffers: what is told to be compatible accepts what was accepted. Schemas, changes of them, and documents are
//! made up by proptest, and both versions judge.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use prost_reflect::prost::Message as _;
use prost_reflect::{DynamicMessage, SerializeOptions};
use tidegate_schema::proto::Proto;
use tidegate_schema::{Definition, Document, Format, Language as _, Validator, Verdict};

#[path = "proto/messages.rs"]
mod messages;

use messages::{Dice, descriptor, make, mutate, mutate_text};

/// A field of a schema.
#[derive(Debug, Clone)]
struct Field {
    message: usize,
    name: &'static str,
    number: u32,
    kind: &'static str,
    label: &'static str,
    json_name: Option<&'static str>,
    oneof: Option<&'static str>,
}

/// A schema of two messages and an enum.
#[derive(Debug, Clone)]
struct Schema {
    is_three: bool,
    strict: bool,
    fields: Vec<Field>,
    reserved: Vec<(usize, u32)>,
    values: Vec<(&'static str, i32)>,
}

const NAMES: [&str; 6] = ["a", "b", "c", "a_b", "aB", "d_e"];
const KINDS: [&str; 16] = [
    "int32",
    "int64",
    "uint64",
    "sint32",
    "bool",
    "string",
    "bytes",
    "double",
    "fixed32",
    "E",
    "B",
    "A",
    "map<string, B>",
    "map<int32, E>",
    "map<bool, string>",
    "google.protobuf.Int32Value",
];

impl Schema {
    /// Its text. What the language does not allow there is left out.
    fn text(&self) -> String {
        let mut text = format!(
            "syntax = \"proto{}\"; import \"google/protobuf/wrappers.proto\";\n",
            if self.is_three { 3 } else { 2 }
        );
        for (index, name) in ["A", "B"].into_iter().enumerate() {
            text += &format!("message {name} {{\n");
            for (_, number) in self.reserved.iter().filter(|(message, _)| *message == index) {
                text += &format!("  reserved {number};\n");
            }
            let own = self.fields.iter().filter(|field| field.message == index).collect::<Vec<_>>();
            for oneof in ["o", "p"] {
                let members = own.iter().filter(|field| self.oneof(field) == Some(oneof)).map(|field| field.line(""));
                let members = members.collect::<String>();
                if !members.is_empty() {
                    text += &format!("  oneof {oneof} {{\n{members}  }}\n");
                }
            }
            for field in own.iter().filter(|field| self.oneof(field).is_none()) {
                let label = match field.label {
                    _ if field.is_map() => "",
                    "required" if self.is_three => "",
                    "" if !self.is_three => "optional ",
                    "" => "",
                    label => label,
                };
                text += &field.line(label);
            }
            text += "}\n";
        }
        let values = self.values.iter().map(|(name, number)| format!("{name} = {number};"));
        text + &format!("enum E {{ {} }}\n", values.collect::<Vec<_>>().join(" "))
    }

    fn oneof(&self, field: &Field) -> Option<&'static str> {
        field.oneof.filter(|_| !field.is_map() && field.label != "repeated")
    }

    fn definition(&self, strict: bool) -> Definition {
        Definition { content: self.text(), message: Some("A".into()), strict }
    }
}

impl Field {
    fn is_map(&self) -> bool {
        self.kind.starts_with("map")
    }

    fn line(&self, label: &str) -> String {
        let json_name = self.json_name.map(|name| format!(" [json_name = \"{name}\"]")).unwrap_or_default();
        format!("  {label} {} {} = {}{json_name};\n", self.kind, self.name, self.number)
    }
}

fn fields() -> impl Strategy<Value = Field> {
    let label = select(vec!["", "", "optional", "repeated", "required"]);
    let json_name = prop::option::weighted(0.1, select(NAMES.to_vec()));
    let oneof = prop::option::weighted(0.3, select(vec!["o", "p"]));
    (0..2_usize, select(NAMES.to_vec()), 1..8_u32, select(KINDS.to_vec()), label, json_name, oneof).prop_map(
        |(message, name, number, kind, label, json_name, oneof)| Field {
            message,
            name,
            number,
            kind,
            label,
            json_name,
            oneof,
        },
    )
}

fn schemas() -> impl Strategy<Value = Schema> {
    let values = prop::collection::vec((select(vec!["X", "Y", "W"]), 1..5_i32), 0..3);
    (any::<[bool; 2]>(), prop::collection::vec(fields(), 1..7), values).prop_map(
        |([is_three, strict], fields, values)| {
            let mut schema =
                Schema { is_three, strict, fields: Vec::new(), reserved: Vec::new(), values: vec![("Z", 0)] };
            fields.into_iter().for_each(|field| schema.add(field));
            for (name, number) in values {
                if schema.values.iter().all(|(other, taken)| *other != name && *taken != number) {
                    schema.values.push((name, number));
                }
            }
            schema
        },
    )
}

/// How a schema becomes the next version of itself.
#[derive(Debug, Clone)]
enum Change {
    Add(Field),
    Remove(Index, bool),
    Replace(Index, Field, u8),
    Value(&'static str, i32, bool),
    Syntax,
    Strict,
}

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => fields().prop_map(Change::Add),
        3 => (any::<Index>(), any::<bool>()).prop_map(|(at, reserve)| Change::Remove(at, reserve)),
        6 => (any::<Index>(), fields(), 0..6_u8).prop_map(|(at, field, part)| Change::Replace(at, field, part)),
        2 => (select(vec!["X", "Y", "W"]), 1..5_i32, any::<bool>()).prop_map(|(name, number, add)| Change::Value(name, number, add)),
        1 => Just(Change::Syntax),
        1 => Just(Change::Strict),
    ]
}

impl Schema {
    /// Adds a field unless its name or number is taken.
    fn add(&mut self, field: Field) {
        let is_taken = |other: &Field| {
            other.message == field.message && (other.name == field.name || other.number == field.number)
        };
        let is_reserved = self.reserved.contains(&(field.message, field.number));
        if !self.fields.iter().any(is_taken) && !is_reserved {
            self.fields.push(field);
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Add(field) => self.add(field),
            Change::Syntax => self.is_three = !self.is_three,
            Change::Strict => self.strict = !self.strict,
            Change::Value(name, number, true) => self.values.push((name, number)),
            Change::Value(name, ..) => self.values.retain(|(other, _)| *other != name),
            Change::Remove(..) | Change::Replace(..) if self.fields.is_empty() => {}
            Change::Remove(at, reserve) => {
                let field = self.fields.remove(at.index(self.fields.len()));
                if reserve {
                    self.reserved.push((field.message, field.number));
                }
            }
            Change::Replace(at, with, part) => {
                let at = at.index(self.fields.len());
                let field = &mut self.fields[at];
                match part {
                    0 => field.name = with.name,
                    1 => field.number = with.number,
                    2 => field.kind = with.kind,
                    3 => field.label = with.label,
                    4 => field.json_name = with.json_name,
                    _ => field.oneof = with.oneof,
                }
            }
        }
    }
}

/// A validator, or nothing where the language does not allow the schema.
fn compile(schema: &Schema, strict: bool) -> Option<Box<dyn Validator>> {
    Proto.compile(&schema.definition(strict)).ok()
}

fn is_valid(validator: &dyn Validator, bytes: &[u8], format: Format) -> bool {
    validator.validate(Document { bytes, format }).is_valid()
}

/// A message in both formats, as it is and changed.
fn documents(message: &DynamicMessage, edits: &[(u8, u16, u8)]) -> Vec<(Vec<u8>, Format)> {
    let mut json = serde_json::Serializer::new(Vec::new());
    let binary = message.encode_to_vec();
    let mut all = vec![(binary.clone(), Format::Protobuf)];
    let mut changed = binary;
    mutate(&mut changed, edits);
    all.push((changed, Format::Protobuf));
    // Enum numbers without a name and the like have no JSON.
    if message.serialize_with_options(&mut json, &SerializeOptions::new()).is_ok() {
        let text = json.into_inner();
        let mut changed = text.clone();
        mutate_text(&mut changed, edits);
        all.extend([(text, Format::Json), (changed, Format::Json)]);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_compatible_accepts_what_was_accepted(
        schema in schemas(),
        changes in prop::collection::vec(changes(), 1..3),
        rolls in prop::collection::vec(prop::collection::vec(any::<u32>(), 0..40), 6),
        edits in prop::collection::vec(any::<(u8, u16, u8)>(), 0..3),
    ) {
        let mut changed = schema.clone();
        changes.into_iter().for_each(|change| changed.change(change));
        let (Some(before), Some(after)) = (compile(&schema, schema.strict), compile(&changed, changed.strict)) else {
            return Ok(());
        };
        let comparison = Proto.compare(&schema.definition(schema.strict), &changed.definition(changed.strict)).unwrap();
        if comparison.verdict() != Verdict::Compatible {
            return Ok(());
        }
        // What the last version did not know is no business of it: a field that is added may give it a meaning.
        let known = compile(&schema, true).unwrap();
        let descriptor = descriptor(&schema.text(), "A");
        for rolls in &rolls {
            let message = make(&descriptor, &mut Dice(rolls.iter()), 3);
            for (bytes, format) in documents(&message, &edits) {
                if is_valid(&*before, &bytes, format) && is_valid(&*known, &bytes, format) {
                    prop_assert!(is_valid(&*after, &bytes, format), "{}\n{}\n{:?}\n{}", schema.text(), changed.text(),
                        comparison.changes(), String::from_utf8_lossy(&bytes));
                }
            }
        }
    }
}
