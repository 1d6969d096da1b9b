//! Protocol Buffers against two other judges: `prost-reflect`, on documents that proptest makes, and Python's `protobuf`,
//! on the documents of `proto/cases.json` (made by `proto/make_fixtures.py`). Where a verdict differs it has to be
//! expected, with a reason.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use prost_reflect::prost::Message as _;
use prost_reflect::{
    DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage as _,
    SerializeOptions, Value,
};
use tidegate_schema::proto::Proto;
use tidegate_schema::{Definition, Document, Format, Language as _, Report, Validator};

#[path = "proto/messages.rs"]
mod messages;

use messages::{Dice, descriptor, make, mutate, mutate_text};

const ALL3: &str = include_str!("proto/all3.proto");
const OLD2: &str = include_str!("proto/old2.proto");
const CASES: &str = include_str!("proto/cases.json");

/// Cases on which Python's verdict differs from ours, below the reason: which of the verdicts, and the name of the case.
const EXCEPTIONS: &str = include_str!("proto/exceptions.txt");

fn validator(content: &str, message: &str, strict: bool) -> Box<dyn Validator> {
    let definition = Definition { content: content.into(), message: Some(message.into()), strict };
    Proto.compile(&definition).unwrap()
}

fn validate(validator: &dyn Validator, bytes: &[u8], format: Format) -> Report {
    validator.validate(Document { bytes, format })
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

#[test]
fn python_agrees() {
    let compile = |content, message| [false, true].map(|strict| validator(content, message, strict));
    let schemas = BTreeMap::from([("all3", compile(ALL3, "fixtures.All")), ("old2", compile(OLD2, "fixtures.Old"))]);
    let mut expected = BTreeSet::new();
    for line in EXCEPTIONS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (mode, case) = line.split_once(' ').unwrap();
        let modes = if mode == "both" { &["lenient", "strict"][..] } else { &[mode] };
        expected.extend(modes.iter().map(|mode| format!("{mode} {case}")));
    }
    type Case = (bool, bool, String, String, String, String);
    let cases = serde_json::from_str::<Vec<Case>>(CASES).unwrap();
    assert!(cases.len() > 400, "{}", cases.len());
    let mut surprises = Vec::new();
    for (lenient, strict, schema, format, name, content) in &cases {
        let (bytes, format_of) = match format.as_str() {
            "binary" => (bytes_of(content), Format::Protobuf),
            _ => (content.as_bytes().to_vec(), Format::Json),
        };
        let name = if name.is_empty() { content.replace('\n', "\\n") } else { name.clone() };
        for ((mode, theirs), validator) in [("lenient", lenient), ("strict", strict)].iter().zip(&schemas[&**schema]) {
            let report = validate(&**validator, &bytes, format_of);
            if report.is_valid() != **theirs {
                let key = format!("{mode} {schema} {format} {name}");
                if !expected.remove(&key) {
                    surprises.push(format!("{key} | Python: {theirs}, here: {:?}", report.violations().first()));
                }
            }
        }
    }
    assert!(surprises.is_empty(), "{} unexpected differences:\n{}", surprises.len(), surprises.join("\n"));
    assert!(expected.is_empty(), "no longer different: {expected:#?}");
}

/// What prost-reflect says, which knows nothing of required fields.
fn decodes(descriptor: &MessageDescriptor, bytes: &[u8]) -> bool {
    DynamicMessage::decode(descriptor.clone(), bytes).is_ok()
}

/// A message twice: as prost-reflect knows it, and compiled here, lenient and strict.
struct Schemas {
    descriptor: MessageDescriptor,
    lenient: Box<dyn Validator>,
    strict: Box<dyn Validator>,
}

impl Schemas {
    fn new(content: &str, message: &str) -> Self {
        let [lenient, strict] = [false, true].map(|strict| validator(content, message, strict));
        Self { descriptor: descriptor(content, message), lenient, strict }
    }

    /// What we say without required fields.
    fn accepts(&self, bytes: &[u8]) -> bool {
        let report = validate(&*self.lenient, bytes, Format::Protobuf);
        report.violations().iter().all(|one| one.message.contains("the required field is missing"))
    }

    /// Whether prost-reflect is no judge of a document. It refuses fields with another wire type than declared, which are
    /// unknown fields; it reads maps as lengths and bytes whatever their wire type, and it reads long keys.
    fn is_unclear(&self, bytes: &[u8]) -> bool {
        const MAPS: [(&str, &str); 8] = [
            ("4", "children"),
            ("10", "parts_by_name"),
            ("11", "sizes_by_number"),
            ("41", "by_string"),
            ("42", "by_int"),
            ("43", "by_bool"),
            ("44", "by_fixed"),
            ("45", "by_sint"),
        ];
        let report = validate(&*self.strict, bytes, Format::Protobuf);
        report.violations().iter().any(|one| {
            let message = one.message.as_str();
            let ended = message.strip_prefix("the end of group ").and_then(|rest| rest.split(' ').next());
            let field = one.path.rsplit('.').next().unwrap_or_default();
            let is_map = MAPS.iter().any(|(number, name)| ended == Some(*number) || field == *name);
            is_map || message.contains(" is framed as ") || message.starts_with("a key is longer")
        })
    }
}

/// Required fields that a decoded message lacks, as prost-reflect merged it.
fn lacks(message: &DynamicMessage) -> u64 {
    fn of_value(value: &Value) -> u64 {
        match value {
            Value::Message(message) => lacks(message),
            Value::List(values) => values.iter().map(of_value).sum(),
            Value::Map(values) => values.values().map(of_value).sum(),
            _ => 0,
        }
    }
    let is_set = |field: &FieldDescriptor| match (field.kind(), &*message.get_field(field)) {
        // A value that a closed enum does not have is an unknown field.
        (Kind::Enum(kind), Value::EnumNumber(number)) => message.has_field(field) && kind.get_value(*number).is_some(),
        _ => message.has_field(field),
    };
    let required = message.descriptor().fields().filter(|field| field.is_required() && !is_set(field)).count() as u64;
    let fields = message.fields().map(|(_, value)| of_value(value)).sum::<u64>();
    required + fields + message.extensions().map(|(_, value)| of_value(value)).sum::<u64>()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn prost_reflect_agrees_on_binary(
        dice in prop::collection::vec(any::<u32>(), 0..120),
        changes in prop::collection::vec(any::<(u8, u16, u8)>(), 0..4),
        is_old in any::<bool>(),
    ) {
        thread_local! {
            static SCHEMAS: [Schemas; 2] = [Schemas::new(ALL3, "fixtures.All"), Schemas::new(OLD2, "fixtures.Old")];
        }
        SCHEMAS.with(|schemas| {
            let schemas = &schemas[usize::from(is_old)];
            let mut bytes = make(&schemas.descriptor, &mut Dice(dice.iter()), 3).encode_to_vec();
            if changes.is_empty() {
                let report = validate(&*schemas.lenient, &bytes, Format::Protobuf);
                prop_assert!(report.is_valid(), "{:?}", report);
            }
            mutate(&mut bytes, &changes);
            if schemas.is_unclear(&bytes) {
                return Ok(());
            }
            let theirs = DynamicMessage::decode(schemas.descriptor.clone(), bytes.as_slice());
            let ours = schemas.accepts(&bytes);
            prop_assert!(ours == theirs.is_ok(), "{:x?}: {:?}, {:?}", bytes, theirs.is_ok(),
                validate(&*schemas.lenient, &bytes, Format::Protobuf));
            if let (true, Ok(message)) = (ours, theirs) {
                let report = validate(&*schemas.lenient, &bytes, Format::Protobuf);
                let (here, there) = (report.total(), lacks(&message));
                // prost-reflect lets an unknown value of a closed enum replace a known one.
                let strict = validate(&*schemas.strict, &bytes, Format::Protobuf);
                let is_replaced = strict.violations().iter().any(|one| one.message.contains("closed enum"));
                prop_assert!(here == there || is_replaced && here < there, "{:x?}: {} {:?}", bytes, there, report);
            }
            Ok(())
        })?;
    }

    #[test]
    fn prost_reflect_agrees_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        thread_local! {
            static SCHEMAS: Schemas = Schemas::new(ALL3, "fixtures.All");
        }
        SCHEMAS.with(|schemas| {
            let is_same = schemas.accepts(&bytes) == decodes(&schemas.descriptor, &bytes);
            prop_assert!(is_same || schemas.is_unclear(&bytes), "{:x?}", bytes);
            Ok(())
        })?;
    }

    #[test]
    fn prost_reflect_agrees_on_json(
        dice in prop::collection::vec(any::<u32>(), 0..120),
        changes in prop::collection::vec(any::<(u8, u16, u8)>(), 0..3),
        strict in any::<bool>(),
    ) {
        thread_local! {
            static SCHEMA: (MessageDescriptor, [Box<dyn Validator>; 2]) =
                (descriptor(ALL3, "fixtures.All"), [false, true].map(|strict| validator(ALL3, "fixtures.All", strict)));
        }
        SCHEMA.with(|(descriptor, validators)| {
            let message = make_plain(descriptor, &mut Dice(dice.iter()));
            let mut to = serde_json::Serializer::new(Vec::new());
            message.serialize_with_options(&mut to, &SerializeOptions::new()).unwrap();
            let mut bytes = to.into_inner();
            mutate_text(&mut bytes, &changes);
            let options = DeserializeOptions::new().deny_unknown_fields(strict);
            let mut from = serde_json::Deserializer::from_slice(&bytes);
            let theirs = DynamicMessage::deserialize_with_options(descriptor.clone(), &mut from, &options);
            let theirs = theirs.is_ok() && from.end().is_ok();
            let report = validate(&*validators[usize::from(strict)], &bytes, Format::Json);
            if changes.is_empty() {
                prop_assert!(report.is_valid() && theirs, "{} {:?}", String::from_utf8_lossy(&bytes), report);
            }
            // We are stricter in a few things, and never more lenient.
            let stricter = ["not UTF-8", "occurs twice", "lowerCamelCase", "a moment", "range of", "a whole number"];
            let is_stricter = report.violations().iter().all(|one| stricter.iter().any(|part| one.message.contains(part)));
            prop_assert!(report.is_valid() == theirs || (theirs && is_stricter),
                "{}: prost-reflect {}, here {:?}", String::from_utf8_lossy(&bytes), theirs, report);
            Ok(())
        })?;
    }
}

/// A message whose well-known types hold what JSON can say.
fn make_plain(descriptor: &MessageDescriptor, dice: &mut Dice<'_>) -> DynamicMessage {
    let mut message = make(descriptor, dice, 2);
    let names = ["at", "lasting", "mask", "object", "value", "list", "any", "times"];
    for name in names {
        message.clear_field_by_name(name);
    }
    fn clear(message: &mut DynamicMessage, names: &[&str]) {
        let is_inner = |message: &DynamicMessage| message.descriptor().full_name().starts_with("fixtures.");
        let inner = message.descriptor().fields().collect::<Vec<_>>();
        for field in inner {
            if names.contains(&field.name()) {
                message.clear_field(&field);
            } else if message.has_field(&field) {
                match message.get_field_mut(&field) {
                    Value::Message(inner) if is_inner(inner) => clear(inner, names),
                    Value::List(values) => {
                        values.iter_mut().filter_map(Value::as_message_mut).for_each(|one| clear(one, names))
                    }
                    Value::Map(values) => {
                        values.values_mut().filter_map(Value::as_message_mut).for_each(|one| clear(one, names))
                    }
                    _ => {}
                }
            }
        }
    }
    clear(&mut message, &names);
    message
}
